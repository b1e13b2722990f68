"""Drains with force, volumes and API errors, per row of the conformance table."""

from __future__ import annotations

import pytest

from ccm.base import clock
from ccm.kube.errors import KubeError, ServerError, Unreachable
from ccm.machines.drain import DrainState
from ccm.testing.clock import advance, settle
from tests.unit.controllers.drains import (
    ATTACHMENTS,
    PODS,
    SLOP_S,
    Drains,
    drained,
    plain,
    with_volumes,
)

pytestmark = pytest.mark.virtual_time


# --- force ----------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-18")
@pytest.mark.parametrize(
    ("conditions", "since_s", "forced"),
    [
        ({"Ready": "False"}, 360, True),
        ({"Ready": "Unknown"}, 360, True),
        ({"Ready": "True", "ReadonlyFilesystem": "True"}, 360, True),
        ({"Ready": "False", "ReadonlyFilesystem": "True"}, 360, True),
        ({"Ready": "True", "ReadonlyFilesystem": "True"}, 120, False),
        ({"Ready": "True", "ReadonlyFilesystem": "False"}, 360, False),
    ],
)
async def test_drain_is_forced_if_the_node_was_unhealthy_for_five_minutes(
    world: Drains, conditions: dict[str, str], since_s: float, forced: bool
) -> None:
    world.pod("p0")
    world.sick(since_s=since_s, **conditions)
    async with world.draining():
        world.start()
        await advance(1)

        assert world.progress().forced is forced
        assert (world.pods() == []) is forced
        assert world.evictions() == (not forced)


@pytest.mark.row("machine-drain-18")
async def test_drain_is_forced_five_minutes_after_the_node_turns_unhealthy(world: Drains) -> None:
    """The kubelet terminates no Pod any more; the drain uses force five minutes later."""
    plain(world, 2, grace_s=600)
    async with world.started():
        await advance(2)
        world.sick(Ready="Unknown")
        await advance(290)
        assert (world.state(), len(world.pods())) == (DrainState.RUNNING, 2)
        await advance(11)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])
        assert world.progress().forced


@pytest.mark.row("machine-drain-18")
async def test_node_health_is_confirmed_by_a_read_before_force(world: Drains) -> None:
    """The cache may be stale, so that the node is read before force is used."""
    world.pod("p0", grace_s=60)
    well = world.node_object()
    async with world.draining():
        await advance(1)
        world.sick(since_s=360, Ready="Unknown")
        world.server.newer["/api/v1/nodes/m0"] = well
        world.start()
        await advance(2)
        assert (world.progress().forced, world.pods()) == (False, ["p0"])
        del world.server.newer["/api/v1/nodes/m0"]
        await advance(5)
        assert (world.progress().forced, world.pods()) == (True, [])


@pytest.mark.row("machine-drain-19")
async def test_drain_timeout_deletes_the_remaining_pods_by_force(world: Drains) -> None:
    plain(world, 2)
    with_volumes(world, ("a",), ("b",), grace_s=3000)
    world.moves = None
    async with world.started(timeout_s=120):
        await advance(119)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["v0", "v1"])
        await advance(2)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])
        assert world.progress().forced
        assert world.progress().message == "deleted by force 2 of 2 Pods"


@pytest.mark.row("machine-drain-19")
async def test_force_requested_during_a_drain_takes_effect_at_once(world: Drains) -> None:
    world.pod("p0", grace_s=3000)
    async with world.started():
        await advance(5)
        world.start(force=True)
        await advance(1)

        assert (world.state(), world.pods(), world.progress().forced) == (DrainState.DONE, [], True)


# --- volumes --------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-20")
async def test_drain_continues_after_the_detach_timeout() -> None:
    world = Drains(detach_timeout_s=60.0)
    with_volumes(world, ("a",), ("b",))
    async with world.started():
        await advance(60)
        assert world.pods() == ["v1"]
        assert "Pod default/v0 waits for pv-a to be detached" in world.progress().message
        await advance(75)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])

    assert len(world.attached("m0")) == 2


@pytest.mark.row("machine-drain-21")
@pytest.mark.parametrize(
    ("owner", "attaches", "least_s", "most_s"),
    [("StatefulSet", True, 9, 12), ("StatefulSet", False, 35, 40), ("", False, 5, 9)],
    ids=["attached", "never-attached", "nobody-makes-it-anew"],
)
async def test_drain_waits_for_volume_reattachment_up_to_its_timeout(
    owner: str, attaches: bool, least_s: float, most_s: float
) -> None:
    world = Drains(reattach_timeout_s=30.0)
    world.node("m1")
    world.volume("a")
    world.pod("v0", claims=("a",), owner=owner)
    if attaches:
        world.moves = 2.0
    async with world.started():
        if not attaches:
            await advance(6)
            world.detach("a")
        began = clock.monotonic() - (0 if attaches else 6)
        while world.state() is DrainState.RUNNING and clock.monotonic() - began < most_s:
            await advance(0.5)
        assert least_s <= clock.monotonic() - began <= most_s
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-22")
async def test_pods_with_volumes_are_evicted_in_order_of_priority(world: Drains) -> None:
    for name in ("a", "b", "c"):
        world.volume(name)
    world.pod("low", claims=("a",), priority=-5)
    world.pod("none", claims=("b",))
    world.pod("high", claims=("c",), priority=1000)
    world.moves = 0.5
    gone: list[str] = []
    async with world.started():
        for _ in range(60):
            left = world.pods()
            gone += [one for one in ("high", "low", "none") if one not in left + gone]
            await advance(0.5)

    assert gone == ["high", "none", "low"]


@pytest.mark.row("machine-drain-23")
@pytest.mark.parametrize(("grace_s", "ends_s"), [(0, 1), (None, 30)])
async def test_drain_waits_for_a_zero_or_default_grace_period(
    world: Drains, grace_s: int | None, ends_s: float
) -> None:
    world.pod("p0", grace_s=grace_s)
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=40)

    assert ends_s - 1 <= took_s <= ends_s + 4


@pytest.mark.row("machine-drain-24")
async def test_drain_completes_when_its_node_is_deleted(world: Drains) -> None:
    with_volumes(world, ("a",), ("b",))
    async with world.started():
        await advance(7)
        assert "to be detached" in world.progress().message
        world.server.drop("/api/v1/nodes/m0")
        for name in ("a", "b"):
            world.server.drop(f"{ATTACHMENTS}/{name}-m0")
            world.attach(name, node="m1")
        await advance(5)

        assert (world.state(), world.pods()) == (DrainState.DONE, [])


# --- the node and the API server --------------------------------------------------------------


@pytest.mark.row("machine-drain-25")
async def test_drain_sets_the_terminating_condition_on_the_node(world: Drains) -> None:
    async with world.draining():
        world.start()
        await settle()

    found = {one["type"]: one for one in world.node_object()["status"]["conditions"]}
    assert (found["Terminating"]["status"], found["Terminating"]["reason"]) == ("True", "ScaleDown")
    assert world.server.writes("nodes") == 2


@pytest.mark.row("machine-drain-25")
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("/nodes/m0/status", "failure in update of node conditions - Failed to update node"),
        ("/nodes/m0", "- Failed to update node"),
    ],
)
async def test_node_write_errors_fail_the_drain_except_forced_status_writes(
    world: Drains, fails: str, said: str, force: bool
) -> None:
    world.pod("p0")
    refusal = ServerError(status=500, reason="InternalError", message="Failed to update node")
    world.server.refuse = lambda method, path: (
        refusal if method == "PATCH" and path.endswith(fails) else None
    )
    async with world.draining():
        world.start(force=force)
        await settle()

        if force and fails.endswith("status"):
            assert (world.state(), world.pods()) == (DrainState.DONE, [])
        else:
            assert world.state() is DrainState.FAILED
            assert world.progress().message.startswith(said)
            assert world.progress().forced is force
            assert world.pods() == ["p0"]


@pytest.mark.row("machine-drain-27")
@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("cut", kind="reset"),
        ServerError(status=503, reason="ServiceUnavailable", message="x"),
    ],
    ids=["cut", "503"],
)
async def test_api_server_errors_do_not_consume_eviction_retries(
    world: Drains, trouble: KubeError
) -> None:
    """Server errors and lost connections are retried beyond the limit of one retry."""
    world.pod("p0", grace_s=1)
    async with world.draining():
        await advance(1)
        world.server.refuse = lambda _, path: trouble if "/eviction" in path else None
        world.start(retries=1)
        await advance(120)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["p0"])
        world.server.answers()
        await advance(5 + 1 + SLOP_S)
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-27")
async def test_pod_that_does_not_terminate_is_named_in_the_failure(world: Drains) -> None:
    world.pod("p0")
    world.pod("stuck", metadata={"finalizers": ["example.com/hold"]})
    async with world.started(timeout_s=100):
        await advance(36)
        assert world.state() is DrainState.FAILED
        assert world.progress().message == (
            "- Pods that were evicted have not ended in time: default/stuck"
        )
        world.server.patch(f"{PODS}/stuck", {"metadata": {"finalizers": None}})
        await settle()
        world.start(timeout_s=60)
        await settle()
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-28")
async def test_drain_of_fifty_nodes_needs_few_requests(world: Drains) -> None:
    """The drains take little longer than the grace period, without polling reads."""
    for number in range(50):
        world.machine(f"m{number}")
        if number:
            world.node(f"m{number}")
        for pod in range(2):
            world.pod(f"p{number}-{pod}", node=f"m{number}")
    async with world.draining():
        await advance(1)
        before = world.server.requests.total()
        watches = len(world.server.watches)
        for number in range(50):
            world.start(f"m{number}")
        await advance(5 + SLOP_S)
        assert {world.state(f"m{number}") for number in range(50)} == {DrainState.DONE}
        assert len(world.server.watches) == watches

    assert (world.pods(), world.evictions()) == ([], 100)
    assert world.server.reads("pods") == 0
    ends = sum(count for (verb, _), count in world.server.requests.items() if verb == "DELETE")
    assert world.server.requests.total() - before - ends <= 100 + 2 * 50 + 1 + 2

"""The drain of a node, row by row; before an API server in memory, with Pods that run and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.kube.errors import KubeError, ServerError, Unreachable
from ccm.machines.draining import DrainState
from ccm.testing.clock import advance, settle
from tests.unit.controllers.drains import ATTACHMENTS, BUDGETS, PODS, Drains

pytestmark = pytest.mark.virtual_time

SLOP_S = 1.0
"""Kubelets come a little late, and never early."""


async def drained(world: Drains, *, within_s: float) -> float:
    """Let a drain begin and end; the seconds it took."""
    began = clock.monotonic()
    world.start()
    for _ in range(int(within_s * 10)):
        await advance(0.1)
        if world.state() is not DrainState.RUNNING:
            break
    assert world.state() is DrainState.DONE, world.progress()
    return clock.monotonic() - began


def plain(world: Drains, count: int, **more: Any) -> None:
    for number in range(count):
        world.pod(f"p{number}", **more)


def with_volumes(world: Drains, *claims: tuple[str, ...], **more: Any) -> None:
    for name in sorted({one for each in claims for one in each}):
        world.volume(name)
    for number, each in enumerate(claims):
        world.pod(f"v{number}", claims=each, owner="StatefulSet", **more)


def both(world: Drains, **more: Any) -> None:
    plain(world, 10, **more)
    with_volumes(world, ("a",), ("b",), **more)


def unhealthy(world: Drains) -> None:
    """A Pod that is not ready: as long as there is one, no budget is misconfigured."""
    world.node("m2", ready="False")
    world.pod("unhealthy", node="m2")


# --- the reference's table ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "evicts", "evictions", "at_least_s", "at_most_s"),
    [
        pytest.param(
            lambda world: plain(world, 10), False, 0, 5, 5 + SLOP_S,
            marks=pytest.mark.row("machine-drain-01"), id="plain-without-api",
        ),
        pytest.param(
            lambda world: plain(world, 10), True, 10, 5, 5 + SLOP_S,
            marks=pytest.mark.row("machine-drain-02"), id="plain",
        ),
        pytest.param(
            lambda world: with_volumes(world, ("a",), ("b",)), True, 2, 12, 20,
            marks=[pytest.mark.row("machine-drain-03"), pytest.mark.row("machine-drain-04")],
            id="exclusive",
        ),
        pytest.param(
            lambda world: with_volumes(world, ("a",), ("b",)), False, 0, 12, 20,
            marks=pytest.mark.row("machine-drain-03"), id="exclusive-without-api",
        ),
        pytest.param(
            lambda world: with_volumes(world, ("a", "b")), True, 1, 8, 14,
            marks=pytest.mark.row("machine-drain-05"), id="two-of-one",
        ),
        *(
            pytest.param(
                lambda world: with_volumes(world, ("a",), ("a",)), evicts, 2 * evicts, 10,
                10 + 2 * SLOP_S, marks=pytest.mark.row("machine-drain-06"), id=f"shared-{evicts}",
            )
            for evicts in (True, False)
        ),
        *(
            pytest.param(
                lambda world: with_volumes(world, ("a", "c"), ("b", "c")), evicts, 2 * evicts, 12,
                22, marks=pytest.mark.row("machine-drain-07"), id=f"both-kinds-{evicts}",
            )
            for evicts in (True, False)
        ),
        *(
            pytest.param(
                both, evicts, 12 * evicts, 12, 20,
                marks=pytest.mark.row("machine-drain-08"), id=f"twelve-{evicts}",
            )
            for evicts in (True, False)
        ),
        pytest.param(
            lambda world: both(world, grace_s=100), True, 12, 200, 230,
            marks=pytest.mark.row("machine-drain-10"), id="long-grace",
        ),
    ],
)  # fmt: skip
async def test_pods_leave(
    setup: Callable[[Drains], None],
    evicts: bool,
    evictions: int,
    at_least_s: float,
    at_most_s: float,
) -> None:
    world = Drains(reattach_timeout_s=30.0)
    world.node("m1")
    world.server.evicts = evicts
    world.moves = 1.0
    setup(world)
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=at_most_s)

    assert (world.pods(), world.evictions()) == ([], evictions)
    assert at_least_s <= took_s <= at_most_s
    assert world.node_object()["spec"]["unschedulable"] is True


@pytest.mark.row("machine-drain-09")
@pytest.mark.parametrize("evicts", ["yes", "no", "failing"])
async def test_force_has_regard_for_nothing(evicts: str) -> None:
    world = Drains()
    world.server.evicts = evicts != "no"
    if evicts == "failing":
        trouble = ServerError(status=500, reason="InternalError", message="x")
        world.server.refuse = lambda _, path: trouble if "/eviction" in path else None
    both(world)
    world.budget(minAvailable=12)
    async with world.draining():
        await advance(1)
        began = clock.monotonic()
        world.start(force=True)
        await settle()
        assert (world.state(), world.progress().forced) == (DrainState.DONE, True)
        assert clock.monotonic() - began < 1

    assert (world.pods(), world.evictions()) == ([], 0)


@pytest.mark.row("machine-drain-11")
@pytest.mark.parametrize("case", ["foreign", "no-claim", "no-volume", "unbound", "unknown"])
async def test_volumes_that_are_not_waited_for(case: str) -> None:
    world = Drains()
    world.volume("a", driver="theirs" if case == "foreign" else "ours")
    if case == "no-claim":
        world.server.drop("/api/v1/namespaces/default/persistentvolumeclaims/a")
    elif case == "no-volume":
        world.server.drop("/api/v1/persistentvolumes/pv-a")
    elif case == "unbound":
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        world.server.patch(f"{claims}/a", {"spec": {"volumeName": None}})
    elif case == "unknown":
        world.driver.faults["get_volume_ids"] = errors.Unimplemented("x")
    world.pod("v0", claims=("a",), owner="StatefulSet")
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=10)

    assert took_s <= 5 + SLOP_S
    assert world.attached("m0") != []


@pytest.mark.row("machine-drain-11")
async def test_a_node_without_pods() -> None:
    world = Drains()
    async with world.draining():
        world.start()
        await settle()

        assert world.state() is DrainState.DONE
        assert world.progress().said == "no Pods to evict"


# --- budgets --------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-12")
@pytest.mark.parametrize(
    ("status", "misconfigured"),
    [
        ({"disruptionsAllowed": 1}, False),
        ({"expectedPods": 0, "currentHealthy": 0}, False),
        ({"observedGeneration": 0}, False),
        ({"disruptedPods": {"other": "2026-01-01T00:00:00Z"}}, False),
        ({"currentHealthy": 2}, False),
        ({}, True),
    ],
    ids=["healthy", "empty", "not-seen", "disrupted", "unhealthy", "nothing-allowed"],
)
async def test_a_misconfigured_budget(status: dict[str, Any], misconfigured: bool) -> None:
    world = Drains()
    plain(world, 1)
    world.budget(minAvailable=3)
    counted = {
        "observedGeneration": 1,
        "expectedPods": 3,
        "currentHealthy": 3,
        "desiredHealthy": 3,
        "disruptionsAllowed": 0,
    }
    async with world.draining(counting=False):
        await advance(1)
        world.server.patch(f"{BUDGETS}/web/status", {"status": counted | status})
        world.start()
        await advance(2)
        said = "PodDisruptionBudget default/web is misconfigured"
        assert (world.state() is DrainState.FAILED) is misconfigured
        assert (said in world.progress().said) is misconfigured
        assert world.progress().said.startswith("- ") is misconfigured


@pytest.mark.row("machine-drain-13")
async def test_pods_that_stay() -> None:
    world = Drains()
    world.pod("mirror", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    world.pod("daemon", owner="DaemonSet")
    world.pod("elsewhere", node="m1")
    world.node("m1")
    world.pod("alone")
    async with world.draining():
        await advance(1)
        await drained(world, within_s=10)

    assert world.pods() == ["daemon", "elsewhere", "mirror"]


@pytest.mark.row("machine-drain-14")
async def test_a_budget_that_is_freed_later() -> None:
    world = Drains()
    plain(world, 2, grace_s=1)
    unhealthy(world)
    world.node("m1")
    world.budget(minAvailable=2)
    world.pod("new", node="m1", metadata={"labels": {"app": "web"}})
    async with world.draining():
        await advance(1)
        world.start()
        await advance(60)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["new", "p1", "unhealthy"])
        assert "Pod default/p1 waits for its disruption budget" in world.progress().said
        assert "needs 2 healthy pods and has 2 currently" in world.progress().said
        assert world.evictions() <= 2 + 1 + 60 / 20 + 1
        before = world.evictions()
        world.pod("newer", node="m1", metadata={"labels": {"app": "web"}})
        await advance(2 + SLOP_S)
        assert (world.state(), world.pods()) == (DrainState.DONE, ["new", "newer", "unhealthy"])

    assert world.evictions() == before + 1
    reasons = [reason for reason, _ in world.events]
    assert reasons == ["NodeDrainBlocked", "NodeDrained"]


@pytest.mark.row("machine-drain-14")
async def test_a_budget_that_is_deleted() -> None:
    world = Drains()
    plain(world, 2)
    unhealthy(world)
    world.budget(minAvailable=2)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(2)
        assert world.pods() == ["p0", "p1", "unhealthy"]
        world.server.drop(f"{BUDGETS}/web")
        await advance(5 + SLOP_S)
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-15")
@pytest.mark.parametrize("claims", [(), ("a",)], ids=["without-volume", "with-volume"])
async def test_patience_ends(claims: tuple[str, ...]) -> None:
    world = Drains()
    for one in claims:
        world.volume(one)
    world.moves = 0.5
    world.pod("p0", claims=claims)
    unhealthy(world)
    world.budget(minAvailable=5)
    async with world.draining():
        await advance(1)
        world.start(retries=3)
        await advance(59)
        assert (world.pods(), world.evictions()) == (["p0", "unhealthy"], 3)
        await advance(6)
        assert (world.state(), world.progress().forced) == (DrainState.DONE, False)

    assert (world.pods(), world.evictions()) == (["unhealthy"], 4)


@pytest.mark.row("machine-drain-16")
async def test_a_short_timeout_has_its_retries() -> None:
    world = Drains()
    world.pod("p0")
    unhealthy(world)
    world.budget(minAvailable=5)
    async with world.draining():
        await advance(1)
        world.start(timeout_s=9)
        await advance(8.5)
        assert (world.pods(), world.evictions()) == (["p0", "unhealthy"], 3)
        await advance(1)
        assert (world.state(), world.progress().forced) == (DrainState.DONE, True)

    assert (world.pods(), world.evictions()) == (["unhealthy"], 3)


@pytest.mark.row("machine-drain-17")
async def test_several_budgets_over_one_pod() -> None:
    world = Drains()
    world.pod("p0")
    world.budget("one", minAvailable=0)
    world.budget("two", minAvailable=0)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(2)

        assert world.state() is DrainState.FAILED
        assert "2 PodDisruptionBudgets (default/one, default/two)" in world.progress().said
        world.server.drop(f"{BUDGETS}/two")
        world.start()
        await advance(5 + SLOP_S)
        assert world.state() is DrainState.DONE


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
async def test_a_node_that_is_sick(
    conditions: dict[str, str], since_s: float, forced: bool
) -> None:
    world = Drains()
    world.pod("p0")
    world.sick(since_s=since_s, **conditions)
    async with world.draining():
        world.start()
        await advance(1)

        assert world.progress().forced is forced
        assert (world.pods() == []) is forced


@pytest.mark.row("machine-drain-18")
async def test_a_node_that_falls_ill_in_mid_drain() -> None:
    """Its kubelet ends nothing any more; five minutes later force is used, and not before."""
    world = Drains()
    plain(world, 2, grace_s=600)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(2)
        world.sick(Ready="Unknown")
        await advance(290)
        assert (world.state(), len(world.pods())) == (DrainState.RUNNING, 2)
        await advance(11)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])
        assert world.progress().forced


@pytest.mark.row("machine-drain-18")
async def test_a_node_that_is_well_again_is_asked_before_force() -> None:
    """The cache may be of before: what it says is confirmed."""
    world = Drains()
    world.pod("p0", grace_s=60)
    async with world.draining():
        world.sick(since_s=360, Ready="Unknown")
        await settle()
        world.server.patch("/api/v1/nodes/m0", {"metadata": {"labels": {"x": "y"}}})
        reads = world.server.reads("nodes")
        world.sick(Ready="True")
        world.start()
        await advance(2)

        assert not world.progress().forced
        assert world.server.reads("nodes") <= reads + 1
        assert world.pods() == ["p0"]


@pytest.mark.row("machine-drain-19")
async def test_time_is_up() -> None:
    world = Drains()
    plain(world, 2)
    with_volumes(world, ("a",), ("b",), grace_s=3000)
    world.moves = None
    async with world.draining():
        await advance(1)
        world.start(timeout_s=120)
        await advance(119)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["v0", "v1"])
        await advance(2)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])
        assert world.progress().forced
        assert world.progress().said == "deleted by force 2 of 2 Pods"


@pytest.mark.row("machine-drain-19")
async def test_force_that_is_asked_for_in_mid_drain() -> None:
    world = Drains()
    world.pod("p0", grace_s=3000)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(5)
        world.start(force=True)
        await advance(1)

        assert (world.state(), world.pods(), world.progress().forced) == (
            DrainState.DONE,
            [],
            True,
        )


# --- volumes --------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-20")
async def test_a_volume_that_never_detaches() -> None:
    world = Drains(detach_timeout_s=60.0)
    with_volumes(world, ("a",), ("b",))
    async with world.draining():
        await advance(1)
        world.start()
        await advance(60)
        assert world.pods() == ["v1"]
        assert "Pod default/v0 waits for pv-a to be detached" in world.progress().said
        await advance(75)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])

    assert len(world.attached("m0")) == 2


@pytest.mark.row("machine-drain-21")
@pytest.mark.parametrize(
    ("owner", "attaches", "least_s", "most_s"),
    [("StatefulSet", True, 9, 12), ("StatefulSet", False, 35, 40), ("", False, 5, 9)],
    ids=["attached", "never-attached", "nobody-makes-it-anew"],
)
async def test_a_volume_is_wanted_elsewhere(
    owner: str, attaches: bool, least_s: float, most_s: float
) -> None:
    world = Drains(reattach_timeout_s=30.0)
    world.node("m1")
    world.volume("a")
    world.pod("v0", claims=("a",), owner=owner)
    if attaches:
        world.moves = 2.0
    async with world.draining():
        await advance(1)
        world.start()
        if not attaches:
            await advance(6)
            world.detach("a")
        began = clock.monotonic() - (0 if attaches else 6)
        while world.state() is DrainState.RUNNING and clock.monotonic() - began < most_s:
            await advance(0.5)
        assert least_s <= clock.monotonic() - began <= most_s
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-22")
async def test_the_most_important_goes_first() -> None:
    world = Drains()
    for name in ("a", "b", "c"):
        world.volume(name)
    world.pod("low", claims=("a",), priority=-5)
    world.pod("none", claims=("b",))
    world.pod("high", claims=("c",), priority=1000)
    world.moves = 0.5
    gone = []
    async with world.draining():
        await advance(1)
        world.start()
        for _ in range(60):
            left = world.pods()
            gone += [one for one in ("high", "low", "none") if one not in left + gone]
            await advance(0.5)

    assert gone == ["high", "none", "low"]


@pytest.mark.row("machine-drain-23")
@pytest.mark.parametrize(("grace_s", "ends_s"), [(0, 1), (None, 30)])
async def test_a_pod_that_states_no_grace(grace_s: int | None, ends_s: float) -> None:
    world = Drains()
    world.pod("p0", grace_s=grace_s)
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=40)

    assert ends_s - 1 <= took_s <= ends_s + 4


@pytest.mark.row("machine-drain-24")
async def test_a_node_that_goes_in_mid_drain() -> None:
    world = Drains()
    with_volumes(world, ("a",), ("b",))
    async with world.draining():
        await advance(1)
        world.start()
        await advance(7)
        assert "to be detached" in world.progress().said
        world.server.drop("/api/v1/nodes/m0")
        for name in ("a", "b"):
            world.server.drop(f"{ATTACHMENTS}/{name}-m0")
            world.attach(name, node="m1")
        await advance(5)

        assert (world.state(), world.pods()) == (DrainState.DONE, [])


# --- the node and the API server --------------------------------------------------------------


@pytest.mark.row("machine-drain-25")
async def test_what_is_written_on_the_node() -> None:
    world = Drains()
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
async def test_a_node_that_cannot_be_written(fails: str, said: str, force: bool) -> None:
    world = Drains()
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
            assert world.progress().said.startswith(said)
            assert world.progress().forced is force
            assert world.pods() == ["p0"]


@pytest.mark.row("machine-drain-26")
async def test_a_leader_that_changes_in_mid_drain() -> None:
    """The new one takes what it finds: nothing is evicted twice, and nothing is left."""
    world = Drains()
    plain(world, 5, grace_s=20)
    with_volumes(world, ("a",), ("b",), grace_s=20)
    world.moves = 1.0
    world.node("m1")
    async with world.draining():
        await advance(1)
        world.start()
        await advance(10)
        before = world.evictions()
    async with world.draining():
        world.start()
        await advance(60)
        assert (world.state(), world.pods()) == (DrainState.DONE, [])

    assert (before, world.evictions()) == (6, 7)
    assert world.server.writes("nodes/m0") == 2


@pytest.mark.row("machine-drain-27")
@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("cut", kind="reset"),
        ServerError(status=503, reason="ServiceUnavailable", message="x"),
    ],
    ids=["cut", "503"],
)
async def test_an_api_server_in_trouble(trouble: KubeError) -> None:
    """Uses up nobody's patience."""
    world = Drains()
    world.pod("p0", grace_s=1)
    async with world.draining():
        await advance(1)
        world.server.refuse = lambda _, path: trouble if "/eviction" in path else None
        world.start(retries=1)
        await advance(120)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["p0"])
        world.server.refuse = lambda *_: None
        await advance(5 + 1 + SLOP_S)
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-27")
async def test_a_pod_that_does_not_end_is_named() -> None:
    world = Drains()
    world.pod("p0")
    world.pod("stuck", metadata={"finalizers": ["example.com/hold"]})
    async with world.draining():
        await advance(1)
        world.start(timeout_s=100)
        await advance(36)
        assert world.state() is DrainState.FAILED
        assert world.progress().said == (
            "- Pods that were evicted have not ended in time: default/stuck"
        )
        world.server.patch(f"{PODS}/stuck", {"metadata": {"finalizers": None}})
        await settle()
        world.start(timeout_s=60)
        await settle()
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-28")
async def test_fifty_nodes_at_once() -> None:
    """They take their Pods' grace and little more, and nothing is read again and again."""
    world = Drains()
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

"""Disasters of nodes: only nodes without VM are deleted, no healthy or foreign ones.

With the fixture `world`, each disaster also runs under `--node-deletion-policy=reference`, where it
must do harm.
"""

from __future__ import annotations

import itertools
from datetime import timedelta

import msgspec
import pytest

from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import Unauthenticated, Unavailable
from ccm.kube.errors import Forbidden, KubeError, ServerError, Unreachable
from ccm.model import Node, names
from ccm.testing.clock import advance, jump
from tests.disasters.nodes_world import GOING, MINUTE_S, NEW, Vms, World, set_wall_clock

pytestmark = pytest.mark.virtual_time

HALF_AN_HOUR_S = 30 * MINUTE_S


# --- one node, and a cloud that is slow to know it ------------------------------------------------


@pytest.mark.parametrize("taints", [(), (NEW,)], ids=["initialised", "waiting"])
async def test_a_new_node_is_kept_while_the_cloud_does_not_know_its_vm_yet(
    world: World, taints: tuple[object, ...]
) -> None:
    """The VM appears three seconds late. Once it is deleted, so is the node."""
    async with world.daemon():
        world.node("late", ready=False, taints=taints, young=True)  # type: ignore[arg-type]
        world.cloud.lie = lambda name: name == "late"
        await advance(3)
        world.cloud.lie = lambda _: False
        await advance(10 * MINUTE_S)
        world.unharmed()

        await world.goes("late", within_s=MINUTE_S)


async def test_an_uninitialized_node_is_kept_while_the_search_by_name_lags(
    world: World,
) -> None:
    """For ten minutes. A node whose VM never appears is deleted after that."""
    world.nodes(3)
    async with world.daemon():
        world.node("slow", ready=False, scheme=None, taints=[NEW], young=True)
        world.node("never", ready=False, scheme=None, taints=[NEW], young=True, there=False)
        world.cloud.lie = lambda name: name == "slow"
        await advance(10 * MINUTE_S)
        world.unharmed()
        assert world.held == {"slow": "new", "never": "new"}

        world.cloud.lie = lambda _: False
        await world.until_gone(["never"], within_s=6 * MINUTE_S)


async def test_a_node_is_kept_while_the_cloud_contradicts_itself(world: World) -> None:
    """Every second answer is wrong. Once the VM is deleted, so is the node."""
    world.nodes(3)
    async with world.daemon():
        world.silent("n0")
        answers = itertools.cycle([True, False])
        world.cloud.lie = lambda name: name == "n0" and next(answers)
        await advance(10 * MINUTE_S)
        world.unharmed()

        await world.tells_the_truth("n0", within_s=MINUTE_S)


async def test_a_node_recreated_before_the_delete_request_is_kept(guarded: World) -> None:
    """Same name, other UID: the DELETE fails its precondition."""
    guarded.nodes(3)
    async with guarded.daemon():
        guarded.gone("n0")
        await advance(1)
        guarded.api.drop("n0")
        guarded.node("n0", ready=False, uid="another", there=True)
        await advance(5 * MINUTE_S)
        assert "n0" in guarded.left

        await guarded.goes("n0", within_s=MINUTE_S)


# --- a cloud that denies existing VMs -------------------------------------------------------------


@pytest.mark.parametrize(("count", "silent"), [(10, 10), (10, 2), (3, 1)])
async def test_no_node_is_deleted_with_credentials_of_an_empty_project(
    world: World, count: int, silent: int
) -> None:
    """The network fails, nodes are silent, and the project has no VM.

    Few denials are no mass denial, but the cloud denies ready nodes too. With the right
    credentials, nodes without VM are deleted.
    """
    every = world.nodes(count)[:silent]
    async with world.daemon():
        world.cloud.lie = lambda _: True
        world.silent(*every)
        await advance(HALF_AN_HOUR_S + 5 * MINUTE_S)
        world.unharmed()
        assert world.held == dict.fromkeys(every, "all_denied")

        await world.tells_the_truth("n0", within_s=MINUTE_S)


async def test_a_rolling_kubelet_restart_deletes_no_node_in_an_empty_project(world: World) -> None:
    """Each node in turn is silent for a minute, and denied by the cloud."""
    every = world.nodes(12)
    async with world.daemon():
        world.cloud.lie = lambda _: True
        for name in every:
            world.silent(name)
            await advance(MINUTE_S)
            if name in world.left:
                world.silent(name, ready="True")
        world.unharmed()

        await world.tells_the_truth("n3", within_s=MINUTE_S)


async def test_no_node_is_deleted_when_the_cloud_knows_only_half_of_the_vms(world: World) -> None:
    """For twenty minutes."""
    every = world.nodes(12)
    async with world.daemon():
        world.cloud.lie = lambda name: int(name[1:]) % 2 == 1
        world.silent(*every)
        await advance(20 * MINUTE_S)
        world.unharmed()
        assert set(world.held.values()) == {"mass_denial"}
        assert len(world.held) == 6

        await world.tells_the_truth("n1", "n2", within_s=MINUTE_S)


async def test_no_node_is_deleted_when_a_gateway_answers_404_to_everything(world: World) -> None:
    """For five minutes."""
    every = world.nodes(30)
    async with world.daemon():
        world.silent(*every[:12])
        await advance(MINUTE_S)
        world.cloud.lie = lambda _: True
        await advance(5 * MINUTE_S)
        world.unharmed()

        await world.tells_the_truth("n5", within_s=MINUTE_S)


async def test_a_slow_mass_denial_deletes_no_node(world: World) -> None:
    """Answers take 7 s: the first nodes are denied twice before the others are denied once."""
    every = world.nodes(200)
    world.cloud.delay_s = 7.0
    async with world.daemon():
        world.cloud.lie = lambda name: int(name[1:]) % 2 == 1
        world.silent(*every[:10])
        await advance(13)
        world.silent(*every[10:])
        await advance(5 * MINUTE_S)
        world.unharmed()

        await world.tells_the_truth("n7", within_s=20 * MINUTE_S)


async def test_nodes_with_renamed_provider_ids_wait_for_an_annotation(world: World) -> None:
    """After an update of the provider all IDs differ, so all nodes are denied.

    The annotation allows the deletion of a single node.
    """
    every = world.nodes(10)
    async with world.daemon():
        world.silent(*every[:5])
        world.cloud.lie = lambda _: True
        await advance(35 * MINUTE_S)
        world.unharmed()

        world.gone("n0", "n1")
        world.api.put(annotated(world, "n0"))
        await world.until_gone(["n0"], within_s=MINUTE_S)
        assert world.held["n1"] == "all_denied"


def annotated(world: World, name: str) -> Node:
    node = world.api[name]
    allowed = {names.ANNOTATION_ALLOW_DELETION: "true"}
    meta = msgspec.structs.replace(node.metadata, annotations=allowed)
    return msgspec.structs.replace(node, metadata=meta)


async def test_new_nodes_in_the_wrong_project_are_not_deleted(world: World) -> None:
    """The cloud knows no node, so none was initialised; they wait for the right credentials."""
    new = [
        world.node(f"n{number}", ready=False, scheme=None, taints=[NEW], young=True).name
        for number in range(6)
    ]
    world.cloud.lie = lambda _: True
    async with world.daemon():
        await advance(40 * MINUTE_S)
        world.unharmed()
        assert world.held == dict.fromkeys(new, "all_denied")

        await world.tells_the_truth("n0", within_s=20 * MINUTE_S)


# --- time that is no time -------------------------------------------------------------------------


async def test_denials_before_and_after_an_outage_do_not_add_up(world: World) -> None:
    """An outage of forty minutes between them does not count as denial."""
    every = world.nodes(12)
    async with world.daemon():
        world.silent(*every[:5])
        world.cloud.lie = lambda name: name in every[:5]
        await advance(5 * MINUTE_S)
        world.cloud.broken = lambda _: Unavailable("down")
        await advance(40 * MINUTE_S)
        world.cloud.broken = lambda _: None
        await advance(10 * MINUTE_S)
        world.unharmed()

        await world.goes(*every[:5], within_s=HALF_AN_HOUR_S)


async def test_time_asleep_does_not_count_as_denial(world: World) -> None:
    """The machine sleeps for an hour in the middle of a mass denial."""
    every = world.nodes(12)
    async with world.daemon():
        world.silent(*every[:5])
        world.cloud.lie = lambda name: name in every[:5]
        await advance(5 * MINUTE_S)
        jump(60 * MINUTE_S)
        await advance(5 * MINUTE_S)
        world.unharmed()

        await world.goes(*every[:5], within_s=HALF_AN_HOUR_S)


async def test_a_young_node_is_kept_when_the_wall_clock_is_set_forward(world: World) -> None:
    """The node seems a day old, but its VM may not be visible yet."""
    world.nodes(3)
    async with world.daemon():
        world.node("young", ready=False, taints=[NEW], young=True)
        world.cloud.lie = lambda name: name == "young"
        set_wall_clock(timedelta(days=1))
        await advance(2 * MINUTE_S)
        world.unharmed()
        assert world.held == {"young": "young"}

        await world.goes("young", within_s=4 * MINUTE_S)


async def test_nodes_without_vm_are_deleted_when_the_wall_clock_is_set_back(guarded: World) -> None:
    """All creation times are in the future."""
    guarded.nodes(3)
    async with guarded.daemon(min_age_s=60.0):
        await advance(2 * MINUTE_S)
        set_wall_clock(timedelta(days=-20 * 365))
        await guarded.goes("n0", within_s=MINUTE_S)


async def test_the_half_hour_of_a_mass_denial_starts_again_after_a_restart(world: World) -> None:
    """25 minutes of denial, a new daemon, 25 minutes more: the nodes stay."""
    every = world.nodes(12)
    world.silent(*every[:5])
    world.cloud.lie = lambda name: name in every[:5]
    async with world.daemon():
        await advance(25 * MINUTE_S)
        world.unharmed()
    if world.reference:
        return
    async with world.daemon():
        await advance(25 * MINUTE_S)
        assert len(world.left) == 12

        await world.goes(*every[:5], within_s=10 * MINUTE_S)


# --- other providers, other owners ----------------------------------------------------------------


async def test_no_node_is_deleted_after_a_reload_to_an_empty_project(world: World) -> None:
    """Denials of the old project do not count for the new one, which denies every node."""
    every = world.nodes(12)
    empty = Vms()
    async with world.daemon():
        world.silent(*every[:5])
        await advance(MINUTE_S)
        world.handle.swap(empty.cloud())
        await advance(40 * MINUTE_S)
        world.unharmed()
        assert set(world.held.values()) == {"all_denied"}

        world.handle.swap(world.cloud.cloud())
        await world.goes("n0", within_s=MINUTE_S)


async def test_two_daemons_delete_no_new_nodes_of_each_other(world: World) -> None:
    """Each sees new nodes without provider ID that only the other provider knows."""
    blue = Vms("blue")
    world.nodes(2)
    for number in range(2):
        world.node(f"b{number}", scheme="blue")
    blue.there |= {"b0", "b1", "b2"}
    world.cloud.there -= {"b0", "b1", "b2"}
    async with world.daemon(), world.daemon(CloudClient(blue.cloud())):
        world.node("n2", ready=False, scheme=None, taints=[NEW], young=True)
        world.node("b2", ready=False, scheme=None, taints=[NEW], young=True)
        world.cloud.there.discard("b2")
        await advance(35 * MINUTE_S)
        world.unharmed()

        world.silent("b0")
        await advance(MINUTE_S)
        blue.there.discard("b1")
        await world.goes("b1", "n1", within_s=MINUTE_S)


async def test_a_silent_node_of_another_cloud_is_ignored(guarded: World) -> None:
    """For half an hour, without a call to our cloud."""
    guarded.nodes(2)
    guarded.node("other", ready=False, scheme="other")
    guarded.cloud.there.discard("other")
    async with guarded.daemon():
        await advance(35 * MINUTE_S)
        assert guarded.cloud.calls == []
        assert "other" in guarded.left

        await guarded.goes("n0", within_s=MINUTE_S)


async def test_nodes_outside_of_the_node_selector_are_ignored(guarded: World) -> None:
    """Two managers with two accounts of one cloud share the nodes by label."""
    guarded.nodes(2, labels={"account": "a"})
    guarded.node("other", ready=False, labels={"account": "b"})
    guarded.cloud.there.discard("other")
    async with guarded.daemon(node_selector="account=a"):
        await advance(35 * MINUTE_S)
        assert guarded.cloud.calls == []

        await guarded.goes("n0", within_s=MINUTE_S)


async def test_a_bare_metal_node_unknown_to_the_cloud_is_never_deleted(world: World) -> None:
    """It has neither provider ID nor taint.

    A node without ID that the cloud once confirmed is deleted with its VM.
    """
    world.nodes(3)
    world.node("ours", scheme=None, ready=False)
    async with world.daemon():
        await advance(10)
        world.node("cellar", scheme=None, ready=False)
        world.cloud.there.discard("cellar")
        await advance(35 * MINUTE_S)
        world.unharmed()
        assert world.held == {"cellar": "unclaimed"}

        await world.goes("ours", within_s=MINUTE_S)


# --- nodes without VM are deleted, within the limit -----------------------------------------------


async def test_nodes_without_vm_are_deleted_once_a_wrong_token_is_replaced(guarded: World) -> None:
    """No node is deleted while the cloud refuses all requests."""
    every = guarded.nodes(10)
    async with guarded.daemon():
        guarded.silent(*every[:5])
        guarded.gone("n0")
        guarded.cloud.broken = lambda _: Unauthenticated("no")
        await advance(35 * MINUTE_S)
        assert len(guarded.left) == 10

        guarded.cloud.broken = lambda _: None
        await guarded.until_gone(["n0"], within_s=15 * MINUTE_S)


async def test_silent_nodes_whose_vms_run_are_kept(guarded: World) -> None:
    """A network switch fails for four of ten nodes. One without VM is deleted at once."""
    every = guarded.nodes(10)
    async with guarded.daemon():
        guarded.silent(*every[:4])
        await guarded.goes("n4", within_s=MINUTE_S)
        await advance(35 * MINUTE_S)
        assert len(guarded.left) == 9


async def test_an_unannounced_scale_down_is_blocked_for_half_an_hour(guarded: World) -> None:
    """Four of nine VMs are deleted: a mass denial."""
    every = guarded.nodes(9)
    async with guarded.daemon():
        guarded.gone(*every[:4])
        await advance(29 * MINUTE_S)
        assert guarded.held == dict.fromkeys(every[:4], "mass_denial")

        await guarded.until_gone(every[:4], within_s=2 * MINUTE_S)


async def test_nodes_with_the_taint_of_the_autoscaler_are_deleted_at_once(guarded: World) -> None:
    """Although they are most of the cluster."""
    every = [*guarded.nodes(2), *(guarded.node(f"x{n}", taints=[GOING]).name for n in range(8))]
    async with guarded.daemon():
        await guarded.goes(*every[2:], within_s=MINUTE_S)


async def test_deletion_of_all_nodes_needs_the_flag_and_respects_the_limit(guarded: World) -> None:
    """All VMs are deleted, so no existing VM proves that the project is the right one."""
    every = guarded.nodes(13)
    guarded.gone(*every)
    async with guarded.daemon():
        await advance(40 * MINUTE_S)
        assert guarded.held == dict.fromkeys(every, "all_denied")
    async with guarded.daemon(allow_mass=True):
        await advance(MINUTE_S)
        assert len(guarded.left) == 3
        assert set(guarded.held.values()) == {"braked"}
        await guarded.until_gone(every, within_s=10 * MINUTE_S)


async def test_the_deletion_limit_holds_across_leader_changes(guarded: World) -> None:
    """14 of 100 VMs are deleted, and the leader changes twice."""
    every = guarded.nodes(100)
    guarded.gone(*every[:14])
    for minutes in (3, 4):
        async with guarded.daemon():
            await advance(minutes * MINUTE_S)
            assert len(guarded.left) == 90
    async with guarded.daemon():
        await guarded.until_gone(every[:14], within_s=5 * MINUTE_S)


async def test_no_node_is_deleted_while_the_record_cannot_be_written(guarded: World) -> None:
    """Once the ConfigMap is writable again, the node is deleted."""
    guarded.nodes(3)
    async with guarded.daemon():
        guarded.config_map.error = Unreachable("no route", kind="refused")
        guarded.gone("n0")
        await advance(10 * MINUTE_S)
        assert "n0" in guarded.left
        assert ("DeletionHeld", UNRECORDED) in guarded.api.events

        guarded.config_map.error = None
        await guarded.until_gone(["n0"], within_s=6 * MINUTE_S)


UNRECORDED = (
    "Deletion of node n0 blocked, its instance seems missing: the deletion record cannot be read "
    "or written"
)


REFUSED = Forbidden(status=403, reason="Forbidden", message="no")
IN_TROUBLE = ServerError(status=500, reason="InternalError", message="no")


@pytest.mark.parametrize(("error", "first"), [(REFUSED, 9), (IN_TROUBLE, 6)])
async def test_refused_deletions_release_their_slots_and_unclear_ones_do_not(
    guarded: World, error: KubeError, first: int
) -> None:
    """A refused DELETE deleted nothing. After a server error, the node may be deleted: it keeps its
    slot, and the other nodes use the rest.
    """
    every = guarded.nodes(60)
    async with guarded.daemon():
        guarded.api.refuse = lambda: error
        guarded.gone(*every[:first])
        await advance(9 * MINUTE_S)
        assert guarded.api.requests.count("DELETE") > 2 * first

        guarded.api.refuse = lambda: None
        guarded.gone(*every[first:10])
        await guarded.until_gone(every[:10], within_s=6 * MINUTE_S)


async def test_repeated_server_errors_do_not_exceed_the_deletion_limit(guarded: World) -> None:
    """Each DELETE for eight nodes fails for half an hour. Afterwards the limit still holds."""
    every = guarded.nodes(30)
    async with guarded.daemon(limit=3):
        guarded.api.refuse = lambda: IN_TROUBLE
        guarded.gone(*every[:8])
        await advance(30 * MINUTE_S)

        guarded.api.refuse = lambda: None
        await advance(9 * MINUTE_S)
        assert len(guarded.left) >= 27
        await guarded.until_gone(every[:8], within_s=40 * MINUTE_S)


async def test_a_lagging_cache_does_not_free_deletion_slots(guarded: World) -> None:
    """A DELETE of a node that is already gone frees no slot of another node."""
    every = guarded.nodes(60)
    async with guarded.daemon(limit=3):
        guarded.gone(*every[:9])
        guarded.api.lags = True
        await advance(5 * MINUTE_S)
        assert len(guarded.api.deleted) == 3

        guarded.api.catch_up()
        await guarded.until_gone(every[:9], within_s=25 * MINUTE_S)


async def test_a_node_that_becomes_ready_during_the_record_write_is_kept(guarded: World) -> None:
    """Its slot is free again."""
    guarded.nodes(3)
    async with guarded.daemon(limit=1):
        guarded.gone("n0")
        await advance(5.05)
        assert "DELETE" not in guarded.api.requests
        guarded.cloud.there.add("n0")
        guarded.silent("n0", ready="True")
        await advance(MINUTE_S)
        assert "n0" in guarded.left

        await guarded.goes("n1", within_s=MINUTE_S)

"""Disasters of nodes: no healthy node and no foreign one is deleted, and the gone ones are.

Where the fixture is `world`, the disaster is run under `--node-deletion-policy=reference` too, and
has to do its harm there.
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
async def test_a_machine_that_the_cloud_shows_three_seconds_late(
    world: World, taints: tuple[object, ...]
) -> None:
    """A node joins before the cloud knows its machine: it must stay; gone for good, it goes."""
    async with world.daemon():
        world.node("late", ready=False, taints=taints, young=True)  # type: ignore[arg-type]
        world.cloud.lie = lambda name: name == "late"
        await advance(3)
        world.cloud.lie = lambda _: False
        await advance(10 * MINUTE_S)
        world.unharmed()

        await world.goes("late", within_s=MINUTE_S)


async def test_a_new_machine_that_the_cloud_cannot_find_by_name_for_ten_minutes(
    world: World,
) -> None:
    """A node waits for its cloud, whose search lags: kept; one that never comes goes at last."""
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


async def test_a_cloud_that_takes_back_its_word_again_and_again(world: World) -> None:
    """Half of all answers are wrong: the node stays; when it is gone indeed, it goes."""
    world.nodes(3)
    async with world.daemon():
        world.silent("n0")
        answers = itertools.cycle([True, False])
        world.cloud.lie = lambda name: name == "n0" and next(answers)
        await advance(10 * MINUTE_S)
        world.unharmed()

        await world.tells_the_truth("n0", within_s=MINUTE_S)


async def test_a_node_is_made_anew_between_the_answer_and_the_deletion(guarded: World) -> None:
    """The machine is replaced under the same name: the DELETE misses, the new node stays."""
    guarded.nodes(3)
    async with guarded.daemon():
        guarded.gone("n0")
        await advance(1)
        guarded.api.drop("n0")
        guarded.node("n0", ready=False, uid="another", there=True)
        await advance(5 * MINUTE_S)
        assert "n0" in guarded.left

        await guarded.goes("n0", within_s=MINUTE_S)


# --- a cloud that denies what is there ------------------------------------------------------------


@pytest.mark.parametrize(("count", "silent"), [(10, 10), (10, 2), (3, 1)])
async def test_credentials_of_an_empty_project(world: World, count: int, silent: int) -> None:
    """The network fails, nodes are silent, and the project has no machine: none is deleted until
    credentials and network are right again; what is gone then goes. A few denials are no mass; but
    asked about ready nodes, the cloud denies them too."""
    every = world.nodes(count)[:silent]
    async with world.daemon():
        world.cloud.lie = lambda _: True
        world.silent(*every)
        await advance(HALF_AN_HOUR_S + 5 * MINUTE_S)
        world.unharmed()
        assert world.held == dict.fromkeys(every, "all_denied")

        await world.tells_the_truth("n0", within_s=MINUTE_S)


async def test_an_empty_project_and_nodes_that_fall_silent_one_by_one(world: World) -> None:
    """A rolling restart of kubelets: each node is silent for a minute, and denied. All stay."""
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


async def test_half_of_a_listing(world: World) -> None:
    """For twenty minutes the cloud knows every second machine only: all nodes stay."""
    every = world.nodes(12)
    async with world.daemon():
        world.cloud.lie = lambda name: int(name[1:]) % 2 == 1
        world.silent(*every)
        await advance(20 * MINUTE_S)
        world.unharmed()
        assert set(world.held.values()) == {"mass_denial"}
        assert len(world.held) == 6

        await world.tells_the_truth("n1", "n2", within_s=MINUTE_S)


async def test_not_found_to_everything_for_five_minutes(world: World) -> None:
    """A gateway answers 404 to every question, then recovers: none is deleted."""
    every = world.nodes(30)
    async with world.daemon():
        world.silent(*every[:12])
        await advance(MINUTE_S)
        world.cloud.lie = lambda _: True
        await advance(5 * MINUTE_S)
        world.unharmed()

        await world.tells_the_truth("n5", within_s=MINUTE_S)


async def test_a_slow_cloud_that_denies_all(world: World) -> None:
    """Each answer takes seven seconds: the first nodes are denied twice before the others, which
    fall silent a little later, were asked about once. Nobody is deleted for that."""
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


async def test_a_region_is_renamed(world: World) -> None:
    """The provider's IDs are others after an update: all nodes are denied, and wait for a person,
    who can have one deleted by an annotation."""
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


async def test_a_cluster_of_new_nodes_and_the_wrong_project(world: World) -> None:
    """Nobody was initialised yet, since the cloud knows nobody: the nodes wait for credentials."""
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


async def test_minutes_of_denial_around_an_outage(world: World) -> None:
    """Denials, an outage of forty minutes, denials again: that is no half hour of denial."""
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


async def test_a_process_that_stood_still(world: World) -> None:
    """The machine sleeps for an hour in the middle of a mass denial: asleep is not denied."""
    every = world.nodes(12)
    async with world.daemon():
        world.silent(*every[:5])
        world.cloud.lie = lambda name: name in every[:5]
        await advance(5 * MINUTE_S)
        jump(60 * MINUTE_S)
        await advance(5 * MINUTE_S)
        world.unharmed()

        await world.goes(*every[:5], within_s=HALF_AN_HOUR_S)


async def test_the_clock_on_the_wall_is_set_forward(world: World) -> None:
    """A node two minutes old seems a day old: it is kept while its cloud may not know it."""
    world.nodes(3)
    async with world.daemon():
        world.node("young", ready=False, taints=[NEW], young=True)
        world.cloud.lie = lambda name: name == "young"
        set_wall_clock(timedelta(days=1))
        await advance(2 * MINUTE_S)
        world.unharmed()
        assert world.held == {"young": "young"}

        await world.goes("young", within_s=4 * MINUTE_S)


async def test_the_clock_on_the_wall_is_set_back(guarded: World) -> None:
    """All nodes seem to come from the future: what is gone is deleted nevertheless."""
    guarded.nodes(3)
    async with guarded.daemon(min_age_s=60.0):
        await advance(2 * MINUTE_S)
        set_wall_clock(timedelta(days=-20 * 365))
        await guarded.goes("n0", within_s=MINUTE_S)


async def test_a_restart_in_the_middle_of_a_mass_denial(world: World) -> None:
    """25 minutes of denial, a new daemon, 25 minutes more: it counts its own, and holds."""
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


async def test_a_reload_to_an_empty_project(world: World) -> None:
    """The cloud config names another project: what the old one denied a moment ago proves nothing
    about the new one, and that one denies too much to be believed."""
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


async def test_two_daemons_with_two_providers_share_a_cluster(world: World) -> None:
    """Each sees new nodes without an ID that only the other one knows: none is deleted."""
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


async def test_a_node_of_another_cloud(guarded: World) -> None:
    """It is silent for half an hour, and nobody asks our cloud about it."""
    guarded.nodes(2)
    guarded.node("other", ready=False, scheme="other")
    guarded.cloud.there.discard("other")
    async with guarded.daemon():
        await advance(35 * MINUTE_S)
        assert guarded.cloud.calls == []
        assert "other" in guarded.left

        await guarded.goes("n0", within_s=MINUTE_S)


async def test_nodes_of_another_account_of_the_same_cloud(guarded: World) -> None:
    """Two managers share the nodes by their labels: each asks about its own only."""
    guarded.nodes(2, labels={"account": "a"})
    guarded.node("other", ready=False, labels={"account": "b"})
    guarded.cloud.there.discard("other")
    async with guarded.daemon(node_selector="account=a"):
        await advance(35 * MINUTE_S)
        assert guarded.cloud.calls == []

        await guarded.goes("n0", within_s=MINUTE_S)


async def test_a_machine_in_the_cellar_joins_the_cluster(world: World) -> None:
    """A node without ID and taint, of which no cloud knows, falls silent: it stays for ever; one
    that the cloud confirmed goes when it is gone."""
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


# --- what is gone goes, and no faster than may be -------------------------------------------------


async def test_a_wrong_token(guarded: World) -> None:
    """Every question is refused for half an hour; a machine goes meanwhile, its node afterwards."""
    every = guarded.nodes(10)
    async with guarded.daemon():
        guarded.silent(*every[:5])
        guarded.gone("n0")
        guarded.cloud.broken = lambda _: Unauthenticated("no")
        await advance(35 * MINUTE_S)
        assert len(guarded.left) == 10

        guarded.cloud.broken = lambda _: None
        await guarded.until_gone(["n0"], within_s=15 * MINUTE_S)


async def test_four_of_ten_nodes_are_silent_and_the_cloud_is_right(guarded: World) -> None:
    """A switch fails: all machines run, and all nodes stay; the one that is gone goes at once."""
    every = guarded.nodes(10)
    async with guarded.daemon():
        guarded.silent(*every[:4])
        await guarded.goes("n4", within_s=MINUTE_S)
        await advance(35 * MINUTE_S)
        assert len(guarded.left) == 9


async def test_the_night_takes_four_of_nine_nodes(guarded: World) -> None:
    """Nobody announced it: the four are held for half an hour, and seen to be; then they go."""
    every = guarded.nodes(9)
    async with guarded.daemon():
        guarded.gone(*every[:4])
        await advance(29 * MINUTE_S)
        assert guarded.held == dict.fromkeys(every[:4], "mass_denial")

        await guarded.until_gone(every[:4], within_s=2 * MINUTE_S)


async def test_the_autoscaler_takes_most_nodes(guarded: World) -> None:
    """It announced that by its taint: nobody has to wait."""
    every = [*guarded.nodes(2), *(guarded.node(f"x{n}", taints=[GOING]).name for n in range(8))]
    async with guarded.daemon():
        await guarded.goes(*every[2:], within_s=MINUTE_S)


async def test_a_cluster_is_emptied_on_purpose(guarded: World) -> None:
    """All machines go. Nothing is confirmed, so a person has to say so, by the flag; and then
    no more go at once than the limit says."""
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


async def test_a_new_leader_in_the_middle_of_many_deletions(guarded: World) -> None:
    """Fourteen of a hundred machines go, and the leader changes twice: the brake remembers."""
    every = guarded.nodes(100)
    guarded.gone(*every[:14])
    for minutes in (3, 4):
        async with guarded.daemon():
            await advance(minutes * MINUTE_S)
            assert len(guarded.left) == 90
    async with guarded.daemon():
        await guarded.until_gone(every[:14], within_s=5 * MINUTE_S)


async def test_the_record_of_deletions_cannot_be_written(guarded: World) -> None:
    """Nobody could remember a deletion, so there is none; when it can be written, the node goes."""
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
async def test_deletes_that_fail_for_a_while(guarded: World, error: KubeError, first: int) -> None:
    """DELETEs that are refused deleted nothing, and take no slots from what follows. An API server
    in trouble does not say whether it deleted: each node keeps its slot, the others have theirs."""
    every = guarded.nodes(60)
    async with guarded.daemon():
        guarded.api.refuse = lambda: error
        guarded.gone(*every[:first])
        await advance(9 * MINUTE_S)
        assert guarded.api.requests.count("DELETE") > 2 * first

        guarded.api.refuse = lambda: None
        guarded.gone(*every[first:10])
        await guarded.until_gone(every[:10], within_s=6 * MINUTE_S)


async def test_an_hour_of_trouble_at_the_api_server_frees_no_slots(guarded: World) -> None:
    """Eight machines go while each DELETE fails: when it works again, no more nodes go at once
    than the limit says, however often each was tried."""
    every = guarded.nodes(30)
    async with guarded.daemon(limit=3):
        guarded.api.refuse = lambda: IN_TROUBLE
        guarded.gone(*every[:8])
        await advance(30 * MINUTE_S)

        guarded.api.refuse = lambda: None
        await advance(9 * MINUTE_S)
        assert len(guarded.left) >= 27
        await guarded.until_gone(every[:8], within_s=40 * MINUTE_S)


async def test_a_cache_that_lags_behind_deletions_gives_no_slot_back(guarded: World) -> None:
    """The watch is a minute late: asked to delete what is gone, nobody else's slot is freed."""
    every = guarded.nodes(60)
    async with guarded.daemon(limit=3):
        guarded.gone(*every[:9])
        guarded.api.lags = True
        await advance(5 * MINUTE_S)
        assert len(guarded.api.deleted) == 3

        guarded.api.catch_up()
        await guarded.until_gone(every[:9], within_s=25 * MINUTE_S)


async def test_a_node_becomes_ready_while_its_deletion_is_written_down(guarded: World) -> None:
    """The record is slow, the kubelet comes back: the node stays, and its slot is free again."""
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

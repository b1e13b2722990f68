"""Disasters of nodes: time that is none, other owners, and how fast the gone ones may go.

Where the fixture is `world`, the disaster is run under `--node-deletion-policy=reference` too, and
has to do its harm there.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import Unauthenticated, Unavailable
from ccm.kube.errors import Forbidden, ServerError, Unreachable
from ccm.testing.clock import advance, jump
from tests.disasters.nodes_world import GOING, MINUTE_S, NEW, Vms, World, set_wall_clock

pytestmark = pytest.mark.virtual_time

HALF_AN_HOUR_S = 30 * MINUTE_S


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

        world.gone(*every[:5])
        await world.until_gone(every[:5], within_s=HALF_AN_HOUR_S)


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

        world.gone(*every[:5])
        await world.until_gone(every[:5], within_s=HALF_AN_HOUR_S)


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

        world.gone("young")
        await world.until_gone(["young"], within_s=4 * MINUTE_S)


async def test_the_clock_on_the_wall_is_set_back(guarded: World) -> None:
    """All nodes seem to come from the future: what is gone is deleted nevertheless."""
    world = guarded
    world.nodes(3)
    async with world.daemon(least_age_s=60.0):
        await advance(2 * MINUTE_S)
        set_wall_clock(timedelta(days=-20 * 365))
        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


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

        world.gone(*every[:5])
        await world.until_gone(every[:5], within_s=10 * MINUTE_S)


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
        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


async def test_two_daemons_with_two_providers_share_a_cluster(world: World) -> None:
    """Each sees new nodes without an ID that only the other one knows: none is deleted."""
    blue = Vms("blue")
    world.nodes(2)
    for number in range(2):
        world.node(f"b{number}", scheme="blue")
    blue.there |= {"b0", "b1", "b2"}
    world.cloud.there -= {"b0", "b1", "b2"}
    async with world.daemon(), world.daemon(Handle(blue.cloud())):
        world.node("n2", ready=False, scheme=None, taints=[NEW], young=True)
        world.node("b2", ready=False, scheme=None, taints=[NEW], young=True)
        world.cloud.there.discard("b2")
        await advance(35 * MINUTE_S)
        world.unharmed()

        world.silent("b0")
        await advance(MINUTE_S)
        blue.there.discard("b1")
        world.gone("b1", "n1")
        await world.until_gone(["b1", "n1"], within_s=MINUTE_S)


async def test_a_node_of_another_cloud(guarded: World) -> None:
    """It is silent for half an hour, and nobody asks our cloud about it."""
    world = guarded
    world.nodes(2)
    world.node("other", ready=False, scheme="other")
    world.cloud.there.discard("other")
    async with world.daemon():
        await advance(35 * MINUTE_S)
        assert world.cloud.calls == []
        assert "other" in world.left

        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


async def test_nodes_of_another_account_of_the_same_cloud(guarded: World) -> None:
    """Two managers share the nodes by their labels: each asks about its own only."""
    world = guarded
    world.nodes(2, labels={"account": "a"})
    world.node("other", ready=False, labels={"account": "b"})
    world.cloud.there.discard("other")
    async with world.daemon(own_nodes="account=a"):
        await advance(35 * MINUTE_S)
        assert world.cloud.calls == []

        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


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

        world.gone("ours")
        await world.until_gone(["ours"], within_s=MINUTE_S)


# --- what is gone goes, and no faster than may be -------------------------------------------------


async def test_a_wrong_token(guarded: World) -> None:
    """Every question is refused for half an hour; a machine goes meanwhile, its node afterwards."""
    world = guarded
    every = world.nodes(10)
    async with world.daemon():
        world.silent(*every[:5])
        world.gone("n0")
        world.cloud.broken = lambda _: Unauthenticated("no")
        await advance(35 * MINUTE_S)
        assert len(world.left) == 10

        world.cloud.broken = lambda _: None
        await world.until_gone(["n0"], within_s=15 * MINUTE_S)


async def test_four_of_ten_nodes_are_silent_and_the_cloud_is_right(guarded: World) -> None:
    """A switch fails: all machines run, and all nodes stay; the one that is gone goes at once."""
    world = guarded
    every = world.nodes(10)
    async with world.daemon():
        world.silent(*every[:4])
        world.gone("n4")
        await world.until_gone(["n4"], within_s=MINUTE_S)
        await advance(35 * MINUTE_S)
        assert len(world.left) == 9


async def test_the_night_takes_four_of_nine_nodes(guarded: World) -> None:
    """Nobody announced it: the four are held for half an hour, and seen to be; then they go."""
    world = guarded
    every = world.nodes(9)
    async with world.daemon():
        world.gone(*every[:4])
        await advance(29 * MINUTE_S)
        assert world.held == dict.fromkeys(every[:4], "mass_denial")

        await world.until_gone(every[:4], within_s=2 * MINUTE_S)


async def test_the_autoscaler_takes_most_nodes(guarded: World) -> None:
    """It announced that by its taint: nobody has to wait."""
    world = guarded
    every = [*world.nodes(2), *(world.node(f"x{n}", taints=[GOING]).name for n in range(8))]
    async with world.daemon():
        world.gone(*every[2:])
        await world.until_gone(every[2:], within_s=MINUTE_S)


async def test_a_cluster_is_emptied_on_purpose(guarded: World) -> None:
    """All machines go. Nothing is confirmed, so a person has to say so, by the flag; and then
    no more go at once than the limit says."""
    world = guarded
    every = world.nodes(13)
    world.gone(*every)
    async with world.daemon():
        await advance(40 * MINUTE_S)
        assert world.held == dict.fromkeys(every, "all_denied")
    async with world.daemon(allow_mass=True):
        await advance(MINUTE_S)
        assert len(world.left) == 3
        assert set(world.held.values()) == {"braked"}
        await world.until_gone(every, within_s=10 * MINUTE_S)


async def test_a_new_leader_in_the_middle_of_many_deletions(guarded: World) -> None:
    """Fourteen of a hundred machines go, and the leader changes twice: the brake remembers."""
    world = guarded
    every = world.nodes(100)
    world.gone(*every[:14])
    for minutes in (3, 4):
        async with world.daemon():
            await advance(minutes * MINUTE_S)
            assert len(world.left) == 90
    async with world.daemon():
        await world.until_gone(every[:14], within_s=5 * MINUTE_S)


async def test_the_record_of_deletions_cannot_be_written(guarded: World) -> None:
    """Nobody could remember a deletion, so there is none; when it can be written, the node goes."""
    world = guarded
    world.nodes(3)
    async with world.daemon():
        world.config_map.error = Unreachable("no route", kind="refused")
        world.gone("n0")
        await advance(10 * MINUTE_S)
        assert "n0" in world.left
        assert ("DeletionHeld", UNRECORDED) in world.api.events

        world.config_map.error = None
        await world.until_gone(["n0"], within_s=6 * MINUTE_S)


UNRECORDED = (
    "Node n0 is not deleted, although its cloud denies it: the record of deletions cannot be read "
    "or written"
)


async def test_an_api_server_that_refuses_to_delete(guarded: World) -> None:
    """Twenty DELETEs are refused, which deleted nothing: they take no slots from what follows."""
    world = guarded
    every = world.nodes(60)

    async with world.daemon():
        world.api.refuse = lambda: Forbidden(status=403, reason="Forbidden", message="no")
        world.gone(*every[:9])
        await advance(9 * MINUTE_S)
        assert world.api.requests.count("DELETE") > 20

        world.api.refuse = lambda: None
        await world.until_gone(every[:9], within_s=6 * MINUTE_S)


async def test_an_api_server_in_trouble_deletes_nothing_for_a_while(guarded: World) -> None:
    """It fails, and does not say whether it deleted: each node keeps its slot, and the others have
    theirs when it works again."""
    world = guarded
    every = world.nodes(60)
    async with world.daemon():
        world.api.refuse = lambda: ServerError(status=500, reason="InternalError", message="no")
        world.gone(*every[:6])
        await advance(9 * MINUTE_S)
        assert world.api.requests.count("DELETE") > 12

        world.api.refuse = lambda: None
        world.gone(*every[6:10])
        await world.until_gone(every[:10], within_s=6 * MINUTE_S)


async def test_an_hour_of_trouble_at_the_api_server_frees_no_slots(guarded: World) -> None:
    """Eight machines go while each DELETE fails: when it works again, no more nodes go at once
    than the limit says, however often each was tried."""
    world = guarded
    every = world.nodes(30)
    async with world.daemon(limit=3):
        world.api.refuse = lambda: ServerError(status=500, reason="InternalError", message="no")
        world.gone(*every[:8])
        await advance(30 * MINUTE_S)

        world.api.refuse = lambda: None
        await advance(9 * MINUTE_S)
        assert len(world.left) >= 27
        await world.until_gone(every[:8], within_s=40 * MINUTE_S)


async def test_a_cache_that_lags_behind_deletions_gives_no_slot_back(guarded: World) -> None:
    """The watch is a minute late: asked to delete what is gone, nobody else's slot is freed."""
    world = guarded
    every = world.nodes(60)
    async with world.daemon(limit=3):
        world.gone(*every[:9])
        world.api.lags = True
        await advance(5 * MINUTE_S)
        assert len(world.api.deleted) == 3

        world.api.catch_up()
        await world.until_gone(every[:9], within_s=25 * MINUTE_S)


async def test_a_node_becomes_ready_while_its_deletion_is_written_down(guarded: World) -> None:
    """The record is slow, the kubelet comes back: the node stays, and its slot is free again."""
    world = guarded
    world.nodes(3)
    async with world.daemon(limit=1):
        world.gone("n0")
        await advance(5.05)
        assert "DELETE" not in world.api.requests
        world.cloud.there.add("n0")
        world.silent("n0", ready="True")
        await advance(MINUTE_S)
        assert "n0" in world.left

        world.gone("n1")
        await world.until_gone(["n1"], within_s=MINUTE_S)

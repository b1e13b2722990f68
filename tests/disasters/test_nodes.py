"""Disasters of nodes: no healthy node and no foreign one is deleted, and the gone ones are.

Where the fixture is `world`, the disaster is run under `--node-deletion-policy=reference` too, and
has to do its harm there.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ccm.model import Node, names
from ccm.testing.clock import advance
from tests.disasters.nodes_world import MINUTE_S, NEW, World

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

        world.gone("late")
        await world.until_gone(["late"], within_s=MINUTE_S)


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

        world.cloud.lie = lambda _: False
        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


async def test_a_node_is_made_anew_between_the_answer_and_the_deletion(guarded: World) -> None:
    """The machine is replaced under the same name: the DELETE misses, the new node stays."""
    world = guarded
    world.nodes(3)
    async with world.daemon():
        world.gone("n0")
        await advance(1)
        world.api.drop("n0")
        world.node("n0", ready=False, uid="another", there=True)
        await advance(5 * MINUTE_S)
        assert "n0" in world.left

        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


# --- a cloud that denies what is there ------------------------------------------------------------


async def test_credentials_of_an_empty_project(world: World) -> None:
    """The network fails, all nodes are silent, and the project has no machine: none is deleted
    until credentials and network are right again; what is gone then goes."""
    every = world.nodes(10)
    async with world.daemon():
        world.cloud.lie = lambda _: True
        world.silent(*every)
        await advance(HALF_AN_HOUR_S + 5 * MINUTE_S)
        world.unharmed()
        assert set(world.held.values()) == {"all_denied"}
        assert len(world.held) == 10

        world.cloud.lie = lambda _: False
        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


async def test_an_empty_project_while_only_two_nodes_are_silent(world: World) -> None:
    """Two denials are no mass; but asked about ready nodes, the cloud denies them too."""
    world.nodes(10)
    async with world.daemon():
        world.cloud.lie = lambda _: True
        world.silent("n0", "n1")
        await advance(HALF_AN_HOUR_S + 5 * MINUTE_S)
        world.unharmed()
        assert world.held == {"n0": "all_denied", "n1": "all_denied"}

        world.cloud.lie = lambda _: False
        world.gone("n1")
        await world.until_gone(["n1"], within_s=MINUTE_S)


async def test_an_empty_project_and_a_cluster_of_three(world: World) -> None:
    """Too few for a third to be many; but the cloud denies nodes that are ready, too."""
    world.nodes(3)
    async with world.daemon():
        world.cloud.lie = lambda _: True
        world.silent("n0")
        await advance(HALF_AN_HOUR_S + 5 * MINUTE_S)
        world.unharmed()
        assert world.held == {"n0": "all_denied"}

        world.cloud.lie = lambda _: False
        world.gone("n0")
        await world.until_gone(["n0"], within_s=MINUTE_S)


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

        world.cloud.lie = lambda _: False
        world.gone("n3")
        await world.until_gone(["n3"], within_s=MINUTE_S)


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

        world.cloud.lie = lambda _: False
        world.gone("n1", "n2")
        await world.until_gone(["n1", "n2"], within_s=MINUTE_S)


async def test_not_found_to_everything_for_five_minutes(world: World) -> None:
    """A gateway answers 404 to every question, then recovers: none is deleted."""
    every = world.nodes(30)
    async with world.daemon():
        world.silent(*every[:12])
        await advance(MINUTE_S)
        world.cloud.lie = lambda _: True
        await advance(5 * MINUTE_S)
        world.unharmed()

        world.cloud.lie = lambda _: False
        world.gone("n5")
        await world.until_gone(["n5"], within_s=MINUTE_S)


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

        world.cloud.lie = lambda _: False
        world.gone("n7")
        await world.until_gone(["n7"], within_s=20 * MINUTE_S)


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

        world.cloud.lie = lambda _: False
        world.gone("n0")
        await world.until_gone(["n0"], within_s=20 * MINUTE_S)

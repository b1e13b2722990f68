"""Deployments before a cache that lags."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.testing.clock import advance
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.unit.controllers.machinedeployments import MACHINES, NODES, Rolling, all_run, template
from tests.unit.controllers.machineset.test_lagging import Lagging

pytestmark = pytest.mark.virtual_time


def updated(world: Rolling, name: str) -> None:
    """Whoever is on the node says that it is updated, and its condition that this was seen."""
    told = [{"type": NAMES.update_condition, "status": "True", "reason": NAMES.update_succeeded}]
    world.server.patch(f"{NODES}/{name}/status", {"status": {"conditions": told}})
    done = {"labels": {NAMES.update_result: NAMES.update_successful}}
    world.server.patch(f"{NODES}/{name}", {"metadata": done})


def chosen(world: Rolling) -> list[str]:
    """Names of the nodes that are to be updated now."""
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in world.nodes()}
    return [name for name, one in labels.items() if NAMES.selected in one]


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Rolling, Lagging, str]]:
    """Of two machines the first is to be updated in place: the name of its node."""
    world = Rolling()
    world.server = server = Lagging()
    world.define()
    world.ready_class()
    world.machine_class("large")
    world.secret("large")
    world.deployment(replicas=2, strategy=IN_PLACE)
    async with world.running("machineset", "machinedeployment"):
        await all_run(world)
        for name in world.here():
            world.change(f"{MACHINES}/{name}", metadata={"labels": {"node": name}})
            world.node(name, metadata={"labels": {names.LABEL_MACHINE_NAME: name}})
        world.edit(template=template("large"))
        await advance(5)
        (first,) = chosen(world)
        yield world, server, first


@pytest.mark.row("rollout-event-01")
async def test_a_mark_whose_end_is_seen_late_ends_nothing_for_good() -> None:
    """Who changed hands bears it until the sets know; it goes, and the next one is chosen."""
    async with two() as (world, server, first):
        updated(world, first)
        while NAMES.update_result not in world.get(first)["metadata"]["labels"]:
            await advance(0.05)
        await advance(0.05)
        server.shows.clear()
        await advance(5)
        assert NAMES.update_result not in world.get(first)["metadata"]["labels"]
        assert chosen(world) == []
        server.shows.set()
        await advance(5)

        (second,) = chosen(world)
        assert second != first

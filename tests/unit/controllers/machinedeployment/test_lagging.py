"""Deployments before a cache that lags."""

from __future__ import annotations

import pytest

from ccm.gardener import names
from ccm.gardener.views import UPDATE
from ccm.testing.clock import advance
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.unit.controllers.machinedeployments import (
    MACHINES,
    NODES,
    Rolling,
    all_run,
    template,
)
from tests.unit.controllers.machineset.test_lagging import Lagging

pytestmark = pytest.mark.virtual_time


async def test_a_machine_that_changed_hands_unseen_is_not_made_once_more() -> None:
    """Its old set becomes the new one again, before the cache shows that it is no more its own."""
    world = Rolling()
    world.server = server = Lagging()
    world.define()
    world.ready_class()
    world.machine_class("large")
    world.secret("large")
    world.deployment(replicas=2, strategy=IN_PLACE)
    async with world.running("machineset", "machinedeployment"):
        await all_run(world)
        first = world.here()
        for name in first:
            world.change(f"{MACHINES}/{name}", metadata={"labels": {"node": name}})
            world.node(name, metadata={"labels": {names.LABEL_MACHINE_NAME: name}})
        world.edit(template=template("large"))
        await advance(5)
        (chosen,) = (
            one["metadata"]["name"]
            for one in world.nodes()
            if UPDATE.selected in one["metadata"]["labels"]
        )
        server.shows.clear()
        told = [{"type": UPDATE.condition, "status": "True", "reason": UPDATE.updated}]
        world.server.patch(f"{NODES}/{chosen}/status", {"status": {"conditions": told}})
        done = {"labels": {UPDATE.result: UPDATE.successful}}
        world.server.patch(f"{NODES}/{chosen}", {"metadata": done})
        await advance(5)
        assert world.kinds() == {"small": 1, "large": 1}
        world.edit(template=template("small"))
        await advance(5)
        server.shows.set()
        await advance(5)

    assert world.here() == first

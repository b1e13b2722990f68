"""The simulated cloud's memory across restarts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from providers.sim import state, world, world_balancers, world_routes, worlds


def new_cloud() -> worlds.Worlds:
    return worlds.Worlds(random.Random(1))


async def test_everything_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    before, after = new_cloud(), new_cloud()

    async with state.kept(before, path):
        vms = before.instances
        kept = vms.put(world.GivenInstance(name="a", labels={"x": "1"}, state="stopped"))
        vms.delete(vms.put(world.GivenInstance(name="b")).id)
        listener = world_balancers.Listener(protocol="TCP", port=80, target_port=30080)
        balancer = before.balancers.create(
            world_balancers.NewBalancer(name="web", listeners=(listener,))
        )
        route = before.routes.create(
            world_routes.NewRoute(destination="10.9.0.0/24", gateway=kept.addresses[0].value)
        )
    async with state.kept(after, path):
        assert after.instances.snapshot() == (kept,)
        assert after.balancers.list() == [balancer]
        assert after.routes.list() == [route]


def test_a_file_of_an_earlier_version_holds_instances(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('[{"name": "a", "id": "i-1"}]')

    assert [one.id for one in state.load(path).instances] == ["i-1"]


@pytest.mark.virtual_time
async def test_changes_are_saved_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    cloud = new_cloud()

    async with state.kept(cloud, path):
        cloud.instances.put(world.GivenInstance(name="a"))
        async with asyncio.timeout(2):
            while not path.exists():
                await asyncio.sleep(0.01)
        saved = state.load(path)

    assert [one.name for one in saved.instances] == ["a"]


def test_a_file_of_something_else_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('[{"name": 1}]')

    with pytest.raises(ValueError, match=r"state\.json is no saved state: .*name"):
        state.load(path)

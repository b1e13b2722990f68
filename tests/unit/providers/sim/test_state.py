"""The simulated cloud's memory across restarts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from providers.sim import state, world
from tests.unit.providers.sim.manual_clock import ManualClock


def new_world() -> world.World:
    return world.World(ManualClock(), random.Random(1))


@pytest.mark.asyncio
async def test_instances_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    before, after = new_world(), new_world()

    async with state.kept(before, path):
        kept = before.put(world.GivenInstance(name="a", labels={"x": "1"}, state="stopped"))
        before.delete(before.put(world.GivenInstance(name="b")).id)
    async with state.kept(after, path):
        found = after.snapshot()

    assert found == (kept,)


@pytest.mark.asyncio
async def test_changes_are_saved_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    cloud = new_world()

    async with state.kept(cloud, path, clock=ManualClock()):
        cloud.put(world.GivenInstance(name="a"))
        async with asyncio.timeout(2):
            while not path.exists():
                await asyncio.sleep(0.01)
        saved = state.load(path)

    assert [one.name for one in saved] == ["a"]


def test_a_file_of_something_else_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('[{"name": 1}]')

    with pytest.raises(ValueError, match=r"state\.json is no saved state: .*name"):
        state.load(path)


def test_a_missing_file_is_an_empty_cloud(tmp_path: Path) -> None:
    assert state.load(tmp_path / "none") == ()

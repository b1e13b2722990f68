"""The daemon is killed before, in and after each of its calls; nothing leaks.

`make soak` tries every point before both API servers. The default run tries every tenth
point, half of the stories before the one server and half before the other.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.sandbox import realserver
from tests import servers
from tests.scenario import crash, harness
from tests.scenario.crash import Crashes, CrashPoint, Outcome
from tests.scenario.crash_nursery import Nursery
from tests.scenario.crash_stories import STORIES, Story

LEAST_POINTS = 150
SLICE = 10


RANGES = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"


@pytest_asyncio.fixture(
    params=[
        pytest.param(servers.BUILTIN),
        pytest.param(servers.REAL, marks=pytest.mark.envtest),
    ]
)
async def crashes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crashes]:
    """Ready to play stories before a dual-stack API server of the test's own."""
    server: servers.ApiServer
    if request.param == servers.REAL:
        server = realserver.RealServer(
            assets=servers.require_assets(), data_dir=tmp_path / "server", extra_args=(RANGES,)
        )
    else:
        servers.require_builtin()
        server = servers.BuiltinServer(tmp_path / "server", extra_args=(RANGES,))
    try:
        await server.start()
        async with harness.open_stage(server, tmp_path) as stage, servers.connect(server) as admin:
            with Nursery() as nursery:
                ready = Crashes(stage, admin, nursery)
                await ready.open()
                yield ready
    finally:
        await server.kill()


async def try_all(crashes: Crashes, chosen: Sequence[CrashPoint]) -> list[Outcome]:
    outcomes = []
    for at in chosen:
        outcomes.append(await crashes.try_out(at))
        print(".", end="", flush=True)
    return outcomes


def judge(outcomes: Sequence[Outcome]) -> None:
    assert [str(one) for one in outcomes if one.leaks] == []
    assert [str(one) for one in outcomes if not one.struck] == []


async def tell_and_try(
    crashes: Crashes, stories: Sequence[Story], *, slice_: int = 1
) -> tuple[int, list[Outcome]]:
    """Record and try the stories; the number of calls, and what came of the points."""
    calls, seen, outcomes = 0, 0, []
    for story in stories:
        started = time.monotonic()
        recorded = await crashes.record(story)
        calls += len(recorded)
        all_points = crash.points(story, recorded)
        chosen = [at for number, at in enumerate(all_points, seen) if number % slice_ == 0]
        seen += len(all_points)
        print(f"{story.name}: {len(recorded)} calls ", end="", flush=True)
        tried = await try_all(crashes, chosen)
        outcomes += tried
        print(f" {len(tried)} points, {time.monotonic() - started:.1f} s", flush=True)
    return calls, outcomes


@pytest.mark.asyncio
@pytest.mark.soak
async def test_every_crash_point(crashes: Crashes) -> None:
    """Every point of every call, at least `LEAST_POINTS`."""
    started = time.monotonic()
    calls, outcomes = await tell_and_try(crashes, STORIES)
    leaks = sum(bool(one.leaks) for one in outcomes)
    print(
        f"crash points: {len(outcomes)} tried at {calls} calls of {len(STORIES)} stories, "
        f"{leaks} leaks, {sum(not one.struck for one in outcomes)} calls that never came, "
        f"{time.monotonic() - started:.0f} s"
    )
    judge(outcomes)
    assert len(outcomes) == crash.POINTS_PER_CALL * calls
    assert len(outcomes) >= LEAST_POINTS

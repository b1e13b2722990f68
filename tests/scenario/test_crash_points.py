"""The daemon is killed before, in and after each of its calls; nothing leaks.

`make soak` tries every point before both API servers. The default run tries every twentieth
point of every eighth story before the built-in one.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.sandbox import realserver
from tests import servers
from tests.scenario import crash, harness
from tests.scenario.crash import CallId, Crashes, Outcome
from tests.scenario.crash_stories import STORIES, Story

LEAST_POINTS = 150
SLICE = 20


RANGES = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"


@pytest_asyncio.fixture
async def crashes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crashes]:
    """Ready to play stories before a dual-stack API server of the test's own.

    Parametrized with the kind of server.
    """
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
        async with (
            harness.open_environment(server, tmp_path) as env,
            servers.connect(server) as admin,
        ):
            ready = Crashes(env, admin)
            await ready.open()
            yield ready
    finally:
        await server.kill()


async def try_stories(
    crashes: Crashes, stories: Sequence[Story], *, every: int = 1
) -> tuple[int, list[Outcome]]:
    """Record the stories and try their points; the number of calls, and what came of it.

    Args:
        crashes: plays them.
        stories: which.
        every: try the first of so many points, all stories counted through.
    """
    calls: list[CallId] = []
    outcomes: list[Outcome] = []
    started = time.monotonic()
    for story in stories:
        recorded = await crashes.record(story)
        assert recorded, story.name
        offset = len(calls) * crash.POINTS_PER_CALL
        chosen = [
            at for n, at in enumerate(crash.points(story, recorded), offset) if n % every == 0
        ]
        calls += recorded
        outcomes += [await crashes.try_out(at) for at in chosen]
        print(
            f"{story.name}: {len(recorded)} calls, {len(chosen)} points, "
            f"{time.monotonic() - started:.0f} s so far",
            flush=True,
        )
    leaks = sum(bool(one.leaks) for one in outcomes)
    print(
        f"crash points: {len(outcomes)} tried at {len(calls)} calls of {len(stories)} stories, "
        f"{leaks} leaks, {sum(not one.struck for one in outcomes)} calls that never came"
    )
    return len(calls), outcomes


def assert_sound(outcomes: Sequence[Outcome]) -> None:
    """Nothing leaked, and the daemon did die at each point."""
    assert [str(one) for one in outcomes if one.leaks] == []
    assert [str(one) for one in outcomes if not one.struck] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("crashes", [servers.BUILTIN], indirect=True)
@pytest.mark.parametrize("stories", [STORIES[0::16], STORIES[8::16]], ids=["some", "others"])
async def test_every_twentieth_crash_point(crashes: Crashes, stories: Sequence[Story]) -> None:
    """The same ones each time."""
    calls, outcomes = await try_stories(crashes, stories, every=SLICE)
    assert_sound(outcomes)
    assert len(outcomes) == math.ceil(crash.POINTS_PER_CALL * calls / SLICE)


@pytest.mark.soak
@pytest.mark.parametrize(
    "crashes",
    [servers.BUILTIN, pytest.param(servers.REAL, marks=pytest.mark.envtest)],
    indirect=True,
)
async def test_every_crash_point(crashes: Crashes) -> None:
    """Three points at every call, at least `LEAST_POINTS`."""
    calls, outcomes = await try_stories(crashes, STORIES)
    assert_sound(outcomes)
    assert len(outcomes) == crash.POINTS_PER_CALL * calls
    assert len(outcomes) >= LEAST_POINTS

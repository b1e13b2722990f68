"""The daemon is killed before, in and after each of its calls, started again, and nothing leaks.

A first run of each story records the calls of the daemon to the API server and the cloud. Watches
and calls about the Lease do not count. Then the story is repeated for each call and each point of
it, and the daemon is killed there. Once both proxies are silent, the result of the next daemon is
checked. That daemon also serves the next run, so each run costs one start.

`make soak` tries every point before both API servers. The default run tries every twentieth point
of every eighth story before the built-in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.sandbox import realserver
from providers.sim import state
from tests import servers
from tests.faults import Exchange, FaultProxy, Fell, Match, Point
from tests.scenario import harness
from tests.scenario.crash_stories import STORIES, Play, Story
from tests.scenario.harness import Daemon, Environment

LEAST_POINTS, SLICE = 150, 20
RANGES = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"
STRUCK_S = 30.0
"""How long the call may take to come at which the daemon dies."""

_QUIET_S, _RECORDING_QUIET_S, _POLL_S = 0.1, 0.4, 0.02
_TRIES = 3
"""How often a story is played until its call comes; changes may merge on a busy machine."""

_OF_ITS_OWN_TIME = re.compile(r"/leases(/|$)")
_PERIODIC = Match(method="GET", path="^/v1/routes$")

Call = tuple[str, str, int]
"""Of a story: through which proxy, of which kind, and the how manieth of these."""


def _counts(exchange: Exchange) -> bool:
    return not (exchange.is_stream or _OF_ITS_OWN_TIME.search(exchange.path))


class Crashes:
    """Plays stories before one API server and cloud, one after the other.

    Args:
        env: no daemon of its own runs.
        session: with the API server, as administrator.
        proxy: between all daemons and the API server.
    """

    def __init__(self, env: Environment, session: aiohttp.ClientSession, proxy: FaultProxy) -> None:
        self._env = env
        self._session = session
        self._proxies = {"API server": proxy, "cloud": env.cloud_proxy}
        self._numbers = itertools.count(1)
        self._daemon: Daemon | None = None
        self._flags: Mapping[str, str] = {}
        self.play = Play(session, env.cloud, 0)

    async def record(self, story: Story) -> list[Call]:
        """Play a story without a crash; return the calls that its act caused."""
        await self._set_the_scene(story)
        await self._act(story)
        await self._settled(quiet_s=_RECORDING_QUIET_S)
        found: list[Call] = []
        for name, proxy in self._proxies.items():
            seen: Counter[str] = Counter()
            for exchange in filter(_counts, proxy.log):
                kind = self._kind(exchange)
                if seen[kind] and _PERIODIC.covers(exchange):
                    continue
                seen[kind] += 1
                found.append((name, kind, seen[kind]))
        await self._tidy_up(story)
        return found

    async def die(self, story: Story, call: Call, point: Point) -> str:
        """Play a story with a crash of the daemon; return the faults in the end, or ""."""
        at = f"{story.name}; {call}; dies when {point.value}"
        for _ in range(_TRIES):
            struck, leaks = await self._try_once(story, call, point)
            if leaks:
                print(f"LEAK {at}: {leaks}", *map(str, self._traffic()), sep="\n")
                await self._start_over()
                return f"{at}: {leaks}"
            if struck:
                return ""
        return f"{at}: the call never came"

    # --- one run ----------------------------------------------------------------------------

    async def _try_once(self, story: Story, call: Call, point: Point) -> tuple[bool, str]:
        name, kind, nth = call
        await self._set_the_scene(story)
        struck = asyncio.Event()

        def strike() -> None:
            assert self._daemon is not None
            self._daemon.signal(signal.SIGKILL)
            struck.set()

        is_meant = Match(where=lambda one: _counts(one) and self._kind(one) == kind)
        rule = self._proxies[name].on(is_meant, Fell(strike, at=point), nth=nth)
        acting = asyncio.create_task(self._act(story))
        leaks = ""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STRUCK_S):
                    await struck.wait()
            if struck.is_set():
                await self._bury()
                if story.meanwhile is not None:
                    await story.meanwhile(self.play)
                await self._start(story)
            self._proxies[name].remove(rule)
            await acting
            # The end, also after everything was tidied up.
            await self._settled()
            await self._tidy_up(story)
        except AssertionError as error:
            leaks = str(error) or repr(error)
        finally:
            acting.cancel()
        return struck.is_set(), leaks

    async def _set_the_scene(self, story: Story) -> None:
        """Prepare the settled scene, with a running daemon or, if asleep, without one."""
        self.play = Play(self._session, self._env.cloud, next(self._numbers))
        self._provision(0.0)
        if self._flags != story.flags or self._daemon is None:
            await self._bury()
            await self._start(story)
            await self._settled()
        if story.scene is not None:
            await story.scene(self.play)
            await self._settled()
        self._provision(story.provision_s)
        if story.asleep:
            # Before anything is to strike: a last word of this daemon is not the story's.
            await self._bury()
        # Forget ended requests; open watches show that the daemon works.
        for proxy in self._proxies.values():
            proxy.log[:] = [one for one in proxy.log if one.is_stream and one.ended_s is None]

    async def _act(self, story: Story) -> None:
        await story.act(self.play)
        if story.asleep:
            await self._start(story)

    async def _tidy_up(self, story: Story) -> None:
        """Delete all objects, and wait until the daemon has cleaned up."""
        self._provision(0.0)
        if story.asleep:
            await self._bury()
        await self.play.tidy()
        if story.asleep:
            await self._start(story)

        async def is_tidy() -> bool:
            return not await self.play.leftovers()

        await harness.wait_for(is_tidy, "all is tidied up")
        await self._settled()

    async def _start_over(self) -> None:
        """Remove the leak, so that it does not affect the next run."""
        await self._bury()
        await servers.wipe(self._env.server)
        self.play.wipe_cloud()
        await self.play.add_standing()

    def _provision(self, seconds: float) -> None:
        self._env.cloud.change_settings(
            state.Settings(transition_s=0.0, provision_s=seconds, linger_s=0.0)
        )

    # --- daemons ----------------------------------------------------------------------------

    async def _start(self, story: Story) -> None:
        proxy = self._proxies["API server"]
        self._daemon = await self._env.start(flags=story.flags, proxy=proxy)
        self._flags = story.flags

    async def _bury(self) -> None:
        """End a running daemon, and check its log for surprises."""
        if self._daemon is None:
            return
        await self._daemon.kill()
        # The next one need not wait until it has run out.
        async with self._session.delete(harness.LEASE) as response:
            assert response.status in (200, 404)
        assert self._daemon.surprises() == []
        self._env.daemons.remove(self._daemon)
        self._daemon = None

    # --- the proxies ------------------------------------------------------------------------

    def _traffic(self) -> list[Exchange]:
        found = [exchange for proxy in self._proxies.values() for exchange in proxy.log]
        return sorted(found, key=lambda exchange: exchange.started_s)

    def _kind(self, exchange: Exchange) -> str:
        """Return a description of a call that is the same in every run of the story."""
        path = re.sub(rf"-{self.play.number}\b", "", exchange.path)
        path = re.sub(r"/events/.*", "/events/*", path)
        path = re.sub(r"/(lb|r)-[0-9a-f]+\b", r"/\1-*", path)
        if path.endswith("/events"):
            path += f" {exchange.json()['reason']}"
        keys = ",".join(sorted(exchange.query))
        return f"{exchange.method} {path}" + (f"?{keys}" if keys else "")

    async def _settled(self, *, quiet_s: float = _QUIET_S) -> None:
        """Wait until the daemon watches, nothing is to complain about, and all is silent.

        Raises:
            AssertionError: something is wrong all the time.
        """
        deadline = time.monotonic() + harness.WAIT_S
        since = asyncio.get_running_loop().time()
        found = ["never silent"]
        while True:
            assert self._daemon is not None
            assert self._daemon.exit_code is None, self._daemon.output
            if self._watches() and self._is_silent(quiet_s, since):
                found = await self.play.complaints()
                if not found and self._is_silent(quiet_s, since):
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"not settled: {found}")
            await asyncio.sleep(_POLL_S)

    def _watches(self) -> bool:
        """Whether the daemon watches the kinds of its controllers."""
        open_ = {
            one.path.rpartition("/")[2]
            for one in self._proxies["API server"].log
            if one.is_stream and one.ended_s is None and one.status == HTTPStatus.OK
        }
        wanted = {"nodes", "services"} if SERVICE.name in self._flags["controllers"] else {"nodes"}
        return wanted <= open_

    def _is_silent(self, quiet_s: float, since: float) -> bool:
        horizon = asyncio.get_running_loop().time() - quiet_s
        return since < horizon and all(
            one.ended_s is not None and one.ended_s < horizon
            for one in self._traffic()
            if _counts(one) and not _PERIODIC.covers(one)
        )


@pytest_asyncio.fixture
async def crashes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crashes]:
    """Ready to play stories before a dual-stack API server of the test's own.

    Parametrized with the kind of server.
    """
    server: servers.ApiServer
    folder = tmp_path / "server"
    if request.param == servers.REAL:
        programs = servers.require_assets()
        server = realserver.RealServer(assets=programs, data_dir=folder, extra_args=(RANGES,))
    else:
        servers.require_builtin()
        server = servers.BuiltinServer(folder, extra_args=(RANGES,))
    try:
        await server.start()
        async with (
            harness.open_environment(server, tmp_path) as env,
            servers.connect(server) as admin,
        ):
            ready = Crashes(env, admin, await env.new_proxy())
            await ready.play.add_standing()
            yield ready
    finally:
        await server.kill()


async def try_stories(crashes: Crashes, stories: Sequence[Story], *, every: int = 1) -> int:
    """Record the stories and try the first of so many points, all stories counted through.

    Nothing leaked, and the daemon did die at each point. Returns how many there were.
    """
    points = itertools.count()
    tried, wrong = 0, list[str]()
    for story in stories:
        calls = await crashes.record(story)
        assert calls, story.name
        for call, point in itertools.product(calls, Point):
            if next(points) % every == 0:
                tried += 1
                wrong.append(await crashes.die(story, call, point))
        print(f"{story.name}: {len(calls)} calls, {tried} points so far", flush=True)
    assert [one for one in wrong if one] == []
    return tried


@pytest.mark.timeout(600)
@pytest.mark.parametrize("crashes", [servers.BUILTIN], indirect=True)
@pytest.mark.parametrize("stories", [STORIES[0::16], STORIES[8::16]], ids=["some", "others"])
async def test_no_leak_after_a_crash_at_every_twentieth_point(
    crashes: Crashes, stories: Sequence[Story]
) -> None:
    """A fixed selection of points."""
    assert await try_stories(crashes, stories, every=SLICE)


@pytest.mark.soak
@pytest.mark.parametrize(
    "crashes",
    [servers.BUILTIN, pytest.param(servers.REAL, marks=pytest.mark.envtest)],
    indirect=True,
)
async def test_no_leak_after_a_crash_at_any_point(crashes: Crashes) -> None:
    """Three points per call."""
    assert await try_stories(crashes, STORIES) >= LEAST_POINTS

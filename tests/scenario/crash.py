"""Kills the daemon at each of its calls, starts it again, and holds the end to account.

First each story is played without harm, and the calls that the daemon makes because of it
are recorded: those to the API server and those to the cloud, but for watches, which are no
call but a state, and the Lease, whose calls follow the clock. Then the story is played
anew for each call and each point of it, and the daemon dies there. What the next daemon
makes of it is judged once both proxies are silent. That daemon serves in the next run, so
each run costs one start.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from providers.sim import worlds
from tests import servers
from tests.faults import Exchange, FaultProxy, Fell, Match, Point
from tests.scenario import harness
from tests.scenario.crash_stories import Story
from tests.scenario.crash_world import Play
from tests.scenario.harness import Daemon, Environment

POINTS_PER_CALL = len(Point)

STRUCK_S = 30.0
"""How long the call may take to come at which the daemon dies."""

_QUIET_S = 0.1
_RECORDING_QUIET_S = 0.4
_TRIES = 3
"""How often a story is played until its call comes; changes may merge on a busy machine."""

_POLL_S = 0.02

_OF_ITS_OWN_TIME = re.compile(r"/leases(/|$)")
_PERIODIC = Match(method="GET", path="^/v1/routes$")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CallId:
    """A call of a story: of which kind, and the how manieth of these."""

    proxy: str
    kind: str
    nth: int

    def __str__(self) -> str:
        return f"{self.proxy}: {self.kind} #{self.nth}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """Where the daemon dies."""

    story: Story
    call: CallId
    point: Point

    def __str__(self) -> str:
        return f"{self.story.name}; {self.call}; dies when {self.point.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one point.

    Attributes:
        at: the point.
        struck: whether the call came, and the daemon died at it.
        leaks: what was wrong in the end.
    """

    at: CrashPoint
    struck: bool
    leaks: Sequence[str] = ()

    def __str__(self) -> str:
        said = "; ".join(self.leaks) if self.struck else "the call never came"
        return f"{self.at}: {said}"


def points(story: Story, calls: Iterable[CallId]) -> list[CrashPoint]:
    """All points of a story's calls."""
    return [CrashPoint(story=story, call=call, point=point) for call in calls for point in Point]


class Crashes:
    """Plays stories before one API server and cloud, one after the other.

    Args:
        env: no daemon of its own runs.
        session: with the API server, as administrator.
    """

    def __init__(self, env: Environment, session: aiohttp.ClientSession) -> None:
        self._env = env
        self._session = session
        self._runs = 0
        self._proxy: FaultProxy | None = None
        self._daemon: Daemon | None = None
        self._flags: Mapping[str, str] = {}
        self._play = Play(session, env.cloud, 0)

    async def open(self) -> None:
        """Set up what is there in every run."""
        self._proxy = await self._env.new_proxy()
        await self._play.add_standing()

    async def record(self, story: Story) -> list[CallId]:
        """Play a story without harm; the calls that its act caused."""
        await self._set_the_scene(story)
        await self._act(story)
        await self._settled(quiet_s=_RECORDING_QUIET_S)
        found: list[CallId] = []
        for name, proxy in self._proxies.items():
            seen: Counter[str] = Counter()
            for exchange in filter(_counts, proxy.log):
                kind = self._kind(exchange)
                if seen[kind] and _PERIODIC.covers(exchange):
                    continue
                seen[kind] += 1
                found.append(CallId(proxy=name, kind=kind, nth=seen[kind]))
        await self._tidy_up(story)
        return found

    async def try_out(self, at: CrashPoint) -> Outcome:
        """Play a story in which the daemon dies, and judge."""
        outcome = Outcome(at=at, struck=False)
        for _ in range(_TRIES):
            outcome = await self._try_once(at)
            if outcome.leaks:
                print(f"LEAK {outcome}", *map(str, self._traffic()), sep="\n")
                await self._start_over()
            if outcome.struck:
                break
        return outcome

    # --- one run ----------------------------------------------------------------------------

    async def _try_once(self, at: CrashPoint) -> Outcome:
        story, call = at.story, at.call
        await self._set_the_scene(story)
        struck = asyncio.Event()

        def strike() -> None:
            assert self._daemon is not None
            self._daemon.signal(signal.SIGKILL)
            struck.set()

        is_meant = Match(where=lambda one: _counts(one) and self._kind(one) == call.kind)
        proxy = self._proxies[call.proxy]
        rule = proxy.on(is_meant, Fell(strike, at=at.point), nth=call.nth)
        acting = asyncio.create_task(self._act(story))
        try:
            if await _comes(struck):
                await self._bury()
                if story.meanwhile is not None:
                    await story.meanwhile(self._play)
                await self._start(story)
            proxy.remove(rule)
            await acting
            leaks = await self._trouble(story)
        finally:
            acting.cancel()
        return Outcome(at=at, struck=struck.is_set(), leaks=leaks)

    async def _trouble(self, story: Story) -> list[str]:
        """Wait for the end; what is wrong in it, also after everything was tidied up."""
        try:
            await self._settled()
            await self._tidy_up(story)
        except AssertionError as error:
            return [str(error)]
        return []

    async def _set_the_scene(self, story: Story) -> None:
        """A scene that is settled, before a daemon that works, or none if it is asleep."""
        self._runs += 1
        self._play = Play(self._session, self._env.cloud, self._runs)
        self._provision(0.0)
        if self._flags != story.flags or self._daemon is None:
            await self._bury()
            await self._start(story)
            await self._settled()
        if story.scene is not None:
            await story.scene(self._play)
            await self._settled()
        self._provision(story.provision_s)
        if story.asleep:
            # Before anything is to strike: a last word of this daemon is not the story's.
            await self._bury()
        self._forget_traffic()

    async def _act(self, story: Story) -> None:
        await story.act(self._play)
        if story.asleep:
            await self._start(story)

    async def _tidy_up(self, story: Story) -> None:
        """Take everything away, and wait until the daemon has done so too."""
        self._provision(0.0)
        if story.asleep:
            await self._bury()
        await self._play.tidy()
        if story.asleep:
            await self._start(story)
        await harness.wait_for(self._is_tidy, "all is tidied up")
        await self._settled()

    async def _start_over(self) -> None:
        """After a leak: nothing of it may show in the next run."""
        await self._bury()
        await servers.wipe(self._env.server)
        self._play.wipe_cloud()
        await self._play.add_standing()

    def _provision(self, seconds: float) -> None:
        self._env.cloud.change_settings(
            worlds.Settings(transition_s=0.0, provision_s=seconds, linger_s=0.0)
        )

    # --- daemons ----------------------------------------------------------------------------

    async def _start(self, story: Story) -> None:
        self._daemon = await self._env.start(flags=story.flags, proxy=self._proxy)
        self._flags = story.flags

    async def _bury(self) -> None:
        """End the daemon, if one runs, and see that it said nothing strange."""
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

    @property
    def _proxies(self) -> dict[str, FaultProxy]:
        assert self._proxy is not None
        return {"API server": self._proxy, "cloud": self._env.cloud_proxy}

    def _traffic(self) -> list[Exchange]:
        found = [exchange for proxy in self._proxies.values() for exchange in proxy.log]
        return sorted(found, key=lambda exchange: exchange.started_s)

    def _forget_traffic(self) -> None:
        """Forget what is over; open watches tell that the daemon works."""
        for proxy in self._proxies.values():
            proxy.log[:] = [one for one in proxy.log if one.is_stream and one.ended_s is None]

    def _kind(self, exchange: Exchange) -> str:
        """What a call is, in words that are the same in every run of the story."""
        path = re.sub(rf"-{self._play.number}\b", "", exchange.path)
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
        while True:
            await self._silence(quiet_s, since, deadline)
            found = await self._play.complaints()
            if not found and self._is_silent(quiet_s, since):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"not settled: {found}")
            await asyncio.sleep(_POLL_S)

    async def _silence(self, quiet_s: float, since: float, deadline: float) -> None:
        while not (self._watches() and self._is_silent(quiet_s, since)):
            assert self._daemon is not None
            assert self._daemon.exit_code is None, self._daemon.output
            if time.monotonic() > deadline:
                raise AssertionError(f"never silent: {list(map(str, self._traffic()))}")
            await asyncio.sleep(_POLL_S)

    def _watches(self) -> bool:
        """Whether the daemon watches what it works on."""
        assert self._proxy is not None
        open_ = {
            one.path.rpartition("/")[2]
            for one in self._proxy.log
            if one.is_stream and one.ended_s is None and one.status == HTTPStatus.OK
        }
        wanted = {"nodes"}
        if SERVICE.name in self._flags["controllers"]:
            wanted.add("services")
        return wanted <= open_

    def _is_silent(self, quiet_s: float, since: float) -> bool:
        horizon = asyncio.get_running_loop().time() - quiet_s
        return since < horizon and all(
            one.ended_s is not None and one.ended_s < horizon
            for one in self._traffic()
            if _counts(one) and not _PERIODIC.covers(one)
        )

    async def _is_tidy(self) -> bool:
        return not await self._play.leftovers()


async def _comes(struck: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(STRUCK_S):
            await struck.wait()
    except TimeoutError:
        return False
    return True


def _counts(exchange: Exchange) -> bool:
    return not (exchange.is_stream or _OF_ITS_OWN_TIME.search(exchange.path))

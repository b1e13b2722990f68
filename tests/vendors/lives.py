"""The daemon dies at each call that changes a provider's cloud, in a life from nothing to nothing.

First a life is lived without harm, and its calls that write are noted. Then it is lived anew for
each of them and each point of it, and the daemon dies there and is started again. In the middle
the cloud has to hold as many things of each kind as in the life without harm, in the end nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.faults import Exchange, FaultProxy, Fell, Match, Point
from tests.scenario.harness import Daemon, Environment
from tests.scenario.machines import Farm
from tests.vendors.clouds import Vendor
from tests.waiting import DEADLINE_S

FLAGS: Mapping[str, str] = {
    "leader-elect": "false",  # the next daemon need not wait for the Lease of a dead one
    "node-monitor-period": "500ms",
}

TRIES = 3
"""How often a life is lived until its call comes; changes may merge on a busy machine."""

_NAMED = re.compile(r"/([0-9]+|[0-9a-f]{8}-[0-9a-f-]{27}|k8s-svc-[^/]+)(?=/|$)")

Write = tuple[str, int]
"""Kind of a call, and the how manieth of these."""


class Lives:
    """Lives of one machine, its node and one Service.

    Args:
        env: no daemon of its own runs.
        farm: installed.
        proxy: between the daemon and the cloud.
        vendor: of the cloud, and opened.
    """

    def __init__(self, env: Environment, farm: Farm, proxy: FaultProxy, vendor: Vendor) -> None:
        self._env = env
        self._farm = farm
        self._proxy = proxy
        self._vendor = vendor
        self._daemon: Daemon | None = None
        self.expected: Mapping[str, int] = {}

    async def record(self) -> Sequence[Write]:
        """Live without harm; the calls that changed something, in order."""
        await self._start()
        self._proxy.log.clear()
        self.expected = await self._live()
        seen: Counter[str] = Counter()
        found = []
        for exchange in filter(self._writes, self._proxy.log):
            kind = _kind(exchange)
            seen[kind] += 1
            found.append((kind, seen[kind]))
        print("held", dict(self.expected), "written", dict(seen))
        return found

    async def die(self, write: Write, point: Point) -> str:
        """Live, and die once; what was wrong, empty for nothing."""
        kind, nth = write
        for _ in range(TRIES):
            struck = asyncio.Event()

            def strike(struck: asyncio.Event = struck) -> None:
                assert self._daemon is not None
                self._daemon.signal(signal.SIGKILL)
                struck.set()

            self._proxy.log.clear()
            meant = Match(where=lambda one: self._writes(one) and _kind(one) == kind)
            rule = self._proxy.on(meant, Fell(strike, at=point), nth=nth)
            rise = asyncio.create_task(self._rise(struck))
            try:
                found = await self._live()
                if len(self._proxy.requests(meant)) >= nth:
                    # The last call of a life ends it once it took effect, before the daemon dies.
                    await asyncio.wait_for(struck.wait(), DEADLINE_S)
            finally:
                self._proxy.remove(rule)
                if not struck.is_set():
                    rise.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await rise  # the last call may have been the one
            if found != self.expected:
                return f"{kind} #{nth}, dies {point.value}: {found}, not {self.expected}"
            if struck.is_set():
                return ""
        return f"{kind} #{nth}: the call never came"

    async def _live(self) -> Mapping[str, int]:
        """What the cloud held when all was there."""
        await self._farm.order(1)
        await self._farm.join(1)
        await self._farm.served(1, 0)
        await self._farm.expose(1)
        await self._farm.served(1, 1)
        found = dict(self._vendor.held())
        await self._farm.to_nothing()
        assert not any(self._vendor.held().values())
        return found

    async def _rise(self, struck: asyncio.Event) -> None:
        await struck.wait()
        assert self._daemon is not None
        await self._daemon.kill()
        await self._start()

    async def _start(self) -> None:
        self._daemon = await self._env.start(**self._vendor.how)

    def _writes(self, exchange: Exchange) -> bool:
        return exchange.method != "GET" and not re.search(self._vendor.reads, exchange.path)


def _kind(exchange: Exchange) -> str:
    return f"{exchange.method} {_NAMED.sub('/*', exchange.path)}"


async def assert_mended(lives: Lives, *, every: int, first: int = 0) -> None:
    """Die at every so manieth point of all, from the first; nothing is wrong afterwards."""
    writes = await lives.record()
    points = [(write, point) for write in writes for point in Point][first::every]
    found = [await lives.die(write, point) for write, point in points]
    print(f"{len(points)} points of {len(writes)} calls")
    assert points
    assert [one for one in found if one] == []

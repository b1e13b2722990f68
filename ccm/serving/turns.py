"""Places for what callers make us do, given out in turns: whoever sends much waits for itself.

A caller is known by where it comes from, as nothing else is proved yet. Each origin has some of
the places at most, and one that gets free goes to each waiting origin in turn. So a crowd from
one address costs a caller from another one the time of a place or two, however large it is.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_IPV6_BITS = 64
"""Of an IPv6 address; the rest is its owner's to choose, for each connection anew."""


def origin_of(host: str) -> str:
    """Where a peer's address counts as coming from; the text itself where it is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_BITS), strict=False))


class Turns:
    """Some places.

    Args:
        places: how many there are.
        each: how many of them one origin has at most.
    """

    def __init__(self, places: int, *, each: int) -> None:
        self._free = places
        self._each = each
        self._taken = Counter[str]()
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def place(self, origin: str) -> AsyncIterator[None]:
        """Wait for a place, and have it inside the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, {})[turn] = None
        self._give()
        try:
            await turn
            yield
        finally:
            # It may have come in the same moment as the end of the wait.
            if turn.done() and not turn.cancelled():
                self._taken[origin] -= 1
                if not self._taken[origin]:
                    del self._taken[origin]
                self._free += 1
                self._give()
            else:
                self._leave(origin, turn)

    def _give(self) -> None:
        """Give what is free to those whose turn it is."""
        while self._free and (origin := self._next()) is not None:
            turn = next(iter(self._waiting[origin]))
            self._waiting.move_to_end(origin)
            self._leave(origin, turn)
            if turn.done():  # its caller goes, and has had no time to say so
                continue
            self._taken[origin] += 1
            self._free -= 1
            turn.set_result(None)

    def _next(self) -> str | None:
        return next((each for each in self._waiting if self._taken[each] < self._each), None)

    def _leave(self, origin: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(origin, {})
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(origin, None)

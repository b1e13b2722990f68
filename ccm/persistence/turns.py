"""Who writes next, and whether anybody still does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager


class UnderWay:
    """What has begun and not ended."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Something is under way inside."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def none(self) -> None:
        """All that began has ended."""
        await self._none.wait()


class Turns:
    """Writes to one place, in the order they were asked for; no lock outlives its users."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def of(self, place: Hashable | None) -> AsyncIterator[None]:
        """Inside it is our turn; None is nowhere, and waits for nobody."""
        if place is None:
            yield
            return
        lock, users = self._held.get(place, (asyncio.Lock(), 0))
        self._held[place] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held[place]
            if users == 1:
                del self._held[place]
            else:
                self._held[place] = (lock, users - 1)

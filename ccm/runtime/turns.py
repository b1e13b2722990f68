"""Turns: a bound on what is worked on at once that does not count waiting for a cloud.

A worker takes a turn for its reconcile, and puts it down around each call that may take long. So
slow calls hold up nobody, and few turns do as well as many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turn:
    """One turn; `async with turn` takes it.

    Args:
        free: counts those that are left.
    """

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_taken = False

    async def __aenter__(self) -> Turn:
        await self._take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._put_down()

    @asynccontextmanager
    async def put_down(self) -> AsyncIterator[None]:
        """Without it for as long as the block runs; waits for one afterwards.

        Not after a cancellation, which must not wait for anybody.
        """
        self._put_down()
        try:
            yield
        except Exception:
            await self._take()
            raise
        await self._take()

    async def _take(self) -> None:
        await self._free.acquire()
        self._is_taken = True

    def _put_down(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._free.release()

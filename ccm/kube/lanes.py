"""How many requests are under way at once: as few connections as keep nobody waiting for long.

Each connection costs a TLS handshake on both sides, and a thousand requests that are ready
at once are answered as fast over eight connections as over two hundred, unless the server
is slow. So there are few lanes, and one more whenever somebody has waited for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LANES = 4
"""How many there are while answers come fast."""

PATIENCE_S = 0.02
"""After how long a wait there is one more."""


class Lanes:
    """Lets so many in at once; others wait in order of arrival."""

    def __init__(self) -> None:
        self._lanes = LANES
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[None]:
        """One lane for as long as the block runs."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._busy < self._lanes:
            self._busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._watch()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the turn came in the same breath: pass it on
            raise

    def _leave(self) -> None:
        self._busy -= 1
        self._let_in()
        if not self._busy:
            self._lanes = LANES

    def _let_in(self) -> None:
        while self._waiting and self._busy < self._lanes:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)

    def _watch(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PATIENCE_S, self._widen)

    def _widen(self) -> None:
        self._timer = None
        if self._waiting:
            self._lanes += 1
            self._let_in()
        if self._waiting:
            self._watch()

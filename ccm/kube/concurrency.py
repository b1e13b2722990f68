"""How many requests are under way at once: as few connections as keep nobody waiting for long.

Each connection costs a TLS handshake on both sides, and a thousand requests that are ready
at once are answered as fast over eight connections as over two hundred, unless the server
is slow. So the limit is low, and rises by one each time somebody still waits after a while in
which few answers came; when nothing is under way any more it is low again.
"""

from __future__ import annotations

import asyncio
from collections import deque

CONCURRENCY = 8
"""The limit while answers come fast."""

PATIENCE_S = 0.1
"""After how many seconds in which somebody waited and few answers came the limit rises by one."""

MANY = 20
"""Answers in that time which are not few: a server that gives 200 a second is busy, not slow."""


class ConcurrencyLimiter:
    """Lets so many in at once, for as long as its `async with` block; others wait in order."""

    def __init__(self) -> None:
        self._limit = CONCURRENCY
        self._busy = 0
        self._ended = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self._busy < self._limit:
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

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._busy -= 1
        self._ended += 1
        self._let_in()
        if not self._busy:
            self._limit = CONCURRENCY

    def _let_in(self) -> None:
        while self._waiting and self._busy < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)

    def _watch(self) -> None:
        if self._timer is None:
            self._ended = 0
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PATIENCE_S, self._widen)

    def _widen(self) -> None:
        self._timer = None
        if self._waiting and self._ended < MANY:
            self._limit += 1
            self._let_in()
        if self._waiting:
            self._watch()

"""Reads the bodies of requests: each within a size and a time, all together within a budget.

What the budget has no room for is taken from the largest body that is still being read, which
may be the one that came last. So whoever sends small ones is served whatever others do, and a
body that is whole stays until its request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ccm.base.wire import HttpProcessingError

MAX_BODY = 3 << 20
"""Bytes of a request's body (k8s.io/apiserver)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bodies may cost.

    Attributes:
        each: bytes of one.
        together: bytes of all that are held at one time.
        patience_s: how long one may take to arrive.
    """

    each: int = MAX_BODY
    together: int = 8 << 20
    patience_s: float = 10.0


class BadBody(Exception):
    """The body of a request cannot be had; `status` is what the caller is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Bodies:
    """Those of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        """Bytes of all of them."""
        self.reading: set[Body] = set()
        """Those that are not whole yet."""

    @contextmanager
    def of(self, chunks: AsyncIterable[bytes]) -> Iterator[Body]:
        """The body of one request, held until the block is left."""
        body = Body(self, chunks)
        try:
            yield body
        finally:
            body.drop()

    def make_room(self) -> None:
        """Give up the largest until the rest fits."""
        while self.held > self.limits.together and self.reading:
            max(self.reading, key=lambda body: body.size).give_up()


class Body:
    """The body of one request.

    Attributes:
        size: bytes that are here.
    """

    def __init__(self, bodies: Bodies, chunks: AsyncIterable[bytes]) -> None:
        self.size = 0
        self._bodies = bodies
        self._chunks = chunks
        self._found = bytearray()
        self._timeout = asyncio.timeout(None)

    async def read(self) -> bytes:
        """The whole body; can be had once.

        Raises:
            BadBody: it is too large, too slow, broken, or there is no room for it.
        """
        self._bodies.reading.add(self)
        self._timeout = asyncio.timeout(self._bodies.limits.patience_s)
        try:
            async with self._timeout:
                async for chunk in self._chunks:
                    self._take(chunk)
            self._check()
        except TimeoutError:
            self._check()
            raise BadBody(408, "the body did not arrive in time") from None
        except (HttpProcessingError, OSError, asyncio.IncompleteReadError) as error:
            raise BadBody(400, "request body cannot be read") from error
        finally:
            self._bodies.reading.discard(self)
        found, self._found = bytes(self._found), bytearray()
        return found

    def give_up(self) -> None:
        """Its bytes go, and whoever reads it is told at once."""
        self.drop()
        # Its own time may be up in this very turn of the event loop.
        if not self._timeout.expired():
            self._timeout.reschedule(0)

    def drop(self) -> None:
        """Its bytes count no more."""
        self._bodies.reading.discard(self)
        self._bodies.held -= self.size
        self.size = 0
        self._found.clear()

    def _take(self, chunk: bytes) -> None:
        self._check()
        self.size += len(chunk)
        self._bodies.held += len(chunk)
        if self.size > self._bodies.limits.each:
            raise BadBody(413, "request body too large")
        self._found += chunk
        self._bodies.make_room()
        self._check()

    def _check(self) -> None:
        if self not in self._bodies.reading:
            raise BadBody(503, "too many bytes at once")

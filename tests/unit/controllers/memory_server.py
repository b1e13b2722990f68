"""The sandbox's API server without a wire: the client, the caches and all above it are real, and
time may be virtual."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ccm.kube import errors
from ccm.testing.apiserver.transport import MemoryTransport

STRATEGIC = "application/strategic-merge-patch+json"

Refuse = Callable[[str, str], Exception | None]
"""From method and path to what the server answers instead; None: it answers."""


class MemoryServer(MemoryTransport):
    """A transport that ends in a store.

    Attributes:
        requests: how often, by method and path; watches are not among them.
        refuse: see `Refuse`.
        point: awaited before each request is carried out, and before each answer.
    """

    user_agent = "tests"

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.refuse: Refuse = lambda _method, _path: None
        self.point: Callable[[], Awaitable[None]] = _at_once

    async def do(
        self, method: str, path: str, *, body: bytes | None, content_type: str, **rest: Any
    ) -> bytes:
        """One request, as a `Transport` makes it."""
        self.requests[method, path] += 1
        if (refusal := self.refuse(method, path)) is not None:
            raise refusal
        await self.point()
        found = await super().do(method, path, body=body, content_type=content_type, **rest)
        await self.point()
        return found

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object, behind everybody's back."""
        return self._told("POST", path, body)

    def patch(self, path: str, body: dict[str, Any], kind: str = "") -> dict[str, Any]:
        """Patch one."""
        return self._told("PATCH", path, body, kind or "application/merge-patch+json")

    def drop(self, path: str) -> None:
        """Delete one."""
        self._told("DELETE", path, {})

    def unmake(self, path: str) -> None:
        """Delete one whatever its finalizers are."""
        self.patch(path, {"metadata": {"finalizers": None}})
        self.drop(path)

    def fails(self, error: Exception, method: str = "", part: str = "") -> None:
        """Answer requests with this method and part of their path by an error from now on."""
        self.refuse = lambda verb, path: error if method in verb and part in path else None

    def answers(self) -> None:
        """Refuse nothing from now on."""
        self.refuse = lambda _method, _path: None

    def get(self, path: str) -> dict[str, Any] | None:
        """Read one; None: there is none."""
        try:
            return dict(msgspec.json.decode(self.answer("GET", path)))
        except errors.NotFound:
            return None

    def list(self, path: str) -> list[dict[str, Any]]:
        """Read all of a collection."""
        return list(msgspec.json.decode(self.answer("GET", path))["items"])

    def writes(self, plural: str) -> int:
        """Requests so far that changed, or should have, an object of a kind."""
        return sum(
            count
            for (method, path), count in self.requests.items()
            if method != "GET" and f"/{plural}/" in f"{path}/"
        )

    def reads(self, plural: str) -> int:
        """Requests so far that read one object of a kind."""
        return sum(
            count
            for (method, path), count in self.requests.items()
            if method == "GET" and f"/{plural}/" in path
        )

    def _told(self, method: str, path: str, body: dict[str, Any], kind: str = "") -> dict[str, Any]:
        return dict(msgspec.json.decode(self.answer(method, path, msgspec.json.encode(body), kind)))


class FragileServer(MemoryServer):
    """One that may be away: then it answers nothing, and its watches break."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = asyncio.Event()
        self._where = ""

    def goes(self) -> None:
        """It is away from now on."""
        self.refuse = lambda _method, _path: _nobody()
        self._gone.set()

    def forgets(self, path: str) -> None:
        """From now on nobody can follow what is there, but it answers."""
        self._where = path
        self._gone.set()

    def returns(self) -> None:
        """It is there again."""
        self.answers()
        self._gone, self._where = asyncio.Event(), ""

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **rest: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A watch."""
        is_there = not path.startswith(self._where)
        if self._gone.is_set() and not is_there:
            raise _nobody()
        async with super().stream(path, query=query, **rest) as lines:
            yield lines if is_there else _until(self._gone, lines)


async def _until(gone: asyncio.Event, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    end = asyncio.ensure_future(gone.wait())
    try:
        while True:
            line = asyncio.ensure_future(anext(lines))
            try:
                await asyncio.wait({line, end}, return_when=asyncio.FIRST_COMPLETED)
                if end.done():
                    raise _nobody()
                yield line.result()
            except StopAsyncIteration:
                return
            finally:
                line.cancel()
    finally:
        end.cancel()


def _nobody() -> errors.Unreachable:
    return errors.Unreachable("no route to host", kind="refused")


async def _at_once() -> None:
    await asyncio.sleep(0)

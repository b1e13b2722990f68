"""Clients of one cloud, one for each place and credentials; what a machine driver keeps them in.

Credentials come with each request and may be others each time, so a driver cannot open one client
at its start, and one for each request would have neither kept connections nor a rate of its own.

```python
@cloud.provider(sdk="2.0", offers=("machines",))
async def open_cloud(context):
    async with cloud.Sessions(lambda url, credentials: open_client(url, credentials)) as sessions:
        yield cloud.Cloud(name="acme", machines=AcmeMachines(sessions))
```
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from ccm.base.clock import monotonic
from ccm.cloud.errors import RetryAfter, Unavailable
from ccm.cloud.machines import Credentials

T = TypeVar("T")

IDLE_S = 1800.0
"""After so many seconds without a call a client is closed: three passes of the search for VMs
without a machine, which asks every pool (Gardener's period, ten minutes)."""

MOST = 64
"""Clients at the same time."""


class _Session(Generic[T]):
    """One client; it is opened by the first who gets the lock."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.client: T | None = None
        self.users = 0
        self.used_at = monotonic()
        self.is_replaced = False


class Sessions(Generic[T]):
    """Clients that are opened when they are needed, and closed when they are no longer.

    Args:
        opener: from a place and credentials to a client, not entered yet. It may be entered in
            one task and left in another.
        idle_s: seconds without a call after which a client is closed.
        most: how many there may be at once.
    """

    def __init__(
        self,
        opener: Callable[[str, Credentials], AbstractAsyncContextManager[T]],
        *,
        idle_s: float = IDLE_S,
        most: int = MOST,
    ) -> None:
        self._opener = opener
        self._idle_s = idle_s
        self._most = most
        self._sessions: dict[Hashable, _Session[T]] = {}
        self._held: dict[str, Hashable] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self._sessions)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        async with AsyncExitStack() as all_of_them:
            for key in list(self._sessions):
                all_of_them.push_async_exit(self._sessions.pop(key).stack)

    @asynccontextmanager
    async def of(
        self, credentials: Credentials, *, endpoint: str = "", pool: str = ""
    ) -> AsyncIterator[T]:
        """The client for credentials, for as long as one call takes.

        Args:
            credentials: of the request.
            endpoint: where the cloud is, if the request says it elsewhere.
            pool: who asks, such as `Identity.pool`: when it comes with other credentials, and
                nobody else has the ones before, their client is closed at once.

        Raises:
            RetryAfter: there are as many as may be, and all are in use.
            Exception: what the opener raises.
        """
        key = (endpoint, credentials.digest)
        session = await self._session(key)
        self._hold(pool, key)
        session.users += 1
        try:
            yield await self._client(session, endpoint, credentials)
        finally:
            session.users -= 1
            session.used_at = monotonic()
            if session.client is None and not session.users:
                self._sessions.pop(key, None)
            await self._close(self._idle())

    async def _session(self, key: Hashable) -> _Session[T]:
        if self._is_closed:
            raise Unavailable("the driver is closed")
        if key not in self._sessions:
            free = [one for one, session in self._sessions.items() if not session.users]
            free.sort(key=lambda one: self._sessions[one].used_at)
            excess = len(self._sessions) + 1 - self._most
            if excess > len(free):
                raise RetryAfter(f"{self._most} clients of this cloud are in use", seconds=1.0)
            self._sessions[key] = _Session()
            await self._close(free[: max(0, excess)])
        return self._sessions.setdefault(key, _Session())

    def _hold(self, pool: str, key: Hashable) -> None:
        self._sessions[key].is_replaced = False
        former = self._held.get(pool)
        if not pool or former == key:
            return
        self._held[pool] = key
        if former in self._sessions and former not in self._held.values():
            self._sessions[former].is_replaced = True

    async def _client(self, session: _Session[T], endpoint: str, credentials: Credentials) -> T:
        async with session.lock:
            if session.client is None:
                opened = self._opener(endpoint, credentials)
                session.client = await session.stack.enter_async_context(opened)
            return session.client

    def _idle(self) -> list[Hashable]:
        since = monotonic() - self._idle_s
        return [
            key
            for key, one in self._sessions.items()
            if not one.users and (one.is_replaced or one.used_at <= since)
        ]

    async def _close(self, keys: list[Hashable]) -> None:
        # All leave the table before the first is waited for: nobody may be given one of them.
        closing = [self._sessions.pop(key) for key in keys]
        self._held = {pool: key for pool, key in self._held.items() if key in self._sessions}
        for session in closing:
            # It was not needed any more; a fault of its end is nothing to the call under way.
            with suppress(Exception):
                await session.stack.aclose()

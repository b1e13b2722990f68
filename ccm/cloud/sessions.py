"""Pool of clients for a machine driver: one client for each pair of endpoint and credentials.

Each request carries credentials, which may differ between requests, so a driver cannot open one
client at its start. A client per request would neither keep connections nor have a rate limit.

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
"""Seconds without a call after which a client is closed. The search for orphaned VMs uses the
client of every pool, in Gardener every ten minutes; three such periods keep these clients open."""

MAX_SESSIONS = 64
"""Maximum number of open clients."""


class _Session(Generic[T]):
    """One client; the first caller that acquires the lock opens it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.client: T | None = None
        self.users = 0
        self.used_at = monotonic()
        self.is_replaced = False


class Sessions(Generic[T]):
    """Pool of clients, opened on demand and closed when idle or replaced.

    Args:
        opener: function from endpoint and credentials to the client's context manager. The pool may
            enter the context manager in one task and exit it in another.
        idle_s: seconds without a call after which a client is closed.
        most: maximum number of open clients; to open one more, the client that has been idle
            longest is closed.
    """

    def __init__(
        self,
        opener: Callable[[str, Credentials], AbstractAsyncContextManager[T]],
        *,
        idle_s: float = IDLE_S,
        most: int = MAX_SESSIONS,
    ) -> None:
        self._opener = opener
        self._idle_s = idle_s
        self._most = most
        self._sessions: dict[Hashable, _Session[T]] = {}
        self._session_of_pool: dict[str, Hashable] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of open clients."""
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
        """Yield the client for an endpoint and credentials, for the duration of one call.

        Args:
            credentials: credentials of the request.
            endpoint: endpoint of the cloud, if it is not part of the credentials.
            pool: name of the machine pool, such as `Identity.pool`. When a pool changes its
                credentials and no other pool uses the old credentials, the old client is closed as
                soon as no call uses it. Empty = only idle clients are closed.

        Raises:
            RetryAfter: the maximum number of clients is open, and all are in use.
            Unavailable: the pool of clients is closed.
            Exception: any error of the opener.
        """
        key = (endpoint, credentials.digest)
        session = await self._session(key)
        self._assign(pool, key)
        session.users += 1
        try:
            yield await self._client(session, endpoint, credentials)
        finally:
            session.users -= 1
            session.used_at = monotonic()
            if session.client is None and not session.users:  # the opener failed
                self._sessions.pop(key, None)
            await self._close(self._closable())

    async def _session(self, key: Hashable) -> _Session[T]:
        if self._is_closed:
            raise Unavailable("the client pool is closed")
        if key not in self._sessions:
            free = [idle_key for idle_key, session in self._sessions.items() if not session.users]
            free.sort(key=lambda idle_key: self._sessions[idle_key].used_at)
            excess = len(self._sessions) + 1 - self._most
            if excess > len(free):
                raise RetryAfter(f"all {self._most} clients of this cloud are in use", seconds=1.0)
            self._sessions[key] = _Session()
            await self._close(free[: max(0, excess)])
        # `_close` awaits: a concurrent call may have evicted the new, still unused session.
        return self._sessions.setdefault(key, _Session())

    def _assign(self, pool: str, key: Hashable) -> None:
        self._sessions[key].is_replaced = False
        former = self._session_of_pool.get(pool)
        if not pool or former == key:
            return
        self._session_of_pool[pool] = key
        if former in self._sessions and former not in self._session_of_pool.values():
            self._sessions[former].is_replaced = True

    async def _client(self, session: _Session[T], endpoint: str, credentials: Credentials) -> T:
        async with session.lock:
            if session.client is None:
                opened = self._opener(endpoint, credentials)
                session.client = await session.stack.enter_async_context(opened)
            return session.client

    def _closable(self) -> list[Hashable]:
        since = monotonic() - self._idle_s
        return [
            key
            for key, session in self._sessions.items()
            if not session.users and (session.is_replaced or session.used_at <= since)
        ]

    async def _close(self, keys: list[Hashable]) -> None:
        # Remove all before the first await: a concurrent call must not get a closing client.
        closing = [self._sessions.pop(key) for key in keys]
        self._session_of_pool = {
            pool: key for pool, key in self._session_of_pool.items() if key in self._sessions
        }
        for session in closing:
            # The client was idle; an error while closing it must not fail the current call.
            with suppress(Exception):
                await session.stack.aclose()

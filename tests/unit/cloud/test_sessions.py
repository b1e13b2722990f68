"""Cache of clients: one for each set of credentials, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ccm.cloud import Credentials, RetryAfter, Sessions, Unavailable
from ccm.cloud.sessions import IDLE_S

pytestmark = pytest.mark.virtual_time


def secret(word: str) -> Credentials:
    return Credentials({"token": word.encode()})


class Clients:
    """Factory that tracks which clients are open."""

    def __init__(self, *, opening_s: float = 0.0) -> None:
        self.open: list[str] = []
        self.opened = 0
        self.opening_s = opening_s
        self.fault: Exception | None = None

    @asynccontextmanager
    async def __call__(self, endpoint: str, credentials: Credentials) -> AsyncIterator[str]:
        self.opened += 1
        await asyncio.sleep(self.opening_s)
        if self.fault:
            raise self.fault
        name = f"{endpoint}{credentials['token'].decode()}"
        self.open.append(name)
        try:
            yield name
        finally:
            self.open.remove(name)


async def ask(sessions: Sessions[str], word: str, *, endpoint: str = "", pool: str = "") -> str:
    async with sessions.of(secret(word), endpoint=endpoint, pool=pool) as client:
        return client


async def test_equal_credentials_share_a_client_that_is_closed_at_the_end() -> None:
    clients = Clients()

    async with Sessions(clients) as sessions:
        found = [await ask(sessions, word) for word in ("a", "b", "a")]
        found.append(await ask(sessions, "a", endpoint="x:"))

        assert found == ["a", "b", "a", "x:a"]
        assert sorted(clients.open) == ["a", "b", "x:a"]
        assert len(sessions) == 3

    assert clients.open == []
    with pytest.raises(Unavailable, match="closed"):
        await ask(sessions, "a")


async def test_idle_client_is_closed() -> None:
    clients = Clients()

    async with Sessions(clients) as sessions:
        await ask(sessions, "a")
        await asyncio.sleep(IDLE_S - 1)
        await ask(sessions, "b")
        assert sorted(clients.open) == ["a", "b"]
        await asyncio.sleep(1)
        await ask(sessions, "b")

        assert clients.open == ["b"]


async def test_number_of_clients_is_limited() -> None:
    clients = Clients()

    async with Sessions(clients, most=2) as sessions:
        async with sessions.of(secret("a")):
            await ask(sessions, "b")
            await ask(sessions, "c")
            assert sorted(clients.open) == ["a", "c"], "the unused client was closed"
            async with sessions.of(secret("c")):
                with pytest.raises(RetryAfter, match="2 clients"):
                    await ask(sessions, "d")
        await ask(sessions, "d")

        assert sorted(clients.open) == ["c", "d"]

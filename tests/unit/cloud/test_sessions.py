"""Clients by credentials: one for each, no longer than it is needed."""

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
    """Notes which clients are open."""

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


async def test_equal_credentials_share_a_client_and_all_are_closed_in_the_end() -> None:
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


async def test_the_first_of_many_opens_it() -> None:
    clients = Clients(opening_s=1.0)

    async with Sessions(clients) as sessions:
        assert await asyncio.gather(*(ask(sessions, "a") for _ in range(5))) == ["a"] * 5

        assert clients.opened == 1


async def test_one_that_does_not_open_is_tried_anew() -> None:
    clients = Clients()

    async with Sessions(clients) as sessions:
        clients.fault = Unavailable("down")
        with pytest.raises(Unavailable):
            await ask(sessions, "a")
        assert len(sessions) == 0
        clients.fault = None

        assert await ask(sessions, "a") == "a"


async def test_a_cancelled_opening_is_taken_over() -> None:
    clients = Clients(opening_s=1.0)

    async with Sessions(clients) as sessions:
        first, second = (asyncio.ensure_future(ask(sessions, "a")) for _ in range(2))
        await asyncio.sleep(0.5)
        first.cancel()

        assert await second == "a"
        assert clients.open == ["a"]


async def test_what_was_not_used_for_long_is_closed() -> None:
    clients = Clients()

    async with Sessions(clients) as sessions:
        await ask(sessions, "a")
        await asyncio.sleep(IDLE_S - 1)
        await ask(sessions, "b")
        assert sorted(clients.open) == ["a", "b"]
        await asyncio.sleep(1)
        await ask(sessions, "b")

        assert clients.open == ["b"]


async def test_with_new_credentials_the_old_client_goes() -> None:
    clients = Clients()

    async with Sessions(clients) as sessions:
        for pool in ("p1", "p2"):
            await ask(sessions, "old", pool=pool)
        await ask(sessions, "new", pool="p1")
        assert sorted(clients.open) == ["new", "old"], "p2 has it still"
        async with sessions.of(secret("old"), pool="p2"):
            await ask(sessions, "new", pool="p2")
            assert sorted(clients.open) == ["new", "old"], "it is in use"

        assert clients.open == ["new"]


async def test_their_number_is_bounded() -> None:
    clients = Clients()

    async with Sessions(clients, most=2) as sessions:
        async with sessions.of(secret("a")):
            await ask(sessions, "b")
            await ask(sessions, "c")
            assert sorted(clients.open) == ["a", "c"], "the one that nobody used went"
            async with sessions.of(secret("c")):
                with pytest.raises(RetryAfter, match="2 clients"):
                    await ask(sessions, "d")
        await ask(sessions, "d")

        assert sorted(clients.open) == ["c", "d"]

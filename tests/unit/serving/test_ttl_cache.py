"""Answers are remembered, asked for once at a time, and forgotten."""

from __future__ import annotations

import asyncio

import pytest

from ccm.serving.ttl_cache import TTLCache

pytestmark = pytest.mark.virtual_time


class Source:
    """Answers with the number of the question, once it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()
        self.let.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.let.wait()
        return number


async def test_who_leaves_does_not_take_the_answer_away() -> None:
    """Those who ask at the same time get the same answer."""
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0)
    source.let.clear()
    leaves = asyncio.create_task(memory.get("key", source))
    stay = [asyncio.create_task(memory.get("key", source)) for _ in range(2)]
    await asyncio.sleep(0)

    leaves.cancel()
    await asyncio.sleep(0)
    source.let.set()

    assert await asyncio.gather(*stay) == [1, 1]
    assert leaves.cancelled()


async def test_nothing_is_kept_for_no_time() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 0.0)

    assert [await memory.get("key", source), await memory.get("key", source)] == [1, 2]


async def test_the_answer_unused_for_longest_is_forgotten_first() -> None:
    source = Source()
    memory = TTLCache[str, int](lambda _: 9.0, size=2)

    await memory.get("a", source)
    await memory.get("b", source)
    await memory.get("a", source)
    await memory.get("c", source)

    assert await memory.get("a", source) == 1
    assert await memory.get("b", source) == 4


async def test_closing_ends_what_is_asked() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0)
    source.let.clear()
    waiting = asyncio.create_task(memory.get("key", source))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await memory.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting

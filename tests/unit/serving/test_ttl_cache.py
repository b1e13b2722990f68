"""Answers are remembered, asked for once at a time, and forgotten."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest

from ccm.base import metrics
from ccm.serving.ttl_cache import ENTRY, SWEEP_S, Shelf, TTLCache, digest

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
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0, name="test")
    source.let.clear()
    leaves = asyncio.create_task(memory.get("key", source))
    stay = [asyncio.create_task(memory.get("key", source)) for _ in range(2)]
    await asyncio.sleep(0)

    leaves.cancel()
    await asyncio.sleep(0)
    source.let.set()

    assert await asyncio.gather(*stay) == [1, 1]
    assert leaves.cancelled()


async def test_a_question_that_nobody_waits_for_ends() -> None:
    """And who comes after that asks anew."""
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0, name="test")
    source.let.clear()
    before = asyncio.all_tasks()
    leave = [asyncio.create_task(memory.get("key", source)) for _ in range(2)]
    await asyncio.sleep(1.0)

    for each in leave:
        each.cancel()
    await asyncio.wait(leave)
    comes = asyncio.create_task(memory.get("key", source))
    await asyncio.sleep(1.0)
    under_way = asyncio.all_tasks() - before - {comes}
    source.let.set()

    assert await comes == source.asked == 2
    assert len(under_way) == 1


async def test_nothing_is_kept_for_no_time() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 0.0, name="test")

    assert [await memory.get("key", source), await memory.get("key", source)] == [1, 2]


async def test_an_answer_whose_time_is_over_leaves_though_nobody_asks() -> None:
    shelf = Shelf()
    memory = TTLCache[str, str](float, name="leaving", shelf=shelf)

    for seconds in ("1", "15"):
        await memory.get(seconds, AsyncMock(return_value=seconds))
    both = shelf.size
    await asyncio.sleep(SWEEP_S + 1)
    one = shelf.size
    await asyncio.sleep(SWEEP_S)

    assert both > 2 * ENTRY
    assert ENTRY < one < both
    assert shelf.size == 0
    labels = {"cache": "leaving"}
    assert metrics.REGISTRY.get_sample_value("ccm_serving_cache_bytes", labels) == 0


def test_a_key_is_short_however_long_the_question() -> None:
    """And no two questions share one, whatever characters they are made of."""
    keys = {digest(("get", "/" + text)) for text in ("a", "b", "\udcff", "x" * 100_000)}

    assert {len(key) for key in keys} == {32}
    assert len(keys) == 4


async def test_the_answer_unused_for_longest_is_forgotten_first_over_all_caches() -> None:
    source = Source()
    shelf = Shelf(2 * ENTRY + 10)
    memory = TTLCache[str, int](lambda _: 9.0, name="test", shelf=shelf)
    other = TTLCache[str, int](lambda _: 9.0, name="other", shelf=shelf)

    await memory.get("a", source)
    await memory.get("b", source)
    await memory.get("a", source)
    await other.get("c", source)

    assert await memory.get("a", source) == 1
    assert await memory.get("b", source) == 4
    assert shelf.size <= 2 * ENTRY + 10


async def test_closing_ends_what_is_asked() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0, name="test")
    source.let.clear()
    waiting = asyncio.create_task(memory.get("key", source))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await memory.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting

"""Deadlines of operations. Time is virtual."""

from __future__ import annotations

import asyncio

import pytest

from ccm.persistence import errors
from ccm.persistence.engine import DEADLINE_S
from ccm.persistence.memory import MemoryStore
from ccm.testing.clock import elapsed_s
from tests.support.journals import NAME, WatchedStore, provider
from tests.unit.persistence.helpers import thing

pytestmark = pytest.mark.virtual_time


async def test_writes_of_one_object_have_a_deadline_while_the_store_hangs() -> None:
    """It includes the wait for the earlier writes."""
    store = WatchedStore(MemoryStore())

    async def hang() -> None:
        await asyncio.sleep(1e6)

    async with provider(store) as stored:
        store.before = hang
        puts = [stored.put_object(NAME, thing(size=size)) for size in range(3)]
        results = await asyncio.gather(*puts, return_exceptions=True)

    assert [type(result) for result in results] == [errors.BackendUnavailable] * 3
    assert elapsed_s() == pytest.approx(DEADLINE_S, abs=1)

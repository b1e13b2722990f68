"""How fast an instance is, to the last digit, in time that the test moves."""

from __future__ import annotations

import asyncio
import random

import pytest

from ccm.base.metrics import REGISTRY
from ccm.persistence import errors
from ccm.persistence.engine import WINDOW, Instance
from ccm.persistence.interface import GVK, ObjectKey
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import Place

pytestmark = pytest.mark.virtual_time

PLACE = Place(GVK("", "v1", "Kind"), ObjectKey("_/a"))


def instance() -> Instance:
    return Instance("memory", "memory-0123456789abcdef", MemoryStore(), deadline_s=60)


async def fail(one: Instance) -> None:
    async with one.operation("put", PLACE):
        await asyncio.sleep(7)
        raise errors.BackendUnavailable("no")


async def test_mean_of_the_last_writes_and_deletes() -> None:
    one, chance, took = instance(), random.Random(3), []
    for at in range(WINDOW + 50):
        took.append(chance.random())
        async with one.operation("delete" if at % 3 else "put", PLACE):
            await asyncio.sleep(took[-1])
        async with one.operation("get"):
            await asyncio.sleep(5)
        with pytest.raises(errors.BackendUnavailable):
            await fail(one)

    last = took[-WINDOW:]
    assert one.status.mean_persist_latency == pytest.approx(sum(last) / len(last), abs=1e-9)


async def test_waiting_for_its_turn_counts() -> None:
    one = instance()

    async def put() -> None:
        async with one.operation("put", PLACE):
            await asyncio.sleep(1)

    await asyncio.wait({asyncio.get_running_loop().create_task(put()) for _ in range(3)})

    assert one.status.mean_persist_latency == pytest.approx(2.0)
    assert len(one._turns._locks) == 0


async def test_what_prometheus_is_told() -> None:
    one = Instance("memory", "memory-00000000000000aa", MemoryStore(), deadline_s=60)

    def told(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(
            f"ccm_persistence_{name}", {"instance": one.name, **labels}
        )

    async with one.operation("put", PLACE):
        await asyncio.sleep(2)
    assert told("instance_up") == 1
    with pytest.raises(errors.BackendUnavailable):
        await fail(one)
    one.corrupt()

    put = {"backend": "memory", "operation": "put"}
    assert told("operations_total", result="ok", **put) == 1
    assert told("operations_total", result="BackendUnavailable", **put) == 1
    assert told("operation_duration_seconds_sum", **put) == pytest.approx(9)
    assert told("mean_persist_latency_seconds") == pytest.approx(2)
    assert told("instance_up") == 0
    assert told("corrupt_objects_total") == 1


async def test_what_never_ends_is_ended() -> None:
    one = instance()
    with pytest.raises(errors.BackendUnavailable, match="in time"):
        async with one.operation("get"):
            await asyncio.sleep(3600)
    assert not one.is_up

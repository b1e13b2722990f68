"""Exchanging the provider: the new one proves itself before the old one goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ccm.app import tenant as tenants
from ccm.app.tenant import Crashed, Opening, Tenant
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud, InstancesV2
from ccm.testing.builders import node
from tests.unit.cloud.calls.provider import Provider

pytestmark = pytest.mark.virtual_time


class House:
    """Opens providers, and knows which are open; each holds a task group, as some do."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.crash = asyncio.Event()
        self.provider = Provider(lambda: asyncio.sleep(60))

    def opening(self, name: str) -> Opening:
        @asynccontextmanager
        async def opened() -> AsyncIterator[Cloud]:
            async with asyncio.TaskGroup() as group:
                keeper = group.create_task(self._fall())
                self.open.append(name)
                try:
                    yield self.provider.cloud(name)
                finally:
                    self.open.remove(name)
                    keeper.cancel()

        return opened

    async def _fall(self) -> None:
        await self.crash.wait()
        raise OSError("the pool is gone")


async def fine(cloud: Cloud) -> None:
    """Accepts every provider."""


async def refuse(cloud: Cloud) -> None:
    raise ValueError(cloud.name)


async def started(house: House) -> tuple[Tenant, Handle]:
    tenant = Tenant()
    return tenant, Handle(await tenant.enter(house.opening("old")))


async def test_the_new_provider_takes_over_and_the_old_is_closed() -> None:
    house = House()
    tenant, handle = await started(house)

    await tenant.exchange(house.opening("new"), handle, fine)
    await asyncio.sleep(0.01)

    assert handle.cloud.name == "new"
    assert house.open == ["new"]
    await tenant.leave()
    assert house.open == []


async def test_a_provider_that_is_not_accepted_is_closed_and_the_old_stays() -> None:
    house = House()
    tenant, handle = await started(house)

    with pytest.raises(ValueError, match="new"):
        await tenant.exchange(house.opening("new"), handle, refuse)

    assert (handle.cloud.name, house.open) == ("old", ["old"])
    await tenant.leave()


async def test_a_provider_that_does_not_open_leaves_the_old() -> None:
    house = House()
    tenant, handle = await started(house)

    @asynccontextmanager
    async def broken() -> AsyncIterator[Cloud]:
        if house.open:
            raise ValueError("no")
        yield Cloud(name="never")

    with pytest.raises(ValueError, match="no"):
        await tenant.exchange(broken, handle, fine)

    assert (handle.cloud.name, house.open) == ("old", ["old"])
    await tenant.leave()


async def test_the_old_provider_stays_open_until_its_last_call_has_ended() -> None:
    house = House()
    tenant, handle = await started(house)
    answer = asyncio.Event()
    seen: list[list[str]] = []

    async def slow() -> bool:
        await answer.wait()
        seen.append(list(house.open))
        return True

    house.provider.act = slow
    call = spawn(handle.call(InstancesV2.instance_exists, node("n")), name="call")
    await asyncio.sleep(0)
    await tenant.exchange(house.opening("new"), handle, fine)
    for _ in range(20):
        await asyncio.sleep(0)
    answer.set()

    assert await call
    assert seen == [["old", "new"]]
    async with asyncio.timeout(5):
        while house.open != ["new"]:
            await asyncio.sleep(0.01)
    await tenant.leave()


async def test_leaving_closes_also_what_still_has_calls() -> None:
    house = House()
    tenant, handle = await started(house)
    call = spawn(handle.call(InstancesV2.instance_exists, node("n")), name="call")
    await asyncio.sleep(0)
    await tenant.exchange(house.opening("new"), handle, fine)

    await tenant.leave()

    assert house.open == []
    await cancel_and_join(call)


async def test_a_provider_that_ends_by_itself_is_noticed() -> None:
    house = House()
    tenant, handle = await started(house)
    watch = spawn(tenant.until_crash(), name="watch")
    await tenant.exchange(house.opening("new"), handle, fine)
    await asyncio.sleep(0.01)
    assert not watch.done()

    house.crash.set()

    with pytest.raises(Crashed, match="ended by itself"):
        await watch
    with pytest.raises(ExceptionGroup):
        await tenant.leave()


def closing(name: str, seconds: float = 0.0, fault: str = "") -> Opening:
    """A provider that takes its time to close, or stumbles over it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Cloud]:
        yield Cloud(name=name)
        await asyncio.sleep(seconds)
        if fault:
            raise OSError(fault)

    return opened


async def test_who_refuses_a_provider_is_heard_also_when_it_does_not_close_well() -> None:
    house = House()
    tenant, handle = await started(house)

    with pytest.raises(ValueError, match="new"):
        await tenant.exchange(closing("new", fault="no"), handle, refuse)

    assert handle.cloud.name == "old"
    await tenant.leave()


async def test_a_provider_that_never_closes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "CLOSE_S", 0.02)
    house = House()
    tenant, handle = await started(house)

    with pytest.raises(ValueError, match="new"):
        await tenant.exchange(closing("new", seconds=60), handle, refuse)
    await tenant.exchange(closing("hanging", seconds=60), handle, fine)

    with pytest.raises(TimeoutError, match="did not close"):
        await tenant.leave()
    assert house.open == []


async def test_a_provider_that_ends_while_it_is_looked_at_is_not_taken() -> None:
    house = House()
    tenant, handle = await started(house)
    end = asyncio.Event()

    @asynccontextmanager
    async def fragile() -> AsyncIterator[Cloud]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fall())
            yield Cloud(name="new")

    async def fall() -> None:
        await end.wait()
        raise OSError("the pool is gone")

    async def look(cloud: Cloud) -> None:
        end.set()
        await asyncio.sleep(0.01)

    with pytest.raises(Crashed, match="ended by itself"):
        await tenant.exchange(fragile, handle, look)

    assert handle.cloud.name == "old"
    await tenant.leave()


async def test_a_provider_that_opens_as_we_are_cancelled_is_closed() -> None:
    house = House()
    tenant = Tenant()
    before = asyncio.all_tasks()
    entering = spawn(tenant.enter(house.opening("late")), name="enter")
    while not house.open:
        await asyncio.sleep(0)

    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering

    assert house.open == []
    assert asyncio.all_tasks() == before

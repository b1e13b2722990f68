"""Replication across several storage instances, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ccm.base import clock
from ccm.persistence import errors
from ccm.persistence.engine import StorageInstance, StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import GVK, ObjectKey, Stamped
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import StoragePlace, instance_name
from ccm.persistence.replication import Backend, ReplicationManager
from ccm.persistence.store import check_epoch
from ccm.testing.persistence_contract import KIND, thing
from ccm.testing.persistence_harness import HERE, FaultyStore, InstanceFaults

pytestmark = pytest.mark.virtual_time


@dataclasses.dataclass
class World:
    """Three instances of three backends, and their faults."""

    stores: list[MemoryStore] = dataclasses.field(
        default_factory=lambda: [MemoryStore() for _ in "abc"]
    )
    ills: list[InstanceFaults] = dataclasses.field(
        default_factory=lambda: [InstanceFaults() for _ in "abc"]
    )
    epoch: int = 1

    def manager(self, count: int = 3, **settings: Any) -> ReplicationManager:
        writer = WriterIdentity(epoch=self.epoch)

        def backend(at: int) -> Backend:
            name = instance_name("memory", {"n": at})

            def make() -> StoreProvider:
                stores = {name: FaultyStore(self.stores[at], self.ills[at])}
                return StoreProvider("memory", stores, writer=lambda: writer, deadline_s=5)

            return Backend(f"memory-{at}", make)

        return ReplicationManager(
            [backend(at) for at in range(count)], writer=lambda: writer, **settings
        )

    @asynccontextmanager
    async def opened(self, count: int = 3, **settings: Any) -> AsyncIterator[ReplicationManager]:
        manager = self.manager(count, **settings)
        await manager.initialize(HERE)
        try:
            yield manager
        finally:
            for ill in self.ills:
                ill.fails = False
                ill.well.set()
            await manager.close()

    def fail(self, *which: int) -> None:
        for at, ill in enumerate(self.ills):
            ill.fails = at in which

    def counts(self) -> list[int]:
        return [len(store.held) for store in self.stores]


async def rounds(number: int = 2) -> None:
    """Wait for this many rounds of probes and repairs."""
    await asyncio.sleep(31 * number)


async def test_missed_writes_are_repaired() -> None:
    world = World()
    async with world.opened() as manager:
        key = await manager.put_object(thing(size=1))
        world.fail(0)
        await manager.put_object(thing(size=2))
        await manager.put_object(thing("new"))
        assert await manager.get_object(KIND, key) == thing(size=2)
        world.fail()
        await rounds(3)
    for at in range(3):
        async with World(stores=[world.stores[at]]).opened(1) as alone:
            assert len(await alone.get_all_objects(KIND)) == 2
            assert await alone.get_object(KIND, key) == thing(size=2)


@pytest.mark.parametrize("down", [0, 2])
async def test_deleted_object_does_not_return_from_a_stale_instance(down: int) -> None:
    """The instance missed the deletion, and the restarted manager has no memory of it."""
    world = World()
    async with world.opened() as manager:
        key = await manager.put_object(thing())
        world.fail(down)
        await manager.delete_object(KIND, key)
    world.epoch = 2
    async with world.opened() as manager:
        assert await manager.get_object(KIND, key) is None
        assert await manager.get_all_objects(KIND) == []
        await rounds(4)
        assert world.counts() == [0, 0, 0]
        assert await manager.get_object(KIND, key) is None


async def test_damaged_copy_is_repaired() -> None:
    world = World()
    async with world.opened() as manager:
        key = await manager.put_object(thing())
        await rounds()
        held = world.stores[0].held
        (at,) = held
        held[at] = b"damaged"
        for _ in range(3):
            assert await manager.get_object(KIND, key) == thing()
        await rounds(2)
        assert held[at] != b"damaged" or await manager.get_all_objects(KIND) == [thing()]
        await rounds(2)
        assert held[at] != b"damaged"


async def test_instance_that_missed_more_than_the_limit_is_fully_repaired() -> None:
    world = World()
    async with world.opened(limit=10) as manager:
        world.fail(0)
        for at in range(25):
            await manager.put_object(thing(f"n{at}"))
        assert len(manager.replicas[0].missing) <= 10
        world.fail()
        await rounds(4)
        assert world.counts() == [25, 25, 25]


async def test_unavailable_instances_block_or_allow_creation_by_policy() -> None:
    world = World()
    world.fail(0, 1, 2)
    async with world.opened(when_down="block") as manager:
        assert not await manager.may_create()
        with pytest.raises(errors.BackendUnavailable):
            await manager.put_object(thing())
        with pytest.raises(errors.BackendUnavailable):
            await manager.get_object(KIND, ObjectKey("default/one"))
        world.fail()
        await rounds()
        assert await manager.may_create()
        await manager.put_object(thing())
    world.fail(0, 1, 2)
    async with world.opened(when_down="degrade") as manager:
        assert await manager.may_create()


async def test_write_of_a_former_leader_is_fenced() -> None:
    world = World()
    async with world.opened() as old:
        await old.put_object(thing())
        world.epoch = 2
        async with world.opened() as new:
            await new.put_object(thing(by="new"))
            with pytest.raises(errors.Fenced):
                await old.put_object(thing(by="old"))


class Half:
    """Incomplete backend."""

    def instances(self) -> list[str]:
        return [instance_name("half", {})]

    async def initialize(self, machine_id: Any) -> None:
        raise NotImplementedError


def test_backend_without_required_methods_is_refused_by_name() -> None:
    with pytest.raises(errors.BackendDead, match=r"'half' lacks the method instance_status, put_"):
        Backend("half", Half)


def test_instances_with_the_same_name_are_refused() -> None:
    """This holds across backends: missed writes of one would be attributed to the other."""

    def backend(label: str) -> Backend:
        name = instance_name("memory", {})
        return Backend(label, lambda: StoreProvider("memory", {name: MemoryStore()}))

    with pytest.raises(errors.BackendDead, match="instance of the same name"):
        ReplicationManager([backend("one"), backend("two")])


class Plain(StoreProvider):
    """Provider without stamped writes."""

    write_stamped = None  # type: ignore[assignment]


def test_backend_without_stamps_cannot_be_replicated() -> None:
    def backend(at: int) -> Backend:
        name = instance_name("plain", {"n": at})
        return Backend("plain", lambda: Plain("plain", {name: MemoryStore()}))

    ReplicationManager([backend(1)])
    with pytest.raises(errors.BackendDead, match="'plain' lacks the method write_stamped"):
        ReplicationManager([backend(1), backend(2)])


PLACE = StoragePlace(GVK("", "v1", "Kind"), ObjectKey("_/a"))


def instance() -> StorageInstance:
    return StorageInstance("memory", "memory-0123456789abcdef", MemoryStore(), deadline_s=60)


async def fail(one: StorageInstance) -> None:
    async with one.operation("put", PLACE):
        await asyncio.sleep(7)
        raise errors.BackendUnavailable("no")


async def test_hanging_operation_times_out() -> None:
    one = instance()
    with pytest.raises(errors.BackendUnavailable, match="timed out"):
        async with one.operation("get"):
            await asyncio.sleep(3600)
    assert not one.is_up


@pytest.mark.parametrize(
    ("policy", "down", "works"),
    [
        ("any", 2, True),
        ("any", 3, False),
        ("majority", 1, True),
        ("majority", 2, False),
        ("all", 0, True),
        ("all", 1, False),
    ],
)
async def test_write_policy_decides_how_many_instances_must_be_up(
    policy: Any, down: int, works: bool
) -> None:
    world = World()
    async with world.opened(policy=policy) as manager:
        world.fail(*range(down))
        if works:
            await manager.put_object(thing())
        else:
            with pytest.raises(errors.BackendUnavailable, match="fewer than"):
                await manager.put_object(thing())


async def test_newest_copy_on_an_unavailable_instance_is_not_lost() -> None:
    """The only instance with the newest copy goes down and returns; the copy is not overwritten."""
    world = World()
    async with world.opened() as manager:
        key = await manager.put_object(thing(size=1))
        await rounds()
        world.fail(0, 1)
        await manager.put_object(thing(size=2))
        world.fail(0, 1, 2)
        await rounds(2)
        world.fail(2)
        await rounds(3)
        world.fail()
        await rounds(3)
        assert await manager.get_object(KIND, key) == thing(size=2)


async def test_reads_return_the_own_latest_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The write has not yet reached the instance that is read first."""
    world, arrives = World(), asyncio.Event()
    async with world.opened() as manager:
        key = await manager.put_object(thing(size=1))
        await rounds()
        fastest = manager.replicas[0]
        write = fastest.write

        async def late(place: StoragePlace, copy: Stamped) -> None:
            await arrives.wait()
            await write(place, copy)

        monkeypatch.setattr(fastest, "write", late)
        monkeypatch.setattr(fastest, "latency", AsyncMock(return_value=0.0))
        await manager.put_object(thing(size=2))
        assert await manager.get_object(KIND, key) == thing(size=2)
        arrives.set()
        await manager.wait_for_writes()
        assert await manager.get_object(KIND, key) == thing(size=2)


async def test_deleted_object_is_not_listed_by_a_concurrent_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One instance is read before the deletion, the next after its tombstone was removed."""
    world = World()
    async with world.opened() as manager:
        key = await manager.put_object(thing())
        await manager.put_object(thing("two"))
        await rounds()
        first = manager.replicas[0]
        read_all = first.read_all

        async def slowly(kind: GVK) -> dict[StoragePlace, Stamped]:
            found = await read_all(kind)
            await manager.delete_object(KIND, key)
            await manager.wait_for_writes()
            return found

        monkeypatch.setattr(first, "read_all", slowly)
        monkeypatch.setattr(first, "latency", AsyncMock(return_value=0.0))
        assert await manager.get_all_objects(KIND) == [thing("two")]
        assert world.counts() == [1, 1, 1]


async def test_listener_is_notified_when_availability_changes() -> None:
    world, heard = World(), list[bool]()
    async with world.opened(on_change=heard.append) as manager:
        world.fail(0, 1)
        await rounds(3)
        assert heard == []
        world.fail(0, 1, 2)
        await rounds(3)
        assert heard == [False]
        world.fail(0)
        await rounds(3)
        assert heard == [False, True]
        assert await manager.may_create()


async def test_hanging_instance_does_not_delay_a_write() -> None:
    world = World()
    async with world.opened() as manager:
        world.ills[0].well.clear()
        began = clock.monotonic()
        await manager.put_object(thing())
        assert clock.monotonic() - began < 1


def _noted(asked: list[int], at: int, read: Any) -> Any:
    async def noting(place: StoragePlace) -> Stamped | None:
        asked.append(at)
        found: Stamped | None = await read(place)
        return found

    return noting


async def test_reads_use_the_fastest_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, the next fastest instance is read."""
    world, asked = World(), list[int]()
    async with world.opened() as manager:
        key = await manager.put_object(thing())
        await rounds()
        for at, (member, latency) in enumerate(zip(manager.replicas, (0.3, 0.1, 0.2), strict=True)):
            monkeypatch.setattr(member, "latency", AsyncMock(return_value=latency))
            monkeypatch.setattr(member, "read", _noted(asked, at, member.read))
        assert await manager.get_object(KIND, key) == thing()
        assert asked == [1]
        world.fail(1)
        assert await manager.get_object(KIND, key) == thing()
        assert asked == [1, 1, 2]


def _refuses(store: MemoryStore) -> Any:
    async def open_(claim: Any) -> None:
        check_epoch(store._epoch, claim.epoch)

    return open_


async def test_recreated_lease_blocks_storage_but_not_the_daemon() -> None:
    """Its transition count restarts at 0: storage refuses writes, and the daemon keeps running."""
    world = World(epoch=5)
    async with world.opened(1) as manager:
        await manager.put_object(thing())
    world.stores[0].open = _refuses(world.stores[0])  # type: ignore[method-assign]
    world.epoch = 0
    async with world.opened(1) as manager:
        assert await manager.may_create()
        with pytest.raises(errors.BackendUnavailable):
            await manager.put_object(thing())

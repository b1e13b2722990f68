"""A provider made of plain stores: everything that every backend has to do alike.

Life cycle, names, states, order, deadlines, envelopes and metrics are here; a store moves bytes.
Decoding and hashing run in threads: an object may have 1.5 MiB, and the event loop is not to wait
for more than 50 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from ccm.base.log import logger
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence import envelope, keys, objects
from ccm.persistence.envelope import Entry, Writer
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    Closed,
    CorruptObject,
    Fenced,
    NotInitialized,
    PersistenceError,
    UnknownInstance,
    Unreachable,
    VersionConflict,
)
from ccm.persistence.instance import DEADLINE_S, Instance
from ccm.persistence.interface import (
    CAS,
    GVK,
    Expected,
    MachineId,
    ObjectKey,
    PersistenceProviderStatus,
    Stamp,
    Stamped,
    Version,
)
from ccm.persistence.keys import Place
from ccm.persistence.store import Claim, Record, Store

PROBE_S = 30.0
"""Seconds between two looks at each instance."""

Found = tuple[ObjectKey, Stamped, Version]


def nobody() -> Writer:
    """Who writes without an election."""
    return Writer()


class StoreProvider:
    """`PersistenceProvider`, and both of its extensions, over stores.

    Args:
        backend: their type.
        stores: instance name -> store.
        writer: asked at each write who leads.
        probe_s: seconds between two looks at each instance.
        deadline_s: of one operation.
        sensitive: objects are encrypted already and are not looked through for secrets.

    Raises:
        BackendDead: a name is none.
    """

    def __init__(
        self,
        backend: str,
        stores: Mapping[str, Store],
        *,
        writer: Callable[[], Writer] = nobody,
        probe_s: float = PROBE_S,
        deadline_s: float = DEADLINE_S,
        sensitive: bool = False,
    ) -> None:
        for name in stores:
            if not keys.INSTANCE.fullmatch(name):
                raise BackendDead(f"{name!r} is no name of an instance")
        self._instances = {
            name: Instance(backend, name, store, deadline_s) for name, store in stores.items()
        }
        self._backend = backend
        self._writer = writer
        self._probe_s = probe_s
        self._prepare = partial(objects.prepared, sensitive=sensitive)
        self._machine: MachineId | None = None
        self._dead: str = ""
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._prober: asyncio.Task[None] | None = None
        self._stamps = envelope.Stamps()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._backend}: {', '.join(self._instances)})"

    # Life cycle

    async def initialize(self, machine_id: MachineId) -> None:
        """As `PersistenceProvider.initialize`."""
        async with self._starting:
            if self._closed:
                raise Closed("the provider is closed")
            if self._dead:
                raise BackendDead(self._dead)
            if self._machine is not None:
                if self._machine != machine_id:
                    raise PersistenceError("it is initialized for another machine id already")
                return
            await self._open_all(machine_id)
            self._machine = machine_id
            self._prober = spawn(self._probe_all(), name=f"persistence-probe-{self._backend}")

    async def close(self) -> None:
        """As `PersistenceProvider.close`."""
        self._closed = True
        if self._closing is None:
            self._closing = spawn(self._close(), name=f"persistence-close-{self._backend}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._starting:
            await cancel_and_join(self._prober)
            for one in self._instances.values():
                await one.idle()
                await one.store.close()
                one.is_up = False

    async def _open_all(self, machine_id: MachineId) -> None:
        claim = Claim(machine_id.cluster_uid, self._writer().epoch)
        faults: list[PersistenceError] = []
        for one in self._instances.values():
            try:
                await one.open(claim)
            except (BackendDead, BackendUnavailable, Fenced) as error:
                faults.append(error)
        fatal = [error for error in faults if isinstance(error, BackendDead)]
        if fatal or len(faults) == len(self._instances):
            self._dead = "; ".join(map(str, fatal or faults)) or "no instance is configured"
            for one in self._instances.values():
                one.down(self._dead)
            raise BackendDead(self._dead) if fatal else Unreachable(self._dead)

    async def _probe_all(self) -> None:
        while True:
            await asyncio.sleep(self._probe_s)
            for one in self._instances.values():
                try:
                    await self._probe(one)
                except PersistenceError as error:
                    one.down(str(error))
                except Exception as error:  # noqa: BLE001 - the next look still has to come
                    one.down(type(error).__name__)
                    logger("persistence").error("probe failed", instance=one.name, error=error)

    async def _probe(self, one: Instance) -> None:
        if one.is_open:
            async with one.operation("probe"):
                await one.store.probe()
        else:
            await one.open(Claim(self._cluster_uid, self._writer().epoch))

    # Instances

    def instances(self) -> Sequence[str]:
        """As `PersistenceProvider.instances`."""
        return tuple(self._instances)

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """As `PersistenceProvider.instance_status`."""
        found = self._instances.get(instance)
        return found.status if found else PersistenceProviderStatus(instance_exists=False)

    def capabilities(self, instance: str) -> frozenset[str]:
        """As `VersionedPersistence.capabilities`."""
        return self._known(instance).store.capabilities

    # Objects

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        """As `PersistenceProvider.put_object`."""
        key, _ = await self.put_versioned(instance, obj, expect=None)
        return key

    async def put_versioned(
        self, instance: str, obj: Mapping[str, Any], *, expect: Expected
    ) -> tuple[ObjectKey, Version]:
        """As `VersionedPersistence.put_versioned`."""
        one = self._known(instance)
        if expect is not None and CAS not in one.store.capabilities:
            raise VersionConflict(f"{instance} cannot keep conditions: nothing was written")
        place = keys.place_of(obj)
        return place.key, await self._write(one, place, obj, None, expect)

    async def delete_object(self, instance: str, kind: GVK, key: ObjectKey) -> None:
        """As `PersistenceProvider.delete_object`."""
        one, place = self._known(instance), Place(kind, keys.checked(key))
        async with one.operation("delete", place):
            await one.store.remove(place, self._writer().epoch)

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """As `PersistenceProvider.get_object`."""
        found = await self._read(instance, Place(kind, keys.checked(key)))
        return found[1].obj if found else None

    async def get_versioned(
        self, instance: str, kind: GVK, key: ObjectKey
    ) -> tuple[dict[str, Any], Version] | None:
        """As `VersionedPersistence.get_versioned`."""
        found = await self._read(instance, Place(kind, keys.checked(key)))
        return (found[1].obj, found[2]) if found and found[1].obj is not None else None

    async def get_all_objects(self, instance: str, kind: GVK) -> list[dict[str, Any]]:
        """As `PersistenceProvider.get_all_objects`."""
        return [obj async for _, obj, _ in self.iter_objects(instance, kind)]

    async def iter_objects(
        self, instance: str, kind: GVK
    ) -> AsyncIterator[tuple[ObjectKey, dict[str, Any], Version]]:
        """As `VersionedPersistence.iter_objects`."""
        async with aclosing(self._scan(instance, kind)) as found:
            async for key, copy, version in found:
                if copy.obj is not None:
                    yield key, copy.obj, version

    # Copies

    async def write_stamped(self, instance: str, kind: GVK, key: ObjectKey, copy: Stamped) -> None:
        """As `StampedPersistence.write_stamped`."""
        one, place = self._known(instance), Place(kind, keys.checked(key))
        await self._write(one, place, copy.obj, copy.stamp, None)

    async def read_stamped(self, instance: str, kind: GVK, key: ObjectKey) -> Stamped | None:
        """As `StampedPersistence.read_stamped`."""
        found = await self._read(instance, Place(kind, keys.checked(key)))
        return found[1] if found else None

    async def iter_stamped(
        self, instance: str, kind: GVK
    ) -> AsyncIterator[tuple[ObjectKey, Stamped]]:
        """As `StampedPersistence.iter_stamped`."""
        async with aclosing(self._scan(instance, kind)) as found:
            async for key, copy, _ in found:
                yield key, copy

    # The way to the bytes

    async def _write(
        self,
        one: Instance,
        place: Place,
        obj: Mapping[str, Any] | None,
        stamp: Stamp | None,
        expect: Expected,
    ) -> Version:
        async with one.operation("put", place):
            # Not before its turn: writes keep the order of their calls, and so do their stamps.
            entry = await asyncio.to_thread(self._sealed, place, obj, stamp)
            return await one.store.write(place, entry, expect)

    def _sealed(self, place: Place, obj: Mapping[str, Any] | None, stamp: Stamp | None) -> Entry:
        raw = None if obj is None else self._prepare(obj)
        writer = self._writer()
        return envelope.sealed(
            place,
            raw,
            stamp or self._stamps.next(writer.epoch),
            cluster_uid=self._cluster_uid,
            writer=writer,
        )

    async def _read(self, instance: str, place: Place) -> Found | None:
        one = self._known(instance)
        async with one.operation("get"):
            record = await one.store.read(place)
            if record is None:
                return None
            copy = await asyncio.to_thread(envelope.opened, place, record.body, self._cluster_uid)
        return place.key, copy, record.version

    async def _scan(self, instance: str, kind: GVK) -> AsyncGenerator[Found, None]:
        one = self._known(instance)
        async with aclosing(one.store.scan(kind)) as pages:
            while True:
                async with one.operation("list"):
                    page = await anext(pages, None)
                    if page is None:
                        return
                    found, damaged = await asyncio.to_thread(self._healthy, page)
                for _ in range(damaged):
                    one.corrupt()
                for each in found:
                    yield each

    def _healthy(self, page: Sequence[tuple[Place, Record]]) -> tuple[list[Found], int]:
        found: list[Found] = []
        for place, record in page:
            try:
                copy = envelope.opened(place, record.body, self._cluster_uid)
            except CorruptObject:
                continue
            found.append((place.key, copy, record.version))
        return found, len(page) - len(found)

    @property
    def _cluster_uid(self) -> str:
        assert self._machine is not None
        return self._machine.cluster_uid

    def _known(self, instance: str) -> Instance:
        """The instance, if anything may be done to it."""
        if self._closed:
            raise Closed("the provider is closed")
        if self._dead:
            raise BackendDead(self._dead)
        if self._machine is None:
            raise NotInitialized("initialize comes first")
        found = self._instances.get(instance)
        if found is None:
            raise UnknownInstance(f"no instance {instance} is configured")
        return found

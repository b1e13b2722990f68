"""Provider on top of plain stores: the behaviour that all backends share.

The provider validates objects, wraps them in envelopes, orders their writes, and adds deadlines and
metrics; a store only reads and writes bytes. Decoding and hashing run in threads: an object may
have 1.5 MiB, and the event loop must not be blocked for more than 50 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ccm.base import clock, lease_guard, metrics
from ccm.base.log import logger
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence import envelope, objects
from ccm.persistence.envelope import StoreEntry, WriterIdentity
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    Closed,
    CorruptObject,
    NotInitialized,
    ObjectTooLarge,
    PersistenceError,
    UnknownInstance,
    VersionConflict,
)
from ccm.persistence.interface import (
    CAS,
    GVK,
    Expected,
    MachineId,
    ObjectKey,
    PersistenceProviderStatus,
    Version,
)
from ccm.persistence.objects import StoragePlace
from ccm.persistence.store import Claim, ClusterListing, Store, StoredRecord

OPERATIONS = metrics.counter(
    "ccm_persistence_operations_total",
    "Storage operations by backend, instance, operation and result.",
    ["backend", "instance", "operation", "result"],
)
DURATION = metrics.histogram(
    "ccm_persistence_operation_duration_seconds",
    "Duration of storage operations, including the wait for earlier writes of the same object.",
    ["backend", "instance", "operation"],
    buckets=metrics.exponential_buckets(0.0005, 4, 9),
)
UP = metrics.gauge("ccm_persistence_instance_up", "1 = the instance is up.", ["instance"])
LATENCY = metrics.gauge(
    "ccm_persistence_mean_persist_latency_seconds",
    "Mean latency of the last 256 successful writes and deletes.",
    ["instance"],
)
CORRUPT = metrics.counter(
    "ccm_persistence_corrupt_objects_total", "Damaged objects found.", ["instance"]
)


WRITES = frozenset({"put", "delete"})
"""Operations that change an object."""

WINDOW = 256
"""Number of writes and deletes in the mean latency; part of the interface
(`PersistenceProviderStatus`)."""

DEADLINE_S = 30.0
"""Deadline of one operation in seconds: longer than `store.RETRY_S`, so that an operation usually
ends with the error of its store, which names the cause."""


class StorageInstance:
    """Store with the status and metrics of one instance.

    Args:
        backend: type of storage, for metrics.
        name: name of the instance.
        store: store of the instance.
        deadline_s: deadline of one operation in seconds.
    """

    def __init__(self, backend: str, name: str, store: Store, deadline_s: float) -> None:
        self.backend = backend
        self.name = name
        self.store = store
        self.is_up = False
        self.is_open = False
        self._deadline_s = deadline_s
        self._latencies: deque[float] = deque(maxlen=WINDOW)
        # Weak values: a lock is dropped with its last user.
        self._locks: WeakValueDictionary[StoragePlace, asyncio.Lock] = WeakValueDictionary()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._log = logger("persistence")

    @property
    def status(self) -> PersistenceProviderStatus:
        """Current status of the instance; no I/O."""
        return PersistenceProviderStatus(
            instance_exists=True, status=self.is_up, mean_persist_latency=self._mean()
        )

    async def open(self, claim: Claim) -> None:
        """Open the store and mark the instance as up.

        Raises:
            BackendUnavailable: a temporary failure.
            BackendDead: a permanent failure.
        """
        async with self.operation("open"):
            await self.store.open(claim)
            self.is_open = True

    @asynccontextmanager
    async def operation(self, name: str, place: StoragePlace | None = None) -> AsyncIterator[None]:
        """Run an operation on the store, with deadline, status and metrics.

        Args:
            name: name of the operation, for metrics. `WRITES` of one place run one at a time, in
                call order, and count for the mean latency.
            place: place of the object; None = the operation concerns no single object.

        Raises:
            BackendUnavailable: the deadline passed, which includes the wait for earlier writes of
                the object; or the Lease of this leader may have expired.
        """
        began, result = clock.monotonic(), "ok"
        lock: asyncio.Lock | nullcontext[None] = nullcontext()
        if place is not None and name in WRITES:
            lock = self._locks.setdefault(place, asyncio.Lock())
        self._in_flight += 1
        self._idle.clear()
        try:
            async with lease_guard.limit(self._deadline_s), lock:
                yield
            self._record_success(name, clock.monotonic() - began)
        except lease_guard.LeaseExpired as error:
            result = "BackendUnavailable"
            raise BackendUnavailable(f"{self.name}: {error}") from error
        except TimeoutError as error:
            result = "BackendUnavailable"
            self.mark_down("operation timed out")
            raise BackendUnavailable(f"{self.name}: operation timed out") from error
        except PersistenceError as error:
            result = type(error).__name__
            if isinstance(error, BackendUnavailable | BackendDead):
                self.mark_down(str(error))
            elif isinstance(error, CorruptObject) and place is not None:
                self.record_corrupt(place)
            raise
        except BaseException:
            result = "cut"
            raise
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
            labels = (self.backend, self.name, name)
            OPERATIONS.labels(*labels, result).inc()
            DURATION.labels(*labels).observe(clock.monotonic() - began)

    async def wait_idle(self) -> None:
        """Wait until no operation is in flight."""
        await self._idle.wait()

    def mark_down(self, reason: str) -> None:
        """Mark the instance as down; log a warning if it was up."""
        if self.is_up:
            self._log.warning("persistence instance is down", instance=self.name, error=reason)
        self._set(up=False)

    def record_corrupt(self, place: StoragePlace) -> None:
        """Count and log a damaged object."""
        CORRUPT.labels(self.name).inc()
        kind = f"{place.kind.api_version} {place.kind.kind}"
        self._log.error("damaged stored object found", instance=self.name, kind=kind, key=place.key)

    def _record_success(self, name: str, took_s: float) -> None:
        if not self.is_up:
            self._log.info("persistence instance is up", instance=self.name)
        self._set(up=True)
        if name in WRITES:
            self._latencies.append(took_s)
            LATENCY.labels(self.name).set(self._mean())

    def _set(self, *, up: bool) -> None:
        self.is_up = up
        UP.labels(self.name).set(up)

    def _mean(self) -> float:
        return sum(self._latencies) / len(self._latencies) if self._latencies else 0.0


PROBE_S = 30.0
"""Seconds between two probes of each instance: an outage is noticed even if nothing is written."""

StoredObject = tuple[ObjectKey, dict[str, Any], Version]


class StoreProvider:
    """Provider on top of stores; implements `PersistenceProvider` and `VersionedPersistence`.

    Args:
        backend: type of the stores.
        stores: instance name -> store.
        writer: returns the current writer; called at each write.
        probe_s: seconds between two probes of each instance.
        deadline_s: deadline of one operation in seconds.
        sensitive: whether objects are already encrypted and are not searched for secrets.

    Raises:
        BackendDead: the name of an instance is invalid.
    """

    def __init__(
        self,
        backend: str,
        stores: Mapping[str, Store],
        *,
        writer: Callable[[], WriterIdentity] = WriterIdentity,
        probe_s: float = PROBE_S,
        deadline_s: float = DEADLINE_S,
        sensitive: bool = False,
    ) -> None:
        for name in stores:
            if not objects.INSTANCE_NAME.fullmatch(name):
                raise BackendDead(f"{name!r} is not a valid instance name")
        self._instances = {
            name: StorageInstance(backend, name, store, deadline_s)
            for name, store in stores.items()
        }
        self._backend = backend
        self._writer = writer
        self._probe_s = probe_s
        self._prepare = partial(objects.validate, sensitive=sensitive)
        self._machine: MachineId | None = None
        # Why the last `initialize` failed; empty = it has not failed.
        self._dead: str = ""
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        # `initialize` and `close` take turns: no store may be opened after it was closed.
        self._starting = asyncio.Lock()
        self._prober: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._backend}: {', '.join(self._instances)})"

    # Life cycle

    async def initialize(self, machine_id: MachineId) -> None:
        """See `PersistenceProvider.initialize`."""
        async with self._starting:
            if self._closed:
                raise Closed("the provider is closed")
            if self._machine is not None:
                if self._machine != machine_id:
                    raise PersistenceError("already initialized with another machine ID")
                return
            await self._open_all(machine_id)
            self._machine, self._dead = machine_id, ""
            self._prober = spawn(self._probe_all(), name=f"persistence-probe-{self._backend}")

    async def close(self) -> None:
        """See `PersistenceProvider.close`."""
        self._closed = True
        if self._closing is None:
            self._closing = spawn(self._close(), name=f"persistence-close-{self._backend}")
        # Shielded: a cancelled caller must not leave stores half closed.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._starting:
            await cancel_and_join(self._prober)
            for instance in self._instances.values():
                await instance.wait_idle()
                await instance.store.close()
                instance.is_up = False

    async def _open_all(self, machine_id: MachineId) -> None:
        claim = self._claim(machine_id)
        faults: list[PersistenceError] = []
        for instance in self._instances.values():
            try:
                await instance.open(claim)
            except PersistenceError as error:
                faults.append(error)
        fatal = [error for error in faults if isinstance(error, BackendDead)]
        if fatal or len(faults) == len(self._instances):
            self._dead = "; ".join(map(str, fatal or faults)) or "no instance is configured"
            for instance in self._instances.values():
                instance.mark_down(self._dead)
            raise BackendDead(self._dead) from (faults[0] if faults else None)

    def _claim(self, machine_id: MachineId) -> Claim:
        writer = self._writer()
        return Claim(machine_id.cluster_uid, writer.epoch, writer.lease)

    async def _probe_all(self) -> None:
        while True:
            await asyncio.sleep(self._probe_s)
            for instance in self._instances.values():
                try:
                    if instance.is_open:
                        async with instance.operation("probe"):
                            await instance.store.probe()
                    else:  # it was unreachable in `initialize`
                        assert self._machine is not None
                        await instance.open(self._claim(self._machine))
                except PersistenceError as error:
                    instance.mark_down(str(error))
                except Exception as error:  # noqa: BLE001 - the probe loop must not end
                    instance.mark_down(type(error).__name__)
                    logger("persistence").error("probe failed", instance=instance.name, error=error)

    # Instances

    def instances(self) -> Sequence[str]:
        """See `PersistenceProvider.instances`."""
        return tuple(self._instances)

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """See `PersistenceProvider.instance_status`."""
        target = self._instances.get(instance)
        return target.status if target else PersistenceProviderStatus(instance_exists=False)

    def capabilities(self, instance: str) -> frozenset[str]:
        """See `VersionedPersistence.capabilities`."""
        return self._usable_instance(instance).store.capabilities

    async def clusters(self, instance: str, wanted: str) -> Collection[str] | None:
        """See `ClusterListing.clusters`; None = the store does not implement it."""
        store = self._instances[instance].store
        return await store.clusters(wanted) if isinstance(store, ClusterListing) else None

    # Objects

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        """See `PersistenceProvider.put_object`."""
        key, _ = await self.put_versioned(instance, obj, expect=None)
        return key

    async def put_versioned(
        self, instance: str, obj: Mapping[str, Any], *, expect: Expected
    ) -> tuple[ObjectKey, Version]:
        """See `VersionedPersistence.put_versioned`."""
        target = self._usable_instance(instance)
        if expect is not None and CAS not in target.store.capabilities:
            raise VersionConflict(
                f"{instance} does not support conditional writes; nothing was written"
            )
        objects.check_version(expect)
        place = objects.place_of(obj)
        async with target.operation("put", place):
            # Sealed while the object is locked: threads may finish out of order.
            entry = await asyncio.to_thread(self._seal, place, obj)
            if len(entry.body) > target.store.max_bytes:
                raise ObjectTooLarge(
                    f"the object has {len(entry.body)} bytes with its metadata; the limit of "
                    f"{instance} is {target.store.max_bytes}"
                )
            return place.key, await target.store.write(place, entry, expect)

    async def delete_object(self, instance: str, kind: GVK, key: ObjectKey) -> None:
        """See `PersistenceProvider.delete_object`."""
        target, place = self._usable_instance(instance), objects.check_place(kind, key)
        async with target.operation("delete", place):
            await target.store.remove(place, self._writer().epoch)

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """See `PersistenceProvider.get_object`."""
        stored = await self.get_versioned(instance, kind, key)
        return stored[0] if stored else None

    async def get_versioned(
        self, instance: str, kind: GVK, key: ObjectKey
    ) -> tuple[dict[str, Any], Version] | None:
        """See `VersionedPersistence.get_versioned`."""
        target, place = self._usable_instance(instance), objects.check_place(kind, key)
        async with target.operation("get", place):
            record = await target.store.read(place)
            if record is None:
                return None
            obj = await asyncio.to_thread(envelope.unseal, place, record.body, self._cluster_uid)
        return obj, record.version

    async def get_all_objects(self, instance: str, kind: GVK) -> list[dict[str, Any]]:
        """See `PersistenceProvider.get_all_objects`."""
        return [obj async for _, obj, _ in self.iter_objects(instance, kind)]

    async def iter_objects(self, instance: str, kind: GVK) -> AsyncGenerator[StoredObject, None]:
        """See `VersionedPersistence.iter_objects`."""
        target = self._usable_instance(instance)
        objects.check_kind(kind)
        async with aclosing(target.store.scan(kind)) as pages:
            while True:
                async with target.operation("list"):
                    page = await anext(pages, None)
                    if page is None:
                        return
                    healthy, damaged = await asyncio.to_thread(self._open_page, page)
                for place in damaged:
                    target.record_corrupt(place)
                for item in healthy:
                    yield item

    # Access to the stores

    def _seal(self, place: StoragePlace, obj: Mapping[str, Any]) -> StoreEntry:
        raw = self._prepare(obj)
        return envelope.seal(place, raw, cluster_uid=self._cluster_uid, writer=self._writer())

    def _open_page(
        self, page: Sequence[tuple[StoragePlace, StoredRecord]]
    ) -> tuple[list[StoredObject], list[StoragePlace]]:
        healthy: list[StoredObject] = []
        damaged: list[StoragePlace] = []
        for place, record in page:
            try:
                obj = envelope.unseal(place, record.body, self._cluster_uid)
            except CorruptObject:
                damaged.append(place)
            else:
                healthy.append((place.key, obj, record.version))
        return healthy, damaged

    @property
    def _cluster_uid(self) -> str:
        assert self._machine is not None
        return self._machine.cluster_uid

    def _usable_instance(self, instance: str) -> StorageInstance:
        """Return the instance of that name.

        Raises:
            Closed, NotInitialized, BackendDead: the provider cannot be used.
            UnknownInstance: no instance of that name is configured.
        """
        if self._closed:
            raise Closed("the provider is closed")
        if self._dead:
            raise BackendDead(self._dead)
        if self._machine is None:
            raise NotInitialized("not initialized; call initialize first")
        target = self._instances.get(instance)
        if target is None:
            raise UnknownInstance(f"instance {instance} is not configured")
        return target

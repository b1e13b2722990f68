"""Replication of objects across several instances: writes, reads and repair.

Each write gets a stamp to compare copies in different stores: the leader's epoch, then a counter. A
deletion leaves a tombstone until every instance has the tombstone; otherwise an instance that was
down would bring the object back. The manager lists the writes that an instance missed, and repeats
them in the background. A restart loses these lists, so the manager then compares all copies of each
kind once. Until then, reads compare the copies of all available instances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ccm.base.log import logger
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence import engine, objects
from ccm.persistence.engine import no_election_writer
from ccm.persistence.envelope import StampGenerator, WriterIdentity
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    Fenced,
    InvalidObject,
    NoInstanceReachable,
    NotInitialized,
    ObjectTooLarge,
    PersistenceError,
    SensitiveObjectRefused,
)
from ccm.persistence.interface import (
    GVK,
    METHODS,
    STAMPED_METHODS,
    MachineId,
    ObjectKey,
    Stamp,
    Stamped,
    require,
)
from ccm.persistence.objects import StoragePlace, place_of

MAX_MISSING = 10_000
"""Maximum missed copies to list for one instance; beyond it, all copies are compared."""

UNSTAMPED = Stamp(0, 0)
"""Stamp of copies if there is only one instance, so that copies need no comparison."""


class Backend:
    """Provider, and the factory that replaces it after a failed initialization.

    Args:
        name: name of the backend.
        make: creates a provider; must not do I/O.
        methods: methods that the provider must have.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], methods: Sequence[str] = METHODS
    ) -> None:
        self.name = name
        self.provider = make()
        require(name, self.provider, methods)
        self.instances: Sequence[str] = tuple(self.provider.instances())
        if len(set(self.instances)) != len(self.instances):
            names = ", ".join(self.instances)
            raise BackendDead(
                f"persistence backend {name!r} has two instances of the same name: {names}"
            )
        self._make = make
        self.is_open = False

    async def open(self, machine_id: MachineId) -> None:
        """Initialize the provider, unless it is open.

        If no instance is reachable, replace the provider, so that a later call can try again.

        Raises:
            BackendDead: a permanent failure that needs an operator.
        """
        if self.is_open:
            return
        try:
            await self.provider.initialize(machine_id)
            self.is_open = True
        except NoInstanceReachable as error:
            logger("persistence").warning("persistence backend is down", error=str(error))
            await self.provider.close()
            self.provider = self._make()

    async def close(self) -> None:
        """Close the provider."""
        await self.provider.close()


class Replica:
    """Instance of storage, and the list of copies that it missed.

    Args:
        backend: backend of the instance.
        name: name of the instance.
        limit: maximum missed copies to list.
        is_alone: whether it is the only instance, which needs neither stamps nor tombstones.
    """

    def __init__(self, backend: Backend, name: str, limit: int, *, is_alone: bool) -> None:
        self.name = name
        self._is_alone = is_alone
        self._backend = backend
        self._limit = limit
        self.missing: dict[StoragePlace, None] = {}
        """Places whose newest copy this instance lacks, in the order in which they were listed."""
        self.compared: set[GVK] = set()
        """Kinds whose copies were compared, so that `missing` is complete; initially none."""

    async def latency(self) -> float | None:
        """Return the mean latency of writes in seconds; None if the instance is down."""
        status = await self._backend.provider.instance_status(self.name)
        return float(status.mean_persist_latency) if status.status else None

    async def is_up(self) -> bool:
        """Return whether the instance is up."""
        return await self.latency() is not None

    def add_missing(self, place: StoragePlace) -> None:
        """List a missed copy; beyond the limit, request a comparison of all copies instead."""
        self.missing[place] = None
        if len(self.missing) > self._limit:
            self.missing.clear()
            self.compared.clear()

    async def write(self, place: StoragePlace, copy: Stamped) -> None:
        """Store a copy or a tombstone."""
        provider = self._backend.provider
        if not self._is_alone:
            await provider.write_stamped(self.name, place.kind, place.key, copy)
        elif copy.obj is None:
            await self.remove(place)
        else:
            await provider.put_object(self.name, copy.obj)

    async def remove(self, place: StoragePlace) -> None:
        """Delete the copy or tombstone."""
        await self._backend.provider.delete_object(self.name, place.kind, place.key)

    async def read(self, place: StoragePlace) -> Stamped | None:
        """Return the copy or tombstone; None if there is neither."""
        provider = self._backend.provider
        if self._is_alone:
            obj = await provider.get_object(self.name, place.kind, place.key)
            return None if obj is None else Stamped(obj, UNSTAMPED)
        copy: Stamped | None = await provider.read_stamped(self.name, place.kind, place.key)
        return copy

    async def read_all(self, kind: GVK) -> dict[StoragePlace, Stamped]:
        """Return all copies and tombstones of a kind."""
        provider = self._backend.provider
        if self._is_alone:
            objects = await provider.get_all_objects(self.name, kind)
            return {place_of(obj): Stamped(obj, UNSTAMPED) for obj in objects}
        return {
            StoragePlace(kind, key): copy
            async for key, copy in provider.iter_stamped(self.name, kind)
        }


Policy = Literal["any", "majority", "all"]
WhenDown = Literal["degrade", "block"]

REPAIR_S = 30.0
"""Seconds between two rounds of repair, equal to the probe period `engine.PROBE_S`."""

_REJECTIONS = (Fenced, InvalidObject, ObjectTooLarge, SensitiveObjectRefused)
"""Errors that every instance would raise for the same write."""


@dataclass(slots=True, eq=False)
class _Write:
    """Latest write of an object while in flight; `pending`: instances that do not have it yet."""

    copy: Stamped
    pending: set[Replica]
    is_acknowledged: bool = False


class ReplicationManager:
    """Replicated storage on all instances of all backends.

    Args:
        backends: backends with one or more instances each; instance names are unique.
        policy: number of configured instances that must acknowledge a write: `any` = 1,
            `majority` or `all`.
        when_down: reaction if no instance is up: `degrade` = continue without storage, `block` =
            refuse to create resources (`may_create`).
        writer: returns the current writer; called at each write.
        limit: maximum missed copies to list per instance.
        repair_s: seconds between two rounds of repair.
        on_change: callback with True when an instance is up again, and with False when no instance
            is up any more; at the start instances count as up.

    Raises:
        BackendDead: two instances have the same name, or a backend does not support replication.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        policy: Policy = "any",
        when_down: WhenDown = "degrade",
        writer: Callable[[], WriterIdentity] = no_election_writer,
        limit: int = MAX_MISSING,
        repair_s: float = REPAIR_S,
        on_change: Callable[[bool], None] = lambda _is_up: None,
    ) -> None:
        self._backends = tuple(backends)
        count = sum(len(backend.instances) for backend in backends)
        self.replicas = [
            Replica(backend, name, limit, is_alone=count == 1)
            for backend in backends
            for name in backend.instances
        ]
        self._needed = {"any": 1, "majority": count // 2 + 1, "all": count}[policy]
        self._when_down = when_down
        self._writer = writer
        self._repair_s = repair_s
        self._on_change = on_change
        self._is_up = True
        self._stamps = StampGenerator()
        self._writes_in_flight: dict[StoragePlace, _Write] = {}
        self._acknowledged_during_reads: list[dict[StoragePlace, Stamped]] = []
        self._kinds: set[GVK] = set()
        self._write_tasks: set[asyncio.Task[None]] = set()
        self._repair_task: asyncio.Task[None] | None = None
        self._machine: MachineId | None = None
        self._repairs_in_progress: set[StoragePlace] = set()
        self._log = logger("persistence")
        if len({member.name for member in self.replicas}) < count:
            raise BackendDead("two persistence backends have an instance of the same name")
        for backend in backends if count > 1 else ():
            require(backend.name, backend.provider, STAMPED_METHODS)

    # Life cycle

    async def initialize(self, machine_id: MachineId) -> None:
        """Open all backends and start the repair; unreachable backends are retried later.

        Raises:
            BackendDead: one backend has a permanent failure that needs an operator.
        """
        self._machine = machine_id
        await self._update_status()
        self._repair_task = spawn(self._repair_loop(), name="persistence-repair")

    async def close(self) -> None:
        """Wait for in-flight writes and close all backends."""
        await cancel_and_join(self._repair_task)
        await self.wait_for_writes()
        for backend in self._backends:
            await backend.close()

    async def wait_for_writes(self) -> None:
        """Wait until every in-flight write has ended in every instance."""
        if self._write_tasks:
            await asyncio.wait(self._write_tasks)

    async def _update_status(self) -> None:
        assert self._machine is not None
        for backend in self._backends:
            await backend.open(self._machine)
        is_up = any([await member.is_up() for member in self.replicas])
        engine.DEGRADED.set(not is_up)
        if is_up is self._is_up:
            return
        self._is_up = is_up
        self._on_change(is_up)
        if not is_up:
            self._log.warning("no persistence instance is up", detail=self._when_down)

    async def may_create(self) -> bool:
        """Return whether a resource that must not be created twice may be created.

        False if no instance is up and `when_down` is `block`.
        """
        return self._when_down == "degrade" or bool(await self._replicas_up())

    # Objects

    async def put_object(self, obj: Mapping[str, Any]) -> ObjectKey:
        """Store an object in all instances that are up; return once the write policy is satisfied.

        Raises:
            BackendUnavailable: too few instances acknowledged the write; some may have it.
            PersistenceError: an instance rejected the object.
        """
        place = objects.place_of(obj)
        stamp = self._stamps.next(self._writer().epoch)
        await self._write(place, Stamped(dict(obj), stamp))
        return place.key

    async def delete_object(self, kind: GVK, key: ObjectKey) -> None:
        """Delete an object in all instances; an instance that is down gets the deletion later.

        Raises:
            BackendUnavailable: too few instances acknowledged the deletion.
        """
        place = StoragePlace(kind, objects.check_key(key))
        stamp = self._stamps.next(self._writer().epoch)
        await self._write(place, Stamped(None, stamp))

    async def get_object(self, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """Return the newest copy of an object; None if it is absent.

        Reads from the fastest instance that has the newest copy. Before all copies of the kind have
        been compared once, reads from all instances that are up.

        Raises:
            BackendUnavailable: no instance is readable.
        """
        place = StoragePlace(kind, objects.check_key(key))
        self._kinds.add(kind)
        up = await self._replicas_up()
        if all(kind in member.compared for member in up):
            for member in up:
                if self._lacks(member, place):
                    continue
                try:
                    copy = await member.read(place)
                except PersistenceError:
                    member.add_missing(place)
                    continue
                return copy.obj if copy else None
        newest, _ = await self._newest_copy(place, up)
        return newest.obj if newest else None

    async def get_all_objects(self, kind: GVK) -> list[dict[str, Any]]:
        """Return the newest copy of each object of a kind.

        Raises:
            BackendUnavailable: no instance is readable.
        """
        self._kinds.add(kind)
        newest, missed, _ = await self._newest_copies(kind, await self._replicas_up())
        for place, member in missed:
            member.add_missing(place)
        return [copy.obj for copy in newest.values() if copy.obj is not None]

    # Writing

    async def _write(self, place: StoragePlace, copy: Stamped) -> None:
        if self._machine is None:
            raise NotInitialized("not initialized; call initialize first")
        self._kinds.add(place.kind)
        up = await self._replicas_up()
        for member in self.replicas:
            if member not in up:
                member.add_missing(place)
        self._writes_in_flight[place] = write = _Write(copy, set(self.replicas))
        self._repairs_in_progress.discard(place)
        writes = {
            spawn(member.write(place, copy), name="persistence-write"): member for member in up
        }
        enough = asyncio.Event()
        refused: list[PersistenceError] = []
        finish = spawn(
            self._await_writes(place, write, writes, enough, refused), name="persistence-ends"
        )
        self._write_tasks.add(finish)
        finish.add_done_callback(self._write_tasks.discard)
        # The caller may be cancelled here; `_await_writes` still completes the writes.
        waiting = spawn(enough.wait(), name="persistence-enough")
        try:
            await asyncio.wait({finish, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_join(waiting)
        if enough.is_set():
            return
        finish.result()
        if refused:
            raise refused[0]
        raise BackendUnavailable(
            f"fewer than {self._needed} of {len(self.replicas)} instances acknowledged the write"
        )

    async def _await_writes(
        self,
        place: StoragePlace,
        write: _Write,
        writes: Mapping[asyncio.Task[None], Replica],
        enough: asyncio.Event,
        refused: list[PersistenceError],
    ) -> None:
        """Await all writes of one copy; purge it if it is a tombstone that all instances have."""
        acknowledgements = 0
        pending = set(writes)
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                if error is None:
                    acknowledgements += 1
                    write.pending.discard(writes[task])
                elif isinstance(error, _REJECTIONS):
                    refused.append(error)
                elif isinstance(error, PersistenceError):
                    writes[task].add_missing(place)
                else:
                    raise error
            if acknowledgements >= self._needed and not refused:
                write.is_acknowledged = True
                for acknowledged in self._acknowledged_during_reads:
                    acknowledged[place] = write.copy
                enough.set()
        if self._writes_in_flight.get(place) is write:
            del self._writes_in_flight[place]
            if write.copy.obj is None and acknowledgements == len(self.replicas):
                await self._purge(place)

    async def _purge(self, place: StoragePlace) -> None:
        for member in self.replicas:
            if place in self._writes_in_flight:  # a new write started: its copy must not be deleted
                return
            try:
                await member.remove(place)
            except PersistenceError:
                member.add_missing(place)

    # Reading

    def _lacks(self, member: Replica, place: StoragePlace) -> bool:
        # An acknowledged write may still be in flight to the fastest instance.
        write = self._writes_in_flight.get(place)
        return place in member.missing or (write is not None and member in write.pending)

    async def _replicas_up(self) -> list[Replica]:
        """Return the replicas that are up, fastest first."""
        latencies = [(await member.latency(), index) for index, member in enumerate(self.replicas)]
        ready = sorted((latency, index) for latency, index in latencies if latency is not None)
        return [self.replicas[index] for _, index in ready]

    @contextmanager
    def _collect_acknowledged(self) -> Iterator[Mapping[StoragePlace, Stamped]]:
        """Collect the writes acknowledged while several instances are read one after another.

        Without these writes a deleted object could reappear: the first instance may be read before
        the deletion, and the last instance after its tombstone was purged.
        """
        written = {
            place: write.copy
            for place, write in self._writes_in_flight.items()
            if write.is_acknowledged
        }
        self._acknowledged_during_reads.append(written)
        try:
            yield written
        finally:
            self._acknowledged_during_reads = [
                reader for reader in self._acknowledged_during_reads if reader is not written
            ]

    async def _newest_copy(
        self, place: StoragePlace, up: Sequence[Replica]
    ) -> tuple[Stamped | None, bool]:
        """Return the newest readable copy, and whether all replicas were readable.

        Adds the place to `missing` of each replica with an older copy or none.
        """
        by_member: dict[Replica, Stamped | None] = {}
        fault: PersistenceError = BackendUnavailable("no instance is up")
        with self._collect_acknowledged() as written:
            for member in up:
                try:
                    by_member[member] = await member.read(place)
                except PersistenceError as error:
                    fault = error
                    member.add_missing(place)
        if not by_member:
            raise fault
        copies = [written.get(place), *by_member.values()]
        newest = max(filter(None, copies), key=lambda copy: copy.stamp, default=None)
        for member, copy in by_member.items():
            if copy != newest:
                member.add_missing(place)
        return newest, len(by_member) == len(self.replicas)

    async def _newest_copies(
        self, kind: GVK, up: Sequence[Replica]
    ) -> tuple[dict[StoragePlace, Stamped], list[tuple[StoragePlace, Replica]], Sequence[Replica]]:
        """Return the newest copies of a kind, the missed copies, and the replicas that were read.

        A missed copy is a place and the replica without the newest copy of it.
        """
        newest: dict[StoragePlace, Stamped] = {}
        read: dict[Replica, dict[StoragePlace, Stamped]] = {}
        fault: PersistenceError = BackendUnavailable("no instance is up")
        with self._collect_acknowledged() as written:
            for member in up:
                try:
                    read[member] = await member.read_all(kind)
                except PersistenceError as error:
                    fault = error
                    member.compared.clear()
        if not read:
            raise fault
        fresh = {place: copy for place, copy in written.items() if place.kind == kind}
        for copies in (fresh, *read.values()):
            for place, copy in copies.items():
                if place not in newest or copy.stamp > newest[place].stamp:
                    newest[place] = copy
        missed = [
            (place, member)
            for member, copies in read.items()
            for place, copy in newest.items()
            if copies.get(place) != copy
        ]
        return newest, missed, tuple(read)

    # Repair

    async def _repair_loop(self) -> None:
        while True:
            try:
                await self.repair()
            except PersistenceError as error:
                self._log.warning("persistence repair failed", error=str(error))
            await asyncio.sleep(self._repair_s)
            await self._update_status()

    async def repair(self) -> None:
        """Write missed copies to each instance that is up.

        Raises:
            PersistenceError: an instance failed; the remaining missed copies stay listed.
        """
        up = await self._replicas_up()
        for kind in tuple(self._kinds):
            if not all(kind in member.compared for member in up):
                await self._compare_kind(kind, up)
        for member in up:
            for place in tuple(member.missing):
                await self._repair_place(place, member, up)
        for member in self.replicas:
            engine.REPAIRS.labels(member.name).set(len(member.missing))

    async def _compare_kind(self, kind: GVK, up: Sequence[Replica]) -> None:
        newest, missed, answered = await self._newest_copies(kind, up)
        for place, member in missed:  # not listed, because there may be more than the limit
            await self._repair_place(place, member, up)
        for member in answered:
            member.compared.add(kind)
        for place, copy in newest.items():
            if copy.obj is None:
                up[0].add_missing(place)  # the repair purges the tombstone if all replicas have it

    async def _repair_place(
        self, place: StoragePlace, member: Replica, up: Sequence[Replica]
    ) -> None:
        if place in self._writes_in_flight:
            return  # a write in flight replaces this copy anyway
        self._repairs_in_progress.add(place)
        newest, all_answered = await self._newest_copy(place, up)
        if place not in self._repairs_in_progress:
            return  # a write started during the comparison: its copy is newer
        self._repairs_in_progress.discard(place)
        if newest is not None:
            await member.write(place, newest)
        if not all_answered:
            return  # a replica that is down may have a newer copy
        member.missing.pop(place, None)
        is_everywhere = not any(place in other.missing for other in self.replicas)
        if newest is not None and newest.obj is None and is_everywhere:
            await self._purge(place)

"""Several instances kept as one: who is written, who is asked, who is repaired.

Copies in different stores are compared by a stamp that is made here: the leader's epoch, then a
counter. A deletion leaves a mark with its stamp until every instance has it, or an instance that
was down would bring the object back. What an instance missed is remembered and made up for in
the background; after a restart, when nobody remembers, all of it is compared once. Until then it
is read only beside others.
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
from ccm.persistence.engine import nobody
from ccm.persistence.envelope import Stamps, Writer
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    Fenced,
    InvalidObject,
    NotInitialized,
    ObjectTooLarge,
    PersistenceError,
    SensitiveObjectRefused,
    Unreachable,
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
from ccm.persistence.objects import Place, place_of

LIMIT = 10_000
"""Copies that are remembered for one instance; beyond them all of it is compared again."""

NEVER = Stamp(0, 0)
"""Of a copy that is the only one."""


class Backend:
    """A provider that can be made anew: one that could not be initialized stays dead.

    Args:
        name: of the backend.
        make: makes a provider; asks nobody.
        methods: that it has to have.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], methods: Sequence[str] = METHODS
    ) -> None:
        self.name = name
        self.provider = make()
        require(name, self.provider, methods)
        self.instances: Sequence[str] = tuple(self.provider.instances())
        if len(set(self.instances)) != len(self.instances):
            raise BackendDead(f"persistence backend {name!r} has two instances of one name")
        self._make = make
        self.is_open = False

    async def open(self, machine_id: MachineId) -> None:
        """Open it unless it is open, or cannot be reached now.

        Raises:
            BackendDead: a person has to act.
        """
        if self.is_open:
            return
        try:
            await self.provider.initialize(machine_id)
            self.is_open = True
        except Unreachable as error:
            logger("persistence").warning("persistence backend is down", error=str(error))
            await self.provider.close()
            self.provider = self._make()

    async def close(self) -> None:
        """Close it."""
        await self.provider.close()


class Member:
    """One instance.

    Args:
        backend: that it belongs to.
        name: its own.
        limit: of what it may miss.
        is_alone: there is no other, and nothing to compare.
    """

    def __init__(self, backend: Backend, name: str, limit: int, *, is_alone: bool) -> None:
        self.name = name
        self._is_alone = is_alone
        self._backend = backend
        self._limit = limit
        self.lacking: dict[Place, None] = {}
        """Places whose newest copy it does not have, oldest first."""
        self.compared: set[GVK] = set()
        """Kinds of which all that it lacks is known; at first that is none."""

    async def latency(self) -> float | None:
        """Mean time of a write in seconds; None: it is down."""
        status = await self._backend.provider.instance_status(self.name)
        return float(status.mean_persist_latency) if status.status else None

    async def is_up(self) -> bool:
        """Whether it works."""
        return await self.latency() is not None

    def missed(self, place: Place) -> None:
        """Remember that it lacks a copy; beyond the limit all of it is to be compared again."""
        self.lacking[place] = None
        if len(self.lacking) > self._limit:
            self.lacking.clear()
            self.compared.clear()

    async def write(self, place: Place, copy: Stamped) -> None:
        """Store a copy, or the mark of a deletion."""
        provider = self._backend.provider
        if not self._is_alone:
            await provider.write_stamped(self.name, place.kind, place.key, copy)
        elif copy.obj is None:
            await self.remove(place)
        else:
            await provider.put_object(self.name, copy.obj)

    async def remove(self, place: Place) -> None:
        """Remove what is there."""
        await self._backend.provider.delete_object(self.name, place.kind, place.key)

    async def read(self, place: Place) -> Stamped | None:
        """The copy, or the mark of a deletion."""
        provider = self._backend.provider
        if self._is_alone:
            obj = await provider.get_object(self.name, place.kind, place.key)
            return None if obj is None else Stamped(obj, NEVER)
        found: Stamped | None = await provider.read_stamped(self.name, place.kind, place.key)
        return found

    async def read_all(self, kind: GVK) -> dict[Place, Stamped]:
        """All copies and marks of a kind."""
        provider = self._backend.provider
        if self._is_alone:
            objects = await provider.get_all_objects(self.name, kind)
            return {place_of(obj): Stamped(obj, NEVER) for obj in objects}
        return {
            Place(kind, key): copy async for key, copy in provider.iter_stamped(self.name, kind)
        }


Policy = Literal["any", "majority", "all"]
WhenDown = Literal["degrade", "block"]

REPAIR_S = 30.0
"""Seconds between two rounds of repair, as between two looks at an instance."""

_REFUSED = (Fenced, InvalidObject, ObjectTooLarge, SensitiveObjectRefused)
"""What every instance would say alike."""


@dataclass(slots=True, eq=False)
class _Write:
    """The newest write of an object while it is under way, and who does not have it yet."""

    copy: Stamped
    behind: set[Member]
    is_acknowledged: bool = False


class Manager:
    """All instances of all backends.

    Args:
        backends: of one or more instances each; a name occurs once.
        policy: how many must acknowledge a write: one, most, or all that are configured.
        when_down: with nothing up, whether to go on without, or to refuse to create.
        writer: asked at each write who leads.
        limit: copies that are remembered for an instance that missed them.
        repair_s: seconds between two rounds of repair.
        tell: called with whether any instance is up, when that changes; at the start all are.

    Raises:
        BackendDead: two instances have one name, or a backend cannot be one of several.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        policy: Policy = "any",
        when_down: WhenDown = "degrade",
        writer: Callable[[], Writer] = nobody,
        limit: int = LIMIT,
        repair_s: float = REPAIR_S,
        tell: Callable[[bool], None] = lambda _is_up: None,
    ) -> None:
        self._backends = tuple(backends)
        count = sum(len(backend.instances) for backend in backends)
        self.members = [
            Member(backend, name, limit, is_alone=count == 1)
            for backend in backends
            for name in backend.instances
        ]
        self._needed = {"any": 1, "majority": count // 2 + 1, "all": count}[policy]
        self._when_down = when_down
        self._writer = writer
        self._repair_s = repair_s
        self._tell = tell
        self._was_up = True
        self._stamps = Stamps()
        self._newest: dict[Place, _Write] = {}
        self._readers: list[dict[Place, Stamped]] = []
        self._kinds: set[GVK] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        self._repairing: asyncio.Task[None] | None = None
        self._machine: MachineId | None = None
        self._mended: set[Place] = set()
        self._log = logger("persistence")
        if len({member.name for member in self.members}) < count:
            raise BackendDead("two backends have an instance of one name")
        for backend in backends if count > 1 else ():
            require(backend.name, backend.provider, STAMPED_METHODS)

    # Life cycle

    async def initialize(self, machine_id: MachineId) -> None:
        """Open all; what cannot be reached now is tried again later.

        Raises:
            BackendDead: a person has to act, whatever else is up.
        """
        self._machine = machine_id
        await self._look()
        self._repairing = spawn(self._repair_for_ever(), name="persistence-repair")

    async def close(self) -> None:
        """Wait for the writes under way and close all."""
        await cancel_and_join(self._repairing)
        await self.settled()
        for backend in self._backends:
            await backend.close()

    async def settled(self) -> None:
        """Every write has come to its end in every instance."""
        if self._finishing:
            await asyncio.wait(self._finishing)

    async def _look(self) -> None:
        assert self._machine is not None
        for backend in self._backends:
            await backend.open(self._machine)
        is_up = any([await member.is_up() for member in self.members])
        engine.DEGRADED.set(not is_up)
        if is_up is self._was_up:
            return
        self._was_up = is_up
        self._tell(is_up)
        if not is_up:
            self._log.warning("no persistence instance is up", detail=self._when_down)

    async def may_create(self) -> bool:
        """Whether something may be made that cannot be made twice: with nothing up and the
        policy `block` it may not."""
        return self._when_down == "degrade" or bool(await self._up())

    # Objects

    async def put_object(self, obj: Mapping[str, Any]) -> ObjectKey:
        """Store it wherever that works; durable in as many instances as the policy wants.

        Raises:
            BackendUnavailable: too few acknowledged it; some may have it.
        """
        place = objects.place_of(obj)
        stamp = self._stamps.next(self._writer().epoch)
        await self._write(place, Stamped(dict(obj), stamp))
        return place.key

    async def delete_object(self, kind: GVK, key: ObjectKey) -> None:
        """Remove it everywhere; it does not come back from an instance that is down now.

        Raises:
            BackendUnavailable: too few acknowledged it.
        """
        place = Place(kind, objects.checked(key))
        stamp = self._stamps.next(self._writer().epoch)
        await self._write(place, Stamped(None, stamp))

    async def get_object(self, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """The newest copy: of the fastest instance, if nothing says that it missed anything.

        Raises:
            BackendUnavailable: none could be asked.
        """
        place = Place(kind, objects.checked(key))
        self._kinds.add(kind)
        up = await self._up()
        if all(kind in member.compared for member in up):
            for member in up:
                if self._lacks(member, place):
                    continue
                try:
                    found = await member.read(place)
                except PersistenceError:
                    member.missed(place)
                    continue
                return found.obj if found else None
        newest, _ = await self._compared(place, up)
        return newest.obj if newest else None

    async def get_all_objects(self, kind: GVK) -> list[dict[str, Any]]:
        """The newest copy of each.

        Raises:
            BackendUnavailable: none could be asked.
        """
        self._kinds.add(kind)
        found, missed, _ = await self._all(kind, await self._up())
        for place, member in missed:
            member.missed(place)
        return [copy.obj for copy in found.values() if copy.obj is not None]

    # Writing

    async def _write(self, place: Place, copy: Stamped) -> None:
        if self._machine is None:
            raise NotInitialized("initialize comes first")
        self._kinds.add(place.kind)
        up = await self._up()
        for member in self.members:
            if member not in up:
                member.missed(place)
        self._newest[place] = write = _Write(copy, set(self.members))
        self._mended.discard(place)
        writes = {
            spawn(member.write(place, copy), name="persistence-write"): member for member in up
        }
        enough = asyncio.Event()
        refused: list[PersistenceError] = []
        finish = spawn(self._finish(place, write, writes, enough, refused), name="persistence-ends")
        self._finishing.add(finish)
        finish.add_done_callback(self._finishing.discard)
        # Whoever asked may be cancelled; the copies are still written, and seen to.
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
            f"fewer than {self._needed} of {len(self.members)} instances acknowledged it"
        )

    async def _finish(
        self,
        place: Place,
        write: _Write,
        writes: Mapping[asyncio.Task[None], Member],
        enough: asyncio.Event,
        refused: list[PersistenceError],
    ) -> None:
        """See each write to its end; a deletion that all have leaves nothing behind."""
        done = 0
        pending = set(writes)
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                if error is None:
                    done += 1
                    write.behind.discard(writes[task])
                elif isinstance(error, _REFUSED):
                    refused.append(error)
                elif isinstance(error, PersistenceError):
                    writes[task].missed(place)
                else:
                    raise error
            if done >= self._needed and not refused:
                write.is_acknowledged = True
                for acknowledged in self._readers:
                    acknowledged[place] = write.copy
                enough.set()
        if self._newest.get(place) is write:
            del self._newest[place]
            if write.copy.obj is None and done == len(self.members):
                await self._purge(place)

    async def _purge(self, place: Place) -> None:
        for member in self.members:
            if place in self._newest:  # it is written again
                return
            try:
                await member.remove(place)
            except PersistenceError:
                member.missed(place)

    # Reading

    def _lacks(self, member: Member, place: Place) -> bool:
        # A write that enough have acknowledged may be on its way to the fastest.
        write = self._newest.get(place)
        return place in member.lacking or (write is not None and member in write.behind)

    async def _up(self) -> list[Member]:
        """The fastest first."""
        found = [(await member.latency(), at) for at, member in enumerate(self.members)]
        ready = sorted((latency, at) for latency, at in found if latency is not None)
        return [self.members[at] for _, at in ready]

    @contextmanager
    def _acknowledged(self) -> Iterator[Mapping[Place, Stamped]]:
        """What is written while several instances are read one after the other: the first may
        be read before it has a deletion, and the last when the mark of it is gone again."""
        seen = {at: write.copy for at, write in self._newest.items() if write.is_acknowledged}
        self._readers.append(seen)
        try:
            yield seen
        finally:
            self._readers = [one for one in self._readers if one is not seen]

    async def _compared(self, place: Place, up: Sequence[Member]) -> tuple[Stamped | None, bool]:
        """The newest of all copies that can be read, and whether all could; who has an older
        one is repaired."""
        found: dict[Member, Stamped | None] = {}
        fault: PersistenceError = BackendUnavailable("no instance is up")
        with self._acknowledged() as written:
            for member in up:
                try:
                    found[member] = await member.read(place)
                except PersistenceError as error:
                    fault = error
                    member.missed(place)
        if not found:
            raise fault
        copies = [written.get(place), *found.values()]
        newest = max(filter(None, copies), key=lambda copy: copy.stamp, default=None)
        for member, copy in found.items():
            if copy != newest:
                member.missed(place)
        return newest, len(found) == len(self.members)

    async def _all(
        self, kind: GVK, up: Sequence[Member]
    ) -> tuple[dict[Place, Stamped], list[tuple[Place, Member]], Sequence[Member]]:
        """The newest of each, who does not have it, and who answered."""
        newest: dict[Place, Stamped] = {}
        read: dict[Member, dict[Place, Stamped]] = {}
        fault: PersistenceError = BackendUnavailable("no instance is up")
        with self._acknowledged() as written:
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

    async def _repair_for_ever(self) -> None:
        while True:
            try:
                await self.repair()
            except PersistenceError as error:
                self._log.warning("persistence cannot be repaired now", error=str(error))
            await asyncio.sleep(self._repair_s)
            await self._look()

    async def repair(self) -> None:
        """Give each instance that is up what it missed.

        Raises:
            PersistenceError: somebody did not answer; what is left is remembered.
        """
        up = await self._up()
        for kind in tuple(self._kinds):
            if not all(kind in member.compared for member in up):
                await self._compare(kind, up)
        for member in up:
            for place in tuple(member.lacking):
                await self._mend(place, member, up)
        for member in self.members:
            engine.REPAIRS.labels(member.name).set(len(member.lacking))

    async def _compare(self, kind: GVK, up: Sequence[Member]) -> None:
        newest, missed, answered = await self._all(kind, up)
        for place, member in missed:  # at once: they may be more than are remembered
            await self._mend(place, member, up)
        for member in answered:
            member.compared.add(kind)
        for place, copy in newest.items():
            if copy.obj is None:
                up[0].missed(place)  # the mark is seen to, and goes when all have it

    async def _mend(self, place: Place, member: Member, up: Sequence[Member]) -> None:
        if place in self._newest:
            return  # it is being written; that will tell
        self._mended.add(place)
        newest, all_answered = await self._compared(place, up)
        if place not in self._mended:
            return  # it was written meanwhile
        self._mended.discard(place)
        if newest is not None:
            await member.write(place, newest)
        if not all_answered:
            return  # whoever is down may have a newer one
        member.lacking.pop(place, None)
        is_everywhere = not any(place in other.lacking for other in self.members)
        if newest is not None and newest.obj is None and is_everywhere:
            await self._purge(place)

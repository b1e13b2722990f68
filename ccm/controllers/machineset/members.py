"""Creates and deletes machines of a set.

Each machine is created under a name that no other attempt can use again. Many calls begin with a
few: where the first are refused, the others are not made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from ccm.base import log, tasks
from ccm.controllers.machineset import plan
from ccm.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from ccm.machines import setbacks
from ccm.machines.caches import Caches
from ccm.machines.setbacks import Setbacks
from ccm.model import OwnerReference
from ccm.model.machines import Condition, Machine, MachineSet, Operation, Phase, Template
from ccm.model.names import SAFE_LETTERS
from ccm.model.owners import controller_uid
from ccm.model.times import moment
from ccm.runtime.ownership import Expectations

T = TypeVar("T")

_SUFFIX = 5
"""Length of the end of a name, as Kubernetes makes it from `generateName`."""

_NAME_ROOM = 58
"""Characters of the set's name in that of a machine; the server cuts `generateName` there too."""

_log = log.logger("machineset")


class Members:
    """Creates and deletes the machines of sets.

    Args:
        caches: the caches.
        expect: changes that the cache does not show yet.
        rng: chooses names.
    """

    def __init__(self, caches: Caches, expect: Expectations, rng: random.Random) -> None:
        self._machines = caches.client.resource(caches.codec.machines)
        self._caches, self._cache = caches, caches.machines.store
        self._expect = expect
        self._rng = rng

    async def look_up(self, uid: str) -> int:
        """Look up overdue changes of a set; return how many are still to come."""
        return await self._expect.look_up(uid, self._machines, self._cache)

    async def create(
        self, owner: MachineSet, reference: OwnerReference, count: int
    ) -> tuple[Sequence[str], KubeError | None]:
        """Create machines; return the names of those created, and what prevented the others."""
        made = list[str]()

        async def one(name: str) -> None:
            await self._create(owner, reference, name)
            made.append(name)

        _, error = await slow_start(self._names(owner, count), one)
        return made, error

    async def delete(
        self, owner: MachineSet, machines: Sequence[Machine]
    ) -> tuple[Sequence[str], KubeError | None]:
        """Delete these very machines; return the names of those that go, and an error.

        One that is missing from both is not what it was, and is to be judged anew.
        """
        gone = list[str]()

        async def one(machine: Machine) -> None:
            if await self._delete(owner, machine):
                gone.append(machine.name)

        errors = await together(machines, one)
        return gone, errors[0] if errors else None

    def _names(self, owner: MachineSet, count: int) -> Sequence[str]:
        """Names of tries whose outcome nobody knows come first: then at most one of both is."""
        found = dict.fromkeys(self._expect.doubtful(owner.uid)[:count])
        while len(found) < count:
            suffix = "".join(self._rng.choices(SAFE_LETTERS, k=_SUFFIX))
            name = f"{owner.name[: _NAME_ROOM - 1]}-{suffix}"
            if f"{owner.namespace}/{name}" not in self._cache:
                found[name] = None
        return list(found)

    async def _create(self, owner: MachineSet, reference: OwnerReference, name: str) -> None:
        """Make one machine.

        Raises:
            KubeError: it was not made, or nobody knows.
        """
        namespace = owner.namespace
        body = self._claimed(self._caches.codec.machine_body(owner, reference, name))
        self._expect.creating(owner.uid, namespace, name)
        try:
            await self._machines.create(body, namespace=namespace)
        except AlreadyExists:
            is_ours = await self._is_ours(owner, name)
            if not is_ours or f"{namespace}/{name}" in self._cache:
                # Not ours, or the cache shows it, and will not tell again.
                self._expect.refused(namespace, name)
            if not is_ours:
                raise
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.refused(namespace, name)
            else:
                self._expect.in_doubt(namespace, name)
            raise
        _log.info("machine created", key=owner.key, machine=f"{namespace}/{name}")

    def _claimed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a new machine with what its controller would write on it first.

        One that cannot be decoded stays as it is: the server knows best what is wrong with it.
        """
        metadata, kind = body["metadata"], self._caches.codec.machines
        try:
            machine = kind.converted(msgspec.convert(body, kind.document))
        except msgspec.ValidationError:
            return body
        more = self._caches.arrivals.claim(machine)
        notes = {**metadata["annotations"], **more.get("annotations", {})}
        return {**body, "metadata": {**metadata, **more, "annotations": notes}}

    async def _is_ours(self, owner: MachineSet, name: str) -> bool:
        """Whether the machine that has the name is one that an earlier try made."""
        try:
            live = await self._machines.get(name, namespace=owner.namespace)
        except NotFound:
            return False
        except KubeError:
            self._expect.in_doubt(owner.namespace, name)
            raise
        return controller_uid(live) == owner.uid

    async def _delete(self, owner: MachineSet, machine: Machine) -> bool:
        """Delete one; False: it is another one by now.

        Raises:
            KubeError: it is not deleted, or nobody knows.
        """
        # One that failed may be fine again by now: the cache may lag.
        may_recover = machine.phase is Phase.FAILED
        self._expect.deleting(owner.uid, machine)
        try:
            await self._machines.delete(
                machine.name,
                namespace=machine.namespace,
                uid=machine.uid,
                resource_version=machine.resource_version if may_recover else None,
            )
        except NotFound:
            shown = self._cache.get(machine.key)
            if shown is None or shown.uid != machine.uid:
                # The cache knew before we asked, so it will not tell again.
                self._expect.kept(machine)
        except Conflict:
            self._expect.kept(machine)
            return False
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.kept(machine)
            else:
                self._expect.hurry(machine)
            raise
        _log.info("machine deleted", key=owner.key, machine=machine.key)
        return True


async def slow_start(
    items: Sequence[T], call: Callable[[T], Awaitable[None]], *, first: int = 1
) -> tuple[int, KubeError | None]:
    """Call for each item: `first` of them at once, then twice as many, and so on.

    The first batch in which a call fails is the last one.

    Returns:
        How many calls succeeded, and an error of the last batch.
    """
    done, size = 0, min(len(items), first)
    rest = list(items)
    while rest and size > 0:
        batch, rest = rest[:size], rest[size:]
        errors = await together(batch, call)
        done += len(batch) - len(errors)
        if errors:
            return done, errors[0]
        size *= 2
    return done, None


async def together(items: Sequence[T], call: Callable[[T], Awaitable[None]]) -> Sequence[KubeError]:
    """Call for all items at once; the errors."""
    errors = list[KubeError]()

    async def one(item: T) -> None:
        try:
            await call(item)
        except KubeError as error:
            errors.append(error)

    await tasks.bounded(items, one, limit=len(items), name="burst")
    return errors


# --- memory ---------------------------------------------------------------------------------------

_PASSING = (ServerError, TooManyRequests, Conflict, Unauthorized)
"""The API server is in trouble, or in a hurry: that says nothing about the machine."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What is known of a set beside its object.

    Attributes:
        key: of the set.
        template: what its machines were made of last.
        setbacks: machines that failed in a row.
        failure: says that machines could not be made or deleted the last time.
        last: what was done last; None = nothing since this daemon leads.
        said_at: when its status was written.
    """

    key: str
    template: Template
    setbacks: Setbacks = setbacks.NONE
    failure: Condition | None = None
    last: Operation | None = None
    said_at: float = -math.inf

    def conditions(self, now: datetime) -> Sequence[Condition]:
        """Those of the types that this controller writes."""
        found = [self.failure] if self.failure else []
        if (next_at := setbacks.until(self.setbacks)) is not None:
            found.append(plan.slowed(self.setbacks, next_at, now))
        return found

    def refused(self, error: KubeError, now: datetime) -> None:
        """The API server did not make a machine."""
        if isinstance(error, ApiError) and not isinstance(error, _PASSING):
            self.setbacks = setbacks.failed(self.setbacks, made=now, now=now, text=str(error))


class Memories:
    """The memory of each set, by its UID.

    Args:
        now: what time it is by the clock that machines were made by: pauses count by it, so that no
            jump of ours makes one longer.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._of: dict[str, Memory] = {}

    def of(self, obj: MachineSet) -> Memory:
        """That of a set; of one whose template is another now the failures are forgotten."""
        template, found = obj.template, self._of.get(obj.uid)
        if found is None:
            found = self._of[obj.uid] = Memory(key=obj.key, template=template)
            if plan.slowed_since(obj) and not obj.wants_unfreeze:
                found.setbacks = setbacks.resumed(self._now())
        elif found.template.source != template.source:
            found.template, found.setbacks, found.failure = template, setbacks.NONE, None
        return found

    def learn(self, old: Machine | None, machine: Machine | None) -> None:
        """Note the result of a creation, which decides how fast other machines are created."""
        memory = None if machine is None else self._of.get(controller_uid(machine))
        joined = plan.joined(old, machine)
        if joined is None or machine is None or memory is None:
            return
        if joined:
            memory.setbacks = setbacks.NONE
            return
        now = self._now()
        memory.setbacks = setbacks.failed(
            memory.setbacks,
            made=moment(machine.metadata.creation_timestamp) or now,
            now=now,
            text=machine.status.description,
            code=machine.status.code,
        )

    def answered(self, class_name: str, code: str, text: str) -> Iterable[str]:
        """End the pauses that another answer of the cloud caused, and return the keys of the sets.

        Args:
            class_name: class of the machine whose creation the cloud answered.
            code: see `setbacks.is_another_answer`.
            text: see `setbacks.is_another_answer`.
        """
        return self.end(
            uid
            for uid in self._of_class(class_name)
            if setbacks.is_another_answer(self._of[uid].setbacks, code=code, text=text)
        )

    def mended(self, class_name: str) -> Iterable[str]:
        """End the pauses of the sets of a class that changed, and return the keys of the sets."""
        return self.end(self._of_class(class_name))

    def _of_class(self, class_name: str) -> Sequence[str]:
        return [uid for uid, one in self._of.items() if one.template.class_name == class_name]

    def end(self, uids: Iterable[str]) -> Iterable[str]:
        """Forget the failures of sets, and return the keys of the sets that had slowed down."""
        ended, now = list[str](), self._now()
        for uid in uids:
            memory = self._of.get(uid)
            if memory is None or not memory.setbacks.row:
                continue
            if memory.setbacks.level:
                ended.append(memory.key)
            memory.setbacks = setbacks.ended(now)
        return ended

    def forget(self, uid: str) -> None:
        """A set is gone."""
        self._of.pop(uid, None)

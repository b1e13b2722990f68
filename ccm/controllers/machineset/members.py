"""Creates and deletes machines of a set.

Each machine is created under a unique name, so that a repeated attempt cannot create a second one.
Calls start slowly: if the first ones fail, the others are not made.
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
from ccm.machines import failure_backoff
from ccm.machines.caches import Caches
from ccm.machines.failure_backoff import FailureBackoff
from ccm.model import OwnerReference
from ccm.model.machines import Condition, Machine, MachineSet, Operation, Phase, Template
from ccm.model.names import SAFE_LETTERS
from ccm.model.owners import controller_uid
from ccm.model.times import parse_optional_time
from ccm.runtime.ownership import Expectations

T = TypeVar("T")

_SUFFIX = 5
"""Length of a name's suffix, as Kubernetes generates it for `generateName`."""

_NAME_ROOM = 58
"""Length to which the set's name is cut in that of a machine, as the API server does for
`generateName`."""

_log = log.logger("machineset")


class MachineManager:
    """Creates and deletes the machines of sets.

    Args:
        caches: caches of the machine controllers.
        expect: changes that the cache does not show yet.
        rng: source of names.
    """

    def __init__(self, caches: Caches, expect: Expectations, rng: random.Random) -> None:
        self._machines = caches.client.resource(caches.codec.machines)
        self._caches, self._cache = caches, caches.machines.store
        self._expect = expect
        self._rng = rng

    async def look_up(self, uid: str) -> int:
        """Look up overdue changes of a set; return the number that is still missing."""
        return await self._expect.verify_overdue(uid, self._machines, self._cache)

    async def create(
        self, owner: MachineSet, reference: OwnerReference, count: int
    ) -> tuple[Sequence[str], KubeError | None]:
        """Create machines; return the names of those created, and an error."""
        created = list[str]()

        async def one(name: str) -> None:
            await self._create(owner, reference, name)
            created.append(name)

        _, error = await slow_start(self._names(owner, count), one)
        return created, error

    async def delete(
        self, owner: MachineSet, machines: Sequence[Machine]
    ) -> tuple[Sequence[str], KubeError | None]:
        """Delete exactly these machines; return the names of those deleted, and an error.

        A machine that is missing from both has changed meanwhile, and has to be evaluated again.
        """
        deleted = list[str]()

        async def one(machine: Machine) -> None:
            if await self._delete(owner, machine):
                deleted.append(machine.name)

        errors = await call_all(machines, one)
        return deleted, errors[0] if errors else None

    def _names(self, owner: MachineSet, count: int) -> Sequence[str]:
        """Return names for new machines.

        Names of attempts with an unknown result come first: the repeated attempt creates no second
        machine.
        """
        names = dict.fromkeys(self._expect.uncertain_creations(owner.uid)[:count])
        while len(names) < count:
            suffix = "".join(self._rng.choices(SAFE_LETTERS, k=_SUFFIX))
            name = f"{owner.name[: _NAME_ROOM - 1]}-{suffix}"
            if f"{owner.namespace}/{name}" not in self._cache:
                names[name] = None
        return list(names)

    async def _create(self, owner: MachineSet, reference: OwnerReference, name: str) -> None:
        """Create one machine.

        Raises:
            KubeError: the machine was not created, or the result is unknown.
        """
        namespace = owner.namespace
        body = self._claimed(self._caches.codec.machine_body(owner, reference, name))
        self._expect.expect_creation(owner.uid, namespace, name)
        try:
            await self._machines.create(body, namespace=namespace)
        except AlreadyExists:
            is_ours = await self._is_ours(owner, name)
            if not is_ours or f"{namespace}/{name}" in self._cache:
                # Not ours, or the cache shows it already: no watch event will follow.
                self._expect.creation_failed(namespace, name)
            if not is_ours:
                raise
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.creation_failed(namespace, name)
            else:
                self._expect.creation_unknown(namespace, name)
            raise
        _log.info("machine created", key=owner.key, machine=f"{namespace}/{name}")

    def _claimed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a new machine with the metadata that its controller would write first.

        A body that cannot be decoded is returned unchanged: the API server will report its fault.
        """
        metadata, kind = body["metadata"], self._caches.codec.machines
        try:
            machine = kind.convert_document(msgspec.convert(body, kind.document))
        except msgspec.ValidationError:
            return body
        initial = self._caches.initial_metadata.claim(machine)
        annotations = {**metadata["annotations"], **initial.get("annotations", {})}
        return {**body, "metadata": {**metadata, **initial, "annotations": annotations}}

    async def _is_ours(self, owner: MachineSet, name: str) -> bool:
        """Return whether the machine of that name was created by an earlier attempt."""
        try:
            live = await self._machines.get(name, namespace=owner.namespace)
        except NotFound:
            return False
        except KubeError:
            self._expect.creation_unknown(owner.namespace, name)
            raise
        return controller_uid(live) == owner.uid

    async def _delete(self, owner: MachineSet, machine: Machine) -> bool:
        """Delete one machine; return False if it has changed meanwhile.

        Raises:
            KubeError: the machine was not deleted, or the result is unknown.
        """
        # The cache may lag: a failed machine may have recovered, so its version is a precondition.
        may_recover = machine.phase is Phase.FAILED
        self._expect.expect_deletion(owner.uid, machine)
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
                # The cache showed the deletion before the request: no watch event will follow.
                self._expect.deletion_failed(machine)
        except Conflict:
            self._expect.deletion_failed(machine)
            return False
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.deletion_failed(machine)
            else:
                self._expect.deletion_unknown(machine)
            raise
        _log.info("machine deleted", key=owner.key, machine=machine.key)
        return True


async def slow_start(
    items: Sequence[T], call: Callable[[T], Awaitable[None]], *, first: int = 1
) -> tuple[int, KubeError | None]:
    """Call for each item: `first` calls concurrently, then twice as many, and so on.

    A batch with an error is the last one.

    Returns:
        Number of calls that succeeded, and an error of the last batch.
    """
    done, size = 0, min(len(items), first)
    rest = list(items)
    while rest and size > 0:
        batch, rest = rest[:size], rest[size:]
        errors = await call_all(batch, call)
        done += len(batch) - len(errors)
        if errors:
            return done, errors[0]
        size *= 2
    return done, None


async def call_all(items: Sequence[T], call: Callable[[T], Awaitable[None]]) -> Sequence[KubeError]:
    """Call for all items concurrently; return the errors."""
    errors = list[KubeError]()

    async def one(item: T) -> None:
        try:
            await call(item)
        except KubeError as error:
            errors.append(error)

    await tasks.run_bounded(items, one, limit=len(items), name="burst")
    return errors


# --- memory ---------------------------------------------------------------------------------------

_TRANSIENT = (ServerError, TooManyRequests, Conflict, Unauthorized)
"""Errors of an overloaded or failing API server, which say nothing about the machine."""


@dataclass(slots=True, kw_only=True)
class SetMemory:
    """State of a set that is kept in memory.

    Attributes:
        key: key of the set.
        template: template of its last machines.
        backoff: machines that failed in a row.
        failure: condition for the last failed creation or deletion.
        last: last operation; None = none since this process became the leader.
        status_written_at: monotonic time of the last write of the status.
    """

    key: str
    template: Template
    backoff: FailureBackoff = failure_backoff.NONE
    failure: Condition | None = None
    last: Operation | None = None
    status_written_at: float = -math.inf

    def conditions(self, now: datetime) -> Sequence[Condition]:
        """Return the conditions of the types that this controller writes."""
        conditions = [self.failure] if self.failure else []
        if (next_at := failure_backoff.pause_end(self.backoff)) is not None:
            conditions.append(plan.slowed_condition(self.backoff, next_at, now))
        return conditions

    def record_error(self, error: KubeError, now: datetime) -> None:
        """Count an error of the API server that rejected a machine."""
        if isinstance(error, ApiError) and not isinstance(error, _TRANSIENT):
            self.backoff = failure_backoff.record_failure(
                self.backoff, created_at=now, now=now, text=str(error)
            )


class Memories:
    """Memory of each set, by UID.

    Args:
        now: returns the time of the API server that stamps the machines. Pauses count by it, so
            that no jump of our clock extends one.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._of: dict[str, SetMemory] = {}

    def of(self, obj: MachineSet) -> SetMemory:
        """Return the observed state of a set; a changed template resets its failure back-off."""
        template, memory = obj.template, self._of.get(obj.uid)
        if memory is None:
            memory = self._of[obj.uid] = SetMemory(key=obj.key, template=template)
            if plan.is_slowed(obj) and not obj.wants_unfreeze:
                memory.backoff = failure_backoff.restore_backoff(self._now())
        elif memory.template.source != template.source:
            memory.template, memory.backoff, memory.failure = template, failure_backoff.NONE, None
        return memory

    def record_result(self, old: Machine | None, machine: Machine | None) -> None:
        """Record the result of a creation, which decides how fast other machines are created."""
        memory = None if machine is None else self._of.get(controller_uid(machine))
        joined = plan.creation_succeeded(old, machine)
        if joined is None or machine is None or memory is None:
            return
        if joined:
            memory.backoff = failure_backoff.NONE
            return
        now = self._now()
        memory.backoff = failure_backoff.record_failure(
            memory.backoff,
            created_at=parse_optional_time(machine.metadata.creation_timestamp) or now,
            now=now,
            text=machine.status.description,
            code=machine.status.code,
        )

    def end_for_result(self, class_name: str, code: str, text: str) -> Iterable[str]:
        """End the pauses of sets whose last failure differs from this result; return their keys.

        Args:
            class_name: class of the created machine.
            code: see `failure_backoff.is_different_result`.
            text: see `failure_backoff.is_different_result`.
        """
        return self.end(
            uid
            for uid in self._of_class(class_name)
            if failure_backoff.is_different_result(self._of[uid].backoff, code=code, text=text)
        )

    def end_for_class(self, class_name: str) -> Iterable[str]:
        """End the pauses of the sets of a changed class; return their keys."""
        return self.end(self._of_class(class_name))

    def _of_class(self, class_name: str) -> Sequence[str]:
        return [uid for uid, memory in self._of.items() if memory.template.class_name == class_name]

    def end(self, uids: Iterable[str]) -> Iterable[str]:
        """Forget the failures of sets; return the keys of the sets that had slowed down."""
        ended, now = list[str](), self._now()
        for uid in uids:
            memory = self._of.get(uid)
            if memory is None or not memory.backoff.failures:
                continue
            if memory.backoff.pauses:
                ended.append(memory.key)
            memory.backoff = failure_backoff.end_backoff(now)
        return ended

    def forget(self, uid: str) -> None:
        """Forget a deleted set."""
        self._of.pop(uid, None)

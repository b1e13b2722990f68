"""Creates and deletes machines of a set.

A repeated attempt to create a machine uses the same name, so that it cannot create a second
machine. Creations start slowly: if the first requests fail, no more requests are sent.
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
"""Length of the random suffix of a machine's name, as for `generateName` in Kubernetes."""

_NAME_ROOM = 58
"""Maximum length of the part of a machine's name before the suffix, as for `generateName` in the
API server: the set's name, which is cut if it is too long, and a hyphen."""


class MachineManager:
    """Creates and deletes the machines of sets.

    Args:
        caches: caches of the machine controllers.
        expect: creations and deletions that the cache does not show yet.
        rng: source of random suffixes of names.
    """

    def __init__(self, caches: Caches, expect: Expectations, rng: random.Random) -> None:
        self._machines = caches.client.resource(caches.codec.machines)
        self._caches, self._cache = caches, caches.machines.store
        self._expect = expect
        self._log = log.logger(caches.codec.controller_name("machine-set"))
        self._rng = rng

    async def look_up(self, uid: str) -> int:
        """Look up overdue creations and deletions of a set on the API server.

        Returns:
            Number of overdue changes that took effect, but are not in the cache yet.

        Raises:
            KubeError: a read failed.
        """
        return await self._expect.verify_overdue(uid, self._machines, self._cache)

    async def create(
        self, owner: MachineSet, reference: OwnerReference, count: int
    ) -> tuple[Sequence[str], KubeError | None]:
        """Create machines; return the names of the created machines, and an error or None."""
        created = list[str]()

        async def one(name: str) -> None:
            await self._create(owner, reference, name)
            created.append(name)

        _, error = await slow_start(self._names(owner, count), one)
        return created, error

    async def delete(
        self, owner: MachineSet, machines: Sequence[Machine]
    ) -> tuple[Sequence[str], KubeError | None]:
        """Delete these machines; return the names of the deleted machines, and an error or None.

        A machine that changed meanwhile is not deleted. That is no error: the next pass decides
        about the machine again.
        """
        deleted = list[str]()

        async def one(machine: Machine) -> None:
            if await self._delete(owner, machine):
                deleted.append(machine.name)

        errors = await call_all(machines, one)
        return deleted, errors[0] if errors else None

    def _names(self, owner: MachineSet, count: int) -> Sequence[str]:
        """Return names for new machines.

        The names of earlier attempts with unknown results are reused first, so that a repeated
        attempt creates no second machine.
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
                # The machine is not ours, or the cache shows it: no watch event will follow.
                self._expect.creation_failed(namespace, name)
            if not is_ours:
                raise
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.creation_failed(namespace, name)
            else:
                self._expect.creation_unknown(namespace, name)
            raise
        self._log.info("machine created", key=owner.key, machine=f"{namespace}/{name}")

    def _claimed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body of a new machine with the metadata that the machine controller needs.

        A body that cannot be decoded is returned unchanged: the API server will report the fault.
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
        """Return whether an earlier attempt created the existing machine with this name.

        True if the machine belongs to the set.

        Raises:
            KubeError: the machine could not be read.
        """
        try:
            live = await self._machines.get(name, namespace=owner.namespace)
        except NotFound:
            return False
        except KubeError:
            self._expect.creation_unknown(owner.namespace, name)
            raise
        return controller_uid(live) == owner.uid

    async def _delete(self, owner: MachineSet, machine: Machine) -> bool:
        """Delete one machine; return False if it changed meanwhile and was not deleted.

        Raises:
            KubeError: the machine was not deleted, or the result is unknown.
        """
        # A failed machine may have recovered, which the cache may not show yet. So its
        # resourceVersion is a precondition.
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
                # The cache shows the deletion already: no watch event will follow.
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
        self._log.info("machine deleted", key=owner.key, machine=machine.key)
        return True


async def slow_start(
    items: Sequence[T], call: Callable[[T], Awaitable[None]], *, first: int = 1
) -> tuple[int, KubeError | None]:
    """Call `call` for each item: `first` calls concurrently, then twice as many, and so on.

    A batch with an error is the last batch.

    Returns:
        Number of calls that succeeded, and an error of the last batch or None.
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
    """Call `call` for all items concurrently; return the errors."""
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
"""API errors that may be temporary, and so do not show that the machine was rejected."""


@dataclass(slots=True, kw_only=True)
class SetMemory:
    """State of a set that is kept in memory only.

    Attributes:
        key: key of the set.
        template: template of the set in the last pass.
        backoff: back-off of creations after machines failed in a row.
        failure: condition about the last failed creation or deletion; None = no failure.
        last: last operation; None = no operation since this process became the leader.
        status_written_at: monotonic time of the last write of the status.
    """

    key: str
    template: Template
    backoff: FailureBackoff = failure_backoff.NONE
    failure: Condition | None = None
    last: Operation | None = None
    status_written_at: float = -math.inf

    def conditions(self, now: datetime) -> Sequence[Condition]:
        """Return the conditions that this controller writes to the status of the set."""
        conditions = [self.failure] if self.failure else []
        if (next_at := failure_backoff.pause_end(self.backoff)) is not None:
            conditions.append(plan.slowed_condition(self.backoff, next_at, now))
        return conditions

    def record_error(self, error: KubeError, now: datetime) -> None:
        """Count a creation that the API server rejected; other errors do not count."""
        if isinstance(error, ApiError) and not isinstance(error, _TRANSIENT):
            self.backoff = failure_backoff.record_failure(
                self.backoff, created_at=now, now=now, text=str(error)
            )


class Memories:
    """Memory of each set, by UID.

    Args:
        now: returns the time of the API server, which also sets the creation timestamps of
            machines. Pauses use this time, so that a jump of our clock does not extend a pause.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._of: dict[str, SetMemory] = {}

    def of(self, obj: MachineSet) -> SetMemory:
        """Return the memory of a set; a changed template resets its back-off.

        For a set that this process sees for the first time, the back-off is restored from the
        condition CreationSlowed.
        """
        template, memory = obj.template, self._of.get(obj.uid)
        if memory is None:
            memory = self._of[obj.uid] = SetMemory(key=obj.key, template=template)
            if plan.is_slowed(obj) and not obj.wants_unfreeze:
                memory.backoff = failure_backoff.restore_backoff(self._now())
        elif memory.template.source != template.source:
            memory.template, memory.backoff, memory.failure = template, failure_backoff.NONE, None
        return memory

    def record_result(self, old: Machine | None, machine: Machine | None) -> None:
        """Update the back-off of a machine's set after the machine became ready or failed."""
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
        """End the back-off of sets whose last failure differs from the result of a creation.

        Args:
            class_name: class of the machine.
            code: code of the cloud's error; empty = the VM was created.
            text: text of the error.

        Returns:
            Keys of the sets that had paused.
        """
        return self.end(
            uid
            for uid in self._of_class(class_name)
            if failure_backoff.is_different_result(self._of[uid].backoff, code=code, text=text)
        )

    def end_for_class(self, class_name: str) -> Iterable[str]:
        """End the back-off of the sets of a changed class; return the keys of paused sets."""
        return self.end(self._of_class(class_name))

    def _of_class(self, class_name: str) -> Sequence[str]:
        return [uid for uid, memory in self._of.items() if memory.template.class_name == class_name]

    def end(self, uids: Iterable[str]) -> Iterable[str]:
        """End the back-off of sets; return the keys of the sets that had paused."""
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

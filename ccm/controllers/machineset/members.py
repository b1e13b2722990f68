"""Creates and deletes machines of a set.

Each machine is created under a name that no other attempt can use again. Many calls begin with a
few: where the first are refused, the others are not made.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ccm.base import log, tasks
from ccm.kube.errors import AlreadyExists, ApiError, Conflict, KubeError, NotFound, ServerError
from ccm.machines.caches import Caches
from ccm.model import OwnerReference
from ccm.model.machines import Machine, MachineSet, Phase
from ccm.model.names import SAFE_LETTERS
from ccm.model.owners import controller_uid
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

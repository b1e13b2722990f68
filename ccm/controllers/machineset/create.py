"""Makes machines of a set, each under a name that no other try can use again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ccm.base import log
from ccm.controllers.machineset import bursts
from ccm.gardener import members
from ccm.gardener.arrivals import Arrivals
from ccm.gardener.sets import MachineSet
from ccm.kube.errors import AlreadyExists, ApiError, KubeError, NotFound, ServerError
from ccm.kube.informer import Store
from ccm.model import OwnerReference
from ccm.model.machines import Machine
from ccm.model.owners import controller_uid
from ccm.runtime.ownership import Expectations

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LENGTH = 5
"""Of the end of a name, as Kubernetes makes it out of `generateName`: no words come out of it."""

_log = log.logger("machineset")


class Creates(Protocol):
    """What is asked of the API server about Machines (a `Resource`)."""

    async def get(self, name: str, *, namespace: str = "") -> Machine:
        """Read from the API server."""
        ...

    async def create(self, obj: Mapping[str, Any], *, namespace: str = "") -> Machine:
        """Create; the object as it is then."""
        ...


class Creator:
    """Makes machines.

    Args:
        machines: the requests.
        cache: the machines there are.
        expect: what the cache does not show yet.
        rng: for names.
        arrivals: says what machines bear from the beginning.
    """

    def __init__(
        self,
        machines: Creates,
        cache: Store[Machine],
        expect: Expectations,
        rng: random.Random,
        arrivals: Arrivals,
    ) -> None:
        self._machines = machines
        self._cache = cache
        self._expect = expect
        self._rng = rng
        self._arrivals = arrivals

    async def run(
        self, owner: MachineSet, reference: OwnerReference, count: int
    ) -> tuple[Sequence[str], KubeError | None]:
        """Make machines; names of those that were made, and what kept it from making all."""
        made = list[str]()

        async def one(name: str) -> None:
            await self._create(owner, reference, name)
            made.append(name)

        _, error = await bursts.slow_start(self._names(owner, count), one)
        return made, error

    def _names(self, owner: MachineSet, count: int) -> Sequence[str]:
        """Names of tries whose outcome nobody knows come first: then at most one of both is."""
        found = dict.fromkeys(self._expect.doubtful(owner.uid)[:count])
        while len(found) < count:
            name = members.name_of(owner, "".join(self._rng.choices(_LETTERS, k=_LENGTH)))
            if f"{owner.namespace}/{name}" not in self._cache:
                found[name] = None
        return list(found)

    async def _create(self, owner: MachineSet, reference: OwnerReference, name: str) -> None:
        """Make one machine.

        Raises:
            KubeError: it was not made, or nobody knows.
        """
        namespace = owner.namespace
        body = members.claimed(members.body(owner, reference, name), self._arrivals.claim)
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

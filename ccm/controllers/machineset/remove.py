"""Deletes machines of a set. What they are doing then their own controller says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ccm.base import log
from ccm.controllers.machineset import bursts
from ccm.gardener.sets import MachineSet
from ccm.kube.errors import ApiError, Conflict, KubeError, NotFound, ServerError
from ccm.kube.informer import Store
from ccm.model.machines import Machine, Phase
from ccm.runtime.ownership import Expectations

_log = log.logger("machineset")


class Deletes(Protocol):
    """What is asked of the API server about Machines (a `Resource`)."""

    async def delete(
        self,
        name: str,
        *,
        namespace: str = "",
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete, only the object with this UID, and only in this version."""
        ...


class Remover:
    """Deletes machines.

    Args:
        machines: the requests.
        cache: the machines there are.
        expect: what the cache does not show yet.
    """

    def __init__(self, machines: Deletes, cache: Store[Machine], expect: Expectations) -> None:
        self._machines = machines
        self._cache = cache
        self._expect = expect

    async def run(
        self, owner: MachineSet, machines: Sequence[Machine]
    ) -> tuple[Sequence[str], KubeError | None]:
        """Delete these very machines; names of those that are on their way, and an error.

        One that is missing from both is not what it was, and is to be judged anew.
        """
        gone = list[str]()

        async def one(machine: Machine) -> None:
            if await self._delete(owner, machine):
                gone.append(machine.name)

        errors = await bursts.together(machines, one)
        return gone, errors[0] if errors else None

    async def _delete(self, owner: MachineSet, machine: Machine) -> bool:
        """Delete one; False: it is another one by now.

        Raises:
            KubeError: it is not deleted, or nobody knows.
        """
        self._expect.deleting(owner.uid, machine)
        try:
            await self._machines.delete(
                machine.name,
                namespace=machine.namespace,
                uid=machine.uid,
                resource_version=machine.resource_version if _may_recover(machine) else None,
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


def _may_recover(machine: Machine) -> bool:
    """Whether it may be fine again by now: it failed, and the cache may lag."""
    return machine.phase is Phase.FAILED

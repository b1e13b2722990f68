"""Deletes machines of a set. What they are doing then their own controller says."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.base import log
from ccm.controllers.machineset import bursts
from ccm.gardener.sets import MachineSet
from ccm.gardener.types import Machine
from ccm.kube.errors import ApiError, KubeError, ServerError
from ccm.kube.store import View
from ccm.model.patches import StaleObject
from ccm.runtime import writer
from ccm.runtime.expectations import Expectations
from ccm.runtime.writer import Deletes

_log = log.logger("machineset")


class Remover:
    """Deletes machines.

    Args:
        machines: the requests.
        cache: the machines there are.
        expect: what the cache does not show yet.
    """

    def __init__(
        self, machines: Deletes[Machine], cache: View[Machine], expect: Expectations
    ) -> None:
        self._machines = machines
        self._cache = cache
        self._expect = expect

    async def run(
        self, owner: MachineSet, machines: Sequence[Machine]
    ) -> tuple[Sequence[str], KubeError | None]:
        """Delete these very machines; names of those that are on their way, and an error."""
        gone = list[str]()

        async def one(machine: Machine) -> None:
            await self._delete(owner, machine)
            gone.append(machine.name)

        errors = await bursts.together(machines, one)
        return gone, errors[0] if errors else None

    async def _delete(self, owner: MachineSet, machine: Machine) -> None:
        """Delete one.

        Raises:
            KubeError: it is not deleted, or nobody knows.
        """
        self._expect.deleting(owner.uid, machine)
        try:
            was_there = await writer.delete(self._machines, machine)
        except StaleObject:
            was_there = False
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, ServerError):
                self._expect.kept(machine)
            else:
                self._expect.hurry(machine)
            raise
        shown = self._cache.get(machine.key)
        if not was_there and (shown is None or shown.uid != machine.uid):
            # The cache knew before we asked, so it will not tell again.
            self._expect.kept(machine)
        _log.info("machine deleted", key=owner.key, machine=machine.key)

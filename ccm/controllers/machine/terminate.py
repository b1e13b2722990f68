"""The queue of machines that go: a lane of their own, so that none waits for those that come.

A machine is never in two hands: one that is being made when its deletion is asked for is handed
over when that pass has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from ccm.base import clock
from ccm.controllers.machine.remove import Remover, Rest
from ccm.machines.caches import Caches
from ccm.machines.crdguard import RECHECK, CRDGuard
from ccm.model.machines import Machine
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result
from ccm.runtime.workers import Turn

NAME = "machine-termination"
QUEUE_NAME = "machinetermination"
"""Value of the work-queue metrics' label (reference)."""

MOST_AT_ONCE = 256
"""Machines about whose deletion the cloud is asked at once."""

BACK_OFF_CAP_S = 30.0
"""Longest back-off of a machine whose object could not be written."""


class Pauses:
    """By the key of a machine: until when, and what ends the pause before that.

    Times are those of any clock that only goes forward, in seconds.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, object]] = {}

    def begin(self, key: str, until: float, about: object) -> None:
        """Leave a machine alone until then, or until `about` is not equal any more."""
        self._pauses[key] = until, about

    def end(self, key: str) -> None:
        """It is left alone no longer."""
        self._pauses.pop(key, None)

    def end_all(self) -> list[str]:
        """None is; the keys of those that were."""
        keys = list(self._pauses)
        self._pauses.clear()
        return keys

    def left_s(self, key: str, now: float, about: object) -> float:
        """For how long it is still left alone; 0 when there is nothing to wait for."""
        until, former = self._pauses.get(key, (now, about))
        return max(0.0, until - now) if former == about else 0.0


class Terminations:
    """The machines that go.

    Args:
        caches: the caches.
        remover: does the work.
        guard: blocks deletions that follow from that of the CRD.
        elsewhere: keys that another queue has in hand.
        turns: machines in work at once, apart from waiting for the cloud.
        rng: jitter.
    """

    def __init__(
        self,
        caches: Caches,
        remover: Remover,
        guard: CRDGuard,
        elsewhere: Collection[str],
        *,
        turns: int,
        rng: random.Random | None = None,
    ) -> None:
        self._caches = caches
        self._remover = remover
        self._guard = guard
        self._elsewhere = elsewhere
        self._free = asyncio.Semaphore(turns)
        self._pauses = Pauses()
        self._uids: dict[str, str] = {}
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=MOST_AT_ONCE,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            on_retry=self._retry,
            rng=rng,
        )

    def add(self, key: str) -> None:
        """Something about a machine is another, which is about to go or is gone."""
        self.controller.queue.add(key)

    def gone(self, machine: Machine) -> None:
        """A machine is gone, be it that somebody else took its finalizers away."""
        self._uids.setdefault(machine.key, machine.uid)
        self.add(machine.key)

    def has(self, key: str) -> bool:
        """Whether a machine of that name is in hand."""
        return self.controller.queue.is_processing(key)

    def handed_over(self, key: str) -> None:
        """Another queue has it in hand no longer."""
        found = self._caches.machines.store.get(key)
        if found is not None and found.is_deleting:
            self.add(key)

    async def sync(self, key: str) -> Result:
        """Go on with the deletion of one machine.

        Raises:
            KubeError: a write failed, or the CRD cannot be read.
        """
        cached = self._caches.machines.store.get(key)
        if (former := self._uids.get(key)) is not None and (cached is None or cached.uid != former):
            self._pauses.end(key)
            self._guard.forget(former)
            await self._remover.forget(self._uids.pop(key))
        if cached is None or not cached.is_deleting or key in self._elsewhere:
            return IDLE
        machine = self._remover.write.newest(cached)
        if (left_s := self._pauses.left_s(key, clock.monotonic(), self._about(machine))) > 0:
            return Result(after_s=left_s, idle=True)
        self._uids[key] = machine.uid
        if await self._guard.blocks(machine):
            return RECHECK
        try:
            async with Turn(self._free) as turn:
                rest = await self._remover.run(machine, turn, lambda: self.add(key))
        except StaleObject:
            # The change that made it stale comes, or came, as a key of its own.
            return IDLE
        self._pause(machine, rest)
        if rest.after_s is None:
            return DONE
        return Result(after_s=rest.after_s, busy=rest.busy)

    def _pause(self, machine: Machine, rest: Rest) -> None:
        self._pauses.end(machine.key)
        if rest.after_s is not None and not rest.eager:
            self._pauses.begin(machine.key, clock.monotonic() + rest.after_s, self._about(machine))

    def _about(self, machine: Machine) -> object:
        """What ends a pause when it is another."""
        made_of = self._caches.class_to_delete_with(machine)
        return (machine.spec, made_of.version, machine.force_deletion)

    def _retry(self) -> None:
        """Another provider answers from now on."""
        for key in self._pauses.end_all():
            self.controller.queue.add(key, background=True)

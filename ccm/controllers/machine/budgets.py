"""Waiting for a disruption budget: those who were refused first try again first.

An eviction takes from what the budget allows, and the next is refused until its controller has
counted anew. So a change of the budget wakes as many as it allows, and not all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ccm.base import tasks
from ccm.kube.informer import Informer
from ccm.machines import drain
from ccm.model import Pod, PodDisruptionBudget
from ccm.runtime.lazy import RefCountedInformer

SYNC_S = 10.0
"""Longest wait for the budgets themselves; the Pod is tried again anyway."""

STALE_S = 1.0
"""When a Pod is tried again whose budget seems to allow it: what is seen may be of before."""


CONFIRM_S = 2.0
"""How long a budget has to look misconfigured: one may for a moment, when a Pod is gone and the
one that replaces it is yet to be made."""


class Refused(Exception):
    """The Pod will not be evicted, however long one waits; the text says why."""


class Budgets:
    """The budgets, and who waits for them.

    Args:
        make: makes a cache of all of them.
    """

    def __init__(self, make: Callable[[], Informer[PodDisruptionBudget]]) -> None:
        self._make = make
        self._cache = RefCountedInformer(self._made)
        self._waiting: dict[str, tuple[Pod, asyncio.Event]] = {}

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """They are watched for as long as the block runs: around all waits of a Pod."""
        async with self._cache.use():
            yield

    async def wait(self, pod: Pod, seconds: float) -> None:
        """Until a Pod that was refused should be tried again; at most that long.

        Raises:
            Refused: it would be in vain.
        """
        async with self._cache.use() as budgets:
            with suppress(TimeoutError):
                await budgets.wait_synced(SYNC_S)
            own = self._over(pod, budgets)
            why = drain.fault(pod, own)
            if any(one.status.disruptions_allowed > 0 for one in own):
                seconds = min(seconds, STALE_S)
            event = asyncio.Event()
            self._waiting[pod.uid] = pod, event
            try:
                is_freed = await tasks.wait_for(event, CONFIRM_S if why else seconds)
            finally:
                del self._waiting[pod.uid]
            if why and not is_freed and (why := drain.fault(pod, self._over(pod, budgets))):
                raise Refused(why)

    @staticmethod
    def _over(pod: Pod, budgets: Informer[PodDisruptionBudget]) -> tuple[PodDisruptionBudget, ...]:
        return drain.over(pod, budgets.store.list())

    def _made(self) -> Informer[PodDisruptionBudget]:
        budgets = self._make()
        budgets.add_handler(
            name="drain",
            on_update=lambda _, new: self._wake(new, new.status.disruptions_allowed),
            on_delete=lambda gone, _: self._wake(gone, len(self._waiting)),
        )
        return budgets

    def _wake(self, budget: PodDisruptionBudget, count: int) -> None:
        for pod, event in self._waiting.values():
            if count <= 0:
                return
            if budget.is_over(pod):
                event.set()
                count -= 1

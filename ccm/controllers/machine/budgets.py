"""Waiting for a disruption budget: those who were refused first try again first.

An eviction takes from what the budget allows, and the next is refused until its controller has
counted anew. So a change of the budget wakes as many as it allows, and not all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from ccm.base import waiting
from ccm.kube.informer import Informer
from ccm.machines import drain
from ccm.model import Pod, PodDisruptionBudget
from ccm.runtime.borrowed import Borrowed

SYNC_S = 10.0
"""Longest wait for the budgets themselves; the Pod is tried again anyway."""

STALE_S = 1.0
"""When a Pod is tried again whose budget seems to allow it: what is seen may be of before."""


class Refused(Exception):
    """The Pod will not be evicted, however long one waits; the text says why."""


class Budgets:
    """The budgets, and who waits for them.

    Args:
        make: makes a cache of all of them.
    """

    def __init__(self, make: Callable[[], Informer[PodDisruptionBudget]]) -> None:
        self._make = make
        self._cache = Borrowed(self._made)
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
            own = drain.over(pod, budgets.store.list())
            if why := drain.fault(pod, own):
                raise Refused(why)
            if any(one.status.disruptions_allowed > 0 for one in own):
                seconds = min(seconds, STALE_S)
            event = asyncio.Event()
            self._waiting[pod.uid] = pod, event
            try:
                await waiting.wait_for(event, seconds)
            finally:
                del self._waiting[pod.uid]

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

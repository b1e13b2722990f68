"""Workers of a queue: a fixed number, plus overflow workers for slow keys.

A reconcile with a hanging call occupies its worker until the call's deadline, perhaps 15 minutes.
Other keys would have to wait. So a reconcile that lasts `SLOW_AFTER_S` counts as slow, and an
overflow worker starts, up to a total of `MAX_OVERFLOW`. When a slow reconcile ends, one worker
exits.

A key whose last reconcile was slow is isolated in the queue. When its next reconcile starts, an
overflow worker starts too. An isolated key waits rather than occupy the last free worker. After a
quick, successful reconcile that had work to do, the key is no longer isolated.

`ConcurrencySlot` bounds concurrent work, except for waits for a cloud: a worker acquires a slot for
its reconcile and releases the slot during each call that may be slow.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ccm.base import log, metrics
from ccm.base.log import Outage
from ccm.base.tasks import NamedTaskGroup
from ccm.kube.workqueue import ShutDown, WorkQueue


class ConcurrencySlot:
    """Concurrency slot; `async with slot` acquires it, and releases it at the end of the block.

    Args:
        free: semaphore of the free slots.
    """

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_taken = False

    async def __aenter__(self) -> ConcurrencySlot:
        await self._acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    @asynccontextmanager
    async def release(self) -> AsyncIterator[None]:
        """Release the slot while the block runs, then acquire it again.

        If the block is cancelled, the slot is not acquired again: the task must end without a wait.
        """
        self._release()
        try:
            yield
        except Exception:
            await self._acquire()
            raise
        await self._acquire()

    async def _acquire(self) -> None:
        await self._free.acquire()
        self._is_taken = True

    def _release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._free.release()


SLOW_AFTER_S = 30.0
"""Seconds after which a reconcile counts as slow; most reconciles end long before."""

MAX_OVERFLOW = 16
"""Limit of overflow workers: each may add one concurrent call to the cloud."""

_OVERFLOW_WORKERS = metrics.gauge(
    "ccm_overflow_workers",
    "Overflow workers that replace workers occupied by a slow object.",
    ["name"],
)
metrics.FormerName(_OVERFLOW_WORKERS, "ccm_workers_lent")


class Workers:
    """Workers of one controller, and their queue.

    Args:
        name: name of the controller in logs and task names.
        queue: value of the label `name` of the work-queue metrics.
        reconcile: reconciles one key and raises no error; returns False if the reconcile failed or
            the key needed no work.
        count: number of workers, without overflow workers.
    """

    def __init__(
        self, name: str, *, queue: str, reconcile: Callable[[str], Awaitable[bool]], count: int
    ) -> None:
        self.queue: WorkQueue[str] = WorkQueue(queue, can_spare=self._can_spare)
        self._name = name
        self._reconcile = reconcile
        self._count = count
        self._running = 0
        self._since: dict[str, tuple[float, asyncio.Task[Any] | None]] = {}
        self._slow: set[str] = set()
        self._slow_timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()
        self._group: NamedTaskGroup | None = None
        self._exhausted = Outage(
            log.logger(name),
            start_message=(
                "slow objects occupy all overflow workers, other objects may have to wait"
            ),
            end_message="overflow workers available again",
        )
        _OVERFLOW_WORKERS.labels(queue).set_function(lambda: self._overflow)

    def start(self, group: NamedTaskGroup) -> None:
        """Start the workers as tasks of the group."""
        self._group = group
        self._fill_up()

    def busy_s(self, key: str) -> float | None:
        """Return the seconds since a worker began to reconcile the key; None: no worker does."""
        if key not in self._since:
            return None
        return round(asyncio.get_running_loop().time() - self._since[key][0], 3)

    @property
    def _overflow(self) -> int:
        return min(len(self._slow), MAX_OVERFLOW)

    def _fill_up(self) -> None:
        assert self._group is not None, "call `start` first"
        while self._running < self._count + self._overflow:
            self._running += 1
            self._group.start(self._work(), name=f"{self._name}-worker-{next(self._numbers)}")

    def _can_spare(self) -> bool:
        """Return whether a worker stays free if another worker takes an isolated key."""
        # An isolated key starts an overflow worker, up to the limit.
        return self._count + min(len(self._slow) + 1, MAX_OVERFLOW) > len(self._since) + 1

    async def _work(self) -> None:
        # If there are too many workers, this worker ends after its reconcile.
        while self._running <= self._count + self._overflow:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            await self._serve(key)
        self._running -= 1

    async def _serve(self, key: str) -> None:
        loop, worker = asyncio.get_running_loop(), asyncio.current_task()
        began = loop.time()
        self._since[key] = began, worker
        if self.queue.is_isolated(key):
            self._start_overflow(key, worker)
        if self._slow_timer is None:
            # One timer for all keys, since most reconciles end long before the timer fires.
            self._slow_timer = loop.call_later(SLOW_AFTER_S, self._check_slow)
        went_well = False
        try:
            went_well = await self._reconcile(key)
        finally:
            del self._since[key]
            self._slow.discard(key)
            if self._exhausted and len(self._slow) < MAX_OVERFLOW:
                self._exhausted.record_success()
            took_long = loop.time() - began >= SLOW_AFTER_S
            if took_long or went_well:
                # After a quick failure, or a reconcile without work, the key may still be slow: a
                # call that follows an abandoned call fails at once.
                self.queue.set_isolated(key, took_long)
            self.queue.done(key)

    def _check_slow(self) -> None:
        """Start an overflow worker for each slow reconcile.

        Set the timer for the time at which the oldest other reconcile becomes slow.
        """
        self._slow_timer = None
        loop = asyncio.get_running_loop()
        for key, (began, worker) in list(self._since.items()):  # oldest first
            if began + SLOW_AFTER_S > loop.time():
                self._slow_timer = loop.call_at(began + SLOW_AFTER_S, self._check_slow)
                return
            self._start_overflow(key, worker)

    def _start_overflow(self, key: str, worker: asyncio.Task[Any] | None) -> None:
        if key in self._slow or worker is None or worker.cancelling():
            return  # the worker was cancelled, so its group is ending and takes no new task
        self._slow.add(key)
        if len(self._slow) >= MAX_OVERFLOW:
            self._exhausted.record_failure(workers=MAX_OVERFLOW)
        self._fill_up()

"""Queue, workers, reconcile; then forget, requeue or back off.

One key is never in two hands; different keys run at once, up to the number of workers.
An error decides by its class when its key returns. When a key succeeds again after an
outage of the other side, all keys that failed for the same reason return at once instead
of waiting out their back-off.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ccm.base import drain, log
from ccm.base.clock import SYSTEM, Clock
from ccm.base.tasks import Group
from ccm.cloud.errors import Retry
from ccm.kube.workqueue import ShutDown, WorkQueue
from ccm.runtime.retry import Again, again, delay_s

WAKE_PAUSE_S = 2.0
"""Shortest time between two wake-ups of keys that an outage had stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a reconcile ended without an error.

    Attributes:
        after_s: come back in that many seconds; None = only when something changes.
        back_off: come back as after a failure, but without reporting one.
    """

    after_s: float | None = None
    back_off: bool = False


DONE = Result()
NOT_YET = Result(back_off=True)

Reconcile = Callable[[str], Awaitable[Result]]
OnError = Callable[[str, Exception, Again], None]


class Loop:
    """The workers of one controller.

    Args:
        name: in logs and task names.
        queue: where the keys come from.
        reconcile: does the work for one key.
        workers: how many keys run at once.
        on_error: told of every failed reconcile, for events and counters.
        clock: where time comes from.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: WorkQueue[str],
        reconcile: Reconcile,
        workers: int,
        on_error: OnError | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._name = name
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._on_error = on_error
        self._clock = clock
        self._log = log.logger(name)
        self._ids = random.Random()
        self._failures: dict[str, int] = {}
        self._stopped_by_outage: set[str] = set()
        self._in_outage = False
        self._woken_at = float("-inf")

    async def run(self) -> None:
        """Work until cancelled; on the way out the queue takes in nothing any more."""
        try:
            async with Group() as group:
                for number in range(self._workers):
                    group.start(self._work(), name=f"{self._name}-worker-{number}")
        finally:
            self._queue.shut_down()

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            try:
                await self._take(key)
            finally:
                self._queue.done(key)

    async def _take(self, key: str) -> None:
        """One reconcile, as one unit of work and of the log."""
        reconcile_id = f"{self._ids.getrandbits(48):012x}"
        async with drain.unit():
            with log.bound(controller=self._name, key=key, reconcile_id=reconcile_id):
                await self._handle(key)

    async def _handle(self, key: str) -> None:
        try:
            result = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - the one place where a reconcile may fail
            self._failed(key, error)
        else:
            self._succeeded(key, result)

    def _succeeded(self, key: str, result: Result) -> None:
        if key in self._stopped_by_outage:
            self._recovered(key)
        self._failures.pop(key, None)
        self._log.debug("reconciled", after_s=result.after_s, back_off=result.back_off)
        if result.back_off:
            self._queue.add_rate_limited(key)
            return
        self._queue.forget(key)
        if result.after_s is not None:
            self._queue.add_after(key, result.after_s)

    def _failed(self, key: str, error: Exception) -> None:
        answer = again(error)
        if answer.outage:
            self._note_outage(error)
            self._stopped_by_outage.add(key)
        else:
            self._stopped_by_outage.discard(key)
            self._note_end_of_outage()
        if self._on_error is not None:
            self._on_error(key, error, answer)
        if answer.defect:
            self._log.error("reconcile failed unexpectedly", exc_info=error)
        self._requeue(key, answer, error)

    def _requeue(self, key: str, answer: Again, error: Exception) -> None:
        if answer.retry is Retry.NEVER:
            self._failures.pop(key, None)
            self._queue.forget(key)
            return
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = delay_s(answer, failures)
        if delay is None:
            delay = self._queue.add_rate_limited(key)
        else:
            self._queue.add_after(key, delay)
        self._log.debug("reconcile failed", error=str(error), after_s=round(delay, 3))

    def _note_outage(self, error: Exception) -> None:
        """Said once at the start of a trouble, not once per key and attempt."""
        if not self._in_outage:
            self._in_outage = True
            self._log.warning("the other side is in trouble, retrying", error=str(error))

    def _recovered(self, key: str) -> None:
        """A key that an outage had stopped works again: so will, most likely, the others."""
        self._stopped_by_outage.discard(key)
        now = self._clock.monotonic()
        if now - self._woken_at >= WAKE_PAUSE_S:
            self._woken_at = now
            for other in sorted(self._stopped_by_outage):
                self._queue.forget(other)
                self._queue.add(other)
        self._note_end_of_outage()

    def _note_end_of_outage(self) -> None:
        if self._in_outage and not self._stopped_by_outage:
            self._in_outage = False
            self._log.info("the trouble is over")

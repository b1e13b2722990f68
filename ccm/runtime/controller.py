"""Controller runtime: watches, a work queue, workers and periodic passes.

Cache handlers only record a change and decide whether the object's key needs a reconcile. Each
worker reconciles one key at a time, and no two workers reconcile the same key at once. A failed
key is requeued with low priority, after a delay that depends on the error class (`backoff`). When
a key that failed in an outage succeeds, all keys that failed in the outage are requeued at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from ccm.base import clock, drain, log, metrics
from ccm.base.backoff import jittered
from ccm.base.log import Outage
from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.errors import CloudError, Retry, RetryAfter
from ccm.kube.informer import EventHandler, Informer
from ccm.model.meta import KubeObject
from ccm.runtime.backoff import (
    RETRY_AFTER_JITTER,
    FailureReports,
    ItemBackoff,
    RetryDecision,
    classify,
    default_backoff,
)
from ccm.runtime.object_status import ControllerStatus, FactsFunction, LastReconcile, error_text
from ccm.runtime.workers import Workers

ERRORS = metrics.counter(
    "ccm_reconcile_errors",
    "Failed reconciles, by controller; errors with a Retry-After delay are not counted.",
    ["name"],
)

MAX_OUTCOMES = 10_000
"""Maximum number of keys whose last outcome is kept: enough for all nodes or Services of a large
cluster."""

SYNC_WARNING_INTERVAL_S = 60.0
"""Seconds between two warnings about a cache that is not synced.

The wait has no limit, and without warnings would look like a hang."""


class Syncable(Protocol):
    """Cache that is synced once it has all objects of the first list."""

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until the cache is synced; raise TimeoutError after `timeout_s` seconds."""
        ...


async def wait_for_sync(cache: Syncable, *, component: str) -> None:
    """Wait without a time limit until the cache is synced; log warnings meanwhile.

    See `SYNC_WARNING_INTERVAL_S`.
    """
    while True:
        try:
            await cache.wait_synced(SYNC_WARNING_INTERVAL_S)
        except TimeoutError as error:
            log.logger(component).warning("still waiting for the cache", error=str(error))
        else:
            return


class PassTimer:
    """Timer of passes.

    A pass reconciles a set of keys. Overlapping passes count as one pass.

    Args:
        observe: receives the duration of a pass in seconds when its last key is finished.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._open: set[str] = set()
        self._since = 0.0

    def start(self, keys: Iterable[str], *, joins: bool) -> None:
        """Begin a pass over these keys.

        Args:
            keys: keys that the pass will reconcile.
            joins: if a pass is running, True adds the keys to that pass, and False ignores the
                keys. A periodic pass needs False: otherwise the measurement might never end.
        """
        if not self._open:
            self._since = clock.monotonic()
        elif not joins:
            return
        self._open.update(keys)

    def finish(self, key: str) -> None:
        """Mark the key as reconciled, with any outcome."""
        if key not in self._open:
            return
        self._open.discard(key)
        if not self._open:
            self._observe(clock.monotonic() - self._since)


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """Outcome of a reconcile that raised no error.

    Attributes:
        after_s: seconds until the key is requeued; None = it is requeued only on the next change.
            Jitter is added, because many keys may get the same delay.
        punctual: requeue without jitter, because the exact time matters.
        back_off: requeue with back-off as after a failure, but report no failure.
        idle: the key needed no work; if the key is isolated as slow (see `Workers`), it stays
            isolated even if this reconcile was quick.
        failing: the key still fails: keep its last outcome, back-off and failure count.
        busy: error of a cloud that is still busy with the key; handled as if it had been raised.
    """

    after_s: float | None = None
    punctual: bool = False
    back_off: bool = False
    idle: bool = False
    failing: bool = False
    busy: RetryAfter | None = None


DONE = ReconcileResult()
IDLE = ReconcileResult(idle=True)
NOT_READY = ReconcileResult(back_off=True)

Reconcile = Callable[[str], Awaitable[ReconcileResult]]
Classify = Callable[[str, Exception], RetryDecision]
OnError = Callable[[str, Exception, RetryDecision], None]
Work = Callable[[], Coroutine[Any, Any, None]]


class Runnable(Protocol):
    """Interface of a controller towards the daemon."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    def retry_now(self) -> None:
        """Retry all failed keys, because the cause of the failures may be gone."""
        ...

    def object_status(self, kind: str, name: str) -> ControllerStatus | None:
        """Return the status of an object in this controller.

        None: the controller does not handle this kind, or has not been created yet.
        """
        ...


def _no_op(*_: object) -> None:
    """Default callback: do nothing."""


def _classify_by_class(_key: str, error: Exception) -> RetryDecision:
    """Classify by the error class alone, for every key."""
    return classify(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch(Generic[T]):
    """Informer that a controller follows.

    Attributes:
        informer: the shared informer.
        changed: called with (old, new, initial) for each change, without delay. `old` is None for
            a new object, `new` is None for a removed object, and `initial` is True for an object of
            the first list. Returns True to queue the object's key.
        synced: called once, after `changed` was called for all objects of the first list.
        deleted: called with the object, before `changed`, when the watch reported its deletion; not
            called for an object that is only missing from a new list.
    """

    informer: Informer[T]
    changed: Callable[[T | None, T | None, bool], bool]
    synced: Callable[[], None] = _no_op
    deleted: Callable[[T], object] = _no_op


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """Periodic work. If it raises an error, the error is logged and the next pass follows.

    Attributes:
        work: coroutine function of one pass; handles expected errors itself.
        period_s: seconds between the end of one pass and the start of the next.
        jitter: maximum addition to the wait, as a fraction of the period.
        at_once: whether the first pass runs at the start; else it runs one period later.
    """

    work: Work
    period_s: float
    jitter: float = 0.0
    at_once: bool = True


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """Last outcome of a key; `kind` and `text` describe its error and are empty for a success.

    `since` is the time of the first of consecutive failures.
    """

    at: float
    since: float
    kind: str = ""
    text: str = ""
    not_yet: bool = False


class Controller:
    """Controller with a work queue.

    Args:
        name: name of the controller in logs and task names, as in `--controllers`.
        queue: value of the label `name` of the work-queue metrics.
        reconcile: reconciles one key.
        workers: number of keys reconciled concurrently.
        backoff: delays of failed keys; client-go's default if None.
        watches: informers to follow. The controller waits for their sync in this order before it
            starts tasks, passes and workers.
        passes: periodic work.
        tasks: other long-running work: name of a task -> coroutine function.
        classify: returns the retry decision for a key and its error.
        on_error: called for every failed reconcile, for events and counters.
        logs_failures: log failures, and the start and end of an outage; False where the
            controller writes more specific log lines.
        on_retry: called by `retry_now`, so that a controller can end delays outside of the queue.
        reports: decides which failures are logged as warnings.
        rng: source of jitter for passes and requeued keys.
    """

    def __init__(  # noqa: PLR0913 - it is declared here and nowhere else
        self,
        name: str,
        *,
        queue: str,
        reconcile: Reconcile,
        workers: int = 1,
        backoff: ItemBackoff[str] | None = None,
        watches: Sequence[Watch[Any]] = (),
        passes: Sequence[PeriodicTask] = (),
        tasks: Mapping[str, Work] | None = None,
        classify: Classify = _classify_by_class,
        on_error: OnError | None = None,
        logs_failures: bool = True,
        on_retry: Callable[[], None] = _no_op,
        reports: FailureReports[str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._workers = Workers(name, queue=queue, reconcile=self._process, count=workers)
        self.queue = self._workers.queue
        self.backoff = default_backoff() if backoff is None else backoff
        self._name = name
        self._errors = ERRORS.labels(name)
        self._reconcile = reconcile
        self._watches = watches
        self._passes = passes
        self.tasks = dict(tasks or {})
        """Long-running work; more may be added before `run`."""
        self._classify = classify
        self._on_error = on_error
        self._on_retry = on_retry
        self._logs_failures = logs_failures
        self._reports = reports or FailureReports()
        self._rng = rng or random.Random()
        self._ids = random.Random()
        self._not_retried: set[str] = set()
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        self.facts_functions: dict[str, FactsFunction] = {}
        """Kind of object -> function that returns the `ControllerFacts` of an object, for
        `object_status`."""
        self._log = log.logger(name)
        self._outage = Outage(
            self._log,
            start_message="cloud or API server unavailable, retrying",
            end_message="cloud and API server available again",
        )

    async def run(self) -> None:
        """Run until cancelled, then shut the queue down and remove the cache handlers."""
        # Add the handlers before the wait, so that they are called for the objects of the first
        # list.
        handlers = [(watch.informer, self._add_handler(watch)) for watch in self._watches]
        try:
            for watch in self._watches:
                await wait_for_sync(watch.informer, component=self._name)
                watch.synced()
            async with NamedTaskGroup() as group:
                # Workers start last: a reconcile may depend on the tasks and passes.
                for name, task in self.tasks.items():
                    group.start(task(), name=f"{self._name}-{name}")
                for number, periodic in enumerate(self._passes):
                    group.start(
                        self._run_periodically(periodic), name=f"{self._name}-pass-{number}"
                    )
                self._workers.start(group)
        finally:
            self.queue.shut_down()
            for informer, handler in handlers:
                informer.remove_handler(handler)

    def retry_now(self) -> None:
        """Requeue all failed keys, because the cause of the failures may be gone.

        A key that a worker is reconciling is requeued too: it may still fail for that cause.
        """
        for key in (*self.backoff.end_all(), *self._not_retried, *self.queue.processing):
            self.queue.add(key, background=True)
        self._not_retried.clear()
        self._on_retry()

    def object_status(self, kind: str, name: str) -> ControllerStatus | None:
        """Return the status of an object; None: this controller does not handle the kind."""
        if kind not in self.facts_functions:
            return None
        facts = self.facts_functions[kind](name)
        key = facts.key or name
        known = [
            round(delay_s, 3)
            for delay_s in (self.queue.due_s(key), facts.next_s)
            if delay_s is not None
        ]
        return ControllerStatus(
            controller=self._name,
            plan=facts.plan,
            foreign=facts.foreign,
            blocked=facts.blocked,
            awaited_secret=facts.awaited_secret,
            last=self._last(key),
            in_work_s=self._workers.busy_s(key),
            next_s=0.0 if self.queue.is_queued(key) else min(known, default=None),
            failures=self.backoff.failures(key),
        )

    def _last(self, key: str) -> LastReconcile | None:
        outcome, now = self._outcomes.get(key), clock.monotonic()
        if outcome is None:
            return None
        return LastReconcile(
            ago_s=round(now - outcome.at, 3),
            kind=outcome.kind,
            text=outcome.text,
            since_s=round(now - outcome.since, 3),
            not_yet=outcome.not_yet,
        )

    def _add_handler(self, watch: Watch[T]) -> EventHandler[T]:
        def note(old: T | None, new: T | None, initial: bool = False) -> None:
            subject = new or old
            if watch.changed(old, new, initial) and subject is not None:
                self.queue.add(subject.key)

        def gone(obj: T, seen: bool) -> None:
            if seen:
                watch.deleted(obj)
            note(obj, None)

        return watch.informer.add_handler(
            name=self._name,
            on_add=lambda obj, initial: note(None, obj, initial),
            on_update=note,
            on_delete=gone,
        )

    async def _run_periodically(self, periodic: PeriodicTask) -> None:
        if not periodic.at_once:
            await asyncio.sleep(jittered(periodic.period_s, periodic.jitter, self._rng))
        while True:
            try:
                await periodic.work()
            except Exception as error:  # noqa: BLE001 - one pass must not end the others
                self._log.error("pass failed unexpectedly", exc_info=error)
            await asyncio.sleep(jittered(periodic.period_s, periodic.jitter, self._rng))

    async def _process(self, key: str) -> bool:
        """Reconcile one key, as a unit of work that a shutdown waits for, and with a log context.

        Returns:
            False if the reconcile raised an error, or the key needed no work
            (`ReconcileResult.idle`).
        """
        reconcile_id = f"{self._ids.getrandbits(48):012x}"
        async with drain.unit():
            with log.bound(controller=self._name, key=key, reconcile_id=reconcile_id):
                try:
                    result = await self._reconcile(key)
                except Exception as error:  # noqa: BLE001 - every failed reconcile is retried
                    self._failed(key, error)
                    return False
                if result.busy is not None:
                    self._failed(key, result.busy)
                else:
                    self._succeeded(key, result)
                return not result.idle

    def _succeeded(self, key: str, result: ReconcileResult) -> None:
        now = clock.monotonic()
        if result.failing:
            # The outcome and the failure count stay as they are.
            until = self.backoff.delay_end(key)
            for due_s in (result.after_s, None if until is None else until - now):
                if due_s is not None:
                    self.queue.add_after(key, due_s)
            return
        self._not_retried.discard(key)
        self._record_outcome(key, _Outcome(at=now, since=now, not_yet=result.back_off))
        self._log.debug("reconciled", after_s=result.after_s, back_off=result.back_off)
        # The success may end an outage. If so, retry all keys that failed in the outage.
        for other in self.backoff.record_success(key, now):
            self.queue.add(other, background=True)
        self._track_outage(None)
        if result.back_off:
            self.queue.add_after(key, self.backoff.postpone(key, now))
            return
        self._reports.forget(key)
        self.backoff.forget(key)
        if result.after_s is not None:
            jitter = 0.0 if result.punctual else RETRY_AFTER_JITTER
            self.queue.add_after(key, jittered(result.after_s, jitter, self._rng))

    def _failed(self, key: str, error: Exception) -> None:
        decision, now = self._classify(key, error), clock.monotonic()
        if decision.retry is not Retry.AFTER:
            self._errors.inc()
        before = self._outcomes.get(key)
        since = before.since if before is not None and before.kind else now
        kind, text = type(error).__name__, error_text(error)
        self._record_outcome(key, _Outcome(at=now, since=since, kind=kind, text=text))
        if decision.retry is Retry.NEVER:
            # Only a change of the object or `retry_now` queues the key again.
            self.backoff.forget(key)
            self._reports.forget(key)
            self._not_retried.add(key)
        else:
            report = self._reports.is_due(key, error, decision, now)
            decision = replace(decision, report=report)
            delay = self.backoff.record_failure(key, decision, now)
            self.queue.add_after(key, delay)
            self._log_failure(error, decision, delay)
        if self._on_error is not None:
            self._on_error(key, error, decision)
        self._track_outage(error if decision.outage else None)

    def _log_failure(self, error: Exception, decision: RetryDecision, delay_s: float) -> None:
        if decision.defect:
            self._log.error("reconcile failed unexpectedly", exc_info=error)
            return
        # An outage is logged once for all keys, see `_track_outage`.
        is_loud = decision.report and not decision.outage and self._logs_failures
        level = self._log.warning if is_loud else self._log.debug
        is_busy = decision.retry is Retry.AFTER
        event = "cloud or API server busy, retrying later" if is_busy else "reconcile failed"
        level(event, error=str(error), after_s=round(delay_s, 3))

    def _record_outcome(self, key: str, outcome: _Outcome) -> None:
        self._outcomes[key] = outcome
        self._outcomes.move_to_end(key)
        if len(self._outcomes) > MAX_OUTCOMES:
            self._outcomes.popitem(last=False)

    def _track_outage(self, error: Exception | None) -> None:
        """Log the start and the end of an outage once, not per key and attempt."""
        if not self._logs_failures:
            return
        if error is not None:
            side = "cloud" if isinstance(error, CloudError) else "API server"
            self._outage.record_failure(side=side, error=str(error))
        elif not self.backoff.in_outage:
            self._outage.record_success()

"""What runs a controller: caches it watches, a queue of keys, workers, passes; all declared.

Handlers of the caches only note what changed and say whether the key has work. Workers take
one key each; a key is processed by one worker at a time. A reconcile that fails comes back, in the
background, as the class of its error says (`backoff`); when one succeeds after an outage of the
other side, all that the outage stopped return at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from ccm.base import clock, drain, log
from ccm.base.backoff import jittered
from ccm.base.log import Outage
from ccm.base.tasks import Group
from ccm.cloud.errors import CloudError, Retry, RetryAfter
from ccm.kube.informer import Handler, Informer
from ccm.model.meta import KubeObject
from ccm.runtime.account import Account, Explain, Last, text_of
from ccm.runtime.backoff import (
    AFTER_JITTER,
    FailureReports,
    ItemBackoff,
    RetryDecision,
    classify,
    default_backoff,
)
from ccm.runtime.workers import Workers

MOST_OUTCOMES = 10_000
"""Keys whose last outcome is kept: more than a large cluster has nodes, or Services."""

REMIND_S = 60.0
"""Seconds between two lines that say what is waited for."""


class Syncing(Protocol):
    """A cache that becomes complete some time."""

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until it is complete; TimeoutError when that takes longer."""
        ...


async def until_synced(cache: Syncing, *, who: str) -> None:
    """Wait until the cache is complete; there is no useful work before."""
    while True:
        try:
            await cache.wait_synced(REMIND_S)
        except TimeoutError as error:
            log.logger(who).warning("still waiting for the cache", error=str(error))
        else:
            return


class PassTimer:
    """Measures one pass after the other; two that overlap are one.

    Args:
        observe: told the seconds when the last key of a pass is finished.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._open: set[str] = set()
        self._since = 0.0

    def started(self, keys: Iterable[str], *, joins: bool) -> None:
        """A pass over these keys begins.

        Args:
            keys: what will be looked at.
            joins: while an earlier pass is under way, wait for these keys too. For a pass that
                is repeated all the time False: the measurement of the first would never end.
        """
        if not self._open:
            self._since = clock.monotonic()
        elif not joins:
            return
        self._open.update(keys)

    def finished(self, key: str) -> None:
        """The key was looked at, with whatever outcome."""
        if key not in self._open:
            return
        self._open.discard(key)
        if not self._open:
            self._observe(clock.monotonic() - self._since)


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a reconcile ended without an error.

    Attributes:
        after_s: come back in that many seconds, or a little later: many may be told the same;
            None = only when something changes.
        punctual: come back at that time and not later: it was promised to somebody.
        back_off: come back as after a failure, but without reporting one.
        idle: there was nothing to do, so that it ended quickly proves nothing.
        failing: the last error of the key still holds: its back-off and its count go on.
        busy: the cloud works on it: the back-off is that of this error, raised.
    """

    after_s: float | None = None
    punctual: bool = False
    back_off: bool = False
    idle: bool = False
    failing: bool = False
    busy: RetryAfter | None = None


DONE = Result()
IDLE = Result(idle=True)
NOT_YET = Result(back_off=True)

Reconcile = Callable[[str], Awaitable[Result]]
Classify = Callable[[str, Exception], RetryDecision]
OnError = Callable[[str, Exception, RetryDecision], None]
Work = Callable[[], Coroutine[Any, Any, None]]


class Runnable(Protocol):
    """What the daemon needs of a controller."""

    async def run(self) -> None:
        """Work until cancelled."""
        ...

    def retry_now(self) -> None:
        """Try all that failed: what it failed on is another now."""
        ...

    def account(self, kind: str, name: str) -> Account | None:
        """What there is to say about an object; None: it has no such objects, or none yet."""
        ...


def _nothing(*_: object) -> None:
    """What most do when they are told."""


def _by_class(_key: str, error: Exception) -> RetryDecision:
    """What most let follow from an error, whatever it is about."""
    return classify(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch(Generic[T]):
    """A cache that a controller follows.

    Attributes:
        informer: the shared cache.
        changed: told (old, new, initial) of each change, at once; None for an object that
            was not there before or is not any more. `initial` marks what was there at the
            start. True queues the object's key.
        synced: called once when all that was there at the start has been told.
        deleted: told first of an object that is gone because it was deleted, not only missing
            from a new list.
    """

    informer: Informer[T]
    changed: Callable[[T | None, T | None, bool], bool]
    synced: Callable[[], None] = _nothing
    deleted: Callable[[T], object] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Work that is done again and again; an error it lets through is logged, never fatal.

    Attributes:
        work: one pass; handles the errors it expects.
        period_s: seconds between the end of one pass and the start of the next.
        jitter: part of the period by which each wait may be longer.
        at_once: whether the first pass comes at the start, not a period later.
    """

    work: Work
    period_s: float
    jitter: float = 0.0
    at_once: bool = True


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """How a reconcile ended; `since` is when the first of those failed that failed in a row."""

    at: float
    since: float
    kind: str = ""
    text: str = ""
    not_yet: bool = False


class Controller:
    """Runs one controller.

    Args:
        name: in logs and task names.
        queue: value of the label `name` of the work-queue metrics.
        reconcile: does the work for one key.
        workers: how many keys are in work at once.
        backoff: when a failed key is tried again; client-go's default if None.
        watches: caches to follow, waited for in this order before anything else starts.
        passes: periodic work.
        tasks: other work that runs all the time: name -> coroutine function.
        classify: what follows from an error about a key.
        on_error: told of every failed reconcile, for events and counters.
        logs_failures: log failures, and the beginning and the end of an outage; False where the
            controller has better words.
        on_retry: told when `retry_now` is asked for, by a controller that has other pauses too.
        reports: decides which failures are logged as a warning.
        rng: jitter of the passes, and of keys that come back.
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
        passes: Sequence[Pass] = (),
        tasks: Mapping[str, Work] | None = None,
        classify: Classify = _by_class,
        on_error: OnError | None = None,
        logs_failures: bool = True,
        on_retry: Callable[[], None] = _nothing,
        reports: FailureReports[str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._workers = Workers(name, queue=queue, take=self._take, count=workers)
        self.queue = self._workers.queue
        self.backoff = default_backoff() if backoff is None else backoff
        self._name = name
        self._reconcile = reconcile
        self._watches = watches
        self._passes = passes
        self._tasks = tasks or {}
        self._classify = classify
        self._on_error = on_error
        self._on_retry = on_retry
        self._logs_failures = logs_failures
        self._reports = reports or FailureReports()
        self._rng = rng or random.Random()
        self._ids = random.Random()
        self._given_up: set[str] = set()
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        self.explains: dict[str, Explain] = {}
        """Kind of object -> what is said of one; see `account`."""
        self._log = log.logger(name)
        self._outage = Outage(
            self._log,
            begins="cannot use cloud or API server, retrying",
            ends="cloud and API server can be used again",
        )

    async def run(self) -> None:
        """Work until cancelled; on the way out the queue takes in nothing any more."""
        handlers = [(watch.informer, self._follow(watch)) for watch in self._watches]
        try:
            for watch in self._watches:
                await until_synced(watch.informer, who=self._name)
                watch.synced()
            async with Group() as group:
                # Workers come last: they may need what the others bring.
                for name, task in self._tasks.items():
                    group.start(task(), name=f"{self._name}-{name}")
                for number, each in enumerate(self._passes):
                    group.start(self._repeat(each), name=f"{self._name}-pass-{number}")
                self._workers.start(group)
        finally:
            self.queue.shut_down()
            for informer, handler in handlers:
                informer.remove_handler(handler)

    def retry_now(self) -> None:
        """Try all keys that failed, for what they failed on is another now.

        Those in work too, after the work: it was begun with the former.
        """
        for key in (*self.backoff.release(), *self._given_up, *self.queue.in_work):
            self.queue.add(key, background=True)
        self._given_up.clear()
        self._on_retry()

    def account(self, kind: str, name: str) -> Account | None:
        """What there is to say about an object; None: this controller has no such objects."""
        if kind not in self.explains:
            return None
        facts = self.explains[kind](name)
        key = facts.key or name
        known = [
            round(each, 3) for each in (self.queue.due_s(key), facts.next_s) if each is not None
        ]
        return Account(
            controller=self._name,
            plan=facts.plan,
            foreign=facts.foreign,
            blocked=facts.blocked,
            last=self._last(key),
            in_work_s=self._workers.busy_s(key),
            next_s=0.0 if self.queue.is_queued(key) else min(known, default=None),
            failures=self.backoff.failures(key),
        )

    def _last(self, key: str) -> Last | None:
        found, now = self._outcomes.get(key), clock.monotonic()
        if found is None:
            return None
        return Last(
            ago_s=round(now - found.at, 3),
            kind=found.kind,
            text=found.text,
            since_s=round(now - found.since, 3),
            not_yet=found.not_yet,
        )

    def _follow(self, watch: Watch[T]) -> Handler[T]:
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

    async def _repeat(self, each: Pass) -> None:
        if not each.at_once:
            await asyncio.sleep(jittered(each.period_s, each.jitter, self._rng))
        while True:
            try:
                await each.work()
            except Exception as error:  # noqa: BLE001 - one pass must not end the others
                self._log.error("pass failed unexpectedly", exc_info=error)
            await asyncio.sleep(jittered(each.period_s, each.jitter, self._rng))

    async def _take(self, key: str) -> bool:
        """One reconcile, as one unit of work and of the log; whether it did all it had to."""
        reconcile_id = f"{self._ids.getrandbits(48):012x}"
        async with drain.unit():
            with log.bound(controller=self._name, key=key, reconcile_id=reconcile_id):
                try:
                    result = await self._reconcile(key)
                except Exception as error:  # noqa: BLE001 - the one place where it may fail
                    self._failed(key, error)
                    return False
                if result.busy is not None:
                    self._failed(key, result.busy)
                else:
                    self._succeeded(key, result)
                return not result.idle

    def _succeeded(self, key: str, result: Result) -> None:
        now = clock.monotonic()
        if result.failing:
            until = self.backoff.until(key)
            for due_s in (result.after_s, None if until is None else until - now):
                if due_s is not None:
                    self.queue.add_after(key, due_s)
            return
        self._given_up.discard(key)
        self._note(key, _Outcome(at=now, since=now, not_yet=result.back_off))
        self._log.debug("reconciled", after_s=result.after_s, back_off=result.back_off)
        for other in self.backoff.recovered(key, now):
            self.queue.add(other, background=True)
        self._note_outage(None)
        if result.back_off:
            self.queue.add_after(key, self.backoff.postponed(key, now))
            return
        self._reports.forget(key)
        self.backoff.forget(key)
        if result.after_s is not None:
            jitter = 0.0 if result.punctual else AFTER_JITTER
            self.queue.add_after(key, jittered(result.after_s, jitter, self._rng))

    def _failed(self, key: str, error: Exception) -> None:
        decision, now = self._classify(key, error), clock.monotonic()
        before = self._outcomes.get(key)
        since = before.since if before is not None and before.kind else now
        kind, text = type(error).__name__, text_of(error)
        self._note(key, _Outcome(at=now, since=since, kind=kind, text=text))
        if decision.retry is Retry.NEVER:
            self.backoff.forget(key)
            self._reports.forget(key)
            self._given_up.add(key)
        else:
            report = self._reports.is_due(key, error, decision, now)
            decision = replace(decision, report=report)
            delay = self.backoff.failed(key, decision, now)
            self.queue.add_after(key, delay)
            self._log_failure(error, decision, delay)
        if self._on_error is not None:
            self._on_error(key, error, decision)
        self._note_outage(error if decision.outage else None)

    def _log_failure(self, error: Exception, decision: RetryDecision, delay_s: float) -> None:
        if decision.defect:
            self._log.error("reconcile failed unexpectedly", exc_info=error)
            return
        # An outage has a line of its own for all keys together.
        is_loud = decision.report and not decision.outage and self._logs_failures
        level = self._log.warning if is_loud else self._log.debug
        is_busy = decision.retry is Retry.AFTER
        event = "still told to retry later" if is_busy else "reconcile failed"
        level(event, error=str(error), after_s=round(delay_s, 3))

    def _note(self, key: str, outcome: _Outcome) -> None:
        self._outcomes[key] = outcome
        self._outcomes.move_to_end(key)
        if len(self._outcomes) > MOST_OUTCOMES:
            self._outcomes.popitem(last=False)

    def _note_outage(self, error: Exception | None) -> None:
        """Said once at the start of an outage and at its end, not once per key and attempt."""
        if not self._logs_failures:
            return
        if error is not None:
            side = "cloud" if isinstance(error, CloudError) else "API server"
            self._outage.goes_on(side=side, error=str(error))
        elif not self.backoff.in_outage:
            self._outage.is_over()

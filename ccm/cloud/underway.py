"""Calls to a provider while they run; each ends for its caller when its time is over.

A call runs in a task of its own. At its deadline, or when its caller is cancelled, the task
is cancelled and gets a short grace to clean up. A provider that swallows the cancellation
is then left behind: the caller goes on, and the call stays known here until it really ends.
So is one that waits for a thread of a synchronous SDK, which nothing can interrupt.

What may still be at work in the cloud is not started a second time: while a call that was
left behind runs, further calls about the same subject are refused, and so are all of its
operation once `MOST_ABANDONED` of them run. Refusals are errors that are tried again with
back-off, so everything goes on by itself when the old calls end; one that never ends keeps
its subject from being served until the daemon is started anew, which a log line says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ccm.base import log, metrics
from ccm.base.tasks import spawn
from ccm.cloud import errors
from ccm.cloud.blocking import OUTLASTED
from ccm.cloud.interface import Cloud

T = TypeVar("T")

GRACE_S = 1.0
"""How long a cancelled call may take to clean up before it is left behind. A lost lease and
a stop wait as long, so it is well below the time a successor waits."""

MOST_ABANDONED = 16
"""Calls of one operation left behind at the same time; beyond, further ones are refused."""

REMARKABLE_S = 30.0
"""A call that lasts longer is logged while it lasts: it holds one of its controller's workers."""

_UNDER_WAY = metrics.gauge(
    "ccm_cloud_calls_under_way",
    "Calls to the cloud provider that have not ended, those left behind included.",
    ["provider", "operation"],
)
_LEFT_BEHIND = metrics.gauge(
    "ccm_cloud_calls_left_behind",
    "Calls to the cloud provider that run on although they were cancelled.",
    ["provider", "operation"],
)
_ABANDONED = metrics.counter(
    "ccm_cloud_calls_abandoned",
    "Calls to the cloud provider that were left behind because they did not end when cancelled.",
    ["provider", "operation"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One call.

    Attributes:
        operation: its name in logs, metrics and errors.
        cloud: the provider it goes to.
        invoke: makes it.
        deadline_s: how long it may take.
        subject: what it is about, such as the UID of a Service; empty = it may run any number
            of times at once.
    """

    operation: str
    cloud: Cloud
    invoke: Callable[[Cloud], Awaitable[T]]
    deadline_s: float
    subject: str = ""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _Fault:
    error: BaseException


class UnderWay:
    """All calls to the cloud that have not ended."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        self._abandoned: dict[asyncio.Task[Any], Call[Any]] = {}
        self._log = log.logger("cloud")

    @property
    def abandoned(self) -> int:
        """How many calls were left behind and have not ended since."""
        return len(self._abandoned)

    def count(self, cloud: Cloud) -> int:
        """How many calls to a provider object have not ended, those left behind included."""
        return self._running.get(id(cloud), 0)

    def admit(self, cloud: Cloud, operation: str, subject: str) -> None:
        """Refuse a call that must not be made beside those that were left behind.

        Raises:
            Aborted: one about the same subject has not ended.
            Unavailable: too many of this operation have not ended.
        """
        for call in self._abandoned.values():
            if subject and call.subject == subject:
                raise errors.Aborted(
                    f"{operation} has to wait: an earlier {call.operation} was cancelled and has "
                    "not ended yet"
                )
        alike = [
            call
            for call in self._abandoned.values()
            if call.operation == operation and call.cloud is cloud
        ]
        if len(alike) >= MOST_ABANDONED:
            raise errors.Unavailable(
                f"{operation} has to wait: {len(alike)} earlier ones were cancelled and have not "
                "ended yet"
            )

    async def run(self, call: Call[T]) -> T:
        """Make a call.

        Raises:
            CloudError: what the provider raised, normalised; DeadlineExceeded when it took too
                long.
        """
        task = self._start(call)
        try:
            await self._wait(call, task)
        except asyncio.CancelledError:
            await self._end(call, task)
            raise
        if not task.done():
            # What is answered from now on is no answer: "gone" would delete a node.
            await self._end(call, task)
            text = f"{call.operation} took longer than {call.deadline_s:g} s"
            raise errors.DeadlineExceeded(text) from _error_of(task)
        outcome = task.result()
        if isinstance(outcome, _Answer):
            return outcome.value
        found = _normalized(call.operation, outcome.error)
        # An error found among the causes must not become the cause of its own cause.
        raise found from found.__cause__

    async def _wait(self, call: Call[T], task: asyncio.Task[_Answer[T] | _Fault]) -> None:
        """Wait until the call ends or its time is over; say so when it takes long."""
        remarkable = call.deadline_s > REMARKABLE_S
        first_s = REMARKABLE_S if remarkable else call.deadline_s
        await asyncio.wait({task}, timeout=first_s)
        if task.done() or not remarkable:
            return
        facts = {"operation": call.operation, "subject": call.subject}
        self._log.warning(
            "cloud call takes long and holds a worker of its controller",
            **facts,
            since_s=REMARKABLE_S,
            deadline_s=call.deadline_s,
        )
        await asyncio.wait({task}, timeout=call.deadline_s - REMARKABLE_S)
        if task.done():
            self._log.info("cloud call that took long has ended", **facts)

    async def _end(self, call: Call[T], task: asyncio.Task[_Answer[T] | _Fault]) -> None:
        """Cancel a call and give it its grace; then leave it behind."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            if not task.done():
                self._abandon(call, task)

    def _abandon(self, call: Call[Any], task: asyncio.Task[Any]) -> None:
        left_behind = _LEFT_BEHIND.labels(call.cloud.name, call.operation)
        facts = {"operation": call.operation, "subject": call.subject}

        def ended(_: asyncio.Task[Any]) -> None:
            del self._abandoned[task]
            left_behind.dec()
            self._log.info("cloud call that was left behind has ended", **facts)

        self._abandoned[task] = call
        left_behind.inc()
        _ABANDONED.labels(call.cloud.name, call.operation).inc()
        task.add_done_callback(ended)
        self._log.warning(
            "cloud call does not end although it was cancelled, going on without it",
            **facts,
            left_behind=len(self._abandoned),
        )

    def _start(self, call: Call[T]) -> asyncio.Task[_Answer[T] | _Fault]:
        key = id(call.cloud)
        under_way = _UNDER_WAY.labels(call.cloud.name, call.operation)

        def ended(_: asyncio.Task[_Answer[T] | _Fault]) -> None:
            under_way.dec()
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

        self._running[key] = self._running.get(key, 0) + 1
        under_way.inc()
        task = spawn(_outcome(call), name=f"cloud-{call.operation}")
        task.add_done_callback(ended)
        return task


async def _outcome(call: Call[T]) -> _Answer[T] | _Fault:
    """Make the call; whatever it raises is a value, for vendor SDKs raise SystemExit."""
    OUTLASTED.set(True)
    try:
        return _Answer(await call.invoke(call.cloud))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        return _Fault(error)


def _error_of(task: asyncio.Task[_Answer[T] | _Fault]) -> BaseException | None:
    """What an ended call raised."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    outcome = task.result()
    return outcome.error if isinstance(outcome, _Fault) else None


def _normalized(operation: str, fault: BaseException) -> errors.CloudError:
    if not isinstance(fault, asyncio.CancelledError):
        return errors.normalized(fault)
    # Something inside the provider was cancelled; passed on, it would end our worker.
    found = errors.Canceled(f"{operation} was cancelled inside the provider")
    found.__cause__ = fault
    return found

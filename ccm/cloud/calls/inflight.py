"""Calls to a provider while they run; each ends for its caller when its time is over.

A call runs in a task of its own. At its deadline, or when its caller is cancelled, the task
is cancelled and gets a short grace to clean up. A call whose provider swallows the
cancellation is then abandoned: the caller goes on, and the call stays known here until it really
ends. So is one that waits for a thread of a synchronous SDK, which nothing can interrupt.

What may still be at work in the cloud is not started a second time: while an abandoned call
runs, further calls about the same subject are refused, and so are all of its operation once
`MOST_ABANDONED` of them run. Refusals are errors that are tried again with back-off, so
everything goes on by itself when the old calls end; one that never ends keeps its subject from
being served until the daemon is started anew, which a log line says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ccm.base import log, metrics
from ccm.base.tasks import spawn
from ccm.cloud import errors
from ccm.cloud.blocking import KIND, OUTLASTED, THREADS
from ccm.cloud.calls import quotes
from ccm.cloud.interface import Cloud
from ccm.cloud.operation import Operation

T = TypeVar("T")

GRACE_S = 1.0
"""How long a cancelled call may take to clean up before it is abandoned. A lost lease and
a stop wait as long, so it is well below the time a successor waits."""

MOST_ABANDONED = THREADS
"""Abandoned calls of one operation at the same time; beyond, further ones are refused."""

REMARKABLE_S = 30.0
"""A call that lasts longer is logged while it lasts: it holds one of its controller's workers."""

_UNDER_WAY = metrics.gauge(
    "ccm_cloud_calls_under_way",
    "Calls to the cloud provider that have not ended, abandoned ones included.",
    ["provider", "operation"],
)
_ABANDONED_NOW = metrics.gauge(
    "ccm_cloud_calls_left_behind",
    "Calls to the cloud provider that run on although they were cancelled.",
    ["provider", "operation"],
)
_ABANDONED = metrics.counter(
    "ccm_cloud_calls_abandoned",
    "Calls to the cloud provider that were abandoned because they did not end when cancelled.",
    ["provider", "operation"],
)


@dataclass(frozen=True, slots=True)
class _Fault:
    error: BaseException


class InflightCalls:
    """All calls to the cloud that have not ended."""

    def __init__(self) -> None:
        self._running: dict[int, set[asyncio.Task[Any]]] = {}
        self._abandoned: dict[asyncio.Task[Any], tuple[Operation, Cloud]] = {}
        self._log = log.logger("cloud")

    @property
    def abandoned(self) -> int:
        """How many calls were abandoned and have not ended since."""
        return len(self._abandoned)

    @property
    def abandoned_changes(self) -> int:
        """How many of these change something."""
        return sum(operation.change for operation, _ in self._abandoned.values())

    async def ended(self, cloud: Cloud) -> None:
        """Wait until all calls to a provider object have ended, abandoned ones included."""
        while tasks := self._running.get(id(cloud)):
            await asyncio.wait(tasks)

    def admit(self, operation: Operation, cloud: Cloud) -> None:
        """Refuse a call that must not be made beside those that were abandoned.

        Raises:
            Aborted: one about the same subject has not ended.
            Unavailable: too many of this operation have not ended.
        """
        alike = 0
        for earlier, provider in self._abandoned.values():
            if operation.subject and earlier.subject == operation.subject:
                raise errors.Aborted(
                    f"{operation.verb} has to wait: an earlier {earlier.verb} was cancelled and "
                    "has not ended yet"
                )
            alike += earlier.verb == operation.verb and provider is cloud
        if alike >= MOST_ABANDONED:
            raise errors.Unavailable(
                f"{operation.verb} has to wait: {alike} earlier ones were cancelled and have not "
                "ended yet"
            )

    async def run(self, operation: Operation, cloud: Cloud, make: Callable[[], Awaitable[T]]) -> T:
        """Make a call.

        Raises:
            CloudError: what the provider raised, normalised; DeadlineExceeded when it took too
                long.
        """
        task = self._start(operation, cloud, make)
        try:
            await self._wait(operation, task)
        except asyncio.CancelledError:
            await self._end(operation, cloud, task)
            raise
        if not task.done():
            # What is answered from now on is no answer: "gone" would delete a node.
            await self._end(operation, cloud, task)
            text = f"{operation.verb} took longer than {operation.deadline_s:g} s"
            raise errors.DeadlineExceeded(text) from _error_of(task, operation)
        outcome = task.result()
        if not isinstance(outcome, _Fault):
            return outcome
        found = _normalized(operation.verb, outcome.error)
        if quotes.mask(found, operation):
            raise found from None  # its causes quote the same
        # An error found among the causes must not become the cause of its own cause.
        raise found from found.__cause__

    async def _wait(self, operation: Operation, task: asyncio.Task[Any]) -> None:
        """Wait until the call ends or its time is over; say so when it takes long."""
        remarkable = operation.deadline_s > REMARKABLE_S
        first_s = REMARKABLE_S if remarkable else operation.deadline_s
        await asyncio.wait({task}, timeout=first_s)
        if task.done() or not remarkable:
            return
        facts = {"operation": operation.verb, "subject": operation.subject}
        self._log.warning(
            "cloud call takes long and holds a worker of its controller",
            **facts,
            since_s=REMARKABLE_S,
            deadline_s=operation.deadline_s,
        )
        await asyncio.wait({task}, timeout=operation.deadline_s - REMARKABLE_S)
        if task.done():
            self._log.info("cloud call that took long has ended", **facts)

    async def _end(self, operation: Operation, cloud: Cloud, task: asyncio.Task[Any]) -> None:
        """Cancel a call and give it its grace; then abandon it."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            if not task.done():
                self._abandon(operation, cloud, task)

    def _abandon(self, operation: Operation, cloud: Cloud, task: asyncio.Task[Any]) -> None:
        abandoned = _ABANDONED_NOW.labels(cloud.name, operation.verb)
        facts = {"operation": operation.verb, "subject": operation.subject}

        def ended(_: asyncio.Task[Any]) -> None:
            del self._abandoned[task]
            abandoned.dec()
            self._log.info("abandoned cloud call has ended", **facts)

        self._abandoned[task] = (operation, cloud)
        abandoned.inc()
        _ABANDONED.labels(cloud.name, operation.verb).inc()
        task.add_done_callback(ended)
        self._log.warning(
            "cloud call does not end although it was cancelled, going on without it",
            **facts,
            abandoned=len(self._abandoned),
        )

    def _start(
        self, operation: Operation, cloud: Cloud, make: Callable[[], Awaitable[T]]
    ) -> asyncio.Task[T | _Fault]:
        running = self._running.setdefault(id(cloud), set())
        under_way = _UNDER_WAY.labels(cloud.name, operation.verb)

        def ended(task: asyncio.Task[Any]) -> None:
            under_way.dec()
            running.discard(task)
            if not running:
                self._running.pop(id(cloud), None)

        under_way.inc()
        task = spawn(_outcome(operation.verb, make), name=f"cloud-{operation.verb}")
        running.add(task)
        task.add_done_callback(ended)
        return task


async def _outcome(verb: str, make: Callable[[], Awaitable[T]]) -> T | _Fault:
    """Make the call; whatever it raises is a value, for vendor SDKs raise SystemExit."""
    OUTLASTED.set(True)
    KIND.set(verb)
    try:
        return await make()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        return _Fault(error)


def _error_of(task: asyncio.Task[T | _Fault], operation: Operation) -> BaseException | None:
    """What an ended call raised; None where that quotes user data."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    outcome = task.result()
    if not isinstance(outcome, _Fault):
        return None
    is_quoting = quotes.mask(_normalized(operation.verb, outcome.error), operation)
    return None if is_quoting else outcome.error


def _normalized(verb: str, fault: BaseException) -> errors.CloudError:
    if not isinstance(fault, asyncio.CancelledError):
        return errors.normalized(fault)
    # Something inside the provider was cancelled; passed on, it would end our worker.
    found = errors.Canceled(f"{verb} was cancelled inside the provider")
    found.__cause__ = fault
    return found

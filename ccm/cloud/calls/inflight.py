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

User data that a cloud quotes in an error are masked: they hold a bootstrap token, and the text of
an error goes to the Machine's status, to Events, to the log and to `explain`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ccm.base import log, metrics, redact
from ccm.base.tasks import spawn
from ccm.cloud import errors
from ccm.cloud.blocking import KIND, OUTLASTED, THREADS
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import SPEC_USER_DATA, MachineRequest
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
        if mask(found, operation):
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
    is_quoting = mask(_normalized(operation.verb, outcome.error), operation)
    return None if is_quoting else outcome.error


def _normalized(verb: str, fault: BaseException) -> errors.CloudError:
    if not isinstance(fault, asyncio.CancelledError):
        return errors.normalized(fault)
    # Something inside the provider was cancelled; passed on, it would end our worker.
    found = errors.Canceled(f"{verb} was cancelled inside the provider")
    found.__cause__ = fault
    return found


PIECE = 16
"""Characters in a row that count as a quotation."""

_GRAM = 8
"""Every quotation has a gram that begins at a multiple of this in its source."""

_PLACES = 8
"""Places of a source that are compared for one gram; a hostile one would repeat it everywhere."""


def mask(error: CloudError, operation: Operation) -> bool:
    """Mask quotations of user data in an error; return whether it or a cause had any."""
    requests = [one for one in operation.arguments.values() if isinstance(one, MachineRequest)]
    sources = [source for request in requests for source in _sources(request)]
    if not sources:
        return False
    said = str(error)
    masked = _masked(said, sources)
    if masked != said:
        error.args = (masked,)
        return True
    return any(_masked(text := str(cause), sources) != text for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    found = error.__cause__ or error.__context__
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _masked(text: str, sources: Sequence[str]) -> str:
    text = text[: redact.LONGEST]
    for source in sources:
        text = _without(text, source)
    return text


def _sources(request: MachineRequest) -> Iterator[str]:
    """Yield the user data as they are, within JSON, and in base64."""
    in_spec = request.provider_spec.get(SPEC_USER_DATA)
    for data in (request.user_data, in_spec.encode() if isinstance(in_spec, str) else b""):
        if not data:
            continue
        text = data.decode(errors="replace")
        digits = base64.b64encode(data).decode()
        who = request.identity
        for name in (who.name, who.pool, who.namespace, who.cluster, who.uid):
            # Names of the machine are no secret, and errors have them.
            text = text.replace(name, "\0") if len(name) >= _GRAM else text
        # As they are first: the others would leave the short lines between long ones.
        yield from (text, json.dumps(text, ensure_ascii=False)[1:-1])
        yield from {digits, digits.replace("+", "-").replace("/", "_")}


def _without(text: str, source: str) -> str:
    """Mask all runs of at least `PIECE` characters that are in the source too."""
    grams: defaultdict[str, list[int]] = defaultdict(list)
    for place in range(0, len(source) - _GRAM + 1, _GRAM):
        places = grams[source[place : place + _GRAM]]
        if len(places) < _PLACES:
            places.append(place)
    parts, done, at = [], 0, 0
    while at <= len(text) - _GRAM:
        runs = [
            _run(text, source, at, place, done) for place in grams.get(text[at : at + _GRAM], ())
        ]
        start, end = max(runs, key=lambda run: run[1] - run[0], default=(at, at))
        if end - start >= PIECE:
            parts += [text[done:start], redact.MASK]
            done = at = end
        else:
            at += 1
    return "".join((*parts, text[done:]))


def _run(text: str, source: str, at: int, place: int, least: int) -> tuple[int, int]:
    """Return the ends of the common run around a gram; it begins at `least` or later."""
    start, end = at, at + _GRAM
    shift = place - at
    while start > least and start + shift > 0 and text[start - 1] == source[start - 1 + shift]:
        start -= 1
    while end < len(text) and end + shift < len(source) and text[end] == source[end + shift]:
        end += 1
    return start, end

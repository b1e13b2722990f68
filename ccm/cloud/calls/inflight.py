"""In-flight calls to a provider; no caller waits longer than the deadline plus a grace period.

A call runs in a task of its own. At its deadline, or when its caller is cancelled, the task
is cancelled and gets a short grace period to clean up. A call that has not ended by then is
abandoned: its caller continues, and the call stays registered here until it ends. Providers cause
this by swallowing the cancellation, or by waiting for the thread of a synchronous SDK.

An operation that may still run in the cloud is never started a second time. While an abandoned
call runs, further calls about its subject are rejected. Once `MAX_ABANDONED` abandoned calls of
one operation run, all calls of that operation are rejected. Rejections are retried with back-off,
so service resumes when the old calls end. A call that never ends blocks its subject until the
daemon is restarted; the log reports the abandoned call.

Errors that quote user data are masked: user data holds a bootstrap token, and an error text
reaches the Machine's status, Events, the log and `explain`.
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
from ccm.cloud.blocking import MAX_THREADS, OPERATION, WAIT_FOR_THREAD
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import SPEC_USER_DATA, MachineRequest
from ccm.cloud.operation import ProviderCall

T = TypeVar("T")

GRACE_S = 1.0
"""Seconds a cancelled call may take to clean up before it is abandoned. The daemon also waits that
long at shutdown and after the loss of its lease; a new leader starts much later."""

MAX_ABANDONED = MAX_THREADS
"""Number of running abandoned calls of one operation at which its further calls are rejected."""

SLOW_CALL_S = 30.0
"""Seconds after which a call in flight is logged, because it occupies a controller's worker."""

_UNDER_WAY = metrics.gauge(
    "ccm_cloud_calls_under_way",
    "Calls to the cloud provider in flight, including abandoned ones.",
    ["provider", "operation"],
)
_ABANDONED_NOW = metrics.gauge(
    "ccm_cloud_abandoned_calls",
    "Calls to the cloud provider that still run although they were cancelled.",
    ["provider", "operation"],
)
_ABANDONED = metrics.plain_counter(
    "ccm_cloud_abandoned_calls_total",
    "Calls to the cloud provider that were abandoned because they did not end when cancelled.",
    ["provider", "operation"],
)
metrics.FormerName(_ABANDONED_NOW, "ccm_cloud_calls_left_behind")
metrics.FormerName(_ABANDONED, "ccm_cloud_calls_abandoned_total")


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class InflightCalls:
    """Registry of the calls to a provider that have not ended."""

    def __init__(self) -> None:
        self._running: dict[int, set[asyncio.Task[Any]]] = {}
        self._abandoned: dict[asyncio.Task[Any], tuple[ProviderCall, Cloud]] = {}
        self._log = log.logger("cloud")

    @property
    def abandoned(self) -> int:
        """Number of abandoned calls that still run."""
        return len(self._abandoned)

    @property
    def abandoned_changes(self) -> int:
        """Number of abandoned calls that still run and may change cloud resources."""
        return sum(operation.change for operation, _ in self._abandoned.values())

    async def wait_for_calls(self, cloud: Cloud) -> None:
        """Wait until all calls to a provider object have ended, including abandoned ones."""
        while tasks := self._running.get(id(cloud)):
            await asyncio.wait(tasks)

    def admit(self, operation: ProviderCall, cloud: Cloud) -> None:
        """Reject a call that must not run concurrently with abandoned calls.

        Raises:
            Aborted: an abandoned call about the same subject still runs.
            Unavailable: too many abandoned calls of this operation still run.
        """
        alike = 0
        for earlier, provider in self._abandoned.values():
            if operation.subject and earlier.subject == operation.subject:
                raise errors.Aborted(
                    f"{operation.verb} rejected: an abandoned {earlier.verb} of the same object "
                    "is still running"
                )
            alike += earlier.verb == operation.verb and provider is cloud
        if alike >= MAX_ABANDONED:
            raise errors.Unavailable(
                f"{operation.verb} rejected: {alike} abandoned calls of this operation are still "
                "running"
            )

    async def run(
        self, operation: ProviderCall, cloud: Cloud, make: Callable[[], Awaitable[T]]
    ) -> T:
        """Run a call until it ends, its deadline passes or its caller is cancelled.

        Raises:
            CloudError: the normalized error of the provider; DeadlineExceeded after the deadline.
        """
        task = self._start(operation, cloud, make)
        try:
            await self._wait(operation, task)
        except asyncio.CancelledError:
            await self._end(operation, cloud, task)
            raise
        if not task.done():
            # Ignore a response after the cancellation: a false "gone" would delete a node.
            await self._end(operation, cloud, task)
            text = f"{operation.verb} took longer than {operation.deadline_s:g} s"
            raise errors.DeadlineExceeded(text) from _exception_of(task, operation)
        outcome = task.result()
        if not isinstance(outcome, _Raised):
            return outcome
        normalized = _normalize(operation.verb, outcome.error)
        if mask_user_data(normalized, operation):
            raise normalized from None  # the causes quote the same user data
        # `_normalize` may return a cause of the error; `from` the error would then form a cycle.
        raise normalized from normalized.__cause__

    async def _wait(self, operation: ProviderCall, task: asyncio.Task[Any]) -> None:
        """Wait until the call ends or its deadline passes; log a slow call."""
        remarkable = operation.deadline_s > SLOW_CALL_S
        first_s = SLOW_CALL_S if remarkable else operation.deadline_s
        await asyncio.wait({task}, timeout=first_s)
        if task.done() or not remarkable:
            return
        facts = {"operation": operation.verb, "subject": operation.subject}
        self._log.warning(
            "slow cloud call occupies a worker",
            **facts,
            since_s=SLOW_CALL_S,
            deadline_s=operation.deadline_s,
        )
        await asyncio.wait({task}, timeout=operation.deadline_s - SLOW_CALL_S)
        if task.done():
            self._log.info("slow cloud call ended", **facts)

    async def _end(self, operation: ProviderCall, cloud: Cloud, task: asyncio.Task[Any]) -> None:
        """Cancel a call; abandon it if it still runs after the grace period."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            if not task.done():
                self._abandon(operation, cloud, task)

    def _abandon(self, operation: ProviderCall, cloud: Cloud, task: asyncio.Task[Any]) -> None:
        abandoned = _ABANDONED_NOW.labels(cloud.name, operation.verb)
        facts = {"operation": operation.verb, "subject": operation.subject}

        def ended(_: asyncio.Task[Any]) -> None:
            del self._abandoned[task]
            abandoned.dec()
            self._log.info("abandoned cloud call ended", **facts)

        self._abandoned[task] = (operation, cloud)
        abandoned.inc()
        _ABANDONED.labels(cloud.name, operation.verb).inc()
        task.add_done_callback(ended)
        self._log.warning(
            "cancelled cloud call did not end, abandoned", **facts, abandoned=len(self._abandoned)
        )

    def _start(
        self, operation: ProviderCall, cloud: Cloud, make: Callable[[], Awaitable[T]]
    ) -> asyncio.Task[T | _Raised]:
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


async def _outcome(verb: str, make: Callable[[], Awaitable[T]]) -> T | _Raised:
    """Make the call; return its result, or any exception as a value.

    Some vendor SDKs raise SystemExit. Raised in a task, it would end the event loop.
    """
    WAIT_FOR_THREAD.set(True)
    OPERATION.set(verb)
    try:
        return await make()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - see above
        return _Raised(error)


def _exception_of(task: asyncio.Task[T | _Raised], operation: ProviderCall) -> BaseException | None:
    """Return the exception of a call; None = no exception, or its text quotes user data."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    outcome = task.result()
    if not isinstance(outcome, _Raised):
        return None
    is_quoting = mask_user_data(_normalize(operation.verb, outcome.error), operation)
    return None if is_quoting else outcome.error


def _normalize(verb: str, fault: BaseException) -> errors.CloudError:
    if not isinstance(fault, asyncio.CancelledError):
        return errors.normalize(fault)
    # A task inside the provider was cancelled. Raised here, CancelledError would end our worker.
    normalized = errors.Canceled(f"{verb} was cancelled inside the provider")
    normalized.__cause__ = fault
    return normalized


MIN_QUOTATION = 16
"""Minimum characters of a common substring that counts as a quotation."""

_GRAM_LENGTH = 8
"""Characters of an indexed substring (gram). Each gram begins at a multiple of this length, so a
quotation of `MIN_QUOTATION` characters or more always contains a whole gram."""

_MAX_POSITIONS = 8
"""Maximum positions compared per gram, because hostile user data could repeat one gram."""


def mask_user_data(error: CloudError, operation: ProviderCall) -> bool:
    """Mask quotations of user data in an error's message.

    Returns:
        Whether the error or one of its causes quotes user data; the causes are not masked.
    """
    requests = [
        argument
        for argument in operation.arguments.values()
        if isinstance(argument, MachineRequest)
    ]
    sources = [source for request in requests for source in _user_data_forms(request)]
    if not sources:
        return False
    message = str(error)
    masked = _mask_sources(message, sources)
    if masked != message:
        error.args = (masked,)
        return True
    return any(_mask_sources(text := str(cause), sources) != text for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _mask_sources(text: str, sources: Sequence[str]) -> str:
    text = text[: redact.MAX_CHARACTERS]
    for source in sources:
        text = _mask_quotations(text, source)
    return text


def _user_data_forms(request: MachineRequest) -> Iterator[str]:
    """Yield the user data as plain text, as a JSON string and in base64."""
    in_spec = request.provider_spec.get(SPEC_USER_DATA)
    for data in (request.user_data, in_spec.encode() if isinstance(in_spec, str) else b""):
        if not data:
            continue
        text = data.decode(errors="replace")
        digits = base64.b64encode(data).decode()
        identity = request.identity
        for name in (
            identity.name,
            identity.pool,
            identity.namespace,
            identity.cluster,
            identity.uid,
        ):
            # Do not mask the names of the machine: they are not secret, and errors need them.
            text = text.replace(name, "\0") if len(name) >= _GRAM_LENGTH else text
        # Plain text first: masking JSON or base64 first would leave short lines unmasked.
        yield from (text, json.dumps(text, ensure_ascii=False)[1:-1])
        yield from {digits, digits.replace("+", "-").replace("/", "_")}


def _mask_quotations(text: str, source: str) -> str:
    """Mask all substrings of at least `MIN_QUOTATION` characters that also occur in the source."""
    grams: defaultdict[str, list[int]] = defaultdict(list)
    for place in range(0, len(source) - _GRAM_LENGTH + 1, _GRAM_LENGTH):
        places = grams[source[place : place + _GRAM_LENGTH]]
        if len(places) < _MAX_POSITIONS:
            places.append(place)
    parts, masked_until, position = [], 0, 0
    while position <= len(text) - _GRAM_LENGTH:
        runs = [
            _common_substring(text, source, position, place, masked_until)
            for place in grams.get(text[position : position + _GRAM_LENGTH], ())
        ]
        start, end = max(runs, key=lambda run: run[1] - run[0], default=(position, position))
        if end - start >= MIN_QUOTATION:
            parts += [text[masked_until:start], redact.MASK]
            masked_until = position = end
        else:
            position += 1
    return "".join((*parts, text[masked_until:]))


def _common_substring(
    text: str, source: str, position: int, place: int, min_start: int
) -> tuple[int, int]:
    """Extend a gram that two texts share to the longest common substring around it.

    Args:
        text: the text that may quote the source.
        source: the source.
        position: where the gram begins in `text`.
        place: where the gram begins in `source`.
        min_start: minimum start of the substring in `text`.

    Returns:
        Start and end of the substring in `text`.
    """
    start, end = position, position + _GRAM_LENGTH
    shift = place - position
    while start > min_start and start + shift > 0 and text[start - 1] == source[start - 1 + shift]:
        start -= 1
    while end < len(text) and end + shift < len(source) and text[end] == source[end + shift]:
        end += 1
    return start, end

"""Errors that a provider may raise, and how the daemon reacts to each.

```text
CloudError
├─ NotFound                               the object is absent: a result, not a failure
│  └─ DiskNotFound                        a volume is absent
├─ AlreadyExists                          event; back off (a provider adopts its own object first)
├─ InvalidArgument, OutOfRange            event; retry slowly (the cloud side may change)
├─ FailedPrecondition                     event; retry slowly
│  └─ NotOwned                            event; retry slowly; the VM is left unchanged
├─ Unauthenticated, PermissionDenied      event; long back-off
├─ ResourceExhausted                      event; long back-off
├─ Unavailable, DeadlineExceeded, Aborted event; back off
├─ Uninitialized                          event; back off and initialise again
├─ Unimplemented                          the capability counts as absent; event; retry slowly
├─ ImplementedElsewhere                   leave the object alone; no event
├─ RetryAfter(seconds)                    requeue after that delay, longer if repeated; no failure
└─ Internal, DataLoss, Canceled, Unknown  event; back off
```

The names are the machine codes of Gardener's driver interface plus the sentinels of the
Go cloud-provider library (its "instance not found" is `NotFound`). `CODES` holds their
numbers and wire names. Controllers receive any other exception of a provider as `Internal`, with
the original as its cause.

To report absence, raise `NotFound` itself. The daemon deletes objects whose absence is reported, so
an error that merely has a `NotFound` among its causes does not count as absence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Self


class ProviderError(Exception):
    """An unusable provider; the daemon prints the message and exits with 1."""


class CloudError(Exception):
    """Base of all errors that a provider raises deliberately; users see the message.

    An empty message is replaced by the class name.

    Attributes:
        partial: partial result, for methods that document one; None = no result. An error raised
            `from` this error does not inherit the result.
        refusal: the response that caused the error, such as a `ccm.cloud.rest.Refusal`; None =
            no response. The daemon never reads it.
    """

    partial: object = None
    refusal: object = None

    def carrying(self, partial: object) -> Self:
        """Attach a partial result and return the error."""
        self.partial = partial
        return self

    def __str__(self) -> str:
        return super().__str__() or type(self).__name__


class NotFound(CloudError):
    """The requested object does not exist. Never raise it for a stopped instance."""


class DiskNotFound(NotFound):
    """The volume does not exist."""


class AlreadyExists(CloudError):
    """An object of that name already exists."""


class InvalidArgument(CloudError):
    """The request is invalid for this cloud, for example because of a foreign provider ID."""


class OutOfRange(CloudError):
    """A value is outside the range that the cloud accepts."""


class FailedPrecondition(CloudError):
    """The state of the cloud's resources does not allow the request; an early retry is useless."""


class NotOwned(FailedPrecondition):
    """The VM of a provider ID does not belong to the machine; see `machines.check_owner`."""


class Unauthenticated(CloudError):
    """The cloud rejects the credentials."""


class PermissionDenied(CloudError):
    """The credentials are valid but lack the permission for the request."""


class ResourceExhausted(CloudError):
    """Quota or capacity is exhausted."""


class Unavailable(CloudError):
    """The cloud is unreachable or responds with a server error."""


class DeadlineExceeded(CloudError):
    """The call exceeded its deadline."""


class Aborted(CloudError):
    """The cloud aborted the operation, for example because of a concurrent one."""


class Uninitialized(CloudError):
    """The instance exists, but its initialisation must run again."""


class Unimplemented(CloudError):
    """The provider does not offer the operation."""


class ImplementedElsewhere(CloudError):
    """Another controller is responsible for this object."""


class RetryAfter(CloudError):
    """The operation is still in progress; the daemon requeues the object after `seconds`.

    The error does not count as a failure and causes no event in the first minute (see
    `Retry.AFTER`). Negative `seconds` count as 0. The constructor raises ValueError for NaN and
    infinity.
    """

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryAfter needs a number of seconds, not {seconds}")
        self.seconds = max(0.0, seconds)


class Internal(CloudError):
    """The provider failed unexpectedly."""


class DataLoss(CloudError):
    """The cloud lost or damaged data permanently."""


class Canceled(CloudError):
    """The operation was cancelled on the cloud's side."""


class Unknown(CloudError):
    """The cloud's response fits no other class."""


class Retry(Enum):
    """Retry policy after an error, and whether the daemon records a Warning event."""

    BACK_OFF = "back off"
    """Exponential back-off from milliseconds to the queue's cap."""
    LONG = "back off long"
    """Exponential back-off that starts at half a minute."""
    SLOW = "slow"
    """Every ten minutes, and at once when the object changes."""
    AFTER = "after"
    """After the error's own delay, longer if repeated; with an event after one minute."""
    NEVER = "never"
    """No retry and no event: another controller is responsible for the object."""

    @property
    def event(self) -> bool:
        """Whether the daemon records an event at once."""
        return self not in (Retry.AFTER, Retry.NEVER)


POLICY: dict[type[CloudError], Retry] = {
    NotFound: Retry.BACK_OFF,
    AlreadyExists: Retry.BACK_OFF,
    InvalidArgument: Retry.SLOW,
    OutOfRange: Retry.SLOW,
    FailedPrecondition: Retry.SLOW,
    NotOwned: Retry.SLOW,
    Unauthenticated: Retry.LONG,
    PermissionDenied: Retry.LONG,
    ResourceExhausted: Retry.LONG,
    Unavailable: Retry.BACK_OFF,
    DeadlineExceeded: Retry.BACK_OFF,
    Aborted: Retry.BACK_OFF,
    Uninitialized: Retry.BACK_OFF,
    Unimplemented: Retry.SLOW,
    ImplementedElsewhere: Retry.NEVER,
    RetryAfter: Retry.AFTER,
    Internal: Retry.BACK_OFF,
    DataLoss: Retry.BACK_OFF,
    Canceled: Retry.BACK_OFF,
    Unknown: Retry.BACK_OFF,
}
"""Class -> default retry policy; a subclass inherits the policy of its base."""


def policy_for(error: CloudError) -> Retry:
    """Return the retry policy of an error's class, or of its nearest base that has one."""
    return next((POLICY[base] for base in type(error).__mro__ if base in POLICY), Retry.BACK_OFF)


def normalize(error: BaseException) -> CloudError:
    """Convert any exception of a provider to a `CloudError`.

    If a cause of the error is a `RetryAfter`, `Unimplemented` or `ImplementedElsewhere`, that cause
    is returned, because it only makes the daemon postpone or omit an action. Otherwise a
    `CloudError` is returned unchanged, a `TimeoutError` becomes `DeadlineExceeded`, and any other
    exception becomes `Internal`. A `NotFound` among the causes is ignored.

    An exception group, as raised by a task group, becomes one error with the messages of all
    members. If all members have the same class, and `POLICY` lists that class, the error has it
    too; otherwise it is `Internal`, because parts of the work failed differently. A group of
    `NotFound` also becomes `Internal`, and a group of `RetryAfter` has the longest delay. The error
    carries the first partial result among the members.
    """
    if isinstance(error, BaseExceptionGroup):
        return _normalize_group(error)
    for cause in _causes(error):
        if isinstance(cause, RetryAfter | Unimplemented | ImplementedElsewhere):
            return cause
    if isinstance(error, CloudError):
        return error
    wrapper = DeadlineExceeded if isinstance(error, TimeoutError) else Internal
    return _wrap(wrapper, _describe(error), error)


def _normalize_group(group: BaseExceptionGroup[BaseException]) -> CloudError:
    members = [normalize(member) for member in group.exceptions]
    partial = next((member.partial for member in members if member.partial is not None), None)
    text = f"{group.message}: {'; '.join(map(str, members))}"
    kinds = {type(member) for member in members}
    if kinds == {RetryAfter}:
        seconds = max(member.seconds for member in members if isinstance(member, RetryAfter))
        again = _wrap(lambda message: RetryAfter(message, seconds=seconds), text, group)
        return again.carrying(partial)
    kind = kinds.pop() if len(kinds) == 1 else Internal
    if kind not in POLICY or kind is NotFound:
        kind = Internal
    return _wrap(kind, text, group).carrying(partial)


def _wrap(make: Callable[[str], CloudError], text: str, original: BaseException) -> CloudError:
    error = make(text)
    error.__cause__ = original
    return error


def _describe(error: BaseException) -> str:
    """Return class name and text of a foreign exception."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an SDK's error may fail to show itself
        return kind
    return f"{kind}: {text}" if text else kind


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and its explicit causes, nearest first; stops at a cycle."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    return chain


class Code(NamedTuple):
    """Error code of Gardener's driver interface: number, and name as in
    `status.lastOperation.errorCode`."""

    number: int
    name: str


PREFIX = "machine codes error:"
"""Marker at the beginning of an error in wire format; other text may precede it."""

OK = Code(0, "OK")
"""Code of success; it has no error class."""

CODES: Mapping[type[CloudError], Code] = MappingProxyType(
    {
        Canceled: Code(1, "Canceled"),
        Unknown: Code(2, "Unknown"),
        InvalidArgument: Code(3, "InvalidArgument"),
        DeadlineExceeded: Code(4, "DeadlineExceeded"),
        NotFound: Code(5, "NotFound"),
        AlreadyExists: Code(6, "AlreadyExists"),
        PermissionDenied: Code(7, "PermissionDenied"),
        ResourceExhausted: Code(8, "ResourceExhausted"),
        FailedPrecondition: Code(9, "FailedPrecondition"),
        Aborted: Code(10, "Aborted"),
        OutOfRange: Code(11, "OutOfRange"),
        Unimplemented: Code(12, "Unimplemented"),
        Internal: Code(13, "Internal"),
        Unavailable: Code(14, "Unavailable"),
        DataLoss: Code(15, "DataLoss"),
        Unauthenticated: Code(16, "Unauthenticated"),
        Uninitialized: Code(17, "Uninitialized"),
        # Gardener has no codes for these classes; each has the code that is handled most similarly.
        NotOwned: Code(9, "FailedPrecondition"),
        RetryAfter: Code(14, "Unavailable"),
        ImplementedElsewhere: Code(12, "Unimplemented"),
    }
)
"""Class -> code; a subclass inherits the code of its base. If several classes share a code,
`class_of` returns the first."""

_CLASSES: dict[int | str, type[CloudError]] = {}
for _kind, _code in CODES.items():
    _CLASSES.setdefault(_code.number, _kind)
    _CLASSES.setdefault(_code.name, _kind)


def code_of(error: CloudError) -> Code:
    """Return the code of an error; `Unknown` for a class without one."""
    codes = (CODES[base] for base in type(error).__mro__ if base in CODES)
    return next(codes, CODES[Unknown])


def class_of(code: object) -> type[CloudError] | None:
    """Return the class of a code given as number, name or enum member; None for an unknown code."""
    if isinstance(code, Enum):
        return class_of(code.value) or class_of(code.name)
    return _CLASSES.get(code) if isinstance(code, int | str) else None


def format_error(error: CloudError) -> str:
    """Return an error in the wire format that `parse_error` and Gardener's controllers parse.

    Unbalanced square brackets would break the format, so they become round ones.
    """
    message = str(error)
    if [*_bracket_groups(f"[{message}]")] != [message]:
        message = message.replace("[", "(").replace("]", ")")
    return f"{PREFIX} code = [{code_of(error).name}] message = [{message}]"


def parse_error(text: str) -> CloudError | None:
    """Parse an error in wire format; None for any other text.

    `PREFIX` is followed by two groups in square brackets, code and message, which may contain
    nested groups. An unknown code becomes `Unknown`, and so does OK, which is not an error code.
    """
    match [*_bracket_groups(text.partition(PREFIX)[2])]:
        case [name, message]:
            return (class_of(name) or Unknown)(message)
        case _:
            return None


def _bracket_groups(text: str) -> Iterator[str]:
    """Yield the content of each top-level group in square brackets."""
    depth = start = 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
            if depth == 1:
                start = position + 1
        elif letter == "]" and depth:
            depth -= 1
            if depth == 0:
                yield text[start:position]

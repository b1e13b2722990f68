"""What a provider may raise, and what the daemon then does.

```text
CloudError
├─ NotFound                               absent is an answer, not a fault
│  └─ DiskNotFound                        a volume is absent
├─ AlreadyExists                          event; back off (providers read and adopt)
├─ InvalidArgument, OutOfRange            event; retry slowly (the cloud side may change)
├─ FailedPrecondition                     event; retry slowly
│  └─ NotOwned                            a Machine whose VM is another's: nothing is touched
├─ Unauthenticated, PermissionDenied      event; back off long
├─ ResourceExhausted                      event; back off long
├─ Unavailable, DeadlineExceeded, Aborted event; back off
├─ Uninitialized                          event; back off, and initialise it again
├─ Unimplemented                          the capability counts as absent; event; retry slowly
├─ ImplementedElsewhere                   leave alone, no event
├─ RetryAfter(seconds)                    come back then, later if it lasts; not a failure
└─ Internal, DataLoss, Canceled, Unknown  event; back off
```

The names are the machine codes of Gardener's driver interface plus the sentinels of the
Go cloud-provider library (its "instance not found" is `NotFound`); `CODES` has their
numbers and the text that goes over the wire. Anything else that a
provider raises arrives at the controllers as `Internal`, with the original as its cause.

Raise the class itself for `NotFound`. An error that merely has a `NotFound` among its
causes is not an absence: an absence deletes things.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Self


class ProviderError(Exception):
    """The provider cannot be used as it is; the daemon prints the message and exits with 1."""


class CloudError(Exception):
    """Base of everything a provider raises on purpose; the message is shown to people.

    Without a message it is the name of the class that is shown.

    Attributes:
        partial: what is known in spite of the error, where the method says what that may be;
            None = nothing. An error that is raised from this one does not have it by itself.
        refusal: the answer that the error was made of, such as a `ccm.cloud.rest.Refusal`; None
            where there is none. The daemon never reads it.
    """

    partial: object = None
    refusal: object = None

    def carrying(self, partial: object) -> Self:
        """This error, with what is known in spite of it."""
        self.partial = partial
        return self

    def __str__(self) -> str:
        return super().__str__() or type(self).__name__


class NotFound(CloudError):
    """The thing asked for does not exist. Never raise it for a stopped instance."""


class DiskNotFound(NotFound):
    """The volume does not exist."""


class AlreadyExists(CloudError):
    """Something of that name exists already."""


class InvalidArgument(CloudError):
    """The request makes no sense to this cloud, a foreign provider ID included."""


class OutOfRange(CloudError):
    """A value is outside what the cloud accepts."""


class FailedPrecondition(CloudError):
    """The cloud refuses until somebody changes something; retrying soon is useless."""


class NotOwned(FailedPrecondition):
    """The VM of a provider ID is not the machine's; see `machines.check_owner`."""


class Unauthenticated(CloudError):
    """The cloud does not accept the credentials."""


class PermissionDenied(CloudError):
    """The credentials are valid but not allowed to do this."""


class ResourceExhausted(CloudError):
    """Quota or capacity is used up."""


class Unavailable(CloudError):
    """The cloud cannot be reached or answers with a fault of its own."""


class DeadlineExceeded(CloudError):
    """The call took longer than it may."""


class Aborted(CloudError):
    """The cloud gave up the operation, for example because of a concurrent one."""


class Uninitialized(CloudError):
    """The instance exists but its initialisation has to run again."""


class Unimplemented(CloudError):
    """This provider does not offer the operation."""


class ImplementedElsewhere(CloudError):
    """Another controller takes care of this object."""


class RetryAfter(CloudError):
    """Not yet: come back after `seconds`. No failure and no event.

    A time that is over already counts as 0, after which the daemon comes back as soon as it
    comes back at all. Raises ValueError for NaN and infinity.
    """

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryAfter needs a number of seconds, not {seconds}")
        self.seconds = max(0.0, seconds)


class Internal(CloudError):
    """The provider failed in a way it did not foresee."""


class DataLoss(CloudError):
    """The cloud lost or damaged something for good."""


class Canceled(CloudError):
    """The operation was cancelled on the cloud's side."""


class Unknown(CloudError):
    """The cloud gave an answer nobody can classify."""


class Retry(Enum):
    """When the daemon tries again, and whether people get a Warning event with the message."""

    BACK_OFF = "back off"
    """Exponential back-off from milliseconds to the queue's cap."""
    LONG = "back off long"
    """Exponential back-off that starts at half a minute."""
    SLOW = "slow"
    """Every ten minutes, and at once when the object changes."""
    AFTER = "after"
    """When the error says, and more rarely the longer it lasts; after a minute with an event."""
    NEVER = "never"
    """Not at all and without an event: the error is an answer."""

    @property
    def event(self) -> bool:
        """Whether people hear of it."""
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
"""Class -> retry where nothing more special applies; subclasses inherit their base's."""


def policy_for(error: CloudError) -> Retry:
    """When to try again after an error: as its class says, or the nearest base that does."""
    return next((POLICY[base] for base in type(error).__mro__ if base in POLICY), Retry.BACK_OFF)


def normalized(error: BaseException) -> CloudError:
    """The error a controller sees for whatever a provider raised.

    A `CloudError` stays itself. `RetryAfter`, `Unimplemented` and
    `ImplementedElsewhere` are also found among the causes of any other error, because
    they only ever make the daemon do less. `NotFound` is never dug out. The rest
    becomes `Internal`, or `DeadlineExceeded` for a bare timeout.

    An exception group, as a task group raises it, says what its members say; it is of
    their class where they agree and otherwise `Internal`, for part of the work may have
    failed in another way than the rest. It carries what the first of them carries.
    """
    if isinstance(error, BaseExceptionGroup):
        return _of_group(error)
    for cause in _chain(error):
        if isinstance(cause, RetryAfter | Unimplemented | ImplementedElsewhere):
            return cause
    if isinstance(error, CloudError):
        return error
    wrapper = DeadlineExceeded if isinstance(error, TimeoutError) else Internal
    return _wrapped(wrapper, _said(error), error)


def _of_group(group: BaseExceptionGroup[BaseException]) -> CloudError:
    found = [normalized(member) for member in group.exceptions]
    partial = next((member.partial for member in found if member.partial is not None), None)
    text = f"{group.message}: {'; '.join(map(str, found))}"
    kinds = {type(member) for member in found}
    if kinds == {RetryAfter}:
        seconds = max(member.seconds for member in found if isinstance(member, RetryAfter))
        again = _wrapped(lambda said: RetryAfter(said, seconds=seconds), text, group)
        return again.carrying(partial)
    kind = kinds.pop() if len(kinds) == 1 else Internal
    if kind not in POLICY or kind is NotFound:
        kind = Internal
    return _wrapped(kind, text, group).carrying(partial)


def _wrapped(make: Callable[[str], CloudError], text: str, original: BaseException) -> CloudError:
    made = make(text)
    made.__cause__ = original
    return made


def _said(error: BaseException) -> str:
    """Kind and text of an error of somebody else's."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an SDK's error may fail to show itself
        return kind
    return f"{kind}: {text}" if text else kind


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its explicit causes, nearest first; a loop of causes ends the walk."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__
    return found


class Code(NamedTuple):
    """One code: its number, and its name in texts and in `status.lastOperation.errorCode`."""

    number: int
    name: str


PREFIX = "machine codes error:"
"""Begins the text of an error; other words may stand before it."""

OK = Code(0, "OK")
"""No error; it has no class."""

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
        # Without one of their own. Who reads these tries again soon, and looks elsewhere.
        NotOwned: Code(9, "FailedPrecondition"),
        RetryAfter: Code(14, "Unavailable"),
        ImplementedElsewhere: Code(12, "Unimplemented"),
    }
)
"""Class -> code; a subclass has its base's. The first class of a code is what it is read as."""

_KINDS: dict[int | str, type[CloudError]] = {}
for _kind, _code in CODES.items():
    _KINDS.setdefault(_code.number, _kind)
    _KINDS.setdefault(_code.name, _kind)


def code_of(error: CloudError) -> Code:
    """The code of an error; one of no class that is known is `Unknown`."""
    own = (CODES[base] for base in type(error).__mro__ if base in CODES)
    return next(own, CODES[Unknown])


def kind_of(code: object) -> type[CloudError] | None:
    """The class of a code, given as number, name, or an enumeration of either; None: it is none."""
    if isinstance(code, Enum):
        return kind_of(code.value) or kind_of(code.name)
    return _KINDS.get(code) if isinstance(code, int | str) else None


def format_error(error: CloudError) -> str:
    """The text of an error, which `parse_error` and Gardener's controllers can read.

    Brackets that do not match would make it unreadable there; they become round ones.
    """
    said = str(error)
    if [*_groups(f"[{said}]")] != [said]:
        said = said.replace("[", "(").replace("]", ")")
    return f"{PREFIX} code = [{code_of(error).name}] message = [{said}]"


def parse_error(text: str) -> CloudError | None:
    """The error that such a text says; None: it is no such text.

    Behind `PREFIX` it has two groups in brackets, within which others may be. A first one that is
    no code is `Unknown`, as is OK: nobody raises a success.
    """
    match [*_groups(text.partition(PREFIX)[2])]:
        case [name, said]:
            return (kind_of(name) or Unknown)(said)
        case _:
            return None


def _groups(text: str) -> Iterator[str]:
    """What stands in brackets that stand in no others."""
    depth = start = 0
    for place, letter in enumerate(text):
        if letter == "[":
            depth += 1
            if depth == 1:
                start = place + 1
        elif letter == "]" and depth:
            depth -= 1
            if depth == 0:
                yield text[start:place]

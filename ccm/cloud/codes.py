"""The error tree in the words of the machine world: numbers, names, and one line of text.

Names and numbers are those of Gardener's driver interface, which are those of gRPC and one more;
the text is what its controllers write into `status.lastOperation.description` and read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from ccm.cloud import errors


class Code(NamedTuple):
    """One code: its number, and its name in texts and in `status.lastOperation.errorCode`."""

    number: int
    name: str


PREFIX = "machine codes error:"
"""Begins the text of an error; other words may stand before it."""

OK = Code(0, "OK")
"""No error; it has no class."""

CODES: Mapping[type[errors.CloudError], Code] = MappingProxyType(
    {
        errors.Canceled: Code(1, "Canceled"),
        errors.Unknown: Code(2, "Unknown"),
        errors.InvalidArgument: Code(3, "InvalidArgument"),
        errors.DeadlineExceeded: Code(4, "DeadlineExceeded"),
        errors.NotFound: Code(5, "NotFound"),
        errors.AlreadyExists: Code(6, "AlreadyExists"),
        errors.PermissionDenied: Code(7, "PermissionDenied"),
        errors.ResourceExhausted: Code(8, "ResourceExhausted"),
        errors.FailedPrecondition: Code(9, "FailedPrecondition"),
        errors.Aborted: Code(10, "Aborted"),
        errors.OutOfRange: Code(11, "OutOfRange"),
        errors.Unimplemented: Code(12, "Unimplemented"),
        errors.Internal: Code(13, "Internal"),
        errors.Unavailable: Code(14, "Unavailable"),
        errors.DataLoss: Code(15, "DataLoss"),
        errors.Unauthenticated: Code(16, "Unauthenticated"),
        errors.Uninitialized: Code(17, "Uninitialized"),
        # Without one of their own. Who reads these tries again soon, and looks elsewhere.
        errors.NotOwned: Code(9, "FailedPrecondition"),
        errors.RetryAfter: Code(14, "Unavailable"),
        errors.ImplementedElsewhere: Code(12, "Unimplemented"),
    }
)
"""Class -> code; a subclass has its base's. The first class of a code is what it is read as."""

_KINDS: dict[int | str, type[errors.CloudError]] = {}
for _kind, _code in CODES.items():
    _KINDS.setdefault(_code.number, _kind)
    _KINDS.setdefault(_code.name, _kind)


def code_of(error: errors.CloudError) -> Code:
    """The code of an error; one of no class that is known is `Unknown`."""
    own = (CODES[base] for base in type(error).__mro__ if base in CODES)
    return next(own, CODES[errors.Unknown])


def kind_of(code: object) -> type[errors.CloudError] | None:
    """The class of a code, given as number, name, or an enumeration of either; None: it is none."""
    if isinstance(code, Enum):
        return kind_of(code.value) or kind_of(code.name)
    return _KINDS.get(code) if isinstance(code, int | str) else None


def format_error(error: errors.CloudError) -> str:
    """The text of an error, which `parse_error` and Gardener's controllers can read.

    Brackets that do not match would make it unreadable there; they become round ones.
    """
    said = str(error)
    if [*_groups(f"[{said}]")] != [said]:
        said = said.replace("[", "(").replace("]", ")")
    return f"{PREFIX} code = [{code_of(error).name}] message = [{said}]"


def parse_error(text: str) -> errors.CloudError | None:
    """The error that such a text says; None: it is no such text.

    Behind `PREFIX` it has two groups in brackets, within which others may be. A first one that is
    no code is `Unknown`, as is OK: nobody raises a success.
    """
    match [*_groups(text.partition(PREFIX)[2])]:
        case [name, said]:
            return (kind_of(name) or errors.Unknown)(said)
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

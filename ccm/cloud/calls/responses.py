"""Whether a provider's answers are what its methods promise. Pure.

Python does not hold a provider to its type hints, so they are held to here, field by field. An
answer of a wrong kind is a fault of the provider, never taken for an answer: a forgotten
`return` must not read as "gone" or as "no addresses", nor end in a provider ID.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ccm.cloud.errors import Internal
from ccm.cloud.machines import MachineDriver, MachineInfo, MachineRecord
from ccm.cloud.types import InstanceState, Power

Check = Callable[[Any, str], None]
"""Raises InvalidResponse for an answer, found in the place of that name."""

_PLAIN = {bool: "True or False", str: "text", int: "a number"}


class InvalidResponse(Exception):
    """The answer is of a wrong kind; the message says what it was and what it should be."""

    def __init__(self, answer: object, place: str, wanted: str) -> None:
        found = reprlib.repr(answer) + (f" as {place}" if place else "")
        super().__init__(f"{found}, not {wanted}")


def verify(method: Callable[..., Any], answer: object) -> None:
    """Raise where an answer is not what a method of an interface promises.

    Raises:
        Internal: it is not, and the message says how.
    """
    try:
        _check_of(method)(answer, "")
    except InvalidResponse as wrong:
        raise Internal(f"{method.__name__} answered {wrong}") from None


@functools.cache
def _check_of(method: Callable[..., Any]) -> Check:
    """One that promises None may answer anything."""
    promised = get_type_hints(method)["return"]
    if promised is NoneType:
        return lambda _answer, _place: None
    return _check(promised) if method is not MachineDriver.create_machine else _made


@functools.cache
def _check(kind: Any) -> Check:
    inner = get_args(kind)
    match get_origin(kind):
        case None if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
            return _record(kind)
        case None:
            return _instance(kind)
        case origin if origin in (Union, UnionType):
            (wanted,) = (one for one in inner if one is not NoneType)
            return _optional(_check(wanted))
        case origin if origin is Sequence:
            return _sequence(inner[0])
        case origin if origin is Mapping:
            return _mapping(*inner)
        case origin if origin is Literal:
            return _literal(inner)
        case origin:
            raise TypeError(f"no rule for answers of {origin}")


def _instance(kind: type) -> Check:
    wanted = _said(kind)

    def check(answer: object, place: str) -> None:
        if not isinstance(answer, kind):
            raise InvalidResponse(answer, place, wanted)

    return check


def _record(kind: type) -> Check:
    whole = _instance(kind)
    fields = {name: _check(hint) for name, hint in get_type_hints(kind).items()}

    def check(answer: object, place: str) -> None:
        whole(answer, place)
        for name, field in fields.items():
            field(getattr(answer, name), name)
        # The one field whose absence means something only beside another one.
        if isinstance(answer, InstanceState) and answer.exists and answer.power is None:
            raise InvalidResponse(answer.power, "power", _said(Power))
        if isinstance(answer, MachineRecord):
            _identified(answer.info)

    return check


def _made(answer: Any, place: str) -> None:
    """A VM that was made."""
    _check(MachineInfo)(answer, place)
    _identified(answer)


def _identified(info: MachineInfo) -> None:
    # Stored, an empty one would read as "no VM yet": another would be made.
    if not info.provider_id:
        raise InvalidResponse(info.provider_id, "provider_id", "the ID of a VM")


def _optional(check_one: Check) -> Check:
    def check(answer: object, place: str) -> None:
        if answer is not None:
            check_one(answer, place)

    return check


def _sequence(kind: type) -> Check:
    entry = _check(kind)

    def check(answer: object, place: str) -> None:
        # The usual types first: asking an abstract one costs ten times as much.
        if not isinstance(answer, list | tuple | Sequence) or isinstance(answer, str | bytes):
            raise InvalidResponse(answer, place, f"a sequence of {kind.__name__}")
        for one in answer:
            entry(one, place)

    return check


def _mapping(key: type, value: type) -> Check:
    key_check, value_check = _check(key), _check(value)

    def check(answer: object, place: str) -> None:
        if not isinstance(answer, dict | Mapping):
            raise InvalidResponse(answer, place, "a mapping")
        for name, content in answer.items():
            key_check(name, place)
            value_check(content, f"{place}[{name!r}]")

    return check


def _literal(allowed: tuple[object, ...]) -> Check:
    def check(answer: object, place: str) -> None:
        if answer not in allowed:
            raise InvalidResponse(answer, place, " or ".join(map(repr, allowed)))

    return check


def _said(kind: type) -> str:
    name = kind.__name__
    return _PLAIN.get(kind) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

"""Single values: checked and brought into their one stored form."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ccm.base import clock

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_QUANTITY = re.compile(
    r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?"
)
_NAMES: Mapping[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean"}


class WrongTypeError(Exception):
    """A value whose JSON type is not the field's."""


def clean(kind: str, value: Any, path: str) -> Any:
    """The stored form of a scalar; `path` says which field it is, for errors.

    Raises:
        WrongTypeError: it is not of that kind.
    """
    if kind in ("string", "boolean"):
        return expect(value, str if kind == "string" else bool, path)
    if kind in ("int32", "int64"):
        return _clean_integer(kind, value, path)
    if kind == "bytes":
        return _check_base64(expect(value, str, path), path)
    if kind in ("time", "micro"):
        return format_time(parse_time(expect(value, str, path), path), micro=kind == "micro")
    if kind == "quantity":
        return _clean_quantity(value, path)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "number" and not is_number:
        raise _mismatch(value, path, "number")
    if kind == "int-or-string" and not isinstance(value, str) and not is_number:
        raise _mismatch(value, path, "integer or string")
    return value


def _clean_integer(kind: str, value: Any, path: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    bits = 31 if kind == "int32" else 63
    if isinstance(value, bool) or not whole or not -(2**bits) <= value < 2**bits:
        raise _mismatch(value, path, kind)
    return int(value)


def _clean_quantity(value: Any, path: str) -> str:
    text = str(value) if isinstance(value, int | float) and value is not True else value
    if not isinstance(text, str) or _QUANTITY.fullmatch(text) is None:
        raise WrongTypeError(f"{path}: quantities must be a number with a suffix such as Mi or m")
    return canonical_quantity(text)


@functools.lru_cache(maxsize=4096)
def canonical_quantity(text: str) -> str:
    """A resource quantity as Kubernetes writes it: `2000m` is `2`, `1024Mi` is `1Gi`.

    The kind of suffix stays, binary or decimal (an exponent becomes one); the number before
    it becomes a whole one with the largest suffix that allows it.
    """
    number, suffix = re.fullmatch(r"([+-]?[\d.]+)(.*)", text).groups()  # type: ignore[union-attr]
    amount = decimal.Decimal(number)
    if suffix.endswith("i"):
        return _largest(amount * 1024 ** _BINARY.index(suffix), 1024, _BINARY)
    is_exponent = suffix[:1] in ("e", "E") and len(suffix) > 1
    exponent = int(suffix[1:]) if is_exponent else _DECIMAL[suffix]
    return _largest(amount.scaleb(exponent + 9), 1000, list(_DECIMAL))


def _largest(amount: decimal.Decimal, step: int, suffixes: Sequence[str]) -> str:
    whole, place = int(amount.to_integral_value("ROUND_CEILING")), 0
    while whole and whole % step == 0 and place < len(suffixes) - 1:
        whole, place = whole // step, place + 1
    return f"{whole}{suffixes[place]}" if whole else "0"


def _check_base64(value: str, path: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise WrongTypeError(f"{path}: illegal base64 data") from error
    return value


def parse_time(text: str, path: str = "time") -> datetime.datetime:
    """An RFC 3339 time.

    Raises:
        WrongTypeError: the text is no such time.
    """
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongTypeError(f"{path}: {text!r} is no RFC 3339 time") from error
    if parsed.tzinfo is None:
        raise WrongTypeError(f"{path}: {text!r} has no time zone")
    return parsed


def format_time(moment: datetime.datetime, *, micro: bool = False) -> str:
    """RFC 3339 in UTC, whole seconds or with six digits of fraction."""
    text = moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment.microsecond:06d}Z" if micro else f"{text}Z"


def now() -> str:
    """The present time as metadata has it: whole seconds, UTC."""
    return format_time(clock.now())


def expect(value: Any, wanted: type, path: str, name: str = "") -> Any:
    """The value, if it is of the wanted type.

    Raises:
        WrongTypeError: it is not.
    """
    if not isinstance(value, wanted):
        raise _mismatch(value, path, name or _NAMES[wanted])
    return value


def _mismatch(value: Any, path: str, wanted: str) -> WrongTypeError:
    return WrongTypeError(f"{path}: must be {wanted}, not {_NAMES.get(type(value), 'number')}")

"""Single values: checked and brought into their one stored form.

Failures are told in the words of Kubernetes' decoder, with the Go type it would name.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import functools
import re
from typing import Any

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_DECIMAL_SUFFIXES = {power: suffix for suffix, power in _DECIMAL.items()}
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


class WrongTypeError(Exception):
    """A value whose JSON type is not the field's, in the words of Kubernetes' decoder."""


def clean(kind: str, value: Any, path: str, owner: str) -> Any:
    """The stored form of a scalar; `path` and `owner` say which field it is, for errors.

    Raises:
        WrongTypeError: it is not of that kind.
    """
    if kind in ("string", "bytes"):
        expect(value, str, path, owner, "string")
        if kind == "bytes":
            _check_base64(value)
        return value
    if kind in ("int32", "int64"):
        return _clean_integer(kind, value, path, owner)
    if kind == "boolean":
        return expect(value, bool, path, owner, "bool")
    if kind in ("time", "micro"):
        expect(value, str, path, owner, "string")
        return format_time(parse_time(value), micro=kind == "micro")
    if kind == "quantity":
        return _clean_quantity(value)
    if kind == "int-or-string" and (not isinstance(value, int | str) or isinstance(value, bool)):
        raise WrongTypeError("json: cannot unmarshal value into Go value of type intstr")
    return value


def _clean_integer(kind: str, value: Any, path: str, owner: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    bits = 31 if kind == "int32" else 63
    if isinstance(value, bool) or not whole or not -(2**bits) <= value < 2**bits:
        raise WrongTypeError(_mismatch(value, path, owner, kind))
    return int(value)


def _clean_quantity(value: Any) -> str:
    text = str(value) if isinstance(value, int | float) and value is not True else value
    if not isinstance(text, str) or _QUANTITY.fullmatch(text) is None:
        raise WrongTypeError(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return canonical_quantity(text)


@functools.lru_cache(maxsize=4096)
def canonical_quantity(text: str) -> str:
    """A resource quantity as Kubernetes writes it: `2000m` is `2`, `1024Mi` is `1Gi`.

    The kind of suffix stays: binary, decimal or exponent; the number before it becomes
    a whole one with the largest suffix that allows it.
    """
    number, suffix = re.fullmatch(r"([+-]?[\d.]+)(.*)", text).groups()  # type: ignore[union-attr]
    amount = decimal.Decimal(number)
    if suffix.endswith("i"):
        whole = int((amount * 1024 ** _BINARY.index(suffix)).to_integral_value("ROUND_CEILING"))
        power = 0
        while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
            whole, power = whole // 1024, power + 1
        return f"{whole}{_BINARY[power]}"
    exponent = int(suffix[1:]) if suffix[:1] in ("e", "E") and suffix[1:] else _DECIMAL[suffix]
    nano = int((amount.scaleb(exponent + 9)).to_integral_value("ROUND_CEILING"))
    power = -9
    while nano and nano % 1000 == 0 and power < 18:
        nano, power = nano // 1000, power + 3
    if not nano:
        return "0"
    if suffix[:1] in ("e", "E") and suffix[1:]:
        return f"{nano}e{power}" if power else str(nano)
    return f"{nano}{_DECIMAL_SUFFIXES[power]}"


def _check_base64(value: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise WrongTypeError("illegal base64 data") from error


def parse_time(text: str) -> datetime.datetime:
    """An RFC 3339 time.

    Raises:
        WrongTypeError: the text is no such time.
    """
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongTypeError(
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse'
        ) from error
    if parsed.tzinfo is None:
        raise WrongTypeError(f'parsing time "{text}": it has no time zone')
    return parsed


def format_time(moment: datetime.datetime, *, micro: bool = False) -> str:
    """RFC 3339 in UTC, whole seconds or with six digits of fraction."""
    text = moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment.microsecond:06d}Z" if micro else f"{text}Z"


def expect(value: Any, wanted: type, path: str, owner: str, go_type: str) -> Any:
    """The value, if it is of the wanted type.

    Raises:
        WrongTypeError: it is not.
    """
    if not isinstance(value, wanted):
        raise WrongTypeError(_mismatch(value, path, owner, go_type))
    return value


def _mismatch(value: Any, path: str, owner: str, go_type: str) -> str:
    field = re.sub(r"\[\d+\]", "", path)
    found = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "bool",
        int: "number",
        float: "number",
    }[type(value)]
    return f"json: cannot unmarshal {found} into Go struct field {owner}.{field} of type {go_type}"

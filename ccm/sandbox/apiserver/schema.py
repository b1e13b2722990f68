"""Shapes of the served types: one table for checking, merging and explaining.

The tables (`types_*.py`) hold one type per entry, in this notation, which says all
that the server must know about a field::

    NodeSpec = podCIDRs:[s]@ providerID taints:[Taint] unschedulable:b

    name            an optional string
    name:TYPE       i int32, l int64, f number, b boolean, s string, bytes, time, micro
                    (time with microseconds), q quantity, ios (integer or string), any;
                    [T] a list, {T} a map from strings, Name another entry of the tables
    s(A|B)          a string with these choices
    name!           required, and always present in what the server stores
    name=           optional, and always present all the same (as null, "" or {})
    name*           absent and zero differ: a zero is kept
    ...@key         strategic merge patches merge this list by the elements' `key`
    ...@            strategic merge patches merge this list of plain values as a set
    ...+            a patch may name the keys to retain

`Schema.clean` brings an object into the one form in which it is stored: unknown
fields and nulls go (unknown ones are reported), zero values go where Kubernetes'
own encoding leaves them out, and always-present fields come. So two objects that mean
the same are equal, which is how the store knows that a write changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import functools
import re
from collections.abc import Iterator
from typing import Any

from ccm.sandbox.apiserver import types_core, types_meta, types_pod

CORE_PACKAGE = "io.k8s.api.core.v1"
META_PACKAGE = "io.k8s.apimachinery.pkg.apis.meta.v1"
COORDINATION_PACKAGE = "io.k8s.api.coordination.v1"
AUTHORIZATION_PACKAGE = "io.k8s.api.authorization.v1"

_PACKAGES = (
    (META_PACKAGE, types_meta.META),
    (COORDINATION_PACKAGE, types_meta.COORDINATION),
    (AUTHORIZATION_PACKAGE, types_meta.AUTHORIZATION),
    (CORE_PACKAGE, types_core.CORE),
    (CORE_PACKAGE, types_pod.POD),
)
_SCALARS = {
    "s": "string",
    "i": "int32",
    "l": "int64",
    "f": "number",
    "b": "boolean",
    "q": "quantity",
    "ios": "int-or-string",
}
_ENTRY = re.compile(r"(?P<name>[A-Za-z$]\w*)(?P<mark>[!=*]?)(?::(?P<shape>.+))?")
_SHAPE = re.compile(r"(?P<body>[^@+(]+)(?:\((?P<enum>[^)]*)\))?(?P<merge>@\w*)?(?P<retain>\+)?")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


class WrongTypeError(Exception):
    """A value whose JSON type is not the field's, in the words of Kubernetes' decoder."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The type of a value: a scalar's name, `list`, `map`, or `ref` to a named type."""

    kind: str
    item: Shape | None = None
    ref: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a type; the module's docstring tells the marks."""

    name: str
    shape: Shape
    required: bool = False
    always: bool = False
    keeps_zero: bool = False
    merge: bool = False
    merge_key: str = ""
    retain_keys: bool = False
    enum: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """A named type and its fields."""

    name: str
    package: str
    fields: dict[str, Field]
    always: tuple[Field, ...]

    @property
    def full_name(self) -> str:
        """The name that OpenAPI documents use."""
        return f"{self.package}.{self.name}"


class Schema:
    """All types of the tables, by name."""

    def __init__(self, types: dict[str, Type]) -> None:
        self._types = types

    def __getitem__(self, name: str) -> Type:
        return self._types[name]

    def __iter__(self) -> Iterator[Type]:
        return iter(self._types.values())

    def clean(self, name: str, value: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
        """The stored form of an object of the type `name`.

        Paths of unknown fields are added to `unknown`. `apiVersion` and `kind` of the
        object itself pass through untouched.

        Raises:
            WrongTypeError: a value is not of its field's type.
        """
        head = {key: value[key] for key in ("kind", "apiVersion") if key in value}
        rest = {key: item for key, item in value.items() if key not in head}
        return head | self._clean_struct(self._types[name], rest, "", unknown)

    def _clean_struct(
        self, shape: Type, value: dict[str, Any], path: str, unknown: list[str]
    ) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        fields = shape.fields
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                unknown.append(path + key)
                continue
            if item is None:
                continue
            if field.shape.kind == "string" and type(item) is str:
                if item or field.always or field.keeps_zero:
                    cleaned[key] = item
                continue
            found = self._clean_value(field.shape, item, path + key, unknown, shape.name)
            if found or field.always or field.keeps_zero or field.shape.kind == "ref":
                cleaned[key] = found
        for field in shape.always:
            if field.name not in cleaned:
                cleaned[field.name] = self._zero(field.shape)
        return cleaned

    def _clean_value(
        self, shape: Shape, value: Any, path: str, unknown: list[str], owner: str
    ) -> Any:
        kind = shape.kind
        if kind == "ref":
            _expect(value, dict, path, owner, shape.ref)
            return self._clean_struct(self._types[shape.ref], value, f"{path}.", unknown)
        if kind == "list":
            assert shape.item is not None
            _expect(value, list, path, owner, f"[]{_go_type(shape.item)}")
            item = shape.item
            return [
                self._clean_value(item, each, f"{path}[{number}]", unknown, owner)
                if each is not None
                else self._zero(item)
                for number, each in enumerate(value)
            ]
        if kind == "map":
            assert shape.item is not None
            _expect(value, dict, path, owner, f"map[string]{_go_type(shape.item)}")
            item = shape.item
            return {
                key: self._clean_value(item, each, f"{path}.{key}", unknown, owner)
                if each is not None
                else self._zero(item)
                for key, each in value.items()
            }
        return _clean_scalar(kind, value, path, owner)

    def _zero(self, shape: Shape) -> Any:
        if shape.kind == "ref":
            return self._clean_struct(self._types[shape.ref], {}, "", [])
        if shape.kind in ("string", "quantity"):
            return "" if shape.kind == "string" else "0"
        if shape.kind in ("int32", "int64", "number", "int-or-string"):
            return 0
        return False if shape.kind == "boolean" else None


@functools.cache
def kubernetes() -> Schema:
    """The schema of everything this server serves."""
    types: dict[str, Type] = {}
    for package, text in _PACKAGES:
        for parsed in parse(text, package=package):
            types[parsed.name] = parsed
    return Schema(types)


def parse(text: str, *, package: str) -> Iterator[Type]:
    """The types of one table.

    Raises:
        ValueError: an entry does not follow the notation.
    """
    joined = re.sub(r"\n +", " ", text.strip("\n"))
    for line in joined.splitlines():
        name, _, rest = line.partition(" = ")
        fields = [_parse_field(token) for token in rest.split()]
        yield Type(
            name=name,
            package=package,
            fields={field.name: field for field in fields},
            always=tuple(field for field in fields if field.always),
        )


def _parse_field(token: str) -> Field:
    found = _ENTRY.fullmatch(token)
    shape = _SHAPE.fullmatch(found["shape"] or "s") if found else None
    if found is None or shape is None:
        raise ValueError(f"not a field: {token!r}")
    mark = found["mark"]
    return Field(
        name=found["name"],
        shape=_parse_shape(shape["body"]),
        required=mark == "!",
        always=mark in ("!", "="),
        keeps_zero=mark == "*",
        merge=shape["merge"] is not None,
        merge_key=(shape["merge"] or "@")[1:],
        retain_keys=shape["retain"] is not None,
        enum=tuple(shape["enum"].split("|")) if shape["enum"] else (),
    )


def _parse_shape(text: str) -> Shape:
    if text[0] == "[":
        return Shape(kind="list", item=_parse_shape(text[1:-1]))
    if text[0] == "{":
        return Shape(kind="map", item=_parse_shape(text[1:-1]))
    if text[0].isupper():
        return Shape(kind="ref", ref=text)
    return Shape(kind=_SCALARS.get(text, text))


def _clean_scalar(kind: str, value: Any, path: str, owner: str) -> Any:
    if kind in ("string", "bytes"):
        _expect(value, str, path, owner, "string")
        if kind == "bytes":
            _check_base64(value)
        return value
    if kind in ("int32", "int64"):
        return _clean_integer(kind, value, path, owner)
    if kind == "boolean":
        return _expect(value, bool, path, owner, "bool")
    if kind in ("time", "micro"):
        _expect(value, str, path, owner, "string")
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
    return text


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


def _expect(value: Any, wanted: type, path: str, owner: str, go_type: str) -> Any:
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


def _go_type(shape: Shape) -> str:
    return shape.ref or {"boolean": "bool"}.get(shape.kind, shape.kind)

"""Types of objects: one description for validation, defaults, merging and decoding.

`types.txt` describes built-in kinds in a notation of one type per entry::

    NodeSpec = podCIDRs#7:[s]@ providerID#3 taints#5:[Taint] unschedulable#4:b

    name#3          an optional string, field 3 in protobuf
    name#3:TYPE     i int32, l int64, f number, b boolean, s string, bytes, time, micro
                    (time with microseconds), q quantity, ios (integer or string), any (not
                    validated); [T] a list, {T} a map from strings, Name another entry
    s(A|B)          a string enum
    i<1-9>          a number with these limits
    name#3!         required, and always present in the stored object
    name#3=         optional, but always present in the stored object (as null, "" or {})
    name#3*         absent and zero differ: a zero is kept
    ...@key         strategic merge patches merge this list by the elements' `key`
    ...@            strategic merge patches merge this list of plain values as a set
    ...~value       the default, as YAML
    ...             (three dots in place of a field) unlisted fields are kept

`structural` converts the OpenAPI schema of a custom resource to the same types.

`clean` returns the canonical form in which an object is stored. It removes unknown fields (and
reports them), nulls, and zero values that Kubernetes' own encoding omits, and adds always-present
fields. Equal objects compare equal, so that the store detects writes that change nothing. `fill`
adds defaults, `faults` validates enums and limits.
"""

from __future__ import annotations

import copy
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ccm.base import clock
from ccm.model import times
from ccm.testing.apiserver import errors

_TABLE = pathlib.Path(__file__).with_name("types.txt")
_SCALARS = {
    "s": "string", "i": "int32", "l": "int64", "f": "number", "b": "boolean", "q": "quantity",
    "ios": "int-or-string",
}  # fmt: skip
_ENTRY = re.compile(
    r"(?P<name>[A-Za-z]\w*)#(?P<number>\d+)(?P<mark>[!=*]?)"
    r"(?::(?P<shape>[^@~]+))?(?P<merge>@\w*)?(?:~(?P<default>.+))?"
)
_ZEROS = {"string": "", "quantity": "0", "boolean": False} | dict.fromkeys(
    ("int32", "int64", "number", "int-or-string"), 0
)
_HOLDERS = {"list": list, "map": dict}
_MISSING: Any = object()
_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "bytes": str, "boolean": bool, "number": (int, float),
    "int-or-string": (int, str), "quantity": (int, float, str),
}  # fmt: skip
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: value >= limit, "must be at least {}"),
    "maximum": (lambda value, limit: value <= limit, "must be at most {}"),
    "minLength": (lambda value, limit: len(value) >= limit, "must have at least {} characters"),
    "maxLength": (lambda value, limit: len(value) <= limit, "must have at most {} characters"),
    "minItems": (lambda value, limit: len(value) >= limit, "must have at least {} items"),
    "maxItems": (lambda value, limit: len(value) <= limit, "must have at most {} items"),
    "pattern": (lambda value, limit: re.search(limit, value) is not None, "must match {}"),
}


class WrongTypeError(Exception):
    """A value whose JSON type does not match its field."""


def now() -> str:
    """Return the current time in the format of metadata: whole seconds, UTC."""
    return times.format_time(clock.now())


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """The type of a value: a scalar's name, `list` or `map` of items, `object`, or `any`."""

    kind: str
    item: ValueType | None = None
    type: Type | None = None
    enum: tuple[Any, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a type; the module's docstring explains the attributes."""

    name: str
    shape: ValueType
    number: int = 0
    required: bool = False
    always: bool = False
    keeps_zero: bool = False
    nullable: bool = False
    merge: bool = False
    merge_key: str = ""
    default: Any = _MISSING


@dataclass(frozen=True, kw_only=True)
class Type:
    """A named type and its fields; `is_open` keeps unlisted fields."""

    name: str
    fields: Mapping[str, Field]
    is_open: bool = False

    @functools.cached_property
    def always(self) -> list[Field]:
        """The fields that are always stored."""
        return [member for member in self.fields.values() if member.always]

    @functools.cached_property
    def defaulted(self) -> list[Field]:
        """The fields with a default."""
        return [member for member in self.fields.values() if member.default is not _MISSING]


def clean(
    shape: Type,
    value: dict[str, Any],
    unknown: list[str],
    known: Mapping[str, Any] | None = None,
    path: str = "",
) -> dict[str, Any]:
    """Return the stored form of an object.

    Adds paths of unknown fields to `unknown`. Values equal to those in `known`, an object in
    stored form, are reused without cleaning: a patch leaves most of an object unchanged.

    Raises:
        WrongTypeError: a value does not have its field's type.
    """
    cleaned: dict[str, Any] = {}
    for key, item in value.items():
        member = shape.fields.get(key)
        if member is None:
            if shape.is_open:
                cleaned[key] = item
            else:
                unknown.append(path + key)
            continue
        if item is None:
            if member.nullable:
                cleaned[key] = None
            continue
        before = known.get(key) if known else None
        if before is not None and before == item and type(before) is type(item):
            cleaned[key] = before
            continue
        if type(item) is str and member.shape.kind == "string":
            cleaned_value: Any = item
        else:
            cleaned_value = _clean_value(member.shape, item, unknown, before, path + key)
        if (
            cleaned_value
            or member.always
            or member.keeps_zero
            or member.shape.kind in ("object", "any")
        ):
            cleaned[key] = cleaned_value
    for member in shape.always:
        if member.name not in cleaned:
            cleaned[member.name] = _zero(member.shape)
    return cleaned


def _clean_value(shape: ValueType, value: Any, unknown: list[str], before: Any, path: str) -> Any:
    if shape.type is not None:
        _expect(value, dict, path)
        below = before if isinstance(before, dict) else None
        return clean(shape.type, value, unknown, below, f"{path}.")
    if shape.item is None:
        return _clean_scalar(shape.kind, value, path)
    item = shape.item
    items = [
        _zero(item) if entry is None else _clean_value(item, entry, unknown, None, place)
        for place, entry in _items(_expect(value, _HOLDERS[shape.kind], path), path)
    ]
    return items if shape.kind == "list" else dict(zip(value, items, strict=True))


def _expect(value: Any, wanted: type | tuple[type, ...], path: str) -> Any:
    is_stray_boolean = isinstance(value, bool) and wanted is not bool
    if is_stray_boolean or not isinstance(value, wanted):
        raise WrongTypeError(f"{path}: type {type(value).__name__} does not match the field's type")
    return value


def _clean_scalar(kind: str, value: Any, path: str) -> Any:
    if kind in ("int32", "int64"):
        bits = 31 if kind == "int32" else 63
        whole = not isinstance(value, float) or value.is_integer()
        if not whole or not -(2**bits) <= _expect(value, (int, float), path) < 2**bits:
            raise WrongTypeError(f"{path}: {value} is not a valid {kind}")
        return int(value)
    if kind in ("time", "micro"):
        try:
            moment = times.parse_time(_expect(value, str, path))
        except ValueError as error:
            raise WrongTypeError(f"{path}: {error}") from error
        return times.format_micro_time(moment) if kind == "micro" else times.format_time(moment)
    if kind in _JSON_TYPES:
        _expect(value, _JSON_TYPES[kind], path)
    return str(value) if kind == "quantity" else value


def _zero(shape: ValueType) -> Any:
    if shape.type is not None:
        return clean(shape.type, {}, [])
    return _ZEROS.get(shape.kind)


def fill(shape: Type, value: dict[str, Any]) -> None:
    """Set the defaults of missing fields."""
    for member in shape.defaulted:
        is_null = member.nullable and member.name in value
        if value.get(member.name) is None and not is_null:
            value[member.name] = copy.deepcopy(member.default)
    for key, child in value.items():
        if key in shape.fields:
            _fill_below(shape.fields[key].shape, child)


def _fill_below(shape: ValueType, value: Any) -> None:
    if shape.type is not None and isinstance(value, dict):
        fill(shape.type, value)
    elif shape.item is not None and (shape.item.type or shape.item.item):
        for _, entry in _items(value, ""):
            _fill_below(shape.item, entry)


def _items(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [(f"{path}[{number}]", entry) for number, entry in enumerate(value)]
    return [(f"{path}.{key}", entry) for key, entry in (value or {}).items()]


def faults(shape: Type, value: Mapping[str, Any], path: str = "") -> Iterator[errors.StatusCause]:
    """Yield causes for missing required fields, and for values outside their enums and limits."""
    for member in shape.fields.values():
        # An always-present field has a zero value if the client omitted it.
        if member.required and not member.always and member.name not in value:
            yield errors.required(path + member.name)
    for key, child in value.items():
        if key in shape.fields and child is not None:
            yield from _value_faults(shape.fields[key].shape, child, path + key)


def _value_faults(shape: ValueType, value: Any, path: str) -> Iterator[errors.StatusCause]:
    if shape.enum and value not in shape.enum:
        choices = ", ".join(map(str, shape.enum))
        yield errors.StatusCause(path, f"Unsupported value: {value!r}: supported values: {choices}")
    for name, limit in shape.limits.items():
        holds, text = _LIMITS[name]
        if not holds(value, limit):
            yield errors.StatusCause(path, f"Invalid value: {value!r}: {text.format(limit)}")
    if shape.type is not None:
        yield from faults(shape.type, value, f"{path}.")
    elif shape.item is not None:
        for place, entry in _items(value, path):
            yield from _value_faults(shape.item, entry, place)


@functools.cache
def kubernetes() -> dict[str, Type]:
    """Return all types of `types.txt` by name."""
    types: dict[str, Type] = {}
    for table in re.split(r"\n\n(?=\[)", _TABLE.read_text())[1:]:
        package, _, text = table.partition("]\n")
        types.update(parse(text, package[1:], types))
    return types


def parse(text: str, package: str, known: Mapping[str, Type]) -> dict[str, Type]:
    """Return the types of one table; they may refer to each other and to types in `known`.

    Raises:
        ValueError: an entry does not follow the notation.
        KeyError: an entry refers to an unknown type.
    """
    lines = re.sub(r"\n +", " ", text.strip("\n")).splitlines()
    entries = dict(line.split(" = ", 1) for line in lines if line)
    types: dict[str, Type] = {}

    def resolve(name: str) -> Type:
        if name in known:
            return known[name]
        if name not in types:
            words = entries[name].split()
            fields = [_parse_field(word, resolve) for word in words if word != "..."]
            types[name] = Type(
                name=f"{package}.{name}",
                fields={member.name: member for member in fields},
                is_open="..." in words,
            )
        return types[name]

    for name in entries:
        resolve(name)
    return types


def _parse_field(token: str, resolve: Any) -> Field:
    match = _ENTRY.fullmatch(token)
    if match is None:
        raise ValueError(f"invalid field: {token!r}")
    mark, default = match["mark"], match["default"]
    return Field(
        name=match["name"],
        number=int(match["number"]),
        shape=_parse_shape(match["shape"] or "s", resolve),
        required=mark == "!",
        always=mark in ("!", "="),
        keeps_zero=mark == "*",
        merge=match["merge"] is not None,
        merge_key=(match["merge"] or "@")[1:],
        default=_MISSING if default is None else yaml.safe_load(default),
    )


def _parse_shape(text: str, resolve: Any) -> ValueType:
    if text[0] in "[{":
        kind = "list" if text[0] == "[" else "map"
        return ValueType(kind=kind, item=_parse_shape(text[1:-1], resolve))
    if text[0].isupper():
        return ValueType(kind="object", type=resolve(text))
    name, _, choices = text.partition("(")
    enum = tuple(choices[:-1].split("|")) if choices else ()
    name, _, limit = name.partition("<")
    least, _, most = limit.rstrip(">").partition("-")
    bounds = {"minimum": least, "maximum": most}
    limits = {key: int(bound) for key, bound in bounds.items() if bound}
    return ValueType(kind=_SCALARS.get(name, name), enum=enum, limits=limits)


def structural(openapi: Mapping[str, Any], name: str) -> Type:
    """Return the type of a whole custom object: its OpenAPI schema, and metadata.

    Raises:
        ValueError: the schema is not structural.
        KeyError: an array has no `items`.
    """
    root = _openapi_shape(openapi, name).type
    if root is None:
        raise ValueError("openAPIV3Schema.type must be object")
    fields = {
        key: member for key, member in root.fields.items() if key not in ("apiVersion", "kind")
    }
    whole = ValueType(kind="object", type=kubernetes()["ObjectMeta"])
    fields["metadata"] = Field(name="metadata", shape=whole, always=True)
    return Type(name=name, fields=fields, is_open=root.is_open)


def _openapi_shape(openapi: Mapping[str, Any], path: str) -> ValueType:
    is_open = bool(openapi.get("x-kubernetes-preserve-unknown-fields"))
    limits = {name: openapi[name] for name in _LIMITS if name in openapi}
    more: dict[str, Any] = {"enum": tuple(openapi.get("enum", ())), "limits": limits}
    kind = openapi.get("type")
    if openapi.get("x-kubernetes-int-or-string"):
        return ValueType(kind="int-or-string")
    if kind == "array":
        item = _openapi_shape(openapi["items"], f"{path}[]")
        return ValueType(kind="list", item=item, **more)
    if kind == "object" and isinstance(openapi.get("additionalProperties"), Mapping):
        item = _openapi_shape(openapi["additionalProperties"], f"{path}.*")
        return ValueType(kind="map", item=item, **more)
    if kind == "object":
        required = openapi.get("required", ())
        fields = {
            key: Field(
                name=key,
                shape=_openapi_shape(subschema, f"{path}.{key}"),
                required=key in required,
                keeps_zero=True,
                nullable=bool(subschema.get("nullable")),
                default=subschema.get("default", _MISSING),
            )
            for key, subschema in (openapi.get("properties") or {}).items()
        }
        return ValueType(kind="object", type=Type(name="", fields=fields, is_open=is_open))
    if kind == "integer":
        return ValueType(kind="int32" if openapi.get("format") == "int32" else "int64", **more)
    if kind is None and is_open:
        return ValueType(kind="any")
    if kind not in ("string", "boolean", "number"):
        raise ValueError(f"{path}: type is {kind!r}; must be a supported type")
    return ValueType(kind=kind, **more)

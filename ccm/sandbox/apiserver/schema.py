"""Shapes of the served types: one table for checking, merging and explaining.

The tables (`types_*.py`) hold one type per entry, in this notation, which says all
that the server must know about a field::

    NodeSpec = podCIDRs#7:[s]@ providerID#3 taints#5:[Taint] unschedulable#4:b

    name#3          an optional string, field 3 in protobuf (#1.2: field 2 of the
                    message in field 1, which JSON does not show)
    name#3:TYPE     i int32, l int64, f number, b boolean, s string, bytes, time, micro
                    (time with microseconds), q quantity, ios (integer or string), fields
                    (an ownership set of any content);
                    [T] a list, {T} a map from strings, Name another entry of the tables
    s(A|B)          a string with these choices
    name#3!         required, and always present in what the server stores
    name#3=         optional, and always present all the same (as null, "" or {})
    name#3*         absent and zero differ: a zero is kept
    ...@key         strategic merge patches merge this list by the elements' `key`
    ...@            strategic merge patches merge this list of plain values as a set
    ...+            a patch may name the keys to retain

`Schema.clean` brings an object into the one form in which it is stored: unknown
fields and nulls go (unknown ones are reported), zero values go where Kubernetes'
own encoding leaves them out, and always-present fields come. So two objects that mean
the same are equal, which is how the store knows that a write changes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ccm.sandbox.apiserver import scalars, types_apps, types_core, types_meta, types_pod

CORE_PACKAGE = "io.k8s.api.core.v1"
META_PACKAGE = "io.k8s.apimachinery.pkg.apis.meta.v1"
COORDINATION_PACKAGE = "io.k8s.api.coordination.v1"
AUTHORIZATION_PACKAGE = "io.k8s.api.authorization.v1"
APPS_PACKAGE = "io.k8s.api.apps.v1"

_PACKAGES = (
    (META_PACKAGE, types_meta.META),
    (COORDINATION_PACKAGE, types_meta.COORDINATION),
    (AUTHORIZATION_PACKAGE, types_meta.AUTHORIZATION),
    (CORE_PACKAGE, types_core.CORE),
    (CORE_PACKAGE, types_pod.POD),
    (APPS_PACKAGE, types_apps.APPS),
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
_ENTRY = re.compile(r"(?P<name>[A-Za-z]\w*)#(?P<number>[\d.]+)(?P<mark>[!=*]?)(?::(?P<shape>.+))?")
_SHAPE = re.compile(r"(?P<body>[^@+(]+)(?:\((?P<enum>[^)]*)\))?(?P<merge>@\w*)?(?P<retain>\+)?")


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
    number: tuple[int, ...]
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

    def clean(
        self,
        name: str,
        value: dict[str, Any],
        unknown: list[str],
        *,
        known: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The stored form of an object of the type `name`.

        Paths of unknown fields are added to `unknown`. `apiVersion` and `kind` of the
        object itself pass through untouched. What is equal in `known`, an object in
        stored form, is taken as it is: most of an object stays when it is patched.

        Raises:
            WrongTypeError: a value is not of its field's type.
        """
        head = {key: value[key] for key in ("kind", "apiVersion") if key in value}
        rest = {key: item for key, item in value.items() if key not in head}
        return head | self._clean_struct(self._types[name], rest, "", unknown, known or {})

    def _clean_struct(
        self,
        shape: Type,
        value: dict[str, Any],
        path: str,
        unknown: list[str],
        known: Mapping[str, Any],
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
            before = known.get(key)
            if before is not None and before == item:
                cleaned[key] = before
                continue
            if field.shape.kind == "ref":
                scalars.expect(item, dict, path + key, shape.name, field.shape.ref)
                inner = self._types[field.shape.ref]
                below = before if isinstance(before, dict) else {}
                cleaned[key] = self._clean_struct(inner, item, f"{path}{key}.", unknown, below)
                continue
            found = self._clean_value(field.shape, item, path + key, unknown, shape.name)
            if found or field.always or field.keeps_zero:
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
            scalars.expect(value, dict, path, owner, shape.ref)
            return self._clean_struct(self._types[shape.ref], value, f"{path}.", unknown, {})
        if kind == "list":
            assert shape.item is not None
            scalars.expect(value, list, path, owner, f"[]{_go_type(shape.item)}")
            item = shape.item
            return [
                self._clean_value(item, each, f"{path}[{number}]", unknown, owner)
                if each is not None
                else self._zero(item)
                for number, each in enumerate(value)
            ]
        if kind == "map":
            assert shape.item is not None
            scalars.expect(value, dict, path, owner, f"map[string]{_go_type(shape.item)}")
            item = shape.item
            return {
                key: self._clean_value(item, each, f"{path}.{key}", unknown, owner)
                if each is not None
                else self._zero(item)
                for key, each in value.items()
            }
        return scalars.clean(kind, value, path, owner)

    def _zero(self, shape: Shape) -> Any:
        if shape.kind == "ref":
            return self._clean_struct(self._types[shape.ref], {}, "", [], {})
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
        number=tuple(int(step) for step in found["number"].split(".")),
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


def _go_type(shape: Shape) -> str:
    return shape.ref or {"boolean": "bool"}.get(shape.kind, shape.kind)

"""CustomResourceDefinitions of API groups of machines, generated from their wire types."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec.inspect as wire

from ccm.kube.resources import CRDS, ResourceKind

# controller-gen's pattern for quantities: the API server rejects values that Go cannot parse.
_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?"
    r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_ATTRIBUTE = re.compile(r"^ {4}(?P<name>\w+): (?P<text>.+(?:\n {8}.+)*)", re.MULTILINE)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Definition:
    """Properties of a CustomResourceDefinition that the wire types do not contain.

    Attributes:
        kind: the kind.
        short: its short name.
        columns: columns of `kubectl get`, each with name, type and JSON path; `*` at the end of the
            name = only with `-o wide`.
        has_status: whether the status is a subresource.
        scales: whether there is a scale subresource.
        annotations: annotations of the definition.
        keeps_unknown: whether fields that the types lack are kept in stored objects.
    """

    kind: ResourceKind[Any]
    short: str
    columns: tuple[tuple[str, str, str], ...] = ()
    has_status: bool = True
    scales: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    keeps_unknown: bool = False

    def to_manifest(self) -> Mapping[str, Any]:
        """Return the CustomResourceDefinition; the result is cached."""
        return _manifest(self)


AGE = ("Age", "date", ".metadata.creationTimestamp")
"""Column that most kinds have."""


@functools.cache
def _manifest(definition: Definition) -> Mapping[str, Any]:
    kind = definition.kind
    version: Schema = {"name": kind.version, "served": True, "storage": True}
    if definition.columns:
        version["additionalPrinterColumns"] = [_column(*column) for column in definition.columns]
    root = _root(kind)
    version["schema"] = {"openAPIV3Schema": _open(root) if definition.keeps_unknown else root}
    if definition.has_status:
        version["subresources"] = {"status": {}} | ({"scale": _SCALE} if definition.scales else {})
    metadata: Schema = {"name": f"{kind.plural}.{kind.group}"}
    return {
        "apiVersion": CRDS.api_version,
        "kind": "CustomResourceDefinition",
        "metadata": metadata
        | ({"annotations": dict(definition.annotations)} if definition.annotations else {}),
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [definition.short],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


_SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}


def _column(name: str, kind: str, path: str) -> Schema:
    column: Schema = {"name": name.rstrip("*"), "type": kind, "jsonPath": path}
    return column | ({"priority": 1} if name.endswith("*") else {})


def _root(kind: ResourceKind[Any]) -> Schema:
    schema = _struct(wire.type_info(kind.document or kind.type))
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **schema["properties"],
        "metadata": {"type": "object"},
    }
    schema["required"] = [name for name in schema.get("required", ()) if name != "metadata"]
    return {key: value for key, value in schema.items() if value}


def _open(schema: Schema) -> Schema:
    """Return a schema whose objects may have further fields, at every depth."""
    opened = dict(schema)
    if "properties" in schema:
        opened["properties"] = {key: _open(inner) for key, inner in schema["properties"].items()}
        opened["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        opened["items"] = _open(schema["items"])
    return opened


def _struct(struct: wire.Type) -> Schema:
    assert isinstance(struct, wire.StructType)
    descriptions = dict(_attributes(struct.cls))
    schema: Schema = {"type": "object"}
    if struct.fields:
        schema["properties"] = {
            field.encode_name: _described(descriptions.get(field.name, ""), _schema(field.type))
            for field in struct.fields
        }
    schema["required"] = [field.encode_name for field in struct.fields if field.required]
    description = (inspect.getdoc(struct.cls) or "").partition("\n")[0]
    return _described(description, {key: value for key, value in schema.items() if value})


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes in a type's docstring, each with its text."""
    for match in _ATTRIBUTE.finditer(inspect.getdoc(kind) or ""):
        text = " ".join(match["text"].split())
        yield match["name"], text[0].upper() + text[1:]


def _described(text: str, schema: Schema) -> Schema:
    return {"description": text, **schema} if text else schema


def _schema(kind: wire.Type) -> Schema:
    match kind:
        case wire.Metadata(type=inner, extra_json_schema=more):
            return _schema(inner) | dict(more or {})
        case wire.UnionType(types=types):
            return _union(types)
        case wire.StructType():
            return _struct(kind)
        case wire.ListType(item_type=item):
            return {"type": "array", "items": _schema(item)}
        case wire.DictType(value_type=wire.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case wire.DictType(value_type=value):
            amount = _schema(value)
            if amount.get("x-kubernetes-int-or-string"):
                amount["pattern"] = _QUANTITY
            return {"type": "object", "additionalProperties": amount}
        case wire.AnyType():
            return {"x-kubernetes-preserve-unknown-fields": True}
        case wire.StrType():
            return {"type": "string"}
        case wire.IntType():
            return {"type": "integer"}
        case wire.BoolType():
            return {"type": "boolean"}
    raise TypeError(f"no schema for {kind}")


def _union(types: tuple[wire.Type, ...]) -> Schema:
    """Return the schema of a union.

    Only timestamps become nullable, because Go writes null for them.
    """
    members = [member for member in types if not isinstance(member, wire.NoneType)]
    if {type(member) for member in members} == {wire.IntType, wire.StrType}:
        either = [{"type": "integer"}, {"type": "string"}]
        return {"anyOf": either, "x-kubernetes-int-or-string": True}
    (only,) = members
    schema = _schema(only)
    if schema == {"type": "string"} and len(members) < len(types):
        schema["nullable"] = True
    return schema

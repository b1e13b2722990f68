"""The OpenAPI v3 documents, made from the schema tables.

Enough for kubectl: `explain` reads the types and descriptions, `create` and `apply`
read which parameters and merge keys there are.
"""

from __future__ import annotations

import functools
from typing import Any

from ccm.sandbox.apiserver import descriptions, kinds, schema

_SCALARS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
}
_NAMED = {
    "time": f"{schema.META_PACKAGE}.Time",
    "micro": f"{schema.META_PACKAGE}.MicroTime",
    "quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "fields": f"{schema.META_PACKAGE}.FieldsV1",
    "int-or-string": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}
_NAMED_BODIES: dict[str, dict[str, Any]] = {
    "time": {"type": "string", "format": "date-time"},
    "micro": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "fields": {"type": "object"},
    "int-or-string": {
        "oneOf": [{"type": "integer"}, {"type": "string"}],
        "format": "int-or-string",
    },
}
_DEFAULTS: dict[str, Any] = {"string": "", "int32": 0, "int64": 0, "boolean": False}
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")
_ROOT = "/openapi/v3"


def answer(path: str) -> dict[str, Any] | None:
    """The OpenAPI document at a path; None if there is none."""
    if path == _ROOT:
        return {
            "paths": {
                prefix.lstrip("/"): {"serverRelativeURL": f"{_ROOT}{prefix}"}
                for prefix in _prefixes()
            }
        }
    prefix = path.removeprefix(_ROOT)
    return document(prefix) if path != prefix and prefix in _prefixes() else None


@functools.cache
def document(prefix: str) -> dict[str, Any]:
    """The document of one group version, named by its path."""
    served = [kind for kind in kinds.KINDS if kind.prefix == prefix]
    paths: dict[str, Any] = {}
    for kind in served:
        paths.update(_paths(kind))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.3"},
        "paths": paths,
        "components": {"schemas": _components(served)},
    }


def _prefixes() -> list[str]:
    return list(dict.fromkeys(kind.prefix for kind in kinds.KINDS))


def _paths(kind: kinds.Kind) -> dict[str, Any]:
    inside = "/namespaces/{namespace}" if kind.namespaced else ""
    collection = f"{kind.prefix}{inside}/{kind.plural}"
    one = f"{collection}/{{name}}"
    found = {
        collection: _operations(kind, {"get": "list", "post": "create"}),
        one: _operations(
            kind, {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}
        ),
    }
    return {path: operations for path, operations in found.items() if operations}


def _operations(kind: kinds.Kind, methods: dict[str, str]) -> dict[str, Any]:
    return {
        method: {
            "parameters": [_parameter(name) for name in _PARAMETERS] if method != "get" else [],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": _group_version_kind(kind),
        }
        for method, verb in methods.items()
        if verb in kind.verbs
    }


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


def _group_version_kind(kind: kinds.Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _components(served: list[kinds.Kind]) -> dict[str, Any]:
    types = schema.kubernetes()
    found: dict[str, Any] = {_NAMED[name]: body for name, body in _NAMED_BODIES.items()}
    pending = [types[kind.kind] for kind in served]
    while pending:
        shape = pending.pop()
        if shape.full_name in found:
            continue
        found[shape.full_name] = _type(types, shape)
        for field in shape.fields.values():
            inner = _innermost(field.shape)
            if inner.ref:
                pending.append(types[inner.ref])
    for kind in served:
        full_name = types[kind.kind].full_name
        found[full_name]["x-kubernetes-group-version-kind"] = [_group_version_kind(kind)]
        for name in ("apiVersion", "kind"):
            found[full_name]["properties"][name] = {
                "type": "string",
                "description": descriptions.of("TypeMeta", name),
            }
    return found


def _innermost(shape: schema.Shape) -> schema.Shape:
    while shape.item is not None:
        shape = shape.item
    return shape


def _type(types: schema.Schema, shape: schema.Type) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {
            field.name: _property(types, shape, field) for field in shape.fields.values()
        },
    }
    text = descriptions.of(shape.name)
    if text:
        found["description"] = text
    required = [field.name for field in shape.fields.values() if field.required]
    if required:
        found["required"] = required
    return found


def _property(types: schema.Schema, owner: schema.Type, field: schema.Field) -> dict[str, Any]:
    found = _shape(types, field.shape)
    if "$ref" in found:
        found = {"allOf": [found]}
    if field.required and field.shape.kind in _DEFAULTS:
        found["default"] = _DEFAULTS[field.shape.kind]
    text = descriptions.of(owner.name, field.name)
    if text:
        found["description"] = text
    if field.enum:
        found["enum"] = list(field.enum)
    if field.merge:
        found["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain_keys else "merge"
    if field.merge_key:
        found["x-kubernetes-patch-merge-key"] = field.merge_key
    return found


def _shape(types: schema.Schema, shape: schema.Shape) -> dict[str, Any]:
    if shape.kind == "ref":
        return {"$ref": f"#/components/schemas/{types[shape.ref].full_name}"}
    if shape.kind in _NAMED:
        return {"$ref": f"#/components/schemas/{_NAMED[shape.kind]}"}
    if shape.kind in ("list", "map"):
        assert shape.item is not None
        inner = _shape(types, shape.item)
        inner = {"allOf": [inner], "default": {}} if "$ref" in inner else inner
        if shape.kind == "list":
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    return dict(_SCALARS[shape.kind])

"""The OpenAPI v3 documents, made from the shapes of the kinds.

Enough for kubectl: `create` and `apply` read which parameters and merge keys there are,
`explain` the fields and their types.
"""

from __future__ import annotations

from typing import Any

from ccm.sandbox.apiserver import kinds, schema

_KINDS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_MACHINERY = "io.k8s.apimachinery.pkg"
_TIME = {"type": "string", "format": "date-time"}
_EITHER = {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
_NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "time": (f"{_MACHINERY}.apis.meta.v1.Time", _TIME),
    "micro": (f"{_MACHINERY}.apis.meta.v1.MicroTime", _TIME),
    "quantity": (f"{_MACHINERY}.api.resource.Quantity", {"type": "string"}),
    "int-or-string": (f"{_MACHINERY}.util.intstr.IntOrString", _EITHER),
}
_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
_ROOT = "/openapi/v3"


def answer(served: kinds.Registry, path: str) -> dict[str, Any] | None:
    """The OpenAPI document at a path; None if there is none."""
    prefixes = dict.fromkeys(kind.prefix for kind in served)
    if path == _ROOT:
        urls = {one.lstrip("/"): {"serverRelativeURL": _ROOT + one} for one in prefixes}
        return {"paths": urls}
    prefix = path.removeprefix(_ROOT)
    if path == prefix or prefix not in prefixes:
        return None
    found = [kind for kind in served if kind.prefix == prefix]
    paths = {path: one for kind in found for path, one in _paths(kind).items() if one}
    head = {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}}
    return {**head, "paths": paths, "components": {"schemas": _components(found)}}


def _paths(kind: kinds.Kind) -> dict[str, Any]:
    inside = "/namespaces/{namespace}" if kind.namespaced else ""
    every = f"{kind.prefix}{inside}/{kind.plural}"
    methods = {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}
    return {
        every: _operations(kind, {"get": "list", "post": "create"}),
        f"{every}/{{name}}": _operations(kind, methods),
    }


def _operations(kind: kinds.Kind, methods: dict[str, str]) -> dict[str, Any]:
    common = {
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": _group_version_kind(kind),
    }
    wanted = {method: verb for method, verb in methods.items() if verb in kind.verbs}
    return {
        method: {"x-kubernetes-action": verb, "parameters": _PARAMETERS, **common}
        for method, verb in wanted.items()
    }


def _group_version_kind(kind: kinds.Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _components(served: list[kinds.Kind]) -> dict[str, Any]:
    found: dict[str, Any] = dict(_NAMED.values())
    for kind in served:
        _add(kind.shape, found)
        whole = found[kind.shape.name]
        whole["x-kubernetes-group-version-kind"] = [_group_version_kind(kind)]
        whole["properties"] |= {name: {"type": "string"} for name in ("apiVersion", "kind")}
    return found


def _add(shape: schema.Type, found: dict[str, Any]) -> None:
    """A type with a name, and every one within."""
    if shape.name not in found:
        found[shape.name] = {}
        found[shape.name] |= _type(shape, found)


def _type(shape: schema.Type, found: dict[str, Any]) -> dict[str, Any]:
    required = [field.name for field in shape.fields.values() if field.required]
    return {
        "type": "object",
        "properties": {name: _property(field, found) for name, field in shape.fields.items()},
        **({"required": required} if required else {}),
        **({"x-kubernetes-preserve-unknown-fields": True} if shape.is_open else {}),
    }


def _property(field: schema.Field, found: dict[str, Any]) -> dict[str, Any]:
    one = _shape(field.shape, found)
    if field.merge:
        one["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain_keys else "merge"
    if field.merge_key:
        one["x-kubernetes-patch-merge-key"] = field.merge_key
    return one


def _shape(shape: schema.Shape, found: dict[str, Any]) -> dict[str, Any]:
    if shape.item is not None:
        inner = _shape(shape.item, found)
        is_list = shape.kind == "list"
        place = {"items": inner} if is_list else {"additionalProperties": inner}
        return {"type": "array" if is_list else "object", **place, **shape.limits}
    name = _NAMED[shape.kind][0] if shape.kind in _NAMED else ""
    if shape.type is not None and not shape.type.name:
        return _type(shape.type, found)
    if shape.type is not None:
        _add(shape.type, found)
        name = shape.type.name
    if name:
        return {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}
    enum = {"enum": shape.enum} if shape.enum else {}
    return {**_KINDS[shape.kind], **shape.limits, **enum}

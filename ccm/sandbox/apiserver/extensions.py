"""Custom resources: a stored CustomResourceDefinition becomes a row of the kinds' table.

Served is the version that is stored, with its structural schema (pruning, defaults,
choices and limits; no CEL rules), status and scale sub-resources, printer columns,
selectable fields and names. A definition is established as soon as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.sandbox.apiserver import columns, errors, kinds, limits, paths, scalars, schema, validate

Body = Mapping[str, Any]

_CONDITIONS = (
    ("NamesAccepted", "NoConflicts", "no conflicts found"),
    ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
)
_SCALE = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
_SIMPLE = ("string", "boolean", "number")


def kind_of(definition: Body) -> kinds.Kind:
    """The kind that a definition describes.

    Raises:
        ApiError: 422, what is needed for that is missing or wrong.
    """
    spec = definition["spec"]
    try:
        names = spec["names"]
        (version,) = [one for one in spec["versions"] if one.get("storage")]
        parts = version.get("subresources") or {}
        scale = parts.get("scale")
        fields = [one["jsonPath"].lstrip(".") for one in version.get("selectableFields", ())]
        return kinds.Kind(
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular", ""),
            group=spec["group"],
            version=version["name"],
            shape=root(version["schema"]["openAPIV3Schema"], f"{spec['group']}.{names['kind']}"),
            namespaced=spec["scope"] == "Namespaced",
            status="status" in parts,
            scale=scale and kinds.Scale(*(scale.get(key, "") for key in _SCALE)),
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
            selectable=tuple((one, (one,), "") for one in fields),
            columns=_columns(version.get("additionalPrinterColumns")),
            counts=True,
            is_custom=True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = errors.bad_value("spec", type(error).__name__, f"no valid definition: {error}")
        name = definition["metadata"]["name"]
        raise errors.invalid(kinds.DEFINITIONS, name, [cause]) from error


def judge(body: Body, old: Body | None) -> validate.Causes:
    """The faults of a definition beyond those that `kind_of` finds."""
    kind = kind_of(body)
    if body["metadata"]["name"] != kind.qualified:
        detail = f"must be spec.names.plural+'.'+spec.group, {kind.qualified}"
        yield errors.bad_value("metadata.name", body["metadata"]["name"], detail)
    if "." not in kind.group:
        yield errors.bad_value("spec.group", kind.group, "should be a domain with at least one dot")
    if old is not None and kind_of(old).namespaced != kind.namespaced:
        yield errors.forbidden_field("spec.scope", "may not change once set")


def establish(definition: dict[str, Any]) -> None:
    """Say in its status that a definition is served."""
    spec = definition["spec"]
    names, now = spec["names"], scalars.now()
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    known = (definition.get("status") or {}).get("conditions")
    fresh = [
        {"type": kind, "status": "True", "reason": why, "message": text, "lastTransitionTime": now}
        for kind, why, text in _CONDITIONS
    ]
    stored = [one["name"] for one in spec["versions"] if one.get("storage")]
    definition["status"] = {
        "conditions": known or fresh, "acceptedNames": names, "storedVersions": stored,
    }  # fmt: skip


def root(openapi: Body, name: str) -> schema.Type:
    """The shape of a whole custom object: what its schema says, and metadata.

    Raises:
        ValueError: the schema is not structural.
    """
    found = _shape(openapi, name).type
    if found is None:
        raise ValueError("openAPIV3Schema.type must be object")
    meta = schema.kubernetes()["ObjectMeta"]
    fields = {key: one for key, one in found.fields.items() if key not in ("apiVersion", "kind")}
    whole = schema.Shape(kind="object", type=meta)
    fields["metadata"] = schema.Field(name="metadata", shape=whole, always=True)
    return schema.Type(name=name, fields=fields, is_open=found.is_open)


def _shape(openapi: Body, path: str) -> schema.Shape:
    if openapi.get("x-kubernetes-int-or-string"):
        return schema.Shape(kind="int-or-string")
    bounds = {name: openapi[name] for name in limits.LIMITS if name in openapi}
    more: dict[str, Any] = {"enum": tuple(openapi.get("enum", ())), "limits": bounds}
    kind = openapi.get("type")
    if kind == "array":
        return schema.Shape(kind="list", item=_shape(openapi["items"], f"{path}[]"), **more)
    if kind == "object" and isinstance(openapi.get("additionalProperties"), Mapping):
        item = _shape(openapi["additionalProperties"], f"{path}.*")
        return schema.Shape(kind="map", item=item, **more)
    if kind == "object":
        return schema.Shape(kind="object", type=_type(openapi, path))
    if kind == "integer":
        return schema.Shape(kind="int32" if openapi.get("format") == "int32" else "int64", **more)
    if kind is None and openapi.get("x-kubernetes-preserve-unknown-fields"):
        return schema.Shape(kind="any")
    if kind not in _SIMPLE:
        raise ValueError(f"{path}: type must be given, and not {kind!r}")
    return schema.Shape(kind=kind, **more)


def _type(openapi: Body, path: str) -> schema.Type:
    required = openapi.get("required", ())
    fields = {}
    for key, one in (openapi.get("properties") or {}).items():
        default = {"default": one["default"]} if "default" in one else {}
        fields[key] = schema.Field(
            name=key,
            shape=_shape(one, f"{path}.{key}"),
            required=key in required,
            keeps_zero=True,
            nullable=bool(one.get("nullable")),
            **default,
        )
    is_open = bool(openapi.get("x-kubernetes-preserve-unknown-fields"))
    return schema.Type(name="", fields=fields, is_open=is_open)


def _columns(stated: list[Body] | None) -> tuple[columns.Column, ...]:
    if not stated:
        return columns.PLAIN
    found = [columns.PLAIN[0]]
    for one in stated:
        paths.find({}, one["jsonPath"])
        wide = one.get("priority", 0) > 0
        more = (wide, one["type"], one.get("format", ""), one.get("description", ""))
        found.append(columns.Column(one["name"], one["jsonPath"], *more))
    return tuple(found)

"""What an object must fulfil beyond its shape, whatever its kind; each fault with its field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ccm.sandbox.apiserver import errors, limits

Causes = Iterator[errors.Cause]
Body = Mapping[str, Any]

_MAX_ANNOTATIONS = 256 * 1024
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")


def texts(field: str, values: Iterable[str], rule: limits.Rule) -> Causes:
    """The faults of texts that belong to one field."""
    for value in values:
        fault = rule(value)
        if fault:
            yield errors.bad_value(field, value, fault)


def one_of_each(field: str, values: Sequence[object]) -> Causes:
    """The elements of a list that came before."""
    for number, value in enumerate(values):
        if value in values[:number]:
            yield errors.duplicate(f"{field}[{number}]", value)


def metadata(body: Body, rule: limits.Rule) -> Causes:
    """The faults of an object's metadata; `rule` is about its name."""
    meta = body["metadata"]
    if not meta.get("name"):
        yield errors.required("metadata.name", "name or generateName is required")
    else:
        yield from texts("metadata.name", [meta["name"]], rule)
    annotations = meta.get("annotations") or {}
    yield from texts("metadata.labels", meta.get("labels") or (), limits.key)
    yield from texts("metadata.annotations", (key.lower() for key in annotations), limits.key)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        yield errors.bad_value("metadata.annotations", "", f"more than {_MAX_ANNOTATIONS} bytes")


def unchanged(body: Body, old: Body) -> Causes:
    """What changed in the metadata and may not."""
    meta, before = body["metadata"], old["metadata"]
    fresh = sorted(set(meta.get("finalizers", ())) - set(before.get("finalizers", ())))
    if "deletionTimestamp" in before and fresh:
        detail = "no new finalizers can be added if the object is being deleted, found new "
        yield errors.forbidden_field("metadata.finalizers", detail + f"finalizers {fresh}")
    for key in _IMMUTABLE:
        if meta.get(key) != before.get(key):
            yield errors.bad_value(f"metadata.{key}", meta.get(key, ""), "field is immutable")

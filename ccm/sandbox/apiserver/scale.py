"""The scale sub-resource: how many replicas an object wants and has, whatever its kind."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from ccm.sandbox.apiserver import errors, kinds, paths
from ccm.sandbox.apiserver import store as stores

_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def shown(kind: kinds.Kind, entry: stores.Entry) -> stores.Entry:
    """The Scale object of an object."""
    assert kind.scale is not None
    body, places = entry.body(), kind.scale
    status: dict[str, Any] = {"replicas": _first(body, places.status_replicas)}
    if places.selector:
        status["selector"] = next(iter(paths.find(body, places.selector)), "")
    found = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: body["metadata"][key] for key in _KEPT if key in body["metadata"]},
        "spec": {"replicas": _first(body, places.replicas)},
        "status": status,
    }
    return dataclasses.replace(entry, raw=msgspec.json.encode(found))


def changed(kind: kinds.Kind, body: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """The object with the replicas, and the resource version, that a Scale object states.

    Raises:
        ApiError: 422, its number of replicas is none.
    """
    spec, meta = (wanted.get(key) or {} for key in ("spec", "metadata"))
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        cause = errors.bad_value("spec.replicas", replicas, "must be a whole number, 0 or more")
        raise errors.invalid(kind, body["metadata"]["name"], [cause])
    if meta.get("resourceVersion"):
        body["metadata"]["resourceVersion"] = meta["resourceVersion"]
    assert kind.scale is not None
    paths.put(body, kind.scale.replicas, replicas)
    return body


def _first(body: dict[str, Any], path: str) -> int:
    found = paths.find(body, path)
    return int(found[0]) if found else 0

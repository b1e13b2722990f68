"""What the server itself adds to, and keeps out of, an object that is written.

Defaults and server-set metadata on create; on update the separation of the object from
its `status` sub-resource, and the metadata that no client may change. Then the result is
judged.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Any

from ccm.sandbox.apiserver import (
    allocate,
    decode,
    errors,
    extensions,
    kinds,
    scalars,
    schema,
    services,
    validate,
)

_KEPT = (
    "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "resourceVersion",
)  # fmt: skip
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def create(
    kind: kinds.Kind, namespace: str, body: dict[str, Any], numbers: allocate.Allocator
) -> dict[str, Any]:
    """A new object as it will be stored, from a cleaned request body.

    `numbers` says which cluster IPs and node ports are free.

    Raises:
        ApiError: the object is invalid, or its namespace is not the request's.
    """
    metadata = body["metadata"]
    _set_namespace(kind, namespace, metadata)
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
        metadata["name"] = metadata["generateName"][:58] + suffix
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        metadata.pop(key, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = scalars.now()
    if kind.counts:
        metadata["generation"] = 1
    if kind.status and not kind.keeps_new_status:
        body.pop("status", None)
        body = decode.clean(kind, body, [])
    if kind.begin is not None:
        kind.begin(body)
    return _finish(kind, body, None, numbers)


def update(
    kind: kinds.Kind,
    body: dict[str, Any],
    old: dict[str, Any],
    numbers: allocate.Allocator,
    *,
    status: bool,
) -> dict[str, Any]:
    """An existing object as it will be stored, from a cleaned request body.

    A write to the status sub-resource keeps everything but metadata and status; any
    other write keeps the status.

    Raises:
        ApiError: the object is invalid, or its namespace is not the request's.
    """
    metadata, before = body["metadata"], old["metadata"]
    _set_namespace(kind, before.get("namespace", ""), metadata)
    metadata.setdefault("uid", before["uid"])
    for key in (*_KEPT, "selfLink", "managedFields"):
        metadata.pop(key, None)
    metadata |= {key: before[key] for key in _KEPT if key in before}
    if status:
        body = {**old, "metadata": metadata, "status": body.get("status")}
    elif kind.status:
        body = {**body, "status": old.get("status")}
    return _finish(kind, body, old, numbers, status=status)


def _finish(
    kind: kinds.Kind,
    body: dict[str, Any],
    old: dict[str, Any] | None,
    numbers: allocate.Allocator,
    *,
    status: bool = False,
) -> dict[str, Any]:
    schema.fill(kind.shape, body)
    if kind.default is not None:
        kind.default(body, old)
    causes = faults(kind, body, old)
    if kind is kinds.SERVICES and not status and not causes:
        causes += services.allocate(body, old, numbers)
    if causes:
        raise errors.invalid(kind, body["metadata"].get("name", ""), causes)
    if kind is kinds.DEFINITIONS:
        extensions.establish(body)
    found = decode.clean(kind, body, [], known=old)
    rest = ("metadata", "status") if kind.status else ("metadata",)
    if old is not None and kind.counts and _without(found, *rest) != _without(old, *rest):
        found["metadata"]["generation"] = found["metadata"].get("generation", 0) + 1
    return found


def faults(
    kind: kinds.Kind, body: dict[str, Any], old: dict[str, Any] | None = None
) -> list[errors.Cause]:
    """What is wrong with a new object, or with one that replaces `old`."""
    causes = [*validate.metadata(body, kind.name_rule), *schema.faults(kind.shape, body)]
    if old is not None:
        causes += validate.unchanged(body, old)
    judge = extensions.judge if kind is kinds.DEFINITIONS else kind.judge
    # What a kind's own rules compare has to be there first.
    return causes if causes or judge is None else [*causes, *judge(body, old)]


def _without(body: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in keys}


def _set_namespace(kind: kinds.Kind, namespace: str, metadata: dict[str, Any]) -> None:
    stated = metadata.pop("namespace", "")
    if kind.namespaced:
        if stated and stated != namespace:
            raise errors.bad_request(
                f"the namespace of the object ({stated}) does not match the namespace sent on "
                f"the request ({namespace})"
            )
        metadata["namespace"] = namespace

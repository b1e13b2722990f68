"""Builders of objects for tests: every field has a sane default, a test names what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ccm.model import (
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Taint,
    names,
)

CREATED = "2012-01-01T00:00:00Z"
"""Creation time of built objects."""


def node(
    name: str = "node0",
    *,
    provider_id: str = "",
    taints: Sequence[Taint] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    addresses: Sequence[NodeAddress] = (),
    ready: str | None = names.STATUS_TRUE,
    uid: str | None = None,
    resource_version: str = "1",
    created: str = CREATED,
) -> Node:
    """A Node.

    Args:
        name: its name.
        provider_id: `spec.providerID`; empty = not initialised yet.
        taints: `spec.taints`; empty = none, as the server writes it.
        labels: labels.
        annotations: annotations.
        addresses: `status.addresses`.
        ready: status of the Ready condition, `True`, `False` or `Unknown`; None = no condition.
        uid: its UID; None = made from the name.
        resource_version: the version of this state.
        created: creation time, RFC 3339.
    """
    conditions = [NodeCondition(type=names.CONDITION_READY, status=ready)] if ready else None
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}" if uid is None else uid,
            resource_version=resource_version,
            creation_timestamp=created,
            labels=dict(labels) if labels else None,
            annotations=dict(annotations) if annotations else None,
        ),
        spec=NodeSpec(provider_id=provider_id, taints=list(taints) or None),
        status=NodeStatus(addresses=list(addresses) or None, conditions=conditions),
    )


def uninitialized_taint(*, value: str = "true", effect: str = names.EFFECT_NO_SCHEDULE) -> Taint:
    """The taint a kubelet sets on a node that waits for its cloud."""
    return Taint(key=names.TAINT_UNINITIALIZED, value=value, effect=effect)


def shutdown_taint(*, effect: str = names.EFFECT_NO_SCHEDULE) -> Taint:
    """The taint of a node whose instance is switched off."""
    return Taint(key=names.TAINT_SHUTDOWN, effect=effect)

"""Builders of test objects: every field has a default, so that a test names only what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ccm.model import (
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Service,
    ServicePort,
    ServiceSpec,
    Taint,
    names,
)

CREATED = "2012-01-01T00:00:00Z"
"""Creation time of built objects."""

DEFAULT_PORT = ServicePort(name="http", port=80, target_port=8080, node_port=30080)
"""The port of built Services."""


def node(  # noqa: PLR0913 - a builder names every field
    name: str = "node0",
    *,
    provider_id: str = "",
    taints: Sequence[Taint] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    addresses: Sequence[NodeAddress] = (),
    pod_cidrs: Sequence[str] = (),
    ready: str | None = names.STATUS_TRUE,
    conditions: Sequence[NodeCondition] = (),
    uid: str | None = None,
    resource_version: str = "1",
    created: str = CREATED,
) -> Node:
    """Return a Node.

    Args:
        provider_id: `spec.providerID`; empty = not initialised yet.
        taints: `spec.taints`; empty = the field is null, as the API server omits an empty list.
        addresses: `status.addresses`.
        pod_cidrs: `spec.podCIDRs`.
        ready: status of the Ready condition, `True`, `False` or `Unknown`; None = no condition.
        conditions: further conditions.
        uid: None = derived from the name.
        created: creation time, RFC 3339.
    """
    all_conditions = [NodeCondition(type=names.CONDITION_READY, status=ready)] if ready else []
    all_conditions += conditions
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}" if uid is None else uid,
            resource_version=resource_version,
            creation_timestamp=created,
            labels=dict(labels) if labels else None,
            annotations=dict(annotations) if annotations else None,
        ),
        spec=NodeSpec(
            provider_id=provider_id, taints=list(taints) or None, pod_cidrs=list(pod_cidrs) or None
        ),
        status=NodeStatus(addresses=list(addresses) or None, conditions=all_conditions or None),
    )


def service(
    name: str = "web",
    *,
    namespace: str = "default",
    ports: Sequence[ServicePort] = (DEFAULT_PORT,),
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    uid: str | None = None,
    resource_version: str = "1",
    **spec: Any,
) -> Service:
    """Return a Service of type LoadBalancer.

    Args:
        ports: `spec.ports`.
        uid: None = derived from namespace and name.
        spec: further fields of `ServiceSpec`, such as `session_affinity`.
    """
    return Service(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}" if uid is None else uid,
            resource_version=resource_version,
            creation_timestamp=CREATED,
            annotations=dict(annotations) if annotations else None,
            finalizers=list(finalizers) or None,
        ),
        spec=ServiceSpec(**{"type": "LoadBalancer", "ports": list(ports) or None, **spec}),
    )


def uninitialized_taint(*, value: str = "true", effect: str = names.EFFECT_NO_SCHEDULE) -> Taint:
    """Return the taint of a new node: set by the kubelet, removed by the node controller."""
    return Taint(key=names.TAINT_UNINITIALIZED, value=value, effect=effect)


def shutdown_taint(*, effect: str = names.EFFECT_NO_SCHEDULE) -> Taint:
    """Return the taint of a node whose instance is shut down."""
    return Taint(key=names.TAINT_SHUTDOWN, effect=effect)

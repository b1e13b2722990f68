"""Node, with the fields that a cloud-controller-manager reads, and patches for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from ccm.model import names
from ccm.model.meta import EMPTY, KubeObject, ObjectMeta, ObjectReference, Wire, enum
from ccm.model.patches import Patch, uid_precondition, version_precondition
from ccm.model.times import format_time, parse_time


class Taint(Wire, frozen=True, kw_only=True):
    """Keeps Pods off a node. Two taints match when key and effect are the same.

    Attributes:
        key: key that a Pod's toleration names.
        value: value that a Pod's toleration may name.
        effect: what happens to Pods without a toleration.
        time_added: time at which a NoExecute taint was added.
    """

    key: str = ""
    value: str = ""
    effect: Annotated[str, enum("NoSchedule", "PreferNoSchedule", "NoExecute")] = ""
    time_added: str | None = None


class NodeAddress(Wire, frozen=True, kw_only=True):
    """Address of a node; `type` is one of the `ADDRESS_*` names or a provider's own."""

    type: str = ""
    address: str = ""


class NodeCondition(Wire, frozen=True, kw_only=True):
    """Condition of a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a node."""

    provider_id: str = msgspec.field(default="", name="providerID")
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a node."""

    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None


class Node(KubeObject, frozen=True, kw_only=True):
    """Node of the cluster."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def provider_id(self) -> str:
        """Provider ID of the instance, `<scheme>://<id>`; empty until the node is initialised."""
        return self.spec.provider_id

    @property
    def taints(self) -> Sequence[Taint]:
        """Taints; empty instead of null."""
        return self.spec.taints or ()

    @property
    def addresses(self) -> Sequence[NodeAddress]:
        """Addresses in the order of the status; empty instead of null."""
        return self.status.addresses or ()

    @property
    def ready(self) -> str:
        """Status of the Ready condition: True, False or Unknown; Unknown if missing."""
        return self.condition_status(names.CONDITION_READY)

    def condition_status(self, kind: str) -> str:
        """Return the status of a condition; Unknown if the node has no such condition."""
        for condition in self.status.conditions or ():
            if condition.type == kind:
                return condition.status
        return names.STATUS_UNKNOWN

    @property
    def reference(self) -> ObjectReference:
        """Reference for events, without a resourceVersion."""
        return ObjectReference(kind="Node", api_version="v1", name=self.name, uid=self.uid)


def age_s(node: Node, now: datetime) -> float | None:
    """Return the seconds since the node was created; None = the creation time is unknown."""
    created = node.metadata.creation_timestamp
    return (now - parse_time(created)).total_seconds() if created else None


def condition_of(node: Node, kind: str) -> NodeCondition | None:
    """Return the node's condition of a type; None = no such condition."""
    return next(
        (condition for condition in node.status.conditions or () if condition.type == kind), None
    )


def node_condition_patch(
    node: Node, kind: str, state: tuple[str, str, str], now: datetime, *, since: str = ""
) -> Patch:
    """Return the status patch for a condition.

    The patch has all fields of the condition, because the API server keeps the old value of an
    absent field.

    Args:
        kind: type of the condition.
        state: status, reason and message of the condition.
        now: time of the heartbeat.
        since: time since which the condition has this status; empty = `now`.
    """
    status, reason, message = state
    wanted = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": since or format_time(now),
    }
    return {"metadata": uid_precondition(node), "status": {"conditions": [wanted]}}


def node_patch(
    node: Node,
    *,
    labels: Mapping[str, str | None] = EMPTY,
    annotations: Mapping[str, str | None] = EMPTY,
    taints: Sequence[Taint] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Patch | None:
    """Return the patch that sets the given values on a node; None = the node has these values.

    Args:
        labels: labels to set; None as a value removes a label.
        annotations: annotations to set; None as a value removes an annotation.
        taints: complete list of taints; None = unchanged.
        spec: further fields of the spec that change.
    """
    metadata: dict[str, Any] = {}
    for key, wanted, current in (
        ("labels", labels, node.labels),
        ("annotations", annotations, node.annotations),
    ):
        if changed := {name: text for name, text in wanted.items() if current.get(name) != text}:
            metadata[key] = changed
    fields = dict(spec or {})
    if taints is not None and list(taints) != list(node.taints):
        fields["taints"] = taints_value(taints)
    if not (metadata or fields):
        return None
    metadata = uid_precondition(node) | version_precondition(node) | metadata
    return {"metadata": metadata} | ({"spec": fields} if fields else {})


def taints_value(taints: Sequence[Taint]) -> list[Any] | None:
    """Return the complete list of taints for a patch; null for an empty list."""
    return [msgspec.to_builtins(taint) for taint in taints] or None


def is_uninitialized(node: Node) -> bool:
    """Return whether the node has the uninitialized taint, with any value and effect."""
    # A loop, because a generator takes three times as long and every change of a node leads to
    # several calls.
    for taint in node.taints:  # noqa: SIM110
        if taint.key == names.TAINT_UNINITIALIZED:
            return True
    return False


def has_shutdown_taint(node: Node) -> bool:
    """Return whether the node has the shutdown taint, with effect NoSchedule and any value."""
    return any(
        taint.key == names.TAINT_SHUTDOWN and taint.effect == names.EFFECT_NO_SCHEDULE
        for taint in node.taints
    )

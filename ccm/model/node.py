"""Node: a machine of the cluster, with the fields a cloud-controller-manager reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from ccm.model import names
from ccm.model.meta import EMPTY, KubeObject, ObjectMeta, ObjectReference, Wire, enum
from ccm.model.patches import Patch, same_object, same_version
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
    """One address of a node; `type` is one of the `ADDRESS_*` names or a provider's own."""

    type: str = ""
    address: str = ""


class NodeCondition(Wire, frozen=True, kw_only=True):
    """One condition of a node's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a node."""

    provider_id: str = msgspec.field(default="", name="providerID")
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(Wire, frozen=True, kw_only=True):
    """What a node reports about itself."""

    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None


class Node(KubeObject, frozen=True, kw_only=True):
    """A machine of the cluster."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def provider_id(self) -> str:
        """The cloud's identifier `<scheme>://<id>`; empty until the node is initialised."""
        return self.spec.provider_id

    @property
    def taints(self) -> Sequence[Taint]:
        """Taints; empty when there are none."""
        return self.spec.taints or ()

    @property
    def addresses(self) -> Sequence[NodeAddress]:
        """Addresses in the order of the status; empty when there are none."""
        return self.status.addresses or ()

    @property
    def ready(self) -> str:
        """Status of the Ready condition: True, False or Unknown; Unknown when missing."""
        return self.condition_status(names.CONDITION_READY)

    def condition_status(self, kind: str) -> str:
        """Status of a condition; Unknown when the node has no such condition."""
        for condition in self.status.conditions or ():
            if condition.type == kind:
                return condition.status
        return names.STATUS_UNKNOWN

    @property
    def reference(self) -> ObjectReference:
        """A reference for events, without a resourceVersion."""
        return ObjectReference(kind="Node", api_version="v1", name=self.name, uid=self.uid)


def age_s(node: Node, now: datetime) -> float | None:
    """Seconds since the node was created; None where nobody says when that was."""
    created = node.metadata.creation_timestamp
    return (now - parse_time(created)).total_seconds() if created else None


def condition_of(node: Node, kind: str) -> NodeCondition | None:
    """Return the condition of a type."""
    return next((one for one in node.status.conditions or () if one.type == kind), None)


def node_condition_patch(
    node: Node, kind: str, said: tuple[str, str, str], now: datetime, *, since: str = ""
) -> Patch:
    """Return the status patch of a condition, which has all fields: a missing one would stay.

    Args:
        node: the node.
        kind: type of the condition.
        said: its status, reason and message.
        now: the time.
        since: time since which it has this status; empty = now.
    """
    status, reason, message = said
    wanted = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": since or format_time(now),
    }
    return {"metadata": same_object(node), "status": {"conditions": [wanted]}}


def node_patch(
    node: Node,
    *,
    labels: Mapping[str, str | None] = EMPTY,
    annotations: Mapping[str, str | None] = EMPTY,
    taints: Sequence[Taint] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Patch | None:
    """Return the patch that gives a node what differs; None: nothing does.

    Args:
        node: the node.
        labels: labels to set; None as a value: to remove.
        annotations: likewise.
        taints: all taints; None = as they are.
        spec: further fields of the spec, which differ.
    """
    metadata: dict[str, Any] = {}
    for key, wanted, there in (
        ("labels", labels, node.labels),
        ("annotations", annotations, node.annotations),
    ):
        if changed := {name: text for name, text in wanted.items() if there.get(name) != text}:
            metadata[key] = changed
    fields = dict(spec or {})
    if taints is not None and list(taints) != list(node.taints):
        fields["taints"] = taints_value(taints)
    if not (metadata or fields):
        return None
    metadata = same_object(node) | same_version(node) | metadata
    return {"metadata": metadata} | ({"spec": fields} if fields else {})


def taints_value(taints: Sequence[Taint]) -> list[Any] | None:
    """Taints as a patch wants them: the complete list, or null for none."""
    return [msgspec.to_builtins(taint) for taint in taints] or None


def is_uninitialized(node: Node) -> bool:
    """Whether the node still waits for its cloud: the taint's key alone decides."""
    # A loop: of every change of a node several ask, and a generator takes three times as long.
    for taint in node.taints:  # noqa: SIM110
        if taint.key == names.TAINT_UNINITIALIZED:
            return True
    return False


def has_shutdown_taint(node: Node) -> bool:
    """Whether the node carries the shutdown taint: key and effect decide."""
    return any(
        taint.key == names.TAINT_SHUTDOWN and taint.effect == names.EFFECT_NO_SCHEDULE
        for taint in node.taints
    )

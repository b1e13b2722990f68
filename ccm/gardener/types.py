"""The objects on the wire, complete: their definitions are generated from these types.

Text that stands for a duration is Go's (`20m`), moments are RFC 3339. A field without a default
is required. What a docstring says of an attribute is what `kubectl explain` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from ccm.model import NodeAddress, NodeCondition, ObjectMeta, Taint
from ccm.model.meta import KubeObject, Wire

Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
"""Nullable: Go writes a moment that was never set as null."""

Quantities = dict[str, int | str]
"""Amounts by the name of the resource."""


class ClassSpec(Wire, frozen=True, kw_only=True):
    """Which class describes the VM.

    Attributes:
        api_group: of the class.
        kind: of the class; MachineClass.
        name: of the class, in the machine's namespace.
    """

    api_group: str = ""
    kind: str = ""
    name: str = ""


class NodeTemplateSpec(Wire, frozen=True, kw_only=True):
    """What is kept on the node; of all fields only the taints are used.

    Attributes:
        pod_cidr: not used.
        pod_cidrs: not used.
        provider_id: not used.
        unschedulable: not used.
        taints: kept on the node.
        config_source: not used.
        external_id: not used.
    """

    pod_cidr: str = field(default="", name="podCIDR")
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    provider_id: str = field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] | None = None
    config_source: dict[str, Any] | None = None
    external_id: str = field(default="", name="externalID")


class NodeTemplate(Wire, frozen=True, kw_only=True):
    """Labels, annotations and taints that are kept on the node.

    Attributes:
        metadata: labels and annotations.
        spec: taints.
    """

    metadata: dict[str, Any] | None = None
    spec: NodeTemplateSpec = NodeTemplateSpec()


class MachineSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a machine.

    Attributes:
        class_: what the VM is to be like.
        provider_id: of the VM; written once it is made.
        node_template: what is kept on the node.
        drain_timeout: how long a drain may take before force is used.
        health_timeout: how long the node may be sick before the machine has failed.
        creation_timeout: how long the machine may take to join.
        in_place_update_timeout: how long an update in place may take.
        machine_preserve_timeout: how long a failed machine is preserved.
        disable_health_timeout: it never fails because its node is sick.
        max_evict_retries: how often the eviction of a Pod is tried.
        node_conditions: types of conditions, with commas, that make the node sick.
    """

    class_: ClassSpec = field(default=ClassSpec(), name="class")
    provider_id: str = field(default="", name="providerID")
    node_template: NodeTemplate = NodeTemplate()
    drain_timeout: str = ""
    health_timeout: str = ""
    creation_timeout: str = ""
    in_place_update_timeout: str = ""
    machine_preserve_timeout: str = ""
    disable_health_timeout: bool | None = None
    max_evict_retries: Int32 | None = None
    node_conditions: str = ""


class LastOperation(Wire, frozen=True, kw_only=True):
    """What was done last about a machine.

    Attributes:
        description: for people.
        error_code: the name of the code that the driver answered with.
        last_update_time: when this was written.
        state: Processing, Failed or Successful.
        type: Create, Update, InPlaceUpdate, DrainNode, HealthCheck or Delete.
    """

    description: str = ""
    error_code: str = ""
    last_update_time: Time = None
    state: str = ""
    type: str = ""


class CurrentStatus(Wire, frozen=True, kw_only=True):
    """How far a machine is.

    Attributes:
        phase: empty, Pending, Available, Running, Terminating, Unknown, Failed,
            CrashLoopBackOff, InPlaceUpdating, InPlaceUpdateSuccessful or InPlaceUpdateFailed.
        timeout_active: whether a timeout runs.
        last_update_time: since when.
        preserve_expiry_time: until when it is preserved.
    """

    phase: str = ""
    timeout_active: bool = False
    last_update_time: Time = None
    preserve_expiry_time: Time = None


class MachineStatus(Wire, frozen=True, kw_only=True):
    """What is known of a machine.

    Attributes:
        addresses: of the node; only without a target cluster.
        conditions: of the node.
        last_operation: what was done last.
        current_status: how far it is.
        last_known_state: the driver's own; opaque.
    """

    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None
    last_operation: LastOperation = LastOperation()
    current_status: CurrentStatus = CurrentStatus()
    last_known_state: str = ""


class Machine(KubeObject, frozen=True, kw_only=True):
    """A VM that is to be a node of the cluster.

    Attributes:
        spec: what is wanted.
        status: what is known.
    """

    metadata: ObjectMeta
    spec: MachineSpec = MachineSpec()
    status: MachineStatus = MachineStatus()


class MachineTemplateSpec(Wire, frozen=True, kw_only=True):
    """What machines are made of.

    Attributes:
        metadata: their labels and annotations.
        spec: what is wanted of each.
    """

    metadata: dict[str, Any] | None = None
    spec: MachineSpec = MachineSpec()


class ClassNodeTemplate(Wire, frozen=True, kw_only=True):
    """What a node of the class has; the autoscaler scales from zero by it.

    Attributes:
        capacity: of the node.
        virtual_capacity: further resources, which are added to the node's capacity.
        instance_type: of the VM.
        region: of the VM.
        zone: of the VM.
        architecture: of the VM.
    """

    capacity: Quantities | None = None
    virtual_capacity: Quantities | None = None
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    architecture: str = ""


class SecretReference(Wire, frozen=True, kw_only=True):
    """Which Secret.

    Attributes:
        name: of the Secret.
        namespace: of the Secret.
    """

    name: str = ""
    namespace: str = ""


class ObjectCondition(Wire, frozen=True, kw_only=True):
    """A condition of a MachineClass or a MachineSet.

    Attributes:
        type: SpecValid; ReplicaFailure or Frozen.
        status: True, False or Unknown.
        last_transition_time: since when.
        reason: in one word.
        message: for people.
    """

    type: str
    status: str
    last_transition_time: Time = None
    reason: str = ""
    message: str = ""


class ClassStatus(Wire, frozen=True, kw_only=True):
    """What is known of a class.

    Attributes:
        conditions: of the class.
    """

    conditions: list[ObjectCondition] | None = None


class MachineClass(KubeObject, frozen=True, kw_only=True):
    """What VMs are to be like; all fields stand at the top.

    Attributes:
        node_template: what a node of the class has.
        provider_spec: in the words of the provider.
        provider: its name.
        secret_ref: the Secret with user data and credentials.
        credentials_secret_ref: a Secret with credentials that go before those of the other.
        status: what is known; ours, the reference has none.
    """

    metadata: ObjectMeta
    node_template: ClassNodeTemplate | None = None
    provider_spec: dict[str, Any] | None = None
    provider: str = ""
    secret_ref: SecretReference | None = None
    credentials_secret_ref: SecretReference | None = None
    status: ClassStatus = ClassStatus()

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the driver is told; empty when there is nothing."""
        return self.provider_spec or {}

    @property
    def secrets(self) -> tuple[SecretReference, ...]:
        """The Secrets of the class; of two with one key the later one counts."""
        both = (self.secret_ref, self.credentials_secret_ref)
        return tuple(one for one in both if one is not None and one.name)

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
    """Reference to the MachineClass that VMs are created from.

    Attributes:
        api_group: API group of the class; not used.
        kind: kind of the class; only MachineClass is supported.
        name: name of the class, in the namespace of the Machine.
    """

    api_group: str = ""
    kind: str = ""
    name: str = ""


class NodeTemplateSpec(Wire, frozen=True, kw_only=True):
    """Fields of a Node's spec; only the taints have an effect.

    Attributes:
        pod_cidr: has no effect.
        pod_cidrs: has no effect.
        provider_id: has no effect.
        unschedulable: has no effect.
        taints: taints that are put on the Node and restored when they are removed.
        config_source: has no effect.
        external_id: has no effect.
    """

    pod_cidr: str = field(default="", name="podCIDR")
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    provider_id: str = field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] | None = None
    config_source: dict[str, Any] | None = None
    external_id: str = field(default="", name="externalID")


class NodeTemplate(Wire, frozen=True, kw_only=True):
    """Labels, annotations and taints that are put on the Node and kept there.

    Attributes:
        metadata: labels and annotations that are put on the Node; other fields have no effect.
        spec: taints that are put on the Node.
    """

    metadata: dict[str, Any] | None = None
    spec: NodeTemplateSpec = NodeTemplateSpec()


class MachineSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a Machine.

    Attributes:
        class_: class that the VM is created from.
        provider_id: cloud ID of the VM. Set by the controller when the VM exists; while it is set,
            no VM is created.
        node_template: labels, annotations and taints of the Node.
        drain_timeout: how long the Node is drained gracefully when the Machine is deleted, such as
            20m; then Pods are deleted by force. The daemon's --machine-drain-timeout if not set.
        health_timeout: how long the Node may be unhealthy or missing before the Machine fails, such
            as 10m. The daemon's --machine-health-timeout if not set.
        creation_timeout: how long the Machine may take to join the cluster before it fails, such as
            20m. The daemon's --machine-creation-timeout if not set.
        in_place_update_timeout: how long an update in place may take before it fails, such as 20m.
            The daemon's --machine-inplace-update-timeout if not set.
        machine_preserve_timeout: how long a failed Machine is kept when it is preserved, such as
            72h. The daemon's --machine-preserve-timeout if not set.
        disable_health_timeout: if true, the Machine never fails because its Node is unhealthy.
        max_evict_retries: how often the eviction of a Pod is tried before the Pod is deleted. The
            daemon's --machine-max-evict-retries if not set.
        node_conditions: comma-separated condition types; the Node is unhealthy while one of them is
            not False. The daemon's --node-conditions if not set.
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
    """Last operation on the object, and its result.

    Attributes:
        description: result in words; on a failure, its cause.
        error_code: code of the error, such as ResourceExhausted; empty without an error.
        last_update_time: time at which the operation was recorded.
        state: result of the operation: Processing, Failed or Successful.
        type: type of the operation: Create, Update, InPlaceUpdate, DrainNode, HealthCheck or
            Delete.
    """

    description: str = ""
    error_code: str = ""
    last_update_time: Time = None
    state: str = ""
    type: str = ""


class CurrentStatus(Wire, frozen=True, kw_only=True):
    """Phase of a Machine.

    Attributes:
        phase: phase of the Machine: empty (new), Pending, Available, Running, Terminating, Unknown,
            Failed, CrashLoopBackOff, InPlaceUpdating, InPlaceUpdateSuccessful or
            InPlaceUpdateFailed.
        timeout_active: true while a timeout runs after which the Machine fails.
        last_update_time: time at which the Machine entered the phase.
        preserve_expiry_time: time until which the Machine is preserved; not set if it is not.
    """

    phase: str = ""
    timeout_active: bool = False
    last_update_time: Time = None
    preserve_expiry_time: Time = None


class MachineStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a Machine.

    Attributes:
        addresses: addresses of the VM; set only without a target cluster.
        conditions: copies of the conditions of the Node.
        last_operation: last operation on the Machine, and its result.
        current_status: phase of the Machine.
        last_known_state: state that the driver stores between calls; opaque.
    """

    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None
    last_operation: LastOperation = LastOperation()
    current_status: CurrentStatus = CurrentStatus()
    last_known_state: str = ""


class Machine(KubeObject, frozen=True, kw_only=True):
    """A VM that becomes a Node of the cluster.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineSpec = MachineSpec()
    status: MachineStatus = MachineStatus()


class MachineTemplateSpec(Wire, frozen=True, kw_only=True):
    """Template that Machines are created from.

    Attributes:
        metadata: labels and annotations of the Machines; the labels have to match the selector.
        spec: spec of the Machines.
    """

    metadata: dict[str, Any] | None = None
    spec: MachineSpec = MachineSpec()


class ClassNodeTemplate(Wire, frozen=True, kw_only=True):
    """Properties of a Node of the class, from which the autoscaler scales up from zero.

    Attributes:
        capacity: resources of the Node; cpu, gpu and memory are required.
        virtual_capacity: extended resources that are added to the capacity of the Node.
        instance_type: machine type of the VM in the cloud.
        region: region of the VM.
        zone: availability zone of the VM.
        architecture: CPU architecture of the VM, such as amd64.
    """

    capacity: Quantities | None = None
    virtual_capacity: Quantities | None = None
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    architecture: str = ""


class SecretReference(Wire, frozen=True, kw_only=True):
    """Reference to a Secret.

    Attributes:
        name: name of the Secret.
        namespace: namespace of the Secret; it has to be that of the class.
    """

    name: str = ""
    namespace: str = ""


class ObjectCondition(Wire, frozen=True, kw_only=True):
    """A condition of the object.

    Attributes:
        type: type of the condition: SpecValid on a MachineClass; ReplicaFailure, CreationSlowed or
            Frozen on a MachineSet.
        status: whether the condition holds: True, False or Unknown.
        last_transition_time: time at which the status changed last.
        reason: cause of the last change, in one word.
        message: cause of the last change, in a sentence.
    """

    type: str
    status: str
    last_transition_time: Time = None
    reason: str = ""
    message: str = ""


class ClassStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a class.

    Attributes:
        conditions: SpecValid tells whether VMs can be created from the class.
    """

    conditions: list[ObjectCondition] | None = None


class MachineClass(KubeObject, frozen=True, kw_only=True):
    """Properties of VMs in terms of the provider; Machines refer to it.

    Attributes:
        node_template: properties of a Node of the class.
        provider_spec: properties of the VM in terms of the provider, which documents them.
        provider: name of the provider; VMs are created only if it is the one in use, or not set.
        secret_ref: Secret with the user data of the VMs (key userData) and the cloud's credentials.
        credentials_secret_ref: Secret with credentials; a key in it overrides that of secretRef.
        status: observed state; Gardener's own definition has none.
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

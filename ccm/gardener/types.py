"""Wire types of the objects, with all fields. Their CRDs are generated from these types.

Durations are in Go's format (`20m`), timestamps are RFC 3339. A field without a default is
required. `kubectl explain` shows the docstrings of classes and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.structs import replace

from ccm.model import NodeAddress, NodeCondition, ObjectMeta, Taint
from ccm.model.machines import Strategy as Strategies
from ccm.model.meta import KubeObject, Wire, enum
from ccm.model.selectors import LabelSelector

Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
"""Nullable: Go writes a timestamp that was never set as null."""

ROLLING = Strategies.ROLLING.value
DEFAULT_BOUND = 1
"""Default type of a strategy, and default of its bounds `maxUnavailable` and `maxSurge` (Gardener's
machine-controller-manager)."""

Quantities = dict[str, int | str]
"""Name of a resource -> amount."""


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
        taints: taints that are put on the Node, and put back if another writer removes them.
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
        state: state of the operation: Processing, Failed or Successful.
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
        preserve_expiry_time: time until which the Machine is preserved; not set if the Machine is
            not preserved.
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
    """Properties of a Node of the class, for the autoscaler's scale-up from zero.

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
    """Provider-specific properties of VMs; Machines refer to the class.

    Attributes:
        node_template: properties of a Node of the class.
        provider_spec: properties of the VM in terms of the provider, which documents them.
        provider: name of the provider; VMs are created only if it is not set, or is the provider
            of the running controllers.
        secret_ref: Secret with the user data of the VMs (key userData) and the cloud's credentials.
        credentials_secret_ref: Secret with credentials; if both Secrets contain a key, this Secret
            wins.
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
        """Provider spec for the driver; empty if there is none."""
        return self.provider_spec or {}

    @property
    def secrets(self) -> tuple[SecretReference, ...]:
        """References to the Secrets of the class; if two contain a key, the later Secret wins."""
        both = (self.secret_ref, self.credentials_secret_ref)
        return tuple(ref for ref in both if ref is not None and ref.name)


class MachineSummary(Wire, frozen=True, kw_only=True):
    """A Machine that failed.

    Attributes:
        name: name of the Machine.
        provider_id: cloud ID of its VM.
        last_operation: last operation on the Machine, and its result.
        owner_ref: name of its MachineSet.
    """

    name: str = ""
    provider_id: str = field(default="", name="providerID")
    last_operation: LastOperation = LastOperation()
    owner_ref: str = ""


class MachineSetSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineSet.

    Attributes:
        replicas: desired number of Machines.
        selector: selects the Machines of the set by their labels; the labels of the template have
            to match it.
        machine_class: has no effect; spec.template.spec.class counts.
        template: template that the Machines are created from.
        min_ready_seconds: seconds for which a Machine has to run to count as available.
        auto_preserve_failed_machine_max: maximum number of failed Machines that are preserved
            automatically.
    """

    replicas: Int32 = 0
    selector: LabelSelector | None = None
    machine_class: ClassSpec = ClassSpec()
    template: MachineTemplateSpec = MachineTemplateSpec()
    min_ready_seconds: Int32 = 0
    auto_preserve_failed_machine_max: Int32 = 0


class MachineSetStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineSet.

    Attributes:
        replicas: number of Machines.
        fully_labeled_replicas: number of Machines with all labels of the template.
        ready_replicas: number of Machines that run.
        available_replicas: number of Machines that have run for minReadySeconds.
        preserved_failed_replicas: number of failed Machines that are preserved.
        observed_generation: generation of the spec that this status is about.
        conditions: conditions of the set: ReplicaFailure, CreationSlowed and Frozen.
        last_operation: last creation or deletion of Machines, and its result.
        failed_machines: Machines that failed.
        auto_preserve_failed_machine_count: number of failed Machines that are preserved
            automatically.
    """

    replicas: Int32 = 0
    fully_labeled_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    preserved_failed_replicas: Int32 = 0
    observed_generation: Int64 = 0
    conditions: list[ObjectCondition] | None = field(default=None, name="machineSetCondition")
    last_operation: LastOperation = LastOperation()
    failed_machines: list[MachineSummary] | None = None
    auto_preserve_failed_machine_count: Int32 = 0


class MachineSet(KubeObject, frozen=True, kw_only=True):
    """A number of Machines of one template.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineSetSpec = MachineSetSpec()
    status: MachineSetStatus = MachineSetStatus()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of a rolling update; each is a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: maximum number of replicas that may be unavailable; 1 if not set.
        max_surge: maximum number of Machines beyond the replicas; 1 if not set.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class InPlaceUpdate(Wire, frozen=True, kw_only=True):
    """Bounds of an update in place; each is a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: maximum number of replicas that may be unavailable; required.
        max_surge: maximum number of Machines beyond the replicas; required.
        orchestration_type: with Auto the controller selects the Nodes to update; with Manual a
            user labels them.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None
    orchestration_type: Annotated[str, enum("", "Auto", "Manual")] = ""


class Strategy(Wire, frozen=True, kw_only=True):
    """How Machines are moved to a new template.

    Attributes:
        type: RollingUpdate replaces Machines step by step, Recreate deletes all first,
            InPlaceUpdate keeps the VMs. RollingUpdate if not set.
        rolling_update: bounds of a rolling update.
        in_place_update: bounds of an update in place.
    """

    type: Annotated[str, enum("", *(strategy.value for strategy in Strategies))] = ""
    rolling_update: RollingUpdate | None = None
    in_place_update: InPlaceUpdate | None = None

    def effective(self) -> Strategy:
        """Return the strategy with machine-controller-manager's defaults, which are not stored."""
        # With bounds of an in-place update but no type, a user does not expect new machines.
        rolls = not self.type and self.in_place_update is None
        if self.type != ROLLING and not rolls:
            return self
        given = self.rolling_update or RollingUpdate()
        missing, surge = given.max_unavailable, given.max_surge
        bounds = RollingUpdate(
            max_unavailable=DEFAULT_BOUND if missing is None else missing,
            max_surge=DEFAULT_BOUND if surge is None else surge,
        )
        return replace(self, type=ROLLING, rolling_update=bounds)


class RollbackConfig(Wire, frozen=True, kw_only=True):
    """Revision of the template to return to.

    Attributes:
        revision: revision to return to; 0 is the previous revision.
    """

    revision: Int64 = 0


class MachineDeploymentSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineDeployment.

    Attributes:
        replicas: desired number of Machines.
        selector: selects the MachineSets of the deployment by their labels; the labels of the
            template have to match it.
        template: template that the Machines are created from; a change starts a rollout.
        strategy: how Machines are moved to a new template.
        min_ready_seconds: seconds for which a Machine has to run to count as available.
        revision_history_limit: number of old MachineSets to keep for a rollback; all if not set.
        paused: if true, nothing is rolled out; scaling goes on.
        rollback_to: set it to return to an older template; the controller removes it.
        progress_deadline_seconds: seconds without progress after which the condition Progressing is
            False; no deadline if not set.
        auto_preserve_failed_machine_max: maximum number of failed Machines that are preserved
            automatically.
    """

    template: MachineTemplateSpec
    replicas: Int32 = 0
    selector: LabelSelector | None = None
    strategy: Strategy = Strategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None
    paused: bool = False
    rollback_to: RollbackConfig | None = None
    progress_deadline_seconds: Int32 | None = None
    auto_preserve_failed_machine_max: Int32 = 0


class DeploymentCondition(ObjectCondition, frozen=True, kw_only=True):
    """A condition of a MachineDeployment: Available, Progressing, ReplicaFailure or Frozen.

    Attributes:
        last_update_time: time at which the condition was written last.
    """

    last_update_time: Time = None


class MachineDeploymentStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineDeployment.

    Attributes:
        observed_generation: generation of the spec that this status is about.
        replicas: number of Machines.
        updated_replicas: number of Machines of the newest template.
        ready_replicas: number of Machines that run.
        available_replicas: number of Machines that have run for minReadySeconds.
        preserved_failed_replicas: number of failed Machines that are preserved.
        unavailable_replicas: number of Machines that are missing or unavailable.
        conditions: conditions of the deployment: Available, Progressing, ReplicaFailure and Frozen.
        collision_count: number of generated MachineSet names that were taken already; changes the
            next generated name.
        failed_machines: Machines that failed.
    """

    observed_generation: Int64 = 0
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    preserved_failed_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    conditions: list[DeploymentCondition] | None = None
    collision_count: Int32 | None = None
    failed_machines: list[MachineSummary] | None = None


class MachineDeployment(KubeObject, frozen=True, kw_only=True):
    """Machines of one template, and how they are moved to a new one.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineDeploymentSpec
    status: MachineDeploymentStatus = MachineDeploymentStatus()

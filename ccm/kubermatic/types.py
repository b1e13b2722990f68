"""Wire types of the objects, with the fields in use. Their CRDs are generated from these types.

Timestamps are RFC 3339. A field without a default is required. `kubectl explain` shows the
docstrings of classes and attributes. Fields that are not declared are kept.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from ccm.model import NodeAddress, NodeCondition, ObjectMeta, Taint
from ccm.model.meta import KubeObject, Wire, enum
from ccm.model.selectors import LabelSelector

Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Time = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
"""Nullable: Go writes a timestamp that was never set as null."""


class ProviderSpec(Wire, frozen=True, kw_only=True):
    """Provider and operating system of a Machine.

    Attributes:
        value: cloudProvider, cloudProviderSpec, operatingSystem, operatingSystemSpec,
            sshPublicKeys, network; see the guide of the provider.
        value_from: has no effect.
    """

    value: dict[str, Any] | None = None
    value_from: dict[str, Any] | None = None


class Versions(Wire, frozen=True, kw_only=True):
    """Versions of Kubernetes.

    Attributes:
        kubelet: version of the kubelet.
        control_plane: has no effect.
    """

    kubelet: str = ""
    control_plane: str = ""


class MachineSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a Machine.

    Attributes:
        metadata: name of the instance and of the Node, by default that of the Machine; labels and
            annotations that the Node gets.
        taints: taints that the Node gets.
        provider_spec: provider and operating system.
        versions: versions of Kubernetes.
        config_source: must not be set.
        provider_id: cloud ID of the instance; set by the controller.
    """

    metadata: dict[str, Any] | None = None
    taints: list[Taint] | None = None
    provider_spec: ProviderSpec = ProviderSpec()
    versions: Versions = Versions()
    config_source: dict[str, Any] | None = None
    provider_id: str | None = field(default=None, name="providerID")


class NodeRef(Wire, frozen=True, kw_only=True):
    """Reference to the Node.

    Attributes:
        api_version: version of the kind.
        kind: kind of the object, Node.
        name: name of the Node.
        uid: UID of the Node.
    """

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


class LastOperation(Wire, frozen=True, kw_only=True):
    """Last operation on the Machine, and its result.

    Attributes:
        description: result in words; on a failure, its cause.
        last_updated: time at which the operation was recorded.
        state: state of the operation: Processing, Failed or Successful.
        type: type of the operation: Create, DrainNode, HealthCheck or Delete.
    """

    description: str = ""
    last_updated: Time = None
    state: str = ""
    type: str = ""


class MachineStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a Machine.

    Attributes:
        node_ref: Node of the Machine.
        last_updated: time at which the Machine entered the phase.
        versions: version of the kubelet on the Node.
        error_reason: why a user has to act: InvalidConfiguration, UnsupportedChange,
            InsufficientResources, CreateError, UpdateError or DeleteError.
        error_message: what is wrong.
        provider_status: state of the provider; opaque.
        addresses: addresses of the instance.
        conditions: copies of the conditions of the Node.
        last_operation: last operation on the Machine, and its result.
        phase: empty (new), Pending, Running, Unknown, Failed, CrashLoopBackOff or Terminating.
    """

    node_ref: NodeRef | None = None
    last_updated: Time = None
    versions: Versions | None = None
    error_reason: str | None = None
    error_message: str | None = None
    provider_status: Any = None
    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None
    last_operation: LastOperation | None = None
    phase: str | None = None


class Machine(KubeObject, frozen=True, kw_only=True):
    """An instance of a cloud that becomes a Node of the cluster.

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


class MachineSetSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineSet.

    Attributes:
        replicas: desired number of Machines; 1 if not set.
        min_ready_seconds: seconds for which a Machine has to be ready to count as available.
        delete_policy: which Machines are deleted first: Random, Newest or Oldest; Random if not
            set.
        selector: selects the Machines of the set by their labels; the labels of the template have
            to match it.
        template: template that the Machines are created from.
    """

    replicas: Int32 | None = None
    min_ready_seconds: Int32 = 0
    delete_policy: Annotated[str, enum("", "Random", "Newest", "Oldest")] = ""
    selector: LabelSelector | None = None
    template: MachineTemplateSpec = MachineTemplateSpec()


class MachineSetStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineSet.

    Attributes:
        replicas: number of Machines.
        fully_labeled_replicas: number of Machines with all labels of the template.
        ready_replicas: number of Machines whose Node is ready.
        available_replicas: number of Machines that have been ready for minReadySeconds.
        observed_generation: generation of the spec that this status is about.
        error_reason: has no effect.
        error_message: has no effect.
    """

    replicas: Int32 = 0
    fully_labeled_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    observed_generation: Int64 = 0
    error_reason: str | None = None
    error_message: str | None = None


class MachineSet(KubeObject, frozen=True, kw_only=True):
    """A number of Machines of one template.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineSetSpec = MachineSetSpec()
    status: MachineSetStatus = MachineSetStatus()


class UpdateBounds(Wire, frozen=True, kw_only=True):
    """Bounds of a rolling update; each is a number, or a percentage of the replicas.

    Attributes:
        max_unavailable: maximum number of replicas that may be unavailable; 0 if not set.
        max_surge: maximum number of Machines beyond the replicas; 1 if not set.
    """

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class Strategy(Wire, frozen=True, kw_only=True):
    """How Machines are moved to a new template.

    Attributes:
        type: RollingUpdate replaces Machines step by step.
        rolling_update: bounds of the update.
    """

    type: str = ""
    rolling_update: UpdateBounds | None = None


class MachineDeploymentSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a MachineDeployment.

    Attributes:
        replicas: desired number of Machines; 1 if not set.
        selector: selects the MachineSets of the deployment by their labels; the labels of the
            template have to match it.
        template: template that the Machines are created from; a change starts a rollout.
        strategy: how Machines are moved to a new template.
        min_ready_seconds: seconds for which a Machine has to be ready to count as available.
        revision_history_limit: number of old MachineSets to keep; 1 if not set.
        paused: if true, nothing is rolled out; scaling goes on.
        progress_deadline_seconds: has no effect.
    """

    template: MachineTemplateSpec
    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    strategy: Strategy | None = None
    min_ready_seconds: Int32 | None = None
    revision_history_limit: Int32 | None = None
    paused: bool = False
    progress_deadline_seconds: Int32 | None = None


class MachineDeploymentStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a MachineDeployment.

    Attributes:
        observed_generation: generation of the spec that this status is about.
        replicas: number of Machines.
        updated_replicas: number of Machines of the newest template.
        ready_replicas: number of Machines whose Node is ready.
        available_replicas: number of Machines that have been ready for minReadySeconds.
        unavailable_replicas: number of Machines that are missing or unavailable.
    """

    observed_generation: Int64 = 0
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0


class MachineDeployment(KubeObject, frozen=True, kw_only=True):
    """Machines of one template, and how they are moved to a new one.

    Attributes:
        spec: desired state.
        status: observed state; written by the controllers.
    """

    metadata: ObjectMeta
    spec: MachineDeploymentSpec
    status: MachineDeploymentStatus = MachineDeploymentStatus()

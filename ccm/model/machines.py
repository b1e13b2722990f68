"""Machine types of the controllers, independent of the API group of the objects.

Kubernetes converts the versions of an API group to one internal type, the hub. This module has the
hub types of machines. Each API group has a codec, which converts its documents to hub types, once
per version of an object, and creates the patches that controllers write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from ccm.model.meta import KubeObject
from ccm.model.node import NodeAddress, NodeCondition, Taint
from ccm.model.selectors import BadSelectorError, LabelSelector, Requirement


class Phase(Enum):
    """Phase of a machine."""

    NEW = ""
    PENDING = "Pending"
    """The VM exists; its node has not joined the cluster, or is not ready."""
    AVAILABLE = "Available"
    """The VM exists, in an installation whose VMs do not join a cluster."""
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    """The machine was running; now its node is unhealthy or missing."""
    FAILED = "Failed"
    """The machine set must replace the machine."""
    CRASH_LOOP = "CrashLoopBackOff"
    """The VM could not be created; the creation is retried."""
    TERMINATING = "Terminating"
    UPDATING = "InPlaceUpdating"
    UPDATED = "InPlaceUpdateSuccessful"
    UPDATE_FAILED = "InPlaceUpdateFailed"
    FOREIGN = "?"
    """Phase that this version of the daemon does not know and never overwrites."""


CREATION_PHASES = frozenset({Phase.NEW, Phase.CRASH_LOOP})
"""Phases of a machine before the status records that its VM was created."""

READY_PHASES = frozenset({Phase.RUNNING, Phase.AVAILABLE})
"""Phases of a machine that counts as ready."""


class OperationState(Enum):
    """State of an operation."""

    PROCESSING = "Processing"
    FAILED = "Failed"
    SUCCESSFUL = "Successful"


class OperationType(Enum):
    """Type of an operation."""

    CREATE = "Create"
    HEALTH_CHECK = "HealthCheck"
    DELETE = "Delete"
    DRAIN = "DrainNode"
    IN_PLACE = "InPlaceUpdate"


class Strategy(Enum):
    """Strategy by which the machines of a deployment are replaced."""

    ROLLING = "RollingUpdate"
    RECREATE = "Recreate"
    IN_PLACE = "InPlaceUpdate"


class Preserve(Enum):
    """Value of the preserve annotation of a machine or its node: when a failed machine is kept."""

    UNSET = ""
    NO = "false"
    NOW = "now"
    WHEN_FAILED = "when-failed"
    AUTO = "auto-preserved"
    """Set by the machine set controller, for at most `MachineOwner.max_preserved` machines."""

    @classmethod
    def of(cls, text: str) -> Preserve:
        """Return the value of an annotation; unknown text counts as unset."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """Observed state of a machine.

    Attributes:
        phase: phase of the machine.
        description: result of the last operation in words.
        code: name of the cloud's error code, such as `NotFound`; empty = no error.
        state: state of the last operation, a value of `OperationState`; empty = none.
        kind: type of the last operation, a value of `OperationType`; empty = none.
        timeout_active: whether a timeout is running after which the machine fails.
        since: time at which the machine entered the phase.
        preserve_until: time until which a failed machine is kept; None = it is not preserved.
        updated: time at which the last operation was recorded.
        known_state: state that the driver stores between calls; opaque.
        addresses: addresses of the VM; with a target cluster, stored only if
            `MachineSettings.stores_addresses`.
        conditions: conditions of the node.
    """

    phase: Phase = Phase.NEW
    description: str = ""
    code: str = ""
    state: str = ""
    kind: str = ""
    timeout_active: bool = False
    since: datetime | None = None
    preserve_until: datetime | None = None
    updated: datetime | None = None
    known_state: str = ""
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()

    def entered(
        self,
        phase: Phase,
        description: str,
        state: OperationState,
        kind: OperationType,
        now: datetime,
        *,
        timeout_active: bool = False,
    ) -> MachineStatus:
        """Return the status of a machine that enters a phase now."""
        return replace(
            self,
            phase=phase,
            description=description,
            code="",
            state=state.value,
            kind=kind.value,
            timeout_active=timeout_active,
            since=now,
            updated=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of an object.

    Attributes:
        type: type of the condition.
        status: True, False or Unknown.
        reason: cause of the last change, in one word.
        message: cause of the last change, in a sentence.
        updated: time at which the condition was written last; None = the object's kind has no such
            field.
        since: time since which the condition has this status.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    updated: datetime | None = None
    since: datetime | None = None

    def after(self, before: Condition | None) -> Condition:
        """Return the condition; keep the transition time of `before` if the status is the same."""
        is_same = before is not None and before.status == self.status
        return replace(self, since=before.since) if before is not None and is_same else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Last operation on an object, and its result.

    Attributes:
        description: result in words.
        code: name of the cloud's error code, such as `NotFound`; empty = no error.
        state: state of the operation, a value of `OperationState`; empty = none.
        kind: type of the operation, a value of `OperationType`; empty = none.
        updated: time at which the operation was recorded.
    """

    description: str = ""
    code: str = ""
    state: str = ""
    kind: str = ""
    updated: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMachine:
    """Machine whose last operation failed, as listed in the status of its set and deployment.

    Attributes:
        name: name of the machine.
        provider_id: provider ID of the machine's VM.
        owner: name of the machine's set.
        operation: last operation on the machine.
    """

    name: str
    provider_id: str = ""
    owner: str = ""
    operation: Operation = Operation()


class MachineClass(KubeObject, frozen=True, kw_only=True):
    """Common properties of the VMs of several machines.

    Attributes:
        provider: name of the provider; empty = the configured provider.
        provider_field: path of the provider's name in the machine that contains the class; empty =
            the class is an object of its own.
        provider_spec: properties of the VMs, in the schema of the provider's driver.
        secrets: namespace and name of each Secret with credentials or user data; if several Secrets
            have the same key, the last Secret counts.
        references: references to the keys of Secrets and ConfigMaps that contain credentials, in an
            API group without `secrets`.
        imports: provider IDs of VMs that machines may own even if the labels or tags of the VMs
            name another owner.
        extra_capacity: resources that are added to the capacity of nodes.
        place: instance type and zone of the VMs, for metrics; empty = not stated in the class.
        region: region of the VMs; empty = not stated in the class.
        is_held: whether the class has the finalizer of this program.
        gaps: required properties that the class lacks, one sentence each.
        conditions: conditions of the object.
        source: document of the API group; for the codec only.
    """

    provider: str = ""
    provider_field: str = ""
    provider_spec: Mapping[str, Any] = msgspec.field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()
    references: tuple[Any, ...] = ()
    imports: frozenset[str] = frozenset()
    extra_capacity: Mapping[str, str] = msgspec.field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    region: str = ""
    is_held: bool = True
    gaps: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    source: Any = None


class Machine(KubeObject, frozen=True, kw_only=True):
    """A VM that becomes a node of the cluster.

    Attributes:
        created: creation time of the object.
        class_name: name of the machine class; empty = the machine refers to no class.
        class_reference: API group, kind and name of the class as written in the object.
        provider_id: provider ID of the VM; empty until the VM is created.
        node_name: name of the node; empty until it is known.
        status: observed state.
        group: group of machines of which the controller marks only one as Failed at a time; empty =
            in no group.
        deployment: name of the machine deployment, for metrics.
        creation_timeout_s: seconds to join the cluster, after which the machine fails; None = the
            daemon's setting.
        health_timeout_s: seconds with an unhealthy node, after which the machine fails; None = the
            daemon's setting.
        update_timeout_s: seconds for an update in place; None = the daemon's setting.
        never_fails: whether `health_timeout_s` is disabled, so that an unhealthy node never makes
            the machine fail.
        preserve_timeout_s: seconds for which the failed machine is preserved; None = the daemon's
            setting.
        unhealthy_conditions: condition types that make the node unhealthy; None = the daemon's
            setting.
        creation_started: whether the object records that the creation of its VM was started; the
            write that stores the provider ID removes the record. While True, a VM may exist
            although the creation failed.
        may_be_unlisted: whether another program may have created the VM, without the labels or tags
            by which listings find it.
        origins: digests of the credentials and regions with which the VM was created or later
            found, newest last; empty = not recorded.
        node_labels: labels that the controller maintains on the node.
        node_annotations: annotations that the controller maintains on the node.
        taints: taints that the controller maintains on the node.
        force_deletion: whether a user requested a deletion that does not wait for an orderly drain.
        force_drain: whether a drain uses force if the node is kept, as for an update in place.
        drain_timeout_s: seconds after which the drain uses force; None = the daemon's setting.
        max_evict_retries: number of retries of a Pod's refused eviction before the Pod is deleted;
            None = the daemon's setting.
        priority: machines with a lower priority are deleted first.
        marked: time at which the cluster autoscaler chose the machine for deletion; None = never.
        preserve: value of the preserve annotation on the object (`Preserve`).
        preserve_of_node: value of the node's preserve annotation that was applied last.
        was_moved: whether an update in place moved the machine from another set to its present set.
        vm_name: name of VM and node; empty = the name of the machine.
        kubelet_version: version of the kubelet; empty = the object does not state it.
        own_class: class that the object itself contains, in an API group without class objects.
        source: document of the API group; for the codec only.
    """

    created: datetime
    class_name: str = ""
    class_reference: tuple[str, str, str] = ("", "", "")
    provider_id: str = ""
    node_name: str = ""
    status: MachineStatus = MachineStatus()
    group: str = ""
    deployment: str = ""
    creation_timeout_s: float | None = None
    health_timeout_s: float | None = None
    update_timeout_s: float | None = None
    never_fails: bool = False
    preserve_timeout_s: float | None = None
    unhealthy_conditions: Sequence[str] | None = None
    creation_started: bool = False
    may_be_unlisted: bool = False
    origins: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    taints: Sequence[Taint] = ()
    force_deletion: bool = False
    force_drain: bool = False
    drain_timeout_s: float | None = None
    max_evict_retries: int | None = None
    priority: int = 0
    marked: datetime | None = None
    preserve: str = ""
    preserve_of_node: str = ""
    was_moved: bool = False
    vm_name: str = ""
    kubelet_version: str = ""
    own_class: MachineClass | None = None
    source: Any = None

    def annotation(self, name: str) -> str:
        """Return an annotation of the object; empty = not set."""
        return self.annotations.get(name, "")

    @property
    def phase(self) -> Phase:
        """Phase of the machine."""
        return self.status.phase

    @property
    def spec(self) -> object:
        """Spec of the document; only for comparisons with another spec."""
        return self.source.spec

    @property
    def in_creation(self) -> bool:
        """Whether the VM must still be found, created or initialised."""
        return not self.provider_id or self.phase in CREATION_PHASES

    @property
    def is_terminating(self) -> bool:
        """Whether the machine is being deleted, so that its set no longer counts it."""
        return self.is_deleting or self.phase is Phase.TERMINATING

    @property
    def counts_as_ready(self) -> bool:
        """Whether the machine counts as ready."""
        return self.phase in READY_PHASES and not self.is_deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Template that machines are created from.

    Attributes:
        essence: fields whose change replaces the machines, as text.
        rest: all other fields, as text; a change is copied to the existing machines.
        labels: labels of the machines.
        class_name: name of the machine class; empty = the template refers to no class.
        class_reference: API group, kind and name of the class as written in the object.
        source: template of the document; for the codec only.
    """

    essence: str
    rest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    class_name: str = ""
    class_reference: tuple[str, str, str] = ("", "", "")
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Observed state of a machine set.

    Attributes:
        observed: generation of the spec that this status describes (`observedGeneration`).
        replicas: number of machines.
        labeled: number of machines with all labels of the template.
        ready: number of machines in the phase Running.
        available: number of machines that have been ready for `min_ready_s`.
        preserved: number of failed machines that are preserved.
        preserved_by_us: number of machines that the controller preserved, not a user.
        conditions: conditions of the set, including those of other writers.
        last: last creation or deletion of machines.
        failed: machines that failed.
    """

    observed: int = 0
    replicas: int = 0
    labeled: int = 0
    ready: int = 0
    available: int = 0
    preserved: int = 0
    preserved_by_us: int = 0
    conditions: tuple[Condition, ...] = ()
    last: Operation = Operation()
    failed: tuple[FailedMachine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """Observed state of a machine deployment.

    Attributes:
        observed: generation of the spec that this status describes (`observedGeneration`).
        replicas: number of machines.
        updated: number of machines in the set with the newest template.
        ready: number of machines in the phase Running.
        available: number of machines that have been ready for `min_ready_s`.
        preserved: number of failed machines that are preserved.
        unavailable: replicas of the sets less `available`; at least 0.
        conditions: conditions of the deployment, including those of other writers.
        collisions: number of collisions with names of existing sets (`collisionCount`); the number
            is hashed into the name of the next set.
        failed: machines that failed.
    """

    observed: int = 0
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    preserved: int = 0
    unavailable: int = 0
    conditions: tuple[Condition, ...] = ()
    collisions: int | None = None
    failed: tuple[FailedMachine, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type; None = no such condition."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class MachineOwner(KubeObject, frozen=True, kw_only=True):
    """Common base of machine sets and machine deployments.

    Attributes:
        replicas: desired number of machines.
        template: template of the machines.
        selector: label selector of the controlled objects; None = no selector.
        min_ready_s: seconds for which a machine must be ready to count as available.
        max_preserved: maximum number of failed machines that a set preserves automatically.
        is_frozen: whether the creation of machines is stopped.
        wants_unfreeze: whether a user requested that the object be unfrozen.
        faults: reasons why the object cannot be used, one sentence each.
        source: document of the API group; for the codec only.
    """

    replicas: int
    template: Template
    selector: LabelSelector | None = None
    min_ready_s: float = 0.0
    max_preserved: int = 0
    is_frozen: bool = False
    wants_unfreeze: bool = False
    faults: tuple[str, ...] = ()
    source: Any = None

    @property
    def requirements(self) -> tuple[Requirement, ...] | None:
        """Requirements of the selector; None = there is no selector, or it is invalid."""
        if self.selector is None:
            return None
        try:
            return self.selector.requirements()
        except BadSelectorError:
            return None

    @property
    def selects_all(self) -> bool:
        """Whether the selector is absent or empty, so that it would match every object."""
        selector = self.selector
        return selector is None or not (selector.match_labels or selector.match_expressions)


class MachineSet(MachineOwner, frozen=True, kw_only=True):
    """Set of machines of one template.

    Attributes:
        created: creation time of the object.
        may_grow: whether machines may be created: the set is not frozen, and is not an old set in
            an update in place.
        scaled: time at which the cluster autoscaler last changed the replicas; None = never.
        deletes_newest: whether, of several machines that could equally be deleted, the newest is
            deleted first, instead of the oldest.
        status: observed state.
    """

    created: datetime
    may_grow: bool = True
    scaled: datetime | None = None
    deletes_newest: bool = False
    status: SetStatus = SetStatus()

    @property
    def is_active(self) -> bool:
        """Whether the set should have machines."""
        return self.replicas > 0 and not self.is_deleting

    @property
    def creation_key(self) -> tuple[datetime, str]:
        """Sort key that puts the oldest set first."""
        return (self.created, self.name)

    @property
    def is_status_current(self) -> bool:
        """Whether the status describes the current spec.

        If False, the cache may lack new machines of the set.
        """
        return self.status.observed >= self.metadata.generation


class MachineDeployment(MachineOwner, frozen=True, kw_only=True):
    """Machines of one template, and the rollout to a new template.

    Attributes:
        strategy: how machines are replaced; None = `strategy_type` is unknown.
        strategy_type: type of the strategy as written in the object.
        max_surge: maximum number of machines beyond the replicas; a number, or a percentage.
        max_unavailable: maximum number of unavailable replicas; a number, or a percentage.
        is_manual: whether a user selects the nodes to update in place.
        is_paused: whether rollouts are paused.
        deadline_s: seconds without progress after which the rollout is reported as stuck; None =
            never.
        history_limit: number of old sets to keep; None = all.
        rollback_to: revision to roll back to, 0 = the previous revision; None = no rollback.
        status: observed state.
    """

    strategy: Strategy | None = Strategy.ROLLING
    strategy_type: str = Strategy.ROLLING.value
    max_surge: int | str = 0
    max_unavailable: int | str = 0
    is_manual: bool = False
    is_paused: bool = False
    deadline_s: float | None = None
    history_limit: int | None = None
    rollback_to: int | None = None
    status: DeploymentStatus = DeploymentStatus()


def document_of(obj: KubeObject) -> Any:
    """Return the document of a hub object; any other object is its own document."""
    hub_types = (Machine, MachineClass, MachineOwner)
    return obj.source if isinstance(obj, hub_types) else obj

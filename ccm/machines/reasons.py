"""Reasons of events, types of conditions, and event sources of the machine controllers.

These names are a public API: do not change or remove any. "Ours" = Gardener's
machine-controller-manager (MCM) lacks the name; all other names are MCM's.
"""

from __future__ import annotations

REASON_UPDATE_CANDIDATE = "CandidateForUpdate"
REASON_UPDATE_SELECTED = "SelectedForUpdate"
REASON_UPDATE_DRAINED = "DrainSuccessful"
REASON_UPDATE_READY = "ReadyForUpdate"
REASON_UPDATE_SUCCESSFUL = "UpdateSuccessful"
REASON_UPDATE_FAILED = "UpdateFailed"
"""Reasons of the condition `InPlaceUpdate` of a Node, in the order of an update. The last three are
also reasons of events on its Machine."""

EVENT_SCALING = "ScalingMachineSet"
EVENT_SELECTING_ALL = "SelectingAll"
EVENT_CREATE_ERROR = "MachineSetCreateError"
EVENT_ROLLBACK = "DeploymentRollback"
EVENT_NO_REVISION = "DeploymentRollbackRevisionNotFound"
EVENT_SAME_TEMPLATE = "DeploymentRollbackTemplateUnchanged"
"""Reasons of events on a MachineDeployment."""

UNHEALTHY_CONDITIONS = (
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "DiskPressure",
    "NetworkUnavailable",
)
"""Conditions that make a node unhealthy unless they are False or missing; default of the flag
`--node-conditions`."""

CONDITION_SPEC_VALID = "SpecValid"
"""Condition type of a MachineClass, or of a Machine that contains its class: whether VMs can be
created from it. Ours."""

REASON_SPEC_INVALID = "SpecInvalid"
"""Reason of a Warning event on a MachineClass from which no VM can be created; the message says
why. Ours."""

REASON_SPEC_VALID = "SpecAccepted"
REASON_UNCHECKED = "NotChecked"
"""Reasons of the condition `SpecValid` if it is True: the driver accepted the spec, or does not
validate specs. Ours."""

REASON_ORPHAN_DELETED = "DeletedOrphanVM"
"""Reason of an event on a MachineClass: a VM without a Machine was deleted. Ours."""

REASON_ORPHAN_HELD = "OrphanVMsHeld"
"""Reason of an event on a MachineClass: VMs without a Machine are kept, because a pass deletes only
a limited number. Ours."""

REASON_ORPHAN_UNCONFIRMED = "OrphanVMsUnconfirmed"
"""Reason of an event on a MachineClass: VMs without a Machine are kept, because their labels have
no namespace and they may have another owner. Ours."""

REASON_STRANGER = "UnmarkedVM"
"""Reason of an event on a MachineClass: a VM without the marker of any cluster is ignored. Ours."""

REASON_DRAINED = "NodeDrained"
"""Reason of an event on a Machine: the drain of its node is complete. Ours."""

REASON_DRAIN_BLOCKED = "NodeDrainBlocked"
"""Reason of an event on a Machine: the drain of its node waits, for example for a disruption
budget. Ours."""

REASON_DRAIN_FAILED = "NodeDrainFailed"
"""Reason of an event on a Machine: the drain of its node failed and will be started again. Ours."""

REASON_VM_NOT_VISIBLE = "VMNotVisible"
"""Reason of a Warning event on a Machine that is being deleted: the cloud does not show its VM to
the new credentials of its class. Ours."""

REASON_VM_PRESUMED_DELETED = "VMPresumedDeleted"
"""Reason of a Warning event on a Machine that is being deleted: its VM counts as deleted, because
the wait for the former credentials has ended. Ours."""

REASON_VM_NOT_OWNED = "VMNotOwned"
"""Reason of a Warning event on a Machine: the VM of its provider ID has another owner, so that the
controller changes neither the VM nor its node. Ours."""

REASON_UID_NOT_MIGRATED = "UIDNotMigrated"
"""Reason of a Warning event on a restored Machine: its UID cannot be written to the VM, and nothing
changes in the cloud. Ours."""

REASON_NODE_UNHEALTHY = "NodeUnhealthy"
REASON_NODE_HEALTHY = "NodeHealthy"
"""Reasons of events on a Machine: its node is unhealthy, or healthy again. Ours."""

REASON_MACHINE_FAILED = "MachineFailed"
"""Reason of an event on a Machine: the Machine was marked Failed. Ours."""

REASON_REPLACEMENT_BLOCKED = "ReplacementHeld"
"""Reason of an event on a Machine: the Machine will be marked Failed only after the replacement of
other Machines. Ours."""

REASON_PRESERVED = "MachinePreserved"
REASON_PRESERVED_ENDED = "PreservationEnded"
"""Reasons of events on a Machine: the Machine is preserved, or no longer preserved. Ours."""

COMPONENT = "machine-controller"
"""Event source component."""

CONDITION_REPLICA_FAILURE = "ReplicaFailure"
CONDITION_FROZEN = "Frozen"
"""Condition types of a MachineSet; `Frozen` is also a condition type of a MachineDeployment."""

CONDITION_SLOWED = "CreationSlowed"
"""Condition type of a MachineSet whose creations are delayed because its machines fail. Ours."""

REASON_FAILED_CREATE = "FailedCreate"
REASON_FAILED_DELETE = "FailedDelete"
REASON_INVALID = "InvalidSpec"
"""Reasons of `ReplicaFailure`. `InvalidSpec` is ours: the set is invalid. `InvalidSpec` is also the
reason of a Warning event on an invalid set, and on a Machine for which no VM can be created."""

REASON_REPEATED_FAILURES = "RepeatedFailures"
"""Reason of `CreationSlowed`. Ours."""

REASON_CREATED = "SuccessfulCreate"
REASON_DELETED = "SuccessfulDelete"
"""Reasons of events on a MachineSet; events about failures have the reasons of `ReplicaFailure`."""

REASON_OVERSHOOT = "OverShootingReplicaCount"
REASON_UNDERSHOOT = "UnderShootingReplicaCount"
REASON_UNFREEZE = "UnfreezeAnnotation"
REASON_STATE_SYNC = "MachineDeploymentStateSync"
"""Reasons in the condition `Frozen`, and in the events about it; `MachineDeploymentStateSync` is
used for deployments only."""

REASON_FROZE_SET = "FrozeMachineSet"
REASON_UNFROZE_SET = "UnfrozeMachineSet"
"""Reasons of events on a MachineSet and its MachineDeployment."""

COMPONENT_SETS = "machineset-controller"
COMPONENT_MANAGER = "machine-controller-manager"
"""Components in the source of events: for creations and deletions of machines by a set, and for
freezing."""

"""Reasons of events, types of conditions, and event sources of the machine controllers.

They are an API: none is changed or removed. Those without "Ours" are the reference's.
"""

from __future__ import annotations

REASON_UPDATE_CANDIDATE = "CandidateForUpdate"
REASON_UPDATE_SELECTED = "SelectedForUpdate"
REASON_UPDATE_DRAINED = "DrainSuccessful"
REASON_UPDATE_READY = "ReadyForUpdate"
REASON_UPDATE_SUCCESSFUL = "UpdateSuccessful"
REASON_UPDATE_FAILED = "UpdateFailed"
"""Reasons of the condition of a Node during an in-place update, in this order. The last three are
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
"""Conditions that make a node unhealthy unless they are False or missing; default of the flag."""

CONDITION_SPEC_VALID = "SpecValid"
"""Condition type of a MachineClass: whether VMs can be created from it. Ours."""

REASON_SPEC_INVALID = "SpecInvalid"
"""Reason of a Warning event on a MachineClass from which no VM can be created; the message says
why. Ours."""

REASON_SPEC_VALID = "SpecAccepted"
REASON_UNCHECKED = "NotChecked"
"""Other reasons of that condition."""

REASON_ORPHAN_DELETED = "DeletedOrphanVM"
REASON_ORPHAN_HELD = "OrphanVMsHeld"
REASON_ORPHAN_UNCONFIRMED = "OrphanVMsUnconfirmed"
REASON_STRANGER = "UnmarkedVM"
"""Reasons of events on a MachineClass about VMs without a Machine: one was deleted; too many would
be deleted; some carry no namespace and may have another owner; one has no marker and is ignored.
Ours."""

REASON_DRAINED = "NodeDrained"
REASON_DRAIN_BLOCKED = "NodeDrainBlocked"
REASON_DRAIN_FAILED = "NodeDrainFailed"
"""Reasons of events on a Machine whose node is drained: the drain ended; it waits, for example for
Pods to become ready elsewhere; it failed, and starts again. Ours."""

REASON_VM_NOT_VISIBLE = "VMNotVisible"
REASON_VM_PRESUMED_DELETED = "VMPresumedDeleted"
"""Reasons of Warning events on a Machine that is being deleted: the new credentials of its class do
not show its VM; the wait for the former ones has ended, so the VM counts as deleted. Ours."""

REASON_VM_NOT_OWNED = "VMNotOwned"
"""Reason of a Warning event on a Machine: the VM of its provider ID has another owner, so that
neither the VM nor its node is touched. Ours."""

REASON_NODE_UNHEALTHY = "NodeUnhealthy"
REASON_NODE_HEALTHY = "NodeHealthy"
REASON_MACHINE_FAILED = "MachineFailed"
REASON_REPLACEMENT_BLOCKED = "ReplacementHeld"
REASON_PRESERVED = "MachinePreserved"
REASON_PRESERVED_ENDED = "PreservationEnded"
"""Reasons of events on a Machine: its node is unhealthy, or healthy again; it has failed; its
failure waits for other replacements; it is preserved, or no longer. Ours: the reference has no such
events."""

COMPONENT = "machine-controller"
"""Event source component."""

CONDITION_REPLICA_FAILURE = "ReplicaFailure"
CONDITION_FROZEN = "Frozen"
"""Condition types of a MachineSet; the second one of a MachineDeployment, too."""

CONDITION_SLOWED = "CreationSlowed"
"""Condition type of a MachineSet whose creations are delayed because its machines fail. Ours."""

REASON_FAILED_CREATE = "FailedCreate"
REASON_FAILED_DELETE = "FailedDelete"
REASON_INVALID = "InvalidSpec"
"""Reasons of `ReplicaFailure`. The last one is ours: the set is invalid. It is also the reason of a
Warning event on that set, and on a Machine for which no VM can be created."""

REASON_REPEATED_FAILURES = "RepeatedFailures"
"""Reason of `CreationSlowed`. Ours."""

REASON_CREATED = "SuccessfulCreate"
REASON_DELETED = "SuccessfulDelete"
"""Reasons of events on a MachineSet; failures have the reasons of the condition."""

REASON_OVERSHOOT = "OverShootingReplicaCount"
REASON_UNDERSHOOT = "UnderShootingReplicaCount"
REASON_UNFREEZE = "UnfreezeAnnotation"
REASON_STATE_SYNC = "MachineDeploymentStateSync"
"""Reasons why a set is frozen or unfrozen; the last one is for deployments."""

REASON_FROZE_SET = "FrozeMachineSet"
REASON_UNFROZE_SET = "UnfrozeMachineSet"
"""Reasons of events on a MachineSet and its MachineDeployment."""

COMPONENT_SETS = "machineset-controller"
COMPONENT_MANAGER = "machine-controller-manager"
"""Event source components: of creations and deletions of a set, and of freezing."""

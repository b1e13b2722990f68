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
"""Of the condition of a Node that is updated in place, one after the other; the last three are
events on its Machine, too."""

EVENT_SCALING = "ScalingMachineSet"
EVENT_SELECTING_ALL = "SelectingAll"
EVENT_CREATE_ERROR = "MachineSetCreateError"
EVENT_ROLLBACK = "DeploymentRollback"
EVENT_NO_REVISION = "DeploymentRollbackRevisionNotFound"
EVENT_SAME_TEMPLATE = "DeploymentRollbackTemplateUnchanged"
"""Reasons of events on a MachineDeployment."""

SICK_CONDITIONS = ("KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable")
"""A node is healthy only while each of these that it has is False; default of the flag."""

CONDITION_SPEC_VALID = "SpecValid"
"""Type of a condition of a MachineClass: whether VMs can be made of it. Ours."""

REASON_SPEC_INVALID = "SpecInvalid"
"""Warning event on a MachineClass: no VM can be made of it; the message says why. Ours."""

REASON_SPEC_VALID = "SpecAccepted"
REASON_UNCHECKED = "NotChecked"
"""Further reasons of that condition."""

REASON_ORPHAN_DELETED = "DeletedOrphanVM"
REASON_ORPHAN_HELD = "OrphanVMsHeld"
REASON_ORPHAN_UNCONFIRMED = "OrphanVMsUnconfirmed"
REASON_STRANGER = "UnmarkedVM"
"""Events on a MachineClass about VMs without Machine: one was deleted; too many would be; some
carry no namespace, and may be another's; one has no marker, and is left alone. Ours."""

REASON_DRAINED = "NodeDrained"
REASON_DRAIN_BLOCKED = "NodeDrainBlocked"
REASON_DRAIN_FAILED = "NodeDrainFailed"
"""Events on a Machine whose node is drained: it is; something has to happen first, such as Pods
becoming ready elsewhere; it gave up, and begins anew. Ours."""

REASON_VM_NOT_VISIBLE = "VMNotVisible"
REASON_VM_PRESUMED_DELETED = "VMPresumedDeleted"
"""Warning events on a Machine that is deleted: the credentials of its class were replaced, and the
new ones do not show its VM; the wait for the former ones is over, so the VM counts as deleted.
Ours."""

REASON_VM_NOT_OWNED = "VMNotOwned"
"""Warning event on a Machine: the VM of its provider ID is another's, so that neither the VM nor
its node is touched. Ours."""

REASON_NODE_SICK = "NodeUnhealthy"
REASON_NODE_HEALTHY = "NodeHealthy"
REASON_MACHINE_FAILED = "MachineFailed"
REASON_REPLACEMENT_HELD = "ReplacementHeld"
REASON_PRESERVED = "MachinePreserved"
REASON_PRESERVED_ENDED = "PreservationEnded"
"""Events on a Machine: its node is sick, or well again; it has failed; it has, and others go
first; it is kept, or kept no more. Ours: the reference tells nothing."""

COMPONENT = "machine-controller"
"""Event source component."""

CONDITION_REPLICA_FAILURE = "ReplicaFailure"
CONDITION_FROZEN = "Frozen"
"""Types of conditions of a MachineSet; the latter of a MachineDeployment too."""

CONDITION_SLOWED = "CreationSlowed"
"""Type of a condition of a MachineSet: its machines fail, so it waits between two. Ours."""

REASON_FAILED_CREATE = "FailedCreate"
REASON_FAILED_DELETE = "FailedDelete"
REASON_INVALID = "InvalidSpec"
"""Why `ReplicaFailure`; the last one is ours: nothing can be done with the set as it is. Also the
reason of a Warning event on that set, and on a Machine of which no VM can be created."""

REASON_REPEATED_FAILURES = "RepeatedFailures"
"""Why `CreationSlowed`. Ours."""

REASON_CREATED = "SuccessfulCreate"
REASON_DELETED = "SuccessfulDelete"
"""Events on a MachineSet; those of failures have the reasons of the condition."""

REASON_OVERSHOOT = "OverShootingReplicaCount"
REASON_UNDERSHOOT = "UnderShootingReplicaCount"
REASON_UNFREEZE = "UnfreezeAnnotation"
REASON_STATE_SYNC = "MachineDeploymentStateSync"
"""Why a set, or with the last one a deployment, is frozen or thaws."""

REASON_FROZE_SET = "FrozeMachineSet"
REASON_UNFROZE_SET = "UnfrozeMachineSet"
"""Events on a MachineSet and its MachineDeployment."""

COMPONENT_SETS = "machineset-controller"
COMPONENT_MANAGER = "machine-controller-manager"
"""Event source components: of creations and deletions of a set, and of freezing."""

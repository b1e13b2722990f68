"""Every name of this front that others read. They are an API: none is changed or removed.

Source: Gardener machine-controller-manager, v1alpha1 objects. Names below `kubernetes.io`
stand in `ccm.model.names`.
"""

from __future__ import annotations

GROUP = "machine.sapcloud.io"
VERSION = "v1alpha1"
CLASS_KIND = "MachineClass"
"""What `spec.class.kind` has to be to count."""

KEPT_BY_HELM = {"helm.sh/resource-policy": "keep"}
"""Annotation of the chart's CRDs: `helm uninstall`, `upgrade` and `rollback` leave them alone, as
deleting a CRD deletes all its objects."""

FINALIZER = "machine.sapcloud.io/machine-controller-manager"
"""On Machine, MachineSet, MachineDeployment and MachineClass."""

FINALIZER_SECRET = "machine.sapcloud.io/machine-controller"  # noqa: S105 - a name
"""On a Secret that a class refers to."""

FINALIZER_NODE = "node.machine.sapcloud.io/machine-controller"
"""On a Node that a Machine stands behind."""

# --- labels -------------------------------------------------------------------------------

LABEL_NODE = "node"
"""On a Machine: the name of its Node; what maps one to the other."""

LABEL_DEPLOYMENT = "name"
"""On a Machine: its MachineDeployment, by the convention of templates."""

LABEL_FORCE_DELETION = "force-deletion"
"""On a Machine, a Go boolean: it is drained and deleted by force."""

LABEL_FORCE_DRAIN = "force-drain"
"""On a Machine, `True`: drains that do not end in a deletion use force too."""

LABEL_FREEZE = "freeze"
"""On MachineSet and MachineDeployment, `True`: no machine is created."""

LABEL_TEMPLATE_HASH = "machine-template-hash"
"""On a MachineSet, in its selector and template, and on its Machines."""

LABEL_SCALE_UP_DISABLED = "node.machine.sapcloud.io/scale-up-disabled"
"""On an old MachineSet during an update in place; its presence is enough."""

LABEL_MACHINE_NAME = "node.gardener.cloud/machine-name"
"""On a Node: its Machine, written at the bootstrap; finds the machine without a label `node`."""

LABEL_CANDIDATE = "node.machine.sapcloud.io/candidate-for-update"
LABEL_SELECTED = "node.machine.sapcloud.io/selected-for-update"
LABEL_UPDATE_RESULT = "node.machine.sapcloud.io/update-result"
"""On a Node: steps and result (`successful`, `failed`) of an update in place."""

# --- annotations --------------------------------------------------------------------------

ANNOTATION_PRIORITY = "machinepriority.machine.sapcloud.io"
"""On a Machine: lower goes first."""

DEFAULT_PRIORITY = "3"

ANNOTATION_MARKED = "machine.sapcloud.io/marked-for-deletion-time"
ANNOTATION_TRIGGER_DELETION = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
ANNOTATION_SCALER_TIME = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time"
"""The autoscaler's: on a Machine, RFC 3339; on a MachineDeployment, `M1~T1,M2~T2`; RFC 3339."""

ANNOTATION_CREATION_TIMEOUT = "node.machine.sapcloud.io/effective-creation-timeout"
"""On a Machine or in the template of a MachineSet: overrides the creation timeout."""

ANNOTATION_JOIN_DURATION = "node.machine.sapcloud.io/machine-join-duration"
"""On a Machine: how long it took to join; known, and left to whoever writes it."""

ANNOTATION_APPLIED = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
"""On a Node: JSON of what was put on it because of its machine's template."""

ANNOTATION_APPLIED_CAPACITY = "node.machine.sapcloud.io/last-applied-virtual-capacity"
"""On a Node: JSON of the resources that were added to its capacity."""

ANNOTATION_NOT_MANAGED = "node.machine.sapcloud.io/not-managed-by-mcm"
"""On a Node, `1`: no Machine stands behind it."""

ANNOTATION_UPDATE_FAILED = "node.machine.sapcloud.io/update-failed-reason"
ANNOTATION_PRESERVE = "node.machine.sapcloud.io/preserve"
"""On a Node or Machine: `now`, `when-failed`, `auto-preserved` or `false`."""

ANNOTATION_PRESERVED = "node.machine.sapcloud.io/last-applied-node-preserve-value"
ANNOTATION_UNFREEZE = "safety.machine.sapcloud.io/unfreeze"
"""On MachineDeployment or MachineSet, any value: goes on once though it was frozen."""

ANNOTATION_TOKEN_ID = "machine.sapcloud.io/bootstrap-token-id"  # noqa: S105 - a name
"""On a Machine: the ID of its bootstrap token. Ours: the reference derives it from the name."""

ANNOTATION_ORIGIN = "machine.sapcloud.io/created-with"
"""On a Machine: short marks, separated by commas, of the credentials and the region with which its
VM was created, and of those that have shown the VM since; the newest last. Ours."""

ANNOTATION_CREATION = "machine.sapcloud.io/creation-started"
"""On a Machine: the UID of the Machine, or of its MachineSet, whose controller asked the cloud for
a VM, or is about to. Removed with the write that stores the provider ID. Ours."""

STATE_CREATION = "kube-ccm/creating:"
"""Begins a `lastKnownState` in which an earlier release recorded a started creation: the UID of the
Machine follows, then a space and the driver's own state. Read, and never written anew. Ours."""

ANNOTATION_DELETION = "machine.sapcloud.io/deletion-state"
"""On a Machine: JSON of how far its deletion is, beside the text in its status. Ours."""

# --- deployments --------------------------------------------------------------------------

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

# --- taints and conditions of nodes ----------------------------------------------------------

TAINT_CRITICAL = "node.gardener.cloud/critical-components-not-ready"
"""A machine that is Pending does not run while its node has it."""

TAINT_OLD_SET = "deployment.machine.sapcloud.io/prefer-no-schedule"
TAINT_PRESERVED = "node.machine.sapcloud.io/preserved"

CONDITION_IN_PLACE = "InPlaceUpdate"
CONDITION_PRESERVED = "Preserved"
"""Types of conditions that are written on Nodes."""

REASON_PRESERVED_BY_US = "Preserved by MCM."
REASON_PRESERVED_BY_USER = "Preserved by user."
REASON_PRESERVED_NO_MORE = "Preservation stopped."
"""Reasons of the condition Preserved."""

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

# --- sets ---------------------------------------------------------------------------------

UPDATE_SUCCESSFUL = "successful"
UPDATE_FAILED = "failed"
"""Values of the label that tells how an update in place went; the first one is that of a Machine
that came over to its new set, too."""

FROZEN = "True"
"""Value of the label of a set or deployment that makes no machines."""

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

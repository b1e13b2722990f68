"""Names of Gardener's API group. The names are a public API: do not change or remove any.

Source: Gardener's machine-controller-manager (MCM), v1alpha1 objects. "Ours" = MCM lacks the name.
Names with the domain `kubernetes.io` are in `ccm.model.names`.
"""

from __future__ import annotations

GROUP = "machine.sapcloud.io"
VERSION = "v1alpha1"
CLASS_KIND = "MachineClass"
"""The only valid value of `spec.class.kind`."""

KEPT_BY_HELM = {"helm.sh/resource-policy": "keep"}
"""Annotation of the chart's CRDs: `helm uninstall`, `upgrade` and `rollback` do not delete them, as
deleting a CRD deletes all its objects."""

FINALIZER = "machine.sapcloud.io/machine-controller-manager"
"""On Machine, MachineSet, MachineDeployment and MachineClass."""

FINALIZER_SECRET = "machine.sapcloud.io/machine-controller"  # noqa: S105 - a name
"""On a Secret that a class refers to."""

FINALIZER_NODE = "node.machine.sapcloud.io/machine-controller"
"""On a Node that has a Machine."""

# --- labels -------------------------------------------------------------------------------

LABEL_NODE = "node"
"""On a Machine: the name of its Node."""

LABEL_DEPLOYMENT = "name"
"""On a Machine: the name of its MachineDeployment; set by templates, by convention."""

LABEL_FORCE_DELETION = "force-deletion"
"""On a Machine, a Go boolean. If true, the deletion drains the node by force, and waits neither
for a failed drain nor for the former credentials of the VM."""

LABEL_FORCE_DRAIN = "force-drain"
"""On a Machine, `True`: drains for an in-place update or a preservation use force."""

LABEL_FREEZE = "freeze"
"""On MachineSet and MachineDeployment, `True`: no machine is created."""

LABEL_TEMPLATE_HASH = "machine-template-hash"
"""Hash of the template: on a MachineSet, in its selector and template, and on its Machines."""

LABEL_SCALE_UP_DISABLED = "node.machine.sapcloud.io/scale-up-disabled"
"""On an old MachineSet during an in-place update, any value: the set creates no machines."""

LABEL_MACHINE_NAME = "node.gardener.cloud/machine-name"
"""On a Node: the name of its Machine. Set by the bootstrap of the node, and by the machine
controller. Identifies the node of a Machine that lacks the label `node`."""

LABEL_CANDIDATE = "node.machine.sapcloud.io/candidate-for-update"
LABEL_SELECTED = "node.machine.sapcloud.io/selected-for-update"
LABEL_UPDATE_RESULT = "node.machine.sapcloud.io/update-result"
"""On a Node: states (candidate, selected) and result (`successful`, `failed`) of its in-place
update."""

# --- annotations --------------------------------------------------------------------------

ANNOTATION_PRIORITY = "machinepriority.machine.sapcloud.io"
"""On a Machine: lower values are deleted first."""

DEFAULT_PRIORITY = "3"

ANNOTATION_MARKED = "machine.sapcloud.io/marked-for-deletion-time"
ANNOTATION_TRIGGER_DELETION = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
ANNOTATION_SCALER_TIME = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time"
"""For the autoscaler, in this order: on a Machine, the time at which it was chosen for deletion
(RFC 3339); on a MachineDeployment, the machines to delete, each with that time (`M1~T1,M2~T2`); on
a MachineDeployment and its MachineSets, the time of the last scaling (RFC 3339)."""

ANNOTATION_CREATION_TIMEOUT = "node.machine.sapcloud.io/effective-creation-timeout"
"""On a Machine or in the template of a MachineSet: overrides the creation timeout."""

ANNOTATION_JOIN_DURATION = "node.machine.sapcloud.io/machine-join-duration"
"""On a Machine: the time that the Machine took to join. kube-ccm neither reads nor writes this
annotation."""

ANNOTATION_APPLIED = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
"""On a Node: JSON of the metadata that was applied from its machine's template."""

ANNOTATION_APPLIED_CAPACITY = "node.machine.sapcloud.io/last-applied-virtual-capacity"
"""On a Node: JSON of the resources that were added to its capacity."""

ANNOTATION_NOT_MANAGED = "node.machine.sapcloud.io/not-managed-by-mcm"
"""On a Node, `1`: the Node has no Machine."""

ANNOTATION_UPDATE_FAILED = "node.machine.sapcloud.io/update-failed-reason"
"""On a Node: why its in-place update failed."""

ANNOTATION_PRESERVE = "node.machine.sapcloud.io/preserve"
"""On a Node or Machine: `now`, `when-failed`, `auto-preserved` or `false`."""

ANNOTATION_PRESERVED = "node.machine.sapcloud.io/last-applied-node-preserve-value"
"""On a Machine: the value of its Node's preserve annotation that was applied last."""

ANNOTATION_UNFREEZE = "safety.machine.sapcloud.io/unfreeze"
"""On a MachineDeployment or MachineSet, any value: a user requests to unfreeze it. The controller
removes the annotation afterwards."""

ANNOTATION_TOKEN_ID = "machine.sapcloud.io/bootstrap-token-id"  # noqa: S105 - a name
"""On a Machine: the ID of its bootstrap token. Ours: MCM derives the ID from the machine's name."""

ANNOTATION_ORIGIN = "machine.sapcloud.io/created-with"
"""On a Machine: comma-separated short hashes of credentials and region with which its VM was
created, or which have shown the VM since then; the newest last. Ours."""

ANNOTATION_CREATION = "machine.sapcloud.io/creation-started"
"""On a Machine: records that the controller has asked the cloud for a VM, or is about to. The
value is the UID of the Machine, or of the MachineSet that created it. The write that stores the
provider ID removes the annotation. Ours."""

STATE_CREATION = "kube-ccm/creating:"
"""Prefix of a `lastKnownState` in which an earlier release recorded that a creation started. The
UID of the Machine follows, then a space and the driver's own state. The prefix is still read, and
kept until the provider ID is stored; new creations do not write it. Ours."""

ANNOTATION_DELETION = "machine.sapcloud.io/deletion-state"
"""On a Machine: JSON of the progress of its deletion, in addition to the description in its
status. Ours."""

# --- taints and conditions of nodes ----------------------------------------------------------

TAINT_CRITICAL = "node.gardener.cloud/critical-components-not-ready"
"""Taint that keeps a Pending machine from becoming Running."""

TAINT_OLD_SET = "deployment.machine.sapcloud.io/prefer-no-schedule"
TAINT_PRESERVED = "node.machine.sapcloud.io/preserved"

CONDITION_IN_PLACE = "InPlaceUpdate"
CONDITION_PRESERVED = "Preserved"
"""Condition types of Nodes."""

REASON_PRESERVED_BY_US = "Preserved by MCM."
REASON_PRESERVED_BY_USER = "Preserved by user."
REASON_PRESERVED_NO_MORE = "Preservation stopped."
"""Reasons of the condition Preserved."""

# --- sets ---------------------------------------------------------------------------------

UPDATE_SUCCESSFUL = "successful"
UPDATE_FAILED = "failed"
"""Values of `LABEL_UPDATE_RESULT` on a Node. A Machine that was moved to its new MachineSet has the
label, too, with the value `successful`."""

FROZEN = "True"
"""Value of `LABEL_FREEZE` on a MachineSet or MachineDeployment that creates no machines."""

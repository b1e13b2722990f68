"""Names of Gardener's API group. They are an API: none is changed or removed.

Source: Gardener machine-controller-manager, v1alpha1 objects. Names below `kubernetes.io` are in
`ccm.model.names`.
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
"""On a Machine: its MachineDeployment, by the convention of templates."""

LABEL_FORCE_DELETION = "force-deletion"
"""On a Machine, a Go boolean: the machine is drained and deleted by force."""

LABEL_FORCE_DRAIN = "force-drain"
"""On a Machine, `True`: drains without a deletion use force, too."""

LABEL_FREEZE = "freeze"
"""On MachineSet and MachineDeployment, `True`: no machine is created."""

LABEL_TEMPLATE_HASH = "machine-template-hash"
"""On a MachineSet, in its selector and template, and on its Machines."""

LABEL_SCALE_UP_DISABLED = "node.machine.sapcloud.io/scale-up-disabled"
"""On an old MachineSet during an in-place update; any value counts."""

LABEL_MACHINE_NAME = "node.gardener.cloud/machine-name"
"""On a Node: its Machine, set during the bootstrap. It identifies the node of a Machine without a
label `node`."""

LABEL_CANDIDATE = "node.machine.sapcloud.io/candidate-for-update"
LABEL_SELECTED = "node.machine.sapcloud.io/selected-for-update"
LABEL_UPDATE_RESULT = "node.machine.sapcloud.io/update-result"
"""On a Node: steps and result (`successful`, `failed`) of an in-place update."""

# --- annotations --------------------------------------------------------------------------

ANNOTATION_PRIORITY = "machinepriority.machine.sapcloud.io"
"""On a Machine: lower values are deleted first."""

DEFAULT_PRIORITY = "3"

ANNOTATION_MARKED = "machine.sapcloud.io/marked-for-deletion-time"
ANNOTATION_TRIGGER_DELETION = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
ANNOTATION_SCALER_TIME = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time"
"""Set by the autoscaler: on a Machine, RFC 3339; on a MachineDeployment, `M1~T1,M2~T2`; on a
MachineDeployment and its MachineSets, RFC 3339."""

ANNOTATION_CREATION_TIMEOUT = "node.machine.sapcloud.io/effective-creation-timeout"
"""On a Machine or in the template of a MachineSet: overrides the creation timeout."""

ANNOTATION_JOIN_DURATION = "node.machine.sapcloud.io/machine-join-duration"
"""On a Machine: the time that it took to join; neither read nor written here."""

ANNOTATION_APPLIED = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
"""On a Node: JSON of the metadata that was applied from its machine's template."""

ANNOTATION_APPLIED_CAPACITY = "node.machine.sapcloud.io/last-applied-virtual-capacity"
"""On a Node: JSON of the resources that were added to its capacity."""

ANNOTATION_NOT_MANAGED = "node.machine.sapcloud.io/not-managed-by-mcm"
"""On a Node, `1`: it has no Machine."""

ANNOTATION_UPDATE_FAILED = "node.machine.sapcloud.io/update-failed-reason"
ANNOTATION_PRESERVE = "node.machine.sapcloud.io/preserve"
"""On a Node or Machine: `now`, `when-failed`, `auto-preserved` or `false`."""

ANNOTATION_PRESERVED = "node.machine.sapcloud.io/last-applied-node-preserve-value"
ANNOTATION_UNFREEZE = "safety.machine.sapcloud.io/unfreeze"
"""On a MachineDeployment or MachineSet, any value: unfreeze it once."""

ANNOTATION_TOKEN_ID = "machine.sapcloud.io/bootstrap-token-id"  # noqa: S105 - a name
"""On a Machine: the ID of its bootstrap token. Ours: the reference derives it from the name."""

ANNOTATION_ORIGIN = "machine.sapcloud.io/created-with"
"""On a Machine: short hashes of credentials and region, separated by commas: those with which its
VM was created, and those that have shown the VM since; the newest last. Ours."""

ANNOTATION_CREATION = "machine.sapcloud.io/creation-started"
"""On a Machine: the UID of the Machine, or of its MachineSet, whose controller has asked the cloud
for a VM, or is about to. Removed by the write that stores the provider ID. Ours."""

STATE_CREATION = "kube-ccm/creating:"
"""Prefix of a `lastKnownState` in which an earlier release recorded a started creation. The UID of
the Machine follows, then a space and the driver's own state. Read, but no longer written. Ours."""

ANNOTATION_DELETION = "machine.sapcloud.io/deletion-state"
"""On a Machine: JSON of the progress of its deletion, in addition to the text in its status. Ours.
"""

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
"""Values of the label with the result of an in-place update. The first one also marks a Machine
that was moved to its new set."""

FROZEN = "True"
"""Value of the label of a set or deployment that creates no machines."""

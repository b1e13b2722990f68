"""Names of Kubermatic's API group. The names are a public API: do not change or remove any.

Source: Kubermatic's machine-controller, `cluster.k8s.io/v1alpha1`. "Ours" = that program lacks the
name. Names with the domain `kubernetes.io` are in `ccm.model.names`, except those that the
manifests of controllers need: a manifest must not import the model.
"""

from __future__ import annotations

GROUP = "cluster.k8s.io"
VERSION = "v1alpha1"

OLDER_CRD = "machines.machine.k8s.io"
"""CRD of the Machines of an older API group; Kubermatic's machine-controller converts them."""

LEGACY_API = {"api-approved.kubernetes.io": "unapproved, legacy API"}
"""Annotation of the CRDs, without which the API server refuses a group of `k8s.io`."""

LEASE = "machine-controller"
"""Lease that Kubermatic's machine-controller holds while it manages Machines."""

# --- finalizers -----------------------------------------------------------------------------------

FINALIZER_MACHINE = "machine-delete-finalizer"
"""On a Machine from before the creation of its instance until the instance is gone."""

FINALIZER_NODE = "machine-node-delete-finalizer"
"""On a Machine from before the creation of its instance until its Node is gone."""

FINALIZER_FOREGROUND = "foregroundDeletion"
"""On a MachineSet or MachineDeployment until its dependents are gone. Kubernetes' garbage collector
removes it, too."""

# --- labels ---------------------------------------------------------------------------------------

LABEL_CONTROLLER = "machine.k8s.io/controller"
"""On a Machine: name of the program that is responsible for it (--kubermatic-name)."""

LABEL_OWNED_BY = "machine-controller/owned-by"
"""On a Node: UID of its Machine."""

LABEL_TEMPLATE_HASH = "machine-template-hash"
"""Hash of the template: on a MachineSet, in its selector and template, and on its Machines."""

LABEL_OPERATING_SYSTEM = "v1.machine-controller.kubermatic.io/operating-system"
"""On a Node: operating system of its Machine; set in `spec.metadata.labels` of a new Machine."""

# --- annotations ----------------------------------------------------------------------------------

ANNOTATION_INITIALIZERS = "machine-controller.kubermatic.io/initializers"
"""On a Machine, any value: another program still prepares the Machine; the daemon ignores the
Machine until the annotation is removed."""

ANNOTATION_BYPASS = "kubermatic.io/bypass-no-spec-mutation-requirement"
"""On a Machine, `true`: the webhook allows this one change of the spec, and removes the
annotation."""

ANNOTATION_SKIP_EVICTION = "kubermatic.io/skip-eviction"
"""On a Node, any value: the deletion of its Machine does not drain the Node."""

ANNOTATION_NODE_MACHINE = "cluster.k8s.io/machine"
"""On a Node: namespace and name of its Machine."""

ANNOTATION_DELETE_FIRST = "cluster.k8s.io/delete-machine"
"""On a Machine, any value: its MachineSet deletes it before others."""

ANNOTATION_REVISION = "machinedeployment.clusters.k8s.io/revision"
ANNOTATION_REVISION_HISTORY = "machinedeployment.clusters.k8s.io/revision-history"
ANNOTATION_DESIRED = "machinedeployment.clusters.k8s.io/desired-replicas"
ANNOTATION_MAX = "machinedeployment.clusters.k8s.io/max-replicas"
"""On a MachineSet: revision of the template, former revisions, replicas of the deployment when the
set was last scaled, and the sum of these replicas and the surge."""

ANNOTATION_BOOTSTRAP_REVISION = "k8c.io/machine-deployment-revision"
"""On a Secret with user data: revision of the MachineDeployment's template."""

ANNOTATION_GATE = "v1.kubelet-featuregates.machine-controller.kubermatic.io/"
ANNOTATION_FLAG = "v1.kubelet-flags.machine-controller.kubermatic.io/"
"""On a Machine: prefixes of feature gates and flags of the kubelet."""

ANNOTATION_CREATION = "kube-ccm/creation-started"
"""On a Machine: records that the cloud was asked, or is about to be asked, for an instance. The
value is the UID of the Machine, or of the MachineSet that created it. Ours."""

ANNOTATION_ORIGIN = "kube-ccm/created-with"
"""On a Machine: comma-separated short hashes of the credentials with which its instance was
created, or which have shown the instance since then. Ours."""

ANNOTATION_DELETION = "kube-ccm/deletion-state"
"""On a Machine: JSON of the progress of its deletion. Ours."""

ANNOTATION_FORMER_UID = "kube-ccm/former-uid"
"""On a Machine: UID that its instance carries, because the Machine was restored from a backup or
converted. The instance then gets the present UID, and the annotation is removed. Ours."""

# --- user data ------------------------------------------------------------------------------------

BOOTSTRAP_NAMESPACE = "cloud-init-settings"
"""Namespace of the Secrets with user data, which the operating-system-manager writes."""

BOOTSTRAP_KEY = "cloud-config"
"""Key of the user data in such a Secret."""


def bootstrap_secret(deployment: str, namespace: str) -> str:
    """Return the name of the Secret with user data of MachineDeployment namespace/deployment."""
    return f"{deployment}-{namespace}-bootstrap-config"


# --- certificates ---------------------------------------------------------------------------------

SIGNER = "kubernetes.io/kubelet-serving"
"""Signer of the serving certificates of kubelets (Kubernetes)."""

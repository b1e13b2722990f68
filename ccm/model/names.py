"""Names that Kubernetes or this project defines: labels, annotations, taints, reasons, conditions.

These strings are an API: a name is never changed and never removed. New names are added and
documented here, and other modules import them. Source of the Kubernetes names: the well-known
labels, annotations and taints of the Kubernetes API and the Go cloud-provider library. "Ours" marks
names of this project.
"""

from __future__ import annotations

TAINT_UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
"""Set by a kubelet with `--cloud-provider=external` on its node, until the node is initialised.

Only the key is compared: any value and any effect match.
"""

TAINT_SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
"""On a node whose instance is shut down; effect NoSchedule, no value."""

EFFECT_NO_SCHEDULE = "NoSchedule"

TAINT_AUTOSCALER_DELETION = "ToBeDeletedByClusterAutoscaler"
"""On a node that the cluster autoscaler is about to remove; any value and any effect match."""

ANNOTATION_ALLOW_DELETION = "kube-ccm/allow-deletion"
"""On a node: `true` = a user allows its deletion although it is uncertain whether its instance
exists. On the ConfigMap in which the daemon records deletions: `true` = any number of load
balancers and routes may be deleted. On the CRD of Machines, MachineSets or MachineDeployments:
`true` = the VMs of objects that were deleted together with the CRD are deleted. Ours."""

LABEL_EXCLUDE_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"
"""On a node to which load balancers must not send traffic; any value but those that Go parses as
false."""

FINALIZER_LOAD_BALANCER = "service.kubernetes.io/load-balancer-cleanup"
"""On a Service whose load balancer must be removed before the Service is gone."""

ANNOTATION_SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
"""On a Service: comma-separated CIDRs of allowed clients; `spec.loadBalancerSourceRanges` takes
precedence."""

ANNOTATION_OPENSTACK_INTERNAL = "service.beta.kubernetes.io/openstack-internal-load-balancer"
"""On a Service in OpenStack: the load balancer gets no floating IP."""

CONDITION_NETWORK_UNAVAILABLE = "NetworkUnavailable"
"""On a node: True while the network has no route to the node's Pods."""

ANNOTATION_MIRROR = "kubernetes.io/config.mirror"
"""On a Pod that represents a static Pod of a kubelet."""

ANNOTATION_PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"
"""Written by a kubelet from its node IP setting: one IP, or a comma separated IPv4/IPv6 pair."""

LABEL_ZONE_BETA = "failure-domain.beta.kubernetes.io/zone"
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_REGION_BETA = "failure-domain.beta.kubernetes.io/region"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_INSTANCE_TYPE_BETA = "beta.kubernetes.io/instance-type"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_OS = "kubernetes.io/os"
LABEL_ARCH = "kubernetes.io/arch"

LABEL_APP = "app.kubernetes.io/name"
"""Application of a Deployment and its Pods; on the Deployments of this project, the program's
name."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_INSTANCE = "app.kubernetes.io/instance"
"""Distinguishes several Deployments of one program."""

LABEL_PAIRS = (
    (LABEL_ZONE_BETA, LABEL_ZONE),
    (LABEL_REGION_BETA, LABEL_REGION),
    (LABEL_INSTANCE_TYPE_BETA, LABEL_INSTANCE_TYPE),
)
"""(beta, stable) label keys that must have the same value; the value of the beta label counts."""

ADDRESS_HOSTNAME = "Hostname"
ADDRESS_INTERNAL_IP = "InternalIP"
ADDRESS_EXTERNAL_IP = "ExternalIP"

CONDITION_READY = "Ready"
CONDITION_TERMINATING = "Terminating"
"""On a node that is being drained for its deletion (Gardener)."""

STATUS_TRUE = "True"
STATUS_FALSE = "False"
STATUS_UNKNOWN = "Unknown"

NORMAL = "Normal"
WARNING = "Warning"

REASON_SYNCED = "Synced"
"""Normal event on a Node: the node was initialised."""

REASON_INITIALIZATION_FAILED = "InitializationFailed"
"""Warning event on a Node: initialisation failed; the message is the cause. Ours."""

REASON_DELETING_NODE = "DeletingNode"
"""Normal event on a Node: the node is deleted because the cloud no longer has its instance."""

REASON_DELETING_NODE_FAILED = "DeletingNodeFailed"
"""Warning event on a Node: the deletion failed; the message has the cause."""

REASON_DELETION_HELD = "DeletionHeld"
"""Warning event: the deletion of an object or of its cloud resources is blocked for now. Ours."""

REASON_PERSISTENCE_DOWN = "PersistenceUnavailable"
REASON_PERSISTENCE_UP = "PersistenceAvailable"
"""Events on the Lease: the storage of `--persistence-config` is down, or is up again. Ours."""

REASON_JOURNAL_DOWN = "JournalUnavailable"
REASON_JOURNAL_UP = "JournalAvailable"
"""Events on the Lease: the journal is not written durably, or is written again. Ours."""

REASON_ENSURING_BALANCER = "EnsuringLoadBalancer"
REASON_ENSURED_BALANCER = "EnsuredLoadBalancer"
REASON_DELETING_BALANCER = "DeletingLoadBalancer"
REASON_DELETED_BALANCER = "DeletedLoadBalancer"
REASON_UPDATED_BALANCER = "UpdatedLoadBalancer"
"""Normal events on a Service: steps for its load balancer, in progress or completed."""

REASON_SYNC_BALANCER_FAILED = "SyncLoadBalancerFailed"
REASON_DELETE_BALANCER_FAILED = "DeleteLoadBalancerFailed"
REASON_UPDATE_BALANCER_FAILED = "UpdateLoadBalancerFailed"
"""Warning events on a Service; the message has the cause."""

REASON_ORPHANED_BALANCER = "OrphanedLoadBalancer"
"""Warning event on the ConfigMap in which the daemon records deletions: a load balancer belongs to
no Service. Ours."""

REASON_ORPHANED_RESOURCE = "OrphanedResource"
REASON_ORPHAN_DELETED = "OrphanDeleted"
"""Warning and Normal events on the Lease: a cloud resource in the journal has no owner, or it was
deleted for that reason (`--journal=delete`). Ours."""

REASON_NO_NODES = "UnAvailableLoadBalancer"
"""Warning event on a Service: its load balancer has no members."""

REASON_ROUTE_CREATED = "RouteCreated"
REASON_NO_ROUTE_CREATED = "NoRouteCreated"
"""Reasons of a node's condition NetworkUnavailable with status False and True, respectively."""

REASON_ROUTE_FAILED = "FailedToCreateRoute"
"""Warning event on a Node: its route could not be created."""

REASON_LEADER_ELECTION = "LeaderElection"
"""Normal event on the Lease: a replica became leader or stopped leading."""

COMPONENT_NODE = "cloud-node-controller"
COMPONENT_NODE_LIFECYCLE = "cloud-node-lifecycle-controller"
COMPONENT_SERVICE = "service-controller"
COMPONENT_ROUTE = "route_controller"
"""Source components of events, as in the Go cloud-controller-manager."""

CONTROLLER_SERVICE = "service-lb-controller"
CONTROLLER_ROUTE = "node-route-controller"
"""Names of controllers in `--controllers` and in logs, where the component has another name."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation on the bookmark that ends the initial events of a watch-list."""

TAINT_NOT_READY = "node.kubernetes.io/not-ready"
"""On a node that is not Ready yet; the API server adds this taint to every new node."""

LABEL_STACKIT_MACHINE = "kubernetes.io/machine"
LABEL_STACKIT_MACHINE_CLASS = "kubernetes.io/machineclass"
"""On servers of STACKIT, set by Gardener's driver for STACKIT: names of machine and class."""

LABEL_NAMESPACE = "kubernetes.io/metadata.name"
"""On every namespace: its own name."""

LABEL_ROLE_PREFIX = "node-role.kubernetes.io/"
LABEL_ROLE = "kubernetes.io/role"
"""Role of a node: a label with the prefix, or the value of the older label."""

EXTENSION_EXEC = "client.authentication.k8s.io/exec"
"""Extension of a cluster in a kubeconfig; its content is passed to the exec plugin."""

BOOTSTRAP_TOKEN_PREFIX = "bootstrap-token-"  # noqa: S105 - of a name
"""Name prefix of the Secrets in kube-system that contain a bootstrap token."""

BOOTSTRAP_TOKEN_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type
"""Type of the Secrets that contain a bootstrap token."""

ANNOTATION_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""On objects that were written with `kubectl apply`; no other program may change it."""

ANNOTATION_CHANGE_CAUSE = "kubernetes.io/change-cause"
"""On a deployment and its sets: why the template changed (kubectl)."""

ANNOTATION_RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""In a template: time at which a user replaced all its objects (`kubectl rollout restart`)."""

ANNOTATION_REVISION = "deployment.kubernetes.io/revision"
ANNOTATION_REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
ANNOTATION_DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
ANNOTATION_MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
"""On a machine set, as on a ReplicaSet: its revision, its earlier revisions, and the desired and
maximum replicas of its deployment when the deployment controller last scaled the set."""

ANNOTATION_SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
ANNOTATION_SCALE_DOWN_DISABLED_BY_US = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm"
"""On a Node: `scale-down-disabled` keeps the cluster autoscaler from removing the node. The second
annotation records that a machine controller, not a user, set the first."""

SAFE_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names, without vowels, so that no words result (the safe encoding of
Kubernetes)."""

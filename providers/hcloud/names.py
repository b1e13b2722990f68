"""Ownership labels and event reasons. Existing resources have these labels: never change them."""

from __future__ import annotations

from collections.abc import Callable

from ccm import cloud

SERVICE_UID = "hcloud-ccm/service-uid"
"""Label of a load balancer or certificate: UID of the Service. hcloud-cloud-controller-manager also
sets this label."""

ADOPTED = "kube-ccm/adopted"
"""Label of a load balancer that existed before its Service and was adopted by name. When the
Service is deleted, this load balancer is released and not deleted."""

CLUSTER = "kube-ccm/cluster"
"""Label with the name of the cluster that created the resource, or, on the resources of a machine,
with the cluster in the machine's identity."""

NAMESPACE = "kube-ccm/namespace"
POOL = "kube-ccm/pool"
NAME = "kube-ccm/name"
UID = "kube-ccm/uid"
"""Labels that, with `CLUSTER`, form the identity of a machine."""

VOLUME_INDEX = "kube-ccm/volume"
"""Label with the index of a volume in its machine's spec."""


Warn = Callable[[cloud.ObjectReference, str, str], None]
"""Type of `cloud.Context.warn`."""

INSTANCE_LOOKUP_FAILED = "InstanceLookupFailed"
"""Several servers have the name of the node."""

POSSIBLE_NODE_DELETION = "PossibleNodeDeletion"
"""The dedicated server of the node has another name."""

MISCONFIGURED_INTERNAL_IP = "MisconfiguredInternalIP"
"""An internal address that the kubelet reported was dropped."""

SERVER_NOT_FOUND = "ServerNotFound"
"""The dedicated server of the node has no known public address for a target."""

INTERNAL_IP_NOT_CONFIGURED = "InternalIPNotConfigured"
"""The node of a dedicated server has no internal address for a target."""

BALANCER_ADOPTED = "LoadBalancerAdopted"
"""An existing load balancer with the name that the Service asks for was adopted."""

BALANCER_RELEASED = "LoadBalancerReleased"
"""An adopted load balancer was released and continues to exist."""

BALANCER_RENAMED = "LoadBalancerRename"
"""The load balancer of a Service had the label of another cluster, which was corrected."""

BALANCER_KEPT = "LoadBalancerKept"
"""The load balancer of a deleted Service has the label of another cluster and was kept."""

UNSUPPORTED_PROTOCOL = "UnsupportedProtocolConfigured"
"""The Service has ports that are not TCP; they are not served."""

ANNOTATION_IGNORED = "AnnotationIgnored"
"""The Service has annotations that its protocol does not use."""

BALANCER_PROTECTED = "LoadBalancerProtected"
"""A load balancer that is protected from deletion was kept although its Service is deleted."""

CERTIFICATE_IN_USE = "CertificateInUse"
"""A managed certificate was kept, since the load balancer of another Service uses it."""

TYPE_UNCONFIGURED = "LoadBalancerTypeUnconfigured"
"""No load balancer type is configured."""

TYPE_DEPRECATED = "LoadBalancerTypeDeprecated"
"""The type of the load balancer is deprecated."""

UNKNOWN_PREFIX = "UnknownProviderIDPrefix"
"""A node of a load balancer is no server of this cloud."""

MAX_TARGETS = "MaxTargetsReached"
"""The Service has more nodes than its load balancer may have targets."""

CLUSTER_CIDR = "ClusterCIDRMisconfigured"
"""A node has a Pod CIDR outside of --cluster-cidr."""

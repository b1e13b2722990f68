"""Ownership labels and event reasons. Clusters store the vendor's names: never change them."""

from __future__ import annotations

from collections.abc import Callable

from ccm import cloud

SERVICE_UID = "hcloud-ccm/service-uid"
"""UID of a load balancer's Service; the vendor's label."""

ADOPTED = "kube-ccm/adopted"
"""Set on a load balancer that existed before its Service and was adopted by name. It is released
with the Service, never deleted."""

CLUSTER = "kube-ccm/cluster"
"""Name of the cluster that created the resource; for machines, the cluster marker."""

NAMESPACE = "kube-ccm/namespace"
POOL = "kube-ccm/pool"
NAME = "kube-ccm/name"
UID = "kube-ccm/uid"
"""With `CLUSTER`, the identity of a machine."""

VOLUME_INDEX = "kube-ccm/volume"
"""Index of a volume in its machine's spec."""


Warn = Callable[[cloud.ObjectReference, str, str], None]
"""`cloud.Context.warn`."""

BALANCER_ADOPTED = "LoadBalancerAdopted"
"""An existing load balancer with the name that the Service asks for was adopted."""

BALANCER_RELEASED = "LoadBalancerReleased"
"""An adopted load balancer was released and continues to exist."""

TYPE_UNCONFIGURED = "LoadBalancerTypeUnconfigured"
"""No load balancer type is configured."""

TYPE_DEPRECATED = "LoadBalancerTypeDeprecated"
"""The type of the load balancer is deprecated."""

MAX_TARGETS = "MaxTargetsReached"
"""The Service has more nodes than its load balancer may have targets."""

CLUSTER_CIDR = "ClusterCIDRMisconfigured"
"""A node has a Pod CIDR outside of --cluster-cidr."""

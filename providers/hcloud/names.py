"""Labels that say whose something is, and reasons of events; the vendor's are promises."""

from __future__ import annotations

from collections.abc import Callable

from ccm import cloud

SERVICE_UID = "hcloud-ccm/service-uid"
"""UID of the Service that has a load balancer; the vendor's. A promise to old clusters."""

ADOPTED = "kube-ccm/adopted"
"""That a load balancer was there before its Service, which found it by its name: it is released
with the Service, and never deleted."""

CLUSTER = "kube-ccm/cluster"
"""The name of the cluster that made it; of a machine, the marker of its cluster."""

NAMESPACE = "kube-ccm/namespace"
POOL = "kube-ccm/pool"
NAME = "kube-ccm/name"
UID = "kube-ccm/uid"
"""The rest of a machine's identity."""

NUMBER = "kube-ccm/volume"
"""Which of a machine's volumes it is."""


Warn = Callable[[cloud.ObjectReference, str, str], None]
"""`cloud.Context.warn`."""

BALANCER_ADOPTED = "LoadBalancerAdopted"
"""One that was there before has the name that the Service asks for, and serves it now."""

BALANCER_RELEASED = "LoadBalancerReleased"
"""One that was adopted serves the Service no more, and goes on to exist."""

TYPE_UNCONFIGURED = "LoadBalancerTypeUnconfigured"
"""Nobody said of which type a load balancer is to be."""

TYPE_DEPRECATED = "LoadBalancerTypeDeprecated"
"""The vendor is going to give its type up."""

MAX_TARGETS = "MaxTargetsReached"
"""There are more nodes than it may have targets."""

CLUSTER_CIDR = "ClusterCIDRMisconfigured"
"""A node has a range of Pods that is not the cluster's."""

"""Reasons of events about what is served, but perhaps not as people think; the vendor's names."""

from __future__ import annotations

from collections.abc import Callable

from ccm import cloud

Warn = Callable[[cloud.ObjectReference, str, str], None]
"""`cloud.Context.warn`."""

ADOPTED = "LoadBalancerAdopted"
"""One that was there before has the name that the Service asks for, and serves it now."""

RELEASED = "LoadBalancerReleased"
"""One that was adopted serves the Service no more, and goes on to exist."""

TYPE_UNCONFIGURED = "LoadBalancerTypeUnconfigured"
"""Nobody said of which type a load balancer is to be."""

TYPE_DEPRECATED = "LoadBalancerTypeDeprecated"
"""The vendor is going to give its type up."""

MAX_TARGETS = "MaxTargetsReached"
"""There are more nodes than it may have targets."""

CLUSTER_CIDR = "ClusterCIDRMisconfigured"
"""A node has a range of Pods that is not the cluster's."""

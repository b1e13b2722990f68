"""Reasons of events about what is served, but perhaps not as people think; the vendor's names."""

from __future__ import annotations

from collections.abc import Callable

from ccm import cloud

Warn = Callable[[cloud.ObjectReference, str, str], None]
"""`cloud.Context.warn`."""

TYPE_UNCONFIGURED = "LoadBalancerTypeUnconfigured"
"""Nobody said of which type a load balancer is to be."""

TYPE_DEPRECATED = "LoadBalancerTypeDeprecated"
"""The vendor is going to give its type up."""

MAX_TARGETS = "MaxTargetsReached"
"""There are more nodes than it may have targets."""

CLUSTER_CIDR = "ClusterCIDRMisconfigured"
"""A node has a range of Pods that is not the cluster's."""

"""What the type and the policies of a Service make of it: which fields it needs.

Each takes the `spec` of a Service whose defaults are filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NONE = "None"
"""The cluster IP of a Service that shall have none (a headless one)."""

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = (
    "ClusterIP", "NodePort", "LoadBalancer", "ExternalName",
)  # fmt: skip
TYPES = (CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT)

SINGLE, PREFER_DUAL, REQUIRE_DUAL = "SingleStack", "PreferDualStack", "RequireDualStack"
POLICIES = (PREFER_DUAL, REQUIRE_DUAL, SINGLE)

IPV4, IPV6 = "IPv4", "IPv6"
FAMILIES = (IPV4, IPV6)

Spec = Mapping[str, Any]


def needs_cluster_ip(spec: Spec) -> bool:
    """Whether it has a cluster IP, be it `None`."""
    return spec["type"] in (CLUSTER_IP, NODE_PORT, LOAD_BALANCER)


def needs_node_ports(spec: Spec) -> bool:
    """Whether its ports may have node ports."""
    return spec["type"] in (NODE_PORT, LOAD_BALANCER)


def wants_node_ports(spec: Spec) -> bool:
    """Whether a port without a node port gets one."""
    if spec["type"] == LOAD_BALANCER:
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return bool(spec["type"] == NODE_PORT)


def needs_health_check_port(spec: Spec) -> bool:
    """Whether it has a node port for health checks."""
    return spec["type"] == LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def is_external(spec: Spec) -> bool:
    """Whether it can be reached from outside the cluster."""
    return needs_node_ports(spec) or (spec["type"] == CLUSTER_IP and bool(spec.get("externalIPs")))


def is_headless(spec: Spec) -> bool:
    """Whether it has no address of its own."""
    return spec.get("clusterIPs") == [NONE]


def node_ports(spec: Spec) -> list[int]:
    """The node ports of its ports, without those for health checks."""
    return [port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")]


def family_of(address: str) -> str:
    """The IP family of an address."""
    return IPV6 if ":" in address else IPV4

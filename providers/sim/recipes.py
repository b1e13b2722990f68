"""What a Service asks of a load balancer, and whether one is like that. Pure.

One form, `client.Recipe` in a fixed order, stands for what is wanted and for what the cloud
holds. Comparing two of them says what to change; hashing one gives the digest.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence

import msgspec

from ccm import cloud

from . import client, service_annotations

PROTOCOLS = ("TCP", "UDP")
DEFAULT_STICKY_S = 10800
"""How long a client stays with one member where the Service does not say (Kubernetes API)."""


def wanted(service: cloud.Service) -> client.Recipe:
    """The load balancer that a Service asks for.

    Raises:
        InvalidArgument: it asks for something the cloud does not have.
    """
    return _ordered(
        client.Recipe(
            listeners=tuple(_listener(port) for port in service.ports),
            health_check=_health_check(service),
            source_ranges=_source_ranges(service),
            families=tuple(service.spec.ip_families or ("IPv4",)),
            internal=service_annotations.INTERNAL.read(service),
            size=service_annotations.SIZE.read(service),
            sticky_s=_sticky_s(service),
        )
    )


def held(balancer: client.Balancer) -> client.Recipe:
    """The same of a load balancer that is there."""
    fields = {name: getattr(balancer, name) for name in client.Recipe.__struct_fields__}
    return _ordered(client.Recipe(**fields))


def members(nodes: Iterable[cloud.Node], families: Sequence[str]) -> tuple[str, ...]:
    """The addresses of nodes as members: of each family a node's first InternalIP."""
    found: set[str] = set()
    for node in nodes:
        for family in families:
            found.update(internal_ips(node.addresses, family)[:1])
    return tuple(sorted(found))


def internal_ips(addresses: Iterable[cloud.NodeAddress], family: str) -> list[str]:
    """The InternalIPs of one family, in their order."""
    # Parsing each address would be most of the work of an update of members.
    is_6 = family == "IPv6"
    return [
        one.address
        for one in addresses
        if one.type == "InternalIP" and (":" in one.address) == is_6
    ]


def is_address(text: str) -> bool:
    """Return whether the cloud takes a text as a member; a kubelet may report any."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def digest(recipe: client.Recipe, members_: Sequence[str]) -> str:
    """A text that is equal exactly when recipe and members are."""
    content = msgspec.json.encode([recipe, sorted(members_)])
    return hashlib.sha256(content).hexdigest()[:32]


def _ordered(recipe: client.Recipe) -> client.Recipe:
    return msgspec.structs.replace(
        recipe,
        listeners=tuple(sorted(recipe.listeners)),
        source_ranges=tuple(sorted(recipe.source_ranges)),
        families=tuple(sorted(recipe.families)),
    )


def _listener(port: cloud.ServicePort) -> client.Listener:
    if port.protocol not in PROTOCOLS:
        raise cloud.InvalidArgument(
            f"port {port.port}: the cloud has no load balancers for {port.protocol}; "
            f"expected {' or '.join(PROTOCOLS)}"
        )
    # Without a node port, traffic arrives at the node as it was sent to the load balancer.
    return client.Listener(port.protocol, port.port, port.node_port or port.port)


def _health_check(service: cloud.Service) -> client.HealthCheck | None:
    interval_s = service_annotations.HEALTH_CHECK_INTERVAL.read(service).total_seconds()
    path, port = cloud.health_check_path_port(service)
    if port:
        return client.HealthCheck(port, path, interval_s)
    tcp = [_listener(each).target_port for each in service.ports if each.protocol == "TCP"]
    return client.HealthCheck(min(tcp), "", interval_s) if tcp else None


def _source_ranges(service: cloud.Service) -> tuple[str, ...]:
    ranges = cloud.load_balancer_source_ranges(service)
    return () if cloud.is_allow_all(ranges) else tuple(str(one) for one in ranges)


def _sticky_s(service: cloud.Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    return seconds or DEFAULT_STICKY_S

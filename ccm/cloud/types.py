"""Values that pass between providers and controllers: frozen, comparable, without behaviour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal

from ccm.cloud.operation import DECLARED
from ccm.model import LoadBalancerIngress, NodeAddress
from ccm.model.ip import parse_ip

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def address(kind: str, text: str) -> NodeAddress:
    """A node address: `address("InternalIP", "10.0.0.1")`."""
    return NodeAddress(type=kind, address=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMetadata:
    """What a cloud knows about one instance.

    Attributes:
        provider_id: `<scheme>://<id>`, written once to `spec.providerID` of a node that has
            none. The format is a promise: keep it for ever. Empty is allowed only for a
            node that has a provider ID already.
        instance_type: both instance-type labels at initialisation; empty = left alone.
        addresses: `status.addresses`, in this order; empty = the node's addresses stay. The
            Hostname that the kubelet reported is kept when there is none here.
        zone: both zone labels at initialisation; empty = left alone.
        region: both region labels at initialisation; empty = left alone.
        additional_labels: further labels at initialisation. Keys below `kubernetes.io/` and
            `k8s.io/` are dropped with a warning; a key the node has already keeps its value.
    """

    provider_id: str = ""
    instance_type: str = ""
    addresses: Sequence[NodeAddress] = ()
    zone: str = ""
    region: str = ""
    additional_labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)


class Power(Enum):
    """Whether an instance runs, as far as the shutdown taint is concerned."""

    RUNNING = "running"
    """Anything that is not known to be shut down: starting, stopping and unknown included."""
    SHUTDOWN = "shutdown"
    """Switched off; it exists and may be switched on again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """One instance in a bulk listing.

    Attributes:
        name: the name that a node without provider ID is looked up by (exact match).
        power: whether it runs.
        metadata: everything `instance_metadata` would say, provider ID included.
    """

    name: str
    power: Power
    metadata: InstanceMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceListing:
    """A bulk listing of all instances.

    Attributes:
        instances: every instance that the credentials can see.
        requests: how many cloud requests the listing took; the daemon compares it with
            asking one by one.
    """

    instances: Sequence[InstanceRecord]
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """Existence and power in one answer; `power` is None exactly when `exists` is False."""

    exists: bool
    power: Power | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A failure domain and its region; either may be empty."""

    failure_domain: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStatus:
    """State of one port of a load balancer; `error` is empty when the port works."""

    port: int
    protocol: str = "TCP"
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """One address of a load balancer.

    Attributes:
        ip: the IP; empty when the load balancer has a hostname.
        hostname: the DNS name; empty when it has an IP.
        ip_mode: `VIP` (default of the API) or `Proxy`; None leaves the choice to the API server.
        ports: per-port state, where the cloud knows it.
    """

    ip: str = ""
    hostname: str = ""
    ip_mode: Literal["VIP", "Proxy"] | None = None
    ports: Sequence[PortStatus] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a load balancer can be reached; written to the Service's status."""

    ingress: Sequence[Ingress] = ()

    @classmethod
    def from_ingress(cls, entries: Iterable[str | Ingress | LoadBalancerIngress]) -> Status:
        """A status of addresses, in this order.

        Args:
            entries: what a cloud says, each an IP or else a host name: `["192.0.2.1"]`; what needs
                more words as `Ingress`; or what a Service shows: `service.ingress`.
        """
        return cls(ingress=tuple(_ingress(entry) for entry in entries))


def _ingress(entry: str | Ingress | LoadBalancerIngress) -> Ingress:
    if isinstance(entry, Ingress):
        return entry
    if isinstance(entry, str):
        return Ingress(ip=entry) if parse_ip(entry) else Ingress(hostname=entry)
    ports = tuple(
        PortStatus(port=port.port, protocol=port.protocol, error=port.error or "")
        for port in entry.ports or ()
    )
    mode = entry.ip_mode
    return Ingress(
        ip=entry.ip,
        hostname=entry.hostname,
        ip_mode="Proxy" if mode == "Proxy" else "VIP" if mode else None,
        ports=ports,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerRecord:
    """One load balancer in a bulk listing.

    Attributes:
        name: what `get_load_balancer_name` says for its Service.
        digest: of what the cloud really holds, in the words of `load_balancer_digest`; empty =
            half-made or damaged, which never equals a wanted digest.
        status: where it can be reached: what `get_load_balancer` would answer. An empty one never
            replaces one that was written, and a Service that has none is ensured.
        adopted: whether it was there before its Service, and is released with it, not deleted.
    """

    name: str
    digest: str
    status: Status
    adopted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route to the pods of one node.

    Attributes:
        destination_cidr: the pods' range.
        target_node: name of the Node.
        name: name in the cloud; ignored when a route is created.
        enable_node_addresses: True on listed routes opts in to comparing `target_addresses`.
        target_addresses: addresses of the target node; of a blackhole: where it leads.
        blackhole: True for a route that leads nowhere; one in the managed range is deleted,
            unless it leads to an address of a Node that wants it. That one waits for its Node.
    """

    destination_cidr: str
    target_node: str
    name: str = ""
    enable_node_addresses: bool = False
    target_addresses: Sequence[NodeAddress] = ()
    blackhole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate a provider wants its calls kept to: `qps` calls a second, bursts of `burst`."""

    qps: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a provider says about its own calls; everything is optional.

    Attributes:
        deadlines_s: operation -> seconds a call may take, in place of the default; the
            operations are the methods of the interfaces.
        rate: total rate of calls; None = no limit.
        concurrent_routes: most calls about routes at once (the Go reference's fixed number).

    Raises:
        ValueError: an operation that does not exist, or a deadline that is no time.
    """

    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    rate: Rate | None = None
    concurrent_routes: int = 200

    def __post_init__(self) -> None:
        strangers = sorted(map(str, self.deadlines_s.keys() - DECLARED.keys()))
        if strangers:
            raise ValueError(
                f"deadlines_s names {', '.join(strangers)}; operations are: "
                f"{', '.join(sorted(DECLARED))}"
            )
        for operation, seconds in self.deadlines_s.items():
            if not 0 < seconds < math.inf:
                raise ValueError(f"deadlines_s[{operation!r}] is {seconds}; it must be above 0")


def add_to_node_addresses(
    existing: Sequence[NodeAddress], *added: NodeAddress
) -> list[NodeAddress]:
    """A new list with each address appended that is not there yet (same type and text)."""
    result = list(existing)
    for entry in added:
        if entry not in result:
            result.append(entry)
    return result

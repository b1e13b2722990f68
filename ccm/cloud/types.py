"""Values passed between providers and controllers: frozen and comparable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal

from ccm.cloud.operation import DECLARATIONS
from ccm.model import LoadBalancerIngress, NodeAddress
from ccm.model.ip import parse_ip

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def address(kind: str, text: str) -> NodeAddress:
    """Return a node address: `address("InternalIP", "10.0.0.1")`."""
    return NodeAddress(type=kind, address=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMetadata:
    """The cloud's data about one instance.

    Attributes:
        provider_id: `<scheme>://<id>`, written once to `spec.providerID` of a node without a
            provider ID. Never change the format. Empty is allowed only for a node that already has
            a provider ID.
        instance_type: value of both instance-type labels at initialisation; empty = no change.
        addresses: `status.addresses`, in this order; empty = no change. Without a Hostname here,
            the Hostname that the kubelet reported is kept.
        zone: value of both zone labels at initialisation; empty = no change.
        region: value of both region labels at initialisation; empty = no change.
        additional_labels: further labels at initialisation. Keys below `kubernetes.io/` and
            `k8s.io/` are dropped with a warning; an existing label keeps its value.
    """

    provider_id: str = ""
    instance_type: str = ""
    addresses: Sequence[NodeAddress] = ()
    zone: str = ""
    region: str = ""
    additional_labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)


class Power(Enum):
    """Power state of an instance, for the shutdown taint."""

    RUNNING = "running"
    """Any state but shut down, including starting, stopping and unknown."""
    SHUTDOWN = "shutdown"
    """Switched off; the instance exists and may be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """One instance in a bulk listing.

    Attributes:
        name: name by which a node without provider ID is looked up (exact match).
        power: power state.
        metadata: the result that `instance_metadata` would return, including the provider ID.
    """

    name: str
    power: Power
    metadata: InstanceMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceListing:
    """A bulk listing of all instances.

    Attributes:
        instances: every instance visible to the credentials.
        requests: number of cloud requests that the listing took; the daemon compares it with
            the number of single calls.
    """

    instances: Sequence[InstanceRecord]
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """Existence and power state; `power` is None exactly if `exists` is False."""

    exists: bool
    power: Power | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A failure domain and its region; either may be empty."""

    failure_domain: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStatus:
    """State of one port of a load balancer; `error` is empty if the port works."""

    port: int
    protocol: str = "TCP"
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """One address of a load balancer.

    Attributes:
        ip: the IP; empty when the load balancer has a hostname.
        hostname: the DNS name; empty when the load balancer has an IP.
        ip_mode: `VIP` (default of the API) or `Proxy`; None leaves the choice to the API server.
        ports: state of each port, if the cloud reports it.
    """

    ip: str = ""
    hostname: str = ""
    ip_mode: Literal["VIP", "Proxy"] | None = None
    ports: Sequence[PortStatus] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Addresses of a load balancer, written to the Service's status."""

    ingress: Sequence[Ingress] = ()

    @classmethod
    def from_ingress(cls, entries: Iterable[str | Ingress | LoadBalancerIngress]) -> Status:
        """Build a status from addresses, in this order.

        Args:
            entries: IPs or host names such as `["192.0.2.1"]`, `Ingress` values for other fields,
                or the entries of a Service: `service.ingress`.
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
        name: the result of `get_load_balancer_name` for its Service.
        digest: digest of the actual state, comparable with `load_balancer_digest`. Empty = the load
            balancer is incomplete or damaged; an empty digest never equals a wanted digest.
        status: the result that `get_load_balancer` would return. An empty status never replaces
            the status of a Service. For a Service without a status, the daemon calls
            `ensure_load_balancer`.
        adopted: whether the load balancer existed before its Service, so that deleting the Service
            releases the load balancer and does not delete it.
        marked: whether the load balancer has the marker of this cluster. One without it may belong
            to another cluster, so it is never reported or deleted as an orphan.
    """

    name: str
    digest: str
    status: Status
    adopted: bool = False
    marked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route to the pods of one node.

    Attributes:
        destination_cidr: Pod range.
        target_node: name of the Node.
        name: name in the cloud; ignored when a route is created.
        enable_node_addresses: on a listed route, whether the controller compares
            `target_addresses` with the addresses of the Node.
        target_addresses: addresses of the target node; for a blackhole, its configured target.
        blackhole: True for a route without a reachable target. The controller deletes a blackhole
            in a managed range, unless its target is an address of a Node that needs the route.
    """

    destination_cidr: str
    target_node: str
    name: str = ""
    enable_node_addresses: bool = False
    target_addresses: Sequence[NodeAddress] = ()
    blackhole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFinding:
    """Result of one of a provider's own checks of its cloud; see `Cloud.examine`.

    Attributes:
        message: what was found, beginning with the checked resource or setting.
        advice: what to do about it; empty = nothing is wrong.
        is_failure: whether a feature cannot work; False with `advice` = a warning.
    """

    message: str
    advice: str = ""
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate limit of calls to a provider: `qps` calls per second, with bursts of `burst` calls."""

    qps: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the calls to a provider; all are optional.

    Attributes:
        deadlines_s: operation (name of an interface method) -> deadline in seconds; overrides the
            default of the method.
        rate: rate limit of all calls; None = no limit.
        concurrent_routes: maximum concurrent route changes; the default is the fixed limit of the
            Go cloud-controller-manager.

    Raises:
        ValueError: an operation is unknown, or a deadline is not positive and finite.
    """

    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    rate: Rate | None = None
    concurrent_routes: int = 200

    def __post_init__(self) -> None:
        unknown = sorted(map(str, self.deadlines_s.keys() - DECLARATIONS.keys()))
        if unknown:
            raise ValueError(
                f"deadlines_s: unknown operation {', '.join(unknown)}; known are "
                f"{', '.join(sorted(DECLARATIONS))}"
            )
        for operation, seconds in self.deadlines_s.items():
            if not 0 < seconds < math.inf:
                raise ValueError(
                    f"deadlines_s[{operation!r}] is {seconds}; it must be above 0 and finite"
                )


def add_to_node_addresses(
    existing: Sequence[NodeAddress], *added: NodeAddress
) -> list[NodeAddress]:
    """Return `existing`, followed by the addresses in `added` that are not in it yet."""
    result = list(existing)
    for entry in added:
        if entry not in result:
            result.append(entry)
    return result

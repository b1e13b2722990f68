"""Services: defaults that depend on other fields, cluster IPs and node ports.

Allocations follow from the stored Services: `Numbers` is updated with every written or removed
Service, so that no explicit release is needed. As in kube-apiserver, allocation is random and
starts in the upper part of a range; the lower part is left to clients that request a certain
address or port.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ccm.testing.apiserver import errors

Spec = dict[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Sequence[Network]
Number = int | str
"""A node port, or a cluster IP as text."""

NODE_PORTS = range(30000, 32768)
"""Range of node ports (kube-apiserver, --service-node-port-range)."""

CLUSTER_IPS: tuple[Network, ...] = (ipaddress.ip_network("10.96.0.0/16"),)
"""Default range of cluster IPs."""

KUBERNETES = "kubernetes"
"""Service of the API server itself, in the namespace `default`."""

_NONE = "None"  # the cluster IP of a headless Service
_LOAD_BALANCER, _EXTERNAL_NAME = "LoadBalancer", "ExternalName"
_PORT_BAND = 86
_ADDRESS_BAND = 256
_BALANCER_FIELDS = ("allocateLoadBalancerNodePorts", "loadBalancerClass")


def _has_node_ports(spec: Spec) -> bool:
    return spec["type"] in ("NodePort", _LOAD_BALANCER)


def _has_health_check_port(spec: Spec) -> bool:
    return spec["type"] == _LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def _is_headless(spec: Spec) -> bool:
    return spec.get("clusterIP") == _NONE


def numbers(spec: Spec) -> Iterator[Number]:
    """Yield every node port and cluster IP in the spec of a Service."""
    yield from (address for address in spec.get("clusterIPs") or () if address != _NONE)
    yield from (
        address["nodePort"] for address in spec.get("ports") or () if address.get("nodePort")
    )
    if spec.get("healthCheckNodePort"):
        yield spec["healthCheckNodePort"]


def complete(body: dict[str, Any], old: Mapping[str, Any] | None) -> None:
    """Set defaults; in an update, keep IPs and node ports, and drop fields of the old type."""
    spec = body["spec"]
    if old is not None:
        _keep_numbers(spec, old["spec"])
        _drop_lost_fields(body, old["spec"])
    if spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", 3 * 3600)
    else:
        spec.pop("sessionAffinityConfig", None)
    if spec["type"] != _EXTERNAL_NAME:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if _has_node_ports(spec) or (spec["type"] == "ClusterIP" and spec.get("externalIPs")):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == _LOAD_BALANCER:
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for point in body["status"].get("loadBalancer", {}).get("ingress") or ():
            if point.get("ip"):
                point.setdefault("ipMode", "VIP")
    for port in spec.get("ports") or ():
        port.setdefault("targetPort", port["port"])
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def _keep_numbers(spec: Spec, before: Spec) -> None:
    """Copy the cluster IPs, IP families and node ports that an update by an older client omits."""
    if _EXTERNAL_NAME not in (spec["type"], before["type"]):
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            spec[key] = spec.get(key) or before[key]
        if spec["ipFamilyPolicy"] == "SingleStack":
            for key in ("clusterIPs", "ipFamilies"):
                spec[key] = spec[key][:1]
    if _has_node_ports(before) and _has_node_ports(spec):
        used = {port.get("nodePort") for port in spec.get("ports") or ()}
        held = {port.get("name"): port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            kept = held.get(port.get("name"))
            if kept and not port.get("nodePort") and kept not in used:
                port["nodePort"] = kept
    if _has_health_check_port(before) and _has_health_check_port(spec):
        spec.setdefault("healthCheckNodePort", before.get("healthCheckNodePort", 0))


def _drop_lost_fields(body: dict[str, Any], before: Spec) -> None:
    """Drop fields that the new type does not have, unless the client changed their values."""
    spec = body["spec"]
    lost: list[str] = []
    if before["type"] != _EXTERNAL_NAME == spec["type"]:
        lost += ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]
    if not _has_health_check_port(spec):
        lost.append("healthCheckNodePort")
    if before["type"] == _LOAD_BALANCER != spec["type"]:
        lost += _BALANCER_FIELDS
        body["status"]["loadBalancer"] = {}
    if _has_node_ports(before) and not _has_node_ports(spec):
        lost.append("externalTrafficPolicy")
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
    for key in lost:
        if spec.get(key) == before.get(key):
            spec.pop(key, None)


def faults(body: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[errors.StatusCause]:
    """Yield faults such as changed cluster IPs and a status that does not fit the type."""
    spec: Spec = body["spec"]
    if spec["type"] != _LOAD_BALANCER and body["status"].get("loadBalancer", {}).get("ingress"):
        yield errors.forbidden("status.loadBalancer.ingress", "the type is not LoadBalancer")
    ports = spec.get("ports") or ()
    if spec["type"] != _EXTERNAL_NAME and not (ports or _is_headless(spec)):
        yield errors.required("spec.ports")
    for number, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield errors.required(f"spec.ports[{number}].name")
    if old is None or _EXTERNAL_NAME in (spec["type"], old["spec"]["type"]):
        return
    given = {spec.get("clusterIP"), *(spec.get("clusterIPs") or [""])[:1]}
    if given != {old["spec"].get("clusterIP")}:
        yield errors.StatusCause("spec.clusterIPs", "may not change once set")
    kept = old["spec"].get("loadBalancerClass")
    is_balancer = spec["type"] == old["spec"]["type"] == _LOAD_BALANCER
    if is_balancer and spec.get("loadBalancerClass") != kept:
        yield errors.forbidden("spec.loadBalancerClass", "may not change once set")


def allocate(body: dict[str, Any], old: Mapping[str, Any] | None, held: Numbers) -> None:
    """Allocate the missing cluster IPs and node ports of a Service.

    Raises:
        RefusedError: an address or port is taken or out of range, or the range is full.
    """
    spec, before = body["spec"], old["spec"] if old else {}
    draft = _Draft(held, set(numbers(before)) if before else set())
    if spec["type"] != _EXTERNAL_NAME:
        _set_families(spec, list(held.ranges))
        if not _is_headless(spec):
            requests = [*(spec.get("clusterIPs") or ()), "", ""]
            pairs = zip(spec["ipFamilies"], requests, strict=False)
            spec["clusterIPs"] = [draft.address(family, requested) for family, requested in pairs]
            spec["clusterIP"] = spec["clusterIPs"][0]
    if _has_node_ports(spec):
        wants = spec["type"] == "NodePort" or spec.get("allocateLoadBalancerNodePorts", True)
        by_port: dict[
            int, int
        ] = {}  # ports with the same number, such as TCP and UDP, share a node port
        for port in spec.get("ports") or ():
            requested = port.get("nodePort") or by_port.get(port["port"], 0)
            if requested or wants:
                port["nodePort"] = by_port[port["port"]] = draft.port(requested)
    if _has_health_check_port(spec):
        spec["healthCheckNodePort"] = draft.port(spec.get("healthCheckNodePort", 0))


def _set_families(spec: Spec, families: Sequence[str]) -> None:
    """Set the IP families and the policy from the other fields and the cluster's families."""
    selectorless = _is_headless(spec) and not spec.get("selector")
    usual = "RequireDualStack" if selectorless else "SingleStack"
    policy = spec.setdefault("ipFamilyPolicy", usual)
    stated = [] if _is_headless(spec) else spec.get("clusterIPs") or []
    wanted = list(spec.get("ipFamilies") or ())
    wanted += ["IPv6" if ":" in address else "IPv4" for address in stated[len(wanted) :]]
    wanted = wanted or list(families[:1])
    if policy != "SingleStack" and len(wanted) == 1 and (selectorless or len(families) > 1):
        wanted.append("IPv4" if wanted[0] == "IPv6" else "IPv6")
    if not selectorless and not set(wanted) <= set(families):
        missing = ", ".join(family for family in wanted if family not in families)
        raise RefusedError(f"the cluster has no cluster IPs of family {missing}")
    spec["ipFamilies"] = wanted


class RefusedError(Exception):
    """A cluster IP or node port that cannot be allocated."""


class Numbers:
    """Cluster IPs and node ports allocated to stored Services.

    Args:
        ranges: ranges of cluster IPs, one or two of different families; the first is the default.
    """

    def __init__(self, ranges: Networks = CLUSTER_IPS) -> None:
        self.ranges = {f"IPv{network.version}": network for network in ranges}
        self.taken: set[Number] = set()
        self._held: dict[str, frozenset[Number]] = {}

    def set_allocated(self, key: str, held: Iterable[Number]) -> None:
        """Replace the cluster IPs and node ports recorded for the Service `key`."""
        self.taken -= self._held.pop(key, frozenset())
        self._held[key] = frozenset(held)
        self.taken |= self._held[key]


class _Draft:
    """Allocations of one request; a refused request has no effect on `Numbers`."""

    def __init__(self, held: Numbers, own: set[Number]) -> None:
        self._ranges = held.ranges
        self._own = own  # allocated to this Service before, or in this request
        self._taken = held.taken - own

    def port(self, requested: int) -> int:
        if not requested:
            return int(self._pick(len(NODE_PORTS), _PORT_BAND, lambda place: NODE_PORTS[place]))
        return int(self._take(requested, is_inside=requested in NODE_PORTS))

    def address(self, family: str, requested: str) -> str:
        network = self._ranges[family]
        # Without the first address (network) and, for IPv4, the last address (broadcast).
        size = network.num_addresses - (2 if network.version == 4 else 1)
        if not requested:
            band = min(_ADDRESS_BAND, size // 16)
            return str(self._pick(size, band, lambda place: str(network[place + 1])))
        try:
            ip = ipaddress.ip_address(requested)
        except ValueError as error:
            raise RefusedError(f"{requested} is not a valid IP address") from error
        return str(self._take(str(ip), is_inside=ip in network))

    def _take(self, number: Number, *, is_inside: bool) -> Number:
        if not is_inside or number in self._taken:
            why = "already allocated" if is_inside else "out of range"
            raise RefusedError(f"{number} is {why}")
        self._own.add(number)
        return number

    def _pick(self, size: int, band: int, number_at: Callable[[int], Number]) -> Number:
        # Start above the band; go below `start` only when all values above are taken.
        start = random.randrange(band, size) if band < size else 0
        for place in itertools.chain(range(start, size), range(start)):
            number = number_at(place)
            if number not in self._taken and number not in self._own:
                self._own.add(number)
                return number
        raise RefusedError("the range is full")

"""What the server adds to a Service: defaults, cluster IPs, node ports, warnings.

    default    the values that Kubernetes fills in for fields left out
    prepare    what was allocated before stays, what is missing is allocated, and what the
               type no longer has goes
    warnings   what is accepted but will not do what its author may think

Rules and texts are those of kube-apiserver 1.36.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import cluster_ips, errors, kinds, ledger
from ccm.sandbox.apiserver import service_rules as rules

KUBERNETES = "kubernetes"
"""The Service in the namespace `default` that stands for the API server itself."""

_AFFINITY_S = 10800
_DEPRECATED = {names.ANNOTATION_TOPOLOGY_HINTS: names.ANNOTATION_TOPOLOGY_MODE}


def default(body: dict[str, Any]) -> None:
    """Fill in what was left out."""
    spec = body["spec"]
    spec.setdefault("type", rules.CLUSTER_IP)
    if spec.setdefault("sessionAffinity", "None") == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", _AFFINITY_S)
    elif spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    if rules.needs_cluster_ip(spec):
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if rules.is_external(spec):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == rules.LOAD_BALANCER:
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for point in body["status"].get("loadBalancer", {}).get("ingress") or ():
            if point.get("ip"):
                point.setdefault("ipMode", "VIP")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])


def prepare(body: dict[str, Any], old: Mapping[str, Any] | None, numbers: ledger.Ledger) -> None:
    """Allocate, and tidy up after a change of type.

    Args:
        body: the Service, with its defaults.
        old: the stored one it replaces.
        numbers: who holds which addresses and ports.

    Raises:
        ApiError: a wish cannot be fulfilled, or wishes contradict each other.
    """
    spec = body["spec"]
    before: dict[str, Any] | None = old["spec"] if old else None
    draft = numbers.draft()
    if before is not None:
        _keep_allocated(spec, before)
    cluster_ips.normalise(spec, before)
    try:
        cluster_ips.complete(spec, before, draft.families)
        cluster_ips.take(spec, before, draft)
        if before is None:
            _take_node_ports(spec, draft)
        else:
            _update_node_ports(spec, before, draft)
    except cluster_ips.FaultyError as error:
        name = body["metadata"].get("name", "")
        raise errors.invalid(kinds.SERVICES.resource, name, error.causes) from error
    except ledger.RefusedError as error:
        raise errors.internal(f"failed to allocate: {error}") from error
    _take_health_check_port(spec, before, draft)
    if spec["type"] == rules.EXTERNAL_NAME:
        spec.pop("internalTrafficPolicy", None)
    if before is not None:
        _drop_what_the_type_lost(body, before)


def warnings(body: Mapping[str, Any]) -> Iterator[str]:
    """What the author should know about an accepted Service."""
    spec = body["spec"]
    for key, instead in _DEPRECATED.items():
        if key in (body["metadata"].get("annotations") or {}):
            yield f"annotation {key} is deprecated, please use {instead} instead"
    externals = spec.get("externalIPs") or []
    if rules.is_headless(spec):
        if spec.get("loadBalancerIP"):
            yield "spec.loadBalancerIP is ignored for headless services"
        if externals:
            yield "spec.externalIPs is ignored for headless services"
        if spec["sessionAffinity"] != "None":
            yield "spec.SessionAffinity is ignored for headless services"
    for number, address in enumerate(externals):
        plain = str(ipaddress.ip_address(address))
        if plain != address:
            yield (
                f'spec.externalIPs[{number}]: IPv6 address "{address}" should be in RFC 5952 '
                f'canonical format ("{plain}")'
            )
    if externals and not rules.is_headless(spec):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("externalName") and spec["type"] != rules.EXTERNAL_NAME:
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def for_the_api_server(address: str, port: int) -> dict[str, Any]:
    """The Service `kubernetes`, by which pods reach the API server."""
    return {
        "metadata": {
            "name": KUBERNETES,
            "labels": {"component": "apiserver", "provider": KUBERNETES},
        },
        "spec": {
            "clusterIP": address,
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }


def _keep_allocated(spec: dict[str, Any], before: dict[str, Any]) -> None:
    """Clients that send back only what they know keep what was allocated."""
    if rules.needs_cluster_ip(before) and rules.needs_cluster_ip(spec):
        if not spec.get("clusterIP") and before.get("clusterIP"):
            spec["clusterIP"] = before["clusterIP"]
        if not spec.get("clusterIPs") and spec.get("clusterIP") == before.get("clusterIP"):
            spec["clusterIPs"] = list(before.get("clusterIPs") or [])
    if rules.needs_node_ports(before) and rules.needs_node_ports(spec):
        _keep_node_ports(spec, before)
    if rules.needs_health_check_port(before) and rules.needs_health_check_port(spec):
        port = before.get("healthCheckNodePort", 0)
        if port and not spec.get("healthCheckNodePort"):
            spec["healthCheckNodePort"] = port


def _keep_node_ports(spec: dict[str, Any], before: dict[str, Any]) -> None:
    used = set(rules.node_ports(before)) & set(rules.node_ports(spec))
    known = {port.get("name", ""): port.get("nodePort", 0) for port in before.get("ports") or ()}
    for port in spec.get("ports") or ():
        kept = known.get(port.get("name", ""), 0)
        if not port.get("nodePort") and kept and kept not in used:
            port["nodePort"] = kept
            used.add(kept)


def _take_node_ports(spec: dict[str, Any], draft: ledger.Draft) -> None:
    """For a new Service: ports of the same number share a node port."""
    if not rules.needs_node_ports(spec):
        return
    ports = spec.get("ports") or []
    shared: dict[int, int] = {}
    for number, port in enumerate(ports):
        stated = port.get("nodePort", 0)
        if not stated and not rules.wants_node_ports(spec):
            continue
        if port["port"] not in shared:
            wished = _first_wish(ports, port["port"])
            taken = _take(wished, number, draft) if wished else draft.any_port()
            shared[port["port"]] = port["nodePort"] = taken
        elif not stated:
            port["nodePort"] = shared[port["port"]]
        elif stated != shared[port["port"]]:
            _take(stated, number, draft)


def _first_wish(ports: list[dict[str, Any]], number: int) -> int:
    wishes = (port.get("nodePort", 0) for port in ports if port["port"] == number)
    return next(filter(None, wishes), 0)


def _update_node_ports(spec: dict[str, Any], before: dict[str, Any], draft: ledger.Draft) -> None:
    if not rules.needs_node_ports(spec):
        return
    held = set(rules.node_ports(before)) if rules.needs_node_ports(before) else set()
    seen: set[tuple[str, int]] = set()
    for number, port in enumerate(spec.get("ports") or ()):
        stated = port.get("nodePort", 0)
        if stated and stated not in held:
            held.add(_take(stated, number, draft))
        elif not stated:
            if not rules.wants_node_ports(spec):
                continue
            port["nodePort"] = draft.any_port()
        key = (port["protocol"], port["nodePort"])
        if key in seen:
            raise errors.ApiError(500, "", f"duplicate nodePort: {{{key[0]} {key[1]}}}")
        seen.add(key)


def _take(wished: int, number: int, draft: ledger.Draft) -> int:
    try:
        return draft.take_port(wished)
    except ledger.RefusedError as error:
        cause = errors.bad_value(f"spec.ports[{number}].nodePort", wished, str(error))
        raise cluster_ips.FaultyError([cause]) from error


def _take_health_check_port(
    spec: dict[str, Any], before: dict[str, Any] | None, draft: ledger.Draft
) -> None:
    if not rules.needs_health_check_port(spec):
        return
    if before is not None and rules.needs_health_check_port(before):
        return
    wished = spec.get("healthCheckNodePort", 0)
    try:
        spec["healthCheckNodePort"] = draft.take_port(wished) if wished else draft.any_port()
    except ledger.RefusedError as error:
        what = f"requested HealthCheck NodePort {wished}" if wished else "a HealthCheck NodePort"
        raise errors.internal(f"failed to allocate {what}: {error}") from error


def _drop_what_the_type_lost(body: dict[str, Any], before: dict[str, Any]) -> None:
    """Fields the new type does not have go, unless the client set them with the type."""
    spec = body["spec"]

    def drop(key: str) -> None:
        if spec.get(key) == before.get(key):
            spec.pop(key, None)

    if rules.needs_cluster_ip(before) and not rules.needs_cluster_ip(spec):
        if spec.get("clusterIPs") == before.get("clusterIPs"):
            drop("clusterIP")
            drop("clusterIPs")
        drop("ipFamilies")
        drop("ipFamilyPolicy")
    had_node_ports = rules.needs_node_ports(before) and not rules.needs_node_ports(spec)
    if had_node_ports and rules.node_ports(before) == rules.node_ports(spec):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
    if rules.needs_health_check_port(before) and not rules.needs_health_check_port(spec):
        drop("healthCheckNodePort")
    if before["type"] == rules.LOAD_BALANCER != spec["type"]:
        drop("allocateLoadBalancerNodePorts")
        drop("loadBalancerClass")
        body["status"]["loadBalancer"] = {}
    if rules.is_external(before) and not rules.is_external(spec):
        drop("externalTrafficPolicy")

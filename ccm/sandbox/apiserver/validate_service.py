"""What a Service must fulfil beyond its shape, in the words and the order of kube-apiserver.

`spec` judges every Service, `update` what may not change, `status` what a status write
may say. `related_faults` judges the fields about cluster IPs and IP families against
each other; the allocation of addresses needs it before everything else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import errors, text_rules
from ccm.sandbox.apiserver import service_rules as rules

Causes = Iterator[errors.Cause]

_PROTOCOLS = ("SCTP", "TCP", "UDP")
_AFFINITIES = ("ClientIP", "None")
_POLICIES = ("Cluster", "Local")
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_IP_MODES = ("Proxy", "VIP")
_MAX_AFFINITY_S = 86400
_ONLY_BALANCERS = "may only be used when `type` is 'LoadBalancer'"
_NO_CHANGE = "may not change once set"
_IMMUTABLE = "field is immutable"
_PORT_RANGE = "must be between 1 and 65535, inclusive"


def spec(body: Mapping[str, Any]) -> Causes:
    """The faults of a Service's spec."""
    found = body["spec"]
    ports = found.get("ports") or ()
    kind = found["type"]
    if not ports and not rules.is_headless(found) and kind != rules.EXTERNAL_NAME:
        yield errors.required("spec.ports")
    if rules.needs_node_ports(found) and rules.is_headless(found):
        detail = f"may not be set to 'None' for {kind} services"
        yield errors.bad_value("spec.clusterIPs[0]", rules.NONE, detail)
    if kind == rules.EXTERNAL_NAME:
        yield from _external_name(found)
    yield from _ports(ports)
    yield from _selector(found.get("selector") or {})
    yield from _affinity(found)
    yield from related_faults(found)
    yield from _external_ips(found.get("externalIPs") or ())
    if kind not in rules.TYPES:
        yield errors.not_supported("spec.type", kind, rules.TYPES)
    yield from _port_clashes(kind, ports)
    yield from _source_ranges(body)
    if kind != rules.LOAD_BALANCER and "allocateLoadBalancerNodePorts" in found:
        yield errors.forbidden_field("spec.allocateLoadBalancerNodePorts", _ONLY_BALANCERS)
    yield from _traffic(found)
    yield from _balancer_class(found)


def update(body: Mapping[str, Any], old: Mapping[str, Any]) -> Causes:
    """What changed and may not."""
    found, before = body["spec"], old["spec"]
    if rules.EXTERNAL_NAME not in (found["type"], before["type"]):
        if not (rules.is_headless(found) and rules.is_headless(before)):
            yield from _changed("clusterIPs", found, before, what="clusterIP")
        yield from _changed("ipFamilies", found, before, what="ipFamily")
    if found["type"] == before["type"] == rules.LOAD_BALANCER:
        wanted = found.get("loadBalancerClass")
        if wanted != before.get("loadBalancerClass"):
            yield errors.bad_value("spec.loadBalancerClass", wanted, _NO_CHANGE)
    # Judged once more with the rest of the spec: the real server tells it twice, too.
    yield from _balancer_class(found)
    if rules.needs_health_check_port(found) and rules.needs_health_check_port(before):
        port = before.get("healthCheckNodePort", 0)
        if port and found.get("healthCheckNodePort", 0) != port:
            yield errors.forbidden_field("spec.healthCheckNodePort", _IMMUTABLE)


def status(body: Mapping[str, Any]) -> Causes:
    """The faults of a Service's status."""
    ingress = body["status"].get("loadBalancer", {}).get("ingress") or ()
    if ingress and body["spec"]["type"] != rules.LOAD_BALANCER:
        detail = "may only be used when `spec.type` is 'LoadBalancer'"
        yield errors.forbidden_field("status.loadBalancer.ingress", detail)
        return
    for number, point in enumerate(ingress):
        field = f"status.loadBalancer.ingress[{number}]"
        address, mode, host = (point.get(key, "") for key in ("ip", "ipMode", "hostname"))
        if address:
            yield from _bad(f"{field}.ip", address, text_rules.address_faults(address))
        if mode and not address:
            detail = "may not be specified when `ip` is not set"
            yield errors.forbidden_field(f"{field}.ipMode", detail)
        elif mode and mode not in _IP_MODES:
            yield errors.not_supported(f"{field}.ipMode", mode, _IP_MODES)
        if host:
            yield from _bad(f"{field}.hostname", host, text_rules.subdomain_faults(host))
            if _is_address(host):
                detail = "must be a DNS name, not an IP address"
                yield errors.bad_value(f"{field}.hostname", host, detail)


def related_faults(found: Mapping[str, Any]) -> Causes:
    """The faults of the cluster IPs and IP families, each alone and all together."""
    if found["type"] == rules.EXTERNAL_NAME:
        return
    first, addresses = found.get("clusterIP", ""), found.get("clusterIPs") or []
    families = found.get("ipFamilies") or []
    before = [
        *_first_matches(first, addresses),
        *_known_families(families, found.get("ipFamilyPolicy")),
    ]
    broken = list(_malformed(addresses))
    if len(addresses) > 2:
        broken.append(_about_addresses(addresses, "may only hold up to 2 values"))
    yield from before
    yield from broken
    if any(cause.field != "spec.clusterIPs" for cause in broken) or _misplaced_none(addresses):
        return
    kinds = [rules.family_of(address) for address in addresses]
    if len(kinds) > 1 and len(set(kinds)) == 1:
        yield _about_addresses(addresses, "may specify no more than one IP for each IP family")
    elif not rules.is_headless(found) and not before and not broken:
        for number, (kind, family) in enumerate(zip(kinds, families, strict=False)):
            if kind != family:
                yield errors.bad_value(
                    f"spec.clusterIPs[{number}]",
                    addresses[number],
                    f"expected an {family} value as indicated by `ipFamilies[{number}]`",
                )


def _first_matches(first: str, addresses: Sequence[str]) -> Causes:
    if first and not addresses:
        yield errors.required("spec.clusterIPs")
    elif first and addresses[0] != first:
        yield _about_addresses(addresses, "first value must match `clusterIP`")
    elif addresses and not first:
        yield _about_addresses(addresses, "must be empty when `clusterIP` is not specified")


def _known_families(families: Sequence[str], policy: str | None) -> Causes:
    for number, family in enumerate(families):
        if family not in rules.FAMILIES:
            yield errors.not_supported(f"spec.ipFamilies[{number}]", family, rules.FAMILIES)
        if family in families[:number]:
            yield errors.duplicate(f"spec.ipFamilies[{number}]", family)
    if policy is not None and policy not in rules.POLICIES:
        yield errors.not_supported("spec.ipFamilyPolicy", policy, rules.POLICIES)


def _malformed(addresses: Sequence[str]) -> Causes:
    for number, address in enumerate(addresses):
        if number == 0 and address == rules.NONE:
            if len(addresses) > 1:
                yield _about_addresses(addresses, "'None' must be the first and only value")
            continue
        field = f"spec.clusterIPs[{number}]"
        yield from _bad(field, address, text_rules.address_faults(address))


def _misplaced_none(addresses: Sequence[str]) -> bool:
    return len(addresses) > 1 and addresses[0] == rules.NONE


def _about_addresses(addresses: Sequence[str], detail: str) -> errors.Cause:
    return errors.bad_value("spec.clusterIPs", list(addresses), detail)


def _changed(key: str, found: Mapping[str, Any], before: Mapping[str, Any], *, what: str) -> Causes:
    """Only the second value may come and go, and to go it must be told so."""
    values, known = found.get(key) or [], before.get(key) or []
    if len(values) == len(known):
        for number, (value, one) in enumerate(zip(values, known, strict=True)):
            if value != one:
                yield errors.bad_value(f"spec.{key}[{number}]", values, _NO_CHANGE)
        return
    if not values:
        yield errors.bad_value(f"spec.{key}[0]", values, f"primary {what} can not be unset")
    elif known and values[0] != known[0]:
        yield errors.bad_value(f"spec.{key}[0]", values, _NO_CHANGE)
    policy = found.get("ipFamilyPolicy")
    if len(values) == 1 < len(known) and policy != rules.SINGLE:
        detail = f"must be set to 'SingleStack' when releasing the secondary {what}"
        yield errors.bad_value("spec.ipFamilyPolicy", policy, detail)


def _external_name(found: Mapping[str, Any]) -> Causes:
    for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if found.get(key):
            detail = "may not be set for ExternalName services"
            yield errors.forbidden_field(f"spec.{key}", detail)
    name = found.get("externalName", "").removesuffix(".")
    if not name:
        yield errors.required("spec.externalName")
    else:
        yield from _bad("spec.externalName", name, text_rules.subdomain_faults(name))


def _ports(ports: Sequence[Mapping[str, Any]]) -> Causes:
    seen: set[str] = set()
    for number, port in enumerate(ports):
        field = f"spec.ports[{number}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            yield errors.required(f"{field}.name")
        elif name:
            yield from _bad(f"{field}.name", name, text_rules.label_faults(name))
            if name in seen:
                yield errors.duplicate(f"{field}.name", name)
            seen.add(name)
        yield from _port_number(f"{field}.port", port["port"])
        if port["protocol"] not in _PROTOCOLS:
            yield errors.not_supported(f"{field}.protocol", port["protocol"], _PROTOCOLS)
        target = port["targetPort"]
        if isinstance(target, int):
            yield from _port_number(f"{field}.targetPort", target)
        else:
            yield from _bad(f"{field}.targetPort", target, text_rules.port_name_faults(target))
        if "appProtocol" in port:
            protocol = port["appProtocol"]
            faults = text_rules.qualified_name_faults(protocol)
            yield from _bad(f"{field}.appProtocol", protocol, faults)


def _port_number(field: str, number: int) -> Causes:
    if not 1 <= number <= 65535:
        yield errors.bad_value(field, number, _PORT_RANGE)


def _port_clashes(kind: str, ports: Sequence[Mapping[str, Any]]) -> Causes:
    for number, port in enumerate(ports):
        if kind == rules.CLUSTER_IP and port.get("nodePort"):
            detail = "may not be used when `type` is 'ClusterIP'"
            yield errors.forbidden_field(f"spec.ports[{number}].nodePort", detail)
    taken: set[tuple[str, int]] = set()
    for number, port in enumerate(ports):
        key = (port["protocol"], port.get("nodePort", 0))
        if key[1] and key in taken:
            yield errors.duplicate(f"spec.ports[{number}].nodePort", key[1])
        taken.add(key)
    used: set[tuple[str, int]] = set()
    for number, port in enumerate(ports):
        key = (port["protocol"], port["port"])
        if key in used:
            shown = {
                "Name": "",
                "Protocol": key[0],
                "AppProtocol": None,
                "Port": key[1],
                "TargetPort": 0,
                "NodePort": 0,
            }
            yield errors.duplicate(f"spec.ports[{number}]", shown)
        used.add(key)


def _selector(selector: Mapping[str, str]) -> Causes:
    for key, value in selector.items():
        yield from _bad("spec.selector", key, text_rules.qualified_name_faults(key))
        yield from _bad("spec.selector", value, text_rules.label_value_faults(value))


def _affinity(found: Mapping[str, Any]) -> Causes:
    affinity = found["sessionAffinity"]
    if affinity not in _AFFINITIES:
        yield errors.not_supported("spec.sessionAffinity", affinity, _AFFINITIES)
    if affinity == "ClientIP":
        seconds = found["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
        if not 0 < seconds <= _MAX_AFFINITY_S:
            field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
            detail = f"must be greater than 0 and less than {_MAX_AFFINITY_S}"
            yield errors.bad_value(field, seconds, detail)


def _external_ips(addresses: Sequence[str]) -> Causes:
    for number, address in enumerate(addresses):
        field = f"spec.externalIPs[{number}]"
        faults = list(text_rules.address_faults(address))
        faults += [] if faults else text_rules.special_address_faults(address)
        yield from _bad(field, address, faults)


def _source_ranges(body: Mapping[str, Any]) -> Causes:
    found = body["spec"]
    is_balancer = found["type"] == rules.LOAD_BALANCER
    ranges = found.get("loadBalancerSourceRanges") or ()
    if ranges:
        field = "spec.LoadBalancerSourceRanges"
        if not is_balancer:
            yield errors.forbidden_field(field, _ONLY_BALANCERS)
        for number, text in enumerate(ranges):
            value = text.strip()
            yield from _bad(f"{field}[{number}]", value, text_rules.cidr_faults(value))
        return
    annotations = body["metadata"].get("annotations") or {}
    if names.ANNOTATION_SOURCE_RANGES not in annotations:
        return
    field = f"metadata.annotations[{names.ANNOTATION_SOURCE_RANGES}]"
    if not is_balancer:
        yield errors.forbidden_field(field, _ONLY_BALANCERS)
    listed = annotations[names.ANNOTATION_SOURCE_RANGES].strip()
    for text in listed.split(",") if listed else ():
        yield from _bad(field, text.strip(), text_rules.cidr_faults(text.strip()))


def _traffic(found: Mapping[str, Any]) -> Causes:
    inner = found.get("internalTrafficPolicy", "Cluster")
    if inner not in _POLICIES:
        yield errors.not_supported("spec.internalTrafficPolicy", inner, _POLICIES)
    outer = found.get("externalTrafficPolicy", "")
    if outer and not rules.is_external(found):
        detail = "may only be set for externally-accessible services"
        yield errors.bad_value("spec.externalTrafficPolicy", outer, detail)
    elif outer and outer not in _POLICIES:
        yield errors.not_supported("spec.externalTrafficPolicy", outer, _POLICIES)
    port = found.get("healthCheckNodePort", 0)
    if port and not rules.needs_health_check_port(found):
        detail = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        yield errors.bad_value("spec.healthCheckNodePort", port, detail)
    spread = found.get("trafficDistribution")
    if spread is not None and spread not in _DISTRIBUTIONS:
        yield errors.not_supported("spec.trafficDistribution", spread, _DISTRIBUTIONS)


def _balancer_class(found: Mapping[str, Any]) -> Causes:
    wanted = found.get("loadBalancerClass")
    if wanted is None:
        return
    field = "spec.loadBalancerClass"
    if found["type"] != rules.LOAD_BALANCER:
        yield errors.forbidden_field(field, _ONLY_BALANCERS)
    else:
        yield from _bad(field, wanted, text_rules.qualified_name_faults(wanted))


def _bad(field: str, value: str, faults: Iterable[str]) -> Causes:
    for fault in faults:
        yield errors.bad_value(field, value, fault)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

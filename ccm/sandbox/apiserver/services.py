"""Services: their defaults, rules and warnings, and the numbers they hold.

    default    what follows from other fields and, for what replaces a Service, from it:
               what was allocated stays, what the type no longer has goes
    judge      the faults
    allocate   cluster IPs and node ports for what has none yet

Every function takes a Service whose shape is checked and whose plain defaults are filled in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import allocate as allocation
from ccm.sandbox.apiserver import errors, limits, validate

Spec = dict[str, Any]
Causes = validate.Causes

KUBERNETES = "kubernetes"
"""The Service in the namespace `default` that stands for the API server itself."""

NONE = "None"
"""The cluster IP of a Service that shall have none (a headless one)."""

NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "NodePort", "LoadBalancer", "ExternalName"
SINGLE, PREFER_DUAL, REQUIRE_DUAL = "SingleStack", "PreferDualStack", "RequireDualStack"

_ONLY_BALANCERS = ("allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges")
_ADDRESSED = ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
_NEEDS_BALANCER = "may only be used when `type` is 'LoadBalancer'"
_SET_ONCE = "may not change once set"


def has_node_ports(spec: Spec) -> bool:
    """Whether its ports may have node ports."""
    return spec["type"] in (NODE_PORT, LOAD_BALANCER)


def has_health_check_port(spec: Spec) -> bool:
    """Whether it has a node port for health checks."""
    return spec["type"] == LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def is_external(spec: Spec) -> bool:
    """Whether it can be reached from outside the cluster."""
    return has_node_ports(spec) or (spec["type"] == "ClusterIP" and bool(spec.get("externalIPs")))


def is_headless(spec: Spec) -> bool:
    """Whether it has no address of its own."""
    return spec.get("clusterIPs") == [NONE]


def node_ports(spec: Spec) -> list[int]:
    """The node ports of its ports, without those for health checks."""
    return [port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")]


def numbers(spec: Spec) -> Iterator[allocation.Number]:
    """Every number it holds."""
    for text in spec.get("clusterIPs") or ():
        if text != NONE:
            yield str(ipaddress.ip_address(text))
    yield from node_ports(spec)
    if spec.get("healthCheckNodePort"):
        yield spec["healthCheckNodePort"]


def default_service(body: dict[str, Any], old: Mapping[str, Any] | None) -> None:
    """Fill in what was left out, and let go what the type no longer has."""
    spec = body["spec"]
    if spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", 3 * 3600)
    else:
        spec.pop("sessionAffinityConfig", None)
    if spec["type"] == EXTERNAL_NAME:
        spec.pop("internalTrafficPolicy", None)
    else:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if is_external(spec):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == LOAD_BALANCER:
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for point in body["status"].get("loadBalancer", {}).get("ingress") or ():
            if point.get("ip"):
                point.setdefault("ipMode", "VIP")
    for port in spec.get("ports") or ():
        port.setdefault("targetPort", port["port"])
    if old is not None:
        _keep_numbers(spec, old["spec"])
        _drop_what_the_type_lost(body, old["spec"])
    elif spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def _keep_numbers(spec: Spec, before: Spec) -> None:
    """Clients that send back only what they know keep what was allocated."""
    first, known = spec.get("clusterIP", ""), before.get("clusterIP", "")
    if EXTERNAL_NAME not in (spec["type"], before["type"]):
        first = spec["clusterIP"] = first or known
        if first == known and not spec.get("clusterIPs"):
            spec["clusterIPs"] = list(before["clusterIPs"])
        for key in ("ipFamilies", "ipFamilyPolicy"):
            spec[key] = spec.get(key) or before[key]
    if first and first != known and (spec.get("clusterIPs") or []) == before.get("clusterIPs", []):
        spec["clusterIPs"] = [first]
    if spec.get("ipFamilyPolicy") == SINGLE:
        for key in ("clusterIPs", "ipFamilies"):
            if spec.get(key) and spec[key] == before.get(key):
                spec[key] = spec[key][:1]
    if has_node_ports(before) and has_node_ports(spec):
        used = set(node_ports(spec))
        held = {port.get("name"): port.get("nodePort") for port in before["ports"]}
        for port in spec.get("ports") or ():
            kept = held.get(port.get("name"))
            if kept and not port.get("nodePort") and kept not in used:
                port["nodePort"] = kept
    if has_health_check_port(before) and has_health_check_port(spec):
        spec.setdefault("healthCheckNodePort", before.get("healthCheckNodePort", 0))


def _drop_what_the_type_lost(body: dict[str, Any], before: Spec) -> None:
    """Fields the new type does not have go, unless the client set them with the type."""
    spec = body["spec"]
    gone: list[str] = []
    if before["type"] != EXTERNAL_NAME == spec["type"]:
        gone += ["clusterIP", *_ADDRESSED]
    if has_health_check_port(before) and not has_health_check_port(spec):
        gone.append("healthCheckNodePort")
    if before["type"] == LOAD_BALANCER != spec["type"]:
        gone += ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
        body["status"]["loadBalancer"] = {}
    if is_external(before) and not is_external(spec):
        gone.append("externalTrafficPolicy")
    for key in gone:
        if spec.get(key) == before.get(key):
            spec.pop(key, None)
    lost_ports = has_node_ports(before) and not has_node_ports(spec)
    if lost_ports and node_ports(before) == node_ports(spec):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)


def judge_service(body: validate.Body, old: validate.Body | None) -> Causes:
    """The faults of a Service."""
    spec: Spec = body["spec"]
    before: Spec | None = old["spec"] if old else None
    if spec["type"] != EXTERNAL_NAME:
        yield from _judge_addresses(spec)
        if before is not None and before["type"] != EXTERNAL_NAME:
            yield from _judge_new_addresses(spec, before)
    elif not spec.get("externalName"):
        yield errors.required("spec.externalName")
    yield from validate.texts("spec.selector", spec.get("selector") or {}, limits.key)
    yield from _judge_ports(spec)
    annotated = (body["metadata"].get("annotations") or {}).get(names.ANNOTATION_SOURCE_RANGES)
    if annotated and annotated.strip() and not spec.get("loadBalancerSourceRanges"):
        field = f"metadata.annotations[{names.ANNOTATION_SOURCE_RANGES}]"
        yield from validate.texts(field, annotated.split(","), limits.cidr)
    for is_broken, field, text in _combinations(body, before or {}):
        if is_broken:
            yield errors.forbidden_field(field, text)


def _combinations(body: validate.Body, before: Spec) -> Iterator[tuple[object, str, str]]:
    """What does not go together: whether it is so, the field and what is demanded."""
    spec: Spec = body["spec"]
    points = body["status"].get("loadBalancer", {}).get("ingress") or ()
    if spec["type"] == EXTERNAL_NAME:
        for key in _ADDRESSED:
            yield spec.get(key), f"spec.{key}", "may not be set for ExternalName services"
    if spec["type"] != LOAD_BALANCER:
        for key in _ONLY_BALANCERS:
            yield key in spec, f"spec.{key}", _NEEDS_BALANCER
        yield points, "status.loadBalancer.ingress", _NEEDS_BALANCER
    elif before.get("type") == LOAD_BALANCER:
        changed = spec.get("loadBalancerClass") != before.get("loadBalancerClass")
        yield changed, "spec.loadBalancerClass", _SET_ONCE
    policy = spec.get("externalTrafficPolicy") and not is_external(spec)
    text = "may only be set for externally-accessible services"
    yield policy, "spec.externalTrafficPolicy", text
    port, known = (one.get("healthCheckNodePort") for one in (spec, before))
    if has_health_check_port(spec):
        yield known and port != known, "spec.healthCheckNodePort", _SET_ONCE
    else:
        text = "needs `type` 'LoadBalancer' and `externalTrafficPolicy` 'Local'"
        yield port, "spec.healthCheckNodePort", text
    for number, point in enumerate(points):
        broken = point.get("ipMode") and not point.get("ip")
        field = f"status.loadBalancer.ingress[{number}].ipMode"
        yield broken, field, "may not be specified when `ip` is not set"


def _judge_addresses(spec: Spec) -> Causes:
    """Cluster IPs and IP families, each alone and all together."""
    listed, families = spec.get("clusterIPs") or [], spec.get("ipFamilies") or []
    yield from validate.one_of_each("spec.ipFamilies", families)
    kinds = [_family_of(text) for text in listed]
    why = ""
    if spec.get("clusterIP", "") != (listed[0] if listed else ""):
        why = "first value must match `clusterIP`"
    elif is_headless(spec):
        why = f"may not be 'None' for {spec['type']} services" if has_node_ports(spec) else ""
    elif faults := [*filter(None, map(limits.address, listed))]:
        why = faults[0]
    elif len(kinds) != len(set(kinds)) or kinds != (families or kinds)[: len(kinds)]:
        why = f"must be one of each family, in the order of `ipFamilies`, {families}"
    if why:
        yield errors.bad_value("spec.clusterIPs", listed, why)


def _judge_new_addresses(spec: Spec, before: Spec) -> Causes:
    """Only the second of each may come and go, and to go it must be told so."""
    policy = spec.get("ipFamilyPolicy")
    for key in ("clusterIPs", "ipFamilies"):
        values, known = spec.get(key) or [], before.get(key) or []
        if key == "clusterIPs" and is_headless(spec) and is_headless(before):
            continue
        if values[:1] != known[:1] or (len(values) == len(known) and values != known):
            yield errors.bad_value(f"spec.{key}", values, _SET_ONCE)
        elif len(values) < len(known) and policy != SINGLE:
            detail = f"must be 'SingleStack' to release the second of {key}"
            yield errors.bad_value("spec.ipFamilyPolicy", policy, detail)


def _judge_ports(spec: Spec) -> Causes:
    ports: Sequence[Spec] = spec.get("ports") or ()
    if not ports and not is_headless(spec) and spec["type"] != EXTERNAL_NAME:
        yield errors.required("spec.ports")
    for number, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield errors.required(f"spec.ports[{number}].name")
        if port.get("nodePort") and not has_node_ports(spec):
            detail = f"may not be used when `type` is '{spec['type']}'"
            yield errors.forbidden_field(f"spec.ports[{number}].nodePort", detail)
    for keys in (("name",), ("protocol", "port"), ("protocol", "nodePort")):
        found = [{key: one[key] for key in keys} for one in ports if one.get(keys[-1])]
        yield from validate.one_of_each("spec.ports", found)


def allocate(
    body: dict[str, Any], old: validate.Body | None, allocator: allocation.Allocator
) -> list[errors.Cause]:
    """Give what is missing; tell the wishes that cannot be fulfilled."""
    spec, before = body["spec"], old["spec"] if old else {}
    draft = allocation.Draft(allocator)
    try:
        if spec["type"] != EXTERNAL_NAME:
            faults = list(_complete_families(spec, before, draft.families))
            if faults:
                return faults
            _take_addresses(spec, before, draft)
        if has_node_ports(spec):
            _take_ports(spec, before, draft)
        if has_health_check_port(spec) and not before.get("healthCheckNodePort"):
            wish = spec.get("healthCheckNodePort", 0)
            spec["healthCheckNodePort"] = draft.port(wish, "spec.healthCheckNodePort")
    except allocation.RefusedError as error:
        if error.wish:
            return [errors.bad_value(error.field, error.wish, f"failed to allocate: {error}")]
        raise errors.ApiError(500, "InternalError", f"failed to allocate: {error}") from error
    return []


def _complete_families(spec: Spec, before: Spec, families: list[str]) -> Causes:
    """The IP families and their policy, from the rest and from the cluster's families."""
    selectorless = is_headless(spec) and not spec.get("selector")
    if "ipFamilyPolicy" not in spec:
        spec["ipFamilyPolicy"] = REQUIRE_DUAL if selectorless else SINGLE
    policy = spec["ipFamilyPolicy"]
    stated = [] if is_headless(spec) else [_family_of(text) for text in spec.get("clusterIPs", ())]
    wanted = list(spec.get("ipFamilies") or [])
    wanted = [*wanted, *stated[len(wanted) :]] or families[:1]
    if policy == SINGLE and len(wanted) > 1:
        detail = "must be 'RequireDualStack' or 'PreferDualStack' for two IP families"
        yield errors.bad_value("spec.ipFamilyPolicy", policy, detail)
    # A headless Service without selector has families that the cluster need not have.
    if policy == REQUIRE_DUAL and len(families) < 2 and not selectorless:
        detail = "this cluster is not configured for dual-stack services"
        yield errors.bad_value("spec.ipFamilyPolicy", policy, detail)
    for family in wanted:
        if family not in families and not selectorless:
            yield errors.bad_value("spec.ipFamilies", family, "not configured on this cluster")
    settled = before.get("ipFamilyPolicy") == policy == PREFER_DUAL
    can_have_two = not settled and (selectorless or len(families) > 1)
    if policy != SINGLE and len(wanted) == 1 and can_have_two:
        wanted = [*wanted, "IPv4" if wanted[0] == "IPv6" else "IPv6"]
    spec["ipFamilies"] = wanted


def _take_addresses(spec: Spec, before: Spec, draft: allocation.Draft) -> None:
    if is_headless(spec):
        return
    families, stated = spec["ipFamilies"], [*(spec.get("clusterIPs") or ()), "", ""]
    held = (before.get("clusterIPs") or [])[: len(families)]
    for family, wish in list(zip(families, stated, strict=False))[len(held) :]:
        held.append(draft.address(family, wish, "spec.clusterIPs"))
    spec["clusterIP"], spec["clusterIPs"] = held[0], held


def _take_ports(spec: Spec, before: Spec, draft: allocation.Draft) -> None:
    """Ports of the same number share a node port in a new Service."""
    wants = spec["type"] == NODE_PORT or spec.get("allocateLoadBalancerNodePorts", True)
    held = set(node_ports(before)) if before and has_node_ports(before) else set()
    ports = spec.get("ports") or []
    shared = {port["port"]: port["nodePort"] for port in ports if port.get("nodePort")}
    for number, port in enumerate(ports):
        wish = port.get("nodePort") or (0 if before else shared.get(port["port"], 0))
        if wish not in held and (wish or wants):
            wish = draft.port(wish, f"spec.ports[{number}].nodePort")
            held.add(wish)
            shared[port["port"]] = wish
        if wish:
            port["nodePort"] = wish


def _family_of(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def warnings(body: Mapping[str, Any]) -> Iterator[str]:
    """What is accepted but will not do what its author may think."""
    spec = body["spec"]
    if spec.get("externalIPs"):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("externalName") and spec["type"] != EXTERNAL_NAME:
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'


def for_the_api_server(address: str, port: int) -> dict[str, Any]:
    """The Service `kubernetes`, by which pods reach the API server."""
    labels = {"component": "apiserver", "provider": KUBERNETES}
    spec = {"clusterIP": address, "ports": [{"name": "https", "port": 443, "targetPort": port}]}
    return {"metadata": {"name": KUBERNETES, "labels": labels}, "spec": spec}

"""Checks of `kube-ccm doctor`: catalogue, resources that the settings name, and quotas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from ccm import cloud

from . import client, config, neutron, octavia

ALMOST_USED = 0.9
"""Used share of a quota from which a check warns."""


async def examine(api: client.Client, settings: config.Config) -> AsyncIterator[cloud.CloudFinding]:
    """Yield the result of each check. Raises `CloudError` if the cloud does not answer."""
    balancing = settings.load_balancer
    services = ["compute", "network", *(["load-balancer"] if balancing.enabled else [])]
    missing = []
    for service in services:
        try:
            await api.keystone.endpoint(service)
        except cloud.FailedPrecondition as error:
            missing.append(service)
            message, _, advice = str(error).partition("; ")
            yield _failure(message, advice)
    if missing:
        return
    yield cloud.CloudFinding(message=f"catalogue: endpoints of {', '.join(services)}")
    for setting, kind, number in _references(settings):
        yield await _find(api, setting, kind, number)
    if balancing.enabled and not (balancing.floating_network_id or balancing.internal_lb):
        query = {"router:external": "true"}
        listed, _ = await api.network.list_all("/v2.0/networks", "networks", neutron.Named, query)
        names = ", ".join(sorted(network.name or network.id for network in listed)) or "none"
        advice = "set LoadBalancer.floating-network-id; without it, load balancers stay internal"
        yield cloud.CloudFinding(
            message=f"external networks: {names}", advice="" if len(listed) == 1 else advice
        )
    usage = {
        kind: (used, limit)
        for kind, (used, limit) in (await _usage(api, services)).items()
        if used is not None and limit is not None and limit >= 0  # visible, and not unlimited
    }
    for kind, (used, limit) in usage.items():
        if used >= limit * ALMOST_USED:
            advice = f"ask an administrator for a larger quota of {kind}, or delete unused ones"
            message = f"quota: {used} of {limit} {kind} are used"
            yield cloud.CloudFinding(message=message, advice=advice)
    texts = [f"{used} of {limit} {kind}" for kind, (used, limit) in usage.items()]
    yield cloud.CloudFinding(message=f"quotas: {', '.join(texts) or 'none is visible'}")


def _failure(message: str, advice: str) -> cloud.CloudFinding:
    return cloud.CloudFinding(message=message, advice=advice, is_failure=True)


def _references(settings: config.Config) -> Iterator[tuple[str, str, str]]:
    """Yield setting, kind of resource, and ID."""
    if settings.route.router_id:
        yield "Route.router-id", "router", settings.route.router_id
    if not settings.load_balancer.enabled:
        return
    classes = settings.load_balancer_class.items()
    sections: dict[str, config.BalancerClass] = {"LoadBalancer": settings.load_balancer}
    sections |= {f"LoadBalancerClass.{name}": group for name, group in classes}
    for section, group in sections.items():
        for field in config.BalancerClass.__struct_fields__:
            if field.endswith("_id") and (number := getattr(group, field)):
                kind = "subnet" if "subnet" in field else "network"
                yield f"{section}.{field.replace('_', '-')}", kind, number


async def _find(api: client.Client, setting: str, kind: str, number: str) -> cloud.CloudFinding:
    try:
        found = await api.network.get(f"/v2.0/{kind}s/{number}", kind, neutron.Named)
    except cloud.NotFound:
        return _failure(f"{setting}: {kind} {number} does not exist", f"correct {setting}")
    if setting.endswith("floating-network-id") and not found.is_external:
        advice = f"set {setting} to an external network"
        return _failure(f"{setting}: network {number} is not external", advice)
    return cloud.CloudFinding(message=f"{setting}: {kind} {found.name or number}")


async def _usage(api: client.Client, services: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return use and limit of each quota on which the provider depends; None = not visible."""
    project = await api.keystone.project_id()
    servers = (await _read(api.compute, "/limits", "limits")).get("absolute", {})
    usage = {"servers": (servers.get("totalInstancesUsed"), servers.get("maxTotalInstances"))}
    quotas = await _read(api.network, f"/v2.0/quotas/{project}/details", "quota")
    for kind in ("port", "floatingip", "security_group"):
        quota = quotas.get(kind, {})
        usage[f"{kind}s"] = (quota.get("used"), quota.get("limit"))
    if "load-balancer" in services:
        quota = await _read(api.load_balancer, f"{octavia.ROOT}/quotas/{project}", "quota")
        # Older versions of the API have another name.
        limit = quota.get("load_balancer", quota.get("loadbalancer"))
        usage["load balancers"] = (len(await octavia.Octavia(api).balancers({})), limit)
    return usage


async def _read(service: client.Service, path: str, key: str) -> dict[str, Any]:
    """Return a mapping in a response; empty if the user may not read it, or it is unknown."""
    try:
        return await service.get(path, key, dict[str, Any])
    except (cloud.NotFound, cloud.PermissionDenied, cloud.Unimplemented, cloud.Unknown):
        return {}

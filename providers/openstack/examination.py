"""Checks of `kube-ccm doctor`: catalogue, resources that the settings name, and quotas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from ccm import cloud

from . import client, config, neutron, octavia

ALMOST_USED = 0.9
"""Used share of a quota from which a check warns."""


_HIDDEN = (cloud.NotFound, cloud.PermissionDenied, cloud.Unimplemented, cloud.Unknown)
"""Errors of a quota that this user may not read, or that this version of a service lacks."""


async def examine(api: client.Client, settings: config.Config) -> AsyncIterator[cloud.CloudFinding]:
    """Yield the result of each check. Raises `CloudError` if the cloud does not answer."""
    services = ["compute", "network"]
    if settings.load_balancer.enabled:
        services.append("load-balancer")
    missing = []
    for service in services:
        try:
            await api.keystone.endpoint(service)
        except cloud.FailedPrecondition as error:
            missing.append(service)
            message, _, advice = str(error).partition("; ")
            yield cloud.CloudFinding(message=message, advice=advice, is_failure=True)
    if not missing:
        yield cloud.CloudFinding(message=f"catalogue: endpoints of {', '.join(services)}")
    if "network" not in missing:
        for setting, kind, number in _references(settings):
            yield await _find(api, setting, kind, number)
        if settings.load_balancer.enabled and not settings.load_balancer.floating_network_id:
            yield await _find_external(api, settings)
    if not missing:
        async for finding in _quotas(api, services):
            yield finding


def _references(settings: config.Config) -> Iterator[tuple[str, str, str]]:
    """Yield setting, kind of resource, and ID."""
    if settings.route.router_id:
        yield "Route.router-id", "router", settings.route.router_id
    sections: dict[str, config.BalancerClass] = {
        f"LoadBalancerClass.{name}": group for name, group in settings.load_balancer_class.items()
    }
    if settings.load_balancer.enabled:
        sections["LoadBalancer"] = settings.load_balancer
    for section, group in sections.items():
        for field in config.BalancerClass.__struct_fields__:
            if field.endswith("_id") and (number := getattr(group, field)):
                kind = "subnet" if "subnet" in field else "network"
                yield f"{section}.{field.replace('_', '-')}", kind, number


async def _find(api: client.Client, setting: str, kind: str, number: str) -> cloud.CloudFinding:
    path = f"/v2.0/{kind}s/{number}"
    try:
        found = await api.network.get(path, kind, neutron.Named)
    except cloud.NotFound:
        text, advice = f"{kind} {number} does not exist", f"correct {setting} in the cloud config"
        return cloud.CloudFinding(message=f"{setting}: {text}", advice=advice, is_failure=True)
    if setting.endswith("floating-network-id") and not found.is_external:
        text, advice = f"network {number} is not external", f"set {setting} to an external network"
        return cloud.CloudFinding(message=f"{setting}: {text}", advice=advice, is_failure=True)
    return cloud.CloudFinding(message=f"{setting}: {kind} {found.name or number}")


async def _find_external(api: client.Client, settings: config.Config) -> cloud.CloudFinding:
    query = {"router:external": "true"}
    networks, _ = await api.network.list_all("/v2.0/networks", "networks", neutron.Named, query)
    names = ", ".join(sorted(network.name or network.id for network in networks)) or "none"
    needs_one = len(networks) != 1 and not settings.load_balancer.internal_lb
    advice = "set LoadBalancer.floating-network-id; without it, load balancers stay internal"
    return cloud.CloudFinding(
        message=f"external networks: {names}", advice=advice if needs_one else ""
    )


async def _quotas(api: client.Client, services: list[str]) -> AsyncIterator[cloud.CloudFinding]:
    """Yield the use of each quota on which the provider depends."""
    project = await api.keystone.project_id()
    limits = await _read(api.compute, "/limits")
    absolute = limits.get("limits", {}).get("absolute", {})
    usage = {"servers": (absolute.get("totalInstancesUsed"), absolute.get("maxTotalInstances"))}
    details = (await _read(api.network, f"/v2.0/quotas/{project}/details")).get("quota", {})
    for kind in ("port", "floatingip", "security_group"):
        row = details.get(kind, {})
        usage[f"{kind}s"] = (row.get("used"), row.get("limit"))
    if "load-balancer" in services:
        given = await _read(api.load_balancer, f"{octavia.ROOT}/quotas/{project}")
        held = await octavia.Octavia(api).balancers({})
        # The field had another name in older versions of the API.
        quota = given.get("quota", {})
        usage["load balancers"] = (len(held), quota.get("load_balancer", quota.get("loadbalancer")))
    texts = []
    for kind, (used, limit) in usage.items():
        if used is None or limit is None or limit < 0:
            continue  # not visible to this user, or unlimited
        texts.append(f"{used} of {limit} {kind}")
        if used >= limit * ALMOST_USED:
            yield cloud.CloudFinding(
                message=f"quota: {texts[-1]} are used",
                advice=f"ask an administrator for a larger quota of {kind}, or delete unused ones",
            )
    yield cloud.CloudFinding(message=f"quotas: {', '.join(texts) or 'none is visible'}")


async def _read(service: client.Service, path: str) -> dict[str, Any]:
    """Return a response as a mapping; empty if the user may not read it, or it is unknown."""
    try:
        document = msgspec.json.decode(await service.call("GET", path))
    except (*_HIDDEN, msgspec.DecodeError):
        return {}
    return document if isinstance(document, dict) else {}

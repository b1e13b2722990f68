"""The findings of `kube-ccm doctor`, and the metrics of the Go manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ccm import cloud
from ccm.base import metrics as registry
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.fake_api import Fault
from providers.openstack import metrics
from providers.openstack.testing import floating, network
from tests.openstack.harness import OpenStackHarness, opened

OTHER = "2028e5d4-af4f-45e2-98df-502be37a4317"
Change = Callable[[OpenStackHarness], Any]


async def findings(harness: OpenStackHarness) -> Sequence[cloud.CloudFinding]:
    async with opened(harness) as found:
        assert found.examine is not None
        return [finding async for finding in found.examine()]


@pytest.mark.row("openstack-doctor-01")
async def test_a_complete_project_has_no_problems(harness: OpenStackHarness) -> None:
    harness.extra["LoadBalancer"] = {"floating-network-id": harness.public["id"]}
    harness.extra['LoadBalancerClass "inner"'] = {"network-id": harness.network["id"]}
    writes = harness.service.writes

    found = await findings(harness)

    assert [one.message for one in found] == [
        "catalogue: endpoints of compute, network, load-balancer",
        "Route.router-id: router k8s",
        "LoadBalancer.floating-network-id: network public",
        "LoadBalancer.subnet-id: subnet nodes-v4",
        "LoadBalancerClass.inner.network-id: network nodes",
        "quotas: 0 of 10000 servers, 0 of 1000 floatingips, 0 of 1000 load balancers",
    ]
    assert not any(one.advice or one.is_failure for one in found)
    assert harness.service.writes == writes


def setting(section: str, **keys: str) -> Change:
    given = {key.replace("_", "-"): text for key, text in keys.items()}
    return lambda harness: harness.extra.update({section: given})


def limit(**values: Any) -> Change:
    def change(harness: OpenStackHarness) -> None:
        for name, value in values.items():
            setattr(harness.service.settings, name, value)

    return change


def internal_floating_network(harness: OpenStackHarness) -> None:
    harness.extra["LoadBalancer"] = {"floating-network-id": harness.network["id"]}


def use_all_floating_ips(harness: OpenStackHarness) -> None:
    floating.new_floating_ip(harness.service.cloud, harness.public["id"])
    harness.service.settings.floating_ips = 1


WRONG: dict[str, tuple[Change, str, str, bool]] = {
    "endpoint": (
        limit(services=("compute", "network")),
        "has no public endpoint of the service load-balancer in region RegionOne",
        "create one, or correct region or os-endpoint-type",
        True,
    ),
    "router": (
        setting("Route", router_id=OTHER),
        f"Route.router-id: router {OTHER} does not exist",
        "correct Route.router-id",
        True,
    ),
    "subnet": (
        setting("LoadBalancer", member_subnet_id=OTHER),
        f"LoadBalancer.member-subnet-id: subnet {OTHER} does not exist",
        "correct LoadBalancer.member-subnet-id",
        True,
    ),
    "class": (
        setting('LoadBalancerClass "dmz"', floating_subnet_id=OTHER),
        f"LoadBalancerClass.dmz.floating-subnet-id: subnet {OTHER} does not exist",
        "correct LoadBalancerClass.dmz.floating-subnet-id",
        True,
    ),
    "internal network": (
        internal_floating_network,
        "is not external",
        "set LoadBalancer.floating-network-id to an external network",
        True,
    ),
    "no external network": (
        lambda harness: harness.service.cloud.networks.pop(harness.public["id"]),
        "external networks: none",
        "set LoadBalancer.floating-network-id; without it, load balancers stay internal",
        False,
    ),
    "two external networks": (
        lambda harness: network.new_network(
            harness.service.cloud, "other", ["198.51.100.0/24"], external=True
        ),
        "external networks: other, public",
        "set LoadBalancer.floating-network-id; without it, load balancers stay internal",
        False,
    ),
    "quota of servers": (limit(servers=0), "0 of 0 servers are used", "larger quota", False),
    "quota of addresses": (
        use_all_floating_ips,
        "1 of 1 floatingips are used",
        "ask an administrator for a larger quota of floatingips, or delete unused ones",
        False,
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.row("openstack-doctor-01")
async def test_each_problem_has_one_finding_with_advice(
    harness: OpenStackHarness, name: str
) -> None:
    change, message, advice, is_failure = WRONG[name]
    change(harness)

    (problem,) = [one for one in await findings(harness) if one.advice]

    assert message in problem.message
    assert advice in problem.advice
    assert problem.is_failure is is_failure


async def test_hidden_quotas_are_left_out(harness: OpenStackHarness) -> None:
    for path in ("/compute/limits", "/network/v2.0/quotas*"):
        fault = Fault(operation=f"GET {path}", code="forbidden")
        harness.service.script.add(fault)

    found = await findings(harness)

    assert found[-1].message == "quotas: 0 of 1000 load balancers"
    assert not any(one.advice for one in found)


async def test_an_outage_is_an_error_and_no_finding(harness: OpenStackHarness) -> None:
    harness.service.script.add(Fault(operation="GET /network/*", code="unavailable"))

    with pytest.raises(cloud.Unavailable):
        await findings(harness)


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("GET", "/servers/detail", "server_list"),
        ("GET", "/servers/1-2", "server_get"),
        ("POST", "/servers", "server_create"),
        ("POST", "/servers/1-2/metadata", "server_update"),
        ("GET", "/os-keypairs/workers", "keypair_get"),
        ("GET", "/v2.0/ports?device_id=1&device_id=2", "port_list"),
        ("PUT", "/v2.0/ports/1-2/tags", "port_update"),
        ("POST", "/v2.0/security-group-rules", "security_group_rule_create"),
        ("DELETE", "/v2.0/floatingips/1-2", "floatingip_delete"),
        ("PUT", "/v2.0/routers/1-2/add_extraroutes", "router_update"),
        ("POST", "/v2/lbaas/loadbalancers", "loadbalancer_create"),
        ("DELETE", "/v2/lbaas/loadbalancers/1-2?cascade=true", "loadbalancer_delete"),
        ("PUT", "/v2/lbaas/pools/1-2/members", "pool_update"),
        ("GET", "/", "version_list"),
    ],
)
@pytest.mark.row("openstack-metrics-01")
def test_requests_are_named_by_resource_and_action(method: str, path: str, label: str) -> None:
    assert metrics.request_name(method, path) == label


def sample(name: str, **labels: str) -> float:
    return registry.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.row("openstack-metrics-01")
async def test_requests_and_changes_are_counted(harness: OpenStackHarness) -> None:
    (node,) = await harness.nodes(1)
    names = ("openstack_api_request", "cloudprovider_openstack_reconcile")
    labels: Sequence[dict[str, str]] = (
        {"request": "router_update"},
        {"operation": "route_create"},
    )
    totals = ("openstack_api_requests_total", "cloudprovider_openstack_reconcile_total")

    def values() -> list[tuple[float, float, float]]:
        return [
            (
                sample(total, **label),
                sample(f"{name}_errors_total", **label),
                sample(f"{name}_duration_seconds_count", **label),
            )
            for name, total, label in zip(names, totals, labels, strict=True)
        ]

    before = values()
    await created(harness.project.routes, node, CIDR)
    harness.service.script.add(Fault(operation="PUT /network/v2.0/routers*", code="forbidden"))
    with pytest.raises(cloud.PermissionDenied):
        await created(harness.project.routes, node, CIDR)

    grown = [
        tuple(after - start for after, start in zip(new, old, strict=True))
        for new, old in zip(values(), before, strict=True)
    ]
    assert grown == [(2, 1, 2), (2, 1, 2)]

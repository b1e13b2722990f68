"""The metrics of the vendor's dashboards."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.base import metrics
from ccm.cloud import lookup
from ccm.cloud.calls.client import CloudClient
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from providers.hcloud import client
from tests.hcloud.balancing import only, service
from tests.hcloud.harness import HcloudHarness

MANAGER = "cloud_controller_manager"


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.row("hcloud-call-01")
async def test_metrics_have_the_vendors_names(harness: HcloudHarness) -> None:
    nodes = await harness.nodes(1)
    answered = {
        "/load_balancers": ("post", "201"),
        "/load_balancers/": ("get", "200"),
        "/load_balancers/actions/add_target": ("post", "201"),
    }

    def requests() -> dict[str, float]:
        name = "hcloud_api_requests_total"
        return {
            endpoint: sample(name, method=method, api_endpoint=endpoint, code=code)
            for endpoint, (method, code) in answered.items()
        }

    operation = {"op": "hcloud/loadBalancers.EnsureLoadBalancer"}
    listed = {"subsystem": "instances_v2", "mode": "all", "result": "hit"}
    before = requests()
    operations = sample(f"{MANAGER}_operations_total", **operation)
    hits = sample(f"{MANAGER}_server_cache_requests_total", **listed)
    types = sample(f"{MANAGER}_load_balancer_type_cache_requests_total", result="hit")
    handle = CloudClient(harness.project)
    ensure = cloud.LoadBalancer.ensure_load_balancer
    for members, asked in (([], service()), (nodes, service(algorithm_type="least_connections"))):
        await handle.call(ensure, CLUSTER, asked, members)
    lookup._LOOKUPS.labels("listing").inc()
    api, path = harness.project.load_balancer._api, f"/load_balancers/{only(harness)['id']}"
    await api.get(path, "load_balancer", client.Named)

    assert requests() == {endpoint: number + 1 for endpoint, number in before.items()}
    assert sample(f"{MANAGER}_operations_total", **operation) == operations + 2
    assert sample(f"{MANAGER}_server_cache_requests_total", **listed) == hits + 1
    name = f"{MANAGER}_load_balancer_type_cache_requests_total"
    assert sample(name, result="hit") == types + 2
    text = metrics.exposition().decode()
    for kind in ("operations", "server_cache_requests", "load_balancer_type_cache_requests"):
        assert f"# TYPE {MANAGER}_{kind}_total counter\n" in text


async def test_a_request_without_a_response_is_measured_and_not_in_flight(
    harness: HcloudHarness,
) -> None:
    name = "hcloud_api_request_duration_seconds_count"
    before = sample(name, method="get")
    harness.service.script.add(Fault(kind="drop", operation="GET *"))

    with pytest.raises(cloud.Unavailable):
        await harness.balancer.list_load_balancers(CLUSTER)

    assert sample(name, method="get") > before
    assert sample("hcloud_api_in_flight_requests") == 0

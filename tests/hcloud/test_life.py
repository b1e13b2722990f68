"""Calls match the API document and respect the rate limit, and no text contains the token."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, deleted, ensured, updated
from ccm.testing.contract_routes import created
from ccm.testing.fake_api import Exchange, Fault
from ccm.testing.probes import CLUSTER
from providers.hcloud import client
from tests.hcloud import document
from tests.hcloud.balancing import EFFECTS, service
from tests.hcloud.harness import HcloudHarness
from tests.hcloud.test_balancer_parts import certificate


@pytest.mark.row("hcloud-call-05")
async def test_all_calls_match_the_api_document(
    harness: HcloudHarness, seen: list[Exchange]
) -> None:
    document.load()
    nodes = await harness.nodes(3)
    harness.service.cloud.settings.page_size = 2
    await harness.project.inventory.list_instances()
    for number, each in enumerate(nodes):
        await created(harness.project.routes, each, f"10.244.{number}.0/24")
    for route in await harness.project.routes.list_routes(CLUSTER):
        await harness.project.routes.delete_route(CLUSTER, route)
    balancer = harness.balancer
    for asked, _, _ in EFFECTS:
        await ensured(balancer, service(**asked), nodes[:2])
    await updated(balancer, service(), nodes[1:])
    await ensured(balancer, build_service(ports=[HTTPS]), nodes)
    one = str(certificate(harness, "one"))
    asked = {"http_certificates": one, "protocol": "https", "http_redirect_http": "true"}
    await ensured(balancer, service(**asked), nodes)
    managed = {
        "certificate_type": "managed",
        "protocol": "https",
        "http_managed_certificate_domains": "example.com",
    }
    await ensured(balancer, service("uid-2", **managed), nodes)
    await balancer.list_load_balancers(CLUSTER)
    await deleted(balancer, service("uid-2", **managed))
    await deleted(balancer, service())
    await ensured(balancer, service("uid-4", location="", network_zone="us-east"), [])
    harness.service.settings.action_s = 0.05
    await ensured(balancer, service("uid-3"), [])
    await ensured(balancer, service("uid-3", type="lb21"), nodes[:1])
    machines = machine_probes.machines_of(harness.project, harness)
    machines.spec = {**harness.machine_spec(), "placementGroupPrefix": "w", "labels": {"a": "b"}}
    who = machines.identity()
    await machines.create(who)
    await machines.status(who)
    await machines.list_vms()
    await machines.delete(who)

    assert document.violations(seen) == []
    wrote = {one.operation for one in seen if one.method != "GET"}
    assert len(wrote) > 20, f"little was tried: {sorted(wrote)}"


@pytest.mark.row("hcloud-call-04")
@pytest.mark.virtual_time
async def test_calls_are_paced_when_the_rate_limit_is_nearly_used_up() -> None:
    limiter, loop = client.HeaderQuota(), asyncio.get_running_loop()
    began = loop.time()
    for _ in range(100):
        await limiter.acquire()
    assert loop.time() == began  # no answer contained a limit yet

    limiter.hear(200, {"RateLimit-Limit": "3600", "RateLimit-Remaining": "361"})
    await limiter.acquire()
    assert loop.time() == began
    for _ in range(11):
        await limiter.acquire()
    assert loop.time() - began == pytest.approx(10.0)
    limiter.hear(200, {"RateLimit-Limit": "lots"})
    limiter.hear(429, {"RateLimit-Limit": "7200", "RateLimit-Remaining": "5000"})
    await limiter.acquire()
    await limiter.acquire()
    assert loop.time() - began == pytest.approx(11.5, abs=0.6)


async def test_the_token_is_in_no_error_log_or_repr(
    harness: HcloudHarness,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cloud quotes the credentials in all its error messages."""
    caplog.set_level("DEBUG")
    token = harness.service.token
    (one,) = await harness.nodes(1)
    told = [repr(harness.project), repr(harness.open)]
    message = f"Bearer {token} may not do that"
    instances, routes = harness.project.instances, harness.project.routes
    assert instances is not None
    assert routes is not None
    machines = machine_probes.machines_of(harness.project, harness)
    asks: list[Any] = [
        lambda: instances.instance_exists(one),
        lambda: created(routes, one, "10.244.0.0/24"),
        lambda: ensured(harness.balancer, service(), [one]),
        lambda: machines.create_once(machines.identity()),
    ]
    for code in ("forbidden", "invalid_input", "server_error", "no_such_word"):
        harness.service.script.add(Fault(code=code, message=message))
        for ask in asks:
            with pytest.raises(cloud.CloudError) as caught:
                await ask()
            told.append("".join(traceback.format_exception(caught.value)))
        harness.service.heal()

    printed = capsys.readouterr()
    everything = "\n".join([*told, printed.out, printed.err, caplog.text])
    assert "may not do that" in everything
    assert token not in everything

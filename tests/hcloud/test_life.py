"""Whole lives against the documents, with a limit of calls, and without a token in any text."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from typing import Any

import aiohttp
import pytest

from ccm import cloud
from ccm.testing import machine_probes
from ccm.testing.builders import node
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
async def test_a_whole_life_is_as_the_document_says(
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
    await machines.listed()
    await machines.delete(who)

    assert document.violations(seen) == []
    wrote = {one.operation for one in seen if one.method != "GET"}
    assert len(wrote) > 20, f"little was tried: {sorted(wrote)}"


@pytest.mark.row("hcloud-call-01")
async def test_calls_of_ninety_nodes(harness: HcloudHarness) -> None:
    """What the provider itself needs; how often it is asked is the daemon's."""
    made = [await harness.create() for _ in range(90)]
    calls = harness.service.calls
    listing = await harness.project.inventory.list_instances()
    by_name = {one.name: one.metadata for one in listing.instances}
    await harness.project.routes.list_routes(CLUSTER)
    for number, each in enumerate(made):
        route = cloud.Route(
            destination_cidr=f"10.244.{number}.0/24",
            target_node=each.name,
            target_addresses=by_name[each.name].addresses,
        )
        await harness.project.routes.create_route(CLUSTER, "", route)
    routes = await harness.project.routes.list_routes(CLUSTER)
    nodes = [node(each.name, provider_id=each.provider_id) for each in made]
    for number in range(5):
        await ensured(harness.balancer, service(f"uid-{number}", type="lb31"), nodes)
    nothing_left = calls.total()

    await harness.project.routes.list_routes(CLUSTER)
    await harness.project.inventory.list_instances()
    await harness.balancer.list_load_balancers(CLUSTER)

    assert len([one for one in routes if not one.blackhole]) == 90
    assert all(len(one["targets"]) == 90 for one in harness.service.cloud.load_balancers.values())
    # 3 for the servers, 90 for routes, 2 for these, and 2 for each load balancer.
    assert nothing_left <= 110, calls
    assert calls.total() - nothing_left == 4


@pytest.mark.row("hcloud-call-04")
@pytest.mark.virtual_time
async def test_few_calls_left_are_made_one_by_one() -> None:
    limiter, loop = client.HeaderQuota(), asyncio.get_running_loop()
    began = loop.time()
    for _ in range(100):
        await limiter.acquire()
    assert loop.time() == began  # nobody said anything about a limit

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


@pytest.mark.row("hcloud-call-04")
async def test_the_fake_limits_as_the_real_thing(harness: HcloudHarness) -> None:
    service = harness.service
    service.settings.requests = 7200  # two a second: the first comes too early on any machine
    service._left = 0.0

    with pytest.raises(cloud.RetryAfter):
        await harness.project.inventory.list_instances()
    refused = service.calls.total()
    service.settings.requests = 72000
    for _ in range(3):  # from here on it is known how many are left
        await harness.project.inventory.list_instances()
    assert service.calls.total() == refused + 4


async def test_nothing_tells_the_token(
    harness: HcloudHarness,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cloud that quotes the credentials in whatever it says."""
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


@pytest.mark.parametrize("asked", ["unknown", "method"])
async def test_what_the_fake_does_not_know(harness: HcloudHarness, asked: str) -> None:
    """It says so in the API's words."""
    url = harness.environ()["HCLOUD_ENDPOINT"]
    headers = {"Authorization": f"Bearer {harness.service.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        ask: Awaitable[Any] = (
            session.get(f"{url}/isos") if asked == "unknown" else session.put(f"{url}/servers")
        )
        response = await ask
        body = await response.json()

    assert body["error"]["code"] == ("not_found" if asked == "unknown" else "method_not_allowed")

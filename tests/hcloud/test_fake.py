"""The fake answers as the API does: its defaults, its limits, its errors, and its schemas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing.fake_api import Exchange
from providers.hcloud import client
from providers.hcloud.testing import balancers, server
from providers.hcloud.testing.state import ApiError, Call
from tests.hcloud import document
from tests.hcloud.balancing import CHECK, settled
from tests.hcloud.harness import HcloudHarness

LISTENER = {"protocol": "tcp", "listen_port": 80, "destination_port": 30080, "proxyprotocol": False}
SERVICE: dict[str, Any] = {**LISTENER, "health_check": CHECK}

KINDS: dict[str, dict[str, Any]] = {
    "ssh_keys": {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== x"},
    "placement_groups": {"type": "spread"},
    "volumes": {"size": 10, "location": "fsn1"},
    "firewalls": {},
    "certificates": {"type": "uploaded", "certificate": "x", "private_key": "y"},
}
"""Table -> body of a creation, without the name."""


class Api:
    """Requests of a test, with the bodies that it states."""

    def __init__(self, http: Any) -> None:
        self._http = http

    async def ask(self, operation: str, **body: Any) -> Any:
        method, path = operation.split()
        data = msgspec.json.encode(body) if method in ("POST", "PUT") else None
        answer = await self._http.request(method, path, data=data)
        return msgspec.json.decode(answer) if answer else None

    async def refusal(self, operation: str, **body: Any) -> str:
        """Return the code of the error."""
        with pytest.raises(cloud.CloudError) as caught:
            await self.ask(operation, **body)
        refusal: Any = caught.value.refusal
        return str(refusal.code)


@pytest_asyncio.fixture
async def api(harness: HcloudHarness) -> AsyncIterator[Api]:
    async with client.open_client(harness.url, harness.service.token) as opened:
        yield Api(opened._http)


@pytest.mark.row("hcloud-call-05")
async def test_every_operation_and_refusal_matches_the_api_document(
    harness: HcloudHarness, api: Api, seen: list[Exchange]
) -> None:
    document.load()
    created = await api.ask("POST /servers", name="s", server_type="cx23", image="ubuntu-24.04")
    number = created["server"]["id"]
    subnet = {"type": "cloud", "network_zone": "eu-central", "ip_range": "10.1.0.0/24"}
    order = {"name": "n", "ip_range": "10.1.0.0/16", "subnets": [subnet]}
    network = (await api.ask("POST /networks", **order))["network"]["id"]
    route = {"destination": "10.1.9.0/24", "gateway": "10.1.0.2"}
    body: dict[str, Any]
    for path in ("add_route", "delete_route"):
        await api.ask(f"POST /networks/{network}/actions/{path}", **route)
    for path, body in (("attach_to_network", {"network": network}), ("poweroff", {})):
        await api.ask(f"POST /servers/{number}/actions/{path}", **body)
    await api.ask(f"POST /servers/{number}/actions/poweron")
    await api.ask(f"PUT /servers/{number}", labels={"a": "b"})
    for table, body in KINDS.items():
        made = await api.ask(f"POST /{table}", name="x", **body)
        (thing,) = (one for one in made.values() if isinstance(one, dict) and "name" in one)
        await api.ask(f"GET /{table}")
        await api.ask(f"GET /{table}/{thing['id']}")
        await api.ask(f"PUT /{table}/{thing['id']}", name="y")
        if table != "certificates":
            await api.ask(f"DELETE /{table}/{thing['id']}")
    held = await api.ask(
        "POST /load_balancers",
        name="lb",
        load_balancer_type="lb11",
        location="fsn1",
        services=[SERVICE],
        targets=[{"type": "server", "server": {"id": number}}],
    )
    balancer, at = held["load_balancer"], f"/load_balancers/{held['load_balancer']['id']}"
    assert await api.refusal(f"POST {at}/actions/disable_public_interface") == (
        "load_balancer_not_attached_to_network"
    )
    https = {"protocol": "https", "listen_port": 443, "http": {"certificates": [thing["id"]]}}
    for action, body in (
        ("attach_to_network", {"network": network}),
        ("add_service", {**SERVICE, **https}),
        ("update_service", {"listen_port": 80, "health_check": {"interval": 30}}),
        ("change_algorithm", {"type": "least_connections"}),
        ("change_type", {"load_balancer_type": "lb21"}),
        ("change_dns_ptr", {"ip": balancer["public_net"]["ipv4"]["ip"], "dns_ptr": "x.example"}),
        ("change_protection", {"delete": True}),
    ):
        await api.ask(f"POST {at}/actions/{action}", **body)
    target = {"type": "server", "server": {"id": number}}
    for operation, body, code in (
        ("POST {}/actions/add_service", SERVICE, "source_port_already_used"),
        ("POST {}/actions/add_target", target, "target_already_defined"),
        ("POST {}/actions/disable_public_interface", {}, "targets_without_use_private_ip"),
        ("POST {}/actions/change_type", {"load_balancer_type": "lb99"}, "invalid_input"),
        ("POST {}/actions/detach_from_network", {"network": 1}, "not_found"),
        ("DELETE {}", {}, "protected"),
        (f"DELETE /certificates/{thing['id']}", {}, "resource_in_use"),
        ("POST /networks", order, "uniqueness_error"),
        ("GET /servers/1", {}, "not_found"),
    ):
        assert await api.refusal(operation.format(at), **body) == code
    certificate = (await api.ask(f"GET /certificates/{thing['id']}"))["certificate"]
    assert certificate["used_by"] == [{"id": balancer["id"], "type": "load_balancer"}]
    for action, body in (
        ("remove_target", target),
        ("add_target", {**target, "use_private_ip": True}),
        ("disable_public_interface", {}),
        ("enable_public_interface", {}),
        ("detach_from_network", {"network": network}),
        ("delete_service", {"listen_port": 80}),
        ("change_protection", {"delete": False}),
    ):
        await api.ask(f"POST {at}/actions/{action}", **body)
    await api.ask(f"PUT {at}", name="renamed", labels={"a": "b"})
    shown = (await api.ask(f"GET {at}"))["load_balancer"]
    actions = f"id={held['action']['id']}"
    for path in (
        *("load_balancers", "networks", f"networks/{network}", "servers", f"servers/{number}"),
        *("locations", "server_types", "load_balancer_types", "images"),
        *(f"actions?{actions}", f"actions/{held['action']['id']}"),
    ):
        await api.ask(f"GET /{path}")
    await api.ask(f"DELETE {at}")
    await api.ask(f"DELETE /certificates/{thing['id']}")
    await api.ask(f"DELETE /servers/{number}")

    assert (shown["name"], shown["public_net"]["enabled"]) == ("renamed", True)
    operations = {f"{method} {path}" for method, path, _ in server._rows()}
    assert {one.operation for one in seen if one.status < 400} == operations
    assert document.violations(seen) == []


HTTP = {"protocol": "http", "port": 80}


@pytest.mark.parametrize(
    ("listener", "check", "field"),
    [
        ({"listen_port": 0}, {}, "listen_port"),
        ({"destination_port": 65536}, {}, "destination_port"),
        ({}, {"port": 0}, "port"),
        ({}, {"interval": 2}, "interval"),
        ({}, {"interval": 61}, "interval"),
        ({}, {"timeout": 0}, "timeout"),
        ({}, {"retries": 6}, "retries"),
        ({}, {"protocol": "https"}, "protocol"),
        ({}, {**HTTP, "http": {"status_codes": ["2xx"]}}, "status_codes"),
        ({}, {**HTTP, "http": {"path": ""}}, "path"),
        ({"protocol": "http", "http": {"timeout_idle": 29}}, {}, "timeout_idle"),
        ({"protocol": "http", "http": {"cookie_lifetime": -1}}, {}, "cookie_lifetime"),
        ({"protocol": "https"}, {}, "certificates"),
    ],
    ids=str,
)
def test_the_fake_refuses_values_out_of_range(
    listener: dict[str, Any], check: dict[str, Any], field: str
) -> None:
    harness = HcloudHarness(server.Service(), "")
    held = settled(harness)
    wrong = {**LISTENER, **listener, "health_check": {**CHECK, **check}}

    with pytest.raises(ApiError) as caught:
        balancers.add_service(harness.service.cloud, held, wrong)

    assert [one["name"] for one in caught.value.body["error"]["details"]["fields"]] == [field]
    assert held["services"] == []


def test_the_fake_fills_in_the_defaults_of_a_health_check() -> None:
    harness = HcloudHarness(server.Service(), "")
    held = settled(harness)
    for port in (80, 81):
        kind = "tcp" if port == 80 else "http"
        check = {"protocol": kind, "port": 30080}
        order = {**LISTENER, "listen_port": port, "health_check": check}
        balancers.add_service(harness.service.cloud, held, order)

    checks = [one["health_check"] for one in held["services"]]
    http = {"domain": None, "path": "/", "tls": False, "status_codes": ["2??", "3??"]}
    assert checks == [CHECK, {**CHECK, "protocol": "http", "http": http}]


def test_a_network_with_private_targets_can_be_detached() -> None:
    """The API has no rule against it; it has one about the public interface."""
    harness = HcloudHarness(server.Service(), "")
    held = settled(harness, network=harness.network["id"])
    held["targets"] = [{"type": "server", "server": {"id": 1}, "use_private_ip": True}]
    detach = balancers.action_handler("detach_from_network", balancers.detach)
    order = {"network": harness.network["id"]}

    detach(harness.service.cloud, Call(id=held["id"], body=order))

    assert held["private_net"] == []

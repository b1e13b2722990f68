"""Statuses of every shape that providers give, as the Go reference wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ccm.cloud import Ingress, PortStatus, Status, default_load_balancer_name
from ccm.model import Service, names
from tests import servers
from tests.conformance.service.environment import ServiceEnvironment
from tests.support.services import FakeBalancers, FakeDigests
from tests.waiting import eventually

F = names.FINALIZER_LOAD_BALANCER
PORT = PortStatus(port=80, protocol="TCP")
BROKEN = PortStatus(port=443, protocol="TCP", error="example.com/NoCertificate")

STATUSES: Mapping[str, tuple[Ingress, ...]] = {
    "ip": (Ingress(ip="192.0.2.1"),),
    "virtual": (Ingress(ip="192.0.2.2", ip_mode="VIP"),),
    "proxy": (Ingress(ip="192.0.2.3", ip_mode="Proxy"),),
    "hostname": (Ingress(hostname="lb.example.com"),),
    "both": (Ingress(ip="192.0.2.4", hostname="lb4.example.com"),),
    "ports": (Ingress(ip="192.0.2.5", ports=(PORT,)),),
    "broken": (Ingress(hostname="lb5.example.com", ports=(PORT, BROKEN)),),
    "several": (Ingress(ip="192.0.2.7"), Ingress(ip="2001:db8::7"), Ingress(ip="192.0.2.6")),
    "empty": (),
}


class Shaped(FakeBalancers):
    """Load balancers with these statuses."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: dict[str, Status] = {}

    def _status(self, name: str) -> Status:
        return self.statuses[name]

    def hold(self, service: Service, status: Status) -> None:
        """The load balancer of a Service, as it asks for it, without members."""
        name = default_load_balancer_name(service)
        self.held[name] = ([msgspec.to_builtins(port) for port in service.ports], ())
        self.statuses[name] = status


class Listed(Shaped, FakeDigests):
    """The same with a listing."""


@pytest_asyncio.fixture
async def services(api_server: servers.ApiServer) -> AsyncIterator[ServiceEnvironment]:
    """An empty API server behind a recording proxy."""
    async with ServiceEnvironment.open(api_server) as env:
        yield env


async def settle(env: ServiceEnvironment, cloud: Shaped) -> dict[str, Any]:
    """The reference settles a Service of every status; the Services then."""
    env.balancers = cloud
    for name, status in STATUSES.items():
        service = await env.create(name, metadata={"finalizers": [F]})
        cloud.hold(msgspec.convert(service, Service), Status(ingress=status))
        patch = {"status": {"loadBalancer": {"ingress": [wire(entry) for entry in status]}}}
        await env.change(patch, name, subresource="status")
    return await stored(env)


def wire(entry: Ingress) -> dict[str, Any]:
    """An address as the reference writes it: empty fields are omitted."""
    ports = [
        {key: value for key, value in dataclasses.asdict(port).items() if value}
        for port in entry.ports or ()
    ]
    fields = {"ip": entry.ip, "hostname": entry.hostname, "ipMode": entry.ip_mode, "ports": ports}
    return {key: value for key, value in fields.items() if value}


async def stored(env: ServiceEnvironment) -> dict[str, Any]:
    return {name: await env.stored(name) for name in STATUSES}


@pytest.mark.row("switch-over-06")
@pytest.mark.both_servers
async def test_without_a_listing_services_are_ensured_without_a_status_write(
    services: ServiceEnvironment,
) -> None:
    before = await settle(services, Shaped())

    async with services.running(workers=4):
        await services.calls(*["ensure"] * len(STATUSES))

        said = [await services.reasons(name) for name in STATUSES]

    assert services.writes() == []
    assert await stored(services) == before
    assert all(("Normal", "EnsuredLoadBalancer") in each for each in said)
    # There are no nodes here, and the reference warns of that too.
    warnings = {reason for each in said for kind, reason in each if kind == "Warning"}
    assert warnings == {"UnAvailableLoadBalancer"}


@pytest.mark.row("switch-over-06")
async def test_with_a_listing_only_services_without_address_are_ensured(
    services: ServiceEnvironment,
) -> None:
    """Such a Service is ensured once, as its status may never have been written.

    A listed status that differs from the stored one is written.
    """
    cloud = Listed()
    before = await settle(services, cloud)
    async with services.running(workers=4):
        await services.calls("list", "ensure")
        said = {name: await services.reasons(name) for name in STATUSES}
        assert [name for name, reasons in said.items() if reasons] == ["empty"]
    assert services.writes() == []
    assert await stored(services) == before

    proxy = Status(ingress=(Ingress(ip="192.0.2.1", ip_mode="Proxy"),))
    cloud.hold(msgspec.convert(await services.stored("ip"), Service), proxy)
    async with services.running(workers=4):
        await eventually(lambda: len(services.writes()) == 1)
        await services.calls("list", "ensure", "list", "ensure")

    ((path, body),) = services.writes()
    assert path == "PATCH /ip/status"
    assert body["status"] == {"loadBalancer": {"ingress": [wire(proxy.ingress[0])]}}

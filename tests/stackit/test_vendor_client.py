"""The vendor's own clients work with the fake as with the real thing, and the documents agree.

Every call that is made here passes. What they refuse are answers with `networking` in them, which
the API documents and this fake does not give.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ccm.testing.fake_api import Exchange
from providers.stackit.testing import server, servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT, REGION
from tests.stackit import document

# Their models tell of UUIDs that are text; importing them takes a second, so it is done late.
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore::UserWarning")]

PLACE = {"project_id": PROJECT, "region": REGION}


@pytest_asyncio.fixture
async def auth(service: server.Service, endpoint: str) -> AsyncIterator[Any]:
    """The vendor's key flow, against the fake's token API."""
    from stackit.core.auth_methods.key_auth import KeyAuth, ServiceAccountKey

    key = ServiceAccountKey.model_validate_json(service.account.key)
    found = await asyncio.to_thread(lambda: KeyAuth(key, f"{endpoint}/token"))
    yield found
    await asyncio.to_thread(found.close)


def opened(package: str, url: str, auth: Any) -> tuple[Any, Any]:
    """A package of the vendor's, and a client of it."""
    from stackit.core.configuration import Configuration

    found = importlib.import_module(package)
    return found, found.DefaultApi(Configuration(custom_endpoint=url, custom_auth=auth))


async def test_servers(auth: Any, endpoint: str, seen: list[Exchange]) -> None:
    def life() -> None:
        iaas, client = opened("stackit.iaas", f"{endpoint}{server.IAAS}", auth)
        networking = iaas.CreateServerNetworking(network_id=NETWORK)
        order = iaas.CreateServerPayload(
            name="node-1",
            machine_type="c2i.2",
            image_id=IMAGE,
            labels={"env": "test"},
            networking=iaas.CreateServerPayloadAllOfNetworking(networking),
        )
        made = client.create_server(**PLACE, create_server_payload=order)
        one = {**PLACE, "server_id": made.id}
        assert client.get_server(**one, details=True).nics[0].ipv4.startswith("10.0.")
        assert client.get_server(**one).status == "ACTIVE"
        assert [each.name for each in client.list_servers(**PLACE).items] == ["node-1"]
        for selector, count in (("env=test", 1), ("env=prod", 0)):
            assert len(client.list_servers(**PLACE, label_selector=selector).items) == count
        (nic,) = client.list_server_nics(**one).items
        change = iaas.UpdateNicPayload(
            allowed_addresses=[iaas.AllowedAddressesInner("10.96.0.0/12")]
        )
        client.update_nic(**PLACE, network_id=NETWORK, nic_id=nic.id, update_nic_payload=change)
        client.stop_server(**one)
        assert client.get_server(**one).status == "INACTIVE"
        client.start_server(**one)
        assert [each.id for each in client.list_networks(**PLACE).items] == [NETWORK]
        assert client.get_network(**PLACE, network_id=NETWORK).name == "k8s"
        assert client.get_image(**PLACE, image_id=IMAGE).id == IMAGE
        assert client.list_quotas(**PLACE).quotas.nics.usage == 1
        spare = iaas.CreateNicPayload(name="spare")
        client.create_nic(**PLACE, network_id=NETWORK, create_nic_payload=spare)
        client.delete_server(**one)
        with pytest.raises(iaas.exceptions.NotFoundException) as caught:
            client.get_server(**one)
        assert json.loads(caught.value.body)["code"] == 404

    await asyncio.to_thread(life)

    assert document.violations(seen) == []


async def test_what_the_client_refuses(
    auth: Any, endpoint: str, service: server.Service, seen: list[Exchange]
) -> None:
    """Though the document allows it: nothing here can be built on that client."""
    order = {"name": "node-1", "machineType": "c2i.2", "networking": {"networkId": NETWORK}}
    made = servers.make(service.cloud, order)
    made.update(status="ACTIVE", networking={"networkId": NETWORK})
    one = {**PLACE, "server_id": made["id"]}

    def life() -> None:
        _, client = opened("stackit.iaas", f"{endpoint}{server.IAAS}", auth)
        with pytest.raises(ValueError, match="ultiple matches"):
            client.get_server(**one)
        with pytest.raises(ValueError, match="ultiple matches"):
            client.list_servers(**PLACE)
        del made["networking"]
        assert client.get_server(**one).status == "ACTIVE"

    await asyncio.to_thread(life)

    assert document.violations(seen) == []


async def test_load_balancers(auth: Any, endpoint: str, seen: list[Exchange]) -> None:
    def life() -> None:
        url = f"{endpoint}{server.BALANCERS}"
        loadbalancer, client = opened("stackit.loadbalancer", url, auth)
        parts: dict[str, Any] = {
            "name": "lb-1",
            "networks": [
                loadbalancer.Network(network_id=NETWORK, role="ROLE_LISTENERS_AND_TARGETS")
            ],
            "listeners": [
                loadbalancer.Listener(
                    display_name="http",
                    port=80,
                    protocol="PROTOCOL_TCP",
                    target_pool="http",
                    tcp=loadbalancer.OptionsTCP(idle_timeout="60s"),
                )
            ],
            "target_pools": [
                loadbalancer.TargetPool(
                    name="http",
                    target_port=30080,
                    targets=[loadbalancer.Target(display_name="node-1", ip="10.0.0.4")],
                )
            ],
            "options": loadbalancer.LoadBalancerOptions(ephemeral_address=True),
        }
        order = loadbalancer.CreateLoadBalancerPayload(**parts, plan_id="p10")
        client.create_load_balancer(**PLACE, create_load_balancer_payload=order)
        found = client.get_load_balancer(**PLACE, name="lb-1")
        assert (found.status, bool(found.external_address)) == ("STATUS_READY", True)
        assert len(client.list_load_balancers(**PLACE).load_balancers) == 1
        other = loadbalancer.UpdateLoadBalancerPayload(
            **parts, plan_id="p50", version=found.version
        )
        change = {**PLACE, "name": "lb-1", "update_load_balancer_payload": other}
        assert client.update_load_balancer(**change).plan_id == "p50"
        with pytest.raises(loadbalancer.exceptions.ConflictException):
            client.update_load_balancer(**change)
        pool = loadbalancer.UpdateTargetPoolPayload(name="http", target_port=30080, targets=[])
        client.update_target_pool(
            **PLACE, name="lb-1", target_pool_name="http", update_target_pool_payload=pool
        )
        said = {"display_name": "lb-1", "username": "me", "password": "hush"}
        made = client.create_credentials(
            **PLACE, create_credentials_payload=loadbalancer.CreateCredentialsPayload(**said)
        )
        ref = {**PLACE, "credentials_ref": made.credential.credentials_ref}
        assert len(client.list_credentials(**PLACE).credentials) == 1
        client.update_credentials(
            **ref, update_credentials_payload=loadbalancer.UpdateCredentialsPayload(**said)
        )
        client.delete_credentials(**ref)
        client.delete_load_balancer(**PLACE, name="lb-1")
        with pytest.raises(loadbalancer.exceptions.NotFoundException):
            client.get_load_balancer(**PLACE, name="lb-1")

    await asyncio.to_thread(life)

    assert document.violations(seen) == []

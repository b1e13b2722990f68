"""The vendor's own client works with the fake as with the real thing, and the document agrees."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hcloud import APIException, Client
from hcloud.images import Image
from hcloud.load_balancer_types import LoadBalancerType
from hcloud.load_balancers import (
    LoadBalancerAlgorithm,
    LoadBalancerHealthCheck,
    LoadBalancerService,
    LoadBalancerTarget,
    LoadBalancerTargetIP,
)
from hcloud.locations import Location
from hcloud.networks import NetworkRoute, NetworkSubnet
from hcloud.server_types import ServerType
from hcloud.ssh_keys import SSHKey

from ccm.testing.fake_api import Exchange
from providers.hcloud.testing import server
from tests.hcloud import document

KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
LABELS = {"hcloud-ccm/service-uid": "uid-1", "env": "test"}
CHECK = LoadBalancerHealthCheck(protocol="tcp", port=30080, interval=15, timeout=10, retries=3)
SERVICE = LoadBalancerService(
    protocol="tcp", listen_port=80, destination_port=30080, proxyprotocol=False, health_check=CHECK
)


async def test_the_vendor_client_manages_servers_and_related_resources(
    service: server.Service, endpoint: str, seen: list[Exchange]
) -> None:
    """Create a server with all related resources, switch it off and on, list and delete it."""

    def life() -> None:
        client: Any = Client(token=service.token, api_endpoint=endpoint, poll_interval=0.01)
        place = Location(name="fsn1")
        key = client.ssh_keys.create("key", KEY, labels=LABELS)
        network = client.networks.create(
            "net",
            "10.0.0.0/16",
            subnets=[
                NetworkSubnet(type="cloud", network_zone="eu-central", ip_range="10.0.0.0/24")
            ],
        )
        group = client.placement_groups.create("group", "spread", labels=LABELS).placement_group
        firewall = client.firewalls.create("wall").firewall
        volume = client.volumes.create(10, "volume", labels=LABELS, location=place).volume
        made = client.servers.create(
            "node-1",
            ServerType(name="cx23"),
            Image(name="ubuntu-24.04"),
            ssh_keys=[SSHKey(name=key.name)],
            volumes=[volume],
            firewalls=[firewall],
            networks=[network],
            user_data="#!/bin/sh",
            labels=LABELS,
            location=place,
            placement_group=group,
        )
        made.action.wait_until_finished()
        found = client.servers.get_by_id(made.server.id)
        assert (found.status, found.server_type.name, found.labels) == ("running", "cx23", LABELS)
        assert found.private_net[0].ip == "10.0.0.2"
        assert [one.id for one in client.servers.get_all(label_selector="env=test")] == [found.id]
        assert client.servers.get_by_name("nobody") is None
        found.power_off().wait_until_finished()
        assert client.servers.get_by_id(found.id).status == "off"
        found.power_on().wait_until_finished()
        assert client.locations.get_all()[0].name == "fsn1"
        assert [one.name for one in client.server_types.get_all()] == ["cx23", "cx33", "cax11"]
        assert client.images.get_by_name_and_architecture("rocky-9", "x86") is not None
        route = NetworkRoute(destination="10.244.1.0/24", gateway="10.0.0.2")
        network.add_route(route).wait_until_finished()
        assert client.networks.get_by_id(network.id).routes[0].gateway == "10.0.0.2"
        network.delete_route(route).wait_until_finished()
        found.delete().wait_until_finished()
        client.volumes.get_by_id(volume.id).delete()
        client.ssh_keys.get_by_name("key").delete()
        client.placement_groups.get_by_id(group.id).delete()
        with pytest.raises(APIException) as caught:
            client.servers.get_by_id(found.id)
        assert caught.value.code == "not_found"

    await asyncio.to_thread(life)

    assert document.violations(seen) == []


async def test_the_vendor_client_manages_load_balancers(
    service: server.Service, endpoint: str, seen: list[Exchange]
) -> None:
    """Change everything about a load balancer that can be changed."""

    def life() -> None:
        client: Any = Client(token=service.token, api_endpoint=endpoint, poll_interval=0.01)
        network = client.networks.create(
            "net",
            "10.0.0.0/16",
            subnets=[
                NetworkSubnet(type="cloud", network_zone="eu-central", ip_range="10.0.0.0/24")
            ],
        )
        made = client.servers.create(
            "node-1", ServerType(name="cx23"), Image(name="ubuntu-24.04"), networks=[network]
        )
        target = LoadBalancerTarget(type="server", server=made.server, use_private_ip=True)
        order = client.load_balancers.create(
            "lb",
            LoadBalancerType(name="lb11"),
            algorithm=LoadBalancerAlgorithm(type="round_robin"),
            location=Location(name="fsn1"),
            labels=LABELS,
            services=[SERVICE],
            targets=[target],
            network=network,
        )
        order.action.wait_until_finished()
        (found,) = client.load_balancers.get_all(label_selector="hcloud-ccm/service-uid=uid-1")
        assert found.targets[0].server.id == made.server.id
        assert found.services[0].health_check.port == 30080
        found.remove_target(target).wait_until_finished()
        found.add_target(
            LoadBalancerTarget(type="ip", ip=LoadBalancerTargetIP(ip="192.0.2.1"))
        ).wait_until_finished()
        SERVICE.destination_port = 30081
        found.update_service(SERVICE).wait_until_finished()
        found.change_algorithm(LoadBalancerAlgorithm(type="least_connections"))
        found.change_type(LoadBalancerType(name="lb21")).wait_until_finished()
        found.change_dns_ptr(found.public_net.ipv4.ip, "web.example.com").wait_until_finished()
        found.disable_public_interface().wait_until_finished()
        found.enable_public_interface().wait_until_finished()
        found.detach_from_network(network).wait_until_finished()
        found.attach_to_network(network, ip="10.0.0.77").wait_until_finished()
        certificate = client.certificates.create_managed("cert", ["example.com"]).certificate
        issued = client.certificates.get_by_id(certificate.id)
        assert issued.status.issuance == "completed"
        changed = found.update(name="other", labels=LABELS)
        assert (changed.name, changed.load_balancer_type.name) == ("other", "lb21")
        assert changed.private_net[0].ip == "10.0.0.77"
        assert [one.name for one in client.load_balancer_types.get_all()][-1] == "lb31"
        found.delete_service(SERVICE).wait_until_finished()
        found.change_protection(delete=True).wait_until_finished()
        with pytest.raises(APIException) as caught:
            found.delete()
        assert caught.value.code == "protected"
        found.change_protection(delete=False).wait_until_finished()
        service.settings.deletion_actions = True
        found.delete().action.wait_until_finished()
        assert client.load_balancers.get_all() == []

    await asyncio.to_thread(life)

    newer = "DELETE /load_balancers/{id}"  # the document's answer is older than the client
    assert document.violations([one for one in seen if one.operation != newer]) == []

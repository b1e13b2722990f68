"""Services in the shapes that the vendor's manager leaves behind are taken over without a write."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from providers.hcloud.testing import extras
from providers.hcloud.testing.state import Call
from tests.hcloud.balancing import CHECK, UID, settled
from tests.hcloud.inprocess import PORTS, HcloudWorld
from tests.support.services import F

pytestmark = pytest.mark.virtual_time

TCP: dict[str, Any] = {
    "protocol": "tcp",
    "listen_port": 80,
    "destination_port": 30080,
    "proxyprotocol": False,
    "health_check": {**CHECK, "port": 30080},
}
HTTP = {**TCP, "protocol": "http"}
UDP = {"port": 80, "protocol": "UDP", "targetPort": 80, "nodePort": 30081}
PRIVATE = {"use_private_ip": "true", "disable_public_network": "true"}
LOAD_BALANCERS_ONLY = {"ROBOT_ENABLED": "true", "HCLOUD_NETWORK_ROUTES_ENABLED": "false"}
ROBOT = {**LOAD_BALANCERS_ONLY, "ROBOT_USER": "me", "ROBOT_PASSWORD": "s3cret"}
OWN_CHECK = {**CHECK, "port": 30080, "interval": 7, "retries": 5}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "mixed": {"ports": [*PORTS, UDP]},
    "renamed": {"order": {"name": "in-the-console"}},
    "named": {"annotations": {"name": "mine"}, "order": {"name": "mine"}},
    "http": {
        "annotations": {"protocol": "http", "health_check_http_path": "/healthz"},
        "order": {"services": [HTTP]},
    },
    "large": {"order": {"load_balancer_type": "lb31"}},
    "least": {"order": {"algorithm": {"type": "least_connections"}}},
    "private": {"annotations": PRIVATE, "order": {"public_interface": False}, "private": True},
    "checked": {"order": {"services": [{**TCP, "health_check": OWN_CHECK}]}},
    "named back": {
        "annotations": {"ipv4_rdns": "a.example.com"},
        "set": {"public_net.ipv4.dns_ptr": "a.example.com"},
    },
    "placed": {"annotations": {"private_ipv4": "10.0.0.5"}},
    "certified": {
        "annotations": {"protocol": "https", "http_certificates": "{certificate}"},
        "order": {"services": [{**HTTP, "protocol": "https"}]},
    },
    "protected": {"set": {"protection.delete": True}},
    "full": {"nodes": 29},
    "robot": {"robots": 2, "environ": ROBOT},
    "robot alone": {"nodes": 0, "robots": 2, "environ": ROBOT},
    "robot private": {
        "annotations": PRIVATE,
        "order": {"public_interface": False},
        "private": True,
        "robots": 2,
        "environ": ROBOT,
    },
    "robot full": {"nodes": 20, "robots": 9, "environ": ROBOT},
    "robot without credentials": {"robots": 2, "environ": LOAD_BALANCERS_ONLY, "internal": True},
    "robot switched off": {"robots": 2},
}


def settle(world: HcloudWorld, shape: Mapping[str, Any]) -> None:
    """Create the Service, and its load balancer as the vendor's manager makes it."""
    fake = world.fake.service.cloud
    certificate = ""
    order = {"services": [TCP], "name": "auid", **copy.deepcopy(shape.get("order", {}))}
    if order["services"][0]["protocol"] == "https":
        body = {"name": "x", "type": "uploaded", "certificate": "x", "private_key": "y"}
        _, made = extras.create_certificate(fake, Call(body=body))
        assert made is not None
        certificate = str(made["certificate"]["id"])
        order["services"][0]["http"] = {"certificates": [int(certificate)]}
    held = settled(world.fake, labels={UID: "uid"}, network=world.fake.network["id"], **order)
    held["targets"] = [
        {
            "type": "server",
            "server": {"id": number},
            "use_private_ip": shape.get("private", False),
            "health_status": [],
        }
        for number in sorted(fake.servers)
    ]
    kind = "InternalIP" if shape.get("private") or shape.get("internal") else "ExternalIP"
    held["targets"] += [
        {"type": "ip", "ip": {"ip": entry.address}, "health_status": []}
        for node in world.nodes.store.list()
        for entry in node.addresses
        if entry.type == kind
    ]
    # Not the first: the vendor's manager adds them in the order of the nodes.
    held["targets"] = held["targets"][-held["load_balancer_type"]["max_targets"] :]
    for path, value in shape.get("set", {}).items():
        *parts, last = path.split(".")
        thing = held
        for part in parts:
            thing = thing[part]
        thing[last] = value
    public = held["public_net"] if held["public_net"]["enabled"] else {}
    addresses = [public[family]["ip"] for family in ("ipv4", "ipv6") if family in public]
    addresses += [net["ip"] for net in held["private_net"]]
    world.service(uid="uid", ports=shape.get("ports", PORTS), finalizers=[F])
    given = shape.get("annotations", {})
    world.annotate(**{key: text.format(certificate=certificate) for key, text in given.items()})
    web = copy.deepcopy(world.objects["default/web"])
    ingress = [{"ip": address, "ipMode": "VIP"} for address in addresses]
    web["status"] = {"loadBalancer": {"ingress": ingress}}
    world.put(web)


@pytest.mark.row("hcloud-balancer-18")
@pytest.mark.parametrize("name", SHAPES)
async def test_a_shape_of_the_vendors_manager_is_taken_over_without_a_write(name: str) -> None:
    """Nothing is written to the cloud or the cluster, and no event, until something changes."""
    shape = SHAPES[name]
    world = HcloudWorld(**shape.get("environ", {}))
    nodes = [await world.join() for _ in range(shape.get("nodes", 3))]
    nodes += [world.join_robot() for _ in range(shape.get("robots", 0))]
    settle(world, shape)
    before = copy.deepcopy(world.fake.service.cloud.load_balancers)

    async with world.running(drift_period_s=100):
        await world.pass_time(500)
        assert world.fake.service.cloud.load_balancers == before
        assert set(world.http.calls) == {"GET"}
        assert (world.patches, world.events) == ([], [])
        assert sum(world.robot_http.calls.values()) <= 2

        gone = next(one for one in nodes if one in world.members)
        world.remove_node(gone)
        await world.pass_time(90)

    assert gone not in world.members
    assert len(world.members) == min(len(nodes) - 1, 25)

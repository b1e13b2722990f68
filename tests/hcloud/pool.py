"""A daemon with all that this cloud offers, and a class of machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import server
from tests.scenario.machines import CONTROLLERS, Pool

KINDS = (NODE.name, NODE_LIFECYCLE.name, ROUTE.name, SERVICE.name)

FLAGS: Mapping[str, str] = {
    "cloud-provider": "hcloud",
    "controllers": ",".join((*KINDS, *CONTROLLERS)),
    "cluster-cidr": "100.64.0.0/10",
    "cluster-name": "ninety",
    "kube-api-qps": "-1",
    # As they are by default, for the calls that they cost.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "30s",
    "concurrent-service-syncs": "5",
    "concurrent-node-syncs": "10",
}


def pool(fake: server.Service, *, annotations: Mapping[str, str] = {}, **spec: Any) -> Pool:
    """Machines in the network of the fake, which is named by its ID: no call to look for it."""
    world = fake.cloud
    (network,) = world.networks.values()

    def whole(nodes: int, services: int) -> bool:
        members = [len(one["targets"]) for one in world.load_balancers.values()]
        return members == [nodes] * services and len(network["routes"]) == nodes

    def empty() -> bool:
        beside = (world.ssh_keys, world.volumes, world.placement_groups, world.certificates)
        return not (world.servers or world.load_balancers or network["routes"] or any(beside))

    return Pool(
        provider="hcloud",
        spec={"serverType": "cx23", "location": "fsn1", "networks": [network["id"]], **spec},
        secret={"token": fake.token.encode(), "userData": b"#!/bin/sh"},
        whole=whole,
        empty=empty,
        ranges="100.64.{}.0/24",
        annotations={ann.TYPE.name: "lb31", **annotations},
    )

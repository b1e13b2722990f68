"""What the vendor's managers settled goes on as it is: literal objects, without a mark of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import node
from ccm.testing.contract_balancers import ensured, updated
from ccm.testing.probes import CLUSTER
from providers.stackit import marks
from providers.stackit.testing import balancers as fake_balancers
from providers.stackit.testing import servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT
from tests import servers as api_servers
from tests.scenario.machines import installed
from tests.stackit.balancing import METRICS, NAME, service
from tests.stackit.harness import StackitHarness
from tests.stackit.test_machines import of
from tests.support.vendor import balancer_of
from tests.vendors.clouds import Stackit

BALANCER: dict[str, Any] = {
    "name": NAME,
    "region": "eu01",
    "status": "STATUS_READY",
    "errors": [],
    "version": "lb-77",
    "labels": {"team": "a"},
    "planId": "p10",
    "externalAddress": "198.51.100.9",
    "privateAddress": "10.0.0.99",
    "disableTargetSecurityGroupAssignment": True,
    "loadBalancerSecurityGroup": {"id": IMAGE, "name": "lb-sg"},
    "networks": [{"networkId": NETWORK, "role": "ROLE_LISTENERS_AND_TARGETS"}],
    "listeners": [
        {
            "name": f"{NAME}-80",
            "displayName": "http",
            "port": 80,
            "protocol": "PROTOCOL_TCP",
            "targetPool": "http",
            "tcp": {"idleTimeout": "3600s"},
        }
    ],
    "targetPools": [
        {
            "name": "http",
            "targetPort": 30080,
            "targets": [
                # In the order in which the vendor's manager came by the nodes.
                {"displayName": "node-b", "ip": "10.0.0.12"},
                {"displayName": "node-a-example-com-fe5b1b4", "ip": "10.0.0.11"},
            ],
        }
    ],
    "options": {
        "accessControl": {"allowedSourceRanges": []},
        "ephemeralAddress": True,
        "privateNetworkOnly": False,
        "observability": {},
    },
}

SERVER: dict[str, Any] = {
    "name": "machine-1",
    "machineType": "c2i.2",
    "imageId": IMAGE,
    "networking": {"networkId": NETWORK},
    "labels": {
        "kubernetes.io/machine": "machine-1",
        "kubernetes.io/machineclass": "contract-pool",
        "shoot": "one",
    },
}


@pytest.mark.row("stackit-balancer-19")
async def test_a_load_balancer_of_the_vendor_is_taken_over_without_a_write(
    harness: StackitHarness,
) -> None:
    harness.service.cloud.balancers[NAME] = msgspec.to_builtins(BALANCER)
    nodes = [
        node(name, addresses=[cloud.address("InternalIP", ip)])
        for name, ip in (("node-a.example.com", "10.0.0.11"), ("node-b", "10.0.0.12"))
    ]
    balancer = harness.balancer

    (listed,) = await balancer.list_load_balancers(CLUSTER)
    status = await ensured(balancer, service(), nodes)
    await updated(balancer, service(), nodes)

    assert listed.digest == balancer.load_balancer_digest(CLUSTER, service(), nodes)
    assert [one.ip for one in status.ingress] == ["198.51.100.9"]
    assert harness.service.writes == 0


@pytest.mark.row("stackit-balancer-19", "stackit-balancer-17")
async def test_metrics_credentials_of_the_vendor_are_written_once(harness: StackitHarness) -> None:
    """The password cannot be read back, so the first ensure writes it."""
    world = harness.service.cloud
    said = {"displayName": NAME, "username": "me", "password": "hush-hush-hush"}
    ref = fake_balancers.create_credentials(world, said)["credentialsRef"]
    held = world.balancers[NAME] = msgspec.to_builtins(BALANCER)
    pushed = {"credentialsRef": ref, "pushUrl": METRICS["STACKIT_REMOTEWRITE_ENDPOINT"]}
    held["options"]["observability"] = {"metrics": pushed}
    held["targetPools"][0]["targets"] = []
    harness.variables = METRICS

    for written in (2, 2):
        async with harness.open() as project:
            await ensured(balancer_of(project), service(), [])
        assert harness.service.writes == written
    assert (list(world.credentials), world.passwords[ref]) == ([ref], "hush-hush-hush")


@pytest.mark.row("stackit-machine-12", "stackit-node-02")
async def test_a_machine_of_the_vendor_is_taken_over_without_a_write(
    harness: StackitHarness,
) -> None:
    """The Machine is known by its provider ID; its node has the shorter form."""
    held = servers.new_server(harness.service.cloud, SERVER)
    held.update(status="ACTIVE", launchedAt=held["createdAt"])
    for nic in harness.service.cloud.nics.values():
        nic["allowedAddresses"] = ["10.96.0.0/12"]
    group = of(harness, allowedAddresses=["10.96.0.0/12"])
    req = group.request(group.identity("machine-1"), f"stackit://{PROJECT}/{held['id']}")

    status = await group.driver.get_machine_status(req)
    await group.driver.initialize_machine(req)
    (listed,) = await group.list_vms()
    one = node("machine-1", provider_id=f"stackit://{held['id']}")
    metadata = await harness.project.instances.instance_metadata(one)

    assert (status.provider_id, status.node_name) == (req.provider_id, "machine-1")
    assert (listed.identity.cluster, listed.info.provider_id) == ("", req.provider_id)
    assert metadata is not None
    assert metadata.provider_id == one.provider_id
    assert harness.service.writes == 0
    await group.delete(req.identity, req.provider_id)
    assert await harness.vms() == []


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_daemon_takes_over_resources_without_its_labels(
    api_server: api_servers.ApiServer, tmp_path: Path
) -> None:
    """No label is added; scaled to nothing, everything is deleted."""
    vendor = Stackit()
    fake, world = vendor.fake, vendor.fake.cloud
    async with vendor.opened(api_server, tmp_path) as (env, _):
        farm = await installed(env, vendor.pool())
        first = await env.start_leading(**vendor.how)
        await farm.order(3)
        await farm.join(3)
        await farm.expose(2)
        await farm.served(3, 2)
        assert await first.stop() == 0
        ours = {marks.CLUSTER, marks.UID, marks.BALANCER_CLUSTER}
        for one in (*world.servers.values(), *world.balancers.values()):
            assert ours & one["labels"].keys()
            one["labels"] = {k: v for k, v in one["labels"].items() if k not in ours}

        before = fake.writes
        again = await env.start_leading(**vendor.how)
        await asyncio.sleep(10.0)
        written = fake.writes - before
        await farm.to_nothing()
        assert await again.stop() == 0

    assert written == 0
    assert (world.servers, world.balancers) == ({}, {})

"""A story with every call of the provider, for the fake and for the lab."""

from __future__ import annotations

import contextlib
from typing import Any

from ccm import cloud
from ccm.testing import machine_probes, probes
from ccm.testing.builders import node as build_node
from ccm.testing.contract_balancers import deleted, ensured, updated
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.probes import CLUSTER
from providers import openstack
from tests.openstack.balancing import annotated, service
from tests.openstack.test_balancers import PORTS

ABSENT = "2028e5d4-af4f-45e2-98df-502be37a4317"


async def play(harness: Any) -> None:
    """Live through nodes, routes, load balancers and machines, with some refusals.

    `harness` is one of the contract; its `extra` are settings.
    """
    harness.extra["LoadBalancer"] = {
        **harness.extra.get("LoadBalancer", {}),
        "manage-security-groups": "true",
    }
    async with openstack.open_cloud(harness.context(cluster_name=CLUSTER)) as project:
        harness.project = project
        await _nodes_and_routes(harness)
        await _balancers(harness)
        await _machines(harness)


async def _nodes_and_routes(harness: Any) -> None:
    instances, routes = harness.project.instances, harness.project.routes
    made = await harness.create()
    await instances.instance_metadata(build_node(made.name))
    assert await instances.instance_exists(build_node(made.name, provider_id=made.provider_id))
    assert not await instances.instance_exists(
        build_node("x", provider_id=f"openstack:///{ABSENT}")
    )
    await harness.project.inventory.list_instances()
    one = await probes.node_of(harness.project, made)
    await created(routes, one, CIDR)
    (route,) = await routes.list_routes(CLUSTER)
    await routes.delete_route(CLUSTER, route)
    outside = build_node("out", addresses=[cloud.address("InternalIP", "192.0.2.1")])
    with contextlib.suppress(cloud.InvalidArgument):
        await created(routes, outside, CIDR)


async def _balancers(harness: Any) -> None:
    balancer, nodes = harness.balancer, await probes.nodes(harness.project, harness, 2)
    web = service(enable_health_monitor="true")
    await ensured(balancer, web, nodes[:1])
    await updated(balancer, web, nodes)
    more = service(spec=PORTS, connection_limit="7", lb_method="SOURCE_IP")
    await ensured(balancer, more, nodes)
    await ensured(balancer, annotated(more, connection_limit="9"), nodes)
    await ensured(balancer, web, nodes[1:])
    await balancer.list_load_balancers(CLUSTER)
    await balancer.get_load_balancer(CLUSTER, web)
    await ensured(balancer, service(internal="true"), nodes)
    shared = service("absent", uid=ABSENT, load_balancer_id=ABSENT)
    with contextlib.suppress(cloud.InvalidArgument):
        await ensured(balancer, shared, nodes)
    kept = service("kept", uid=ABSENT, keep_floatingip="true")
    await ensured(balancer, kept, nodes)
    await deleted(balancer, kept)
    await deleted(balancer, web)


async def _machines(harness: Any) -> None:
    group = machine_probes.machines_of(harness.project, harness)
    made = await group.create(who := group.identity())
    await group.initialize(who, made.provider_id)
    await group.status(who, made.provider_id)
    await group.list_vms()
    spec = {**harness.machine_spec(), "keyName": "absent", "serverGroupID": ABSENT}
    spec |= {"securityGroups": ["default"], "imageName": "absent", "imageID": ""}
    driver: Any = harness.project.machines
    assert await driver.validate_spec(spec, group.request(who).credentials, live=True)
    for wrong in ({"imageID": ABSENT}, {"keyName": "absent"}, {"serverGroupID": ABSENT}):
        with contextlib.suppress(cloud.CloudError):
            await group.create_once(
                new := group.identity(), provider_spec={**harness.machine_spec(), **wrong}
            )
        await group.delete(new)
    await group.delete(who, made.provider_id)

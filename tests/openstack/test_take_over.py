"""Clusters that openstack-cloud-controller-manager has settled are taken over without a write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm import cloud
from providers import openstack
from providers.openstack.testing import server
from tests import servers
from tests.openstack import takeover
from tests.openstack.balancing import Recorder
from tests.openstack.harness import OpenStackHarness
from tests.openstack.lab.test_daemon import FLAGS, LISTINGS
from tests.openstack.takeover import SETTINGS, SHAPES, Resource, Tables
from tests.scenario.harness import NODES, Environment, has_network, open_environment, wait_for
from tests.scenario.machines import SERVICES
from tests.waiting import due_by

pytestmark = pytest.mark.row("openstack-takeover-01")

CLUSTER = FLAGS["cluster-name"]
LATER: Resource = {
    "metadata": {"name": "later", "annotations": takeover.INTERNAL},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30999}]},
}
"""A Service that the Go manager never saw."""


def harness_of(fake: server.Service, url: str, name: str, recorded: Tables) -> OpenStackHarness:
    """Put a recording into the fake; the harness has its `cloud.conf`."""
    made = OpenStackHarness(fake, url)
    takeover.restore(fake.cloud, recorded)
    (made.router,) = fake.cloud.routers.values()
    made.extra["LoadBalancer"] = {"subnet-id": takeover.subnet_id(recorded), **SETTINGS[name]}
    return made


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, body["metadata"]["name"]) for name, bodies in SHAPES.items() for body in bodies],
)
async def test_a_service_is_ensured_without_a_write(name: str, shape: str) -> None:
    recorded = takeover.read(name)
    nodes = msgspec.convert(recorded[NODES], list[cloud.Node])
    listed = msgspec.convert(recorded[SERVICES], list[cloud.Service])
    (asked,) = (one for one in listed if one.name == shape)
    fake, recorder = server.Service(), Recorder()
    async with server.serve(fake) as url:
        context = harness_of(fake, url, name, recorded).context(
            cluster_name=CLUSTER, events=recorder, clients=recorder
        )
        async with openstack.open_cloud(context) as project:
            balancer: Any = project.load_balancer
            records = await balancer.list_load_balancers(CLUSTER)
            own = balancer.get_load_balancer_name(CLUSTER, asked)
            (record,) = (one for one in records if one.name == own)
            digest = balancer.load_balancer_digest(CLUSTER, asked, nodes)
            status = await balancer.ensure_load_balancer(CLUSTER, asked, nodes)
            await balancer.update_load_balancer(CLUSTER, asked, nodes)

    assert (fake.writes, recorder.patches, recorder.events) == (0, [], []), fake.log
    assert status == cloud.Status.from_ingress(asked.ingress)
    if shape != "named":  # a listing knows no host name
        assert (record.digest, record.status) == (digest, status)


@asynccontextmanager
async def opened(
    api_server: servers.ApiServer, folder: Path
) -> AsyncIterator[tuple[Environment, server.Service, str]]:
    """Surroundings of a daemon, and the fake with its URL."""
    fake = server.Service()
    async with server.serve(fake) as url, open_environment(api_server, folder) as env:
        yield env, fake, url


async def others(env: Environment) -> Sequence[Resource]:
    """Nodes and Services, except for `LATER`."""
    held = [*await env.cluster.items(NODES), *await env.cluster.items(SERVICES)]
    return [one for one in held if one["metadata"]["name"] != "later"]


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_settled_cluster_is_taken_over_without_a_write(
    api_server: servers.ApiServer, tmp_path: Path, name: str
) -> None:
    """Neither to OpenStack nor to the API server; then a new Service shows that it works."""
    async with opened(api_server, tmp_path) as (env, fake, url):
        uids = await takeover.restore_objects(env.cluster, takeover.read(name))
        recorded = takeover.read(name, uids)
        env.cloud_config.write_bytes(harness_of(fake, url, name, recorded).config())
        settled = await others(env)

        daemon = await env.start(flags=FLAGS)

        async def listed() -> bool:
            return all(fake.calls[operation] for operation in LISTINGS)

        await wait_for(listed, "the daemon has listed load balancers and routes")
        await due_by(2.0)
        written = fake.writes, takeover.written(env), fake.log
        await env.cluster.create(SERVICES, LATER)

        async def served() -> bool:
            found = await env.cluster.get(f"{SERVICES}/later") or {}
            return bool(found["status"]["loadBalancer"])

        await wait_for(served, "the new Service is served")
        assert await daemon.stop() == 0
        assert written[:2] == (0, []), written[2]
        assert await others(env) == settled


@pytest.mark.parametrize("name", SETTINGS)
async def test_the_daemon_settles_a_cluster_in_the_same_shape(
    api_server: servers.ApiServer, tmp_path: Path, name: str
) -> None:
    """Names, descriptions, tags, annotations, statuses and conditions are the Go manager's."""
    recorded = takeover.read(name)
    async with opened(api_server, tmp_path) as (env, fake, url):
        harness = harness_of(fake, url, name, takeover.before(recorded))
        env.cloud_config.write_bytes(harness.config())
        await takeover.register(env.cluster, recorded)
        daemon = await env.start(flags=FLAGS)

        async def routed() -> bool:
            return all(map(has_network, await env.cluster.items(NODES)))

        await env.cluster.initialised(*(one["metadata"]["name"] for one in recorded[NODES]))
        await wait_for(routed, "the nodes have routes")
        await takeover.expose(env.cluster, name)
        ours = takeover.tables_of(fake.cloud, recorded)
        ours |= await takeover.read_objects(env.cluster)
        assert await daemon.stop() == 0

    found = takeover.differences(ours, recorded)
    assert not found, "\n".join(found)

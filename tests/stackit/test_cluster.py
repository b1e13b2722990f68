"""The whole daemon, an API server and the fake: machines become nodes with Services; a restart."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.gardener import crds
from ccm.gardener.names import GROUP, VERSION
from ccm.model import names
from ccm.sandbox import realserver
from providers.stackit.testing import __main__ as program
from providers.stackit.testing import server
from providers.stackit.testing.settings import Settings
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import harness
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.nodes import missing

BASE = f"/apis/{GROUP}/{VERSION}/namespaces/default"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVICES = "/api/v1/namespaces/default/services"
RIGHTS = shipped.MANIFESTS / "components" / "machines" / "rbac.yaml"
TYPE: dict[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}"}
PLACE = "/v2/projects/{projectId}/regions/{region}"
WITHIN_S = 180.0

FLAGS: Mapping[str, str] = {
    "cloud-provider": "stackit",
    "controllers": ",".join(
        [NODE.name, NODE_LIFECYCLE.name, SERVICE.name, "machine", "machineclass", "machinesafety"]
    ),
    "cluster-name": "two-hundred",
    "kube-api-qps": "-1",
    # As they are by default, for the calls that they cost.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "30s",
    "concurrent-service-syncs": "5",
    "concurrent-node-syncs": "10",
}


async def install(env: Environment, fake: server.Service) -> None:
    """What has to be there before machines: their kinds, our rights, a class and its Secret."""
    definitions = list(yaml.safe_load_all(crds.written()))
    async with servers.connect(env.server) as session:
        if isinstance(env.server, realserver.RealServer):
            await account.install(session, shipped.objects(RIGHTS))
        for one in definitions:
            await env.cluster.create(DEFINITIONS, one)

        async def served() -> bool:
            for one in crds.DEFINITIONS:
                async with session.get(f"{BASE}/{one.kind.plural}") as response:
                    if response.status != 200:
                        return False
            return True

        await wait_for(served, "definitions are served")
    data = {
        "project-id": server.PROJECT.encode(),
        "serviceaccount.json": fake.account.key,
        "userData": b"#!/bin/sh",
    }
    secret = {key: base64.b64encode(value).decode() for key, value in data.items()}
    await env.cluster.create(
        "/api/v1/namespaces/default/secrets", {"metadata": {"name": "small"}, "data": secret}
    )
    spec = {
        "region": server.REGION,
        "machineType": "c2i.2",
        "imageId": server.IMAGE,
        "networking": {"networkId": server.NETWORK},
        "allowedAddresses": ["10.96.0.0/12"],
    }
    made = TYPE | {
        "kind": "MachineClass",
        "metadata": {"name": "small"},
        "provider": "stackit",
        "providerSpec": spec,
        "secretRef": {"name": "small", "namespace": "default"},
    }
    await env.cluster.create(f"{BASE}/machineclasses", made)


async def remove(env: Environment) -> None:
    """Leave the server as others expect it."""
    paths = (f"{BASE}/machines", f"{BASE}/machineclasses", NODES, SERVICES)
    for path in (*paths, "/api/v1/namespaces/default/secrets"):
        for one in await env.cluster.items(path):
            target = f"{path}/{one['metadata']['name']}"
            if one["metadata"]["name"] == "kubernetes":
                continue
            await env.cluster.patch(target, {"metadata": {"finalizers": None}}, kind="merge")
            await env.cluster.delete(target)
    for one in yaml.safe_load_all(crds.written()):
        await env.cluster.delete(f"{DEFINITIONS}/{one['metadata']['name']}")


async def join(env: Environment, count: int) -> None:
    """Each machine's kubelet registers its node, without a provider ID, as kubelets do."""
    known: set[str] = set()

    async def registered() -> bool:
        for one in await env.cluster.items(f"{BASE}/machines"):
            name = one["metadata"].get("labels", {}).get("node", "")
            phase = one.get("status", {}).get("currentStatus", {}).get("phase")
            if name and phase == "Pending" and name not in known:
                known.add(name)
                await env.cluster.register(name, ready=names.STATUS_TRUE)
        return len(known) == count

    await wait_for(registered, "machines have servers", within_s=WITHIN_S)

    async def run() -> bool:
        machines = await env.cluster.items(f"{BASE}/machines")
        phases = Counter(one["status"]["currentStatus"]["phase"] for one in machines)
        nodes = await env.cluster.items(NODES)
        return phases == {"Running": count} and not any(map(missing, nodes))

    await wait_for(run, "machines run, nodes are initialised", within_s=WITHIN_S)


def web(number: int) -> Mapping[str, Any]:
    port = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080 + number}
    return {
        "metadata": {"name": f"web-{number}"},
        "spec": {"type": "LoadBalancer", "ports": [port]},
    }


async def served(env: Environment, fake: server.Service, nodes: int, services: int) -> None:
    """Wait until every Service has an address, and every node as a member."""

    async def done() -> bool:
        found = [
            one
            for one in await env.cluster.items(SERVICES)
            if (one.get("status") or {}).get("loadBalancer", {}).get("ingress")
        ]
        members = [len(one["targetPools"][0]["targets"]) for one in fake.cloud.balancers.values()]
        return len(found) == services and members == [nodes] * services

    await wait_for(done, "addresses and members of Services", within_s=WITHIN_S)


async def to_nothing(env: Environment, fake: server.Service, count: int, services: int) -> None:
    """Delete machines and Services, and wait until nothing is left of them anywhere."""
    for number in range(count):
        await env.cluster.delete(f"{BASE}/machines/m{number}")
    for number in range(services):
        await env.cluster.delete(f"{SERVICES}/web-{number}")

    async def nothing() -> bool:
        left = await env.cluster.items(f"{BASE}/machines")
        nodes = await env.cluster.items(NODES)
        return not (left or nodes or fake.cloud.servers or fake.cloud.balancers)

    await wait_for(nothing, "everything is gone", within_s=WITHIN_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("stackit-call-01", "stackit-balancer-23")
@pytest.mark.parametrize(
    ("count", "services"), [(5, 2), pytest.param(200, 20, marks=pytest.mark.soak)]
)
async def test_machines_become_nodes_with_services(
    api_server: servers.ApiServer, tmp_path: Path, count: int, services: int
) -> None:
    """From nothing, at rest, after a restart, and to nothing again; counted."""
    is_large = count > 100
    rest_s = 10.0 if is_large else 2.0
    fake = server.Service(
        Settings(boot_s=2.0 if is_large else 0.0, balancer_s=2.0 if is_large else 0.0)
    )
    async with (
        server.serve(fake) as url,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        env.cloud_config.write_text(program.config(url))
        key = tmp_path / "key.json"
        key.write_bytes(fake.account.key)
        environ = program.variables(url, str(key))
        await install(env, fake)
        try:
            daemon = await env.start_leading(flags=FLAGS, env=environ)
            began = time.monotonic()
            for number in range(count):
                spec = {"class": {"kind": "MachineClass", "name": "small"}}
                body = TYPE | {"kind": "Machine", "metadata": {"name": f"m{number}"}}
                await env.cluster.create(f"{BASE}/machines", {**body, "spec": spec})
            await join(env, count)
            joined_s = time.monotonic() - began
            for number in range(services):
                await env.cluster.create(SERVICES, web(number))
            await served(env, fake, count, services)
            served_s = time.monotonic() - began
            from_nothing = Counter(fake.calls)

            fake.calls.clear()
            await asyncio.sleep(rest_s)
            at_rest = Counter(fake.calls)
            assert await daemon.stop() == 0

            fake.calls.clear()
            again = await env.start_leading(flags=FLAGS, env=environ)
            await asyncio.sleep(rest_s)  # whatever a start does is done at its start
            restart, writes = Counter(fake.calls), fake.writes

            await to_nothing(env, fake, count, services)
            assert await again.stop() == 0
        finally:
            await remove(env)
        print(f"{count} nodes after {joined_s:.1f} s, {services} Services after {served_s:.1f} s")
        told = {"from nothing": from_nothing, "at rest": at_rest, "a restart": restart}
        for what, calls in told.items():
            print(what, calls.total(), {name.replace(PLACE, ""): n for name, n in calls.items()})
        said = "".join(one.output for one in env.daemons)

    pem = yaml.safe_load(fake.account.key)["credentials"]["privateKey"]
    secrets = [*fake.account._tokens, *pem.splitlines()[1:-1]]
    assert [one for one in secrets if one in said] == []
    assert (writes, fake.cloud.nics) == (0, {})
    # Of a machine: a look, an order, a listing; until it boots now and then a look; its cards, and
    # one of them changed. Of a node: what it is, when it comes. Of a Service: a look, an order, and
    # looks until it is ready.
    assert from_nothing.total() <= 9 * count + 12 * services + 20, from_nothing
    assert at_rest.total() <= 5, at_rest
    assert restart.total() <= 10, restart

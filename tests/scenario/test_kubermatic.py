"""A daemon with Kubermatic's machine objects and the simulated cloud."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from ccm.kubermatic import crds, names
from ccm.sandbox import realserver
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import harness
from tests.scenario.harness import DEFINITIONS, NODES, Environment, wait_for
from tests.scenario.machines import vms

NAMESPACE = shipped.NAMESPACE
"""Where the shipped Role allows Machines."""
API = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{NAMESPACE}"
MACHINES, DEPLOYMENTS = f"{API}/machines", f"{API}/machinedeployments"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
BOOTSTRAP = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"
FLAGS = {
    "controllers": "kubermaticmachine,kubermaticmachineset,kubermaticmachinedeployment",
    "kube-api-qps": "-1",
}


async def prepare(env: Environment) -> None:
    """The CRDs, our rights, the credentials, and the user data of the deployment `web`."""
    async with servers.connect(env.server) as session:
        for one in crds.DEFINITIONS:
            async with session.post(DEFINITIONS, json=one.to_manifest()) as response:
                assert response.status in (201, 409), await response.text()
    for one in crds.DEFINITIONS:

        async def served(path: str = f"{API}/{one.kind.plural}") -> bool:
            try:
                await env.cluster.items(path)
            except AssertionError:
                return False
            return True

        await wait_for(served, f"{one.kind.plural} are served")
    namespace = {"metadata": {"name": names.BOOTSTRAP_NAMESPACE}}
    await env.cluster.create("/api/v1/namespaces", namespace)
    if isinstance(env.server, realserver.RealServer):
        async with servers.connect(env.server) as session:
            await account.install(session, shipped.objects(shipped.KUBERMATIC / "rbac.yaml"))
    token = base64.b64encode(env.cloud.token.encode()).decode()
    await env.cluster.create(SECRETS, {"metadata": {"name": "sim"}, "data": {"token": token}})
    await env.cluster.create(
        BOOTSTRAP,
        {
            "metadata": {
                "name": f"web-{NAMESPACE}-bootstrap-config",
                "annotations": {names.ANNOTATION_BOOTSTRAP_REVISION: "1"},
            },
            "data": {names.BOOTSTRAP_KEY: base64.b64encode(b"#cloud-config").decode()},
        },
    )


def deployment(replicas: int) -> dict[str, Any]:
    labels = {"app": "web"}
    token = {"secretKeyRef": {"namespace": NAMESPACE, "name": "sim", "key": "token"}}
    value = {
        "cloudProvider": "sim",
        "cloudProviderSpec": {"token": token, "machineType": "small"},
        "operatingSystem": "ubuntu",
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {"providerSpec": {"value": value}, "versions": {"kubelet": "1.35.1"}},
    }
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": "MachineDeployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }


def phase(machine: Mapping[str, Any]) -> str:
    return str(machine.get("status", {}).get("phase", ""))


@pytest.mark.both_servers
async def test_kubermatic_deployment_gets_instances_and_nodes_and_leaves_nothing(
    env: harness.Environment,
) -> None:
    await prepare(env)
    daemon = await env.start_leading(flags=FLAGS)
    await env.cluster.create(DEPLOYMENTS, deployment(2))

    async def in_phase(wanted: str, count: int) -> list[dict[str, Any]]:
        found = [one for one in await env.cluster.items(MACHINES) if phase(one) == wanted]
        return found if len(found) == count else []

    for one in await wait_for(lambda: in_phase("Pending", 2), "machines have instances"):
        name = one["metadata"]["name"]
        await env.cluster.register(name, providerID=one["spec"]["providerID"])
        await env.cluster.set_ready(name, "True")
    running = await wait_for(lambda: in_phase("Running", 2), "machines run")
    assert vms(env).keys() == {one["metadata"]["name"] for one in running}
    assert {one["spec"]["providerID"] for one in running} == {
        f"sim://{number}" for number in vms(env).values()
    }
    node = await env.cluster.get(f"{NODES}/{running[0]['metadata']['name']}") or {}
    assert node["metadata"]["labels"][names.LABEL_OWNED_BY] == running[0]["metadata"]["uid"]

    await env.cluster.delete(f"{DEPLOYMENTS}/web")

    async def gone() -> bool:
        left = [await env.cluster.items(path) for path in (DEPLOYMENTS, MACHINES)]
        return left == [[], []]

    await wait_for(gone, "deployment and machines are gone")
    assert vms(env) == {}
    assert await env.cluster.items(NODES) == []
    assert await daemon.stop() == 0

"""A daemon with Kubermatic's machine objects and the simulated cloud."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from ccm.kubermatic import crds, names
from ccm.sandbox import process, realserver
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import harness, test_webhook
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
    # A namespace outlives the test that created it.
    if await env.cluster.get(f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}") is None:
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


@pytest.mark.row("kubermatic-webhook-01")
@pytest.mark.row("kubermatic-webhook-18")
@pytest.mark.timeout(240)
@servers.only_real
async def test_webhook_defaults_and_refuses_and_no_deletion_needs_it(
    env: harness.Environment,
) -> None:
    await prepare(env)
    person, port = test_webhook.Person(env), process.pick_port()
    leader = await env.start_leading(flags=FLAGS)
    standby = await env.start(
        flags={**FLAGS, **test_webhook.serving_flags(env, port, "kubermatic-machines")}
    )
    await standby.says("serving webhooks")
    objects = f"machinedeployments.{names.GROUP}"
    there = ("-n", NAMESPACE)

    async def machines() -> list[dict[str, Any]]:
        return await env.cluster.items(MACHINES)

    async with test_webhook.registered(
        env, person, port, shipped.KUBERMATIC_WEBHOOK / "webhook.yaml"
    ):
        wrong = deployment(1)
        wrong["spec"]["template"]["spec"]["versions"]["kubelet"] = "latest"

        async def refused() -> str:
            """Return kubectl's error about an invalid deployment; empty if it is accepted."""
            status, said = await person.does(
                "create", "--dry-run=server", *there, "-f", "-", stdin=wrong
            )
            return said if status else ""

        said = await wait_for(refused, "an invalid deployment is refused")
        assert "denied the request" in said
        assert "spec.template: spec.versions.kubelet is 'latest'; it must be a version" in said

        await person.succeeds("create", *there, "-f", "-", stdin=deployment(1))
        found = await env.cluster.get(f"{DEPLOYMENTS}/web") or {}
        assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        value = found["spec"]["template"]["spec"]["providerSpec"]["value"]
        assert value["operatingSystemSpec"] == {"distUpgradeOnBoot": False}
        patch = {"spec": {"template": {"spec": {"providerSpec": {"value": {"cloudProvider": ""}}}}}}
        wrong_change = ("patch", objects, "web", *there, "--type=merge", "-p", json.dumps(patch))
        assert "cloudProvider is ''; it must be one of" in await person.fails(*wrong_change)

        (one,) = await wait_for(machines, "the set has a machine")
        labels = one["spec"]["metadata"]["labels"]
        assert labels == {names.LABEL_OPERATING_SYSTEM: "ubuntu"}
        name = one["metadata"]["name"]
        other = '{"spec":{"versions":{"kubelet":"1.36.0"}}}'
        change = ("patch", f"machines.{names.GROUP}", name, *there, "--type=merge", "-p", other)
        said = await person.fails(*change)
        assert "spec of a Machine is immutable, but spec.versions changed" in said

        await standby.kill()
        assert "failed calling webhook" in await person.fails(*change)
        # Neither the leader nor changes of other fields need the webhook.
        for words in (
            ("label", objects, "web", "a=b"),
            ("annotate", f"machines.{names.GROUP}", name, "a=b"),
            ("scale", objects, "web", "--replicas=2"),
        ):
            await person.succeeds(*words, *there)

        async def scaled() -> list[dict[str, Any]]:
            found = [one for one in await machines() if one["spec"].get("providerID")]
            return found if len(found) == 2 else []

        await wait_for(scaled, "the daemon creates a machine and its instance")
        # Without garbage collector, the finalizer has to stay until the machines are gone.
        await person.succeeds("delete", objects, "web", *there, "--cascade=foreground")

        async def gone() -> bool:
            return not await machines()

        await wait_for(gone, "machines are gone")
        assert vms(env) == {}
    assert await leader.stop() == 0

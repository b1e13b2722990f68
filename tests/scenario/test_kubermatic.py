"""A daemon with Kubermatic's machine objects and the simulated cloud."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ccm.kubermatic import crds, names
from ccm.sandbox import process, realserver
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import harness, machines, test_webhook
from tests.scenario.harness import DEFINITIONS, NODES, Environment, wait_for
from tests.scenario.machines import vms

NAMESPACE = shipped.NAMESPACE
"""Where the shipped Role allows Machines."""
API = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{NAMESPACE}"
MACHINES, DEPLOYMENTS = f"{API}/machines", f"{API}/machinedeployments"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LEASE = f"{harness.LEASES}/{names.LEASE}"
BOOTSTRAP = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"
FLAGS = {
    "controllers": "kubermaticmachine,kubermaticmachineset,kubermaticmachinedeployment",
    "kube-api-qps": "-1",
}


async def prepare(env: Environment, namespace: str = NAMESPACE) -> None:
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
    body = {"metadata": {"name": names.BOOTSTRAP_NAMESPACE}}
    # A namespace outlives the test that created it.
    if await env.cluster.get(f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}") is None:
        await env.cluster.create("/api/v1/namespaces", body)
    if isinstance(env.server, realserver.RealServer):
        async with servers.connect(env.server) as session:
            await account.install(session, shipped.objects(shipped.KUBERMATIC / "rbac.yaml"))
    token = base64.b64encode(env.cloud.token.encode()).decode()
    secrets = SECRETS.replace(NAMESPACE, namespace)
    await env.cluster.create(secrets, {"metadata": {"name": "sim"}, "data": {"token": token}})
    await env.cluster.create(
        BOOTSTRAP,
        {
            "metadata": {
                "name": f"web-{namespace}-bootstrap-config",
                "annotations": {names.ANNOTATION_BOOTSTRAP_REVISION: "1"},
            },
            "data": {names.BOOTSTRAP_KEY: base64.b64encode(b"#cloud-config").decode()},
        },
    )


def deployment(replicas: int, namespace: str = NAMESPACE) -> dict[str, Any]:
    labels = {"app": "web"}
    token = {"secretKeyRef": {"namespace": namespace, "name": "sim", "key": "token"}}
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


# --- beside other programs ------------------------------------------------------------------------


@pytest.mark.row("kubermatic-lease-03")
@pytest.mark.both_servers
async def test_losing_the_lease_of_kubermatics_program_ends_the_process(
    env: harness.Environment,
) -> None:
    await prepare(env)
    daemon = await env.start_leading(flags=FLAGS)
    await daemon.says("became leader", lease=f"{NAMESPACE}/{names.LEASE}")

    await env.cluster.patch(LEASE, {"spec": {"holderIdentity": "thief"}}, kind="merge")

    assert await daemon.ended() == 1
    (lost,) = daemon.lines("leaderelection lost")
    assert f"could not renew lease {NAMESPACE}/{names.LEASE}: held by thief" in lost["err"]


@pytest.mark.row("kubermatic-lease-06")
@pytest.mark.both_servers
async def test_standby_takes_both_leases_at_once_from_a_killed_leader(
    env: harness.Environment,
) -> None:
    await prepare(env)
    flags = {**FLAGS, **harness.SHORT_LEASE}
    leader = await env.start_leading(flags=flags)
    await leader.says("became leader", count=2)
    standby = await env.start(flags=flags)
    await standby.says("new leader elected")

    await leader.kill()
    await standby.says("became leader", count=2)

    first, second = standby.lines("became leader")
    assert second["ts"] - first["ts"] < 1000 * harness.LEASE_S
    assert standby.lines("controllers wait") == []
    assert await standby.stop() == 0
    assert (await env.cluster.get(LEASE) or {})["spec"].get("holderIdentity", "") == ""


GARDENER = (machines.MACHINES, machines.SETS, machines.DEPLOYMENTS)
OWN = "default"
"""Namespace of the machines of both API groups."""


def moved(path: str) -> str:
    """A path in the namespace of both groups."""
    return path.replace(f"/namespaces/{NAMESPACE}", f"/namespaces/{OWN}")


OURS = tuple(moved(f"{API}/{kind}") for kind in ("machines", "machinesets", "machinedeployments"))


async def state(env: Environment, paths: Sequence[str]) -> dict[str, Any]:
    """What changes with each write to the objects of one API group, and to their nodes.

    The status of sets and deployments, which their own controllers may write late, is left out.
    """
    found: dict[str, Any] = {}
    for path in paths:
        for one in await env.cluster.items(path):
            metadata = dict(one["metadata"])
            name = metadata["name"]
            if path != paths[0]:
                for key in ("resourceVersion", "managedFields"):
                    metadata.pop(key, None)
            found[f"{path}/{name}"] = metadata
            if path == paths[0] and (node := await env.cluster.node(name)) is not None:
                found[f"node/{name}"] = node["metadata"]["resourceVersion"]
    return found


async def instances(env: Environment, path: str) -> set[str]:
    """IDs of the VMs of one API group."""
    provider_ids = [one["spec"].get("providerID", "") for one in await env.cluster.items(path)]
    return {one.removeprefix("sim://") for one in provider_ids if one}


async def all_run(env: Environment, paths: Sequence[str], count: int) -> None:
    """Let the machines of one API group become nodes, until the deployment shows them."""

    def is_running(one: Mapping[str, Any]) -> bool:
        return "Running" in (phase(one), machines.phase(one))

    async def done() -> bool:
        found = await env.cluster.items(paths[0])
        for one in found:
            name, provider_id = one["metadata"]["name"], one["spec"].get("providerID")
            goes = "deletionTimestamp" in one["metadata"]
            if provider_id and not goes and await env.cluster.node(name) is None:
                await env.cluster.register(name, providerID=provider_id, ready="True")
        owners = [one for path in paths[1:] for one in await env.cluster.items(path)]
        shown = [one.get("status", {}).get("availableReplicas") for one in owners]
        return shown == [count] * 2 and len(found) == count and all(map(is_running, found))

    await wait_for(done, f"{count} of {paths[0]} run", within_s=machines.WITHIN_S)


async def unchanged(
    env: Environment, before: dict[str, Any], vms_before: set[str], since: int, paths: Sequence[str]
) -> None:
    """Nothing was written to the other group, and the cloud was not asked for its VMs."""
    assert await state(env, paths) == before
    assert vms_before <= set(vms(env).values())
    about = [f"{one.operation} {one.path}" for one in env.calls()[since:]]
    assert [call for call in about if any(vm in call for vm in vms_before)] == []


@pytest.mark.row("kubermatic-lease-07")
async def test_machines_of_two_api_groups_in_one_namespace_do_not_touch_each_other(
    env: harness.Environment,
) -> None:
    """Deployments of the same name; orphan VMs are looked for every second."""
    await prepare(env, OWN)
    await machines.prepare(env)
    secret = machines.sim_secret(env.cloud.token)
    await machines.make_class(env.cluster, "small", machines.SIM, secret, provider="sim")
    both = f"{FLAGS['controllers']},{','.join(machines.ALL_CONTROLLERS)}"
    period = {"machine-safety-orphan-vms-period": "1s", "kubermatic-namespace": OWN}
    daemon = await env.start_leading(flags={**FLAGS, **period, "controllers": both})
    web = machines.group("MachineDeployment", "web", 2)
    await env.cluster.create(machines.DEPLOYMENTS, web)
    await env.cluster.create(moved(DEPLOYMENTS), deployment(2, OWN))
    for paths in (GARDENER, OURS):
        await all_run(env, paths, 2)

    for changed, still in ((GARDENER, OURS), (OURS, GARDENER)):
        before, vms_before = await state(env, still), await instances(env, still[0])
        assert len(vms_before) == 2
        since = len(env.calls())
        await env.cluster.patch(f"{changed[2]}/web", {"spec": {"replicas": 3}}, kind="merge")
        await all_run(env, changed, 3)
        await env.cluster.patch(f"{changed[2]}/web", {"spec": {"replicas": 2}}, kind="merge")
        await all_run(env, changed, 2)
        await unchanged(env, before, vms_before, since, still)

    for changed, still in ((GARDENER, OURS), (OURS, ())):
        before = await state(env, still) if still else {}
        vms_before = await instances(env, still[0]) if still else set()
        since = len(env.calls())
        await env.cluster.delete(f"{changed[2]}/web")

        async def gone(path: str = changed[0], left: int = len(vms_before)) -> bool:
            return not await env.cluster.items(path) and len(vms(env)) == left

        await wait_for(gone, "machines and VMs are gone", within_s=machines.WITHIN_S)
        if still:
            await unchanged(env, before, vms_before, since, still)
    assert await env.cluster.items(NODES) == []
    assert await daemon.stop() == 0

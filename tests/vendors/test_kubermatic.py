"""Kubermatic's machines at the Hetzner Cloud: their life, and migration from and to its program."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ccm.cloud.kubermatic import MADE_UP_ID
from ccm.kubermatic import names
from ccm.model.names import STATUS_TRUE
from ccm.model.times import format_micro_time
from ccm.sandbox import process
from providers.hcloud.testing import servers as hcloud
from tests import servers
from tests.faults import FaultProxy, Match
from tests.manifests import shipped
from tests.scenario import harness, kubermatic, test_webhook
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.kubermatic import phase
from tests.scenario.test_kubermatic import (
    API,
    DEPLOYMENTS,
    FLAGS,
    LEASE,
    MACHINES,
    NAMESPACE,
    SECRETS,
    prepare,
)
from tests.vendors.clouds import Hcloud

SETS = f"{API}/machinesets"
HASH = "3809267561"
"""Of the Go program: another one than ours."""
GO = "machine-controller-7d9c_0b8d2f1e-5a64-4f0b-9c0a-2f9a1c7e4d11"
GO_LEASE_S = 3


@contextlib.asynccontextmanager
async def go_program(env: Environment) -> AsyncIterator[None]:
    """The Go program holds its Lease; it does not release the Lease when it stops."""
    spec = {
        "holderIdentity": GO,
        "leaseDurationSeconds": GO_LEASE_S,
        "acquireTime": format_micro_time(datetime.now(UTC)),
        "renewTime": format_micro_time(datetime.now(UTC)),
        "leaseTransitions": 3,
    }
    await env.cluster.create(harness.LEASES, harness.lease(names.LEASE, **spec))

    async def renew() -> None:
        while True:
            await asyncio.sleep(0.3)
            renewed = {"spec": {"renewTime": format_micro_time(datetime.now(UTC))}}
            await env.cluster.patch(LEASE, renewed, kind="merge")

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def template(network: int) -> dict[str, Any]:
    """A template as the webhook of the Go program stores it."""
    token = {"secretKeyRef": {"namespace": NAMESPACE, "name": "hetzner", "key": "token"}}
    value = {
        "cloudProvider": "hetzner",
        "cloudProviderSpec": {
            "token": token,
            "serverType": "cx23",
            "datacenter": "",
            "image": "",
            "location": "fsn1",
            "placementGroupPrefix": "",
            "networks": [str(network)],
            "firewalls": None,
            "labels": {"team": "a"},
            "assignPublicIPv4": None,
            "assignPublicIPv6": None,
        },
        "operatingSystem": "ubuntu",
        "operatingSystemSpec": {"distUpgradeOnBoot": False},
        "sshPublicKeys": [],
    }
    return {
        "metadata": {"creationTimestamp": None, "labels": {"app": "web"}},
        "spec": {
            "metadata": {"creationTimestamp": None},
            "providerSpec": {"value": value},
            "versions": {"kubelet": "1.35.1"},
        },
    }


def owned_by(kind: str, owner: dict[str, Any]) -> list[dict[str, Any]]:
    meta = owner["metadata"]
    reference = {"kind": kind, "name": meta["name"], "uid": meta["uid"]}
    api = {"apiVersion": f"{names.GROUP}/{names.VERSION}"}
    return [{**api, **reference, "controller": True, "blockOwnerDeletion": True}]


async def left_by_go(env: Environment, vendor: Hcloud, *, external: bool) -> str:
    """Objects, server and node as the Go program leaves them; the name of the machine.

    `external`: with a cloud-controller-manager, which sets the provider ID of the node only.
    """
    token = base64.b64encode(vendor.fake.token.encode()).decode()
    await env.cluster.create(SECRETS, {"metadata": {"name": "hetzner"}, "data": {"token": token}})
    api = {"apiVersion": f"{names.GROUP}/{names.VERSION}"}
    of_deployment = template(vendor.network["id"])
    deployment = await env.cluster.create(
        DEPLOYMENTS,
        {
            **api,
            "kind": "MachineDeployment",
            "metadata": {
                "name": "web",
                "annotations": {names.ANNOTATION_REVISION: "1"},
                "finalizers": [names.FINALIZER_FOREGROUND],
            },
            "spec": {
                "replicas": 1,
                "minReadySeconds": 0,
                "paused": False,
                "progressDeadlineSeconds": 600,
                "revisionHistoryLimit": 1,
                "selector": {"matchLabels": {"app": "web"}},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
                },
                "template": of_deployment,
            },
        },
    )
    labels = {"app": "web", names.LABEL_TEMPLATE_HASH: HASH}
    of_set = {
        **of_deployment,
        "metadata": {"creationTimestamp": None, "labels": labels},
    }
    counts = {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    await env.cluster.patch(
        f"{DEPLOYMENTS}/web/status", {"status": {**counts, "updatedReplicas": 1}}, kind="merge"
    )
    name = "web-8d4f6c9b5"
    owner = await env.cluster.create(
        SETS,
        {
            **api,
            "kind": "MachineSet",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {
                    names.ANNOTATION_REVISION: "1",
                    names.ANNOTATION_DESIRED: "1",
                    names.ANNOTATION_MAX: "2",
                },
                "finalizers": [names.FINALIZER_FOREGROUND],
                "ownerReferences": owned_by("MachineDeployment", deployment),
            },
            "spec": {
                "replicas": 1,
                "minReadySeconds": 0,
                "selector": {"matchLabels": labels},
                "template": of_set,
            },
        },
    )
    await env.cluster.patch(
        f"{SETS}/{name}/status", {"status": {**counts, "fullyLabeledReplicas": 1}}, kind="merge"
    )
    name = f"{name}-x2v9k"
    machine = await env.cluster.create(
        MACHINES,
        {
            **api,
            "kind": "Machine",
            "metadata": {
                "name": name,
                "generateName": "web-8d4f6c9b5-",
                "labels": labels,
                "annotations": {
                    f"{names.ANNOTATION_GATE}RotateKubeletServerCertificate": "true",
                    f"{names.ANNOTATION_FLAG}ExternalCloudProvider": "true",
                },
                "finalizers": [names.FINALIZER_MACHINE, names.FINALIZER_NODE],
                "ownerReferences": owned_by("MachineSet", owner),
            },
            "spec": {
                **of_set["spec"],
                "metadata": {
                    "creationTimestamp": None,
                    "name": name,
                    "labels": {names.LABEL_OPERATING_SYSTEM: "ubuntu"},
                },
            },
        },
    )
    order = {
        "server_type": "cx23",
        "image": "ubuntu-24.04",
        "labels": {"machine-uid": machine["metadata"]["uid"], "team": "a"},
        "networks": [vendor.network["id"]],
    }
    server = hcloud.new_server(vendor.fake.cloud, name, order)
    vendor.fake.cloud.servers[server["id"]] = server
    provider_id = f"hcloud://{server['id']}"
    if not external:
        provider_id = f"{MADE_UP_ID}hetzner/{machine['metadata']['uid']}"
        spec = {"spec": {"providerID": provider_id}}
        await env.cluster.patch(f"{MACHINES}/{name}", spec, kind="merge")
    node = await env.cluster.register(name, ready="True", providerID=provider_id)
    await env.cluster.patch(
        f"{NODES}/{name}",
        {
            "metadata": {
                "labels": {
                    names.LABEL_OWNED_BY: machine["metadata"]["uid"],
                    names.LABEL_OPERATING_SYSTEM: "ubuntu",
                },
                "annotations": {names.ANNOTATION_NODE_MACHINE: f"{NAMESPACE}/{name}"},
            }
        },
        kind="merge",
    )
    reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    status = {
        "nodeRef": reference,
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "versions": {"kubelet": "v1.35.1"},
    }
    await env.cluster.patch(f"{MACHINES}/{name}", {"status": status}, kind="merge")
    return name


@pytest.mark.row(
    *("kubermatic-lease-01", "kubermatic-lease-02", "kubermatic-object-02"),
    *("kubermatic-machine-18", "kubermatic-machine-20"),
)
@pytest.mark.both_servers
@pytest.mark.parametrize("external", [True, False])
async def test_machines_of_the_go_program_are_taken_over_and_handed_back(
    api_server: servers.ApiServer, tmp_path: Path, *, external: bool
) -> None:
    """No write to the cloud; while the Go program has its Lease, nothing at all."""
    vendor = Hcloud()
    async with vendor.opened(api_server, tmp_path) as (env, _):
        await prepare(env)
        name = await left_by_go(env, vendor, external=external)
        before = await objects(env)
        kinds = f"cloud-node,cloud-node-lifecycle,{FLAGS['controllers']}"
        flags = {**vendor.how["flags"], **FLAGS, "controllers": kinds}
        async with go_program(env):
            daemon = await env.start_leading(flags=flags)
            told = await daemon.says("controllers wait", holder=GO)
            assert "stop it" in told["advice"]
            await daemon.says("controllers started")
            assert [one for one in env.proxy.log if names.GROUP in one.path] == []
            assert daemon.lines("became leader", lease=f"{NAMESPACE}/{names.LEASE}") == []
        await daemon.says("became leader", lease=f"{NAMESPACE}/{names.LEASE}")

        async def taken() -> dict[str, Any]:
            found = await env.cluster.get(f"{MACHINES}/{name}") or {}
            owners = [one for path in (DEPLOYMENTS, SETS) for one in await env.cluster.items(path)]
            shown = [one["status"].get("availableReplicas") for one in owners]
            return found if found["status"].get("phase") == "Running" and shown == [1, 1] else {}

        machine = await wait_for(taken, "the machine is taken over")
        assert len(daemon.lines("controllers wait")) == 1
        assert await daemon.stop() == 0

        (server,) = vendor.fake.cloud.servers.values()
        made_up = f"{MADE_UP_ID}hetzner/{machine['metadata']['uid']}"
        known = f"hcloud://{server['id']}" if external else made_up
        assert machine["spec"]["providerID"] == known
        assert [one for one in vendor.fake.calls if not one.startswith("GET")] == []
        assert server["labels"]["team"] == "a"
        assert (await env.cluster.get(LEASE) or {})["spec"].get("holderIdentity", "") == ""
        for one, other in zip(kept(await objects(env)), kept(before), strict=True):
            for part, former in zip(one, other, strict=True):
                assert part == former


async def objects(env: Environment) -> list[dict[str, Any]]:
    return [one for path in (DEPLOYMENTS, SETS, MACHINES) for one in await env.cluster.items(path)]


def kept(found: list[dict[str, Any]]) -> list[Any]:
    """What the Go program reads of its objects."""
    result = []
    for one in found:
        meta, status = one["metadata"], one.get("status", {})
        spec = {key: value for key, value in one["spec"].items() if key != "providerID"}
        parts = ("name", "uid", "labels", "finalizers", "ownerReferences")
        counts = {key: value for key, value in status.items() if key.endswith("eplicas") and value}
        result.append(
            (
                {key: meta.get(key) for key in parts},
                meta.get("annotations", {}).get(names.ANNOTATION_REVISION),
                spec,
                counts,
                {key: status.get(key) for key in ("nodeRef", "versions")},
                [one["status"] for one in status.get("conditions", ()) if one["type"] == "Ready"],
            )
        )
    return result


# --- acceptance -----------------------------------------------------------------------------------

PHASE_S = 300.0
"""Limit for each step of the 20 machines, on a busy machine; seconds."""


def new_deployment(network: str, replicas: int) -> dict[str, Any]:
    """A MachineDeployment as users write it: without the fields that have defaults."""
    labels = {"app": "web"}
    value = {
        "cloudProvider": "hetzner",
        "cloudProviderSpec": {
            "token": {"secretKeyRef": {"namespace": NAMESPACE, "name": "hetzner", "key": "token"}},
            "serverType": "cx23",
            "datacenter": "fsn1-dc14",
            "networks": [network],
            "placementGroupPrefix": "workers",
        },
        "operatingSystem": "ubuntu",
    }
    spec = {"providerSpec": {"value": value}, "versions": {"kubelet": "1.35.1"}}
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": "MachineDeployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


CHANGE = {
    "versions": {"kubelet": "1.36.0"},
    "providerSpec": {
        "value": {
            "operatingSystem": "rockylinux",
            "operatingSystemSpec": None,
            "cloudProviderSpec": {"location": None, "datacenter": "nbg1-dc3"},
        }
    },
}
"""Merge patch of the spec in the template; three of its fields have other values when stored."""


class Workers:
    """The machines of the deployment `web`, whose kubelets register their nodes."""

    def __init__(self, env: Environment, vendor: Hcloud, proxy: FaultProxy) -> None:
        self._cluster, self._vendor, self._proxy = env.cluster, vendor, proxy
        self._registered: set[str] = set()

    async def stored(self, location: str) -> None:
        """Check the defaults in the stored deployment."""
        spec = (await self._cluster.get(f"{DEPLOYMENTS}/web") or {})["spec"]
        assert spec["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        }
        assert spec["progressDeadlineSeconds"] == 600
        value = spec["template"]["spec"]["providerSpec"]["value"]
        assert value["operatingSystemSpec"] == {"distUpgradeOnBoot": False}
        assert value["cloudProviderSpec"]["location"] == location
        assert "datacenter" not in value["cloudProviderSpec"]

    async def revision(self, number: int) -> None:
        """Wait until the deployment has a revision, whose user data is then written."""

        async def noted() -> bool:
            meta = (await self._cluster.get(f"{DEPLOYMENTS}/web") or {})["metadata"]
            return bool(meta.get("annotations", {}).get(names.ANNOTATION_REVISION) == str(number))

        await wait_for(noted, f"revision {number}")
        await kubermatic.write_user_data(self._cluster, "web", number)

    async def run(self, count: int, kubelet: str, *, least: int = 0) -> None:
        """Wait until all machines run this kubelet, and the status of the deployment says so.

        Until then at least `least` machines run, and at most one more than `count` exist.
        """

        async def settled() -> bool:
            machines = [
                machine
                for machine in await self._cluster.items(MACHINES)
                if "deletionTimestamp" not in machine["metadata"]
            ]
            running = [machine for machine in machines if phase(machine) == "Running"]
            if least:
                assert len(running) >= least
                assert len(machines) <= count + 1
            for machine in machines:
                await self._register(machine)
            versions = [machine["spec"]["versions"]["kubelet"] for machine in running]
            if versions != [kubelet] * count or len(machines) != count:
                return False
            deployment = await self._cluster.get(f"{DEPLOYMENTS}/web") or {}
            status = deployment.get("status", {})
            counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
            is_current = status.get("observedGeneration") == deployment["metadata"]["generation"]
            held = self._vendor.held()
            nodes = await self._cluster.items(NODES)
            return (
                is_current
                and [status.get(name) for name in counts] == [count] * 4
                and held["servers"] == len(nodes) == count
            )

        await wait_for(settled, f"{count} machines run {kubelet}", within_s=PHASE_S)

    def check_cloud(self, count: int, image: str, location: str) -> None:
        """Check what the cloud holds for the machines."""
        cloud, network = self._vendor.fake.cloud, self._vendor.network["id"]
        found = Counter(
            (server["image"]["name"], server["location"]["name"], server["status"])
            for server in cloud.servers.values()
        )
        assert found == {(image, location, "running"): count}
        assert len(cloud.ssh_keys) == count
        for server in cloud.servers.values():
            assert [one["network"] for one in server["private_net"]] == [network]
        groups = list(cloud.placement_groups.values())
        assert all(group["name"].startswith("workers-") for group in groups)
        members = [number for group in groups for number in group["servers"]]
        assert sorted(members) == sorted(cloud.servers)

    def orders(self) -> Counter[str]:
        """The successful creations of servers, by user data."""
        requests = self._proxy.requests(Match(method="POST", path="/servers$"))
        return Counter(
            json.loads(one.body)["user_data"] for one in requests if one.upstream_status == 201
        )

    async def gone(self) -> None:
        """Wait until no object is left."""

        async def nothing() -> bool:
            paths = (DEPLOYMENTS, SETS, MACHINES, NODES)
            return not any([await self._cluster.items(path) for path in paths])

        await wait_for(nothing, "all objects are gone", within_s=PHASE_S)

    async def _register(self, machine: dict[str, Any]) -> None:
        name, provider_id = machine["metadata"]["name"], machine["spec"].get("providerID")
        if provider_id and name not in self._registered:
            self._registered.add(name)
            await self._cluster.register(name, ready=STATUS_TRUE, providerID=provider_id, taints=[])


async def timed(what: str, work: Awaitable[None]) -> None:
    began = time.monotonic()
    await work
    print(f"{what}: {time.monotonic() - began:.1f} s")


@pytest.mark.row("kubermatic-acceptance-01")
@pytest.mark.slow
@pytest.mark.timeout(900)
@servers.only_real
async def test_a_deployment_created_through_the_webhook_is_updated_scaled_and_leaves_nothing(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """The machines need two placement groups."""
    count, vendor, port = 20, Hcloud(), process.pick_port()
    async with vendor.opened(api_server, tmp_path) as (env, proxy):
        await kubermatic.install(env)
        token = base64.b64encode(vendor.fake.token.encode()).decode()
        secret = {"metadata": {"name": "hetzner"}, "data": {"token": token}}
        await env.cluster.create(SECRETS, secret)
        serving = test_webhook.serving_flags(env, port, "kubermatic-machines")
        daemon = await env.start_leading(flags={**vendor.how["flags"], **FLAGS, **serving})
        await daemon.says("serving webhooks")
        person, workers = test_webhook.Person(env), Workers(env, vendor, proxy)
        manifest = shipped.KUBERMATIC_WEBHOOK / "webhook.yaml"
        body = new_deployment(vendor.network["name"], count)
        create = ("create", "-n", NAMESPACE, "-f", "-")
        web = (f"machinedeployments.{names.GROUP}", "web", "-n", NAMESPACE)

        async with test_webhook.registered(env, person, port, manifest):

            async def is_served() -> bool:
                dry = ("--dry-run=server", "-o", "json")
                return "distUpgradeOnBoot" in (await person.does(*create, *dry, stdin=body))[1]

            await wait_for(is_served, "the API server calls the webhook")
            await person.succeeds(*create, stdin=body)
            await workers.stored("fsn1")
            await workers.revision(1)
            await timed("creation", workers.run(count, "1.35.1"))
            workers.check_cloud(count, "ubuntu-24.04", "fsn1")

            patch = json.dumps({"spec": {"template": {"spec": CHANGE}}})
            await person.succeeds("patch", *web, "--type=merge", "-p", patch)
            await workers.stored("nbg1")
            await workers.revision(2)
            await timed("rolling update", workers.run(count, "1.36.0", least=count))
            workers.check_cloud(count, "rocky-9", "nbg1")

            await person.succeeds("scale", *web, "--replicas=3")
            await timed("scale to 3", workers.run(3, "1.36.0"))
            workers.check_cloud(3, "rocky-9", "nbg1")

            # Without garbage collector, the finalizer has to stay until the machines are gone.
            await person.succeeds("delete", *web, "--cascade=foreground", "--wait=false")
            await timed("deletion", workers.gone())
        assert {kind: number for kind, number in vendor.held().items() if number} == {}
        orders = {text.splitlines()[-1]: number for text, number in workers.orders().items()}
        assert orders == {"# of revision 1": count, "# of revision 2": count}
        assert await daemon.stop() == 0

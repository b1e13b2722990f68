"""Kubermatic's machine-controller at the Hetzner Cloud: taken over from it, and handed back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ccm.cloud.kubermatic import MADE_UP_ID
from ccm.kubermatic import names
from ccm.model.times import format_micro_time
from providers.hcloud.testing import servers as hcloud
from tests import servers
from tests.scenario import harness
from tests.scenario.harness import NODES, Environment, wait_for
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

"""Pods are evicted from nodes before both API servers; budgets are counted by the real controller
where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.cloud import Cloud
from ccm.cloud.calls.handle import Handle
from ccm.controllers.machine.drain import Drainer
from ccm.gardener import codec
from ccm.gardener.world import World
from ccm.kube import metrics
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.informer import Informers
from ccm.kube.transport import Transport
from ccm.machines.draining import DrainState, DrainTask
from ccm.machines.settings import Settings
from ccm.model import ObjectMeta
from ccm.model.machines import Machine
from ccm.sandbox import podlife, realserver
from tests import servers
from tests.envtest import assets, controllers
from tests.scenario.harness import wait_for
from tests.unit.controllers.drains import VolumeDriver
from tests.waiting import DEADLINE_S

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
GRACE_S = 1
"""The Pods'."""

FEW, MANY = 4, 50
"""Nodes."""


class Cluster:
    """Nodes with Pods, whoever is asked about them.

    A Pod that is on its way out is replaced on the node `other`, as a ReplicaSet would.
    """

    def __init__(self, session: aiohttp.ClientSession, drainer: Drainer, informers: Informers):
        self.session = session
        self.drainer = drainer
        self.least = sys.maxsize
        """Fewest Pods that were ready at any time."""
        self._pods = informers.of(podlife.PODS)
        self._pods.add_handler(name="cluster", on_update=self._changed)
        self._leaving: asyncio.Queue[str] = asyncio.Queue()

    def _changed(self, old: podlife.LivePod, new: podlife.LivePod) -> None:
        ready = [one for one in self._pods.store.list() if one.is_ready and not one.is_deleting]
        self.least = min(self.least, len(ready))
        if new.is_deleting and not old.is_deleting:
            self._leaving.put_nowait(new.name)

    async def replace(self) -> None:
        """Without end."""
        while True:
            await self.pod(f"{await self._leaving.get()}-again", "other")

    async def create(self, path: str, body: dict[str, Any]) -> None:
        async with self.session.post(path, json=body) as response:
            assert response.status == 201, await response.text()

    async def node(self, name: str) -> None:
        await self.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
        body = {"status": {"conditions": [ready]}}
        path = f"{NODES}/{name}/status"
        async with self.session.patch(path, json=body, headers=STRATEGIC) as response:
            assert response.status == 200, await response.text()

    async def pod(self, name: str, node: str, *claims: str, **labels: str) -> None:
        spec = {
            "nodeName": node,
            "volumes": [
                {"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims
            ],
            "terminationGracePeriodSeconds": GRACE_S,
            "containers": [{"name": "c", "image": "i"}],
        }
        metadata: dict[str, Any] = {"name": name, "labels": {"app": "web", **labels}}
        if claims:
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "o", "uid": "o"}
            metadata["ownerReferences"] = [owner | {"controller": True}]
        await self.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )

    async def volume(self, name: str, node: str) -> None:
        """A volume that is attached to a node, and its claim."""
        size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
        csi = {"driver": "ours", "volumeHandle": f"handle-{name}"}
        spec = {"capacity": size, "accessModes": modes, "csi": csi, "storageClassName": "s"}
        await self.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
        wanted = {"accessModes": modes, "resources": {"requests": size}, "volumeName": name}
        spec = {**wanted, "storageClassName": "s"}
        await self.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        await self.attach(name, node)

    async def attach(self, name: str, node: str, *others: str) -> None:
        """To a node that has these volumes beside it."""
        source = {"persistentVolumeName": name}
        spec = {"attacher": "ours", "nodeName": node, "source": source}
        await self.create(ATTACHMENTS, {"metadata": {"name": f"{name}-{node}"}, "spec": spec})
        await self.status(f"{ATTACHMENTS}/{name}-{node}", attached=True)
        await self.mount(node, name, *others)

    async def mount(self, node: str, *volumes: str) -> None:
        """The node says that it has these, and no others."""
        attached = [
            {"name": f"kubernetes.io/csi/ours^handle-{one}", "devicePath": ""} for one in volumes
        ]
        await self.status(f"{NODES}/{node}", volumesAttached=attached)

    async def status(self, path: str, **status: Any) -> None:
        merge = {"Content-Type": "application/merge-patch+json"}
        body = {"status": status}
        async with self.session.patch(f"{path}/status", json=body, headers=merge) as response:
            assert response.status == 200, await response.text()

    async def budget(self, name: str, minimum: int) -> None:
        selector = {"matchLabels": {"app": "web"}}
        await self.create(
            BUDGETS,
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name},
                "spec": {"minAvailable": minimum, "selector": selector},
            },
        )

    async def items(self, path: str) -> list[dict[str, Any]]:
        async with self.session.get(path) as response:
            return list((await response.json())["items"])

    async def pods(self) -> set[str]:
        return {one["metadata"]["name"] for one in await self.items(PODS)}

    async def ready(self, count: int) -> bool:
        """As many Pods are ready, and budgets know it."""
        pods = await self.items(PODS)
        conditions = [one["status"].get("conditions") or () for one in pods]
        are = sum(any(each["type"] == "Ready" for each in one) for one in conditions)
        counted = [one["status"].get("expectedPods") for one in await self.items(BUDGETS)]
        healthy = [one["status"].get("currentHealthy") for one in await self.items(BUDGETS)]
        return are == count and all(one == count for one in (*counted, *healthy))

    async def evict(self, name: str, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
            **more,
        }
        async with self.session.post(f"{PODS}/{name}/eviction", json=body) as response:
            return response.status, await response.json()

    def drain(self, node: str) -> None:
        metadata = ObjectMeta(name=node, namespace="default", uid=f"uid-{node}")
        machine = Machine(metadata=metadata, created=datetime.now(UTC), class_name="small")
        task = DrainTask(machine=machine, node_name=node, force=False, deadline=None)
        self.drainer.start(task, lambda: None)

    def states(self, *nodes: str) -> set[DrainState]:
        found = (self.drainer.progress(f"uid-{node}") for node in nodes)
        return {one.state for one in found if one is not None}


@pytest_asyncio.fixture
async def cluster(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(servers.connect(api_server))
        config = load(kubeconfig=str(api_server.kubeconfig_path))
        transport = await stack.enter_async_context(Transport(config))
        client = Client(transport)
        informers = Informers(client)
        world = World(
            informers=informers,
            client=client,
            caller=Handle(Cloud(name="fake", machines=VolumeDriver(), has_cluster_id=True)),
            namespace="default",
            settings=Settings(names=codec.NAMES),
        )
        assert world.nodes is not None
        drainer = Drainer(world=world, client=client)
        cluster = Cluster(session, drainer, informers)
        runs = [
            informers.run(),
            podlife.PodLife(informers, client).run(),
            drainer.tend(),
            cluster.replace(),
        ]
        if isinstance(api_server, realserver.RealServer):
            try:
                folder = tmp_path / "controllers"
                manager = controllers.open_controllers(api_server, folder, "disruption")
                await stack.enter_async_context(manager)
            except assets.AssetsError as trouble:
                servers.leave_out(str(trouble))
        else:
            runs.append(podlife.Disruption(informers, client).run())

        async def work() -> None:
            async with Group() as group:
                for number, each in enumerate(runs):
                    group.start(each, name=f"cluster-{number}")

        task = spawn(work(), name="cluster")
        try:
            await informers.wait_synced(DEADLINE_S)
            yield cluster
        finally:
            await cancel_and_join(task)
    await servers.wipe(api_server)


@pytest.mark.both_servers
@pytest.mark.row("machine-drain-14")
async def test_what_a_budget_says_to_an_eviction(cluster: Cluster) -> None:
    await cluster.node("a")
    for name in ("p0", "p1", "p2"):
        await cluster.pod(name, "a")
    await wait_for(lambda: cluster.ready(3), "Pods are ready")
    status, said = await cluster.evict("p0", deleteOptions={"preconditions": {"uid": "other"}})
    assert (status, said["reason"]) == (409, "Conflict")
    status, said = await cluster.evict("nobody")
    assert (status, said["reason"]) == (404, "NotFound")
    await cluster.budget("web", 2)
    await wait_for(lambda: cluster.ready(3), "Pods are counted")
    await wait_for(lambda: _evicted(cluster, "p0"), "an eviction is allowed")
    status, said = await cluster.evict("p1")
    assert (status, said["reason"]) == (429, "TooManyRequests")
    assert said["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = said["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"].startswith("The disruption budget web ")

    await cluster.budget("two", 0)
    status, said = await cluster.evict("p1")
    assert (status, said["code"], said["status"]) == (500, 500, "Failure")
    assert said["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
        "support."
    )


async def _evicted(cluster: Cluster, name: str) -> bool:
    status, said = await cluster.evict(name)
    assert status in (201, 429), said
    return status == 201


async def drained(cluster: Cluster, count: int, *, away: int) -> float:
    """Drain so many nodes with two Pods each, of which a budget lets some be away; the seconds."""
    nodes = [f"n{number}" for number in range(count)]
    names = [f"{name}-{number}" for name in nodes for number in range(2)]
    for name in ("other", *nodes):
        await cluster.node(name)
    for name in names:
        await cluster.pod(name, name.partition("-")[0])
    await cluster.budget("web", len(names) - away)
    await wait_for(lambda: cluster.ready(len(names)), "Pods are ready and counted")
    cluster.least = len(names)
    began = time.monotonic()
    for name in nodes:
        cluster.drain(name)

    async def done() -> bool:
        assert DrainState.FAILED not in cluster.states(*nodes)
        return cluster.states(*nodes) == {DrainState.DONE}

    await wait_for(done, "nodes are drained", within_s=90)
    took_s = time.monotonic() - began
    assert await cluster.pods() == {f"{name}-again" for name in names}
    assert cluster.least >= len(names) - away
    found = {one["metadata"]["name"]: one for one in await cluster.items(NODES)}
    assert {name for name, one in found.items() if one["spec"].get("unschedulable")} == {*nodes}
    return took_s


@pytest.mark.both_servers
@pytest.mark.row("machine-drain-14")
async def test_nodes_are_drained_as_a_budget_allows(cluster: Cluster) -> None:
    assert await drained(cluster, FEW, away=3) >= GRACE_S


@pytest.mark.both_servers
@pytest.mark.row("machine-drain-04")
async def test_volumes_are_waited_for(cluster: Cluster) -> None:
    for name in ("a", "other"):
        await cluster.node(name)
    for name in ("v0", "v1"):
        await cluster.volume(name, "a")
        await cluster.pod(name, "a", name)
    await cluster.mount("a", "v0", "v1")
    await wait_for(lambda: cluster.ready(2), "Pods are ready")
    cluster.drain("a")

    async def said(words: str) -> bool:
        progress = cluster.drainer.progress("uid-a")
        return progress is not None and words in progress.said

    await wait_for(lambda: said("waits for v0 to be detached"), "one Pod is gone")
    assert "v1" in await cluster.pods()
    await cluster.mount("a", "v1")
    await wait_for(lambda: said("waits for v0 to be attached to another node"), "it is detached")
    await cluster.attach("v0", "other")
    await wait_for(lambda: said("waits for v1 to be detached"), "the other Pod is gone")
    await cluster.mount("a")
    await cluster.attach("v1", "other", "v0")

    async def done() -> bool:
        return cluster.states("a") == {DrainState.DONE}

    await wait_for(done, "the node is drained")


def evictions() -> int:
    """Requests for one so far."""
    return int(metrics.writes("pods/eviction")._value.get())


@pytest.mark.soak
@pytest.mark.row("machine-drain-28")
async def test_fifty_nodes_are_drained(cluster: Cluster) -> None:
    before = evictions()

    took_s = await drained(cluster, MANY, away=25)

    asked = evictions() - before
    print(f"{MANY} nodes with two Pods each drained in {took_s:.1f} s, grace {GRACE_S} s")
    print(f"{asked} evictions, of which {asked - 2 * MANY} were refused")
    assert took_s < GRACE_S + 10

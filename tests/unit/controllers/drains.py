"""A small world for drains: an API server in memory, Pods that run and end, budgets that count."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.machines import GetVolumeIDsRequest
from ccm.controllers.machine.drain import Drainer
from ccm.gardener.codec import MACHINES
from ccm.kube.errors import Forbidden
from ccm.machines import drain
from ccm.machines.drain import DrainProgress, DrainState, DrainTask
from ccm.machines.driver import SharedComponents
from ccm.model.times import format_time
from ccm.testing.clock import advance
from tests.unit.controllers.machines import NODES_PATH, FakeDriver, World
from tests.unit.controllers.memory_server import MemoryServer

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
GRACE_S = 5
SLOP_S = 1.0
"""Who waits for the end of Pods hears of it a little later."""


class Server(MemoryServer):
    """An API server that may be too old for evictions."""

    evicts = True
    lists_pods = True

    def __init__(self) -> None:
        super().__init__()
        self.watches: set[object] = set()
        """Those that are open."""
        self.opened: Counter[str] = Counter()
        """Watches so far, by path."""
        self.accepted: Counter[str] = Counter()
        """How often each Pod's eviction was accepted."""
        self.newer: dict[str, dict[str, Any]] = {}
        """Path -> an object as it is, of which no watch has told yet."""

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **rest: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        if path == "/api/v1/pods" and not self.lists_pods:
            raise Forbidden(status=403, reason="Forbidden", message="pods is forbidden")
        mark = object()
        self.opened[path] += 1
        self.watches.add(mark)
        try:
            async with super().stream(path, **rest) as lines:
                yield lines
        finally:
            self.watches.discard(mark)

    def kill(self, path: str) -> None:
        """Delete a Pod with no grace, behind everybody's back."""
        self._told("DELETE", path, {"gracePeriodSeconds": 0})

    def answer(self, method: str, path: str, *rest: Any) -> bytes:
        if path == "/api/v1/pods" and not self.lists_pods:
            raise Forbidden(status=403, reason="Forbidden", message="pods is forbidden")
        if method == "GET" and path in self.newer:
            return msgspec.json.encode(self.newer[path])
        found = super().answer(method, path, *rest)
        if path.endswith("/eviction"):
            self.accepted[path.split("/")[-2]] += 1
        if path == "/api/v1" and not self.evicts:
            return found.replace(b"pods/eviction", b"pods/nothing")
        return found


class VolumeDriver(FakeDriver):
    """Knows the volumes of one CSI driver."""

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        self.calls["get_volume_ids"] += 1
        if (fault := self.faults.get("get_volume_ids")) is not None:
            assert isinstance(fault, errors.CloudError)
            raise fault
        found = [one.get("csi") or {} for one in req.pv_specs]
        return [one["volumeHandle"] for one in found if one.get("driver") == "ours"]


class Drains(World):
    """Nodes with Pods, and a Drainer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.server: Server = Server()
        self.define()
        self.driver = VolumeDriver()
        self.settings = drain.DrainSettings(**settings)
        self.woken = 0
        self.moves: float | None = None
        """Seconds after which a volume that nobody uses is detached, and then attached to `m1`."""
        self.drainer: Drainer
        self.node()

    def draining(self, *, counting: bool = True) -> AbstractAsyncContextManager[World]:
        """A Drainer, kubelets and, unless told otherwise, a disruption controller at work."""
        return self.running("drainer", "pods", "volumes", *(("disruption",) if counting else ()))

    @contextlib.asynccontextmanager
    async def started(self, **rules: Any) -> AsyncIterator[None]:
        """The drain of `m0` has begun."""
        async with self.draining():
            await advance(1)
            self.start(**rules)
            yield

    def _drainer(self, shared: SharedComponents, _client: Any) -> Any:
        self.drainer = Drainer(shared=shared, settings=self.settings, events=self)
        return SimpleNamespace(run=self.drainer.run_until_cancelled)

    def _volumes(self, _shared: SharedComponents, _client: Any) -> Any:
        return SimpleNamespace(run=self._move_volumes)

    def start(self, name: str = "m0", **rules: Any) -> None:
        """Begin the drain of a machine's node, or ask for it again."""
        self.drainer.start(self.task(name, **rules), self._woken)

    def task(
        self,
        name: str = "m0",
        *,
        timeout_s: float | None = None,
        retries: int | None = None,
        **rules: Any,
    ) -> DrainTask:
        """The drain of a machine's node."""
        if not self.get(name):
            self.machine(name)
        machine = MACHINES.decode(msgspec.json.encode(self.get(name)))
        deadline = None if timeout_s is None else clock.now() + timedelta(seconds=timeout_s)
        return DrainTask(
            machine=machine,
            node_name=name,
            deadline=deadline,
            max_evict_retries=retries,
            **{"force": False, **rules},
        )

    async def _move_volumes(self) -> None:
        """The attach-detach controller; one volume after the other."""
        while True:
            await asyncio.sleep(0.5)
            for name in [one.rpartition("handle-")[2] for one in self.attached("m0")]:
                if self.moves is not None and name not in self._used():
                    await asyncio.sleep(self.moves)
                    self.detach(name)
                    await asyncio.sleep(self.moves)
                    self.attach(name, node="m1")

    def _used(self) -> set[str]:
        return {
            volume["persistentVolumeClaim"]["claimName"]
            for pod in self.server.list(PODS)
            for volume in pod["spec"].get("volumes", ())
            if "persistentVolumeClaim" in volume
        }

    def _woken(self) -> None:
        self.woken += 1

    def progress(self, name: str = "m0") -> DrainProgress:
        """How far its drain is."""
        found = self.drainer.progress(self.get(name)["metadata"]["uid"])
        assert found is not None
        return found

    def state(self, name: str = "m0") -> DrainState:
        """How far its drain is, in a word."""
        return self.progress(name).state

    # --- objects ----------------------------------------------------------------------------

    def pod(
        self,
        name: str,
        *,
        node: str = "m0",
        claims: Sequence[str] = (),
        owner: str = "",
        grace_s: int | None = GRACE_S,
        **more: Any,
    ) -> dict[str, Any]:
        """A Pod on a node."""
        metadata: dict[str, Any] = {"name": name, "labels": {"app": "web"}}
        metadata |= more.pop("metadata", {})
        if owner:
            of = {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u"}
            metadata["ownerReferences"] = [of | {"controller": True}]
        volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
        spec = {
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}, *volumes],
            **more,
        }
        if grace_s is not None:
            spec["terminationGracePeriodSeconds"] = grace_s
        return self.server.put(PODS, {"metadata": metadata, "spec": spec})

    def pods(self) -> list[str]:
        """Names of those that are there."""
        return [one["metadata"]["name"] for one in self.server.list(PODS)]

    def volume(self, name: str, *, node: str = "m0", driver: str = "ours") -> None:
        """A bound claim and its volume; attached to the node."""
        csi = {"driver": driver, "volumeHandle": f"handle-{name}"}
        self.server.put(VOLUMES, {"metadata": {"name": f"pv-{name}"}, "spec": {"csi": csi}})
        self.server.put(CLAIMS, {"metadata": {"name": name}, "spec": {"volumeName": f"pv-{name}"}})
        self.attach(name, node=node)

    def attach(self, name: str, *, node: str) -> None:
        """The volume is attached to a node, and the node says so."""
        source = {"persistentVolumeName": f"pv-{name}"}
        spec = {"attacher": "ours", "nodeName": node, "source": source}
        path = f"{ATTACHMENTS}/{name}-{node}"
        self.server.put(ATTACHMENTS, {"metadata": {"name": f"{name}-{node}"}, "spec": spec})
        self.server.patch(f"{path}/status", {"status": {"attached": True}})
        self._attached(node, [*self.attached(node), f"kubernetes.io/csi/ours^handle-{name}"])

    def detach(self, name: str, *, node: str = "m0") -> None:
        """It is attached there no longer."""
        self.server.drop(f"{ATTACHMENTS}/{name}-{node}")
        self._attached(node, [one for one in self.attached(node) if not one.endswith(f"-{name}")])

    def attached(self, node: str) -> list[str]:
        """What a node says."""
        found = self.node_object(node).get("status", {}).get("volumesAttached", ())
        return [one["name"] for one in found]

    def _attached(self, node: str, names: Sequence[str]) -> None:
        if self.node_object(node):
            listed = [{"name": one, "devicePath": ""} for one in names]
            path = f"{NODES_PATH}/{node}/status"
            self.server.patch(path, {"status": {"volumesAttached": listed}})

    def budget(self, name: str = "web", **spec: Any) -> None:
        """A budget over all Pods with the label that they have."""
        spec["selector"] = {"matchLabels": {"app": "web"}}
        self.server.put(BUDGETS, {"metadata": {"name": name}, "spec": spec})

    def sick(self, name: str = "m0", *, since_s: float = 0.0, **conditions: str) -> None:
        """A node has had these conditions for so long."""
        moment = format_time(clock.now() - timedelta(seconds=since_s))
        told = [
            {"type": kind, "status": status, "lastTransitionTime": moment}
            for kind, status in conditions.items()
        ]
        path = f"{NODES_PATH}/{name}/status"
        strategic = "application/strategic-merge-patch+json"
        self.server.patch(path, {"status": {"conditions": told}}, strategic)

    def evictions(self) -> int:
        """Requests for an eviction so far."""
        return sum(
            count for (_, path), count in self.server.requests.items() if "/eviction" in path
        )


async def drained(world: Drains, *, within_s: float) -> float:
    """Let a drain begin and end; the seconds it took."""
    began = clock.monotonic()
    world.start()
    for _ in range(int(within_s * 10)):
        await advance(0.1)
        if world.state() is not DrainState.RUNNING:
            break
    assert world.state() is DrainState.DONE, world.progress()
    return clock.monotonic() - began


def plain(world: Drains, count: int, **more: Any) -> None:
    for number in range(count):
        world.pod(f"p{number}", **more)


def with_volumes(world: Drains, *claims: tuple[str, ...], **more: Any) -> None:
    for name in sorted({one for each in claims for one in each}):
        world.volume(name)
    for number, each in enumerate(claims):
        world.pod(f"v{number}", claims=each, owner="StatefulSet", **more)


def both(world: Drains, **more: Any) -> None:
    plain(world, 10, **more)
    with_volumes(world, ("a",), ("b",), **more)


def unhealthy(world: Drains) -> None:
    """A Pod that is not ready: as long as there is one, no budget is misconfigured."""
    world.node("m2", ready="False")
    world.pod("unhealthy", node="m2")

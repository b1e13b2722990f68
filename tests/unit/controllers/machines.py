"""A small world for the machine controllers: an API server in memory, a scripted cloud."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from ccm.base import clock
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.cloud import Cloud, errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.kubermatic import used_variables
from ccm.cloud.machines import (
    DeleteMachineResponse,
    Driver,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    check_owner,
    find_record,
)
from ccm.controllers.machine.controller import MachineController
from ccm.controllers.machine.drain import Drainer
from ccm.controllers.machineclass import MachineClassController
from ccm.controllers.machinedeployment.controller import MachineDeploymentController
from ccm.controllers.machineovershoot import MachineOvershootController, Margins
from ccm.controllers.machinesafety import MachineSafetyController
from ccm.controllers.machineset.controller import MachineSetController
from ccm.gardener import crds, names
from ccm.gardener.codec import CODEC
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import CRDS
from ccm.machines import reasons
from ccm.machines.caches import Caches, TargetCluster
from ccm.machines.codec import Codec
from ccm.machines.crdguard import CRDGuard
from ccm.machines.drain import DrainProgress, DrainState, DrainTask
from ccm.machines.driver import SharedComponents
from ccm.machines.settings import MachineSettings
from ccm.model import ObjectReference
from ccm.model.times import format_time
from ccm.runtime.controller import Runnable
from ccm.sandbox import kubelet
from ccm.testing.apiserver import kinds
from ccm.testing.clock import advance, settle
from tests.unit.controllers.memory_server import STRATEGIC, MemoryServer

BASE = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SECRETS_PATH = "/api/v1/namespaces/default/secrets"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
NODES_PATH = "/api/v1/nodes"
CLUSTER = "ours"
USER_DATA = "name: <<MACHINE_NAME>>\ntoken: <<BOOTSTRAP_TOKEN>>\n"


class FakeDriver(Driver[None]):
    """VMs in memory, by provider ID.

    `faults` are raised by a method, each once in turn, or always if it is no list; `seconds` lasts
    each call.
    """

    finds = True
    """Whether a creation finds the VM that an earlier one made."""

    def __init__(self) -> None:
        super().__init__(None)
        self.vms: dict[str, MachineRecord] = {}
        self.given: dict[str, MachineRequest] = {}
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, errors.CloudError | list[errors.CloudError | None]] = {}
        self.seconds = 0.0
        self.node_name: Callable[[MachineRequest], str] = lambda req: req.identity.name
        self.deleted: list[str] = []
        self.hides: set[str] = set()
        self._numbers = itertools.count()

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        await self._called("create_machine", req)
        for record in self.vms.values() if self.finds else ():
            if record.identity.uid == req.identity.uid:
                return record.info
        # No ID is used twice, as in a cloud: a lost VM is replaced before its Machine is gone.
        number = next(self._numbers)
        info = MachineInfo(
            provider_id=f"fake:///{number}", node_name=self.node_name(req), last_known_state=None
        )
        self.add(req.identity, info)
        return info

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        await self._called("initialize_machine", req)
        found = self._owned(req)
        self.vms[req.provider_id] = replace(found, initialized=True)
        return found.info

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        await self._called("delete_machine", req)
        if req.provider_id in self.vms:
            self._owned(req)
        for key, record in list(self.vms.items()):
            by_identity = not req.provider_id and find_record([record], req.identity)
            if key == req.provider_id or by_identity:
                del self.vms[key]
                self.deleted.append(key)
        return DeleteMachineResponse()

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        await self._called("get_machine_status", req)
        return self._owned(req).info

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        found = list(self.vms.values())  # as it was when it began
        await self._called("list_machines", None)
        return [one for one in found if one.info.provider_id not in self.hides]

    def _owned(self, req: MachineRequest) -> MachineRecord:
        if (record := self.vms.get(req.provider_id)) is None:
            raise errors.NotFound(req.provider_id)
        check_owner(req, record.identity)
        return record

    def add(
        self, identity: Identity, info: MachineInfo | None = None, **more: Any
    ) -> MachineRecord:
        """A VM is there."""
        info = info or MachineInfo(provider_id=f"fake:///{identity.name}", node_name=identity.name)
        record = MachineRecord(identity=identity, info=info, **{"created": clock.now(), **more})
        self.vms[info.provider_id] = record
        return record

    async def _called(self, method: str, req: MachineRequest | None) -> None:
        self.calls[method] += 1
        if req is not None:
            self.given[method] = req
        if self.seconds:
            await asyncio.sleep(self.seconds)
        fault = self.faults.get(method)
        if isinstance(fault, list):
            fault = fault.pop(0) if fault else None
        if fault is not None:
            raise fault.with_traceback(None)


class FakeDrains:
    """Empties nodes by doing nothing, `seconds` long; `fails` are what it says instead."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.fails: list[str] = []
        self.tasks: list[DrainTask] = []
        self.stopped: list[str] = []
        self._running: dict[str, DrainProgress] = {}

    def start(self, task: DrainTask, wake: Callable[[], None]) -> None:
        self.tasks.append(task)
        uid = task.machine.uid
        going = DrainProgress(
            state=DrainState.RUNNING, message="2 Pods are left", forced=task.force
        )
        self._running[uid] = going
        if self.seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(self.seconds, lambda: self._end(uid, going, wake))
        else:
            self._end(uid, going, lambda: None)

    def progress(self, uid: str) -> DrainProgress | None:
        return self._running.get(uid)

    def states(self) -> list[tuple[str, float]]:
        return []

    async def stop(self, uid: str) -> None:
        if self._running.pop(uid, None) is not None:
            self.stopped.append(uid)

    async def run_until_cancelled(self) -> None:
        await asyncio.get_running_loop().create_future()

    def finish(self, uid: str, said: str) -> None:
        """A drain ends, and nobody is told; it failed if it says why."""
        self._running[uid] = DrainProgress(
            state=DrainState.FAILED if said else DrainState.DONE, message=said
        )

    def _end(self, uid: str, going: DrainProgress, wake: Callable[[], None]) -> None:
        if self._running.get(uid) is not going:
            return
        said = self.fails.pop(0) if self.fails else ""
        state = DrainState.FAILED if said else DrainState.DONE
        self._running[uid] = replace(going, state=state, message=said)
        wake()


class World:
    """An API server, a cloud, and the controllers between them."""

    codec: Codec = CODEC

    def __init__(self, server: MemoryServer | None = None, **rules: Any) -> None:
        self.server = server or MemoryServer()
        self.driver = FakeDriver()
        self.drains = FakeDrains()
        self.drains_really = False
        self.made: dict[str, Runnable] = {}
        self.events: list[tuple[str, str]] = []
        self.rules = {
            "unhealthy_conditions": reasons.UNHEALTHY_CONDITIONS,
            "exhausted_retry_s": 600.0,
            **rules,
        }
        self.period_s = 900.0
        self.turns = 5
        self.cluster = CLUSTER
        self.shared: SharedComponents | None = None
        self.target: MemoryServer | None = None
        """The cluster that machines join, if it is another one."""
        self.informers: list[SharedInformers] = []
        self._lived: set[str] = set()
        self.define()

    def define(self) -> None:
        """The server serves our kinds."""
        for one in crds.DEFINITIONS:
            made = self.server.put(DEFINITIONS, dict(one.to_manifest()))
            # Older than any object, whatever clock the fixture has that makes this world.
            made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
            self.server.store.put(kinds.DEFINITIONS, made["metadata"]["name"], made)

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """As a recorder."""
        self.events.append((reason, message))

    @property
    def caches(self) -> Caches:
        """Caches of the controllers that were started last."""
        assert self.shared is not None
        return self.shared.caches

    def reasons(self) -> list[str]:
        """Reasons of all events so far."""
        return [reason for reason, _ in self.events]

    def cloud(self) -> Cloud:
        """The cloud that the controllers call."""
        return Cloud(name="fake", machines=self.driver, has_cluster_id=True)

    @contextlib.asynccontextmanager
    async def running(self, *which: str) -> AsyncIterator[World]:
        """The controllers at work; all of them, or those that are named."""
        task = spawn(self._run(which or ("machine", "machineclass", "machinesafety")), name="ccm")
        try:
            await settle()
            yield self
            assert not task.done(), task
        finally:
            await cancel_and_join(task)

    async def run(self, seconds: float, *which: str) -> None:
        """Have the controllers at work for a time."""
        async with self.running(*which):
            await advance(seconds)

    async def _run(self, which: Sequence[str]) -> None:
        client = self.server.client()
        informers = SharedInformers(client)
        self.informers, target = [informers], None
        if self.target is not None:
            there = self.target.client()
            target = TargetCluster(informers=SharedInformers(there), client=there)
            self.informers.append(target.informers)
        handle = CloudClient(self.cloud())
        caches = Caches(
            codec=self.codec,
            informers=informers,
            client=client,
            namespace="default",
            settings=MachineSettings(names=self.codec.names, cluster=self.cluster, **self.rules),
            providers=lambda: handle.cloud.machine_providers,
            variables=lambda *given: used_variables(handle.cloud.machines, *given),
            target=target,
        )
        self.shared = shared = SharedComponents.of(caches, handle)
        async with NamedTaskGroup() as group:
            for one in self.informers:
                group.start(one.run(), name="informers")
            await caches.ready()
            for name in (*which, *(("pods", "disruption") if self.drains_really else ())):
                made: Runnable = getattr(self, f"_{name}")(shared, client)
                self.made[name] = made
                group.start(made.run(), name=name)

    def _machine(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineController(
            shared=shared,
            guard=CRDGuard(self.codec.machines, client.resource(CRDS), self),
            drains=Drainer(shared=shared) if self.drains_really else self.drains,
            turns=self.turns,
            events=self,
            rng=random.Random(0),
        ).controller

    def _pods(self, _shared: SharedComponents, client: Any) -> Any:
        return kubelet.PodLifecycle(self.informers[0], client)

    def _disruption(self, _shared: SharedComponents, client: Any) -> Any:
        return kubelet.DisruptionController(self.informers[0], client)

    def _machineclass(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineClassController(shared=shared, events=self).controller

    def _machinesafety(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineSafetyController(
            shared=shared, events=self, period_s=self.period_s, rng=random.Random(0)
        ).controller

    def _machineset(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineSetController(
            caches=shared.caches,
            guard=CRDGuard(self.codec.machine_sets, client.resource(CRDS), self),
            events=self,
            workers=2,
            rng=random.Random(0),
        ).controller

    def _machinedeployment(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineDeploymentController(
            caches=shared.caches,
            guard=CRDGuard(self.codec.machine_deployments, client.resource(CRDS), self),
            events=self,
            settings=shared.caches.settings,
            workers=2,
            rng=random.Random(0),
        ).controller

    def _machineovershoot(self, shared: SharedComponents, client: Any) -> Runnable:
        return MachineOvershootController(
            caches=shared.caches,
            events=self,
            margins=Margins(),
            period_s=60.0,
            rng=random.Random(0),
        ).controller

    # --- objects ----------------------------------------------------------------------------

    def secret(self, name: str = "small", **data: str) -> None:
        """The Secret of a class."""
        body = {"metadata": {"name": name}, "stringData": {"userData": USER_DATA, **data}}
        self.server.put(SECRETS_PATH, body)

    def machine_class(self, name: str = "small", **more: Any) -> None:
        """A class, held as if its controller had seen it."""
        body = {
            "metadata": {"name": name, "finalizers": [names.FINALIZER]},
            "providerSpec": {"size": name},
            "secretRef": {"name": name, "namespace": "default"},
            **more,
        }
        self.server.put(f"{BASE}/machineclasses", body)

    def ready_class(self) -> None:
        """A class with its Secret."""
        self.secret()
        self.machine_class()

    def machine(self, name: str = "m0", *, status: Any = None, **more: Any) -> str:
        """A Machine; its path."""
        metadata = {"name": name, **more.pop("metadata", {})}
        spec = {"class": {"kind": "MachineClass", "name": "small"}, **more}
        self.server.put(f"{BASE}/machines", {"metadata": metadata, "spec": spec})
        path = f"{BASE}/machines/{name}"
        if status is not None:
            self.server.patch(f"{path}/status", {"status": status})
        return path

    def lived(
        self,
        name: str = "m0",
        *,
        phase: str = "Running",
        group: str = "",
        operation: Any = None,
        metadata: Any = None,
        **spec: Any,
    ) -> str:
        """A Machine with a VM, and with a node that is in step if somebody makes it; its path."""
        self._lived.add(name)
        labels = {"node": name} | ({"name": group} if group else {})
        status = {
            "currentStatus": {"phase": phase, "lastUpdateTime": format_time(clock.now())},
            "lastOperation": operation or {"type": "HealthCheck", "state": "Successful"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        held = {"labels": labels, "finalizers": [names.FINALIZER], **(metadata or {})}
        path = self.machine(
            name, status=status, metadata=held, providerID=f"fake:///{name}", **spec
        )
        if isinstance(self.driver, FakeDriver):
            self.driver.add(self.identity(name))
        return path

    def node(self, name: str = "m0", *, ready: str = "True", **more: Any) -> None:
        """A node registers."""
        synced = {"labels": {names.LABEL_MACHINE_NAME: name}} if name in self._lived else {}
        metadata = {"name": name, **synced, **more.pop("metadata", {})}
        body = {"metadata": metadata, "spec": {"providerID": f"fake:///{name}", **more}}
        self.server.put(NODES_PATH, body)
        self.heartbeat(name, Ready=ready)

    def joined(self, name: str = "m0", *, ready: str = "True", **more: Any) -> str:
        """A Machine with VM and node; its path."""
        path = self.lived(name, **more)
        self.node(name, ready=ready)
        return path

    def heartbeat(self, name: str = "m0", **conditions: str) -> None:
        """A kubelet tells about its node."""
        told = [
            {"type": kind, "status": status, "lastHeartbeatTime": format_time(clock.now())}
            for kind, status in conditions.items()
        ]
        path = f"{NODES_PATH}/{name}/status"
        self.server.patch(path, {"status": {"conditions": told}}, STRATEGIC)

    def get(self, name: str = "m0") -> dict[str, Any]:
        """A Machine as it is; empty: gone."""
        return self.server.get(f"{BASE}/machines/{name}") or {}

    def status(self, name: str = "m0") -> dict[str, Any]:
        """Its status."""
        return dict(self.get(name).get("status", {}))

    def phase(self, name: str = "m0") -> str:
        """Its phase."""
        return str(self.status(name).get("currentStatus", {}).get("phase", ""))

    def operation(self, name: str = "m0") -> dict[str, Any]:
        """What was done last about it."""
        return dict(self.status(name).get("lastOperation", {}))

    def identity(self, name: str = "m0") -> Identity:
        """What its VM is marked with."""
        uid = self.get(name).get("metadata", {}).get("uid", "")
        return Identity(cluster=CLUSTER, namespace="default", pool="small", name=name, uid=uid)

    def node_object(self, name: str = "m0") -> dict[str, Any]:
        """A Node as it is; empty: gone."""
        return self.server.get(f"{NODES_PATH}/{name}") or {}


class Ready(World):
    """A world with a class and its Secret."""

    def __init__(self, *args: Any, **rules: Any) -> None:
        super().__init__(*args, **rules)
        self.ready_class()


@pytest_asyncio.fixture
async def world(request: pytest.FixtureRequest) -> World:
    """A world of the class that the test asks for."""
    kind: type[World] = request.function.__globals__[request.function.__annotations__["world"]]
    return kind()

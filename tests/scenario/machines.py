"""Machines before an API server: their class, the kubelets of their VMs, and Pods on their nodes.

`Farm` has machines one by one, and Services beside them, at a provider's fake cloud; `Fleet` a
MachineDeployment that is seen from a watch.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.gardener.names import GROUP, VERSION
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.informer import SharedInformers
from ccm.kube.transport import Transport
from ccm.model import names
from ccm.sandbox import GARDENER, kubelet, machineapis, realserver
from ccm.testing.fake_api import FakeApi
from tests import servers
from tests.envtest import assets, controllers
from tests.manifests import account, shipped
from tests.scenario import harness
from tests.scenario.harness import MACHINE_API, NODES, Cluster, Environment, missing, wait_for
from tests.waiting import DEADLINE_S

MACHINES, SETS = f"{MACHINE_API}/machines", f"{MACHINE_API}/machinesets"
DEPLOYMENTS = f"{MACHINE_API}/machinedeployments"
SERVICES = "/api/v1/namespaces/default/services"
SECRETS = "/api/v1/namespaces/default/secrets"
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
RIGHTS = shipped.MACHINE_RIGHTS
CONTROLLERS = ("machine", "machineclass", "machinesafety")
ALL_CONTROLLERS = (*CONTROLLERS, "machineset", "machinedeployment", "machineovershoot")
TYPE: Mapping[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}"}
SIM: Mapping[str, Any] = {"machineType": "small", "zone": "sim-1a", "region": "sim-1"}
"""The class of a machine of the simulated cloud."""

GRACE_S = 1
"""The Pods'."""

WITHIN_S = 180.0


# --- objects --------------------------------------------------------------------------------------


async def prepare(env: Environment) -> None:
    """Install the requirements of Machines: their CRDs, and our rights."""
    async with servers.connect(env.server) as session:
        if isinstance(env.server, realserver.RealServer):
            await account.install(session, shipped.objects(*RIGHTS))
        await harness.define(session)


async def make_class(
    cluster: Cluster, name: str, spec: Mapping[str, Any], secret: Mapping[str, bytes], **more: Any
) -> None:
    """A class of machines, and its Secret."""
    data = {key: base64.b64encode(value).decode() for key, value in secret.items()}
    await cluster.create(SECRETS, {"metadata": {"name": name}, "data": data})
    body = {
        "kind": "MachineClass",
        "metadata": {"name": name},
        "providerSpec": spec,
        "secretRef": {"name": name, "namespace": "default"},
    }
    await cluster.create(f"{MACHINE_API}/machineclasses", {**TYPE, **body, **more})


def sim_secret(token: str) -> Mapping[str, bytes]:
    """With it go the machines of a class of the simulated cloud."""
    return {"token": token.encode(), "userData": b"<<BOOTSTRAP_TOKEN>>"}


async def create(cluster: Cluster, count: int, prefix: str = "m") -> None:
    """Create Machines."""
    for number in range(count):
        body = {**TYPE, "kind": "Machine", "metadata": {"name": f"{prefix}{number}"}}
        await cluster.create(MACHINES, {**body, "spec": of("small")})


def of(kind: str) -> dict[str, Any]:
    """The spec of a machine of a class."""
    return {"class": {"kind": "MachineClass", "name": kind}}


def group(kind: str, name: str, replicas: int, made_of: str = "small", **spec: Any) -> Any:
    """A MachineSet or a MachineDeployment."""
    labels = {"name": name}
    template = {"metadata": {"labels": labels}, "spec": of(made_of)}
    common = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {**TYPE, "kind": kind, "metadata": {"name": name}, "spec": {**common, **spec}}


def rolling(surge: int = 1, unavailable: int = 1) -> Mapping[str, Any]:
    """The strategy of a deployment."""
    bounds = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


# --- machines of the simulated cloud --------------------------------------------------------------


def phase(machine: Mapping[str, Any]) -> str:
    return str(machine.get("status", {}).get("currentStatus", {}).get("phase", ""))


async def in_phase(env: Environment, wanted: str, count: int) -> list[dict[str, Any]]:
    """So many machines in a phase; empty while there are more or fewer."""
    found = [one for one in await env.cluster.items(MACHINES) if phase(one) == wanted]
    return found if len(found) == count else []


async def join(
    env: Environment, count: int, *, cluster: Cluster | None = None
) -> list[dict[str, Any]]:
    """Wait until machines have VMs, whose kubelets then register their nodes."""
    pending = await wait_for(lambda: in_phase(env, "Pending", count), "machines have VMs")
    for one in pending:
        name, where = one["metadata"]["labels"]["node"], cluster or env.cluster
        await where.register(name, providerID=one["spec"]["providerID"])
        await where.set_ready(name, "True")
    return pending


async def all_run(env: Environment, count: int) -> float:
    """Let machines become nodes; the seconds it took."""
    began = time.monotonic()
    await create(env.cluster, count)
    await join(env, count)
    await wait_for(lambda: in_phase(env, "Running", count), "machines run")
    return time.monotonic() - began


def vms(env: Environment) -> dict[str, str]:
    """The IDs of the VMs by their names."""
    return {one.name: one.id for one in env.cloud.world.snapshot()}


async def names_of(cluster: Cluster, path: str = MACHINES) -> set[str]:
    """The names of objects."""
    return {one["metadata"]["name"] for one in await cluster.items(path)}


# --- machines of a provider's fake ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A class of machines.

    Attributes:
        provider: of the class.
        spec: of the class.
        secret: that it refers to.
        whole: whether the cloud holds what so many nodes and so many Services need.
        empty: whether it holds nothing of them any more.
        ranges: Pod range of the node of a number, with `{}` for that; empty = none.
        annotations: of the Services.
    """

    provider: str
    spec: Mapping[str, Any]
    secret: Mapping[str, bytes]
    whole: Callable[[int, int], bool]
    empty: Callable[[], bool]
    ranges: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


class Farm:
    """The machines of a pool before an API server, and the Services."""

    def __init__(self, env: Environment, pool: Pool) -> None:
        self._env = env
        self._pool = pool
        self._joined: set[str] = set()
        self._lives = 0

    async def order(self, count: int) -> None:
        """Create Machines with names that no earlier life used."""
        await create(self._env.cluster, count, f"m{self._lives}-")

    async def expose(self, services: int) -> None:
        """Create Services of type LoadBalancer."""
        for number in range(services):
            port = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080 + number}
            metadata = {"name": f"web-{number}", "annotations": dict(self._pool.annotations)}
            spec = {"type": "LoadBalancer", "ports": [port]}
            await self._env.cluster.create(SERVICES, {"metadata": metadata, "spec": spec})

    async def join(self, count: int) -> None:
        """Each machine's kubelet registers its node, without a provider ID, as kubelets do."""
        cluster, known = self._env.cluster, self._joined

        async def registered() -> bool:
            for one in await cluster.items(MACHINES):
                name = one["metadata"].get("labels", {}).get("node", "")
                if name and phase(one) == "Pending" and name not in known:
                    cidr = self._pool.ranges.format(len(known))
                    ranges = {"podCIDR": cidr, "podCIDRs": [cidr]} if cidr else {}
                    await cluster.register(name, ready=names.STATUS_TRUE, **ranges)
                    known.add(name)
            return len(known) == count

        await wait_for(registered, "machines have servers", within_s=WITHIN_S)

        async def run() -> bool:
            phases = Counter(map(phase, await cluster.items(MACHINES)))
            nodes = await cluster.items(NODES)
            return phases == {"Running": count} and not any(map(missing, nodes))

        await wait_for(run, "machines run, nodes are initialised", within_s=WITHIN_S)

    async def served(self, nodes: int, services: int) -> None:
        """Wait until every Service has an address, and the cloud all that is needed."""

        async def done() -> bool:
            found = [
                one
                for one in await self._env.cluster.items(SERVICES)
                if (one.get("status") or {}).get("loadBalancer", {}).get("ingress")
            ]
            return len(found) == services and self._pool.whole(nodes, services)

        await wait_for(done, "addresses and members of Services", within_s=WITHIN_S)

    async def to_nothing(self) -> None:
        """Delete machines and Services, and wait until nothing is left of them anywhere."""
        cluster = self._env.cluster
        for path in (MACHINES, SERVICES):
            for name in await names_of(cluster, path) - {"kubernetes"}:
                await cluster.delete(f"{path}/{name}")

        async def nothing() -> bool:
            left = [*await cluster.items(MACHINES), *await cluster.items(NODES)]
            kept = await names_of(cluster, SERVICES)
            return not left and kept <= {"kubernetes"} and self._pool.empty()

        await wait_for(nothing, "everything is gone", within_s=WITHIN_S)
        self._joined.clear()
        self._lives += 1


async def installed(env: Environment, pool: Pool) -> Farm:
    """Return machines of the pool; its class is there."""
    await prepare(env)
    await make_class(env.cluster, "small", pool.spec, pool.secret, provider=pool.provider)
    return Farm(env, pool)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a life cost in calls: up to all is there, then at rest, and a daemon's next start."""

    from_nothing: Counter[str]
    at_rest: Counter[str]
    restart: Counter[str]
    restart_writes: int


async def life(
    farm: Farm,
    env: Environment,
    fake: FakeApi,
    how: Mapping[str, Any],
    *,
    nodes: int,
    services: int,
    rest_s: float,
    services_first: bool = False,
) -> Costs:
    """From nothing, at rest, after a restart, and to nothing again; counted, and told.

    Args:
        farm: installed.
        env: of it.
        fake: whose calls count.
        how: a daemon is started.
        nodes: how many machines.
        services: how many beside them.
        rest_s: how long the daemon has nothing to do; after the restart at most ten seconds.
        services_first: they are there before any node is.
    """
    daemon = await env.start_leading(**how)
    began = time.monotonic()
    if services_first:
        await farm.expose(services)
    await farm.order(nodes)
    await farm.join(nodes)
    print(f"{nodes} nodes after {time.monotonic() - began:.1f} s")
    if not services_first:
        await farm.served(nodes, 0)
        await farm.expose(services)
    await farm.served(nodes, services)
    print(f"{services} Services after {time.monotonic() - began:.1f} s")
    from_nothing = Counter(fake.calls)

    fake.calls.clear()
    await asyncio.sleep(rest_s)
    at_rest = Counter(fake.calls)
    assert await daemon.stop() == 0

    fake.calls.clear()
    again = await env.start_leading(**how)
    await asyncio.sleep(min(rest_s, 10.0))  # whatever a start does is done at its start
    restart, writes = Counter(fake.calls), fake.writes

    await farm.to_nothing()
    assert await again.stop() == 0
    told = {"from nothing": from_nothing, f"{rest_s:.0f} s of rest": at_rest, "a restart": restart}
    for what, calls in told.items():
        print(what, calls.total(), dict(calls))
    return Costs(from_nothing=from_nothing, at_rest=at_rest, restart=restart, restart_writes=writes)


# --- a deployment ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FleetApi:
    """An API group, as a fleet needs it.

    Attributes:
        api: kinds, namespace and controllers.
        phase: returns the phase of a Machine.
        kinds: two classes or types of Machines that `api.simulated` describes.
        kind: returns the class or the type that the spec of a Machine names.
        spec: returns the spec of a Machine of a class or a type.
    """

    api: machineapis.SandboxMachineApi
    phase: Callable[[Mapping[str, Any]], str]
    kinds: tuple[str, str]
    kind: Callable[[Mapping[str, Any]], str]
    spec: Callable[[str], Mapping[str, Any]]

    @property
    def version(self) -> str:
        """`apiVersion` of the objects."""
        return f"{self.api.codec.machines.group}/{self.api.codec.machines.version}"

    @property
    def path(self) -> str:
        """Path of the namespace of the objects."""
        return f"/apis/{self.version}/namespaces/{self.api.namespace}"


GARDENER_FLEET = FleetApi(
    api=machineapis.APIS[GARDENER],
    phase=phase,
    kinds=(machineapis.CLASS, machineapis.OTHER_CLASS),
    kind=lambda spec: str(spec["class"]["name"]),
    spec=of,
)


class Fleet:
    """The deployment `workers`; its machines become nodes `boot_s` after they have VMs.

    Attributes:
        path: of the deployment.
        most: most machines at once since `watch_bounds`, without those on their way out.
        least: fewest that ran.
    """

    def __init__(
        self, session: aiohttp.ClientSession, *, boot_s: float, api: FleetApi = GARDENER_FLEET
    ) -> None:
        self.cluster = Cluster(session)
        self.path = f"{api.path}/machinedeployments/workers"
        self._session = session
        self._api = api
        self._machines_path = f"{api.path}/machines"
        self._boot_s = boot_s
        self._machines: dict[str, dict[str, Any]] = {}
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.most, self.least = 0, 10**9

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Fleet]:
        """Follow the machines, and let them join."""
        watch = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            for task in (watch, *self._joining.values()):
                task.cancel()
            await asyncio.gather(watch, *self._joining.values(), return_exceptions=True)

    async def deploy(self, replicas: int, *, kind: str, surge: int, unavailable: int) -> None:
        """Make the deployment."""
        strategy = rolling(surge, unavailable)
        body = group("MachineDeployment", "workers", replicas, strategy=strategy)
        body["apiVersion"] = self._api.version
        body["spec"]["template"]["spec"] = self._api.spec(kind)
        await self.cluster.create(f"{self._api.path}/machinedeployments", body)

    async def roll(self, kind: str) -> None:
        """Machines of another class or type from now on."""
        await self.edit(template={"spec": self._api.spec(kind)})

    async def edit(self, **spec: Any) -> None:
        """Edit the deployment."""
        await self.cluster.patch(self.path, {"spec": spec}, kind="merge")

    async def scale(self, replicas: int) -> None:
        """Scale the deployment, as `kubectl scale` does."""
        await self.cluster.patch(
            f"{self.path}/scale", {"spec": {"replicas": replicas}}, kind="merge"
        )

    async def delete(self) -> None:
        """Delete the deployment."""
        await self.cluster.delete(self.path)

    async def said(self) -> dict[str, Any]:
        """The status of the deployment; empty: gone."""
        found = await self.cluster.get(self.path) or {}
        return dict(found.get("status", {}))

    def watch_bounds(self) -> None:
        """Note bounds from now on."""
        self.most, self.least = self._counts()

    async def until(self, what: Callable[[Fleet], bool], *, within_s: float = DEADLINE_S) -> float:
        """Wait until the machines are so; the seconds it took."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                while not what(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise AssertionError(f"not within {within_s} s; {self.kinds()}") from error
        return time.monotonic() - began

    def kinds(self) -> dict[str, dict[str, int]]:
        """Machines by class or type, and phase; those in deletion count as `gone`."""
        found: dict[str, dict[str, int]] = {}
        for one in self._machines.values():
            phases = found.setdefault(self._api.kind(one["spec"]), {})
            now = "gone" if _is_going(one) else self._api.phase(one)
            phases[now] = phases.get(now, 0) + 1
        return found

    def all_run(self, kind: str, count: int) -> bool:
        """Whether these machines run, and there are no others."""
        return self.kinds() == ({kind: {"Running": count}} if count else {})

    async def _watch(self) -> None:
        while True:
            async with self._session.get(self._machines_path) as response:
                listed = await response.json()
            # The API server may end a watch at any time: what happened since is only in the list.
            here = {one["metadata"]["name"]: one for one in listed["items"] or ()}
            for gone in [one for name, one in self._machines.items() if name not in here]:
                self._seen("DELETED", gone)
            for one in here.values():
                self._seen("ADDED", one)
            query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
            limit = aiohttp.ClientTimeout(total=None)
            watch = self._session.get(self._machines_path, params=query, timeout=limit)
            async with watch as response:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                        break
                    self._seen(event["type"], event["object"])

    def _seen(self, kind: str, machine: dict[str, Any]) -> None:
        name = machine["metadata"]["name"]
        if kind == "DELETED":
            self._machines.pop(name, None)
            if task := self._joining.pop(name, None):
                task.cancel()
        else:
            self._machines[name] = machine
            if machine["spec"].get("providerID") and name not in self._joining:
                self._joining[name] = asyncio.create_task(self._join(name, machine))
        most, least = self._counts()
        self.most, self.least = max(self.most, most), min(self.least, least)
        self._changed.set()

    async def _join(self, name: str, machine: dict[str, Any]) -> None:
        await asyncio.sleep(self._boot_s)
        of_vm = machine["spec"]["providerID"]
        await self.cluster.register(name, ready=names.STATUS_TRUE, providerID=of_vm, taints=[])

    def _counts(self) -> tuple[int, int]:
        here = [one for one in self._machines.values() if not _is_going(one)]
        return len(here), sum(self._api.phase(one) == "Running" for one in here)


def _is_going(machine: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in machine["metadata"]


# --- Pods -----------------------------------------------------------------------------------------


class Pods:
    """The Pods of a cluster.

    One that is on its way out is replaced on the node `other`, as a ReplicaSet would.
    """

    def __init__(self, cluster: Cluster, informers: SharedInformers) -> None:
        self.least = sys.maxsize
        """Fewest Pods that were ready at any time."""
        self._cluster = cluster
        self._seen = informers.informer_for(kubelet.PODS)
        self._seen.add_handler(name="cluster", on_update=self._changed)
        self._leaving: asyncio.Queue[str] = asyncio.Queue()

    def _changed(self, old: kubelet.LivePod, new: kubelet.LivePod) -> None:
        ready = [one for one in self._seen.store.list() if one.is_ready and not one.is_deleting]
        self.least = min(self.least, len(ready))
        if new.is_deleting and not old.is_deleting:
            self._leaving.put_nowait(new.name)

    async def replace(self) -> None:
        """Without end."""
        while True:
            await self.create(f"{await self._leaving.get()}-again", "other")

    async def create(self, name: str, node: str, *claims: str) -> None:
        """A Pod on a node, with volumes by their claims."""
        metadata: dict[str, Any] = {"name": name, "labels": {"app": "web"}}
        if claims:
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "o", "uid": "o"}
            metadata["ownerReferences"] = [owner | {"controller": True}]
        spec = {
            "nodeName": node,
            "volumes": [
                {"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims
            ],
            "terminationGracePeriodSeconds": GRACE_S,
            "containers": [{"name": "c", "image": "i"}],
        }
        await self._cluster.create(PODS, {"metadata": metadata, "spec": spec})

    async def budget(self, name: str, minimum: int) -> None:
        """At least so many Pods have to be healthy."""
        spec = {"minAvailable": minimum, "selector": {"matchLabels": {"app": "web"}}}
        await self._cluster.create(BUDGETS, {"metadata": {"name": name}, "spec": spec})

    async def ready(self, count: int) -> bool:
        """As many Pods are ready, and budgets know it."""
        pods, budgets = await self._cluster.items(PODS), await self._cluster.items(BUDGETS)
        conditions = [one["status"].get("conditions") or () for one in pods]
        are = sum(any(each["type"] == "Ready" for each in one) for one in conditions)
        counted = [one["status"].get("expectedPods") for one in budgets]
        healthy = [one["status"].get("currentHealthy") for one in budgets]
        return are == count and all(one == count for one in (*counted, *healthy))

    async def clear(self) -> None:
        """Delete Pods and budgets at once."""
        for path in (PODS, BUDGETS):
            for name in await names_of(self._cluster, path):
                await self._cluster.delete(f"{path}/{name}?gracePeriodSeconds=0")


@contextlib.asynccontextmanager
async def living_pods(
    env: Environment,
    *works: Coroutine[Any, Any, None],
    replaced: bool = False,
    counted_in: Path | None = None,
) -> AsyncIterator[Pods]:
    """Pods begin and end, and other works go on meanwhile.

    Args:
        env: in whose cluster.
        works: without an end.
        replaced: Pods that go come again elsewhere.
        counted_in: a folder for the controller that counts budgets; the real one if there is one.
    """
    async with contextlib.AsyncExitStack() as stack:
        config = load(kubeconfig=str(env.server.kubeconfig_path))
        client = Client(await stack.enter_async_context(Transport(config)))
        informers = SharedInformers(client)
        pods = Pods(env.cluster, informers)
        runs = [informers.run(), kubelet.PodLifecycle(informers, client).run(), *works]
        if replaced:
            runs.append(pods.replace())
        if counted_in is not None and isinstance(env.server, realserver.RealServer):
            try:
                manager = controllers.open_controllers(env.server, counted_in, "disruption")
                await stack.enter_async_context(manager)
            except assets.AssetsError as trouble:
                servers.leave_out(str(trouble))
        elif counted_in is not None:
            runs.append(kubelet.DisruptionController(informers, client).run())

        async def work() -> None:
            async with NamedTaskGroup() as running:
                for number, each in enumerate(runs):
                    running.start(each, name=f"cluster-{number}")

        task = spawn(work(), name="cluster")
        try:
            await informers.wait_synced(DEADLINE_S)
            yield pods
            assert not task.done(), task
        finally:
            await cancel_and_join(task)
    await pods.clear()

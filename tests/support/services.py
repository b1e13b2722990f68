"""A small world for the service controller: an API server in memory, a scripted cloud."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, Ingress, LoadBalancerRecord, Status, default_load_balancer_name
from ccm.cloud.calls.client import CloudClient
from ccm.controllers.service.controller import ServiceController, ServiceControllerSettings
from ccm.kube.errors import Conflict, Invalid, NotFound
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, Taint, names
from ccm.runtime.deletions import DeletionRecord
from ccm.testing import builders
from ccm.testing.apiserver import patches, schema
from ccm.testing.clock import advance, settle

F = names.FINALIZER_LOAD_BALANCER
KEY = "default/web"
RECORD = ObjectReference(kind="ConfigMap", api_version="v1", namespace="kube-system", name="kept")
Members = tuple[str, ...]
Log = list[tuple[str, str, Members]]


class FakeBalancers:
    """Load balancers in memory.

    `faults` by operation (`get`, `ensure`, `update`, `delete`, `list`); `slow` keeps calls of
    an operation open until `release` is set; `held` is name -> (ports, members, status).
    """

    def __init__(self) -> None:
        self.log: Log = []
        self.at: list[float] = []
        self.faults: dict[str, Exception] = {}
        self.slow: set[str] = set()
        self.release = asyncio.Event()
        self.held: dict[str, tuple[Any, Members]] = {}
        self.given: list[Service] = []
        self.under_way: dict[str, int] = {}
        self.address: str | None = None
        self.seconds = 0.0

    @property
    def calls(self) -> list[str]:
        return [operation for operation, _, _ in self.log]

    def of(self, operation: str) -> list[tuple[str, Members]]:
        return [(name, members) for each, name, members in self.log if each == operation]

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        return default_load_balancer_name(service)

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        await self._call("get", service, ())
        name = self.get_load_balancer_name(cluster_name, service)
        return self._status(name) if name in self.held else None

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        await self._call("ensure", service, nodes)
        name = self.get_load_balancer_name(cluster_name, service)
        self.held[name] = (_wanted(service), _names(nodes))
        return self._status(name)

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        await self._call("update", service, nodes)
        name = self.get_load_balancer_name(cluster_name, service)
        self.held[name] = (self.held[name][0], _names(nodes))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        await self._call("delete", service, ())
        self.held.pop(self.get_load_balancer_name(cluster_name, service), None)

    def _status(self, name: str) -> Status:
        return Status(ingress=(Ingress(ip=self.address or f"ip-of-{name}"),))

    async def _call(self, operation: str, service: Service, nodes: Sequence[Node]) -> None:
        self.given.append(service)
        self.under_way[service.key] = self.under_way.get(service.key, 0) + 1
        assert self.under_way[service.key] == 1, f"calls about {service.key} overlap"
        self.log.append((operation, service.name, _names(nodes)))
        self.at.append(clock.monotonic())
        try:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            await self._answer(operation, service.name)
        finally:
            self.under_way[service.key] -= 1

    async def _answer(self, operation: str, name: str) -> None:
        if operation in self.slow:
            await self.release.wait()
        fault = self.faults.get(f"{operation} {name}") or self.faults.get(operation)
        if fault is not None:
            raise fault.with_traceback(None)


class FakeDigests(FakeBalancers):
    """The same with a listing."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        self.log.append(("list", "", ()))
        await self._answer("list", "")
        return [
            LoadBalancerRecord(name=name, digest=repr(held), status=self._status(name))
            for name, held in self.held.items()
        ]

    def load_balancer_digest(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> str:
        if fault := self.faults.get(f"digest {service.name}"):
            raise fault.with_traceback(None)
        return repr((_wanted(service), _names(nodes)))


class World:
    """A controller, its caches and its surroundings."""

    def __init__(self, *, digests: bool = False, cloud: Mapping[str, Any] | None = None) -> None:
        self.balancers = FakeDigests() if digests else FakeBalancers()
        self.cloud = Cloud(name="fake", load_balancer=self.balancers, **(cloud or {}))
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.made = 0
        self.events: list[tuple[str, str, str]] = []
        self.messages: list[str] = []
        self.patches: list[Mapping[str, Any]] = []
        self.write_faults: list[Exception] = []
        self.before_write: Callable[[], None] | None = None
        self.cache_lags = False
        self.record: DeletionRecord | None = None
        self._fresh_caches()

    def _fresh_caches(self) -> None:
        self.services: Informer[Service] = Informer(None, resource="services")  # type: ignore[arg-type]
        self.nodes: Informer[Node] = Informer(None, resource="nodes")  # type: ignore[arg-type]

    # --- what the controller uses -----------------------------------------------------------

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        assert reference == RECORD or (reference.kind, reference.api_version) == ("Service", "v1")
        self.events.append((reference.name, kind, reason))
        self.messages.append(message)

    async def get(self, name: str, *, namespace: str = "") -> Service:
        body = self.objects.get(f"{namespace}/{name}")
        if body is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        return msgspec.convert(body, Service)

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Service:
        assert subresource == "status"
        await asyncio.sleep(0)
        self.patches.append(patch)
        if self.before_write is not None:
            act, self.before_write = self.before_write, None
            act()
        if self.write_faults:
            raise self.write_faults.pop(0)
        key = f"{namespace}/{name}"
        body = self.objects.get(key)
        if body is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        changed = patches.strategic(
            schema.kubernetes()["Service"], copy.deepcopy(body), copy.deepcopy(dict(patch))
        )
        if changed["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict(status=409, reason="Conflict", message="modified")
        added = set(changed["metadata"].get("finalizers") or ()) - set(
            body["metadata"].get("finalizers") or ()
        )
        if added and body["metadata"].get("deletionTimestamp"):
            raise Invalid(status=422, reason="Invalid", message="no new finalizers")
        for entry in changed.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
            if entry.get("ip"):
                entry.setdefault("ipMode", "VIP")
        self.put(changed)
        return msgspec.convert(changed, Service)

    patch_merge = patch_strategic  # never used for Services

    # --- the cluster, as people change it ---------------------------------------------------

    def service(
        self,
        name: str = "web",
        *,
        type_: str = "LoadBalancer",
        finalizers: Sequence[str] = (),
        deleting: bool = False,
        uid: str = "",
        **spec: Any,
    ) -> None:
        """Create or replace a Service."""
        key = f"default/{name}"
        old = self.objects.get(key)
        if not uid:
            self.made += old is None
            uid = old["metadata"]["uid"] if old else f"uid-{name}-{self.made}"
        metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid}
        metadata |= {"finalizers": list(finalizers)} if finalizers else {}
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
        spec = {"type": type_, "ports": ports(80), **spec}
        self.put({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}})

    def change(self, name: str = "web", **spec: Any) -> None:
        """Change fields of a Service's spec; None removes one."""
        body = copy.deepcopy(self.objects[f"default/{name}"])
        body["spec"] = {
            key: value for key, value in {**body["spec"], **spec}.items() if value is not None
        }
        self.put(body)

    def meta(self, name: str = "web", **metadata: Any) -> None:
        """Change fields of a Service's metadata."""
        body = copy.deepcopy(self.objects[f"default/{name}"])
        body["metadata"] |= metadata
        self.put(body)

    def wipe_status(self, name: str = "web") -> None:
        body = copy.deepcopy(self.objects[f"default/{name}"])
        body["status"] = {"loadBalancer": {}}
        self.put(body)

    def put(self, body: dict[str, Any]) -> None:
        """Store an object as the next version, and tell the cache."""
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        if body["metadata"].get("deletionTimestamp") and not body["metadata"].get("finalizers"):
            self.vanish(key, seen=True)
            return
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = body
        if not self.cache_lags:
            self.services.upsert(msgspec.convert(body, Service))

    def delete(self, name: str = "web") -> None:
        """Delete a Service: it waits for its finalizers, or is gone."""
        self.meta(name, deletionTimestamp="2026-01-01T00:00:00Z")

    def vanish(self, key: str = KEY, *, seen: bool = False) -> None:
        """A Service is deleted and an event says so, or a new list just lacks it."""
        self.objects.pop(key, None)
        if not self.cache_lags:
            last = self.services.store.get(key)
            self.services.remove(key, last if seen else None)

    def catch_up(self) -> None:
        """Let the cache have what it missed."""
        self.cache_lags = False
        for key in list(self.services.store.keys()):
            if key not in self.objects:
                self.services.remove(key)
        for body in self.objects.values():
            self.services.upsert(msgspec.convert(body, Service))

    def node(self, name: str, **fields: Any) -> None:
        self.version += 1
        fields.setdefault("provider_id", f"fake://{name}")
        deleting = fields.pop("deleting", False)
        made = builders.node(name, resource_version=str(self.version), **fields)
        if deleting:
            metadata = msgspec.structs.replace(
                made.metadata, deletion_timestamp="2026-01-01T00:00:00Z"
            )
            made = msgspec.structs.replace(made, metadata=metadata)
        self.nodes.upsert(made)

    def remove_node(self, name: str, *, seen: bool = True) -> None:
        """A node is deleted and an event says so, or a new list just lacks it."""
        self.nodes.remove(name, self.nodes.store.get(name) if seen else None)

    # --- running ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(
        self, *, undecodable: Collection[str] = (), **settings: Any
    ) -> AsyncIterator[ServiceController]:
        """The controller at work; a second time is a restart with new caches.

        Nodes of the names `undecodable` are there too, but cannot be decoded.
        """
        present = [*self.nodes.store.list()]
        self._fresh_caches()
        self.nodes._reflector.malformed_keys.update(undecodable)
        for node in present:
            self.nodes.upsert(node)
        for body in self.objects.values():
            self.services.upsert(msgspec.convert(body, Service))
        self.nodes.mark_synced()
        self.services.mark_synced()
        self.handle = CloudClient(self.cloud)
        controller = ServiceController(
            services=self.services,
            nodes=self.nodes,
            api=self,
            handle=self.handle,
            events=self,
            settings=ServiceControllerSettings(**settings),
            about=RECORD,
            record=self.record,
            rng=random.Random(1),
        )
        task = spawn(controller.controller.run(), name="controller")
        try:
            await settle()
            yield controller
            assert not task.done()
        finally:
            await cancel_and_join(task)

    async def pass_time(self, seconds: float) -> None:
        await advance(seconds)

    def reasons(self) -> list[str]:
        return [reason for _, _, reason in self.events]

    def warned(self) -> list[str]:
        return [reason for _, kind, reason in self.events if kind == "Warning"]

    def pauses(self, operation: str) -> list[float]:
        """Seconds between the calls of an operation."""
        calls = zip(self.balancers.at, self.balancers.calls, strict=True)
        at = [moment for moment, call in calls if call == operation]
        return [round(later - earlier, 3) for earlier, later in itertools.pairwise(at)]

    def forget(self) -> None:
        """Forget what was seen so far."""
        for seen in (self.balancers.log, self.balancers.at, self.events, self.patches):
            seen.clear()
        self.messages.clear()
        self.balancers.given.clear()

    def finalizers(self, name: str = "web") -> list[str]:
        return list(self.objects[f"default/{name}"]["metadata"].get("finalizers") or ())

    def address(self, name: str = "web") -> str:
        ingress = self.objects[f"default/{name}"]["status"]["loadBalancer"].get("ingress")
        return str(ingress[0]["ip"]) if ingress else ""


@contextlib.asynccontextmanager
async def started(
    *nodes: str, faults: Mapping[str, Exception] | None = None, slow: str = "", **settings: Any
) -> AsyncIterator[World]:
    """A world with these nodes, whose controller is at work and has no Services."""
    world = World(cloud=settings.pop("cloud", None))
    world.balancers.faults |= faults or {}
    world.balancers.slow |= {slow}
    for name in nodes:
        world.node(name)
    async with world.running(**settings):
        yield world


@contextlib.asynccontextmanager
async def served(*nodes: str, **settings: Any) -> AsyncIterator[World]:
    """The same with one Service that was served a while ago, and nothing seen since."""
    async with started(*nodes, **settings) as world:
        world.service()
        await world.pass_time(60)
        world.forget()
        yield world


def ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"port": number, "protocol": "TCP", "targetPort": 80} for number in numbers]


def autoscaler_taint() -> Taint:
    return Taint(key=names.TAINT_AUTOSCALER_DELETION, value="1", effect="NoSchedule")


def _wanted(service: Service) -> Any:
    return [msgspec.to_builtins(port) for port in service.ports]


def _names(nodes: Sequence[Node]) -> Members:
    return tuple(node.name for node in nodes)

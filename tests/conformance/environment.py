"""The environment of conformance tests: an API server, a recording proxy, a scripted cloud.

The controllers are the real ones over the real client, informer and event recorder; only
the cloud is scripted. What a test does itself goes straight to the server, so that the
proxy's log holds the daemon's requests and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import aiohttp
import msgspec
import pytest

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import CloudError, address
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.controllers.node.controller import NodeController
from ccm.controllers.nodelifecycle import controller as lifecycle_controller
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController
from ccm.controllers.nodelifecycle.metrics import observe_call
from ccm.controllers.nodelifecycle.plan import DeletionRules
from ccm.controllers.route.controller import RouteController
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.errors import KubeError
from ccm.kube.events import EventRecorder
from ccm.kube.informer import Informer
from ccm.kube.resources import CONFIG_MAPS, EVENTS, NODES
from ccm.kube.transport import Transport
from ccm.model import Node, Taint, names
from ccm.runtime.deletions import DeletionBlocks, DeletionRecord
from ccm.testing import builders
from tests import servers
from tests.faults import Exchange, FaultProxy, Match, Respond, RewriteLine
from tests.support.fakecloud import FakeCloud
from tests.waiting import DEADLINE_S, eventually

NODES_PATH = "/api/v1/nodes"
EVENTS_PATH = "/api/v1/namespaces/default/events"

WRITE_NODE = Match(method="PATCH|PUT|DELETE", path=NODES_PATH)
MAIN_PATCH = Match(method="PATCH", path=r"nodes/[^/]+$")
STATUS_PATCH = Match(method="PATCH", path=r"nodes/[^/]+/status$")
DELETE = Match(method="DELETE", path=NODES_PATH)
EVENT_POST = Match(method="POST", path="events$")
CONFLICT = Respond(409, {"kind": "Status", "reason": "Conflict", "message": "moved", "code": 409})
REFUSED = Respond(422, {"kind": "Status", "reason": "Invalid", "code": 422})

UNINITIALIZED = builders.uninitialized_taint()
V4 = address("InternalIP", "10.0.0.1")
TAINT = Taint(key="a", effect="NoSchedule")


def row(name: str, *facts: Any, label: str | None = None) -> Any:
    """One case of a table, which proves this row (or these, with blanks between)."""
    return pytest.param(*facts, marks=pytest.mark.row(*name.split()), id=label or name)


def cloud(**script: Any) -> FakeCloud:
    """A cloud with an address that knows node0, node1 and node2."""
    ids = {f"node{number}": f"fake://{number}" for number in range(3)}
    return FakeCloud(**{"provider_ids": ids, "addresses": [V4], **script})


class SeenEvent(msgspec.Struct, rename="camel", kw_only=True):
    """What a test looks at in an Event."""

    type: str
    reason: str
    message: str
    source: dict[str, str]
    reporting_component: str
    involved_object: dict[str, str]


class Environment:
    """An API server behind a recording proxy, and what controllers are built from."""

    def __init__(
        self, proxy: FaultProxy, session: aiohttp.ClientSession, transport: Transport
    ) -> None:
        self.proxy = proxy
        self.session = session
        self._transport = transport
        self._recorders: dict[str, EventRecorder] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, method: str, path: str, body: Any) -> bytes:
        """Write as somebody else; the answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self.session.request(
            method, path, data=json.dumps(body), headers={"Content-Type": kind}
        ) as response:
            assert response.status < 300, await response.text()
            return await response.read()

    async def get(self, path: str) -> bytes | None:
        """An object as the server has it."""
        async with self.session.get(path) as response:
            return None if response.status == 404 else await response.read()

    async def events(self) -> list[SeenEvent]:
        """Everything recorded so far, oldest first, once it was delivered."""
        await self.flush()
        items = json.loads(await self.get(EVENTS_PATH) or b"")["items"]
        items.sort(key=lambda item: item["metadata"]["name"].rpartition(".")[2])
        return msgspec.convert(items, list[SeenEvent])

    async def flush(self) -> None:
        """Wait until all events are delivered."""
        for recorder in self._recorders.values():
            await recorder.flush(DEADLINE_S)

    def client(self, name: str) -> Client:
        """A client that goes through the proxy."""
        return Client(self._transport, name=name)

    def recorder(self, component: str) -> EventRecorder:
        """The event recorder of a component."""
        if component not in self._recorders:
            made = EventRecorder(self.client("events").resource(EVENTS), component=component)
            self._recorders[component] = made
            self.tasks.append(spawn(made.run(), name=f"events-{component}"))
        return self._recorders[component]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, server: servers.ApiServer) -> AsyncIterator[Self]:
        """Set up before an empty API server; in the end no request is left under way."""
        async with (
            servers.connect(server) as session,
            FaultProxy(server.url, ca_file=server.ca_file) as proxy,
            Transport(
                ClusterConfig(
                    server=proxy.url,
                    credentials=StaticCredentials(bearer(server.token)),
                    tls=TlsSettings(),
                )
            ) as transport,
        ):
            env = cls(proxy, session, transport)
            try:
                await env.start()
                yield env
            finally:
                await env.flush()
                await cancel_and_join(*env.tasks)

    async def start(self) -> None:
        """Start what all tests need."""


class NodeEnvironment(Environment):
    """Nodes and their controllers; made by `open`."""

    is_frozen = False

    informer: Informer[Node]

    async def start(self) -> None:
        """Let the cache follow the server, until it is frozen."""
        hears = RewriteLine(lambda line: None if self.is_frozen else line)
        self.proxy.on(Match(stream=True), hears)
        nodes = self.client("shared-informers").resource(NODES)
        self.informer = Informer(nodes, resource=NODES.plural)
        self.tasks.append(spawn(self.informer.run(), name="informer"))
        await self.informer.wait_synced(DEADLINE_S)

    # --- the cluster, as somebody else changes it ------------------------------------------

    async def node(
        self,
        name: str = "node0",
        *,
        taints: Sequence[Taint] = (),
        finalizers: Sequence[str] = (),
        as_admitted: bool = False,
        **fields: Any,
    ) -> Node:
        """Create a node, wait until the cache holds it, and return it.

        Admission puts a taint of its own on new nodes. It is taken off again, which running
        controllers may see happen, unless the node shall stay `as_admitted`.
        """
        wanted = builders.node(name, taints=taints, uid="", resource_version="", **fields)
        body = msgspec.to_builtins(wanted)
        body["metadata"] |= {"creationTimestamp": None, "finalizers": list(finalizers)}
        made = _node(await self.send("POST", NODES_PATH, body))
        if as_admitted:
            return made
        return await self.change(name, {"spec": {"taints": msgspec.to_builtins(taints)}})

    async def change(
        self, name: str, patch: Mapping[str, Any], *, subresource: str = "", wait: bool = True
    ) -> Node:
        """Merge-patch a node as somebody else; wait for the cache unless told otherwise."""
        path = f"{NODES_PATH}/{name}" + (f"/{subresource}" if subresource else "")
        changed = _node(await self.send("PATCH", path, patch))
        if wait:
            await self.cached(changed)
        return changed

    async def cached(self, node: Node) -> None:
        """Wait until the cache holds this state of a node, or a newer one."""
        await eventually(
            lambda: (
                (found := self.informer.store.get(node.name)) is not None
                and int(found.resource_version) >= int(node.resource_version)
            )
        )

    async def delete(self, name: str = "node0") -> None:
        """Delete a node as somebody else; the cache may still hold it afterwards."""
        await self.send("DELETE", f"{NODES_PATH}/{name}", {})

    async def recreate(self, *, taints: Sequence[Taint] = ()) -> Node:
        """Replace node0 by a bare one of its name, behind the back of a frozen cache."""
        self.is_frozen = True
        await self.delete()
        body = {"metadata": {"name": "node0"}, "spec": {"taints": msgspec.to_builtins(taints)}}
        await self.send("POST", NODES_PATH, body)
        return await self.present()

    async def change_unseen(self, patch: Mapping[str, Any], *, subresource: str = "") -> Node:
        """Merge-patch node0 behind the back of a cache that is frozen from now on."""
        self.is_frozen = True
        return await self.change("node0", patch, subresource=subresource, wait=False)

    async def stored(self, name: str = "node0") -> Node | None:
        """The node as the server has it."""
        found = await self.get(f"{NODES_PATH}/{name}")
        return None if found is None else _node(found)

    async def present(self, name: str = "node0") -> Node:
        """The same for a node that must be there."""
        found = await self.stored(name)
        assert found is not None, f"{name} is gone"
        return found

    # --- the controllers -------------------------------------------------------------------

    def node_controller(self, fake: FakeCloud, **settings: Any) -> NodeController:
        """A node controller of its own for this cloud."""
        settings = {"status_period_s": 3600.0, **settings}
        return NodeController(
            nodes=self.informer,
            api=self.client("node-controller").resource(NODES),
            lookup=self._lookup(fake),
            ownership=NodeOwnership(schemes=fake.cloud().provider_schemes),
            events=self.recorder(names.COMPONENT_NODE),
            rng=random.Random(1),
            **settings,
        )

    def lifecycle(
        self, fake: FakeCloud, *, workers: int = 1, **rules: Any
    ) -> NodeLifecycleController:
        """A node lifecycle controller of its own for this cloud."""
        events = self.recorder(names.COMPONENT_NODE_LIFECYCLE)
        ownership = NodeOwnership(schemes=fake.cloud().provider_schemes)
        record = self.client("deletions").resource(CONFIG_MAPS)
        slots = DeletionRecord(record, namespace="kube-system", owner="lease")
        return NodeLifecycleController(
            nodes=self.informer,
            api=self.client("node-controller").resource(NODES),
            lookup=self._lookup(fake, observe_call),
            slots=slots,
            holds=DeletionBlocks(lifecycle_controller.KIND, events, slots),
            events=events,
            rules=DeletionRules(ownership=ownership, **rules),
            workers=workers,
        )

    async def sync(self, fake: FakeCloud, name: str = "node0") -> None:
        """Let a new node controller look at a node once."""
        await self.node_controller(fake).sync_node(name)

    async def monitor(self, fake: FakeCloud) -> NodeLifecycleController:
        """Let a node lifecycle controller look at node0 once, by the reference's policy."""
        controller = self.lifecycle(fake, reference=True)
        await monitor_once(controller)
        return controller

    async def monitor_twice(self, fake: FakeCloud) -> None:
        """Let a node lifecycle controller look at node0 twice, by our policy; no brake."""
        controller = self.lifecycle(fake, period_s=0.0, limit=0)
        await monitor_once(controller)
        await monitor_once(controller)

    @contextlib.asynccontextmanager
    async def running(
        self, *controllers: NodeController | NodeLifecycleController | RouteController
    ) -> AsyncIterator[None]:
        """Run controllers as the daemon does; they must not end by themselves."""
        tasks = [spawn(each.controller.run(), name=type(each).__name__) for each in controllers]
        try:
            yield
            assert [task for task in tasks if task.done()] == []
        finally:
            await cancel_and_join(*tasks)

    async def reasons(self) -> list[str]:
        """The reasons of all events, oldest first."""
        return [event.reason for event in await self.events()]

    async def trace(self) -> list[str]:
        """The controllers' requests so far, events included, watches and lists not."""
        await self.flush()
        return [_request_line(exchange) for exchange in self.calls()]

    def calls(self) -> list[Exchange]:
        """The same as exchanges, without waiting for events."""
        return [
            exchange
            for exchange in self.proxy.log
            if not exchange.headers["user-agent"].endswith("/shared-informers")
        ]

    def bodies(self, match: Match = WRITE_NODE) -> list[Any]:
        """The bodies of the requests that match, in order."""
        return [exchange.json() for exchange in self.proxy.requests(match)]

    def _lookup(self, fake: FakeCloud, observer: Any = None) -> InstanceLookup:
        return InstanceLookup(
            CloudClient(fake.cloud()).with_observer(observer or (lambda *_: None))
        )


async def monitor_once(controller: NodeLifecycleController, name: str = "node0") -> None:
    """One look at a node; an error keeps it, and is the back-off's business."""
    with contextlib.suppress(CloudError, KubeError):
        await controller.monitor_node(name)


def wrapped(cause: CloudError) -> Exception:
    error = ValueError("the library failed")
    error.__cause__ = cause
    return error


def _node(content: bytes) -> Node:
    return msgspec.json.decode(content, type=Node)


def _request_line(exchange: Exchange) -> str:
    path = exchange.path.removeprefix("/api/v1/")
    query = f"?{exchange.query_string}" if exchange.query_string else ""
    return f"{exchange.method} {path}{query} {exchange.status}"

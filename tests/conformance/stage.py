"""The stage of the node controllers: an API server, a recording proxy, a scripted cloud.

The controllers are the real ones over the real client, informer and event recorder; only
the cloud is scripted. What a test does itself goes straight to the server, so that the
proxy's log holds the daemon's requests and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import Inventory
from ccm.cloud.inventory import SharedInventory
from ccm.cloud.lookup import InstanceLookup
from ccm.controllers.node import controller as node_controller
from ccm.controllers.node.controller import NodeController
from ccm.controllers.nodelifecycle import controller as lifecycle_controller
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController
from ccm.controllers.nodelifecycle.metrics import observe_call
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, bearer
from ccm.kube.errors import KubeError
from ccm.kube.events import EventRecorder
from ccm.kube.informer import Informer
from ccm.kube.resources import EVENTS, NODES
from ccm.kube.tls import TlsSettings
from ccm.kube.transport import Transport
from ccm.model import Node, NodeAddress, Taint, names
from ccm.testing.fakes import FakeCloud
from tests import servers
from tests.faults import Exchange, FaultProxy, Match, RewriteLine

NODES_PATH = "/api/v1/nodes"
EVENTS_PATH = "/api/v1/namespaces/default/events"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
_PATIENCE_S = 60.0

WRITE_NODE = Match(method="PATCH|PUT|DELETE", path=NODES_PATH)
MAIN_PATCH = Match(method="PATCH", path=r"nodes/[^/]+$")
STATUS_PATCH = Match(method="PATCH", path=r"nodes/[^/]+/status$")
DELETE = Match(method="DELETE", path=NODES_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a test looks at in an Event."""

    type: str
    reason: str
    message: str
    component: str
    involved: Mapping[str, str]


class Stage:
    """See the module; made by `staged`."""

    def __init__(
        self,
        *,
        proxy: FaultProxy,
        session: aiohttp.ClientSession,
        transport: Transport,
        informer: Informer[Node],
    ) -> None:
        self.proxy = proxy
        self.session = session
        self.informer = informer
        self.is_frozen = False
        self._transport = transport
        self._recorders: dict[str, EventRecorder] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # --- the cluster, as somebody else changes it ------------------------------------------

    async def node(
        self,
        name: str = "node0",
        *,
        provider_id: str = "",
        taints: Sequence[Taint] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        addresses: Sequence[NodeAddress] = (),
        ready: str | None = names.STATUS_TRUE,
        finalizers: Sequence[str] = (),
        as_admitted: bool = False,
    ) -> Node:
        """Create a node, wait until the cache holds it, and return it.

        Admission puts a taint of its own on new nodes. It is taken off again, which running
        controllers may see happen, unless the node shall stay `as_admitted`.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": annotations,
                "finalizers": list(finalizers),
            },
            "spec": {"providerID": provider_id, "taints": msgspec.to_builtins(taints)},
            "status": {
                "addresses": msgspec.to_builtins(addresses),
                "conditions": [{"type": names.CONDITION_READY, "status": ready}] if ready else [],
            },
        }
        made = _node(await self._send("POST", NODES_PATH, body))
        if as_admitted:
            return made
        return await self.change(name, {"spec": {"taints": msgspec.to_builtins(taints)}})

    async def change(
        self, name: str, patch: Mapping[str, Any], *, subresource: str = "", wait: bool = True
    ) -> Node:
        """Merge-patch a node as somebody else; wait for the cache unless told otherwise."""
        path = f"{NODES_PATH}/{name}" + (f"/{subresource}" if subresource else "")
        changed = _node(await self._send("PATCH", path, patch, media_type=_MERGE))
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
        await self._send("DELETE", f"{NODES_PATH}/{name}", {})

    async def make_again(self, name: str = "node0", *, taints: Sequence[Taint] = ()) -> None:
        """Create a bare node, for a cache that does not hear of it."""
        spec = {"taints": msgspec.to_builtins(taints)}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
        await self._send("POST", NODES_PATH, body)

    async def stored(self, name: str = "node0") -> Node | None:
        """The node as the server has it."""
        async with self.session.get(f"{NODES_PATH}/{name}") as response:
            if response.status == 404:
                return None
            assert response.status == 200, await response.text()
            return _node(await response.read())

    async def present(self, name: str = "node0") -> Node:
        """The same for a node that must be there."""
        found = await self.stored(name)
        assert found is not None, f"{name} is gone"
        return found

    async def events(self) -> list[Told]:
        """Everything recorded so far, oldest first, once it was delivered."""
        for recorder in self._recorders.values():
            await recorder.flush(_PATIENCE_S)
        async with self.session.get(EVENTS_PATH) as response:
            items = (await response.json())["items"]
        items.sort(key=lambda item: item["metadata"]["name"].rpartition(".")[2])
        return [
            Told(
                type=item["type"],
                reason=item["reason"],
                message=item["message"],
                component=item["source"]["component"],
                involved=item["involvedObject"],
            )
            for item in items
        ]

    def freeze(self) -> None:
        """From now on the cache hears of nothing any more."""
        self.is_frozen = True

    # --- the controllers -------------------------------------------------------------------

    def node_controller(self, fake: FakeCloud, **settings: Any) -> NodeController:
        """A node controller of its own for this cloud."""
        settings = {"status_period_s": 3600.0, **settings}
        return NodeController(
            nodes=self.informer,
            api=self._client("node-controller").resource(NODES),
            lookup=self._lookup(fake),
            schemes=tuple(fake.cloud().provider_schemes),
            events=self._recorder(names.COMPONENT_NODE),
            settings=node_controller.Settings(**settings),
            rng=random.Random(1),
        )

    def lifecycle(self, fake: FakeCloud, **settings: Any) -> NodeLifecycleController:
        """A node lifecycle controller of its own for this cloud."""
        return NodeLifecycleController(
            nodes=self.informer,
            api=self._client("node-controller").resource(NODES),
            lookup=self._lookup(fake, observe_call),
            schemes=tuple(fake.cloud().provider_schemes),
            events=self._recorder(names.COMPONENT_NODE_LIFECYCLE),
            settings=lifecycle_controller.Settings(**settings),
        )

    @contextlib.asynccontextmanager
    async def running(
        self, *controllers: NodeController | NodeLifecycleController
    ) -> AsyncIterator[None]:
        """Run controllers as the daemon does; they must not end by themselves."""
        tasks = [spawn(each.controller.run(), name=type(each).__name__) for each in controllers]
        try:
            yield
            ended = [task for task in tasks if task.done()]
            assert not ended, ended
        finally:
            await cancel_and_join(*tasks)

    async def trace(self) -> list[str]:
        """The controllers' requests so far, events included, watches and lists not."""
        for recorder in self._recorders.values():
            await recorder.flush(_PATIENCE_S)
        return [_told(exchange) for exchange in self.calls()]

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

    # --- inside ----------------------------------------------------------------------------

    async def close(self) -> None:
        """End what was started for the stage; no request is left under way."""
        for recorder in self._recorders.values():
            await recorder.flush(_PATIENCE_S)
        await cancel_and_join(*self._tasks)

    def start(self, work: Awaitable[None], *, name: str) -> None:
        """Run something until the stage is closed."""

        async def run() -> None:
            await work

        self._tasks.append(spawn(run(), name=name))

    def _client(self, name: str) -> Client:
        return Client(self._transport, name=name)

    def _lookup(self, fake: FakeCloud, observer: Any = None) -> InstanceLookup:
        handle = Handle(fake.cloud()).observe(observer or (lambda *_: None))
        if fake.listing is None:
            return InstanceLookup(handle)
        inventory = SharedInventory(
            lambda: handle.call(Inventory.list_instances),
            population=lambda: len(self.informer.store),
            max_age_s=30.0,
        )
        return InstanceLookup(handle, inventory)

    def _recorder(self, component: str) -> EventRecorder:
        known = self._recorders.get(component)
        if known is None:
            known = EventRecorder(self._client("events").resource(EVENTS), component=component)
            self._recorders[component] = known
            self.start(known.run(), name=f"events-{component}")
        return known

    async def _send(
        self, method: str, path: str, body: Any, *, media_type: str = "application/json"
    ) -> bytes:
        return await send(self.session, method, path, body, media_type=media_type)


async def send(
    session: aiohttp.ClientSession, method: str, path: str, body: Any, *, media_type: str
) -> bytes:
    """Write past the proxy; the answer."""
    async with session.request(
        method, path, data=json.dumps(body), headers={"Content-Type": media_type}
    ) as response:
        assert response.status < 300, await response.text()
        return await response.read()


@contextlib.asynccontextmanager
async def wired(
    server: servers.ApiServer,
) -> AsyncIterator[tuple[FaultProxy, aiohttp.ClientSession, Transport]]:
    """A proxy before an empty API server, a way past it for people, and one through it."""
    async with (
        servers.connect(server) as session,
        FaultProxy(server.url, ca_file=server.ca_file) as proxy,
        Transport(
            ClusterConfig(
                server=proxy.url, credentials=Fixed(bearer(server.token)), tls=TlsSettings()
            )
        ) as transport,
    ):
        yield proxy, session, transport


@contextlib.asynccontextmanager
async def staged(server: servers.ApiServer) -> AsyncIterator[Stage]:
    """Set the stage before an empty API server; the cache follows it already."""
    async with wired(server) as (proxy, session, transport):
        source = Client(transport, name="shared-informers").resource(NODES)
        stage = Stage(
            proxy=proxy,
            session=session,
            transport=transport,
            informer=Informer(source, resource=NODES.plural),
        )
        proxy.on(Match(stream=True), RewriteLine(lambda line: None if stage.is_frozen else line))
        try:
            stage.start(stage.informer.run(), name="informer")
            await stage.informer.wait_synced(_PATIENCE_S)
            yield stage
        finally:
            await stage.close()


async def monitored(controller: NodeLifecycleController, name: str = "node0") -> None:
    """One look at a node; an error keeps it, and is the back-off's business."""
    with contextlib.suppress(CloudError, KubeError):
        await controller.monitor_node(name)


def wrapped(cause: CloudError) -> Exception:
    error = ValueError("the library failed")
    error.__cause__ = cause
    return error


async def eventually(condition: Callable[[], bool], *, timeout_s: float = _PATIENCE_S) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


def _node(content: bytes) -> Node:
    return msgspec.json.decode(content, type=Node)


def _told(exchange: Exchange) -> str:
    path = exchange.path.removeprefix("/api/v1/")
    query = f"?{exchange.query_string}" if exchange.query_string else ""
    return f"{exchange.method} {path}{query} {exchange.status}"

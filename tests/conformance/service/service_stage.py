"""The stage of the service controller: an API server, a recording proxy, a scripted cloud.

The controller is the real one over the real client, informers and event recorder. What a
test does itself goes straight to the server, so that the proxy's log holds the
controller's requests and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.services import ServiceCalls
from ccm.controllers.service.controller import ServiceController, Settings
from ccm.kube.client import Client
from ccm.kube.events import EventRecorder
from ccm.kube.informer import Informers
from ccm.kube.resources import EVENTS, NODES, SERVICES
from ccm.kube.transport import Transport
from ccm.model import names
from tests import servers
from tests.conformance.stage import eventually, send, wired
from tests.faults import FaultProxy, Match
from tests.unit.controllers.service.world import FakeBalancers, FakeDigests

PATH = "/api/v1/namespaces/default/services"
WRITE = Match(method="POST|PUT|PATCH|DELETE", path="/services")
_MERGE = "application/merge-patch+json"
_PATIENCE_S = 60.0


class ServiceStage:
    """See the module; made by `staged`."""

    def __init__(
        self, *, proxy: FaultProxy, session: aiohttp.ClientSession, transport: Transport
    ) -> None:
        self.proxy = proxy
        self.session = session
        self.balancers = FakeBalancers()
        self._transport = transport
        self._recorder = EventRecorder(
            self._client("events").resource(EVENTS), component=names.COMPONENT_SERVICE
        )

    def listing(self) -> None:
        """Let the cloud offer a listing with digests, of what it holds already."""
        held, self.balancers = self.balancers.held, FakeDigests()
        self.balancers.held = held

    # --- the cluster, as people change it ---------------------------------------------------

    async def create(
        self,
        name: str = "web",
        *,
        metadata: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """Create a Service."""
        ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, **(metadata or {})},
            "spec": {"type": "LoadBalancer", "ports": ports, **spec},
        }
        return await self._send("POST", PATH, body)

    async def change(
        self, patch: Mapping[str, Any], name: str = "web", *, subresource: str = ""
    ) -> dict[str, Any]:
        """Merge-patch a Service."""
        path = f"{PATH}/{name}" + (f"/{subresource}" if subresource else "")
        return await self._send("PATCH", path, patch, media_type=_MERGE)

    async def delete(self, name: str = "web") -> None:
        """Ask for the deletion of a Service."""
        await self._send("DELETE", f"{PATH}/{name}", {})

    async def stored(self, name: str = "web") -> dict[str, Any] | None:
        """The Service as the server has it."""
        async with self.session.get(f"{PATH}/{name}") as response:
            return None if response.status == 404 else dict(await response.json())

    async def until(
        self, *, address: bool | None = None, gone: bool = False, name: str = "web"
    ) -> dict[str, Any]:
        """Wait until a Service has an address, has none, or is gone."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                found = await self.stored(name)
                if gone:
                    if found is None:
                        return {}
                elif found is not None and (address is None or bool(ingress(found)) is address):
                    return found
                await asyncio.sleep(0.01)

    async def node(self, name: str) -> None:
        """Create a node."""
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"providerID": f"fake://{name}"},
        }
        await self._send("POST", "/api/v1/nodes", body)

    async def reasons(self, name: str = "web") -> list[tuple[str, str]]:
        """Type and reason of every event about a Service, oldest first."""
        await self._recorder.flush(_PATIENCE_S)
        async with self.session.get("/api/v1/namespaces/default/events") as response:
            items = (await response.json())["items"]
        items.sort(key=lambda item: item["metadata"]["name"].rpartition(".")[2])
        about = [item for item in items if item["involvedObject"]["name"] == name]
        for item in about:
            assert item["source"]["component"] == "service-controller"
            assert item["reportingComponent"] == "service-controller"
            assert item["involvedObject"]["kind"] == "Service"
        return [(item["type"], item["reason"]) for item in about]

    def writes(self) -> list[tuple[str, Any]]:
        """The controller's writes of Services: path below the collection, and body."""
        return [
            (f"{exchange.method} {exchange.path.removeprefix(PATH)}", exchange.json())
            for exchange in self.proxy.requests(WRITE)
        ]

    async def calls(self, *expected: str) -> None:
        """Wait until the cloud was called so, and for a moment in which nothing more comes."""
        await eventually(lambda: len(self.balancers.calls) >= len(expected))
        await asyncio.sleep(0.1)
        assert self.balancers.calls == list(expected)

    # --- the controller ---------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[ServiceController]:
        """The controller at work on caches of its own, as after a start."""
        settings = {"quiet_s": 0.1, **settings}
        informers = Informers(self._client("shared-informers"))
        controller = ServiceController(
            services=informers.of(SERVICES),
            nodes=informers.of(NODES),
            api=self._client("service-controller").resource(SERVICES),
            calls=ServiceCalls(
                Handle(Cloud(name="fake", load_balancer=self.balancers)), cluster_name="kubernetes"
            ),
            events=self._recorder,
            settings=Settings(**settings),
        )
        tasks = [
            spawn(informers.run(), name="informers"),
            spawn(self._recorder.run(), name="events"),
            spawn(controller.controller.run(), name="controller"),
        ]
        try:
            await informers.wait_synced(_PATIENCE_S)
            yield controller
            await self._recorder.flush(_PATIENCE_S)
            assert [task for task in tasks if task.done()] == []
        finally:
            await cancel_and_join(*tasks)

    def _client(self, name: str) -> Client:
        return Client(self._transport, name=name)

    async def _send(
        self, method: str, path: str, body: Any, *, media_type: str = "application/json"
    ) -> dict[str, Any]:
        answer = await send(self.session, method, path, body, media_type=media_type)
        return dict(json.loads(answer))


def ingress(service: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The addresses in a Service's status."""
    return list(service["status"].get("loadBalancer", {}).get("ingress") or ())


@contextlib.asynccontextmanager
async def staged(server: servers.ApiServer) -> AsyncIterator[ServiceStage]:
    """Set the stage before an empty API server."""
    async with wired(server) as (proxy, session, transport):
        yield ServiceStage(proxy=proxy, session=session, transport=transport)

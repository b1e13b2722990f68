"""The environment of the service controller; see `tests.conformance.environment`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud
from ccm.cloud.calls.client import CloudClient
from ccm.controllers.service.controller import ServiceController, ServiceControllerSettings
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES, SERVICES
from ccm.model import names
from tests.conformance.environment import NODES_PATH, Environment
from tests.faults import Match
from tests.support.services import RECORD, FakeBalancers, FakeDigests
from tests.waiting import DEADLINE_S, due_by, eventually

PATH = "/api/v1/namespaces/default/services"
WRITE = Match(method="POST|PUT|PATCH|DELETE", path="/services")


class ServiceEnvironment(Environment):
    """Services and their controller; made by `open`."""

    def __init__(self, *connection: Any) -> None:
        super().__init__(*connection)
        self.balancers = FakeBalancers()

    def listing(self) -> None:
        """Let the cloud offer a listing with digests, of what it holds already."""
        held, self.balancers = self.balancers.held, FakeDigests()
        self.balancers.held = held

    # --- the cluster, as people change it ---------------------------------------------------

    async def create(
        self, name: str = "web", *, metadata: Mapping[str, Any] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Create a Service."""
        ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]
        body = {
            "metadata": {"name": name, **(metadata or {})},
            "spec": {"type": "LoadBalancer", "ports": ports, **spec},
        }
        return dict(json.loads(await self.send("POST", PATH, body)))

    async def settle(self, **fields: Any) -> dict[str, Any]:
        """Create a Service and wait for its address."""
        await self.create(**fields)
        return await self.until(address=True)

    async def change(
        self, patch: Mapping[str, Any], name: str = "web", *, subresource: str = ""
    ) -> None:
        """Merge-patch a Service."""
        await self.send("PATCH", f"{PATH}/{name}/{subresource}".rstrip("/"), patch)

    async def delete(self, name: str = "web") -> None:
        """Ask for the deletion of a Service."""
        await self.send("DELETE", f"{PATH}/{name}", {})

    async def stored(self, name: str = "web") -> dict[str, Any] | None:
        """The Service as the server has it."""
        found = await self.get(f"{PATH}/{name}")
        return None if found is None else dict(json.loads(found))

    async def until(
        self,
        *,
        address: bool | None = None,
        finalizers: Sequence[str] | None = None,
        gone: bool = False,
        name: str = "web",
    ) -> dict[str, Any]:
        """Wait until a Service has an address or none, and these finalizers, or is gone."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.stored(name)
                if found is None and gone:
                    return {}
                if (
                    found
                    and not gone
                    and address in (None, bool(ingress(found)))
                    and finalizers in (None, found["metadata"].get("finalizers", []))
                ):
                    return found
                await asyncio.sleep(0.01)

    async def node(self, name: str) -> None:
        """Create a node."""
        body = {"metadata": {"name": name}, "spec": {"providerID": f"fake://{name}"}}
        await self.send("POST", NODES_PATH, body)

    async def reasons(self, name: str = "web") -> list[tuple[str, str]]:
        """Type and reason of every event about a Service, oldest first."""
        about = [
            one
            for one in await self.events()
            if one.involved_object["name"] == name
            # Of the real API server, which looks for lost cluster IPs now and then.
            and one.reporting_component != "ipallocator-repair-controller"
        ]
        for one in about:
            assert one.source["component"] == one.reporting_component == "service-controller"
            assert one.involved_object["kind"] == "Service"
        return [(one.type, one.reason) for one in about]

    def writes(self) -> list[tuple[str, Any]]:
        """The controller's writes of Services: path below the collection, and body."""
        return [
            (f"{exchange.method} {exchange.path.removeprefix(PATH)}", exchange.json())
            for exchange in self.proxy.requests(WRITE)
        ]

    async def calls(self, *expected: str) -> None:
        """Wait until the cloud was called so, and for a moment in which nothing more comes."""
        await eventually(lambda: len(self.balancers.calls) >= len(expected))
        await due_by(0.1)
        assert self.balancers.calls == list(expected), self.balancers.calls

    # --- the controller ---------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[None]:
        """The controller at work on caches of its own, as after a start."""
        informers = SharedInformers(self.client("shared-informers"))
        controller = ServiceController(
            services=informers.informer_for(SERVICES),
            nodes=informers.informer_for(NODES),
            api=self.client("service-controller").resource(SERVICES),
            handle=CloudClient(Cloud(name="fake", load_balancer=self.balancers)),
            events=self.recorder(names.COMPONENT_SERVICE),
            settings=ServiceControllerSettings(**{"quiet_s": 0.1, **settings}),
            about=RECORD,
        )
        tasks = [
            spawn(informers.run(), name="informers"),
            spawn(controller.controller.run(), name="controller"),
        ]
        try:
            await informers.wait_synced(DEADLINE_S)
            yield
            await self.flush()
            assert [task for task in tasks if task.done()] == []
        finally:
            await cancel_and_join(*tasks)


def ingress(service: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The addresses in a Service's status."""
    return list(service["status"].get("loadBalancer", {}).get("ingress") or ())

"""The wire's limit for nodes and Services: sends what the daemon sends, and decides nothing.

Reads `node NAME UID ADDRESS` and `service NAME UID` lines on standard input, and ends with
it. For each node what `bare` sends. For each Service: finalizer, event, the three calls that
make a load balancer with the members of that moment, event, status; and when all nodes are
there, the two calls that change the members, and an event. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

from tests.benchmarks.bare import Api, Nodes, Sender, Stopwatch, connect, event, lines

WORKERS = 32

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"


class Balancer(msgspec.Struct):
    id: str
    ingress: list[dict[str, str]]


_balancer_in = msgspec.json.Decoder(Balancer).decode


class Cloud(Sender):
    """The cloud."""

    async def find(self, name: str) -> None:
        """Look for a load balancer."""
        await self.send("GET", f"/v1/balancers?name={name}&limit=500")

    async def create(self, name: str) -> Balancer:
        """Order one."""
        listener = {"protocol": "TCP", "port": 80, "target_port": 30080}
        order = {"name": name, "cluster": "kubernetes", "listeners": [listener]}
        return _balancer_in(await self.send("POST", "/v1/balancers", order))

    async def set_members(self, balancer: Balancer, members: list[str]) -> None:
        """Replace its members."""
        path = f"/v1/balancers/{balancer.id}/members"
        _balancer_in(await self.send("PUT", path, {"members": members}))


class Services:
    """The work for every Service that is put in."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self.members: list[str] = []
        self._api = api
        self._cloud = cloud
        self._made: list[tuple[str, str, Balancer]] = []
        self._slots = asyncio.Semaphore(WORKERS)
        self._tasks: list[asyncio.Task[None]] = []

    def put(self, name: str, uid: str) -> None:
        """One more Service."""
        self._tasks.append(asyncio.create_task(self._ensure(name, uid)))

    async def finish(self) -> None:
        """There are no more, and the members are complete; wait for all of them."""
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(self._update(*each) for each in self._made))

    async def _ensure(self, name: str, uid: str) -> None:
        path = f"/api/v1/namespaces/default/services/{name}/status"
        async with self._slots:
            self._api.event(_event(name, uid, "EnsuringLoadBalancer"))
            await self._api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
            await self._cloud.find(_balancer(uid))
            made = await self._cloud.create(_balancer(uid))
            await self._cloud.set_members(made, list(self.members))
            self._api.event(_event(name, uid, "EnsuredLoadBalancer"))
            ingress = [{"ip": each["ip"]} for each in made.ingress]
            await self._api.patch(path, {"status": {"loadBalancer": {"ingress": ingress}}})
            self._made.append((name, uid, made))

    async def _update(self, name: str, uid: str, balancer: Balancer) -> None:
        async with self._slots:
            await self._cloud.find(_balancer(uid))
            await self._cloud.set_members(balancer, self.members)
            self._api.event(_event(name, uid, "UpdatedLoadBalancer"))


async def main(server: str, token: str, ca_file: str, cloud_url: str, cloud_token: str) -> None:
    """Send everything and report."""
    async with (
        connect(server, token, ca_file) as session,
        connect(cloud_url, cloud_token) as cloud_session,
    ):
        api = Api(session)
        nodes, services = Nodes(api), Services(api, Cloud(cloud_session))
        watch = Stopwatch()
        async for kind, name, uid, *address in lines():
            if kind == "node":
                nodes.put(name, uid)
                services.members += address
            else:
                services.put(name, uid)
        await nodes.finish()
        await services.finish()
        watch.stop()
        await api.drain()
        watch.report()


def _balancer(uid: str) -> str:
    return f"a{uid.replace('-', '')}"[:32]


def _event(name: str, uid: str, reason: str) -> Any:
    reference = {"kind": "Service", "apiVersion": "v1", "namespace": "default"}
    return event({**reference, "name": name, "uid": uid}, reason, reason, "service-controller")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))

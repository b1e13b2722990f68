"""The wire's limit for nodes and Services: sends what the daemon sends, and decides nothing.

Reads `node NAME UID ADDRESS` and `service NAME UID` lines on standard input, and ends with it. For
each node: status patch, node patch, event. For each Service: finalizer, event, the three calls that
make a load balancer with the members of that moment, event, status; and when all nodes are there,
the two calls that change the members, and an event. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from tests.benchmarks.proc import usage

WORKERS = 64
SERVICE_WORKERS = 32
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"


class Meta(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - a wire name


class Answer(msgspec.Struct):
    metadata: Meta


class Api:
    """The API server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._events: list[asyncio.Task[bytes]] = []

    async def send(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> bytes:
        """One request; the body of its answer.

        Raises:
            RuntimeError: the server refused it.
        """
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(
            method, path, data=data, headers={"Content-Type": kind}
        ) as response:
            answer = await response.read()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {answer[:300]!r}")
            return answer

    async def patch(self, path: str, body: Any) -> bytes:
        """A strategic merge patch."""
        return await self.send("PATCH", path, body, "application/strategic-merge-patch+json")

    def event(self, body: Any) -> None:
        """Send an event without waiting for its answer; `drain` does."""
        post = self.send("POST", "/api/v1/namespaces/default/events", body)
        self._events.append(asyncio.create_task(post))

    async def drain(self) -> None:
        """Wait for all events."""
        await asyncio.gather(*self._events)


@contextlib.asynccontextmanager
async def connect(
    server: str, token: str, ca_file: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A connection to the API server or to the cloud."""
    trust = ssl.create_default_context(cafile=ca_file)
    async with aiohttp.ClientSession(
        server,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(limit=0, ssl=trust),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield session


async def lines() -> AsyncIterator[list[str]]:
    """The words of each line of standard input, after saying that we are ready."""
    print("ready", flush=True)
    reader = asyncio.StreamReader(limit=2**20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().split()


class Nodes:
    """The writes of an initialisation, for every node that is put in."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
        self._workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]

    def put(self, name: str, uid: str) -> None:
        """One more node."""
        self._queue.put_nowait((name, uid))

    async def finish(self) -> None:
        """There are no more; wait for all of them."""
        self._queue.put_nowait(None)
        await asyncio.gather(*self._workers)

    async def _work(self) -> None:
        decoder = msgspec.json.Decoder(Answer)
        while (item := await self._queue.get()) is not None:
            name, uid = item
            raw = await self._api.patch(f"/api/v1/nodes/{name}/status", _status(name, uid))
            version = decoder.decode(raw).metadata.resourceVersion
            decoder.decode(await self._api.patch(f"/api/v1/nodes/{name}", _node(name, version)))
            self._api.event(_event(name, uid))
        await self._queue.put(None)


class Balancer(msgspec.Struct):
    id: str
    ingress: list[dict[str, str]]


class Services:
    """The work for every Service that is put in; `cloud` is the simulated cloud."""

    def __init__(self, api: Api, cloud: Api) -> None:
        self.members: list[str] = []
        self._api = api
        self._cloud = cloud
        self._decoder = msgspec.json.Decoder(Balancer)
        self._made: list[tuple[str, str, Balancer]] = []
        self._slots = asyncio.Semaphore(SERVICE_WORKERS)
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
            self._api.event(_service_event(name, uid, "EnsuringLoadBalancer"))
            await self._api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
            await self._find(uid)
            listener = {"protocol": "TCP", "port": 80, "target_port": 30080}
            order = {"name": _balancer(uid), "cluster": "kubernetes", "listeners": [listener]}
            made = self._decoder.decode(await self._cloud.send("POST", "/v1/balancers", order))
            await self._set_members(made)
            self._api.event(_service_event(name, uid, "EnsuredLoadBalancer"))
            ingress = [{"ip": each["ip"]} for each in made.ingress]
            await self._api.patch(path, {"status": {"loadBalancer": {"ingress": ingress}}})
            self._made.append((name, uid, made))

    async def _update(self, name: str, uid: str, balancer: Balancer) -> None:
        async with self._slots:
            await self._find(uid)
            await self._set_members(balancer)
            self._api.event(_service_event(name, uid, "UpdatedLoadBalancer"))

    async def _find(self, uid: str) -> None:
        await self._cloud.send("GET", f"/v1/balancers?name={_balancer(uid)}&limit=500")

    async def _set_members(self, balancer: Balancer) -> None:
        path = f"/v1/balancers/{balancer.id}/members"
        self._decoder.decode(await self._cloud.send("PUT", path, {"members": self.members}))


class Stopwatch:
    """Figures of this process, from its making to `report`."""

    def __init__(self) -> None:
        self._before = usage(os.getpid())
        self._started = time.time()
        self._ended = 0.0

    def stop(self) -> None:
        """The work is done; events may still be under way."""
        self._ended = time.time()

    def report(self) -> None:
        """Print the figures as one line of JSON."""
        after = usage(os.getpid())
        figures = {
            "started": self._started,
            "ended": self._ended,
            "cpu_s": round(after.cpu_s - self._before.cpu_s, 2),
            "peak_mib": round(after.peak_mib, 1),
        }
        print(json.dumps(figures), flush=True)


async def main(server: str, token: str, ca_file: str, cloud_url: str, cloud_token: str) -> None:
    """Send everything and report."""
    async with (
        connect(server, token, ca_file) as session,
        connect(cloud_url, cloud_token) as cloud_session,
    ):
        api = Api(session)
        nodes, services = Nodes(api), Services(api, Api(cloud_session))
        watch = Stopwatch()
        async for kind, name, uid, *addresses in lines():
            if kind == "node":
                nodes.put(name, uid)
                services.members += addresses
            else:
                services.put(name, uid)
        await nodes.finish()
        await services.finish()
        watch.stop()
        await api.drain()
        watch.report()


def _balancer(uid: str) -> str:
    return f"a{uid.replace('-', '')}"[:32]


def _status(name: str, uid: str) -> Any:
    addresses = [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "Hostname", "address": name},
    ]
    return {
        "metadata": {"uid": uid},
        "status": {"addresses": [*addresses, {"$patch": "replace"}]},
    }


def _node(name: str, version: str) -> Any:
    labels = {
        "beta.kubernetes.io/instance-type": "small",
        "node.kubernetes.io/instance-type": "small",
        "failure-domain.beta.kubernetes.io/zone": "zone-1",
        "topology.kubernetes.io/zone": "zone-1",
        "failure-domain.beta.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/region": "region-1",
    }
    return {
        "metadata": {"resourceVersion": version, "labels": labels},
        "spec": {
            "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
            "providerID": f"sim://i-{name}",
        },
    }


def _event(name: str, uid: str) -> Any:
    about = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": uid}
    return _event_about(about, "Synced", "Node synced successfully", "cloud-node-controller")


def _service_event(name: str, uid: str, reason: str) -> Any:
    about = {"kind": "Service", "apiVersion": "v1", "namespace": "default", "name": name}
    return _event_about({**about, "uid": uid}, reason, reason, "service-controller")


def _event_about(about: dict[str, str], reason: str, message: str, component: str) -> Any:
    now = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about['name']}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Normal",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component,
    }


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""The world a scenario runs in: a real API server, the simulated cloud, nodes by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiohttp
import yaml

from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.transport import Transport
from ccm.sandbox import realserver
from tests.benchmarks import proc
from tests.envtest import assets

SERVICES_PATH = "/api/v1/namespaces/default/services"
INIT_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"

RESTING_S = 0.1
"""CPU seconds that a daemon with nothing to do uses in a second, at the most."""


@dataclass(slots=True, kw_only=True)
class World:
    """Everything a scenario may touch."""

    folder: Path
    server: realserver.RealServer
    api: aiohttp.ClientSession
    cloud: aiohttp.ClientSession
    cloud_config: Path
    audit: Path

    @property
    def flags(self) -> tuple[str, str]:
        """The daemon's flags about the cloud."""
        return f"--cloud-config={self.cloud_config}", "--cloud-provider=sim"

    @property
    def token(self) -> str:
        """Token of the simulated cloud."""
        return str(yaml.safe_load(self.cloud_config.read_text())["token"])

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the API server, without a limit of requests."""
        cluster = ClusterConfig(
            server=self.server.url,
            credentials=StaticCredentials(bearer(self.server.token)),
            tls=TlsSettings(authorities=self.server.ca_file.read_bytes()),
        )
        async with Transport(cluster, user_agent="benchmark") as transport:
            yield Client(transport)

    @contextlib.asynccontextmanager
    async def leader(
        self, log: str, *flags: str, ticks: Path | None = None
    ) -> AsyncIterator[proc.Daemon]:
        """The daemon with a kubeconfig, once it leads and rests; it is stopped in the end."""
        words = (f"--kubeconfig={self.server.kubeconfig_path}", *self.flags, *flags)
        with proc.daemon(self.folder / log, *words, ticks=ticks) as daemon:
            await asyncio.to_thread(daemon.wait_for, "became leader")
            used_s = -1.0
            while (now_s := proc.usage(daemon.pid).cpu_s) - used_s > RESTING_S:
                used_s = now_s
                await asyncio.sleep(1)
            yield daemon

    async def bare(self, names: list[str], services: Sequence[str] = ()) -> dict[str, Any]:
        """Figures of a bare client that handles these nodes and Services as they appear."""
        cloud = yaml.safe_load(self.cloud_config.read_text())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.benchmarks.bare"),
            *(self.server.url, self.server.token, str(self.server.ca_file)),
            *(cloud["url"], cloud["token"]),
            stdin=PIPE,
            stdout=PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, places = process.stdin, {name: _address(n) for n, name in enumerate(names, 1)}
        await process.stdout.readline()
        started = time.time()
        registered_s, _ = await asyncio.gather(
            self.register(
                names,
                on_node=lambda name, uid: stdin.write(
                    f"node {name} {uid} {places[name]}\n".encode()
                ),
            ),
            self.create_services(
                services, on_service=lambda *one: stdin.write(f"service {' '.join(one)}\n".encode())
            ),
        )
        stdin.close()
        figures = json.loads(await asyncio.wait_for(process.stdout.readline(), 1800))
        await process.wait()
        return {
            "wall_s": round(figures["ended"] - started, 2),
            "registered_s": round(registered_s, 2),
            "cpu_s": figures["cpu_s"],
            "peak_rss_mib": figures["peak_mib"],
        }

    async def create_services(
        self, names: Sequence[str], *, on_service: Callable[[str, str], None] | None = None
    ) -> float:
        """Services of type LoadBalancer, 16 at once; the seconds that took."""
        ports = [{"protocol": "TCP", "port": 80}]
        spec = {"type": "LoadBalancer", "ports": ports}
        bodies = [{"metadata": {"name": name}, "spec": spec} for name in names]
        return await self._create(SERVICES_PATH, bodies, 16, on_service)

    async def remove_services(self, names: Sequence[str]) -> None:
        """Delete Services that a bare client made, and the load balancers of the cloud."""
        kind = {"Content-Type": "application/merge-patch+json"}
        for name in names:
            path, body = f"{SERVICES_PATH}/{name}", {"metadata": {"finalizers": None}}
            async with self.api.patch(path, json=body, headers=kind) as response:
                response.raise_for_status()
            async with self.api.delete(path) as response:
                response.raise_for_status()
        async with self.cloud.get("/admin/snapshot") as response:
            balancers = (await response.json())["balancers"]
        for balancer in balancers:
            async with self.cloud.delete(f"/admin/balancers/{balancer['id']}") as response:
                response.raise_for_status()

    async def add_instances(self, names: list[str]) -> None:
        """Running instances in the cloud."""
        instances = [
            {
                "name": name,
                "type": "small",
                "zone": "zone-1",
                "region": "region-1",
                "addresses": [{"kind": "private", "value": _address(n)}],
            }
            for n, name in enumerate(names, 1)
        ]
        async with self.cloud.post("/admin/instances", json={"instances": instances}) as response:
            response.raise_for_status()

    async def register(
        self,
        names: list[str],
        *,
        padding: bool = False,
        pod_cidrs: bool = False,
        on_node: Callable[[str, str], None] | None = None,
    ) -> float:
        """Nodes as kubelets register them, 64 at once; the seconds that took."""
        bodies = [_node(name, padding) for name in names]
        for number, body in enumerate(bodies if pod_cidrs else ()):
            cidr = f"100.{64 + (number >> 8)}.{number & 255}.0/24"
            body["spec"] |= {"podCIDR": cidr, "podCIDRs": [cidr]}
        return await self._create("/api/v1/nodes", bodies, 64, on_node)

    async def _create(
        self,
        path: str,
        bodies: Sequence[Any],
        limit: int,
        on_object: Callable[[str, str], None] | None,
    ) -> float:
        line = asyncio.Semaphore(limit)
        started = time.monotonic()

        async def one(body: Any) -> None:
            async with line, self.api.post(path, json=body) as response:
                answer = await response.json()
                if response.status != 201:
                    raise RuntimeError(str(answer))
                if on_object is not None:
                    on_object(answer["metadata"]["name"], answer["metadata"]["uid"])

        await asyncio.gather(*(one(body) for body in bodies))
        return time.monotonic() - started

    async def remove_nodes(self) -> None:
        """Delete all nodes and events."""
        for path in ("/api/v1/nodes", "/api/v1/namespaces/default/events"):
            async with self.api.delete(path) as response:
                response.raise_for_status()
                await response.read()

    async def count_events(self) -> int:
        """Events in the namespace default; the audit log of a large scenario is rotated."""
        found, query = 0, {"limit": "500"}
        while True:
            path = "/api/v1/namespaces/default/events"
            async with self.api.get(path, params=query) as response:
                page = await response.json()
            found += len(page["items"])
            if not page["metadata"].get("continue"):
                return found
            query["continue"] = page["metadata"]["continue"]

    async def uninitialised(self) -> int:
        """Nodes that still carry the init taint or lack a provider ID."""
        async with self.api.get("/api/v1/nodes") as response:
            items = (await response.json())["items"]
        return sum(
            1
            for item in items
            if not item["spec"].get("providerID")
            or any(taint["key"] == INIT_TAINT for taint in item["spec"].get("taints") or [])
        )

    async def cloud_calls(self) -> dict[str, Any]:
        """The cloud's own count of calls since the last question."""
        async with self.cloud.get("/admin/calls") as response:
            found: dict[str, Any] = await response.json()
        async with self.cloud.delete("/admin/calls") as response:
            response.raise_for_status()
        return {"total": found["total"], **found["counts"]}

    def audited(self, since: int, *, ours: bool = True) -> Iterator[tuple[str, str, str]]:
        """Verb, resource and name of each request after an offset of the audit log.

        Of the daemon, or of all others: the kubelets and the user of the scenario, and the API
        server itself.
        """
        with self.audit.open("rb") as log:
            log.seek(since)
            for entry in map(json.loads, log):
                is_ours = entry.get("userAgent", "").startswith("cloud-controller-manager")
                if is_ours is ours and entry["stage"] == "ResponseComplete":
                    what = entry.get("objectRef") or {}
                    part = f"/{what['subresource']}" if what.get("subresource") else ""
                    name = what.get("name", "")
                    yield entry["verb"], f"{what.get('resource', '')}{part}", name

    def requests(self, since: int) -> dict[str, int]:
        """How many requests the daemon made, by verb and resource, after an offset of the log."""
        found = Counter(f"{verb} {what}" for verb, what, _ in self.audited(since))
        return dict(sorted(found.items()))

    def named(self, since: int, verb: str, resource: str) -> Counter[str]:
        """How many requests about each object the daemon made, its parts included."""
        return Counter(
            name
            for done, what, name in self.audited(since)
            if (done, what.partition("/")[0]) == (verb, resource)
        )


def _address(number: int) -> str:
    """The address of an instance, by its place among those added together, from 1."""
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _node(name: str, padding: bool) -> Any:
    status: dict[str, Any] = {
        "addresses": [{"type": "Hostname", "address": name}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "b",
            "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.12.0",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.3",
            "machineID": "m",
            "operatingSystem": "linux",
            "osImage": "Linux",
            "systemUUID": "s",
        },
    }
    if padding:
        # Thirty-one images bring a node to the 5.7 KB of a usual kubelet's.
        status["images"] = [
            {
                "names": [f"registry.example/{name}/image-{n}@sha256:{n:064x}"],
                "sizeBytes": 10**8 + n,
            }
            for n in range(31)
        ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "spec": {"taints": [{"key": INIT_TAINT, "value": "true", "effect": "NoSchedule"}]},
        "status": status,
    }


@contextlib.asynccontextmanager
async def open_world(
    folder: Path, *, latency: str = "50ms", **server_options: Any
) -> AsyncIterator[World]:
    """Start everything; `server_options` are those of `RealServer`."""
    audit = folder / "audit.log"
    cloud_argv = [sys.executable, "-m", "providers.sim", "--latency", latency]
    cloud = subprocess.Popen(cloud_argv, stdout=PIPE, stdin=subprocess.DEVNULL)
    try:
        assert cloud.stdout is not None
        ready = json.loads(cloud.stdout.readline())
        config = folder / "cloud.yaml"
        config.write_text(f"url: {ready['url']}\ntoken: {ready['token']}\n")
        async with realserver.open_real_apiserver(
            assets.ensure_assets(), folder / "api", audit_log=audit, **server_options
        ) as server:
            context = ssl.create_default_context(cafile=server.ca_file)
            async with (
                aiohttp.ClientSession(
                    server.url,
                    headers={"Authorization": f"Bearer {server.token}"},
                    connector=aiohttp.TCPConnector(limit=0, ssl=context),
                ) as api,
                aiohttp.ClientSession(
                    ready["url"], headers={"Authorization": f"Bearer {ready['token']}"}
                ) as sim,
            ):
                yield World(
                    folder=folder,
                    server=server,
                    api=api,
                    cloud=sim,
                    cloud_config=config,
                    audit=audit,
                )
    finally:
        cloud.terminate()
        cloud.communicate(timeout=10)

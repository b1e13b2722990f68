"""The wire's limit: sends the writes of an initialisation and does nothing else.

Reads `name uid` lines on standard input, one per node, and ends with it. For each node:
status patch, node patch, event, as the daemon sends them. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from typing import Any

import aiohttp
import msgspec

from tests.benchmarks.proc import usage

WORKERS = 64


class Meta(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - a wire name


class Answer(msgspec.Struct):
    metadata: Meta


async def main(server: str, token: str, ca_file: str) -> None:
    """Send everything and report."""
    decoder = msgspec.json.Decoder(Answer)
    context = ssl.create_default_context(cafile=ca_file)
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    queue: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
    async with aiohttp.ClientSession(
        server, headers=headers, connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def send(method: str, path: str, kind: str, body: Any) -> bytes:
            async with session.request(
                method,
                path,
                data=msgspec.json.encode(body),
                headers={"Content-Type": kind},
            ) as response:
                answer = await response.read()
                if response.status >= 300:
                    raise RuntimeError(f"{method} {path}: {response.status} {answer[:300]!r}")
                return answer

        async def event(name: str, uid: str) -> None:
            await send(
                "POST", "/api/v1/namespaces/default/events", "application/json", _event(name, uid)
            )

        events: list[asyncio.Task[None]] = []

        async def work() -> None:
            while (item := await queue.get()) is not None:
                name, uid = item
                smp = "application/strategic-merge-patch+json"
                raw = await send("PATCH", f"/api/v1/nodes/{name}/status", smp, _status(name, uid))
                version = decoder.decode(raw).metadata.resourceVersion
                decoder.decode(
                    await send("PATCH", f"/api/v1/nodes/{name}", smp, _node(name, version))
                )
                events.append(asyncio.create_task(event(name, uid)))
            await queue.put(None)

        loop = asyncio.get_running_loop()
        workers = [asyncio.create_task(work()) for _ in range(WORKERS)]
        print("ready", flush=True)
        reader = asyncio.StreamReader(limit=2**20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        before = usage(os.getpid())
        started = time.time()
        while line := await reader.readline():
            name, uid = line.decode().split()
            queue.put_nowait((name, uid))
        queue.put_nowait(None)
        await asyncio.gather(*workers)
        ended = time.time()
        await asyncio.gather(*events)
        after = usage(os.getpid())
        print(
            json.dumps(
                {
                    "started": started,
                    "ended": ended,
                    "cpu_s": round(after.cpu_s - before.cpu_s, 2),
                    "peak_mib": round(after.peak_mib, 1),
                }
            ),
            flush=True,
        )


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
    now = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": name, "uid": uid},
        "reason": "Synced",
        "message": "Node synced successfully",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": "cloud-node-controller"},
        "reportingComponent": "cloud-node-controller",
    }


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))

"""Reads all nodes through an informer and says how long the event loop stood still.

`python -m tests.benchmarks.stall URL TOKEN CA watch-list|pages` prints one line of JSON. A
ticker wants to run every millisecond; how much later it runs is what any other work on the
loop would have had to wait. On a busy machine other processes are part of that, so the
longest processor time between two ticks is given beside it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ccm.base import log, tasks
from ccm.kube import informer as informers
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.informer import Informer
from ccm.kube.resources import NODES
from ccm.kube.transport import Transport
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node

TICK_S = 0.001


async def main(server: str, token: str, ca_file: str, mode: str) -> None:
    """Fill a cache and a work queue from the server; report."""
    log.setup()
    gc.freeze()  # as the daemon does
    cluster = ClusterConfig(
        server=server,
        credentials=StaticCredentials(bearer(token)),
        tls=TlsSettings(authorities=Path(ca_file).read_bytes()),
        disable_compression=True,
    )
    async with Transport(cluster, user_agent="stall") as transport:
        informer = Informer(
            Client(transport, name="stall").resource(NODES),
            resource="nodes",
            settings=informers.ReflectorSettings(watch_list=mode == "watch-list"),
        )
        queue: WorkQueue[str] = WorkQueue("stall")
        informer.add_handler(name="queue", on_add=lambda node, _: queue.add(node.key))
        idle_s, _ = await _longest_stall(asyncio.sleep(1))
        started = time.perf_counter()
        stall_s, cpu_s = await _longest_stall(_fill(informer))
        figures = {
            "nodes": len(queue),
            "wall_s": round(time.perf_counter() - started, 2),
            "idle_stall_ms": round(idle_s * 1000, 1),
            "stall_ms": round(stall_s * 1000, 1),
            "stall_cpu_ms": round(cpu_s * 1000, 1),
        }
    print(json.dumps(figures), flush=True)


async def _fill(informer: Informer[Node]) -> None:
    running = tasks.spawn(informer.run(), name="informer")
    await informer.wait_synced(60)
    await tasks.cancel_and_join(running)


async def _longest_stall(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """The longest time between two ticks beyond a tick, and the most processor time."""
    longest_s = most_s = 0.0
    working = tasks.spawn(work, name="work")
    while not working.done():
        started, used = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK_S)
        longest_s = max(longest_s, time.perf_counter() - started - TICK_S)
        most_s = max(most_s, time.thread_time() - used)
    working.result()
    return longest_s, most_s


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))

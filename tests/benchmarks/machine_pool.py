"""Machines by the dozen: from the objects to nodes in use, with the sandbox's kubelets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ccm.base import tasks
from ccm.gardener.codec import MACHINES
from ccm.gardener.names import CLASS_KIND
from ccm.kube.client import Client
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES
from ccm.model.machines import Machine
from ccm.sandbox import GARDENER, cloud, kubelet, machineapis, machines
from tests.benchmarks import proc, ticking
from tests.benchmarks.world import World

COUNT = 50
BOOT_S = 2.0
LOOK_S = 0.05
"""How late the kubelet of a VM may hear that it runs."""

AT_ONCE = 16
"""Machines that are created or deleted at the same time."""

REST_S = 3.0
TIMEOUT_S = 300.0
FLAGS = ("--controllers=machine,machineclass,machinesafety", "--kube-api-qps=-1")


@dataclass(slots=True)
class Pool:
    """Machines, and the kubelets of their VMs.

    Attributes:
        client: calls to the API server.
        admin: the cloud behind the scenes.
        made_of: the class of the machines, and its Secret.
        phases: when how many were first in a phase, in monotonic time.
        gone: names of the machines that were deleted.
    """

    client: Client
    admin: cloud.Admin
    made_of: tuple[Mapping[str, Any], ...]
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def seen(self, machine: Machine) -> None:
        """A Machine is there, or changed."""
        phase = machine.phase.value
        self.phases.setdefault(phase, {}).setdefault(machine.name, time.monotonic())
        self._news.set()

    def removed(self, machine: Machine) -> None:
        """A Machine is gone."""
        self.gone.add(machine.name)
        self._news.set()

    async def run(self, count: int) -> dict[str, float]:
        """Create so many, and wait until all of them run; the seconds that took."""
        began = time.monotonic()
        await self._create(count)
        created_s = time.monotonic() - began
        await self._until(lambda: len(self.phases.get("Running", ())) >= count)
        return {
            "created_s": round(created_s, 2),
            "pending_s": round(max(self.phases["Pending"].values()) - began, 2),
            "wall_s": round(max(self.phases["Running"].values()) - began, 2),
        }

    async def remove(self) -> dict[str, float]:
        """Delete all machines that run, and wait until they are gone; the seconds that took."""
        began, names = time.monotonic(), self.phases["Running"].keys()

        async def delete(name: str) -> None:
            await self.client.resource(MACHINES).delete(name, namespace=machineapis.NAMESPACE)

        await tasks.run_bounded(list(names), delete, limit=AT_ONCE, name="machines")
        await self._until(lambda: names <= self.gone)
        return {"wall_s": round(time.monotonic() - began, 2)}

    async def _until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not is_done():
                self._news.clear()
                await self._news.wait()

    async def _create(self, count: int) -> None:
        """Machines without a set: only the machine controller is measured."""
        await machines.describe(self.client, machineapis.APIS[GARDENER], self.made_of)
        spec = {"class": {"kind": CLASS_KIND, "name": machineapis.CLASS}}

        async def make(name: str) -> None:
            body = {"metadata": {"name": name}, "spec": spec}
            await self.client.resource(MACHINES).create(body, namespace=machineapis.NAMESPACE)

        names = [f"machine-{number:04d}" for number in range(1, count + 1)]
        await tasks.run_bounded(names, make, limit=AT_ONCE, name="machines")


@contextlib.asynccontextmanager
async def pool(world: World, look_s: float = LOOK_S) -> AsyncIterator[Pool]:
    """CRDs, a class, and a kubelet for each VM of the cloud."""
    url = yaml.safe_load(world.cloud_config.read_text())["url"]
    async with world.client() as client, cloud.open_admin(url, world.token) as admin:
        api = machineapis.APIS[GARDENER]
        await machines.create_crds(client, api)
        found = Pool(client, admin, api.simulated(world.token))
        informers = SharedInformers(client)
        informers.informer_for(MACHINES, namespace=machineapis.NAMESPACE).add_handler(
            name="pool",
            on_add=lambda one, _: found.seen(one),
            on_update=lambda _, one: found.seen(one),
            on_delete=lambda one, _: found.removed(one),
        )
        # Only the machine controllers are measured: no node waits for another controller.
        kubelets = kubelet.Kubelets(
            informers.informer_for(NODES), client.resource(NODES), external=False
        )

        async def follow() -> None:
            while True:
                running = await admin.running()
                kubelets.set_running_machines({name: f"sim://{vm}" for name, vm in running.items()})
                await asyncio.sleep(look_s)

        works = (informers.run(), kubelets.run(), follow())
        running = [tasks.spawn(work, name="pool") for work in works]
        try:
            yield found
            for task in running:
                if task.done():
                    task.result()
        finally:
            await tasks.cancel_and_join(*running)


async def behave(world: World, **settings: float) -> None:
    """Settings of the cloud."""
    async with world.cloud.patch("/admin/settings", json=settings) as response:
        response.raise_for_status()


async def fifty(world: World) -> dict[str, Any]:
    """Fifty at once on a cloud that boots in two seconds, without a limit of requests."""
    await behave(world, transition_s=BOOT_S)
    ticks = world.folder / "ticks"
    async with pool(world) as made, world.leader("machines.log", *FLAGS, ticks=ticks) as daemon:
        await world.cloud_calls()
        offset, before, began = world.audit.stat().st_size, proc.usage(daemon.pid), time.time()
        figures = await made.run(COUNT)
        ended, after = time.time(), proc.usage(daemon.pid)
        await asyncio.sleep(REST_S)
        calls, asked = await world.cloud_calls(), world.requests(offset)
        daemon.stop()
    return {
        "machines": COUNT,
        "boot_s": BOOT_S,
        **figures,
        "over_boot_s": round(figures["wall_s"] - BOOT_S, 2),
        "cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "peak_rss_mib": round(after.peak_mib, 1),
        **ticking.longest(ticks, began, ended),
        "cloud_calls": calls,
        "cloud_calls_per_machine": round(calls["total"] / COUNT, 2),
        "requests": asked,
        "per_machine": per_machine(asked, COUNT),
    }


def per_machine(asked: Mapping[str, int], count: int) -> dict[str, float]:
    """Writes about Machine, Node and bootstrap token, and reads that no watch saves."""

    def share(verbs: tuple[str, ...], resource: str) -> float:
        found = sum(
            number
            for words, number in asked.items()
            if words.split(" ")[0] in verbs and words.split(" ")[1].split("/")[0] == resource
        )
        return round(found / count, 2)

    writes = ("create", "update", "patch", "delete")
    kinds = ("machines", "nodes", "secrets")
    return {
        **{f"writes_{kind}": share(writes, kind) for kind in kinds},
        **{f"reads_{kind}": share(("get", "list"), kind) for kind in kinds},
    }

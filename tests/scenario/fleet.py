"""A MachineDeployment on a cluster with kubelets that join, seen from a watch."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from ccm.gardener.names import GROUP, VERSION
from ccm.model.times import format_time
from tests.scenario import definitions
from tests.scenario.definitions import BASE
from tests.waiting import DEADLINE_S

MACHINES = f"{BASE}/machines"
DEPLOYMENT = f"{BASE}/machinedeployments/workers"
SECRETS = "/api/v1/namespaces/default/secrets"
NODES = "/api/v1/nodes"
CONTROLLERS = "machine,machineclass,machinesafety,machineset,machinedeployment,machineovershoot"
TYPE: Mapping[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Fleet:
    """The deployment `workers`; its machines become nodes `boot_s` after they have VMs.

    Attributes:
        most: most machines at once since `watch_bounds`, without those on their way out.
        least: fewest that ran.
    """

    def __init__(self, session: aiohttp.ClientSession, *, boot_s: float) -> None:
        self._session = session
        self._boot_s = boot_s
        self._machines: dict[str, dict[str, Any]] = {}
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.most, self.least = 0, 10**9

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Fleet]:
        """Follow the machines, and let them join."""
        watch = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            for task in (watch, *self._joining.values()):
                task.cancel()
            await asyncio.gather(watch, *self._joining.values(), return_exceptions=True)

    # --- what a user does -------------------------------------------------------------------------

    async def define(self) -> None:
        """Install the definitions; wait until they are served."""
        await definitions.define(self._session)

    async def make_class(self, name: str, *, token: str) -> None:
        """A class of machines of the simulated cloud."""
        data = {"token": token, "userData": "<<BOOTSTRAP_TOKEN>>"}
        secret = {key: text.encode() for key, text in data.items()}
        spec = {"machineType": "small", "zone": "sim-1a", "region": "sim-1"}
        await self.make_class_of(name, spec, secret)

    async def make_class_of(
        self, name: str, spec: Mapping[str, Any], secret: Mapping[str, bytes], **more: Any
    ) -> None:
        """A class of machines of any cloud, and its Secret."""
        encoded = {key: base64.b64encode(data).decode() for key, data in secret.items()}
        await self._send("POST", SECRETS, {"metadata": {"name": name}, "data": encoded})
        body = {
            "kind": "MachineClass",
            "metadata": {"name": name},
            "providerSpec": spec,
            "secretRef": {"name": name, "namespace": "default"},
            **more,
        }
        await self._send("POST", f"{BASE}/machineclasses", {**TYPE, **body})

    async def deploy(self, replicas: int, *, kind: str, surge: int, unavailable: int) -> None:
        """Make the deployment."""
        body = {
            "kind": "MachineDeployment",
            "metadata": {"name": "workers"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"name": "workers"}},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
                },
                "template": {
                    "metadata": {"labels": {"name": "workers"}},
                    "spec": {"class": {"kind": "MachineClass", "name": kind}},
                },
            },
        }
        await self._send("POST", f"{BASE}/machinedeployments", {**TYPE, **body})

    async def roll(self, kind: str) -> None:
        """Machines of another class from now on."""
        await self.edit(template={"spec": {"class": {"name": kind}}})

    async def edit(self, **spec: Any) -> None:
        """Edit the deployment."""
        await self._send("PATCH", DEPLOYMENT, {"spec": spec}, MERGE)

    async def scale(self, replicas: int) -> None:
        """Scale the deployment, as `kubectl scale` does."""
        await self._send("PATCH", f"{DEPLOYMENT}/scale", {"spec": {"replicas": replicas}}, MERGE)

    async def delete(self) -> None:
        """Delete the deployment."""
        await self._send("DELETE", DEPLOYMENT, {})

    # --- what a user sees -------------------------------------------------------------------------

    def watch_bounds(self) -> None:
        """Note bounds from now on."""
        self.most, self.least = self._counts()

    async def until(self, what: Callable[[Fleet], bool], *, within_s: float = DEADLINE_S) -> float:
        """Wait until the machines are so; the seconds it took."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                while not what(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise AssertionError(f"not within {within_s} s; {self.kinds()}") from error
        return time.monotonic() - began

    def kinds(self) -> dict[str, dict[str, int]]:
        """Machines by class and phase; those on their way out are `gone`."""
        found: dict[str, dict[str, int]] = {}
        for one in self._machines.values():
            phases = found.setdefault(one["spec"]["class"]["name"], {})
            phase = "gone" if _is_going(one) else _phase(one)
            phases[phase] = phases.get(phase, 0) + 1
        return found

    def all_run(self, kind: str, count: int) -> bool:
        """Whether these machines run, and there are no others."""
        return self.kinds() == ({kind: {"Running": count}} if count else {})

    async def said(self) -> dict[str, Any]:
        """The status of the deployment; empty: gone."""
        async with self._session.get(DEPLOYMENT) as response:
            return dict((await response.json()).get("status", {})) if response.ok else {}

    # --- kubelets ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            async with self._session.get(MACHINES) as response:
                listed = await response.json()
            self._machines = {one["metadata"]["name"]: one for one in listed["items"] or ()}
            query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
            limit = aiohttp.ClientTimeout(total=None)
            async with self._session.get(MACHINES, params=query, timeout=limit) as response:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                        break
                    self._seen(event["type"], event["object"])

    def _seen(self, kind: str, machine: dict[str, Any]) -> None:
        name = machine["metadata"]["name"]
        if kind == "DELETED":
            self._machines.pop(name, None)
            if task := self._joining.pop(name, None):
                task.cancel()
        else:
            self._machines[name] = machine
            if machine["spec"].get("providerID") and name not in self._joining:
                self._joining[name] = asyncio.create_task(self._join(name, machine))
        most, least = self._counts()
        self.most, self.least = max(self.most, most), min(self.least, least)
        self._changed.set()

    async def _join(self, name: str, machine: dict[str, Any]) -> None:
        await asyncio.sleep(self._boot_s)
        now = format_time(datetime.now(UTC))
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"providerID": machine["spec"]["providerID"]},
            "status": {"conditions": [ready | {"lastHeartbeatTime": now}]},
        }
        await self._send("POST", NODES, node)

    def _counts(self) -> tuple[int, int]:
        here = [one for one in self._machines.values() if not _is_going(one)]
        return len(here), sum(_phase(one) == "Running" for one in here)

    async def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        told = headers or {"Content-Type": "application/json"}
        data = json.dumps(body)
        async with self._session.request(method, path, data=data, headers=told) as response:
            assert response.status in (200, 201, 202), f"{method} {path}: {await response.text()}"


def _is_going(machine: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in machine["metadata"]


def _phase(machine: Mapping[str, Any]) -> str:
    return str(machine.get("status", {}).get("currentStatus", {}).get("phase", ""))

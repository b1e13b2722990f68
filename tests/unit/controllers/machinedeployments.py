"""A small world for the controller of deployments: sets, machines and kubelets that do their part,
and a look at the bounds after each change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.model.times import parse_time
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import (
    DEPLOYMENTS,
    MACHINES,
    SETS,
    Sets,
    owned_by_deployment,
)

WEB = f"{DEPLOYMENTS}/web"
NODES = "/api/v1/nodes"
ALL = ("machine", "machineclass", "machineset", "machinedeployment")
REVISION = "deployment.kubernetes.io/revision"
HOLD = "cluster-autoscaler.kubernetes.io/scale-down-disabled"


def template(kind: str = "small", **labels: str) -> dict[str, Any]:
    """A template of machines of a class."""
    return {
        "metadata": {"labels": {"name": "web", **labels}},
        "spec": {"class": {"kind": "MachineClass", "name": kind}},
    }


def rolling(surge: int | str = 1, unavailable: int | str = 0) -> dict[str, Any]:
    """A strategy."""
    bounds = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


class Rolling(Sets):
    """Deployments, whose machines become nodes after `boot_s`."""

    boot_s = 10.0

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self.ready_class()
        self.machine_class("large")
        self.secret("large")
        self.peak, self.least = 0, 10**9
        self.sick: set[str] = set()
        """Classes whose machines never become nodes."""

    @contextlib.asynccontextmanager
    async def at_work(self, *which: str) -> AsyncIterator[Rolling]:
        """Controllers, kubelets and the look at the bounds."""
        async with self.running(*(which or ALL)):
            tasks = [spawn(self._join(), name="kubelets"), spawn(self._look(), name="look")]
            try:
                yield self
            finally:
                for task in tasks:
                    assert not task.done(), task
                    await cancel_and_join(task)

    @contextlib.asynccontextmanager
    async def at_rest(self, **deployment: Any) -> AsyncIterator[None]:
        """A deployment whose machines work, and the controllers of sets and deployments."""
        self.deployment(**deployment)
        async with self.running("machineset", "machinedeployment"):
            await all_run(self)
            yield

    async def settled(self, seconds: float = 600) -> None:
        """Long enough for anything; machines and sets are as the deployment wants."""
        await advance(seconds)

    def watch_bounds(self) -> None:
        """Look from now on."""
        self.peak, self.least = len(self.here()), self.working()

    def working(self) -> int:
        """Machines that run and do not go."""
        return sum(
            one.get("status", {}).get("currentStatus", {}).get("phase") == "Running"
            for one in self.machines()
            if "deletionTimestamp" not in one["metadata"]
        )

    def web(self) -> dict[str, Any]:
        """The deployment; empty: gone."""
        return self.server.get(WEB) or {}

    def status(self, name: str = "") -> dict[str, Any]:
        """The status of the deployment, or of a machine."""
        return super().status(name) if name else dict(self.web().get("status", {}))

    def said(self, kind: str = "Progressing") -> tuple[str, str]:
        """Status and reason of one of its conditions."""
        found = {one["type"]: one for one in self.status().get("conditions") or ()}
        one = found.get(kind, {})
        return one.get("status", ""), one.get("reason", "")

    def sets(self) -> list[dict[str, Any]]:
        """All sets, the oldest first."""
        return sorted(
            self.server.list(SETS), key=lambda one: int(one["metadata"]["resourceVersion"])
        )

    def sizes(self) -> dict[str, int]:
        """Replicas of sets by the class of their machines; of empty ones nothing."""
        found: dict[str, int] = {}
        for one in self.server.list(SETS):
            kind = one["spec"]["template"]["spec"]["class"]["name"]
            if size := one["spec"].get("replicas", 0):
                found[kind] = found.get(kind, 0) + size
        return found

    def kinds(self) -> dict[str, int]:
        """Machines by their class."""
        found: dict[str, int] = {}
        for one in self.machines():
            kind = one["spec"]["class"]["name"]
            found[kind] = found.get(kind, 0) + 1
        return found

    def of_class(self, kind: str) -> list[str]:
        """Names of the machines of a class."""
        every = self.machines()
        return [one["metadata"]["name"] for one in every if one["spec"]["class"]["name"] == kind]

    def edit(self, **spec: Any) -> None:
        """The user edits the deployment."""
        self.server.patch(WEB, {"spec": spec})

    def note(self, **annotations: str) -> None:
        """Somebody annotates the deployment; `_` stands for itself."""
        self.server.patch(WEB, {"metadata": {"annotations": annotations}})

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes."""
        return self.server.list(NODES)

    async def _join(self) -> None:
        while True:
            for record in list(self.driver.vms.values()):
                name = record.identity.name
                if record.identity.pool in self.sick or self.node_object(name):
                    continue
                self._later(name, record.info.provider_id)
            await asyncio.sleep(1)

    def _later(self, name: str, provider_id: str) -> None:
        made = self.get(name).get("metadata", {}).get("creationTimestamp")
        if made and _age(made) >= self.boot_s:
            self.node(name, providerID=provider_id)

    async def _look(self) -> None:
        while True:
            self.peak = max(self.peak, len(self.here()))
            self.least = min(self.least, self.working())
            await asyncio.sleep(0.5)


def _age(made: str) -> float:
    return (clock.now() - parse_time(made)).total_seconds()


async def all_run(world: Rolling) -> None:
    """All machines work."""
    await advance(2)
    world.all_become("Running")
    await advance(2)


__all__ = [
    "ALL",
    "HOLD",
    "MACHINES",
    "REVISION",
    "SETS",
    "WEB",
    "Rolling",
    "all_run",
    "owned_by_deployment",
    "rolling",
    "template",
]

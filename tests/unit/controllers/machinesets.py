"""A small world for the controllers of sets: machines that become what a test says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ccm.base import clock
from ccm.gardener import names
from ccm.model.times import format_time
from tests.unit.controllers.machines import BASE, World

SETS = f"{BASE}/machinesets"
MACHINES = f"{BASE}/machines"
DEPLOYMENTS = f"{BASE}/machinedeployments"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"name": "web"}},
    "spec": {"class": {"kind": "MachineClass", "name": "small"}},
}
SELECTOR = {"matchLabels": {"name": "web"}}


def moment(seconds: float) -> str:
    """That long from now."""
    return format_time(clock.now() + timedelta(seconds=seconds))


class Sets(World):
    """Sets, deployments and their machines, written and read."""

    def set(self, name: str = "web", *, replicas: int = 0, **more: Any) -> str:
        """A set; its UID."""
        metadata = {"name": name, **more.pop("metadata", {})}
        spec = {"replicas": replicas, "selector": SELECTOR, "template": TEMPLATE, **more}
        made = self.server.put(SETS, {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def deployment(self, name: str = "web", *, replicas: int = 0, **more: Any) -> str:
        """A deployment that rolls with a surge of 1; its UID."""
        metadata = {"name": name, **more.pop("metadata", {})}
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        spec = {
            "replicas": replicas,
            "selector": SELECTOR,
            "template": TEMPLATE,
            "strategy": strategy,
            **more,
        }
        made = self.server.put(DEPLOYMENTS, {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def change(self, path: str, **body: Any) -> None:
        """Patch an object."""
        self.server.patch(path, body)

    def member(
        self, name: str, *, owner: str = "", of: str = "web", phase: str = "Running", **more: Any
    ) -> None:
        """A machine of the set `of` with that UID, or an orphan, in a phase.

        `labels`, `annotations` and `finalizers` are those of the object; `status` is laid over
        its status; `last` is its last operation.
        """
        metadata = {
            "labels": {"name": "web"} | more.pop("labels", {}),
            "annotations": more.pop("annotations", {}),
            "finalizers": more.pop("finalizers", []),
        }
        if owner:
            metadata["ownerReferences"] = [owned("MachineSet", of, owner)]
        current = {"phase": phase, "lastUpdateTime": moment(0), **more.pop("status", {})}
        last = {"type": "Create", "state": "Successful", **more.pop("last", {})}
        self.machine(
            name,
            status={"currentStatus": current, "lastOperation": last},
            metadata=metadata,
            **more,
        )

    def becomes(self, name: str, phase: str, **last: Any) -> None:
        """A machine gets into a phase."""
        current = {"phase": phase, "lastUpdateTime": moment(0)}
        status = {"currentStatus": current, "lastOperation": {"type": "Create", **last}}
        self.server.patch(f"{MACHINES}/{name}/status", {"status": status})

    def all_become(self, phase: str) -> None:
        """All machines that are not on their way out do."""
        for name in self.here():
            self.becomes(name, phase, state="Successful")

    def set_object(self, name: str = "web") -> dict[str, Any]:
        """A set as it is; empty: gone."""
        return self.server.get(f"{SETS}/{name}") or {}

    def set_status(self, name: str = "web") -> dict[str, Any]:
        """Its status."""
        return dict(self.set_object(name).get("status", {}))

    def conditions(self, name: str = "web") -> Mapping[str, Mapping[str, str]]:
        """The conditions of a set by type."""
        return {one["type"]: one for one in self.set_status(name).get("machineSetCondition") or ()}

    def machines(self) -> list[dict[str, Any]]:
        """All machines."""
        return self.server.list(MACHINES)

    def here(self) -> list[str]:
        """Names of the machines that are not on their way out."""
        return sorted(
            one["metadata"]["name"]
            for one in self.machines()
            if "deletionTimestamp" not in one["metadata"]
        )

    def owners(self, name: str) -> list[str]:
        """UIDs of what controls a machine."""
        return [one["uid"] for one in self.get(name)["metadata"].get("ownerReferences", ())]

    def freeze(self, name: str = "web") -> None:
        """As the overshoot controller does."""
        self.change(f"{SETS}/{name}", metadata={"labels": {names.LABEL_FREEZE: names.FROZEN}})


def owned_by_deployment(uid: str, name: str = "web") -> dict[str, Any]:
    """Metadata of a set that a deployment controls."""
    return {"ownerReferences": [owned("MachineDeployment", name, uid)]}


def owned(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }

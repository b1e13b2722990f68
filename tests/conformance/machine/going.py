"""A machine whose deletion was asked for."""

from __future__ import annotations

from typing import Any

from ccm.base import clock
from ccm.gardener import names
from ccm.model.times import format_time
from tests.unit.controllers.machines import NODES_PATH, World

SHORT_S, LONG_S = 5, 600
M = "machine-0"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"


def goes(world: World, text: str = "", *, phase: str = "Terminating", **more: Any) -> str:
    """A machine with VM and node whose deletion was asked for; its path."""
    labels = {"node": M, **more.pop("labels", {})}
    metadata = {
        "labels": {key: value for key, value in labels.items() if value},
        "finalizers": more.pop("finalizers", [names.FINALIZER]),
        **more.pop("metadata", {}),
    }
    status: dict[str, Any] = {
        "currentStatus": {"phase": phase, "lastUpdateTime": format_time(clock.now())},
        "lastOperation": {"description": text, "state": "Processing", "type": "Delete"},
        "conditions": more.pop("conditions", None),
    }
    spec = {"providerID": f"fake:///{M}", **more}
    path = world.machine(M, metadata=metadata, status=status, **spec)
    world.driver.add(world.identity(M))
    told = {names.LABEL_MACHINE_NAME: M} if labels["node"] else {}
    world.node(M, metadata={"finalizers": [names.FINALIZER_NODE], "labels": told})
    world.server.drop(path)
    return path


def left(world: World) -> tuple[bool, bool, bool]:
    """Whether machine, VM and node are there."""
    return (world.get(M) != {}, world.driver.vms != {}, world.node_object(M) != {})


ALL, NONE = (True, True, True), (False, False, False)


def unmake(world: World, path: str) -> None:
    """Delete an object and its finalizers."""
    world.server.unmake(path)


def attached(world: World, *volumes: str) -> None:
    """Attach exactly these volumes to the node."""
    for volume in volumes:
        spec = {
            "attacher": "csi.example.com",
            "nodeName": M,
            "source": {"persistentVolumeName": volume},
        }
        world.server.put(ATTACHMENTS, {"metadata": {"name": volume}, "spec": spec})
    names_ = [{"name": volume, "devicePath": "/dev/x"} for volume in volumes]
    world.server.patch(f"{NODES_PATH}/{M}/status", {"status": {"volumesAttached": names_}})

"""The Services that a sandbox creates: `web-1` and so on, of type LoadBalancer."""

from __future__ import annotations

import contextlib
from typing import Any

from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists
from ccm.kube.resources import SERVICES
from ccm.model.service import TYPE_LOAD_BALANCER

OF_THE_API_SERVER = "default/kubernetes"
"""The Service that every cluster has: not one of ours, and none of the daemon's business."""

_NAMESPACE = "default"
_PORTS = (("http", 80, 8080), ("https", 443, 8443))


def keys(count: int) -> list[str]:
    """Namespace and name of each."""
    return [f"{_NAMESPACE}/{_name(number)}" for number in range(count)]


async def create(client: Client, count: int) -> None:
    """Create them.

    Raises:
        KubeError: a request failed.
    """
    services = client.resource(SERVICES)
    for number in range(count):
        with contextlib.suppress(AlreadyExists):
            await services.create(new_service(number), namespace=_NAMESPACE)


def new_service(number: int) -> dict[str, Any]:
    """One of them; every second one has a second port."""
    name = _name(number)
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "type": TYPE_LOAD_BALANCER,
            "selector": {"app": name},
            "ports": [
                {"name": title, "port": port, "targetPort": target}
                for title, port, target in _PORTS[: 1 + number % 2]
            ],
        },
    }


def _name(number: int) -> str:
    return f"web-{number + 1}"

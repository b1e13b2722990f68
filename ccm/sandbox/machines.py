"""The objects of a sandbox: its Services, and Machines with their definitions and classes.

`create` alone says of which objects Machines come. The names of the nodes are those that the
Machines say; in the simulated cloud a VM has its Machine's name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ccm.base import clock, strict_yaml
from ccm.gardener import crds
from ccm.gardener.codec import MACHINE_CLASSES, MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.gardener.names import CLASS_KIND
from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists, KubeError, NotFound, ServerError, TooManyRequests
from ccm.kube.resources import SECRETS, SERVICES, Kind
from ccm.machines import replicas
from ccm.model.machines import Machine, MachineDeployment
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox import cloud

NAMESPACE = "default"
CLASS = "sandbox"
"""Name of the class of the simulated cloud's machines, and of its Secret."""

OTHER_CLASS = "sandbox-large"
"""A second one in the simulated cloud, to roll to."""

DEPLOYMENT = "workers"
SURGE, UNAVAILABLE = 1, 1
"""How many machines it may have too many, and how many too few, while it rolls."""

SERVED_S = 30.0
"""How long an API server may take to serve what was defined."""

GONE_S = 120.0
"""How long VMs may take to go at the end, in a cloud that is not ours."""

USER_DATA = "#cloud-config\nhostname: <<MACHINE_NAME>>\n# joins with <<BOOTSTRAP_TOKEN>>\n"
"""A VM of the simulated cloud reads none of it; it is there to be looked at."""

API_SERVERS_OWN = "default/kubernetes"
"""The Service that every cluster has: not one of ours, and none of the daemon's business."""

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_KINDS: Mapping[str, Kind[Any]] = {"Secret": SECRETS, CLASS_KIND: MACHINE_CLASSES}
_OWNERS_FIRST: Sequence[Kind[Any]] = (MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES)
_POLL_S = 0.05


async def define(client: Client) -> None:
    """Have the API server serve Machines and what belongs to them.

    Raises:
        KubeError: it does not.
    """
    for one in crds.DEFINITIONS:
        body = msgspec.json.encode(crds.manifest(one))
        with contextlib.suppress(AlreadyExists):
            await client.raw("POST", _DEFINITIONS, body=body)
    ends = clock.monotonic() + SERVED_S
    for one in crds.DEFINITIONS:
        while not await _is_served(client, one.kind):
            if clock.monotonic() > ends:
                raise KubeError(
                    f"{one.kind.plural}.{one.kind.group} was defined, and is not served"
                )
            await asyncio.sleep(_POLL_S)


async def create(client: Client, count: int, made_of: Sequence[Mapping[str, Any]]) -> None:
    """Create classes, and a MachineDeployment of the first.

    Args:
        client: calls to the API server.
        count: how many machines.
        made_of: the classes, and the Secrets that they refer to.

    Raises:
        KubeError: a request failed.
    """
    for one in made_of:
        await _create(client, _KINDS[one["kind"]], one)
    name = next(one["metadata"]["name"] for one in made_of if one["kind"] == CLASS_KIND)
    await _create(client, MACHINE_DEPLOYMENTS, deployment(count, name))


async def _create(client: Client, kind: Kind[Any], body: Mapping[str, Any]) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.resource(kind).create(body, namespace=NAMESPACE)


async def remove(client: Client) -> Sequence[str]:
    """Delete all Machines and their owners, and wait for the VMs to go.

    Returns:
        The names of Machines that did not go.

    Raises:
        KubeError: a request failed.
    """
    ends = clock.monotonic() + GONE_S
    while left := await _delete_all(client):
        if clock.monotonic() > ends:
            break
        await asyncio.sleep(_POLL_S)
    return left


def standing(obj: MachineDeployment) -> str:
    """How far a deployment is, and what it keeps to while it rolls."""
    status = obj.status
    if obj.faults:
        return f"{obj.name}: {'; '.join(obj.faults)}"
    most = obj.replicas + replicas.surge(obj)
    least = obj.replicas - replicas.unavailable(obj)
    paused = ", paused" if obj.is_paused else ""
    return (
        f"{obj.name}: {status.replicas} machines (at most {most}), {status.updated} of "
        f"{obj.replicas} new, {status.available} available (at least {least}){paused}"
    )


def simulated(token: str) -> tuple[Mapping[str, Any], ...]:
    """The classes of the simulated cloud's machines, and their Secret."""
    secret = {
        "kind": "Secret",
        "metadata": {"name": CLASS},
        "stringData": {"token": token, "userData": USER_DATA},
    }
    return secret, _class(CLASS, cloud.TYPES[0]), _class(OTHER_CLASS, cloud.TYPES[-1])


def read(text: bytes) -> tuple[Mapping[str, Any], ...]:
    """A class of one's own and its Secrets, out of a file.

    Raises:
        ValueError: it does not hold one class, or something else beside; the text says what.
    """
    try:
        found = [one for one in strict_yaml.load_all(text) if one is not None]
    except strict_yaml.FAULTS as error:
        raise ValueError(strict_yaml.reason(error)) from None
    told = ", ".join(sorted(_KINDS))
    for one in found:
        kind = one.get("kind") if isinstance(one, Mapping) else None
        if kind not in _KINDS:
            raise ValueError(f"it holds {kind or 'something without a kind'}; it may hold {told}")
        metadata = one.get("metadata")
        if not isinstance(metadata, Mapping) or not metadata.get("name"):
            raise ValueError(f"a {kind} has no metadata.name")
        if metadata.get("namespace", NAMESPACE) != NAMESPACE:
            raise ValueError(
                f"{kind} {metadata['name']} has metadata.namespace {metadata['namespace']!r}; a "
                f"sandbox has its machines in {NAMESPACE!r}"
            )
    classes = [one for one in found if one["kind"] == CLASS_KIND]
    if len(classes) != 1:
        raise ValueError(f"it holds {len(classes)} objects of kind {CLASS_KIND}; one is needed")
    return tuple(found)


def nodes(machines: Iterable[Machine]) -> Mapping[str, str]:
    """Node name -> provider ID of all Machines whose VMs are there."""
    return {one.node_name: one.provider_id for one in machines if one.node_name and one.provider_id}


def _class(name: str, kind: str) -> Mapping[str, Any]:
    return {
        "kind": CLASS_KIND,
        "metadata": {"name": name},
        "provider": "sim",
        "providerSpec": {"machineType": kind, "zone": cloud.ZONES[0], "region": cloud.REGION},
        "secretRef": {"name": CLASS, "namespace": NAMESPACE},
    }


def deployment(count: int, class_name: str) -> Mapping[str, Any]:
    """So many machines of a class, which are exchanged one by one."""
    labels = {"name": DEPLOYMENT}
    rolling = {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}
    made_of = {"class": {"kind": CLASS_KIND, "name": class_name}}
    spec = {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "template": {"metadata": {"labels": labels}, "spec": made_of},
    }
    return {"metadata": {"name": DEPLOYMENT}, "spec": spec}


async def _delete_all(client: Client) -> Sequence[str]:
    """Have all that is there deleted, owners first; the names of Machines, or of what makes them.

    Again and again: a set may have made a Machine just before its own deletion was seen.
    """
    left: list[str] = []
    for kind in _OWNERS_FIRST:
        resource = client.resource(kind)
        there = (await resource.list_page(namespace=NAMESPACE)).items
        for one in there:
            if not one.is_deleting:
                with contextlib.suppress(NotFound):
                    await resource.delete(one.name, namespace=NAMESPACE)
        left = [one.name for one in there] or left
    return left


async def _is_served(client: Client, kind: Kind[Any]) -> bool:
    """A moment after a definition was made its kind is not there yet, or not ready."""
    try:
        await client.resource(kind).list_page(namespace=NAMESPACE, limit=1)
    except (NotFound, ServerError, TooManyRequests):
        return False
    return True


# --- Services -----------------------------------------------------------------------------------

_PORTS = (("http", 80, 8080), ("https", 443, 8443))


def services(count: int) -> Mapping[str, Mapping[str, Any]]:
    """Return Services of type LoadBalancer by key; every second one has a second port."""
    return {
        f"{NAMESPACE}/web-{number}": {
            "metadata": {"name": f"web-{number}", "labels": {"app": f"web-{number}"}},
            "spec": {
                "type": TYPE_LOAD_BALANCER,
                "selector": {"app": f"web-{number}"},
                "ports": [
                    {"name": title, "port": port, "targetPort": target}
                    for title, port, target in _PORTS[: 2 - number % 2]
                ],
            },
        }
        for number in range(1, count + 1)
    }


async def serve(client: Client, count: int) -> None:
    """Create the Services. Raises KubeError."""
    for body in services(count).values():
        await _create(client, SERVICES, body)

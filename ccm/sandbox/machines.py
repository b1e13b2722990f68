"""Objects of a sandbox: its Services, and Machines with their CRDs and classes.

Machines come from the MachineDeployment that `create` creates. Names of nodes come from the status
of Machines; in the simulated cloud a VM has the name of its Machine.
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
from ccm.kube.resources import SECRETS, SERVICES, ResourceKind
from ccm.machines import replicas
from ccm.model.machines import Machine, MachineDeployment
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox import cloud

NAMESPACE = "default"
CLASS = "sandbox"
"""Name of the MachineClass of the simulated cloud, and of its Secret."""

OTHER_CLASS = "sandbox-large"
"""Second MachineClass of the simulated cloud, as target of a rollout."""

DEPLOYMENT = "workers"
SURGE, UNAVAILABLE = 1, 1
"""`maxSurge` and `maxUnavailable` of the MachineDeployment."""

SERVED_S = 30.0
"""Time limit for an API server to serve new CRDs, in seconds."""

GONE_S = 120.0
"""Time limit for VMs in the user's cloud to disappear when the sandbox ends, in seconds."""

USER_DATA = "#cloud-config\nhostname: <<MACHINE_NAME>>\n# joins with <<BOOTSTRAP_TOKEN>>\n"
"""User data as an example; VMs of the simulated cloud do not read it."""

KUBERNETES_SERVICE = "default/kubernetes"
"""The Service that every cluster has, which neither the sandbox nor the daemon manages."""

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_KINDS: Mapping[str, ResourceKind[Any]] = {"Secret": SECRETS, CLASS_KIND: MACHINE_CLASSES}
_OWNERS_FIRST: Sequence[ResourceKind[Any]] = (MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES)
_POLL_S = 0.05


async def create_crds(client: Client) -> None:
    """Create the CRDs of Machines; return when the API server serves them.

    Raises:
        KubeError: a request failed, or the CRDs are not served in time.
    """
    for crd in crds.DEFINITIONS:
        body = msgspec.json.encode(crd.to_manifest())
        with contextlib.suppress(AlreadyExists):
            await client.raw("POST", _DEFINITIONS, body=body)
    ends = clock.monotonic() + SERVED_S
    for crd in crds.DEFINITIONS:
        while not await _is_served(client, crd.kind):
            if clock.monotonic() > ends:
                raise KubeError(f"{crd.kind.plural}.{crd.kind.group}: CRD created, but not served")
            await asyncio.sleep(_POLL_S)


async def create(client: Client, count: int, class_objects: Sequence[Mapping[str, Any]]) -> None:
    """Create the MachineClasses, and a MachineDeployment that uses the first class.

    Args:
        count: number of Machines.
        class_objects: the MachineClasses, and their Secrets.

    Raises:
        KubeError: a request failed.
    """
    for body in class_objects:
        await _create(client, _KINDS[body["kind"]], body)
    name = next(body["metadata"]["name"] for body in class_objects if body["kind"] == CLASS_KIND)
    await _create(client, MACHINE_DEPLOYMENTS, deployment(count, name))


async def _create(client: Client, kind: ResourceKind[Any], body: Mapping[str, Any]) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.resource(kind).create(body, namespace=NAMESPACE)


async def remove(client: Client) -> Sequence[str]:
    """Delete all Machines and their owners, and wait for the VMs to disappear.

    Returns:
        Names of the Machines that remain; if there are none, of the owners that remain.

    Raises:
        KubeError: a request failed.
    """
    ends = clock.monotonic() + GONE_S
    while left := await _delete_all(client):
        if clock.monotonic() > ends:
            break
        await asyncio.sleep(_POLL_S)
    return left


def rollout_summary(obj: MachineDeployment) -> str:
    """Return the progress of a MachineDeployment and its limits during a rollout."""
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
    """Return the MachineClasses of the simulated cloud, and their Secret."""
    secret = {
        "kind": "Secret",
        "metadata": {"name": CLASS},
        "stringData": {"token": token, "userData": USER_DATA},
    }
    return secret, _class(CLASS, cloud.TYPES[0]), _class(OTHER_CLASS, cloud.TYPES[-1])


def read_machine_class(text: bytes) -> tuple[Mapping[str, Any], ...]:
    """Parse a file with one MachineClass and its Secrets.

    Raises:
        ValueError: the file is malformed, does not have exactly one class, or has an object of
            another kind, without name or in another namespace than `NAMESPACE`.
    """
    try:
        documents = [document for document in strict_yaml.load_all(text) if document is not None]
    except strict_yaml.LOAD_ERRORS as error:
        raise ValueError(strict_yaml.describe_error(error)) from None
    allowed = ", ".join(sorted(_KINDS))
    for document in documents:
        kind = document.get("kind") if isinstance(document, Mapping) else None
        if kind not in _KINDS:
            raise ValueError(f"kind {kind or '(none)'} is not allowed; expected {allowed}")
        metadata = document.get("metadata")
        if not isinstance(metadata, Mapping) or not metadata.get("name"):
            raise ValueError(f"{kind} without metadata.name")
        if metadata.get("namespace", NAMESPACE) != NAMESPACE:
            raise ValueError(
                f"{kind} {metadata['name']}: metadata.namespace is {metadata['namespace']!r}; a "
                f"sandbox needs {NAMESPACE!r}"
            )
    classes = [document for document in documents if document["kind"] == CLASS_KIND]
    if len(classes) != 1:
        raise ValueError(f"{len(classes)} objects of kind {CLASS_KIND}; exactly one is required")
    return tuple(documents)


def provider_ids_by_node(machines: Iterable[Machine]) -> Mapping[str, str]:
    """Return node name -> provider ID of all Machines that have both."""
    return {
        machine.node_name: machine.provider_id
        for machine in machines
        if machine.node_name and machine.provider_id
    }


def _class(name: str, kind: str) -> Mapping[str, Any]:
    return {
        "kind": CLASS_KIND,
        "metadata": {"name": name},
        "provider": "sim",
        "providerSpec": {"machineType": kind, "zone": cloud.ZONES[0], "region": cloud.REGION},
        "secretRef": {"name": CLASS, "namespace": NAMESPACE},
    }


def deployment(count: int, class_name: str) -> Mapping[str, Any]:
    """Return a MachineDeployment, which replaces its Machines one by one."""
    labels = {"name": DEPLOYMENT}
    rolling = {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}
    class_ref = {"class": {"kind": CLASS_KIND, "name": class_name}}
    spec = {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "template": {"metadata": {"labels": labels}, "spec": class_ref},
    }
    return {"metadata": {"name": DEPLOYMENT}, "spec": spec}


async def _delete_all(client: Client) -> Sequence[str]:
    """Delete all remaining objects, owners first.

    Returns the names of the Machines that remain; if there are none, of the owners that remain.

    Called repeatedly: a MachineSet may get a new Machine just before its controller sees the set's
    deletion.
    """
    left: list[str] = []
    for kind in _OWNERS_FIRST:
        resource = client.resource(kind)
        objects = (await resource.list_page(namespace=NAMESPACE)).items
        for obj in objects:
            if not obj.is_deleting:
                with contextlib.suppress(NotFound):
                    await resource.delete(obj.name, namespace=NAMESPACE)
        left = [obj.name for obj in objects] or left
    return left


async def _is_served(client: Client, kind: ResourceKind[Any]) -> bool:
    """Return whether the API server serves a kind, which takes a while after the CRD's creation."""
    try:
        await client.resource(kind).list_page(namespace=NAMESPACE, limit=1)
    except (NotFound, ServerError, TooManyRequests):
        return False
    return True


# --- Services -----------------------------------------------------------------------------------

_PORTS = (("http", 80, 8080), ("https", 443, 8443))


def services(count: int) -> Mapping[str, Mapping[str, Any]]:
    """Return Services of type LoadBalancer by key; every second Service has two ports."""
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


async def create_services(client: Client, count: int) -> None:
    """Create the Services. Raises KubeError."""
    for body in services(count).values():
        await _create(client, SERVICES, body)

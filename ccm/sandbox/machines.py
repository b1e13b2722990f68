"""Objects of a sandbox: its Services, and Machines with their CRDs.

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
from ccm.kube.client import Client, Resource
from ccm.kube.errors import AlreadyExists, KubeError, NotFound, ServerError, TooManyRequests
from ccm.kube.resources import NAMESPACES, SERVICES, ResourceKind
from ccm.machines import replicas
from ccm.model.machines import Machine, MachineDeployment
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox.machineapis import NAMESPACE, MachineObjects, SandboxMachineApi

SERVED_S = 30.0
"""Time limit for an API server to serve new CRDs, in seconds."""

GONE_S = 120.0
"""Time limit for VMs in the user's cloud to disappear when the sandbox ends, in seconds."""

KUBERNETES_SERVICE = "default/kubernetes"
"""The Service that every cluster has, which neither the sandbox nor the daemon manages."""

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_POLL_S = 0.05


async def create_crds(client: Client, api: SandboxMachineApi) -> None:
    """Create the CRDs of Machines; return when the API server serves them.

    Also create the namespace of the user data, if the API has one.

    Raises:
        KubeError: a request failed, or the CRDs are not served in time.
    """
    if namespace := api.codec.user_data_namespace:
        with contextlib.suppress(AlreadyExists):
            await client.resource(NAMESPACES).create({"metadata": {"name": namespace}})
    for crd in api.definitions:
        body = msgspec.json.encode(crd.to_manifest())
        with contextlib.suppress(AlreadyExists):
            await client.raw("POST", _DEFINITIONS, body=body)
    ends = clock.monotonic() + SERVED_S
    for crd in api.definitions:
        while not await _is_served(client, crd.kind, api.namespace):
            if clock.monotonic() > ends:
                raise KubeError(f"{crd.kind.plural}.{crd.kind.group}: CRD created, but not served")
            await asyncio.sleep(_POLL_S)


async def create(
    client: Client, api: SandboxMachineApi, count: int, objects: MachineObjects
) -> None:
    """Create a MachineDeployment, and before it the other objects that describe its VMs.

    Args:
        client: client without a rate limit.
        api: API of the Machines.
        count: number of Machines.
        objects: the objects that describe the VMs.

    Raises:
        KubeError: a request failed.
    """
    await describe(client, api, objects)
    deployments = api.codec.machine_deployments
    await _create(client, deployments, api.deployment(count, objects), api.namespace)


async def describe(client: Client, api: SandboxMachineApi, objects: MachineObjects) -> None:
    """Create the objects that describe VMs, except a MachineDeployment.

    Raises:
        KubeError: a request failed.
    """
    for body in objects:
        if body["kind"] != api.codec.machine_deployments.kind:
            await _create(client, api.kinds[body["kind"]], body, api.namespace)


async def _create(
    client: Client, kind: ResourceKind[Any], body: Mapping[str, Any], namespace: str
) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.resource(kind).create(body, namespace=namespace)


async def remove(client: Client, api: SandboxMachineApi) -> Sequence[str]:
    """Delete all Machines and their owners, and wait for the VMs to disappear.

    Returns:
        Names of the Machines that remain; if there are none, of the owners that remain.

    Raises:
        KubeError: a request failed.
    """
    ends = clock.monotonic() + GONE_S
    while left := await _delete_all(client, api):
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


def read_objects(api: SandboxMachineApi, text: bytes) -> MachineObjects:
    """Parse a file with one object that describes VMs, and its Secrets.

    Raises:
        ValueError: the file is malformed, does not have exactly one such object, or has an object
            of another kind, without a name, or in a namespace other than the API's.
    """
    kinds, only, namespace = api.kinds, api.described_by.kind, api.namespace
    try:
        documents = [document for document in strict_yaml.load_all(text) if document is not None]
    except strict_yaml.LOAD_ERRORS as error:
        raise ValueError(strict_yaml.describe_error(error)) from None
    allowed = ", ".join(sorted(kinds))
    for document in documents:
        kind = document.get("kind") if isinstance(document, Mapping) else None
        if kind not in kinds:
            raise ValueError(f"kind {kind or '(none)'} is not allowed; expected {allowed}")
        metadata = document.get("metadata")
        if not isinstance(metadata, Mapping) or not metadata.get("name"):
            raise ValueError(f"{kind} has no metadata.name")
        if metadata.get("namespace", namespace) != namespace:
            raise ValueError(
                f"{kind} {metadata['name']}: metadata.namespace is {metadata['namespace']!r}; a "
                f"sandbox needs {namespace!r}"
            )
    count = sum(document["kind"] == only for document in documents)
    if count != 1:
        raise ValueError(f"{count} objects of kind {only}; exactly one is required")
    return tuple(documents)


def provider_ids_by_node(machines: Iterable[Machine]) -> Mapping[str, str]:
    """Return node name -> provider ID of all Machines that have both."""
    return {
        machine.node_name: machine.provider_id
        for machine in machines
        if machine.node_name and machine.provider_id
    }


async def _delete_all(client: Client, api: SandboxMachineApi) -> Sequence[str]:
    """Delete all remaining objects, owners first.

    Returns the names of the Machines that remain; if there are none, of the owners that remain.

    Called repeatedly: a MachineSet may get a new Machine just before its controller sees the set's
    deletion.
    """
    left: list[str] = []
    codec = api.codec
    for kind in (codec.machine_deployments, codec.machine_sets, codec.machines):
        resource: Resource[Any] = client.resource(kind)
        objects = (await resource.list_page(namespace=api.namespace)).items
        for obj in objects:
            if not obj.is_deleting:
                with contextlib.suppress(NotFound):
                    await resource.delete(obj.name, namespace=api.namespace)
        left = [obj.name for obj in objects] or left
    return left


async def _is_served(client: Client, kind: ResourceKind[Any], namespace: str) -> bool:
    """Return whether the API server serves a kind, which takes a while after the CRD's creation."""
    try:
        await client.resource(kind).list_page(namespace=namespace, limit=1)
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
        await _create(client, SERVICES, body, NAMESPACE)

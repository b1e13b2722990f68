"""The Machines of a sandbox: their definitions, a class, and how many are wanted of it.

`create` alone says of which objects they come. The names of the nodes are those that the Machines
say; in the simulated cloud a VM has its Machine's name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ccm.base import clock, strict_yaml, tasks
from ccm.gardener import crds, views
from ccm.gardener.kinds import MACHINE_CLASSES, MACHINES
from ccm.gardener.names import CLASS_KIND
from ccm.gardener.types import Machine
from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists, KubeError, NotFound, ServerError, TooManyRequests
from ccm.kube.resources import SECRETS, Kind
from ccm.sandbox import cloud

NAMESPACE = "default"
CLASS = "sandbox"
"""Name of the class of the simulated cloud's machines, and of its Secret."""

AT_ONCE = 16
"""Requests at the same time."""

SERVED_S = 30.0
"""How long an API server may take to serve what was defined."""

GONE_S = 120.0
"""How long VMs may take to go at the end, in a cloud that is not ours."""

USER_DATA = "#cloud-config\nhostname: <<MACHINE_NAME>>\n# joins with <<BOOTSTRAP_TOKEN>>\n"
"""A VM of the simulated cloud reads none of it; it is there to be looked at."""

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_KINDS: Mapping[str, Kind[Any]] = {"Secret": SECRETS, CLASS_KIND: MACHINE_CLASSES}
_POLL_S = 0.05


def names(count: int) -> tuple[str, ...]:
    """Of Machines: `machine-0001`, `machine-0002` and so on."""
    return tuple(f"machine-{number:04d}" for number in range(1, count + 1))


def keys(count: int) -> list[str]:
    """Namespace and name of each."""
    return [f"{NAMESPACE}/{name}" for name in names(count)]


async def define(client: Client) -> None:
    """Have the API server serve Machines and what belongs to them.

    Raises:
        KubeError: it does not.
    """
    for one in crds.DEFINITIONS:
        with contextlib.suppress(AlreadyExists):
            body = msgspec.json.encode(crds.manifest(one))
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
    """Create a class, and Machines of it.

    Args:
        client: calls to the API server.
        count: how many.
        made_of: the class, and the Secrets that it refers to.

    Raises:
        KubeError: a request failed; within a group, where it was about a Machine.
    """
    for one in made_of:
        with contextlib.suppress(AlreadyExists):
            await client.resource(_KINDS[one["kind"]]).create(one, namespace=NAMESPACE)
    (name,) = (one["metadata"]["name"] for one in made_of if one["kind"] == CLASS_KIND)
    spec = {"class": {"kind": CLASS_KIND, "name": name}}

    async def make(each: str) -> None:
        body = {"metadata": {"name": each}, "spec": spec}
        with contextlib.suppress(AlreadyExists):
            await client.resource(MACHINES).create(body, namespace=NAMESPACE)

    await tasks.bounded(names(count), make, limit=AT_ONCE, name="machines")


async def remove(client: Client) -> Sequence[str]:
    """Delete all Machines, and wait for their VMs to go; the names of those that did not.

    Raises:
        KubeError: a request failed.
    """
    resource = client.resource(MACHINES)
    for one in (await resource.list_page(namespace=NAMESPACE)).items:
        with contextlib.suppress(NotFound):
            await resource.delete(one.name, namespace=NAMESPACE)
    ends = clock.monotonic() + GONE_S
    while left := (await resource.list_page(namespace=NAMESPACE)).items:
        if clock.monotonic() > ends:
            break
        await asyncio.sleep(_POLL_S)
    return [one.name for one in left]


def simulated(url: str, token: str) -> tuple[Mapping[str, Any], ...]:
    """The class of the simulated cloud's machines, and its Secret."""
    kind, zone = cloud.TYPES[0], cloud.ZONES[0]
    return (
        {
            "kind": "Secret",
            "metadata": {"name": CLASS},
            "stringData": {"url": url, "token": token, "userData": USER_DATA},
        },
        {
            "kind": CLASS_KIND,
            "metadata": {"name": CLASS},
            "provider": "sim",
            "providerSpec": {"machineType": kind, "zone": zone, "region": cloud.REGION},
            "secretRef": {"name": CLASS, "namespace": NAMESPACE},
        },
    )


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
    found = map(views.machine, machines)
    return {one.node_name: one.provider_id for one in found if one.node_name and one.provider_id}


async def _is_served(client: Client, kind: Kind[Any]) -> bool:
    """A moment after a definition was made its kind is not there yet, or not ready."""
    try:
        await client.resource(kind).list_page(namespace=NAMESPACE, limit=1)
    except (NotFound, ServerError, TooManyRequests):
        return False
    return True

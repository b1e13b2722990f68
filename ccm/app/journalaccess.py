"""Access of the journal to the owners of resources, and to the resources in the cloud."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from ccm.app.machineapis import APIS
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests
from ccm.controllers.service.listing import BalancerAccess
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.kube.client import Client
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.informer import Informer
from ccm.kube.resources import SERVICES, ResourceKind
from ccm.machines import discovery
from ccm.machines.driver import SharedComponents
from ccm.machines.flags import ACCOUNT
from ccm.machines.journal import MachineAccess
from ccm.model import Service
from ccm.model.meta import KubeObject
from ccm.persistence.journal import JournalEntry, Owner
from ccm.runtime.journal import LOAD_BALANCER
from ccm.runtime.manifest import ControllerContext
from ccm.runtime.orphans import ResourceAccess

_Place = tuple[ResourceKind[Any], str, str, str]

_PLACES: Sequence[_Place] = (
    (SERVICES, "", SERVICE.client, ""),
    *((api.codec.machines, api.role, ACCOUNT, api.codec.prefix) for api in APIS),
)
"""Kinds of owners, each with the role of its cluster, the account that may read it, and the prefix
of the kind in `/explain`."""

_KINDS = {(place[0].api_version, place[0].kind): place for place in _PLACES}


def explained_kind(owner: Owner) -> str:
    """Return the kind of an owner in `/explain`; empty if it is unknown."""
    known = _KINDS.get((owner.api_version, owner.kind))
    return "" if known is None else f"{known[3]}{owner.kind.lower()}"


class OwnerLookup:
    """Reader of owners from the API server, not from a cache.

    Args:
        client: returns the client for a cluster role and an account.
    """

    def __init__(self, client: Callable[[str, str], Client]) -> None:
        self._clients = {key: client(*place[1:3]) for key, place in _KINDS.items()}

    async def get(self, owner: Owner) -> KubeObject | None:
        """Return the object with an owner's kind and name; None = it does not exist.

        Raises:
            KubeError: the object could not be read, or its kind is not served: then nothing is
                known about it.
        """
        key = (owner.api_version, owner.kind)
        if key not in _KINDS:
            raise KubeError(f"{owner.api_version} {owner.kind} is no kind of this version")
        kind, client = _KINDS[key][0], self._clients[key]
        try:
            obj: KubeObject = await client.resource(kind).get(owner.name, namespace=owner.namespace)
        except NotFound:
            # Without the CRD, every object seems to be absent.
            if kind.group and kind.plural not in await discovery.fetch_plurals(
                client, kind.api_version
            ):
                text = f"{kind.api_version} has no {kind.plural}; apply the CRDs of the machines"
                raise KubeError(text) from None
            return None
        return obj

    async def uid(self, owner: Owner) -> str | None:
        """Return the UID of the object with an owner's kind and name; see `get`."""
        obj = await self.get(owner)
        return None if obj is None else obj.uid


class ClusterAccess:
    """Access of the leader's journal.

    Args:
        context: dependencies of the running controllers.

    Attributes:
        owners: reader of owners.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._balancers = BalancerAccess(context.cloud_client, self._services)
        self.owners = OwnerLookup(lambda role, account: context.cluster(role).client(account))

    def is_cached(self, owner: Owner) -> bool:
        """Return whether a cache of a running controller contains the owner, with its UID."""
        kind, key = _KINDS.get((owner.api_version, owner.kind)), f"{owner.namespace}/{owner.name}"
        cached = (informer.store.get(key) for informer in self._informers(kind and kind[0]))
        return any(obj is not None and obj.uid == owner.uid for obj in cached)

    def access_to(self, entry: JournalEntry) -> ResourceAccess | None:
        """Return the access to an entry's resource; None = it cannot be looked up."""
        client = self._context.cloud_client
        if entry.provider != client.name:
            return None
        if entry.resource == LOAD_BALANCER:
            return self._balancers if client.offers(LoadBalancer) else None
        machines = {
            access.shared.caches.codec.machines.api_version: access for access in self._machines()
        }
        return machines.get(entry.owner.api_version)

    async def listed(self) -> AsyncIterator[Sequence[JournalEntry]]:
        """Yield an entry for each resource that the cloud lists, by kind of resource.

        Raises:
            CloudError: a listing failed.
        """
        client = self._context.cloud_client
        if client.offers(LoadBalancerDigests):
            yield await self._balancers.listed(self._services())
        for access in self._machines():
            yield await access.listed()

    def _services(self) -> Iterator[Service]:
        return (obj for informer in self._informers(SERVICES) for obj in informer.store)

    def _informers(self, kind: ResourceKind[Any] | None) -> Iterator[Informer[Any]]:
        """Yield the running informers of a kind, perhaps also of another kind of that name."""
        others = (cluster.informers for cluster in self._context.clusters.values())
        for informers in (self._context.informers, *others):
            for informer in informers.all:
                if kind is not None and informer.resource == kind.plural:
                    yield informer

    def _machines(self) -> Iterator[MachineAccess]:
        """Yield the access to VMs of each API group whose machine controllers are ready."""
        for shared in self._context.shared.values():
            if isinstance(shared, SharedComponents) and shared.caches.is_ready:
                yield MachineAccess(shared)

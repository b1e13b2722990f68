"""Access of the journal to the owners of resources, and to the resources in the cloud."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any

from ccm.app.machineapis import APIS
from ccm.cloud.errors import FailedPrecondition
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests
from ccm.controllers.service.listing import BalancerAccess
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.informer import Informer, InformerStore
from ccm.kube.resources import SERVICES, ResourceKind
from ccm.machines import discovery
from ccm.machines.driver import SharedComponents
from ccm.machines.flags import ACCOUNT
from ccm.machines.journal import MachineAccess
from ccm.model import Service
from ccm.persistence.journal import JournalEntry, Owner
from ccm.runtime.journal import LOAD_BALANCER
from ccm.runtime.manifest import ControllerContext
from ccm.runtime.orphans import ResourceAccess

_APIS = {api.codec.machines.api_version: api for api in APIS}
_OWNERS: Sequence[ResourceKind[Any]] = (SERVICES, *(api.codec.machines for api in APIS))
_KINDS = {(kind.api_version, kind.kind): kind for kind in _OWNERS}


def explained_kind(owner: Owner) -> str:
    """Return the kind of an owner in `/explain`."""
    api = _APIS.get(owner.api_version)
    return f"{api.codec.prefix if api else ''}{owner.kind.lower()}"


def cluster_of(api_version: str, roles: Collection[str]) -> str:
    """Return `Owner.cluster` of objects with an API version.

    Args:
        api_version: the API version.
        roles: roles of the clusters other than the daemon's.
    """
    api = _APIS.get(api_version)
    return api.role if api is not None and api.role in roles else ""


class ClusterAccess:
    """Access of the leader's journal.

    Args:
        context: dependencies of the running controllers.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._balancers = BalancerAccess(context.cloud_client, self._services)
        self._machine_access = dict[str, MachineAccess]()

    async def owner_uid(self, owner: Owner) -> str | None:
        """Return the UID of the object with an owner's kind and name; None = it does not exist.

        The object is read from the API server, not from a cache.

        Raises:
            KubeError: it is unknown whether the object exists: it could not be read, its kind is
                not served, or its cluster is no longer configured.
        """
        kind = _KINDS.get((owner.api_version, owner.kind))
        if kind is None:
            raise KubeError(f"{owner.api_version} {owner.kind} is no kind of this version")
        role = cluster_of(owner.api_version, self._context.clusters)
        if owner.cluster != role:
            # Such as a Machine, after --control-kubeconfig was removed.
            raise KubeError(f"{owner.kind} {owner.name} is in a cluster that is not configured")
        account = SERVICE.client if kind is SERVICES else ACCOUNT
        client = self._context.cluster(role).client(account)
        try:
            obj = await client.resource(kind).get(owner.name, namespace=owner.namespace)
        except NotFound:
            # Without the CRD, every object seems to be absent.
            if kind.group and kind.plural not in await discovery.fetch_plurals(
                client, kind.api_version
            ):
                text = f"{kind.api_version} has no {kind.plural}; apply the CRDs of the machines"
                raise KubeError(text) from None
            return None
        return str(obj.uid)

    def is_owned(self, entry: JournalEntry) -> bool:
        """Return whether the caches of running controllers contain an owner of the resource.

        An owner is the object that the entry names, with the same UID, or a machine that has the
        provider ID of the VM.
        """
        owner = entry.owner
        kind, key = _KINDS.get((owner.api_version, owner.kind)), f"{owner.namespace}/{owner.name}"
        cached = (informer.store.get(key) for informer in self._informers(kind))
        is_cached = any(obj is not None and obj.uid == owner.uid for obj in cached)
        return is_cached or any(access.has_machine(entry) for access in self._machines().values())

    def access_to(self, entry: JournalEntry) -> ResourceAccess:
        """Return the access to an entry's resource.

        Raises:
            CloudError: the provider, with its present credentials, cannot look it up.
        """
        client, account = self._context.cloud_client, self._context.cloud_client.cloud.account
        access: ResourceAccess | None = None
        if entry.resource == LOAD_BALANCER:
            access = self._balancers if client.offers(LoadBalancer) else None
        elif (machines := self._machines().get(entry.owner.api_version)) is not None:
            access, account = machines, machines.account_of(entry)
        if access is None or entry.provider != client.name:
            raise FailedPrecondition(f"this daemon cannot look up a {entry.resource}")
        if not entry.may_be_in(account):
            # The provider would not find the resource, which does not prove its absence.
            raise FailedPrecondition(f"it belongs to another account, {entry.account}")
        return access

    async def listed(self) -> AsyncIterator[Sequence[JournalEntry]]:
        """Yield the resources that the cloud lists, as entries; one list per kind of resource.

        Raises:
            CloudError: a listing failed.
        """
        client = self._context.cloud_client
        if client.offers(LoadBalancerDigests):
            yield await self._balancers.listed()
        for access in self._machines().values():
            yield await access.listed()

    def _services(self) -> Iterator[InformerStore[Service]]:
        return (informer.store for informer in self._informers(SERVICES))

    def _informers(self, kind: ResourceKind[Any] | None) -> Iterator[Informer[Any]]:
        """Yield the running informers of a kind, and of kinds with the same plural name."""
        others = (cluster.informers for cluster in self._context.clusters.values())
        for informers in (self._context.informers, *others):
            for informer in informers.all:
                if kind is not None and informer.resource == kind.plural:
                    yield informer

    def _machines(self) -> dict[str, MachineAccess]:
        """Return the access to VMs, by API version, if the machine controllers are ready."""
        for shared in self._context.shared.values():
            if isinstance(shared, SharedComponents) and shared.caches.is_ready:
                version = shared.caches.codec.machines.api_version
                if version not in self._machine_access:
                    role = cluster_of(version, self._context.clusters)
                    self._machine_access[version] = MachineAccess(shared, role)
        return self._machine_access

"""Listing of the cloud's load balancers: comparison with Services, and search for orphans."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

import msgspec

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import with_timeout
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError, ImplementedElsewhere, RetryAfter
from ccm.cloud.helpers import has_load_balancer_finalizer
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests, LoadBalancerTransfer
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.controllers.service import metrics
from ccm.controllers.service.plan import ServiceRecord
from ccm.kube.decode import decode_object
from ccm.kube.informer import Informer, InformerStore
from ccm.kube.resources import SERVICES
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.persistence.journal import EntryState, JournalEntry
from ccm.runtime.journal import balancer_entry
from ccm.runtime.orphans import CloudLook, Finding
from ccm.runtime.writer import Recorder

LISTING_ATTEMPTS = 4
LISTING_BACKOFF = ExponentialBackoff(base_s=1.0, factor=2.0, cap_s=30.0)
"""Attempts of the startup listing, and the delays between them.

Without a listing every Service is ensured, which is expensive. So the listing is retried during a
short outage of the cloud."""

LISTING_TIMEOUT_S = 60.0
"""Maximum seconds that Services wait for the startup listing; then every Service is ensured."""


LOOKUP_LISTING_AGE_S = 60.0
"""Maximum age in seconds of a listing by which a lookup confirms the marker of a load balancer."""


class ComparisonResult(Enum):
    """Result of the comparison of one Service with a listing."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"
    ELSEWHERE = "elsewhere"
    """Another controller serves the Service, according to the provider."""


@dataclass(frozen=True, slots=True)
class LoadBalancerListing:
    """All load balancers of the cluster at one moment.

    Attributes:
        handle: cloud client, which computes names and digests.
        records: load balancers in the cloud, by name.
    """

    handle: CloudClient
    records: Mapping[str, LoadBalancerRecord]

    def compare(
        self, service: Service, members: Sequence[Node]
    ) -> tuple[ComparisonResult, Status | None]:
        """Compare the wanted load balancer of a Service with the listed one.

        Returns:
            The result; and for EQUAL the listed status, else None. The listed status may lack
            addresses that the load balancer has.
        """
        compute, cluster = self.handle.compute, self.handle.cluster_name
        try:
            name = compute(LoadBalancer.get_load_balancer_name, cluster, service)
            record = self.records.get(name)
            if record is None:
                return ComparisonResult.MISSING, None
            wanted = compute(LoadBalancerDigests.load_balancer_digest, cluster, service, members)
        except ImplementedElsewhere:
            return ComparisonResult.ELSEWHERE, None
        except CloudError:
            # The ensure that follows fails with the same error, and reports it.
            return ComparisonResult.DIFFERENT, None
        if not wanted or wanted != record.digest:
            return ComparisonResult.DIFFERENT, None
        return ComparisonResult.EQUAL, record.status


async def fetch_startup_listing(handle: CloudClient) -> LoadBalancerListing | None:
    """Return the startup listing; None if it failed or took longer than `LISTING_TIMEOUT_S`."""
    try:
        return await with_timeout(
            LISTING_TIMEOUT_S, fetch_listing(handle, attempts=LISTING_ATTEMPTS), name="the listing"
        )
    except TimeoutError as error:
        logger = log.logger(names.CONTROLLER_SERVICE)
        logger.warning("load balancer listing failed, ensuring all Services", error=str(error))
        return None


async def fetch_listing(handle: CloudClient, *, attempts: int = 1) -> LoadBalancerListing | None:
    """Return a listing; None if all attempts failed.

    If the provider was reopened during the listing, the attempt counts as failed.
    """
    logger = log.logger(names.CONTROLLER_SERVICE)
    for attempt in range(attempts):
        opening = handle.provider_session
        try:
            ask = LoadBalancerDigests.list_load_balancers
            records = await handle.call(ask, handle.cluster_name)
            if handle.provider_session == opening:
                return LoadBalancerListing(handle, {record.name: record for record in records})
        except CloudError as error:
            logger.warning("load balancer listing failed", error=str(error), attempt=attempt + 1)
            if attempt + 1 < attempts:
                await asyncio.sleep(
                    error.seconds
                    if isinstance(error, RetryAfter)
                    else LISTING_BACKOFF.delay_without_jitter(attempt)
                )
    return None


def find_orphans(
    handle: CloudClient, records: Iterable[LoadBalancerRecord], services: Iterable[Service]
) -> Sequence[LoadBalancerRecord]:
    """Return the load balancers of this cluster without any of these Services, sorted by name.

    A load balancer without the marker of this cluster may belong to another cluster.
    A Service owns a load balancer if it has type LoadBalancer, with any class, or the finalizer.

    Raises:
        CloudError: the provider cannot compute the load balancer name of a Service.
    """
    name = LoadBalancer.get_load_balancer_name
    owned = {
        handle.compute(name, handle.cluster_name, service)
        for service in services
        if _may_own(service)
    }
    orphans = (record for record in records if record.marked and record.name not in owned)
    return sorted(orphans, key=lambda record: record.name)


def _may_own(service: Service) -> bool:
    return service.type == TYPE_LOAD_BALANCER or has_load_balancer_finalizer(service)


class Orphans:
    """Load balancers of this cluster without a Service: reported, never deleted.

    Possible causes: another client removed the finalizer of the Service, or an older state of the
    cluster was restored. A listing may be older than the cached Services, so only load balancers
    orphaned in two consecutive listings are reported.

    Args:
        services: the shared informer of Services.
        records: `ServiceRecord` of each Service, by key.
        events: event recorder.
        about: object of the events, since an orphan has no Kubernetes object.
    """

    def __init__(
        self,
        services: Informer[Service],
        records: Mapping[str, ServiceRecord],
        events: Recorder,
        about: ObjectReference,
    ) -> None:
        self._services = services
        self._records = records
        self._events = events
        self._about = about
        self._seen: set[str] = set()
        self._reported: set[str] = set()
        self._log = log.logger(names.CONTROLLER_SERVICE)

    def update(self, listing: LoadBalancerListing) -> None:
        """Find the orphans in a new listing; report each once, and set the metric."""
        if self._services.malformed_keys:
            # An undecodable Service could be the owner of a load balancer that seems orphaned.
            return
        removing = [record.applied for record in self._records.values() if record.may_exist]
        services = [*self._services.store.list(), *removing]
        try:
            orphans = find_orphans(listing.handle, listing.records.values(), services)
        except CloudError as error:
            self._log.info("orphan search failed", error=str(error))
            return
        seen = {orphan.name for orphan in orphans}
        lasting = seen & self._seen
        metrics.ORPHANS.set(len(lasting))
        for name in sorted(lasting - self._reported):
            self._log.warning("orphaned load balancer found", name=name)
            text = (
                f"Load balancer {name} of this cluster belongs to no Service; if it is not "
                f"needed, delete it with `kube-ccm orphans --delete={name}`"
            )
            reason = names.REASON_ORPHANED_BALANCER
            self._events.event(self._about, names.WARNING, reason, text)
        self._seen, self._reported = seen, lasting


@dataclass(slots=True)
class BalancerAccess:
    """Load balancers for the orphan search, found by the Service that a journal entry describes.

    Attributes:
        handle: cloud client.
        services: returns the caches of the cluster's Services.
    """

    handle: CloudClient
    services: Callable[[], Iterable[InformerStore[Service]]] = tuple
    _listing: tuple[float, frozenset[str]] = (-math.inf, frozenset())
    """Time of the last listing, and names of its load balancers without a Service; the lookups of a
    search share the listing."""

    async def look(self, entry: JournalEntry) -> CloudLook:
        """See `ResourceAccess.look`.

        `ImplementedElsewhere` does not prove absence: the entry lacks fields that the Service had.
        """
        service, cluster = described_service(entry), self.handle.cluster_name
        name = self.handle.compute(LoadBalancer.get_load_balancer_name, cluster, service)
        if name != entry.intended_name:
            # An annotation is not recorded, or the provider's settings have changed.
            text = f"the provider would look for a load balancer named {name}"
            return CloudLook(finding=Finding.UNKNOWN, text=text)
        status = await self.handle.call(LoadBalancer.get_load_balancer, cluster, service)
        if status is None:
            return CloudLook(finding=Finding.ABSENT)
        # A listing contains only load balancers with the marker of this cluster; a lookup may also
        # find one by its name, which by now may be that of another Service.
        finding = Finding.UNMARKED
        if self.handle.offers(LoadBalancerDigests):
            if clock.monotonic() - self._listing[0] > LOOKUP_LISTING_AGE_S:
                started, records = clock.monotonic(), await self._list()
                services = chain.from_iterable(self.services())
                orphans = find_orphans(self.handle, records, services)
                self._listing = started, frozenset(record.name for record in orphans)
            if name in self._listing[1]:
                finding = Finding.MARKED
        # After the listing, which tells some providers the real names of load balancers.
        if await self._is_taken_over(entry):
            finding = Finding.TAKEN_OVER
        return CloudLook(
            finding=finding,
            resource_id=entry.resource_id,
            can_transfer=self.handle.offers(LoadBalancerTransfer),
        )

    async def _is_taken_over(self, entry: JournalEntry) -> bool:
        """Return whether a recreated Service uses the load balancer of the former Service.

        That happens if the provider names load balancers by namespace and name of the Service. The
        name alone is no proof, because an annotation may ask for a name that is taken.
        """
        key, cluster = f"{entry.owner.namespace}/{entry.owner.name}", self.handle.cluster_name
        for service in filter(None, [cache.get(key) for cache in self.services()]):
            if service.uid != entry.owner.uid and _may_own(service):
                name = self.handle.compute(LoadBalancer.get_load_balancer_name, cluster, service)
                if name == entry.intended_name:
                    method = LoadBalancer.get_load_balancer
                    return await self.handle.call(method, cluster, service) is not None
        return False

    async def listed(self) -> Sequence[JournalEntry]:
        """Return an entry for each listed load balancer of a Service.

        Raises:
            CloudError: the listing failed.
        """
        listed = {record.name for record in await self._list()}
        services = filter(_may_own, chain.from_iterable(self.services()))
        entries = (balancer_entry(self.handle, service) for service in services)
        return [
            msgspec.structs.replace(
                entry, state=EntryState.CREATED, resource_id=entry.intended_name
            )
            for entry in entries
            if entry.intended_name in listed
        ]

    async def _list(self) -> Sequence[LoadBalancerRecord]:
        method = LoadBalancerDigests.list_load_balancers
        return await self.handle.call(method, self.handle.cluster_name)

    async def delete(self, entry: JournalEntry) -> None:
        """See `ResourceAccess.delete`."""
        change = LoadBalancer.ensure_load_balancer_deleted
        await self.handle.call(change, self.handle.cluster_name, described_service(entry))


def described_service(entry: JournalEntry) -> Service:
    """Return a Service with the fields by which a provider finds the load balancer of an entry.

    The original Service no longer exists.
    """
    owner = entry.owner
    document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
            "annotations": entry.annotations,
        },
        "spec": {"type": TYPE_LOAD_BALANCER},
    }
    return decode_object(SERVICES, msgspec.json.encode(document))

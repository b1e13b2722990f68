"""One listing of the cloud's load balancers: comparison with Services, and orphans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ccm.base import log
from ccm.base.backoff import Exponential
from ccm.base.tasks import within
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, ImplementedElsewhere, RetryAfter
from ccm.cloud.helpers import has_load_balancer_finalizer
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.controllers.service import metrics
from ccm.controllers.service.plan import Record
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime.writer import Recorder

ATTEMPTS = 4
PAUSES = Exponential(base_s=1.0, factor=2.0, cap_s=30.0)
"""Attempts to list at the start, and the delays between them. The alternative, ensuring every
Service, is expensive, so a short outage of the cloud is waited out."""

LONGEST_S = 60.0
"""Maximum seconds a start waits for its listing. Services wait meanwhile, and ensuring each of them
is expensive but correct."""


class Verdict(Enum):
    """Result of the comparison of one Service with a listing."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"
    ELSEWHERE = "elsewhere"
    """Another controller serves the Service, according to the provider."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All load balancers of the cluster at one moment.

    Attributes:
        handle: computes names and digests.
        records: load balancers in the cloud, by name.
    """

    handle: Handle
    records: Mapping[str, LoadBalancerRecord]

    def compare(self, service: Service, members: Sequence[Node]) -> tuple[Verdict, Status | None]:
        """Compare a Service's load balancer with the listing.

        Returns:
            The verdict, and the listed status if the load balancer is as wanted. An empty status
                does
            not mean that the load balancer has no address: the listing may not know it.
        """
        compute, cluster = self.handle.compute, self.handle.cluster_name
        try:
            name = compute(LoadBalancer.get_load_balancer_name, cluster, service)
            record = self.records.get(name)
            if record is None:
                return Verdict.MISSING, None
            wanted = compute(LoadBalancerDigests.load_balancer_digest, cluster, service, members)
        except ImplementedElsewhere:
            return Verdict.ELSEWHERE, None
        except CloudError:
            # The ensure that follows gets the same error, and reports it.
            return Verdict.DIFFERENT, None
        if not wanted or wanted != record.digest:
            return Verdict.DIFFERENT, None
        return Verdict.EQUAL, record.status


async def listed_in_time(handle: Handle) -> Listing | None:
    """Return the listing for a start; None when the cloud gave none in `LONGEST_S`."""
    try:
        return await within(LONGEST_S, listed(handle, attempts=ATTEMPTS), name="the listing")
    except TimeoutError as error:
        logger = log.logger(names.COMPONENT_SERVICE)
        logger.warning("load balancers cannot be listed, all are ensured", error=str(error))
        return None


async def listed(handle: Handle, *, attempts: int = 1) -> Listing | None:
    """Return a listing; None when the cloud gave none in that many attempts.

    A listing is discarded if the provider session changed meanwhile.
    """
    logger = log.logger(names.COMPONENT_SERVICE)
    for attempt in range(attempts):
        opening = handle.opening
        try:
            ask = LoadBalancerDigests.list_load_balancers
            records = await handle.call(ask, handle.cluster_name)
            if handle.opening == opening:
                return Listing(handle, {record.name: record for record in records})
        except CloudError as error:
            logger.warning("load balancers cannot be listed", error=str(error), attempt=attempt + 1)
            if attempt + 1 < attempts:
                await asyncio.sleep(
                    error.seconds if isinstance(error, RetryAfter) else PAUSES.even_delay(attempt)
                )
    return None


def unowned(
    handle: Handle, found: Iterable[LoadBalancerRecord], services: Iterable[Service]
) -> Sequence[LoadBalancerRecord]:
    """Return the load balancers that belong to none of these Services, sorted by name.

    A Service may own one whatever its class, also by its finalizer alone.

    Raises:
        CloudError: the provider cannot compute the name of some load balancer.
    """
    name = LoadBalancer.get_load_balancer_name
    owned = {
        handle.compute(name, handle.cluster_name, service)
        for service in services
        if service.type == TYPE_LOAD_BALANCER or has_load_balancer_finalizer(service)
    }
    return sorted(
        (record for record in found if record.name not in owned), key=lambda record: record.name
    )


class Orphans:
    """Load balancers of this cluster without a Service: reported, never deleted.

    Their finalizer was removed, or an older state of the cluster was restored. A listing may be
    older than the cached Services, so an orphan has to be in two consecutive listings.

    Args:
        services: the shared informer of Services.
        records: controller state of Services, by key.
        events: event recorder.
        about: object of the events, since load balancers have no object of their own.
    """

    def __init__(
        self,
        services: Informer[Service],
        records: Mapping[str, Record],
        events: Recorder,
        about: ObjectReference,
    ) -> None:
        self._services = services
        self._records = records
        self._events = events
        self._about = about
        self._seen: set[str] = set()
        self._told: set[str] = set()
        self._log = log.logger(names.COMPONENT_SERVICE)

    def note(self, listing: Listing) -> None:
        """Update and report the orphans from a new listing."""
        if self._services.undecodable:
            # An undecodable Service could be the owner of a load balancer that seems orphaned.
            return
        removing = [record.applied for record in self._records.values() if record.may_exist]
        services = [*self._services.store.list(), *removing]
        try:
            orphans = unowned(listing.handle, listing.records.values(), services)
        except CloudError as error:
            self._log.info("owners of load balancers are not known", error=str(error))
            return
        seen = {orphan.name for orphan in orphans}
        lasting = seen & self._seen
        metrics.ORPHANS.set(len(lasting))
        for name in sorted(lasting - self._told):
            self._log.warning("load balancer belongs to no Service", name=name)
            text = (
                f"Load balancer {name} of this cluster belongs to no Service; if nobody needs it, "
                f"delete it with `kube-ccm orphans --delete={name}`"
            )
            reason = names.REASON_ORPHANED_BALANCER
            self._events.event(self._about, names.WARNING, reason, text)
        self._seen, self._told = seen, lasting

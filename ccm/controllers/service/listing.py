"""The load balancers that the cloud holds, in one listing: compared with Services, and orphans."""

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
"""How often a listing is asked for at the start, and the pauses between; ensuring every
Service instead is dear, so a hiccup of the cloud is waited out."""

LONGEST_S = 60.0
"""How long a start waits for its listing in all: Services wait as well, and ensuring each of them
is dear, not wrong."""


class Verdict(Enum):
    """Result of the comparison of one Service with a listing."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"
    ELSEWHERE = "elsewhere"
    """The provider leaves the Service to another controller."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All load balancers of the cluster at one moment.

    Attributes:
        handle: computes names and digests.
        records: what the cloud holds, by name.
    """

    handle: Handle
    records: Mapping[str, LoadBalancerRecord]

    def compare(self, service: Service, members: Sequence[Node]) -> tuple[Verdict, Status | None]:
        """Whether the cloud holds what the Service asks for, and the status if it does.

        An empty one says nothing, neither that there is no address nor which.
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
            # The call that follows meets the same error, and reports it.
            return Verdict.DIFFERENT, None
        if not wanted or wanted != record.digest:
            return Verdict.DIFFERENT, None
        return Verdict.EQUAL, record.status


async def listed_in_time(handle: Handle) -> Listing | None:
    """Return a listing for a start; None when the cloud gave none in `LONGEST_S`."""
    try:
        return await within(LONGEST_S, listed(handle, attempts=ATTEMPTS), name="the listing")
    except TimeoutError as error:
        logger = log.logger(names.COMPONENT_SERVICE)
        logger.warning("load balancers cannot be listed, all are ensured", error=str(error))
        return None


async def listed(handle: Handle, *, attempts: int = 1) -> Listing | None:
    """Return a listing; None when the cloud gave none in so many attempts.

    A listing of a provider that was exchanged meanwhile is none.
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
    """Return those of some load balancers that belong to none of these Services, by name.

    A Service of whatever class may own one, and so may one that still has the finalizer.

    Raises:
        CloudError: the provider cannot say the name of some load balancer.
    """
    name = LoadBalancer.get_load_balancer_name
    owned = {
        handle.compute(name, handle.cluster_name, service)
        for service in services
        if service.type == TYPE_LOAD_BALANCER or has_load_balancer_finalizer(service)
    }
    return sorted((one for one in found if one.name not in owned), key=lambda one: one.name)


class Orphans:
    """Load balancers of this cluster that belong to no Service: reported, never deleted.

    Their finalizer was taken away, or an older state of the cluster was restored. A listing may be
    a moment older than the Services, so only what two of them have counts.

    Args:
        services: the shared cache of Services.
        records: what was done for Services, by key.
        events: where events go.
        about: what the events are about; the load balancers have no object of their own.
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
        """Look for those that belong to no Service in a listing."""
        if self._services.undecodable:
            # Each could be the owner of what seems to have none.
            return
        removing = [record.applied for record in self._records.values() if record.may_exist]
        services = [*self._services.store.list(), *removing]
        try:
            found = unowned(listing.handle, listing.records.values(), services)
        except CloudError as error:
            self._log.info("owners of load balancers are not known", error=str(error))
            return
        seen = {one.name for one in found}
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

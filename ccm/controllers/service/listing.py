"""What the cloud really holds, in one listing, held against what Services ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ccm.base import log
from ccm.base.backoff import Exponential
from ccm.base.tasks import within
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, ImplementedElsewhere, RetryAfter
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.model import Node, Service, names

ATTEMPTS = 4
PAUSES = Exponential(base_s=1.0, factor=2.0, cap_s=30.0)
"""How often a listing is asked for at the start, and the pauses between; ensuring every
Service instead is dear, so a hiccup of the cloud is waited out."""

LONGEST_S = 60.0
"""How long a start waits for its listing in all: Services wait as well, and ensuring each of them
is dear, not wrong."""


class Verdict(Enum):
    """What a listing says about one Service."""

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
    """A listing for a start; None when the cloud gave none in `LONGEST_S`."""
    try:
        return await within(LONGEST_S, listed(handle, attempts=ATTEMPTS), name="the listing")
    except TimeoutError as error:
        logger = log.logger(names.COMPONENT_SERVICE)
        logger.warning("load balancers cannot be listed, all are ensured", error=str(error))
        return None


async def listed(handle: Handle, *, attempts: int) -> Listing | None:
    """A listing; None when the cloud gave none in so many attempts.

    What a provider lists that was exchanged meanwhile is none.
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
                await asyncio.sleep(_pause_s(error, attempt))
    return None


def _pause_s(error: CloudError, attempt: int) -> float:
    if isinstance(error, RetryAfter):
        return error.seconds
    return PAUSES.even_delay(attempt)

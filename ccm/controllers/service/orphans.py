"""Load balancers of this cluster that belong to no Service: told of, never deleted by itself.

Somebody took away a finalizer, or restored an older state of the cluster. A listing may be a moment
older than the Services, so only what two of them have counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ccm.base import log
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError
from ccm.cloud.helpers import has_load_balancer_finalizer
from ccm.cloud.interface import LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord
from ccm.controllers.service import metrics
from ccm.controllers.service.listing import Listing, listed
from ccm.controllers.service.record import Record
from ccm.kube.informer import Informer
from ccm.model import ObjectReference, Service, names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime.controller import Pass
from ccm.runtime.writer import Recorder

PERIOD_S = 1800.0
JITTER = 0.2
"""Time between two looks, one listing each, and by how much it is stretched."""


def unowned(
    handle: Handle, found: Iterable[LoadBalancerRecord], services: Iterable[Service]
) -> Sequence[LoadBalancerRecord]:
    """Those of some load balancers that belong to none of these Services, by name.

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
    """Tells of those that two listings in a row have.

    Args:
        handle: the way to the cloud.
        services: the shared cache of Services.
        records: what was done for Services, by key.
        events: where events go.
        about: what the events are about; the load balancers have no object of their own.
    """

    def __init__(
        self,
        *,
        handle: Handle,
        services: Informer[Service],
        records: Mapping[str, Record],
        events: Recorder,
        about: ObjectReference,
    ) -> None:
        self._handle = handle
        self._services = services
        self._records = records
        self._events = events
        self._about = about
        self._seen: set[str] = set()
        self._told: set[str] = set()
        self._log = log.logger(names.COMPONENT_SERVICE)
        self.look = Pass(work=self._look, period_s=PERIOD_S, jitter=JITTER, at_once=False)

    async def _look(self) -> None:
        if self._handle.offers(LoadBalancerDigests):
            listing = await listed(self._handle, attempts=1)
            if listing is not None:
                self.note(listing)

    def note(self, listing: Listing) -> None:
        """Look for those that belong to nobody in a listing."""
        if self._services.undecodable:
            # Each could be the owner of what seems to have none.
            return
        removing = [record.applied for record in self._records.values() if record.may_exist]
        services = [*self._services.store.list(), *removing]
        try:
            found = unowned(self._handle, listing.records.values(), services)
        except CloudError as error:
            self._log.info("owners of load balancers are not known", error=str(error))
            return
        seen = {one.name for one in found}
        lasting = seen & self._seen
        metrics.ORPHANS.set(len(lasting))
        for name in sorted(lasting - self._told):
            self._tell(name)
        self._seen, self._told = seen, lasting

    def _tell(self, name: str) -> None:
        self._log.warning("load balancer belongs to no Service", name=name)
        text = (
            f"Load balancer {name} of this cluster belongs to no Service; if nobody needs it, "
            f"delete it with `kube-ccm orphans --delete={name}`"
        )
        reason = names.REASON_ORPHANED_BALANCER
        self._events.event(self._about, names.WARNING, reason, text)

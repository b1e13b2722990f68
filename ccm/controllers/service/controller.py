"""Turns changes of Services and nodes into work, one Service in one hand at a time.

Handlers of the shared caches put keys into one queue. A worker looks at the Service as it
is now and at what was done for it, and does the one thing that is missing: ensure, change
the members, remove, or put back what somebody took away. So these never overlap for one
Service, and the newest state always counts.

What people change comes before what a start, a change of nodes or a drift check asks for.
Changes of nodes are collected into bursts. After a start one listing spares the calls for
Services whose load balancer is as it should be, where the provider can list.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from ccm.base import log
from ccm.base.backoff import Exponential, PerItem, jittered
from ccm.base.clock import SYSTEM, Clock
from ccm.base.tasks import Group
from ccm.cloud.calls.services import ServiceCalls
from ccm.cloud.errors import RetryAfter
from ccm.controllers.service import metrics, plan
from ccm.controllers.service.balancer import Balancers, ServiceApi
from ccm.controllers.service.listing import ATTEMPTS, Listing, Verdict, listed
from ccm.controllers.service.nodes import Members, matters
from ccm.controllers.service.plan import Step
from ccm.controllers.service.record import Record
from ccm.kube.informer import Informer
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node, Service, names
from ccm.runtime.burst import Burst
from ccm.runtime.loop import DONE, Loop, Result
from ccm.runtime.passes import Passes
from ccm.runtime.recorder import Recorder
from ccm.runtime.retry import Again
from ccm.runtime.sync import until_synced

QUEUE_NAME = "service"
"""Value of the work-queue metrics' label (Go reference)."""

BACK_OFF = Exponential(base_s=5.0, factor=2.0, cap_s=300.0)
"""Delays of a failing Service (Go cloud-provider, service controller)."""

REPAIR_PAUSE_S = 5.0
"""Shortest time between two repairs of one Service: somebody else may insist."""

MOVED = Result(after_s=1.0)
"""A Service that changed under a write is looked at again when the cache has the change."""

DRIFT_JITTER = 0.2
"""The period of drift checks is stretched by up to this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the controller works.

    Attributes:
        workers: Services worked on at once.
        classes: load balancer classes that are ours, beside Services without one.
        quiet_s: seconds without a change of nodes after which members are changed.
        longest_wait_s: seconds after the first change of nodes by which they are changed.
        drift_period_s: seconds between two drift checks; 0 = never.
        drift_budget: most Services that one drift check ensures.
    """

    workers: int = 1
    classes: Collection[str] = ()
    quiet_s: float = 1.0
    longest_wait_s: float = 10.0
    drift_period_s: float = 0.0
    drift_budget: int = 10


class ServiceController:
    """The service controller.

    Args:
        services: the shared cache of Services.
        nodes: the shared cache of nodes.
        api: requests in this controller's name.
        calls: the guarded calls to the cloud.
        events: where events go.
        settings: numbers and periods.
        clock: where time comes from.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        services: Informer[Service],
        nodes: Informer[Node],
        api: ServiceApi,
        calls: ServiceCalls,
        events: Recorder,
        settings: Settings,
        clock: Clock = SYSTEM,
        rng: random.Random | None = None,
    ) -> None:
        self._services = services
        self._nodes = nodes
        self._calls = calls
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()
        self._log = log.logger(names.COMPONENT_SERVICE)
        self._members = Members()
        self._balancers = Balancers(
            calls=calls, api=api, events=events, members=self._members, clock=clock
        )
        self._records: dict[str, Record] = {}
        self._foreign: set[str] = set()
        self._to_verify: list[str] = []
        self._listing: Listing | None = None
        self._pass = Passes(metrics.NODE_SYNC.observe, clock)
        self._burst = Burst(
            self._nodes_changed,
            quiet_s=settings.quiet_s,
            longest_s=settings.longest_wait_s,
            clock=clock,
        )
        self._queue: WorkQueue[str] = WorkQueue(
            QUEUE_NAME, policy=PerItem(policy=BACK_OFF), clock=clock
        )

    async def run(self) -> None:
        """Work until cancelled."""
        self._nodes.add_handler(
            name=names.COMPONENT_SERVICE,
            on_add=self._node_added,
            on_update=self._node_updated,
            on_delete=self._node_deleted,
        )
        await until_synced(self._nodes, who=names.COMPONENT_SERVICE)
        # The nodes that are there at the start are no change.
        self._members.end_burst()
        await until_synced(self._services, who=names.COMPONENT_SERVICE)
        # Only now, so that what is there already is told apart from what comes.
        self._services.add_handler(
            name=names.COMPONENT_SERVICE,
            on_add=self._added,
            on_update=self._updated,
            on_delete=self._deleted,
        )
        loop = Loop(
            names.COMPONENT_SERVICE,
            queue=self._queue,
            reconcile=self.sync_service,
            workers=self._settings.workers,
            on_error=self._failed,
            clock=self._clock,
        )
        async with Group() as group:
            group.start(loop.run(), name="service-controller-loop")
            group.start(self._burst.run(), name="service-controller-nodes")
            group.start(self._verify_all(), name="service-controller-start")
            if self._settings.drift_period_s > 0:
                group.start(self._drift_checks(), name="service-controller-drift")

    async def sync_service(self, key: str) -> Result:
        """Do what one Service needs now.

        Raises:
            CloudError: the provider failed.
            KubeError: a write failed.
        """
        record = self._records.get(key)
        if record is not None:
            record.busy = True
        try:
            return await self._sync(key)
        except plan.Moved:
            return MOVED
        finally:
            self._pass.finished(key)
            record = self._records.get(key)
            if record is not None:
                record.busy = False

    async def _sync(self, key: str) -> Result:
        service = self._services.store.get(key)
        record = self._records.get(key)
        if record is not None and (service is None or service.uid != record.given.uid):
            if record.served:
                await self._balancers.remove_vanished(record)
            del self._records[key]
            record = None
        if service is None:
            return DONE
        if record is not None:
            service = record.newest(service)
        served = record is not None and record.served
        step = plan.step(service, self._settings.classes, served=served)
        if step is Step.SERVE:
            return await self._serve(key, service)
        if step is Step.REMOVE and (served or service.uid not in self._foreign):
            if record is None or record.finished:
                record = self._records[key] = Record(given=service)
            await self._balancers.remove(service, record)
        return DONE

    async def _serve(self, key: str, service: Service) -> Result:
        record = self._records.get(key)
        if record is None or record.finished:
            record = self._records[key] = Record(given=service)
        if record.unverified:
            await self._verify(service, record)
        prefixes = self._calls.cloud.service_annotations
        if record.ensured is None or plan.needs_ensure(record.ensured, service, prefixes):
            await self._balancers.ensure(service, record)
            # What others took away during the call, and our own write of the finalizer, are
            # newer than what we came with.
            cached = self._services.store.get(key)
            if cached is not None and cached.uid == service.uid:
                service = cached
            await self._balancers.restore(record.newest(service), record)
            if self._members.are_due(record.members, record.burst):
                # A burst ended when there was nothing yet that could be given its members.
                self._queue.add(key, background=True)
            return DONE
        if self._members.are_due(record.members, record.burst):
            await self._balancers.update(service, record)
        return await self._repair(service, record)

    async def _repair(self, service: Service, record: Record) -> Result:
        if not plan.is_damaged(service, record.status):
            return DONE
        rest_s = record.repaired_at + REPAIR_PAUSE_S - self._clock.monotonic()
        if rest_s > 0:
            return Result(after_s=rest_s)
        if await self._balancers.restore(service, record):
            record.repaired_at = self._clock.monotonic()
            metrics.REPAIRS.inc()
            self._log.info("finalizer or status put back", service=service.key)
        return DONE

    def _failed(self, key: str, error: Exception, answer: Again) -> None:
        record = self._records.get(key)
        if record is not None and isinstance(error, RetryAfter):
            record.not_before = self._clock.monotonic() + error.seconds
        self._log.debug("service not settled", key=key, error=str(error), retry=answer.retry.value)

    # --- start ------------------------------------------------------------------------------

    async def _verify_all(self) -> None:
        """Queue what was there at the start, with a listing at hand if there can be one."""
        if self._to_verify and self._calls.has_digests:
            self._listing = await listed(self._calls, attempts=ATTEMPTS, clock=self._clock)
        for key in self._to_verify:
            self._queue.add(key, background=True)
        self._to_verify = []

    async def _verify(self, service: Service, record: Record) -> None:
        """Spare the ensure of a Service whose load balancer is as it should be."""
        record.unverified = False
        if self._listing is None:
            metrics.STARTUP.labels("unlisted").inc()
            return
        # Digests cost time and no call; between two of them others get their turn.
        await self._clock.sleep(0)
        members, fingerprint = self._members.all, self._members.fingerprint
        verdict, status = self._listing.compare(service, members)
        metrics.STARTUP.labels(verdict.value).inc()
        if verdict in (Verdict.EQUAL, Verdict.ELSEWHERE):
            record.burst = self._members.bursts
            record.confirm(service, fingerprint, status)

    # --- drift ------------------------------------------------------------------------------

    async def _drift_checks(self) -> None:
        period_s = self._settings.drift_period_s
        while True:
            await self._clock.sleep(jittered(period_s, DRIFT_JITTER, self._rng))
            await self.check_drift()

    async def check_drift(self) -> None:
        """Look for load balancers that others changed, and have some of them ensured.

        With a listing those that differ; without one, those not looked at for the longest
        time, whose ensure then tells nobody unless it fails.
        """
        started = self._clock.monotonic()
        at_rest = {
            key: record
            for key, record in self._records.items()
            if record.settled and record.status is not None and not record.busy
        }
        blind = not self._calls.has_digests
        if blind:
            due = sorted(at_rest, key=lambda key: at_rest[key].touched_at)
        else:
            listing = await listed(self._calls, attempts=1, clock=self._clock)
            if listing is None:
                return
            due = [
                key
                for key, record in at_rest.items()
                if await self._drifted(listing, record, since=started)
            ]
            metrics.DRIFT.inc(len(due))
        for key in due[: self._settings.drift_budget]:
            record = at_rest[key]
            if not record.busy:
                record.unannounced = blind
                record.doubt()
                self._queue.add(key, background=True)

    async def _drifted(self, listing: Listing, record: Record, *, since: float) -> bool:
        await self._clock.sleep(0)
        service = record.ensured
        if service is None or record.busy or record.touched_at >= since:
            return False
        if record.members != self._members.fingerprint:
            # Its members are about to be changed anyway.
            return False
        verdict, status = listing.compare(service, self._members.all)
        if verdict is Verdict.EQUAL and status is not None and record.status is not None:
            return not plan.same_status(status, record.status)
        return verdict in (Verdict.DIFFERENT, Verdict.MISSING)

    # --- Services: handlers only note and enqueue -------------------------------------------

    def _added(self, service: Service, initial: bool) -> None:
        self._note_class(service)
        if plan.needs_cleanup(service, self._settings.classes):
            # Somebody may take the finalizer away before its turn comes.
            self._records.setdefault(service.key, Record(given=service))
            self._queue.add(service.key)
        elif plan.wants_balancer(service, self._settings.classes):
            if not initial:
                self._queue.add(service.key)
                return
            # An earlier process may have served it, so it counts as served until verified.
            self._records[service.key] = Record(given=service, unverified=True)
            if service.is_deleting:
                self._queue.add(service.key)
            else:
                self._to_verify.append(service.key)

    def _updated(self, old: Service, new: Service) -> None:
        self._note_class(new)
        record = self._records.get(new.key)
        if not self._is_relevant(old, new, record):
            return
        if record is not None:
            record.unannounced = False
        self._queue.add(new.key)

    def _deleted(self, service: Service) -> None:
        self._foreign.discard(service.uid)
        if service.key in self._records:
            self._queue.add(service.key)

    def _is_relevant(self, old: Service, new: Service, record: Record | None) -> bool:
        classes, prefixes = self._settings.classes, self._calls.cloud.service_annotations
        wanted, wants = plan.wants_balancer(old, classes), plan.wants_balancer(new, classes)
        if old.uid != new.uid or wanted != wants:
            return True
        if plan.needs_cleanup(new, classes):
            # After our own removal the cache may lag; later than it, somebody put it there.
            return record is None or record.served or record.newest(new) is new
        if not wants:
            return False
        if record is None or record.ensured is None:
            return new.is_deleting != old.is_deleting or plan.needs_ensure(old, new, prefixes)
        return (
            new.is_deleting
            or plan.needs_ensure(record.ensured, new, prefixes)
            or plan.is_damaged(new, record.status)
        )

    def _note_class(self, service: Service) -> None:
        """Remember whose finalizer it may be when a Service stops asking for a balancer."""
        if plan.is_foreign(service, self._settings.classes):
            self._foreign.add(service.uid)
        elif plan.wants_balancer(service, self._settings.classes):
            self._foreign.discard(service.uid)

    # --- nodes ------------------------------------------------------------------------------

    def _node_added(self, node: Node, initial: bool) -> None:  # noqa: ARG002 - handler shape
        self._members.put(node)
        self._burst.note()

    def _node_updated(self, old: Node, new: Node) -> None:
        self._members.put(new)
        if matters(old, new):
            self._burst.note()

    def _node_deleted(self, node: Node) -> None:
        self._members.remove(node.name)
        self._burst.note()

    def _nodes_changed(self) -> None:
        """A burst of changes is over: queue the Services whose members are others now."""
        fingerprint, now = self._members.fingerprint, self._clock.monotonic()
        changed = self._members.end_burst()
        due = [key for key, record in self._records.items() if record.is_due(fingerprint, now)]
        if changed and self._records:
            members = len(self._members.all)
            self._log.info("nodes changed", members=members, load_balancers=len(due))
        self._pass.started(due, joins=True)
        for key in due:
            self._queue.add(key, background=True)

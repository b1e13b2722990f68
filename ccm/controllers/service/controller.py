"""Turns changes of Services and nodes into work, one Service in one hand at a time.

Handlers of the shared caches put keys into one queue. A worker looks at the Service as it
is now and at what was done for it, and does the one thing that is missing: ensure, change
the members, remove, or put back what somebody took away. So these never overlap for one
Service, and the newest state always counts.

What people change comes before most of what a start, a change of nodes or a drift check asks
for: that waits in the background of the queue.
Changes of nodes are collected into bursts. After a start one listing spares the calls for
Services whose load balancer is as it should be, where the provider can list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass

from ccm.base import clock, log
from ccm.base.backoff import Exponential
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, RetryAfter
from ccm.cloud.helpers import load_balancer_status
from ccm.cloud.interface import LoadBalancerDigests
from ccm.cloud.types import Status
from ccm.controllers.service import metrics, plan
from ccm.controllers.service.balancer import Balancers
from ccm.controllers.service.listing import Listing, Orphans, Verdict, listed, listed_in_time
from ccm.controllers.service.members import Bursts, Members, is_excluded, is_fit, matters
from ccm.controllers.service.plan import Action, Record, State
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import PATIENCE_S, FailureReports, ItemBackoff, RetryDecision, classify
from ccm.runtime.controller import DONE, IDLE, Controller, Pass, PassTimer, Result, Watch
from ccm.runtime.deletions import ALLOW, DeletionRecord, Holds, mass_guard
from ccm.runtime.writer import Recorder, Writer, Writes

BACKOFF = Exponential(base_s=5.0, factor=2.0, cap_s=300.0)
"""Delays of a failing Service (Go cloud-provider, service controller)."""

REPAIR_PAUSE_S = 5.0
"""Shortest time between two repairs of one Service: somebody else may insist."""

BESIDE_FAILING = (Action.NOTHING, Action.UPDATE, Action.WAIT)
"""Actions that leave the back-off of a failing ensure alone."""

STALE = Result(after_s=1.0)
"""A Service that changed under a write is looked at again when the cache has the change."""

MEMBERS_PAUSE_S = 10.0
"""Time until members are looked at again that are not known now."""

MEMBERS_LOOK_S = 10.0
"""Time between two looks at members that are missing or unfit."""

ORPHANS_PERIOD_S = 1800.0
"""Time between two looks for orphans, one listing each."""

LISTING_JITTER = 0.2
"""The periods of drift checks and of looks for orphans are stretched by up to this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the controller works.

    Attributes:
        workers: Services worked on at once.
        classes: load balancer classes that are ours, beside Services without one.
        quiet_s: seconds without a change of nodes after which members are changed.
        longest_wait_s: seconds after the first change of nodes by which they are changed, unless
            it pays to wait (see `Bursts`); a node that goes away never waits longer.
        drift_period_s: seconds between two drift checks; 0 = never.
        drift_budget: most Services that one drift check ensures.
        allow_mass_deletion: remove load balancers however many Services are missing.
    """

    workers: int = 1
    classes: Collection[str] = ()
    quiet_s: float = 1.0
    longest_wait_s: float = 10.0
    drift_period_s: float = 0.0
    drift_budget: int = 10
    allow_mass_deletion: bool = False


class ServiceController:
    """The service controller.

    Args:
        services: the shared cache of Services.
        nodes: the shared cache of nodes.
        api: requests in this controller's name.
        handle: the way to the cloud.
        events: where events go.
        settings: numbers and periods.
        about: what events are about that belong to no Service.
        record: where what is held back is shown, and where a person allows it; None = nowhere.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        services: Informer[Service],
        nodes: Informer[Node],
        api: Writes[Service],
        handle: Handle,
        events: Recorder,
        settings: Settings,
        about: ObjectReference,
        record: DeletionRecord | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._services = services
        self._nodes = nodes
        self._handle = handle
        self._settings = settings
        self._log = log.logger(names.COMPONENT_SERVICE)
        allow = settings.allow_mass_deletion
        self._members = Members(
            nodes,
            by_health=not handle.cloud.load_balancers_check_health,
            holds=Holds("Member", events, record),
            guard=mass_guard(record, allow=allow),
            about=about,
        )
        self._writer = Writer(api, cache=services.store)
        self._balancers = Balancers(
            handle=handle, writer=self._writer, events=events, members=self._members
        )
        self._events = events
        self._updates: ItemBackoff[str] = ItemBackoff(BACKOFF, rng=rng)
        self._update_reports: FailureReports[str] = FailureReports()
        self._records: dict[str, Record] = {}
        self._vanished: set[str] = set()
        self._counted = (0, 0)
        self._may_exist = 0
        self._holds = Holds("Service", events, record)
        self._guard = mass_guard(record, allow=allow)
        self._foreign: set[str] = set()
        self._orphans = Orphans(services, self._records, events, about)
        self._to_verify: list[str] = []
        self._listing: Listing | None = None
        self._timer = PassTimer(self._passed)
        self._bursts = Bursts(
            self._nodes_changed, quiet_s=settings.quiet_s, longest_s=settings.longest_wait_s
        )
        passes = [
            Pass(work=self._look_at_members, period_s=MEMBERS_LOOK_S, at_once=False),
            Pass(
                work=self._look_for_orphans,
                period_s=ORPHANS_PERIOD_S,
                jitter=LISTING_JITTER,
                at_once=False,
            ),
        ]
        if settings.drift_period_s > 0:
            drift = Pass(
                work=self.check_drift,
                period_s=settings.drift_period_s,
                jitter=LISTING_JITTER,
                at_once=False,
            )
            passes.append(drift)
        self.controller = Controller(
            names.COMPONENT_SERVICE,
            queue="service",
            reconcile=self.sync_service,
            workers=settings.workers,
            backoff=ItemBackoff(BACKOFF, rng=rng),
            watches=[
                # The nodes that are there at the start are no change.
                Watch(
                    informer=nodes,
                    changed=self._node_changed,
                    synced=self._nodes_synced,
                    deleted=self._members.seen_deleted,
                ),
                Watch(informer=services, changed=self._changed, deleted=self._seen_deleted),
            ],
            passes=passes,
            tasks={"start": self._verify_all},
            on_error=self._failed,
            on_retry=self._retry,
            rng=rng,
        )

    @property
    def _rules(self) -> plan.Rules:
        # Asked each time: another configuration of the provider may claim other annotations.
        prefixes = self._handle.cloud.service_annotations
        return plan.Rules(classes=self._settings.classes, prefixes=prefixes)

    async def sync_service(self, key: str) -> Result:
        """Do what one Service needs now.

        Raises CloudError, where the provider failed, or KubeError, where a write did.
        """
        try:
            return await self._sync(key)
        except StaleObject:
            return STALE
        finally:
            self._timer.finished(key)

    async def _sync(self, key: str) -> Result:
        result = IDLE
        while True:
            service, record, action = self.decide(key)
            if action is Action.REMOVE_VANISHED and record is not None:
                if wait_s := self._vanished_wait_s(record):
                    return Result(after_s=wait_s, idle=True)
                await self._balancers.remove_vanished(record)
                self._forget(key)
            elif action is Action.FORGET:
                self._forget(key)
            elif service is None:
                return DONE
            elif record is not None and record.failing and action in BESIDE_FAILING:
                return await self._beside_failing(service, record, action)
            elif action is Action.NOTHING:
                return result
            elif action is Action.WAIT:
                return Result(after_s=MEMBERS_PAUSE_S, idle=True)
            elif action is Action.VERIFY and record is not None:
                await self._verify(service, record)
            elif action is Action.UPDATE and record is not None:
                await self._balancers.update(service, record)
            elif action is Action.REPAIR and record is not None:
                return await self._repair(service, record)
            else:
                await self._ensure_or_remove(service, record, action)
                return DONE
            result = DONE

    def decide(self, key: str) -> tuple[Service | None, Record | None, Action]:
        """A Service as it is now, what was done for it, and the one thing to do."""
        record, service = self._records.get(key), self._services.store.get(key)
        if service is not None:
            service = self._writer.newest(service)
        action = plan.decide(
            service,
            record,
            self._rules,
            members_due=record is not None and self._are_due(record),
            members_known=self._members.are_known(),
            ensure_waits=service is not None and self._ensure_waits(service, record),
            was_foreign=service is not None and service.uid in self._foreign,
        )
        return service, record, action

    async def _ensure_or_remove(
        self, service: Service, record: Record | None, action: Action
    ) -> None:
        if record is None or not record.may_exist:
            is_absent = not plan.looks_served(service)
            record = self._records[service.key] = Record(applied=service, absent=is_absent)
        if action is Action.REMOVE:
            await self._balancers.remove(service, record)
        else:
            await self._ensure(service, record)

    async def _beside_failing(self, service: Service, record: Record, action: Action) -> Result:
        """Do what is due while the ensure fails; its back-off goes on."""
        if action is Action.UPDATE:
            await self._follow(service, record)
        # A quick change of members does not prove that the ensure would not hang.
        after_s = MEMBERS_PAUSE_S if action is Action.WAIT else None
        return Result(after_s=after_s, idle=True, failing=True)

    def _are_due(self, record: Record) -> bool:
        """Whether an update has to give a load balancer other members now."""
        if record.failing and (record.absent or record.not_before > clock.monotonic()):
            return False
        return self._members.of(record.applied).are_due(record.members, record.burst)

    def _ensure_waits(self, service: Service, record: Record | None) -> bool:
        """Whether the ensure failed for the Service as it is, and its back-off lasts."""
        if record is None or not record.failing:
            return False
        waits = self.controller.backoff.waits(service.key, clock.monotonic())
        return waits and not plan.needs_ensure(record.applied, service, self._rules.prefixes)

    async def _ensure(self, service: Service, record: Record) -> None:
        try:
            await self._balancers.ensure(service, record)
        except (CloudError, KubeError) as error:
            busy_s = self.controller.backoff.busy_s(service.key, clock.monotonic())
            # A busy cloud is asked again soon, with the members of that moment.
            record.failing = not isinstance(error, RetryAfter) or busy_s >= PATIENCE_S
            if record.failing:
                await self._serve_anyway(service, record, error)
            raise
        self._updated(service.key)
        # What others took away during the call, and our own write of the finalizer, are
        # newer than what we came with.
        cached = self._services.store.get(service.key)
        if cached is not None and cached.uid == service.uid:
            service = cached
        await self._balancers.restore(self._writer.newest(service), record)
        if self._are_due(record):
            # A burst ended when there was nothing yet that could be given its members.
            self.controller.queue.add(service.key, background=True)

    async def _serve_anyway(self, service: Service, record: Record, error: Exception) -> None:
        """After a failed ensure, give the members if they are due, and write the Status it had."""
        service = self._writer.newest(service)
        waits = self._updates.waits(service.key, clock.monotonic())
        if self._are_due(record) and self._members.are_known() and not waits:
            await self._follow(service, record)
        if isinstance(error, CloudError) and isinstance(error.partial, Status):
            await self._balancers.restore(self._writer.newest(service), record)

    async def _follow(self, service: Service, record: Record) -> None:
        """Give members while the ensure fails; an error has a back-off of its own."""
        key = service.key
        try:
            await self._balancers.update(service, record)
        except CloudError as error:
            decision, now = classify(error), clock.monotonic()
            pause_s = self._updates.failed(key, decision, now)
            if isinstance(error, RetryAfter):
                record.not_before = now + pause_s
            self.controller.queue.add_after(key, pause_s)
            if self._update_reports.is_due(key, error, decision, now):
                self._log.warning("members not changed", service=key, error=str(error))
        else:
            self._updated(key)

    def _updated(self, key: str) -> None:
        self._updates.forget(key)
        self._update_reports.forget(key)

    async def _repair(self, service: Service, record: Record) -> Result:
        rest_s = record.repaired_at + REPAIR_PAUSE_S - clock.monotonic()
        if rest_s > 0:
            return Result(after_s=rest_s, idle=True)
        if await self._balancers.restore(service, record):
            record.repaired_at = clock.monotonic()
            metrics.REPAIRS.inc()
            self._log.info("finalizer or status put back", service=service.key)
        return DONE

    def _vanished_wait_s(self, record: Record) -> float:
        """Seconds until the next look; 0 = the load balancer may be removed."""
        if record.applied.key not in self._vanished:
            return 0.0
        missing = len(self._vanished)
        # Counted once for all that are missing together, not for each of them.
        counted = (missing, len(self._records))
        if counted != self._counted:
            self._counted = counted
            self._may_exist = sum(each.may_exist for each in self._records.values())
        settled = self._may_exist
        wait_s = self._guard.wait_s(missing, settled, clock.monotonic())
        if wait_s and self._guard.in_doubt:
            self._holds.hold(
                record.applied.reference,
                "services_missing",
                f"{missing} of {settled} Services with load balancers are gone, though nobody saw "
                "them deleted. Their load balancers stay until the Services are back; to remove "
                f"them all the same, {ALLOW}",
            )
        return wait_s

    def _settled(self, record: Record) -> None:
        """Nothing is left to decide about a Service that vanished."""
        if record.applied.key in self._vanished:
            self._vanished.discard(record.applied.key)
            self._holds.release(record.applied.reference)

    def _forget(self, key: str) -> None:
        self._settled(self._records.pop(key))
        self._updated(key)

    def _failed(self, key: str, error: Exception, decision: RetryDecision) -> None:
        record = self._records.get(key)
        if record is None or not isinstance(error, RetryAfter):
            return
        record.not_before = self.controller.backoff.until(key) or record.not_before
        if decision.report:
            message = f"Error syncing load balancer: the cloud is still busy: {error}"
            reason = names.REASON_SYNC_BALANCER_FAILED
            self._events.event(record.applied.reference, names.WARNING, reason, message)

    # --- start ------------------------------------------------------------------------------

    async def _verify_all(self) -> None:
        """Queue what was there at the start, with a listing at hand if there can be one."""
        if self._to_verify and self._handle.offers(LoadBalancerDigests):
            self._listing = await listed_in_time(self._handle)
        for key in self._to_verify:
            self.controller.queue.add(key, background=True)
        self._to_verify = []

    def _retry(self) -> None:
        """Another cloud may answer now: what the former one listed says nothing any more."""
        self._listing = None
        self._updates.release()
        by_health = not self._handle.cloud.load_balancers_check_health
        if by_health != self._members.by_health:
            self._members.rebuild(by_health=by_health)
            self._bursts.note()

    async def _verify(self, service: Service, record: Record) -> None:
        """Spare the ensure of a Service whose load balancer is as it should be."""
        record.state = State.PENDING
        if self._listing is None:
            metrics.STARTUP.labels("unlisted").inc()
            return
        # Digests cost time and no call; between two of them others get their turn.
        await asyncio.sleep(0)
        given = self._members.of(service).now
        verdict, status = self._listing.compare(service, given.nodes)
        record.absent = verdict is Verdict.MISSING
        metrics.STARTUP.labels(verdict.value).inc()
        if status is not None and not status.ingress:
            status = load_balancer_status(service)  # what was written stays, or it is ensured
        if verdict is Verdict.ELSEWHERE or (status is not None and status.ingress):
            record.confirm(service, given, status, opening=self._handle.opening)

    # --- drift ------------------------------------------------------------------------------

    async def check_drift(self) -> None:
        """Look for load balancers that others changed, and have some of them ensured.

        With a listing those that differ; without one, those not looked at for the longest
        time, whose ensure then tells nobody unless it fails.
        """
        started = clock.monotonic()
        at_rest = {
            key: record
            for key, record in self._records.items()
            if self._is_at_rest(key, record) and record.status is not None
        }
        blind = not self._handle.offers(LoadBalancerDigests)
        if blind:
            due = sorted(at_rest, key=lambda key: at_rest[key].touched_at)
        else:
            listing = await listed(self._handle)
            if listing is None:
                return
            self._orphans.note(listing)
            due = [
                key
                for key, record in at_rest.items()
                if await self._drifted(listing, key, record, since=started)
            ]
            metrics.DRIFT.inc(len(due))
        for key in due[: self._settings.drift_budget]:
            record = at_rest[key]
            if self._is_at_rest(key, record):
                record.silent = blind
                record.state = State.PENDING
                self.controller.queue.add(key, background=True)

    def _is_at_rest(self, key: str, record: Record) -> bool:
        return record.state is State.APPLIED and not self.controller.queue.is_processing(key)

    async def _drifted(self, listing: Listing, key: str, record: Record, *, since: float) -> bool:
        await asyncio.sleep(0)
        if not self._is_at_rest(key, record) or record.touched_at >= since:
            return False
        given = self._members.of(record.applied).now
        if record.members != given.fingerprint:
            # Its members are about to be changed anyway.
            return False
        verdict, status = listing.compare(record.applied, given.nodes)
        if status is not None and status.ingress and record.status is not None:
            return not plan.same_status(status, record.status)
        return verdict in (Verdict.DIFFERENT, Verdict.MISSING)

    async def _look_for_orphans(self) -> None:
        if self._handle.offers(LoadBalancerDigests):
            listing = await listed(self._handle)
            if listing is not None:
                self._orphans.note(listing)

    # --- the caches ---------------------------------------------------------------------------

    def _changed(self, old: Service | None, new: Service | None, initial: bool) -> bool:
        if new is None:
            assert old is not None
            self._foreign.discard(old.uid)
            self._writer.forget(old.key)
            return self._gone(old)
        if plan.is_foreign(new, self._settings.classes):
            # Its finalizer may be of another controller when it stops asking for a balancer.
            self._foreign.add(new.uid)
        elif plan.wants_balancer(new, self._settings.classes):
            self._foreign.discard(new.uid)
        record = self._records.get(new.key)
        if record is not None and record.applied.uid == new.uid:
            record.owner_deleted = False
            if new.key in self._vanished:
                self._guard.back(clock.monotonic())
                self._settled(record)
        if old is None:
            return self._added(new, initial)
        if old.uid != new.uid:
            self._gone(old)
        lags = self._writer.newest(new) is not new
        if not plan.is_relevant(old, new, record, self._rules, lags=lags):
            return False
        if record is not None:
            # Such a change is reported, and no listing says how the load balancer should be.
            record.silent = False
            if record.state is State.UNVERIFIED:
                record.state = State.PENDING
        return True

    def _seen_deleted(self, service: Service) -> None:
        record = self._records.get(service.key)
        if record is not None and record.applied.uid == service.uid:
            record.owner_deleted = True

    def _gone(self, service: Service) -> bool:
        """A Service is not there any more; whether there is something to do."""
        record = self._records.get(service.key)
        if record is None:
            return False
        if plan.is_unexplained(service, record, self._settings.classes):
            self._vanished.add(service.key)
            self._guard.missing(clock.monotonic())
        return True

    def _added(self, service: Service, initial: bool) -> bool:
        if plan.needs_cleanup(service, self._settings.classes):
            # Somebody may take the finalizer away before its turn comes.
            self._records.setdefault(service.key, Record(applied=service))
            return True
        if not plan.wants_balancer(service, self._settings.classes):
            return False
        if initial:
            # An earlier process may have served it, so it counts as served until verified.
            is_served = plan.looks_served(service)
            self._records[service.key] = Record(
                applied=service, state=State.UNVERIFIED, absent=not is_served
            )
            # A listing can spare nothing for one that nobody ever served.
            if is_served and not service.is_deleting:
                self._to_verify.append(service.key)
                return False
        return True

    def _nodes_synced(self) -> None:
        self._members.adopt_unknown()
        self._members.end_burst()

    def _node_changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:  # noqa: ARG002 - shape of a watch
        waited = len(self._members.unsettled)
        if new is not None:
            self._members.came(new)
        elif old is not None:
            self._members.gone(old.name)
        if waits := len(self._members.unsettled) - waited:
            self._bursts.wave(goes_on=waited + waits > 0)
        by_health = self._members.by_health
        if old is None or new is None or matters(old, new, by_health=by_health):
            leaves = new is None or is_excluded(new) or (by_health and not is_fit(new, local=False))
            self._bursts.note(leaves=leaves)
        return False

    async def _look_at_members(self) -> None:
        if self._members.are_doubtful():
            self._bursts.note()

    def _passed(self, took_s: float) -> None:
        metrics.NODE_SYNC.observe(took_s)
        self._bursts.rest(took_s)

    def _nodes_changed(self) -> None:
        """A burst of changes is over: queue the Services whose members are others now."""
        self._members.settle()
        now = clock.monotonic()
        changed = self._members.end_burst()
        due = [
            key
            for key, each in self._records.items()
            if each.wants_members(self._members.of(each.applied).fingerprint, now)
        ]
        if changed and self._records:
            self._log.info("nodes changed", members=len(self._members), load_balancers=len(due))
        if due:
            self._bursts.rest()
        self._timer.started(due, joins=True)
        for key in due:
            self.controller.queue.add(key, background=True)

"""Service controller: reconciles load balancers after changes of Services and nodes.

Handlers of the shared informers add the keys of Services to the queue. A worker compares the
current Service with its `ServiceRecord`, and runs the due operations one after the other: ensure,
update of the members, removal, repair of the finalizer and status. So operations on one Service
never overlap, and always use the newest state.

Changes of Services come first: the verification of old Services after a start, updates after
changes of nodes, and drift checks have background priority. Changes of nodes are debounced. If the
provider can list load balancers, one listing after a start replaces the ensure calls for Services
whose load balancer needs no change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError, RetryAfter
from ccm.cloud.helpers import load_balancer_status
from ccm.cloud.interface import LoadBalancerDigests
from ccm.cloud.types import Status
from ccm.controllers.service import metrics, plan
from ccm.controllers.service.balancer import BalancerOperations
from ccm.controllers.service.listing import (
    ComparisonResult,
    LoadBalancerListing,
    Orphans,
    fetch_listing,
    fetch_startup_listing,
)
from ccm.controllers.service.members import (
    LoadBalancerMembers,
    NodeChangeDebouncer,
    affects_members,
    has_exclusion_label,
    is_fit,
)
from ccm.controllers.service.plan import BalancerState, ServiceAction, ServiceRecord
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import REPORT_AFTER_S, FailureReports, ItemBackoff, RetryDecision, classify
from ccm.runtime.controller import (
    DONE,
    IDLE,
    Controller,
    PassTimer,
    PeriodicTask,
    ReconcileResult,
    Watch,
)
from ccm.runtime.deletions import ALLOW_HINT, DeletionBlocks, DeletionRecord, mass_guard
from ccm.runtime.writer import ObjectWriter, PatchClient, Recorder

BACKOFF = ExponentialBackoff(base_s=5.0, factor=2.0, cap_s=300.0)
"""Delays of a failing Service (Go cloud-provider, service controller)."""

REPAIR_PAUSE_S = 5.0
"""Minimum seconds between two repairs of one Service: another client may undo each repair."""

ALLOWED_WHILE_FAILING = (ServiceAction.NOTHING, ServiceAction.UPDATE, ServiceAction.WAIT)
"""Actions that run while the ensure fails, without a reset of its back-off."""

STALE = ReconcileResult(after_s=1.0)
"""Result for a Service that changed during a write: retry when the cache has the change."""

MEMBERS_REQUEUE_S = 10.0
"""Requeue delay in seconds while too many nodes cannot be decoded. The controller polls, because no
event reports that enough nodes can be decoded again."""

MEMBERS_CHECK_S = 10.0
"""Seconds between two checks whether missing or unfit members may be removed: no event reports the
end of their time limits."""

ORPHANS_PERIOD_S = 1800.0
"""Seconds between two searches for orphaned load balancers. Long, because each search takes a
listing and orphans are only reported."""

LISTING_JITTER = 0.2
"""Jitter of the periods of drift checks and searches for orphans, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceControllerSettings:
    """Settings of the service controller.

    Attributes:
        workers: Services reconciled concurrently.
        classes: served load balancer classes, besides Services without a class.
        quiet_s: seconds without a change of nodes after which members are updated.
        max_wait_s: maximum seconds from the first change of nodes to the update of members. New
            nodes may wait longer during initialisations and after slow updates (see
            `NodeChangeDebouncer`); the removal of a node never waits longer.
        drift_period_s: seconds between two drift checks; 0 = no checks.
        drift_budget: maximum number of Services that one drift check ensures.
        allow_mass_deletion: delete load balancers, and remove members, regardless of the number of
            missing Services and nodes.
    """

    workers: int = 1
    classes: Collection[str] = ()
    quiet_s: float = 1.0
    max_wait_s: float = 10.0
    drift_period_s: float = 0.0
    drift_budget: int = 10
    allow_mass_deletion: bool = False


class ServiceController:
    """The service controller.

    Args:
        services: the shared informer of Services.
        nodes: the shared informer of nodes.
        api: client for Services with this controller's service account.
        handle: cloud client.
        events: event recorder.
        settings: limits, periods and options.
        about: object of events that belong to no Service.
        record: deletion record; an annotation on its ConfigMap allows mass deletions. None =
            blocked deletions are not recorded.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        services: Informer[Service],
        nodes: Informer[Node],
        api: PatchClient[Service],
        handle: CloudClient,
        events: Recorder,
        settings: ServiceControllerSettings,
        about: ObjectReference,
        record: DeletionRecord | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._services = services
        self._nodes = nodes
        self._handle = handle
        self._settings = settings
        self._log = log.logger(names.CONTROLLER_SERVICE)
        allow = settings.allow_mass_deletion
        self._members = LoadBalancerMembers(
            nodes,
            by_health=not handle.cloud.load_balancers_check_health,
            holds=DeletionBlocks("Member", events, record),
            guard=mass_guard(record, allow=allow),
            about=about,
        )
        self._writer = ObjectWriter(api, cache=services.store)
        self._balancers = BalancerOperations(
            handle=handle, writer=self._writer, events=events, members=self._members
        )
        self._events = events
        self._updates: ItemBackoff[str] = ItemBackoff(BACKOFF, rng=rng)
        self._update_reports: FailureReports[str] = FailureReports()
        self._records: dict[str, ServiceRecord] = {}
        self._vanished: set[str] = set()
        self._counted = (0, 0)
        self._served_count = 0
        self._holds = DeletionBlocks("Service", events, record)
        self._guard = mass_guard(record, allow=allow)
        self._foreign: set[str] = set()
        self._orphans = Orphans(services, self._records, events, about)
        self._to_verify: list[str] = []
        self._listing: LoadBalancerListing | None = None
        self._timer = PassTimer(self._pass_finished)
        self._node_changes = NodeChangeDebouncer(
            self._nodes_changed, quiet_s=settings.quiet_s, longest_s=settings.max_wait_s
        )
        passes = [
            PeriodicTask(work=self._check_members, period_s=MEMBERS_CHECK_S, at_once=False),
            PeriodicTask(
                work=self._check_orphans,
                period_s=ORPHANS_PERIOD_S,
                jitter=LISTING_JITTER,
                at_once=False,
            ),
        ]
        if settings.drift_period_s > 0:
            drift = PeriodicTask(
                work=self.check_drift,
                period_s=settings.drift_period_s,
                jitter=LISTING_JITTER,
                at_once=False,
            )
            passes.append(drift)
        self.controller = Controller(
            names.CONTROLLER_SERVICE,
            queue="service",
            reconcile=self.sync_service,
            workers=settings.workers,
            backoff=ItemBackoff(BACKOFF, rng=rng),
            watches=[
                # `synced` ends the burst: the nodes of the first list do not count as changed.
                Watch(
                    informer=nodes,
                    changed=self._node_changed,
                    synced=self._nodes_synced,
                    deleted=self._members.node_deleted,
                ),
                Watch(informer=services, changed=self._changed, deleted=self._seen_deleted),
            ],
            passes=passes,
            tasks={"start": self._verify_all},
            on_error=self._failed,
            on_retry=self._reset,
            rng=rng,
        )

    @property
    def _rules(self) -> plan.ServiceRules:
        # Not cached: a reopened provider may use other annotation prefixes.
        prefixes = self._handle.cloud.service_annotations
        return plan.ServiceRules(classes=self._settings.classes, prefixes=prefixes)

    async def sync_service(self, key: str) -> ReconcileResult:
        """Run the operations that one Service needs.

        Raises:
            CloudError: the provider failed.
            KubeError: a write failed.
        """
        try:
            return await self._sync(key)
        except StaleObject:
            return STALE
        finally:
            self._timer.finish(key)

    async def _sync(self, key: str) -> ReconcileResult:
        result = IDLE
        # An operation may make another operation due, such as an update of members after a
        # verification.
        while True:
            service, record, action = self.decide(key)
            if action is ServiceAction.REMOVE_VANISHED and record is not None:
                if wait_s := self._vanished_wait_s(record):
                    return ReconcileResult(after_s=wait_s, idle=True)
                await self._balancers.clean_up_vanished(record)
                self._forget(key)
            elif action is ServiceAction.FORGET:
                self._forget(key)
            elif service is None:
                return DONE
            elif record is not None and record.failing and action in ALLOWED_WHILE_FAILING:
                return await self._act_while_failing(service, record, action)
            elif action is ServiceAction.NOTHING:
                return result
            elif action is ServiceAction.WAIT:
                return ReconcileResult(after_s=MEMBERS_REQUEUE_S, idle=True)
            elif action is ServiceAction.VERIFY and record is not None:
                await self._verify(service, record)
            elif action is ServiceAction.UPDATE and record is not None:
                await self._balancers.update(service, record)
            elif action is ServiceAction.REPAIR and record is not None:
                return await self._repair(service, record)
            else:
                await self._ensure_or_remove(service, record, action)
                return DONE
            result = DONE

    def decide(self, key: str) -> tuple[Service | None, ServiceRecord | None, ServiceAction]:
        """Return the current Service, its record and the next operation."""
        record, service = self._records.get(key), self._services.store.get(key)
        if service is not None:
            service = self._writer.newest(service)
        action = plan.decide(
            service,
            record,
            self._rules,
            members_due=record is not None and self._members_due(record),
            members_known=self._members.can_update(),
            ensure_waits=service is not None and self._ensure_waits(service, record),
            was_foreign=service is not None and service.uid in self._foreign,
        )
        return service, record, action

    async def _ensure_or_remove(
        self, service: Service, record: ServiceRecord | None, action: ServiceAction
    ) -> None:
        if record is None or not record.may_exist:
            is_absent = not plan.was_served(service)
            record = self._records[service.key] = ServiceRecord(applied=service, absent=is_absent)
        if action is ServiceAction.REMOVE:
            await self._balancers.clean_up(service, record)
        else:
            await self._ensure(service, record)

    async def _act_while_failing(
        self, service: Service, record: ServiceRecord, action: ServiceAction
    ) -> ReconcileResult:
        """Run an action of `ALLOWED_WHILE_FAILING`; the back-off of the ensure continues."""
        if action is ServiceAction.UPDATE:
            await self._update_members(service, record)
        # An earlier due time of the key may have used up the wake-up at the end of this wait.
        waits_s = record.not_before - clock.monotonic()
        after_s = waits_s if waits_s > 0 else None
        if action is ServiceAction.WAIT:
            after_s = MEMBERS_REQUEUE_S
        # `idle`: a quick update of members does not prove that the ensure would be quick.
        return ReconcileResult(after_s=after_s, idle=True, failing=True)

    def _members_due(self, record: ServiceRecord) -> bool:
        """Return whether the load balancer needs an update of its members now."""
        if record.failing and (record.absent or record.not_before > clock.monotonic()):
            return False
        return self._members.of(record.applied).needs_update(record.members, record.burst)

    def _ensure_waits(self, service: Service, record: ServiceRecord | None) -> bool:
        """Return whether the ensure of the unchanged Service is in back-off after a failure."""
        if record is None or not record.failing:
            return False
        waits = self.controller.backoff.is_waiting(service.key, clock.monotonic())
        return waits and not plan.needs_ensure(record.applied, service, self._rules.prefixes)

    async def _ensure(self, service: Service, record: ServiceRecord) -> None:
        try:
            await self._balancers.ensure(service, record)
        except (CloudError, KubeError) as error:
            busy_s = self.controller.backoff.busy_s(service.key, clock.monotonic())
            # If the cloud is only briefly busy, the next ensure follows soon and sets the members.
            record.failing = not isinstance(error, RetryAfter) or busy_s >= REPORT_AFTER_S
            if record.failing:
                await self._update_despite_failure(service, record, error)
            raise
        self._reset_update_backoff(service.key)
        # During the call this controller wrote the finalizer and other clients may have changed
        # the Service, so continue with the newest object.
        cached = self._services.store.get(service.key)
        if cached is not None and cached.uid == service.uid:
            service = cached
        await self._balancers.restore(self._writer.newest(service), record)
        if self._members_due(record):
            # A burst ended during the ensure: `_nodes_changed` skips Services that are PENDING.
            self.controller.queue.add(service.key, background=True)

    async def _update_despite_failure(
        self, service: Service, record: ServiceRecord, error: Exception
    ) -> None:
        """After a failed ensure, update members if due, and write the error's partial Status."""
        service = self._writer.newest(service)
        waits = self._updates.is_waiting(service.key, clock.monotonic())
        if self._members_due(record) and self._members.can_update() and not waits:
            await self._update_members(service, record)
        if isinstance(error, CloudError) and isinstance(error.partial, Status):
            await self._balancers.restore(self._writer.newest(service), record)

    async def _update_members(self, service: Service, record: ServiceRecord) -> None:
        """Update members while the ensure fails; failed updates have a separate back-off."""
        key = service.key
        try:
            await self._balancers.update(service, record)
        except CloudError as error:
            decision, now = classify(error), clock.monotonic()
            pause_s = self._updates.record_failure(key, decision, now)
            if isinstance(error, RetryAfter):
                record.not_before = now + pause_s
            self.controller.queue.add_after(key, pause_s)
            if self._update_reports.is_due(key, error, decision, now):
                self._log.warning("member update failed", service=key, error=str(error))
        else:
            self._reset_update_backoff(key)

    def _reset_update_backoff(self, key: str) -> None:
        self._updates.forget(key)
        self._update_reports.forget(key)

    async def _repair(self, service: Service, record: ServiceRecord) -> ReconcileResult:
        rest_s = record.repaired_at + REPAIR_PAUSE_S - clock.monotonic()
        if rest_s > 0:
            return ReconcileResult(after_s=rest_s, idle=True)
        if await self._balancers.restore(service, record):
            record.repaired_at = clock.monotonic()
            metrics.REPAIRS.inc()
            self._log.info("finalizer or status restored", service=service.key)
        return DONE

    def _vanished_wait_s(self, record: ServiceRecord) -> float:
        """Return the delay until a vanished Service is checked again; 0 = clean up now."""
        if record.applied.key not in self._vanished:
            return 0.0
        missing = len(self._vanished)
        # Cached until a number changes: counting for each missing Service would be quadratic.
        counted = (missing, len(self._records))
        if counted != self._counted:
            self._counted = counted
            self._served_count = sum(entry.may_exist for entry in self._records.values())
        settled = self._served_count
        wait_s = self._guard.wait_s(missing, settled, clock.monotonic())
        if wait_s and self._guard.is_blocking:
            self._holds.block(
                record.applied.reference,
                "services_missing",
                f"{missing} of {settled} Services with load balancers disappeared without a "
                "deletion event. Their load balancers are kept until the Services are back; to "
                f"delete them, {ALLOW_HINT}",
            )
        return wait_s

    def _forget_vanished(self, record: ServiceRecord) -> None:
        """End the block for a vanished Service that is back or has no load balancer any more."""
        if record.applied.key in self._vanished:
            self._vanished.discard(record.applied.key)
            self._holds.unblock(record.applied.reference)

    def _forget(self, key: str) -> None:
        self._forget_vanished(self._records.pop(key))
        self._reset_update_backoff(key)

    def _failed(self, key: str, error: Exception, decision: RetryDecision) -> None:
        record = self._records.get(key)
        if record is None or not isinstance(error, RetryAfter):
            return
        record.not_before = self.controller.backoff.delay_end(key) or record.not_before
        if decision.report:
            message = f"Error syncing load balancer: the cloud is still busy: {error}"
            reason = names.REASON_SYNC_BALANCER_FAILED
            self._events.event(record.applied.reference, names.WARNING, reason, message)

    # --- start ------------------------------------------------------------------------------

    async def _verify_all(self) -> None:
        """Fetch the startup listing if the provider can list; queue the Services served earlier."""
        if self._to_verify and self._handle.offers(LoadBalancerDigests):
            self._listing = await fetch_startup_listing(self._handle)
        for key in self._to_verify:
            self.controller.queue.add(key, background=True)
        self._to_verify = []

    def _reset(self) -> None:
        """Drop the startup listing, and end all delays of member updates.

        Rebuild the members if the reopened provider differs in whether load balancers check health.
        """
        self._listing = None
        self._updates.end_all()
        by_health = not self._handle.cloud.load_balancers_check_health
        if by_health != self._members.by_health:
            self._members.rebuild(by_health=by_health)
            self._node_changes.changed()

    async def _verify(self, service: Service, record: ServiceRecord) -> None:
        """Set the state: APPLIED if no call is due, according to the listing, else PENDING."""
        record.state = BalancerState.PENDING
        if self._listing is None:
            metrics.STARTUP.labels("unlisted").inc()
            return
        # Digests take CPU time, so let other tasks run between two of them.
        await asyncio.sleep(0)
        given = self._members.of(service).snapshot
        verdict, status = self._listing.compare(service, given.nodes)
        record.absent = verdict is ComparisonResult.MISSING
        metrics.STARTUP.labels(verdict.value).inc()
        if status is not None and not status.ingress:
            status = load_balancer_status(service)  # keep the Service's status, if it has one
        if verdict is ComparisonResult.ELSEWHERE or (status is not None and status.ingress):
            record.confirm(service, given, status, provider_session=self._handle.provider_session)

    # --- drift ------------------------------------------------------------------------------

    async def check_drift(self) -> None:
        """Find load balancers that other clients changed; queue at most `drift_budget` Services.

        If the provider cannot list load balancers, the Services whose last call to the provider is
        oldest are queued. Their ensure records events only if it fails.
        """
        started = clock.monotonic()
        at_rest = {
            key: record
            for key, record in self._records.items()
            if self._is_idle(key, record) and record.status is not None
        }
        blind = not self._handle.offers(LoadBalancerDigests)
        if blind:
            due = sorted(at_rest, key=lambda key: at_rest[key].touched_at)
        else:
            listing = await fetch_listing(self._handle)
            if listing is None:
                return
            self._orphans.update(listing)
            due = [
                key
                for key, record in at_rest.items()
                if await self._drifted(listing, key, record, since=started)
            ]
            metrics.DRIFT.inc(len(due))
        for key in due[: self._settings.drift_budget]:
            record = at_rest[key]
            if self._is_idle(key, record):
                record.silent = blind
                record.state = BalancerState.PENDING
                self.controller.queue.add(key, background=True)

    def _is_idle(self, key: str, record: ServiceRecord) -> bool:
        return record.state is BalancerState.APPLIED and not self.controller.queue.is_processing(
            key
        )

    async def _drifted(
        self, listing: LoadBalancerListing, key: str, record: ServiceRecord, *, since: float
    ) -> bool:
        # The comparison of all Services takes long, so let other tasks run in between.
        await asyncio.sleep(0)
        if not self._is_idle(key, record) or record.touched_at >= since:
            return False
        given = self._members.of(record.applied).snapshot
        if record.members != given.fingerprint:
            # An update of the members is due anyway.
            return False
        verdict, status = listing.compare(record.applied, given.nodes)
        if status is not None and status.ingress and record.status is not None:
            return not plan.same_status(status, record.status)
        return verdict in (ComparisonResult.DIFFERENT, ComparisonResult.MISSING)

    async def _check_orphans(self) -> None:
        if self._handle.offers(LoadBalancerDigests):
            listing = await fetch_listing(self._handle)
            if listing is not None:
                self._orphans.update(listing)

    # --- the caches ---------------------------------------------------------------------------

    def _changed(self, old: Service | None, new: Service | None, initial: bool) -> bool:
        if new is None:
            assert old is not None
            self._foreign.discard(old.uid)
            self._writer.forget(old.key)
            return self._gone(old)
        if plan.is_foreign(new, self._settings.classes):
            # If the Service later changes its type, its finalizer belongs to the controller of the
            # foreign class.
            self._foreign.add(new.uid)
        elif plan.wants_balancer(new, self._settings.classes):
            self._foreign.discard(new.uid)
        record = self._records.get(new.key)
        if record is not None and record.applied.uid == new.uid:
            record.owner_deleted = False
            if new.key in self._vanished:
                self._guard.owner_returned(clock.monotonic())
                self._forget_vanished(record)
        if old is None:
            return self._added(new, initial)
        if old.uid != new.uid:
            self._gone(old)
        lags = self._writer.newest(new) is not new
        if not plan.is_relevant(old, new, record, self._rules, lags=lags):
            return False
        if record is not None:
            # The ensure records events, and the startup listing does not apply to the change.
            record.silent = False
            if record.state is BalancerState.UNVERIFIED:
                record.state = BalancerState.PENDING
        return True

    def _seen_deleted(self, service: Service) -> None:
        record = self._records.get(service.key)
        if record is not None and record.applied.uid == service.uid:
            record.owner_deleted = True

    def _gone(self, service: Service) -> bool:
        """Handle a Service that left the cache; return whether it needs a reconcile."""
        record = self._records.get(service.key)
        if record is None:
            return False
        if plan.vanished_unexplained(service, record, self._settings.classes):
            self._vanished.add(service.key)
            self._guard.owner_missing(clock.monotonic())
        return True

    def _added(self, service: Service, initial: bool) -> bool:
        if plan.needs_cleanup(service, self._settings.classes):
            # Another client may remove the finalizer before a worker takes the key.
            self._records.setdefault(service.key, ServiceRecord(applied=service))
            return True
        if not plan.wants_balancer(service, self._settings.classes):
            return False
        if initial:
            # An earlier process may have created a load balancer for the Service.
            is_served = plan.was_served(service)
            self._records[service.key] = ServiceRecord(
                applied=service, state=BalancerState.UNVERIFIED, absent=not is_served
            )
            # A Service that was never served needs an ensure, whatever the listing shows.
            if is_served and not service.is_deleting:
                self._to_verify.append(service.key)
                return False
        return True

    def _nodes_synced(self) -> None:
        self._members.adopt_unknown()
        self._members.end_burst()

    def _node_changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:  # noqa: ARG002 - shape of a watch
        waited = len(self._members.initialising)
        if new is not None:
            self._members.node_seen(new)
        elif old is not None:
            self._members.node_gone(old.name)
        if waits := len(self._members.initialising) - waited:
            self._node_changes.initialisation_progress(goes_on=waited + waits > 0)
        by_health = self._members.by_health
        if old is None or new is None or affects_members(old, new, by_health=by_health):
            leaves = (
                new is None
                or has_exclusion_label(new)
                or (by_health and not is_fit(new, local=False))
            )
            self._node_changes.changed(leaves=leaves)
        return False

    async def _check_members(self) -> None:
        if self._members.has_missing_or_unfit():
            self._node_changes.changed()

    def _pass_finished(self, took_s: float) -> None:
        metrics.NODE_SYNC.observe(took_s)
        self._node_changes.delay(took_s)

    def _nodes_changed(self) -> None:
        """Queue the Services whose members changed, after a burst of node changes."""
        self._members.drop_missing_and_unfit()
        now = clock.monotonic()
        changed = self._members.end_burst()
        due = [
            key
            for key, record in self._records.items()
            if record.needs_member_update(self._members.of(record.applied).fingerprint, now)
        ]
        if changed and self._records:
            self._log.info("nodes changed", members=len(self._members), load_balancers=len(due))
        if due:
            self._node_changes.delay()
        self._timer.start(due, joins=True)
        for key in due:
            self.controller.queue.add(key, background=True)

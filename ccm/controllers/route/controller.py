"""Route controller: compares nodes with routes, and starts one task per call to the cloud.

A comparison lists the cloud's routes, plans changes from them and the cached nodes, and starts the
calls without waiting for their end. The next comparison skips ranges with a call in flight, so a
hanging call delays neither other routes nor the conditions of other nodes. A failed call is not
repeated: its route gets a delay, and the first comparison after the delay plans the route again. So
every call follows from a recent listing. Right before each call the controller also checks the
cached node.

Changes of nodes trigger comparisons, at most one per `interval_s`. Without changes there is one
comparison per `safety_s`, plus jitter. If `period_s` is set, there is one comparison per period, as
by default in the Go controller.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Generator, Sequence

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff, jittered
from ccm.base.log import Outage
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import Routes
from ccm.cloud.lookup import NodeOwnership
from ccm.cloud.types import Route
from ccm.controllers.route import metrics, plan
from ccm.controllers.route.calls import BACKOFF, CallInFlight, RouteCalls, RouteConditions
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, names
from ccm.model.cidr import Network
from ccm.runtime.backoff import ItemBackoff, classify
from ccm.runtime.controller import DONE, Controller, ReconcileResult, Watch
from ccm.runtime.deletions import ALLOW_HINT, DeletionBlocks, DeletionRecord, mass_guard
from ccm.runtime.writer import PatchClient, Recorder

QUEUE_KEY = "routes"
"""The only key of the queue (Go controller)."""

LISTING_BACKOFF = ExponentialBackoff(base_s=1.0, cap_s=60.0, jitter=0.1)
"""Delays after failed listings, to reduce the load on a failing cloud.

At most a minute, because no route can change without a listing."""

SAFETY_JITTER = 0.5
"""Jitter of `safety_s`, as a fraction."""


class RouteController:
    """The route controller.

    Args:
        nodes: the shared informer of nodes.
        api: client for nodes with this controller's service account.
        handle: cloud client.
        ranges: the cluster's Pod ranges, see `ccm.model.cidr.parse_ranges`.
        ownership: which nodes belong to this daemon; other nodes and routes to them are ignored.
        events: event recorder.
        settings: limits, periods and options.
        record: deletion record; an annotation on its ConfigMap allows mass deletions. None =
            blocked deletions are not recorded.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: PatchClient[Node],
        handle: CloudClient,
        ranges: Sequence[Network],
        ownership: NodeOwnership,
        events: Recorder,
        settings: plan.RouteSettings,
        record: DeletionRecord | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng = rng or random.Random()
        self._safety_s = settings.safety_s
        self._nodes = nodes
        self._handle = handle
        self._ranges = ranges
        self._ownership = ownership
        self._grace_s = settings.grace_s
        self._schedule = plan.Schedule(
            settings,
            lambda due: self.controller.queue.add_after(QUEUE_KEY, due - clock.monotonic()),
        )
        self._listing: ItemBackoff[str] = ItemBackoff(LISTING_BACKOFF, rng=rng)
        self._unlisted = Outage(
            log.logger(names.CONTROLLER_ROUTE),
            start_message="route listing failed, retrying",
            end_message="route listing recovered",
        )
        self._undecodable = Outage(
            log.logger(names.CONTROLLER_ROUTE),
            start_message="routes kept, their nodes may be among those that cannot be decoded",
            end_message="all nodes can be decoded again",
        )
        self._conditions = RouteConditions(
            nodes=nodes,
            api=api,
            keep_foreign_reason=settings.keep_foreign_reason,
            ownership=ownership,
        )
        self._calls = RouteCalls(
            handle=handle,
            nodes=nodes,
            conditions=self._conditions,
            events=events,
            concurrency=settings.concurrency,
            schedule=self._schedule,
            backoff=ItemBackoff(BACKOFF, rng=rng),
            ownership=ownership,
        )
        self.controller = Controller(
            names.CONTROLLER_ROUTE,
            queue="Routes",
            reconcile=self._compare,
            watches=[
                Watch(
                    informer=nodes,
                    changed=self._changed,
                    synced=lambda: self._schedule.force(clock.monotonic()),
                    deleted=self._seen_deleted,
                )
            ],
            tasks={"calls": self._calls.run, "conditions": self._conditions.controller.run},
            on_retry=self._reset_delays,
        )
        self._targets: Collection[str] = ()
        self._without_cidrs_since: dict[str, float] = {}
        self._holds = DeletionBlocks("Route", events, record)
        self._guard = mass_guard(record, allow=settings.allow_mass_deletion)
        self._guard_due = math.inf
        self._released: set[plan.NodeRange] = set()

    def pause_s(self, node: Node) -> float | None:
        """Return the seconds until a failed creation of a route to the node is retried.

        None = no failed creation is delayed.
        """
        ends = [
            end
            for network in plan.pod_networks(node)
            if (end := self._calls.backoff.delay_end(plan.creation_key(node.name, network)))
        ]
        return max(0.0, min(ends) - clock.monotonic()) if ends else None

    # --- comparisons ------------------------------------------------------------------------

    async def _compare(self, _: str) -> ReconcileResult:
        now = clock.monotonic()
        if self._schedule.begin(now):
            metrics.PASSES.inc()
            try:
                await self._compare_now()
            except Exception:
                # The controller requeues the key; the schedule must be due again by then.
                self._schedule.due = now
                raise
        return DONE

    async def _compare_now(self) -> None:
        self._conditions.begin_listing()
        before, session = self._calls.begin_listing(), self._handle.provider_session
        try:
            routes = await self._handle.call(Routes.list_routes, self._handle.cluster_name)
        except CloudError as error:
            pause_s = self._listing.record_failure(QUEUE_KEY, classify(error), clock.monotonic())
            self._unlisted.record_failure(error=str(error), after_s=round(pause_s, 3))
            self._schedule.listing_failed(clock.monotonic(), pause_s)
            return
        if self._unlisted:
            self._calls.backoff.end_outage(clock.monotonic())
        self._unlisted.record_success()
        self._listing.forget(QUEUE_KEY)
        if self._handle.provider_session != session:  # reopened: its routes may be others
            self._schedule.force(clock.monotonic())
            return
        # The comparison covers node changes that occurred during the listing.
        self._schedule.due = math.inf
        started = clock.monotonic()  # delays that end during the calls are due at once
        await self._execute(routes, before, session)
        graces = [
            since + self._grace_s
            for name, since in self._without_cidrs_since.items()
            if name in self._targets
        ]
        self._schedule.finished(
            [self._calls.backoff.earliest_end(started), self._guard_due, *graces],
            safety_s=jittered(self._safety_s, SAFETY_JITTER, self._rng),
        )

    async def _execute(
        self, routes: Sequence[Route], before: Sequence[CallInFlight], provider_session: int
    ) -> None:
        released, horizon = frozenset(self._released), clock.monotonic() - self._grace_s
        nodes, routes = plan.drop_foreign(
            self._nodes.store.list(), routes, self._ownership.is_foreign
        )
        steps = plan.compare(
            nodes,
            routes,
            ranges=self._ranges,
            held={name for name, since in self._without_cidrs_since.items() if since > horizon},
            undecodable=frozenset(self._nodes.malformed_keys),
        )
        planned = self._drop_guarded(await _run_in_slices(steps), released)
        if planned.undecidable:
            self._undecodable.record_failure(routes=planned.undecidable)
        else:
            self._undecodable.record_success()
        for state, count in (
            ("kept", planned.kept),
            ("missing", len(planned.creations)),
            ("doomed", len(planned.deletions)),
        ):
            metrics.ROUTES.labels(state).set(count)
        self._targets = {route.target_node for route in routes}
        self._conditions.set_plan(planned)
        await self._calls.start(planned, before, provider_session)
        await self._conditions.write(nodes)
        self._calls.recheck(before)

    def _drop_guarded(
        self, planned: plan.RoutePlan, released: Collection[plan.NodeRange]
    ) -> plan.RoutePlan:
        """Drop and report deletions that are due to missing nodes, if the guard blocks them.

        Args:
            planned: the plan.
            released: (node, range) pairs for which the watch had reported the deletion of the node
                when the comparison began.
        """
        doomed = plan.unexplained_deletions(planned, self._nodes.store.get, self._released)
        strays = plan.stray_ranges(planned)
        now, settled = clock.monotonic(), planned.kept + len(strays)
        wait_s = self._guard.wait_s(len(doomed), settled, now)
        held = doomed if wait_s else []
        self._guard_due = now + wait_s if held else math.inf
        # A pair stays released until its route is gone.
        self._released -= frozenset(released) - strays
        shown = held if self._guard.is_blocking else []
        message = (
            f"{len(doomed)} of {settled} routes lead to nodes that disappeared, or lost their Pod "
            "ranges, without a deletion event. The routes are kept until the nodes are back; to "
            f"delete them, {ALLOW_HINT}, or set --allow-mass-deletion"
        )
        for deletion in shown:
            name = deletion.route.target_node
            node = self._nodes.store.get(name)
            reference = ObjectReference(kind="Node", api_version="v1", name=name)
            about = reference if node is None else node.reference
            self._holds.block(about, "nodes_missing", message)
        self._holds.keep_only({deletion.route.target_node for deletion in shown})
        return plan.drop_deletions(planned, held)

    def _reset_delays(self) -> None:
        """End all delays and schedule a comparison: the cause of the failures may be gone."""
        self._calls.backoff.end_all()
        self._listing.end_all()
        self._schedule.force(clock.monotonic())

    # --- the cache ----------------------------------------------------------------------------

    def _changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:
        # A node that becomes foreign counts as removed; a node that ceases to be foreign, as new.
        old, new = self._unless_foreign(old), self._unless_foreign(new)
        if old is not None and (new is None or old.uid != new.uid):
            self._without_cidrs_since.pop(old.name, None)
            self._conditions.forget(old.name)
            self._guard.owner_missing(clock.monotonic())
        if old is None and not initial:
            self._guard.owner_returned(clock.monotonic())
        if new is not None:
            if plan.has_no_pod_cidrs(new):
                self._without_cidrs_since.setdefault(new.name, clock.monotonic())
            else:
                self._without_cidrs_since.pop(new.name, None)
        if plan.affects_routes(old, new, targets=self._targets) and not initial:
            if new is not None:
                # The cloud may accept the new state of the node, so end the delays of its routes.
                for network in plan.pod_networks(new):
                    self._calls.backoff.forget(plan.creation_key(new.name, network))
            self._schedule.request(clock.monotonic())
        return False

    def _unless_foreign(self, node: Node | None) -> Node | None:
        return None if node is None or self._ownership.is_foreign(node) else node

    def _seen_deleted(self, node: Node) -> None:
        self._released.update((node.name, network) for network in plan.pod_networks(node))


async def _run_in_slices(steps: Generator[None, None, plan.RoutePlan]) -> plan.RoutePlan:
    """Run a comparison and return its plan; other tasks run after each chunk (`plan.CHUNK`)."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            planned: plan.RoutePlan = end.value
            return planned
        await asyncio.sleep(0)

"""Carries out what `plan` decides: compares when nodes change, then one task for each call.

A comparison lists the cloud's routes, plans over the cached nodes and starts the calls; it
does not wait for them. The next comparison leaves alone what a call still works on, so a
call that hangs holds up neither other routes nor the conditions of other nodes. A call that
failed is not repeated by itself: it pauses its route, and the comparison after the pause
decides anew. So every decision rests on a listing, and a deletion looks at the cached nodes
once more at the last moment.

Comparisons follow changes of nodes, at most one per `interval_s`, and come once in
`safety_s` anyway. With a `period_s` they come once per period and at no other time, as the
Go reference does it by default.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ccm.base import log
from ccm.base.backoff import Exponential, jittered
from ccm.base.clock import SYSTEM, Clock
from ccm.base.tasks import Group
from ccm.cloud.errors import CloudError
from ccm.cloud.types import Route
from ccm.controllers.route import metrics, plan
from ccm.controllers.route.conditions import Conditions
from ccm.kube.informer import Informer
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node, names
from ccm.model.cidr import Network
from ccm.runtime.loop import DONE, Loop, Result
from ccm.runtime.pauses import Pauses
from ccm.runtime.recorder import Recorder
from ccm.runtime.requests import Patches
from ccm.runtime.retry import Again, again, delay_s
from ccm.runtime.sync import until_synced

QUEUE_NAME = "Routes"
"""Value of the work-queue metrics' label (Go reference)."""

COMPARISON = "routes"
"""The one key of the queue (Go reference)."""

BACK_OFF = Exponential(base_s=1.0, cap_s=300.0, jitter=0.1)
"""Pauses of one route, and of listings, that failed."""

LISTING_CAP_S = 60.0
"""Longest pause between two listings while the cloud is in trouble."""

SAFETY_JITTER = 0.5
"""How much longer than `safety_s` the wait for the next comparison may be, as a fraction."""

K = TypeVar("K")
Key = tuple[str, ...]
"""What names a route in pauses: what is done, node, range, name."""

Change = tuple[str, Network, bool]
"""A call under way: node, range, and whether it creates the route or deletes it."""


class Calls(Protocol):
    """The questions and orders to the cloud; see `ccm.cloud.calls.routes`."""

    async def list(self) -> Sequence[Route]:
        """All routes of the cluster."""
        ...

    async def create(self, name_hint: str, route: Route) -> None:
        """Create a route."""
        ...

    async def delete(self, route: Route) -> None:
        """Delete a listed route."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hard the controller works.

    Attributes:
        concurrency: calls that create and delete at once.
        period_s: seconds between the starts of two comparisons; None = when nodes change.
        interval_s: shortest time between two comparisons that changes of nodes cause.
        settle_s: how long the first change waits for others.
        safety_s: longest time without a comparison, before jitter.
        grace_s: how long a node without Pod ranges keeps the routes it has.
        condition_workers: conditions written at once.
        keep_foreign_reason: leave a NetworkUnavailable condition of the right status alone
            when somebody else wrote it.
    """

    concurrency: int = 200
    period_s: float | None = None
    interval_s: float = 10.0
    settle_s: float = 0.5
    safety_s: float = 600.0
    grace_s: float = 60.0
    condition_workers: int = 10
    keep_foreign_reason: bool = False


class RouteController:
    """The route controller.

    Args:
        nodes: the shared cache of nodes.
        api: requests in this controller's name.
        calls: the cloud.
        ranges: the cluster's Pod ranges, see `plan.parse_ranges`.
        events: where events go.
        settings: numbers and periods.
        clock: where time comes from.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: Patches[Node],
        calls: Calls,
        ranges: Sequence[Network],
        events: Recorder,
        settings: Settings,
        clock: Clock = SYSTEM,
        rng: random.Random | None = None,
    ) -> None:
        self._nodes = nodes
        self._calls = calls
        self._ranges = ranges
        self._events = events
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()
        self._log = log.logger(names.COMPONENT_ROUTE)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._group: Group | None = None
        self._pauses: Pauses[Key] = Pauses(BACK_OFF, self._rng)
        self._queue: WorkQueue[str] = WorkQueue(QUEUE_NAME, clock=clock)
        self._conditions = Conditions(
            nodes=nodes,
            api=api,
            workers=settings.condition_workers,
            keep_foreign_reason=settings.keep_foreign_reason,
            clock=clock,
        )
        self._due = math.inf
        self._compared_at = -math.inf
        self._failed_listings = 0
        self._busy: Counter[Network] = Counter()
        self._changes: Counter[Change] = Counter()
        self._left_alone = False
        self._targets: Collection[str] = ()
        self._bare_since: dict[str, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        self._nodes.add_handler(
            name=names.COMPONENT_ROUTE,
            on_add=self._added,
            on_update=self._updated,
            on_delete=self._deleted,
        )
        await until_synced(self._nodes, who=names.COMPONENT_ROUTE)
        comparisons = Loop(
            names.COMPONENT_ROUTE,
            queue=self._queue,
            reconcile=self._compare,
            workers=1,
            clock=self._clock,
        )
        async with Group() as group:
            self._group = group
            self._compare_at(self._clock.monotonic(), forced=True)
            group.start(comparisons.run(), name="route-comparisons")
            group.start(self._conditions.run(), name="route-conditions")

    # --- comparisons ------------------------------------------------------------------------

    async def _compare(self, _: str) -> Result:
        now = self._clock.monotonic()
        if now < self._due:
            # What had asked for this moment was dealt with earlier.
            self._queue.add_after(COMPARISON, self._due - now)
            return DONE
        self._due = math.inf
        self._compared_at = now
        metrics.PASSES.inc()
        self._left_alone = False
        self._conditions.listing()
        busy, changes = list(self._busy), list(self._changes)
        try:
            routes = await self._calls.list()
        except CloudError as error:
            self._listing_failed(error)
            return DONE
        self._listing_worked()
        # Changes that came during the listing are part of what is compared now.
        self._due = math.inf
        try:
            self._carry_out(routes, busy)
            self._look_again_at(changes)
        except Exception:
            # The loop comes back, and must find something due.
            self._due = now
            raise
        if self._left_alone and any(network not in self._busy for network in busy):
            # Its call ended during the listing: nobody else asks for what waited for it.
            self._compare_soon()
        self._compare_at(self._next(), forced=True)
        return DONE

    def _carry_out(self, routes: Sequence[Route], busy: Sequence[Network]) -> None:
        held = self._held()
        nodes = self._nodes.store.list()
        found = plan.compare(nodes, routes, ranges=self._ranges, held=held)
        metrics.observe_comparison(
            kept=found.kept, missing=len(found.creations), doomed=len(found.deletions)
        )
        self._targets = {route.target_node for route in routes}
        self._conditions.compared(found)
        self._start_calls(found, plan.Overlaps(busy))
        self._conditions.write(nodes)

    def _look_again_at(self, changes: Collection[Change]) -> None:
        """Believe no listing about what was under way, if by now its opposite is wanted."""
        for name, network, creates in changes:
            node = self._nodes.store.get(name)
            is_wanted = node is not None and network in plan.pod_networks(node)
            if is_wanted != creates:
                self._left_alone = True
            if is_wanted and not creates:
                # Nothing is said about the node until it is known whether the route is there.
                self._conditions.forget(name)

    def _start_calls(self, found: plan.Plan, busy: plan.Overlaps) -> None:
        """Start what neither pauses nor meets a call that is still in work."""
        assert self._group is not None
        now = self._clock.monotonic()
        removals: dict[int, asyncio.Task[bool]] = {}
        for position, deletion in enumerate(found.deletions):
            if self._may_start(_deletion_key(deletion), deletion.network, busy, now):
                self._busy[deletion.network] += 1
                self._changes[deletion.route.target_node, deletion.network, False] += 1
                removals[position] = self._group.start(
                    self._delete(deletion), name=f"route-delete-{deletion.network}"
                )
        for creation in found.creations:
            if not self._may_start(
                _creation_key(creation.node.name, creation.network), creation.network, busy, now
            ):
                continue
            if all(position in removals for position in creation.after):
                self._busy[creation.network] += 1
                self._changes[creation.node.name, creation.network, True] += 1
                self._conditions.begin(creation.node.name)
                obstacles = [removals[position] for position in creation.after]
                self._group.start(
                    self._create(creation, obstacles), name=f"route-create-{creation.network}"
                )
        self._pauses.keep(
            {_deletion_key(each) for each in found.deletions}
            | {_creation_key(each.node.name, each.network) for each in found.creations}
        )

    def _may_start(self, key: Key, network: Network, busy: plan.Overlaps, now: float) -> bool:
        if busy.with_(network):
            self._left_alone = True
            return False
        return not self._pauses.lasts(key, now)

    def _listing_failed(self, error: CloudError) -> None:
        answer = again(error)
        seconds = delay_s(answer, self._failed_listings)
        if seconds is None:
            seconds = min(BACK_OFF.delay(self._failed_listings, self._rng), LISTING_CAP_S)
        level = self._log.debug if self._failed_listings else self._log.warning
        self._failed_listings += 1
        level("routes cannot be listed", error=str(error), after_s=round(seconds, 3))
        due = self._clock.monotonic() + seconds
        if self._settings.period_s is not None:
            due = self._compared_at + self._settings.period_s
        self._compare_at(due, forced=True)

    def _listing_worked(self) -> None:
        if self._failed_listings:
            self._log.info("routes can be listed again")
            self._failed_listings = 0
            self._pauses.end_outages()

    def _next(self) -> float:
        """When the next comparison is due if no node changes."""
        settings = self._settings
        if settings.period_s is not None:
            return self._compared_at + settings.period_s
        safety = self._compared_at + jittered(settings.safety_s, SAFETY_JITTER, self._rng)
        graces = [
            since + settings.grace_s
            for name, since in self._bare_since.items()
            if name in self._targets and since + settings.grace_s > self._compared_at
        ]
        return min([safety, self._pauses.first_end(self._clock.monotonic()), *graces])

    def _compare_at(self, due: float, *, forced: bool = False) -> None:
        """Ask for a comparison at that time at latest; a fixed period wants none."""
        if self._settings.period_s is not None and not forced:
            return
        self._due = min(self._due, due)
        self._queue.add_after(COMPARISON, self._due - self._clock.monotonic())

    def _compare_soon(self) -> None:
        soon = self._clock.monotonic() + self._settings.settle_s
        self._compare_at(max(soon, self._compared_at + self._settings.interval_s))

    def _held(self) -> Collection[str]:
        horizon = self._clock.monotonic() - self._settings.grace_s
        return {name for name, since in self._bare_since.items() if since > horizon}

    # --- calls ------------------------------------------------------------------------------

    async def _delete(self, deletion: plan.Deletion) -> bool:
        """Delete a route; whether it is gone."""
        route = deletion.route
        key = _deletion_key(deletion)
        facts = {"node": route.target_node, "cidr": route.destination_cidr, "route": route.name}
        try:
            async with self._slots:
                node = self._nodes.store.get(route.target_node)
                if deletion.why is plan.Why.STRAY and plan.is_wanted(route, node):
                    return False
                await self._calls.delete(route)
        except Exception as error:  # noqa: BLE001 - one route's trouble must not end the others
            self._failed(key, error, facts)
            return False
        else:
            self._log.info("route deleted", **facts, reason=deletion.why.value)
            metrics.DELETIONS.labels(deletion.why.value).inc()
            self._succeeded(key)
            return True
        finally:
            _count_down(self._changes, (route.target_node, deletion.network, False))
            self._release(deletion.network)

    async def _create(
        self, creation: plan.Creation, obstacles: Sequence[asyncio.Task[bool]]
    ) -> None:
        name = creation.node.name
        key = _creation_key(creation.node.name, creation.network)
        facts = {"node": name, "cidr": creation.cidr}
        started = self._clock.monotonic()
        try:
            for obstacle in obstacles:
                if not await obstacle:
                    return
            async with self._slots:
                started = self._clock.monotonic()
                if not await self._create_now(creation):
                    return
        except Exception as error:  # noqa: BLE001 - one route's trouble must not end the others
            answer = self._failed(key, error, facts)
            if answer.event:
                took_s = self._clock.monotonic() - started
                message = (
                    f"Could not create route {creation.node.uid} {creation.cidr} for node {name} "
                    f"after {took_s:.3f}s: {error}"
                )
                self._events.event(
                    creation.node.reference, names.WARNING, names.REASON_ROUTE_FAILED, message
                )
        else:
            self._log.info("route created", **facts)
            self._conditions.created(name, creation.network)
            self._succeeded(key)
        finally:
            _count_down(self._changes, (name, creation.network, True))
            self._release(creation.network)
            self._conditions.end(name)

    async def _create_now(self, creation: plan.Creation) -> bool:
        """Create the route unless the node changed while the call waited for its turn."""
        node = self._nodes.store.get(creation.node.name)
        if node is None or node.uid != creation.node.uid:
            return False
        if creation.network not in plan.pod_networks(node):
            return False
        route = Route(
            destination_cidr=creation.cidr,
            target_node=node.name,
            target_addresses=tuple(node.addresses),
        )
        await self._calls.create(node.uid, route)
        return True

    def _failed(self, key: Key, error: Exception, facts: Mapping[str, str]) -> Again:
        answer = again(error)
        now = self._clock.monotonic()
        seconds = self._pauses.begin(key, answer, now)
        if answer.defect:
            self._log.error("route call failed unexpectedly", **facts, call=key[0], exc_info=error)
        else:
            level = self._log.warning if answer.event else self._log.info
            said = {"call": key[0], "error": str(error), "after_s": round(seconds, 3)}
            level("route call failed", **facts, **said)
        spacing = min(seconds, self._settings.interval_s)
        self._compare_at(max(now + seconds, self._compared_at + spacing))
        return answer

    def _succeeded(self, key: Key) -> None:
        self._pauses.forget(key)
        if self._pauses.end_outages():
            self._compare_soon()

    def _release(self, network: Network) -> None:
        _count_down(self._busy, network)
        if self._left_alone:
            self._compare_soon()

    # --- cache handlers: they only note and enqueue -----------------------------------------

    def _added(self, node: Node, initial: bool) -> None:
        self._note(node)
        if not initial and (not plan.is_bare(node) or node.name in self._targets):
            self._compare_soon()

    def _updated(self, old: Node, new: Node) -> None:
        if old.uid != new.uid:
            self._forget(old)
        self._note(new)
        if plan.matters(old, new) and not (plan.is_bare(old) and plan.is_bare(new)):
            # What the cloud refused about the node as it was, it may accept now.
            for network in plan.pod_networks(new):
                self._pauses.forget(_creation_key(new.name, network))
            self._compare_soon()

    def _deleted(self, node: Node) -> None:
        self._forget(node)
        if not plan.is_bare(node) or node.name in self._targets:
            self._compare_soon()

    def _note(self, node: Node) -> None:
        if plan.is_bare(node):
            self._bare_since.setdefault(node.name, self._clock.monotonic())
        else:
            self._bare_since.pop(node.name, None)

    def _forget(self, node: Node) -> None:
        self._bare_since.pop(node.name, None)
        self._conditions.forget(node.name)


def _count_down(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _deletion_key(deletion: plan.Deletion) -> Key:
    route = deletion.route
    return ("delete", route.target_node, str(deletion.network), route.name)


def _creation_key(node: str, network: Network) -> Key:
    return ("create", node, str(network))

"""Route calls: one task per creation or deletion, and the node conditions that follow.

A failed call is not retried: its route gets a delay, and the comparison after the delay plans
again. So every call rests on a recent listing. A listing from before the end of a call is not
reliable about that call's range. So changes that overlap a call in flight are skipped, and a
comparison is scheduled for the end of the call.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ccm.base import clock, log
from ccm.base.backoff import Exponential
from ccm.base.tasks import Group
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Routes
from ccm.cloud.lookup import NodeOwnership
from ccm.cloud.types import Route
from ccm.controllers.route import metrics, plan
from ccm.kube.informer import Informer
from ccm.model import Node, names
from ccm.model.cidr import Network
from ccm.model.patches import Patch
from ccm.model.times import format_time
from ccm.runtime.backoff import FailureReports, ItemBackoff, classify
from ccm.runtime.controller import DONE, Controller, Result
from ccm.runtime.writer import Recorder, Step, Writer, Writes

BACKOFF = Exponential(base_s=1.0, cap_s=300.0, jitter=0.1)
"""Delays of a failed route."""

CONDITION_WORKERS = 10
"""Number of conditions written concurrently."""


Todo = plan.Deletion | plan.Creation


class Change(NamedTuple):
    """Call in flight: creates or deletes the route of a node's range."""

    node: str
    network: Network
    creates: bool


class Queued(NamedTuple):
    """Call that waits for a free slot.

    Attributes:
        change: the call.
        todo: the part of the plan that the call executes.
        position: key of the call in `tasks`.
        tasks: started calls of the same plan; deletions have their positions in the plan as keys.
    """

    change: Change
    todo: Todo
    position: int
    tasks: dict[int, asyncio.Task[bool]]


@dataclass(slots=True, kw_only=True)
class RouteChanges:
    """Calls in flight and queued calls.

    Attributes:
        handle: cloud client.
        nodes: cached nodes, which a call checks right before it is sent.
        conditions: updated when routes are created.
        events: event recorder.
        concurrency: maximum number of concurrent calls and tasks.
        schedule: schedules a comparison after a failed call, and after one that blocked changes.
        backoff: delays of failed routes.
        ownership: which nodes belong to this daemon; routes of others stay untouched.
    """

    handle: Handle
    nodes: Informer[Node]
    conditions: Conditions
    events: Recorder
    concurrency: int
    schedule: plan.Schedule
    backoff: ItemBackoff[plan.Key]
    ownership: NodeOwnership
    _log: log.Logger = field(init=False, default_factory=lambda: log.logger(names.COMPONENT_ROUTE))
    _reports: FailureReports[plan.Key] = field(init=False, default_factory=FailureReports)
    _group: Group = field(init=False)
    _under_way: Counter[Change] = field(init=False, default_factory=Counter)
    _queue: deque[Queued] = field(init=False, default_factory=deque)
    _retry_blocked: bool = field(init=False, default=False)
    _opening: int = field(init=False, default=-1)

    async def run(self) -> None:
        """Provide the task group of the calls until cancelled."""
        async with Group() as self._group:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._queue.clear()

    def listing(self) -> Sequence[Change]:
        """Prepare for a listing; return the calls in flight, about which it is not reliable.

        Queued calls are dropped: the comparison plans them again.
        """
        for queued in self._queue:
            if queued.change.creates:
                self.conditions.drop(queued.change.node)
        self._queue.clear()
        self._retry_blocked = False
        return list(self._under_way)

    async def start(self, found: plan.Plan, before: Sequence[Change], opening: int) -> None:
        """Start the planned calls, except during a delay or an overlap with a call in flight.

        Args:
            found: the plan.
            before: calls that were in flight during the listing.
            opening: provider session of the listing; another session gets none of the calls.
        """
        now, self._opening = clock.monotonic(), opening
        busy = plan.Overlaps(change.network for change in before)
        tasks: dict[int, asyncio.Task[bool]] = {}
        coming: set[int] = set()
        keys: list[plan.Key] = []
        todos: Sequence[Todo] = [*found.deletions, *found.creations]
        for position, todo in enumerate(todos):
            keys.append(todo.key)
            if position % plan.CHUNK == 0:
                await asyncio.sleep(0)
            if busy.with_(todo.network):
                self._retry_blocked = True
                continue
            if self.backoff.waits(todo.key, now):
                continue
            if isinstance(todo, plan.Deletion):
                change = Change(todo.route.target_node, todo.network, creates=False)
            elif coming.issuperset(todo.after):
                change = Change(todo.node.name, todo.network, creates=True)
                self.conditions.begin(change.node)
            else:
                # An overlapping deletion is skipped or delayed, so the creation has to wait too.
                continue
            coming.add(position)
            self._queue.append(Queued(change, todo, position, tasks))
        self.backoff.keep(keys)
        self._reports.keep(keys)
        self._feed()

    def distrust(self, before: Sequence[Change]) -> None:
        """Handle calls of the listing's time whose opposite is wanted by now.

        A comparison is scheduled, and nothing is written about nodes whose route may be deleted.
        """
        for change in before:
            node = self.nodes.store.get(change.node)
            is_wanted = node is not None and change.network in plan.pod_networks(node)
            if is_wanted != change.creates:
                self._retry_blocked = True
            if is_wanted and not change.creates:
                # Only the next comparison shows whether the route still exists.
                self.conditions.forget(change.node)
        still = {change.network for change in self._under_way}
        if self._retry_blocked and any(change.network not in still for change in before):
            # A call ended during the listing, so `_ended` did not schedule the comparison.
            self.schedule.soon(clock.monotonic())

    def _feed(self) -> None:
        """Start queued calls while there are free slots."""
        while self._queue and self._under_way.total() < self.concurrency:
            queued = self._queue.popleft()
            change = queued.change
            self._under_way[change] += 1
            verb = "create" if change.creates else "delete"
            name = f"route-{verb}-{change.network}"
            queued.tasks[queued.position] = self._group.start(self._carry_out(queued), name=name)

    async def _carry_out(self, queued: Queued) -> bool:
        """Create or delete a route; return whether that was done."""
        change, todo, _, tasks = queued
        started = clock.monotonic()
        try:
            if isinstance(todo, plan.Deletion):
                done = await self._delete(todo)
            else:
                for position in todo.after:
                    # Deletions come first in the queue, so the blocking ones have started.
                    if not await tasks[position]:
                        return False
                started = clock.monotonic()
                done = await self._create(todo)
            if done:
                self._reports.forget(todo.key)
                self.backoff.forget(todo.key)
                if self.backoff.end_outage(clock.monotonic()):
                    self.schedule.soon(clock.monotonic())
            return done
        except Exception as error:  # noqa: BLE001 - a failed call must not cancel the others
            self._failed(todo, error, clock.monotonic() - started)
            return False
        finally:
            self._ended(change)

    def _ended(self, change: Change) -> None:
        """Free the slot of a call, and schedule a comparison if calls blocked changes."""
        self._under_way[change] -= 1
        if not self._under_way[change]:
            del self._under_way[change]
        if self._retry_blocked:
            self.schedule.soon(clock.monotonic())
        if change.creates:
            self.conditions.end(change.node)
        self._feed()

    async def _delete(self, deletion: plan.Deletion) -> bool:
        """Delete the route unless its node changed while the call was queued."""
        route, node = deletion.route, self.nodes.store.get(deletion.route.target_node)
        if self.handle.opening != self._opening:
            return False
        if node is not None and self.ownership.is_foreign(node):
            return False
        if deletion.reason is plan.DeletionReason.STRAY and plan.is_wanted(route, node):
            return False
        if plan.is_doubtful(deletion, self.nodes.store.keys(), self.nodes.undecodable):
            return False
        await self.handle.call(Routes.delete_route, self.handle.cluster_name, route)
        self._log.info("route deleted", **_facts(deletion), reason=deletion.reason.value)
        metrics.DELETIONS.labels(deletion.reason.value).inc()
        return True

    async def _create(self, creation: plan.Creation) -> bool:
        """Create the route unless the node changed while the call was queued."""
        node = self.nodes.store.get(creation.node.name)
        if self.handle.opening != self._opening:
            return False
        if node is None or node.uid != creation.node.uid or self.ownership.is_foreign(node):
            return False
        if creation.network not in plan.pod_networks(node):
            return False
        route = Route(
            destination_cidr=creation.cidr,
            target_node=node.name,
            target_addresses=tuple(node.addresses),
        )
        await self.handle.call(Routes.create_route, self.handle.cluster_name, node.uid, route)
        self._log.info("route created", node=node.name, cidr=creation.cidr)
        self.conditions.created(node.name, creation.network)
        return True

    def _failed(self, todo: Todo, error: Exception, took_s: float) -> None:
        decision, now, key = classify(error), clock.monotonic(), todo.key
        report = self._reports.is_due(key, error, decision, now)
        seconds = self.backoff.failed(key, decision, now)
        facts, call = _facts(todo), key[0]
        if decision.defect:
            self._log.error("route call failed unexpectedly", **facts, call=call, exc_info=error)
        else:
            level = self._log.warning if report else self._log.debug
            context = {"call": call, "error": str(error), "after_s": round(seconds, 3)}
            level("route call failed", **facts, **context)
        self.schedule.retry(now, seconds)
        if isinstance(todo, plan.Creation) and (decision.event or report):
            node = todo.node
            message = (
                f"Could not create route {node.uid} {todo.cidr} for node {node.name} "
                f"after {took_s:.3f}s: {error}"
            )
            self.events.event(node.reference, names.WARNING, names.REASON_ROUTE_FAILED, message)


def _facts(todo: Todo) -> dict[str, str]:
    if isinstance(todo, plan.Creation):
        return {"node": todo.node.name, "cidr": todo.cidr}
    route = todo.route
    return {"node": route.target_node, "cidr": route.destination_cidr, "route": route.name}


class Conditions:
    """Writer of the NetworkUnavailable conditions: whether all routes of a node exist.

    The value follows from the last comparison, plus the routes created since. Nothing is written
    while a call is creating a route of the node.

    Args:
        nodes: the shared informer of nodes.
        api: node requests under the controller's account.
        keep_foreign_reason: keep a condition with the right status and another writer's reason.
        ownership: which nodes belong to this daemon; nothing is written about others.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: Writes[Node],
        keep_foreign_reason: bool,
        ownership: NodeOwnership,
    ) -> None:
        self._nodes = nodes
        self._ownership = ownership
        self._writer = Writer(api)
        self._keep_foreign_reason = keep_foreign_reason
        self._log = log.logger(names.COMPONENT_ROUTE)
        self._missing: dict[str, set[Network | str]] = {}
        self._cut_off: Collection[str] = ()
        self._creating: Counter[str] = Counter()
        self._created_lately: set[tuple[str, Network]] = set()
        self.controller = Controller(
            names.COMPONENT_ROUTE,
            queue="RouteConditions",
            reconcile=self._write,
            workers=CONDITION_WORKERS,
        )

    def listing(self) -> None:
        """Prepare for a listing: routes created from now on may be missing in it."""
        self._created_lately.clear()

    def compared(self, found: plan.Plan) -> None:
        """Take the missing routes of a new plan."""
        self._cut_off = found.cut_off
        self._missing = {name: set(networks) for name, networks in found.missing.items()}
        for name, network in self._created_lately:
            self._missing.get(name, set()).discard(network)

    async def write(self, nodes: Iterable[Node]) -> None:
        """Queue the nodes whose condition is wrong."""
        for number, node in enumerate(nodes):
            if number % plan.CHUNK == 0:
                await asyncio.sleep(0)
            if self._patch(node) is not None:
                self.controller.queue.add(node.name)

    def begin(self, name: str) -> None:
        """Count a call that creates a route of the node."""
        self._creating[name] += 1

    def created(self, name: str, network: Network) -> None:
        """Record a created route of the node."""
        self._missing.get(name, set()).discard(network)
        self._created_lately.add((name, network))

    def end(self, name: str) -> None:
        """End a counted call, with any outcome."""
        self.drop(name)
        if not self._creating[name]:
            self.controller.queue.add(name)

    def drop(self, name: str) -> None:
        """Uncount a call that is left to the next comparison, without a write."""
        self._creating[name] -= 1
        if not self._creating[name]:
            del self._creating[name]

    def forget(self, name: str) -> None:
        """Write nothing about the node until the next comparison."""
        self._missing.pop(name, None)

    async def _write(self, name: str) -> Result:
        node = self._nodes.store.get(name)
        if (
            node is not None
            and (await self._writer.change(node, Step(self._patch, "status"))).changed
        ):
            self._log.info("node condition NetworkUnavailable written", node=name)
        return DONE

    def _patch(self, node: Node) -> Patch | None:
        if self._creating[node.name] or self._ownership.is_foreign(node):
            return None
        missing = self._missing.get(node.name)
        if missing is None and node.name not in self._cut_off:
            return None
        return plan.condition_patch(
            node,
            created=missing is not None and not missing,
            now=format_time(clock.now()),
            keep_foreign_reason=self._keep_foreign_reason,
        )

"""Route calls: one task per creation or deletion, and the node conditions that follow.

A failed call is not repeated: its route gets a delay, and the first comparison after the delay
plans the route again. So every call follows from a recent listing. A listing that began before the
end of a call is not reliable about the range of the call. So the plan's changes that overlap a call
in flight are skipped, and a comparison is scheduled for the end of the call.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError
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
from ccm.runtime.controller import DONE, Controller, ReconcileResult
from ccm.runtime.writer import ObjectWriter, PatchClient, PatchStep, Recorder

BACKOFF = ExponentialBackoff(base_s=1.0, cap_s=300.0, jitter=0.1)
"""Delays after a failed call for a route.

A lasting error must not use up the rate limit of the cloud. The delays end early when an outage
ends."""

CONDITION_WORKERS = 10
"""Maximum number of node conditions written concurrently."""


PlannedCall = plan.RouteDeletion | plan.RouteCreation


class CallInFlight(NamedTuple):
    """Call that creates or deletes the route to a Pod range of a node."""

    node: str
    network: Network
    creates: bool


class QueuedCall(NamedTuple):
    """Call that waits for a free slot.

    Attributes:
        change: identity of the call once it is in flight.
        todo: the planned deletion or creation of a route.
        position: position in the plan, where the creations follow the deletions.
        tasks: tasks of the started calls of this plan, by position.
    """

    change: CallInFlight
    todo: PlannedCall
    position: int
    tasks: dict[int, asyncio.Task[bool]]


@dataclass(slots=True, kw_only=True)
class RouteCalls:
    """Calls in flight and queued calls.

    Attributes:
        handle: cloud client.
        nodes: the shared informer of nodes; its cache is checked right before each call.
        conditions: writer of the NetworkUnavailable conditions of nodes.
        events: event recorder.
        concurrency: maximum number of concurrent calls; each call has a task.
        schedule: schedules a comparison after a failed call, and after a call that overlapped
            planned changes.
        backoff: delays after failed calls.
        ownership: which nodes belong to this daemon; routes to other nodes stay untouched.
    """

    handle: CloudClient
    nodes: Informer[Node]
    conditions: RouteConditions
    events: Recorder
    concurrency: int
    schedule: plan.Schedule
    backoff: ItemBackoff[plan.CallKey]
    ownership: NodeOwnership
    _log: log.Logger = field(init=False, default_factory=lambda: log.logger(names.CONTROLLER_ROUTE))
    _reports: FailureReports[plan.CallKey] = field(init=False, default_factory=FailureReports)
    _group: NamedTaskGroup = field(init=False)
    _in_flight: Counter[CallInFlight] = field(init=False, default_factory=Counter)
    _queue: deque[QueuedCall] = field(init=False, default_factory=deque)
    _retry_blocked: bool = field(init=False, default=False)
    _provider_session: int = field(init=False, default=-1)

    async def run(self) -> None:
        """Provide the task group of the calls until cancelled."""
        async with NamedTaskGroup() as self._group:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._queue.clear()

    def begin_listing(self) -> Sequence[CallInFlight]:
        """Prepare for a listing; return the calls in flight.

        The listing is not reliable about the ranges of these calls. Queued calls are dropped: the
        comparison plans them again.
        """
        for queued in self._queue:
            if queued.change.creates:
                self.conditions.creation_dropped(queued.change.node)
        self._queue.clear()
        self._retry_blocked = False
        return list(self._in_flight)

    async def start(
        self, planned: plan.RoutePlan, in_flight: Sequence[CallInFlight], provider_session: int
    ) -> None:
        """Start or queue the planned calls.

        Calls of delayed routes are skipped, as are calls that overlap a call in flight.

        Args:
            planned: the plan.
            in_flight: calls that were in flight when the listing began.
            provider_session: provider session of the listing; if the provider is reopened, the
                calls are not sent.
        """
        now, self._provider_session = clock.monotonic(), provider_session
        busy = plan.NetworkIndex(change.network for change in in_flight)
        tasks: dict[int, asyncio.Task[bool]] = {}
        coming: set[int] = set()
        keys: list[plan.CallKey] = []
        todos: Sequence[PlannedCall] = [*planned.deletions, *planned.creations]
        for position, todo in enumerate(todos):
            keys.append(todo.key)
            if position % plan.CHUNK == 0:
                await asyncio.sleep(0)
            if busy.overlapping(todo.network):
                self._retry_blocked = True
                continue
            if self.backoff.is_waiting(todo.key, now):
                continue
            if isinstance(todo, plan.RouteDeletion):
                change = CallInFlight(todo.route.target_node, todo.network, creates=False)
            elif coming.issuperset(todo.after):
                change = CallInFlight(todo.node.name, todo.network, creates=True)
                self.conditions.creation_started(change.node)
            else:
                # A deletion that must come first is skipped, so the creation is skipped too.
                continue
            coming.add(position)
            self._queue.append(QueuedCall(change, todo, position, tasks))
        self.backoff.retain(keys)
        self._reports.retain(keys)
        self._start_queued()

    def recheck(self, in_flight: Sequence[CallInFlight]) -> None:
        """Schedule a comparison if a call in flight does the opposite of what its node needs now.

        If such a call deletes a route, the condition of the node is not written until the next
        comparison.

        Args:
            in_flight: calls that were in flight when the listing began.
        """
        for change in in_flight:
            node = self.nodes.store.get(change.node)
            is_wanted = node is not None and change.network in plan.pod_networks(node)
            if is_wanted != change.creates:
                self._retry_blocked = True
            if is_wanted and not change.creates:
                # Only the next comparison shows whether the route still exists.
                self.conditions.forget(change.node)
        still = {change.network for change in self._in_flight}
        if self._retry_blocked and any(change.network not in still for change in in_flight):
            # The call ended before `_retry_blocked` was set, so `_finish` scheduled no comparison.
            self.schedule.request(clock.monotonic())

    def _start_queued(self) -> None:
        """Start queued calls while there are free slots."""
        while self._queue and self._in_flight.total() < self.concurrency:
            queued = self._queue.popleft()
            change = queued.change
            self._in_flight[change] += 1
            verb = "create" if change.creates else "delete"
            name = f"route-{verb}-{change.network}"
            queued.tasks[queued.position] = self._group.start(self._execute(queued), name=name)

    async def _execute(self, queued: QueuedCall) -> bool:
        """Create or delete a route; return False if the call failed or is no longer wanted."""
        change, todo, _, tasks = queued
        started = clock.monotonic()
        try:
            if isinstance(todo, plan.RouteDeletion):
                done = await self._delete(todo)
            else:
                for position in todo.after:
                    # Deletions come first in the queue, so all of `todo.after` have started.
                    if not await tasks[position]:
                        return False
                started = clock.monotonic()
                done = await self._create(todo)
            if done:
                self._reports.forget(todo.key)
                self.backoff.forget(todo.key)
                if self.backoff.end_outage(clock.monotonic()):
                    self.schedule.request(clock.monotonic())
            return done
        except Exception as error:  # noqa: BLE001 - a failed call must not cancel the others
            self._failed(todo, error, clock.monotonic() - started)
            return False
        finally:
            self._finish(change)

    def _finish(self, change: CallInFlight) -> None:
        """Free the slot of a call; schedule a comparison if planned changes were skipped."""
        self._in_flight[change] -= 1
        if not self._in_flight[change]:
            del self._in_flight[change]
        if self._retry_blocked:
            self.schedule.request(clock.monotonic())
        if change.creates:
            self.conditions.creation_ended(change.node)
        self._start_queued()

    async def _delete(self, deletion: plan.RouteDeletion) -> bool:
        """Delete the route; return False if the plan no longer applies to the node or session."""
        route, node = deletion.route, self.nodes.store.get(deletion.route.target_node)
        if self.handle.provider_session != self._provider_session:
            return False
        if node is not None and self.ownership.is_foreign(node):
            return False
        if deletion.reason is plan.DeletionReason.STRAY and plan.is_wanted(route, node):
            return False
        if plan.may_be_undecodable(deletion, self.nodes.store.keys(), self.nodes.malformed_keys):
            return False
        await self.handle.call(Routes.delete_route, self.handle.cluster_name, route)
        self._log.info("route deleted", **_facts(deletion), reason=deletion.reason.value)
        metrics.DELETIONS.labels(deletion.reason.value).inc()
        return True

    async def _create(self, creation: plan.RouteCreation) -> bool:
        """Create the route; return False if the plan no longer applies to the node or session."""
        node = self.nodes.store.get(creation.node.name)
        if self.handle.provider_session != self._provider_session:
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
        try:
            await self.handle.call(Routes.create_route, self.handle.cluster_name, node.uid, route)
        except CloudError:
            current = self.nodes.store.get(node.name)
            if not plan.affects_routes(node, current, targets=(node.name,)):
                raise
            # A change of the node ends the delay of its routes, but this call has not failed by
            # then. So the delay must not begin: it could be long, and nothing would end it.
            self.schedule.request(clock.monotonic())
            return False
        self._log.info("route created", node=node.name, cidr=creation.cidr)
        self.conditions.created(node.name, creation.network)
        return True

    def _failed(self, todo: PlannedCall, error: Exception, took_s: float) -> None:
        decision, now, key = classify(error), clock.monotonic(), todo.key
        report = self._reports.is_due(key, error, decision, now)
        seconds = self.backoff.record_failure(key, decision, now)
        facts, call = _facts(todo), key[0]
        if decision.defect:
            self._log.error("route call failed unexpectedly", **facts, call=call, exc_info=error)
        else:
            level = self._log.warning if report else self._log.debug
            context = {"call": call, "error": str(error), "after_s": round(seconds, 3)}
            level("route call failed", **facts, **context)
        self.schedule.retry(now, seconds)
        if isinstance(todo, plan.RouteCreation) and (decision.event or report):
            node = todo.node
            message = (
                f"Could not create route {node.uid} {todo.cidr} for node {node.name} "
                f"after {took_s:.3f}s: {error}"
            )
            self.events.event(node.reference, names.WARNING, names.REASON_ROUTE_FAILED, message)


def _facts(todo: PlannedCall) -> dict[str, str]:
    if isinstance(todo, plan.RouteCreation):
        return {"node": todo.node.name, "cidr": todo.cidr}
    route = todo.route
    return {"node": route.target_node, "cidr": route.destination_cidr, "route": route.name}


class RouteConditions:
    """Writer of the NetworkUnavailable conditions: False if all routes of a node exist, else True.

    The value follows from the last comparison and the routes created since then. The condition of a
    node is not written while a call that creates a route to the node is queued or in flight.

    Args:
        nodes: the shared informer of nodes.
        api: client for nodes with the controller's service account.
        keep_foreign_reason: see `RouteSettings`.
        ownership: which nodes belong to this daemon; conditions of other nodes are not written.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: PatchClient[Node],
        keep_foreign_reason: bool,
        ownership: NodeOwnership,
    ) -> None:
        self._nodes = nodes
        self._ownership = ownership
        self._writer = ObjectWriter(api)
        self._keep_foreign_reason = keep_foreign_reason
        self._log = log.logger(names.CONTROLLER_ROUTE)
        self._missing: dict[str, set[Network | str]] = {}
        self._cut_off: Collection[str] = ()
        self._creating: Counter[str] = Counter()
        self._created_lately: set[tuple[str, Network]] = set()
        self.controller = Controller(
            names.CONTROLLER_ROUTE,
            queue="RouteConditions",
            reconcile=self._write,
            workers=CONDITION_WORKERS,
        )

    def begin_listing(self) -> None:
        """Prepare for a listing, in which routes created from now on may be missing."""
        self._created_lately.clear()

    def set_plan(self, planned: plan.RoutePlan) -> None:
        """Use a new plan's missing routes, without the routes created since the listing began."""
        self._cut_off = planned.cut_off
        self._missing = {name: set(networks) for name, networks in planned.missing.items()}
        for name, network in self._created_lately:
            self._missing.get(name, set()).discard(network)

    async def write(self, nodes: Iterable[Node]) -> None:
        """Queue the nodes whose condition is wrong."""
        for number, node in enumerate(nodes):
            if number % plan.CHUNK == 0:
                await asyncio.sleep(0)
            if self._patch(node) is not None:
                self.controller.queue.add(node.name)

    def creation_started(self, name: str) -> None:
        """Count a queued call that creates a route to the node."""
        self._creating[name] += 1

    def created(self, name: str, network: Network) -> None:
        """Record that a route to the node was created."""
        self._missing.get(name, set()).discard(network)
        self._created_lately.add((name, network))

    def creation_ended(self, name: str) -> None:
        """Stop counting an ended call, with any outcome; after the last call, queue the node."""
        self.creation_dropped(name)
        if not self._creating[name]:
            self.controller.queue.add(name)

    def creation_dropped(self, name: str) -> None:
        """Stop counting a dropped call; the node is not queued, as a comparison follows."""
        self._creating[name] -= 1
        if not self._creating[name]:
            del self._creating[name]

    def forget(self, name: str) -> None:
        """Do not write the node's condition until the next comparison."""
        self._missing.pop(name, None)

    async def _write(self, name: str) -> ReconcileResult:
        node = self._nodes.store.get(name)
        if (
            node is not None
            and (await self._writer.change(node, PatchStep(self._patch, "status"))).changed
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

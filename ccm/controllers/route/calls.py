"""Creates and deletes routes: one task for each call, so that none holds up another.

A call that failed is not repeated: it pauses its route, and the comparison after the pause
decides anew. So every decision rests on a listing. A listing from before a call ended says
nothing reliable about that call's range: what meets one is blocked, and a comparison is
asked for when the call has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ccm.base import clock, log
from ccm.base.backoff import Exponential
from ccm.base.tasks import Group
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Routes
from ccm.cloud.lookup import Ownership
from ccm.cloud.types import Route
from ccm.controllers.route import metrics, plan
from ccm.controllers.route.conditions import Conditions
from ccm.controllers.route.overlaps import Overlaps
from ccm.kube.informer import Informer
from ccm.model import Node, names
from ccm.model.cidr import Network
from ccm.runtime.backoff import FailureReports, ItemBackoff, classify
from ccm.runtime.writer import Recorder

BACKOFF = Exponential(base_s=1.0, cap_s=300.0, jitter=0.1)
"""Pauses of one route that failed."""


class Change(NamedTuple):
    """A call under way: whether it creates the route of a node's range, or deletes it."""

    node: str
    network: Network
    creates: bool


class Queued(NamedTuple):
    """A call whose turn has not come, and what begins it."""

    change: Change
    begin: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class RouteChanges:
    """The calls under way.

    Attributes:
        handle: carries them out.
        nodes: the cached nodes; a call looks at them once more at the last moment.
        conditions: told of routes that are created.
        events: where events go.
        concurrency: calls at once; so many tasks at most.
        retry: asks for a comparison after so many seconds, because a call failed.
        soon: asks for a comparison, because a call ended that something waited for.
        backoff: how long each route is left alone.
        ownership: which nodes are ours; routes of the others are left alone.
    """

    handle: Handle
    nodes: Informer[Node]
    conditions: Conditions
    events: Recorder
    concurrency: int
    retry: Callable[[float], None]
    soon: Callable[[], None]
    backoff: ItemBackoff[plan.Key]
    ownership: Ownership
    _log: log.Logger = field(init=False, default_factory=lambda: log.logger(names.COMPONENT_ROUTE))
    _reports: FailureReports[plan.Key] = field(init=False, default_factory=FailureReports)
    _group: Group | None = field(init=False, default=None)
    _under_way: Counter[Change] = field(init=False, default_factory=Counter)
    _queue: deque[Queued] = field(init=False, default_factory=deque)
    _retry_blocked: bool = field(init=False, default=False)
    _opening: int = field(init=False, default=-1)

    async def run(self) -> None:
        """Let calls run until cancelled."""
        async with Group() as self._group:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._queue.clear()

    def listing(self) -> Sequence[Change]:
        """Routes are listed from now on; the changes that the listing cannot tell about.

        Calls whose turn has not come are left to the comparison with it.
        """
        for change, _ in self._queue:
            if change.creates:
                self.conditions.drop(change.node)
        self._queue.clear()
        self._retry_blocked = False
        return list(self._under_way)

    async def start(self, found: plan.Plan, before: Sequence[Change], opening: int) -> None:
        """Start what neither pauses nor meets a call that was under way at the listing.

        Args:
            found: what is to be done.
            before: the calls that were under way.
            opening: the opening of the provider that listed; another one gets none of it.
        """
        now, self._opening = clock.monotonic(), opening
        busy = Overlaps(change.network for change in before)
        removals: dict[int, asyncio.Task[bool]] = {}
        coming: set[int] = set()
        keys: list[plan.Key] = []
        for position, deletion in enumerate(found.deletions):
            keys.append(deletion.key)
            if self._may_start(keys[-1], deletion.network, busy, now):
                coming.add(position)
                change = Change(deletion.route.target_node, deletion.network, creates=False)
                begin = partial(self._begin_deletion, deletion, change, position, removals)
                self._queue.append(Queued(change, begin))
            await _breathe(len(keys))
        for creation in found.creations:
            keys.append(creation.key)
            if self._may_start(keys[-1], creation.network, busy, now) and all(
                position in coming for position in creation.after
            ):
                change = Change(creation.node.name, creation.network, creates=True)
                self.conditions.begin(change.node)
                begin = partial(self._begin_creation, creation, change, removals)
                self._queue.append(Queued(change, begin))
            await _breathe(len(keys))
        self.backoff.keep(keys)
        self._reports.keep(keys)
        self._feed()

    def distrust(self, before: Sequence[Change]) -> None:
        """Believe no listing about what was under way, if by now its opposite is wanted."""
        for change in before:
            node = self.nodes.store.get(change.node)
            is_wanted = node is not None and change.network in plan.pod_networks(node)
            if is_wanted != change.creates:
                self._retry_blocked = True
            if is_wanted and not change.creates:
                # Nothing is said about the node until it is known whether the route is there.
                self.conditions.forget(change.node)
        still = {change.network for change in self._under_way}
        if self._retry_blocked and any(change.network not in still for change in before):
            # Its call ended during the listing: nobody else asks for what waited for it.
            self.soon()

    def _may_start(self, key: plan.Key, network: Network, busy: Overlaps, now: float) -> bool:
        if busy.with_(network):
            self._retry_blocked = True
            return False
        return not self.backoff.waits(key, now)

    def _feed(self) -> None:
        """Begin those whose turn it is."""
        while self._queue and self._under_way.total() < self.concurrency:
            self._queue.popleft().begin()

    def _begin_deletion(
        self,
        deletion: plan.Deletion,
        change: Change,
        position: int,
        removals: dict[int, asyncio.Task[bool]],
    ) -> None:
        removals[position] = self._begin(change, self._delete(deletion, change))

    def _begin_creation(
        self,
        creation: plan.Creation,
        change: Change,
        removals: Mapping[int, asyncio.Task[bool]],
    ) -> None:
        # What is in its way comes before it in the queue, so it has begun.
        obstacles = [removals[position] for position in creation.after]
        self._begin(change, self._create(creation, change, obstacles))

    def _begin(self, change: Change, call: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        assert self._group is not None, "`run` comes first"
        self._under_way[change] += 1
        verb = "create" if change.creates else "delete"
        return self._group.start(call, name=f"route-{verb}-{change.network}")

    @contextmanager
    def _ending(self, change: Change) -> Iterator[None]:
        """However the call ends, what waited for it gets its turn."""
        try:
            yield
        finally:
            self._under_way[change] -= 1
            if not self._under_way[change]:
                del self._under_way[change]
            if self._retry_blocked:
                self.soon()
            if change.creates:
                self.conditions.end(change.node)
            self._feed()

    async def _delete(self, deletion: plan.Deletion, change: Change) -> bool:
        """Delete a route; whether it is gone."""
        route, cluster = deletion.route, self.handle.cluster_name
        facts = {"node": change.node, "cidr": route.destination_cidr, "route": route.name}
        with self._ending(change):
            try:
                node = self.nodes.store.get(change.node)
                if self.handle.opening != self._opening:
                    return False
                if node is not None and self.ownership.is_foreign(node):
                    return False
                if deletion.reason is plan.DeletionReason.STRAY and plan.is_wanted(route, node):
                    return False
                if plan.is_doubtful(deletion, self.nodes.store.keys(), self.nodes.undecodable):
                    return False
                await self.handle.call(Routes.delete_route, cluster, route)
            except Exception as error:  # noqa: BLE001 - one route's trouble must not end the others
                self._failed(deletion.key, error, facts)
                return False
            self._log.info("route deleted", **facts, reason=deletion.reason.value)
            metrics.DELETIONS.labels(deletion.reason.value).inc()
            self._succeeded(deletion.key)
            return True

    async def _create(
        self, creation: plan.Creation, change: Change, obstacles: Sequence[asyncio.Task[bool]]
    ) -> bool:
        """Create a route once what is in its way is gone; whether it is there."""
        started = clock.monotonic()
        with self._ending(change):
            try:
                for obstacle in obstacles:
                    if not await obstacle:
                        return False
                started = clock.monotonic()
                if not await self._create_now(creation):
                    return False
            except Exception as error:  # noqa: BLE001 - one route's trouble must not end the others
                facts = {"node": change.node, "cidr": creation.cidr}
                if self._failed(creation.key, error, facts):
                    self._tell(creation, error, clock.monotonic() - started)
                return False
            self._log.info("route created", node=change.node, cidr=creation.cidr)
            self.conditions.created(change.node, creation.network)
            self._succeeded(creation.key)
            return True

    async def _create_now(self, creation: plan.Creation) -> bool:
        """Create the route unless the node changed while the call waited for its turn."""
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
        return True

    def _failed(self, key: plan.Key, error: Exception, facts: Mapping[str, str]) -> bool:
        """Record a failure; return whether it deserves an event."""
        decision, now = classify(error), clock.monotonic()
        report = self._reports.is_due(key, error, decision, now)
        seconds = self.backoff.failed(key, decision, now)
        if decision.defect:
            self._log.error("route call failed unexpectedly", **facts, call=key[0], exc_info=error)
        else:
            level = self._log.warning if report else self._log.debug
            said = {"call": key[0], "error": str(error), "after_s": round(seconds, 3)}
            level("route call failed", **facts, **said)
        self.retry(seconds)
        return decision.event or report

    def _succeeded(self, key: plan.Key) -> None:
        self.backoff.forget(key)
        self._reports.forget(key)
        if self.backoff.end_outage(clock.monotonic()):
            self.soon()

    def _tell(self, creation: plan.Creation, error: Exception, took_s: float) -> None:
        node = creation.node
        message = (
            f"Could not create route {node.uid} {creation.cidr} for node {node.name} "
            f"after {took_s:.3f}s: {error}"
        )
        self.events.event(node.reference, names.WARNING, names.REASON_ROUTE_FAILED, message)


async def _breathe(number: int) -> None:
    """Let others work after each chunk."""
    if number % plan.CHUNK == 0:
        await asyncio.sleep(0)

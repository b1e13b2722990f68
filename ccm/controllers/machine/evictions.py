"""Empties one node: marks it, evicts its Pods, waits for their end, and uses force when due.

What is on the node is told by a watch of its Pods alone, for as long as the drain lasts; nothing
is read again and again. What a predecessor began is met as it is: a Pod on its way out is only
waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum

from ccm.base import clock, log, tasks
from ccm.base.tasks import Group, bounded, first_of, leaves
from ccm.controllers.machine.attachments import Attachments, Mounted
from ccm.controllers.machine.budgets import Budgets, Refused
from ccm.kube.client import Client
from ccm.kube.errors import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from ccm.kube.informer import Informer
from ccm.kube.resources import NODES, PODS
from ccm.machines import drain
from ccm.machines.ages import Ages
from ccm.machines.caches import Caches
from ccm.machines.drain import DrainTask
from ccm.model import Node, Pod, names
from ccm.model.patches import Patch
from ccm.runtime.controller import until_synced
from ccm.runtime.lazy import following
from ccm.runtime.writer import Step, Writer

LOOKS = 2
"""The second finds Pods that were on their way to the node when it was cordoned."""

TROUBLE_S = 5.0
"""Pause after an API server in trouble; that is nothing a Pod's patience is used up by."""

RACED_S = 0.2
"""Pause after a conflict."""

FORCE_S = 60.0
"""Longest time that force takes (reference)."""

FORCED_AT_ONCE = 16
"""Pods that are deleted by force at the same time."""

BUDGET = "DisruptionBudget"
"""Cause by which the server says that a budget refuses an eviction."""

_NEVER_S = 3600.0
_log = log.logger("machine")


class Failed(Exception):
    """The drain gave up; the text follows the words `Drain failed due to `."""


class Answer(Enum):
    """What became of an eviction."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """By a budget."""
    TROUBLE = "trouble"
    RACED = "raced"
    """By chance: others changed Pod or budget in that moment."""


PAUSES_S = {Answer.TROUBLE: TROUBLE_S, Answer.RACED: RACED_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all drains share.

    Attributes:
        caches: the nodes, and the time.
        client: requests to the cluster of the nodes.
        settings: of flags.
        budgets: who waits for them.
        attachments: where volumes are.
        evicts: whether the API server knows evictions.
    """

    caches: Caches
    client: Client
    settings: drain.Settings
    budgets: Budgets
    attachments: Attachments
    evicts: Callable[[], Awaitable[bool]]


class Evictions:
    """The drain of one node.

    Args:
        task: what is to be done.
        tools: what all drains share.
        changed: told that the tally is another.
    """

    def __init__(self, task: DrainTask, tools: Tools, changed: Callable[[], None]) -> None:
        self.tally = drain.Tally(forced=task.force)
        self._task = task
        self._tools = tools
        self._changed = changed
        self._pods = self._informer()
        self._ages = Ages(tools.client.server_time)
        self._ends: dict[str, asyncio.Event] = {}
        self._news = asyncio.Event()
        self._until_s = self._deadline_s()
        self._interval_s = drain.retry_s(self._left_s())
        self._is_empty = False
        self._budgets: AsyncExitStack | None = None

    def force(self) -> None:
        """Use force from now on."""
        self.tally.forced = True
        self._news.set()

    def look_at_node(self) -> None:
        """Its conditions may be others: force may be due at another time."""
        self._news.set()

    async def run(self) -> None:
        """Return once nothing is left on the node that a drain removes.

        Raises:
            Failed: it does not go on.
        """
        async with following(self._pods), AsyncExitStack() as self._budgets:
            await self._mark()
            await until_synced(self._pods, who="machine")
            # Asked first: where force is due already, nobody is evicted.
            if not (self.tally.forced or await self._is_due()):
                await first_of(self._gracefully(), self._force_is_due(), name="drain")
            if not self._is_empty:
                await self._by_force()

    # --- the node ---------------------------------------------------------------------------

    async def _mark(self) -> None:
        """Say on the node that it goes, and keep Pods from coming."""
        if (node := self._node()) is None:
            return
        write = Writer(self._tools.client.resource(NODES))

        def going(one: Node) -> Patch | None:
            return drain.condition_patch(one, names.CONDITION_TERMINATING, clock.now())

        try:
            if self._task.terminating:
                await write.change(node, Step(going, "status"))
        except KubeError as error:
            if not self.tally.forced:
                raise Failed(f"failure in update of node conditions - {error}") from error
        try:
            if self._task.cordon:
                await write.change(node, Step(drain.cordon_patch))
        except KubeError as error:
            raise Failed(f"- {error}") from error

    def _node(self) -> Node | None:
        return self._tools.caches.nodes.store.get(self._task.node_name)

    def _deadline_s(self) -> float | None:
        """From when on force is used, on a clock that nobody sets; None = never."""
        task = self._task
        if task.deadline is None:
            return None
        left_s = task.left_s
        if left_s is None:
            left_s = (task.deadline - self._tools.caches.now()).total_seconds()
        return clock.monotonic() + left_s

    def _left_s(self) -> float | None:
        return None if self._until_s is None else self._until_s - clock.monotonic()

    async def _force_is_due(self) -> None:
        while not self.tally.forced:
            self._news.clear()
            if await self._is_due():
                return
            left_s = self._due_s(self._node())
            await tasks.wait_for(self._news, left_s if left_s > 0 else TROUBLE_S)

    def _due_s(self, node: Node | None) -> float:
        found = [_NEVER_S]
        if (left_s := self._left_s()) is not None:
            found.append(left_s)
        if (since := drain.sick_since(node)) is not None:
            # By the server of the node, which nobody's clock here agrees with.
            sick_s = self._ages.since(self._task.machine.uid, since)
            found.append(drain.SICK_S - sick_s)
        return min(found)

    async def _is_due(self) -> bool:
        """Whether force is, by what the API server says now too: the cache may be of before."""
        if self._due_s(self._node()) > 0:
            return False
        node: Node | None = None
        try:
            node = await self._tools.client.resource(NODES).get(self._task.node_name)
        except NotFound:
            pass
        except KubeError as error:
            _log.debug("node is not read", node=self._task.node_name, error=str(error))
        return self._due_s(node) <= 0

    # --- with regard for everybody ------------------------------------------------------------

    async def _gracefully(self) -> None:
        for _ in range(LOOKS):
            pods = self._pods.store.list()
            order = drain.order(pods)
            if not order.count:
                break
            self.tally.total += sum(one.uid not in self._ends for one in drain.removable(pods))
            claims = drain.exclusive_claims(pods)
            try:
                async with Group() as group:
                    for pod in order.parallel:
                        group.start(self._leave(pod), name=f"drain-{pod.key}")
                    group.start(self._one_by_one(order.serial, claims), name="drain-serial")
            except ExceptionGroup as errors:
                # The others need not be told: what was evicted goes, and the rest comes again.
                raise next(leaves(errors)) from errors
            if self.tally.overdue:
                late = ", ".join(sorted(self.tally.overdue))
                raise Failed(f"- Pods that were evicted have not ended in time: {late}")
        self._is_empty = True

    async def _leave(self, pod: Pod) -> None:
        """A Pod that nobody waits for but itself."""
        spent_s = 0.0
        patience_s = self._tools.settings.patience_s(self._task.max_evict_retries)
        while (answer := await self._evict(pod)) is not Answer.ACCEPTED:
            if spent_s >= patience_s:
                await self._delete(pod, 0)
                break
            spent_s += await self._wait([pod], answer, patience_s - spent_s)
        await self._ended(pod)

    async def _one_by_one(self, pods: Sequence[Pod], claims: Mapping[str, tuple[str, ...]]) -> None:
        spent_s = 0.0
        patience_s = self._tools.settings.patience_s(self._task.max_evict_retries)
        left = list(pods)
        while left:
            refused, answer = [], Answer.ACCEPTED
            for pod in left:
                mounted = await self._tools.attachments.of(pod, claims[pod.uid])
                if (found := await self._evict(pod)) is not Answer.ACCEPTED:
                    if spent_s < patience_s:
                        refused.append(pod)
                        answer = found
                        continue
                    await self._delete(pod, 0)
                await self._moved(pod, mounted)
            left = refused
            if left:
                spent_s += await self._wait(left, answer, patience_s - spent_s)

    async def _wait(self, pods: Sequence[Pod], answer: Answer, left_s: float) -> float:
        """Until one of them should be tried again; how much patience that took."""
        trouble = answer is not Answer.REFUSED
        pause_s = PAUSES_S[answer] if trouble else min(self._interval_s, left_s)
        began = clock.monotonic()
        budgets = self._tools.budgets
        if (stack := self._budgets) is not None:
            # Watched from the first refusal to the end, and not anew for each.
            self._budgets = None
            await stack.enter_async_context(budgets.use())
        try:
            await first_of(*(budgets.wait(one, pause_s) for one in pods), name="budgets")
        except Refused as error:
            raise Failed(f"- {error}") from error
        return 0.0 if trouble else clock.monotonic() - began

    async def _evict(self, pod: Pod) -> Answer:
        """Ask once for a Pod to go."""
        if pod.is_deleting or self._is_gone(pod):
            return self._goes(pod)
        resource = self._tools.client.resource(PODS)
        try:
            if await self._tools.evicts():
                await resource.evict(pod.name, namespace=pod.namespace, uid=pod.uid)
            else:
                await resource.delete(pod.name, namespace=pod.namespace, uid=pod.uid)
        except NotFound:
            pass
        except Conflict as error:
            # Pod or budget changed in that moment; what another Pod has the name of is gone soon.
            self._note(pod, f"could not be evicted: {error}")
            return Answer.RACED
        except TooManyRequests as error:
            if not error.has_cause(BUDGET):
                return self._hindered(pod, error)
            why = next((one.message for one in error.causes), error.message)
            self._note(pod, f"waits for its disruption budget: {why}")
            return Answer.REFUSED
        except (Unreachable, ServerError) as error:
            return self._hindered(pod, error)
        except ApiError as error:
            raise Failed(f"- Pod {pod.key} cannot be evicted: {error}") from error
        return self._goes(pod)

    def _goes(self, pod: Pod) -> Answer:
        self.tally.evicted.add(pod.key)
        self.tally.blocked.pop(pod.key, None)
        self._changed()
        return Answer.ACCEPTED

    def _hindered(self, pod: Pod, error: KubeError) -> Answer:
        self._note(pod, f"could not be evicted: {error}")
        return Answer.TROUBLE

    def _note(self, pod: Pod, why: str) -> None:
        self.tally.blocked[pod.key] = why
        self._changed()

    # --- their end ----------------------------------------------------------------------------

    async def _ended(self, pod: Pod) -> None:
        """Wait for a Pod to be gone; not for ever."""
        if not self._is_gone(pod):
            end = self._ends.setdefault(pod.uid, asyncio.Event())
            if not await tasks.wait_for(end, drain.end_limit_s(pod, self._left_s())):
                self.tally.overdue.add(pod.key)
                self._changed()
                return
        self._ends.setdefault(pod.uid, asyncio.Event()).set()
        self.tally.ended.add(pod.key)
        self._changed()

    async def _moved(self, pod: Pod, mounted: Mounted) -> None:
        """Wait for a Pod's end, and for its volumes to be where it is next; not for ever."""
        settings, node_name = self._tools.settings, self._task.node_name
        until = clock.monotonic() + pod.grace_s + settings.detach_timeout_s
        await self._ended(pod)
        if not mounted:
            return
        attachments, listed = self._tools.attachments, ", ".join(mounted.volumes)
        left_s = until - clock.monotonic()
        self._waits(pod, f"waits for {listed} to be detached")
        if await _in_time(left_s, attachments.detached(mounted, node_name)):
            # What nobody makes anew is attached nowhere. The reference waits for it too.
            if pod.controller:
                self._waits(pod, f"waits for {listed} to be attached to another node")
                limit_s = settings.reattach_timeout_s
                await _in_time(limit_s, attachments.reattached(mounted, node_name))
        else:
            _log.warning("volumes are still attached, the drain goes on", pod=pod.key)
        self.tally.volumes.pop(pod.key, None)
        self._changed()

    def _waits(self, pod: Pod, what: str) -> None:
        self.tally.volumes[pod.key] = what
        self._changed()

    def _is_gone(self, pod: Pod) -> bool:
        found = self._pods.store.get(pod.key)
        return found is None or found.uid != pod.uid

    # --- by force -----------------------------------------------------------------------------

    async def _by_force(self) -> None:
        pods = drain.removable(self._pods.store.list())
        self.tally = drain.Tally(forced=True, total=len(pods))
        self._changed()

        async def work(pod: Pod) -> None:
            await self._delete(pod, 0)
            self.tally.ended.add(pod.key)
            self._goes(pod)

        try:
            async with asyncio.timeout(FORCE_S):
                await bounded(pods, work, limit=FORCED_AT_ONCE, name="force")
        except TimeoutError:
            raise Failed(f"- Pods could not be deleted in {FORCE_S:g} s") from None
        except ExceptionGroup as errors:
            raise next(leaves(errors)) from errors
        self._is_empty = True

    async def _delete(self, pod: Pod, grace_s: int) -> None:
        resource = self._tools.client.resource(PODS)
        while True:
            try:
                await resource.delete(
                    pod.name, namespace=pod.namespace, uid=pod.uid, grace_period_s=grace_s
                )
            except NotFound:
                return
            except Conflict:
                if self._is_gone(pod):
                    return
                await asyncio.sleep(RACED_S)
            except (Unreachable, ServerError, TooManyRequests):
                await asyncio.sleep(TROUBLE_S)
            except ApiError as error:
                raise Failed(f"- Pod {pod.key} cannot be deleted: {error}") from error
            else:
                return

    # --- the watch ----------------------------------------------------------------------------

    def _informer(self) -> Informer[Pod]:
        source = self._tools.client.resource(PODS).where(f"spec.nodeName={self._task.node_name}")
        found = Informer(source, resource=PODS.plural)

        def updated(old: Pod, new: Pod) -> None:
            if old.uid != new.uid:
                self._gone(old)

        found.add_handler(name="drain", on_update=updated, on_delete=lambda pod, _: self._gone(pod))
        return found

    def _gone(self, pod: Pod) -> None:
        if (end := self._ends.get(pod.uid)) is not None:
            end.set()


async def _in_time(seconds: float, work: Awaitable[None]) -> bool:
    """Whether it ended in that time."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True

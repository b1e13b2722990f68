"""Drain of one node: sets its condition, cordons it, and evicts its Pods until all are gone.

After the deadline, or if the node stays unhealthy, the drain deletes the remaining Pods by force.
The drain observes the node's Pods by a watch, and polls nothing. It is idempotent: a restarted
drain does not evict a terminating Pod again, but only waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from typing import Any, TypeVar

import msgspec

from ccm.base import clock, log, tasks
from ccm.base.tasks import NamedTaskGroup, first_of, leaf_exceptions, run_bounded
from ccm.cloud.errors import CloudError, Unimplemented
from ccm.cloud.machines import GetVolumeIDsRequest, MachineDriver
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
from ccm.kube.resources import ATTACHMENTS, BUDGETS, CLAIMS, NODE_VOLUMES, NODES, PODS, VOLUMES
from ccm.machines import drain
from ccm.machines.caches import Ages
from ccm.machines.drain import DrainTask
from ccm.machines.driver import DriverClient, SharedComponents
from ccm.model import Node, Pod, PodDisruptionBudget
from ccm.model.meta import KubeObject
from ccm.runtime.controller import wait_for_sync
from ccm.runtime.lazy import RefCountedInformer, running_informer
from ccm.runtime.writer import ObjectWriter, PatchStep

PASSES = 2
"""Number of passes over the Pods. The second pass finds Pods that were bound to the node before it
was cordoned."""

TROUBLE_S = 5.0
"""Retry delay in seconds after an API error (Gardener's MCM, retry of a failed drain). The delay
does not count against the eviction retries, because no budget refused the eviction."""

RACED_S = 0.2
"""Retry delay in seconds after a conflict (Gardener's MCM)."""

FORCE_S = 60.0
"""Maximum duration of the forced part of a drain, in seconds (Gardener's MCM)."""

FORCED_AT_ONCE = 16
"""Maximum number of Pods that are deleted concurrently by force."""

BUDGET = "DisruptionBudget"
"""Cause in the API server's error response if a disruption budget refuses an eviction."""

_NEVER_S = 3600.0
"""Longest wait in seconds until a drain checks again whether force is due; changes end the wait
earlier."""


class DrainFailed(Exception):
    """The drain failed. The message completes a text that begins with `Drain failed due to `."""


class EvictionResult(Enum):
    """Result of an eviction."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """A budget refused the eviction."""
    API_ERROR = "API error"
    CONFLICT = "conflict"
    """The Pod or its budget changed concurrently."""


PAUSES_S = {EvictionResult.API_ERROR: TROUBLE_S, EvictionResult.CONFLICT: RACED_S}


class DrainDependencies:
    """Objects that all drains share.

    Args:
        shared: components of all machine controllers.
        settings: settings from flags.
    """

    def __init__(self, shared: SharedComponents, settings: drain.DrainSettings) -> None:
        self.caches, self.client = shared.caches, shared.caches.target.client
        self.component = self.caches.codec.controller_name("machine")
        self.log = log.logger(self.component)
        self.settings = settings
        self.budgets = Budgets(self.client)
        self.attachments = Attachments(shared.driver, self.client, self.log)
        self._knows_evictions: bool | None = None
        self._asking = asyncio.Lock()
        """Held during discovery: one request serves all drains that start together."""

    async def supports_eviction(self) -> bool:
        """Return whether the API server supports evictions; the result is cached."""
        async with self._asking:
            if self._knows_evictions is None:
                discovery = msgspec.json.decode(await self.client.raw("GET", "/api/v1"))
                known = {resource.get("name") for resource in discovery.get("resources", ())}
                self._knows_evictions = f"{PODS.plural}/eviction" in known
        return self._knows_evictions


class NodeDrain:
    """Drain of one node.

    Args:
        task: the task.
        tools: objects that all drains share.
        changed: called when the counters change.
    """

    def __init__(
        self, task: DrainTask, tools: DrainDependencies, changed: Callable[[], None]
    ) -> None:
        self.tally = drain.DrainCounters(forced=task.force)
        self._task = task
        self._tools = tools
        self._max_refusal_s = tools.settings.max_refusal_s(task.max_evict_retries)
        self._changed = changed
        source = tools.client.resource(PODS).where(f"spec.nodeName={task.node_name}")
        self._pods = Informer(source, resource=PODS.plural)
        self._pods.add_handler(
            name="drain",
            on_update=lambda old, new: self._gone(old) if old.uid != new.uid else None,
            on_delete=lambda pod, _: self._gone(pod),
        )
        self._ages = Ages(tools.client.server_time)
        self._ends: dict[str, asyncio.Event] = {}
        self._changed_event = asyncio.Event()
        self._until_s: float | None = None
        """Monotonic deadline of the graceful drain."""
        if task.deadline is not None:
            left_s = task.left_s
            if left_s is None:
                left_s = (task.deadline - tools.caches.now()).total_seconds()
            self._until_s = clock.monotonic() + left_s
        self._interval_s = drain.retry_s(self._left_s())
        self._is_empty = False
        self._budgets: AsyncExitStack | None = None

    def force(self) -> None:
        """Use force from now on."""
        self.tally.forced = True
        self._changed_event.set()

    def check_node(self) -> None:
        """Check again whether force is due, because the conditions of the node changed."""
        self._changed_event.set()

    async def run(self) -> None:
        """Drain the node; return once no Pod that the drain has to remove is left.

        Raises:
            DrainFailed: the drain failed.
        """
        async with running_informer(self._pods), AsyncExitStack() as self._budgets:
            await self._mark()
            listed = wait_for_sync(self._pods, component=self._tools.component)
            await first_of(listed, self._give_up(), name="pods")
            self.tally.listed = True
            # If force is due from the beginning, no Pod is evicted.
            if not (self.tally.forced or await self._is_due()):
                await first_of(self._drain_gracefully(), self._force_is_due(), name="drain")
            if not self._is_empty:
                await self._drain_by_force()

    # --- the node ---------------------------------------------------------------------------

    async def _mark(self) -> None:
        """Set the Terminating condition of the node, and cordon the node, as the task says."""
        if (node := self._node()) is None:
            return
        write = ObjectWriter(self._tools.client.resource(NODES))
        try:
            if self._task.terminating:
                await write.change(
                    node, PatchStep(lambda obj: drain.condition_patch(obj, clock.now()), "status")
                )
        except KubeError as error:
            if not self.tally.forced:
                raise DrainFailed(f"failure in update of node conditions - {error}") from error
        try:
            if self._task.cordon:
                await write.change(node, PatchStep(drain.cordon_patch))
        except KubeError as error:
            raise DrainFailed(f"- {error}") from error

    def _node(self) -> Node | None:
        return self._tools.caches.nodes.store.get(self._task.node_name)

    def _left_s(self) -> float | None:
        return None if self._until_s is None else self._until_s - clock.monotonic()

    async def _give_up(self) -> None:
        """Raise DrainFailed if Pods are not listed `FORCE_S` after force is due."""
        await self._force_is_due()
        await asyncio.sleep(FORCE_S)
        self.tally.forced = True
        raise DrainFailed(f"- Pods of node {self._task.node_name} cannot be listed, see the log")

    async def _force_is_due(self) -> None:
        while not self.tally.forced:
            self._changed_event.clear()
            if await self._is_due():
                return
            left_s = self._due_s(self._node())
            await tasks.wait_for(self._changed_event, left_s if left_s > 0 else TROUBLE_S)

    def _due_s(self, node: Node | None) -> float:
        delays = [_NEVER_S]
        if (left_s := self._left_s()) is not None:
            delays.append(left_s)
        if (since := drain.unhealthy_since(node)) is not None:
            # The target cluster set the timestamp, so the clock of its API server is used.
            unhealthy_s = self._ages.since(self._task.machine.uid, since)
            delays.append(drain.UNHEALTHY_FORCE_S - unhealthy_s)
        return min(delays)

    async def _is_due(self) -> bool:
        """Return whether force is due, according to both the cached node and a live read."""
        if self._due_s(self._node()) > 0:
            return False
        node: Node | None = None
        try:
            node = await self._tools.client.resource(NODES).get(self._task.node_name)
        except NotFound:
            pass
        except KubeError as error:
            self._tools.log.debug("node read failed", node=self._task.node_name, error=str(error))
        return self._due_s(node) <= 0

    # --- evictions ----------------------------------------------------------------------------

    async def _drain_gracefully(self) -> None:
        for _ in range(PASSES):
            pods = self._pods.store.list()
            parallel, serial = drain.split_pods(pods)
            if not (parallel or serial):
                break
            self.tally.total += sum(pod.uid not in self._ends for pod in drain.removable(pods))
            claims = drain.exclusive_claims(pods)
            try:
                async with NamedTaskGroup() as group:
                    for pod in parallel:
                        group.start(self._evict_and_wait(pod), name=f"drain-{pod.key}")
                    group.start(self._evict_serially(serial, claims), name="drain-serial")
            except ExceptionGroup as errors:
                # The first error suffices: evicted Pods terminate, and the next drain handles the
                # other Pods.
                raise next(leaf_exceptions(errors)) from errors
            if self.tally.overdue:
                late = ", ".join(sorted(self.tally.overdue))
                raise DrainFailed(f"- Pods that were evicted have not ended in time: {late}")
        self._is_empty = True

    async def _evict_and_wait(self, pod: Pod) -> None:
        """Evict a Pod without claims, and wait until it is gone."""
        spent_s = 0.0
        while (answer := await self._evict(pod)) is not EvictionResult.ACCEPTED:
            if spent_s >= self._max_refusal_s:
                await self._delete(pod, 0)
                break
            spent_s += await self._wait_for_retry([pod], answer, self._max_refusal_s - spent_s)
        await self._ended(pod)

    async def _evict_serially(
        self, pods: Sequence[Pod], claims: Mapping[str, tuple[str, ...]]
    ) -> None:
        spent_s = 0.0
        left = list(pods)
        while left:
            refused, answer = [], EvictionResult.ACCEPTED
            for pod in left:
                mounted = await self._tools.attachments.volumes_of(pod, claims[pod.uid])
                if (attempt := await self._evict(pod)) is not EvictionResult.ACCEPTED:
                    if spent_s < self._max_refusal_s:
                        refused.append(pod)
                        answer = attempt
                        continue
                    await self._delete(pod, 0)
                await self._moved(pod, mounted)
            left = refused
            if left:
                spent_s += await self._wait_for_retry(left, answer, self._max_refusal_s - spent_s)

    async def _wait_for_retry(
        self, pods: Sequence[Pod], answer: EvictionResult, left_s: float
    ) -> float:
        """Wait until the eviction of one of these Pods should be retried.

        Returns:
            Seconds of this wait that count towards the limit of refusals by budgets
            (`_max_refusal_s`); 0 if `answer` is another failure than a refusal.
        """
        trouble = answer is not EvictionResult.REFUSED
        pause_s = PAUSES_S[answer] if trouble else min(self._interval_s, left_s)
        began = clock.monotonic()
        budgets = self._tools.budgets
        if (stack := self._budgets) is not None:
            # Start the watch of budgets at the first refusal, and keep it until the drain ends.
            self._budgets = None
            await stack.enter_async_context(budgets.watching())
        await first_of(*(budgets.wait(pod, pause_s) for pod in pods), name="budgets")
        return 0.0 if trouble else clock.monotonic() - began

    async def _evict(self, pod: Pod) -> EvictionResult:
        """Evict a Pod once, or delete it if the API server does not support evictions."""
        if pod.is_deleting or self._is_gone(pod):
            return self._record_evicted(pod)
        resource = self._tools.client.resource(PODS)
        try:
            if await self._tools.supports_eviction():
                await resource.evict(pod.name, namespace=pod.namespace, uid=pod.uid)
            else:
                await resource.delete(pod.name, namespace=pod.namespace, uid=pod.uid)
        except NotFound:
            pass
        except Conflict as error:
            # Pod or budget changed concurrently. If a new Pod has the name, the cache will soon
            # show that this Pod is gone.
            self._record_blocked(pod, f"could not be evicted: {error}")
            return EvictionResult.CONFLICT
        except (TooManyRequests, Unreachable, ServerError) as error:
            if not (isinstance(error, TooManyRequests) and error.has_cause(BUDGET)):
                self._record_blocked(pod, f"could not be evicted: {error}")
                return EvictionResult.API_ERROR
            why = next((cause.message for cause in error.causes), error.message)
            self._record_blocked(pod, f"waits for its disruption budget: {why}")
            return EvictionResult.REFUSED
        except ApiError as error:
            raise DrainFailed(f"- Pod {pod.key} cannot be evicted: {error}") from error
        return self._record_evicted(pod)

    def _record_evicted(self, pod: Pod) -> EvictionResult:
        self.tally.evicted.add(pod.key)
        self.tally.blocked.pop(pod.key, None)
        self._changed()
        return EvictionResult.ACCEPTED

    def _record_blocked(self, pod: Pod, why: str) -> None:
        self.tally.blocked[pod.key] = why
        self._changed()

    # --- end of Pods --------------------------------------------------------------------------

    async def _ended(self, pod: Pod) -> None:
        """Wait until a Pod is gone; after its time limit, record it as overdue."""
        if not self._is_gone(pod):
            end = self._ends.setdefault(pod.uid, asyncio.Event())
            if not await tasks.wait_for(end, drain.end_limit_s(pod, self._left_s())):
                self.tally.overdue.add(pod.key)
                self._changed()
                return
        self._ends.setdefault(pod.uid, asyncio.Event()).set()
        self.tally.ended.add(pod.key)
        self._changed()

    async def _moved(self, pod: Pod, mounted: PodVolumes) -> None:
        """Wait until a Pod is gone and its volumes are attached to another node, within limits."""
        settings, node_name = self._tools.settings, self._task.node_name
        until = clock.monotonic() + pod.grace_s + settings.detach_timeout_s
        await self._ended(pod)
        volumes, ids = mounted
        if not ids:
            return
        attachments, listed = self._tools.attachments, ", ".join(volumes)
        left_s = until - clock.monotonic()
        self._record_volume_wait(pod, f"waits for {listed} to be detached")
        if await _ends_within(left_s, attachments.wait_detached(ids, node_name)):
            # A Pod without a controller is not recreated, so its volumes will not be attached to
            # another node. Gardener's MCM waits nevertheless.
            if pod.controller:
                self._record_volume_wait(pod, f"waits for {listed} to be attached to another node")
                limit_s = settings.reattach_timeout_s
                await _ends_within(limit_s, attachments.wait_reattached(volumes, node_name))
        else:
            self._tools.log.warning("volume detach timed out, drain continues", pod=pod.key)
        self.tally.volumes.pop(pod.key, None)
        self._changed()

    def _record_volume_wait(self, pod: Pod, reason: str) -> None:
        self.tally.volumes[pod.key] = reason
        self._changed()

    def _is_gone(self, pod: Pod) -> bool:
        cached = self._pods.store.get(pod.key)
        return cached is None or cached.uid != pod.uid

    # --- by force -----------------------------------------------------------------------------

    async def _drain_by_force(self) -> None:
        pods = drain.removable(self._pods.store.list())
        self.tally = drain.DrainCounters(forced=True, listed=True, total=len(pods))
        self._changed()

        async def work(pod: Pod) -> None:
            await self._delete(pod, 0)
            self.tally.ended.add(pod.key)
            self._record_evicted(pod)

        try:
            async with asyncio.timeout(FORCE_S):
                await run_bounded(pods, work, limit=FORCED_AT_ONCE, name="force")
        except TimeoutError:
            raise DrainFailed(f"- Pods could not be deleted in {FORCE_S:g} s") from None
        except ExceptionGroup as errors:
            raise next(leaf_exceptions(errors)) from errors
        self._is_empty = True

    async def _delete(self, pod: Pod, grace_s: int) -> None:
        resource = self._tools.client.resource(PODS)
        # Retried without a limit: FORCE_S limits the forced drain, and the start of the forced
        # drain ends the graceful drain.
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
                raise DrainFailed(f"- Pod {pod.key} cannot be deleted: {error}") from error
            else:
                return

    def _gone(self, pod: Pod) -> None:
        if (end := self._ends.get(pod.uid)) is not None:
            end.set()


async def _ends_within(seconds: float, work: Awaitable[None]) -> bool:
    """Return whether `work` ended within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


# --- budgets and volumes --------------------------------------------------------------------------

LOOKUP_TRIES = 3
LOOKUP_RETRY_S = 5.0
"""Number of attempts to read a claim or volume, and seconds between them (Gardener's MCM)."""

T = TypeVar("T", bound=KubeObject)


PodVolumes = tuple[tuple[str, ...], tuple[str, ...]]
"""Volumes to wait for: names of the PersistentVolumes, and their IDs in the status of nodes."""


class Attachments:
    """Finds the volumes of Pods, and waits until they are detached, or attached to other nodes.

    Args:
        driver: client of the driver.
        client: client of the cluster that machines join.
        logger: the controller's logger.
    """

    def __init__(self, driver: DriverClient, client: Client, logger: log.Logger) -> None:
        self._log = logger
        self._driver = driver
        self._client = client
        self._elsewhere = RefCountedInformer(
            lambda: Informer(client.resource(ATTACHMENTS), resource=ATTACHMENTS.plural)
        )

    async def volumes_of(self, pod: Pod, claims: Iterable[str]) -> PodVolumes:
        """Return the volumes of a Pod's claims, except volumes that the driver does not know."""
        volumes: list[str] = []
        ids: list[str] = []
        for claim in claims:
            name, spec = await self._volume(pod, claim)
            volume_ids = await self._ids(spec) if spec else ()
            if volume_ids:
                volumes.append(name)
                ids.extend(volume_ids)
        return tuple(volumes), tuple(ids)

    async def wait_detached(self, ids: Sequence[str], node_name: str) -> None:
        """Wait until the node is gone, or reports none of the volumes (by ID) as attached."""
        source = self._client.resource(NODE_VOLUMES).where(f"metadata.name={node_name}")
        async with running_informer(Informer(source, resource=NODE_VOLUMES.plural)) as nodes:

            def are_gone() -> bool:
                node = nodes.store.get(node_name)
                return node is None or not drain.still_attached(ids, node.attached)

            await _wait_until(nodes, are_gone)

    async def wait_reattached(self, volumes: Sequence[str], node_name: str) -> None:
        """Wait until each volume (by name) is attached to another node than `node_name`."""
        async with self._elsewhere.use() as attachments:
            await _wait_until(
                attachments,
                lambda: not drain.not_reattached(volumes, attachments.store.list(), node_name),
            )

    async def _volume(self, pod: Pod, claim: str) -> tuple[str, dict[str, Any]]:
        """Return name and spec of a claim's PersistentVolume; empty = none, or not readable."""
        for attempt in range(1, LOOKUP_TRIES + 1):
            try:
                bound = await self._client.resource(CLAIMS).get(claim, namespace=pod.namespace)
                if not bound.spec.volume_name:
                    return "", {}
                volume = await self._client.resource(VOLUMES).get(bound.spec.volume_name)
            except NotFound:
                return "", {}
            except KubeError as error:
                if attempt == LOOKUP_TRIES:
                    self._log.warning(
                        "volume read failed, wait skipped", pod=pod.key, error=str(error)
                    )
                await asyncio.sleep(LOOKUP_RETRY_S)
            else:
                return volume.name, volume.spec
        return "", {}

    async def _ids(self, spec: dict[str, Any]) -> Sequence[str]:
        request = GetVolumeIDsRequest(pv_specs=(spec,))
        try:
            return await self._driver.call(MachineDriver.get_volume_ids, request)
        except Unimplemented:
            pass
        except CloudError as error:
            self._log.warning("volume IDs unknown, wait skipped", error=str(error))
        return ()


async def _wait_until(informer: Informer[T], holds: Callable[[], bool]) -> None:
    """Wait until the cache has synced and `holds` returns True."""
    changed = asyncio.Event()

    def note(*_: object) -> None:
        changed.set()

    handler = informer.add_handler(name="drain", on_add=note, on_update=note, on_delete=note)
    try:
        # Wait without a limit: the callers set a limit (`_ends_within`).
        while not informer.has_synced:
            with suppress(TimeoutError):
                await informer.wait_synced(60.0)
        while not holds():
            changed.clear()
            await changed.wait()
    finally:
        informer.remove_handler(handler)


# --- budgets ------------------------------------------------------------------------------

SYNC_S = 10.0
"""Maximum seconds to wait for the cache of budgets; after that, the eviction is retried without the
cache."""

STALE_S = 1.0
"""Retry delay in seconds if the cached budget allows the eviction: the cache may be stale."""


CONFIRM_S = 2.0
"""Seconds for which a budget has to look misconfigured before the drain fails. A correct budget may
look so for a moment, when a Pod is gone and its replacement does not exist yet."""


class Budgets:
    """Cache of disruption budgets, and the Pods whose evictions they refused.

    Each eviction uses up one allowed disruption of a budget, until the disruption controller has
    updated the budget. So a change of a budget wakes only as many waiting Pods as the budget
    allows disruptions, in the order in which their evictions were refused.

    Args:
        client: client of the cluster that machines join.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cache = RefCountedInformer(self._made)
        self._waiting: dict[str, tuple[Pod, asyncio.Event]] = {}

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch budgets while the `async with` block runs; `wait` calls share the watch."""
        async with self._cache.use():
            yield

    async def wait(self, pod: Pod, seconds: float) -> None:
        """Wait, for at most `seconds`, until the refused eviction of a Pod should be retried.

        Raises:
            DrainFailed: the eviction can never succeed.
        """
        async with self._cache.use() as budgets:
            with suppress(TimeoutError):
                await budgets.wait_synced(SYNC_S)
            own = drain.budgets_of(pod, budgets.store.list())
            why = drain.eviction_fault(pod, own)
            if any(budget.status.disruptions_allowed > 0 for budget in own):
                seconds = min(seconds, STALE_S)
            event = asyncio.Event()
            self._waiting[pod.uid] = pod, event
            try:
                is_freed = await tasks.wait_for(event, CONFIRM_S if why else seconds)
            finally:
                del self._waiting[pod.uid]
            if why and not is_freed:
                own = drain.budgets_of(pod, budgets.store.list())
                if why := drain.eviction_fault(pod, own):
                    raise DrainFailed(f"- {why}")

    def _made(self) -> Informer[PodDisruptionBudget]:
        budgets = Informer(self._client.resource(BUDGETS), resource=BUDGETS.plural)
        budgets.add_handler(
            name="drain",
            on_update=lambda _, new: self._wake(new, new.status.disruptions_allowed),
            on_delete=lambda gone, _: self._wake(gone, len(self._waiting)),
        )
        return budgets

    def _wake(self, budget: PodDisruptionBudget, count: int) -> None:
        for pod, event in self._waiting.values():
            if count <= 0:
                return
            if budget.covers(pod):
                event.set()
                count -= 1

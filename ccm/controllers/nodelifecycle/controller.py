"""Carries out what `plan` decides: watches nodes that are not ready, asks, acts.

Every `period_s` each suspect (a node that is not ready, or one that still carries the
shutdown taint) is queued; a change of readiness queues it at once. Workers take them one
by one, so a slow answer about one node holds up no other. An error of the cloud keeps the
node and delays the next question about it.

Two rules can be set that hold a node although its instance is gone: a least age, and a
brake on how many are deleted in a while, for the day when the cloud denies all of them.

Deleting takes two answers: after the first "gone" the cloud is asked again, never from a
cache or listing, the node is judged as it is cached by then, and the DELETE carries its UID.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ccm.base import log
from ccm.base.backoff import Exponential
from ccm.base.clock import SYSTEM, Clock
from ccm.base.tasks import Group
from ccm.cloud.errors import CloudError
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.types import InstanceState
from ccm.controllers.nodelifecycle import metrics, plan
from ccm.kube.errors import Conflict, KubeError, Missing
from ccm.kube.informer import Informer
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node, names
from ccm.model.times import parse_time
from ccm.runtime.loop import DONE, Loop, Result
from ccm.runtime.passes import Passes
from ccm.runtime.pauses import Pauses
from ccm.runtime.recorder import Recorder
from ccm.runtime.requests import Deletes
from ccm.runtime.retry import again
from ccm.runtime.sync import until_synced
from ccm.runtime.window import Window

QUEUE_NAME = "NodeLifecycle"
"""Value of the work-queue metrics' label."""

TAINT_ATTEMPTS = 5
"""Attempts of a taint patch on conflict (Go cloud-provider, taint helpers)."""

ERROR_BACK_OFF_CAP_S = 300.0
"""Longest pause before the cloud is asked again about a node it gave an error for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hard the controller works.

    Attributes:
        workers: nodes looked at at once.
        period_s: seconds between two passes over the suspects.
        protection: what forbids deleting nodes.
    """

    workers: int = 1
    period_s: float = 5.0
    protection: plan.Protection = plan.NO_PROTECTION


class NodeLifecycleController:
    """The cloud node lifecycle controller.

    Args:
        nodes: the shared cache of nodes.
        api: requests in this controller's name.
        lookup: questions to the cloud.
        schemes: provider-ID schemes of our cloud.
        events: where events go.
        settings: number of workers and period.
        clock: where time comes from.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: Deletes[Node],
        lookup: InstanceLookup,
        schemes: tuple[str, ...],
        events: Recorder,
        settings: Settings,
        clock: Clock = SYSTEM,
    ) -> None:
        self._nodes = nodes
        self._api = api
        self._lookup = lookup
        self._schemes = schemes
        self._events = events
        self._settings = settings
        self._clock = clock
        self._log = log.logger(names.COMPONENT_NODE_LIFECYCLE)
        self._suspects: set[str] = set()
        self._pauses: Pauses[str] = Pauses(
            Exponential(base_s=settings.period_s, cap_s=ERROR_BACK_OFF_CAP_S), random.Random()
        )
        self._troubled = False
        self._deletions = Window(plan.BRAKE_WINDOW_S)
        self._held: dict[str, plan.Reason] = {}
        self._pass = Passes(metrics.PASS_DURATION.observe, clock)
        self._queue: WorkQueue[str] = WorkQueue(QUEUE_NAME, clock=clock)

    async def run(self) -> None:
        """Work until cancelled."""
        self._nodes.add_handler(
            name=names.COMPONENT_NODE_LIFECYCLE,
            on_add=self._added,
            on_update=self._updated,
            on_delete=self._deleted,
        )
        await until_synced(self._nodes, who=names.COMPONENT_NODE_LIFECYCLE)
        loop = Loop(
            names.COMPONENT_NODE_LIFECYCLE,
            queue=self._queue,
            reconcile=self.monitor_node,
            workers=self._settings.workers,
            clock=self._clock,
        )
        async with Group() as group:
            group.start(loop.run(), name="node-lifecycle-loop")
            group.start(self._passes(), name="node-lifecycle-passes")

    async def monitor_node(self, name: str) -> Result:
        """Look at one node and do what follows; errors keep the node and pause it."""
        try:
            await self._monitor(name)
        except (CloudError, KubeError) as error:
            self._pause(name, error)
        else:
            self._resume(name)
        finally:
            self._pass.finished(name)
        return DONE

    async def _monitor(self, name: str) -> None:
        node = self._nodes.store.get(name)
        if node is None or not plan.is_suspect(node, self._schemes):
            return
        if node.ready == names.STATUS_TRUE:
            await self._put_taint(node, None)
            return
        state = await self._lookup.state(node, waiting=len(self._suspects))
        verdict = self._judge(node, state, confirmed_gone=None)
        if verdict.reason is plan.Reason.UNCONFIRMED:
            gone = await self._lookup.confirmed_gone(node)
            verdict = self._judge(node, state, confirmed_gone=gone)
        metrics.DECISIONS.labels(verdict.fate.value, verdict.reason.name.lower()).inc()
        if verdict.fate is plan.Fate.DELETE:
            # Before the request, so that others who are at it now are counted too.
            self._deletions.note(self._clock.monotonic())
            await self._delete(node)
        elif state.exists:
            await self._put_taint(node, state)
        self._note_hold(name, verdict)

    def _note_hold(self, name: str, verdict: plan.Verdict) -> None:
        """Say it when a node is held for a new reason, not in every pass."""
        if verdict.fate is not plan.Fate.HOLD:
            self._held.pop(name, None)
        elif name in self._suspects and self._held.get(name) is not verdict.reason:
            self._held[name] = verdict.reason
            braked = verdict.reason is plan.Reason.BRAKED
            level = self._log.warning if braked else self._log.info
            level("node held", node=name, reason=verdict.reason.value)

    def _judge(
        self, asked: Node, state: InstanceState, *, confirmed_gone: bool | None
    ) -> plan.Verdict:
        forbidden = self._settings.protection.forbids(
            age_s=self._age_s(asked),
            deleted_lately=self._deletions.count(self._clock.monotonic()),
        )
        return plan.judge(
            asked,
            self._nodes.store.get(asked.name),
            state,
            confirmed_gone=confirmed_gone,
            schemes=self._schemes,
            forbidden=forbidden,
        )

    def _age_s(self, node: Node) -> float:
        created = node.metadata.creation_timestamp
        if not created:
            return math.inf
        return (self._clock.now() - parse_time(created)).total_seconds()

    async def _delete(self, node: Node) -> None:
        self._event(
            node,
            names.NORMAL,
            names.REASON_DELETING_NODE,
            f"Deleting node {node.name} because it does not exist in the cloud provider",
        )
        try:
            await self._api.delete(node.name, uid=node.uid)
        except Missing:
            return
        except Conflict:
            # Another object has the name by now; the answer was not about that one.
            self._log.info("node was re-created, not deleted", node=node.name)
            return
        except KubeError as error:
            message = f"Deleting node {node.name} failed: {error}"
            self._event(node, names.WARNING, names.REASON_DELETING_NODE_FAILED, message)
            raise
        self._log.info("node deleted, its instance is gone", node=node.name)

    async def _put_taint(self, node: Node, state: InstanceState | None) -> None:
        """Write the shutdown taint as it should be; on conflict look at the node anew."""
        uid = node.uid
        for attempt in range(1, TAINT_ATTEMPTS + 1):
            patch = plan.taint_patch(node, state)
            if patch is None:
                return
            try:
                await self._api.patch_strategic(node.name, patch)
            except Missing:
                return
            except Conflict:
                if attempt == TAINT_ATTEMPTS:
                    raise
            else:
                self._log.info("shutdown taint changed", node=node.name)
                return
            try:
                node = await self._api.get(node.name)
            except Missing:
                return
            if node.uid != uid:
                return

    # --- passes and pauses ------------------------------------------------------------------

    async def _passes(self) -> None:
        while True:
            now = self._clock.monotonic()
            due = [name for name in self._suspects if not self._pauses.lasts(name, now)]
            self._pass.started(due, joins=False)
            for name in due:
                self._queue.add(name)
            await self._clock.sleep(self._settings.period_s)

    def _pause(self, name: str, error: CloudError | KubeError) -> None:
        node = self._nodes.store.get(name)
        if node is None or not plan.is_suspect(node, self._schemes):
            return  # it became ready or went away while the cloud was asked
        seconds = self._pauses.begin(name, again(error), self._clock.monotonic())
        # Said once at the start and once at the end of a trouble, not once per node and pass.
        level = self._log.debug if self._troubled else self._log.warning
        self._troubled = True
        level("node kept, its state is not known", node=name, error=str(error), after_s=seconds)

    def _resume(self, name: str) -> None:
        self._pauses.recovered(name)
        self._note_end_of_trouble()

    def _forget(self, name: str) -> None:
        self._suspects.discard(name)
        self._held.pop(name, None)
        self._pauses.forget(name)
        self._note_end_of_trouble()

    def _note_end_of_trouble(self) -> None:
        if self._troubled and not self._pauses:
            self._troubled = False
            self._log.info("the state of all nodes is known again")

    # --- cache handlers: they only note and enqueue -----------------------------------------

    def _added(self, node: Node, initial: bool) -> None:  # noqa: ARG002 - handler shape
        self._note(None, node)

    def _updated(self, old: Node, new: Node) -> None:
        self._note(old, new)

    def _deleted(self, node: Node) -> None:
        self._forget(node.name)

    def _note(self, old: Node | None, new: Node) -> None:
        if not plan.is_suspect(new, self._schemes):
            self._forget(new.name)
            return
        self._suspects.add(new.name)
        if plan.changed_state(old, new):
            self._queue.add(new.name)

    def _event(self, node: Node, kind: str, reason: str, message: str) -> None:
        self._events.event(node.reference, kind, reason, message)

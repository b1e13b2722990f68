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
from dataclasses import dataclass

from ccm.base import clock, log
from ccm.base.backoff import Exponential
from ccm.base.outage import Outage
from ccm.cloud.errors import CloudError, ImplementedElsewhere, Internal
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.types import InstanceState
from ccm.controllers.nodelifecycle import metrics, plan
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer
from ccm.model import Node, names
from ccm.model.node import age_s
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import ItemBackoff, RetryDecision
from ccm.runtime.controller import DONE, Controller, Pass, Result, Watch
from ccm.runtime.passtimer import PassTimer
from ccm.runtime.recorder import Recorder
from ccm.runtime.window import SlidingCounter
from ccm.runtime.writer import Deletes, Step, Writer, delete

QUEUE_NAME = "NodeLifecycle"
"""Value of the work-queue metrics' label."""

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
    ) -> None:
        self._nodes = nodes
        self._api = api
        self._lookup = lookup
        self._schemes = schemes
        self._events = events
        self._settings = settings
        self._log = log.logger(names.COMPONENT_NODE_LIFECYCLE)
        self._writer = Writer(api)
        self._suspects: set[str] = set()
        self._deletions = SlidingCounter(plan.BRAKE_WINDOW_S)
        self._held: dict[str, plan.Reason] = {}
        self._timer = PassTimer(metrics.PASS_DURATION.observe)
        self._trouble = Outage(
            self._log,
            begins="node could not be processed, retrying",
            ends="all nodes can be processed again",
        )
        self.controller = Controller(
            names.COMPONENT_NODE_LIFECYCLE,
            queue=QUEUE_NAME,
            reconcile=self.monitor_node,
            workers=settings.workers,
            backoff=ItemBackoff(Exponential(base_s=settings.period_s, cap_s=ERROR_BACK_OFF_CAP_S)),
            watches=[Watch(informer=nodes, changed=self._changed)],
            passes=[Pass(work=self._queue_suspects, period_s=settings.period_s)],
            on_error=self._failed,
            says_outages=False,
        )

    async def monitor_node(self, name: str) -> Result:
        """Look at one node and do what follows.

        Raises:
            CloudError, KubeError: the node is kept, and asked about again later.
        """
        try:
            await self._monitor(name)
        except (CloudError, KubeError) as error:
            if self._suspect(name) is not None:
                if isinstance(error, ImplementedElsewhere):
                    # Left alone, it would be asked about again in each pass, without back-off.
                    raise Internal(str(error)) from error
                raise
            # It became ready or went away while the cloud was asked.
        finally:
            self._timer.finished(name)
        return DONE

    async def _monitor(self, name: str) -> None:
        node = self._suspect(name)
        if node is None:
            return
        if node.ready == names.STATUS_TRUE:
            await self._put_taint(node, None)
            return
        state = await self._lookup.state(node, waiting=len(self._suspects))
        verdict = self._judge(node, state, confirmed_gone=None)
        if verdict.reason is plan.Reason.UNCONFIRMED:
            gone = await self._lookup.confirmed_gone(node)
            verdict = self._judge(node, state, confirmed_gone=gone)
        metrics.DECISIONS.labels(verdict.action.value, verdict.reason.name.lower()).inc()
        if verdict.action is plan.Action.DELETE:
            # Before the request, so that others who are at it now are counted too.
            self._deletions.note(clock.monotonic())
            await self._delete(node)
        elif state.exists:
            await self._put_taint(node, state)
        self._note_hold(name, verdict)

    def _note_hold(self, name: str, verdict: plan.Verdict) -> None:
        """Say it when a node is held for a new reason, not in every pass."""
        if verdict.action is not plan.Action.HOLD:
            self._held.pop(name, None)
        elif name in self._suspects and self._held.get(name) is not verdict.reason:
            self._held[name] = verdict.reason
            braked = verdict.reason is plan.Reason.BRAKED
            level = self._log.warning if braked else self._log.info
            level("node held", node=name, reason=verdict.reason.value)

    def _judge(
        self, asked: Node, state: InstanceState, *, confirmed_gone: bool | None
    ) -> plan.Verdict:
        age = age_s(asked, clock.now())
        forbidden = self._settings.protection.forbids(
            age_s=math.inf if age is None else age,
            deleted_lately=self._deletions.count(clock.monotonic()),
        )
        return plan.judge(
            asked,
            self._nodes.store.get(asked.name),
            state,
            confirmed_gone=confirmed_gone,
            schemes=self._schemes,
            forbidden=forbidden,
        )

    async def _delete(self, node: Node) -> None:
        message = f"Deleting node {node.name} because it does not exist in the cloud provider"
        self._events.event(node.reference, names.NORMAL, names.REASON_DELETING_NODE, message)
        try:
            if await delete(self._api, node):
                self._log.info("node deleted, its instance is gone", node=node.name)
        except StaleObject:
            # The cloud's answer was not about the object that has the name now.
            self._log.info("node was re-created, not deleted", node=node.name)
        except KubeError as error:
            message = f"Deleting node {node.name} failed: {error}"
            reason = names.REASON_DELETING_NODE_FAILED
            self._events.event(node.reference, names.WARNING, reason, message)
            raise

    async def _put_taint(self, node: Node, state: InstanceState | None) -> None:
        """Write the shutdown taint as it should be; on conflict look at the node anew."""
        step: Step[Node] = Step(lambda current: plan.taint_patch(current, state))
        if (await self._writer.change(node, step)).changed:
            self._log.info("shutdown taint changed", node=node.name)

    async def _queue_suspects(self) -> None:
        self._note_end_of_trouble()
        # Those that failed come back by themselves, each when its pause is over.
        due = [name for name in self._suspects if not self.controller.backoff.failures(name)]
        self._timer.started(due, joins=False)
        for name in due:
            self.controller.queue.add(name)

    def _failed(self, name: str, error: Exception, _decision: RetryDecision) -> None:
        self._trouble.goes_on(node=name, error=str(error))

    def _suspect(self, name: str) -> Node | None:
        """The node as it is cached now, if it has to be looked at."""
        node = self._nodes.store.get(name)
        return node if node is not None and plan.is_suspect(node, self._schemes) else None

    def _changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:  # noqa: ARG002 - shape of a watch
        if new is not None and plan.is_suspect(new, self._schemes):
            self._suspects.add(new.name)
            return plan.changed_state(old, new)
        known = new or old
        assert known is not None
        self._suspects.discard(known.name)
        self._held.pop(known.name, None)
        self.controller.backoff.forget(known.name)
        self._note_end_of_trouble()
        return False

    def _note_end_of_trouble(self) -> None:
        if not self.controller.backoff:
            self._trouble.is_over()

"""Node lifecycle controller: watches nodes that are not ready, queries the cloud, executes `plan`.

A suspect is a node that is not ready, or a ready node with the shutdown taint. Each pass, every
`period_s`, queues all suspects; a change of readiness queues the node at once. Workers process
suspects independently, so a slow response about one node delays no other. After an error of the
cloud the node is kept and queried later, with back-off.

`plan.NodeObservations` keeps the cloud's answers. An answer that an instance does not exist is
called a denial. A second query follows `period_s` after the denial, and bypasses caches and
listings. Meanwhile the controller queries some ready nodes, called witnesses, to check whether the
cloud knows this cluster at all. Before the DELETE the controller reserves a slot in the deletion
record; the DELETE has the node's UID as a precondition.
"""

from __future__ import annotations

import asyncio

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.log import Outage
from ccm.cloud.errors import CloudError, ImplementedElsewhere, Internal
from ccm.cloud.lookup import GONE, RUNNING, InstanceLookup
from ccm.cloud.types import InstanceState
from ccm.controllers.nodelifecycle import metrics, plan
from ccm.kube.errors import ApiError, KubeError, ServerError
from ccm.kube.informer import Informer
from ccm.model import Node, names
from ccm.model.node import age_s
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import ItemBackoff
from ccm.runtime.controller import (
    DONE,
    IDLE,
    Controller,
    PassTimer,
    PeriodicTask,
    ReconcileResult,
    Watch,
)
from ccm.runtime.deletions import DeletionBlocks, DeletionRecord
from ccm.runtime.writer import DeleteClient, ObjectWriter, PatchStep, Recorder, delete

KIND = "Node"
"""Kind of object in the deletion record and in metrics."""

ERROR_BACK_OFF_CAP_S = 300.0
"""Maximum delay in seconds before a node is queried again after an error of the cloud.

Queries in every pass would burden a failing cloud. The delay ends early when an outage ends."""

HOLD = plan.NodeAction.HOLD


class NodeLifecycleController:
    """The cloud node lifecycle controller.

    Args:
        nodes: the shared informer of nodes.
        api: client for nodes with this controller's service account.
        lookup: instance queries to the cloud.
        slots: deletion record, for the deletion limit.
        holds: registry of blocked deletions.
        events: event recorder.
        rules: settings of deletions; `rules.period_s` is also the time between two passes.
        workers: maximum number of nodes processed concurrently.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: DeleteClient[Node],
        lookup: InstanceLookup,
        slots: DeletionRecord,
        holds: DeletionBlocks,
        events: Recorder,
        rules: plan.DeletionRules,
        workers: int = 1,
    ) -> None:
        self._nodes = nodes
        self._api = api
        self._lookup = lookup
        self._slots = slots
        self._holds = holds
        self._events = events
        self._rules = rules
        self._log = log.logger(names.COMPONENT_NODE_LIFECYCLE)
        self._writer = ObjectWriter(api)
        self._suspects: set[str] = set()
        self._witnesses: set[str] = set()
        self._witnesses_queued = False
        self._slots_of: dict[str, str] = {}
        self._blocked: dict[str, plan.Reason] = {}
        self._foreign = 0
        self._observations = plan.NodeObservations(
            rules.ownership, is_claimed=lookup.confirmed, period_s=rules.period_s
        )
        self._timer = PassTimer(metrics.PASS_DURATION.observe)
        self._outage = Outage(
            self._log,
            start_message="node could not be processed, retrying",
            end_message="all nodes can be processed again",
        )
        self.controller = Controller(
            names.COMPONENT_NODE_LIFECYCLE,
            queue="NodeLifecycle",
            reconcile=self.monitor_node,
            workers=workers,
            backoff=ItemBackoff(
                ExponentialBackoff(base_s=rules.period_s, cap_s=ERROR_BACK_OFF_CAP_S)
            ),
            watches=[Watch(informer=nodes, changed=self._changed)],
            passes=[PeriodicTask(work=self._queue_suspects, period_s=rules.period_s)],
            tasks={"shown": self._clear_on_exit},
            on_error=lambda name, error, _: self._outage.record_failure(
                node=name, error=str(error)
            ),
            logs_failures=False,
        )

    async def monitor_node(self, name: str) -> ReconcileResult:
        """Query the cloud about one node, then delete, taint or keep it.

        Raises:
            CloudError: the query failed; the node is kept, and queried again later.
            KubeError: a write failed; the node is retried later.
        """
        try:
            return await self._monitor(name)
        except (CloudError, KubeError) as error:
            node = self._nodes.store.get(name)
            if node is not None and plan.is_suspect(node, self._rules.ownership):
                if isinstance(error, ImplementedElsewhere):
                    # `ImplementedElsewhere` has no back-off: each pass would query the node again.
                    raise Internal(str(error)) from error
                raise
            # The node became ready or was deleted meanwhile, or is a witness.
            return DONE
        finally:
            self._timer.finish(name)

    async def _monitor(self, name: str) -> ReconcileResult:
        if name in self._nodes.malformed_keys:
            # The newest object cannot be decoded: decide nothing from the older, cached object.
            return IDLE
        node = self._nodes.store.get(name)
        if node is None:
            return DONE
        suspect = plan.is_suspect(node, self._rules.ownership)
        if not suspect and name not in self._witnesses:
            return IDLE
        is_claimed = self._lookup.confirmed(node)
        may_touch = self._rules.reference or self._rules.ownership.may_change(
            node, is_confirmed=is_claimed
        )
        if suspect and node.ready == names.STATUS_TRUE and may_touch:
            await self._sync_taint(node, None)
            return DONE
        state = await self._query(node)
        if not suspect or state is None:
            return DONE
        verdict = self._decide(node)
        if verdict.action is plan.NodeAction.DELETE:
            verdict = await self._delete(node)
        elif state.exists:
            await self._sync_taint(node, state)
        metrics.DECISIONS.labels(verdict.action.value, verdict.reason.name.lower()).inc()
        self._report_block(node, verdict)
        if verdict.reason is plan.Reason.UNCONFIRMED:
            self._queue_witnesses()
            return ReconcileResult(after_s=self.confirmation_wait_s(node))
        return DONE

    async def _query(self, node: Node) -> InstanceState | None:
        """Query the instance and record the answer.

        Returns:
            The state of the instance; None if the provider was reopened during the query.
        """
        session = self._lookup.provider_session
        self._observations.use_session(session)
        # The informer's handler has usually recorded the node, but does not run without a watch.
        self._observations.node_seen(node, clock.monotonic(), initial=True)
        is_second = not self._rules.reference and self.confirmation_wait_s(node) == 0
        try:
            if is_second:
                gone = await self._lookup.confirmed_gone(node)
                state = GONE if gone else RUNNING
            else:
                state = await self._lookup.state(node, waiting=len(self._suspects))
        except CloudError:
            self._observations.record_error(node)
            raise
        if self._lookup.provider_session != session:
            return None
        now = clock.monotonic()
        self._observations.record_answer(node, now, exists=state.exists, is_second=is_second)
        return state

    def confirmation_wait_s(self, node: Node) -> float | None:
        """Return the seconds until the second query about a node whose instance is missing.

        0 = the second query is due. None = the cloud does not report the instance missing.
        """
        evidence = self._observations.answers(node)
        if evidence is None or evidence.exists:
            return None
        # Subtract from the due time: `period_s` less the elapsed time may be above 0 by rounding.
        due = evidence.first_answer_at + self._rules.period_s
        return max(0.0, due - clock.monotonic())

    def decision(self, node: Node) -> plan.NodeDecision | None:
        """Return the current decision; None = there is no answer of the cloud yet.

        A reported block, such as by the deletion limit, is returned until the controller decides
        again.
        """
        held = self._blocked.get(node.name)
        if held is not None:
            return plan.NodeDecision(action=HOLD, reason=held)
        return self._decide(node) if self._observations.answers(node) is not None else None

    def _decide(self, asked: Node) -> plan.NodeDecision:
        self._observations.use_session(self._lookup.provider_session)
        evidence = self._observations.answers(asked)
        if evidence is None:
            # The node was deleted, replaced or changed since the query.
            return plan.NodeDecision(action=plan.NodeAction.KEEP, reason=plan.Reason.REPLACED)
        age = age_s(asked, clock.now())
        facts = plan.NodeFacts(
            evidence=evidence,
            age_s=self._observations.age_s(asked, clock.monotonic(), age),
            is_claimed=self._lookup.confirmed(asked),
            tally=self._observations.counts(),
        )
        return plan.decide(asked, self._nodes.store.get(asked.name), facts, self._rules)

    async def _delete(self, node: Node) -> plan.NodeDecision:
        """Reserve a slot, decide again, and delete the node if the decision is still DELETE.

        Returns:
            The last decision; its reason is BRAKED if no slot is left.

        Raises:
            KubeError: the deletion record or the DELETE failed.
        """
        limit = self._rules.limit_for(self._observations.counts().ours)
        if limit and not await self._has_slot(node, limit):
            return plan.NodeDecision(action=HOLD, reason=plan.Reason.BRAKED)
        verdict = self._decide(node)
        deleted = verdict.action is plan.NodeAction.DELETE
        try:
            if deleted and (deleted := await self._delete_object(node)):
                self._slots_of.pop(node.uid, None)
        except ApiError as error:
            deleted = isinstance(error, ServerError)
            raise
        finally:
            # Without a clear response the API server may have deleted the node, so the slot stays
            # taken until the next attempt.
            if not deleted:
                self._release_slot(node)
        return verdict

    async def _has_slot(self, node: Node, limit: int) -> bool:
        # A slot left from an attempt without a response may have expired, so replace it.
        self._release_slot(node)
        try:
            slot = await self._slots.reserve(KIND, limit=limit, window_s=plan.LIMIT_WINDOW_S)
        except KubeError:
            self._report_block(node, plan.NodeDecision(action=HOLD, reason=plan.Reason.UNRECORDED))
            raise
        if slot:
            self._slots_of[node.uid] = slot
        return bool(slot)

    def _release_slot(self, node: Node) -> None:
        if slot := self._slots_of.pop(node.uid, ""):
            self._slots.release(KIND, slot)

    async def _delete_object(self, node: Node) -> bool:
        """Send the DELETE; return False if the node is already gone or was recreated."""
        message = f"Deleting node {node.name} because it does not exist in the cloud provider"
        self._events.event(node.reference, names.NORMAL, names.REASON_DELETING_NODE, message)
        try:
            deleted = await delete(self._api, node)
        except StaleObject:
            # The cloud's answer was about an earlier Node of this name.
            self._log.info("node not deleted, it was recreated", node=node.name)
            return False
        except KubeError as error:
            message = f"Deleting node {node.name} failed: {error}"
            reason = names.REASON_DELETING_NODE_FAILED
            self._events.event(node.reference, names.WARNING, reason, message)
            raise
        if deleted:
            self._log.info("node deleted, its instance is gone", node=node.name)
        return deleted

    async def _sync_taint(self, node: Node, state: InstanceState | None) -> None:
        """Set or remove the shutdown taint; on conflict plan the patch again."""
        step: PatchStep[Node] = PatchStep(lambda current: plan.taint_patch(current, state))
        if (await self._writer.change(node, step)).changed:
            self._log.info("shutdown taint changed", node=node.name)

    async def _queue_suspects(self) -> None:
        self._note_recovery()
        foreign = self._observations.counts().foreign
        if foreign != self._foreign:
            self._foreign = foreign
            metrics.FOREIGN.set(foreign)
            self._log.info("number of foreign nodes changed", count=foreign)
        self._observations.use_session(self._lookup.provider_session)
        self._witnesses_queued = False
        self._queue_witnesses()
        due = [name for name in self._suspects if self._is_due(name)]
        self._timer.start(due, joins=False)
        for name in due:
            self.controller.queue.add(name)

    def _is_due(self, name: str) -> bool:
        """Return False during a back-off or the wait before a second query."""
        node = self._nodes.store.get(name)
        return self.controller.backoff.delay_end(name) is None and not (
            node and self.confirmation_wait_s(node)
        )

    def _queue_witnesses(self) -> None:
        """Queue witnesses, once per pass, if the cloud reports an instance missing."""
        if self._witnesses_queued or self._rules.reference:
            return
        self._witnesses.clear()
        self._witnesses.update(self._observations.witnesses(clock.monotonic()))
        self._witnesses_queued = bool(self._observations.counts().doubted)
        for name in self._witnesses:
            self.controller.queue.add(name)

    def _report_block(self, node: Node, verdict: plan.NodeDecision) -> None:
        """Report a blocked deletion if its reason is new; withdraw a report that no longer applies.

        UNCONFIRMED is not reported.
        """
        if verdict.reason is plan.Reason.UNCONFIRMED:
            return
        if not verdict.is_blocked or node.name not in self._suspects:
            self._release(node)
        elif self._blocked.get(node.name) is not verdict.reason:
            self._blocked[node.name] = verdict.reason
            why = verdict.reason.value
            self._log.warning("node deletion blocked", node=node.name, reason=why)
            message = f"Deletion of node {node.name} blocked, its instance seems missing: {why}"
            self._holds.block(node.reference, verdict.reason.name.lower(), message)

    def _release(self, node: Node) -> None:
        if self._blocked.pop(node.name, None) is not None:
            self._holds.unblock(node.reference)

    async def _clear_on_exit(self) -> None:
        """Clear the blocked deletions and the metric on exit: only the leader reports them."""
        try:
            await asyncio.Event().wait()
        finally:
            self._holds.clear()
            metrics.FOREIGN.set(0)

    def _changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:
        if old is not None and (new is None or old.uid != new.uid):
            self._observations.node_deleted(old.name)
            self._slots_of.pop(old.uid, None)
            self._lookup.forget(old)
            self._release(old)
        if new is not None:
            # Most changes are kubelet updates of conditions and images, which are irrelevant.
            if old is None or not plan.is_same_observation(old, new):
                self._observations.node_seen(new, clock.monotonic(), initial=initial)
            if plan.is_suspect(new, self._rules.ownership):
                self._suspects.add(new.name)
                return plan.needs_check(old, new)
        node = new or old
        assert node is not None
        self._suspects.discard(node.name)
        self._release(node)
        self.controller.backoff.forget(node.name)
        self._note_recovery()
        return False

    def _note_recovery(self) -> None:
        if not self.controller.backoff:
            self._outage.record_success()

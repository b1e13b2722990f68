"""Health of machines that have a VM: node sync, phases, preservation, and in-place updates.

`ccm.machines.health` makes the decisions. After a timeout, a machine is marked Failed only if a
live read of its node confirms the timeout. If its node is unhealthy, the machine also needs a turn
of `FailureBudget`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from ccm.base import clock, redact
from ccm.cloud.errors import CloudError, NotOwned, Unimplemented
from ccm.cloud.errors import NotFound as CloudNotFound
from ccm.cloud.machines import MachineDriver, MachineInfo
from ccm.controllers.machine.context import MachineContext
from ccm.kube.errors import KubeError, NotFound
from ccm.machines import (
    deletion,
    failure_budget,
    health,
    in_place_update,
    node_metadata,
    preservation,
    reasons,
)
from ccm.machines.creation import SHORT_S, PassResult, is_unchanged
from ccm.machines.drain import DrainState
from ccm.machines.failure_budget import FailureBudget
from ccm.machines.health import Moment, PhaseHistory, PhaseTrigger
from ccm.machines.preservation import PreservationAction
from ccm.machines.settings import DEFAULT_CREATION_S
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_uid
from ccm.model.patches import StaleObject
from ccm.model.times import format_time
from ccm.runtime import writer
from ccm.runtime.writer import PatchStep

BLIND_S = 10.0
"""Delay in seconds of the next evaluation while the watch of nodes is broken, or a node cannot be
decoded: the cache of nodes may be wrong then."""

OUTAGE_S = 30.0
"""If the watch of nodes was broken for at least this many seconds, the timeouts of machines
restart: the nodes could not report either. Source: Gardener's MCM, default of
--machine-safety-apiserver-statuscheck-timeout."""

SETTLE_S = 30.0
"""Seconds after an outage of at least `OUTAGE_S`, in which no machine becomes Unknown: nodes need
time to report. Source: Gardener's MCM, the pause after its freeze."""


_WITHOUT_NODE = (Phase.PENDING, Phase.UNKNOWN)
"""Phases of a machine whose node is missing, or not ready."""

VM_CHECK_S = 10.0
"""Seconds between two queries for the VM of a machine whose node is missing or unhealthy. Also the
minimum seconds between the two NotFound responses that confirm that the VM is gone, and from the
start of the phase Pending to the first query. Source: Kubermatic's machine-controller, which
queries at this interval."""


class HealthReconciler:
    """Health of machines that have a VM.

    Args:
        context: shared objects of the machine controller.
    """

    def __init__(self, context: MachineContext) -> None:
        self._context, self._caches, self._vms = context, context.caches, context.vms
        self._nodes = context.nodes
        self._by_node: dict[str, set[str]] = {}
        self._spells: dict[str, PhaseHistory] = {}
        self._failure_budget = FailureBudget(
            context.settings.creation_timeout_s or DEFAULT_CREATION_S
        )
        self._reported_waiting: set[str] = set()
        self._denied_since: dict[str, float] = {}
        """UID of a machine -> monotonic time of the first query that did not find its VM."""

    async def run(self, machine: Machine) -> PassResult:
        """Reconcile the node and the phase of a machine.

        Raises:
            StaleObject: the object was changed or deleted; its watch event triggers the next pass.
            KubeError: the node could not be read, or a write failed.
        """
        if not self._caches.settings.has_target:
            return PassResult()
        if self.is_contested(machine):
            self._release_turn(machine)
            return PassResult()
        node, fault = self._context.node_of(machine), None
        if node is not None and node.is_deleting and self._caches.settings.names.node_finalizer:
            # Only with a finalizer on nodes: otherwise a machine outlives its node, however slowly
            # the node is deleted.
            await self._delete_with_node(machine, node)
            return PassResult()
        if node is not None:
            try:
                if await self._owns(machine, node):
                    node = await self._sync_node(machine, node)
                elif machine.phase is Phase.PENDING and deletion.is_its_node(machine, node):
                    # An unconfirmed node cannot join yet, but the creation timeout still runs.
                    outcome = await self._evaluate(machine, None)
                    return replace(outcome, after_s=min_delay(outcome.after_s, SHORT_S))
            except KubeError as error:
                # A machine must not become Running before its node has all metadata. In all other
                # phases the health is evaluated even if the write to the node failed.
                if machine.phase is Phase.PENDING:
                    raise
                fault = error
        outcome = await self._evaluate(machine, node)
        if fault is not None:
            raise fault
        return outcome

    # --- health -----------------------------------------------------------------------------

    async def _evaluate(self, machine: Machine, node: Node | None) -> PassResult:
        if self._is_blind(machine, node):
            return PassResult(after_s=BLIND_S)
        now, settings = _now(), self._caches.settings
        result = health.evaluate_health(
            machine, node, self._phase_history(machine, now), now, settings
        )
        if result.cause is PhaseTrigger.TIMED_OUT:
            return await self._mark_failed(machine)
        if (
            result.cause in (PhaseTrigger.UNHEALTHY, PhaseTrigger.NODE_MISSING)
            and (left_s := self._settling_s(now)) > 0
        ):
            return PassResult(after_s=left_s)
        outcome, seen = health.condition_copy(machine, node, result.history, now, settings)
        self._spells[machine.key] = seen
        if result.cause is None and settings.asks_for_vms and machine.phase in _WITHOUT_NODE:
            # The cloud showed the VM of a new machine a moment ago, and most nodes join before the
            # first query.
            pending_s = result.history.carried_s + now.steady_s - result.history.began_s
            is_new = machine.phase is Phase.PENDING and pending_s < VM_CHECK_S
            vm, is_gone = (None, False) if is_new else await self._find_vm(machine)
            if vm is not None and settings.stores_addresses:
                outcome = health.address_copy(machine, vm, outcome)
            if is_gone:
                result = replace(result, cause=PhaseTrigger.VM_GONE)
            else:
                result = replace(result, after_s=min_delay(result.after_s, VM_CHECK_S))
        if result.cause is not None:
            outcome = health.transition_result(machine, node, result.cause, now, settings)
        outcome = replace(outcome, after_s=min_delay(outcome.after_s, result.after_s))
        outcome = await self._context.write_result(machine, outcome)
        if machine.phase in health.TIMEOUTS:
            # In other phases, the turn may belong to a write that the cache does not show yet.
            self._release_turn(machine)
        return outcome

    async def _find_vm(self, machine: Machine) -> tuple[MachineInfo | None, bool]:
        """Return the machine's VM, or None; and whether the VM is gone.

        The listing of the class comes first, because machines that wait at the same time share it.
        Only a VM that is not in the listing is queried. The VM is gone if two queries, `VM_CHECK_S`
        apart, did not find it. If the cloud shows the VM, if a call fails with another error than
        NotFound, or if the credentials may be those of another project, two new queries are needed.
        """
        machine_class, now = self._caches.class_of(machine), clock.monotonic()
        since = self._context.creations_ended.get(machine.uid, float("-inf"))
        vm: MachineInfo | None = None
        try:
            with suppress(Unimplemented):
                listing = await self._vms.listings.of(machine_class, since=since)
                for one in listing.records:
                    if one.info.provider_id == machine.provider_id:
                        self._denied_since.pop(machine.uid, None)
                        return one.info, False
            request = self._context.driver.request(machine, machine_class)
            vm = await self._context.driver.call(MachineDriver.get_machine_status, request)
        except CloudNotFound:
            if deletion.may_be_other_project(machine, machine_class.origin):
                self._denied_since.pop(machine.uid, None)
                return None, False
            first = self._denied_since.setdefault(machine.uid, now)
            return None, now - first >= VM_CHECK_S
        except CloudError:
            pass  # the answer is unknown
        self._denied_since.pop(machine.uid, None)
        return vm, False

    async def _mark_failed(self, machine: Machine) -> PassResult:
        """Write the phase that follows a timeout, if a live read of the node confirms the timeout.

        A machine that needs a turn of `FailureBudget` waits until it gets one.
        """
        in_turn = health.TIMEOUTS[machine.phase].needs_turn
        if in_turn and (obstacle := self._failure_budget.acquire(machine, clock.monotonic())):
            self._report_waiting(machine, obstacle.why)
            return PassResult(after_s=obstacle.wait_s)
        self._reported_waiting.discard(machine.key)
        fails = False
        try:
            outcome = await self._confirm_live(machine)
            fails = outcome.status is not None and outcome.status.phase is Phase.FAILED
            return await self._context.write_result(machine, outcome)
        finally:
            # A write that raised may have reached the API server: keep the turn until the cache
            # shows the phase.
            if not fails:
                self._release_turn(machine)

    async def _confirm_live(self, machine: Machine) -> PassResult:
        """Evaluate the health with a live read of the node, and return the result to write.

        Raises:
            KubeError: the read failed.
        """
        node, settings = None, self._caches.settings
        if machine.node_name:
            with suppress(NotFound):
                node = await self._nodes.get(machine.node_name)
        now = _now()
        result = health.evaluate_health(
            machine, node, self._phase_history(machine, now), now, settings
        )
        self._spells[machine.key] = result.history
        if result.cause is None:
            return PassResult(after_s=result.after_s)
        outcome = health.transition_result(machine, node, result.cause, now, settings)
        assert outcome.status is not None
        moment = self._caches.now_since(machine.uid, machine.status.preserve_until)
        status = preservation.with_preservation(machine, outcome.status, node, moment, settings)
        return replace(outcome, status=status)

    def _phase_history(self, machine: Machine, now: Moment) -> PhaseHistory:
        """Return the history of the machine's phase; an outage of the node watch restarts it."""
        aged = self._caches.ages.with_local_creation(now.wall, machine)
        spell = health.phase_history(aged, self._spells.get(machine.key), now)
        ended = self._outage_ended()
        if ended is not None and spell.began_s < ended:
            spell = health.restart_history(spell, ended)
        self._spells[machine.key] = spell
        return spell

    def _outage_ended(self) -> float | None:
        """Return the monotonic time at which the node watch last recovered from an outage.

        None = the last outage was shorter than `OUTAGE_S`, or there was none.
        """
        began, ended = self._caches.nodes.last_outage
        return ended if ended - began >= OUTAGE_S else None

    def _settling_s(self, now: Moment) -> float:
        """Return the remaining seconds for nodes to report after an outage; 0 or less = none."""
        ended = self._outage_ended()
        return 0.0 if ended is None else ended + SETTLE_S - now.steady_s

    def _is_blind(self, machine: Machine, node: Node | None) -> bool:
        """Return whether the cache of nodes may be wrong about this machine's node."""
        nodes, unreadable = self._caches.nodes, self._caches.nodes.malformed_keys
        return (
            nodes.outage_since is not None
            or machine.node_name in unreadable
            or (node is None and "" in unreadable)
        )

    def _release_turn(self, machine: Machine) -> None:
        self._context.wake(self._failure_budget.release(machine))
        self._reported_waiting.discard(machine.key)

    def _report_waiting(self, machine: Machine, why: str) -> None:
        if machine.key in self._reported_waiting:
            return
        self._reported_waiting.add(machine.key)
        self._context.log.warning("machine replacement blocked", machine=machine.key, reason=why)
        text = f"The node is unhealthy; the replacement is blocked: {why}"
        self._context.record_event(machine, WARNING, reasons.REASON_REPLACEMENT_BLOCKED, text)

    # --- the node ---------------------------------------------------------------------------

    def is_contested(self, machine: Machine) -> bool:
        """Return whether another machine has the same node name; then the owner is unknown."""
        others = self._by_node.get(machine.node_name, set()) - {machine.key}
        if machine.node_name and others:
            self._context.log.warning(
                "node belongs to several machines", node=machine.node_name, machine=machine.key
            )
            return True
        return False

    async def _owns(self, machine: Machine, node: Node) -> bool:
        """Return whether the node is confirmed to run on the machine's VM.

        If the node or its VM has another owner, record an event.
        """
        if self._vms.owns_node(machine, node):
            return True
        if not deletion.is_its_node(machine, node):
            message = (
                f"node {node.name} has provider ID {node.provider_id}, which is not that of this "
                "machine, and was not changed"
            )
            self._context.record_event(machine, WARNING, reasons.REASON_VM_NOT_OWNED, message)
            return False
        try:
            await self._vms.confirm(machine, self._caches.class_of(machine))
        except NotOwned as error:
            text = redact.mask_for_api(str(error))
            self._context.record_event(machine, WARNING, reasons.REASON_VM_NOT_OWNED, text)
        except CloudError as error:
            self._context.log.warning(
                "VM owner not confirmed, node not changed",
                machine=machine.key,
                node=node.name,
                error=str(error),
            )
        return self._vms.owns_node(machine, node)

    async def _sync_node(self, machine: Machine, node: Node) -> Node | None:
        """Apply the machine's metadata and extra capacity to its node; return the node as written.

        None = the node is gone.
        """
        settings = self._caches.settings
        extra = self._caches.class_of(machine).extra_capacity
        arrival = self._caches.initial_metadata.annotations_for(controller_uid(machine))
        written = await self._context.write_nodes.change(
            node,
            PatchStep(lambda obj: node_metadata.patch(machine, obj, settings, arrival)),
            PatchStep(lambda obj: node_metadata.capacity_patch(obj, extra, settings), "status"),
            PatchStep(lambda obj: node_metadata.capacity_record_patch(obj, extra, settings)),
        )
        return written.obj

    async def _delete_with_node(self, machine: Machine, cached: Node) -> None:
        """Delete a machine if a live read confirms that its node is being deleted."""
        try:
            node = await self._nodes.get(cached.name)
        except NotFound:
            return
        if not deletion.is_its_node(machine, node):
            # The node belongs to another VM, and only has the same name.
            return
        if node.uid == cached.uid and node.is_deleting:
            self._context.log.info("node is being deleted, deleting machine", machine=machine.key)
            await writer.delete(self._context.machines, machine)

    # --- the caches ---------------------------------------------------------------------------

    def machine_changed(self, old: Machine | None, new: Machine | None, *, initial: bool) -> None:
        """Record a change of a machine; `initial` = the machine existed before this process."""
        changed = new or old
        if changed is None:
            return
        key = changed.key
        if old is not None and (keys := self._by_node.get(old.node_name)) is not None:
            keys.discard(key)
            if not keys:
                del self._by_node[old.node_name]
        if new is not None and new.node_name:
            self._by_node.setdefault(new.node_name, set()).add(key)
        if new is None:
            self._spells.pop(key, None)
            self._reported_waiting.discard(key)
            self._denied_since.pop(changed.uid, None)
        elif key not in self._spells:
            now = _now()
            self._spells[key] = health.phase_history(
                self._caches.ages.with_local_creation(now.wall, new), None, now
            )
        age_s = None
        if initial and new is not None:
            age_s = max(0.0, self._caches.ages.since(new.uid, failure_budget.under_way_since(new)))
        self._context.wake(self._failure_budget.note(key, new, clock.monotonic(), age_s=age_s))

    def waiting_count(self) -> int:
        """Return the number of machines that wait for the replacement of other machines."""
        return len(self._failure_budget.waiting)

    def machines_of_node(self, name: str) -> Iterable[str]:
        """Return the keys of the machines that have this node name."""
        return tuple(self._by_node.get(name, ()))


def min_delay(*moments: float | None) -> float | None:
    """Return the shortest delay; None = no delay is given."""
    return min((moment for moment in moments if moment is not None), default=None)


def _now() -> Moment:
    return Moment(wall=clock.now(), steady_s=clock.monotonic())


# --- preservation ---------------------------------------------------------------------------------


class PreservationReconciler:
    """Preserves machines as `ccm.machines.preservation` decides.

    The end of the preservation is the first field to be written, and the last to be cleared, so
    that the next pass completes an interrupted pass.

    Args:
        context: shared objects of the machine controller.
    """

    def __init__(self, context: MachineContext) -> None:
        self._context, self._caches = context, context.caches
        self._drains = context.drains
        self._draining: set[str] = set()

    async def run(self, machine: Machine) -> float | None:
        """Reconcile the preservation of a machine; return the requeue delay, None = no requeue.

        The caller makes sure that no other machine has the same node.

        Raises:
            StaleObject: the object was changed or deleted; its watch event triggers the next pass.
            KubeError: a write failed.
        """
        node, settings = self._context.own_node_of(machine), self._context.settings
        now = self._caches.now_since(machine.uid, machine.status.preserve_until)
        decision = preservation.decide(machine, node, now, settings)
        if decision.action is PreservationAction.NOTHING or (node is not None and node.is_deleting):
            return None
        if decision.action is PreservationAction.PRESERVE and machine.status.preserve_until is None:
            machine = await self._write_expiry(machine, decision.until)
        waits_s = None
        if node is not None:
            waits_s = await self._on_node(machine, node, decision)
        # The end of the preservation is cleared last, after the machine's annotations.
        written = await self._context.write.change(
            machine, PatchStep(lambda obj: preservation.machine_patch(obj, decision, settings))
        )
        if (
            written.obj is not None
            and decision.action is PreservationAction.STOP
            and decision.until is not None
        ):
            await self._write_expiry(written.obj, None)
        if decision.action is PreservationAction.PRESERVE:
            assert decision.until is not None
            return min_delay(waits_s, max(0.0, (decision.until - now).total_seconds()) + 1)
        return None

    async def _on_node(
        self, machine: Machine, node: Node, decision: preservation.PreservationDecision
    ) -> float | None:
        """Write the node's metadata and condition; return the delay of the next drain check."""
        settings, drained, waits_s = self._caches.settings, None, None
        kept = await self._context.write_nodes.change(
            node, PatchStep(lambda obj: preservation.node_patch(machine, obj, decision, settings))
        )
        if kept.obj is None:
            return None
        if preservation.wants_drain(machine, node, decision, settings):
            drained = await self._drain(machine, kept.obj)
            # A running drain requeues the machine itself.
            waits_s = SHORT_S if drained is False else None
        else:
            # The machine recovered or is no longer preserved: the remaining Pods may stay.
            await self._stop(machine.uid)
        now = clock.now()
        await self._context.write_nodes.change(
            kept.obj,
            PatchStep(
                lambda obj: preservation.condition_patch(
                    machine, obj, decision, now, settings, drained=drained
                ),
                "status",
            ),
        )
        return waits_s

    async def _drain(self, machine: Machine, node: Node) -> bool | None:
        """Start or check the drain of a preserved node.

        Returns:
            True: the drain succeeded. False: it failed, and was started again. None: it is running.
        """
        is_ours = machine.uid in self._draining
        progress = self._drains.progress(machine.uid) if is_ours else None
        if progress is not None and progress.state is DrainState.DONE:
            # Forget the complete drain: a later deletion must drain the node again.
            await self._stop(machine.uid)
            return True
        has_failed = progress is not None and progress.state is DrainState.FAILED
        if progress is None or has_failed:
            now = self._caches.now_since(machine.uid, machine.status.since)
            task = preservation.task(machine, node, now, self._caches.settings)
            self._draining.add(machine.uid)
            self._drains.start(task, lambda: self._context.wake((machine.key,)))
        return False if has_failed else None

    async def _stop(self, uid: str) -> None:
        """Stop the machine's drain if the preservation started it."""
        if uid in self._draining:
            self._draining.discard(uid)
            await self._drains.stop(uid)

    def forget(self, uid: str) -> None:
        """Forget the drain of a machine that is being deleted: the deletion drains the node."""
        self._draining.discard(uid)

    async def _write_expiry(self, machine: Machine, until: datetime | None) -> Machine:
        codec = self._context.codec
        written = await self._context.write.change(
            machine, PatchStep(lambda obj: codec.preserved(obj, machine, until), "status")
        )
        if written.obj is None:
            raise StaleObject
        if not written.changed:
            # Another pass wrote the same end, and recorded the event.
            return written.obj
        reason, text = reasons.REASON_PRESERVED_ENDED, "The machine is no longer preserved"
        if until is not None:
            reason = reasons.REASON_PRESERVED
            text = f"The machine is preserved until {format_time(until)}, even if it fails"
        log = self._context.log
        log.info("machine preservation changed", machine=machine.key, after=text)
        self._context.record_event(machine, NORMAL, reason, text)
        return written.obj


# --- updates in place -----------------------------------------------------------------------------


class InPlaceUpdater:
    """Drains nodes for in-place updates, and writes the steps of the updates.

    `ccm.machines.in_place_update` makes the decisions. No Pod is evicted before a live read of the
    node confirmed that the node is selected. After an interruption, the next pass repeats the
    step. A repeated drain takes only a moment if the node is already empty.

    Args:
        context: shared objects of the machine controller.
    """

    def __init__(self, context: MachineContext) -> None:
        self._context, self._drains = context, context.drains
        self._draining: dict[str, str] = {}
        """Key of a machine -> UID of the machine, while its node is drained for an update; empty =
        the drain failed, and the next pass starts it again."""

    async def run(self, machine: Machine, *, is_contested: bool) -> float | None:
        """Reconcile the in-place update of a machine; return the requeue delay, None = no requeue.

        If the node is contested (another machine has the same node name), stop the update's drain.

        Raises:
            StaleObject: the object was changed or deleted; its watch event triggers the next pass.
            KubeError: a read or a write failed.
        """
        key, settings = machine.key, self._context.settings
        node, decision = self._context.own_node_of(machine), in_place_update.REST
        if node is not None and not is_contested:
            decision = in_place_update.decide(machine, node, settings)
        if not decision.drains and (uid := self._draining.pop(key, None)) is not None:
            self._context.log.info("in-place update cancelled", machine=key)
            await self._drains.stop(uid or machine.uid)
        if node is None or decision == in_place_update.REST:
            return None
        if not decision.step:
            return await self._prepare(machine, node, decision)
        # The change of the node requeues the machine.
        now = clock.now()
        await self._context.write_nodes.change(
            node,
            PatchStep(
                lambda obj: in_place_update.step_patch(machine, obj, now, settings), "status"
            ),
        )
        return None

    def forget(self, key: str) -> None:
        """Forget the drain for an update: the machine is gone, or its deletion drains the node."""
        self._draining.pop(key, None)

    async def _prepare(
        self, machine: Machine, node: Node, decision: in_place_update.UpdateDecision
    ) -> float | None:
        """Drain the node, then let its updater begin; return the requeue delay or None."""
        now, settings = clock.now(), self._context.settings
        if decision.drains:
            failure = await self._drain(machine, node)
            if failure is None:
                return None  # The drain requeues the machine.
            if failure:
                status = in_place_update.drain_failed_status(machine, failure, now)
                if not is_unchanged(machine.status, status):
                    await self._context.write_result(machine, PassResult(status=status))
                return SHORT_S
        if machine.phase is not Phase.UPDATING:
            # Write the phase before the condition: with the condition, the updater begins, and the
            # node may disappear.
            await self._context.write_result(
                machine, PassResult(status=in_place_update.updating_status(machine, now))
            )
        await self._context.write_nodes.change(
            node,
            PatchStep(
                lambda obj: in_place_update.ready_patch(machine, obj, now, settings), "status"
            ),
        )
        if self._draining.pop(machine.key, None) is not None:
            await self._drains.stop(machine.uid)
        return None

    async def _drain(self, machine: Machine, node: Node) -> str | None:
        """Start or check the drain for an update.

        Returns:
            Empty: the drain succeeded. None: it is running, or no longer wanted. Else: the reason
            why it failed.
        """
        settings = self._context.settings
        if self._draining.get(machine.key) != machine.uid:
            live = None
            with suppress(NotFound):
                live = await self._context.nodes.get(node.name)
            if live is None or not in_place_update.decide(machine, live, settings).drains:
                return None  # The cache will show the change of the node, and requeue the machine.
            self._draining[machine.key] = machine.uid
            task = in_place_update.task(machine, live, self._context.caches.now(), settings)
            self._drains.start(task, lambda: self._context.wake((machine.key,)))
        progress = self._drains.progress(machine.uid)
        if progress is None or progress.state is DrainState.FAILED:
            self._draining[machine.key] = ""
            return "- the drain was stopped" if progress is None else progress.message
        return "" if progress.state is DrainState.DONE else None

"""Health of machines that have a VM: node sync, phases, preservation, and in-place updates.

`ccm.machines.health` makes the decisions. A machine is marked Failed because of its node only after
a live read of the node confirmed it, and only when `FailureBudget` allows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from ccm.base import clock, redact
from ccm.cloud.errors import CloudError, NotOwned
from ccm.controllers.machine.context import MachineContext
from ccm.kube.errors import KubeError, NotFound
from ccm.machines import (
    deletion,
    failure_budget,
    health,
    in_place_update,
    metrics,
    node_metadata,
    preservation,
    reasons,
)
from ccm.machines.creation import SHORT_S, PassResult, is_unchanged
from ccm.machines.drain import DrainState
from ccm.machines.failure_budget import FailureBudget
from ccm.machines.health import Moment, PhaseHistory, PhaseTrigger
from ccm.machines.preservation import PreservationAction
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_uid
from ccm.model.patches import StaleObject
from ccm.model.times import format_time
from ccm.runtime import writer
from ccm.runtime.writer import PatchStep

BLIND_S = 10.0
"""Delay of the next evaluation while the watch of nodes is broken, and its cache proves nothing."""

OUTAGE_S = 30.0
"""Minimum duration of a broken watch of nodes after which the timeouts of machines restart: the
nodes could not report either (reference, default of
--machine-safety-apiserver-statuscheck-timeout)."""

SETTLE_S = 30.0
"""Time after an outage in which no machine becomes Unknown: nodes need time to report (reference,
the pause after its freeze)."""


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
        self._replacements = FailureBudget(context.settings.creation_timeout_s)
        self._reported_waiting: set[str] = set()

    async def run(self, machine: Machine) -> PassResult:
        """Reconcile the node and the phase of a machine.

        Raises:
            StaleObject: the object was replaced; its change brings the next pass.
            KubeError: the node could not be read, or a write failed.
        """
        if not self._caches.settings.has_target:
            return PassResult()
        if self.is_contested(machine):
            self._release_turn(machine)
            return PassResult()
        node, fault = self._context.node_of(machine), None
        if node is not None and node.is_deleting:
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
                # A machine joins only with complete node metadata. In other phases the health is
                # evaluated although the node could not be written.
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
        if result.cause is not None:
            outcome = health.transition_result(machine, node, result.cause, now, settings)
        outcome = replace(outcome, after_s=min_delay(outcome.after_s, result.after_s))
        outcome = await self._context.write_result(machine, outcome)
        if machine.phase in health.TIMEOUTS:
            # Only in these phases: in another one, the turn may stand for a write just made.
            self._release_turn(machine)
        return outcome

    async def _mark_failed(self, machine: Machine) -> PassResult:
        """Mark a machine Failed after its timeout, once it has a turn and a live read agrees."""
        in_turn = health.TIMEOUTS[machine.phase].needs_turn
        if in_turn and (obstacle := self._replacements.acquire(machine, clock.monotonic())):
            self._report_waiting(machine, obstacle.why)
            return PassResult(after_s=obstacle.wait_s)
        self._reported_waiting.discard(machine.key)
        fails = False
        try:
            outcome = await self._confirm_live(machine)
            fails = outcome.status is not None and outcome.status.phase is Phase.FAILED
            return await self._context.write_result(machine, outcome)
        finally:
            # A failed write may have reached the server: the turn stays until the cache shows it.
            if not fails:
                self._release_turn(machine)

    async def _confirm_live(self, machine: Machine) -> PassResult:
        """Return the outcome by a live read of the node.

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
        """Return the observation of the machine's phase, without the time of node outages."""
        aged = self._caches.ages.with_local_creation(now.wall, machine)
        spell = health.phase_history(aged, self._spells.get(machine.key), now)
        ended = self._outage_ended()
        if ended is not None and spell.began_s < ended:
            spell = health.restart_history(spell, ended)
        self._spells[machine.key] = spell
        return spell

    def _outage_ended(self) -> float | None:
        """Return the end of the last outage of node observations; None = there was none."""
        began, ended = self._caches.nodes.last_outage
        return ended if ended - began >= OUTAGE_S else None

    def _settling_s(self, now: Moment) -> float:
        """Return the remaining seconds for nodes to report after an outage."""
        ended = self._outage_ended()
        return 0.0 if ended is None else ended + SETTLE_S - now.steady_s

    def _is_blind(self, machine: Machine, node: Node | None) -> bool:
        """Return whether the cache may be wrong about this node."""
        nodes, unreadable = self._caches.nodes, self._caches.nodes.malformed_keys
        return (
            nodes.outage_since is not None
            or machine.node_name in unreadable
            or (node is None and "" in unreadable)
        )

    def _release_turn(self, machine: Machine) -> None:
        self._context.wake(self._replacements.release(machine))
        self._reported_waiting.discard(machine.key)
        metrics.WAITING.set(len(self._replacements.waiting))

    def _report_waiting(self, machine: Machine, why: str) -> None:
        metrics.WAITING.set(len(self._replacements.waiting))
        if machine.key in self._reported_waiting:
            return
        self._reported_waiting.add(machine.key)
        self._context.log.warning("machine replacement blocked", machine=machine.key, reason=why)
        text = f"The node is unhealthy; the replacement is blocked: {why}"
        self._context.record_event(machine, WARNING, reasons.REASON_REPLACEMENT_BLOCKED, text)

    # --- the node ---------------------------------------------------------------------------

    def is_contested(self, machine: Machine) -> bool:
        """Return whether another machine claims the same node, whose health then proves nothing."""
        others = self._by_node.get(machine.node_name, set()) - {machine.key}
        if machine.node_name and others:
            self._context.log.warning(
                "node belongs to several machines", node=machine.node_name, machine=machine.key
            )
            return True
        return False

    async def _owns(self, machine: Machine, node: Node) -> bool:
        """Return whether the node may be changed; record an event if another machine owns it."""
        if self._vms.owns_node(machine, node):
            return True
        if not deletion.is_its_node(machine, node):
            message = f"node {node.name} has the provider ID {node.provider_id} and was not changed"
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
        """Apply the machine's metadata and capacity to its node, and return the new node."""
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
        """Delete a machine whose node a user deleted, after a live read confirmed that."""
        try:
            node = await self._nodes.get(cached.name)
        except NotFound:
            return
        if not deletion.is_its_node(machine, node):
            # A node of another VM with the same name: it says nothing about this machine.
            return
        if node.uid == cached.uid and node.is_deleting:
            self._context.log.info("node is being deleted, deleting machine", machine=machine.key)
            await writer.delete(self._context.machines, machine)

    # --- the caches ---------------------------------------------------------------------------

    def machine_changed(self, old: Machine | None, new: Machine | None, *, initial: bool) -> None:
        """Record a change of a machine; `initial` = it existed before this process."""
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
        elif key not in self._spells:
            now = _now()
            self._spells[key] = health.phase_history(
                self._caches.ages.with_local_creation(now.wall, new), None, now
            )
        age_s = None
        if initial and new is not None:
            age_s = max(0.0, self._caches.ages.since(new.uid, failure_budget.under_way_since(new)))
        self._context.wake(self._replacements.note(key, new, clock.monotonic(), age_s=age_s))
        metrics.WAITING.set(len(self._replacements.waiting))

    def machines_of_node(self, name: str) -> Iterable[str]:
        """Return the keys of the machines of a node."""
        return tuple(self._by_node.get(name, ()))


def min_delay(*moments: float | None) -> float | None:
    """Return the shortest of some delays; None = never."""
    return min((moment for moment in moments if moment is not None), default=None)


def _now() -> Moment:
    return Moment(wall=clock.now(), steady_s=clock.monotonic())


# --- preservation ---------------------------------------------------------------------------------


class PreservationReconciler:
    """Preserves machines as `ccm.machines.preservation` decides.

    The status of a preserved machine is written first and cleared last, so that the next pass
    completes an interrupted one.

    Args:
        context: shared objects of the machine controller.
    """

    def __init__(self, context: MachineContext) -> None:
        self._context, self._caches = context, context.caches
        self._drains = context.drains
        self._draining: set[str] = set()

    async def run(self, machine: Machine) -> float | None:
        """Reconcile the preservation of a machine, and return the requeue delay.

        No other machine may claim the same node.

        Raises:
            StaleObject: the object was replaced; its change brings the next pass.
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
        # The machine's annotations; the end of the preservation is cleared after everything else.
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
            # Recovered, or no longer preserved: the remaining Pods may stay.
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
        """Start or check a drain.

        Returns:
            True: it succeeded. False: it failed and was started again. None: it is running.
        """
        is_ours = machine.uid in self._draining
        progress = self._drains.progress(machine.uid) if is_ours else None
        if progress is not None and progress.state is DrainState.DONE:
            # Forget it: a later deletion must check the node itself.
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
        """Stop the drain that the preservation started; a drain of another part continues."""
        if uid in self._draining:
            self._draining.discard(uid)
            await self._drains.stop(uid)

    def forget(self, uid: str) -> None:
        """Forget a machine that is being deleted: the deletion drains its node."""
        self._draining.discard(uid)

    async def _write_expiry(self, machine: Machine, until: datetime | None) -> Machine:
        codec = self._context.codec
        written = await self._context.write.change(
            machine, PatchStep(lambda obj: codec.preserved(obj, machine, until), "status")
        )
        if written.obj is None:
            raise StaleObject
        if not written.changed:
            # Another pass wrote it, and recorded the event.
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
    """The part of in-place updates that acts on nodes, as `ccm.machines.in_place_update` decides.

    No Pod is evicted before a live read confirmed that this very node is selected. The next pass
    repeats interrupted steps: an empty node is drained in a moment.

    Args:
        context: shared objects of the machine controller.
    """

    def __init__(self, context: MachineContext) -> None:
        self._context, self._drains = context, context.drains
        self._draining: dict[str, str] = {}
        """Key of a machine -> its UID, while an update's drain runs."""

    async def run(self, machine: Machine, *, is_contested: bool) -> float | None:
        """Reconcile the update of a machine; return the requeue delay.

        Raises:
            StaleObject: the object was replaced; its change brings the next pass.
            KubeError: a read or a write failed.
        """
        key, settings = machine.key, self._context.settings
        node, decision = self._context.own_node_of(machine), in_place_update.REST
        if node is not None and not is_contested:
            decision = in_place_update.decide(machine, node, settings)
        if not decision.drains and (uid := self._draining.pop(key, None)) is not None:
            self._context.log.info("in-place update cancelled", machine=key)
            await self._drains.stop(uid)
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
        """Forget a machine that is gone or being deleted: the deletion takes over its drain."""
        self._draining.pop(key, None)

    async def _prepare(
        self, machine: Machine, node: Node, decision: in_place_update.UpdateDecision
    ) -> float | None:
        """Drain the node, then hand it to its updater; return the requeue delay."""
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
            # Before the condition: the node may vanish as soon as its updater has it.
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
        """Start or check a drain.

        Returns:
            Empty: it succeeded. None: it is running. Else the reason of its failure.
        """
        settings = self._context.settings
        if self._draining.get(machine.key) != machine.uid:
            live = None
            with suppress(NotFound):
                live = await self._context.nodes.get(node.name)
            if live is None or not in_place_update.decide(machine, live, settings).drains:
                return None  # The change reaches the cache, and requeues the machine.
            self._draining[machine.key] = machine.uid
            task = in_place_update.task(machine, live, self._context.caches.now(), settings)
            self._drains.start(task, lambda: self._context.wake((machine.key,)))
        progress = self._drains.progress(machine.uid)
        if progress is None or progress.state is DrainState.FAILED:
            # The next pass starts it again.
            del self._draining[machine.key]
            return "- the drain was stopped" if progress is None else progress.message
        return "" if progress.state is DrainState.DONE else None

"""Looks after machines that have a VM: their nodes, the phases that follow from those, their
preservation, and updates in place.

What follows is decided in `ccm.machines.health`. A machine is given up for its node only after the
API server was asked about the node once more, past the cache, and in its turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from ccm.base import clock, redact
from ccm.cloud.errors import CloudError, NotOwned
from ccm.controllers.machine.context import Context
from ccm.kube.errors import KubeError, NotFound
from ccm.machines import (
    deletion,
    health,
    inplace,
    metrics,
    nodesync,
    preservation,
    reasons,
    replacing,
)
from ccm.machines.creation import SHORT_S, Outcome, says_nothing_new
from ccm.machines.drain import DrainState
from ccm.machines.health import Cause, Moment, Spell
from ccm.machines.preservation import Action
from ccm.machines.replacing import Replacements
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_uid
from ccm.model.patches import StaleObject
from ccm.model.times import format_time
from ccm.runtime import writer
from ccm.runtime.writer import Step

BLIND_S = 10.0
"""What is seen of nodes counts for nothing while they cannot be followed; looked at again then."""

OUTAGE_S = 30.0
"""Nodes that could not be followed for so long could not report either: the time of their machines
begins anew (reference, default of --machine-safety-apiserver-statuscheck-timeout)."""

SETTLE_S = 30.0
"""For so long after an outage nobody falls sick: nodes need a while to report (reference, the pause
after its freeze)."""


class Health:
    """Looks after machines that have a VM.

    Args:
        context: what the parts of the controller share.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._caches, self._vms = context, context.caches, context.vms
        self._nodes = context.nodes
        self._by_node: dict[str, set[str]] = {}
        self._spells: dict[str, Spell] = {}
        self._replacements = Replacements(context.settings.creation_timeout_s)
        self._held: set[str] = set()

    async def run(self, machine: Machine) -> Outcome:
        """One pass over a machine.

        Raises:
            StaleObject: the object is another now; a change of it brings it back.
            KubeError: the node could not be read, or a write failed.
        """
        if not self._caches.settings.has_target:
            return Outcome()
        if self.is_contested(machine):
            self._forgo(machine)
            return Outcome()
        node, fault = self._context.node_of(machine), None
        if node is not None and node.is_deleting:
            await self._replace(machine, node)
            return Outcome()
        if node is not None:
            try:
                if await self._owns(machine, node):
                    node = await self._sync_node(machine, node)
                elif machine.phase is Phase.PENDING and deletion.is_its_node(machine, node):
                    # It joins once it is proved to be the machine's, or is late.
                    outcome = await self._judge(machine, None)
                    return replace(outcome, after_s=sooner(outcome.after_s, SHORT_S))
            except KubeError as error:
                # A node is in use only with all that it should have. But one that cannot be
                # written may be sick all the same.
                if machine.phase is Phase.PENDING:
                    raise
                fault = error
        outcome = await self._judge(machine, node)
        if fault is not None:
            raise fault
        return outcome

    # --- its health -------------------------------------------------------------------------

    async def _judge(self, machine: Machine, node: Node | None) -> Outcome:
        if self._is_blind(machine, node):
            return Outcome(after_s=BLIND_S)
        now, settings = _now(), self._caches.settings
        found = health.look(machine, node, self._spell(machine, now), now, settings)
        if found.cause is Cause.LATE:
            return await self._give_up(machine)
        if found.cause in (Cause.SICK, Cause.GONE) and (left_s := self._settling_s(now)) > 0:
            return Outcome(after_s=left_s)
        outcome, seen = health.copied(machine, node, found.spell, now, settings)
        self._spells[machine.key] = seen
        if found.cause is not None:
            outcome = health.changed(machine, node, found.cause, now, settings)
        outcome = replace(outcome, after_s=sooner(outcome.after_s, found.after_s))
        outcome = await self._context.settle(machine, outcome)
        if machine.phase in health.TIMEOUTS:
            # In another phase it may have been given up a moment ago.
            self._forgo(machine)
        return outcome

    async def _give_up(self, machine: Machine) -> Outcome:
        """The node was not what it should be for too long: the machine fails, in its turn."""
        in_turn = health.TIMEOUTS[machine.phase].in_turn
        if in_turn and (obstacle := self._replacements.claim(machine, clock.monotonic())):
            self._say_held(machine, obstacle.why)
            return Outcome(after_s=obstacle.wait_s)
        self._held.discard(machine.key)
        fails = False
        try:
            outcome = await self._confirmed(machine)
            fails = outcome.status is not None and outcome.status.phase is Phase.FAILED
            return await self._context.settle(machine, outcome)
        finally:
            # Where the write may have reached the server the turn stands, whatever became of it.
            if not fails:
                self._forgo(machine)

    async def _confirmed(self, machine: Machine) -> Outcome:
        """What the API server says of the node, past the cache.

        Raises:
            KubeError: it says nothing.
        """
        node, settings = None, self._caches.settings
        if machine.node_name:
            with suppress(NotFound):
                node = await self._nodes.get(machine.node_name)
        now = _now()
        found = health.look(machine, node, self._spell(machine, now), now, settings)
        self._spells[machine.key] = found.spell
        if found.cause is None:
            return Outcome(after_s=found.after_s)
        outcome = health.changed(machine, node, found.cause, now, settings)
        assert outcome.status is not None
        moment = self._caches.now_since(machine.uid, machine.status.preserve_until)
        status = preservation.kept(machine, outcome.status, node, moment, settings)
        return replace(outcome, status=status)

    def _spell(self, machine: Machine, now: Moment) -> Spell:
        """The phase of the machine; a time in which nodes could not be followed is not part."""
        aged = self._caches.ages.by(now.wall, machine)
        found = health.spell(aged, self._spells.get(machine.key), now)
        ended = self._outage_ended()
        if ended is not None and found.began_s < ended:
            found = health.restarted(found, ended)
        self._spells[machine.key] = found
        return found

    def _outage_ended(self) -> float | None:
        """When the last time was over in which nodes could not report; None: there was none."""
        began, ended = self._caches.nodes.last_trouble
        return ended if ended - began >= OUTAGE_S else None

    def _settling_s(self, now: Moment) -> float:
        """For how long nodes may still say nothing after an outage."""
        ended = self._outage_ended()
        return 0.0 if ended is None else ended + SETTLE_S - now.steady_s

    def _is_blind(self, machine: Machine, node: Node | None) -> bool:
        """Whether the cache of nodes may say of this one what is not so."""
        nodes, unreadable = self._caches.nodes, self._caches.nodes.undecodable
        return (
            nodes.trouble_since is not None
            or machine.node_name in unreadable
            or (node is None and "" in unreadable)
        )

    def _forgo(self, machine: Machine) -> None:
        self._context.wake(self._replacements.release(machine))
        self._held.discard(machine.key)
        metrics.WAITING.set(len(self._replacements.waiting))

    def _say_held(self, machine: Machine, why: str) -> None:
        metrics.WAITING.set(len(self._replacements.waiting))
        if machine.key in self._held:
            return
        self._held.add(machine.key)
        self._context.log.warning("machine is not replaced yet", machine=machine.key, reason=why)
        text = f"Its node is sick, and it is not replaced yet: {why}"
        self._context.tell(machine, WARNING, reasons.REASON_REPLACEMENT_HELD, text)

    # --- its node ---------------------------------------------------------------------------

    def is_contested(self, machine: Machine) -> bool:
        """Whether another machine claims its node: nobody knows whose health it shows."""
        others = self._by_node.get(machine.node_name, set()) - {machine.key}
        if machine.node_name and others:
            self._context.log.warning(
                "node belongs to several machines", node=machine.node_name, machine=machine.key
            )
            return True
        return False

    async def _owns(self, machine: Machine, node: Node) -> bool:
        """Return whether the node may be changed, and tell if it is another machine's."""
        if self._vms.owns_node(machine, node):
            return True
        if not deletion.is_its_node(machine, node):
            said = f"node {node.name} has the provider ID {node.provider_id} and is left alone"
            self._context.tell(machine, WARNING, reasons.REASON_VM_NOT_OWNED, said)
            return False
        try:
            await self._vms.confirm(machine, self._caches.class_of(machine))
        except NotOwned as error:
            text = redact.public(str(error))
            self._context.tell(machine, WARNING, reasons.REASON_VM_NOT_OWNED, text)
        except CloudError as error:
            self._context.log.warning(
                "owner of the VM could not be confirmed, node is left alone",
                machine=machine.key,
                node=node.name,
                error=str(error),
            )
        return self._vms.owns_node(machine, node)

    async def _sync_node(self, machine: Machine, node: Node) -> Node | None:
        """Bring the node in step with the machine; the node as it is then."""
        settings = self._caches.settings
        extra = self._caches.class_of(machine).extra_capacity
        arrival = self._caches.arrivals.notes(controller_uid(machine))
        written = await self._context.write_nodes.change(
            node,
            Step(lambda one: nodesync.patch(machine, one, settings, arrival)),
            Step(lambda one: nodesync.capacity_patch(one, extra, settings), "status"),
            Step(lambda one: nodesync.capacity_note(one, extra, settings)),
        )
        return written.obj

    async def _replace(self, machine: Machine, cached: Node) -> None:
        """Somebody deleted the node: its machine goes with it. Asked once more, past the cache."""
        try:
            node = await self._nodes.get(cached.name)
        except NotFound:
            return
        if not deletion.is_its_node(machine, node):
            # That of another VM, which has its name: no word about this one.
            return
        if node.uid == cached.uid and node.is_deleting:
            self._context.log.info("node is being deleted, so is its machine", machine=machine.key)
            await writer.delete(self._context.machines, machine)

    # --- the caches ---------------------------------------------------------------------------

    def machine_changed(self, old: Machine | None, new: Machine | None, *, initial: bool) -> None:
        """Note a machine that changed, or that was there before this process."""
        found = new or old
        if found is None:
            return
        key = found.key
        if old is not None and (keys := self._by_node.get(old.node_name)) is not None:
            keys.discard(key)
            if not keys:
                del self._by_node[old.node_name]
        if new is not None and new.node_name:
            self._by_node.setdefault(new.node_name, set()).add(key)
        if new is None:
            self._spells.pop(key, None)
            self._held.discard(key)
        elif key not in self._spells:
            now = _now()
            self._spells[key] = health.spell(self._caches.ages.by(now.wall, new), None, now)
        age_s = None
        if initial and new is not None:
            age_s = max(0.0, self._caches.ages.since(new.uid, replacing.began(new)))
        self._context.wake(self._replacements.note(key, new, clock.monotonic(), age_s=age_s))
        metrics.WAITING.set(len(self._replacements.waiting))

    def on_node(self, name: str) -> Iterable[str]:
        """Keys of the machines of a node."""
        return tuple(self._by_node.get(name, ()))


def sooner(*moments: float | None) -> float | None:
    """The soonest of some waits; None = never."""
    return min((one for one in moments if one is not None), default=None)


def _now() -> Moment:
    return Moment(wall=clock.now(), steady_s=clock.monotonic())


# --- preservation ---------------------------------------------------------------------------------


class Preserver:
    """Preserves machines as `ccm.machines.preservation` decides.

    The status of a preserved machine is written first, and ended last: the next pass completes a
    pass that was cut short.

    Args:
        context: what the parts of the controller share.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._caches = context, context.caches
        self._drains = context.drains
        self._draining: set[str] = set()

    async def run(self, machine: Machine) -> float | None:
        """Pass over a machine whose node no other claims; when the next pass is due.

        Raises:
            StaleObject: the object was replaced; its change brings the next pass.
            KubeError: a write failed.
        """
        node, settings = self._context.own_node_of(machine), self._context.settings
        now = self._caches.now_since(machine.uid, machine.status.preserve_until)
        found = preservation.decide(machine, node, now, settings)
        if found.action is Action.NOTHING or (node is not None and node.is_deleting):
            return None
        if found.action is Action.PRESERVE and machine.status.preserve_until is None:
            machine = await self._until(machine, found.until)
        waits_s = None
        if node is not None:
            waits_s = await self._on_node(machine, node, found)
        # Annotations of the machine; and that it is kept no longer, after all else.
        written = await self._context.write.change(
            machine, Step(lambda one: preservation.machine_patch(one, found, settings))
        )
        if written.obj is not None and found.action is Action.STOP and found.until is not None:
            await self._until(written.obj, None)
        if found.action is Action.PRESERVE:
            assert found.until is not None
            return sooner(waits_s, max(0.0, (found.until - now).total_seconds()) + 1)
        return None

    async def _on_node(
        self, machine: Machine, node: Node, found: preservation.Decision
    ) -> float | None:
        """What stands on the node; when its drain is looked at again."""
        settings, drained, waits_s = self._caches.settings, None, None
        kept = await self._context.write_nodes.change(
            node, Step(lambda one: preservation.node_patch(machine, one, found, settings))
        )
        if kept.obj is None:
            return None
        if preservation.wants_drain(machine, node, found, settings):
            drained = await self._drained(machine, kept.obj)
            # While it goes on, it wakes us.
            waits_s = SHORT_S if drained is False else None
        else:
            # It is well again, or kept no longer: its Pods may stay.
            await self._stop(machine.uid)
        now = clock.now()
        await self._context.write_nodes.change(
            kept.obj,
            Step(
                lambda one: preservation.condition_patch(
                    machine, one, found, now, settings, drained=drained
                ),
                "status",
            ),
        )
        return waits_s

    async def _drained(self, machine: Machine, node: Node) -> bool | None:
        """Begin a drain, or look at it: True, it ended well; False, it is begun anew; None, it
        goes on.
        """
        is_ours = machine.uid in self._draining
        progress = self._drains.progress(machine.uid) if is_ours else None
        if progress is not None and progress.state is DrainState.DONE:
            # Forgotten: whoever ends the machine looks for himself.
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
        """End the drain that was begun here; one that is for another end goes on."""
        if uid in self._draining:
            self._draining.discard(uid)
            await self._drains.stop(uid)

    def forget(self, uid: str) -> None:
        """The machine goes: whoever ends it drains its node."""
        self._draining.discard(uid)

    async def _until(self, machine: Machine, until: datetime | None) -> Machine:
        codec = self._context.codec
        written = await self._context.write.change(
            machine, Step(lambda one: codec.preserved(one, machine, until), "status")
        )
        if written.obj is None:
            raise StaleObject
        if not written.changed:
            # Another writer was faster, and told of it.
            return written.obj
        reason, text = reasons.REASON_PRESERVED_ENDED, "It is kept no longer"
        if until is not None:
            reason = reasons.REASON_PRESERVED
            text = f"It is kept until {format_time(until)}, even if it fails"
        log = self._context.log
        log.info("preservation of machine changed", machine=machine.key, after=text)
        self._context.tell(machine, NORMAL, reason, text)
        return written.obj


# --- updates in place -----------------------------------------------------------------------------


class Updater:
    """The part of updates in place that is done on nodes, as `ccm.machines.inplace` decides.

    No Pod is evicted before the API server has confirmed, past the cache, that this very node is
    chosen. The next pass repeats what was cut short: an empty node is drained in a moment.

    Args:
        context: what the parts of the controller share.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._drains = context, context.drains
        self._draining: dict[str, str] = {}
        """UIDs of machines whose drains were begun here, by their keys."""

    async def run(self, machine: Machine, *, is_contested: bool) -> float | None:
        """Pass over a machine; when the next pass is due though nothing changes.

        Raises:
            StaleObject: the object was replaced; its change brings the next pass.
            KubeError: a read or a write failed.
        """
        key, settings = machine.key, self._context.settings
        node, found = self._context.own_node_of(machine), inplace.REST
        if node is not None and not is_contested:
            found = inplace.decide(machine, node, settings)
        if not found.drains and (uid := self._draining.pop(key, None)) is not None:
            self._context.log.info("node is not updated in place after all", machine=key)
            await self._drains.stop(uid)
        if node is None or found == inplace.REST:
            return None
        if not found.says:
            return await self._prepared(machine, node, found)
        # A change of the node brings the machine back.
        now = clock.now()
        await self._context.write_nodes.change(
            node, Step(lambda one: inplace.step_patch(machine, one, now, settings), "status")
        )
        return None

    def forget(self, key: str) -> None:
        """The machine is gone, or goes: its drain, if there is one, is another's by then."""
        self._draining.pop(key, None)

    async def _prepared(
        self, machine: Machine, node: Node, found: inplace.Decision
    ) -> float | None:
        """Empty the node, then hand it over; when to look again though nothing changes."""
        now, settings = clock.now(), self._context.settings
        if found.drains:
            failure = await self._drained(machine, node)
            if failure is None:
                return None  # It wakes us.
            if failure:
                status = inplace.undrained(machine, failure, now)
                if not says_nothing_new(machine.status, status):
                    await self._context.settle(machine, Outcome(status=status))
                return SHORT_S
        if machine.phase is not Phase.UPDATING:
            # First, for the node may be gone a moment after it was handed over.
            await self._context.settle(machine, Outcome(status=inplace.begun(machine, now)))
        await self._context.write_nodes.change(
            node, Step(lambda one: inplace.ready_patch(machine, one, now, settings), "status")
        )
        if self._draining.pop(machine.key, None) is not None:
            await self._drains.stop(machine.uid)
        return None

    async def _drained(self, machine: Machine, node: Node) -> str | None:
        """Begin a drain, or look at it: empty, it ended well; None, it goes on; else why not."""
        settings = self._context.settings
        if self._draining.get(machine.key) != machine.uid:
            live = None
            with suppress(NotFound):
                live = await self._context.nodes.get(node.name)
            if live is None or not inplace.decide(machine, live, settings).drains:
                return None  # The cache learns of it, too.
            self._draining[machine.key] = machine.uid
            task = inplace.task(machine, live, self._context.caches.now(), settings)
            self._drains.start(task, lambda: self._context.wake((machine.key,)))
        progress = self._drains.progress(machine.uid)
        if progress is None or progress.state is DrainState.FAILED:
            # Begun anew by the next pass.
            del self._draining[machine.key]
            return "- it was ended" if progress is None else progress.said
        return "" if progress.state is DrainState.DONE else None

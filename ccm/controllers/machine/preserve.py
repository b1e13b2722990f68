"""Carries out what `ccm.machines.preservation` decides, on the machine and on its node.

What says that a machine is kept comes first, and goes last: whatever is cut short is finished by
the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from ccm.base import clock, log
from ccm.controllers.machine.health import Health, sooner
from ccm.controllers.machine.remove import Drains
from ccm.machines import preservation, reasons
from ccm.machines.caches import Caches
from ccm.machines.creation import SHORT_S
from ccm.machines.drain import DrainState
from ccm.machines.preservation import Action, Decision
from ccm.model import Node
from ccm.model.machines import Machine
from ccm.model.names import NORMAL
from ccm.model.patches import Patch, StaleObject
from ccm.model.times import format_time
from ccm.runtime.writer import Recorder, Step, Writer


class Preserver:
    """Preserves machines.

    Args:
        caches: the caches.
        health: knows the nodes of machines.
        write: writes Machines.
        write_nodes: writes Nodes.
        events: where events go.
        drains: empties nodes of machines that have failed.
        wake: gives a pass to machines.
    """

    def __init__(
        self,
        caches: Caches,
        *,
        health: Health,
        write: Writer[Machine],
        write_nodes: Writer[Node],
        events: Recorder,
        drains: Drains,
        wake: Callable[[Iterable[str]], None],
    ) -> None:
        self._caches = caches
        self._health = health
        self._write, self._write_nodes = write, write_nodes
        self._events = events
        self._drains = drains
        self._wake = wake
        self._draining: set[str] = set()
        self._log = log.logger("machine")

    async def run(self, key: str) -> float | None:
        """One pass over a machine; when the next is due though nothing changes.

        Raises:
            StaleObject: the object is another now; a change of it brings it back.
            KubeError: a write failed.
        """
        cached = self._caches.machines.store.get(key)
        if cached is None or cached.is_deleting:
            return None
        machine = self._write.newest(cached)
        if self._health.is_contested(machine):
            return None
        node = self._health.own_node_of(machine)
        settings = self._caches.settings
        now = self._caches.now_since(machine.uid, machine.status.preserve_until)
        found = preservation.decide(machine, node, now, settings)
        if found.action is Action.NOTHING or (node is not None and node.is_deleting):
            return None
        if found.action is Action.PRESERVE and machine.status.preserve_until is None:
            machine = await self._until(machine, found.until)
        waits_s = None
        if node is not None:
            waits_s = await self._on_node(machine, node, found)
        await self._wishes(machine, found)
        if found.action is Action.PRESERVE:
            assert found.until is not None
            return sooner(waits_s, max(0.0, (found.until - now).total_seconds()) + 1)
        return None

    async def _on_node(self, machine: Machine, node: Node, found: Decision) -> float | None:
        """What stands on the node; when its drain is looked at again."""
        settings, drained, waits_s = self._caches.settings, None, None
        kept = await self._write_nodes.change(
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

        def condition(one: Node) -> Patch | None:
            return preservation.condition_patch(machine, one, found, now, settings, drained=drained)

        await self._write_nodes.change(kept.obj, Step(condition, "status"))
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
            task = preservation.drain_task(machine, node, now, self._caches.settings)
            self._draining.add(machine.uid)
            self._drains.start(task, lambda: self._wake((machine.key,)))
        return False if has_failed else None

    async def _stop(self, uid: str) -> None:
        """End the drain that was begun here; one that is for another end goes on."""
        if uid in self._draining:
            self._draining.discard(uid)
            await self._drains.stop(uid)

    def forget(self, uid: str) -> None:
        """The machine goes: whoever ends it drains its node."""
        self._draining.discard(uid)

    async def _wishes(self, machine: Machine, found: Decision) -> None:
        """Annotations of the machine; and that it is kept no longer, after all else."""
        settings = self._caches.settings
        written = await self._write.change(
            machine, Step(lambda one: preservation.machine_patch(one, found, settings))
        )
        if written.obj is not None and found.action is Action.STOP and found.until is not None:
            await self._until(written.obj, None)

    async def _until(self, machine: Machine, until: datetime | None) -> Machine:
        written = await self._write.change(
            machine,
            Step(lambda one: self._caches.codec.preserved(one, machine, until), "status"),
        )
        if written.obj is None:
            raise StaleObject
        if written.changed:
            self._tell(machine, until)
        return written.obj

    def _tell(self, machine: Machine, until: datetime | None) -> None:
        reason, text = reasons.REASON_PRESERVED_ENDED, "It is kept no longer"
        if until is not None:
            reason = reasons.REASON_PRESERVED
            text = f"It is kept until {format_time(until)}, even if it fails"
        self._log.info("preservation of machine changed", machine=machine.key, after=text)
        self._events.event(self._caches.codec.machines.reference(machine), NORMAL, reason, text)

"""Carries out what `ccm.machines.preservation` decides, on the machine and on its node.

What says that a machine is kept comes first, and goes last: whatever is cut short is finished by
the next pass.
"""

from __future__ import annotations

from datetime import datetime

from ccm.base import clock
from ccm.controllers.machine.context import Context
from ccm.controllers.machine.health import sooner
from ccm.machines import preservation, reasons
from ccm.machines.creation import SHORT_S
from ccm.machines.drain import DrainState
from ccm.machines.preservation import Action, Decision
from ccm.model import Node
from ccm.model.machines import Machine
from ccm.model.names import NORMAL
from ccm.model.times import format_time
from ccm.runtime.writer import Step


class Preserver:
    """Preserves machines.

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

    async def _on_node(self, machine: Machine, node: Node, found: Decision) -> float | None:
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
            task = preservation.drain_task(machine, node, now, self._caches.settings)
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
        after = await self._context.save(
            machine, lambda one: codec.preserved(one, machine, until), "status"
        )
        reason, text = reasons.REASON_PRESERVED_ENDED, "It is kept no longer"
        if until is not None:
            reason = reasons.REASON_PRESERVED
            text = f"It is kept until {format_time(until)}, even if it fails"
        log = self._context.log
        log.info("preservation of machine changed", machine=machine.key, after=text)
        self._context.tell(machine, NORMAL, reason, text)
        return after

"""Carries out what `ccm.machines.updating` decides: empties a node, and hands it over.

Nothing is evicted before the API server said once more, past the cache, that this very node is
chosen. What is cut short is done again by the next pass: an empty node is drained in a moment.
"""

from __future__ import annotations

from contextlib import suppress

from ccm.base import clock
from ccm.controllers.machine.context import Context
from ccm.kube.errors import NotFound
from ccm.machines import updating
from ccm.machines.creation import SHORT_S, Outcome
from ccm.machines.drain import DrainState
from ccm.machines.statuses import says_nothing_new
from ccm.machines.updating import Decision
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.runtime.writer import Step


class Updater:
    """The part of updates in place that is done on nodes.

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
        node, found = self._context.own_node_of(machine), updating.NOTHING
        if node is not None and not is_contested:
            found = updating.decide(machine, node, settings)
        if not found.drains and (uid := self._draining.pop(key, None)) is not None:
            self._context.log.info("node is not updated in place after all", machine=key)
            await self._drains.stop(uid)
        if node is None or found == updating.NOTHING:
            return None
        if not found.says:
            return await self._prepared(machine, node, found)
        # A change of the node brings the machine back.
        now = clock.now()
        await self._context.write_nodes.change(
            node, Step(lambda one: updating.step_patch(machine, one, now, settings), "status")
        )
        return None

    def forget(self, key: str) -> None:
        """The machine is gone, or goes: its drain, if there is one, is another's by then."""
        self._draining.pop(key, None)

    async def _prepared(self, machine: Machine, node: Node, found: Decision) -> float | None:
        """Empty the node, then hand it over; when to look again though nothing changes."""
        now, settings = clock.now(), self._context.settings
        if found.drains:
            failure = await self._drained(machine, node)
            if failure is None:
                return None  # It wakes us.
            if failure:
                status = updating.undrained(machine, failure, now)
                if not says_nothing_new(machine.status, status):
                    await self._context.settle(machine, Outcome(status=status))
                return SHORT_S
        if machine.phase is not Phase.UPDATING:
            # First, for the node may be gone a moment after it was handed over.
            await self._context.settle(machine, Outcome(status=updating.begun(machine, now)))
        await self._context.write_nodes.change(
            node, Step(lambda one: updating.ready_patch(machine, one, now, settings), "status")
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
            if live is None or not updating.decide(machine, live, settings).drains:
                return None  # The cache learns of it, too.
            self._draining[machine.key] = machine.uid
            task = updating.drain_task(machine, live, clock.now(), settings)
            self._drains.start(task, lambda: self._context.wake((machine.key,)))
        progress = self._drains.progress(machine.uid)
        if progress is None or progress.state is DrainState.FAILED:
            # Begun anew by the next pass.
            del self._draining[machine.key]
            return "- it was ended" if progress is None else progress.said
        return "" if progress.state is DrainState.DONE else None

"""Carries out what `ccm.machines.updating` decides: empties a node, and hands it over.

Nothing is evicted before the API server said once more, past the cache, that this very node is
chosen. What is cut short is done again by the next pass: an empty node is drained in a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ccm.base import clock, log
from ccm.controllers.machine.health import Health, Settle
from ccm.controllers.machine.remove import Drains
from ccm.kube.errors import NotFound
from ccm.machines import updating
from ccm.machines.caches import Caches
from ccm.machines.creation import SHORT_S, Outcome
from ccm.machines.drain import DrainState
from ccm.machines.statuses import says_nothing_new
from ccm.machines.updating import Decision
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.model.patches import Patch
from ccm.runtime.writer import Step, Writer


class ReadsNodes(Protocol):
    """Reads nodes."""

    async def get(self, name: str) -> Node:
        """One, past the cache."""
        ...


class Updater:
    """The part of updates in place that is done on nodes.

    Args:
        caches: the caches.
        health: knows the nodes of machines.
        write: knows the newest state of Machines.
        nodes: reads Nodes.
        write_nodes: writes them.
        drains: empties them.
        settle: writes what came of a pass.
        wake: gives a pass to machines.
    """

    def __init__(
        self,
        caches: Caches,
        *,
        health: Health,
        write: Writer[Machine],
        nodes: ReadsNodes,
        write_nodes: Writer[Node],
        drains: Drains,
        settle: Settle,
        wake: Callable[[Iterable[str]], None],
    ) -> None:
        self._caches = caches
        self._health = health
        self._write = write
        self._nodes, self._write_nodes = nodes, write_nodes
        self._drains = drains
        self._settle = settle
        self._wake = wake
        self._draining: dict[str, str] = {}
        """UIDs of machines whose drains were begun here, by their keys."""
        self._log = log.logger("machine")

    async def run(self, key: str) -> float | None:
        """One pass over a machine; when the next is due though nothing changes.

        Raises:
            StaleObject: the object is another now; a change of it brings it back.
            KubeError: a read or a write failed.
        """
        cached = self._caches.machines.store.get(key)
        if cached is None or cached.is_deleting:
            return None
        machine = self._write.newest(cached)
        node, found = self._health.own_node_of(machine), updating.NOTHING
        if node is not None and not self._health.is_contested(machine):
            found = updating.decide(machine, node, self._caches.settings)
        if not found.drains and (uid := self._draining.pop(key, None)) is not None:
            self._log.info("node is not updated in place after all", machine=key)
            await self._drains.stop(uid)
        if node is None or found == updating.NOTHING:
            return None
        if found.says:
            await self._say(machine, node)
            return None
        return await self._prepared(machine, node, found)

    def forget(self, key: str) -> None:
        """The machine is gone, or goes: its drain, if there is one, is another's by then."""
        self._draining.pop(key, None)

    async def _say(self, machine: Machine, node: Node) -> None:
        """The next step; a change of the node brings the machine back."""
        now, settings = clock.now(), self._caches.settings

        def step(one: Node) -> Patch | None:
            return updating.step_patch(machine, one, now, settings)

        await self._write_nodes.change(node, Step(step, "status"))

    async def _prepared(self, machine: Machine, node: Node, found: Decision) -> float | None:
        """Empty the node, then hand it over; when to look again though nothing changes."""
        now, settings = clock.now(), self._caches.settings
        if found.drains:
            failure = await self._drained(machine, node)
            if failure is None:
                return None  # It wakes us.
            if failure:
                status = updating.undrained(machine, failure, now)
                if not says_nothing_new(machine.status, status):
                    await self._settle(machine, Outcome(status=status))
                return SHORT_S
        if machine.phase is not Phase.UPDATING:
            # First, for the node may be gone a moment after it was handed over.
            await self._settle(machine, Outcome(status=updating.begun(machine, now)))

        def ready(one: Node) -> Patch | None:
            return updating.ready_patch(machine, one, now, settings)

        await self._write_nodes.change(node, Step(ready, "status"))
        if self._draining.pop(machine.key, None) is not None:
            await self._drains.stop(machine.uid)
        return None

    async def _drained(self, machine: Machine, node: Node) -> str | None:
        """Begin a drain, or look at it: empty, it ended well; None, it goes on; else why not."""
        settings = self._caches.settings
        if self._draining.get(machine.key) != machine.uid:
            try:
                node = await self._nodes.get(node.name)
            except NotFound:
                return None
            if not updating.decide(machine, node, settings).drains:
                return None  # The cache learns of it, too.
            self._draining[machine.key] = machine.uid
            task = updating.drain_task(machine, node, clock.now(), settings)
            self._drains.start(task, lambda: self._wake((machine.key,)))
        progress = self._drains.progress(machine.uid)
        if progress is None or progress.state is DrainState.FAILED:
            # Begun anew by the next pass.
            del self._draining[machine.key]
            return "- it was ended" if progress is None else progress.said
        return "" if progress.state is DrainState.DONE else None

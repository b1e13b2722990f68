"""Drains of nodes, each in a task of its own, so that a long drain occupies no worker.

A pass over a machine starts the drain of its node. On progress the machine is requeued, and the
next pass reads the progress. Drains are kept in memory only; after a restart, the next pass over a
machine starts its drain again. A drain runs in the context of the pass that started it, so that the
lease also guards its writes. All drains end with the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.controllers.machine.evictions import DrainDependencies, DrainFailed, NodeDrain
from ccm.machines import drain, reasons
from ccm.machines.drain import DrainProgress, DrainState, DrainTask
from ccm.machines.driver import SharedComponents
from ccm.model import Node
from ccm.model.names import NORMAL, WARNING
from ccm.runtime.writer import Recorder

NOTICE_S = 5.0
"""Seconds for which progress of a drain is collected before the machine is requeued. The end of a
drain requeues the machine at once."""


@dataclass(slots=True, kw_only=True)
class _Drain:
    """One drain, running or ended."""

    task: DrainTask
    wake: Callable[[], None]
    evictions: NodeDrain
    progress: DrainProgress
    began_s: float
    last_event: str = ""
    was_blocked: bool = False
    job: asyncio.Task[None] | None = None
    notice: asyncio.TimerHandle | None = field(default=None)

    @property
    def state(self) -> str:
        """State for metrics."""
        is_blocked = self.progress.state is DrainState.RUNNING and self.evictions.tally.blocked
        return "blocked" if is_blocked else self.progress.state.value

    def next_began_s(self) -> float:
        """Return the start of the drain that replaces this one: a failed drain only goes on."""
        is_failed = self.progress.state is DrainState.FAILED
        return self.began_s if is_failed else clock.monotonic()

    def serves(self, task: DrainTask) -> bool:
        """Return whether this drain can be used for a task.

        False if this drain failed, or differs from the task in `terminating` or `cordon`.
        """
        ends = [(candidate.terminating, candidate.cordon) for candidate in (self.task, task)]
        return ends[0] == ends[1] and self.progress.state is not DrainState.FAILED


class Drainer:
    """All drains of a daemon.

    Args:
        shared: components of all machine controllers.
        settings: settings from flags.
        events: recorder of events on machines; None = no events.
    """

    def __init__(
        self,
        *,
        shared: SharedComponents,
        settings: drain.DrainSettings | None = None,
        events: Recorder | None = None,
    ) -> None:
        self._caches = shared.caches
        self._events = events
        self._drains: dict[str, _Drain] = {}
        self._handler: Any = None
        self._tools = DrainDependencies(shared, settings or drain.DrainSettings())
        self._log = self._tools.log

    def start(self, task: DrainTask, wake: Callable[[], None]) -> None:
        """Start or continue the drain of a machine's node.

        A running drain continues, with force if the task requests it. A complete drain stays
        complete. A failed drain, and a drain that differs in `terminating` or `cordon`, is replaced
        by a new drain.

        Args:
            task: the task.
            wake: called on progress.
        """
        known = self._drains.get(task.machine.uid)
        if known is not None and known.serves(task):
            known.wake = wake
            if task.force:
                known.evictions.force()
            return
        if self._handler is None:
            self._handler = self._caches.nodes.add_handler(
                name="drain", on_update=lambda _, new: self._node_changed(new)
            )
        entry = _Drain(
            task=task,
            wake=wake,
            evictions=NodeDrain(task, self._tools, lambda: self._changed(entry)),
            progress=DrainProgress(state=DrainState.RUNNING, message="", forced=task.force),
            began_s=clock.monotonic() if known is None else known.next_began_s(),
            last_event=known.last_event if known is not None else "",
        )
        self._drains[task.machine.uid] = entry
        before = known.job if known is not None else None
        if known is not None and before is not None:
            _settle(known)
            before.cancel()
        entry.job = spawn(self._run(entry, before), name=f"drain-{task.node_name}")

    def progress(self, uid: str) -> DrainProgress | None:
        """Return the progress of a machine's drain; None = this process has not started one."""
        entry = self._drains.get(uid)
        if entry is None:
            return None
        if entry.progress.state is not DrainState.RUNNING:
            return entry.progress
        tally = entry.evictions.tally
        return DrainProgress(state=DrainState.RUNNING, message=tally.summary(), forced=tally.forced)

    def states(self) -> Sequence[tuple[str, float]]:
        """Return state and age in seconds of each drain that has not ended."""
        now_s = clock.monotonic()
        return [
            (entry.state, now_s - entry.began_s)
            for entry in self._drains.values()
            if entry.progress.state is not DrainState.DONE
        ]

    async def stop(self, uid: str) -> None:
        """Stop and forget a machine's drain; Pods that were evicted still terminate."""
        if (entry := self._drains.pop(uid, None)) is not None:
            _settle(entry)
            await cancel_and_join(entry.job)

    async def run_until_cancelled(self) -> None:
        """Wait for cancellation, then stop all drains."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            entries, self._drains = list(self._drains.values()), {}
            if self._handler is not None:
                self._caches.nodes.remove_handler(self._handler)
                self._handler = None
            for entry in entries:
                _settle(entry)
            await cancel_and_join(*(entry.job for entry in entries))

    async def _run(self, entry: _Drain, before: asyncio.Task[None] | None) -> None:
        await cancel_and_join(before)
        started, evictions = clock.monotonic(), entry.evictions
        state, text = DrainState.DONE, ""
        self._log.info("drain started", machine=entry.task.machine.key, node=entry.task.node_name)
        try:
            await evictions.run()
        except DrainFailed as error:
            state, text = DrainState.FAILED, str(error)
        except Exception as error:  # noqa: BLE001 - a defect must not look like a running drain
            self._log.error("drain failed unexpectedly", exc_info=error)
            state, text = DrainState.FAILED, f"- {error}"
        tally = evictions.tally
        text = text or tally.summary()
        entry.progress = DrainProgress(state=state, message=text, forced=tally.forced)
        self._ended(entry, clock.monotonic() - started)

    def _ended(self, entry: _Drain, took_s: float) -> None:
        _settle(entry)
        machine, progress = entry.task.machine, entry.progress
        facts = {"machine": machine.key, "node": entry.task.node_name, "forced": progress.forced}
        if progress.state is DrainState.DONE:
            self._log.info("node drained", **facts, took_s=round(took_s, 3))
            if entry.evictions.tally.total or entry.last_event:
                # No event for a node that had no Pods to remove: a rollout has many such nodes.
                self._record_event(
                    entry, NORMAL, reasons.REASON_DRAINED, f"node drained: {progress.message}"
                )
        else:
            self._log.warning("drain failed", **facts, error=progress.message)
            text = f"drain failed due to {progress.message}"
            self._record_event(entry, WARNING, reasons.REASON_DRAIN_FAILED, text)
        entry.wake()

    def _changed(self, entry: _Drain) -> None:
        if entry.notice is None:
            loop = asyncio.get_running_loop()
            entry.notice = loop.call_later(NOTICE_S, self._notice, entry)

    def _notice(self, entry: _Drain) -> None:
        entry.notice = None
        tally = entry.evictions.tally
        # One event per drain, because the blocked Pods change every few seconds.
        if tally.blocked and not entry.was_blocked:
            entry.was_blocked = True
            text = f"drain waits: {tally.summary()}"
            self._record_event(entry, WARNING, reasons.REASON_DRAIN_BLOCKED, text)
        entry.wake()

    def _record_event(self, entry: _Drain, kind: str, reason: str, text: str) -> None:
        """Record an event, unless the last event of the drain had the same text."""
        if self._events is not None and entry.last_event != text:
            entry.last_event = text
            self._events.event(
                self._caches.codec.machines.reference(entry.task.machine), kind, reason, text
            )

    def _node_changed(self, node: Node) -> None:
        for entry in self._drains.values():
            if entry.task.node_name == node.name:
                entry.evictions.check_node()


def _settle(entry: _Drain) -> None:
    if entry.notice is not None:
        entry.notice.cancel()
        entry.notice = None

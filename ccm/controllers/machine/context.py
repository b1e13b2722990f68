"""What the parts of the machine controller share, and how a pass over a machine ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

from ccm.base import log
from ccm.controllers.machine.tokens import Tokens
from ccm.kube.resources import NODES, SECRETS
from ccm.machines import metrics, reasons
from ccm.machines.creation import Outcome
from ccm.machines.drain import DrainProgress, DrainTask
from ccm.machines.driver import Shared
from ccm.machines.settings import Settings
from ccm.model import Node
from ccm.model.machines import Machine, OperationState, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.writer import Recorder, Step, Writer

_TOLD = {
    Phase.UNKNOWN: (WARNING, reasons.REASON_NODE_SICK),
    Phase.FAILED: (WARNING, reasons.REASON_MACHINE_FAILED),
    Phase.RUNNING: (NORMAL, reasons.REASON_NODE_HEALTHY),
    Phase.UPDATING: (NORMAL, reasons.REASON_UPDATE_READY),
    Phase.UPDATED: (NORMAL, reasons.REASON_UPDATE_SUCCESSFUL),
    Phase.UPDATE_FAILED: (WARNING, reasons.REASON_UPDATE_FAILED),
}
"""Phases whose beginning is an event."""


class Drains(Protocol):
    """Empties nodes; keyed by the UID of the machine."""

    def start(self, task: DrainTask, wake: Callable[[], None]) -> None:
        """Drain a node unless that is done; call `wake` on progress."""
        ...

    def progress(self, uid: str) -> DrainProgress | None:
        """Return how far a drain is; None = it was not begun here."""
        ...

    async def stop(self, uid: str) -> None:
        """End a drain, done or not."""
        ...

    async def tend(self) -> None:
        """Wait to be cancelled; then no drain is left under way."""
        ...


class Context:
    """Caches, calls, writers and events of the machine controller.

    Args:
        shared: what the machine controllers share; the caches are ready.
        drains: empties nodes.
        events: where events go.
        rng: jitter.

    Attributes:
        creations_ended: by UID, when the last call ended that may have created a machine's VM.
        wake: gives a pass to machines, by their keys; set by the controller.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        drains: Drains,
        events: Recorder,
        rng: random.Random | None = None,
    ) -> None:
        caches = shared.caches
        self.shared, self.caches, self.codec = shared, caches, caches.codec
        self.driver, self.vms = shared.driver, shared.vms
        self.machines = caches.client.resource(caches.codec.machines)
        self.nodes = caches.target.client.resource(NODES)
        self.write = caches.writer(caches.codec.machines, rng)
        self.write_nodes = Writer(self.nodes, cache=caches.nodes.store, rng=rng)
        self.tokens = Tokens(caches.target.client.resource(SECRETS))
        self.drains, self.events = drains, events
        self.creations_ended: dict[str, float] = {}
        self.wake: Callable[[Iterable[str]], None] = lambda _keys: None
        self.log = log.logger("machine")

    @property
    def settings(self) -> Settings:
        return self.caches.settings

    def node_of(self, machine: Machine) -> Node | None:
        """Return the machine's node as it is, or as we left it; None while it has none."""
        node = self.caches.nodes.store.get(machine.node_name) if machine.node_name else None
        return None if node is None else self.write_nodes.newest(node)

    def own_node_of(self, machine: Machine) -> Node | None:
        """Return the machine's node, if it is proved to be that of its VM."""
        node = self.node_of(machine)
        return node if node is not None and self.vms.owns_node(machine, node) else None

    def tell(self, machine: Machine, kind: str, reason: str, text: str) -> None:
        self.events.event(self.codec.machines.reference(machine), kind, reason, text)

    async def save(
        self, machine: Machine, patch: Callable[[Machine], Patch | None], part: str = ""
    ) -> Machine:
        """Write a machine, and return it as it is then.

        Raises:
            StaleObject: the machine is gone; its change brings the next pass.
            KubeError: the write failed.
        """
        after = (await self.write.change(machine, Step(patch, part))).obj
        if after is None:
            raise StaleObject
        return after

    async def settle(self, machine: Machine, outcome: Outcome) -> Outcome:
        """Write what came of a pass."""
        wanted = outcome.status
        if outcome.joined:
            # Before that is written: a successor that finds the phase would not delete the token.
            took_s = self.caches.ages.of(machine)
            metrics.took("join", machine, self.caches.class_of(machine), took_s)
            await self.tokens.delete(machine, self.settings)
        if wanted is None:
            return outcome
        written = await self.write.change(
            machine, Step(lambda one: self.codec.new_status(one, machine, wanted), "status")
        )
        if written.obj is None:
            raise StaleObject
        if written.obj.phase is not machine.phase:
            self._tell_phase(machine, written.obj)
        if outcome.is_invalid and written.changed:
            self.tell(written.obj, WARNING, reasons.REASON_INVALID, wanted.description)
        return outcome

    def _tell_phase(self, before: Machine, after: Machine) -> None:
        metrics.phase_changed(after.phase)
        # A machine that joined is no news of its health, and there are many.
        joined = after.phase is Phase.RUNNING and before.phase not in (Phase.UNKNOWN, Phase.FAILED)
        if not joined and (told := _TOLD.get(after.phase)) is not None:
            self.tell(after, *told, after.status.description)
        if after.phase is Phase.FAILED and before.phase is Phase.PENDING:
            metrics.failed_join(before, self.caches.class_of(before))
        is_failed = after.status.state == OperationState.FAILED.value
        level = self.log.warning if is_failed else self.log.info
        text = {"error" if is_failed else "description": after.status.description}
        level("machine is in another phase", machine=after.key, phase=after.phase.value, **text)


class Pauses:
    """By the key of a machine: until when it is left alone, and what ends the pause before that.

    Times are seconds of any clock that only goes forward.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, object]] = {}

    def begin(self, key: str, until: float, about: object) -> None:
        """Leave a machine alone until then, or until `about` is not equal any more."""
        self._pauses[key] = until, about

    def end(self, key: str) -> None:
        self._pauses.pop(key, None)

    def end_all(self) -> list[str]:
        """End all pauses, and return their keys."""
        keys = list(self._pauses)
        self._pauses.clear()
        return keys

    def left_s(self, key: str, now: float, about: object) -> float:
        """Return for how long a machine is still left alone; 0 = it is not."""
        until, former = self._pauses.get(key, (now, about))
        return max(0.0, until - now) if former == about else 0.0

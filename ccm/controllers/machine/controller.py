"""Decides for each Machine what is due, has it done, and writes what came of it once.

Keys come from changes of Machines, of their Nodes, and of the classes and Secrets they are made
of. A worker puts its turn down while the cloud works, so that few turns do for many machines. A
pass that failed is not repeated before its time, unless the machine or its class changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

from ccm.base import clock
from ccm.controllers.machine.context import Context, Drains, Pauses
from ccm.controllers.machine.create import Creation, claim
from ccm.controllers.machine.freeze import SETTLING_S, Freezer
from ccm.controllers.machine.health import Health, Preserver, Updater, sooner
from ccm.controllers.machine.remove import Terminations
from ccm.machines import creation, health, metrics
from ccm.machines.crdguard import CRDGuard
from ccm.machines.creation import Outcome
from ccm.machines.driver import Shared
from ccm.model import Node, Secret
from ccm.model.machines import Machine, MachineClass
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch
from ccm.runtime.workers import Turn
from ccm.runtime.writer import Recorder

NAME = "machine"
QUEUE_NAME = "machine"
"""In logs, and as the value of the work-queue metrics' label."""

MOST_AT_ONCE = 256
"""Machines about which the cloud is asked at once; what else is done at once, a flag says."""

CONFLICT_S = 0.2
"""When a machine is looked at again that is in another hand (reference)."""

BACK_OFF_CAP_S = 30.0
"""Longest back-off of a machine whose object could not be written."""


class MachineController:
    """The machine controller.

    Args:
        shared: what the machine controllers share; the caches are ready.
        guard: blocks deletions that follow from that of the CRD.
        drains: empties nodes.
        events: where events go.
        turns: machines in work at once, apart from waiting for the cloud, of each queue.
        check_period_s: see `Freezer`.
        check_timeout_s: see `Freezer`.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        shared: Shared,
        guard: CRDGuard,
        drains: Drains,
        events: Recorder,
        turns: int,
        check_period_s: float = 60.0,
        check_timeout_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self._context = context = Context(shared, drains=drains, events=events, rng=rng)
        self._shared, self._vms, self._caches = shared, shared.vms, shared.caches
        caches = shared.caches
        context.wake = self._add
        caches.arrivals.claim = lambda machine: claim(context, machine)
        self._vms.on_new_origins = self._origins_seen
        self._free = asyncio.Semaphore(turns)
        self._in_hand: set[str] = set()
        self._terminations = Terminations(context, guard, self._in_hand, turns=turns, rng=rng)
        self._freezer = Freezer(
            context, self._thawed, period_s=check_period_s, timeout_s=check_timeout_s
        )
        self._pauses = Pauses()
        self._health = Health(context)
        self._preserver = Preserver(context)
        self._updater = Updater(context)
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=MOST_AT_ONCE,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            # Machines come last: what they are made of is known by then.
            watches=[
                Watch(informer=caches.secrets, changed=self._secret_changed),
                Watch(informer=caches.classes, changed=self._class_changed),
                Watch(informer=caches.nodes, changed=self._node_changed),
                Watch(informer=caches.machines, changed=self._machine_changed),
            ],
            tasks={
                "drains": drains.tend,
                "listings": shared.vms.tend,
                "reachability": self._freezer.run,
                "terminations": self._terminations.controller.run,
            },
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Do what is due about one machine.

        Raises:
            KubeError: a write failed.
        """
        cached = self._caches.machines.store.get(key)
        if cached is None:
            return DONE
        machine = self._context.write.newest(cached)
        if machine.is_deleting:
            self._terminations.add(key)
            return IDLE
        if self._terminations.has(key):
            # The former machine of that name is gone, and its last pass not yet at its end.
            return Result(after_s=CONFLICT_S, idle=True)
        if self._freezer.is_frozen:
            return IDLE
        if (left_s := self.paused_s(machine)) > 0:
            return Result(after_s=left_s, idle=True)
        self._in_hand.add(key)
        try:
            async with Turn(self._free) as turn:
                outcome = await self._due(machine, turn)
        except StaleObject:
            # The change that made it stale comes, or came, as a key of its own.
            return IDLE
        finally:
            self._in_hand.discard(key)
            self._add_deleting(key)
        if outcome.after_s is None:
            return DONE
        # Where something else is due before, that comes first.
        is_busy = outcome.busy is not None and outcome.after_s == outcome.busy.seconds
        busy = outcome.busy if is_busy else None
        return Result(after_s=outcome.after_s, punctual=outcome.punctual, busy=busy)

    async def _due(self, machine: Machine, turn: Turn) -> Outcome:
        key, in_creation = machine.key, machine.in_creation
        if origin := self._vms.new_origins.get(machine.uid):
            names = self._caches.settings.names
            machine = await self._context.save(
                machine, lambda one: creation.origin(one, origin, names)
            )
            self._vms.new_origins.pop(machine.uid, None)
            in_creation = machine.in_creation
        if in_creation:
            flow = Creation(self._context, machine, turn)
            outcome = await flow.run()
            await self._context.settle(flow.machine, outcome)
            self._pause(flow.machine, outcome)
        else:
            self._pauses.end(key)
            outcome = await self._health.run(machine)
            if (newest := self._newest(key)) is not None:
                is_contested = self._health.is_contested(newest)
                update_s = await self._updater.run(newest, is_contested=is_contested)
                outcome = replace(outcome, after_s=sooner(outcome.after_s, update_s))
        again_s, newest = outcome.after_s, self._newest(key)
        if newest is not None and not self._health.is_contested(newest):
            again_s = sooner(again_s, await self._preserver.run(newest))
        return replace(outcome, after_s=again_s, punctual=not in_creation)

    def _newest(self, key: str) -> Machine | None:
        """Return a machine as it is, or as we left it; None: it is gone, or goes."""
        cached = self._caches.machines.store.get(key)
        if cached is None or cached.is_deleting:
            return None
        return self._context.write.newest(cached)

    # --- pauses -----------------------------------------------------------------------------

    def paused_s(self, machine: Machine) -> float:
        """Seconds for which a machine is left alone; 0 when there is nothing to wait for."""
        return self._pauses.left_s(machine.key, clock.monotonic(), self._about(machine))

    def _pause(self, machine: Machine, outcome: Outcome) -> None:
        self._pauses.end(machine.key)
        if outcome.after_s is not None and machine.in_creation:
            until = clock.monotonic() + outcome.after_s
            self._pauses.begin(machine.key, until, self._about(machine))

    def _about(self, machine: Machine) -> object:
        """What ends a pause when it is another."""
        made_of = self._caches.class_of(machine)
        return (machine.spec, made_of.version, made_of.is_held)

    def _retry(self) -> None:
        """Another provider answers from now on."""
        self._vms.listings.drop()
        for key in self._pauses.end_all():
            self.controller.queue.add(key, background=True)
        self._terminations.controller.retry_now()

    def _thawed(self) -> None:
        """An API server is back: all are looked at, when nodes had time to report."""
        for machine in self._caches.machines.store.list():
            self.controller.queue.add_after(machine.key, SETTLING_S)

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, initial: bool) -> bool:
        self._health.machine_changed(old, new, initial=initial)
        metrics.note_machine(old, new, total=len(self._caches.machines.store))
        if new is None:
            self._forget(old)
            return False
        if new.is_deleting:
            self._updater.forget(new.key)
            self._preserver.forget(new.uid)
            self._terminations.add(new.key)
        return not new.is_deleting

    def _forget(self, gone: Machine | None) -> None:
        if gone is not None:
            self._pauses.end(gone.key)
            self._updater.forget(gone.key)
            self._terminations.gone(gone)
            self._context.write.forget(gone.key)
            self._context.tokens.forget(gone.uid)
            self._preserver.forget(gone.uid)
            self._shared.forget(gone.uid)
            self._context.creations_ended.pop(gone.uid, None)

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        found = new or old
        if found is not None and health.node_matters(old, new, self._caches.settings.names):
            self._add(self._health.on_node(found.name))
        if new is None and old is not None:
            self._context.write_nodes.forget(old.key)
        return False

    def _class_changed(
        self, old: MachineClass | None, new: MachineClass | None, initial: bool
    ) -> bool:
        found = new or old
        if not initial and found is not None:
            self._add(self._made_of({found.name}))
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, initial: bool) -> bool:
        found = new or old
        if not initial and found is not None:
            classes = self._caches.classes_with_secret(found.name)
            self._add(self._made_of({machine_class.name for machine_class in classes}))
        return False

    def _made_of(self, classes: set[str]) -> Iterable[str]:
        machines = self._caches.machines.store.list()
        return [machine.key for machine in machines if machine.class_name in classes]

    def _origins_seen(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.controller.queue.add(key, background=True)

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            if not self._add_deleting(key):
                self.controller.queue.add(key)

    def _add_deleting(self, key: str) -> bool:
        """Queue the deletion of a machine, if it goes; return whether it does."""
        found = self._caches.machines.store.get(key)
        if found is None or not found.is_deleting:
            return False
        self._terminations.add(key)
        return True

"""Reconciles Machines: runs the creation or the health check of a machine, and writes the result.

Changes of Machines, of their Nodes, and of their classes and Secrets add keys to the queue. A
worker releases its concurrency slot during cloud calls, so that few slots suffice for many
machines. A failed pass is repeated only after its delay, or when the machine or its class changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ccm.base import clock
from ccm.cloud.configvar import CONFIG_MAP, SECRET
from ccm.controllers.machine.context import Drains, MachineContext, Pauses
from ccm.controllers.machine.create import CreateFlow, initial_metadata
from ccm.controllers.machine.freeze import SETTLING_S, Freezer
from ccm.controllers.machine.health import (
    HealthReconciler,
    InPlaceUpdater,
    PreservationReconciler,
    min_delay,
)
from ccm.controllers.machine.termination import TerminationQueue
from ccm.machines import creation, health, metrics
from ccm.machines.crdguard import CRDGuard
from ccm.machines.creation import PassResult
from ccm.machines.driver import SharedComponents
from ccm.model import ConfigMap, Node, Secret
from ccm.model.machines import Machine, MachineClass, Phase
from ccm.model.patches import StaleObject
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch
from ccm.runtime.workers import ConcurrencySlot
from ccm.runtime.writer import Recorder

QUEUE_NAME = "machine"
"""Value of the work-queue metrics' label (Gardener's MCM)."""

WORKERS = 256
"""Number of workers, which limits concurrent cloud calls. `--machine-concurrent-syncs` limits all
other concurrent work."""

CONFLICT_S = 0.2
"""Requeue delay in seconds for a key that the termination queue is processing (Gardener's MCM)."""

BACK_OFF_CAP_S = 30.0
"""Maximum back-off after a failed write of the object. client-go's 1000 s would delay a machine for
too long once writes succeed again."""


class MachineController:
    """The machine controller.

    Args:
        shared: components of all machine controllers; the caches are ready.
        guard: blocks deletions that result from the deletion of the CRD.
        drains: drains nodes.
        events: recorder of events.
        turns: maximum number of machines that each of the two queues processes concurrently, not
            counting machines that wait for the cloud (--machine-concurrent-syncs).
        check_period_s: `period_s` of `Freezer`; same default as
            `--machine-safety-apiserver-statuscheck-period` (Gardener's MCM).
        check_timeout_s: `timeout_s` of `Freezer`; same default as
            `--machine-safety-apiserver-statuscheck-timeout` (Gardener's MCM).
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        shared: SharedComponents,
        guard: CRDGuard,
        drains: Drains,
        events: Recorder,
        turns: int,
        check_period_s: float = 60.0,
        check_timeout_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self._context = context = MachineContext(shared, drains=drains, events=events, rng=rng)
        self._shared, self._vms, self._caches = shared, shared.vms, shared.caches
        caches = shared.caches
        context.wake = self._add
        caches.initial_metadata.claim = lambda machine: initial_metadata(context, machine)
        self._vms.on_new_origins = self._queue_new_origins
        self._free = asyncio.Semaphore(turns)
        self._processing: set[str] = set()
        self._terminations = TerminationQueue(
            context, guard, self._processing, turns=turns, rng=rng
        )
        self._freezer = Freezer(
            context, self._requeue_all, period_s=check_period_s, timeout_s=check_timeout_s
        )
        self._pauses = Pauses()
        self._health = HealthReconciler(context)
        self._preserver = PreservationReconciler(context)
        self._updater = InPlaceUpdater(context)
        metrics.SOURCES[caches.codec.machines.group] = metrics.MachineSources(
            phases=self._phases,
            drains=drains.states,
            waiting=self._health.waiting_count,
            is_frozen=lambda: self._freezer.is_frozen,
        )
        reads_sets = bool(caches.codec.user_data_namespace)
        self.controller = Controller(
            caches.codec.controller_name("machine"),
            queue=f"{caches.codec.prefix}{QUEUE_NAME}",
            reconcile=self.sync,
            workers=WORKERS,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            # The watch of Machines is last: their classes, Secrets and nodes must be cached.
            watches=[
                Watch(informer=caches.config_maps, changed=self._config_map_changed),
                Watch(informer=caches.user_data, changed=self._user_data_changed),
                Watch(informer=caches.secrets, changed=self._secret_changed),
                Watch(informer=caches.classes, changed=self._class_changed),
                Watch(informer=caches.nodes, changed=self._node_changed),
                # The set of a machine leads to its user data.
                *([Watch(informer=caches.machine_sets, changed=_ignore)] if reads_sets else []),
                Watch(informer=caches.machines, changed=self._machine_changed),
            ],
            tasks={
                "drains": drains.run_until_cancelled,
                "listings": shared.vms.run_until_cancelled,
                "reachability": self._freezer.run,
                "terminations": self._terminations.controller.run,
            },
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Reconcile one machine.

        Raises:
            CloudError: the VM of a restored machine could not be labeled with the machine's UID.
            KubeError: a write failed.
        """
        cached = self._caches.machines.store.get(key)
        if cached is None:
            return DONE
        machine = self._context.write.newest(cached)
        if self._caches.codec.is_ignored(machine):
            return IDLE
        if machine.is_deleting:
            self._terminations.add(key)
            return IDLE
        if self._terminations.has(key):
            # The last pass over a deleted machine of the same name is still running.
            return ReconcileResult(after_s=CONFLICT_S, idle=True)
        if self._freezer.is_frozen:
            return IDLE
        if (left_s := self.remaining_pause_s(machine)) > 0:
            return ReconcileResult(after_s=left_s, idle=True)
        # The termination queue skips keys in `_processing`; the `finally` queues them again.
        self._processing.add(key)
        try:
            async with ConcurrencySlot(self._free) as turn:
                outcome = await self._reconcile(machine, turn)
        except StaleObject:
            # The change that made the object stale adds the key to the queue.
            return IDLE
        finally:
            self._processing.discard(key)
            self._add_deleting(key)
        if outcome.after_s is None:
            return DONE
        # `busy` explains the delay only if no other action is due earlier.
        is_busy = outcome.busy is not None and outcome.after_s == outcome.busy.seconds
        busy = outcome.busy if is_busy else None
        return ReconcileResult(after_s=outcome.after_s, punctual=outcome.is_exact, busy=busy)

    async def _reconcile(self, machine: Machine, turn: ConcurrencySlot) -> PassResult:
        key, in_creation = machine.key, machine.in_creation
        if self._caches.settings.names.former_uid in machine.annotations and not in_creation:
            # If the migration fails, the status is kept: the machine may be in use.
            machine_class = self._caches.class_of(machine)
            machine = await self._context.migrate_uid(machine, machine_class, turn)
        if origin := self._vms.new_origins.get(machine.uid):
            names = self._caches.settings.names
            machine = await self._context.save(
                machine, lambda obj: creation.origin_patch(obj, origin, names)
            )
            self._vms.new_origins.pop(machine.uid, None)
            in_creation = machine.in_creation
        if in_creation:
            flow = CreateFlow(self._context, machine, turn)
            outcome = await flow.run()
            await self._context.write_result(flow.machine, outcome)
            self._pause(flow.machine, outcome)
        else:
            self._pauses.end(key)
            outcome = await self._health.run(machine)
            if (newest := self._newest(key)) is not None:
                is_contested = self._health.is_contested(newest)
                update_s = await self._updater.run(newest, is_contested=is_contested)
                outcome = replace(outcome, after_s=min_delay(outcome.after_s, update_s))
        again_s, newest = outcome.after_s, self._newest(key)
        if newest is not None and not self._health.is_contested(newest):
            again_s = min_delay(again_s, await self._preserver.run(newest))
        return replace(outcome, after_s=again_s, is_exact=not in_creation)

    def _newest(self, key: str) -> Machine | None:
        """Return the newest known version of a machine; None = deleted or being deleted."""
        cached = self._caches.machines.store.get(key)
        if cached is None or cached.is_deleting:
            return None
        return self._context.write.newest(cached)

    def _phases(self) -> Iterator[Phase]:
        is_ignored = self._caches.codec.is_ignored
        for machine in self._caches.machines.store.list():
            if not is_ignored(machine):
                yield machine.phase

    # --- pauses -----------------------------------------------------------------------------

    def remaining_pause_s(self, machine: Machine) -> float:
        """Return the remaining seconds of a machine's pause; 0 = none."""
        return self._pauses.left_s(machine.key, clock.monotonic(), self._pause_version(machine))

    def _pause(self, machine: Machine, outcome: PassResult) -> None:
        self._pauses.end(machine.key)
        if outcome.after_s is not None and not outcome.eager and machine.in_creation:
            until = clock.monotonic() + outcome.after_s
            self._pauses.begin(machine.key, until, self._pause_version(machine))

    def _pause_version(self, machine: Machine) -> object:
        """Return the value whose change ends a machine's pause."""
        machine_class = self._caches.class_of(machine)
        return (machine.spec, machine_class.version, machine_class.is_held)

    def _retry(self) -> None:
        """End all pauses, because the provider was replaced."""
        self._vms.listings.drop()
        for key in self._pauses.end_all():
            self.controller.queue.add(key, background=True)
        self._terminations.controller.retry_now()

    def _requeue_all(self) -> None:
        """Requeue all machines `SETTLING_S` after an outage ended: nodes need time to report."""
        for machine in self._caches.machines.store.list():
            self.controller.queue.add_after(machine.key, SETTLING_S)

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, initial: bool) -> bool:
        self._health.machine_changed(old, new, initial=initial)
        if not self._caches.codec.prefix:
            metrics.update_machine_series(old, new, total=len(self._caches.machines.store))
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
            self._terminations.add_deleted(gone)
            self._context.write.forget(gone.key)
            self._context.tokens.forget(gone.uid)
            self._preserver.forget(gone.uid)
            self._shared.forget(gone.uid)
            self._context.creations_ended.pop(gone.uid, None)

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        changed = new or old
        if changed is not None and health.node_matters(old, new, self._caches.settings.names):
            self._add(self._health.machines_of_node(changed.name))
        if new is None and old is not None:
            self._context.write_nodes.forget(old.key)
        return False

    def _class_changed(
        self, old: MachineClass | None, new: MachineClass | None, initial: bool
    ) -> bool:
        changed = new or old
        if not initial and changed is not None:
            self._add(self._machines_of_classes({changed.name}))
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, initial: bool) -> bool:
        changed = new or old
        if not initial and changed is not None:
            classes = self._caches.classes_with_secret(changed.name)
            self._add(self._machines_of_classes({machine_class.name for machine_class in classes}))
            self._add(machine.key for machine in self._caches.machines_with(SECRET, changed.name))
        return False

    def _config_map_changed(
        self, old: ConfigMap | None, new: ConfigMap | None, initial: bool
    ) -> bool:
        changed = new or old
        if not initial and changed is not None:
            found = self._caches.machines_with(CONFIG_MAP, changed.name)
            self._add(machine.key for machine in found)
        return False

    def _user_data_changed(self, _old: Secret | None, _new: Secret | None, initial: bool) -> bool:
        if not initial:
            machines = self._caches.machines.store.list()
            self._add(machine.key for machine in machines if machine.in_creation)
        return False

    def _machines_of_classes(self, classes: set[str]) -> Iterable[str]:
        machines = self._caches.machines.store.list()
        return [machine.key for machine in machines if machine.class_name in classes]

    def _queue_new_origins(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.controller.queue.add(key, background=True)

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            if not self._add_deleting(key):
                self.controller.queue.add(key)

    def _add_deleting(self, key: str) -> bool:
        """Queue the deletion of a machine if it is being deleted; return whether it is."""
        machine = self._caches.machines.store.get(key)
        if machine is None or not machine.is_deleting:
            return False
        self._terminations.add(key)
        return True


def _ignore(_old: object, _new: object, _initial: bool) -> bool:
    return False

"""Reconciles MachineSets: creates and deletes machines, and writes the status.

A pass claims the machines, applies template changes to them, and decides from the cache how many
machines to create and which machines to delete. Before that decision, the cache must show all
creations and deletions of previous passes. A pass that created or deleted machines writes no
status, because these changes trigger the next pass. So a burst of creations costs one write per
machine, and one write of the status.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ccm.base import clock, log
from ccm.controllers.machineset import plan
from ccm.controllers.machineset.members import MachineManager, Memories, SetMemory, call_all
from ccm.kube.errors import KubeError
from ccm.machines import failure_backoff, metrics, reasons, replicas
from ccm.machines.caches import Caches
from ccm.machines.crdguard import RECHECK, CRDGuard
from ccm.machines.replicas import Member, Scaling
from ccm.model import Node, Secret, selectors
from ccm.model.machines import (
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    OperationType,
    Phase,
    Preserve,
)
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_key, controller_uid
from ccm.model.patches import (
    Patch,
    annotations_patch,
    custom_resource_finalizer_patch,
    remove_finalizer_patch,
)
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch
from ccm.runtime.ownership import Expectations, OwnerIndex, Ownership
from ccm.runtime.writer import PatchStep, Recorder

BACK_OFF_CAP_S = 60.0
"""Maximum back-off of one object; client-go's 1000 s would delay a repaired object for too long."""

RESYNC_S = 600.0
"""Resync period of a set (Gardener's MCM)."""

BATCH_S = 0.1
"""Delay of a pass in seconds, to collect changes of machines, because every pass checks all
machines of a set. No delay once the cache shows all changes of the last pass: the deployment waits
for the status that the next pass writes."""

AGAIN_S = 1.0
"""Requeue delay in seconds after a machine was not deleted, because it had changed: the cache needs
time to show the change."""

STATUS_PAUSE_S = 2.0
"""Minimum seconds between two status writes of a set: many machines change one by one at about the
same time. A status for which the deployment waits is written at once."""


class MachineSetController:
    """The machine set controller.

    Args:
        caches: caches of the machine controllers; they are ready.
        guard: blocks deletions that result from the deletion of the CRD.
        events: recorder of events.
        workers: number of workers.
        rng: source of random suffixes of machine names, and of jitter.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        guard: CRDGuard,
        events: Recorder,
        workers: int,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._caches, self._codec = caches, caches.codec
        self._names = caches.settings.names
        self._guard = guard
        self._events = events
        name = caches.codec.controller_name("machine-set")
        self._log = log.logger(name)
        self._write = caches.writer(caches.codec.machine_sets, rng)
        self._write_machines = caches.writer(caches.codec.machines, rng)
        self._ownership = Ownership(
            kind=caches.codec.machine_sets,
            owners=caches.client.resource(caches.codec.machine_sets),
            write=self._write_machines,
        )
        self._index: OwnerIndex[Machine] = OwnerIndex()
        self._expect = Expectations()
        finalizer = self._names.owner_finalizer
        self._hold = partial(custom_resource_finalizer_patch, name=finalizer)
        self._release = lambda obj: remove_finalizer_patch(obj, finalizer, strategic=False)
        self._members = MachineManager(caches, self._expect, rng)
        self._memories = Memories(caches.now)
        kind = caches.codec.machine_sets
        metrics.OWNERS[kind.group, kind.kind] = caches.machine_sets.store.list
        self.controller = Controller(
            name,
            queue=f"{caches.codec.prefix}machineset",
            reconcile=self.sync,
            workers=workers,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=caches.secrets, changed=self._secret_changed),
                Watch(informer=caches.classes, changed=self._class_changed),
                Watch(informer=caches.machine_deployments, changed=self._deployment_changed),
                Watch(informer=caches.nodes, changed=self._node_changed),
                Watch(informer=caches.machines, changed=self._machine_changed),
                Watch(informer=caches.machine_sets, changed=self._set_changed),
            ],
            rng=rng,
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Reconcile one set.

        Raises:
            KubeError: a request failed.
        """
        cached = self._caches.machine_sets.store.get(key)
        if cached is None:
            return IDLE
        obj = self._write.newest(cached)
        if obj.is_deleting and self._names.owner_finalizer not in obj.finalizers:
            return IDLE  # such as with --cascade=orphan: the machines are to stay
        if obj.is_deleting and await self._guard.blocks(obj):
            return RECHECK
        if not obj.is_deleting:
            if obj.faults:
                await self._write_invalid(obj)
                return DONE
            updated = (await self._write.change(obj, PatchStep(self._hold))).obj
            if updated is None:
                return DONE
            obj = updated
        machines = {machine.key: machine for machine in await self._claim_machines(obj)}
        errors = () if obj.is_deleting else await self._push(obj, machines)
        await self._manage_machines(obj, machines)
        if errors:
            raise errors[0]
        return ReconcileResult(after_s=RESYNC_S)

    async def _write_invalid(self, obj: MachineSet) -> None:
        """Write the condition ReplicaFailure of an invalid set."""
        faults = "; ".join(obj.faults)
        condition = plan.failure_condition(faults, reason=reasons.REASON_INVALID, now=clock.now())

        def status_patch(latest: MachineSet) -> Patch | None:
            before = latest.status
            conditions = plan.merged(before.conditions, [condition])
            observed = max(before.observed, obj.metadata.generation)
            wanted = replace(before, observed=observed, conditions=conditions)
            return self._codec.set_status_patch(latest, wanted)

        if (await self._write.change(obj, PatchStep(status_patch, "status"))).changed:
            self._log.warning("machine set invalid", key=obj.key, error=condition.message)
            self._record_event(obj, WARNING, condition.reason, condition.message)

    async def _claim_machines(self, obj: MachineSet) -> Sequence[Machine]:
        """Adopt and release machines; return the machines of the set in their newest versions."""
        store, terms = self._caches.machines.store, _terms(obj)
        candidates = (store.get(key) for key in self._index.candidates(obj.uid))

        def matches(machine: Machine) -> bool:
            return terms is not None and selectors.matches(terms, machine.labels)

        return await self._ownership.claim(
            obj, [machine for machine in candidates if machine], matches
        )

    async def _push(self, obj: MachineSet, machines: dict[str, Machine]) -> Sequence[KubeError]:
        """Apply template changes to the machines; return the errors of failed writes."""

        def pushed(machine: Machine) -> Patch | None:
            return self._codec.push_patch(machine, obj)

        async def push(machine: Machine) -> None:
            after = (await self._write_machines.change(machine, PatchStep(pushed))).obj
            if after is not None:
                machines[after.key] = after

        stale = [machine for machine in machines.values() if pushed(machine) is not None]
        return await call_all(stale, push)

    # --- scaling ----------------------------------------------------------------------------

    async def _manage_machines(self, obj: MachineSet, machines: dict[str, Machine]) -> None:
        """Create and delete machines, and write the status.

        Raises:
            KubeError: a request failed.
        """
        memory, labels = self._memories.of(obj), obj.template.labels
        members: Sequence[Member] = [self._member(machine, labels) for machine in machines.values()]
        if not obj.is_deleting:
            members = await self._preserve(obj, members, machines)
        # A decision from a stale cache would create or delete machines twice.
        if not await self._is_current(obj):
            self._requeue_after(obj, self._expect.due_s(obj.uid))
            return
        if obj.is_deleting and not members and not self._caches.machines.malformed_keys:
            await self._write.change(obj, PatchStep(self._release))
            return
        scaling = replicas.plan_scaling(obj, members, clock.now())
        did, error = await self._scale(obj, memory, scaling, members, machines)
        # The changes trigger the next pass. If their watch events are lost, the pass that is queued
        # here looks up the changes.
        self._requeue_after(obj, self._expect.due_s(obj.uid))
        if not did or error is not None:
            await self._write_status(obj, memory, members)
        if error is not None and not memory.backoff.pauses:
            raise error

    async def _preserve(
        self, obj: MachineSet, members: Sequence[Member], machines: dict[str, Machine]
    ) -> Sequence[Member]:
        """Annotate the failed machines that the set starts to preserve, or stops preserving.

        The decision about deletions depends on these annotations, so it is made later.

        Returns:
            All machines of the set, with the changed annotations.
        """
        keep, drop = replicas.plan_preservation(obj, members)
        for selected, is_kept in ((keep, True), (drop, False)):
            for member in selected:
                machines[member.key] = await self._annotate(machines[member.key], keep=is_kept)
        return replicas.apply_preservation(members, keep, drop)

    async def _annotate(self, machine: Machine, *, keep: bool) -> Machine:
        wanted = {self._names.preserve: Preserve.AUTO.value if keep else None}

        def annotated(latest: Machine) -> Patch | None:
            is_kept = latest.preserve == Preserve.AUTO.value
            return None if is_kept is keep else annotations_patch(latest, wanted)

        return (await self._write_machines.change(machine, PatchStep(annotated))).obj or machine

    async def _is_current(self, obj: MachineSet) -> bool:
        """Return whether the cache shows all creations and deletions of previous passes.

        Creations and deletions that are overdue in the cache are looked up on the API server.
        """
        if self._expect.satisfied(obj.uid):
            return True
        late = await self._members.look_up(obj.uid)
        if late:
            self._log.warning("machine cache stale", key=obj.key, count=late)
        return self._expect.satisfied(obj.uid)

    async def _scale(
        self,
        obj: MachineSet,
        memory: SetMemory,
        scaling: Scaling,
        members: Sequence[Member],
        machines: Mapping[str, Machine],
    ) -> tuple[bool, KubeError | None]:
        """Create and delete machines.

        Returns:
            Whether a machine was created or deleted; and an error of a failed request, or None.
        """
        now, owner = self._caches.now(), self._ownership.reference(obj)
        # A machine that cannot be decoded may belong to this set.
        can_count = not self._caches.machines.malformed_keys
        count = (
            failure_backoff.allowed_creations(memory.backoff, scaling.create, members, now)
            if can_count
            else 0
        )
        created, refused = await self._members.create(obj, owner, count)
        self._record_operation(obj, memory, OperationType.CREATE, created, refused)
        victims = [machines[member.key] for member in scaling.delete]
        metrics.STALE.inc(sum(member.machine.phase is Phase.FAILED for member in scaling.delete))
        gone, kept = await self._members.delete(obj, victims)
        self._record_operation(obj, memory, OperationType.DELETE, gone, kept)
        if len(gone) < len(victims):
            self._requeue_after(obj, AGAIN_S)
        if refused is None and kept is None and (count or victims or not scaling.missing):
            memory.failure = None
        if refused is not None:
            memory.record_error(refused, now)
        if scaling.create:
            self._requeue_after(obj, failure_backoff.remaining_pause_s(memory.backoff, now) or None)
        return bool(created or gone), refused or kept

    def _record_operation(
        self,
        obj: MachineSet,
        memory: SetMemory,
        kind: OperationType,
        done: Sequence[str],
        error: KubeError | None,
    ) -> None:
        """Store the result of creations or deletions in the set's memory, and record events."""
        if not done and error is None:
            return
        now, is_create = clock.now(), kind is OperationType.CREATE
        memory.last = plan.last_operation(kind, done, error, now)
        if done:
            reason = reasons.REASON_CREATED if is_create else reasons.REASON_DELETED
            self._record_event(obj, NORMAL, reason, plan.operation_text(kind, done))
        if error is not None:
            reason = reasons.REASON_FAILED_CREATE if is_create else reasons.REASON_FAILED_DELETE
            memory.failure = plan.failure_condition(str(error), reason=reason, now=now)
            self._record_event(obj, WARNING, reason, memory.failure.message)

    def _record_event(self, obj: MachineSet, kind: str, reason: str, text: str) -> None:
        self._events.event(self._codec.machine_sets.reference(obj), kind, reason, text)

    # --- status -----------------------------------------------------------------------------

    async def _write_status(
        self, obj: MachineSet, memory: SetMemory, members: Sequence[Member]
    ) -> None:
        """Write the status if it changed, at a limited rate."""
        conditions, last = memory.conditions(self._caches.now()), memory.last
        wanted, changes_in_s = replicas.count_status(obj, members, clock.now())
        self._requeue_after(obj, changes_in_s)

        def status_patch(latest: MachineSet) -> Patch | None:
            merged = plan.merged(latest.status.conditions, conditions)
            kept = latest.status.last if last is None else last
            observed = max(wanted.observed, latest.status.observed)
            now = replace(wanted, observed=observed, conditions=merged, last=kept)
            return self._codec.set_status_patch(latest, now)

        if status_patch(obj) is None:
            return
        rest_s = memory.status_written_at + STATUS_PAUSE_S - clock.monotonic()
        if rest_s > 0 and not plan.is_awaited(obj.status, wanted):
            self._requeue_after(obj, rest_s)
            return
        memory.status_written_at = clock.monotonic()
        await self._write.change(obj, PatchStep(status_patch, "status"))

    def _requeue_after(self, obj: MachineSet, seconds: float | None) -> None:
        """Requeue a set, at the latest after `seconds`; None = do not requeue."""
        if seconds is not None:
            self.controller.queue.add_after(obj.key, seconds)

    def _member(self, machine: Machine, labels: Mapping[str, str]) -> Member:
        """Return a machine of a set; the end of its preservation is converted to our wall clock."""
        node = self._caches.nodes.store.get(machine.node_name) if machine.node_name else None
        member = replicas.build_member(machine, node, labels, annotation=self._names.preserve)
        if member.preserved_until is None:
            return member
        over_s = self._caches.ages.since(machine.uid, member.preserved_until)
        return replace(member, preserved_until=clock.now() - timedelta(seconds=over_s))

    # --- the caches -------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._index.update(old, new)
        changed = new or old
        owner = "" if changed is None else controller_uid(changed)
        was_satisfied = self._expect.satisfied(owner)
        if new is not None:
            self._expect.observe(new)
        elif old is not None:
            self._expect.observe_deletion(old)
            self._write_machines.forget(old.key)
        if changed is not None and not was_satisfied and self._expect.satisfied(owner):
            self.controller.queue.add(controller_key(changed, self._codec.machine_sets.kind))
        self._memories.record_result(old, new)
        if new is not None and (answer := plan.creation_result(old, new)) is not None:
            self._resume(self._memories.end_for_result(new.class_name, *answer))
        if plan.matters(old, new):
            self._add(filter(None, (old, new)))
        return False

    def _add(self, machines: Iterable[Machine]) -> None:
        """Queue the sets of machines; for an orphaned machine, the sets that may adopt it."""
        for machine in machines:
            if key := controller_key(machine, self._codec.machine_sets.kind):
                self.controller.queue.add_after(key, BATCH_S)
            elif not controller_uid(machine):
                for machine_set in self._caches.machine_sets.store.list():
                    terms = _terms(machine_set)
                    if terms is not None and selectors.matches(terms, machine.labels):
                        self.controller.queue.add(machine_set.key)

    def _node_changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:
        changed, key = new or old, self._names.preserve
        values = [
            None if version is None else version.annotations.get(key) for version in (old, new)
        ]
        if not initial and changed is not None and values[0] != values[1]:
            machines = self._caches.machines.store.list()
            self._add(machine for machine in machines if machine.node_name == changed.name)
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        if not self._codec.prefix:
            metrics.update_set_series(old, new, total=len(self._caches.machine_sets.store))
        if new is None and old is not None:
            self._write.forget(old.key)
            self._expect.forget(old.uid)
            self._guard.forget(old.uid)
            self._memories.forget(old.uid)
        elif plan.begins_unfreeze(old, new) and new is not None:
            self._resume(self._memories.end([new.uid]))
        return new is not None and plan.set_matters(old, new)

    def _deployment_changed(
        self, old: MachineDeployment | None, new: MachineDeployment | None, _: bool
    ) -> bool:
        if new is None or not plan.begins_unfreeze(old, new):
            return False
        sets = self._caches.machine_sets.store.list()
        self._resume(
            self._memories.end(
                machine_set.uid for machine_set in sets if controller_uid(machine_set) == new.uid
            )
        )
        return False

    def _class_changed(
        self, old: MachineClass | None, new: MachineClass | None, initial: bool
    ) -> bool:
        changed = new or old
        if initial or changed is None:
            return False
        # Objects also differ by conditions and finalizers, which the class controller writes.
        versions = [version and self._caches.resolve(version).version for version in (old, new)]
        if versions[0] != versions[1]:
            self._resume(self._memories.end_for_class(changed.name))
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, initial: bool) -> bool:
        changed = new or old
        data = [None if secret is None else secret.data for secret in (old, new)]
        if not initial and changed is not None and data[0] != data[1]:
            for machine_class in self._caches.classes_with_secret(changed.name):
                self._resume(self._memories.end_for_class(machine_class.name))
        return False

    def _resume(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._log.info("machine set back-off ended", key=key)
            self.controller.queue.add(key)


def _terms(obj: MachineSet) -> Sequence[selectors.Requirement] | None:
    """Return the label requirements for the machines of a set; None = no machine matches."""
    return None if obj.selects_all else obj.requirements

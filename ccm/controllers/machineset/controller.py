"""Keeps as many machines of each MachineSet as it wants, and says how they are.

A pass claims the machines, brings what has changed of the template to them, and decides from the
cache how many to make and which to delete; not before the cache shows what the pass before did.
One that did something says nothing yet: what it did brings the next pass. So a burst costs one
write a machine, and one about the set.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ccm.base import clock, log
from ccm.controllers.machineset import plan
from ccm.controllers.machineset.members import Members, Memories, Memory, together
from ccm.kube.errors import KubeError
from ccm.machines import metrics, reasons, replicas, setbacks
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
from ccm.model.patches import Patch, annotations_patch, hold, remove_finalizer
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch
from ccm.runtime.ownership import Expectations, Index, Ownership
from ccm.runtime.writer import Recorder, Step

NAME = "machineset"
BACK_OFF_CAP_S = 60.0

RESYNC_S = 600.0
"""How often a set is looked over though nothing changed (reference)."""

BATCH_S = 0.1
"""How long a pass waits for further machines to change: each looks at all machines of the set."""

AGAIN_S = 1.0
"""When a machine is judged again that was not what the cache had shown."""

STATUS_PAUSE_S = 2.0
"""Shortest time between two writes of a set's status that nobody waits for: machines change one by
one, and many of them at about the same time."""


class MachineSetController:
    """The machine set controller.

    Args:
        caches: the caches; they are ready.
        guard: blocks deletions that follow from that of the CRD.
        events: where events go.
        workers: sets that are worked on at once.
        rng: names of machines, and jitter.
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
        self._log = log.logger(NAME)
        self._write = caches.writer(caches.codec.machine_sets, rng)
        self._write_machines = caches.writer(caches.codec.machines, rng)
        self._ownership = Ownership(
            kind=caches.codec.machine_sets,
            owners=caches.client.resource(caches.codec.machine_sets),
            write=self._write_machines,
        )
        self._index: Index[Machine] = Index()
        self._expect = Expectations()
        finalizer = self._names.finalizer
        self._hold = partial(hold, name=finalizer)
        self._release = partial(remove_finalizer, name=finalizer, strategic=False)
        self._members = Members(caches, self._expect, rng)
        self._memories = Memories(caches.now)
        self.controller = Controller(
            NAME,
            queue=NAME,
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

    async def sync(self, key: str) -> Result:
        """Bring one set in step with what it wants.

        Raises:
            KubeError: a request failed.
        """
        cached = self._caches.machine_sets.store.get(key)
        if cached is None:
            return IDLE
        obj = self._write.newest(cached)
        if obj.is_deleting and await self._guard.blocks(obj):
            return RECHECK
        if not obj.is_deleting:
            if obj.faults:
                await self._refuse(obj)
                return DONE
            held = (await self._write.change(obj, Step(self._hold))).obj
            if held is None:
                return DONE
            obj = held
        machines = {one.key: one for one in await self._claimed(obj)}
        errors = () if obj.is_deleting else await self._push(obj, machines)
        await self._manage(obj, machines)
        if errors:
            raise errors[0]
        return Result(after_s=RESYNC_S)

    async def _refuse(self, obj: MachineSet) -> None:
        """Nothing can be done with the set as it is, and it says so."""
        faults = "; ".join(obj.faults)
        condition = plan.failure(faults, reason=reasons.REASON_INVALID, now=clock.now())

        def said(one: MachineSet) -> Patch | None:
            before = one.status
            conditions = plan.merged(before.conditions, [condition])
            observed = max(before.observed, obj.metadata.generation)
            wanted = replace(before, observed=observed, conditions=conditions)
            return self._codec.set_status_patch(one, wanted)

        if (await self._write.change(obj, Step(said, "status"))).changed:
            self._log.warning("machine set cannot be used", key=obj.key, error=condition.message)
            self._tell(obj, WARNING, condition.reason, condition.message)

    async def _claimed(self, obj: MachineSet) -> Sequence[Machine]:
        """The machines of a set, as they are or as we left them."""
        store, terms = self._caches.machines.store, _terms(obj)
        among = (store.get(key) for key in self._index.candidates(obj.uid))

        def matches(one: Machine) -> bool:
            return terms is not None and selectors.matches(terms, one.labels)

        return await self._ownership.claim(obj, [one for one in among if one], matches)

    async def _push(self, obj: MachineSet, machines: dict[str, Machine]) -> Sequence[KubeError]:
        """Bring what has changed of the template to the machines; errors keep nothing else."""

        def pushed(one: Machine) -> Patch | None:
            return self._codec.push_patch(one, obj)

        async def push(one: Machine) -> None:
            after = (await self._write_machines.change(one, Step(pushed))).obj
            if after is not None:
                machines[after.key] = after

        stale = [machine for machine in machines.values() if pushed(machine) is not None]
        return await together(stale, push)

    # --- how many ---------------------------------------------------------------------------

    async def _manage(self, obj: MachineSet, machines: dict[str, Machine]) -> None:
        """Make and delete machines, and say how many there are.

        Raises:
            KubeError: a request failed.
        """
        memory, labels = self._memories.of(obj), obj.template.labels
        found: Sequence[Member] = [self._member(machine, labels) for machine in machines.values()]
        if not obj.is_deleting:
            found = await self._preserve(obj, found, machines)
        if not await self._is_current(obj):
            self._later(obj, self._expect.due_s(obj.uid))
            return
        if obj.is_deleting and not found and not self._caches.machines.undecodable:
            await self._write.change(obj, Step(self._release))
            return
        scaling = replicas.scaling(obj, found, clock.now())
        did, error = await self._scale(obj, memory, scaling, found, machines)
        # What was done brings the next pass; should nobody tell us, it is looked up.
        self._later(obj, self._expect.due_s(obj.uid))
        if not did or error is not None:
            await self._say(obj, memory, found)
        if error is not None and not memory.setbacks.level:
            raise error

    async def _preserve(
        self, obj: MachineSet, found: Sequence[Member], machines: dict[str, Machine]
    ) -> Sequence[Member]:
        """Keep failed machines, or keep them no more, before it is decided which go."""
        keep, drop = replicas.preservation(obj, found)
        for each, is_kept in ((keep, True), (drop, False)):
            for one in each:
                machines[one.key] = await self._annotate(machines[one.key], keep=is_kept)
        return replicas.preserved(found, keep, drop)

    async def _annotate(self, machine: Machine, *, keep: bool) -> Machine:
        wanted = {self._names.preserve: Preserve.AUTO.value if keep else None}

        def annotated(one: Machine) -> Patch | None:
            is_kept = one.preserve == Preserve.AUTO.value
            return None if is_kept is keep else annotations_patch(one, wanted)

        return (await self._write_machines.change(machine, Step(annotated))).obj or machine

    async def _is_current(self, obj: MachineSet) -> bool:
        """Whether the cache shows all that was done about the set."""
        if self._expect.satisfied(obj.uid):
            return True
        late = await self._members.look_up(obj.uid)
        if late:
            self._log.warning("cache of machines lags far behind", key=obj.key, count=late)
        return self._expect.satisfied(obj.uid)

    async def _scale(
        self,
        obj: MachineSet,
        memory: Memory,
        scaling: Scaling,
        found: Sequence[Member],
        machines: Mapping[str, Machine],
    ) -> tuple[bool, KubeError | None]:
        """Make and delete machines; whether any was, and an error."""
        now, owner = self._caches.now(), self._ownership.reference(obj)
        # One that cannot be read may be of this set.
        can_count = not self._caches.machines.undecodable
        count = setbacks.allowed(memory.setbacks, scaling.create, found, now) if can_count else 0
        made, refused = await self._members.create(obj, owner, count)
        self._did(obj, memory, OperationType.CREATE, made, refused)
        victims = [machines[one.key] for one in scaling.delete]
        metrics.STALE.inc(sum(one.machine.phase is Phase.FAILED for one in scaling.delete))
        gone, kept = await self._members.delete(obj, victims)
        self._did(obj, memory, OperationType.DELETE, gone, kept)
        if len(gone) < len(victims):
            self._later(obj, AGAIN_S)
        if refused is None and kept is None and (count or victims or not scaling.lacking):
            memory.failure = None
        if refused is not None:
            memory.refused(refused, now)
        if scaling.create:
            self._later(obj, setbacks.wait_s(memory.setbacks, now) or None)
        return bool(made or gone), refused or kept

    def _did(
        self,
        obj: MachineSet,
        memory: Memory,
        kind: OperationType,
        done: Sequence[str],
        error: KubeError | None,
    ) -> None:
        """Remember and tell what was done, and what could not be."""
        if not done and error is None:
            return
        now, is_create = clock.now(), kind is OperationType.CREATE
        memory.last = plan.operation(kind, done, error, now)
        if done:
            reason = reasons.REASON_CREATED if is_create else reasons.REASON_DELETED
            self._tell(obj, NORMAL, reason, plan.told(kind, done))
        if error is not None:
            reason = reasons.REASON_FAILED_CREATE if is_create else reasons.REASON_FAILED_DELETE
            memory.failure = plan.failure(str(error), reason=reason, now=now)
            self._tell(obj, WARNING, reason, memory.failure.message)

    def _tell(self, obj: MachineSet, kind: str, reason: str, text: str) -> None:
        self._events.event(self._codec.machine_sets.reference(obj), kind, reason, text)

    # --- what is said -----------------------------------------------------------------------

    async def _say(self, obj: MachineSet, memory: Memory, members: Sequence[Member]) -> None:
        """Write the status, if it says anything new, and not too often."""
        conditions, last = memory.conditions(self._caches.now()), memory.last
        wanted, changes_in_s = replicas.counts(obj, members, clock.now())
        self._later(obj, changes_in_s)

        def said(one: MachineSet) -> Patch | None:
            merged = plan.merged(one.status.conditions, conditions)
            kept = one.status.last if last is None else last
            observed = max(wanted.observed, one.status.observed)
            now = replace(wanted, observed=observed, conditions=merged, last=kept)
            return self._codec.set_status_patch(one, now)

        if said(obj) is None:
            return
        rest_s = memory.said_at + STATUS_PAUSE_S - clock.monotonic()
        if rest_s > 0 and not plan.is_awaited(obj.status, wanted):
            self._later(obj, rest_s)
            return
        memory.said_at = clock.monotonic()
        await self._write.change(obj, Step(said, "status"))

    def _later(self, obj: MachineSet, seconds: float | None) -> None:
        """Come back at that time, and no later; None = when something changes."""
        if seconds is not None:
            self.controller.queue.add_after(obj.key, seconds)

    def _member(self, machine: Machine, labels: Mapping[str, str]) -> Member:
        """Return a machine with the time until which it is kept by our clock, which may jump."""
        node = self._caches.nodes.store.get(machine.node_name) if machine.node_name else None
        found = replicas.member(machine, node, labels, annotation=self._names.preserve)
        if found.kept_until is None:
            return found
        over_s = self._caches.ages.since(machine.uid, found.kept_until)
        return replace(found, kept_until=clock.now() - timedelta(seconds=over_s))

    # --- the caches -------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._index.note(old, new)
        if new is not None:
            self._expect.seen(new)
        elif old is not None:
            self._expect.gone(old)
            self._write_machines.forget(old.key)
        self._memories.learn(old, new)
        if new is not None and (answer := plan.answer(old, new)) is not None:
            self._resume(self._memories.answered(new.class_name, *answer))
        if plan.matters(old, new):
            self._add(filter(None, (old, new)))
        return False

    def _add(self, machines: Iterable[Machine]) -> None:
        """Queue the sets of machines; of one that nobody controls those that may adopt it."""
        for machine in machines:
            if key := controller_key(machine, self._codec.machine_sets.kind):
                self.controller.queue.add_after(key, BATCH_S)
            elif not controller_uid(machine):
                for machine_set in self._caches.machine_sets.store.list():
                    terms = _terms(machine_set)
                    if terms is not None and selectors.matches(terms, machine.labels):
                        self.controller.queue.add(machine_set.key)

    def _node_changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:
        found, key = new or old, self._names.preserve
        said = [None if one is None else one.annotations.get(key) for one in (old, new)]
        if not initial and found is not None and said[0] != said[1]:
            machines = self._caches.machines.store.list()
            self._add(machine for machine in machines if machine.node_name == found.name)
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        metrics.note_set(old, new, total=len(self._caches.machine_sets.store))
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
        found = new or old
        if initial or found is None:
            return False
        # Not the whole objects: their controller writes conditions and finalizers.
        versions = [one and self._caches.resolve(one).version for one in (old, new)]
        if versions[0] != versions[1]:
            self._resume(self._memories.mended(found.name))
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, initial: bool) -> bool:
        found = new or old
        data = [None if one is None else one.data for one in (old, new)]
        if not initial and found is not None and data[0] != data[1]:
            for one in self._caches.classes_with_secret(found.name):
                self._resume(self._memories.mended(one.name))
        return False

    def _resume(self, keys: Iterable[str]) -> None:
        """Reconcile sets whose pause ended."""
        for key in keys:
            self._log.info("pause of machine set ended", key=key)
            self.controller.queue.add(key)


def _terms(obj: MachineSet) -> Sequence[selectors.Requirement] | None:
    """Return what its machines have to be like; None: no machine is."""
    return None if obj.selects_all else obj.terms

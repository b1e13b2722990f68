"""Keeps each MachineDeployment rolling: one plan a pass, from the caches as they are.

Any change of the deployment, its sets, or of what matters of their machines brings the next pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from ccm.base import clock
from ccm.controllers.machinedeployment import plan
from ccm.controllers.machinedeployment.calls import Calls
from ccm.machines import autoscaler, metrics, progress, replicas, rollout
from ccm.machines.caches import Caches
from ccm.machines.crdguard import RECHECK, CRDGuard
from ccm.machines.settings import Settings
from ccm.model import Node, selectors
from ccm.model.machines import DeploymentStatus, Machine, MachineDeployment, MachineSet
from ccm.model.owners import controller_key, controller_uid
from ccm.model.patches import Patch, StaleObject, add_finalizer, remove_finalizer
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch
from ccm.runtime.ownership import Index, Ownership
from ccm.runtime.writer import Recorder, Step

NAME = "machinedeployment"
BACK_OFF_CAP_S = 60.0

RESYNC_S = 600.0
"""How often a deployment is looked over though nothing changed (reference)."""

STATUS_PAUSE_S = 2.0
"""Shortest time between two statuses that differ by numbers only: many machines change at about
the same time."""

GATHER_S = 0.1
"""How long changes of machines and sets are gathered before the next pass."""

ARRIVAL_S = 0.75
"""How long machines that begin to work are gathered before anything goes on: those of one step of a
roll come at about the same time, and each step costs writes and events for every set."""


class MachineDeploymentController:
    """The machine deployment controller.

    Args:
        caches: the caches; they are ready.
        guard: blocks deletions that follow from that of the CRD.
        events: where events go.
        settings: names and settings.
        workers: deployments that are worked on at once.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        guard: CRDGuard,
        events: Recorder,
        settings: Settings,
        workers: int,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._caches, self._settings, self._guard = caches, settings, guard
        self._codec = caches.codec
        self._calls = Calls(caches=caches, events=events, settings=settings, rng=rng)
        self._ownership = Ownership(
            kind=caches.codec.machine_deployments,
            owners=self._calls.deployments,
            write=self._calls.write_sets,
        )
        self._machines: Index[Machine] = Index()
        self._sets: Index[MachineSet] = Index()
        self._said_at: dict[str, float] = {}
        self._gathered_until: dict[str, float] = {}
        """Until when machines that begin to work are gathered, by the key of their deployment."""
        self._hold = autoscaler.hold_notes(settings.names)
        self.controller = Controller(
            NAME,
            queue=NAME,
            reconcile=self.sync,
            workers=workers,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=caches.nodes, changed=self._node_changed),
                Watch(informer=caches.machines, changed=self._machine_changed),
                Watch(informer=caches.machine_sets, changed=self._set_changed),
                Watch(informer=caches.machine_deployments, changed=self._deployment_changed),
            ],
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Bring one deployment a step further.

        Raises:
            KubeError: a request failed.
        """
        cached = self._caches.machine_deployments.store.get(key)
        if cached is None:
            self._gathered_until.pop(key, None)
            return IDLE
        if (left_s := self._gathered_until.get(key, 0.0) - clock.monotonic()) > 0:
            return Result(after_s=left_s, idle=True)
        self._gathered_until.pop(key, None)
        try:
            return await self._step(self._calls.write.newest(cached))
        except StaleObject:
            # Decided anew, in a moment: what made it stale may not be in the caches yet.
            return Result(back_off=True)

    async def _step(self, obj: MachineDeployment) -> Result:
        if obj.is_deleting:
            if await self._guard.blocks(obj):
                return RECHECK
            await self._remove(obj)
            return DONE
        held = (await self._calls.write.change(obj, Step(self._held))).obj
        if held is None:
            return DONE
        if held.faults:
            await self._refuse(held)
            return DONE
        if self._caches.machines.undecodable or self._caches.machine_sets.undecodable:
            # What cannot be read counts too, and nobody knows as what.
            return Result(back_off=True)
        return await self._roll(held)

    async def _roll(self, obj: MachineDeployment) -> Result:
        sets = {one.uid: one for one in await self._claimed(obj)}
        if self._is_behind(sets):
            return Result(back_off=True)
        found = rollout.plan(
            obj,
            [self._populated(one) for one in sets.values()],
            clock.now(),
            self._settings,
            taken=[one.name for one in self._caches.machine_sets.store.list()],
        )
        # A set that is being made now is not among them; the pass that its making brings tells.
        self._caches.arrivals.rolls(obj.uid, sets if found.holds else (), self._hold)
        after = await self._calls.carry_out(obj, found, sets)
        if found.revert is not None:
            return DONE
        rest_s = await self._say(after, obj.status, found.status)
        waits = [one for one in (rest_s, found.after_s, RESYNC_S) if one is not None]
        return Result(after_s=min(waits))

    async def _say(
        self, obj: MachineDeployment, before: DeploymentStatus, found: DeploymentStatus
    ) -> float | None:
        """Write the status, not too often; seconds until it may be written, if it is not."""
        if self._codec.deployment_status_patch(obj, found) is None:
            return None
        rest_s = self._said_at.get(obj.uid, -math.inf) + STATUS_PAUSE_S - clock.monotonic()
        if rest_s > 0 and not plan.is_urgent(before, found):
            return rest_s
        self._said_at[obj.uid] = clock.monotonic()
        await self._calls.say(obj, found)
        return None

    async def _refuse(self, obj: MachineDeployment) -> None:
        found = progress.refusal(obj, clock.now())
        if self._codec.deployment_status_patch(obj, found) is None:
            return
        await self._calls.say(obj, found)
        for event in plan.refused(found, selects_all=obj.selects_all):
            self._calls.tell(obj, event)

    async def _remove(self, obj: MachineDeployment) -> None:
        """Its sets go first; each of them sees to its machines."""
        if self._settings.names.finalizer not in obj.finalizers:
            return
        sets = await self._claimed(obj)
        await self._calls.delete_sets(obj, sets)
        if not sets and not self._caches.machine_sets.undecodable:
            await self._calls.write.change(obj, Step(self._released))

    # --- what belongs to it -----------------------------------------------------------------------

    async def _claimed(self, obj: MachineDeployment) -> Sequence[MachineSet]:
        store, terms = self._caches.machine_sets.store, obj.terms
        among = (store.get(key) for key in self._sets.candidates(obj.uid))

        def matches(one: MachineSet) -> bool:
            return terms is not None and selectors.matches(terms, one.labels)

        return await self._ownership.claim(obj, [one for one in among if one], matches)

    def _populated(self, obj: MachineSet) -> replicas.PopulatedSet:
        store, annotation = self._caches.machines.store, self._settings.names.preserve
        labels = obj.template.labels
        return replicas.populated(
            obj,
            [
                replicas.member(
                    one,
                    self._node(one.node_name) if one.node_name else None,
                    labels,
                    annotation=annotation,
                )
                for key in self._machines.owned(obj.uid)
                if (one := store.get(key)) is not None
            ],
        )

    def _is_behind(self, sets: Iterable[str]) -> bool:
        """Whether the cache does not show yet that a machine of these sets changed hands. They go
        by the same cache: one that is told to shrink would take another machine for it.
        """
        store, newest = self._caches.machines.store, self._calls.write_machines.newest
        for uid in sets:
            found = (store.get(key) for key in self._machines.owned(uid))
            if any(controller_uid(newest(one)) != uid for one in found if one is not None):
                return True
        return False

    def _node(self, name: str) -> Node | None:
        node = self._caches.nodes.store.get(name)
        return None if node is None else self._calls.write_nodes.newest(node)

    # --- the caches -------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        if new is None and old is not None:
            self._calls.write_nodes.forget(old.key)
        elif new is not None and plan.node_matters(old, new, self._settings.names):
            name = new.labels.get(self._settings.names.machine_label, "")
            self._of_machine(self._caches.machines.store.get(f"{self._caches.namespace}/{name}"))
        return False

    def _owner_of(self, obj: MachineSet) -> str:
        """Return the key of the deployment that controls a set; empty: none does."""
        return controller_key(obj, self._codec.machine_deployments.kind)

    def _of_machine(self, machine: Machine | None, *, arrived: bool = False) -> None:
        """The deployment of a machine has something to do."""
        key = "" if machine is None else controller_key(machine, self._codec.machine_sets.kind)
        owner = self._caches.machine_sets.store.get(key)
        if owner is not None:
            deployment = self._owner_of(owner)
            if arrived and deployment:
                self._gathered_until.setdefault(deployment, clock.monotonic() + ARRIVAL_S)
            self._add(deployment)

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._machines.note(old, new)
        if new is None and old is not None:
            self._calls.write_machines.forget(old.key)
        if plan.machine_matters(old, new):
            for one in (old, new):
                self._of_machine(one, arrived=plan.only_arrived(old, new))
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        self._sets.note(old, new)
        found = new or old
        if found is not None:
            self._calls.shown(found.key)
        if plan.set_matters(old, new):
            for one in filter(None, (old, new)):
                self._add(self._owner_of(one) or self._adopter(one))
        if new is None and old is not None:
            self._calls.write_sets.forget(old.key)
        return False

    def _adopter(self, orphan: MachineSet) -> str:
        """Key of a deployment that may take over a set that nobody controls."""
        for one in self._caches.machine_deployments.store.list():
            terms = one.terms
            is_near = one.namespace == orphan.namespace
            if terms and is_near and selectors.matches(terms, orphan.labels):
                return one.key
        return ""

    def _deployment_changed(
        self, old: MachineDeployment | None, new: MachineDeployment | None, _: bool
    ) -> bool:
        metrics.note_deployment(old, new, total=len(self._caches.machine_deployments.store))
        if old is not None and (new is None or new.uid != old.uid):
            self._calls.write.forget(old.key)
            self._guard.forget(old.uid)
            self._said_at.pop(old.uid, None)
            self._caches.arrivals.rolls(old.uid, (), {})
        return new is not None

    def _add(self, key: str) -> None:
        if key:
            self.controller.queue.add_after(key, GATHER_S)

    def _held(self, obj: MachineDeployment) -> Patch | None:
        finalizer = self._settings.names.finalizer
        return None if obj.is_deleting else add_finalizer(obj, finalizer, strategic=False)

    def _released(self, obj: MachineDeployment) -> Patch | None:
        return remove_finalizer(obj, self._settings.names.finalizer, strategic=False)

"""Reconciles MachineDeployments: one plan per pass, from the current state of the caches.

A pass is triggered by a change of the deployment or its sets, or by a relevant change of the
machines and nodes of the sets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ccm.base import clock, log, redact, tasks
from ccm.controllers.machinedeployment import plan
from ccm.controllers.machinedeployment.plan import DeploymentEvent
from ccm.kube.errors import AlreadyExists, ApiError, KubeError, NotFound
from ccm.kube.resources import NODES
from ccm.machines import autoscaler, in_place_update, metrics, progress, reasons, replicas, rollout
from ccm.machines.autoscaler import DeletionMark, NodeMark, node_patch
from ccm.machines.caches import Caches
from ccm.machines.crdguard import RECHECK, CRDGuard
from ccm.machines.in_place_update import MachineMove, NodeStep, UpdateActions
from ccm.machines.replicas import Member, PopulatedSet
from ccm.machines.rollout import Rollback, RolloutPlan, SetChange, SetCreation
from ccm.machines.settings import MachineSettings
from ccm.model import Node, selectors
from ccm.model.machines import DeploymentStatus, Machine, MachineDeployment, MachineSet, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_key, controller_reference, controller_uid
from ccm.model.patches import (
    Patch,
    StaleObject,
    annotations_patch,
    custom_resource_finalizer_patch,
    remove_finalizer_patch,
    uid_precondition,
)
from ccm.runtime import writer
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch
from ccm.runtime.ownership import OwnerIndex, Ownership
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

QUEUE_NAME = "machinedeployment"
BACK_OFF_CAP_S = 60.0
"""Maximum back-off of one object; client-go's 1000 s would delay a repaired object for too long."""

RESYNC_S = 600.0
"""Resync period of a deployment (Gardener's MCM)."""

STATUS_PAUSE_S = 2.0
"""Minimum seconds between two status writes of a deployment if only counts have changed: many
machines change at about the same time."""

GATHER_S = 0.1
"""Delay of a pass in seconds, to collect changes of machines and sets, because a pass checks all
sets."""

ARRIVAL_S = 0.75
"""Maximum seconds for which machines that have become ready are collected before the next pass,
while others boot. The machines of one step of a rollout become ready at about the same time, and
each step costs writes and events for every set."""


class MachineDeploymentController:
    """The machine deployment controller.

    Args:
        caches: caches of the machine controllers; they are ready.
        guard: blocks deletions that result from the deletion of the CRD.
        events: recorder of events.
        settings: names and settings.
        workers: number of workers.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        guard: CRDGuard,
        events: Recorder,
        settings: MachineSettings,
        workers: int,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._caches, self._settings, self._guard = caches, settings, guard
        self._codec = caches.codec
        self._writer = DeploymentWriter(caches=caches, events=events, settings=settings, rng=rng)
        self._ownership = Ownership(
            kind=caches.codec.machine_deployments,
            owners=self._writer.deployments,
            write=self._writer.write_sets,
        )
        finalizer = settings.names.owner_finalizer
        self._hold = partial(custom_resource_finalizer_patch, name=finalizer)
        self._release = lambda obj: remove_finalizer_patch(obj, finalizer, strategic=False)
        self._machines: OwnerIndex[Machine] = OwnerIndex()
        self._sets: OwnerIndex[MachineSet] = OwnerIndex()
        self._status_written_at: dict[str, float] = {}
        self._gathered_until: dict[str, float] = {}
        """Key of a deployment -> monotonic time before which no pass runs, see `ARRIVAL_S`."""
        self._notes = autoscaler.scale_down_annotations(settings.names)
        kind = caches.codec.machine_deployments
        metrics.OWNERS[kind.group, kind.kind] = caches.machine_deployments.store.list
        self.controller = Controller(
            caches.codec.controller_name("machine-deployment"),
            queue=f"{caches.codec.prefix}{QUEUE_NAME}",
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

    async def sync(self, key: str) -> ReconcileResult:
        """Reconcile one deployment.

        Raises:
            KubeError: a request failed.
        """
        cached = self._caches.machine_deployments.store.get(key)
        if cached is None:
            self._gathered_until.pop(key, None)
            return IDLE
        left_s = self._gathered_until.get(key, 0.0) - clock.monotonic()
        if left_s > 0 and self._has_booting_machines(cached):
            return ReconcileResult(after_s=left_s, idle=True)
        self._gathered_until.pop(key, None)
        try:
            return await self._step(self._writer.write.newest(cached))
        except StaleObject:
            # Retry with back-off: the caches may not show the conflicting change yet.
            return ReconcileResult(back_off=True)

    async def _step(self, obj: MachineDeployment) -> ReconcileResult:
        if obj.is_deleting:
            if await self._guard.blocks(obj):
                return RECHECK
            await self._remove(obj)
            return DONE
        updated = (await self._writer.write.change(obj, PatchStep(self._hold))).obj
        if updated is None:
            return DONE
        if updated.faults:
            await self._write_invalid(updated)
            return DONE
        if self._caches.machines.malformed_keys or self._caches.machine_sets.malformed_keys:
            # Objects that cannot be decoded may belong to this deployment, but are not counted.
            return ReconcileResult(back_off=True)
        return await self._roll(updated)

    async def _roll(self, obj: MachineDeployment) -> ReconcileResult:
        sets = {machine_set.uid: machine_set for machine_set in await self._claim_sets(obj)}
        if self._is_behind(sets):
            return ReconcileResult(back_off=True)
        planned = rollout.plan(
            obj,
            [self._populated(machine_set) for machine_set in sets.values()],
            clock.now(),
            self._settings,
            taken=[machine_set.name for machine_set in self._caches.machine_sets.store.list()],
        )
        # `sets` lacks a set that this pass creates: its creation triggers the next pass.
        self._caches.initial_metadata.set_rollout_annotations(
            obj.uid, sets if planned.holds else (), self._notes
        )
        after = await self._writer.apply(obj, planned, sets)
        if planned.revert is not None:
            return DONE
        rest_s = await self._write_status(after, obj.status, planned.status)
        delays = [delay_s for delay_s in (rest_s, planned.after_s, RESYNC_S) if delay_s is not None]
        return ReconcileResult(after_s=min(delays))

    async def _write_status(
        self, obj: MachineDeployment, before: DeploymentStatus, status: DeploymentStatus
    ) -> float | None:
        """Write the status if it changed, at a limited rate.

        Returns:
            Seconds until the status may be written; None = up to date or written.
        """
        patch = self._codec.deployment_status_patch(obj, status)
        if patch is None:
            return None
        rest_s = (
            self._status_written_at.get(obj.uid, -math.inf) + STATUS_PAUSE_S - clock.monotonic()
        )
        if rest_s > 0 and not plan.is_urgent(before, status, patch):
            return rest_s
        self._status_written_at[obj.uid] = clock.monotonic()
        await self._writer.write_status(obj, status)
        return None

    async def _write_invalid(self, obj: MachineDeployment) -> None:
        status = progress.invalid_status(obj, clock.now())
        if self._codec.deployment_status_patch(obj, status) is None:
            return
        await self._writer.write_status(obj, status)
        if (event := plan.invalid_event(status, selects_all=obj.selects_all)) is not None:
            self._writer.record_event(obj, event)

    async def _remove(self, obj: MachineDeployment) -> None:
        """Delete the sets, then remove our finalizer. Each set deletes its machines."""
        if self._settings.names.owner_finalizer not in obj.finalizers:
            return
        sets = await self._claim_sets(obj)
        await self._writer.delete_sets(obj, sets)
        if not sets and not self._caches.machine_sets.malformed_keys:
            await self._writer.write.change(obj, PatchStep(self._release))

    # --- owned objects ----------------------------------------------------------------------------

    async def _claim_sets(self, obj: MachineDeployment) -> Sequence[MachineSet]:
        store, terms = self._caches.machine_sets.store, obj.requirements
        candidates = (store.get(key) for key in self._sets.candidates(obj.uid))

        def matches(machine_set: MachineSet) -> bool:
            return terms is not None and selectors.matches(terms, machine_set.labels)

        return await self._ownership.claim(
            obj, [machine_set for machine_set in candidates if machine_set], matches
        )

    def _populated(self, obj: MachineSet) -> replicas.PopulatedSet:
        store, annotation = self._caches.machines.store, self._settings.names.preserve
        labels = obj.template.labels
        return replicas.with_members(
            obj,
            [
                replicas.build_member(
                    machine,
                    self._node(machine.node_name) if machine.node_name else None,
                    labels,
                    annotation=annotation,
                )
                for key in self._machines.owned(obj.uid)
                if (machine := store.get(key)) is not None
            ],
        )

    def _has_booting_machines(self, obj: MachineDeployment) -> bool:
        """Return whether machines of the deployment are new, or their nodes have not joined yet."""
        sets, machines = self._caches.machine_sets.store, self._caches.machines.store
        return any(
            machine.phase in (Phase.NEW, Phase.PENDING) and not machine.is_deleting
            for set_key in self._sets.owned(obj.uid)
            if (machine_set := sets.get(set_key)) is not None
            for key in self._machines.owned(machine_set.uid)
            if (machine := machines.get(key)) is not None
        )

    def _is_behind(self, sets: Iterable[str]) -> bool:
        """Return whether the cache does not yet show that a machine moved away from a set.

        The set controller reads the same cache: while that controller counts the moved machine, it
        would delete another machine of a set that shrinks.
        """
        store, newest = self._caches.machines.store, self._writer.write_machines.newest
        for uid in sets:
            machines = (store.get(key) for key in self._machines.owned(uid))
            if any(
                controller_uid(newest(machine)) != uid
                for machine in machines
                if machine is not None
            ):
                return True
        return False

    def _node(self, name: str) -> Node | None:
        node = self._caches.nodes.store.get(name)
        return None if node is None else self._writer.write_nodes.newest(node)

    # --- the caches -------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        if new is None and old is not None:
            self._writer.write_nodes.forget(old.key)
        elif new is not None and plan.node_matters(old, new, self._settings.names):
            self._queue_deployment_of(self._caches.machine_of_node(new))
        return False

    def _owner_of(self, obj: MachineSet) -> str:
        """Return the key of the deployment that controls a set; empty = none."""
        return controller_key(obj, self._codec.machine_deployments.kind)

    def _queue_deployment_of(self, machine: Machine | None, *, arrived: bool = False) -> None:
        key = "" if machine is None else controller_key(machine, self._codec.machine_sets.kind)
        owner = self._caches.machine_sets.store.get(key)
        if owner is not None:
            deployment = self._owner_of(owner)
            if arrived and deployment:
                self._gathered_until.setdefault(deployment, clock.monotonic() + ARRIVAL_S)
            self._add(deployment)

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._machines.update(old, new)
        if new is None and old is not None:
            self._writer.write_machines.forget(old.key)
        if plan.machine_matters(old, new):
            for machine in (old, new):
                self._queue_deployment_of(machine, arrived=plan.has_started_working(old, new))
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        self._sets.update(old, new)
        changed = new or old
        if changed is not None:
            self._writer.forget_created(changed.key)
        if plan.set_matters(old, new):
            for machine_set in filter(None, (old, new)):
                owner = self._owner_of(machine_set) or self._adopter(machine_set)
                self._add(owner, at_once=plan.has_become_current(old, new))
        if new is None and old is not None:
            self._writer.write_sets.forget(old.key)
        return False

    def _adopter(self, orphan: MachineSet) -> str:
        """Return the key of a deployment that may adopt an orphaned set; empty = none."""
        for deployment in self._caches.machine_deployments.store.list():
            terms = deployment.requirements
            is_near = deployment.namespace == orphan.namespace
            if terms and is_near and selectors.matches(terms, orphan.labels):
                return deployment.key
        return ""

    def _deployment_changed(
        self, old: MachineDeployment | None, new: MachineDeployment | None, _: bool
    ) -> bool:
        if not self._codec.prefix:
            total = len(self._caches.machine_deployments.store)
            metrics.update_deployment_series(old, new, total=total)
        if old is not None and (new is None or new.uid != old.uid):
            self._writer.write.forget(old.key)
            self._guard.forget(old.uid)
            self._status_written_at.pop(old.uid, None)
            self._caches.initial_metadata.set_rollout_annotations(old.uid, (), {})
        return new is not None

    def _add(self, key: str, *, at_once: bool = False) -> None:
        if key:
            self.controller.queue.add_after(key, 0.0 if at_once else GATHER_S)


# --- requests -------------------------------------------------------------------------------------

AT_ONCE = 16
"""Maximum number of concurrent writes of machines or nodes for one deployment."""

SHOWN_WITHIN_S = 30.0
"""Seconds for the cache to show a created set. After that, the creation is repeated: the response
AlreadyExists leads to a live read of the set."""


class DeploymentWriter:
    """Writer of deployments and of their sets, machines and nodes.

    Args:
        caches: caches of the machine controllers.
        events: recorder of events.
        settings: names and settings.
        rng: source of jitter.
    """

    def __init__(
        self, *, caches: Caches, events: Recorder, settings: MachineSettings, rng: random.Random
    ) -> None:
        self._caches, self._codec = caches, caches.codec
        self._events, self._settings = events, settings
        self.deployments = caches.client.resource(caches.codec.machine_deployments)
        self._sets = caches.client.resource(caches.codec.machine_sets)
        self.write = caches.writer(caches.codec.machine_deployments, rng)
        self.write_sets = caches.writer(caches.codec.machine_sets, rng)
        self.write_machines = caches.writer(caches.codec.machines, rng)
        nodes = caches.target.client.resource(NODES)
        self.write_nodes = ObjectWriter(nodes, cache=caches.nodes.store, rng=rng)
        self._created_until: dict[str, float] = {}
        self._log = log.logger(caches.codec.controller_name("machine-deployment"))

    async def apply(
        self, obj: MachineDeployment, planned: RolloutPlan, sets: Mapping[str, MachineSet]
    ) -> MachineDeployment:
        """Carry out a plan, except for the status; return the new version of the deployment.

        Raises:
            StaleObject: an object changed since the plan was made.
            KubeError: a request failed.
        """
        if planned.revert is not None:
            return await self._revert(obj, planned.revert, sets)
        await self._mark(obj, planned.marks)
        if planned.annotations:
            wanted = {key: text or None for key, text in planned.annotations.items()}
            obj = await self._write(obj, lambda obj: annotations_patch(obj, wanted))
        await self._mark_nodes(planned.nodes)
        if planned.create is not None:
            await self._create_set(obj, planned.create)
        for change in planned.changes:
            await self._change(obj, change, sets[change.set.uid])
        await self._update(planned.update, sets)
        for dropped in planned.delete:
            await self.delete_set(obj, dropped, sets[dropped.uid])
        return obj

    async def write_status(self, obj: MachineDeployment, status: DeploymentStatus) -> None:
        """Write the status.

        Raises:
            StaleObject: the generation of the deployment changed.
            KubeError: a request failed.
        """

        def said(latest: MachineDeployment) -> Patch | None:
            if latest.metadata.generation != obj.metadata.generation:
                raise StaleObject
            # Conditions that other programs write may have changed since the plan was made.
            conditions = (
                *(
                    condition
                    for condition in latest.status.conditions
                    if condition.type not in progress.OWN
                ),
                *(condition for condition in status.conditions if condition.type in progress.OWN),
            )
            return self._codec.deployment_status_patch(
                latest, replace(status, conditions=conditions)
            )

        await self.write.change(obj, PatchStep(said, "status"))

    async def delete_set(
        self, obj: MachineDeployment, view: PopulatedSet, cached: MachineSet
    ) -> None:
        """Delete an old set, after a live read confirmed that it is empty.

        Raises:
            StaleObject: the set has machines or another owner, or was replaced.
            KubeError: a request failed.
        """
        try:
            live = await self._sets.get(cached.name, namespace=cached.namespace)
        except NotFound:
            return
        is_empty = not (live.replicas or live.status.replicas)
        if live.uid != cached.uid or controller_uid(live) != obj.uid or not is_empty:
            raise StaleObject
        await writer.delete(self._sets, live)
        self._log.info("old machine set deleted", key=obj.key, machine_set=view.name)

    async def delete_sets(self, obj: MachineDeployment, sets: Sequence[MachineSet]) -> None:
        """Delete all sets, after a live read confirmed that their deployment is being deleted.

        Raises:
            StaleObject: the deployment is not being deleted, or is another object.
            KubeError: a request failed.
        """
        left = [machine_set for machine_set in sets if not machine_set.is_deleting]
        if not left:
            return
        live = await self.deployments.get(obj.name, namespace=obj.namespace)
        if live.uid != obj.uid or not live.is_deleting:
            raise StaleObject
        # Sets with machines first: `CRDGuard` lets the set that is deleted first continue at once,
        # and the others only `INTERVAL_S` later.
        for remaining in sorted(left, key=lambda machine_set: -machine_set.replicas):
            await writer.delete(self._sets, remaining)
        self._log.info("machine sets deleted with their deployment", key=obj.key, count=len(left))

    def record_event(self, obj: MachineDeployment, event: DeploymentEvent) -> None:
        self._events.event(self._codec.machine_deployments.reference(obj), *event)

    def forget_created(self, key: str) -> None:
        """Record that the cache shows the creation or deletion of a set; `key` = key of the set."""
        self._created_until.pop(key, None)

    # --- the deployment -------------------------------------------------------------------------

    async def _revert(
        self, obj: MachineDeployment, rollback: Rollback, sets: Mapping[str, MachineSet]
    ) -> MachineDeployment:
        to = sets[rollback.to.uid] if rollback.to is not None else None
        after = await self._write(obj, lambda obj: self._codec.revert_patch(obj, to))
        event = plan.rollback_event(rollback, obj)
        self.record_event(obj, event)
        self._log.info("rollback request handled", key=obj.key, reason=event.message)
        return after

    async def _write(
        self, obj: MachineDeployment, patch: Callable[[MachineDeployment], Patch | None]
    ) -> MachineDeployment:
        """Write a deployment unless its generation changed since the plan was made."""

        def written(latest: MachineDeployment) -> Patch | None:
            if latest.metadata.generation != obj.metadata.generation:
                raise StaleObject
            return patch(latest)

        after = (await self.write.change(obj, PatchStep(written))).obj
        if after is None:
            raise StaleObject
        return after

    # --- machines and nodes -----------------------------------------------------------------------

    async def _change_machine(
        self, member: Member, patch: Callable[[Machine], Patch | None]
    ) -> bool:
        """Write a machine; return False if it was deleted or replaced since the plan was made."""
        cached = self._caches.machines.store.get(member.key)
        if cached is None or cached.uid != member.uid:
            return False
        await self.write_machines.change(cached, PatchStep(patch))
        return True

    async def _mark(self, obj: MachineDeployment, marks: Sequence[DeletionMark]) -> None:
        async def mark_one(mark: DeletionMark) -> None:
            wanted, member = mark.annotations, mark.piece
            if await self._change_machine(
                member, lambda latest: annotations_patch(latest, wanted, any_version=True)
            ):
                self._log.info(
                    "autoscaler chose machine for deletion", key=obj.key, machine=member.key
                )

        await _call_all(marks, mark_one)

    async def _mark_nodes(self, marks: Sequence[NodeMark]) -> None:
        names = self._settings.names
        await _call_all(
            marks,
            lambda mark: self.write_nodes.change(
                mark.node, PatchStep(lambda obj: node_patch(obj, mark, names))
            ),
        )

    async def _update(self, actions: UpdateActions, sets: Mapping[str, MachineSet]) -> None:
        names = self._settings.names

        async def step(node_step: tuple[Node, NodeStep]) -> None:
            node, wanted = self.write_nodes.newest(node_step[0]), node_step[1]
            await self.write_nodes.change(
                node, PatchStep(lambda latest: in_place_update.node_patch(latest, wanted, names))
            )

        async def move(planned: MachineMove) -> None:
            await self._move(planned.piece, sets[planned.old.uid], sets[planned.new.uid])

        def arrived(machine: Machine) -> Patch | None:
            if names.update_result not in machine.labels:
                return None
            return {"metadata": uid_precondition(machine) | {"labels": {names.update_result: None}}}

        await _call_all(actions.moves, move)
        await _call_all(actions.nodes, step)
        await _call_all(actions.moved_members, lambda member: self._change_machine(member, arrived))

    async def _move(self, piece: Member, old: MachineSet, new: MachineSet) -> None:
        kind = self._codec.machine_sets
        owner = controller_reference(new, api_version=kind.api_version, kind=kind.kind)

        def moved(machine: Machine) -> Patch | None:
            if controller_uid(machine) != old.uid or machine.is_deleting:
                return None
            return self._codec.move_patch(machine, old=old, new=new, reference=owner)

        if await self._change_machine(piece, moved):
            self._log.info("machine moved after in-place update", key=new.key, machine=piece.key)

    # --- sets -------------------------------------------------------------------------------------

    async def _create_set(self, obj: MachineDeployment, making: SetCreation) -> None:
        """Create a set, unless it was created before and the cache does not show it yet.

        Raises:
            StaleObject: another object has the name; the collision is counted in the status.
            KubeError: a request failed.
        """
        key = f"{obj.namespace}/{making.name.name}"
        if self._created_until.get(key, 0.0) > clock.monotonic():
            return
        kind = self._codec.machine_deployments
        reference = controller_reference(obj, api_version=kind.api_version, kind=kind.kind)
        body = self._codec.set_body(obj, making, reference)
        try:
            await self._sets.create(body, namespace=obj.namespace)
        except AlreadyExists:
            await self._collided(obj, making)
            return
        except ApiError as error:
            text = redact.mask_for_api(
                f"Failed to create new machine set {making.name.name}: {error}"
            )
            self.record_event(obj, DeploymentEvent(WARNING, reasons.EVENT_CREATE_ERROR, text))
            await self.write_status(
                obj, progress.stopped_status(obj, clock.now(), progress.SET_CREATE_ERROR, text)
            )
            raise
        self._created_until[key] = clock.monotonic() + SHOWN_WITHIN_S
        self._log.info("machine set created", key=obj.key, machine_set=key)
        if making.replicas:
            text = f"Scaled up machine set {making.name.name} to {making.replicas}"
            self.record_event(obj, DeploymentEvent(NORMAL, reasons.EVENT_SCALING, text))

    async def _collided(self, obj: MachineDeployment, making: SetCreation) -> None:
        """Handle a taken name: accept a set that we created before, else count a collision.

        Raises:
            StaleObject: another object has the name.
        """
        live = await self._sets.get(making.name.name, namespace=obj.namespace)
        is_alike = live.template.essence == obj.template.essence
        is_ours = controller_uid(live) == obj.uid and not live.is_deleting
        if is_ours and is_alike:
            self._created_until[live.key] = clock.monotonic() + SHOWN_WITHIN_S
            return
        count = making.name.collisions + 1

        def collided(latest: MachineDeployment) -> Patch | None:
            if (latest.status.collisions or 0) >= count:
                return None
            wanted = replace(latest.status, collisions=count)
            return self._codec.deployment_status_patch(latest, wanted)

        self._log.info("machine set name collision", key=obj.key, machine_set=live.key)
        await self.write.change(obj, PatchStep(collided, "status"))
        raise StaleObject

    async def _change(self, obj: MachineDeployment, change: SetChange, cached: MachineSet) -> None:
        def changed(latest: MachineSet) -> Patch | None:
            # The sizes of a plan belong together: if a set's size changed meanwhile, plan again.
            if latest.replicas != change.set.replicas or controller_uid(latest) != obj.uid:
                raise StaleObject
            return self._codec.set_patch(latest, change, obj)

        written = await self.write_sets.change(cached, PatchStep(changed))
        if written.obj is None:
            raise StaleObject
        if event := plan.scaling_event(change):
            self.record_event(obj, event)
            self._log.info("machine set scaled", key=cached.key, reason=event.message)


async def _call_all(items: Sequence[Any], call: Any) -> None:
    """Call `call` for each item, at most `AT_ONCE` calls concurrently.

    Raises:
        KubeError: first error of a call; all other calls were made, too.
    """
    errors = list[KubeError]()

    async def one(item: Any) -> None:
        try:
            await call(item)
        except KubeError as error:
            errors.append(error)

    await tasks.run_bounded(items, one, limit=min(AT_ONCE, len(items)), name=QUEUE_NAME)
    if errors:
        raise errors[0]

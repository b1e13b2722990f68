"""Carries out what was planned for a deployment; a write fails where the state is another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ccm.base import clock, log, redact, tasks
from ccm.controllers.machinedeployment import plan
from ccm.controllers.machinedeployment.plan import Event
from ccm.kube.errors import AlreadyExists, ApiError, KubeError, NotFound
from ccm.kube.resources import NODES
from ccm.machines import inplace, progress, reasons
from ccm.machines.autoscaler import Mark, NodeMark, node_patch
from ccm.machines.caches import Caches
from ccm.machines.inplace import Move, NodeStep, Update
from ccm.machines.replicas import Member, PopulatedSet
from ccm.machines.rollout import Change, Making, Plan
from ccm.machines.settings import Settings
from ccm.model import Node
from ccm.model.machines import DeploymentStatus, Machine, MachineDeployment, MachineSet
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import as_controller, controller_uid
from ccm.model.patches import Patch, StaleObject, annotations_patch, same_object
from ccm.runtime import writer
from ccm.runtime.writer import Recorder, Step, Writer

NAME = "machinedeployment"

AT_ONCE = 16
"""Machines, or nodes, that are written at once for one deployment."""

SHOWN_WITHIN_S = 30.0
"""How long the cache has to show a set that was made; then it is looked up by making it again."""


class Calls:
    """All requests about a deployment and what belongs to it.

    Args:
        caches: the caches.
        events: where events go.
        settings: names and settings.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        events: Recorder,
        settings: Settings,
        rng: random.Random,
    ) -> None:
        self._caches, self._codec = caches, caches.codec
        self._events, self._settings = events, settings
        self.deployments = caches.client.resource(caches.codec.machine_deployments)
        self._sets = caches.client.resource(caches.codec.machine_sets)
        self.write = caches.writer(caches.codec.machine_deployments, rng)
        self.write_sets = caches.writer(caches.codec.machine_sets, rng)
        self.write_machines = caches.writer(caches.codec.machines, rng)
        nodes = caches.target.client.resource(NODES)
        self.write_nodes = Writer(nodes, cache=caches.nodes.store, rng=rng)
        self._made: dict[str, float] = {}
        self._log = log.logger(NAME)

    async def carry_out(
        self, obj: MachineDeployment, found: Plan, sets: Mapping[str, MachineSet]
    ) -> MachineDeployment:
        """Do all but to say how it is; the deployment as it is then.

        Raises:
            StaleObject: something is not as it was when that was planned.
            KubeError: a request failed.
        """
        if found.revert is not None:
            return await self._revert(obj, found, sets)
        await self._mark(obj, found.marks)
        if found.annotations:
            obj = await self._note(obj, found)
        await self._mark_nodes(found.nodes)
        if found.make is not None:
            await self._make(obj, found.make)
        for change in found.changes:
            await self._change(obj, change, sets[change.set.uid])
        await self._update(found.update, sets)
        for one in found.drop:
            await self.drop(obj, one, sets[one.uid])
        return obj

    async def say(self, obj: MachineDeployment, found: DeploymentStatus) -> None:
        """Write the status.

        Raises:
            StaleObject: the deployment is gone, or another is wanted by now.
            KubeError: a request failed.
        """

        def said(one: MachineDeployment) -> Patch | None:
            if one.metadata.generation != obj.metadata.generation:
                raise StaleObject
            # Conditions of other writers may have changed since the plan was made.
            conditions = (
                *(each for each in one.status.conditions if each.type not in progress.OWN),
                *(each for each in found.conditions if each.type in progress.OWN),
            )
            return self._codec.deployment_status_patch(one, replace(found, conditions=conditions))

        await self.write.change(obj, Step(said, "status"))

    async def drop(self, obj: MachineDeployment, view: PopulatedSet, cached: MachineSet) -> None:
        """Delete a set that nobody needs, if that is so on the API server too.

        Raises:
            StaleObject: it has machines after all.
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
        """Delete all sets of a deployment that is being deleted; that is asked for once more.

        Raises:
            StaleObject: it is not being deleted, or is another.
            KubeError: a request failed.
        """
        left = [one for one in sets if not one.is_deleting]
        if not left:
            return
        live = await self.deployments.get(obj.name, namespace=obj.namespace)
        if live.uid != obj.uid or not live.is_deleting:
            raise StaleObject
        for one in left:
            await writer.delete(self._sets, one)
        self._log.info("machine deployment goes, so do its sets", key=obj.key, count=len(left))

    def tell(self, obj: MachineDeployment, event: Event | None) -> None:
        """Record an event."""
        if event is None:
            return
        self._events.event(
            self._codec.machine_deployments.reference(obj), event.kind, event.reason, event.message
        )

    def shown(self, key: str) -> None:
        """The cache shows a set, or that it is gone."""
        self._made.pop(key, None)

    # --- the deployment -------------------------------------------------------------------------

    async def _revert(
        self, obj: MachineDeployment, found: Plan, sets: Mapping[str, MachineSet]
    ) -> MachineDeployment:
        wish = found.revert
        to = sets[wish.to.uid] if wish is not None and wish.to is not None else None

        def back(one: MachineDeployment) -> Patch | None:
            _same(one, obj)
            return self._codec.revert_patch(one, to)

        after = await self._written(obj, back)
        event = plan.reverted(found, obj)
        self.tell(obj, event)
        if event is not None:
            self._log.info("rollback answered", key=obj.key, reason=event.message)
        return after

    async def _note(self, obj: MachineDeployment, found: Plan) -> MachineDeployment:
        def noted(one: MachineDeployment) -> Patch | None:
            _same(one, obj)
            wanted = {key: text or None for key, text in found.annotations.items()}
            return annotations_patch(one, wanted)

        return await self._written(obj, noted)

    async def _written(self, obj: MachineDeployment, step: Any) -> MachineDeployment:
        after = (await self.write.change(obj, Step(step))).obj
        if after is None:
            raise StaleObject
        return after

    # --- machines and nodes -----------------------------------------------------------------------

    async def _mark(self, obj: MachineDeployment, marks: Sequence[Mark]) -> None:
        store = self._caches.machines.store

        async def mark_one(mark: Mark) -> None:
            cached = store.get(mark.piece.machine.key)

            def marked(one: Machine) -> Patch | None:
                return annotations_patch(one, mark.annotations, any_version=True)

            if cached is not None and cached.uid == mark.piece.uid:
                await self.write_machines.change(cached, Step(marked))
                self._log.info("autoscaler chose a machine", key=obj.key, machine=cached.key)

        await _all(marks, mark_one)

    async def _mark_nodes(self, marks: Sequence[NodeMark]) -> None:
        async def mark_one(mark: NodeMark) -> None:
            def marked(one: Node) -> Patch | None:
                return node_patch(one, mark, self._settings.names)

            await self.write_nodes.change(mark.node, Step(marked))

        await _all(marks, mark_one)

    async def _update(self, found: Update, sets: Mapping[str, MachineSet]) -> None:
        """Machines that are updated in place, and their nodes, come a step further."""

        async def step(one: tuple[Node, NodeStep]) -> None:
            def stepped(node: Node) -> Patch | None:
                return inplace.node_patch(node, one[1], self._settings.names)

            await self.write_nodes.change(self.write_nodes.newest(one[0]), Step(stepped))

        async def move(one: Move) -> None:
            await self._move(one.piece, sets[one.old.uid], sets[one.new.uid])

        def arrived(one: Machine) -> Patch | None:
            label = self._settings.names.update_result
            if label not in one.labels:
                return None
            return {"metadata": same_object(one) | {"labels": {label: None}}}

        async def arrive(one: Member) -> None:
            cached = self._caches.machines.store.get(one.machine.key)
            if cached is not None and cached.uid == one.uid:
                await self.write_machines.change(cached, Step(arrived))

        await _all(found.moves, move)
        await _all(found.nodes, step)
        await _all(found.arrived, arrive)

    async def _move(self, piece: Member, old: MachineSet, new: MachineSet) -> None:
        cached = self._caches.machines.store.get(piece.machine.key)
        if cached is None or cached.uid != piece.uid:
            return
        kind = self._codec.machine_sets
        owner = as_controller(new, api_version=kind.api_version, kind=kind.kind)

        def moved(one: Machine) -> Patch | None:
            if controller_uid(one) != old.uid or one.is_deleting:
                return None
            return self._codec.move_patch(one, old=old, new=new, reference=owner)

        await self.write_machines.change(cached, Step(moved))
        self._log.info("machine was updated in place", key=new.key, machine=cached.key)

    # --- sets -------------------------------------------------------------------------------------

    async def _make(self, obj: MachineDeployment, making: Making) -> None:
        """Make a set; one that the cache does not show yet is not made twice."""
        key = f"{obj.namespace}/{making.name.name}"
        if self._made.get(key, 0.0) > clock.monotonic():
            return
        kind = self._codec.machine_deployments
        reference = as_controller(obj, api_version=kind.api_version, kind=kind.kind)
        body = self._codec.set_body(obj, making, reference)
        try:
            await self._sets.create(body, namespace=obj.namespace)
        except AlreadyExists:
            await self._collided(obj, making)
            return
        except ApiError as error:
            text = redact.public(f"Failed to create new machine set {making.name.name}: {error}")
            self.tell(obj, Event(WARNING, reasons.EVENT_CREATE_ERROR, text))
            await self.say(obj, progress.not_made(obj, clock.now(), text))
            raise
        self._made[key] = clock.monotonic() + SHOWN_WITHIN_S
        self._log.info("machine set made", key=obj.key, machine_set=key)
        if making.replicas:
            text = f"Scaled up machine set {making.name.name} to {making.replicas}"
            self.tell(obj, Event(NORMAL, reasons.EVENT_SCALING, text))

    async def _collided(self, obj: MachineDeployment, making: Making) -> None:
        """The name is taken: by what we made before, or by somebody else's."""
        live = await self._sets.get(making.name.name, namespace=obj.namespace)
        is_alike = live.template.essence == obj.template.essence
        is_ours = controller_uid(live) == obj.uid and not live.is_deleting
        if is_ours and is_alike:
            self._made[live.key] = clock.monotonic() + SHOWN_WITHIN_S
            return
        count = making.name.collisions + 1

        def collided(one: MachineDeployment) -> Patch | None:
            if (one.status.collisions or 0) >= count:
                return None
            wanted = replace(one.status, collisions=count)
            return self._codec.deployment_status_patch(one, wanted)

        self._log.info("name of a machine set is taken", key=obj.key, machine_set=live.key)
        await self.write.change(obj, Step(collided, "status"))
        raise StaleObject

    async def _change(self, obj: MachineDeployment, change: Change, cached: MachineSet) -> None:
        def changed(one: MachineSet) -> Patch | None:
            # Sizes belong together: where somebody else chose one, all are chosen anew.
            if one.replicas != change.set.replicas or controller_uid(one) != obj.uid:
                raise StaleObject
            return self._codec.set_patch(one, change, obj)

        written = await self.write_sets.change(cached, Step(changed))
        if written.obj is None:
            raise StaleObject
        if event := plan.scaled(change):
            self.tell(obj, event)
            self._log.info("machine set scaled", key=cached.key, reason=event.message)


def _same(one: MachineDeployment, obj: MachineDeployment) -> None:
    """Raises StaleObject where another is wanted than what was planned for."""
    if one.metadata.generation != obj.metadata.generation:
        raise StaleObject


async def _all(items: Sequence[Any], call: Any) -> None:
    """Do all of them, some at once.

    Raises:
        KubeError: of the first that failed; the others are done.
    """
    errors = list[KubeError]()

    async def one(item: Any) -> None:
        try:
            await call(item)
        except KubeError as error:
            errors.append(error)

    await tasks.bounded(items, one, limit=min(AT_ONCE, len(items)), name=NAME)
    if errors:
        raise errors[0]

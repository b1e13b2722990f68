"""The machine overshoot controller: stops creations in a set that has far too many machines.

The controller freezes and unfreezes MachineSets; a deployment is frozen while one of its sets is.

A set is reconciled when it gets a machine, when it is frozen and loses a machine, when a user sets
the unfreeze annotation, and periodically. The label `freeze` stops creations, and the condition
`Frozen` informs users. Other controllers that write the same status may remove the condition, so a
missing condition is written again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from ccm.base import clock, log
from ccm.kube.resources import ResourceKind
from ccm.machines import metrics, reasons, replicas
from ccm.machines.caches import Caches
from ccm.model.machines import Condition, Machine, MachineDeployment, MachineSet
from ccm.model.names import NORMAL, STATUS_TRUE, WARNING
from ccm.model.owners import controller_key, controller_uid
from ccm.model.patches import Patch, uid_precondition, version_precondition
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, PeriodicTask, ReconcileResult, Watch
from ccm.runtime.ownership import OwnerIndex
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

NAME = "machine-overshoot-controller"
QUEUE_NAME = "machineovershoot"
BACK_OFF_CAP_S = 60.0
"""Maximum back-off of one object; client-go's 1000 s would delay a repaired object for too long."""

JITTER = 0.1
_SET, _DEPLOYMENT = "MachineSet", "MachineDeployment"

Freezable = MachineSet | MachineDeployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Margins for freezing a set, in machines.

    Attributes:
        up: a set is frozen at this many machines above its expected maximum.
        down: a set is unfrozen at this many machines below the number that freezes it.
    """

    up: int = 2
    down: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState:
    """A set and its machines.

    Attributes:
        count: number of machines of the set that have all labels of the set's template, including
            machines that are being deleted.
        replicas: desired number of machines of the set.
        most: sum of replicas and surge of the set's deployment; None = the set has no deployment.
        is_frozen: whether the set has the label `freeze`, so that it creates no machines.
        has_condition: whether the condition `Frozen` agrees with `is_frozen`.
        wants_unfreeze: whether a user requests to unfreeze the set.
        was_unfrozen: whether a user unfroze the set after the last periodic reconcile, and the set
            has got no new machine since then.
    """

    count: int
    replicas: int
    most: int | None = None
    is_frozen: bool = False
    has_condition: bool = True
    wants_unfreeze: bool = False
    was_unfrozen: bool = False


class FreezeAction(Enum):
    """Action for a set."""

    NONE = "none"
    FREEZE = "freeze"
    ADD_CONDITION = "add condition"
    """The set is frozen, but the condition `Frozen` is missing."""
    REMOVE_CONDITION = "remove condition"
    """The set is not frozen, but has the condition `Frozen`."""
    UNFREEZE = "unfreeze"
    """The set has few enough machines to be unfrozen."""
    UNFREEZE_REQUESTED = "unfreeze on request"
    """A user requests to unfreeze the set. The next new machine or the next periodic reconcile may
    freeze the set again."""


def limits(stock: SetState, margins: Margins) -> tuple[int, int]:
    """Return the number of machines that freezes a set, and the number that unfreezes it."""
    base = 2 * stock.replicas if stock.most is None else stock.most
    higher = base + margins.up
    return higher, higher - margins.down


def decide(stock: SetState, margins: Margins) -> FreezeAction:
    """Return the action for a set."""
    higher, lower = limits(stock, margins)
    if stock.wants_unfreeze:
        return FreezeAction.UNFREEZE_REQUESTED
    if not stock.is_frozen and stock.count >= higher and not stock.was_unfrozen:
        return FreezeAction.FREEZE
    if stock.is_frozen and stock.count <= lower:
        return FreezeAction.UNFREEZE
    if not stock.has_condition:
        return FreezeAction.ADD_CONDITION if stock.is_frozen else FreezeAction.REMOVE_CONDITION
    return FreezeAction.NONE


_FREEZES = frozenset({FreezeAction.FREEZE, FreezeAction.ADD_CONDITION})
_REASONS = {
    FreezeAction.FREEZE: reasons.REASON_OVERSHOOT,
    FreezeAction.ADD_CONDITION: reasons.REASON_OVERSHOOT,
    FreezeAction.UNFREEZE: reasons.REASON_UNDERSHOOT,
    FreezeAction.UNFREEZE_REQUESTED: reasons.REASON_UNFREEZE,
    FreezeAction.REMOVE_CONDITION: reasons.REASON_UNDERSHOOT,
}


class MachineOvershootController:
    """The machine overshoot controller.

    Args:
        caches: caches of the machine controllers; they are ready.
        events: recorder of events.
        margins: margins for freezing a set.
        period_s: seconds between two reconciles of all objects.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        events: Recorder,
        margins: Margins,
        period_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self._caches, self._codec = caches, caches.codec
        self._names = caches.settings.names
        self._events = events
        self._margins = margins
        self._log = log.logger(NAME)
        self._sets = caches.writer(caches.codec.machine_sets, rng)
        self._deployments = caches.writer(caches.codec.machine_deployments, rng)
        self._machines: OwnerIndex[Machine] = OwnerIndex()
        self._members: OwnerIndex[MachineSet] = OwnerIndex()
        self._unfrozen: set[str] = set()
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=caches.machines, changed=self._machine_changed),
                Watch(informer=caches.machine_deployments, changed=self._deployment_changed),
                Watch(informer=caches.machine_sets, changed=self._set_changed),
            ],
            passes=[PeriodicTask(work=self._queue_all, period_s=period_s, jitter=JITTER)],
            rng=rng,
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Reconcile one set, or one deployment; keys begin with the kind.

        Raises:
            KubeError: a write failed.
        """
        kind, _, name = key.partition(" ")
        if kind == _SET:
            if (machine_set := self._caches.machine_sets.store.get(name)) is None:
                return IDLE
            await self._sync_set(self._sets.newest(machine_set), unfreeze_requested=False)
            return DONE
        if (deployment := self._caches.machine_deployments.store.get(name)) is None:
            return IDLE
        await self._sync_deployment(self._deployments.newest(deployment))
        return DONE

    async def _sync_set(self, obj: MachineSet, *, unfreeze_requested: bool) -> None:
        """Freeze or unfreeze a set, as its number of machines or a user requires."""
        if obj.is_deleting:
            return
        stock = self._state_of(obj, unfreeze_requested=unfreeze_requested)
        verdict = decide(stock, self._margins)
        if verdict is FreezeAction.NONE:
            return
        frozen, reason = verdict in _FREEZES, _REASONS[verdict]
        higher, lower = limits(stock, self._margins)
        text = f"{stock.count} machines; freeze at {higher} or more, unfreeze at {lower} or fewer"
        if verdict is FreezeAction.UNFREEZE_REQUESTED:
            self._unfrozen.add(obj.uid)
        await self._write(self._sets, obj, frozen=frozen, reason=reason, message=text)
        if obj.is_frozen is not frozen:
            metrics.FREEZES.labels(reason).inc()
        if key := controller_key(obj, self._codec.machine_deployments.kind):
            self._add(_DEPLOYMENT, key)

    async def _sync_deployment(self, obj: MachineDeployment) -> None:
        """Freeze a deployment if one of its sets is frozen, else unfreeze it."""
        if obj.is_deleting:
            return
        if obj.wants_unfreeze:
            # The annotation is removed only after every set was unfrozen.
            for machine_set in self._sets_of(obj):
                await self._sync_set(machine_set, unfreeze_requested=True)
        frozen = [machine_set for machine_set in self._sets_of(obj) if machine_set.is_frozen]
        reason, text = reasons.REASON_STATE_SYNC, "none of its sets is frozen"
        if frozen:
            condition = _condition_of(frozen[0])
            reason = condition.reason if condition is not None and condition.reason else reason
            text = f"MachineSet {frozen[0].name} is frozen"
        await self._write(self._deployments, obj, frozen=bool(frozen), reason=reason, message=text)

    async def _write(
        self, writer: ObjectWriter[Any], obj: Freezable, *, frozen: bool, reason: str, message: str
    ) -> None:
        """Write condition and label of an object; record an event if `frozen` changes."""
        condition = partial(self._condition_patch, frozen=frozen, reason=reason, message=message)
        labeled = partial(self._label_patch, frozen=frozen)
        # The label patch also removes the unfreeze annotation. The label is written last, so that a
        # failure of the other write is retried.
        await writer.change(obj, PatchStep(condition, "status"), PatchStep(labeled))
        if obj.is_frozen is not frozen:
            self._report(obj, frozen=frozen, reason=reason, text=message)

    def _label_patch(self, obj: Freezable, *, frozen: bool) -> Patch | None:
        """Return the patch of the label `freeze`; None = up to date.

        If the object is unfrozen, the patch also removes the user's unfreeze annotation.
        """
        changes: dict[str, Any] = {}
        if obj.is_frozen is not frozen:
            changes["labels"] = {self._names.freeze: self._names.frozen if frozen else None}
        if not frozen and obj.wants_unfreeze:
            changes["annotations"] = {self._names.unfreeze: None}
        return (
            {"metadata": uid_precondition(obj) | version_precondition(obj) | changes}
            if changes
            else None
        )

    def _condition_patch(
        self, obj: Freezable, *, frozen: bool, reason: str, message: str
    ) -> Patch | None:
        """Return the patch of the condition `Frozen`; None = the condition agrees already.

        A condition that agrees keeps its reason and message.
        """
        if _has_matching_condition(obj, frozen=frozen):
            return None
        others = [
            condition
            for condition in obj.status.conditions
            if condition.type != reasons.CONDITION_FROZEN
        ]
        now = clock.now()
        wanted = Condition(
            type=reasons.CONDITION_FROZEN,
            status=STATUS_TRUE,
            reason=reason,
            message=message,
            updated=now,
            since=now,
        )
        conditions = (*others, wanted) if frozen else tuple(others)
        if isinstance(obj, MachineSet):
            return self._codec.set_status_patch(obj, replace(obj.status, conditions=conditions))
        status = replace(obj.status, conditions=conditions)
        return self._codec.deployment_status_patch(obj, status)

    def _state_of(self, obj: MachineSet, *, unfreeze_requested: bool) -> SetState:
        store, labels = self._caches.machines.store, obj.template.labels
        owned = (store.get(key) for key in self._machines.owned(obj.uid))
        deployment = self._deployment_of(obj)
        return SetState(
            count=sum(
                machine is not None and labels.items() <= machine.labels.items()
                for machine in owned
            ),
            replicas=obj.replicas,
            most=None if deployment is None else replicas.max_machines(deployment),
            is_frozen=obj.is_frozen,
            has_condition=_has_matching_condition(obj, frozen=obj.is_frozen),
            wants_unfreeze=unfreeze_requested or obj.wants_unfreeze,
            was_unfrozen=obj.uid in self._unfrozen,
        )

    def _deployment_of(self, obj: MachineSet) -> MachineDeployment | None:
        key = controller_key(obj, self._codec.machine_deployments.kind)
        deployment = self._caches.machine_deployments.store.get(key) if key else None
        return (
            deployment if deployment is not None and deployment.uid == controller_uid(obj) else None
        )

    def _sets_of(self, obj: MachineDeployment) -> Sequence[MachineSet]:
        store = self._caches.machine_sets.store
        machine_sets = (store.get(key) for key in sorted(self._members.owned(obj.uid)))
        return [
            self._sets.newest(machine_set)
            for machine_set in machine_sets
            if machine_set is not None
        ]

    def _report(self, obj: Freezable, *, frozen: bool, reason: str, text: str) -> None:
        codec = self._codec
        is_set = isinstance(obj, MachineSet)
        kind: ResourceKind[Any] = codec.machine_sets if is_set else codec.machine_deployments
        word = reasons.REASON_FROZE_SET if frozen else reasons.REASON_UNFROZE_SET
        state = "frozen" if frozen else "unfrozen"
        if frozen:
            self._log.warning("machine creation frozen", key=obj.key, reason=f"{reason}: {text}")
        else:
            self._log.info("machine creation unfrozen", key=obj.key)
        level = WARNING if frozen else NORMAL
        message = f"{kind.kind} {obj.name} {state}: {reason}, {text}"
        self._events.event(kind.reference(obj), level, word, message)

    # --- triggers ---------------------------------------------------------------------------

    async def _queue_all(self) -> None:
        """Queue all sets and deployments; a set unfrozen by a user may be frozen again."""
        self._unfrozen.clear()
        sets = self._caches.machine_sets.store.list()
        metrics.SETS_FROZEN.set(sum(machine_set.is_frozen for machine_set in sets))
        for machine_set in sets:
            self._add(_SET, machine_set.key)
        for deployment in self._caches.machine_deployments.store.list():
            self._add(_DEPLOYMENT, deployment.key)

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._machines.update(old, new)
        before, after = (
            "" if machine is None else controller_key(machine, self._codec.machine_sets.kind)
            for machine in (old, new)
        )
        if before == after:
            return False
        if after:
            if (owner := self._caches.machine_sets.store.get(after)) is not None:
                self._unfrozen.discard(owner.uid)
            self._add(_SET, after)
        former_owner = self._caches.machine_sets.store.get(before) if before else None
        if former_owner is not None and former_owner.is_frozen:
            self._add(_SET, before)
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        self._members.update(old, new)
        changed = new or old
        if changed is None:
            return False
        before, after = (None if version is None else version.is_frozen for version in (old, new))
        key = controller_key(changed, self._codec.machine_deployments.kind)
        if key and before is not after:
            self._add(_DEPLOYMENT, key)
        if new is None:
            self._sets.forget(changed.key)
            self._unfrozen.discard(changed.uid)
        elif _needs_reconcile(new):
            self._add(_SET, new.key)
        return False

    def _deployment_changed(
        self, old: MachineDeployment | None, new: MachineDeployment | None, _: bool
    ) -> bool:
        if new is None and old is not None:
            self._deployments.forget(old.key)
        elif new is not None and _needs_reconcile(new):
            self._add(_DEPLOYMENT, new.key)
        return False

    def _add(self, kind: str, key: str) -> None:
        self.controller.queue.add(f"{kind} {key}")


def _condition_of(obj: Freezable) -> Condition | None:
    kind = reasons.CONDITION_FROZEN
    return next((condition for condition in obj.status.conditions if condition.type == kind), None)


def _has_matching_condition(obj: Freezable, *, frozen: bool) -> bool:
    """Return whether the condition `Frozen` of an object agrees with `frozen`."""
    condition = _condition_of(obj)
    if not frozen:
        return condition is None
    return condition is not None and condition.status == STATUS_TRUE


def _needs_reconcile(obj: Freezable) -> bool:
    """Return whether an object needs a reconcile, independent of its number of machines."""
    return obj.wants_unfreeze or not _has_matching_condition(obj, frozen=obj.is_frozen)

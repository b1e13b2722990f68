"""Freezes a MachineSet that has far too many machines, and its deployment with it; thaws them.

A set is looked at when a machine of it appears, when one of a frozen set is gone, when a person
asks, and every period. The label stops the creation of machines, the condition tells people; one
that got lost is written again, for others write the same status.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ccm.base import clock, log
from ccm.controllers.machineovershoot import metrics, plan
from ccm.gardener import names, templates
from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS
from ccm.gardener.sets import MachineDeployment, MachineSet, wants_unfreeze
from ccm.gardener.world import World
from ccm.kube.resources import Kind
from ccm.machines import overshoot
from ccm.machines.overshoot import Margins, Stock, Verdict
from ccm.model.machines import Machine
from ccm.model.names import NORMAL, WARNING
from ccm.model.owners import controller_uid
from ccm.model.patches import Patch
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Pass, Result, Watch
from ccm.runtime.ownership import Index
from ccm.runtime.writer import Recorder, Step, Writer, Writes

NAME = "machineovershoot"
BACK_OFF_CAP_S = 60.0
JITTER = 0.1
_SET, _DEPLOYMENT = MACHINE_SETS.kind, MACHINE_DEPLOYMENTS.kind

_FREEZES = frozenset({Verdict.FREEZE, Verdict.SAY})
_REASONS = {
    Verdict.FREEZE: names.REASON_OVERSHOOT,
    Verdict.SAY: names.REASON_OVERSHOOT,
    Verdict.THAW: names.REASON_UNDERSHOOT,
    Verdict.THAW_ASKED: names.REASON_UNFREEZE,
    Verdict.UNSAY: names.REASON_UNDERSHOOT,
}


class MachineOvershootController:
    """The machine overshoot controller.

    Args:
        world: what the machine controllers share; it is ready.
        sets: requests about MachineSets.
        deployments: requests about MachineDeployments.
        events: where events go.
        margins: how much is too much.
        period_s: seconds between two looks at everything.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        world: World,
        sets: Writes[MachineSet],
        deployments: Writes[MachineDeployment],
        events: Recorder,
        margins: Margins,
        period_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self._world = world
        self._events = events
        self._margins = margins
        self._log = log.logger(NAME)
        self._sets = Writer(sets, cache=world.machine_sets.store, strategic=False, rng=rng)
        self._deployments = Writer(
            deployments, cache=world.machine_deployments.store, strategic=False, rng=rng
        )
        self._machines: Index[Machine] = Index()
        self._members: Index[MachineSet] = Index()
        self._pardoned: set[str] = set()
        self.controller = Controller(
            NAME,
            queue=NAME,
            reconcile=self.sync,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=world.machines, changed=self._machine_changed),
                Watch(informer=world.machine_deployments, changed=self._deployment_changed),
                Watch(informer=world.machine_sets, changed=self._set_changed),
            ],
            passes=[Pass(work=self._look, period_s=period_s, jitter=JITTER)],
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Freeze or thaw one set, or one deployment as its sets are.

        Raises:
            KubeError: a write failed.
        """
        kind, _, name = key.partition(" ")
        if kind == _SET:
            if (found := self._world.machine_sets.store.get(name)) is None:
                return IDLE
            await self._judge(self._sets.newest(found), asked=False)
            return DONE
        if (deployment := self._world.machine_deployments.store.get(name)) is None:
            return IDLE
        await self._follow(self._deployments.newest(deployment))
        return DONE

    async def _judge(self, obj: MachineSet, *, asked: bool) -> None:
        """Freeze or thaw a set; `asked`: a person wants that of its deployment."""
        if obj.is_deleting:
            return
        stock = self._stock(obj, asked=asked)
        verdict = overshoot.judge(stock, self._margins)
        if verdict is Verdict.STAY:
            return
        frozen, reason = verdict in _FREEZES, _REASONS[verdict]
        higher, lower = overshoot.limits(stock, self._margins)
        text = f"{stock.count} machines; {higher} or more freeze the set, {lower} or less thaw it"
        if verdict is Verdict.THAW_ASKED:
            self._pardoned.add(obj.uid)
        was_frozen = stock.is_frozen
        await self._write(self._sets, obj, frozen=frozen, reason=reason, message=text)
        if was_frozen is not frozen:
            self._tell(MACHINE_SETS, obj, frozen=frozen, reason=reason, text=text)
            metrics.FREEZES.labels(reason).inc()
        if key := plan.deployment_key(obj):
            self._add(_DEPLOYMENT, key)

    async def _follow(self, obj: MachineDeployment) -> None:
        """A deployment is frozen while one of its sets is."""
        if obj.is_deleting:
            return
        if wants_unfreeze(obj):
            # Only when all of them thaw the wish is fulfilled, and goes.
            for one in self._sets_of(obj):
                await self._judge(one, asked=True)
        frozen = [one for one in self._sets_of(obj) if plan.is_frozen(one)]
        reason, text = names.REASON_STATE_SYNC, "none of its sets is frozen"
        if frozen:
            said = plan.frozen_condition(frozen[0])
            reason = said.reason if said is not None and said.reason else reason
            text = f"MachineSet {frozen[0].name} is frozen"
        was_frozen = plan.is_frozen(obj)
        await self._write(self._deployments, obj, frozen=bool(frozen), reason=reason, message=text)
        if was_frozen is not bool(frozen):
            self._tell(MACHINE_DEPLOYMENTS, obj, frozen=bool(frozen), reason=reason, text=text)

    async def _write(
        self, writer: Writer[Any], obj: plan.Freezable, *, frozen: bool, reason: str, message: str
    ) -> None:
        def told(one: Any) -> Patch | None:
            return plan.condition_patch(
                one, frozen=frozen, reason=reason, message=message, now=clock.now()
            )

        def labeled(one: Any) -> Patch | None:
            return plan.label_patch(one, frozen=frozen)

        # What asked for a thaw goes last: until then it is asked for.
        await writer.change(obj, Step(told, "status"), Step(labeled))

    def _stock(self, obj: MachineSet, *, asked: bool) -> Stock:
        store, labels = self._world.machines.store, templates.labels_of(obj.spec.template)
        owned = (store.get(key) for key in self._machines.owned(obj.uid))
        deployment = self._deployment_of(obj)
        return Stock(
            count=sum(one is not None and labels.items() <= one.labels.items() for one in owned),
            replicas=obj.spec.replicas,
            most=None if deployment is None else plan.most(deployment),
            is_frozen=plan.is_frozen(obj),
            is_told=plan.is_told_right(obj),
            asked=asked or wants_unfreeze(obj),
            is_pardoned=obj.uid in self._pardoned,
        )

    def _deployment_of(self, obj: MachineSet) -> MachineDeployment | None:
        key = plan.deployment_key(obj)
        found = self._world.machine_deployments.store.get(key) if key else None
        return found if found is not None and found.uid == controller_uid(obj) else None

    def _sets_of(self, obj: MachineDeployment) -> Sequence[MachineSet]:
        store = self._world.machine_sets.store
        found = (store.get(key) for key in sorted(self._members.owned(obj.uid)))
        return [self._sets.newest(one) for one in found if one is not None]

    def _tell(
        self, kind: Kind[Any], obj: plan.Freezable, *, frozen: bool, reason: str, text: str
    ) -> None:
        word = names.REASON_FROZE_SET if frozen else names.REASON_UNFROZE_SET
        what = "frozen" if frozen else "thawed"
        if frozen:
            self._log.warning("no more machines are made", key=obj.key, reason=f"{reason}: {text}")
        else:
            self._log.info("machines are made again", key=obj.key)
        level = WARNING if frozen else NORMAL
        message = f"{kind.kind} {obj.name} {what}: {reason}, {text}"
        self._events.event(kind.reference(obj), level, word, message)

    # --- when -------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at everything."""
        self._pardoned.clear()
        sets = self._world.machine_sets.store.list()
        metrics.FROZEN.set(sum(plan.is_frozen(one) for one in sets))
        for one in sets:
            self._add(_SET, one.key)
        for deployment in self._world.machine_deployments.store.list():
            self._add(_DEPLOYMENT, deployment.key)

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        self._machines.note(old, new)
        before, after = ("" if one is None else plan.set_key(one) for one in (old, new))
        if before == after:
            return False
        if after:
            if (owner := self._world.machine_sets.store.get(after)) is not None:
                self._pardoned.discard(owner.uid)
            self._add(_SET, after)
        left = self._world.machine_sets.store.get(before) if before else None
        if left is not None and plan.is_frozen(left):
            self._add(_SET, before)
        return False

    def _set_changed(self, old: MachineSet | None, new: MachineSet | None, _: bool) -> bool:
        self._members.note(old, new)
        found = new or old
        if found is None:
            return False
        states = [None if one is None else plan.is_frozen(one) for one in (old, new)]
        if (key := plan.deployment_key(found)) and states[0] is not states[1]:
            self._add(_DEPLOYMENT, key)
        if new is None:
            self._sets.forget(found.key)
            self._pardoned.discard(found.uid)
        elif plan.needs_a_look(new):
            self._add(_SET, new.key)
        return False

    def _deployment_changed(
        self, old: MachineDeployment | None, new: MachineDeployment | None, _: bool
    ) -> bool:
        if new is None and old is not None:
            self._deployments.forget(old.key)
        elif new is not None and plan.needs_a_look(new):
            self._add(_DEPLOYMENT, new.key)
        return False

    def _add(self, kind: str, key: str) -> None:
        self.controller.queue.add(f"{kind} {key}")

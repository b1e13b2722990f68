"""The whole rollout of a deployment: from what there is to what is written now. Pure.

Level-triggered: whatever happened before, also under another program, the same state leads to the
same plan, and where nothing is left to be done the plan is empty. `scaling` keeps the bounds,
`revisions` knows which set is the newest, `autoscaler` what it wants, `progress` what is said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ccm.machines import autoscaler, bounds, inplace, progress, revisions, scaling
from ccm.machines.autoscaler import Mark, NodeMark
from ccm.machines.inplace import NOTHING, Update
from ccm.machines.replicas import PopulatedSet
from ccm.machines.revisions import Name, Revert
from ccm.machines.settings import Settings
from ccm.model.machines import DeploymentStatus, MachineDeployment, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A set to be made of the newest template.

    Attributes:
        name: how it is called.
        replicas: its first size.
        annotations: what it bears.
    """

    name: Name
    replicas: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of a set.

    Attributes:
        set: the set.
        replicas: its size; None: as it is.
        annotations: what it gets; None as a value: loses.
        labels: likewise.
        copies: whether it gets what its template lacks of the deployment's, and the settings.
    """

    set: PopulatedSet
    replicas: int | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be written, in this order.

    Attributes:
        revert: answer to the wish for an older template; then nothing else is done.
        marks: machines that the autoscaler wants to go; nothing shrinks before they bear it.
        annotations: what the deployment gets.
        nodes: what nodes get.
        holds: whether nodes that join get what keeps the autoscaler off.
        make: the set to be made.
        changes: what becomes of sets.
        update: what is done about machines that are updated in place; `sizes` are in `changes`.
        drop: sets that are not kept.
        status: what is said.
        after_s: seconds until time alone changes something; None: never.
    """

    revert: Revert | None = None
    marks: Sequence[Mark] = ()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    nodes: Sequence[NodeMark] = ()
    holds: bool = False
    make: Making | None = None
    changes: Sequence[Change] = ()
    update: Update = NOTHING
    drop: Sequence[PopulatedSet] = ()
    status: DeploymentStatus
    after_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the status may be left to write."""
        return not (
            self.revert
            or self.marks
            or self.annotations
            or self.nodes
            or self.make
            or self.changes
            or self.drop
            or self.update != NOTHING
        )


def plan(
    deployment: MachineDeployment,
    sets: Sequence[PopulatedSet],
    now: datetime,
    settings: Settings,
    *,
    taken: Collection[str] = (),
) -> Plan:
    """What is to be done about a deployment now.

    Args:
        deployment: the deployment.
        sets: those that it controls, with their machines and nodes.
        now: this moment.
        settings: names and settings.
        taken: names of other sets.
    """
    if deployment.faults:
        return Plan(status=progress.refusal(deployment, now))
    new, olds = revisions.new_and_old(deployment, sets)
    seen = progress.Seen(deployment=deployment, new=new, olds=olds, now=now)
    if deployment.rollback_to is not None and not deployment.is_paused:
        wish = revisions.revert(deployment, sets, settings.names)
        return _said(Plan(revert=wish, status=DeploymentStatus()), seen)
    marks, annotations = _wishes(deployment, sets, now, settings)
    found = Plan(marks=marks, annotations=annotations, status=DeploymentStatus())
    if not marks:
        found = _moved(found, seen, settings, {*taken, *(one.name for one in sets)})
    return _said(found, seen)


def fleet_of(seen: progress.Seen, settings: Settings) -> scaling.Fleet:
    """The sets as far as their sizes are concerned."""
    deployment = seen.deployment
    olds = [scaling.sized(one, deployment, seen.now, settings.names) for one in seen.olds]
    new = (
        None if seen.new is None else scaling.sized(seen.new, deployment, seen.now, settings.names)
    )
    return scaling.Fleet(
        replicas=deployment.replicas,
        surge=bounds.surge(deployment),
        floor=deployment.replicas - bounds.unavailable(deployment),
        new=new,
        olds=olds,
    )


def is_rolling(deployment: MachineDeployment, olds: Sequence[PopulatedSet]) -> bool:
    """Whether machines are exchanged one by one now."""
    return deployment.strategy is Strategy.ROLLING and _is_under_way(deployment, olds)


def _is_under_way(deployment: MachineDeployment, olds: Sequence[PopulatedSet]) -> bool:
    return not deployment.is_paused and any(one.replicas or one.live for one in olds)


def _said(found: Plan, seen: progress.Seen) -> Plan:
    """The plan with the status that goes with it."""
    made = found.make.name if found.make is not None else None
    seen = replace(seen, made=made.name if made is not None else "")
    status = progress.status(seen)
    if made is not None and made.collisions:
        status = replace(status, collisions=made.collisions)
    return replace(found, status=status, after_s=progress.due_s(seen, status))


def _wishes(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet], now: datetime, settings: Settings
) -> tuple[Sequence[Mark], Mapping[str, str | None]]:
    """What the autoscaler wants, and what becomes of its words."""
    text = deployment.annotations.get(settings.names.trigger)
    if not text:
        return (), {}
    members = [member for one in sets for member in one.members]
    marks, left = autoscaler.triggered(text, members, now, settings.names)
    return marks, {} if left == text else {settings.names.trigger: left}


def _moved(found: Plan, seen: progress.Seen, settings: Settings, taken: Collection[str]) -> Plan:
    """The plan with all that becomes of sets and nodes."""
    deployment, new, olds = seen.deployment, seen.new, seen.olds
    fleet = fleet_of(seen, settings)
    update = _update(fleet, seen, settings)
    sizes, first = _sizes(fleet, seen, update)
    rolls = is_rolling(deployment, olds)
    revision = revisions.next_number(new, olds, settings.names)
    updates = deployment.strategy is Strategy.IN_PLACE and _is_under_way(deployment, olds)
    nodes = autoscaler.node_marks(new, olds, settings, rolls=rolls, updates=updates)
    make = None
    if new is None and _may_make(seen):
        notes = _copied(deployment, {}, settings) | _limits(fleet, settings)
        make = Making(
            name=revisions.name_for(deployment, taken),
            replicas=first,
            annotations=notes | {settings.names.revision: str(revision)},
        )
    annotations = dict(found.annotations)
    if (new or make) and revisions.number(deployment.annotations, settings.names) != revision:
        annotations[settings.names.revision] = str(revision)
    return replace(
        found,
        annotations=annotations,
        nodes=() if deployment.is_paused else tuple(nodes),
        holds=rolls and settings.holds_nodes,
        make=make,
        update=update,
        changes=_changes(seen, fleet, sizes, settings, rolls=rolls),
        drop=() if rolls or new is None else revisions.superfluous(deployment, olds),
    )


def _update(fleet: scaling.Fleet, seen: progress.Seen, settings: Settings) -> Update:
    """What is done about machines that are updated in place."""
    deployment = seen.deployment
    if deployment.strategy is not Strategy.IN_PLACE or deployment.is_paused:
        return inplace.ended(seen.new, seen.olds, fleet, settings.names)
    manual = deployment.is_manual
    return inplace.update(
        seen.new,
        seen.olds,
        fleet,
        settings.names,
        surge=0 if manual else bounds.amount(deployment.max_surge, deployment.replicas, up=True),
        is_manual=manual,
    )


def _sizes(fleet: scaling.Fleet, seen: progress.Seen, update: Update) -> tuple[scaling.Sizes, int]:
    """Sizes that change, by UID, and the first size of a set that is to be made."""
    deployment = seen.deployment
    if update.sizes and (deployment.is_paused or deployment.strategy is not Strategy.IN_PLACE):
        return update.sizes, 0
    if deployment.is_paused:
        sizes = scaling.held(fleet)
        if deployment.strategy is Strategy.IN_PLACE:
            # They make no machines: what they got, they would lose again in the next pass.
            olds = {one.uid: one.replicas for one in seen.olds}
            sizes = {uid: size for uid, size in sizes.items() if size <= olds.get(uid, size)}
        return sizes, 0
    if deployment.strategy is Strategy.IN_PLACE:
        return update.sizes, bounds.new_size(deployment, present=fleet.present, new=0)
    if deployment.strategy is Strategy.RECREATE:
        return scaling.recreated(fleet, waits=_waits(seen))
    return scaling.rolled(fleet, deployment)


def _may_make(seen: progress.Seen) -> bool:
    """Whether the set of the newest template is to be made now."""
    deployment = seen.deployment
    if deployment.is_paused:
        return False
    if deployment.strategy is Strategy.RECREATE:
        return not _waits(seen)
    return True


def _waits(seen: progress.Seen) -> bool:
    """Whether there are old machines, or may be."""
    return any(
        one.replicas or one.members or not (one.has_seen or one.is_deleting) for one in seen.olds
    )


def _changes(
    seen: progress.Seen,
    fleet: scaling.Fleet,
    sizes: scaling.Sizes,
    settings: Settings,
    *,
    rolls: bool,
) -> Sequence[Change]:
    found = []
    for one in seen.sets:
        if one.is_deleting:
            continue
        is_new = one is seen.new
        size = sizes.get(one.uid)
        notes = autoscaler.set_mark(one, settings.names, rolls=rolls, is_new=is_new)
        if is_new or (one.replicas if size is None else size):
            notes |= _missing(one, _limits(fleet, settings))
        notes |= _notes(one, seen, settings, is_new=is_new)
        is_old = seen.deployment.strategy is Strategy.IN_PLACE and not is_new
        labels = inplace.set_labels(one, settings.names, is_old=is_old, is_known=fleet.is_known)
        copies = is_new and one.template.rest != seen.deployment.template.rest
        change = Change(set=one, replicas=size, annotations=notes, labels=labels, copies=copies)
        if size is not None or notes or labels or copies:
            found.append(change)
    return found


def _notes(
    one: PopulatedSet, seen: progress.Seen, settings: Settings, *, is_new: bool
) -> Mapping[str, str]:
    """What a set gets of the annotations of its deployment, and its revision."""
    deployment = seen.deployment
    if not is_new:
        said = deployment.annotations.get(settings.names.scaler_time)
        return _missing(one, {settings.names.scaler_time: said}) if said and one.replicas else {}
    revision = revisions.next_number(one, seen.olds, settings.names)
    return {
        **_copied(deployment, one.annotations, settings),
        **revisions.numbered(one, revision, settings.names),
    }


def _copied(
    deployment: MachineDeployment, there: Mapping[str, str], settings: Settings
) -> dict[str, str]:
    return {
        key: value
        for key, value in deployment.annotations.items()
        if key not in settings.names.not_copied and there.get(key) != value
    }


def _limits(fleet: scaling.Fleet, settings: Settings) -> dict[str, str]:
    """The annotations that tell how a set was scaled last."""
    return {settings.names.desired: str(fleet.replicas), settings.names.most: str(fleet.most)}


def _missing(one: PopulatedSet, wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if one.annotations.get(key) != value}

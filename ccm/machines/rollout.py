"""The whole rollout of a deployment: from what there is to what is written now. Pure.

Level-triggered: whatever happened before, also under another program, the same state leads to the
same plan, and where nothing is left to be done the plan is empty. `scaling` keeps the bounds,
`autoscaler` decides what the cluster autoscaler asked for, `progress` the status.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ccm.base.parsing import parse_digits
from ccm.machines import autoscaler, inplace, progress, replicas, scaling
from ccm.machines.autoscaler import Mark, NodeMark
from ccm.machines.inplace import NOTHING, Update
from ccm.machines.replicas import PopulatedSet
from ccm.machines.settings import Names, Settings
from ccm.model.machines import DeploymentStatus, MachineDeployment, Strategy
from ccm.model.names import SAFE_LETTERS


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
    new, olds = new_and_old(deployment, sets)
    seen = progress.Seen(deployment=deployment, new=new, olds=olds, now=now)
    found = Plan(status=DeploymentStatus())
    if deployment.rollback_to is not None and not deployment.is_paused:
        found = replace(found, revert=revert(deployment, sets, settings.names))
    else:
        marks, annotations = _wishes(deployment, sets, now, settings)
        found = replace(found, marks=marks, annotations=annotations)
        if not marks:
            rollout = _Rollout(seen, settings)
            found = rollout.planned(found, {*taken, *(one.name for one in sets)})
    made = found.make.name if found.make is not None else None
    seen = replace(seen, made=made.name if made is not None else "")
    status = progress.status(seen)
    if made is not None and made.collisions:
        status = replace(status, collisions=made.collisions)
    return replace(found, status=status, after_s=progress.due_s(seen, status))


def _wishes(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet], now: datetime, settings: Settings
) -> tuple[Sequence[Mark], Mapping[str, str | None]]:
    """Return the machines that the autoscaler wants to go, and what becomes of its annotation."""
    text = deployment.annotations.get(settings.names.trigger)
    if not text:
        return (), {}
    members = [member for one in sets for member in one.members]
    marks, left = autoscaler.triggered(text, members, now, settings.names)
    return marks, {} if left == text else {settings.names.trigger: left}


class _Rollout:
    """The sets of a deployment on their way to the newest template."""

    def __init__(self, seen: progress.Seen, settings: Settings) -> None:
        self.seen, self.settings, self.names = seen, settings, settings.names
        self.deployment = deployment = seen.deployment
        self.new, self.olds = seen.new, seen.olds
        self.is_in_place = deployment.strategy is Strategy.IN_PLACE
        olds = [self._sized(one) for one in seen.olds]
        self.fleet = scaling.Fleet(
            replicas=deployment.replicas,
            surge=replicas.surge(deployment),
            floor=deployment.replicas - replicas.unavailable(deployment),
            new=None if seen.new is None else self._sized(seen.new),
            olds=olds,
        )
        self.waits = any(
            one.replicas or one.members or not (one.has_seen or one.is_deleting)
            for one in seen.olds
        )
        """Whether there are old machines, or may be."""

    def _sized(self, one: PopulatedSet) -> scaling.Sized:
        return scaling.sized(one, self.deployment, self.seen.now, self.names)

    def planned(self, found: Plan, taken: Collection[str]) -> Plan:
        """Return the plan with all that becomes of sets and nodes."""
        deployment, new, olds = self.deployment, self.new, self.olds
        update = self._update()
        sizes, first = self._sizes(update)
        is_under_way = not deployment.is_paused and any(one.replicas or one.live for one in olds)
        rolls = deployment.strategy is Strategy.ROLLING and is_under_way
        revision = next_number(new, olds, self.names)
        updates = self.is_in_place and is_under_way
        nodes = autoscaler.node_marks(new, olds, self.settings, rolls=rolls, updates=updates)
        make = None
        may_make = deployment.strategy is not Strategy.RECREATE or not self.waits
        if new is None and may_make and not deployment.is_paused:
            notes = self._copied({}) | self._limits() | {self.names.revision: str(revision)}
            name = name_for(deployment, taken)
            make = Making(name=name, replicas=first, annotations=notes)
        annotations = dict(found.annotations)
        if (new or make) and number(deployment.annotations, self.names) != revision:
            annotations[self.names.revision] = str(revision)
        return replace(
            found,
            annotations=annotations,
            nodes=() if deployment.is_paused else tuple(nodes),
            holds=rolls and self.settings.holds_nodes,
            make=make,
            update=update,
            changes=self._changes(sizes, rolls=rolls),
            drop=() if rolls or new is None else superfluous(deployment, olds),
        )

    def _update(self) -> Update:
        """Return what is done about machines that are updated in place."""
        wanted = self.deployment
        if not self.is_in_place or wanted.is_paused:
            return inplace.ended(self.new, self.olds, self.fleet, self.names)
        manual = wanted.is_manual
        surge = 0 if manual else replicas.amount(wanted.max_surge, wanted.replicas, up=True)
        return inplace.update(
            self.new, self.olds, self.fleet, self.names, surge=surge, is_manual=manual
        )

    def _sizes(self, update: Update) -> tuple[scaling.Sizes, int]:
        """Return sizes that change, by UID, and the first size of a set that is to be made."""
        deployment, fleet = self.deployment, self.fleet
        if update.sizes and (deployment.is_paused or not self.is_in_place):
            return update.sizes, 0
        if deployment.is_paused:
            sizes = scaling.held(fleet)
            if self.is_in_place:
                # They make no machines: what they got, they would lose again in the next pass.
                olds = {one.uid: one.replicas for one in self.olds}
                sizes = {uid: size for uid, size in sizes.items() if size <= olds.get(uid, size)}
            return sizes, 0
        if self.is_in_place:
            return update.sizes, replicas.new_size(deployment, present=fleet.present, new=0)
        if deployment.strategy is Strategy.RECREATE:
            return scaling.recreated(fleet, waits=self.waits)
        return scaling.rolled(fleet, deployment)

    def _changes(self, sizes: scaling.Sizes, *, rolls: bool) -> Sequence[Change]:
        found, names = list[Change](), self.names
        for one in self.seen.sets:
            if one.is_deleting:
                continue
            is_new, size = one is self.new, sizes.get(one.uid)
            notes = autoscaler.set_mark(one, names, rolls=rolls, is_new=is_new)
            if is_new or (one.replicas if size is None else size):
                notes |= _missing(one, self._limits())
            notes |= self._notes(one, is_new=is_new)
            is_old = self.is_in_place and not is_new
            labels = inplace.set_labels(one, names, is_old=is_old, is_known=self.fleet.is_known)
            copies = is_new and one.template.rest != self.deployment.template.rest
            if size is not None or notes or labels or copies:
                found.append(
                    Change(set=one, replicas=size, annotations=notes, labels=labels, copies=copies)
                )
        return found

    def _notes(self, one: PopulatedSet, *, is_new: bool) -> Mapping[str, str]:
        """Return the annotations that a set gets of its deployment, and its revision."""
        if is_new:
            revision = next_number(one, self.olds, self.names)
            return {**self._copied(one.annotations), **numbered(one, revision, self.names)}
        key = self.names.scaler_time
        said = self.deployment.annotations.get(key)
        return _missing(one, {key: said}) if said and one.replicas else {}

    def _copied(self, there: Mapping[str, str]) -> dict[str, str]:
        return {
            key: value
            for key, value in self.deployment.annotations.items()
            if key not in self.names.not_copied and there.get(key) != value
        }

    def _limits(self) -> dict[str, str]:
        """Return the annotations that tell how a set was scaled last."""
        return {
            self.names.desired: str(self.fleet.replicas),
            self.names.most: str(self.fleet.most),
        }


def _missing(one: PopulatedSet, wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if one.annotations.get(key) != value}


# --- revisions ------------------------------------------------------------------------------------

_SUFFIX = 5
"""Length of what is appended to the name of a deployment."""

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
"""FNV-1a, 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """How a set is to be called.

    Attributes:
        name: of the object.
        hash: of the template, as text; stands in a label.
        collisions: how often a name was taken before this one was not.
    """

    name: str
    hash: str
    collisions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """The answer to the wish for an older template.

    Attributes:
        to: the set whose template it is; None: nothing is changed.
        revision: its number.
        why_not: why nothing is changed.
        is_same: whether that is because it is the present one.
    """

    to: PopulatedSet | None = None
    revision: int = 0
    why_not: str = ""
    is_same: bool = False


def new_and_old(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet]
) -> tuple[PopulatedSet | None, Sequence[PopulatedSet]]:
    """The set of the newest template, and the others; the oldest first."""
    ordered = sorted(sets, key=lambda one: one.age)
    essence = deployment.template.essence
    alike = (one for one in ordered if one.template.essence == essence and not one.is_deleting)
    new = next(alike, None)
    return new, [one for one in ordered if one is not new]


def name_for(deployment: MachineDeployment, taken: Collection[str]) -> Name:
    """How the set of the newest template is to be called; none of the names taken."""
    collisions = deployment.status.collisions or 0
    while True:
        digest = str(_fnv(f"{deployment.template.essence}{collisions or ''}"))
        suffix = "".join(SAFE_LETTERS[ord(one) % len(SAFE_LETTERS)] for one in digest[:_SUFFIX])
        name = f"{deployment.name}-{suffix}"
        if name not in taken:
            return Name(name=name, hash=digest, collisions=collisions)
        collisions += 1


def number(of: Mapping[str, str], names: Names) -> int:
    """The revision that annotations tell; 0 where they tell none."""
    return parse_digits(of.get(names.revision, "")) or 0


def next_number(new: PopulatedSet | None, olds: Sequence[PopulatedSet], names: Names) -> int:
    """The revision of the newest template."""
    highest = max((number(one.annotations, names) for one in olds), default=0)
    found = number(new.annotations, names) if new is not None else 0
    return max(found, highest + 1)


def numbered(new: PopulatedSet, revision: int, names: Names) -> Mapping[str, str]:
    """The annotations that give a set its revision; none where it has it."""
    before = number(new.annotations, names)
    if before >= revision:
        return {}
    found = {names.revision: str(revision)}
    if before:
        former = new.annotations.get(names.revision_history, "")
        found[names.revision_history] = ",".join(filter(None, (former, str(before))))
    return found


def superfluous(
    deployment: MachineDeployment, olds: Sequence[PopulatedSet]
) -> Sequence[PopulatedSet]:
    """Old sets beyond those that are kept; none that has machines."""
    if deployment.history_limit is None:
        return ()
    kept = [one for one in olds if one.has_seen and not one.is_deleting]
    empty = [one for one in kept if not (one.replicas or one.members)]
    return empty[: max(0, len(empty) - deployment.history_limit)]


def revert(deployment: MachineDeployment, sets: Sequence[PopulatedSet], names: Names) -> Revert:
    """What follows from the wish for an older template."""
    wish = deployment.rollback_to or 0
    known = {number(one.annotations, names): one for one in sorted(sets, key=lambda one: one.age)}
    known.pop(0, None)
    if not wish:
        # The one before is the second highest.
        wish = sorted(known)[-2] if len(known) > 1 else 0
    found = known.get(wish)
    if found is None:
        text = f"There is no revision {wish}." if wish else "There is no revision before this one."
        return Revert(revision=wish, why_not=text)
    if found.template.essence == deployment.template.essence:
        text = f"Revision {wish} has the same template as the deployment {deployment.name}."
        return Revert(revision=wish, why_not=text, is_same=True)
    return Revert(to=found, revision=wish)


def _fnv(text: str) -> int:
    found = _FNV_OFFSET
    for byte in text.encode():
        found = (found ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return found

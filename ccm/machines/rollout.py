"""Rollout of a deployment: plans the next writes from its sets, machines and nodes. No I/O.

The plan is level-triggered: it depends only on the current state of the objects, even if another
program wrote that state. Once the rollout is complete, the plan is empty. `scaling` keeps the
bounds, `autoscaler` handles the requests of the cluster autoscaler, `progress` derives the status.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ccm.base.parsing import parse_digits
from ccm.machines import autoscaler, in_place_update, progress, replicas, scaling
from ccm.machines.autoscaler import DeletionMark, NodeMark
from ccm.machines.in_place_update import NOTHING, UpdateActions
from ccm.machines.replicas import PopulatedSet
from ccm.machines.settings import MachineSettings, Names
from ccm.model.machines import DeploymentStatus, MachineDeployment, Strategy
from ccm.model.names import SAFE_LETTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCreation:
    """A set to create from the newest template.

    Attributes:
        name: name of the set.
        replicas: initial replicas.
        annotations: annotations of the set.
    """

    name: SetName
    replicas: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetChange:
    """Change of a set.

    Attributes:
        set: the set.
        replicas: new replicas; None = unchanged.
        annotations: annotations to set; value None = remove the annotation.
        labels: labels to set; value None = remove the label.
        copies: whether to copy the deployment's template spec, `minReadySeconds` and
            `autoPreserveFailedMachineMax` to the set.
    """

    set: PopulatedSet
    replicas: int | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Writes of a pass, in the order of the attributes.

    Attributes:
        revert: result of a rollback request; if set, the pass writes nothing else.
        marks: machines that the autoscaler wants deleted; if there are any, the pass changes no
            set.
        annotations: annotations of the deployment to set; an empty value = remove the annotation.
        nodes: taints and annotations of nodes to change.
        holds: whether nodes that join get annotations against a scale-down by the autoscaler.
        create: set to create.
        changes: changes of sets.
        update: actions for in-place updates; its `sizes` are contained in `changes`.
        delete: sets to delete.
        status: status of the deployment.
        after_s: seconds until the plan or the status changes by time alone; None = never.
    """

    revert: Rollback | None = None
    marks: Sequence[DeletionMark] = ()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    nodes: Sequence[NodeMark] = ()
    holds: bool = False
    create: SetCreation | None = None
    changes: Sequence[SetChange] = ()
    update: UpdateActions = NOTHING
    delete: Sequence[PopulatedSet] = ()
    status: DeploymentStatus
    after_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write, except perhaps the status."""
        return not (
            self.revert
            or self.marks
            or self.annotations
            or self.nodes
            or self.create
            or self.changes
            or self.delete
            or self.update != NOTHING
        )


def plan(
    deployment: MachineDeployment,
    sets: Sequence[PopulatedSet],
    now: datetime,
    settings: MachineSettings,
    *,
    taken: Collection[str] = (),
) -> RolloutPlan:
    """Return the next writes for a deployment.

    Args:
        deployment: the deployment.
        sets: sets that the deployment controls, with their machines and nodes.
        now: the time.
        settings: names and settings.
        taken: names of all other sets, which a new set cannot have.
    """
    if deployment.faults:
        return RolloutPlan(status=progress.invalid_status(deployment, now))
    new, olds = new_and_old(deployment, sets)
    seen = progress.RolloutState(deployment=deployment, new=new, olds=olds, now=now)
    result = RolloutPlan(status=DeploymentStatus())
    if deployment.rollback_to is not None and not deployment.is_paused:
        result = replace(result, revert=resolve_rollback(deployment, sets, settings.names))
    else:
        marks, annotations = _autoscaler_marks(deployment, sets, now, settings)
        result = replace(result, marks=marks, annotations=annotations)
        if not marks:
            rollout = _Rollout(seen, settings)
            result = rollout.planned(result, {*taken, *(machine_set.name for machine_set in sets)})
    new_name = result.create.name if result.create is not None else None
    seen = replace(seen, new_set_name=new_name.name if new_name is not None else "")
    status = progress.rollout_status(seen)
    if new_name is not None and new_name.collisions:
        status = replace(status, collisions=new_name.collisions)
    return replace(result, status=status, after_s=progress.next_change_s(seen, status))


def _autoscaler_marks(
    deployment: MachineDeployment,
    sets: Sequence[PopulatedSet],
    now: datetime,
    settings: MachineSettings,
) -> tuple[Sequence[DeletionMark], Mapping[str, str | None]]:
    """Return the machines that the autoscaler wants deleted, and the new `trigger` annotation.

    The second value is empty if the annotation does not change.
    """
    text = deployment.annotations.get(settings.names.trigger)
    if not text:
        return (), {}
    members = [member for machine_set in sets for member in machine_set.members]
    marks, remaining = autoscaler.parse_trigger(text, members, now, settings.names)
    return marks, {} if remaining == text else {settings.names.trigger: remaining}


class _Rollout:
    """Rollout of a deployment's sets to the newest template."""

    def __init__(self, seen: progress.RolloutState, settings: MachineSettings) -> None:
        self.seen, self.settings, self.names = seen, settings, settings.names
        self.deployment = deployment = seen.deployment
        self.new, self.olds = seen.new, seen.olds
        self.is_in_place = deployment.strategy is Strategy.IN_PLACE
        olds = [self._sized(old) for old in seen.olds]
        self.fleet = scaling.Fleet(
            replicas=deployment.replicas,
            surge=replicas.surge(deployment),
            floor=deployment.replicas - replicas.unavailable(deployment),
            new=None if seen.new is None else self._sized(seen.new),
            olds=olds,
        )
        self.waits = any(
            old.replicas or old.members or not (old.is_status_current or old.is_deleting)
            for old in seen.olds
        )
        """Whether old sets have machines, or may have some that the caches do not show yet."""

    def _sized(self, machine_set: PopulatedSet) -> scaling.SetSize:
        return scaling.set_size(machine_set, self.deployment, self.seen.now, self.names)

    def planned(self, so_far: RolloutPlan, taken: Collection[str]) -> RolloutPlan:
        """Return the plan `so_far` with all changes of sets and nodes added."""
        deployment, new, olds = self.deployment, self.new, self.olds
        update = self._update()
        sizes, first = self._sizes(update)
        is_under_way = not deployment.is_paused and any(old.replicas or old.live for old in olds)
        rolls = deployment.strategy is Strategy.ROLLING and is_under_way
        revision = next_revision(new, olds, self.names)
        updates = self.is_in_place and is_under_way
        nodes = autoscaler.node_marks(new, olds, self.settings, is_rolling=rolls, updates=updates)
        make = None
        may_make = deployment.strategy is not Strategy.RECREATE or not self.waits
        if new is None and may_make and not deployment.is_paused:
            set_annotations = (
                self._copied_annotations({})
                | self._scale_annotations()
                | {self.names.revision: str(revision)}
            )
            name = choose_name(deployment, taken)
            make = SetCreation(name=name, replicas=first, annotations=set_annotations)
        annotations = dict(so_far.annotations)
        if (new or make) and revision_of(deployment.annotations, self.names) != revision:
            annotations[self.names.revision] = str(revision)
        return replace(
            so_far,
            annotations=annotations,
            nodes=() if deployment.is_paused else tuple(nodes),
            holds=rolls and self.settings.holds_nodes,
            create=make,
            update=update,
            changes=self._changes(sizes, rolls=rolls),
            delete=() if rolls or new is None else sets_to_clean_up(deployment, olds),
        )

    def _update(self) -> UpdateActions:
        wanted = self.deployment
        if not self.is_in_place or wanted.is_paused:
            return in_place_update.stop_update(self.new, self.olds, self.fleet, self.names)
        manual = wanted.is_manual
        surge = 0 if manual else replicas.resolve_amount(wanted.max_surge, wanted.replicas, up=True)
        return in_place_update.plan_update(
            self.new, self.olds, self.fleet, self.names, surge=surge, is_manual=manual
        )

    def _sizes(self, update: UpdateActions) -> tuple[scaling.Sizes, int]:
        """Return the changed sizes by UID of the set, and the initial size of a set to create."""
        deployment, fleet = self.deployment, self.fleet
        if update.sizes and (deployment.is_paused or not self.is_in_place):
            return update.sizes, 0
        if deployment.is_paused:
            sizes = scaling.paused_sizes(fleet)
            if self.is_in_place:
                # Old sets create no machines, so the next pass would shrink them again.
                olds = {old.uid: old.replicas for old in self.olds}
                sizes = {uid: size for uid, size in sizes.items() if size <= olds.get(uid, size)}
            return sizes, 0
        if self.is_in_place:
            return update.sizes, replicas.new_size(deployment, present=fleet.present, new=0)
        if deployment.strategy is Strategy.RECREATE:
            return scaling.recreate_sizes(fleet, waits=self.waits)
        return scaling.rolling_sizes(fleet, deployment)

    def _changes(self, sizes: scaling.Sizes, *, rolls: bool) -> Sequence[SetChange]:
        changes, names = list[SetChange](), self.names
        for machine_set in self.seen.sets:
            if machine_set.is_deleting:
                continue
            is_new, size = machine_set is self.new, sizes.get(machine_set.uid)
            annotations = autoscaler.old_set_annotation(
                machine_set, names, rolls=rolls, is_new=is_new
            )
            if is_new or (machine_set.replicas if size is None else size):
                annotations |= _missing(machine_set, self._scale_annotations())
            annotations |= self._set_annotations(machine_set, is_new=is_new)
            is_old = self.is_in_place and not is_new
            labels = in_place_update.set_labels(
                machine_set, names, is_old=is_old, is_known=self.fleet.is_known
            )
            copies = is_new and machine_set.template.rest != self.deployment.template.rest
            if size is not None or annotations or labels or copies:
                changes.append(
                    SetChange(
                        set=machine_set,
                        replicas=size,
                        annotations=annotations,
                        labels=labels,
                        copies=copies,
                    )
                )
        return changes

    def _set_annotations(self, machine_set: PopulatedSet, *, is_new: bool) -> Mapping[str, str]:
        """Return the annotations to set on a set.

        New set: those copied from the deployment, and the revision. Old set with replicas: the
        time at which the autoscaler last scaled the deployment.
        """
        if is_new:
            revision = next_revision(machine_set, self.olds, self.names)
            return {
                **self._copied_annotations(machine_set.annotations),
                **revision_annotations(machine_set, revision, self.names),
            }
        key = self.names.scaler_time
        scaled_at = self.deployment.annotations.get(key)
        return _missing(machine_set, {key: scaled_at}) if scaled_at and machine_set.replicas else {}

    def _copied_annotations(self, present: Mapping[str, str]) -> dict[str, str]:
        return {
            key: value
            for key, value in self.deployment.annotations.items()
            if key not in self.names.not_copied and present.get(key) != value
        }

    def _scale_annotations(self) -> dict[str, str]:
        """Return the annotations that record how a set was last scaled."""
        return {self.names.desired: str(self.fleet.replicas), self.names.most: str(self.fleet.most)}


def _missing(machine_set: PopulatedSet, wanted: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in wanted.items() if machine_set.annotations.get(key) != value
    }


# --- revisions ------------------------------------------------------------------------------------

_SUFFIX = 5
"""Length of the suffix of a set's name."""

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
"""Constants of the hash FNV-1a with 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetName:
    """Name of a set.

    Attributes:
        name: name of the object.
        hash: hash of the template as decimal text, for the template-hash label.
        collisions: number of generated names that were taken; part of the hash.
    """

    name: str
    hash: str
    collisions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Result of a rollback request.

    Attributes:
        to: set whose template is restored; None = the rollback is impossible or unnecessary.
        revision: requested revision.
        error: reason why `to` is None.
        is_same: whether `to` is None because the deployment already has that revision's template.
    """

    to: PopulatedSet | None = None
    revision: int = 0
    error: str = ""
    is_same: bool = False


def new_and_old(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet]
) -> tuple[PopulatedSet | None, Sequence[PopulatedSet]]:
    """Return the set of the newest template, and the other sets, the oldest first.

    The newest template is the one in the deployment. Of several sets with this template, return the
    oldest that is not being deleted; None = there is no such set.
    """
    ordered = sorted(sets, key=lambda machine_set: machine_set.creation_key)
    essence = deployment.template.essence
    alike = (
        machine_set
        for machine_set in ordered
        if machine_set.template.essence == essence and not machine_set.is_deleting
    )
    new = next(alike, None)
    return new, [machine_set for machine_set in ordered if machine_set is not new]


def choose_name(deployment: MachineDeployment, taken: Collection[str]) -> SetName:
    """Return a free name for the set of the newest template; `taken` = names of sets."""
    collisions = deployment.status.collisions or 0
    while True:
        digest = str(_fnv(f"{deployment.template.essence}{collisions or ''}"))
        suffix = "".join(SAFE_LETTERS[ord(digit) % len(SAFE_LETTERS)] for digit in digest[:_SUFFIX])
        name = f"{deployment.name}-{suffix}"
        if name not in taken:
            return SetName(name=name, hash=digest, collisions=collisions)
        collisions += 1


def revision_of(of: Mapping[str, str], names: Names) -> int:
    """Return the revision in the annotations of an object; 0 = none."""
    return parse_digits(of.get(names.revision, "")) or 0


def next_revision(new: PopulatedSet | None, olds: Sequence[PopulatedSet], names: Names) -> int:
    """Return the revision of the newest template."""
    highest = max((revision_of(old.annotations, names) for old in olds), default=0)
    own = revision_of(new.annotations, names) if new is not None else 0
    return max(own, highest + 1)


def revision_annotations(new: PopulatedSet, revision: int, names: Names) -> Mapping[str, str]:
    """Return the annotations that raise a set to a revision; empty = it has that revision."""
    before = revision_of(new.annotations, names)
    if before >= revision:
        return {}
    annotations = {names.revision: str(revision)}
    if before:
        former = new.annotations.get(names.revision_history, "")
        annotations[names.revision_history] = ",".join(filter(None, (former, str(before))))
    return annotations


def sets_to_clean_up(
    deployment: MachineDeployment, olds: Sequence[PopulatedSet]
) -> Sequence[PopulatedSet]:
    """Return the empty old sets beyond the history limit."""
    if deployment.history_limit is None:
        return ()
    kept = [old for old in olds if old.is_status_current and not old.is_deleting]
    empty = [old for old in kept if not (old.replicas or old.members)]
    return empty[: max(0, len(empty) - deployment.history_limit)]


def resolve_rollback(
    deployment: MachineDeployment, sets: Sequence[PopulatedSet], names: Names
) -> Rollback:
    """Return the set whose template a rollback restores, or why no template is restored."""
    requested = deployment.rollback_to or 0
    known = {
        revision_of(machine_set.annotations, names): machine_set
        for machine_set in sorted(sets, key=lambda machine_set: machine_set.creation_key)
    }
    known.pop(0, None)
    if not requested:
        # The previous revision is the second highest.
        requested = sorted(known)[-2] if len(known) > 1 else 0
    target = known.get(requested)
    if target is None:
        text = (
            f"There is no revision {requested}."
            if requested
            else "There is no revision before this one."
        )
        return Rollback(revision=requested, error=text)
    if target.template.essence == deployment.template.essence:
        text = f"Revision {requested} has the same template as the deployment {deployment.name}."
        return Rollback(revision=requested, error=text, is_same=True)
    return Rollback(to=target, revision=requested)


def _fnv(text: str) -> int:
    digest = _FNV_OFFSET
    for byte in text.encode():
        digest = (digest ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return digest

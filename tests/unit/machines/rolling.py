"""A deployment, its sets and machines as a game: whoever moves next is anybody's choice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec import structs

from ccm.machines import bounds, rollout
from ccm.machines.replicas import DEFAULT_PRIORITY, Member, PopulatedSet, deletion_order, is_called
from ccm.machines.settings import Names, Settings
from ccm.model import ObjectMeta
from ccm.model.machines import MachineDeployment, Phase, SetStatus, Strategy, Template
from ccm.model.times import moment
from tests.unit.machines.members import member

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = Names(
    finalizer="finalizer",
    priority="priority",
    default_priority="3",
    marked="marked",
    token_id="token-id",
    origin="origin",
    freeze="freeze",
    frozen="True",
    unfreeze="unfreeze",
    creation="creation",
    deletion="deletion",
    node_finalizer="node-finalizer",
    machine_label="machine",
    applied="applied",
    applied_capacity="applied-capacity",
    unmanaged="unmanaged",
    critical_taint="critical",
    old_taint="old",
    candidate="candidate",
    selected="selected",
    update_result="result",
    update_successful="successful",
    update_unsuccessful="failed",
    update_failed_reason="reason",
    update_condition="InPlace",
    update_waiting="Waits",
    update_selected="Chosen",
    update_drained="Drained",
    update_ready="Ready",
    update_succeeded="Updated",
    update_failed="Failed",
    scale_up_disabled="no-growth",
    trigger="trigger",
    scaler_time="scaler-time",
    revision="revision",
    revision_history="revision-history",
    desired="desired",
    most="most",
    not_copied=frozenset({"revision", "revision-history", "desired", "most", "old", "trigger"}),
    hold="hold",
    hold_is_ours="hold-is-ours",
)
RULES = Settings(names=NAMES)


@dataclass
class Box:
    """A machine; what the planner knows of its life lags behind."""

    name: str
    born: datetime
    phase: Phase = Phase.NEW
    since: datetime = BEGIN
    deleting: bool = False
    annotations: dict[str, str] = field(default_factory=dict)

    def view(self, *, deleting: bool) -> Member:
        return member(
            self.name,
            created=self.born,
            phase=self.phase,
            since=self.since,
            is_deleting=deleting,
            priority=int(self.annotations.get("priority", DEFAULT_PRIORITY)),
            marked=moment(self.annotations.get("marked")),
        )


@dataclass
class Shelf:
    """A set."""

    name: str
    born: datetime
    replicas: int
    template: Template
    annotations: dict[str, str]
    boxes: list[Box] = field(default_factory=list)
    cached: list[tuple[Box, bool]] = field(default_factory=list)
    """What the caches show: all of one moment."""
    has_seen: bool = False

    def view(self, *, true: bool = False) -> PopulatedSet:
        shown = [(one, one.deleting) for one in self.boxes] if true else self.cached
        members = [one.view(deleting=deleting) for one, deleting in shown]
        return PopulatedSet(
            metadata=ObjectMeta(name=self.name, uid=self.name, annotations=dict(self.annotations)),
            created=self.born,
            replicas=self.replicas,
            template=self.template,
            members=members,
            status=SetStatus(observed=0 if self.has_seen else -1),
        )

    @property
    def shows(self) -> bool:
        """Whether the cache shows all that the set did."""
        shown = {one.name for one, _ in self.cached}
        told = all(deleting == one.deleting for one, deleting in self.cached)
        return told and all(one.name in shown for one in self.boxes)


class Game:
    """Everybody's moves, and what must hold after those of the planner."""

    def __init__(self, deployment: MachineDeployment, rng: random.Random) -> None:
        self.deployment = deployment
        self.rng = rng
        self.now = BEGIN
        self.shelves: dict[str, Shelf] = {}
        self.count = 0
        self.peak = 0
        """Most machines there were, without those that are going."""

    # --- the planner's --------------------------------------------------------------------------

    def plan(self) -> rollout.Plan:
        """What it would do."""
        views = [one.view() for one in self.shelves.values()]
        return rollout.plan(self.deployment, views, self.now, RULES)

    def act(self) -> rollout.Plan:
        """The planner's move; the bounds hold after it."""
        found = self.plan()
        present = self._present()
        sizes = {one.name: one.replicas for one in self.shelves.values()}
        self._carry_out(found)
        self._check(sizes, present)
        return found

    def _check(self, sizes: dict[str, int], present: int) -> None:
        deployment = self.deployment
        most = deployment.replicas + bounds.surge(deployment)
        assert self._present() <= max(most, present)
        if deployment.strategy is Strategy.ROLLING:
            floor = deployment.replicas - bounds.unavailable(deployment)
            before = [self._pending(sizes, chosen=chosen) for chosen in (True, False)]
            after = [self._pending({}, chosen=chosen) for chosen in (True, False)]
            # What the autoscaler chose to go is not our choice.
            assert any(now >= min(then, floor) for then, now in zip(before, after, strict=True))

    def _pending(self, sizes: dict[str, int], *, chosen: bool) -> int:
        """Available machines once each set has done what it was told.

        Args:
            sizes: what sets were told; others as they are.
            chosen: whether machines count that the autoscaler wants to go.
        """
        left = 0
        for shelf in self.shelves.values():
            gone = {one.name for one in self._victims(shelf, sizes.get(shelf.name))}
            left += sum(
                member.is_available(self.deployment.min_ready_s, self.now)
                for member in shelf.view(true=True).members
                if member.name not in gone
                and (chosen or member.machine.priority == DEFAULT_PRIORITY)
            )
        return left

    def _present(self) -> int:
        return sum(max(one.replicas, len(live(one))) for one in self.shelves.values())

    def _carry_out(self, found: rollout.Plan) -> None:
        deployment = structs.replace(self.deployment, status=found.status)
        if found.revert is not None:
            template = found.revert.to.template if found.revert.to else deployment.template
            deployment = structs.replace(deployment, template=template, rollback_to=None)
        notes = {**deployment.annotations, **found.annotations}
        notes = {key: value for key, value in notes.items() if value}
        metadata = ObjectMeta(name=deployment.name, annotations=notes)  # type: ignore[arg-type]
        self.deployment = structs.replace(deployment, metadata=metadata)
        boxes = {box.name: box for shelf in self.shelves.values() for box in shelf.boxes}
        for mark in found.marks:
            if mark.piece.name in boxes:
                boxes[mark.piece.name].annotations.update(mark.annotations)
        if found.make is not None:
            self._put(found.make)
        for change in found.changes:
            shelf = self.shelves[change.set.name]
            if change.replicas is not None:
                shelf.replicas, shelf.has_seen = change.replicas, False
            if change.copies:
                shelf.template = deployment.template
            merged = {**shelf.annotations, **change.annotations}
            shelf.annotations = {key: value for key, value in merged.items() if value}
        for dropped in found.drop:
            shelf = self.shelves.pop(dropped.name)
            assert (shelf.replicas, shelf.boxes) == (0, [])

    def _put(self, making: rollout.Making) -> None:
        assert making.name.name not in self.shelves
        self.shelves[making.name.name] = Shelf(
            name=making.name.name,
            born=self._later(),
            replicas=making.replicas,
            template=self.deployment.template,
            annotations=dict(making.annotations),
        )

    # --- everybody else's -----------------------------------------------------------------------

    def tend(self, shelf: Shelf) -> None:
        """The set's move, once its cache shows what it did: as many machines as it was told."""
        if not shelf.shows:
            return
        for one in self._victims(shelf):
            one.deleting = True
        for one in shelf.boxes:
            one.deleting |= one.phase is Phase.FAILED
        while len(live(shelf)) < shelf.replicas:
            self.count += 1
            shelf.boxes.append(Box(name=f"m{self.count}", born=self._later(), since=self.now))
        shelf.has_seen = True
        self.peak = max(self.peak, sum(len(live(one)) for one in self.shelves.values()))

    def look(self) -> None:
        """The caches learn of what came and what goes."""
        for shelf in self.shelves.values():
            shelf.cached = [(one, one.deleting) for one in shelf.boxes]

    def work(self, shelf: Shelf, box: Box) -> None:
        """The cloud's move: a machine that is known comes a step further, or is gone."""
        if all(one is not box for one, _ in shelf.cached):
            return
        if box.deleting:
            shelf.boxes.remove(box)
        elif box.phase in (Phase.NEW, Phase.CRASH_LOOP):
            self._becomes(box, Phase.PENDING)
        elif box.phase in (Phase.PENDING, Phase.UNKNOWN):
            self._becomes(box, Phase.RUNNING)

    def fail(self, box: Box) -> None:
        """The cloud's move: a machine is not what it was.

        Who learns of that has learnt of all before.
        """
        self.look()
        if not box.deleting:
            self._becomes(box, self.rng.choice((Phase.UNKNOWN, Phase.FAILED, Phase.CRASH_LOOP)))

    def edit(self, **changes: object) -> None:
        """The user's move."""
        self.deployment = structs.replace(self.deployment, **changes)

    def wait(self, seconds: float) -> None:
        """Nobody's move."""
        self.now += timedelta(seconds=seconds)

    def settle(self, rounds: int = 300) -> None:
        """All move in turn, and nothing fails, until the planner rests.

        Raises:
            AssertionError: it never does.
        """
        for _ in range(rounds):
            found = self.act()
            rests = found.is_empty and all(self._is_calm(one) for one in self.shelves.values())
            if rests:
                return
            for shelf in list(self.shelves.values()):
                self.tend(shelf)
                for box in list(shelf.boxes):
                    self.work(shelf, box)
            self.look()
            self.wait(10)
        raise AssertionError(f"no end: {self.shelves}, {self.plan()}")

    def machines(self) -> dict[str, list[Box]]:
        """Machines there are, by the essence of their template."""
        found: dict[str, list[Box]] = {}
        for shelf in self.shelves.values():
            if shelf.boxes:
                found.setdefault(shelf.template.essence, []).extend(shelf.boxes)
        return found

    def _is_calm(self, shelf: Shelf) -> bool:
        available = all(
            one.is_available(self.deployment.min_ready_s, self.now)
            for one in shelf.view(true=True).members
        )
        count = len(shelf.boxes)
        return available and count == len(shelf.cached) == shelf.replicas and shelf.has_seen

    def _victims(self, shelf: Shelf, size: int | None = None) -> list[Box]:
        by_name = {one.name: one for one in live(shelf)}
        members = [one.view(deleting=False) for one in by_name.values()]
        order = deletion_order(members, self.now, self.deployment.min_ready_s)
        scaled = moment(shelf.annotations.get(RULES.names.scaler_time))
        first = order[: max(0, len(order) - (shelf.replicas if size is None else size))]
        due = [one for one in members if is_called(one.machine, scaled)]
        keys = {one.key: None for one in [*first, *due]}
        return [by_name[key.rpartition("/")[2]] for key in keys]

    def _becomes(self, box: Box, phase: Phase) -> None:
        box.phase, box.since = phase, self.now

    def _later(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


def live(shelf: Shelf) -> list[Box]:
    """Machines that nobody deletes."""
    return [one for one in shelf.boxes if not one.deleting]


def deployment(**fields: object) -> MachineDeployment:
    """A deployment of machines of the first kind."""
    found = MachineDeployment(
        metadata=ObjectMeta(name="web", uid="web"), replicas=3, template=Template(essence="a")
    )
    return structs.replace(found, **fields)

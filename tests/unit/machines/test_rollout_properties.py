"""Properties of rollouts under random events: the bounds hold, and the rollout converges."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccm.machines import replicas, rollout
from ccm.machines.replicas import (
    DEFAULT_PRIORITY,
    Member,
    PopulatedSet,
    deletion_order,
    is_chosen_by_autoscaler,
)
from ccm.model import ObjectMeta
from ccm.model.machines import MachineDeployment, Phase, SetStatus, Strategy, Template
from ccm.model.times import format_time, parse_optional_time
from tests.unit.machines.members import BEGIN, RULES, deployment, member

MOVES = 60
AMOUNTS = (0, 1, 2, 5, "0%", "10%", "25%", "50%", "100%")


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
            marked=parse_optional_time(self.annotations.get("marked")),
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
    """Random steps of planner, sets, cloud and user, with the invariants of the planner."""

    def __init__(self, deployment: MachineDeployment, rng: random.Random) -> None:
        self.deployment = deployment
        self.rng = rng
        self.now = BEGIN
        self.shelves: dict[str, Shelf] = {}
        self.count = 0
        self.peak = 0
        """Highest number of machines that were not being deleted."""

    # --- the planner's --------------------------------------------------------------------------

    def plan(self) -> rollout.RolloutPlan:
        """Return the planner's next changes."""
        views = [one.view() for one in self.shelves.values()]
        return rollout.plan(self.deployment, views, self.now, RULES)

    def act(self) -> rollout.RolloutPlan:
        """Apply the planner's changes, and assert the bounds."""
        found = self.plan()
        present = self._present()
        sizes = {one.name: one.replicas for one in self.shelves.values()}
        self._carry_out(found)
        self._check(sizes, present)
        return found

    def _check(self, sizes: dict[str, int], present: int) -> None:
        deployment = self.deployment
        most = deployment.replicas + replicas.surge(deployment)
        assert self._present() <= max(most, present)
        if deployment.strategy is Strategy.ROLLING:
            floor = deployment.replicas - replicas.unavailable(deployment)
            before = [self._pending(sizes, chosen=chosen) for chosen in (True, False)]
            after = [self._pending({}, chosen=chosen) for chosen in (True, False)]
            # Machines chosen by the autoscaler do not count against the bounds.
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

    def _carry_out(self, found: rollout.RolloutPlan) -> None:
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
        if found.create is not None:
            self._put(found.create)
        for change in found.changes:
            shelf = self.shelves[change.set.name]
            if change.replicas is not None:
                shelf.replicas, shelf.has_seen = change.replicas, False
            if change.copies:
                shelf.template = deployment.template
            merged = {**shelf.annotations, **change.annotations}
            shelf.annotations = {key: value for key, value in merged.items() if value}
        for dropped in found.delete:
            shelf = self.shelves.pop(dropped.name)
            assert (shelf.replicas, shelf.boxes) == (0, [])

    def _put(self, making: rollout.SetCreation) -> None:
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
        """Let the set create or delete machines, once its cache shows its former changes."""
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
        """Update the caches."""
        for shelf in self.shelves.values():
            shelf.cached = [(one, one.deleting) for one in shelf.boxes]

    def work(self, shelf: Shelf, box: Box) -> None:
        """Let the cloud advance a known machine by one step, or delete it."""
        if all(one is not box for one, _ in shelf.cached):
            return
        if box.deleting:
            shelf.boxes.remove(box)
        elif box.phase in (Phase.NEW, Phase.CRASH_LOOP):
            self._becomes(box, Phase.PENDING)
        elif box.phase in (Phase.PENDING, Phase.UNKNOWN):
            self._becomes(box, Phase.RUNNING)

    def fail(self, box: Box) -> None:
        """Let a machine fail.

        The caches are updated first, so that they show events in order.
        """
        self.look()
        if not box.deleting:
            self._becomes(box, self.rng.choice((Phase.UNKNOWN, Phase.FAILED, Phase.CRASH_LOOP)))

    def edit(self, **changes: object) -> None:
        """The user's move."""
        self.deployment = structs.replace(self.deployment, **changes)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def settle(self, rounds: int = 300) -> None:
        """Run all parts in turn without failures until the planner has no changes.

        Raises:
            AssertionError: the planner never comes to rest.
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
        scaled = parse_optional_time(shelf.annotations.get(RULES.names.scaler_time))
        first = order[: max(0, len(order) - (shelf.replicas if size is None else size))]
        due = [one for one in members if is_chosen_by_autoscaler(one.machine, scaled)]
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


def opened(rng: random.Random, strategy: Strategy = Strategy.ROLLING) -> Game:
    """A deployment of any size and bounds, at rest."""
    game = Game(
        deployment(
            replicas=rng.randrange(8),
            strategy=strategy,
            max_surge=rng.choice(AMOUNTS),
            max_unavailable=rng.choice(AMOUNTS),
            min_ready_s=rng.choice((0.0, 0.0, 5.0, 30.0)),
            deadline_s=rng.choice((None, 60.0)),
            history_limit=rng.choice((None, 0, 2)),
        ),
        rng,
    )
    game.settle()
    return game


def moved(game: Game, *, edits: bool) -> None:
    """Do one random step."""
    rng = game.rng
    shelves = list(game.shelves.values())
    boxes = [(shelf, box) for shelf in shelves for box in shelf.boxes]
    moves: list[Any] = [game.act, game.act, lambda: game.wait(rng.choice((1, 10, 60)))]
    if shelves:
        one = rng.choice(shelves)
        moves += [lambda: game.tend(one), lambda: game.tend(one), game.look]
    if boxes:
        moves += [lambda: game.work(*rng.choice(boxes))] * 4
        moves += [lambda: game.fail(rng.choice(boxes)[1])]
    if edits:
        moves += [lambda: edited(game)]
    rng.choice(moves)()


def edited(game: Game) -> None:
    """Do one random edit of the user or the autoscaler."""
    rng, now = game.rng, game.deployment
    choice = rng.randrange(7)
    if choice == 0:
        game.edit(template=Template(essence=rng.choice("abc"), rest=rng.choice("xy")))
    elif choice == 1:
        game.edit(replicas=rng.randrange(10))
    elif choice == 2:
        game.edit(max_surge=rng.choice(AMOUNTS), max_unavailable=rng.choice(AMOUNTS))
    elif choice == 3:
        game.edit(is_paused=not now.is_paused)
    elif choice == 4:
        game.edit(rollback_to=rng.randrange(4))
    elif choice == 5:
        game.edit(min_ready_s=rng.choice((0.0, 5.0)))
    else:
        scaled_down(game)


def scaled_down(game: Game) -> None:
    """Let the autoscaler scale down by a chosen machine."""
    names = [box.name for shelf in game.shelves.values() for box in live(shelf)]
    if not names or not game.deployment.replicas:
        return
    chosen, when = game.rng.choice(names), format_time(game.now)
    notes = {
        **game.deployment.annotations,
        RULES.names.trigger: f"{chosen}~{when}",
        RULES.names.scaler_time: when,
    }
    metadata = game.deployment.metadata
    game.edit(
        metadata=type(metadata)(name=metadata.name, uid=metadata.uid, annotations=notes),
        replicas=game.deployment.replicas - 1,
    )


def ends(game: Game) -> None:
    """Stop failures, and assert that the rollout converges and plans no further change."""
    game.edit(is_paused=False, rollback_to=None)
    game.settle()
    found = game.machines()
    wanted = game.deployment
    sizes = {essence: len(boxes) for essence, boxes in found.items()}
    assert sizes == ({wanted.template.essence: wanted.replicas} if wanted.replicas else {})
    assert game.plan().is_empty
    said = game.plan().status
    game.act()
    assert game.plan().status == said


@given(seed=st.integers(0, 2**32))
def test_rollout_keeps_its_bounds_and_converges_under_random_edits(seed: int) -> None:
    game = opened(random.Random(seed))
    for _ in range(MOVES):
        moved(game, edits=True)

    ends(game)


@given(seed=st.integers(0, 2**32))
def test_rollout_never_exceeds_max_surge(seed: int) -> None:
    game = opened(random.Random(seed))
    game.edit(template=Template(essence="z"))
    game.peak = 0
    for _ in range(2 * MOVES):
        moved(game, edits=False)
    game.settle()

    assert game.peak <= game.deployment.replicas + replicas.surge(game.deployment)
    ends(game)


@given(seed=st.integers(0, 2**32))
def test_recreate_strategy_converges_under_random_edits(seed: int) -> None:
    game = opened(random.Random(seed), Strategy.RECREATE)
    for _ in range(MOVES):
        moved(game, edits=True)

    ends(game)


@pytest.mark.soak
def test_rollout_keeps_its_bounds_for_ten_thousand_seeds() -> None:
    for seed in range(10_000):
        game = opened(random.Random(seed))
        for _ in range(2 * MOVES):
            moved(game, edits=True)
        ends(game)

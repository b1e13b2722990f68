"""Properties of in-place updates in random order: bounds hold while the spec changes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccm.machines import replicas, rollout
from ccm.machines.in_place_update import NodeStep
from ccm.machines.replicas import Member, PopulatedSet, deletion_order, resolve_amount
from ccm.model import Node, NodeCondition, ObjectMeta
from ccm.model.machines import MachineDeployment, Phase, SetStatus, Strategy, Template
from ccm.model.node import NodeStatus
from tests.unit.machines.members import BEGIN, RULES, deployment, member

NAMES = RULES.names


@dataclass
class Box:
    """Machine with its node; `made_of` is the template of its last update."""

    name: str
    made_of: str
    moved: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    updated: bool = False

    @property
    def works(self) -> bool:
        """Whether the machine is not being updated."""
        return NAMES.selected not in self.labels or NAMES.update_result in self.labels

    def view(self) -> Member:
        said = [
            NodeCondition(type=NAMES.update_condition, status="True", reason=NAMES.update_succeeded)
        ]
        node = Node(
            metadata=ObjectMeta(name=self.name, uid=self.name, labels=dict(self.labels)),
            status=NodeStatus(conditions=said if self.updated else None),
        )
        phase = Phase.RUNNING if self.works else Phase.UPDATING
        return member(
            self.name, created=BEGIN, phase=phase, since=BEGIN, was_moved=self.moved, node=node
        )


@dataclass
class Shelf:
    """A set."""

    name: str
    number: int
    kind: str
    replicas: int
    annotations: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)
    has_seen: bool = True

    def left(self) -> list[Box]:
        """Machines that remain once the set has shrunk to its size."""
        countable = {f"default/{one.name}": one for one in self.boxes if not one.moved}
        order = deletion_order((one.view() for one in countable.values()), BEGIN)
        gone = [countable[one.key] for one in order[: max(0, len(order) - self.replicas)]]
        return [one for one in self.boxes if one not in gone]

    def view(self) -> PopulatedSet:
        return PopulatedSet(
            metadata=ObjectMeta(
                name=self.name,
                uid=self.name,
                labels=dict(self.labels),
                annotations=dict(self.annotations),
            ),
            created=BEGIN.replace(microsecond=self.number),
            replicas=self.replicas,
            template=Template(essence=self.kind),
            members=[one.view() for one in self.boxes],
            status=SetStatus(observed=0 if self.has_seen else -1),
        )


class Workshop:
    """A deployment whose machines are updated where they are."""

    def __init__(self, wanted: MachineDeployment) -> None:
        self.wanted = wanted
        self.shelves: dict[str, Shelf] = {}
        self.count = 0

    def act(self) -> rollout.RolloutPlan:
        """The planner's move."""
        views = [one.view() for one in self.shelves.values()]
        found = rollout.plan(self.wanted, views, BEGIN, RULES)
        told = {**self.wanted.annotations, **found.annotations}
        metadata = ObjectMeta(name="web", annotations=told)  # type: ignore[arg-type]
        self.wanted = structs.replace(self.wanted, status=found.status, metadata=metadata)
        if found.create is not None:
            self.count += 1
            kind, name = self.wanted.template.essence, found.create.name.name
            notes = dict(found.create.annotations)
            shelf = Shelf(name, self.count, kind, found.create.replicas, notes)
            self.shelves[name] = shelf
        for change in found.changes:
            shelf = self.shelves[change.set.name]
            if change.replicas is not None:
                shelf.replicas, shelf.has_seen = change.replicas, False
            notes = {**shelf.annotations, **change.annotations}  # type: ignore[dict-item]
            shelf.annotations = {key: value for key, value in notes.items() if value}
            merged = {**shelf.labels, **change.labels}
            shelf.labels = {key: value for key, value in merged.items() if value}
        boxes = {box.name: box for shelf in self.shelves.values() for box in shelf.boxes}
        for move in found.update.moves:
            box = boxes[move.piece.name]
            self.shelves[move.old.name].boxes.remove(box)
            self.shelves[move.new.name].boxes.append(box)
            box.moved = True
        for node, step in found.update.nodes:
            self._step(boxes[node.name], step)
        for piece in found.update.moved_members:
            boxes[piece.name].moved = False
        return found

    def _step(self, box: Box, step: NodeStep) -> None:
        if step in (NodeStep.CANDIDATE, NodeStep.SELECT):
            key = NAMES.candidate if step is NodeStep.CANDIDATE else NAMES.selected
            box.labels[key] = "true"
        else:
            box.labels, box.updated = {}, False

    def tend(self, shelf: Shelf) -> None:
        """The set's move."""
        shelf.has_seen = True
        shelf.boxes = shelf.left()
        while len(shelf.boxes) < shelf.replicas and NAMES.scale_up_disabled not in shelf.labels:
            self.count += 1
            shelf.boxes.append(Box(f"m{self.count}", shelf.kind))

    def work(self, box: Box) -> None:
        """Let the agent on the node update the machine to the current template."""
        if NAMES.selected in box.labels and NAMES.update_result not in box.labels:
            box.labels[NAMES.update_result], box.updated = NAMES.update_successful, True
            box.made_of = self.wanted.template.essence

    def boxes(self) -> list[Box]:
        return [box for shelf in self.shelves.values() for box in shelf.boxes]

    @property
    def most(self) -> int:
        """Upper bound of machines."""
        replicas = self.wanted.replicas
        return replicas + resolve_amount(self.wanted.max_surge, replicas, up=True)

    @property
    def floor(self) -> int:
        """Lower bound of available machines."""
        return self.wanted.replicas - replicas.unavailable(self.wanted)

    def present(self) -> int:
        """Machines that exist or may be created."""
        return sum(
            max(len(one.boxes), 0 if NAMES.scale_up_disabled in one.labels else one.replicas)
            for one in self.shelves.values()
        )

    def at_work(self) -> int:
        """Machines that are not being updated."""
        return sum(box.works for box in self.boxes())

    def left_at_work(self) -> int:
        """Machines not being updated that remain once each set has shrunk to its size."""
        return sum(box.works for one in self.shelves.values() for box in one.left())


def opened(rng: random.Random) -> Workshop:
    """A deployment at rest."""
    found = Workshop(
        deployment(
            replicas=rng.randrange(1, 7),
            strategy=Strategy.IN_PLACE,
            max_surge=rng.choice((0, 0, 1, 2)),
            max_unavailable=rng.choice((0, 1, 2, "50%")),
        )
    )
    settle(found)
    return found


def settle(shop: Workshop) -> None:
    """Run planner, sets and agents in turn until nothing is left to do."""
    for _ in range(300):
        found = shop.act()
        shelves = shop.shelves.values()
        full = all(one.has_seen and len(one.boxes) == one.replicas for one in shelves)
        if found.is_empty and full and not any(box.labels for box in shop.boxes()):
            return
        for shelf in shop.shelves.values():
            shop.tend(shelf)
        for box in shop.boxes():
            shop.work(box)
    raise AssertionError(f"no end: {shop.shelves}")


def rest(shop: Workshop) -> None:
    """Run planner and sets in turn until a paused deployment needs no change."""
    for _ in range(40):
        if shop.act().is_empty:
            return
        for shelf in shop.shelves.values():
            shop.tend(shelf)
    raise AssertionError(f"a pause without an end: {shop.shelves}")


@given(seed=st.integers(0, 2**32))
def test_in_place_update_keeps_the_bounds_and_updates_all_machines(seed: int) -> None:
    rng = random.Random(seed)
    shop = opened(rng)
    survivors = {box.name for box in shop.boxes()}
    shop.wanted = structs.replace(shop.wanted, template=Template(essence="b"))
    for _ in range(60):
        before = shop.at_work()
        shelves = list(shop.shelves.values())
        shop.tend(rng.choice(shelves)) if rng.random() < 0.5 else shop.act()
        assert shop.at_work() >= min(before, shop.floor)
        if shop.boxes() and rng.random() < 0.3:
            shop.work(rng.choice(shop.boxes()))
    settle(shop)

    assert {box.made_of for box in shop.boxes()} == {"b"}
    assert len(shop.boxes()) == shop.wanted.replicas
    if shop.wanted.max_surge == 0:
        assert {box.name for box in shop.boxes()} == survivors


@given(seed=st.integers(0, 2**32))
def test_spec_changes_keep_the_bounds_and_the_update_converges(seed: int) -> None:
    rng = random.Random(seed)
    shop = opened(rng)
    for _ in range(80):
        shelves, present, left = list(shop.shelves.values()), shop.present(), shop.left_at_work()
        shop.tend(rng.choice(shelves)) if rng.random() < 0.3 else shop.act()
        assert shop.present() <= max(present, shop.most)
        assert shop.left_at_work() >= min(left, shop.floor)
        if shop.boxes() and rng.random() < 0.4:
            shop.work(rng.choice(shop.boxes()))
        if rng.random() < 0.1:
            shop.wanted = structs.replace(shop.wanted, template=Template(essence=rng.choice("abc")))
        if rng.random() < 0.05:
            shop.wanted = structs.replace(shop.wanted, replicas=rng.randrange(1, 7))
        if rng.random() < 0.05:
            strategy = rng.choice((Strategy.IN_PLACE, Strategy.ROLLING))
            shop.wanted = structs.replace(
                shop.wanted, strategy=strategy, is_paused=rng.random() < 0.4
            )
        if shop.wanted.is_paused and rng.random() < 0.2:
            rest(shop)
    shop.wanted = structs.replace(shop.wanted, is_paused=False)
    settle(shop)

    assert len(shop.boxes()) == shop.wanted.replicas
    (full,) = [one for one in shop.shelves.values() if one.boxes]
    assert full.kind == shop.wanted.template.essence

"""How large each set of a deployment may be now, so that its bounds hold whatever happens next.
Pure.

A machine counts as long as its deletion was not asked for, and so does one that a set is about to
make: what is there and what is wanted, whichever is more. Available are those that will be left
once every set has shrunk to what it was told. Which machines go when a set shrinks is known, so
no size is chosen that takes an available one too many. Counts of a set's status are not used:
they come late. Until every set has seen how many are wanted nothing is scaled: it may have made
or deleted machines of which the caches know nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ccm.base.parsing import parse_digits
from ccm.machines import replicas
from ccm.machines.replicas import DEFAULT_PRIORITY, PopulatedSet, deletion_order, is_called
from ccm.machines.settings import Names
from ccm.model.machines import MachineDeployment
from ccm.model.times import moment

Sizes = Mapping[str, int]
"""Replicas of sets, by UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A machine of a set, in the order in which they go.

    Attributes:
        available: whether it works, for long enough.
        goes: whether it goes in any case.
        chosen: whether somebody wants it to go before all others.
    """

    available: bool
    goes: bool = False
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A set as far as its size is concerned.

    Attributes:
        uid: of the set.
        replicas: how many are wanted.
        victims: its machines that are not being deleted; those come first that go first.
        most: replicas and surge of the deployment when it was scaled last; None = nobody knows.
        is_deleting: whether the set itself goes.
        has_seen: whether it knows how many are wanted.
    """

    uid: str
    replicas: int
    victims: Sequence[Victim] = ()
    most: int | None = None
    is_deleting: bool = False
    has_seen: bool = True

    @property
    def is_active(self) -> bool:
        """Whether machines of it are wanted."""
        return self.replicas > 0 and not self.is_deleting

    @property
    def chosen(self) -> int:
        """How many of its machines somebody wants to go before all others."""
        return sum(one.chosen for one in self.victims)

    @property
    def present(self) -> int:
        """Machines that are there or may be any moment."""
        wanted = 0 if self.is_deleting else self.replicas
        return max(wanted, len(self.victims))

    def available_at(self, size: int) -> int:
        """Machines that are available once it has this size."""
        return sum(one.available and not one.goes for one in self._left(size))

    def steady_at(self, size: int) -> int:
        """The same, without those that somebody wants to go."""
        return sum(one.available and not (one.goes or one.chosen) for one in self._left(size))

    def _left(self, size: int) -> Sequence[Victim]:
        if self.is_deleting:
            return ()
        return self.victims[max(0, len(self.victims) - size) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All sets of a deployment, and its bounds.

    Attributes:
        replicas: how many machines are wanted.
        surge: most above that.
        floor: fewest that have to be available.
        new: the set of the newest template; None while there is none.
        olds: the others, the oldest first.
    """

    replicas: int
    surge: int
    floor: int
    new: Sized | None
    olds: Sequence[Sized] = ()

    @property
    def sets(self) -> Sequence[Sized]:
        """All of them, the oldest first."""
        return self.olds if self.new is None else [*self.olds, self.new]

    @property
    def most(self) -> int:
        """Most machines there may be."""
        return self.replicas + self.surge

    @property
    def present(self) -> int:
        """Machines that are there or may be any moment."""
        return sum(one.present for one in self.sets)

    @property
    def wanted(self) -> int:
        """Machines that all sets together want."""
        return sum(one.replicas for one in self.sets if not one.is_deleting)

    @property
    def is_known(self) -> bool:
        """Whether it is known which machines there are, and will be."""
        return all(one.has_seen or one.is_deleting for one in self.sets)

    @property
    def old_active(self) -> Sequence[Sized]:
        """Those of them that are old."""
        return [one for one in self.olds if one.is_active]


def sized(found: PopulatedSet, deployment: MachineDeployment, now: datetime, names: Names) -> Sized:
    """A set as far as its size is concerned."""
    # The set knows of a change of the autoscaler's soon, if it does not yet.
    scaled = [moment(one.annotations.get(names.scaler_time)) for one in (found, deployment)]
    order = deletion_order(found.live, now, deployment.min_ready_s)
    victims = [
        Victim(
            available=one.is_available(deployment.min_ready_s, now),
            goes=any(is_called(one.machine, when) for when in scaled),
            chosen=one.machine.priority < DEFAULT_PRIORITY,
        )
        for one in order
    ]
    return Sized(
        uid=found.uid,
        replicas=found.replicas,
        victims=victims,
        most=parse_digits(found.annotations.get(names.most, "")),
        is_deleting=found.is_deleting,
        has_seen=found.has_seen,
    )


def held(fleet: Fleet) -> Sizes:
    """The sizes while nothing is exchanged: only as many machines as there should be."""
    active, new = [one for one in fleet.sets if one.is_active], fleet.new
    if not fleet.is_known:
        return {}
    if len(active) <= 1:
        one = active[0] if active else new or next(reversed(fleet.olds), None)
        return (
            {} if one is None or one.is_deleting else _changed({one.uid: _fit(fleet, one)}, fleet)
        )
    if new is not None and new.replicas == new.available_at(new.replicas) == fleet.replicas:
        return {one.uid: 0 for one in fleet.old_active}
    if (excess := fleet.wanted - fleet.most) > 0:
        return _shrunk(fleet, excess)
    grows = new if new is not None and new.replicas else active[-1]
    more = fleet.most - fleet.present
    return {grows.uid: grows.replicas + more} if more > 0 else {}


def recreated(fleet: Fleet, *, waits: bool) -> tuple[Sizes, int]:
    """Sizes where all old machines go before new ones come; and that of a set to be made.

    Args:
        fleet: the sets.
        waits: whether old machines are there, those that are going among them.
    """
    if fleet.old_active:
        return {one.uid: 0 for one in fleet.old_active}, 0
    new = fleet.new
    if new is None:
        return {}, fleet.replicas
    if (waits and new.replicas <= fleet.replicas) or not fleet.is_known:
        return {}, 0
    return _changed({new.uid: _fit(fleet, new)}, fleet), 0


def rolled(fleet: Fleet, deployment: MachineDeployment) -> tuple[Sizes, int]:
    """Sizes where machines are exchanged within the bounds; and that of a set to be made."""
    new = fleet.new
    if not fleet.is_known:
        return {}, 0
    excess = fleet.wanted - fleet.most
    if excess > 0 and fleet.old_active:
        return _shrunk(fleet, excess), 0
    if new is None:
        return {}, replicas.new_size(deployment, present=fleet.present, new=0)
    size = replicas.new_size(deployment, present=fleet.present, new=new.replicas)
    if new.replicas > fleet.replicas:
        size = _fit(fleet, new)
    return _changed({new.uid: size, **down(fleet, new)}, fleet), 0


def down(fleet: Fleet, new: Sized) -> Sizes:
    """Sizes of old sets: first those go that are missing anyway, then as many as may be missing."""
    sizes = {one.uid: one.replicas for one in fleet.olds}
    missing = new.replicas - new.available_at(new.replicas)
    room = fleet.wanted - fleet.floor - missing
    spare = sum(one.available_at(one.replicas) for one in fleet.sets) - fleet.floor
    for costs in (False, True):
        for one in fleet.olds:
            if one.is_deleting:
                continue
            before, budget = sizes[one.uid], max(spare, 0) if costs else 0
            sizes[one.uid], lost = _lowered(one, before, room, budget)
            room -= before - sizes[one.uid]
            spare -= lost
    return sizes


def _lowered(one: Sized, size: int, room: int, budget: int) -> tuple[int, int]:
    """The least size that costs no more available machines than that, and how many it costs."""
    found, lost = size, 0
    for less in range(size - 1, max(size - room, 0) - 1, -1):
        costs = one.available_at(size) - one.available_at(less)
        if costs > budget:
            break
        found, lost = less, costs
    return found, lost


def lessened(fleet: Fleet, surge: int) -> Sizes:
    """Sizes of those that shrink where more machines are wanted than there may be."""
    excess = fleet.wanted - fleet.replicas - surge
    return _shrunk(fleet, excess) if excess > 0 else {}


def _shrunk(fleet: Fleet, excess: int) -> Sizes:
    """Sizes with so many machines less: first those go that somebody chose, then each set loses in
    proportion, and the largest what is left.
    """
    by_size = sorted((one for one in fleet.sets if one.is_active), key=lambda one: -one.replicas)
    sizes = {one.uid: one.replicas for one in fleet.sets}
    left = excess
    for one in by_size:
        # A set that loses them and may keep its size would make others.
        left -= _take(fleet, sizes, one, min(left, one.chosen))
    for one in by_size:
        left -= _take(fleet, sizes, one, min(left, _share(one, fleet)))
    for one in by_size:
        left -= _take(fleet, sizes, one, left)
    return _changed(sizes, fleet)


def _share(one: Sized, fleet: Fleet) -> int:
    """How many of the machines that are too many are this set's (apps Deployment controller)."""
    former = one.most or fleet.wanted
    kept = (2 * one.replicas * fleet.most + former) // (2 * former)
    return max(0, one.replicas - kept)


def _take(fleet: Fleet, sizes: dict[str, int], one: Sized, count: int) -> int:
    """Shrink a set by that many, or by fewer where too few would be available; by how many."""
    before = sizes[one.uid]
    sizes[one.uid] = _fitting(fleet, sizes, one, max(0, before - count))
    return before - sizes[one.uid]


def _fit(fleet: Fleet, one: Sized) -> int:
    """The size of the only set that counts."""
    if fleet.replicas >= one.replicas:
        return min(fleet.replicas, one.replicas + max(0, fleet.most - fleet.present))
    return _fitting(fleet, {each.uid: each.replicas for each in fleet.sets}, one, fleet.replicas)


def _fitting(fleet: Fleet, sizes: Sizes, one: Sized, wanted: int) -> int:
    """The least size from `wanted` on that leaves enough machines available.

    Those that somebody chose to go do not count: they are not our choice.
    """
    now = sum(each.steady_at(each.replicas) for each in fleet.sets)
    others = sum(each.steady_at(sizes[each.uid]) for each in fleet.sets if each is not one)
    floor = min(now, fleet.floor)
    for size in range(wanted, sizes[one.uid]):
        if others + one.steady_at(size) >= floor:
            return size
    return sizes[one.uid]


def _changed(sizes: Sizes, fleet: Fleet) -> Sizes:
    """Only those that differ."""
    return {
        one.uid: sizes[one.uid]
        for one in fleet.sets
        if sizes.get(one.uid, one.replicas) != one.replicas
    }

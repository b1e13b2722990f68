"""Sizes of the sets of a deployment, chosen so that its bounds always hold. No I/O.

The bounds are the maximum number of machines, and the minimum number of available machines. For the
maximum, a set counts with its replicas or with its machines that are not being deleted, whichever
is more, because it may be about to create machines. A machine counts as available only if it
remains after every set has shrunk to its replicas; the order of deletions in a set is known. The
counts in the status of a set are not used, because they lag behind. Nothing is scaled until every
set has observed its replicas: before that, a set may have created or deleted machines that the
caches do not show yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ccm.base.parsing import parse_digits
from ccm.machines import replicas
from ccm.machines.replicas import (
    DEFAULT_PRIORITY,
    PopulatedSet,
    deletion_order,
    is_chosen_by_autoscaler,
)
from ccm.machines.settings import Names
from ccm.model.machines import MachineDeployment
from ccm.model.times import parse_optional_time

Sizes = Mapping[str, int]
"""Replicas of sets, by UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedMachine:
    """A machine of a set, in the order of deletions.

    Attributes:
        available: whether the machine has been ready for `minReadySeconds`.
        is_chosen_by_autoscaler: whether the autoscaler chose the machine, so that the set deletes
            it at any size.
        chosen: whether a user or the autoscaler gave the machine a lower priority than the default.
    """

    available: bool
    is_chosen_by_autoscaler: bool = False
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSize:
    """Size of a set, and its machines.

    Attributes:
        uid: UID of the set.
        replicas: desired number of machines.
        machines: machines that are not being deleted, in the order of deletions.
        most: sum of the deployment's replicas and surge when the set was last scaled; None =
            unknown.
        is_deleting: whether the set itself is being deleted.
        has_seen: whether the set's controller has observed its replicas.
    """

    uid: str
    replicas: int
    machines: Sequence[OrderedMachine] = ()
    most: int | None = None
    is_deleting: bool = False
    has_seen: bool = True

    @property
    def is_active(self) -> bool:
        """Whether the set should have machines."""
        return self.replicas > 0 and not self.is_deleting

    @property
    def chosen(self) -> int:
        """Number of machines that are deleted first (`OrderedMachine.chosen`)."""
        return sum(victim.chosen for victim in self.machines)

    @property
    def present(self) -> int:
        """Number of machines that exist, or that the set may be about to create."""
        wanted = 0 if self.is_deleting else self.replicas
        return max(wanted, len(self.machines))

    def available_at(self, size: int) -> int:
        """Return the number of available machines that remain when the set has shrunk to a size."""
        return sum(
            victim.available and not victim.is_chosen_by_autoscaler for victim in self._left(size)
        )

    def unchosen_available_at(self, size: int) -> int:
        """Return `available_at` without machines that are chosen for deletion."""
        return sum(
            victim.available and not (victim.is_chosen_by_autoscaler or victim.chosen)
            for victim in self._left(size)
        )

    def _left(self, size: int) -> Sequence[OrderedMachine]:
        if self.is_deleting:
            return ()
        return self.machines[max(0, len(self.machines) - size) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All sets of a deployment, and its bounds.

    Attributes:
        replicas: desired number of machines.
        surge: maximum number of machines above `replicas`.
        floor: minimum number of available machines.
        new: the set of the newest template; None = not created yet.
        olds: the other sets, the oldest first.
    """

    replicas: int
    surge: int
    floor: int
    new: SetSize | None
    olds: Sequence[SetSize] = ()

    @property
    def sets(self) -> Sequence[SetSize]:
        """All sets, the new one last."""
        return self.olds if self.new is None else [*self.olds, self.new]

    @property
    def most(self) -> int:
        """Maximum number of machines."""
        return self.replicas + self.surge

    @property
    def present(self) -> int:
        """Number of machines that exist, or that a set may be about to create."""
        return sum(machine_set.present for machine_set in self.sets)

    @property
    def wanted(self) -> int:
        """Sum of the replicas of all sets that are not being deleted."""
        return sum(machine_set.replicas for machine_set in self.sets if not machine_set.is_deleting)

    @property
    def is_known(self) -> bool:
        """Whether every set has observed its replicas, so that the number of machines is known."""
        return all(machine_set.has_seen or machine_set.is_deleting for machine_set in self.sets)

    @property
    def old_active(self) -> Sequence[SetSize]:
        """Old sets that should have machines."""
        return [old for old in self.olds if old.is_active]


def set_size(
    machine_set: PopulatedSet, deployment: MachineDeployment, now: datetime, names: Names
) -> SetSize:
    """Return the size and machines of a set."""
    # The deployment's scaling time counts, too, because it is about to be copied to the set.
    scaled = [
        parse_optional_time(obj.annotations.get(names.scaler_time))
        for obj in (machine_set, deployment)
    ]
    newest_first = machine_set.deletes_newest
    order = deletion_order(machine_set.live, now, deployment.min_ready_s, newest_first=newest_first)
    victims = [
        OrderedMachine(
            available=member.is_available(deployment.min_ready_s, now),
            is_chosen_by_autoscaler=any(
                is_chosen_by_autoscaler(member.machine, when) for when in scaled
            ),
            chosen=member.machine.priority < DEFAULT_PRIORITY,
        )
        for member in order
    ]
    return SetSize(
        uid=machine_set.uid,
        replicas=machine_set.replicas,
        machines=victims,
        most=parse_digits(machine_set.annotations.get(names.most, "")),
        is_deleting=machine_set.is_deleting,
        has_seen=machine_set.is_status_current,
    )


def paused_sizes(fleet: Fleet) -> Sizes:
    """Return the sizes while the rollout is paused: only their sum is adapted to the replicas."""
    active, new = [machine_set for machine_set in fleet.sets if machine_set.is_active], fleet.new
    if not fleet.is_known:
        return {}
    if len(active) <= 1:
        only = active[0] if active else new or next(reversed(fleet.olds), None)
        return (
            {}
            if only is None or only.is_deleting
            else _changed({only.uid: _only_size(fleet, only)}, fleet)
        )
    if new is not None and new.replicas == new.available_at(new.replicas) == fleet.replicas:
        return {only.uid: 0 for only in fleet.old_active}
    if (excess := fleet.wanted - fleet.most) > 0:
        return _shrunk(fleet, excess)
    grows = new if new is not None and new.replicas else active[-1]
    more = fleet.most - fleet.present
    return {grows.uid: grows.replicas + more} if more > 0 else {}


def recreate_sizes(fleet: Fleet, *, waits: bool) -> tuple[Sizes, int]:
    """Return the sizes for the strategy Recreate, and the size of a set to create.

    All old machines are deleted before new ones are created.

    Args:
        fleet: the sets.
        waits: whether old machines exist or may exist, including machines that are being deleted.
    """
    if fleet.old_active:
        return {old.uid: 0 for old in fleet.old_active}, 0
    new = fleet.new
    if new is None:
        return {}, fleet.replicas
    if (waits and new.replicas <= fleet.replicas) or not fleet.is_known:
        return {}, 0
    return _changed({new.uid: _only_size(fleet, new)}, fleet), 0


def rolling_sizes(fleet: Fleet, deployment: MachineDeployment) -> tuple[Sizes, int]:
    """Return the sizes for a rolling update within the bounds, and the size of a set to create."""
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
        size = _only_size(fleet, new)
    return _changed({new.uid: size, **old_sizes(fleet, new)}, fleet), 0


def old_sizes(fleet: Fleet, new: SetSize) -> Sizes:
    """Return the sizes of old sets.

    Unavailable machines are deleted first, then as many available machines as the bounds allow.
    """
    sizes = {old.uid: old.replicas for old in fleet.olds}
    missing = new.replicas - new.available_at(new.replicas)
    room = fleet.wanted - fleet.floor - missing
    spare = (
        sum(machine_set.available_at(machine_set.replicas) for machine_set in fleet.sets)
        - fleet.floor
    )
    for costs in (False, True):
        for old in fleet.olds:
            if old.is_deleting:
                continue
            before, budget = sizes[old.uid], max(spare, 0) if costs else 0
            sizes[old.uid], lost = _lowered(old, before, room, budget)
            room -= before - sizes[old.uid]
            spare -= lost
    return sizes


def _lowered(old: SetSize, size: int, room: int, budget: int) -> tuple[int, int]:
    """Return the size to which an old set shrinks, and the number of available machines lost.

    The set shrinks from `size` as far as possible: it loses at most `room` machines, of which at
    most `budget` are available.
    """
    lowest, lost = size, 0
    for less in range(size - 1, max(size - room, 0) - 1, -1):
        costs = old.available_at(size) - old.available_at(less)
        if costs > budget:
            break
        lowest, lost = less, costs
    return lowest, lost


def shrunk_sizes(fleet: Fleet, surge: int) -> Sizes:
    """Return the sizes of sets that shrink because more machines are desired than allowed."""
    excess = fleet.wanted - fleet.replicas - surge
    return _shrunk(fleet, excess) if excess > 0 else {}


def _shrunk(fleet: Fleet, excess: int) -> Sizes:
    """Return the sizes after up to `excess` machines were removed.

    First, the sets lose machines that are chosen for deletion. Then they shrink in proportion to
    their sizes. Machines that are still in excess are removed from the largest sets first.
    """
    by_size = sorted(
        (machine_set for machine_set in fleet.sets if machine_set.is_active),
        key=lambda machine_set: -machine_set.replicas,
    )
    sizes = {machine_set.uid: machine_set.replicas for machine_set in fleet.sets}
    left = excess
    for active in by_size:
        # Otherwise a set that loses chosen machines but keeps its size would replace them.
        left -= _shrink_set(fleet, sizes, active, min(left, active.chosen))
    for active in by_size:
        left -= _shrink_set(fleet, sizes, active, min(left, _share(active, fleet)))
    for active in by_size:
        left -= _shrink_set(fleet, sizes, active, left)
    return _changed(sizes, fleet)


def _share(sized: SetSize, fleet: Fleet) -> int:
    """Return a set's share of the surplus machines (formula of the Deployment controller)."""
    former = sized.most or fleet.wanted
    kept = (2 * sized.replicas * fleet.most + former) // (2 * former)
    return max(0, sized.replicas - kept)


def _shrink_set(fleet: Fleet, sizes: dict[str, int], sized: SetSize, count: int) -> int:
    """Shrink a set in `sizes` by up to `count` machines, within the bounds; return by how many."""
    before = sizes[sized.uid]
    sizes[sized.uid] = _smallest_allowed_size(fleet, sizes, sized, max(0, before - count))
    return before - sizes[sized.uid]


def _only_size(fleet: Fleet, only: SetSize) -> int:
    """Return the size of a set that has to provide all replicas of the deployment."""
    if fleet.replicas >= only.replicas:
        return min(fleet.replicas, only.replicas + max(0, fleet.most - fleet.present))
    return _smallest_allowed_size(
        fleet,
        {machine_set.uid: machine_set.replicas for machine_set in fleet.sets},
        only,
        fleet.replicas,
    )


def _smallest_allowed_size(fleet: Fleet, sizes: Sizes, shrinking: SetSize, wanted: int) -> int:
    """Return the smallest size from `wanted` upwards that keeps enough machines available.

    Machines that are chosen for deletion do not count as available.
    """
    now = sum(machine_set.unchosen_available_at(machine_set.replicas) for machine_set in fleet.sets)
    others = sum(
        machine_set.unchosen_available_at(sizes[machine_set.uid])
        for machine_set in fleet.sets
        if machine_set is not shrinking
    )
    floor = min(now, fleet.floor)
    for size in range(wanted, sizes[shrinking.uid]):
        if others + shrinking.unchosen_available_at(size) >= floor:
            return size
    return sizes[shrinking.uid]


def _changed(sizes: Sizes, fleet: Fleet) -> Sizes:
    return {
        machine_set.uid: sizes[machine_set.uid]
        for machine_set in fleet.sets
        if sizes.get(machine_set.uid, machine_set.replicas) != machine_set.replicas
    }

"""How many machines a set makes and which it deletes, decided from what there is. Pure.

A set has as many machines as it wants, those that are on their way out not counted. Surplus ones
go in a fixed order, so that a decision that is repeated meets the same machines; those that
failed, and those that the autoscaler chose, go in any case. What is kept for somebody to look at
goes last, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from ccm.model import Node
from ccm.model.machines import (
    FailedMachine,
    Machine,
    MachineDeployment,
    MachineSet,
    Operation,
    OperationState,
    Phase,
    Preserve,
    SetStatus,
    Strategy,
)

BURST = 100
"""Most machines that are made, and most that are deleted, in one pass (reference)."""

DEFAULT_PRIORITY = 3
"""Of a machine that nobody gave one that can be read (reference)."""

CALLED_PRIORITY = 1
"""Of one that the autoscaler wants to go (reference)."""

_ORDER = (
    {Phase.TERMINATING, Phase.NEW},
    {Phase.FAILED, Phase.UPDATE_FAILED},
    {Phase.CRASH_LOOP},
    {Phase.UNKNOWN},
    {Phase.PENDING, Phase.UPDATING},
    {Phase.AVAILABLE},
    # Of one that nobody knows it may do anything.
    {Phase.RUNNING, Phase.UPDATED, Phase.FOREIGN},
)
"""Of two machines alike the one whose phase comes first goes first: it does less."""

_RANKS: Mapping[Phase, int] = {
    phase: rank for rank, phases in enumerate(_ORDER) for phase in phases
}
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine of a set.

    Attributes:
        machine: the machine.
        node: its node; None = it has none, or none is known.
        is_labeled: whether it has all labels of the template.
        kept_until: time until which it is preserved; None = it is not.
        preserve: the annotation that counts, that of the node or of the machine.
        own_preserve: the annotation of the machine.
        is_its_own: whether the annotation of the machine counts, not that of the node.
    """

    machine: Machine
    node: Node | None = None
    is_labeled: bool = True
    kept_until: datetime | None = None
    preserve: Preserve = Preserve.UNSAID
    own_preserve: Preserve = Preserve.UNSAID
    is_its_own: bool = True

    @property
    def key(self) -> str:
        """Key of the machine."""
        return self.machine.key

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.machine.name

    @property
    def uid(self) -> str:
        """UID of the machine."""
        return self.machine.uid

    def is_kept(self, now: datetime) -> bool:
        """Return whether the machine is preserved, or is about to be."""
        if self.kept_until is not None:
            return self.kept_until > now
        if self.preserve is Preserve.NOW:
            return True
        waits = self.preserve in (Preserve.WHEN_FAILED, Preserve.AUTO)
        return waits and self.machine.phase is Phase.FAILED

    def is_available(self, min_ready_s: float, now: datetime) -> bool:
        """Return whether the machine is ready, and has been for long enough."""
        return self.machine.works and ready_in_s(self.machine, min_ready_s, now) <= 0


def member(
    machine: Machine, node: Node | None, labels: Mapping[str, str], *, annotation: str
) -> Member:
    """Return a machine of a set.

    Args:
        machine: the machine.
        node: its node; None = it has none, or none is known.
        labels: labels of the set's template.
        annotation: name of the node's annotation by which a machine is preserved.
    """
    own = Preserve.of(machine.preserve)
    of_node = "" if node is None else node.annotations.get(annotation, "")
    # A node whose annotation was applied and is gone by now withdrew it for the machine, too.
    is_its_own = node is None or not (of_node or machine.preserve_of_node)
    return Member(
        machine=machine,
        node=node,
        is_labeled=labels.items() <= machine.labels.items(),
        kept_until=machine.status.preserve_until,
        preserve=own if is_its_own else Preserve.of(of_node),
        own_preserve=own,
        is_its_own=is_its_own,
    )


class PopulatedSet(MachineSet, frozen=True, kw_only=True):
    """A machine set with the machines that it controls.

    Attributes:
        members: all of its machines.
    """

    members: Sequence[Member] = ()

    @property
    def live(self) -> Sequence[Member]:
        """The machines whose deletion was not requested."""
        return [one for one in self.members if not one.machine.is_ending]


def populated(obj: MachineSet, members: Sequence[Member]) -> PopulatedSet:
    """Return a set with its machines."""
    return PopulatedSet(**msgspec.structs.asdict(obj), members=members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What a pass does.

    Attributes:
        create: how many machines are made.
        delete: which are deleted.
        lacking: how many there are too few, whether they may be made or not.
    """

    create: int = 0
    delete: Sequence[Member] = ()
    lacking: int = 0


def scaling(wanted: MachineSet, members: Iterable[Member], now: datetime) -> Scaling:
    """What a pass does about the number of machines."""
    every = list(members)
    if wanted.is_deleting:
        return Scaling(
            delete=deletion_order((one for one in every if not one.machine.is_deleting), now)
        )
    here = [one for one in every if not one.machine.is_ending]
    lacking = max(0, wanted.replicas - len(here))
    return Scaling(
        create=min(lacking, BURST) if wanted.may_grow else 0,
        delete=_victims(wanted, here, now),
        lacking=lacking,
    )


def _victims(wanted: MachineSet, here: Sequence[Member], now: datetime) -> Sequence[Member]:
    # One that was updated in place came with its replica, which the set may not have yet.
    countable = deletion_order(
        (one for one in here if not one.machine.was_moved), now, wanted.min_ready_s
    )
    surplus = min(max(0, len(countable) - wanted.replicas), BURST)
    doomed = {one.key for one in countable[:surplus]}
    doomed |= {
        one.key for one in here if is_called(one.machine, wanted.scaled) or _is_spent(one, now)
    }
    return [one for one in deletion_order(here, now) if one.key in doomed][:BURST]


def is_called(machine: Machine, scaled: datetime | None) -> bool:
    """Return whether the autoscaler chose the machine, and has lowered the replicas since."""
    if machine.priority != CALLED_PRIORITY or machine.marked is None or scaled is None:
        return False
    return machine.marked <= scaled


def _is_spent(member: Member, now: datetime) -> bool:
    """Whether it failed, and nobody keeps it."""
    return member.machine.phase is Phase.FAILED and not member.is_kept(now)


def deletion_order(
    members: Iterable[Member], now: datetime, min_ready_s: float = 0.0
) -> Sequence[Member]:
    """Machines in the order in which they go; of two alike the one that is not available yet."""
    return sorted(members, key=lambda one: _rank(one, now, min_ready_s))


def _rank(member: Member, now: datetime, min_ready_s: float) -> tuple[object, ...]:
    kept, machine = member.is_kept(now), member.machine
    return (
        kept,
        # Of those that are kept the set's own go first, then those that would go sooner.
        kept and member.preserve is not Preserve.AUTO,
        (member.kept_until or _FOREVER) if kept else _FOREVER,
        machine.priority,
        machine.marked or _FOREVER,
        _RANKS[machine.phase],
        ready_in_s(machine, min_ready_s, now) <= 0,
        machine.created,
        machine.key,
    )


def preservation(
    wanted: MachineSet, members: Iterable[Member]
) -> tuple[Sequence[Member], Sequence[Member]]:
    """Which machines the set begins to keep, and which it keeps no more, of its own accord."""
    here = [one for one in members if not one.machine.is_ending]
    ours = [one for one in here if one.own_preserve is Preserve.AUTO]
    room = wanted.max_preserved - len(ours)
    if room < 0:
        return (), sorted(ours, key=_age)[:-room]
    # About the others people have spoken.
    free = [
        one
        for one in here
        if one.machine.phase is Phase.FAILED
        and one.is_its_own
        and one.own_preserve is Preserve.UNSAID
        and one.kept_until is None
    ]
    return sorted(free, key=_age, reverse=True)[:room], ()


def preserved(
    members: Iterable[Member], keep: Collection[Member], drop: Collection[Member]
) -> Sequence[Member]:
    """The machines, once that is written on them."""
    kept, dropped = ({one.key for one in each} for each in (keep, drop))
    return [
        replace(one, own_preserve=Preserve.AUTO, preserve=Preserve.AUTO)
        if one.key in kept
        else _dropped(one)
        if one.key in dropped
        else one
        for one in members
    ]


def _dropped(one: Member) -> Member:
    left = Preserve.UNSAID if one.is_its_own else one.preserve
    return replace(one, own_preserve=Preserve.UNSAID, preserve=left)


def _age(member: Member) -> tuple[datetime, str]:
    return (member.machine.created, member.key)


def counts(
    wanted: MachineSet, members: Iterable[Member], now: datetime
) -> tuple[SetStatus, float | None]:
    """Return the numbers in the status of a set, and the seconds until one changes just by time."""
    every = list(members)
    kept = [
        one for one in every if one.machine.phase is Phase.FAILED and one.kept_until is not None
    ]
    waits = [ready_in_s(one.machine, wanted.min_ready_s, now) for one in every if one.machine.works]
    ends = [(one.kept_until - now).total_seconds() for one in kept if one.kept_until is not None]
    later = [seconds for seconds in (*waits, *ends) if seconds > 0]
    keys = {one.key for one in kept}
    failed = sorted(
        (
            one.machine
            for one in every
            if one.machine.status.state == OperationState.FAILED.value and one.key not in keys
        ),
        key=lambda machine: machine.key,
    )
    found = SetStatus(
        observed=max(wanted.metadata.generation, wanted.status.observed),
        replicas=len(every),
        labeled=sum(one.is_labeled for one in every),
        ready=sum(one.machine.phase is Phase.RUNNING for one in every),
        available=sum(seconds <= 0 for seconds in waits),
        preserved=len(kept),
        preserved_by_us=sum(
            one.own_preserve is Preserve.AUTO for one in every if not one.machine.is_ending
        ),
        conditions=wanted.status.conditions,
        last=wanted.status.last,
        failed=tuple(_failed(one, wanted.name) for one in failed),
    )
    return found, min(later, default=None)


def _failed(machine: Machine, owner: str) -> FailedMachine:
    found = machine.status
    operation = Operation(
        description=found.description,
        code=found.code,
        state=found.state,
        kind=found.kind,
        updated=found.updated,
    )
    return FailedMachine(
        name=machine.name, provider_id=machine.provider_id, owner=owner, operation=operation
    )


def ready_in_s(machine: Machine, min_ready_s: float, now: datetime) -> float:
    """Return the seconds until a machine that is ready counts as available."""
    if not min_ready_s:
        return 0.0
    since = machine.status.since or machine.created
    return min_ready_s - (now - since).total_seconds()


# --- bounds ---------------------------------------------------------------------------------------

_PERCENT = re.compile(r"([0-9]{1,9})%")


def is_amount(value: object) -> bool:
    """Whether this is a number, or a percentage."""
    if isinstance(value, str):
        return _PERCENT.fullmatch(value) is not None
    return isinstance(value, int) and value >= 0


def amount(value: int | str, of: int, *, up: bool) -> int:
    """A number, or so many percent `of` something, rounded up or down.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is neither a number nor a percentage such as 25%")
    hundredths = int(found[1]) * of
    return -(-hundredths // 100) if up else hundredths // 100


def surge(deployment: MachineDeployment) -> int:
    """Most machines above the replicas; none where they are not rolled."""
    if deployment.strategy is not Strategy.ROLLING:
        return 0
    return amount(deployment.max_surge, deployment.replicas, up=True)


def most(deployment: MachineDeployment) -> int:
    """Return the machines that a deployment may have: those it wants, and its surge."""
    surges = deployment.strategy in (Strategy.ROLLING, Strategy.IN_PLACE)
    if not (surges and is_amount(deployment.max_surge)):
        return deployment.replicas
    return deployment.replicas + amount(deployment.max_surge, deployment.replicas, up=True)


def unavailable(deployment: MachineDeployment) -> int:
    """Most machines that may be missing, never more than there are to be."""
    if deployment.strategy not in (Strategy.ROLLING, Strategy.IN_PLACE) or not deployment.replicas:
        return 0
    most = amount(deployment.max_unavailable, deployment.replicas, up=False)
    extra = amount(deployment.max_surge, deployment.replicas, up=True)
    # With neither of them nothing could ever be exchanged.
    if most == 0 and (extra == 0 or deployment.is_manual):
        most = 1
    return min(most, deployment.replicas)


def new_size(deployment: MachineDeployment, *, present: int, new: int) -> int:
    """How large the new set may be now.

    Args:
        deployment: the deployment.
        present: machines that there are, or may be any moment, in all sets.
        new: replicas of the new set.

    Raises:
        ValueError: nobody knows how its machines are exchanged.
    """
    if deployment.strategy is None:
        raise ValueError("there is no such strategy")
    if deployment.strategy is Strategy.RECREATE:
        return deployment.replicas
    if deployment.is_manual:
        return new
    most = deployment.replicas + amount(deployment.max_surge, deployment.replicas, up=True)
    return new + max(0, min(most - present, deployment.replicas - new))

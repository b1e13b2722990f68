"""Creations and deletions of machines by a machine set. No I/O.

A set keeps as many machines as its replicas, not counting machines that are being deleted. Surplus
machines are deleted in a fixed order, so that a repeated decision selects the same machines. Failed
machines, and machines that the autoscaler chose, are always deleted. Preserved machines are deleted
last if they are surplus, and otherwise kept even if they failed.
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

MAX_CHANGES_PER_PASS = 100
"""Maximum number of creations, and also of deletions, in one pass (Gardener's MCM)."""

DEFAULT_PRIORITY = 3
"""Priority of a machine whose annotation is missing or unreadable (Gardener's MCM)."""

AUTOSCALER_PRIORITY = 1
"""Priority of a machine that the autoscaler wants deleted (Gardener's MCM)."""

_ORDER = (
    {Phase.TERMINATING, Phase.NEW},
    {Phase.FAILED, Phase.UPDATE_FAILED},
    {Phase.CRASH_LOOP},
    {Phase.UNKNOWN},
    {Phase.PENDING, Phase.UPDATING},
    {Phase.AVAILABLE},
    # A machine in an unknown phase may be working.
    {Phase.RUNNING, Phase.UPDATED, Phase.FOREIGN},
)
"""Phases in the order of deletions: machines that are least likely to work are deleted first."""

_RANKS: Mapping[Phase, int] = {
    phase: rank for rank, phases in enumerate(_ORDER) for phase in phases
}
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine of a set.

    Attributes:
        machine: the machine.
        node: its node; None = not known, or missing.
        is_labeled: whether the machine has all labels of the set's template.
        preserved_until: time until which the machine is preserved; None = not preserved.
        preserve: the `preserve` annotation that applies, of the node or of the machine.
        own_preserve: the `preserve` annotation of the machine.
        uses_own_annotation: whether the machine's annotation applies instead of the node's.
    """

    machine: Machine
    node: Node | None = None
    is_labeled: bool = True
    preserved_until: datetime | None = None
    preserve: Preserve = Preserve.UNSET
    own_preserve: Preserve = Preserve.UNSET
    uses_own_annotation: bool = True

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

    def is_preserved(self, now: datetime) -> bool:
        """Return whether the machine is preserved, or is about to be."""
        if self.preserved_until is not None:
            return self.preserved_until > now
        if self.preserve is Preserve.NOW:
            return True
        waits = self.preserve in (Preserve.WHEN_FAILED, Preserve.AUTO)
        return waits and self.machine.phase is Phase.FAILED

    def is_available(self, min_ready_s: float, now: datetime) -> bool:
        """Return whether the machine has been ready for `min_ready_s` seconds."""
        return self.machine.counts_as_ready and available_in_s(self.machine, min_ready_s, now) <= 0


def build_member(
    machine: Machine, node: Node | None, labels: Mapping[str, str], *, annotation: str
) -> Member:
    """Return a machine of a set.

    Args:
        machine: the machine.
        node: its node; None = not known, or missing.
        labels: labels of the set's template.
        annotation: name of the `preserve` annotation of nodes.
    """
    own = Preserve.of(machine.preserve)
    of_node = "" if node is None else node.annotations.get(annotation, "")
    # After the node's annotation was removed, the machine's annotation does not apply either.
    is_its_own = node is None or not (of_node or machine.preserve_of_node)
    return Member(
        machine=machine,
        node=node,
        is_labeled=labels.items() <= machine.labels.items(),
        preserved_until=machine.status.preserve_until,
        preserve=own if is_its_own else Preserve.of(of_node),
        own_preserve=own,
        uses_own_annotation=is_its_own,
    )


class PopulatedSet(MachineSet, frozen=True, kw_only=True):
    """A machine set with the machines that it controls.

    Attributes:
        members: all machines of the set.
    """

    members: Sequence[Member] = ()

    @property
    def live(self) -> Sequence[Member]:
        """Machines whose deletion was not requested."""
        return [member for member in self.members if not member.machine.is_terminating]


def with_members(obj: MachineSet, members: Sequence[Member]) -> PopulatedSet:
    """Return a set with its machines."""
    return PopulatedSet(**msgspec.structs.asdict(obj), members=members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Creations and deletions of a pass.

    Attributes:
        create: number of machines to create.
        delete: machines to delete.
        missing: number of missing machines, even if the pass must not create them.
    """

    create: int = 0
    delete: Sequence[Member] = ()
    missing: int = 0


def plan_scaling(wanted: MachineSet, members: Iterable[Member], now: datetime) -> Scaling:
    """Return the creations and deletions of a pass."""
    all_members = list(members)
    if wanted.is_deleting:
        return Scaling(
            delete=deletion_order(
                (member for member in all_members if not member.machine.is_deleting), now
            )
        )
    live = [member for member in all_members if not member.machine.is_terminating]
    lacking = max(0, wanted.replicas - len(live))
    return Scaling(
        create=min(lacking, MAX_CHANGES_PER_PASS) if wanted.may_grow else 0,
        delete=_to_delete(wanted, live, now),
        missing=lacking,
    )


def _to_delete(wanted: MachineSet, live: Sequence[Member], now: datetime) -> Sequence[Member]:
    # An in-place update moves a machine to the set before it adds the machine to the replicas.
    newest_first = wanted.deletes_newest
    countable = deletion_order(
        (member for member in live if not member.machine.was_moved),
        now,
        wanted.min_ready_s,
        newest_first=newest_first,
    )
    surplus = min(max(0, len(countable) - wanted.replicas), MAX_CHANGES_PER_PASS)
    keys = {member.key for member in countable[:surplus]}
    keys |= {
        member.key
        for member in live
        if is_chosen_by_autoscaler(member.machine, wanted.scaled) or _is_replaceable(member, now)
    }
    order = deletion_order(live, now, newest_first=newest_first)
    return [member for member in order if member.key in keys][:MAX_CHANGES_PER_PASS]


def is_chosen_by_autoscaler(machine: Machine, scaled: datetime | None) -> bool:
    """Return whether the autoscaler chose the machine, and lowered the replicas afterwards.

    `scaled` is the time at which the autoscaler last scaled the set; None = never.
    """
    if machine.priority != AUTOSCALER_PRIORITY or machine.marked is None or scaled is None:
        return False
    return machine.marked <= scaled


def _is_replaceable(member: Member, now: datetime) -> bool:
    """Return whether the machine has failed and is not preserved."""
    return member.machine.phase is Phase.FAILED and not member.is_preserved(now)


def deletion_order(
    members: Iterable[Member],
    now: datetime,
    min_ready_s: float = 0.0,
    *,
    newest_first: bool = False,
) -> Sequence[Member]:
    """Return machines in the order of deletions.

    Of machines with the same priority and phase, unavailable machines come first, then the oldest,
    or the newest.
    """
    return sorted(
        members, key=lambda member: _rank(member, now, min_ready_s, newest_first=newest_first)
    )


def _rank(
    member: Member, now: datetime, min_ready_s: float, *, newest_first: bool
) -> tuple[object, ...]:
    kept, machine = member.is_preserved(now), member.machine
    created_s = machine.created.timestamp()
    return (
        kept,
        # Of preserved machines, first those that the set preserves, then those that expire sooner.
        kept and member.preserve is not Preserve.AUTO,
        (member.preserved_until or _FOREVER) if kept else _FOREVER,
        machine.priority,
        machine.marked or _FOREVER,
        _RANKS[machine.phase],
        available_in_s(machine, min_ready_s, now) <= 0,
        -created_s if newest_first else created_s,
        machine.key,
    )


def plan_preservation(
    wanted: MachineSet, members: Iterable[Member]
) -> tuple[Sequence[Member], Sequence[Member]]:
    """Return the machines that the set starts to preserve, and those that it stops preserving."""
    live = [member for member in members if not member.machine.is_terminating]
    own = [member for member in live if member.own_preserve is Preserve.AUTO]
    room = wanted.max_preserved - len(own)
    if room < 0:
        return (), sorted(own, key=_age)[:-room]
    # For all other failed machines, a user decided by annotation.
    candidates = [
        member
        for member in live
        if member.machine.phase is Phase.FAILED
        and member.uses_own_annotation
        and member.own_preserve is Preserve.UNSET
        and member.preserved_until is None
    ]
    return sorted(candidates, key=_age, reverse=True)[:room], ()


def apply_preservation(
    members: Iterable[Member], keep: Collection[Member], drop: Collection[Member]
) -> Sequence[Member]:
    """Return the machines as they are after the set's `plan_preservation` was carried out.

    Args:
        members: all machines of the set.
        keep: machines that the set starts to preserve.
        drop: machines that the set stops preserving.
    """
    kept, dropped = ({member.key for member in changed} for changed in (keep, drop))
    return [
        replace(member, own_preserve=Preserve.AUTO, preserve=Preserve.AUTO)
        if member.key in kept
        else _dropped(member)
        if member.key in dropped
        else member
        for member in members
    ]


def _dropped(member: Member) -> Member:
    left = Preserve.UNSET if member.uses_own_annotation else member.preserve
    return replace(member, own_preserve=Preserve.UNSET, preserve=left)


def _age(member: Member) -> tuple[datetime, str]:
    return (member.machine.created, member.key)


def count_status(
    wanted: MachineSet, members: Iterable[Member], now: datetime
) -> tuple[SetStatus, float | None]:
    """Return the status of a set with new counts, and the seconds until its next change.

    The seconds are None if no count changes by time alone.
    """
    all_members = list(members)
    kept = [
        member
        for member in all_members
        if member.machine.phase is Phase.FAILED and member.preserved_until is not None
    ]
    waits = [
        available_in_s(member.machine, wanted.min_ready_s, now)
        for member in all_members
        if member.machine.counts_as_ready
    ]
    ends = [
        (member.preserved_until - now).total_seconds()
        for member in kept
        if member.preserved_until is not None
    ]
    later = [seconds for seconds in (*waits, *ends) if seconds > 0]
    keys = {member.key for member in kept}
    failed = sorted(
        (
            member.machine
            for member in all_members
            if member.machine.status.state == OperationState.FAILED.value and member.key not in keys
        ),
        key=lambda machine: machine.key,
    )
    status = SetStatus(
        observed=max(wanted.metadata.generation, wanted.status.observed),
        replicas=len(all_members),
        labeled=sum(member.is_labeled for member in all_members),
        ready=sum(member.machine.phase is Phase.RUNNING for member in all_members),
        available=sum(seconds <= 0 for seconds in waits),
        preserved=len(kept),
        preserved_by_us=sum(
            member.own_preserve is Preserve.AUTO
            for member in all_members
            if not member.machine.is_terminating
        ),
        conditions=wanted.status.conditions,
        last=wanted.status.last,
        failed=tuple(_failed(machine, wanted.name) for machine in failed),
    )
    return status, min(later, default=None)


def _failed(machine: Machine, owner: str) -> FailedMachine:
    status = machine.status
    operation = Operation(
        description=status.description,
        code=status.code,
        state=status.state,
        kind=status.kind,
        updated=status.updated,
    )
    return FailedMachine(
        name=machine.name, provider_id=machine.provider_id, owner=owner, operation=operation
    )


def available_in_s(machine: Machine, min_ready_s: float, now: datetime) -> float:
    """Return the seconds until a ready machine counts as available; 0 or less = available."""
    if not min_ready_s:
        return 0.0
    since = machine.status.since or machine.created
    return min_ready_s - (now - since).total_seconds()


# --- bounds ---------------------------------------------------------------------------------------

_PERCENT = re.compile(r"([0-9]{1,9})%")


def is_amount(value: object) -> bool:
    """Return whether a value is a number, 0 or more, or a percentage."""
    if isinstance(value, str):
        return _PERCENT.fullmatch(value) is not None
    return isinstance(value, int) and value >= 0


def resolve_amount(value: int | str, of: int, *, up: bool) -> int:
    """Return a number unchanged, or a percentage of the number `of`, rounded up or down.

    Raises:
        ValueError: the value is neither a number nor a percentage.
    """
    if isinstance(value, int):
        return value
    match = _PERCENT.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is neither a number nor a percentage such as 25%")
    hundredths = int(match[1]) * of
    return -(-hundredths // 100) if up else hundredths // 100


def surge(deployment: MachineDeployment) -> int:
    """Return the maximum number of machines above the replicas; 0 unless RollingUpdate."""
    if deployment.strategy is not Strategy.ROLLING:
        return 0
    return resolve_amount(deployment.max_surge, deployment.replicas, up=True)


def max_machines(deployment: MachineDeployment) -> int:
    """Return the maximum number of machines: the sum of replicas and surge."""
    surges = deployment.strategy in (Strategy.ROLLING, Strategy.IN_PLACE)
    if not (surges and is_amount(deployment.max_surge)):
        return deployment.replicas
    return deployment.replicas + resolve_amount(deployment.max_surge, deployment.replicas, up=True)


def unavailable(deployment: MachineDeployment) -> int:
    """Return the maximum number of unavailable machines, at most the replicas."""
    if deployment.strategy not in (Strategy.ROLLING, Strategy.IN_PLACE) or not deployment.replicas:
        return 0
    most = resolve_amount(deployment.max_unavailable, deployment.replicas, up=False)
    extra = resolve_amount(deployment.max_surge, deployment.replicas, up=True)
    # If both were 0, no machine could ever be replaced.
    if most == 0 and (extra == 0 or deployment.is_manual):
        most = 1
    return min(most, deployment.replicas)


def new_size(deployment: MachineDeployment, *, present: int, new: int) -> int:
    """Return the size to which the new set may grow.

    Args:
        deployment: the deployment.
        present: number of machines in all sets, including machines that are about to be created.
        new: current replicas of the new set.

    Raises:
        ValueError: the strategy is unknown.
    """
    if deployment.strategy is None:
        raise ValueError("unknown strategy")
    if deployment.strategy is Strategy.RECREATE:
        return deployment.replicas
    if deployment.is_manual:
        return new
    most = deployment.replicas + resolve_amount(deployment.max_surge, deployment.replicas, up=True)
    return new + max(0, min(most - present, deployment.replicas - new))

"""Which machines of a set go first, and which go in any case. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ccm.machines.fleet import FleetRules, Member
from ccm.machines.views import MachineView, Phase
from ccm.model.times import parse_time

_PHASES = (
    Phase.TERMINATING,
    Phase.FAILED,
    Phase.CRASH_LOOP,
    Phase.UNKNOWN,
    Phase.PENDING,
    Phase.AVAILABLE,
    Phase.RUNNING,
)
_LATEST = datetime.max.replace(tzinfo=UTC)


def deletion_order(
    members: Iterable[Member], min_ready_s: float, now: datetime, rules: FleetRules
) -> Sequence[Member]:
    """Machines in the order in which they go."""
    return sorted(members, key=lambda one: _rank(one, min_ready_s, now, rules))


def _rank(
    member: Member, min_ready_s: float, now: datetime, rules: FleetRules
) -> tuple[int, datetime, int, bool, datetime, str]:
    machine = member.machine
    phase = _PHASES.index(machine.phase) if machine.phase in _PHASES else 0
    marked = moment(machine.annotation(rules.marked)) or _LATEST
    is_available = member.is_available(min_ready_s, now)
    return (priority(machine, rules), marked, phase, is_available, machine.created, machine.name)


def priority(machine: MachineView, rules: FleetRules) -> int:
    """Lower goes first; what makes no sense counts as none."""
    name, default = rules.priority
    try:
        return int(machine.annotation(name) or default)
    except ValueError:
        return int(default)


def asked_for(machine: MachineView, rules: FleetRules) -> bool:
    """Whether somebody wants it to go before others."""
    return priority(machine, rules) < int(rules.priority[1])


def is_due(machine: MachineView, scaler_time: str, rules: FleetRules) -> bool:
    """Whether the set deletes it whatever its replicas: the autoscaler said so.

    Args:
        machine: the machine.
        scaler_time: when the autoscaler changed the replicas, as the set says; may be empty.
        rules: of the front.
    """
    if machine.annotation(rules.priority[0]) != rules.delete_priority:
        return False
    marked, said = moment(machine.annotation(rules.marked)), moment(scaler_time)
    return marked is not None and said is not None and marked <= said


def moment(text: str) -> datetime | None:
    """A moment; None where the text is none."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None

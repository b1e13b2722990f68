"""Nobody judges nodes by what a server said that does not answer any more. Pure.

While the API server of the cluster that machines join is away, its nodes cannot say that they are
well. So machines are frozen: none comes, none fails. Those that go, go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase

THAW_TEXT = "Machine Health Timeout was reset due to APIServer being unreachable"
"""Description of a machine whose health counts anew (reference)."""

SETTLING_S = 30.0
"""For so long after the thaw machines wait for news of their nodes (reference)."""

_CHECKS = 5
"""How often it is looked while the timeout runs (reference)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether machines are frozen, and since when a server is away; seconds of any clock."""

    is_frozen: bool = False
    away_since: float | None = None


def after(before: Reach, is_there: bool, now: float, timeout_s: float) -> Reach:
    """What a look at the servers means.

    Args:
        before: what the look before it meant.
        is_there: whether all of them answered.
        now: seconds of the clock of `Reach`.
        timeout_s: for how long a server may be away.
    """
    if is_there:
        return Reach()
    since = now if before.away_since is None else before.away_since
    return Reach(is_frozen=before.is_frozen or now - since > timeout_s, away_since=since)


def next_s(reach: Reach, period_s: float, timeout_s: float) -> float:
    """When to look again; often while a server is away, for everybody waits for it."""
    return period_s if reach.away_since is None else min(period_s, timeout_s / _CHECKS)


def thawed(machine: Machine, now: datetime) -> MachineStatus | None:
    """The status of a machine that was thought sick meanwhile; None: nothing is written."""
    if machine.phase is not Phase.UNKNOWN or machine.is_deleting:
        return None
    return replace(
        machine.status,
        phase=Phase.RUNNING,
        description=THAW_TEXT,
        code="",
        state=OperationState.SUCCESSFUL.value,
        kind=OperationType.HEALTH_CHECK.value,
        timeout_active=False,
        since=now,
        updated=now,
    )

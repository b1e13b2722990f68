"""The settings that count for one machine: its own, else those of the daemon. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccm.machines.views import Rules
from ccm.model.machines import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What counts for one machine.

    Attributes:
        creation_timeout_s: after how long it has failed to join.
        health_timeout_s: after how long with a sick node it has failed; None = never.
        update_timeout_s: how long an update in place may take.
        preserve_timeout_s: for how long it is preserved.
        unhealthy_conditions: its node is healthy while each of them that it has is False.
    """

    creation_timeout_s: float
    health_timeout_s: float | None
    update_timeout_s: float
    preserve_timeout_s: float
    unhealthy_conditions: Sequence[str]


def effective(machine: Machine, rules: Rules) -> Effective:
    """The settings that count for a machine."""
    health_s = _first(machine.health_timeout_s, rules.health_timeout_s)
    own = machine.unhealthy_conditions
    return Effective(
        creation_timeout_s=rules.timeout_s(machine),
        health_timeout_s=None if machine.never_fails else health_s,
        update_timeout_s=_first(machine.update_timeout_s, rules.update_timeout_s),
        preserve_timeout_s=_first(machine.preserve_timeout_s, rules.preserve_timeout_s),
        unhealthy_conditions=rules.unhealthy_conditions if own is None else own,
    )


def _first(own: float | None, others: float) -> float:
    return others if own is None else own

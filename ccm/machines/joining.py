"""From a VM to a node that works: which node is a machine's, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ccm.base.durations import format_duration
from ccm.machines.creation import REST, Outcome
from ccm.machines.views import Kind, MachineView, Phase, Rules, State
from ccm.model import Node, NodeCondition
from ccm.model.names import STATUS_FALSE, STATUS_TRUE

_MAY_RUN = frozenset({Phase.PENDING, Phase.UNKNOWN, Phase.FAILED})
"""Phases that a healthy node ends."""


def is_healthy(node: Node, sick_conditions: Sequence[str]) -> bool:
    """Whether a node is ready, and every condition that would make it sick is False."""
    return node.ready == STATUS_TRUE and all(
        condition.status == STATUS_FALSE
        for condition in node.status.conditions or ()
        if condition.type in sick_conditions
    )


def is_critical(node: Node, rules: Rules) -> bool:
    """Whether the node still waits for components without which nothing may run on it."""
    return any(taint.key == rules.critical_taint for taint in node.taints)


def progress(machine: MachineView, node: Node | None, now: datetime, rules: Rules) -> Outcome:
    """What follows for a machine whose VM is there from its node; None where it has none."""
    if node is not None and may_run(machine, node, rules):
        return _runs(machine, node, now)
    if machine.phase is Phase.PENDING:
        return _waits(machine, now, rules)
    if machine.phase is Phase.RUNNING and node is not None and _differ(machine, node):
        conditions = tuple(node.status.conditions or ())
        return Outcome(status=replace(machine.status, conditions=conditions))
    return REST


def may_run(machine: MachineView, node: Node, rules: Rules) -> bool:
    """Whether the node's health makes the machine run."""
    own = machine.sick_conditions
    if machine.phase not in _MAY_RUN or not is_healthy(
        node, rules.sick_conditions if own is None else own
    ):
        return False
    return machine.phase is not Phase.PENDING or not is_critical(node, rules)


def _runs(machine: MachineView, node: Node, now: datetime) -> Outcome:
    status = machine.status
    joins = status.kind == Kind.CREATE.value and status.state != State.SUCCESSFUL.value
    text = f"Machine {machine.name} successfully re-joined the cluster"
    if joins:
        took = timedelta(seconds=round((now - machine.created).total_seconds()))
        text = f"Machine {machine.name} successfully joined the cluster in {format_duration(took)}"
    found = replace(
        status,
        phase=Phase.RUNNING,
        description=text,
        code="",
        state=State.SUCCESSFUL.value,
        kind=(Kind.CREATE if joins else Kind.HEALTH_CHECK).value,
        timeout_active=False,
        since=now,
        updated=now,
        conditions=tuple(node.status.conditions or ()),
    )
    return Outcome(status=found, joined=joins)


def _waits(machine: MachineView, now: datetime, rules: Rules) -> Outcome:
    limit_s = rules.timeout_s(machine)
    left_s = limit_s - (now - machine.created).total_seconds()
    if left_s >= 0:
        # A moment later than that: a time on an object has no fractions of seconds.
        return Outcome(after_s=left_s + 1)
    status = replace(
        machine.status,
        phase=Phase.FAILED,
        description=f"Machine {machine.name} failed to join the cluster in "
        f"{format_duration(timedelta(seconds=limit_s))}",
        state=State.FAILED.value,
        timeout_active=False,
        since=now,
        updated=now,
    )
    return Outcome(status=status)


def _differ(machine: MachineView, node: Node) -> bool:
    """Whether the conditions say something else; a heartbeat is nothing else."""
    return _said(machine.status.conditions) != _said(node.status.conditions or ())


def _said(conditions: Sequence[NodeCondition]) -> dict[str, str]:
    return {one.type: one.status for one in conditions}

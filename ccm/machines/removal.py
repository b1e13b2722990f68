"""What is said while a machine ends, and which node ends with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from ccm.cloud import codes, errors
from ccm.cloud.machines import known
from ccm.cloud.provider_id import is_same_instance
from ccm.machines.creation import (
    MEDIUM_S,
    SHORT_S,
    Outcome,
    passes,
    told_of,
)
from ccm.machines.statuses import says_nothing_new
from ccm.machines.views import Kind, MachineView, Phase, State, Status
from ccm.model import Node

VM_DELETION = "Initiate VM deletion"
"""Marker in the description by which other programs know how far a deletion is (reference)."""


def failed(machine: MachineView, error: errors.CloudError, now: datetime) -> Outcome:
    """How a pass ends in which the VM was not deleted."""
    before = machine
    told = known(error).last_known_state
    if told is not None:
        machine = replace(machine, status=replace(machine.status, known_state=told))
    if isinstance(error, errors.RetryAfter):
        status = _status(machine, f"VM deletion is under way. {VM_DELETION}", State.PROCESSING, now)
        return _written(before, status, error.seconds)
    code, text = codes.code_of(error).name, told_of(error)
    status = _status(
        machine, f"VM deletion failed due to - {text}. {VM_DELETION}", State.FAILED, now
    )
    after_s = SHORT_S if passes(error) else MEDIUM_S
    return _written(before, replace(status, code=code), after_s)


def impossible(machine: MachineView, faults: Iterable[str], now: datetime) -> Outcome:
    """How a pass ends without a question to the cloud: the class cannot be used."""
    text = f"VM deletion failed due to - {'; '.join(faults)}. {VM_DELETION}"
    return _written(machine, _status(machine, text, State.FAILED, now), None)


def is_its_node(machine: MachineView, node: Node) -> bool:
    """Whether a node of that name is that of the machine's VM, and of no other."""
    return not node.provider_id or is_same_instance(node.provider_id, machine.provider_id)


def _status(machine: MachineView, description: str, state: State, now: datetime) -> Status:
    before = machine.status
    return replace(
        before,
        phase=Phase.TERMINATING,
        description=description,
        code="",
        state=state.value,
        kind=Kind.DELETE.value,
        timeout_active=False,
        since=before.since if before.phase is Phase.TERMINATING else now,
        updated=now,
    )


def _written(machine: MachineView, status: Status, after_s: float | None) -> Outcome:
    if says_nothing_new(machine.status, status):
        return Outcome(after_s=after_s)
    return Outcome(status=status, after_s=after_s)

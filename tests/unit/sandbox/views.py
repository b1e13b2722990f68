"""Machines as a board sees them."""

from __future__ import annotations

from datetime import UTC, datetime

from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.sandbox import machineapis


def machine(
    name: str,
    *,
    phase: Phase = Phase.NEW,
    said: str = "",
    deleting: bool = False,
    uid: str = "u",
    provider_id: str = "",
) -> Machine:
    """A Machine; its node has its name."""
    return Machine(
        metadata=ObjectMeta(
            name=name,
            namespace=machineapis.NAMESPACE,
            uid=uid,
            deletion_timestamp="2026-01-02T03:04:05Z" if deleting else None,
        ),
        created=datetime(2026, 1, 2, tzinfo=UTC),
        class_name=machineapis.CLASS,
        node_name=name,
        provider_id=provider_id,
        status=MachineStatus(phase=phase, description=said),
    )

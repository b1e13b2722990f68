"""Machines as their set sees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ccm.machines.replicas import DEFAULT_PRIORITY, Member
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineSet, MachineStatus, Phase, SetStatus, Template
from ccm.model.times import format_time

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

_OF_MACHINE = ("created", "priority", "marked", "was_moved")
_OF_STATUS = ("phase", "since", "state")


UNSEEN = SetStatus(observed=-1)
"""Status of a set that does not know its replicas yet."""


def wanted(replicas: int, *, is_deleting: bool = False, **more: Any) -> MachineSet:
    """A set that wants so many machines."""
    deleted = format_time(NOW) if is_deleting else None
    metadata = ObjectMeta(name="web", uid="web", deletion_timestamp=deleted)
    template = Template(essence="")
    return MachineSet(metadata=metadata, created=NOW, replicas=replicas, template=template, **more)


def at(seconds: float) -> datetime:
    """That long after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def member(name: str, **more: Any) -> Member:
    """A machine that runs, with fields of the machine, its status or the member."""
    is_deleting = more.pop("is_deleting", False)
    status = {key: more.pop(key) for key in _OF_STATUS if key in more}
    fields = {key: more.pop(key) for key in _OF_MACHINE if key in more}
    metadata = ObjectMeta(
        name=name,
        namespace="default",
        uid=name,
        deletion_timestamp=format_time(NOW) if is_deleting else None,
    )
    machine = Machine(
        metadata=metadata,
        status=MachineStatus(**{"phase": Phase.RUNNING, **status}),
        **{"created": NOW, "priority": DEFAULT_PRIORITY, **fields},
    )
    return Member(machine=machine, **more)

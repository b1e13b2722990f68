"""Machines as their set sees them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from ccm.machines.replicas import DEFAULT_PRIORITY, Member
from ccm.machines.settings import MachineSettings, Names
from ccm.model import ObjectMeta
from ccm.model.machines import (
    Machine,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    Phase,
    SetStatus,
    Template,
)
from ccm.model.times import format_time

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_OWN: dict[str, Any] = {
    "default_priority": "3",
    "frozen": "True",
    "critical_taint": "critical",
    "old_taint": "old",
    "candidate": "candidate",
    "selected": "selected",
    "update_result": "result",
    "update_successful": "successful",
    "update_unsuccessful": "failed",
    "update_failed_reason": "reason",
    "update_condition": "InPlace",
    "update_waiting": "Waits",
    "update_selected": "Chosen",
    "update_drained": "Drained",
    "update_ready": "Ready",
    "update_succeeded": "Updated",
    "update_failed": "Failed",
    "scale_up_disabled": "no-growth",
    "not_copied": frozenset({"revision", "revision_history", "desired", "most", "old", "trigger"}),
}
_ABSENT = ("second_finalizer", "secret_finalizer", "uid_label", "key_annotation", "preserve")
_PLAIN = {
    one.name: one.name for one in dataclasses.fields(Names) if not one.name.startswith(_ABSENT)
}
RULES = MachineSettings(names=Names(**{**_PLAIN, **_OWN}))
"""Settings of a group whose names are those of our fields."""

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
    """Return the time this many seconds after `NOW`."""
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


def deployment(**fields: object) -> MachineDeployment:
    """A deployment of machines of the first kind."""
    found = MachineDeployment(
        metadata=ObjectMeta(name="web", uid="web"), replicas=3, template=Template(essence="a")
    )
    return structs.replace(found, **fields)

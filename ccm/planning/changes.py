"""Forecast as values: each changed field of an object and each changed cloud resource. No I/O.

`lines` formats a forecast like a diff, `document` as values for JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from itertools import groupby
from types import MappingProxyType
from typing import Any

import msgspec

from ccm.app.machineapis import APIS
from ccm.base import redact
from ccm.base.parsing import format_duration
from ccm.cloud.interface import LoadBalancer, Routes
from ccm.cloud.machines import MachineDriver, UIDMigration
from ccm.model import Node, Secret
from ccm.model.machines import document_of
from ccm.model.meta import KubeObject
from ccm.planning.cloud_client import CloudChange

MAX_LISTED_MEMBERS = 20
"""Limit of listed load balancer members."""

_ENSURE = LoadBalancer.ensure_load_balancer.__name__
_UPDATE = LoadBalancer.update_load_balancer.__name__
_REMOVE = LoadBalancer.ensure_load_balancer_deleted.__name__
_ROUTE = Routes.create_route.__name__
_CREATE = MachineDriver.create_machine.__name__
_INITIALIZE = MachineDriver.initialize_machine.__name__
_MIGRATE = UIDMigration.migrate_uid.__name__

BALANCER, MEMBERS, ROUTE = "load balancer", "members of the load balancer", "route"
VM = "VM"

_VOLATILE_SUFFIXES = (
    "lastUpdateTime",
    "lastTransitionTime",
    "lastUpdated",
    *(f"[{api.codec.names.token_id}]" for api in APIS if api.codec.names.token_id),
    # Removed by the write that stores the provider ID.
    *(f"[{api.codec.names.creation}]" for api in APIS),
)
"""Path suffixes of fields whose changes mean nothing to the user, because each run writes other
values."""

_SERVER_SET_METADATA = ("resourceVersion", "generation", "creationTimestamp", "uid")
"""Metadata fields that the API server sets at each write or for each new object."""

UNKNOWN = "would be ensured; what would change is unknown"
ADOPTED = "not deleted: it existed before the Service"
UNLESS = "if its instance is still missing"
DRAINED = "drain of node {} first"
WITH_ITS_MACHINE = "with Machine {}"


class ChangeKind(Enum):
    """Kind of a change."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, order=True)
class ChangedObject:
    """Object of the cluster; the name of a route is its destination CIDR."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """Change of one field, one object or one cloud resource.

    Attributes:
        subject: the object of the cluster that changes, or that the cloud resource belongs to.
        action: kind of the change.
        what: path of the changed field; kind of the object, if the object is deleted; or type of
            the cloud resource, such as `BALANCER`.
        old: current value; None = no value, or unknown.
        new: future value; None = no value, or unknown.
        after_s: seconds that the daemon would wait before the change.
        note: condition or explanation of the change; empty = none.
    """

    subject: ChangedObject
    action: ChangeKind
    what: str
    old: str | None = None
    new: str | None = None
    after_s: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """Event that the daemon would record about `subject`."""

    subject: ChangedObject
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Changes that the daemon would make.

    Attributes:
        changes: changes, sorted by object.
        blocked: events about blocked deletions; the messages have the reason and advice.
        warnings: other Warning events about objects.
        left_out: controllers that would not run -> reason.
        failures: reasons why the forecast is incomplete, one line each.
    """

    changes: Sequence[PlannedChange] = ()
    blocked: Sequence[RecordedEvent] = ()
    warnings: Sequence[RecordedEvent] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()

    @property
    def deletions(self) -> Sequence[PlannedChange]:
        """Deletions of nodes, load balancers, routes and VMs."""
        whole = ("Node", BALANCER, ROUTE, VM)
        return [
            change
            for change in self.changes
            if change.action is ChangeKind.DELETE and change.what in whole
        ]


DelayFunction = Callable[[float], int]
"""Function from the monotonic time of a change to the seconds that the daemon would wait before the
change."""

_Fields = Mapping[tuple[str, str], str]


def object_changes(
    kind: str, before: KubeObject | None, after: KubeObject | None, *, after_s: int
) -> Iterator[PlannedChange]:
    """Yield the changes between two states of an object.

    Args:
        kind: kind of the object.
        before: the object now; None = it does not exist. At most one state is None.
        after: the object after the forecast; None = it is deleted.
        after_s: see `PlannedChange`.
    """
    obj = before or after
    assert obj is not None, "both states are None"
    subject = ChangedObject(kind, obj.namespace, obj.name)
    if after is None:
        yield PlannedChange(subject=subject, action=ChangeKind.DELETE, what=kind, after_s=after_s)
        return
    old = _fields(before) if before is not None else {}
    new = _fields(after)
    for key in sorted(old.keys() | new.keys()):
        was, will = old.get(key), new.get(key)
        if was != will:
            action = ChangeKind.CHANGE
            if was is None or will is None:
                action = ChangeKind.CREATE if was is None else ChangeKind.DELETE
            yield PlannedChange(
                subject=subject, action=action, what=key[0], old=was, new=will, after_s=after_s
            )


def call_change(
    call: CloudChange,
    *,
    after_s: int,
    machines: Mapping[str, tuple[ChangedObject, str]] = MappingProxyType({}),
) -> PlannedChange:
    """Return the change that a call to the cloud makes.

    Args:
        call: the recorded call.
        after_s: see `PlannedChange`.
        machines: UID of each machine -> the machine, and the kind of object that defines its VM.
    """
    verb, arguments = call.verb, call.arguments
    subject, owner = _subject_of(arguments, machines)
    action, what = ChangeKind.CHANGE, VM
    old: str | None = None
    new: str | None = None
    note = ""
    if verb == _CREATE:
        action, new = ChangeKind.CREATE, f"of {owner} {arguments['req'].identity.pool}"
    elif verb == _INITIALIZE:
        new = "initialised"
    elif verb == _MIGRATE:
        new = "with the new UID of its machine"
    elif "req" in arguments:
        action, old = ChangeKind.DELETE, arguments["req"].provider_id or None
    elif verb == _ROUTE:
        action, what, new = ChangeKind.CREATE, ROUTE, f"to {arguments['route'].target_node}"
    elif "route" in arguments:
        action, what = ChangeKind.DELETE, ROUTE
        old = f"to {arguments['route'].target_node or 'nowhere'}"
    elif verb == _REMOVE:
        what = BALANCER
        if call.adopted:
            new, note = "released", ADOPTED
        else:
            action = ChangeKind.DELETE
    elif verb == _UPDATE:
        what, new = MEMBERS, _members(arguments["nodes"])
    else:
        assert verb == _ENSURE, verb
        action = ChangeKind.CREATE if call.listed is False else ChangeKind.CHANGE
        what, new = BALANCER, f"members {_members(arguments['nodes'])}"
        note = UNKNOWN if call.listed is None else ""
    return PlannedChange(
        subject=subject, action=action, what=what, old=old, new=new, after_s=after_s, note=note
    )


def _subject_of(
    arguments: Mapping[str, Any], machines: Mapping[str, tuple[ChangedObject, str]]
) -> tuple[ChangedObject, str]:
    if "req" in arguments:
        identity = arguments["req"].identity
        # The name of a VM may differ from the name of its machine.
        unknown = ChangedObject("Machine", identity.namespace, identity.name), "class"
        return machines.get(identity.uid, unknown)
    if "route" in arguments:
        return ChangedObject("Route", "", arguments["route"].destination_cidr), ""
    service = arguments["service"]
    return ChangedObject("Service", service.namespace, service.name), ""


def merge_changes(changes: Iterable[PlannedChange]) -> Sequence[PlannedChange]:
    """Sort the changes by object and merge duplicates.

    Member updates of a load balancer that is also ensured are dropped.
    """
    merged: dict[tuple[ChangedObject, str, ChangeKind, str | None, str | None], PlannedChange] = {}
    for change in changes:
        is_balancer = change.what in (BALANCER, MEMBERS)
        values = (None, None) if is_balancer else (change.old, change.new)
        key = (change.subject, change.what, change.action, *values)
        # Keep the time of the first duplicate and the values of the last.
        merged[key] = replace(change, after_s=merged[key].after_s) if key in merged else change
    ensured = {
        change.subject
        for change in merged.values()
        if change.what == BALANCER and change.action is not ChangeKind.DELETE
    }
    kept = [
        change
        for change in merged.values()
        if change.what != MEMBERS or change.subject not in ensured
    ]
    # Cloud resources come before the fields that reflect them.
    clouds = (BALANCER, MEMBERS, VM)
    return sorted(
        kept, key=lambda change: (change.subject, change.after_s, change.what not in clouds)
    )


def _members(nodes: Sequence[Node]) -> str:
    named = ", ".join(node.name for node in nodes[:MAX_LISTED_MEMBERS]) or "none"
    more = len(nodes) - MAX_LISTED_MEMBERS
    return f"{named} and {more} more" if more > 0 else named


def _fields(obj: KubeObject) -> _Fields:
    """Return the comparable fields of an object: (path, element) -> text.

    The element is empty except for taints and finalizers, which are compared one by one.
    """
    body = msgspec.to_builtins(document_of(obj))
    if isinstance(obj, Secret):
        body = {"metadata": body["metadata"]}
    fields = dict(_flat("", body))
    for key in _SERVER_SET_METADATA:
        fields.pop((f"metadata.{key}", ""), None)
    return {key: text for key, text in fields.items() if not key[0].endswith(_VOLATILE_SUFFIXES)}


def _flat(path: str, value: Any) -> Iterator[tuple[tuple[str, str], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            # Label keys contain dots, so they are quoted with brackets.
            step = f"[{key}]" if "." in key or "/" in key else f".{key}" if path else key
            yield from _flat(f"{path}{step}", inner)
    elif isinstance(value, list):
        yield from _listed(path, value)
    else:
        yield (path, ""), value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _listed(path: str, value: list[Any]) -> Iterator[tuple[tuple[str, str], str]]:
    if path == "status.conditions":
        for condition in value:
            text = f"{condition.get('status', '')} ({condition.get('reason', '')})"
            yield (f"{path}[{condition.get('type', '')}]", ""), text
    elif path == "status.addresses":
        kinds = dict.fromkeys(entry.get("type", "") for entry in value)
        for kind in kinds:
            addresses = [
                entry.get("address", "") for entry in value if entry.get("type", "") == kind
            ]
            yield (f"{path}[{kind}]", ""), ", ".join(addresses)
    elif path == "spec.taints":
        for taint in value:
            equals = f"={taint['value']}" if taint.get("value") else ""
            text = f"{taint.get('key', '')}{equals}:{taint.get('effect', '')}"
            yield (path, text), text
    elif path == "metadata.finalizers":
        for finalizer in value:
            yield (path, finalizer), finalizer
    elif path == "status.loadBalancer.ingress":
        yield (path, ""), ", ".join(entry.get("ip") or entry.get("hostname", "") for entry in value)
    else:
        yield (path, ""), msgspec.json.encode(value).decode()


# --- output -------------------------------------------------------------------------------------

_SIGNS: Mapping[ChangeKind, str] = {
    ChangeKind.CREATE: "+",
    ChangeKind.CHANGE: "~",
    ChangeKind.DELETE: "-",
}
"""First character of a change's line."""

_ATTENTION = "!"
"""First character of a line that needs attention."""


def lines(forecast: Forecast) -> Iterator[str]:
    """Yield the lines of a forecast by object; changes and events are indented by two blanks."""
    notices = [
        *((notice, "blocked") for notice in forecast.blocked),
        *((notice, notice.reason) for notice in forecast.warnings),
    ]
    subjects = {change.subject for change in forecast.changes} | {
        notice.subject for notice, _ in notices
    }
    by_subject = {
        subject: list(group)
        for subject, group in groupby(forecast.changes, lambda change: change.subject)
    }
    for subject in sorted(subjects):
        yield str(subject)
        yield from (f"  {_change(change)}" for change in by_subject.get(subject, ()))
        for notice, word in notices:
            if notice.subject == subject:
                yield f"  {_ATTENTION} {word}: {_line(notice.message)}"
    for name, why in forecast.left_out.items():
        yield f"{name} is {_line(why)}"
    for failure in forecast.failures:
        yield f"{_ATTENTION} not known: {_line(failure)}"


def summary(forecast: Forecast) -> str:
    """Return a summary of the forecast in one line."""
    parts = []
    if forecast.changes:
        objects = len({change.subject for change in forecast.changes})
        parts.append(f"{_count(len(forecast.changes), 'change')} to {_count(objects, 'object')}")
    elif not forecast.failures:
        parts.append("nothing to do")
    if forecast.blocked:
        parts.append(f"{_count(len(forecast.blocked), 'deletion')} blocked")
    if forecast.failures:
        parts.append("incomplete: some queries failed, or settings are invalid")
    return "; ".join(parts)


def document(forecast: Forecast) -> Mapping[str, object]:
    """Return the forecast as values that JSON and YAML can represent."""
    return {
        "summary": summary(forecast),
        "changes": [
            {
                "object": dataclasses.asdict(change.subject),
                "action": change.action.value,
                **{key: getattr(change, key) for key in ("what", "old", "new")},
                "afterSeconds": change.after_s,
                "note": change.note,
            }
            for change in forecast.changes
        ],
        "held": _event_documents(forecast.blocked),
        "warnings": _event_documents(forecast.warnings),
        "leftOut": dict(forecast.left_out),
        "failures": [_line(failure) for failure in forecast.failures],
    }


def _change(change: PlannedChange) -> str:
    sign = _SIGNS[change.action]
    after = f"after {format_duration(timedelta(seconds=change.after_s))}" if change.after_s else ""
    if change.what == change.subject.kind:
        text = f"would delete{f' {after}' if after else ''}"
        return f"{sign} {text}{f' ({change.note})' if change.note else ''}"
    values = [_line(text) for text in (change.old, change.new) if text is not None]
    what = "" if change.what == ROUTE else change.what
    text = ": ".join(filter(None, (what, " → ".join(values))))
    hints = ", ".join(filter(None, (after, change.note)))
    return f"{sign} {text}{f' ({hints})' if hints else ''}"


def _event_documents(notices: Sequence[RecordedEvent]) -> Sequence[Mapping[str, object]]:
    return [
        {
            "object": dataclasses.asdict(notice.subject),
            "reason": notice.reason,
            "message": _line(notice.message),
        }
        for notice in notices
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(text: str) -> str:
    return " ".join(redact.mask_text(text).split())

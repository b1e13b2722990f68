"""A forecast: each field of each object and each thing in the cloud that would change. Pure.

It is read by people as lines like those of a diff, and by programs as plain values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from itertools import groupby
from typing import Any

import msgspec

from ccm.base import redact
from ccm.base.parsing import format_duration
from ccm.cloud.interface import LoadBalancer, Routes
from ccm.cloud.machines import MachineDriver
from ccm.gardener.names import ANNOTATION_CREATION, ANNOTATION_TOKEN_ID
from ccm.model import Node, Secret
from ccm.model.machines import document_of
from ccm.model.meta import KubeObject
from ccm.planning.cloud import CloudChange

SHOWN = 20
"""Most names of members that are told."""

_ENSURE = LoadBalancer.ensure_load_balancer.__name__
_UPDATE = LoadBalancer.update_load_balancer.__name__
_REMOVE = LoadBalancer.ensure_load_balancer_deleted.__name__
_ROUTE = Routes.create_route.__name__
_CREATE = MachineDriver.create_machine.__name__
_INITIALIZE = MachineDriver.initialize_machine.__name__

BALANCER, MEMBERS, ROUTE = "load balancer", "members of the load balancer", "route"
VM = "VM"

_CHANCE = (
    "lastUpdateTime",
    "lastTransitionTime",
    f"[{ANNOTATION_TOKEN_ID}]",
    f"[{ANNOTATION_CREATION}]",  # it goes with the write that stores the provider ID
)
"""How paths end of what is another at each attempt, and says nothing."""

_OF_THE_SERVER = ("resourceVersion", "generation", "creationTimestamp", "uid")
"""Metadata that the API server sets at each write or for each new object."""

UNKNOWN = "would ensure it: nobody knows whether anything differs"
ADOPTED = "not deleted: it was there before the Service"
UNLESS = "if the cloud still denies it"
DRAINED = "drain of node {} first"
WITH_ITS_MACHINE = "with Machine {}"


class Action(Enum):
    """What happens to it."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """An object of the cluster; a route of the cloud goes by its range."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that would differ.

    Attributes:
        subject: of what.
        action: what happens.
        what: a field's path, the kind of the object itself, or what there is in the cloud.
        old: as it is; None where it is not there or not known.
        new: as it would be; None where it would not be there or nobody knows.
        after_s: seconds that the daemon would wait first.
        note: on what it depends; empty = on nothing.
    """

    subject: Subject
    action: Action
    what: str
    old: str | None = None
    new: str | None = None
    after_s: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message to people about an object."""

    subject: Subject
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the daemon would do.

    Attributes:
        changes: what would differ, by object.
        held: deletions that would be held back, why, and how to allow them.
        warnings: other messages to people about objects.
        left_out: controllers that would not run -> why.
        failures: why it is not known what would be done, a line each.
    """

    changes: Sequence[Change] = ()
    held: Sequence[Told] = ()
    warnings: Sequence[Told] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()

    @property
    def deletions(self) -> Sequence[Change]:
        """Nodes, load balancers, routes and VMs that would go."""
        whole = ("Node", BALANCER, ROUTE, VM)
        return [one for one in self.changes if one.action is Action.DELETE and one.what in whole]


When = Callable[[float], int]
"""From a moment of the monotonic clock to the seconds that the daemon would wait first."""

_Fields = Mapping[tuple[str, str], str]


def of_object(
    kind: str, before: KubeObject | None, after: KubeObject | None, *, after_s: int
) -> Iterator[Change]:
    """What differs between two states of an object; None: it is not there."""
    one = before or after
    assert one is not None, "there is an object"
    subject = Subject(kind, one.namespace, one.name)
    if after is None:
        yield Change(subject=subject, action=Action.DELETE, what=kind, after_s=after_s)
        return
    old = _fields(before) if before is not None else {}
    new = _fields(after)
    for key in sorted(old.keys() | new.keys()):
        was, will = old.get(key), new.get(key)
        if was != will:
            action = Action.CHANGE
            if was is None or will is None:
                action = Action.CREATE if was is None else Action.DELETE
            yield Change(
                subject=subject, action=action, what=key[0], old=was, new=will, after_s=after_s
            )


def of_call(call: CloudChange, *, after_s: int, namespace: str = "") -> Change:
    """Return what a call to the cloud changes.

    Args:
        call: to the cloud.
        after_s: seconds that the daemon would wait first.
        namespace: of Machines.
    """
    verb, arguments = call.verb, call.arguments
    subject, action, what = _subject_of(arguments, namespace), Action.CHANGE, VM
    old: str | None = None
    new: str | None = None
    note = ""
    if verb == _CREATE:
        action, new = Action.CREATE, f"of class {arguments['req'].identity.pool}"
    elif verb == _INITIALIZE:
        new = "initialised"
    elif "req" in arguments:
        action, old = Action.DELETE, arguments["req"].provider_id or None
    elif verb == _ROUTE:
        action, what, new = Action.CREATE, ROUTE, f"to {arguments['route'].target_node}"
    elif "route" in arguments:
        action, what = Action.DELETE, ROUTE
        old = f"to {arguments['route'].target_node or 'nowhere'}"
    elif verb == _REMOVE:
        what = BALANCER
        if call.adopted:
            new, note = "released", ADOPTED
        else:
            action = Action.DELETE
    elif verb == _UPDATE:
        what, new = MEMBERS, _members(arguments["nodes"])
    else:
        assert verb == _ENSURE, verb
        action = Action.CREATE if call.listed is False else Action.CHANGE
        what, new = BALANCER, f"members {_members(arguments['nodes'])}"
        note = UNKNOWN if call.listed is None else ""
    return Change(
        subject=subject, action=action, what=what, old=old, new=new, after_s=after_s, note=note
    )


def _subject_of(arguments: Mapping[str, Any], namespace: str) -> Subject:
    if "req" in arguments:
        return Subject("Machine", namespace, arguments["req"].identity.name)
    if "route" in arguments:
        return Subject("Route", "", arguments["route"].destination_cidr)
    return Subject("Service", arguments["service"].namespace, arguments["service"].name)


def tidied(found: Iterable[Change]) -> Sequence[Change]:
    """Each once, by object; what an ensure sets anyway is not told beside it."""
    once: dict[tuple[Subject, str, Action, str | None, str | None], Change] = {}
    for change in found:
        again = change.what in (BALANCER, MEMBERS)
        values = (None, None) if again else (change.old, change.new)
        key = (change.subject, change.what, change.action, *values)
        # Told is when it begins, and what it comes to.
        once[key] = replace(change, after_s=once[key].after_s) if key in once else change
    ensured = {
        one.subject
        for one in once.values()
        if one.what == BALANCER and one.action is not Action.DELETE
    }
    told = [one for one in once.values() if one.what != MEMBERS or one.subject not in ensured]
    # What there is in the cloud before the fields that tell of it.
    clouds = (BALANCER, MEMBERS, VM)
    return sorted(told, key=lambda one: (one.subject, one.after_s, one.what not in clouds))


def _members(nodes: Sequence[Node]) -> str:
    named = ", ".join(node.name for node in nodes[:SHOWN]) or "none"
    more = len(nodes) - SHOWN
    return f"{named} and {more} more" if more > 0 else named


def _fields(obj: KubeObject) -> _Fields:
    """What can be told apart: (path, element of a list that is a set) -> text."""
    body = msgspec.to_builtins(document_of(obj))
    if isinstance(obj, Secret):
        body = {"metadata": body["metadata"]}
    found = dict(_flat("", body))
    for key in _OF_THE_SERVER:
        found.pop((f"metadata.{key}", ""), None)
    return {key: text for key, text in found.items() if not key[0].endswith(_CHANCE)}


def _flat(path: str, value: Any) -> Iterator[tuple[tuple[str, str], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            # Keys of labels have dots.
            step = f"[{key}]" if "." in key or "/" in key else f".{key}" if path else key
            yield from _flat(f"{path}{step}", inner)
    elif isinstance(value, list):
        yield from _listed(path, value)
    else:
        yield (path, ""), value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _listed(path: str, value: list[Any]) -> Iterator[tuple[tuple[str, str], str]]:
    if path == "status.conditions":
        for one in value:
            told = f"{one.get('status', '')} ({one.get('reason', '')})"
            yield (f"{path}[{one.get('type', '')}]", ""), told
    elif path == "status.addresses":
        kinds = dict.fromkeys(one.get("type", "") for one in value)
        for kind in kinds:
            mine = [one.get("address", "") for one in value if one.get("type", "") == kind]
            yield (f"{path}[{kind}]", ""), ", ".join(mine)
    elif path == "spec.taints":
        for one in value:
            equals = f"={one['value']}" if one.get("value") else ""
            told = f"{one.get('key', '')}{equals}:{one.get('effect', '')}"
            yield (path, told), told
    elif path == "metadata.finalizers":
        for one in value:
            yield (path, one), one
    elif path == "status.loadBalancer.ingress":
        yield (path, ""), ", ".join(one.get("ip") or one.get("hostname", "") for one in value)
    else:
        yield (path, ""), msgspec.json.encode(value).decode()


# --- for people and programs --------------------------------------------------------------------

_SIGNS: Mapping[Action, str] = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-"}
"""What a line begins with."""

_ATTENTION = "!"
"""How a line begins that asks for attention."""


def lines(found: Forecast) -> Iterator[str]:
    """The lines, object by object; a sign is at the beginning, or two blanks behind it."""
    told = [*((one, "held") for one in found.held), *((one, one.reason) for one in found.warnings)]
    subjects = {one.subject for one in found.changes} | {one.subject for one, _ in told}
    by_subject = {
        subject: list(each) for subject, each in groupby(found.changes, lambda one: one.subject)
    }
    for subject in sorted(subjects):
        yield str(subject)
        yield from (f"  {_change(one)}" for one in by_subject.get(subject, ()))
        for one, word in told:
            if one.subject == subject:
                yield f"  {_ATTENTION} {word}: {_line(one.message)}"
    for name, why in found.left_out.items():
        yield f"{name} is {_line(why)}"
    for failure in found.failures:
        yield f"{_ATTENTION} not known: {_line(failure)}"


def summary(found: Forecast) -> str:
    """One line about all of it."""
    parts = []
    if found.changes:
        objects = len({one.subject for one in found.changes})
        parts.append(f"{_count(len(found.changes), 'change')} to {_count(objects, 'object')}")
    elif not found.failures:
        parts.append("nothing to do")
    if found.held:
        parts.append(f"{_count(len(found.held), 'deletion')} held back")
    if found.failures:
        parts.append("incomplete: not all that matters is known")
    return "; ".join(parts)


def document(found: Forecast) -> Mapping[str, object]:
    """Everything as plain values."""
    return {
        "summary": summary(found),
        "changes": [
            {
                "object": dataclasses.asdict(one.subject),
                "action": one.action.value,
                **{key: getattr(one, key) for key in ("what", "old", "new")},
                "afterSeconds": one.after_s,
                "note": one.note,
            }
            for one in found.changes
        ],
        "held": _as_told(found.held),
        "warnings": _as_told(found.warnings),
        "leftOut": dict(found.left_out),
        "failures": [_line(one) for one in found.failures],
    }


def _change(one: Change) -> str:
    sign = _SIGNS[one.action]
    after = f"after {format_duration(timedelta(seconds=one.after_s))}" if one.after_s else ""
    if one.what == one.subject.kind:
        told = f"would delete{f' {after}' if after else ''}"
        return f"{sign} {told}{f' ({one.note})' if one.note else ''}"
    values = [_line(text) for text in (one.old, one.new) if text is not None]
    what = "" if one.what == ROUTE else one.what
    told = ": ".join(filter(None, (what, " → ".join(values))))
    hints = ", ".join(filter(None, (after, one.note)))
    return f"{sign} {told}{f' ({hints})' if hints else ''}"


def _as_told(found: Sequence[Told]) -> Sequence[Mapping[str, object]]:
    return [
        {
            "object": dataclasses.asdict(one.subject),
            "reason": one.reason,
            "message": _line(one.message),
        }
        for one in found
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(text: str) -> str:
    return " ".join(redact.words(text).split())

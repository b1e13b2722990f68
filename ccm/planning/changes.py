"""What would be changed, as values: each field of each object, each thing in the cloud. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from ccm.cloud.interface import LoadBalancer, Routes
from ccm.cloud.machines import MachineDriver, MachineRequest
from ccm.gardener.names import ANNOTATION_CREATION, ANNOTATION_TOKEN_ID
from ccm.model import Node, Secret
from ccm.model.machines import document_of
from ccm.model.meta import KubeObject

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

_CLOUDS = (BALANCER, MEMBERS, VM)
"""What there is in the cloud of an object."""

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


def of_call(
    verb: str,
    arguments: Mapping[str, Any],
    *,
    listed: bool | None,
    adopted: bool = False,
    after_s: int,
    namespace: str = "",
) -> Change:
    """What a call to the cloud changes.

    Args:
        verb: the method.
        arguments: by the names of its parameters.
        listed: whether the cloud lists what it is about; None: nobody knows.
        adopted: whether that was there before, and a removal releases it.
        after_s: seconds that the daemon would wait first.
        namespace: of Machines.
    """
    if "req" in arguments:
        return _of_machine(verb, arguments["req"], namespace, after_s)
    if "route" in arguments:
        route = arguments["route"]
        made = verb == _ROUTE
        return Change(
            subject=Subject("Route", "", route.destination_cidr),
            action=Action.CREATE if made else Action.DELETE,
            what=ROUTE,
            old=None if made else f"to {route.target_node or 'nowhere'}",
            new=f"to {route.target_node}" if made else None,
            after_s=after_s,
        )
    service = arguments["service"]
    subject = Subject("Service", service.namespace, service.name)
    if verb == _REMOVE and adopted:
        return Change(
            subject=subject,
            action=Action.CHANGE,
            what=BALANCER,
            new="released",
            after_s=after_s,
            note=ADOPTED,
        )
    if verb == _REMOVE:
        return Change(subject=subject, action=Action.DELETE, what=BALANCER, after_s=after_s)
    if verb == _UPDATE:
        return Change(
            subject=subject,
            action=Action.CHANGE,
            what=MEMBERS,
            new=_members(arguments["nodes"]),
            after_s=after_s,
        )
    assert verb == _ENSURE, verb
    return Change(
        subject=subject,
        action=Action.CREATE if listed is False else Action.CHANGE,
        what=BALANCER,
        new=f"members {_members(arguments['nodes'])}",
        after_s=after_s,
        note=UNKNOWN if listed is None else "",
    )


def _of_machine(verb: str, req: MachineRequest, namespace: str, after_s: int) -> Change:
    subject, there = Subject("Machine", namespace, req.identity.name), req.provider_id or None
    if verb == _CREATE:
        pool = f"of class {req.identity.pool}"
        return Change(subject=subject, action=Action.CREATE, what=VM, new=pool, after_s=after_s)
    if verb == _INITIALIZE:
        return Change(
            subject=subject, action=Action.CHANGE, what=VM, new="initialised", after_s=after_s
        )
    return Change(subject=subject, action=Action.DELETE, what=VM, old=there, after_s=after_s)


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
    return sorted(told, key=lambda one: (one.subject, one.after_s, one.what not in _CLOUDS))


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

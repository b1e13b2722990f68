"""What a machine keeps on its node: labels, annotations and taints of its template. Pure.

What was put on the node before stands in an annotation of the node; of that, what the template
has no more is removed. Whatever others put on the node stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm.machines.settings import Settings
from ccm.model import Node, Taint
from ccm.model.machines import Machine
from ccm.model.meta import Wire
from ccm.model.node import taints_value
from ccm.model.patches import Patch, add_finalizer, remove_finalizer, same_object, same_version


class Metadata(Wire, frozen=True, kw_only=True):
    """Labels and annotations."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Spec(Wire, frozen=True, kw_only=True):
    """Taints."""

    taints: list[Taint] | None = None


class Applied(Wire, frozen=True, kw_only=True):
    """What was put on a node because of its machine."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()


NOTHING = Applied()
_ORDERED = msgspec.json.Encoder(order="deterministic")


def patch(
    machine: Machine, node: Node, settings: Settings, arrival: Mapping[str, str] | None = None
) -> Patch | None:
    """What brings a node in step with its machine, in one write; None when it is.

    Args:
        machine: the machine.
        node: its node.
        settings: names.
        arrival: annotations that the node gets if it joins now, and nobody speaks of them.
    """
    before, wanted = applied(node, settings), template(machine)
    labels = {**machine.node_labels, settings.names.machine_label: machine.name}
    metadata: dict[str, Any] = {}
    if changed := _changes(node.labels, labels, before.metadata.labels or {}):
        metadata["labels"] = changed
    notes = _changes(node.annotations, machine.node_annotations, before.metadata.annotations or {})
    if wanted != before:
        notes[settings.names.applied] = _ORDERED.encode(wanted).decode()
    if settings.names.unmanaged in node.annotations:
        notes[settings.names.unmanaged] = None
    held = None if node.is_deleting else add_finalizer(node, settings.names.node_finalizer)
    arrives = arrival if held is not None else None
    if not arrives or arrives.keys() & (node.annotations.keys() | notes.keys()):
        arrives = {}
    if notes := {**notes, **arrives}:
        metadata["annotations"] = notes
    found: dict[str, Any] = {}
    taints = _taints(node.taints, machine.taints, before.spec.taints or ())
    if list(taints) != list(node.taints):
        found["spec"] = {"taints": taints_value(taints)}
    if held is not None:
        metadata |= {
            key: held["metadata"][key] for key in held["metadata"].keys() - same_version(node)
        }
    if not metadata and not found:
        return None
    # Taints are replaced as a whole, and nobody else's may be lost; nor may what a person says of
    # the node at this moment pass for ours. All else is merged, so that a kubelet that tells of
    # its node at the same moment is no conflict.
    version = same_version(node) if found or arrives else {}
    return {**found, "metadata": same_object(node) | version | metadata}


def template(machine: Machine) -> Applied:
    """What the machine's template wants on its node."""
    return Applied(
        metadata=Metadata(
            labels=dict(machine.node_labels) or None,
            annotations=dict(machine.node_annotations) or None,
        ),
        spec=Spec(taints=list(machine.taints) or None),
    )


def applied(node: Node, settings: Settings) -> Applied:
    """What was put on the node before; nothing where that cannot be read: then nothing goes."""
    try:
        return msgspec.json.decode(node.annotations.get(settings.names.applied, "{}"), type=Applied)
    except (msgspec.DecodeError, UnicodeError):
        return NOTHING


def capacity_patch(node: Node, wanted: Mapping[str, str], settings: Settings) -> Patch | None:
    """The status patch that adds resources to the node's capacity; None when they are there."""
    before = _amounts(node, settings)
    changes: dict[str, Any] = {key: None for key in before if key not in wanted}
    changes |= {key: value for key, value in wanted.items() if before.get(key) != value}
    if not changes:
        return None
    return {"metadata": same_object(node), "status": {"capacity": changes}}


def capacity_note(node: Node, wanted: Mapping[str, str], settings: Settings) -> Patch | None:
    """The patch that puts on record which resources were added; None when it is there."""
    if _amounts(node, settings) == dict(wanted):
        return None
    text = _ORDERED.encode(wanted).decode() if wanted else None
    notes = {settings.names.applied_capacity: text}
    return {"metadata": same_object(node) | {"annotations": notes}}


def unmanaged_patch(node: Node, settings: Settings) -> Patch | None:
    """What is written on a node without machine; None when it is there."""
    metadata: dict[str, Any] = {}
    if node.annotations.get(settings.names.unmanaged) != "1":
        metadata["annotations"] = {settings.names.unmanaged: "1"}
    if released := release_patch(node, settings):
        metadata |= released["metadata"]
    return {"metadata": same_object(node) | metadata} if metadata else None


def managed_patch(node: Node, settings: Settings) -> Patch | None:
    """What is written on a node that has a machine after all."""
    if settings.names.unmanaged not in node.annotations:
        return None
    return {"metadata": same_object(node) | {"annotations": {settings.names.unmanaged: None}}}


def release_patch(node: Node, settings: Settings) -> Patch | None:
    """The patch that lets a node go; None when nothing of ours holds it."""
    return remove_finalizer(node, settings.names.node_finalizer)


def _amounts(node: Node, settings: Settings) -> dict[str, str]:
    try:
        text = node.annotations.get(settings.names.applied_capacity, "{}")
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        return {}


def _changes(
    there: Mapping[str, str], wanted: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str | None]:
    """What to set, and what to remove because it was ours."""
    gone: dict[str, str | None] = {
        key: None for key in before if key not in wanted and key in there
    }
    return gone | {key: value for key, value in wanted.items() if there.get(key) != value}


def _taints(
    there: Sequence[Taint], wanted: Sequence[Taint], before: Sequence[Taint]
) -> Sequence[Taint]:
    """The node's taints as they should be; key and effect say which is which."""
    ours = {(one.key, one.effect): one for one in wanted}
    dropped = {(one.key, one.effect) for one in before} - ours.keys()
    kept = [one for one in there if (one.key, one.effect) not in dropped]
    found = list[Taint]()
    for one in kept:
        taint = ours.pop((one.key, one.effect), one)
        # Where the value is right the taint stays: it may carry the time it was added.
        found.append(one if one.value == taint.value else taint)
    return [*found, *ours.values()]

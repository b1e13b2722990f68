"""Node metadata: applies metadata and taints of a machine's template to its node. No I/O.

An annotation of the node records the metadata that was applied from the template. Recorded metadata
that the template no longer contains is removed. Metadata of other writers is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm.machines.settings import MachineSettings
from ccm.model import Node, Taint
from ccm.model.machines import Machine
from ccm.model.meta import Wire
from ccm.model.node import taints_value
from ccm.model.patches import (
    Patch,
    add_finalizer_patch,
    remove_finalizer_patch,
    uid_precondition,
    version_precondition,
)


class Metadata(Wire, frozen=True, kw_only=True):
    """Labels and annotations."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Spec(Wire, frozen=True, kw_only=True):
    """Taints."""

    taints: list[Taint] | None = None


class AppliedMetadata(Wire, frozen=True, kw_only=True):
    """Metadata that was applied to a node from its machine's template."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()


NOTHING = AppliedMetadata()
_ORDERED = msgspec.json.Encoder(order="deterministic")


def patch(
    machine: Machine,
    node: Node,
    settings: MachineSettings,
    join_annotations: Mapping[str, str] | None = None,
) -> Patch | None:
    """Return the patch that applies a machine's metadata to its node; None = up to date.

    Args:
        machine: the machine.
        node: its node.
        settings: names and settings.
        join_annotations: annotations to set when the node joins. If the node or this patch has one
            of them already, the others are not set either.
    """
    names, own_labels = settings.names, settings.names.node_labels(machine)
    if not names.applied:
        # Nothing records what was applied, so a value that differs may be another writer's.
        machine = _without_present(machine, node)
    before, wanted = applied_metadata(node, settings), wanted_metadata(machine)
    labels = {**machine.node_labels, **own_labels}
    metadata: dict[str, Any] = {}
    if changed := _changes(node.labels, labels, before.metadata.labels or {}):
        metadata["labels"] = changed
    annotations = _changes(
        node.annotations, machine.node_annotations, before.metadata.annotations or {}
    )
    if wanted != before and names.applied:
        annotations[names.applied] = _ORDERED.encode(wanted).decode()
    if names.key_annotation and node.annotations.get(names.key_annotation) != machine.key:
        annotations[names.key_annotation] = machine.key
    if settings.names.unmanaged in node.annotations:
        annotations[settings.names.unmanaged] = None
    finalizer_patch = (
        None if node.is_deleting else add_finalizer_patch(node, settings.names.node_finalizer)
    )
    initial = join_annotations if finalizer_patch is not None else None
    if not initial or initial.keys() & (node.annotations.keys() | annotations.keys()):
        initial = {}
    if annotations := {**annotations, **initial}:
        metadata["annotations"] = annotations
    spec_patch: dict[str, Any] = {}
    taints = _taints(node.taints, machine.taints, before.spec.taints or ())
    if list(taints) != list(node.taints):
        spec_patch["spec"] = {"taints": taints_value(taints)}
    if finalizer_patch is not None:
        metadata |= {
            key: finalizer_patch["metadata"][key]
            for key in finalizer_patch["metadata"].keys() - version_precondition(node)
        }
    if not metadata and not spec_patch:
        return None
    # A patch replaces the whole list of taints: the resourceVersion precondition protects
    # concurrent changes of taints. The precondition also keeps us from overwriting an annotation
    # that a user sets while the node joins. All other fields are merged without the precondition,
    # so that updates of the kubelet cause no conflict.
    version = version_precondition(node) if spec_patch or initial else {}
    return {**spec_patch, "metadata": uid_precondition(node) | version | metadata}


def _without_present(machine: Machine, node: Node) -> Machine:
    """Return the machine without the metadata whose keys its node has already."""
    present = {(taint.key, taint.effect) for taint in node.taints}
    return msgspec.structs.replace(
        machine,
        node_labels={
            key: text for key, text in machine.node_labels.items() if key not in node.labels
        },
        node_annotations={
            key: text
            for key, text in machine.node_annotations.items()
            if key not in node.annotations
        },
        taints=[taint for taint in machine.taints if (taint.key, taint.effect) not in present],
    )


def wanted_metadata(machine: Machine) -> AppliedMetadata:
    """Return the metadata of the machine's template for its node."""
    return AppliedMetadata(
        metadata=Metadata(
            labels=dict(machine.node_labels) or None,
            annotations=dict(machine.node_annotations) or None,
        ),
        spec=Spec(taints=list(machine.taints) or None),
    )


def applied_metadata(node: Node, settings: MachineSettings) -> AppliedMetadata:
    """Return the metadata that was applied before, from the node's annotation.

    An unreadable annotation counts as empty, so that nothing is removed.
    """
    try:
        return msgspec.json.decode(
            node.annotations.get(settings.names.applied, "{}"), type=AppliedMetadata
        )
    except (msgspec.DecodeError, UnicodeError):
        return NOTHING


def capacity_patch(
    node: Node, wanted: Mapping[str, str], settings: MachineSettings
) -> Patch | None:
    """Return the status patch that adds resources to the node's capacity; None = up to date.

    Resources that were added before and are not wanted any more are removed.
    """
    before = _amounts(node, settings)
    changes: dict[str, Any] = {key: None for key in before if key not in wanted}
    changes |= {key: value for key, value in wanted.items() if before.get(key) != value}
    if not changes:
        return None
    return {"metadata": uid_precondition(node), "status": {"capacity": changes}}


def capacity_record_patch(
    node: Node, wanted: Mapping[str, str], settings: MachineSettings
) -> Patch | None:
    """Return the patch of the annotation that records the added resources; None = up to date."""
    if _amounts(node, settings) == dict(wanted):
        return None
    text = _ORDERED.encode(wanted).decode() if wanted else None
    notes = {settings.names.applied_capacity: text}
    return {"metadata": uid_precondition(node) | {"annotations": notes}}


def unmanaged_patch(node: Node, settings: MachineSettings) -> Patch | None:
    """Return the patch that annotates a node without a machine, and removes our finalizer.

    None = up to date.
    """
    metadata: dict[str, Any] = {}
    if settings.names.unmanaged and node.annotations.get(settings.names.unmanaged) != "1":
        metadata["annotations"] = {settings.names.unmanaged: "1"}
    if released := release_patch(node, settings):
        metadata |= released["metadata"]
    return {"metadata": uid_precondition(node) | metadata} if metadata else None


def managed_patch(node: Node, settings: MachineSettings) -> Patch | None:
    """Return the patch that removes the annotation of `unmanaged_patch`; None = up to date."""
    if settings.names.unmanaged not in node.annotations:
        return None
    return {"metadata": uid_precondition(node) | {"annotations": {settings.names.unmanaged: None}}}


def release_patch(node: Node, settings: MachineSettings) -> Patch | None:
    """Return the patch that removes our finalizer from a node; None = the node lacks it."""
    return remove_finalizer_patch(node, settings.names.node_finalizer)


def _amounts(node: Node, settings: MachineSettings) -> dict[str, str]:
    try:
        text = node.annotations.get(settings.names.applied_capacity, "{}")
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        return {}


def _changes(
    present: Mapping[str, str], wanted: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the values to set, and None for the keys to remove: those that we set before."""
    gone: dict[str, str | None] = {
        key: None for key in before if key not in wanted and key in present
    }
    return gone | {key: value for key, value in wanted.items() if present.get(key) != value}


def _taints(
    present: Sequence[Taint], wanted: Sequence[Taint], before: Sequence[Taint]
) -> Sequence[Taint]:
    """Return the desired taints of the node; key and effect identify a taint."""
    ours = {(taint.key, taint.effect): taint for taint in wanted}
    dropped = {(taint.key, taint.effect) for taint in before} - ours.keys()
    kept = [old for old in present if (old.key, old.effect) not in dropped]
    result = list[Taint]()
    for present_taint in kept:
        taint = ours.pop((present_taint.key, present_taint.effect), present_taint)
        # An unchanged taint is kept as it is: it may carry the time when it was added.
        result.append(present_taint if present_taint.value == taint.value else taint)
    return [*result, *ours.values()]

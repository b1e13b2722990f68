"""Conversions that the codecs of several API groups of machines need. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from ccm.machines.rollout import SetCreation
from ccm.model import OwnerReference
from ccm.model.machines import MachineDeployment, MachineSet, Phase
from ccm.model.patches import merge_patch
from ccm.model.selectors import BadSelectorError, LabelSelector
from ccm.model.times import format_time

_MOST_S = 2**31 - 1


def to_phase(text: str) -> Phase:
    """Return the phase with this value; `FOREIGN` for an unknown value."""
    try:
        return Phase(text)
    except ValueError:
        return Phase.FOREIGN


def to_plain(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a document as JSON object."""
    return dict(msgspec.to_builtins(struct))


def new_set(
    obj: MachineDeployment,
    making: SetCreation,
    reference: OwnerReference,
    *,
    hash_label: str,
    finalizer: str,
) -> dict[str, dict[str, Any]]:
    """Return the body of a new set of a deployment, with the fields that all API groups have."""
    spec = obj.source.spec
    mark = {hash_label: making.name.hash}
    template = to_plain(spec.template)
    labels = {**obj.template.labels, **mark}
    template["metadata"] = {**template.get("metadata", {}), "labels": labels}
    selector = to_plain(spec.selector) if spec.selector else {}
    selector["matchLabels"] = {**selector.get("matchLabels", {}), **mark}
    return {
        "metadata": {
            "name": making.name.name,
            "namespace": obj.namespace,
            "labels": labels,
            "annotations": dict(making.annotations),
            "finalizers": [finalizer],
            "ownerReferences": [to_plain(reference)],
        },
        "spec": {
            "replicas": making.replicas,
            "selector": selector,
            "template": template,
            "minReadySeconds": spec.min_ready_seconds or 0,
        },
    }


def restored_template(obj: MachineDeployment, to: MachineSet, *, hash_label: str) -> dict[str, Any]:
    """Return the merge patch that replaces a deployment's template with that of one of its sets."""
    before, after = (to_plain(source.template.source) for source in (obj, to))
    labels = {key: text for key, text in to.template.labels.items() if key != hash_label}
    after["metadata"] = {**after.get("metadata", {}), "labels": labels}
    return merge_patch(before, after)


def to_text(moment: datetime | None) -> str | None:
    """Return a time as text, in the format of Kubernetes objects; None stays None."""
    return format_time(moment) if moment is not None else None


def labels_of(template: Any) -> Mapping[str, str]:
    """Return the labels that a template gives its machines."""
    return as_string_map((template.metadata or {}).get("labels"))


def as_string_map(mapping: Any) -> Mapping[str, str]:
    """Return the value as a mapping of strings, without nulls; empty if it is not a mapping."""
    if not isinstance(mapping, Mapping):
        return {}
    return {str(key): str(value) for key, value in mapping.items() if value is not None}


def annotations_of(template: Any) -> Mapping[str, str]:
    """Return the annotations that a template gives its machines."""
    return as_string_map((template.metadata or {}).get("annotations"))


def without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without empty ones, at every depth; Go programs write empty fields."""
    inner = {
        key: without_empty(value) if isinstance(value, Mapping) else value
        for key, value in fields.items()
    }
    return {key: value for key, value in inner.items() if value not in (None, "", {}, [])}


def clamp_s(seconds: int) -> float:
    """Return a number of seconds, limited to the range of 32 bits.

    A CustomResourceDefinition other than ours may allow larger values, which exceed the range of
    timestamps.
    """
    return float(max(-_MOST_S, min(seconds, _MOST_S)))


def selector_faults(selector: LabelSelector | None, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield why a selector cannot select the machines of a template with these labels."""
    if selector is None or not (selector.match_labels or selector.match_expressions):
        yield "spec.selector selects everything; set it to the labels of the template"
        return
    try:
        terms = selector.requirements()
    except BadSelectorError as error:
        yield f"spec.selector: {error}"
        return
    missing = [term.key for term in terms if not term.matches(labels)]
    if missing:
        yield (
            f"spec.selector requires {', '.join(sorted(missing))}, which "
            "spec.template.metadata.labels do not match; make them agree"
        )

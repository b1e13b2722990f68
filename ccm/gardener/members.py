"""Between the objects of this front and the neutral terms in which sets are decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ccm.gardener import codec, names, templates
from ccm.gardener import types as documents
from ccm.gardener.codec import limited_s
from ccm.gardener.sets import MachineSet
from ccm.gardener.types import MachineTemplateSpec
from ccm.machines.replicas import Wanted
from ccm.model import OwnerReference
from ccm.model.machines import Machine, Phase, Preserve
from ccm.model.patches import Patch, same_object, same_version
from ccm.model.times import moment

_PUSHED = (
    "nodeTemplate",
    "drainTimeout",
    "healthTimeout",
    "creationTimeout",
    "inPlaceUpdateTimeout",
    "machinePreserveTimeout",
    "disableHealthTimeout",
    "maxEvictRetries",
    "nodeConditions",
)
"""What of the template reaches machines that are there already; all else makes other machines."""

_NAME_ROOM = 58
"""Characters of the set's name in that of a machine; the server cuts `generateName` there too."""


def wanted(obj: MachineSet) -> Wanted:
    """What is wanted of a set."""
    spec = obj.spec
    frozen = obj.labels.get(names.LABEL_FREEZE) == names.FROZEN
    return Wanted(
        replicas=spec.replicas,
        is_deleting=obj.is_deleting,
        may_grow=not frozen and names.LABEL_SCALE_UP_DISABLED not in obj.labels,
        scaled=moment(obj.annotations.get(names.ANNOTATION_SCALER_TIME)),
        min_ready_s=limited_s(spec.min_ready_seconds),
        most_preserved=spec.auto_preserve_failed_machine_max,
    )


def body(owner: MachineSet, reference: OwnerReference, name: str) -> Mapping[str, Any]:
    """A new machine of a set."""
    template = owner.spec.template
    found = template.metadata or {}
    metadata: dict[str, Any] = {
        "name": name,
        "generateName": f"{owner.name}-",
        "namespace": owner.namespace,
        "labels": dict(templates.labels_of(template)),
        "annotations": dict(templates.annotations_of(template)),
        "ownerReferences": [msgspec.to_builtins(reference)],
    }
    if finalizers := found.get("finalizers"):
        metadata["finalizers"] = finalizers
    return {"metadata": metadata, "spec": _spec(template)}


def claimed(
    found: Mapping[str, Any], claim: Callable[[Machine], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """A new machine with what its controller would write on it first.

    One that cannot be read stays as it is: the server knows best what is wrong with it.
    """
    metadata = found["metadata"]
    try:
        more = claim(codec.machine(msgspec.convert(found, documents.Machine)))
    except msgspec.ValidationError:
        return found
    notes = {**metadata["annotations"], **more.get("annotations", {})}
    return {**found, "metadata": {**metadata, **more, "annotations": notes}}


def name_of(owner: MachineSet, suffix: str) -> str:
    """Name of a new machine."""
    return f"{owner.name[: _NAME_ROOM - 1]}-{suffix}"


def push_patch(obj: Machine, template: MachineTemplateSpec) -> Patch | None:
    """What of the template has changed and concerns a machine that is there; None: nothing.

    One that failed or ends stays as it is, but for the kind of its class, without which nothing
    can be done about it.
    """
    spec: documents.MachineSpec = obj.source.spec
    if spec == replace(template.spec, provider_id=spec.provider_id) and not _timeout(template):
        return None  # mostly, and found out at little cost
    goal, has = (_without_nulls(one) for one in (_spec(template), msgspec.to_builtins(spec)))
    rests = obj.is_deleting or obj.phase in (Phase.FAILED, Phase.TERMINATING)
    changes = {} if rests else _changes(has, goal, _PUSHED)
    kind = template.spec.class_.kind
    if spec.class_.kind != kind:
        changes["class"] = {"kind": kind}
    if not changes:
        return None
    return {"metadata": same_object(obj) | same_version(obj), "spec": changes}


def preserve_patch(obj: Machine, *, keep: bool) -> Patch | None:
    """What says that the set keeps a machine, or does not any more; None where it stands."""
    is_kept = obj.preserve == Preserve.AUTO.value
    if is_kept is keep:
        return None
    value = Preserve.AUTO.value if keep else None
    metadata = same_object(obj) | same_version(obj)
    return {"metadata": {**metadata, "annotations": {names.ANNOTATION_PRESERVE: value}}}


def _spec(template: MachineTemplateSpec) -> dict[str, Any]:
    spec: dict[str, Any] = msgspec.to_builtins(template.spec)
    timeout = _timeout(template)
    return spec | ({"creationTimeout": timeout} if timeout else {})


def _timeout(template: MachineTemplateSpec) -> str:
    """The creation timeout in the annotations, which goes before that of the spec."""
    return templates.annotations_of(template).get(names.ANNOTATION_CREATION_TIMEOUT, "")


def _without_nulls(found: Any) -> Any:
    """A merge patch cannot write a null, and Go writes some: they would differ for ever."""
    if not isinstance(found, Mapping):
        return found
    return {key: _without_nulls(value) for key, value in found.items() if value is not None}


def _changes(
    has: Mapping[str, Any], goal: Mapping[str, Any], keys: Sequence[str]
) -> dict[str, Any]:
    """The merge patch that makes these keys what they are in the goal."""
    found: dict[str, Any] = {}
    for key in keys:
        before, after = has.get(key), goal.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found[key] = _changes(before, after, sorted(before.keys() | after.keys()))
        else:
            found[key] = after
    return found

"""Between the objects of this front and the neutral terms in which rollouts are decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ccm.gardener import codec, names, templates
from ccm.gardener.sets import (
    ROLLING,
    DeploymentCondition,
    MachineDeployment,
    MachineDeploymentStatus,
    MachineSet,
    Strategy,
)
from ccm.gardener.types import MachineTemplateSpec, ObjectCondition
from ccm.machines import bounds, fleet, progress
from ccm.machines.autoscaler import Mark
from ccm.machines.fleet import (
    Condition,
    DeploymentStatus,
    DeploymentView,
    SetView,
    Template,
)
from ccm.machines.replicas import member
from ccm.machines.rollout import Change, Making
from ccm.model import Node, OwnerReference
from ccm.model.machines import Machine
from ccm.model.names import STATUS_TRUE
from ccm.model.patches import Patch, merge_changes, same_object, same_version
from ccm.model.selectors import LabelSelector
from ccm.model.times import format_time, moment

_NEVER = datetime.fromtimestamp(0, UTC)
_ORDERED = msgspec.json.Encoder(order="deterministic")

_STRATEGIES = {one.value: one for one in fleet.Strategy}
_MANUAL = "Manual"
_ORCHESTRATIONS = ("Auto", _MANUAL)


def deployment(obj: MachineDeployment) -> DeploymentView:
    """A deployment in neutral terms."""
    spec, strategy = obj.spec, obj.spec.strategy.effective()
    block = strategy.in_place_update or strategy.rolling_update
    if strategy.type == ROLLING:
        block = strategy.rolling_update
    surge, missing = (block.max_surge, block.max_unavailable) if block else (None, None)
    in_place = strategy.in_place_update
    return DeploymentView(
        metadata=obj.metadata,
        replicas=spec.replicas,
        template=template(spec.template, (spec.min_ready_seconds, _most_kept(obj))),
        strategy=_STRATEGIES.get(strategy.type),
        max_surge=surge or 0,
        max_unavailable=missing or 0,
        is_manual=in_place is not None and in_place.orchestration_type == _MANUAL,
        is_paused=spec.paused,
        min_ready_s=codec.limited_s(spec.min_ready_seconds),
        deadline_s=_seconds(spec.progress_deadline_seconds),
        history_limit=spec.revision_history_limit,
        rollback_to=spec.rollback_to.revision if spec.rollback_to is not None else None,
        faults=tuple(faults(obj)),
        status=_status(obj.status),
    )


def machine_set(
    obj: MachineSet, machines: Iterable[Machine], node_of: Callable[[str], Node | None]
) -> SetView:
    """A set in neutral terms.

    Args:
        obj: the set.
        machines: those that it controls.
        node_of: finds a node by its name.
    """
    conditions = obj.status.conditions or ()
    spec, labels = obj.spec, templates.labels_of(obj.spec.template)
    return SetView(
        metadata=obj.metadata,
        created=moment(obj.metadata.creation_timestamp) or _NEVER,
        replicas=spec.replicas,
        template=template(spec.template, (spec.min_ready_seconds, _most_kept(obj))),
        members=[
            member(
                one,
                node_of(one.node_name) if one.node_name else None,
                labels,
                annotation=names.ANNOTATION_PRESERVE,
            )
            for one in machines
        ],
        failures=[
            _condition(one)
            for one in conditions
            if one.type == progress.FAILURE and one.status == STATUS_TRUE
        ],
        failed=tuple(obj.status.failed_machines or ()),
        has_seen=obj.status.observed_generation >= obj.metadata.generation,
    )


def template(found: MachineTemplateSpec, settings: Sequence[int] = ()) -> Template:
    """A template in neutral terms; `settings` are copied along with it."""
    metadata = _filled(found.metadata or {})
    labels = dict(templates.labels_of(found))
    labels.pop(names.LABEL_TEMPLATE_HASH, None)
    spec = _filled(msgspec.to_builtins(found.spec))
    made_of = dict(spec.pop("class", {}))
    kind = made_of.pop("kind", "")
    decides = [metadata | {"labels": labels}, made_of, spec.pop("providerID", "")]
    return Template(
        essence=_ORDERED.encode(decides).decode(),
        rest=_ORDERED.encode([kind, spec, *settings]).decode(),
        whole=msgspec.to_builtins(found),
    )


def faults(obj: MachineDeployment) -> Iterator[str]:
    """What makes it impossible to work with a deployment, one sentence each."""
    spec = obj.spec
    yield from templates.faults(
        replicas=spec.replicas, selector=spec.selector, template=spec.template
    )
    yield from _strategy_faults(spec.strategy.effective())


def selects_all(selector: LabelSelector | None) -> bool:
    """Whether a selector says nothing."""
    return selector is None or not (selector.match_labels or selector.match_expressions)


# --- what is written --------------------------------------------------------------------------


def new_set(obj: MachineDeployment, making: Making, owner: OwnerReference) -> Mapping[str, Any]:
    """A set to be made."""
    mark = {names.LABEL_TEMPLATE_HASH: making.name.hash}
    whole = msgspec.to_builtins(obj.spec.template)
    labels = {**templates.labels_of(obj.spec.template), **mark}
    whole["metadata"] = {**whole.get("metadata", {}), "labels": labels}
    selector = msgspec.to_builtins(obj.spec.selector) if obj.spec.selector else {}
    selector["matchLabels"] = {**selector.get("matchLabels", {}), **mark}
    return {
        "metadata": {
            "name": making.name.name,
            "namespace": obj.namespace,
            "labels": labels,
            "annotations": dict(making.annotations),
            "finalizers": [names.FINALIZER],
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": {
            "replicas": making.replicas,
            "selector": selector,
            "template": whole,
            "minReadySeconds": obj.spec.min_ready_seconds,
            "autoPreserveFailedMachineMax": _most_kept(obj),
        },
    }


def set_patch(obj: MachineSet, change: Change, owner: MachineDeployment) -> Patch:
    """What becomes of a set."""
    spec: dict[str, Any] = {}
    if change.replicas is not None:
        spec["replicas"] = change.replicas
    if change.copies:
        before, after = (_filled(_plain(one.spec.template.spec)) for one in (obj, owner))
        spec |= {
            "template": {"spec": merge_changes(before, after)},
            "minReadySeconds": owner.spec.min_ready_seconds,
            "autoPreserveFailedMachineMax": _most_kept(owner),
        }
    metadata: dict[str, Any] = same_object(obj) | same_version(obj)
    if change.annotations:
        metadata["annotations"] = dict(change.annotations)
    if change.labels:
        metadata["labels"] = dict(change.labels)
    return {"metadata": metadata} | ({"spec": spec} if spec else {})


def move_patch(obj: Machine, old: MachineSet, new: MachineSet, owner: OwnerReference) -> Patch:
    """A machine that was updated in place changes hands: owner, labels and class."""
    left, comes = _matched(old), dict(_matched(new))
    kept = {key: value for key, value in obj.labels.items() if left.get(key) != value}
    wanted = kept | comes | {names.LABEL_UPDATE_RESULT: names.UPDATE_SUCCESSFUL}
    metadata: dict[str, Any] = same_object(obj) | same_version(obj)
    metadata["labels"] = merge_changes(obj.labels, wanted)
    metadata["ownerReferences"] = [_plain(owner)]
    made_of = _plain(new.spec.template.spec.class_)
    return {"metadata": metadata, "spec": {"class": made_of}}


def arrival_patch(obj: Machine) -> Patch | None:
    """A machine loses the mark of its move; None where it has none."""
    if names.LABEL_UPDATE_RESULT not in obj.labels:
        return None
    return {"metadata": same_object(obj) | {"labels": {names.LABEL_UPDATE_RESULT: None}}}


def _matched(obj: MachineSet) -> Mapping[str, str]:
    return (obj.spec.selector.match_labels or {}) if obj.spec.selector is not None else {}


def mark_patch(obj: Machine, mark: Mark) -> Patch | None:
    """What a machine gets that the autoscaler wants to go; None where it has it."""
    if all(obj.annotations.get(key) == value for key, value in mark.annotations.items()):
        return None
    return {"metadata": same_object(obj) | {"annotations": dict(mark.annotations)}}


def notes_patch(obj: MachineDeployment, notes: Mapping[str, str | None]) -> Patch | None:
    """What the deployment gets; an empty text is none."""
    wanted = {key: value or None for key, value in notes.items()}
    if all(obj.annotations.get(key) == value for key, value in wanted.items()):
        return None
    return {"metadata": same_object(obj) | same_version(obj) | {"annotations": wanted}}


def revert_patch(obj: MachineDeployment, to: MachineSet | None) -> Patch:
    """Back to the template of a set; without one only the wish is taken back."""
    metadata: dict[str, Any] = same_object(obj) | same_version(obj)
    spec: dict[str, Any] = {"rollbackTo": None}
    if to is not None:
        before, after = (msgspec.to_builtins(one.spec.template) for one in (obj, to))
        labels = dict(templates.labels_of(to.spec.template))
        labels.pop(names.LABEL_TEMPLATE_HASH, None)
        after["metadata"] = {**after.get("metadata", {}), "labels": labels}
        spec["template"] = merge_changes(before, after)
        notes = [
            {
                key: text
                for key, text in one.annotations.items()
                if key not in codec.NAMES.not_copied
            }
            for one in (obj, to)
        ]
        if changed := merge_changes(*notes):
            metadata["annotations"] = changed
    return {"metadata": metadata, "spec": spec}


def status_patch(obj: MachineDeployment, found: DeploymentStatus) -> Patch | None:
    """What is said of a deployment; None where it says so. Conditions of others stay."""
    others = [one for one in obj.status.conditions or () if one.type not in progress.OWN]
    ours = [_written(one) for one in found.conditions if one.type in progress.OWN]
    wanted = MachineDeploymentStatus(
        observed_generation=found.observed,
        replicas=found.replicas,
        updated_replicas=found.updated,
        ready_replicas=found.ready,
        available_replicas=found.available,
        preserved_failed_replicas=found.preserved,
        unavailable_replicas=found.unavailable,
        conditions=[*others, *ours] or None,
        collision_count=found.collisions,
        failed_machines=list(found.failed) or None,
    )
    before, after = (_whole(one) for one in (obj.status, wanted))
    changes = merge_changes(before, after)
    return {"metadata": same_version(obj), "status": changes} if changes else None


def collision_patch(obj: MachineDeployment, count: int) -> Patch | None:
    """Says how often the name of a set was taken; None where it says so."""
    if (obj.status.collision_count or 0) >= count:
        return None
    return {"metadata": same_version(obj), "status": {"collisionCount": count}}


def _whole(found: MachineDeploymentStatus) -> dict[str, Any]:
    """All fields that are not empty, in the order in which conditions are compared."""
    plain: dict[str, Any] = msgspec.to_builtins(found)
    plain = {key: value for key, value in plain.items() if value is not None}
    if conditions := plain.get("conditions"):
        plain["conditions"] = sorted(conditions, key=lambda one: str(one["type"]))
    return {
        one.encode_name: plain[one.encode_name]
        for one in msgspec.structs.fields(found)
        if one.encode_name in plain
    }


def _written(one: Condition) -> DeploymentCondition:
    return DeploymentCondition(
        type=one.type,
        status=one.status,
        last_update_time=format_time(one.updated) if one.updated else None,
        last_transition_time=format_time(one.since) if one.since else None,
        reason=one.reason,
        message=one.message,
    )


def _filled(found: Mapping[str, Any]) -> dict[str, Any]:
    """What says something: Go writes fields that are empty."""
    inner = {
        key: _filled(value) if isinstance(value, Mapping) else value for key, value in found.items()
    }
    return {key: value for key, value in inner.items() if value not in (None, "", {}, [])}


def _plain(found: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.to_builtins(found))


# --- what is read -----------------------------------------------------------------------------


def _status(found: MachineDeploymentStatus) -> DeploymentStatus:
    return DeploymentStatus(
        observed=found.observed_generation,
        replicas=found.replicas,
        updated=found.updated_replicas,
        ready=found.ready_replicas,
        available=found.available_replicas,
        preserved=found.preserved_failed_replicas,
        unavailable=found.unavailable_replicas,
        conditions=tuple(_condition(one) for one in found.conditions or ()),
        collisions=found.collision_count,
        failed=tuple(found.failed_machines or ()),
    )


def _condition(one: ObjectCondition) -> Condition:
    updated = one.last_update_time if isinstance(one, DeploymentCondition) else None
    return Condition(
        type=one.type,
        status=one.status,
        reason=one.reason,
        message=one.message,
        updated=moment(updated),
        since=moment(one.last_transition_time),
    )


def _most_kept(obj: MachineDeployment | MachineSet) -> int:
    return obj.spec.auto_preserve_failed_machine_max


def _seconds(found: int | None) -> float | None:
    return None if found is None else codec.limited_s(found)


def _strategy_faults(strategy: Strategy) -> Iterator[str]:
    where = "spec.strategy"
    if strategy.type not in _STRATEGIES:
        one_of = ", ".join(_STRATEGIES)
        yield f"{where}.type is {strategy.type!r}; it has to be one of {one_of}"
        return
    kind = _STRATEGIES[strategy.type]
    if kind is fleet.Strategy.RECREATE:
        return
    rolls = kind is fleet.Strategy.ROLLING
    name = "rollingUpdate" if rolls else "inPlaceUpdate"
    block = strategy.rolling_update if rolls else strategy.in_place_update
    if block is None:
        yield f"{where}.{name} is missing; give maxSurge and maxUnavailable"
        return
    amounts = {"maxSurge": block.max_surge, "maxUnavailable": block.max_unavailable}
    for key, value in amounts.items():
        if not bounds.is_amount(value):
            said = "missing" if value is None else repr(value)
            yield f"{where}.{name}.{key} is {said}; give a number, or a percentage such as 10%"
    update = strategy.in_place_update
    if not rolls and update is not None and update.orchestration_type not in _ORCHESTRATIONS:
        said = repr(update.orchestration_type)
        yield f"{where}.{name}.orchestrationType is {said}; it has to be Auto or Manual"

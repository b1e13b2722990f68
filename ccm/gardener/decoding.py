"""Decoding of Gardener's machine objects: documents to hub types. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ccm.base.parsing import parse_bool, parse_digits, parse_duration
from ccm.cloud.machines import IMPORT_ANNOTATION
from ccm.gardener import names
from ccm.gardener import types as documents
from ccm.machines import reasons, replicas
from ccm.machines.documents import (
    as_string_map,
    clamp_s,
    labels_of,
    selector_faults,
    to_phase,
    without_empty,
)
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.machines.settings import Names
from ccm.model import names as kubernetes
from ccm.model.machines import (
    Condition,
    DeploymentStatus,
    FailedMachine,
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    Operation,
    SetStatus,
    Strategy,
    Template,
)
from ccm.model.meta import KubeObject
from ccm.model.owners import controller_uid
from ccm.model.times import EPOCH, parse_optional_time

NAMES = Names(
    finalizer=names.FINALIZER,
    owner_finalizer=names.FINALIZER,
    secret_finalizer=names.FINALIZER_SECRET,
    priority=names.ANNOTATION_PRIORITY,
    default_priority=names.DEFAULT_PRIORITY,
    marked=names.ANNOTATION_MARKED,
    token_id=names.ANNOTATION_TOKEN_ID,
    origin=names.ANNOTATION_ORIGIN,
    creation=names.ANNOTATION_CREATION,
    deletion=names.ANNOTATION_DELETION,
    node_finalizer=names.FINALIZER_NODE,
    machine_label=names.LABEL_MACHINE_NAME,
    applied=names.ANNOTATION_APPLIED,
    applied_capacity=names.ANNOTATION_APPLIED_CAPACITY,
    unmanaged=names.ANNOTATION_NOT_MANAGED,
    critical_taint=names.TAINT_CRITICAL,
    old_taint=names.TAINT_OLD_SET,
    preserve=names.ANNOTATION_PRESERVE,
    preserve_of_node=names.ANNOTATION_PRESERVED,
    preserved_taint=names.TAINT_PRESERVED,
    preserved_condition=names.CONDITION_PRESERVED,
    preserved_by_us=names.REASON_PRESERVED_BY_US,
    preserved_by_user=names.REASON_PRESERVED_BY_USER,
    preservation_stopped=names.REASON_PRESERVED_NO_MORE,
    candidate=names.LABEL_CANDIDATE,
    selected=names.LABEL_SELECTED,
    update_result=names.LABEL_UPDATE_RESULT,
    update_successful=names.UPDATE_SUCCESSFUL,
    update_unsuccessful=names.UPDATE_FAILED,
    update_failed_reason=names.ANNOTATION_UPDATE_FAILED,
    update_condition=names.CONDITION_IN_PLACE,
    update_waiting=reasons.REASON_UPDATE_CANDIDATE,
    update_selected=reasons.REASON_UPDATE_SELECTED,
    update_drained=reasons.REASON_UPDATE_DRAINED,
    update_ready=reasons.REASON_UPDATE_READY,
    update_succeeded=reasons.REASON_UPDATE_SUCCESSFUL,
    update_failed=reasons.REASON_UPDATE_FAILED,
    freeze=names.LABEL_FREEZE,
    frozen=names.FROZEN,
    unfreeze=names.ANNOTATION_UNFREEZE,
    scale_up_disabled=names.LABEL_SCALE_UP_DISABLED,
    trigger=names.ANNOTATION_TRIGGER_DELETION,
    scaler_time=names.ANNOTATION_SCALER_TIME,
    revision=kubernetes.ANNOTATION_REVISION,
    revision_history=kubernetes.ANNOTATION_REVISION_HISTORY,
    desired=kubernetes.ANNOTATION_DESIRED_REPLICAS,
    most=kubernetes.ANNOTATION_MAX_REPLICAS,
    not_copied=frozenset(
        {
            kubernetes.ANNOTATION_LAST_APPLIED,
            kubernetes.ANNOTATION_REVISION,
            kubernetes.ANNOTATION_REVISION_HISTORY,
            kubernetes.ANNOTATION_DESIRED_REPLICAS,
            kubernetes.ANNOTATION_MAX_REPLICAS,
            names.TAINT_OLD_SET,
            names.ANNOTATION_UNFREEZE,
            names.ANNOTATION_TRIGGER_DELETION,
        }
    ),
    hold=kubernetes.ANNOTATION_SCALE_DOWN_DISABLED,
    hold_is_ours=kubernetes.ANNOTATION_SCALE_DOWN_DISABLED_BY_US,
)
"""Names of Gardener's API group."""

_STRATEGIES = {strategy.value: strategy for strategy in Strategy}
_MANUAL = "Manual"
_ORCHESTRATIONS = ("Auto", _MANUAL)
_ORDERED = msgspec.json.Encoder(order="deterministic")

SET_STATUS = {
    "observed": "observed_generation",
    "replicas": "replicas",
    "labeled": "fully_labeled_replicas",
    "ready": "ready_replicas",
    "available": "available_replicas",
    "preserved": "preserved_failed_replicas",
    "preserved_by_us": "auto_preserve_failed_machine_count",
}
DEPLOYMENT_STATUS = {
    "observed": "observed_generation",
    "replicas": "replicas",
    "updated": "updated_replicas",
    "ready": "ready_replicas",
    "available": "available_replicas",
    "preserved": "preserved_failed_replicas",
    "unavailable": "unavailable_replicas",
    "collisions": "collision_count",
}
"""Counts in the status of a set and of a deployment: field of the hub type -> field of the
document."""

# --- machines and classes ---------------------------------------------------------------------


def machine(obj: documents.Machine) -> Machine:
    """Convert a Machine document to the hub type."""
    spec, template, class_ = obj.spec, obj.spec.node_template.metadata or {}, obj.spec.class_
    unhealthy = tuple(
        condition_type.strip()
        for condition_type in spec.node_conditions.split(",")
        if condition_type.strip()
    )
    annotations, deployment = obj.annotations, obj.labels.get(names.LABEL_DEPLOYMENT, "")
    origins = annotations.get(names.ANNOTATION_ORIGIN, "")
    return Machine(
        metadata=obj.metadata,
        created=parse_optional_time(obj.metadata.creation_timestamp) or EPOCH,
        class_name=class_.name if class_.kind == names.CLASS_KIND else "",
        class_reference=(class_.api_group, class_.kind, class_.name),
        provider_id=spec.provider_id,
        node_name=obj.labels.get(names.LABEL_NODE, ""),
        status=_status(obj),
        # Machines without a deployment are grouped by the UID of their controller.
        group=deployment or controller_uid(obj),
        deployment=deployment,
        creation_timeout_s=_seconds(
            annotations.get(names.ANNOTATION_CREATION_TIMEOUT, "") or spec.creation_timeout
        ),
        health_timeout_s=_positive(spec.health_timeout),
        update_timeout_s=_positive(spec.in_place_update_timeout),
        never_fails=bool(spec.disable_health_timeout),
        preserve_timeout_s=_positive(spec.machine_preserve_timeout),
        creation_started=_creation_started(obj),
        origins=tuple(origins.split(",")) if origins else (),
        unhealthy_conditions=unhealthy or None,
        node_labels=as_string_map(template.get("labels")),
        node_annotations=as_string_map(template.get("annotations")),
        taints=tuple(spec.node_template.spec.taints or ()),
        force_drain=obj.labels.get(names.LABEL_FORCE_DRAIN) == "True",
        force_deletion=parse_bool(obj.labels.get(names.LABEL_FORCE_DELETION, "")) is True,
        drain_timeout_s=_seconds(spec.drain_timeout),
        max_evict_retries=spec.max_evict_retries,
        priority=_priority(annotations.get(names.ANNOTATION_PRIORITY, "")),
        marked=parse_optional_time(annotations.get(names.ANNOTATION_MARKED)),
        preserve=annotations.get(names.ANNOTATION_PRESERVE, ""),
        preserve_of_node=annotations.get(names.ANNOTATION_PRESERVED, ""),
        was_moved=obj.labels.get(names.LABEL_UPDATE_RESULT) == names.UPDATE_SUCCESSFUL,
        source=obj,
    )


def machine_class(obj: documents.MachineClass) -> MachineClass:
    """Convert a MachineClass document to the hub type."""
    template = obj.node_template or documents.ClassNodeTemplate()
    imports = obj.annotations.get(IMPORT_ANNOTATION, "")
    return MachineClass(
        metadata=obj.metadata,
        provider=obj.provider,
        provider_spec=obj.spec,
        secrets=tuple((secret.namespace or obj.namespace, secret.name) for secret in obj.secrets),
        imports=frozenset(provider_id.strip() for provider_id in imports.split(",")) - {""},
        extra_capacity=as_string_map(template.virtual_capacity),
        place=(template.instance_type, template.zone),
        region=template.region,
        is_held=names.FINALIZER in obj.finalizers,
        gaps=tuple(_gaps(obj)),
        conditions=_conditions(obj.status.conditions),
        source=obj,
    )


def _gaps(obj: documents.MachineClass) -> Iterator[str]:
    if (template := obj.node_template) is None:
        return
    where = f"MachineClass {obj.name}: nodeTemplate"
    for key in ("cpu", "gpu", "memory"):
        if key not in (template.capacity or {}):
            yield f"{where}.capacity.{key} is missing; set the amount, 0 for none"
    place = {"instanceType": template.instance_type, "region": template.region}
    for name, value in {**place, "zone": template.zone}.items():
        if not value:
            yield f"{where}.{name} is empty; set it"


def _status(obj: documents.Machine) -> MachineStatus:
    status, current, last = obj.status, obj.status.current_status, obj.status.last_operation
    return MachineStatus(
        phase=to_phase(current.phase),
        description=last.description,
        code=last.error_code,
        state=last.state,
        kind=last.type,
        timeout_active=current.timeout_active,
        since=parse_optional_time(current.last_update_time),
        preserve_until=parse_optional_time(current.preserve_expiry_time),
        updated=parse_optional_time(last.last_update_time),
        known_state=_known_state(obj),
        addresses=tuple(status.addresses or ()),
        conditions=tuple(status.conditions or ()),
    )


def _creation_started(obj: documents.Machine) -> bool:
    """Return whether the object records that the creation of its own VM started.

    A copy that was restored from a backup has the annotation, but neither the UID nor the owners
    that the annotation refers to.
    """
    recorded = obj.annotations.get(names.ANNOTATION_CREATION)
    if not recorded:
        # Checked first: machines are decoded often, and most of them lack the annotation.
        return is_recorded_in_state(obj)
    owners = (owner.uid for owner in obj.metadata.owner_references or ())
    return recorded in (obj.uid, *owners) or is_recorded_in_state(obj)


def is_recorded_in_state(obj: documents.Machine) -> bool:
    stored = obj.status.last_known_state
    if not stored:
        return False
    begins, _, _ = stored.partition(" ")
    return begins == f"{names.STATE_CREATION}{obj.uid}"


def _known_state(obj: documents.Machine) -> str:
    """Return the driver's last known state, without the prefix that an earlier release wrote."""
    stored = obj.status.last_known_state
    return stored.partition(" ")[2] if stored.startswith(names.STATE_CREATION) else stored


def _priority(text: str) -> int:
    value = parse_digits(text[1:] if text.startswith(("+", "-")) else text)
    if value is None:
        return DEFAULT_PRIORITY
    return -value if text.startswith("-") else value


def _seconds(text: str) -> float | None:
    """Return a duration in seconds; None = missing or unreadable: the flag applies."""
    try:
        return parse_duration(text).total_seconds() if text else None
    except ValueError:
        return None


def _positive(text: str) -> float | None:
    """Return a duration in seconds; None = missing, unreadable or not positive: the flag applies.

    With a timeout of 0, a machine would fail as soon as its node is unhealthy for a moment.
    """
    seconds = _seconds(text)
    return seconds if seconds is not None and seconds > 0 else None


# --- sets and deployments -----------------------------------------------------------------------


def machine_set(obj: documents.MachineSet) -> MachineSet:
    """Convert a MachineSet document to the hub type."""
    spec, status, labels = obj.spec, obj.status, obj.labels
    return MachineSet(
        **_owner(obj, spec),
        faults=tuple(_faults(spec)),
        created=parse_optional_time(obj.metadata.creation_timestamp) or EPOCH,
        may_grow=not (_is_frozen(obj) or names.LABEL_SCALE_UP_DISABLED in labels),
        scaled=parse_optional_time(obj.annotations.get(names.ANNOTATION_SCALER_TIME)),
        status=SetStatus(
            conditions=_conditions(status.conditions),
            last=_operation(status.last_operation),
            failed=_failed(status.failed_machines),
            **{hub_field: getattr(status, field) for hub_field, field in SET_STATUS.items()},
        ),
    )


def machine_deployment(obj: documents.MachineDeployment) -> MachineDeployment:
    """Convert a MachineDeployment document to the hub type."""
    spec, status, strategy = obj.spec, obj.status, obj.spec.strategy.effective()
    in_place, kind = strategy.in_place_update, _STRATEGIES.get(strategy.type)
    block = in_place if kind is Strategy.IN_PLACE else strategy.rolling_update
    deadline = spec.progress_deadline_seconds
    return MachineDeployment(
        **_owner(obj, spec),
        faults=(*_faults(spec), *_strategy_faults(strategy)),
        strategy=kind,
        strategy_type=strategy.type,
        max_surge=(block.max_surge if block else None) or 0,
        max_unavailable=(block.max_unavailable if block else None) or 0,
        is_manual=in_place is not None and in_place.orchestration_type == _MANUAL,
        is_paused=spec.paused,
        deadline_s=None if deadline is None else clamp_s(deadline),
        history_limit=spec.revision_history_limit,
        rollback_to=spec.rollback_to.revision if spec.rollback_to is not None else None,
        status=DeploymentStatus(
            conditions=_conditions(status.conditions),
            failed=_failed(status.failed_machines),
            **{hub_field: getattr(status, field) for hub_field, field in DEPLOYMENT_STATUS.items()},
        ),
    )


def _owner(
    obj: documents.MachineSet | documents.MachineDeployment,
    spec: documents.MachineSetSpec | documents.MachineDeploymentSpec,
) -> dict[str, Any]:
    return {
        "metadata": obj.metadata,
        "replicas": spec.replicas,
        "template": _template(
            spec.template, (spec.min_ready_seconds, spec.auto_preserve_failed_machine_max)
        ),
        "selector": spec.selector,
        "min_ready_s": clamp_s(spec.min_ready_seconds),
        "max_preserved": spec.auto_preserve_failed_machine_max,
        "is_frozen": _is_frozen(obj),
        "wants_unfreeze": names.ANNOTATION_UNFREEZE in obj.annotations,
        "source": obj,
    }


def _is_frozen(obj: KubeObject) -> bool:
    return obj.labels.get(names.LABEL_FREEZE) == names.FROZEN


def _template(template: documents.MachineTemplateSpec, settings: Sequence[int]) -> Template:
    labels, class_ = labels_of(template), template.spec.class_
    metadata = without_empty(template.metadata or {})
    marks = {key: text for key, text in labels.items() if key != names.LABEL_TEMPLATE_HASH}
    spec = without_empty(msgspec.to_builtins(template.spec))
    class_fields = dict(spec.pop("class", {}))
    kind = class_fields.pop("kind", "")
    decides = [metadata | {"labels": marks}, class_fields, spec.pop("providerID", "")]
    return Template(
        essence=_ORDERED.encode(decides).decode(),
        rest=_ORDERED.encode([kind, spec, *settings]).decode(),
        labels=labels,
        class_name=class_.name,
        class_reference=(class_.api_group, class_.kind, class_.name),
        source=template,
    )


def _faults(spec: documents.MachineSetSpec | documents.MachineDeploymentSpec) -> Iterator[str]:
    """Yield the reasons why a set or a deployment is invalid.

    A set whose selector does not match its template's labels would create machines endlessly,
    because it counts none of them. An empty selector would adopt every orphaned machine.
    """
    if spec.replicas < 0:
        yield f"spec.replicas is {spec.replicas}; it must be 0 or more"
    yield from selector_faults(spec.selector, labels_of(spec.template))
    class_ = spec.template.spec.class_
    if class_.kind != names.CLASS_KIND:
        yield f"spec.template.spec.class.kind is {class_.kind!r}; it must be {names.CLASS_KIND}"
    if not class_.name:
        yield f"spec.template.spec.class.name is empty; set the name of a {names.CLASS_KIND}"


def _strategy_faults(strategy: documents.Strategy) -> Iterator[str]:
    where = "spec.strategy"
    if strategy.type not in _STRATEGIES:
        one_of = ", ".join(_STRATEGIES)
        yield f"{where}.type is {strategy.type!r}; it must be one of {one_of}"
        return
    kind = _STRATEGIES[strategy.type]
    if kind is Strategy.RECREATE:
        return
    rolls = kind is Strategy.ROLLING
    name = "rollingUpdate" if rolls else "inPlaceUpdate"
    block = strategy.rolling_update if rolls else strategy.in_place_update
    if block is None:
        yield f"{where}.{name} is missing; set maxSurge and maxUnavailable"
        return
    amounts = {"maxSurge": block.max_surge, "maxUnavailable": block.max_unavailable}
    for key, value in amounts.items():
        if not replicas.is_amount(value):
            present = "missing" if value is None else repr(value)
            yield f"{where}.{name}.{key} is {present}; set a number, or a percentage such as 10%"
    update = strategy.in_place_update
    if not rolls and update is not None and update.orchestration_type not in _ORCHESTRATIONS:
        present = repr(update.orchestration_type)
        yield f"{where}.{name}.orchestrationType is {present}; it must be Auto or Manual"


def _conditions(conditions: Iterable[documents.ObjectCondition] | None) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            updated=parse_optional_time(getattr(condition, "last_update_time", None)),
            since=parse_optional_time(condition.last_transition_time),
        )
        for condition in conditions or ()
    )


def _operation(operation: documents.LastOperation) -> Operation:
    return Operation(
        description=operation.description,
        code=operation.error_code,
        state=operation.state,
        kind=operation.type,
        updated=parse_optional_time(operation.last_update_time),
    )


def _failed(machines: Iterable[documents.MachineSummary] | None) -> tuple[FailedMachine, ...]:
    return tuple(
        FailedMachine(
            name=machine.name,
            provider_id=machine.provider_id,
            owner=machine.owner_ref,
            operation=_operation(machine.last_operation),
        )
        for machine in machines or ()
    )

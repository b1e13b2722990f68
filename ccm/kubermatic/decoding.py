"""Decoding of Kubermatic's machine objects: documents to hub types. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ccm.cloud.configvar import references
from ccm.cloud.errors import code_of, parse_error
from ccm.cloud.kubermatic import ErrorReason
from ccm.kubermatic import names
from ccm.kubermatic import types as documents
from ccm.machines import replicas
from ccm.machines.documents import (
    as_string_map,
    clamp_s,
    labels_of,
    selector_faults,
    to_phase,
    without_empty,
)
from ccm.machines.reasons import CONDITION_SPEC_VALID
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.machines.settings import Names
from ccm.model import ObjectMeta
from ccm.model import names as kubernetes
from ccm.model.machines import (
    DeploymentStatus,
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    OperationState,
    SetStatus,
    Strategy,
    Template,
)
from ccm.model.owners import controller_of
from ccm.model.times import EPOCH, parse_optional_time

NAMES = Names(
    finalizer=names.FINALIZER_MACHINE,
    second_finalizer=names.FINALIZER_NODE,
    owner_finalizer=names.FINALIZER_FOREGROUND,
    origin=names.ANNOTATION_ORIGIN,
    creation=names.ANNOTATION_CREATION,
    deletion=names.ANNOTATION_DELETION,
    former_uid=names.ANNOTATION_FORMER_UID,
    uid_label=names.LABEL_OWNED_BY,
    key_annotation=names.ANNOTATION_NODE_MACHINE,
    skip_eviction=names.ANNOTATION_SKIP_EVICTION,
    revision=names.ANNOTATION_REVISION,
    revision_history=names.ANNOTATION_REVISION_HISTORY,
    desired=names.ANNOTATION_DESIRED,
    most=names.ANNOTATION_MAX,
    not_copied=frozenset(
        {
            kubernetes.ANNOTATION_LAST_APPLIED,
            names.ANNOTATION_REVISION,
            names.ANNOTATION_REVISION_HISTORY,
            names.ANNOTATION_DESIRED,
            names.ANNOTATION_MAX,
        }
    ),
)
"""Names of Kubermatic's API group."""

CODES = {
    ErrorReason.INVALID_CONFIGURATION: "InvalidArgument",
    ErrorReason.INSUFFICIENT_RESOURCES: "ResourceExhausted",
    ErrorReason.UNSUPPORTED_CHANGE: "FailedPrecondition",
    ErrorReason.CREATE: "AlreadyExists",
    ErrorReason.DELETE: "Internal",
}
"""`errorReason` -> error code of the hub type."""

SPEC_FAULT = "FailedPrecondition"
"""Error code of a machine whose spec makes calls to the cloud impossible. The description of the
last operation is then a fault of the spec, not an error of the cloud."""

DEFAULT_SURGE, DEFAULT_UNAVAILABLE = 1, 0
"""Default bounds of a rolling update (Kubermatic)."""

DEFAULT_HISTORY = 1
"""Default of `revisionHistoryLimit` (Kubermatic)."""

SET_STATUS = {
    "observed": "observed_generation",
    "replicas": "replicas",
    "labeled": "fully_labeled_replicas",
    "ready": "ready_replicas",
    "available": "available_replicas",
}
DEPLOYMENT_STATUS = {
    "observed": "observed_generation",
    "replicas": "replicas",
    "updated": "updated_replicas",
    "ready": "ready_replicas",
    "available": "available_replicas",
    "unavailable": "unavailable_replicas",
}
"""Counts in the status of a set and of a deployment: field of the hub type -> field of the
document."""

ORDERED = msgspec.json.Encoder(order="deterministic")
"""Encoder of templates, and of `providerStatus`, to text."""

_POLICIES = ("", "Random", "Newest", "Oldest")

# --- machines -------------------------------------------------------------------------------------


def machine(obj: documents.Machine) -> Machine:
    """Convert a Machine document to the hub type."""
    spec, metadata = obj.spec, obj.spec.metadata or {}
    owner = controller_of(obj)
    provider_id, is_unlisted = spec.provider_id or "", _is_claimed_by_other(obj)
    node_ref = obj.status.node_ref
    goes_first = bool(obj.annotations.get(names.ANNOTATION_DELETE_FIRST))
    origins = obj.annotations.get(names.ANNOTATION_ORIGIN, "")
    return Machine(
        metadata=obj.metadata,
        created=parse_optional_time(obj.metadata.creation_timestamp) or EPOCH,
        class_name=owner.name if owner is not None else "",
        provider_id=provider_id,
        node_name=node_ref.name if node_ref is not None else "",
        status=_status(obj),
        group=owner.uid if owner is not None else "",
        creation_started=is_unlisted or _creation_started(obj),
        may_be_unlisted=is_unlisted,
        origins=tuple(origins.split(",")) if origins else (),
        node_labels=as_string_map(metadata.get("labels")),
        node_annotations=as_string_map(metadata.get("annotations")),
        taints=tuple(spec.taints or ()),
        priority=DEFAULT_PRIORITY - goes_first,
        vm_name=str(metadata.get("name") or ""),
        kubelet_version=spec.versions.kubelet,
        own_class=_own_class(obj, owner.name if owner is not None else obj.name),
        source=obj,
    )


def _own_class(obj: documents.Machine, name: str) -> MachineClass:
    """Return the class that a machine contains; all machines of a set contain the same class."""
    value = obj.spec.provider_spec.value
    gaps = () if value else ("spec.providerSpec.value is missing; set cloudProvider",)
    provider = (value or {}).get("cloudProvider")
    return MachineClass(
        metadata=ObjectMeta(name=name, namespace=obj.namespace),
        provider=provider if isinstance(provider, str) else "",
        provider_field="spec.providerSpec.value.cloudProvider",
        provider_spec=value or {},
        references=tuple(references(value or {})),
        gaps=gaps,
        source=obj,
    )


def _status(obj: documents.Machine) -> MachineStatus:
    status = obj.status
    last = status.last_operation or documents.LastOperation()
    return MachineStatus(
        phase=to_phase(status.phase or ""),
        description=last.description,
        code=_code(status, last),
        state=last.state,
        kind=last.type,
        since=parse_optional_time(status.last_updated),
        updated=parse_optional_time(last.last_updated),
        known_state=_known_state(status.provider_status),
        addresses=tuple(status.addresses or ()),
        conditions=tuple(
            condition
            for condition in status.conditions or ()
            if condition.type != CONDITION_SPEC_VALID
        ),
    )


def _code(status: documents.MachineStatus, last: documents.LastOperation) -> str:
    """Return the error code of the last operation; empty = none.

    Several codes share an `errorReason`, and transient errors have none, so the description counts
    first. If this code differed from the one that was written, each retry would write the status.
    """
    if last.state == OperationState.FAILED.value:
        if error := parse_error(last.description):
            return code_of(error).name
        return SPEC_FAULT if status.error_reason else ""
    return CODES.get(status.error_reason, "") if status.error_reason else ""  # type: ignore[call-overload]


def _known_state(state: Any) -> str:
    if state is None or isinstance(state, str):
        return state or ""
    return ORDERED.encode(state).decode()


def _creation_started(obj: documents.Machine) -> bool:
    """Return whether the object records that the creation of its own instance started.

    A copy that was restored from a backup has the annotation, but neither the UID nor the owners
    that the annotation refers to.
    """
    owners = (owner.uid for owner in obj.metadata.owner_references or ())
    return obj.annotations.get(names.ANNOTATION_CREATION) in (obj.uid, *owners)


def _is_claimed_by_other(obj: documents.Machine) -> bool:
    """Return whether Kubermatic's machine-controller may have created the instance.

    The only record of such a creation is the finalizer that this program sets on the object.
    """
    is_recorded = bool(obj.annotations.get(names.ANNOTATION_CREATION))
    has_finalizer = names.FINALIZER_MACHINE in obj.finalizers
    return has_finalizer and not (is_recorded or obj.spec.provider_id)


# --- sets and deployments -------------------------------------------------------------------------


def machine_set(obj: documents.MachineSet) -> MachineSet:
    """Convert a MachineSet document to the hub type."""
    spec, status = obj.spec, obj.status
    return MachineSet(
        **_owner(obj, spec),
        faults=(*_faults(spec), *_policy_faults(spec.delete_policy)),
        created=parse_optional_time(obj.metadata.creation_timestamp) or EPOCH,
        # Any machine may count as random: the oldest is deleted first, as by default.
        deletes_newest=spec.delete_policy == "Newest",
        status=SetStatus(
            **{hub_field: getattr(status, field) for hub_field, field in SET_STATUS.items()}
        ),
    )


def machine_deployment(obj: documents.MachineDeployment) -> MachineDeployment:
    """Convert a MachineDeployment document to the hub type."""
    spec, status = obj.spec, obj.status
    strategy = spec.strategy or documents.Strategy()
    bounds = strategy.rolling_update or documents.UpdateBounds()
    surge = DEFAULT_SURGE if bounds.max_surge is None else bounds.max_surge
    unavailable = DEFAULT_UNAVAILABLE if bounds.max_unavailable is None else bounds.max_unavailable
    is_rolling = strategy.type in ("", Strategy.ROLLING.value)
    history = spec.revision_history_limit
    return MachineDeployment(
        **_owner(obj, spec),
        faults=(*_faults(spec), *_strategy_faults(strategy.type, surge, unavailable)),
        strategy=Strategy.ROLLING if is_rolling else None,
        strategy_type=strategy.type or Strategy.ROLLING.value,
        max_surge=surge,
        max_unavailable=unavailable,
        is_paused=spec.paused,
        history_limit=DEFAULT_HISTORY if history is None else history,
        status=DeploymentStatus(
            **{hub_field: getattr(status, field) for hub_field, field in DEPLOYMENT_STATUS.items()}
        ),
    )


def _owner(
    obj: documents.MachineSet | documents.MachineDeployment,
    spec: documents.MachineSetSpec | documents.MachineDeploymentSpec,
) -> dict[str, Any]:
    min_ready_s = spec.min_ready_seconds or 0
    return {
        "metadata": obj.metadata,
        "replicas": 1 if spec.replicas is None else spec.replicas,
        "template": _template(spec.template, min_ready_s),
        "selector": spec.selector,
        "min_ready_s": clamp_s(min_ready_s),
        "source": obj,
    }


def _template(template: documents.MachineTemplateSpec, min_ready_s: int) -> Template:
    """Return a template; a change of its `essence` replaces the machines."""
    labels = labels_of(template)
    metadata = without_empty(template.metadata or {})
    marks = {key: text for key, text in labels.items() if key != names.LABEL_TEMPLATE_HASH}
    spec = without_empty(msgspec.to_builtins(template.spec))
    return Template(
        essence=ORDERED.encode([metadata | {"labels": marks}, spec]).decode(),
        rest=str(min_ready_s),
        labels=labels,
        source=template,
    )


def _faults(spec: documents.MachineSetSpec | documents.MachineDeploymentSpec) -> Iterator[str]:
    if (spec.replicas or 0) < 0:
        yield f"spec.replicas is {spec.replicas}; it must be 0 or more"
    yield from selector_faults(spec.selector, labels_of(spec.template))


def _policy_faults(policy: str) -> Iterator[str]:
    if policy not in _POLICIES:
        yield f"spec.deletePolicy is {policy!r}; it must be Random, Newest or Oldest"


def _strategy_faults(kind: str, surge: int | str, unavailable: int | str) -> Iterator[str]:
    where = "spec.strategy"
    if kind not in ("", Strategy.ROLLING.value):
        yield f"{where}.type is {kind!r}; it must be {Strategy.ROLLING.value}"
        return
    for key, value in {"maxSurge": surge, "maxUnavailable": unavailable}.items():
        if not replicas.is_amount(value):
            yield (
                f"{where}.rollingUpdate.{key} is {value!r}; set a number, or a percentage such as "
                "10%"
            )

"""The codec of machines: documents of this API group to hub types, and back as patches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from ccm.base.credentials import MOST_BYTES
from ccm.base.parsing import parse_bool, parse_digits, parse_duration
from ccm.cloud.machines import IMPORT_ANNOTATION, Credentials
from ccm.gardener import names
from ccm.gardener import types as documents
from ccm.gardener.templates import texts
from ccm.gardener.types import ClassNodeTemplate, MachineClass
from ccm.machines.classes import ClassView
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.machines.settings import Names
from ccm.model import Secret
from ccm.model import names as kubernetes
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.names import STATUS_FALSE
from ccm.model.patches import Patch, same_object, same_version
from ccm.model.times import format_time, moment

USER_DATA = "userData"
"""Key of a class's Secret: what VMs are booted with."""

_CAPACITY = ("cpu", "gpu", "memory")
_PLACE = ("instance_type", "region", "zone")
"""What `nodeTemplate` needs for the autoscaler to make use of it (reference)."""

NAMES = Names(
    finalizer=names.FINALIZER,
    priority=names.ANNOTATION_PRIORITY,
    default_priority=names.DEFAULT_PRIORITY,
    marked=names.ANNOTATION_MARKED,
    token_id=names.ANNOTATION_TOKEN_ID,
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
    update_waiting=names.REASON_UPDATE_CANDIDATE,
    update_selected=names.REASON_UPDATE_SELECTED,
    update_drained=names.REASON_UPDATE_DRAINED,
    update_ready=names.REASON_UPDATE_READY,
    update_succeeded=names.REASON_UPDATE_SUCCESSFUL,
    update_failed=names.REASON_UPDATE_FAILED,
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
"""Names of this API group."""

_MOST_ORIGINS = 4
"""Maximum number of origins that are recorded for a VM. Former origins connect VMs of one project,
of which only some were seen after a rotation. With more of them, two are likelier equal by
chance."""

_MOST_S = 2**31 - 1

_ORDERED = msgspec.json.Encoder(order="deterministic")
_NEVER = datetime.fromtimestamp(0, UTC)


def machine(obj: documents.Machine) -> Machine:
    """Convert a document."""
    spec, template, made_of = obj.spec, obj.spec.node_template.metadata or {}, obj.spec.class_
    unhealthy = tuple(one.strip() for one in spec.node_conditions.split(",") if one.strip())
    annotations = obj.annotations
    return Machine(
        metadata=obj.metadata,
        created=moment(obj.metadata.creation_timestamp) or _NEVER,
        class_name=made_of.name if made_of.kind == names.CLASS_KIND else "",
        class_reference=(made_of.api_group, made_of.kind, made_of.name),
        provider_id=spec.provider_id,
        node_name=obj.labels.get(names.LABEL_NODE, ""),
        status=_status(obj),
        group=_group(obj),
        deployment=obj.labels.get(names.LABEL_DEPLOYMENT, ""),
        creation_timeout_s=_seconds(
            annotations.get(names.ANNOTATION_CREATION_TIMEOUT, "") or spec.creation_timeout
        ),
        health_timeout_s=_positive(spec.health_timeout),
        update_timeout_s=_positive(spec.in_place_update_timeout),
        never_fails=bool(spec.disable_health_timeout),
        preserve_timeout_s=_positive(spec.machine_preserve_timeout),
        creation_started=_creation_started(obj),
        origins=_origins(obj),
        unhealthy_conditions=unhealthy or None,
        node_labels=texts(template.get("labels")),
        node_annotations=texts(template.get("annotations")),
        taints=tuple(spec.node_template.spec.taints or ()),
        force_drain=obj.labels.get(names.LABEL_FORCE_DRAIN) == "True",
        force_deletion=parse_bool(obj.labels.get(names.LABEL_FORCE_DELETION, "")) is True,
        drain_timeout_s=_seconds(spec.drain_timeout),
        max_evict_retries=spec.max_evict_retries,
        priority=_priority(annotations.get(names.ANNOTATION_PRIORITY, "")),
        marked=moment(annotations.get(names.ANNOTATION_MARKED)),
        preserve=annotations.get(names.ANNOTATION_PRESERVE, ""),
        preserve_of_node=annotations.get(names.ANNOTATION_PRESERVED, ""),
        was_moved=obj.labels.get(names.LABEL_UPDATE_RESULT) == names.UPDATE_SUCCESSFUL,
        source=obj,
    )


def machine_class(
    obj: MachineClass,
    secret: Callable[[str, str], Secret | None],
    *,
    providers: Collection[str],
) -> ClassView:
    """Return the class in neutral terms.

    Args:
        obj: the class.
        secret: finds a Secret by namespace and name.
        providers: values of `provider` that the driver accepts.
    """
    data: dict[str, bytes] = {}
    lacking: list[str] = []
    for reference in obj.secrets:
        namespace = reference.namespace or obj.namespace
        who = f"Secret {namespace}/{reference.name}, to which MachineClass {obj.name} refers,"
        found = secret(namespace, reference.name)
        if namespace != obj.namespace:
            lacking.append(f"{who} has to be in the namespace of the class, {obj.namespace}")
        elif found is None:
            lacking.append(f"{who} does not exist; create it")
        else:
            given = found.data or {}
            data |= given
            lacking += (
                f"{who} has {len(value)} bytes in {key}; a credential has at most {MOST_BYTES}"
                for key, value in given.items()
                if key != USER_DATA and len(value) > MOST_BYTES
            )
    template = obj.node_template or ClassNodeTemplate()
    faults = (*class_faults(obj, providers), *lacking)
    # User data are among them, as drivers of the origin know them.
    credentials = Credentials(data)
    spec = _ORDERED.encode(obj.spec).decode()
    imports = obj.annotations.get(IMPORT_ANNOTATION, "")
    return ClassView(
        name=obj.name,
        provider_spec=obj.spec,
        credentials=credentials,
        user_data=data.get(USER_DATA, b""),
        faults=faults,
        lacking=tuple(lacking),
        origin=_origin(obj, data),
        is_held=names.FINALIZER in obj.finalizers,
        imports=frozenset(one.strip() for one in imports.split(",")) - {""},
        extra_capacity=texts(template.virtual_capacity),
        place=(template.instance_type, template.zone),
        # Not that of the object: what we write on it ourselves is nothing new.
        version=(obj.uid, spec, credentials.digest, imports, *faults),
    )


def no_class(name: str, namespace: str) -> ClassView:
    """What stands for a class that is not there: it says so."""
    fault = f"MachineClass {namespace}/{name} does not exist; create it, or correct spec.class.name"
    if not name:
        fault = f"spec.class needs the kind {names.CLASS_KIND} and a name"
    return ClassView(
        name=name,
        provider_spec={},
        credentials=Credentials({}),
        faults=(fault,),
        lacking=(fault,),
    )


def _origin(obj: MachineClass, data: Mapping[str, bytes]) -> str:
    """See `ClassView.origin`. Four digits tell that something is another, and not what it is."""
    template = obj.node_template or ClassNodeTemplate()
    region = f"{template.region}/{obj.spec.get('region', '')}"
    where = {key: value for key, value in data.items() if key != USER_DATA}
    return Credentials({**where, "": region.encode()}).digest[:4]


def _origins(obj: documents.Machine) -> tuple[str, ...]:
    recorded = obj.annotations.get(names.ANNOTATION_ORIGIN, "")
    return tuple(recorded.split(",")) if recorded else ()


def class_faults(obj: MachineClass, providers: Collection[str]) -> Iterator[str]:
    """What is wrong with a class, one sentence each."""
    if obj.provider and obj.provider.casefold() not in map(str.casefold, providers):
        accepted = " or ".join(repr(one) for one in sorted(providers))
        yield (
            f"MachineClass {obj.name}: provider is {obj.provider!r}, and the driver in use serves "
            f"{accepted}; correct the field, or remove it"
        )
    template = obj.node_template
    if template is None:
        return
    where = f"MachineClass {obj.name}: nodeTemplate"
    for key in _CAPACITY:
        if key not in (template.capacity or {}):
            yield f"{where}.capacity.{key} is missing; give the amount, 0 for none"
    for field in _PLACE:
        if not getattr(template, field):
            yield f"{where}.{_camel(field)} is empty; say which"


def class_refusals(obj: MachineClass) -> Sequence[str]:
    """What the driver refuses about a class, as the condition of its controller says."""
    return [
        one.message
        for one in obj.status.conditions or ()
        if (one.type, one.status) == (names.CONDITION_SPEC_VALID, STATUS_FALSE)
    ]


def status_patch(obj: Machine, status: MachineStatus) -> Patch:
    """The patch of the status that says this, and leaves alone what we know nothing of."""
    before: documents.MachineStatus = obj.source.status
    phase = status.phase.value
    if status.phase is Phase.FOREIGN:
        phase = before.current_status.phase
    found = {
        "currentStatus": {
            "phase": phase,
            "timeoutActive": status.timeout_active,
            "lastUpdateTime": _text(status.since),
            "preserveExpiryTime": _text(status.preserve_until),
        },
        "lastOperation": {
            "description": status.description,
            "errorCode": status.code or None,
            "state": status.state,
            "type": status.kind,
            "lastUpdateTime": _text(status.updated),
        },
        "lastKnownState": state_to_store(obj, status.known_state) or None,
    }
    lists = {"addresses": status.addresses, "conditions": status.conditions}
    for key, entries in lists.items():
        if entries or getattr(before, key):
            found[key] = [msgspec.to_builtins(one) for one in entries] or None
    return {"metadata": same_object(obj) | same_version(obj), "status": found}


def preserve_patch(obj: Machine, until: datetime | None) -> Patch:
    """The patch of the status that says until when the machine is kept; None: no longer."""
    found = {"currentStatus": {"preserveExpiryTime": _text(until)}}
    return {"metadata": same_object(obj) | same_version(obj), "status": found}


def identity_patch(obj: Machine, provider_id: str, node_name: str, origin: str) -> Patch:
    """The patch that says which VM is the machine's, and with what it was made."""
    metadata = same_object(obj) | same_version(obj)
    if origin and not obj.provider_id:
        metadata["annotations"] = {names.ANNOTATION_ORIGIN: origin}
    if provider_id and names.ANNOTATION_CREATION in obj.annotations:
        # The stored provider ID replaces the record.
        metadata.setdefault("annotations", {})[names.ANNOTATION_CREATION] = None
    if node_name:
        metadata["labels"] = {names.LABEL_NODE: node_name}
    return {"metadata": metadata, "spec": {"providerID": provider_id}}


def origin_patch(obj: Machine, origin: str) -> Patch | None:
    """Return the patch that records another origin that shows the VM; None: there is none.

    Without a record, the project of the VM is unknown, and one more origin would not tell it.
    """
    before = obj.origins
    if not before or origin in before:
        return None
    recorded = ",".join((*before, origin)[-_MOST_ORIGINS:])
    metadata = same_object(obj) | same_version(obj)
    return {"metadata": metadata | {"annotations": {names.ANNOTATION_ORIGIN: recorded}}}


def _status(obj: documents.Machine) -> MachineStatus:
    found, current, last = obj.status, obj.status.current_status, obj.status.last_operation
    return MachineStatus(
        phase=_phase(current.phase),
        description=last.description,
        code=last.error_code,
        state=last.state,
        kind=last.type,
        timeout_active=current.timeout_active,
        since=moment(current.last_update_time),
        preserve_until=moment(current.preserve_expiry_time),
        updated=moment(last.last_update_time),
        known_state=_known_state(obj),
        addresses=tuple(found.addresses or ()),
        conditions=tuple(found.conditions or ()),
    )


def _phase(text: str) -> Phase:
    try:
        return Phase(text)
    except ValueError:
        return Phase.FOREIGN


def _group(obj: documents.Machine) -> str:
    """Its deployment; without one, whoever controls it."""
    owners = obj.metadata.owner_references or ()
    others = (one.uid for one in owners if one.controller)
    return obj.labels.get(names.LABEL_DEPLOYMENT, "") or next(others, "")


def _creation_started(obj: documents.Machine) -> bool:
    """Return whether the object records a creation of its own: a restored copy has the annotation
    too, but another UID, and none of the original's owners.
    """
    recorded = obj.annotations.get(names.ANNOTATION_CREATION)
    if not recorded:
        # First, as machines are viewed very often, and most have their VM.
        return _is_recorded_in_state(obj)
    owners = (one.uid for one in obj.metadata.owner_references or ())
    return recorded in (obj.uid, *owners) or _is_recorded_in_state(obj)


def _is_recorded_in_state(obj: documents.Machine) -> bool:
    stored = obj.status.last_known_state
    if not stored:
        return False
    begins, _, _ = stored.partition(" ")
    return begins == f"{names.STATE_CREATION}{obj.uid}"


def _known_state(obj: documents.Machine) -> str:
    """Return the driver's last known state, without the record of an earlier release."""
    stored = obj.status.last_known_state
    return stored.partition(" ")[2] if stored.startswith(names.STATE_CREATION) else stored


def state_to_store(obj: Machine, state: str) -> str:
    """Return the value of `lastKnownState` for a driver's state.

    The record of an earlier release stays in it until the provider ID is stored: it may be the only
    one.
    """
    if _is_recorded_in_state(obj.source) and not obj.provider_id:
        return f"{names.STATE_CREATION}{obj.uid} {state}"
    return state


def _text(moment: datetime | None) -> str | None:
    return format_time(moment) if moment is not None else None


def limited_s(seconds: int) -> float:
    """Return the seconds of a field of 32 bits; another definition than ours may let more through,
    and no moment is so far away.
    """
    return float(max(-_MOST_S, min(seconds, _MOST_S)))


def _priority(text: str) -> int:
    is_negative = text.startswith("-")
    found = parse_digits(text[1:] if text.startswith(("+", "-")) else text)
    if found is None:
        return DEFAULT_PRIORITY
    return -found if is_negative else found


def _seconds(text: str) -> float | None:
    """A duration; None where there is none, or none that can be read: the flag counts."""
    try:
        return parse_duration(text).total_seconds() if text else None
    except ValueError:
        return None


def _positive(text: str) -> float | None:
    """A duration that a machine sets itself. One of nothing is none: it would end the machine at
    the first hiccup of its node.
    """
    seconds = _seconds(text)
    return seconds if seconds is not None and seconds > 0 else None


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)

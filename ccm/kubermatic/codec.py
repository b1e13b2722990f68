"""Codec of Kubermatic's machine objects: kinds, names, and patches. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ccm.cloud.errors import InvalidArgument, Unavailable, parse_error
from ccm.cloud.kubermatic import ErrorReason, OperatingSystem
from ccm.kube.resources import ResourceKind
from ccm.kubermatic import names
from ccm.kubermatic import types as documents
from ccm.kubermatic.decoding import (
    CODES,
    DEPLOYMENT_STATUS,
    NAMES,
    ORDERED,
    SET_STATUS,
    SPEC_FAULT,
    machine,
    machine_deployment,
    machine_set,
)
from ccm.machines import reasons
from ccm.machines.codec import Codec
from ccm.machines.documents import (
    annotations_of,
    as_string_map,
    new_set,
    restored_template,
    to_plain,
    to_text,
)
from ccm.machines.rollout import SetChange, SetCreation
from ccm.model import NodeCondition, OwnerReference, Secret
from ccm.model.machines import (
    DeploymentStatus,
    Machine,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    OperationState,
    OperationType,
    Phase,
    SetStatus,
)
from ccm.model.names import STATUS_FALSE
from ccm.model.owners import controller_of
from ccm.model.patches import Patch, uid_precondition, version_precondition

_REASONS = {code: reason for reason, code in CODES.items()} | {
    "OutOfRange": ErrorReason.INVALID_CONFIGURATION,
    "Unauthenticated": ErrorReason.INVALID_CONFIGURATION,
    "PermissionDenied": ErrorReason.INVALID_CONFIGURATION,
}
"""Error code -> `errorReason`. Other errors are temporary, so they set no `errorReason`."""


def _kind(hub: Any, document: Any, convert: Any, *, has_status: bool = True) -> ResourceKind[Any]:
    name = hub.__name__
    return ResourceKind(
        group=names.GROUP,
        version=names.VERSION,
        plural=f"{name.lower()}s",
        kind=name,
        namespaced=True,
        type=hub,
        document=document,
        convert=convert,
        has_status=has_status,
    )


MACHINES: ResourceKind[Machine] = _kind(Machine, documents.Machine, machine, has_status=False)
MACHINE_SETS: ResourceKind[MachineSet] = _kind(MachineSet, documents.MachineSet, machine_set)
MACHINE_DEPLOYMENTS: ResourceKind[MachineDeployment] = _kind(
    MachineDeployment, documents.MachineDeployment, machine_deployment
)


class KubermaticCodec(Codec):
    """Codec of the objects of Kubermatic's machine-controller."""

    prefix = "kubermatic"
    manifest = "manifests/kubermatic-crds.yaml"
    namespace_flag = "kubermatic-namespace"
    user_data_namespace = names.BOOTSTRAP_NAMESPACE  # before `names` hides the module
    names = NAMES

    machines = MACHINES
    machine_sets = MACHINE_SETS
    machine_deployments = MACHINE_DEPLOYMENTS

    def __init__(self, responsible: str = "") -> None:
        self._responsible = responsible

    def foreign_reason(self, obj: Machine) -> str:
        """Return why another program is responsible for a machine, or still prepares it."""
        responsible = obj.labels.get(names.LABEL_CONTROLLER, "")
        if responsible != self._responsible:
            return (
                f"its label {names.LABEL_CONTROLLER} is {responsible!r}, but --kubermatic-name is "
                f"{self._responsible!r}"
            )
        if preparing := obj.annotation(names.ANNOTATION_INITIALIZERS):
            return f"another program prepares it ({names.ANNOTATION_INITIALIZERS}: {preparing})"
        return ""

    def failure(self, obj: Machine) -> tuple[str, str]:
        """Return `errorReason`, and `errorMessage` or the description of the last operation."""
        status: documents.MachineStatus = obj.source.status
        return status.error_reason or "", status.error_message or obj.status.description

    def user_data(
        self, obj: Machine, owner: MachineSet | None, secret: Callable[[str], Secret | None]
    ) -> bytes | None:
        """Return the user data that the operating-system-manager wrote for the deployment.

        None = the user data do not exist yet.

        Raises:
            InvalidArgument: the machine has no deployment, or the Secret lacks the user data.
            Unavailable: the user data are still of another revision of the template.
        """
        deployment = controller_of(owner) if owner is not None else None
        if owner is None or deployment is None:
            raise InvalidArgument(
                "the Machine belongs to no MachineDeployment, so no user data are made for it; "
                "create a MachineDeployment"
            )
        name = names.bootstrap_secret(deployment.name, obj.namespace)
        bootstrap = secret(name)
        if bootstrap is None:
            return None
        where = f"Secret {names.BOOTSTRAP_NAMESPACE}/{name}"
        revision = bootstrap.annotations.get(names.ANNOTATION_BOOTSTRAP_REVISION, "")
        set_revision = owner.annotations.get(names.ANNOTATION_REVISION, "")
        if revision != set_revision:
            raise Unavailable(
                f"{where} is of revision {revision or 'unknown'}, but MachineSet {owner.name} is "
                f"of revision {set_revision or 'unknown'}; wait for the operating-system-manager"
            )
        text = (bootstrap.data or {}).get(names.BOOTSTRAP_KEY)
        if not text:
            raise InvalidArgument(f"{where} lacks the key {names.BOOTSTRAP_KEY}")
        return _fill(text, obj.vm_name or obj.name)

    def machine_status_patch(self, obj: Machine, status: MachineStatus) -> Patch:
        """Return the patch that writes a status; fields that the hub type lacks are kept."""
        before: documents.MachineStatus = obj.source.status
        reason = _error_reason(status)
        phase = before.phase if status.phase is Phase.FOREIGN else status.phase.value
        body: dict[str, Any] = {
            "phase": phase or None,
            "lastUpdated": to_text(status.since),
            "errorReason": reason,
            "errorMessage": status.description if reason else None,
            "providerStatus": _state(status.known_state),
            "lastOperation": {
                "description": status.description,
                "lastUpdated": to_text(status.updated),
                "state": status.state,
                "type": status.kind,
            },
        }
        conditions = (*status.conditions, *_spec_conditions(before, status, reason))
        lists = {"addresses": status.addresses, "conditions": conditions}
        for key, entries in lists.items():
            if entries or getattr(before, key):
                body[key] = [msgspec.to_builtins(entry) for entry in entries] or None
        return {"metadata": uid_precondition(obj) | version_precondition(obj), "status": body}

    def known_state_patch(self, obj: Machine, state: str) -> Patch:
        """Return the patch that stores the driver's state in `status.providerStatus`."""
        return {"metadata": uid_precondition(obj), "status": {"providerStatus": _state(state)}}

    def identity_patch(
        self, obj: Machine, *, provider_id: str, node_name: str, origin: str
    ) -> Patch:
        """Return the patch that stores a machine's VM: provider ID, node name and origin.

        An empty node name or origin is not written.
        """
        metadata = uid_precondition(obj) | version_precondition(obj)
        annotations: dict[str, Any] = {}
        if origin and not obj.provider_id:
            annotations[names.ANNOTATION_ORIGIN] = origin
        if provider_id and names.ANNOTATION_CREATION in obj.annotations:
            # The stored provider ID replaces the record of the started creation.
            annotations[names.ANNOTATION_CREATION] = None
        if annotations:
            metadata["annotations"] = annotations
        patch: Patch = {"metadata": metadata, "spec": {"providerID": provider_id}}
        if node_name:
            reference: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "name": node_name}
            if obj.node_name not in ("", node_name):
                reference |= {"uid": None, "resourceVersion": None}  # of the former node
            patch = {**patch, "status": {"nodeRef": reference}}
        return patch

    def machine_body(self, owner: MachineSet, reference: OwnerReference, name: str) -> Patch:
        """Return the body of a new machine of a set."""
        template: documents.MachineTemplateSpec = owner.template.source
        return {
            "metadata": {
                "name": name,
                "generateName": f"{owner.name}-",
                "namespace": owner.namespace,
                "labels": dict(owner.template.labels),
                "annotations": dict(annotations_of(template)),
                "ownerReferences": [to_plain(reference)],
            },
            "spec": label_operating_system(to_plain(template.spec)),
        }

    def push_patch(self, obj: Machine, owner: MachineSet) -> Patch | None:  # noqa: ARG002
        """Return None: the spec of a machine is immutable."""
        return None

    def set_body(
        self, obj: MachineDeployment, making: SetCreation, reference: OwnerReference
    ) -> Patch:
        """Return the body of a new set of a deployment."""
        return new_set(
            obj,
            making,
            reference,
            hash_label=names.LABEL_TEMPLATE_HASH,
            finalizer=names.FINALIZER_FOREGROUND,
        )

    def set_patch(self, obj: MachineSet, change: SetChange, owner: MachineDeployment) -> Patch:
        """Return the patch that changes a set."""
        metadata: dict[str, Any] = uid_precondition(obj) | version_precondition(obj)
        spec: dict[str, Any] = {}
        if change.replicas is not None:
            spec["replicas"] = change.replicas
        if change.copies:
            wanted: documents.MachineDeploymentSpec = owner.source.spec
            spec["minReadySeconds"] = wanted.min_ready_seconds or 0
        if change.annotations:
            metadata["annotations"] = dict(change.annotations)
        if change.labels:
            metadata["labels"] = dict(change.labels)
        return {"metadata": metadata} | ({"spec": spec} if spec else {})

    def set_status_patch(self, obj: MachineSet, status: SetStatus) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""
        return _counts_patch(obj, obj.source.status, status, SET_STATUS)

    def revert_patch(self, obj: MachineDeployment, to: MachineSet | None) -> Patch:
        """Raise NotImplementedError: a deployment cannot request a rollback."""
        raise NotImplementedError

    def rollback_patch(self, obj: MachineDeployment, to: MachineSet, revision: int) -> Patch:  # noqa: ARG002
        """Return the patch that restores the template: the API has no rollback request."""
        template = restored_template(obj, to, hash_label=names.LABEL_TEMPLATE_HASH)
        metadata = uid_precondition(obj) | version_precondition(obj)
        return {"metadata": metadata, "spec": {"template": template}}

    def template_summary(self, obj: MachineSet) -> str:
        """Return the provider, the operating system and the version of the kubelet."""
        spec: documents.MachineSpec = obj.template.source.spec
        value = spec.provider_spec.value or {}
        parts = (value.get("cloudProvider"), value.get("operatingSystem"), spec.versions.kubelet)
        return " ".join(str(part) for part in parts if part)

    def deployment_status_patch(
        self, obj: MachineDeployment, status: DeploymentStatus
    ) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""
        return _counts_patch(obj, obj.source.status, status, DEPLOYMENT_STATUS)


CODEC = KubermaticCodec()

_PLACEHOLDER = "<MACHINE_NAME>"
_BLANK = re.compile(rb"^[ \t]+$", re.MULTILINE)


def _fill(text: bytes, name: str) -> bytes:
    """Return user data with the machine's name filled in, and blank lines without white space."""
    for placeholder in (_PLACEHOLDER, quote(_PLACEHOLDER)):
        text = text.replace(placeholder.encode(), name.encode())
    return _BLANK.sub(b"", text)


def label_operating_system(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a new Machine, with the operating system as a label for the Node.

    A label that is set already stays; for an unknown operating system, no label is added.
    """
    system = (spec.get("providerSpec", {}).get("value") or {}).get("operatingSystem")
    if system not in tuple(OperatingSystem):
        return spec
    metadata = spec.get("metadata") or {}
    labels = {names.LABEL_OPERATING_SYSTEM: system, **as_string_map(metadata.get("labels"))}
    return {**spec, "metadata": {**metadata, "labels": labels}}


def _error_reason(status: MachineStatus) -> str | None:
    """Return `errorReason`; None = a user need not act."""
    if status.state != OperationState.FAILED.value or not status.code:
        return None
    reason = _REASONS.get(status.code)
    if status.code == SPEC_FAULT and parse_error(status.description) is None:
        reason = ErrorReason.INVALID_CONFIGURATION  # no error of the cloud
    is_deletion = status.kind == OperationType.DELETE.value
    # The code of DeleteError is also that of a defect of the provider.
    if reason is None or (reason is ErrorReason.DELETE and not is_deletion):
        return None
    return ErrorReason.DELETE.value if is_deletion else reason.value


def _spec_conditions(
    before: documents.MachineStatus, status: MachineStatus, reason: str | None
) -> Iterator[NodeCondition]:
    """Yield the condition of a machine for whose spec no instance can be created."""
    if reason not in (ErrorReason.INVALID_CONFIGURATION, ErrorReason.UNSUPPORTED_CHANGE):
        return
    since = to_text(status.updated)
    for condition in before.conditions or ():
        if condition.type == reasons.CONDITION_SPEC_VALID:
            since = condition.last_transition_time
    yield NodeCondition(
        type=reasons.CONDITION_SPEC_VALID,
        status=STATUS_FALSE,
        reason=reason,
        message=status.description,
        last_transition_time=since,
    )


def _state(text: str) -> Any:
    """Return the driver's state to store: JSON if `decoding` yields the same text, else text."""
    try:
        value = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return text
    is_object = isinstance(value, dict | list) and ORDERED.encode(value).decode() == text
    return value if is_object else text or None


def _counts_patch(
    obj: MachineSet | MachineDeployment,
    before: msgspec.Struct,
    status: SetStatus | DeploymentStatus,
    fields: Mapping[str, str],
) -> Patch | None:
    after = replace(before, **{field: getattr(status, hub) for hub, field in fields.items()})
    if after == before:
        return None
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(after)}
    # A merge patch has to contain the counts that are 0 now.
    counts = {encoded[field]: getattr(after, field) for field in fields.values()}
    return {"metadata": version_precondition(obj), "status": counts}

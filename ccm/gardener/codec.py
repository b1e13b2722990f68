"""Codec of Gardener's machine objects: kinds, names, and patches. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ccm.gardener import names
from ccm.gardener import types as documents
from ccm.gardener.decoding import (
    DEPLOYMENT_STATUS,
    NAMES,
    SET_STATUS,
    is_recorded_in_state,
    machine,
    machine_class,
    machine_deployment,
    machine_set,
)
from ccm.kube.resources import ResourceKind
from ccm.machines.codec import Codec
from ccm.machines.documents import (
    annotations_of,
    new_set,
    restored_template,
    to_plain,
    to_text,
    without_empty,
)
from ccm.machines.rollout import SetChange, SetCreation
from ccm.model import OwnerReference
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
    Phase,
    SetStatus,
)
from ccm.model.patches import Patch, merge_patch, uid_precondition, version_precondition

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
"""Template fields that are applied to existing machines; all others require new machines."""


def _kind(hub: Any, document: Any, convert: Any) -> ResourceKind[Any]:
    name = hub.__name__
    plural = f"{name.lower()}es" if name.endswith("s") else f"{name.lower()}s"
    return ResourceKind(
        group=names.GROUP,
        version=names.VERSION,
        plural=plural,
        kind=name,
        namespaced=True,
        type=hub,
        document=document,
        convert=convert,
    )


MACHINES: ResourceKind[Machine] = _kind(Machine, documents.Machine, machine)
MACHINE_SETS: ResourceKind[MachineSet] = _kind(MachineSet, documents.MachineSet, machine_set)
MACHINE_DEPLOYMENTS: ResourceKind[MachineDeployment] = _kind(
    MachineDeployment, documents.MachineDeployment, machine_deployment
)
MACHINE_CLASSES: ResourceKind[MachineClass] = _kind(
    MachineClass, documents.MachineClass, machine_class
)


class GardenerCodec(Codec):
    """Codec of Gardener's machine-controller-manager objects."""

    names = NAMES

    machines = MACHINES
    machine_sets = MACHINE_SETS
    machine_deployments = MACHINE_DEPLOYMENTS
    machine_classes = MACHINE_CLASSES

    def machine_status_patch(self, obj: Machine, status: MachineStatus) -> Patch:
        """Return the patch that writes a status; fields that the hub type lacks are kept."""
        before: documents.MachineStatus = obj.source.status
        phase = status.phase.value
        if status.phase is Phase.FOREIGN:
            phase = before.current_status.phase
        status_body = {
            "currentStatus": {
                "phase": phase,
                "timeoutActive": status.timeout_active,
                "lastUpdateTime": to_text(status.since),
                "preserveExpiryTime": to_text(status.preserve_until),
            },
            "lastOperation": {
                "description": status.description,
                "errorCode": status.code or None,
                "state": status.state,
                "type": status.kind,
                "lastUpdateTime": to_text(status.updated),
            },
            "lastKnownState": _state_to_store(obj, status.known_state) or None,
        }
        lists = {"addresses": status.addresses, "conditions": status.conditions}
        for key, entries in lists.items():
            if entries or getattr(before, key):
                status_body[key] = [msgspec.to_builtins(entry) for entry in entries] or None
        return {
            "metadata": uid_precondition(obj) | version_precondition(obj),
            "status": status_body,
        }

    def known_state_patch(self, obj: Machine, state: str) -> Patch:
        """Return the patch that stores the driver's state in `status.lastKnownState`."""
        stored = _state_to_store(obj, state)
        return {"metadata": uid_precondition(obj), "status": {"lastKnownState": stored}}

    def identity_patch(
        self, obj: Machine, *, provider_id: str, node_name: str, origin: str
    ) -> Patch:
        """Return the patch that stores a machine's VM: provider ID, node name and origin.

        An empty node name or origin is not written.
        """
        metadata = uid_precondition(obj) | version_precondition(obj)
        if origin and not obj.provider_id:
            metadata["annotations"] = {names.ANNOTATION_ORIGIN: origin}
        if provider_id and names.ANNOTATION_CREATION in obj.annotations:
            # The stored provider ID replaces the record of the started creation.
            metadata.setdefault("annotations", {})[names.ANNOTATION_CREATION] = None
        if node_name:
            metadata["labels"] = {names.LABEL_NODE: node_name}
        return {"metadata": metadata, "spec": {"providerID": provider_id}}

    def machine_body(self, owner: MachineSet, reference: OwnerReference, name: str) -> Patch:
        """Return the body of a new machine of a set."""
        template: documents.MachineTemplateSpec = owner.template.source
        metadata: dict[str, Any] = {
            "name": name,
            "generateName": f"{owner.name}-",
            "namespace": owner.namespace,
            "labels": dict(owner.template.labels),
            "annotations": dict(annotations_of(template)),
            "ownerReferences": [msgspec.to_builtins(reference)],
        }
        if finalizers := (template.metadata or {}).get("finalizers"):
            metadata["finalizers"] = finalizers
        return {"metadata": metadata, "spec": _machine_spec(template)}

    def push_patch(self, obj: Machine, owner: MachineSet) -> Patch | None:
        """Return the patch that applies template changes to a machine; None = no changes.

        If the machine failed or is being deleted, only a wrong `spec.class.kind` is corrected: as
        long as it is wrong, the API server rejects every other change of the machine.
        """
        spec: documents.MachineSpec = obj.source.spec
        template: documents.MachineTemplateSpec = owner.template.source
        if spec == replace(template.spec, provider_id=spec.provider_id) and not _timeout(template):
            return None  # The usual case, so it is checked first, at little cost.
        goal, present = (
            _without_nulls(document)
            for document in (_machine_spec(template), msgspec.to_builtins(spec))
        )
        is_final = obj.is_deleting or obj.phase in (Phase.FAILED, Phase.TERMINATING)
        before, after = (
            {key: fields[key] for key in _PUSHED if key in fields} for fields in (present, goal)
        )
        changes = {} if is_final else merge_patch(before, after)
        kind = template.spec.class_.kind
        if spec.class_.kind != kind:
            changes["class"] = {"kind": kind}
        if not changes:
            return None
        return {"metadata": uid_precondition(obj) | version_precondition(obj), "spec": changes}

    def set_body(
        self, obj: MachineDeployment, making: SetCreation, reference: OwnerReference
    ) -> Patch:
        """Return the body of a new set of a deployment."""
        body = new_set(
            obj,
            making,
            reference,
            hash_label=names.LABEL_TEMPLATE_HASH,
            finalizer=names.FINALIZER,
        )
        most = obj.source.spec.auto_preserve_failed_machine_max
        body["spec"]["autoPreserveFailedMachineMax"] = most
        return body

    def set_patch(self, obj: MachineSet, change: SetChange, owner: MachineDeployment) -> Patch:
        """Return the patch that changes a set."""
        spec: dict[str, Any] = {}
        if change.replicas is not None:
            spec["replicas"] = change.replicas
        if change.copies:
            wanted: documents.MachineDeploymentSpec = owner.source.spec
            before, after = (
                without_empty(to_plain(source.template.source.spec)) for source in (obj, owner)
            )
            spec |= {
                "template": {"spec": merge_patch(before, after)},
                "minReadySeconds": wanted.min_ready_seconds,
                "autoPreserveFailedMachineMax": wanted.auto_preserve_failed_machine_max,
            }
        metadata: dict[str, Any] = uid_precondition(obj) | version_precondition(obj)
        if change.annotations:
            metadata["annotations"] = dict(change.annotations)
        if change.labels:
            metadata["labels"] = dict(change.labels)
        return {"metadata": metadata} | ({"spec": spec} if spec else {})

    def set_status_patch(self, obj: MachineSet, status: SetStatus) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""
        before: documents.MachineSetStatus = obj.source.status
        after = documents.MachineSetStatus(
            conditions=_conditions(status.conditions, documents.ObjectCondition),
            last_operation=_last(status.last),
            failed_machines=[_summary(machine) for machine in status.failed] or None,
            **{field: getattr(status, hub_field) for hub_field, field in SET_STATUS.items()},
        )
        empty = {"conditions": before.conditions or None}
        if after == replace(before, failed_machines=before.failed_machines or None, **empty):
            return None
        # A merge patch has to contain the fields that are 0 or empty now.
        status_body = _with_zeros(after)
        is_known = status.last != Operation()
        status_body["lastOperation"] = _with_zeros(after.last_operation) if is_known else None
        return {"metadata": version_precondition(obj), "status": status_body}

    def move_patch(
        self, obj: Machine, *, old: MachineSet, new: MachineSet, reference: OwnerReference
    ) -> Patch:
        """Return the patch that moves an updated machine to its new set."""
        old_labels, new_labels = (
            (machine_set.selector.match_labels or {}) if machine_set.selector is not None else {}
            for machine_set in (old, new)
        )
        kept = {key: value for key, value in obj.labels.items() if old_labels.get(key) != value}
        wanted = kept | dict(new_labels) | {names.LABEL_UPDATE_RESULT: names.UPDATE_SUCCESSFUL}
        metadata: dict[str, Any] = uid_precondition(obj) | version_precondition(obj)
        metadata["labels"] = merge_patch(obj.labels, wanted)
        metadata["ownerReferences"] = [to_plain(reference)]
        return {"metadata": metadata, "spec": {"class": to_plain(new.template.source.spec.class_)}}

    def revert_patch(self, obj: MachineDeployment, to: MachineSet | None) -> Patch:
        """Return the patch that restores the template of the set `to` and ends the rollback.

        If `to` is None, the patch only removes the rollback request.
        """
        metadata: dict[str, Any] = uid_precondition(obj) | version_precondition(obj)
        spec: dict[str, Any] = {"rollbackTo": None}
        if to is not None:
            spec["template"] = restored_template(obj, to, hash_label=names.LABEL_TEMPLATE_HASH)
            annotations = [
                {
                    key: text
                    for key, text in source.annotations.items()
                    if key not in NAMES.not_copied
                }
                for source in (obj, to)
            ]
            if changed := merge_patch(*annotations):
                metadata["annotations"] = changed
        return {"metadata": metadata, "spec": spec}

    def rollback_patch(self, obj: MachineDeployment, to: MachineSet, revision: int) -> Patch:  # noqa: ARG002
        """Return the patch that requests a rollback; the controller restores the template."""
        metadata = uid_precondition(obj) | version_precondition(obj)
        return {"metadata": metadata, "spec": {"rollbackTo": {"revision": revision}}}

    def deployment_status_patch(
        self, obj: MachineDeployment, status: DeploymentStatus
    ) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""
        wanted = documents.MachineDeploymentStatus(
            conditions=_conditions(status.conditions, documents.DeploymentCondition),
            failed_machines=[_summary(machine) for machine in status.failed] or None,
            **{field: getattr(status, hub_field) for hub_field, field in DEPLOYMENT_STATUS.items()},
        )
        before, after = (_comparable(document) for document in (obj.source.status, wanted))
        changes = merge_patch(before, after)
        return {"metadata": version_precondition(obj), "status": changes} if changes else None

    def class_conditions_patch(self, obj: MachineClass, conditions: Iterable[Condition]) -> Patch:
        """Return the patch that writes the conditions of a class."""
        converted = _conditions(conditions, documents.ObjectCondition) or ()
        plain = [to_plain(condition) for condition in converted]
        return {"metadata": version_precondition(obj), "status": {"conditions": plain}}


CODEC = GardenerCodec()


def _machine_spec(template: documents.MachineTemplateSpec) -> dict[str, Any]:
    timeout = _timeout(template)
    return to_plain(template.spec) | ({"creationTimeout": timeout} if timeout else {})


def _timeout(template: documents.MachineTemplateSpec) -> str:
    """Return the creation timeout in a template's annotations, which overrides the spec's.

    Empty = the annotation is not set.
    """
    return annotations_of(template).get(names.ANNOTATION_CREATION_TIMEOUT, "")


def _without_nulls(document: Any) -> Any:
    # Go writes nulls, but a merge patch cannot write them: such fields would differ for ever.
    if not isinstance(document, Mapping):
        return document
    return {key: _without_nulls(value) for key, value in document.items() if value is not None}


def _with_zeros(struct: msgspec.Struct) -> dict[str, Any]:
    zero = {
        field.encode_name: field.default if isinstance(field.default, int) else None
        for field in msgspec.structs.fields(struct)
    }
    return zero | to_plain(struct)


def _comparable(status: documents.MachineDeploymentStatus) -> dict[str, Any]:
    """Return the fields that are set, with conditions in a fixed order."""
    plain = {key: value for key, value in to_plain(status).items() if value is not None}
    if conditions := plain.get("conditions"):
        plain["conditions"] = sorted(conditions, key=lambda condition: str(condition["type"]))
    return plain


def _conditions(conditions: Iterable[Condition], kind: type[Any]) -> list[Any] | None:
    times = kind is documents.DeploymentCondition
    return [
        kind(
            type=condition.type,
            status=condition.status,
            last_transition_time=to_text(condition.since),
            reason=condition.reason,
            message=condition.message,
            **({"last_update_time": to_text(condition.updated)} if times else {}),
        )
        for condition in conditions
    ] or None


def _last(operation: Operation) -> documents.LastOperation:
    return documents.LastOperation(
        description=operation.description,
        error_code=operation.code,
        last_update_time=to_text(operation.updated),
        state=operation.state,
        type=operation.kind,
    )


def _summary(machine: FailedMachine) -> documents.MachineSummary:
    return documents.MachineSummary(
        name=machine.name,
        provider_id=machine.provider_id,
        last_operation=_last(machine.operation),
        owner_ref=machine.owner,
    )


def _state_to_store(obj: Machine, state: str) -> str:
    # Keep the prefix of an earlier release until the provider ID is stored: perhaps nothing else
    # records the started creation.
    if is_recorded_in_state(obj.source) and not obj.provider_id:
        return f"{names.STATE_CREATION}{obj.uid} {state}"
    return state

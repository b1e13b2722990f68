"""A second API group of machines, as another project might have it, and its codec.

It has other kinds, names and shapes, and fewer features: a server describes its VM itself, there is
no preservation, no update in place, no rollback and no freezing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm.kube.resources import ResourceKind
from ccm.machines.codec import Codec
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.machines.rollout import SetChange, SetCreation
from ccm.machines.settings import Names
from ccm.model import NodeCondition, ObjectMeta, OwnerReference
from ccm.model.machines import (
    DeploymentStatus,
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    Phase,
    SetStatus,
    Template,
)
from ccm.model.meta import KubeObject
from ccm.model.patches import Patch, merge_patch, uid_precondition, version_precondition
from ccm.model.selectors import LabelSelector
from ccm.model.times import EPOCH, format_time, parse_optional_time

GROUP, VERSION = "servers.example.org", "v2"
NAMES = Names(
    finalizer="example.org/servers",
    owner_finalizer="example.org/servers",
    priority="example.org/goes-first",
    default_priority=str(DEFAULT_PRIORITY),
    marked="example.org/chosen",
    token_id="example.org/token",
    origin="example.org/made-with",
    creation="example.org/creating",
    deletion="example.org/deleting",
    node_finalizer="example.org/server-node",
    machine_label="example.org/server",
    applied="example.org/applied",
    applied_capacity="example.org/capacity",
    unmanaged="example.org/no-server",
    critical_taint="example.org/not-ready",
    old_taint="example.org/old",
    freeze="example.org/frozen",
    frozen="yes",
    unfreeze="example.org/thaw",
    trigger="example.org/delete",
    scaler_time="example.org/scaled",
    revision="example.org/revision",
    revision_history="example.org/revisions",
    desired="example.org/desired",
    most="example.org/most",
    not_copied=frozenset({"example.org/revision", "example.org/desired", "example.org/most"}),
    hold="example.org/hold",
    hold_is_ours="example.org/hold-is-ours",
)
_HASH = "example.org/template"
_ORDERED = msgspec.json.Encoder(order="deterministic")


class Document(KubeObject, frozen=True, kw_only=True):
    """An object of the group; its spec and status are plain maps."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


def _machine(obj: Document) -> Machine:
    spec, status, meta = obj.spec, obj.status, obj.metadata
    size = ObjectMeta(name=spec.get("size", ""), namespace=meta.namespace)
    owners = [one.uid for one in meta.owner_references or ()]
    return Machine(
        metadata=meta,
        created=parse_optional_time(meta.creation_timestamp) or EPOCH,
        class_name=size.name,
        own_class=MachineClass(metadata=size, provider_spec=spec.get("vm", {})),
        provider_id=spec.get("id", ""),
        node_name=spec.get("node", ""),
        status=MachineStatus(
            phase=Phase(status.get("state", "")),
            description=status.get("text", ""),
            code=status.get("code", ""),
            state=status.get("result", ""),
            kind=status.get("action", ""),
            timeout_active=status.get("late", False),
            since=parse_optional_time(status.get("since")),
            updated=parse_optional_time(status.get("at")),
            known_state=status.get("driver", ""),
            conditions=tuple(msgspec.convert(status.get("node", []), list[NodeCondition])),
        ),
        creation_started=obj.annotations.get(NAMES.creation, "-") in (meta.uid, *owners),
        priority=int(obj.annotations.get(NAMES.priority, DEFAULT_PRIORITY)),
        source=obj,
    )


def _set(obj: Document) -> MachineSet:
    status = obj.status
    return MachineSet(
        **_owner(obj),
        created=parse_optional_time(obj.metadata.creation_timestamp) or EPOCH,
        status=SetStatus(
            observed=status.get("seen", 0),
            replicas=status.get("count", 0),
            labeled=status.get("labeled", 0),
            ready=status.get("ready", 0),
            available=status.get("available", 0),
        ),
    )


def _deployment(obj: Document) -> MachineDeployment:
    status, spec = obj.status, obj.spec
    return MachineDeployment(
        **_owner(obj),
        max_surge=spec.get("surge", 1),
        max_unavailable=spec.get("missing", 0),
        status=DeploymentStatus(
            observed=status.get("seen", 0),
            replicas=status.get("count", 0),
            updated=status.get("new", 0),
            ready=status.get("ready", 0),
            available=status.get("available", 0),
        ),
    )


def _owner(obj: Document) -> dict[str, Any]:
    template: Mapping[str, Any] = obj.spec["template"]
    labels = template["labels"]
    decides = {**template, "labels": {key: labels[key] for key in labels if key != _HASH}}
    return {
        "metadata": obj.metadata,
        "replicas": obj.spec["count"],
        "selector": LabelSelector(match_labels=obj.spec["selects"]),
        "template": Template(
            essence=_ORDERED.encode(decides).decode(),
            labels=labels,
            class_name=template["size"],
            source=template,
        ),
        "source": obj,
    }


def _kind(plural: str, kind: str, hub: Any, convert: Any) -> ResourceKind[Any]:
    return ResourceKind(
        group=GROUP,
        version=VERSION,
        plural=plural,
        kind=kind,
        namespaced=True,
        type=hub,
        document=Document,
        convert=convert,
    )


class ServerCodec(Codec):
    """Servers, groups of them, and fleets."""

    names = NAMES
    machines = _kind("servers", "Server", Machine, _machine)
    machine_sets = _kind("servergroups", "ServerGroup", MachineSet, _set)
    machine_deployments = _kind("fleets", "Fleet", MachineDeployment, _deployment)

    def machine_status_patch(self, obj: Machine, status: MachineStatus) -> Patch:
        found = {
            "state": status.phase.value,
            "text": status.description,
            "code": status.code,
            "result": status.state,
            "action": status.kind,
            "late": status.timeout_active,
            "since": status.since and format_time(status.since),
            "at": status.updated and format_time(status.updated),
            "driver": status.known_state,
            "node": [msgspec.to_builtins(one) for one in status.conditions],
        }
        return {"metadata": uid_precondition(obj) | version_precondition(obj), "status": found}

    def known_state_patch(self, obj: Machine, state: str) -> Patch:
        return {"metadata": uid_precondition(obj), "status": {"driver": state}}

    def identity_patch(
        self, obj: Machine, *, provider_id: str, node_name: str, origin: str
    ) -> Patch:
        notes = {NAMES.origin: origin or None, NAMES.creation: None}
        metadata = uid_precondition(obj) | version_precondition(obj) | {"annotations": notes}
        return {"metadata": metadata, "spec": {"id": provider_id, "node": node_name}}

    def machine_body(self, owner: MachineSet, reference: OwnerReference, name: str) -> Patch:
        template = owner.template.source
        metadata = {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(owner.template.labels),
            "annotations": {},
            "ownerReferences": [msgspec.to_builtins(reference)],
        }
        return {"metadata": metadata, "spec": {"size": template["size"], "vm": template["vm"]}}

    def push_patch(self, obj: Machine, owner: MachineSet) -> Patch | None:
        return None

    def set_body(
        self, obj: MachineDeployment, making: SetCreation, reference: OwnerReference
    ) -> Patch:
        mark = {_HASH: making.name.hash}
        labels = {**obj.template.labels, **mark}
        metadata = {
            "name": making.name.name,
            "namespace": obj.namespace,
            "labels": labels,
            "annotations": dict(making.annotations),
            "finalizers": [NAMES.finalizer],
            "ownerReferences": [msgspec.to_builtins(reference)],
        }
        spec = {
            "count": making.replicas,
            "selects": obj.source.spec["selects"] | mark,
            "template": obj.template.source | {"labels": labels},
        }
        return {"metadata": metadata, "spec": spec}

    def set_patch(self, obj: MachineSet, change: SetChange, owner: MachineDeployment) -> Patch:
        metadata: dict[str, Any] = uid_precondition(obj) | version_precondition(obj)
        metadata |= {"annotations": dict(change.annotations), "labels": dict(change.labels)}
        spec = {} if change.replicas is None else {"spec": {"count": change.replicas}}
        return {"metadata": metadata, **spec}

    def set_status_patch(self, obj: MachineSet, status: SetStatus) -> Patch | None:
        wanted = {
            "seen": status.observed,
            "count": status.replicas,
            "labeled": status.labeled,
            "ready": status.ready,
            "available": status.available,
        }
        return _changed(obj, wanted)

    def revert_patch(self, obj: MachineDeployment, to: MachineSet | None) -> Patch:
        raise NotImplementedError

    def deployment_status_patch(
        self, obj: MachineDeployment, status: DeploymentStatus
    ) -> Patch | None:
        wanted = {
            "seen": status.observed,
            "count": status.replicas,
            "new": status.updated,
            "ready": status.ready,
            "available": status.available,
        }
        return _changed(obj, wanted)


def _changed(obj: MachineSet | MachineDeployment, wanted: Mapping[str, Any]) -> Patch | None:
    changes = merge_patch(obj.source.status, wanted)
    return {"metadata": version_precondition(obj), "status": changes} if changes else None


CODEC = ServerCodec()


def definitions() -> Sequence[Mapping[str, Any]]:
    """Return the definitions of the kinds."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": free, "status": free}}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{one.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": {
                    "kind": one.kind,
                    "listKind": f"{one.kind}List",
                    "plural": one.plural,
                    "singular": one.kind.lower(),
                },
                "scope": "Namespaced",
                "versions": [version],
            },
        }
        for one in (CODEC.machines, CODEC.machine_sets, CODEC.machine_deployments)
    ]

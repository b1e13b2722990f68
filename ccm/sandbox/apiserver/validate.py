"""What an object must fulfil beyond its shape, kind by kind; every fault at once.

The rules and their texts are those of kube-apiserver 1.36 for the fields that a
cloud-controller-manager and its tests touch: names, labels, annotations, finalizers,
owners, immutable fields, and the contents of Node, Lease, Event and Service. Pods are
held to their metadata only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ccm.sandbox.apiserver import errors, kinds, text_rules, validate_service

_MAX_ANNOTATIONS = 256 * 1024
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_IMMUTABLE_META = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")


def created(kind: kinds.Kind, body: Mapping[str, Any]) -> list[errors.Cause]:
    """The faults of a new object."""
    return [*_metadata(kind, body["metadata"]), *_spec(kind, body)]


def updated(
    kind: kinds.Kind, body: Mapping[str, Any], old: Mapping[str, Any]
) -> list[errors.Cause]:
    """The faults of an object that replaces `old`."""
    return [
        *_metadata(kind, body["metadata"]),
        *_unchanged_metadata(body["metadata"], old["metadata"]),
        *_UPDATES.get(kind.kind, _nothing)(body, old),
        *_spec(kind, body),
    ]


def status_updated(
    kind: kinds.Kind, body: Mapping[str, Any], old: Mapping[str, Any]
) -> list[errors.Cause]:
    """The faults of an object whose status was written; its other fields are `old`'s."""
    if kind is not kinds.SERVICES:
        return updated(kind, body, old)
    return [
        *_metadata(kind, body["metadata"]),
        *_unchanged_metadata(body["metadata"], old["metadata"]),
        *validate_service.status(body),
    ]


def _nothing(*_objects: Mapping[str, Any]) -> Iterator[errors.Cause]:
    return iter(())


_NAME_RULES: dict[str, Callable[[str], Iterator[str]]] = {
    "Namespace": text_rules.label_faults,
    "Service": text_rules.service_name_faults,
}


def _metadata(kind: kinds.Kind, metadata: Mapping[str, Any]) -> Iterator[errors.Cause]:
    name = metadata.get("name", "")
    if not name:
        yield errors.required("metadata.name", "name or generateName is required")
    else:
        for fault in _NAME_RULES.get(kind.kind, text_rules.subdomain_faults)(name):
            yield errors.bad_value("metadata.name", name, fault)
    for key, value in (metadata.get("labels") or {}).items():
        for fault in text_rules.qualified_name_faults(key):
            yield errors.bad_value("metadata.labels", key, fault)
        for fault in text_rules.label_value_faults(value):
            yield errors.bad_value("metadata.labels", value, fault)
    yield from _annotations(metadata.get("annotations") or {})
    for finalizer in metadata.get("finalizers") or ():
        for fault in text_rules.qualified_name_faults(finalizer):
            yield errors.bad_value("metadata.finalizers", finalizer, fault)
    yield from _owners(metadata.get("ownerReferences") or ())


def _annotations(annotations: Mapping[str, str]) -> Iterator[errors.Cause]:
    for key in annotations:
        for fault in text_rules.qualified_name_faults(key.lower()):
            yield errors.bad_value("metadata.annotations", key, fault)
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        yield errors.Cause(
            field="metadata.annotations",
            reason="FieldValueTooLong",
            message=f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes",
        )


def _owners(owners: Sequence[Mapping[str, Any]]) -> Iterator[errors.Cause]:
    for number, owner in enumerate(owners):
        field = f"metadata.ownerReferences[{number}]"
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                detail = "version must not be empty" if key == "apiVersion" else "must not be empty"
                yield errors.bad_value(f"{field}.{key}", owner.get(key, ""), detail)
    if sum(owner.get("controller") is True for owner in owners) > 1:
        yield errors.bad_value(
            "metadata.ownerReferences",
            list(owners),
            "Only one reference can have Controller set to true",
        )


def _unchanged_metadata(
    metadata: Mapping[str, Any], old: Mapping[str, Any]
) -> Iterator[errors.Cause]:
    if "deletionTimestamp" in old:
        fresh = sorted(set(metadata.get("finalizers", ())) - set(old.get("finalizers", ())))
        if fresh:
            listed = ", ".join(f'"{finalizer}"' for finalizer in fresh)
            yield errors.forbidden_field(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{listed}}}",
            )
    for key in _IMMUTABLE_META:
        if metadata.get(key) != old.get(key):
            yield errors.bad_value(f"metadata.{key}", metadata.get(key, ""), "field is immutable")


def _spec(kind: kinds.Kind, body: Mapping[str, Any]) -> Iterator[errors.Cause]:
    return _SPECS.get(kind.kind, _nothing)(body)


def _node(body: Mapping[str, Any]) -> Iterator[errors.Cause]:
    yield from _taints(body["spec"].get("taints") or ())
    cidrs = body["spec"].get("podCIDRs") or ()
    for number, cidr in enumerate(cidrs):
        if not _is_cidr(cidr):
            detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            yield errors.bad_value(f"spec.podCIDRs[{number}]", cidr, detail)
    families = [":" in cidr for cidr in cidrs]
    if len(cidrs) > 2 or len(set(families)) < len(families):
        detail = "may specify no more than one CIDR for each IP family"
        yield errors.bad_value("spec.podCIDRs", list(cidrs), detail)


def _is_cidr(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return "/" in text


def _taints(taints: Sequence[Mapping[str, Any]]) -> Iterator[errors.Cause]:
    # The paths say metadata, as the real server's do.
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate(taints):
        field = f"metadata.taints[{number}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for fault in text_rules.qualified_name_faults(key):
            yield errors.bad_value(f"{field}.key", key, fault)
        for fault in text_rules.label_value_faults(taint.get("value", "")):
            yield errors.bad_value(f"{field}.value", taint["value"], fault)
        if not effect:
            yield errors.required(f"{field}.effect")
        elif effect not in _TAINT_EFFECTS:
            yield errors.not_supported(f"{field}.effect", effect, _TAINT_EFFECTS)
        if (key, effect) in seen:
            shown = {
                "Key": key,
                "Value": taint.get("value", ""),
                "Effect": effect,
                "TimeAdded": taint.get("timeAdded"),
            }
            detail = "taints must be unique by key and effect pair"
            yield errors.duplicate(field, shown, detail)
        seen.add((key, effect))


def _node_update(body: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[errors.Cause]:
    addresses = body["status"].get("addresses") or ()
    for number, address in enumerate(addresses):
        if address in addresses[:number]:
            shown = {"Type": address.get("type", ""), "Address": address.get("address", "")}
            yield errors.duplicate(f"status.addresses[{number}]", shown)
    spec, before = body["spec"], old["spec"]
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        detail = 'node updates may not change podCIDR except from "" to valid'
        yield errors.forbidden_field("spec.podCIDRs", detail)
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        detail = 'node updates may not change providerID except from "" to valid'
        yield errors.forbidden_field("spec.providerID", detail)
    if spec.get("externalID", "") != before.get("externalID", ""):
        yield errors.forbidden_field("spec.externalID", "may not be updated")


def _lease(body: Mapping[str, Any]) -> Iterator[errors.Cause]:
    spec = body["spec"]
    if spec.get("leaseDurationSeconds", 1) <= 0:
        value = spec["leaseDurationSeconds"]
        yield errors.bad_value("spec.leaseDurationSeconds", value, "must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        value = spec["leaseTransitions"]
        detail = "must be greater than or equal to 0"
        yield errors.bad_value("spec.leaseTransitions", value, detail)
    if spec.get("preferredHolder") and not spec.get("strategy"):
        detail = "may only be specified if `strategy` is defined"
        yield errors.forbidden_field("spec.preferredHolder", detail)


def _event(body: Mapping[str, Any]) -> Iterator[errors.Cause]:
    involved = body["involvedObject"].get("namespace", "")
    namespace = body["metadata"].get("namespace", "")
    allowed = {involved} if involved else {"", "default"}
    if body["eventTime"] is not None:
        allowed = {namespace} if involved else {"default", "kube-system"}
        for field in ("reportingComponent", "reportingInstance", "action", "reason"):
            if not body.get(field):
                yield errors.required(field)
    if namespace not in allowed:
        detail = "does not match event.namespace"
        yield errors.bad_value("involvedObject.namespace", involved, detail)


_SPECS: dict[str, Callable[[Mapping[str, Any]], Iterator[errors.Cause]]] = {
    "Node": _node,
    "Lease": _lease,
    "Event": _event,
    "Service": validate_service.spec,
}
_UPDATES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[errors.Cause]]] = {
    "Node": _node_update,
    "Service": validate_service.update,
}

"""What the server itself adds to, and keeps out of, an object that is written.

Defaults and server-set metadata on create; on update the separation of the object from
its `status` sub-resource, and the metadata that no client may change. `validate` then
judges the result.
"""

from __future__ import annotations

import base64
import datetime
import secrets
import uuid
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import errors, kinds, ledger, scalars, schema, services, validate

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_COUNTED = (kinds.PODS, kinds.DEPLOYMENTS)
"""Kinds whose `generation` counts the changes of the spec."""

_NOT_READY = {"key": names.TAINT_NOT_READY, "effect": "NoSchedule"}


def now() -> str:
    """The present time as metadata has it: whole seconds, UTC."""
    return scalars.format_time(datetime.datetime.now(datetime.UTC))


def create(
    kind: kinds.Kind, namespace: str, body: dict[str, Any], numbers: ledger.Ledger
) -> dict[str, Any]:
    """A new object as it will be stored, from a cleaned request body.

    `numbers` says which cluster IPs and node ports are free.

    Raises:
        ApiError: the object is invalid, or its namespace is not the request's.
    """
    metadata = body["metadata"]
    _check_namespace(kind, namespace, metadata)
    if kind.namespaced:
        metadata["namespace"] = namespace
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
        metadata["name"] = metadata["generateName"][:58] + suffix
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        metadata.pop(key, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now()
    if kind.status and kind is not kinds.NODES:
        body["status"] = {}
    default(kind, body)
    _prepare(kind, body)
    if kind is kinds.SERVICES:
        services.prepare(body, None, numbers)
    causes = validate.created(kind, body)
    if causes:
        raise errors.invalid(kind.resource, metadata.get("name", ""), causes)
    return schema.kubernetes().clean(kind.kind, body, [])


def update(
    kind: kinds.Kind,
    body: dict[str, Any],
    old: dict[str, Any],
    numbers: ledger.Ledger,
    *,
    status: bool,
) -> dict[str, Any]:
    """An existing object as it will be stored, from a cleaned request body.

    A write to the status sub-resource keeps everything but metadata and status; any
    other write keeps the status.

    Raises:
        ApiError: the object is invalid, or its namespace is not the request's.
    """
    metadata, before = body["metadata"], old["metadata"]
    _check_namespace(kind, before.get("namespace", ""), metadata)
    if kind.namespaced:
        metadata["namespace"] = before["namespace"]
    metadata.setdefault("uid", before["uid"])
    for key in ("creationTimestamp", "deletionTimestamp", "generation"):
        if key in before:
            metadata[key] = before[key]
        else:
            metadata.pop(key, None)
    if "deletionGracePeriodSeconds" in before:
        metadata.setdefault("deletionGracePeriodSeconds", before["deletionGracePeriodSeconds"])
    metadata["resourceVersion"] = before["resourceVersion"]
    for key in ("selfLink", "managedFields"):
        metadata.pop(key, None)
    if status:
        kept = {key: old[key] for key in old if key not in ("metadata", "status")}
        body = {**kept, "metadata": metadata, "status": body["status"]}
    elif kind.status:
        body["status"] = old["status"]
    default(kind, body)
    if kind in _COUNTED and body["spec"] != old["spec"]:
        metadata["generation"] = metadata.get("generation", 0) + 1
    if kind is kinds.SERVICES and not status:
        services.prepare(body, old, numbers)
    judge = validate.status_updated if status else validate.updated
    causes = judge(kind, body, old)
    if causes:
        raise errors.invalid(kind.resource, before["name"], causes)
    return schema.kubernetes().clean(kind.kind, body, [], known=old)


def default(kind: kinds.Kind, body: dict[str, Any]) -> None:
    """Fill in the defaults that Kubernetes gives to a kind's fields."""
    if kind is kinds.NODES:
        status = body["status"]
        if status.get("capacity"):
            status["allocatable"] = {**status["capacity"], **status.get("allocatable", {})}
    elif kind is kinds.SECRETS:
        body.setdefault("type", "Opaque")
        for key, value in body.pop("stringData", {}).items():
            body.setdefault("data", {})[key] = _base64(value)
    elif kind is kinds.NAMESPACES:
        labels = body["metadata"].setdefault("labels", {})
        labels[names.LABEL_NAMESPACE] = body["metadata"].get("name", "")
        body["status"].setdefault("phase", "Active")
    elif kind is kinds.SERVICES:
        services.default(body)
    elif kind is kinds.PODS:
        _default_pod(body["spec"], body["status"])
    elif kind is kinds.DEPLOYMENTS:
        _default_deployment(body["spec"])


def _prepare(kind: kinds.Kind, body: dict[str, Any]) -> None:
    if kind is kinds.NODES:
        # Every new node starts unschedulable until a controller finds it ready.
        taints = body["spec"].setdefault("taints", [])
        present = {(taint.get("key"), taint.get("effect")) for taint in taints}
        if (_NOT_READY["key"], _NOT_READY["effect"]) not in present:
            taints.append(dict(_NOT_READY))
    elif kind is kinds.NAMESPACES:
        body["spec"] = {"finalizers": ["kubernetes"]}
    elif kind in _COUNTED:
        body["metadata"]["generation"] = 1


def _check_namespace(kind: kinds.Kind, namespace: str, metadata: dict[str, Any]) -> None:
    stated = metadata.get("namespace", "")
    if kind.namespaced and stated and stated != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if not kind.namespaced:
        metadata.pop("namespace", None)


def _default_deployment(spec: dict[str, Any]) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    if spec["strategy"].setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = spec["strategy"].setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _default_pod_spec(spec["template"]["spec"])


def _default_pod(spec: dict[str, Any], status: dict[str, Any]) -> None:
    spec.setdefault("enableServiceLinks", True)
    _default_pod_spec(spec)
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", "BestEffort")


def _default_pod_spec(spec: dict[str, Any]) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in spec.get("containers") or ():
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
        container.setdefault(
            "imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent"
        )
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

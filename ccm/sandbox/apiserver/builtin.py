"""What is special about single built-in kinds, Services aside: defaults and rules.

Each kind's row in `kinds` names its functions: `default_...` fills in what depends on other
fields, `begin_...` what only a new object gets, `judge_...` tells the faults of an object,
and of what replaces another one.
"""

from __future__ import annotations

import base64
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import errors, validate

Body = validate.Body
Causes = validate.Causes

_NOT_READY = {"key": names.TAINT_NOT_READY, "effect": "NoSchedule"}


def default_node(body: dict[str, Any], _old: Body | None) -> None:
    """What is not said to be reserved can be used."""
    status = body["status"]
    if status.get("capacity"):
        status["allocatable"] = {**status["capacity"], **status.get("allocatable", {})}


def begin_node(body: dict[str, Any]) -> None:
    """Every new node starts unschedulable until a controller finds it ready."""
    taints = body["spec"].setdefault("taints", [])
    if not any(_NOT_READY.items() <= taint.items() for taint in taints):
        taints.append(dict(_NOT_READY))


def judge_node(body: Body, old: Body | None) -> Causes:
    """Taints and CIDRs; what is set once."""
    spec = body["spec"]
    pairs = [{"key": one["key"], "effect": one["effect"]} for one in spec.get("taints") or ()]
    yield from validate.one_of_each("spec.taints", pairs)
    cidrs = spec.get("podCIDRs") or []
    families = [":" in cidr for cidr in cidrs]
    if len(set(families)) < len(families):
        detail = "may specify no more than one CIDR for each IP family"
        yield errors.bad_value("spec.podCIDRs", cidrs, detail)
    if old is None:
        return
    yield from validate.one_of_each("status.addresses", body["status"].get("addresses") or ())
    for key in ("podCIDRs", "providerID", "externalID"):
        if old["spec"].get(key) and spec.get(key) != old["spec"][key]:
            detail = f'node updates may not change {key} except from "" to valid'
            yield errors.forbidden_field(f"spec.{key}", detail)


def default_namespace(body: dict[str, Any], _old: Body | None) -> None:
    """Selectors find a namespace by its name."""
    labels = body["metadata"].setdefault("labels", {})
    labels[names.LABEL_NAMESPACE] = body["metadata"].get("name", "")


def begin_namespace(body: dict[str, Any]) -> None:
    """The finalizer that stands for the emptying."""
    body["spec"] = {"finalizers": ["kubernetes"]}


def default_secret(body: dict[str, Any], _old: Body | None) -> None:
    """Plain texts are stored as bytes."""
    for key, value in body.pop("stringData", {}).items():
        body.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def default_pod(body: dict[str, Any], _old: Body | None) -> None:
    """What a Pod has and a template of one has not, and the rest."""
    body["spec"].setdefault("enableServiceLinks", True)
    _default_containers(body["spec"])


def default_deployment(body: dict[str, Any], _old: Body | None) -> None:
    """How it rolls, and its template."""
    strategy = body["spec"]["strategy"]
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"maxSurge": "25%", "maxUnavailable": "25%"})
    _default_containers(body["spec"]["template"]["spec"])


def _default_containers(spec: dict[str, Any]) -> None:
    for container in spec.get("containers") or ():
        tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
        latest = tag in ("", "latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")


def judge_event(body: Body, _old: Body | None) -> Causes:
    """An event lives where its object lives."""
    involved = body["involvedObject"].get("namespace", "")
    if body["metadata"].get("namespace", "") not in ({involved} if involved else {"", "default"}):
        detail = "does not match event.namespace"
        yield errors.bad_value("involvedObject.namespace", involved, detail)

"""What a list looks like to people: the columns and cells of `kubectl get`.

Columns, their order and priorities (1 = only with `-o wide`), and the cells' texts are
those of kube-apiserver. The descriptions are ours.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Any

from ccm.model import names
from ccm.sandbox.apiserver import scalars

Body = Mapping[str, Any]

_UNKNOWN = "<unknown>"
_NONE = "<none>"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    description: str
    wide: bool = False
    type: str = "string"

    def definition(self) -> dict[str, Any]:
        """The column as a Table object describes it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": "name" if self.name == "Name" else "",
            "description": self.description,
            "priority": 1 if self.wide else 0,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a kind, and how a row of cells is made from an object."""

    columns: tuple[Column, ...]
    cells: Callable[[Body], list[Any]]


def layout(kind: str) -> Layout:
    """How a kind is shown; one that has no layout of its own shows name and age."""
    return _LAYOUTS.get(kind, _PLAIN)


def human_duration(seconds: float) -> str:
    """A duration as ages are shown: `5s`, `3m20s`, `4h`, `2d`; two units at most."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    steps = (
        (whole < 0, "0s"),
        (whole < 120, f"{whole}s"),
        (minutes < 10, _two(minutes, "m", whole % 60, "s")),
        (minutes < 180, f"{minutes}m"),
        (hours < 8, _two(hours, "h", minutes % 60, "m")),
        (hours < 48, f"{hours}h"),
        (days < 8, _two(days, "d", hours % 24, "h")),
        (days < 730, f"{days}d"),
        (days < 365 * 8, _two(days // 365, "y", days % 365, "d")),
    )
    return next((text for fits, text in steps if fits), f"{days // 365}y")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    tail = f"{small}{small_unit}" if small else ""
    return f"{large}{large_unit}{tail}"


def _since(moment: str | None) -> str:
    if not moment:
        return _UNKNOWN
    passed = datetime.datetime.now(datetime.UTC) - scalars.parse_time(moment)
    return human_duration(passed.total_seconds())


def _age(body: Body) -> str:
    return _since(body["metadata"].get("creationTimestamp"))


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _plain(body: Body) -> list[Any]:
    return [_name(body), _age(body)]


def _node(body: Body) -> list[Any]:
    status = body["status"]
    info = status["nodeInfo"]
    kernel = info["kernelVersion"] or _UNKNOWN
    if info["architecture"]:
        kernel += f" ({info['architecture']})"
    return [
        _name(body),
        _node_condition(body),
        ",".join(_roles(body)) or _NONE,
        _age(body),
        info["kubeletVersion"],
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info["osImage"] or _UNKNOWN,
        kernel,
        info["containerRuntimeVersion"] or _UNKNOWN,
    ]


def _node_condition(body: Body) -> str:
    ready = [
        condition["status"] == "True"
        for condition in body["status"].get("conditions", ())
        if condition["type"] == "Ready"
    ]
    text = ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    return f"{text},SchedulingDisabled" if body["spec"].get("unschedulable") else text


def _roles(body: Body) -> list[str]:
    roles = set()
    for key, value in body["metadata"].get("labels", {}).items():
        if key.startswith(names.LABEL_ROLE_PREFIX):
            roles.add(key.removeprefix(names.LABEL_ROLE_PREFIX))
        elif key == names.LABEL_ROLE:
            roles.add(value)
    return sorted(roles - {""})


def _address(status: Body, wanted: str) -> str:
    found = (each["address"] for each in status.get("addresses", ()) if each["type"] == wanted)
    return next(found, _NONE)


def _event(body: Body) -> list[Any]:
    first = _since(body["firstTimestamp"] or body["eventTime"])
    last = _since(body["lastTimestamp"]) if body["lastTimestamp"] else first
    count = body.get("count") or 1
    series = body.get("series")
    if series:
        last, count = _since(series["lastObservedTime"]), series.get("count", 0)
    involved = body["involvedObject"]
    target = involved.get("kind", "").lower()
    if involved.get("name"):
        target += f"/{involved['name']}"
    component = body["source"].get("component") or body["reportingComponent"]
    host = body["source"].get("host") or body["reportingInstance"]
    return [
        last,
        body.get("type", ""),
        body.get("reason", ""),
        target,
        involved.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        body.get("message", "").strip(),
        first,
        count,
        _name(body),
    ]


def _lease(body: Body) -> list[Any]:
    return [_name(body), body["spec"].get("holderIdentity", ""), _age(body)]


def _namespace(body: Body) -> list[Any]:
    return [_name(body), body["status"].get("phase", ""), _age(body)]


def _config_map(body: Body) -> list[Any]:
    size = len(body.get("data", ())) + len(body.get("binaryData", ()))
    return [_name(body), size, _age(body)]


def _secret(body: Body) -> list[Any]:
    return [_name(body), body.get("type", ""), len(body.get("data", ())), _age(body)]


def _service(body: Body) -> list[Any]:
    spec = body["spec"]
    selector = spec.get("selector", {})
    return [
        _name(body),
        spec.get("type", ""),
        (spec.get("clusterIPs") or [spec.get("clusterIP") or _NONE])[0],
        _external_addresses(body),
        ",".join(_port(port) for port in spec.get("ports", ())) or _NONE,
        _age(body),
        ",".join(f"{key}={selector[key]}" for key in sorted(selector)) or _NONE,
    ]


def _external_addresses(body: Body) -> str:
    spec = body["spec"]
    kind = spec.get("type", "")
    if kind == "ExternalName":
        return str(spec.get("externalName", ""))
    stated = list(spec.get("externalIPs", ()))
    if kind != "LoadBalancer":
        return ",".join(stated) or _NONE
    entries = body["status"].get("loadBalancer", {}).get("ingress", ())
    balancer = sorted({entry.get("ip") or entry.get("hostname", "") for entry in entries} - {""})
    return ",".join([*balancer, *stated]) or "<pending>"


def _port(port: Body) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


def _pod(body: Body) -> list[Any]:
    spec, status = body["spec"], body["status"]
    states = status.get("containerStatuses", ())
    ready = sum(bool(state["ready"] and state["state"].get("running")) for state in states)
    restarts = sum(state["restartCount"] for state in states)
    gates = spec.get("readinessGates", ())
    true = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
    passed = sum(gate["conditionType"] in true for gate in gates)
    return [
        _name(body),
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_reason(body),
        str(restarts),
        _age(body),
        (status.get("podIPs") or [{"ip": _NONE}])[0]["ip"],
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"{passed}/{len(gates)}" if gates else _NONE,
    ]


def _pod_reason(body: Body) -> str:
    status = body["status"]
    reason = status.get("reason") or status.get("phase", "")
    for state in reversed(status.get("containerStatuses", ())):
        waiting = state["state"].get("waiting", {})
        ended = state["state"].get("terminated", {})
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended:
            code = ended["exitCode"]
            reason = ended.get("reason") or f"ExitCode:{code}"
    if "deletionTimestamp" not in body["metadata"]:
        return str(reason)
    gone = status.get("reason") == "NodeLost"
    finished = status.get("phase") in ("Succeeded", "Failed")
    return "Unknown" if gone else str(reason) if finished else "Terminating"


def _deployment(body: Body) -> list[Any]:
    spec, status = body["spec"], body["status"]
    containers = spec["template"]["spec"].get("containers") or ()
    labels = spec["selector"].get("matchLabels", {})
    return [
        _name(body),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(body),
        ",".join(container["name"] for container in containers),
        ",".join(container.get("image", "") for container in containers),
        ",".join(f"{key}={labels[key]}" for key in sorted(labels)) or _NONE,
    ]


def _wide(name: str, description: str) -> Column:
    return Column(name=name, description=description, wide=True)


_NAME = Column(name="Name", description="The object's name, unique in its namespace.")
_AGE = Column(name="Age", description="Time since the object was created.")
_PLAIN = Layout(columns=(_NAME, _AGE), cells=_plain)
_LAYOUTS = {
    "Node": Layout(
        columns=(
            _NAME,
            Column(name="Status", description="Whether the node is ready for pods."),
            Column(name="Roles", description="The roles that the node's labels give it."),
            _AGE,
            Column(name="Version", description="The kubelet's version."),
            _wide("Internal-IP", "The first address inside the cluster's network."),
            _wide("External-IP", "The first address reachable from outside."),
            _wide("OS-Image", "The operating system that the node reports."),
            _wide("Kernel-Version", "The kernel that the node reports."),
            _wide("Container-Runtime", "The container runtime that the node reports."),
        ),
        cells=_node,
    ),
    "Event": Layout(
        columns=(
            Column(name="Last Seen", description="Time since it last happened."),
            Column(name="Type", description="Normal or Warning."),
            Column(name="Reason", description="One word for what happened."),
            Column(name="Object", description="What it happened to."),
            _wide("Subobject", "The part of the object that it is about."),
            _wide("Source", "Who reported it."),
            Column(name="Message", description="What happened, for people."),
            _wide("First Seen", "Time since it first happened."),
            _wide("Count", "How often it happened."),
            _wide("Name", "The event's own name."),
        ),
        cells=_event,
    ),
    "Lease": Layout(
        columns=(_NAME, Column(name="Holder", description="Who holds the lease."), _AGE),
        cells=_lease,
    ),
    "Namespace": Layout(
        columns=(_NAME, Column(name="Status", description="Active or Terminating."), _AGE),
        cells=_namespace,
    ),
    "ConfigMap": Layout(
        columns=(_NAME, Column(name="Data", description="How many keys it has."), _AGE),
        cells=_config_map,
    ),
    "Secret": Layout(
        columns=(
            _NAME,
            Column(name="Type", description="What the secret is for."),
            Column(name="Data", description="How many keys it has."),
            _AGE,
        ),
        cells=_secret,
    ),
    "Service": Layout(
        columns=(
            _NAME,
            Column(name="Type", description="How the service is exposed."),
            Column(name="Cluster-IP", description="Its address inside the cluster."),
            Column(name="External-IP", description="Its addresses outside the cluster."),
            Column(name="Port(s)", description="Port, node port and protocol of each port."),
            _AGE,
            _wide("Selector", "The labels of the pods behind it."),
        ),
        cells=_service,
    ),
    "Deployment": Layout(
        columns=(
            _NAME,
            Column(name="Ready", description="Ready pods out of those wanted."),
            Column(name="Up-to-date", description="Pods made from the present template."),
            Column(name="Available", description="Pods that have been ready long enough."),
            _AGE,
            _wide("Containers", "The names of the containers."),
            _wide("Images", "The images of the containers."),
            _wide("Selector", "The labels of its pods."),
        ),
        cells=_deployment,
    ),
    "Pod": Layout(
        columns=(
            _NAME,
            Column(name="Ready", description="Ready containers out of all."),
            Column(name="Status", description="What the pod is doing."),
            Column(name="Restarts", description="How often its containers restarted."),
            _AGE,
            _wide("IP", "The pod's first address."),
            _wide("Node", "The node it runs on."),
            _wide("Nominated Node", "The node that is being cleared for it."),
            _wide("Readiness Gates", "Passed readiness gates out of all."),
        ),
        cells=_pod,
    ),
}

"""What a list looks like to people: the columns and cells of `kubectl get`.

Columns, their order and priorities (1 = only with `-o wide`), and the cells' texts are
those of kube-apiserver. A cell is read from a path in the object or made by a function.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from ccm.base import clock
from ccm.model import names
from ccm.sandbox.apiserver import paths, scalars

Body = Mapping[str, Any]
Cell = Callable[[Body], Any]

_UNKNOWN = "<unknown>"
_NONE = "<none>"
_RESTARTS = ".status.containerStatuses[*].restartCount"
_CONTAINERS = ".spec.template.spec.containers[*]"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; the cell is a path such as `.status.phase`, or a function."""

    name: str
    cell: str | Cell
    wide: bool = False
    type: str = "string"
    format: str = ""
    description: str = ""

    def definition(self) -> dict[str, Any]:
        """The column as a Table object describes it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": "name" if self.name == "Name" else self.format,
            "description": self.description,
            "priority": 1 if self.wide else 0,
        }

    def value(self, body: Body) -> Any:
        """The cell of an object's row."""
        if not isinstance(self.cell, str):
            return self.cell(body)
        found = paths.find(body, self.cell)
        if self.type == "date":
            return _since(found[0] if found else None)
        if self.type == "string":
            return "" if not found or found[0] is None else paths.text(found[0])
        return found[0] if found else None


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
    try:
        began = scalars.parse_time(moment)
    except scalars.WrongTypeError:
        return "<invalid>"
    return human_duration((clock.now() - began).total_seconds())


def _or(path: str, otherwise: str) -> Cell:
    return lambda body: next((each for each in paths.find(body, path) if each), otherwise)


def _pairs(found: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((found or {}).items())) or _NONE


def _node_status(body: Body) -> str:
    ready = paths.find(body, '.status.conditions[?(@.type=="Ready")].status')
    text = ("Ready" if ready[-1] == "True" else "NotReady") if ready else "Unknown"
    return f"{text},SchedulingDisabled" if body["spec"].get("unschedulable") else text


def _roles(body: Body) -> str:
    roles = set()
    for key, value in body["metadata"].get("labels", {}).items():
        if key.startswith(names.LABEL_ROLE_PREFIX):
            roles.add(key.removeprefix(names.LABEL_ROLE_PREFIX))
        elif key == names.LABEL_ROLE:
            roles.add(value)
    return ",".join(sorted(roles - {""})) or _NONE


def _kernel(body: Body) -> str:
    info = body["status"]["nodeInfo"]
    machine = f" ({info['architecture']})" if info["architecture"] else ""
    return f"{info['kernelVersion'] or _UNKNOWN}{machine}"


def _first_seen(body: Body) -> str:
    return _since(body["firstTimestamp"] or body["eventTime"])


def _last_seen(body: Body) -> str:
    series = body.get("series")
    if series:
        return _since(series["lastObservedTime"])
    return _since(body["lastTimestamp"]) if body["lastTimestamp"] else _first_seen(body)


def _event_count(body: Body) -> int:
    return int(body["series"].get("count", 0) if body.get("series") else body.get("count") or 1)


def _involved(body: Body) -> str:
    involved = body["involvedObject"]
    name = f"/{involved['name']}" if involved.get("name") else ""
    return f"{involved.get('kind', '').lower()}{name}"


def _source(body: Body) -> str:
    component = body["source"].get("component") or body["reportingComponent"]
    host = body["source"].get("host") or body["reportingInstance"]
    return f"{component}, {host}" if host else component


def _cluster_ip(body: Body) -> str:
    spec = body["spec"]
    return str((spec.get("clusterIPs") or [spec.get("clusterIP") or _NONE])[0])


def _external_addresses(body: Body) -> str:
    spec = body["spec"]
    if spec["type"] == "ExternalName":
        return str(spec.get("externalName", ""))
    stated = list(spec.get("externalIPs", ()))
    if spec["type"] != "LoadBalancer":
        return ",".join(stated) or _NONE
    entries = body["status"].get("loadBalancer", {}).get("ingress", ())
    balancer = sorted({entry.get("ip") or entry.get("hostname", "") for entry in entries} - {""})
    return ",".join([*balancer, *stated]) or "<pending>"


def _ports(body: Body) -> str:
    shown = []
    for port in body["spec"].get("ports", ()):
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port['port']}{node_port}/{port['protocol']}")
    return ",".join(shown) or _NONE


def _ready_containers(body: Body) -> str:
    ready = paths.find(body, ".status.containerStatuses[*].ready")
    return f"{sum(ready)}/{len(body['spec'].get('containers') or ())}"


def _pod_status(body: Body) -> str:
    status = body["status"]
    waiting = paths.find(body, ".status.containerStatuses[*].state.waiting.reason")
    reason = str(next(iter(waiting), status.get("reason") or status.get("phase", "")))
    is_ending = "deletionTimestamp" in body["metadata"]
    return "Terminating" if is_ending and reason not in ("Succeeded", "Failed") else reason


def _ready_replicas(body: Body) -> str:
    return f"{body['status'].get('readyReplicas', 0)}/{body['spec'].get('replicas', 0)}"


_SHOWN: dict[str, Cell] = {
    "age": lambda body: _since(body["metadata"].get("creationTimestamp")),
    "node": _node_status,
    "roles": _roles,
    "kernel": _kernel,
    "first-seen": _first_seen,
    "last-seen": _last_seen,
    "count": _event_count,
    "object": _involved,
    "source": _source,
    "message": lambda body: body.get("message", "").strip(),
    "data": lambda body: len(body.get("data") or ()) + len(body.get("binaryData") or ()),
    "cluster-ip": _cluster_ip,
    "external-ip": _external_addresses,
    "ports": _ports,
    "selector": lambda body: _pairs(body["spec"].get("selector")),
    "labels": lambda body: _pairs(body["spec"]["selector"].get("matchLabels")),
    "containers": _ready_containers,
    "pod": _pod_status,
    "restarts": lambda body: str(sum(paths.find(body, _RESTARTS))),
    "replicas": _ready_replicas,
    "updated": lambda body: body["status"].get("updatedReplicas", 0),
    "available": lambda body: body["status"].get("availableReplicas", 0),
    "names": lambda body: ",".join(paths.find(body, f"{_CONTAINERS}.name")),
    "images": lambda body: ",".join(paths.find(body, f"{_CONTAINERS}.image")),
    "role": lambda body: f"{body['roleRef']['kind']}/{body['roleRef']['name']}",
}


def parse(text: str) -> tuple[Column, ...]:
    """Columns as the table of kinds writes them, joined by `;`: `Name path` or `Name function`.

    A path may have what is shown instead of nothing after a `|`. A `*` before the name: only
    with `-o wide`.
    """
    found = []
    for part in re.split(r";\s*", text):
        name, _, cell = part.rpartition(" ")
        path, _, otherwise = cell.partition("|")
        shown = _or(path, otherwise) if otherwise else path if path[0] == "." else _SHOWN[path]
        found.append(Column(name.lstrip("*"), shown, wide=name[0] == "*"))
    return tuple(found)


PLAIN = parse("Name .metadata.name; Age age")

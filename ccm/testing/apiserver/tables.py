"""Cells of the tables of `kubectl get`, and the JSON paths of their values.

Examples of supported paths::

    .status.phase   .spec.ports[0].port   .spec.ports[*].port   .metadata.labels['a.b/c']
    .status.conditions[?(@.type=="Ready")].status

Columns, their order and priorities (1 = only with `-o wide`), and the texts of cells are those of
kube-apiserver. A cell is read from a path in the object or computed by a function.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ccm.base import clock
from ccm.model import names, times

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<number>\d+)\]|(?P<all>\[\*\])|\['(?P<key>[^']+)'\]"""
    r"""|\[\?\(@\.(?P<field>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
)


def find(body: Any, path: str) -> list[Any]:
    """Return every value at a path; an empty list if a step has no value.

    Raises:
        ValueError: the text is not a supported JSON path.
    """
    values = [body]
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise ValueError(f"not a JSON path: {path!r}")
        values = [child for value in values for child in _follow(value, step)]
        place = step.end()
    return values


def _follow(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = step["key"] or re.sub(r"\\(.)", r"\1", step["name"] or "")
    if isinstance(value, dict):
        if name in value:
            yield value[name]
    elif isinstance(value, list):
        if step["number"] and int(step["number"]) < len(value):
            yield value[int(step["number"])]
        elif step["all"]:
            yield from value
        elif step["field"]:
            wanted = step["value"]
            yield from (item for item in value if wanted in find(item, f".{step['field']}"))


def put(body: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path of names; create missing objects on the way."""
    *steps, last = path.removeprefix(".").split(".")
    for step in steps:
        body = body.setdefault(step, {})
    body[last] = value


def as_text(value: Any) -> str:
    """Return a value as shown in cells and compared by selectors."""
    return value if isinstance(value, str) else json.dumps(value)


Body = Mapping[str, Any]
Cell = Callable[[Body], Any]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 31_536_000}
# Upper age limit in seconds, and the units shown below it.
_AGES = (
    (120, "s"), (600, "ms"), (10_800, "m"), (28_800, "hm"), (172_800, "h"), (691_200, "dh"),
    (63_072_000, "d"), (252_288_000, "yd"), (math.inf, "y"),
)  # fmt: skip
PLAIN_TEXT = "Name .metadata.name; Age ~.metadata.creationTimestamp"
"""Default columns, as text for `parse`."""

_UNKNOWN = "<unknown>"
_NONE = "<none>"
_RESTARTS = ".status.containerStatuses[*].restartCount"
_CONTAINERS = ".spec.template.spec.containers[*]"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; the cell is a path such as `.status.phase`, or a function."""

    name: str
    cell: str | Cell
    wide: bool = False
    type: str = "string"
    format: str = ""
    description: str = ""

    def definition(self) -> dict[str, Any]:
        """Return the column as a Table object describes it."""
        shown = {"name": self.name, "type": self.type, "description": self.description}
        form = "name" if self.name == "Name" else self.format
        return {**shown, "format": form, "priority": 1 if self.wide else 0}

    def value(self, body: Body) -> Any:
        """Return the cell of an object."""
        if not isinstance(self.cell, str):
            return self.cell(body)
        values = find(body, self.cell)
        if self.type == "date":
            return _since(values[0] if values else None)
        if self.type == "string":
            return "" if not values or values[0] is None else as_text(values[0])
        return values[0] if values else None


def human_duration(seconds: float) -> str:
    """Return a duration as shown for ages: `5s`, `3m20s`, `4h`, `2d`; two units at most."""
    rest = max(int(seconds), 0)
    parts: list[str] = []
    for unit in next(units for limit, units in _AGES if rest < limit):
        number, rest = divmod(rest, _SECONDS[unit])
        if number or not parts:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def _since(moment: str | None) -> str:
    if not moment:
        return _UNKNOWN
    began = times.parse_optional_time(moment)
    return human_duration((clock.now() - began).total_seconds()) if began else "<invalid>"


def _first(text: str) -> Cell:
    """Return a cell function for paths and literals joined by `|`.

    The function returns the first value that is not empty, or its age if `text` begins with `~`.
    """
    places = text.lstrip("~").split("|")

    def shown(body: Body) -> str:
        candidates = (
            candidate
            for place in places
            for candidate in _at(body, place)
            if candidate not in (None, "")
        )
        value = next(candidates, "")
        return _since(value) if text[0] == "~" else as_text(value)

    return shown


def _at(body: Body, place: str) -> list[Any]:
    return find(body, place) if place[0] == "." else [place]


def _pairs(pairs: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((pairs or {}).items())) or _NONE


def _node_status(body: Body) -> str:
    ready = find(body, '.status.conditions[?(@.type=="Ready")].status')
    text = ("Ready" if ready[-1] == "True" else "NotReady") if ready else "Unknown"
    return f"{text},SchedulingDisabled" if body["spec"].get("unschedulable") else text


def _roles(body: Body) -> str:
    labels = body["metadata"].get("labels", {})
    prefix = names.LABEL_ROLE_PREFIX
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    return ",".join(sorted((roles | {labels.get(names.LABEL_ROLE, "")}) - {""})) or _NONE


def _kernel(body: Body) -> str:
    info = body["status"]["nodeInfo"]
    machine = f" ({info['architecture']})" if info["architecture"] else ""
    return f"{info['kernelVersion'] or _UNKNOWN}{machine}"


def _involved(body: Body) -> str:
    involved = body["involvedObject"]
    name = f"/{involved['name']}" if involved.get("name") else ""
    return f"{involved.get('kind', '').lower()}{name}"


def _source(body: Body) -> str:
    component = body["source"].get("component") or body["reportingComponent"]
    host = body["source"].get("host") or body["reportingInstance"]
    return f"{component}, {host}" if host else component


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
    ready = find(body, ".status.containerStatuses[*].ready")
    return f"{sum(ready)}/{len(body['spec'].get('containers') or ())}"


def _pod_status(body: Body) -> str:
    status = body["status"]
    waiting = find(body, ".status.containerStatuses[*].state.waiting.reason")
    reason = str(next(iter(waiting), status.get("reason") or status.get("phase", "")))
    is_ending = "deletionTimestamp" in body["metadata"]
    return "Terminating" if is_ending and reason not in ("Succeeded", "Failed") else reason


def _ready_replicas(body: Body) -> str:
    return f"{body['status'].get('readyReplicas', 0)}/{body['spec'].get('replicas', 0)}"


_SHOWN: dict[str, Cell] = {
    "node": _node_status,
    "roles": _roles,
    "kernel": _kernel,
    "object": _involved,
    "source": _source,
    "data": lambda body: len(body.get("data") or ()) + len(body.get("binaryData") or ()),
    "external-ip": _external_addresses,
    "ports": _ports,
    "selector": lambda body: _pairs(body["spec"].get("selector")),
    "labels": lambda body: _pairs(body["spec"]["selector"].get("matchLabels")),
    "containers": _ready_containers,
    "pod": _pod_status,
    "restarts": lambda body: str(sum(find(body, _RESTARTS))),
    "replicas": _ready_replicas,
    "names": lambda body: ",".join(find(body, f"{_CONTAINERS}.name")),
    "images": lambda body: ",".join(find(body, f"{_CONTAINERS}.image")),
    "role": lambda body: f"{body['roleRef']['kind']}/{body['roleRef']['name']}",
}


def parse(text: str) -> tuple[Column, ...]:
    """Parse columns as in `kinds.toml`: a name and a cell each, joined by `;`.

    A cell is a key of `_SHOWN`, or has paths as in `_first`. A column with `*` before its name
    appears only with `-o wide`.
    """
    words = (part.rpartition(" ") for part in re.split(r";\s*", text))
    return tuple(
        Column(name.lstrip("*"), _SHOWN.get(cell) or _first(cell), wide=name[0] == "*")
        for name, _, cell in words
    )


PLAIN = parse(PLAIN_TEXT)
"""Default columns of a kind."""


def custom(stated: Sequence[Body]) -> tuple[Column, ...]:
    """Return the columns for the additionalPrinterColumns of a CustomResourceDefinition.

    Raises:
        ValueError: a JSON path is malformed or not supported.
    """
    if not stated:
        return PLAIN
    columns = [PLAIN[0]]
    for column in stated:
        find({}, column["jsonPath"])
        wide = column.get("priority", 0) > 0
        more = (wide, column["type"], column.get("format", ""), column.get("description", ""))
        columns.append(Column(column["name"], column["jsonPath"], *more))
    return tuple(columns)

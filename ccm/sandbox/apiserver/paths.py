"""Values by their place in an object: the JSON paths of printer columns, scale and selectors.

.status.phase   .spec.ports[0].port   .spec.ports[*].port   .metadata.labels['a.b/c']
.status.conditions[?(@.type=="Ready")].status
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<number>\d+)\]|(?P<all>\[\*\])|\['(?P<key>[^']+)'\]"""
    r"""|\[\?\(@\.(?P<field>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
)


def find(body: Any, path: str) -> list[Any]:
    """Every value at a path; none if a step leads nowhere.

    Raises:
        ValueError: the text is no such path.
    """
    values = [body]
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise ValueError(f"not a JSON path: {path!r}")
        values = [found for value in values for found in _follow(value, step)]
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
            yield from (one for one in value if wanted in find(one, f".{step['field']}"))


def put(body: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path of names, making the objects on the way."""
    *steps, last = path.removeprefix(".").split(".")
    for step in steps:
        body = body.setdefault(step, {})
    body[last] = value


def text(value: Any) -> str:
    """A value as a cell or a selector shows it."""
    return value if isinstance(value, str) else json.dumps(value)

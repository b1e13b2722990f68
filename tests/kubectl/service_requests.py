"""Sends the steps of `service_cases.yaml` to a server and writes down its answers.

What a server picks at random (addresses, ports, names) is numbered in the order of its
appearance, so that the answers of two servers can be compared and still tell whether
two numbers are the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import yaml

CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("service_cases.yaml").read_text()
)

_ALL = "/api/v1/namespaces/default/services"
_ONE = f"{_ALL}/s"
_STATUS = f"{_ONE}/status"
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_WAYS = {
    "create": ("POST", _ALL, _JSON),
    "create s2": ("POST", _ALL, _JSON),
    "dry": ("POST", f"{_ALL}?dryRun=All", _JSON),
    "post": ("POST", _ALL, _JSON),
    "put": ("PUT", _ONE, _JSON),
    "put whole": ("PUT", _ONE, _JSON),
    "put status": ("PUT", _STATUS, _JSON),
    "change": ("PATCH", _ONE, _MERGE),
    "merge": ("PATCH", _ONE, _MERGE),
    "status": ("PATCH", _STATUS, _MERGE),
    "merge status": ("PATCH", _STATUS, _MERGE),
    "strategic": ("PATCH", _ONE, _STRATEGIC),
    "strategic status": ("PATCH", _STATUS, _STRATEGIC),
    "json": ("PATCH", _ONE, "application/json-patch+json"),
    "get": ("GET", _ONE, ""),
    "delete": ("DELETE", _ONE, ""),
    "delete all": ("DELETE", f"{_ALL}?fieldSelector=metadata.name%3Ds", ""),
}
_OWN_METADATA = (
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "managedFields",
    "deletionTimestamp",
)
_RANDOM = {
    "address": r"\b10\.96\.\d+\.\d+\b|\bfd00:10:96::[0-9a-f:]+",
    # The range itself stands in messages.
    "port": r"(?<!30000-)\b3[0-2]\d{3}\b(?!-32767)",
    "name": r"\bweb-\w{5}\b",
}


async def answers(session: aiohttp.ClientSession) -> dict[str, list[str]]:
    """The answers to all cases, each one line."""
    return {name: await _play(session, steps) for name, steps in CASES.items()}


async def _play(session: aiohttp.ClientSession, steps: list[dict[str, Any]]) -> list[str]:
    await _clear(session)
    lines = [await _send(session, way, what) for step in steps for way, what in step.items()]
    await _clear(session)
    text = "\n".join(lines)
    for name, pattern in _RANDOM.items():
        text = _numbered(text, name, pattern)
    return text.splitlines()


def _numbered(text: str, name: str, pattern: str) -> str:
    seen: dict[str, str] = {}
    return re.sub(pattern, lambda one: seen.setdefault(one[0], f"{name}-{len(seen) + 1}"), text)


async def _send(session: aiohttp.ClientSession, way: str, what: Any) -> str:
    method, path, media_type = _WAYS[way]
    data = json.dumps(_body(way, what)) if media_type else None
    headers = {"Content-Type": media_type} if media_type else {}
    async with session.request(method, path, data=data, headers=headers) as response:
        body = await response.json()
        if response.status >= 400:
            return f"{way}: {response.status} {body.get('reason')}"
    return f"{way}: {response.status} {json.dumps(_without_own(body), sort_keys=True)}"


def _body(way: str, what: Any) -> Any:
    head = {"apiVersion": "v1", "kind": "Service"}
    if way in ("create", "create s2", "dry", "put"):
        name = "s2" if way == "create s2" else "s"
        return {**head, "metadata": {"name": name}, "spec": what}
    if way in ("post", "put whole", "put status"):
        return {**head, **what}
    if way in ("change", "status"):
        return {"spec" if way == "change" else "status": what}
    return what


def _without_own(body: dict[str, Any]) -> dict[str, Any]:
    for one in (body, *(body.get("items") or ())):
        for key in _OWN_METADATA:
            one["metadata"].pop(key, None)
    return body


async def _clear(session: aiohttp.ClientSession) -> None:
    async with session.get(_ALL) as response:
        found = (await response.json())["items"]
    for one in found:
        name = one["metadata"]["name"]
        if name == "kubernetes":
            continue
        path = f"{_ALL}/{name}"
        if one["metadata"].get("finalizers"):
            patch, headers = '{"metadata":{"finalizers":null}}', {"Content-Type": _MERGE}
            async with session.patch(path, data=patch, headers=headers) as response:
                await response.read()
        async with session.delete(path) as response:
            await response.read()

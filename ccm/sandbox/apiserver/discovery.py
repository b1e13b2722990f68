"""What the server says about itself: its version, groups and resources."""

from __future__ import annotations

from typing import Any

from ccm.sandbox.apiserver import kinds

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.3+ccm-sandbox",
    "gitCommit": "unknown",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
"""The Kubernetes version whose behaviour this server follows; no build of it."""

_AGGREGATED = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}


def answer(path: str, *, aggregated: bool) -> dict[str, Any] | None:
    """The discovery document at a path; None if there is none.

    With `aggregated`, `/api` and `/apis` answer with everything below them at once.
    """
    if path == "/version":
        return VERSION
    if path in ("/api", "/apis"):
        groups = [group for group in _groups() if (not group) is (path == "/api")]
        if aggregated:
            return {**_AGGREGATED, "metadata": {}, "items": [_aggregate(one) for one in groups]}
        return _versions() if path == "/api" else _group_list(groups)
    steps = path.strip("/").split("/")
    if steps[0] == "apis" and len(steps) == 2 and steps[1] in _groups():
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1])}
    for group in _groups():
        for version in _versions_of(group):
            if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
                return _resource_list(group, version)
    return None


def _groups() -> list[str]:
    return list(dict.fromkeys(kind.group for kind in sorted(kinds.KINDS, key=_group_of)))


def _group_of(kind: kinds.Kind) -> str:
    return kind.group


def _versions_of(group: str) -> list[str]:
    return sorted({kind.version for kind in kinds.KINDS if kind.group == group})


def _versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": _versions_of(""), "serverAddressByClientCIDRs": []}


def _group_list(groups: list[str]) -> dict[str, Any]:
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(group) for group in groups],
    }


def _group(group: str) -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for version in _versions_of(group)
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _served(group: str, version: str) -> list[kinds.Kind]:
    found = [kind for kind in kinds.KINDS if (kind.group, kind.version) == (group, version)]
    return sorted(found, key=lambda kind: kind.plural)


def _resource_list(group: str, version: str) -> dict[str, Any]:
    resources = []
    for kind in _served(group, version):
        one: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            one["shortNames"] = list(kind.short_names)
        if kind.categories:
            one["categories"] = list(kind.categories)
        resources.append(one)
        if kind.status:
            resources.append(
                {
                    "name": f"{kind.plural}/status",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.kind,
                    "verbs": list(kinds.STATUS_VERBS),
                }
            )
    name = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": name,
        "resources": resources,
    }


def _aggregate(group: str) -> dict[str, Any]:
    return {
        "metadata": {"name": group} if group else {},
        "versions": [
            {
                "version": version,
                "resources": [_aggregated_resource(kind) for kind in _served(group, version)],
                "freshness": "Current",
            }
            for version in _versions_of(group)
        ],
    }


def _aggregated_resource(kind: kinds.Kind) -> dict[str, Any]:
    response = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    found: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": response,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    if kind.status:
        found["subresources"] = [
            {
                "subresource": "status",
                "responseKind": response,
                "verbs": list(kinds.STATUS_VERBS),
            }
        ]
    return found

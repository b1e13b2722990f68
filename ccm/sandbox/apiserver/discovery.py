"""What the server says about itself: its version, groups and resources."""

from __future__ import annotations

from typing import Any

from ccm.sandbox.apiserver import kinds

VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3+ccm-sandbox", "gitCommit": "unknown",
    "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
    "compiler": "none", "platform": "linux/amd64",
}  # fmt: skip
"""The Kubernetes version whose behaviour this server follows; no build of it."""


def answer(served: kinds.Registry, path: str) -> dict[str, Any] | None:
    """The discovery document at a path; None if there is none."""
    groups: dict[str, list[str]] = {}
    for kind in served:
        if kind.version not in groups.setdefault(kind.group, []):
            groups[kind.group].append(kind.version)
    core = groups.pop("")
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": core, "serverAddressByClientCIDRs": []}
    if path == "/apis":
        found = [_group(group, versions) for group, versions in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if path.removeprefix("/apis/") in groups:
        group = path.removeprefix("/apis/")
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
    of_path = [kind for kind in served if kind.prefix == path]
    return _resource_list(of_path) if of_path else None


def _group(group: str, names: list[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(served: list[kinds.Kind]) -> dict[str, Any]:
    resources = []
    for kind in served:
        common = {"namespaced": kind.namespaced, "kind": kind.kind}
        words = {"shortNames": kind.short_names, "categories": kind.categories}
        given = {key: value for key, value in words.items() if value}
        named = {"name": kind.plural, "singularName": kind.singular or kind.kind.lower(), **common}
        resources.append({**named, "verbs": kind.verbs, **given})
        for part in kind.subresources:
            named = {"name": f"{kind.plural}/{part}", "singularName": "", **common}
            if part == "scale":
                named |= {"group": "autoscaling", "version": "v1", "kind": "Scale"}
            if part == kinds.EVICTION:
                named |= {"group": "policy", "version": "v1", "kind": "Eviction"}
            resources.append({**named, "verbs": kind.part_verbs(part)})
    head = {"kind": "APIResourceList", "apiVersion": "v1"}
    return {**head, "groupVersion": served[0].api_version, "resources": resources}

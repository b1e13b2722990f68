from __future__ import annotations

from typing import Any

import pytest

from ccm.sandbox.apiserver import discovery, kinds, openapi, routes
from tests.unit.sandbox.apiserver.requests import at, refused

SERVED = kinds.Registry()
COORDINATION = "/apis/coordination.k8s.io"
GROUPS = {kind.group for kind in SERVED} - {""}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/nodes", at(kinds.NODES)),
        ("/api/v1/nodes/a", at(kinds.NODES, "a")),
        ("/api/v1/nodes/a/status", at(kinds.NODES, "a", "status")),
        ("/api/v1/namespaces", at(kinds.NAMESPACES)),
        ("/api/v1/namespaces/a", at(kinds.NAMESPACES, "a")),
        ("/api/v1/namespaces/a/status", at(kinds.NAMESPACES, "a", "status")),
        ("/api/v1/namespaces/a/events", at(kinds.EVENTS, namespace="a")),
        ("/api/v1/events", routes.Target(kind=kinds.EVENTS)),
        (f"{COORDINATION}/v1/namespaces/a/leases/b", at(kinds.LEASES, "b", namespace="a")),
        ("/api/v1", None),
        (COORDINATION, None),
        ("/apis/nope/v1/things", None),
        ("/healthz", None),
        ("/", None),
    ],
)
def test_paths(path: str, target: routes.Target | None) -> None:
    assert routes.parse(SERVED, path) == target


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nopes",
        "/api/v1/nodes/a/nope",
        "/api/v1/configmaps/a",
        "/api/v1/namespaces/a/nodes",
        "/api/v1/namespaces/a/configmaps/b/status",
        "/api/v1/nodes/a/status/b",
    ],
)
def test_paths_of_nothing(path: str) -> None:
    with refused(404, "NotFound"):
        routes.parse(SERVED, path)


def test_groups_and_versions() -> None:
    groups = discovery.answer(SERVED, "/apis") or {}
    group = discovery.answer(SERVED, COORDINATION) or {}
    core = discovery.answer(SERVED, "/api") or {}

    assert {each["name"] for each in groups["groups"]} == GROUPS > {"apps", "policy"}
    assert group["preferredVersion"] == {"groupVersion": "coordination.k8s.io/v1", "version": "v1"}
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    assert discovery.answer(SERVED, "/apis/nope") is None


def _document(prefix: str) -> dict[str, Any]:
    found = openapi.answer(SERVED, f"/openapi/v3{prefix}")
    assert found is not None
    return found


def test_the_root_lists_a_document_per_group_version() -> None:
    root = openapi.answer(SERVED, "/openapi/v3")

    assert root is not None
    assert set(root["paths"]) == {"api/v1", *(f"apis/{group}/v1" for group in GROUPS)}
    assert openapi.answer(SERVED, "/openapi/v3/api/v2") is None
    assert openapi.answer(SERVED, "/openapi/v2") is None


@pytest.mark.parametrize("prefix", ["/api/v1", "/apis/apps/v1", "/apis/coordination.k8s.io/v1"])
def test_every_reference_of_a_document_leads_somewhere(prefix: str) -> None:
    document = _document(prefix)
    schemas = document["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, list):
            return [found for item in value for found in references(item)]
        if not isinstance(value, dict):
            return []
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for item in value.values() for found in references(item)]

    found = references(document)
    assert found
    assert {reference.rpartition("/")[2] for reference in found} <= set(schemas)


def test_types_tell_what_kubectl_asks_for() -> None:
    schemas = _document("/api/v1")["components"]["schemas"]

    node = schemas["io.k8s.api.core.v1.Node"]
    taint = schemas["io.k8s.api.core.v1.Taint"]
    status = schemas["io.k8s.api.core.v1.NodeStatus"]
    assert node["x-kubernetes-group-version-kind"] == [
        {"group": "", "version": "v1", "kind": "Node"}
    ]
    assert set(node["properties"]) == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert set(taint["required"]) == {"key", "effect"}
    assert taint["properties"]["effect"]["enum"] == ("NoExecute", "NoSchedule", "PreferNoSchedule")
    assert status["properties"]["conditions"]["x-kubernetes-patch-merge-key"] == "type"

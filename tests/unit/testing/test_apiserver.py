"""The in-memory API server as its clients see it; `tests/envtest` and `tests/kubectl` compare it
with the real one."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from ccm.testing.apiserver import api, errors, kinds, protobuf, requests, schema
from ccm.testing.apiserver import store as stores
from ccm.testing.apiserver.server import MAX_BODY_BYTES, serve
from tests.waiting import DEADLINE_S

NODES, DEFAULT = "/api/v1/nodes", "/api/v1/namespaces/default"
SERVICES, PODS = f"{DEFAULT}/services", f"{DEFAULT}/pods"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ROWS = yaml.safe_load(Path(__file__).with_name("table_rows.yaml").read_text())
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Server:
    """Requests to one store, with bodies as Python objects."""

    def __init__(self, store: stores.ObjectStore | None = None, **options: Any) -> None:
        self.store = stores.ObjectStore() if store is None else store
        self.front = requests.RequestHandler(api.Api(self.store, **options))
        self.warnings: list[str] = []

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "",
        accept: str = "",
        **query: str,
    ) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        usual = api.MERGE_PATCH if method == "PATCH" else api.JSON
        request = api.ApiRequest(
            method=method,
            path=path,
            body=raw,
            query=query,
            content_type=kind or usual,
            accept=accept,
        )
        answer = self.front.handle(request)
        self.warnings = list(answer.warnings)
        return json.loads(answer.body)

    def make(self, path: str, name: str, body: Any = None, **query: str) -> Any:
        metadata = {"name": name, **(body or {}).get("metadata", {})}
        return self.ask("POST", path, {**(body or {}), "metadata": metadata}, **query)

    def names(self, path: str, **query: str) -> list[str]:
        items = self.ask("GET", path, **query)["items"]
        return [one["metadata"]["name"] for one in items]

    async def events(self, path: str, **query: str) -> AsyncIterator[tuple[str, str, int]]:
        asked = api.ApiRequest(method="GET", path=path, query={"watch": "1", **query})
        stream = self.front.watch(asked)
        assert stream is not None
        async for chunk in stream:
            for line in chunk.splitlines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    yield "ERROR", event["object"]["reason"], event["object"]["code"]
                    continue
                meta = event["object"]["metadata"]
                yield event["type"], meta.get("name", ""), int(meta["resourceVersion"])


@pytest.fixture
def server() -> Server:
    return Server()


def refused(code: int, reason: str, *fields: str) -> Any:
    """A context in which a request must be refused so, for faults of these fields."""

    def check(error: errors.StatusError) -> bool:
        named = [cause.get("field") for cause in error.details.get("causes", ())]
        return (error.code, error.reason, *named) == (code, reason, *fields)

    return pytest.raises(errors.StatusError, check=check)


# --- writes --------------------------------------------------------------------------------------


def test_new_object_gets_metadata_and_defaults_of_the_server(server: Server) -> None:
    claimed = {"uid": "mine", "deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 7}
    made = server.make(NODES, "n", {"metadata": claimed, "status": {"capacity": {"cpu": "2"}}})

    meta = made["metadata"]
    assert meta["uid"] != "mine"
    assert meta["resourceVersion"] == str(server.store.revision)
    assert not {"deletionTimestamp", "generation"} & meta.keys()
    assert made["status"]["allocatable"] == {"cpu": "2"}
    assert made["spec"]["taints"] == [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    ]
    with refused(409, "AlreadyExists"):
        server.make(NODES, "n")
    assert server.make(f"{DEFAULT}/configmaps", "", {"metadata": {"generateName": "g-"}})[
        "metadata"
    ]["name"].startswith("g-")


@pytest.mark.parametrize(
    ("path", "body", "code", "reason"),
    [
        (NODES, b"{bad", 400, "BadRequest"),
        (NODES, b"[]", 400, "BadRequest"),
        (NODES, {"kind": "Pod", "metadata": {"name": "n"}}, 400, "BadRequest"),
        (NODES, {"metadata": {"name": "n", "resourceVersion": "1"}}, 400, "BadRequest"),
        (NODES, {"metadata": {"name": "n"}, "spec": {"unschedulable": 1}}, 400, "BadRequest"),
        (NODES, {"metadata": {"labels": {}}}, 422, "Invalid"),
        ("/api/v1/namespaces/nope/configmaps", {"metadata": {"name": "a"}}, 404, "NotFound"),
        (SERVICES, {"metadata": {"name": "a", "namespace": "b"}}, 400, "BadRequest"),
        ("/api/v1/nothing", {}, 404, "NotFound"),
        ("/api/v1/configmaps", {"metadata": {"name": "a"}}, 405, "MethodNotAllowed"),
    ],
)
def test_invalid_object_is_refused(
    server: Server, path: str, body: Any, code: int, reason: str
) -> None:
    with pytest.raises(errors.StatusError) as caught:
        server.ask("POST", path, body)
    assert (caught.value.code, caught.value.reason) == (code, reason)


def test_unknown_fields_are_dropped_unless_validation_is_strict(server: Server) -> None:
    body = {"spec": {"foo": 1}}
    with refused(400, "BadRequest"):
        server.make(NODES, "n", body, fieldValidation="Strict")
    assert "foo" not in server.make(NODES, "n", body)["spec"]
    assert len(server.warnings) == 1
    server.make(NODES, "m", body, fieldValidation="Ignore")
    assert server.warnings == []
    with refused(422, "Invalid", "patch"):
        server.ask("PATCH", f"{NODES}/n", body, fieldValidation="Strict")


def test_stale_resource_version_or_uid_conflicts(server: Server) -> None:
    first = server.make(NODES, "n")
    server.ask("PATCH", f"{NODES}/n", {"spec": {"unschedulable": True}})
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}

    for method, body, kind in (
        ("PATCH", stale, api.MERGE_PATCH),
        ("PATCH", stale, api.STRATEGIC_PATCH),
        ("PUT", first, ""),
        ("PUT", {"metadata": {"name": "n", "uid": "other"}}, ""),
    ):
        with refused(409, "Conflict"):
            server.ask(method, f"{NODES}/n", body, kind)
    for wanted in ({"uid": "other"}, {"resourceVersion": "1"}):
        with refused(409, "Conflict"):
            server.ask("DELETE", f"{NODES}/n", {"preconditions": wanted})
    server.ask("PUT", f"{NODES}/n", {"metadata": {"name": "n"}})
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    server.make(leases, "l")
    with refused(422, "Invalid", "metadata.resourceVersion"):
        server.ask("PUT", f"{leases}/l", {"metadata": {"name": "l"}})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (api.STRATEGIC_PATCH, {"metadata": {"labels": {"a": "b"}}, "spec": {"providerID": "x"}}),
        (api.MERGE_PATCH, {"spec": {"unschedulable": False, "providerID": "x"}}),
        (api.JSON_PATCH, [{"op": "test", "path": "/spec/providerID", "value": "x"}]),
    ],
)
def test_no_op_patch_keeps_the_resource_version(server: Server, kind: str, body: Any) -> None:
    made = server.make(
        NODES, "n", {"metadata": {"labels": {"a": "b"}}, "spec": {"providerID": "x"}}
    )
    assert server.ask("PATCH", f"{NODES}/n", body, kind) == made
    assert made["metadata"]["resourceVersion"] == str(server.store.revision)


def test_immutable_fields_cannot_be_changed(server: Server) -> None:
    server.make(NODES, "n", {"spec": {"providerID": "x://1"}})
    with refused(400, "BadRequest"):
        server.ask("PATCH", f"{NODES}/n", {"metadata": {"name": "m"}})
    with refused(422, "Invalid", "metadata.uid"):
        server.ask("PATCH", f"{NODES}/n", {"metadata": {"uid": "other"}})
    for value in ("x://2", None):
        with refused(422, "Invalid", "spec.providerID"):
            server.ask("PATCH", f"{NODES}/n", {"spec": {"providerID": value}})


def test_finalizers_keep_a_deleted_object(server: Server) -> None:
    server.make(NODES, "n", {"metadata": {"finalizers": ["a/b"]}})
    held = server.ask("DELETE", f"{NODES}/n")
    assert held["metadata"]["deletionTimestamp"]
    with refused(422, "Invalid", "metadata.finalizers"):
        server.ask("PATCH", f"{NODES}/n", {"metadata": {"finalizers": ["a/b", "c/d"]}})
    with refused(409, "AlreadyExists"):
        server.make(NODES, "n")
    server.ask("PATCH", f"{NODES}/n", {"metadata": {"finalizers": None}})
    assert server.names(NODES) == []


def test_namespace_deletion_deletes_its_objects(server: Server) -> None:
    server.make("/api/v1/namespaces", "x")
    held = {"metadata": {"finalizers": ["a/b"]}}
    server.make("/api/v1/namespaces/x/configmaps", "held", held)
    server.make("/api/v1/namespaces/x/configmaps", "free")
    server.ask("DELETE", "/api/v1/namespaces/x")

    assert server.names("/api/v1/namespaces/x/configmaps") == ["held"]
    with refused(403, "Forbidden", "metadata.namespace"):
        server.make("/api/v1/namespaces/x/configmaps", "new")
    lifted = {"metadata": {"finalizers": None}}
    server.ask("PATCH", "/api/v1/namespaces/x/configmaps/held", lifted)
    assert "x" not in server.names("/api/v1/namespaces")


@pytest.mark.parametrize(
    ("token", "given", "is_known"),
    [("secret", "secret", True), ("secret", "guess", False), ("", "any", True)],
)
def test_token_and_access_reviews_are_answered(token: str, given: str, is_known: bool) -> None:
    server = Server(token=token)
    before = server.store.revision

    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    told = server.make(path, "", {"spec": {"token": given}})["status"]

    groups = told.get("user", {}).get("groups", [])
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = server.make(path, "", {"spec": {"groups": groups}})
    assert told.get("authenticated", False) is review["status"]["allowed"] is is_known
    assert server.store.revision == before


# --- patches -------------------------------------------------------------------------------------

_READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("patch", "conditions", "addresses"),
    [
        ({"conditions": [{"type": "New"}]}, ["New", "Ready"], ["1", "2"]),
        ({"addresses": [{"$patch": "replace"}, {"type": "A", "address": "3"}]}, ["Ready"], ["3"]),
        ({"addresses": [{"$patch": "delete", "type": "A"}]}, ["Ready"], ["2"]),
        (
            {
                "addresses": [{"type": "B", "address": "4"}],
                "$setElementOrder/addresses": [{"type": "B"}, {"type": "A"}],
            },
            ["Ready"],
            ["4", "1"],
        ),
    ],
)
def test_strategic_merge_patch_merges_lists_by_key(
    server: Server, patch: Any, conditions: list[str], addresses: list[str]
) -> None:
    present = [{"type": "A", "address": "1"}, {"type": "B", "address": "2"}]
    server.make(NODES, "n", {"status": {"conditions": [_READY], "addresses": present}})
    if "conditions" in patch:
        patch["conditions"][0]["status"] = "True"

    status = server.ask("PATCH", f"{NODES}/n/status", {"status": patch}, api.STRATEGIC_PATCH)[
        "status"
    ]

    assert [one["type"] for one in status["conditions"]] == conditions
    assert [one["address"] for one in status["addresses"]] == addresses


@pytest.mark.parametrize(
    ("patch", "labels"),
    [
        ({"b": None, "c": "3"}, {"a": "1", "c": "3"}),
        ({"$patch": "replace", "c": "3"}, {"c": "3"}),
        ({"$patch": "delete"}, {}),
        ({"$retainKeys": ["b", "c"], "c": "3"}, {"b": "2", "c": "3"}),
    ],
)
def test_strategic_merge_patch_directives_of_an_object_are_applied(
    server: Server, patch: Any, labels: Any
) -> None:
    server.make(NODES, "n", {"metadata": {"labels": {"a": "1", "b": "2"}}})
    whole = {"metadata": {"labels": patch}}
    body = server.ask("PATCH", f"{NODES}/n", whole, api.STRATEGIC_PATCH)
    assert body["metadata"].get("labels", {}) == labels


@pytest.mark.parametrize(
    ("operation", "keys"),
    [
        ({"op": "add", "path": "/spec/taints/-", "value": None}, ["a", "b", "new"]),
        ({"op": "add", "path": "/spec/taints/0", "value": None}, ["new", "a", "b"]),
        ({"op": "replace", "path": "/spec/taints/1", "value": None}, ["a", "new"]),
        ({"op": "add", "path": "/spec/taints/9", "value": None}, None),
        ({"op": "remove", "path": "no pointer"}, None),
    ],
)
def test_json_patch_changes_list_items(
    server: Server, operation: Any, keys: list[str] | None
) -> None:
    taints = [{"key": key, "effect": "NoExecute"} for key in "ab"]
    made = server.make(NODES, "n", {"spec": {"taints": taints}})
    server.ask("PATCH", f"{NODES}/n", {"spec": {"taints": taints}})
    if "value" in operation:
        operation["value"] = {"key": "new", "effect": "NoExecute"}
    if keys is None:
        with pytest.raises(errors.StatusError):
            server.ask("PATCH", f"{NODES}/n", [operation], api.JSON_PATCH)
        assert len(made["spec"]["taints"]) == 3
        return
    body = server.ask("PATCH", f"{NODES}/n", [operation], api.JSON_PATCH)
    assert [one["key"] for one in body["spec"]["taints"]] == keys


@pytest.mark.parametrize(
    ("operations", "labels"),
    [
        ([{"op": "add", "path": "/metadata/labels/x~1y", "value": "1"}], {"a": "b", "x/y": "1"}),
        ([{"op": "remove", "path": "/metadata/labels/a"}], {}),
    ],
)
def test_json_patch_adds_and_removes_map_keys(server: Server, operations: Any, labels: Any) -> None:
    server.make(NODES, "n", {"metadata": {"labels": {"a": "b"}}})
    body = server.ask("PATCH", f"{NODES}/n", operations, api.JSON_PATCH)
    assert body["metadata"].get("labels", {}) == labels


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("application/json", b"{}", 415),
        (api.MERGE_PATCH, b"{", 400),
        (api.MERGE_PATCH, b"", 400),
        (api.MERGE_PATCH, b"[]", 400),
        (api.JSON_PATCH, b'[{"op":"test","path":"/kind","value":"Pod"}]', 422),
        (api.JSON_PATCH, b'[{"op":"replace","path":"","value":5}]', 422),
        (api.JSON_PATCH, b'[{"op":"move","from":"/a","path":"/b"}]', 400),
        (api.STRATEGIC_PATCH, b'{"spec":{"unschedulable":"x"}}', 422),
        (api.STRATEGIC_PATCH, b'{"spec":{"$patch":"x"}}', 400),
        (api.STRATEGIC_PATCH, b'{"status":{"conditions":[{"status":"x"}]}}', 422),
        (api.STRATEGIC_PATCH, b'{"status":{"conditions":["x"]}}', 400),
        (api.STRATEGIC_PATCH, b'{"status":{"conditions":[{"type":"a","$patch":"x"}]}}', 400),
        (api.STRATEGIC_PATCH, b'{"status":{"$setElementOrder/conditions":1}}', 400),
        (api.STRATEGIC_PATCH, b'{"spec":{"$retainKeys":["a"],"podCIDR":"x"}}', 400),
        (api.STRATEGIC_PATCH, b"[]", 400),
        (api.APPLY_PATCH, b"{}", 400),
    ],
)
def test_invalid_patch_is_refused(server: Server, kind: str, body: bytes, code: int) -> None:
    server.make(NODES, "n", {"status": {"conditions": [_READY]}})
    with pytest.raises(errors.StatusError) as caught:
        server.ask("PATCH", f"{NODES}/n", body, kind)
    assert caught.value.code == code


def test_apply_patch_creates_and_merges(server: Server) -> None:
    for value in ("1", "2"):
        body = f"metadata: {{name: n, labels: {{a: '{value}'}}}}".encode()
        made = server.ask("PATCH", f"{NODES}/n", body, api.APPLY_PATCH, fieldManager="me")
        assert made["metadata"]["labels"] == {"a": value}


# --- lists and watches ---------------------------------------------------------------------------


def test_list_is_filtered_by_selectors_and_paged(server: Server) -> None:
    for name, zone in (("a", "1"), ("b", "1"), ("c", "2")):
        server.make(NODES, name, {"metadata": {"labels": {"zone": zone}}})
    assert server.names(NODES, labelSelector="zone=1") == ["a", "b"]
    assert server.names(NODES, fieldSelector="metadata.name!=a") == ["b", "c"]
    assert server.names(NODES, fieldSelector="spec.unschedulable=false") == ["a", "b", "c"]
    for wrong in ({"fieldSelector": "spec.x=1"}, {"limit": "x"}, {"continue": "x"}):
        with refused(400, "BadRequest"):
            server.ask("GET", NODES, **wrong)

    page = server.ask("GET", NODES, limit="2")
    meta = page["metadata"]
    assert (len(page["items"]), meta["remainingItemCount"]) == (2, 1)
    rest = server.ask("GET", NODES, **{"limit": "2", "continue": meta["continue"]})
    assert [one["metadata"]["name"] for one in rest["items"]] == ["c"]
    assert rest["metadata"] == {"resourceVersion": meta["resourceVersion"]}


def test_continue_token_expires_with_its_revision() -> None:
    server = Server(stores.ObjectStore(history=2))
    for name in "ab":
        server.make(NODES, name)
    token = server.ask("GET", NODES, limit="1")["metadata"]["continue"]
    for name in "cdef":
        server.make(NODES, name)
    with refused(410, "Expired"):
        server.ask("GET", NODES, **{"limit": "1", "continue": token})


@pytest.mark.virtual_time
async def test_watch_with_a_selector_reports_changes_as_added_and_deleted(server: Server) -> None:
    server.make(NODES, "a")
    events = server.events(NODES, labelSelector="x=1", resourceVersion=str(server.store.revision))
    for value in ("1", "2"):
        server.ask("PATCH", f"{NODES}/a", {"metadata": {"labels": {"x": value}}})
    assert [(await anext(events))[0] for _ in range(2)] == ["ADDED", "DELETED"]


@pytest.mark.virtual_time
async def test_watch_ends_when_its_version_expired_or_the_store_is_closed() -> None:
    server = Server(stores.ObjectStore(history=2))
    for name in "abcdef":
        server.make(NODES, name)
    assert [one async for one in server.events(NODES, resourceVersion="1")] == [
        ("ERROR", "Expired", 410)
    ]
    events = server.events(NODES, resourceVersion=str(server.store.revision))
    waiting = asyncio.ensure_future(anext(events, None))
    await asyncio.sleep(0)
    server.store.close()
    assert await waiting is None


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_table_rows_match_the_kubectl_columns(case: dict[str, Any]) -> None:
    (name, body), (_, row) = case.items()
    (kind,) = [one for one in kinds.BUILTIN.values() if one.kind == name]
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    metadata = {"name": "x", "creationTimestamp": began.isoformat(), **body.pop("metadata", {})}
    cleaned = kind.clean({"metadata": metadata, **body})
    schema.fill(kind.shape, cleaned)
    kinds.set_dependent_defaults(kind, cleaned)

    assert [column.value(cleaned) for column in kind.columns] == row


@pytest.mark.parametrize(
    ("include", "brings"), [("", "PartialObjectMetadata"), ("Object", "Node"), ("None", None)]
)
def test_table_includes_objects_as_requested(
    server: Server, include: str, brings: str | None
) -> None:
    server.make(NODES, "n")
    table = server.ask("GET", NODES, accept=TABLE, includeObject=include)
    assert [one["name"] for one in table["columnDefinitions"]][:2] == ["Name", "Status"]
    assert table["rows"][0]["cells"][:2] == ["n", "Unknown"]
    assert table["rows"][0].get("object", {}).get("kind") == brings
    with refused(406, "NotAcceptable"):
        server.ask("GET", NODES, accept="application/cbor")


# --- Services ------------------------------------------------------------------------------------

P80 = [{"port": 80}]
LB: dict[str, Any] = {"type": "LoadBalancer", "ports": P80}
NUMBERED: dict[str, Any] = {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}


def service(server: Server, name: str = "s", **spec: Any) -> Any:
    return server.make(SERVICES, name, {"spec": spec})["spec"]


def change(server: Server, **spec: Any) -> Any:
    return server.ask("PATCH", f"{SERVICES}/s", {"spec": spec})["spec"]


def test_load_balancer_service_gets_addresses_ports_and_defaults(server: Server) -> None:
    spec = service(server, **LB)
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["clusterIP"].startswith("10.96.")
    assert spec["ports"][0]["nodePort"] in range(30000, 32768)
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")
    assert "healthCheckNodePort" not in spec

    port = change(server, externalTrafficPolicy="Local")["healthCheckNodePort"]
    assert change(server, selector={"a": "b"})["healthCheckNodePort"] == port
    ports = [{"port": 80, "name": "a"}]
    assert change(server, ports=ports)["ports"][0]["nodePort"] != port
    plain = change(server, type="ClusterIP")
    assert not {"healthCheckNodePort", "externalTrafficPolicy"} & plain.keys()
    assert "nodePort" not in plain["ports"][0]
    assert plain["clusterIP"] == spec["clusterIP"]
    assert "clusterIP" not in change(server, type="ExternalName", externalName="a.b")


def test_load_balancer_service_may_have_no_node_ports(server: Server) -> None:
    spec = service(server, **LB, allocateLoadBalancerNodePorts=False)
    assert "nodePort" not in spec["ports"][0]
    assert change(server, allocateLoadBalancerNodePorts=True)["ports"][0]["nodePort"]


def test_node_port_is_unique_and_freed_after_the_last_finalizer(server: Server) -> None:
    service(server, **NUMBERED)
    server.ask("PATCH", f"{SERVICES}/s", {"metadata": {"finalizers": ["a/b"]}})
    server.ask("DELETE", f"{SERVICES}/s")
    for again in (server, Server(server.store)):
        with refused(422, "Invalid", "spec"):
            service(again, "t", **NUMBERED)
    server.ask("PATCH", f"{SERVICES}/s", {"metadata": {"finalizers": None}})
    server.make(SERVICES, "t", {"spec": NUMBERED}, dryRun="All")
    assert service(server, "t", **NUMBERED)["ports"][0]["nodePort"] == 30100


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.ports"),
        ({"type": "Foo", "ports": P80}, "spec.type"),
        ({"ports": P80, "clusterIP": "x"}, "spec"),
        ({"ports": P80, "clusterIP": "10.97.0.1"}, "spec"),
        ({"ports": P80, "ipFamilies": ["IPv6"]}, "spec"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port"),
        ({"ports": [{"port": 1, "name": "a"}, {"port": 2}]}, "spec.ports[1].name"),
    ],
)
def test_invalid_service_is_refused(server: Server, spec: dict[str, Any], field: str) -> None:
    with refused(422, "Invalid", field):
        service(server, **spec)


def test_cluster_ip_and_load_balancer_class_are_immutable(server: Server) -> None:
    service(server, **LB)
    for address in ({"clusterIP": "10.96.7.7"}, {"clusterIPs": ["10.96.7.7"]}):
        with refused(422, "Invalid", "spec.clusterIPs"):
            change(server, **address)
    with refused(422, "Invalid", "spec.loadBalancerClass"):
        change(server, loadBalancerClass="a.b/c")


def test_only_a_load_balancer_service_may_have_a_status_ingress(server: Server) -> None:
    service(server, ports=P80)
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}
    with refused(422, "Invalid", "status.loadBalancer.ingress"):
        server.ask("PATCH", f"{SERVICES}/s/status", status)
    change(server, type="LoadBalancer")
    written = server.ask("PATCH", f"{SERVICES}/s/status", status)["status"]
    assert written["loadBalancer"]["ingress"] == [{"ip": "192.0.2.1", "ipMode": "VIP"}]


def test_kubernetes_service_is_recreated_after_deletion(server: Server) -> None:
    verbs = server.front.verbs
    verbs.publish(6443)
    first = server.ask("GET", f"{SERVICES}/kubernetes")
    assert first["spec"]["clusterIP"] == "10.96.0.1"
    server.ask("DELETE", f"{SERVICES}/kubernetes")
    again = server.ask("GET", f"{SERVICES}/kubernetes")
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    verbs.publish(6444)
    own = server.ask("GET", f"{SERVICES}/kubernetes")["spec"]
    assert own["ports"][0]["targetPort"] == 6444


# --- Pods ----------------------------------------------------------------------------------------

RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def pod(server: Server, status: Any = RUNNING, **spec: Any) -> None:
    body = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], **spec}
    server.make(PODS, "p", {"metadata": {"labels": {"app": "web"}}, "spec": body})
    server.ask("PATCH", f"{PODS}/p/status", {"status": status})


def budget(server: Server, name: str = "b", *, status: Any = None, **spec: Any) -> None:
    spec["selector"] = {"matchLabels": {"app": "web"}}
    server.make(BUDGETS, name, {"spec": spec})
    counted = {"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3}
    server.ask("PATCH", f"{BUDGETS}/{name}/status", {"status": {**counted, **(status or {})}})


def evict(server: Server) -> None:
    server.ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})


@pytest.mark.virtual_time
async def test_pod_deletion_follows_the_grace_period(server: Server) -> None:
    pod(server, terminationGracePeriodSeconds=40)

    for asked, given in ((None, 40), (60, 40), (10, 10)):
        body = {} if asked is None else {"gracePeriodSeconds": asked}
        server.ask("DELETE", f"{PODS}/p", body)
        meta = server.ask("GET", f"{PODS}/p")["metadata"]
        assert meta["deletionGracePeriodSeconds"] == given
        assert meta["deletionTimestamp"] == f"2026-01-01T00:00:{given}Z"
    server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert server.names(PODS) == []


@pytest.mark.parametrize("policy", ["IfHealthyBudget", "AlwaysAllow"])
@pytest.mark.parametrize("healthy", [2, 3])
def test_eviction_of_an_unready_pod_follows_the_unhealthy_pod_policy(
    server: Server, policy: str, healthy: int
) -> None:
    pod(server, {"phase": "Running"}, terminationGracePeriodSeconds=0)
    status = {"currentHealthy": healthy, "disruptionsAllowed": 0}
    budget(server, status=status, unhealthyPodEvictionPolicy=policy)
    if policy == "AlwaysAllow" or healthy == 3:
        evict(server)
    else:
        with refused(429, "TooManyRequests", None):  # type: ignore[arg-type]
            evict(server)


# --- custom resources ----------------------------------------------------------------------------

DEFINITION = yaml.safe_load((Path(__file__).parents[2] / "machines.yaml").read_text())
MACHINES = "/apis/example.com/v1/namespaces/default/machines"


@pytest.fixture
def defined(server: Server) -> Server:
    server.ask("POST", DEFINITIONS, DEFINITION)
    return server


def machine(server: Server, **spec: Any) -> Any:
    return server.make(MACHINES, "m", {"spec": {"class": "small", **spec}})


def test_custom_object_is_pruned_defaulted_and_has_a_generation(defined: Server) -> None:
    made = machine(defined, odd=1)
    assert "odd" not in made["spec"]
    assert made["metadata"]["generation"] == 1
    scaled = defined.ask("PATCH", f"{MACHINES}/m/scale", {"spec": {"replicas": 3}})
    assert (scaled["kind"], scaled["spec"]["replicas"]) == ("Scale", 3)
    whole = defined.ask("PATCH", f"{MACHINES}/m/status", {"status": {"phase": "Running"}})
    assert (whole["metadata"]["generation"], whole["status"]["phase"]) == (2, "Running")
    assert defined.ask("GET", MACHINES, accept=TABLE)["rows"][0]["cells"][:2] == ["m", "small"]


def test_invalid_custom_object_is_refused(defined: Server) -> None:
    with refused(422, "Invalid", "spec.replicas"):
        machine(defined, replicas=-1)
    with refused(422, "Invalid", "spec.class"):
        defined.make(MACHINES, "m", {"spec": {}})
    machine(defined)
    with refused(415, "UnsupportedMediaType"):
        defined.ask("PATCH", f"{MACHINES}/m", {}, api.STRATEGIC_PATCH)
    with refused(422, "Invalid", "spec.replicas"):
        defined.ask("PATCH", f"{MACHINES}/m/scale", {"spec": {"replicas": "x"}})


@pytest.mark.parametrize("broken", ["spec.names", "spec.versions", "metadata.name"])
def test_invalid_crd_is_refused(server: Server, broken: str) -> None:
    body = json.loads(json.dumps(DEFINITION))
    part, key = broken.split(".")
    body[part][key] = "odd.example.com" if part == "metadata" else []
    with pytest.raises(errors.StatusError, check=lambda error: error.code == 422):
        server.ask("POST", DEFINITIONS, body)


# --- discovery and the wire ----------------------------------------------------------------------


def test_discovery_lists_the_served_resources(defined: Server) -> None:
    groups = [one["name"] for one in defined.ask("GET", "/apis")["groups"]]
    assert {"apps", "example.com", "policy"} <= set(groups)
    served = defined.ask("GET", "/apis/example.com/v1")["resources"]
    assert [one["name"] for one in served] == ["machines", "machines/status", "machines/scale"]
    core = {one["name"]: one for one in defined.ask("GET", "/api/v1")["resources"]}
    assert core["pods/eviction"]["verbs"] == ["create"]
    assert defined.ask("GET", "/apis/apps")["versions"][0]["version"] == "v1"
    assert defined.ask("GET", "/version")["minor"] == "36"
    # kubectl requests field validation only if the OpenAPI document declares it.
    where = defined.ask("GET", "/openapi/v3")["paths"]["apis/example.com/v1"]
    (path,) = defined.ask("GET", where["serverRelativeURL"])["paths"].values()
    assert path["patch"]["parameters"][0]["name"] == "fieldValidation"
    with refused(404, "NotFound"):
        defined.ask("GET", "/apis/nothing/v1")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + field(1, field(1, version) + field(2, kind)) + field(2, raw)


def test_protobuf_bodies_of_kubectl_are_decoded(server: Server) -> None:
    metadata = field(1, "l") + field(11, field(1, "label") + field(2, "x"))
    renewed = field(1, 1767225600) + field(2, 123456789)
    spec = field(1, "me") + field(2, 15) + field(4, renewed) + field(99, "unknown")
    raw = envelope("coordination.k8s.io/v1", "Lease", field(1, metadata) + field(2, spec))
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

    made = server.ask("POST", path, raw, protobuf.CONTENT_TYPE)

    assert made["metadata"]["labels"] == {"label": "x"}
    assert made["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.123456Z",
    }
    ports = field(1, field(3, 80) + field(4, field(1, 1) + field(3, "http")))
    raw = envelope("v1", "Service", field(1, field(1, "s")) + field(2, ports))
    assert (
        server.ask("POST", SERVICES, raw, protobuf.CONTENT_TYPE)["spec"]["ports"][0]["targetPort"]
        == "http"
    )
    endless = b"k8s\0\x0a" + b"\xff" * 10 + b"\1"
    for broken in (b"{}", raw[:-1], endless, envelope("v1", "Nothing", b"")):
        with refused(400, "BadRequest"):
            server.ask("POST", SERVICES, broken, protobuf.CONTENT_TYPE)


def test_stored_objects_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "objects.jsonl"
    server = Server(stores.ObjectStore(path=path))
    server.ask("POST", DEFINITIONS, DEFINITION)
    machine(server)
    server.make(NODES, "gone")
    server.ask("DELETE", f"{NODES}/gone")
    with path.open("ab") as file:
        file.write(b'{"torn')

    again = Server(stores.ObjectStore(path=path))

    assert again.names(MACHINES) == ["m"]
    assert again.names(NODES) == []
    assert again.store.revision == server.store.revision
    path.write_bytes(b"damaged\n" + path.read_bytes())
    with pytest.raises(ValueError, match="line 1"):
        stores.ObjectStore(path=path)


async def test_http_server_authenticates_limits_bodies_and_serves_watches(tmp_path: Path) -> None:
    store = stores.ObjectStore()
    async with (
        serve(store, token="secret") as url,
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as session,
    ):
        headers = {"Authorization": "Bearer secret"}

        async def ask(method: str, path: str, **rest: Any) -> tuple[int, Any]:
            async with session.request(method, path, **{"headers": headers, **rest}) as response:
                is_json = response.content_type == "application/json"
                return response.status, await (response.json() if is_json else response.text())

        assert await ask("GET", "/readyz", headers={}) == (200, "ok")
        assert (await ask("GET", NODES, headers={}))[0] == 401
        assert (await ask("POST", NODES, json={"metadata": {"name": "n"}}))[0] == 201
        assert (await ask("GET", f"{NODES}/nope"))[1]["reason"] == "NotFound"
        assert (await ask("POST", NODES, data=io.BytesIO(bytes(MAX_BODY_BYTES + 1))))[0] == 413
        async with session.get(f"{NODES}?watch=1", headers=headers) as response:
            assert json.loads(await response.content.readline())["type"] == "ADDED"
            async with session.delete(f"{NODES}/n", headers=headers):
                pass
            assert json.loads(await response.content.readline())["type"] == "DELETED"

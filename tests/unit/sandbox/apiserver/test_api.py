"""The verbs as a client sees them, without HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccm.sandbox.apiserver import api, decode, errors, kinds, listing, query, render, routes, store
from tests.unit.sandbox.apiserver.requests import PLAIN, Requests, at, refused

NODES, NODE, STATUS = at(kinds.NODES), at(kinds.NODES, "n1"), at(kinds.NODES, "n1", "status")
STRICT = query.WriteOptions(field_validation="Strict")


@pytest.fixture
def server() -> Requests:
    return Requests()


def node(server: Requests, **body: Any) -> dict[str, Any]:
    return server.create(kinds.NODES, "n1", **body)


def strategic(server: Requests, target: routes.Target, body: Any, **more: Any) -> api.Written:
    return server.patch(target, body, api.STRATEGIC_PATCH, **more)


def names(page: listing.Page) -> list[str]:
    return [entry.key for entry in page.entries]


def test_create_sets_what_the_server_sets(server: Requests) -> None:
    body = node(server, metadata={"uid": "mine", "deletionTimestamp": "2026-01-01T00:00:00Z"})

    metadata = body["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"] == str(server.store.revision)
    assert "deletionTimestamp" not in metadata
    assert "generation" not in metadata
    with refused(409, "AlreadyExists", 'nodes "n1" already exists'):
        node(server)


def test_a_new_node_keeps_its_status_and_is_tainted_not_ready(server: Requests) -> None:
    body = node(server, status={"capacity": {"cpu": "2"}}, spec={"unschedulable": True})

    assert body["status"]["capacity"] == body["status"]["allocatable"] == {"cpu": "2"}
    assert body["spec"] == {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
    }


def test_other_kinds_lose_the_status_they_were_created_with(server: Requests) -> None:
    status = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    spec = {"ports": [{"port": 80}]}
    body = server.create(kinds.SERVICES, "s", spec=spec, status=status)

    assert body["status"] == {"loadBalancer": {}}
    assert body["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]


def test_names_are_generated_and_lists_go_across_namespaces(server: Requests) -> None:
    made = server.create(kinds.CONFIG_MAPS, "", metadata={"generateName": "gen-"})["metadata"]
    server.create(kinds.CONFIG_MAPS, "b", metadata={"namespace": "kube-system"})

    assert re.fullmatch(r"gen-[a-z0-9]{5}", made["name"])
    every = server.keys(routes.Target(kind=kinds.CONFIG_MAPS))
    assert every == [f"default/{made['name']}", "kube-system/b"]
    assert server.keys(at(kinds.CONFIG_MAPS, namespace="kube-system")) == ["kube-system/b"]


def test_the_namespace_must_exist_and_be_the_requests(server: Requests) -> None:
    with refused(404, "NotFound", 'namespaces "nope" not found'):
        server.create(kinds.CONFIG_MAPS, "a", metadata={"namespace": "nope"})
    raw = b'{"metadata":{"name":"a","namespace":"kube-system"}}'
    with refused(400, "BadRequest", "does not match the namespace sent"):
        server.api.create(at(kinds.CONFIG_MAPS), raw, "application/json", PLAIN)


def test_a_trial_stores_nothing(server: Requests) -> None:
    revision = server.store.revision

    server.create(kinds.NODES, "n1", query.WriteOptions(dry_run="All"))

    assert server.store.revision == revision
    assert server.store.get(kinds.NODES, "n1") is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"kind": "Pod"}, "the kind of the object must be Node"),
        ({"apiVersion": "v2"}, "the apiVersion of the object must be v1"),
        ({"metadata": {"resourceVersion": "1"}}, "resourceVersion should not be set"),
        ({"spec": {"unschedulable": 1}}, "spec.unschedulable: must be boolean, not number"),
    ],
)
def test_a_body_that_is_no_such_object_is_refused(
    server: Requests, body: dict[str, Any], text: str
) -> None:
    with refused(400, "BadRequest", text):
        node(server, **body)


@pytest.mark.parametrize("raw", [b"{bad", b"[]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(server: Requests, raw: bytes) -> None:
    with refused(400, "BadRequest"):
        server.api.create(NODES, raw, "application/json", PLAIN)


# --- field validation ----------------------------------------------------------------

_UNKNOWN = b'{"metadata":{"name":"n1"},"spec":{"foo":1}}'


@pytest.mark.parametrize(
    ("validation", "warnings"), [("Warn", ('unknown field "spec.foo"',)), ("Ignore", ())]
)
def test_unknown_fields_are_left_out_unless_validation_is_strict(
    server: Requests, validation: Any, warnings: tuple[str, ...]
) -> None:
    with refused(400, "BadRequest", 'strict decoding error: unknown field "spec.foo"'):
        server.api.create(NODES, _UNKNOWN, "application/json", STRICT)
    options = query.WriteOptions(field_validation=validation)

    written = server.api.create(NODES, _UNKNOWN, "application/json", options)

    assert written.warnings == warnings
    assert "foo" not in written.entry.body()["spec"]
    with refused(422, "Invalid", 'strict decoding error: unknown field "spec.foo"'):
        strategic(server, NODE, {"spec": {"foo": 1}}, options=STRICT)


def test_a_stale_version_conflicts_whatever_the_write(server: Requests) -> None:
    body = node(server)
    strategic(server, NODE, {"spec": {"unschedulable": True}})
    stale = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}}

    for content_type in (api.STRATEGIC_PATCH, api.MERGE_PATCH):
        with refused(409, "Conflict", "the object has been modified; please apply"):
            server.patch(NODE, stale, content_type)
    with refused(409, "Conflict"):
        server.update(NODE, body)


def test_an_update_without_a_version_wins_except_for_leases(server: Requests) -> None:
    node(server)
    server.update(NODE, {"metadata": {"name": "n1", "labels": {"a": "b"}}})
    server.create(kinds.LEASES, "l1")

    with refused(422, "Invalid", "must be specified for an update"):
        server.update(at(kinds.LEASES, "l1"), {"metadata": {"name": "l1"}})


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (api.STRATEGIC_PATCH, {"metadata": {"labels": {"a": "b"}}, "spec": {"providerID": "x"}}),
        (api.MERGE_PATCH, {"spec": {"unschedulable": False, "providerID": "x"}}),
        (api.JSON_PATCH, [{"op": "test", "path": "/spec/providerID", "value": "x"}]),
    ],
)
def test_a_write_that_changes_nothing_takes_no_revision(
    server: Requests, content_type: str, body: Any
) -> None:
    before = node(server, metadata={"labels": {"a": "b"}}, spec={"providerID": "x"})
    revision = server.store.revision

    written = server.patch(NODE, body, content_type)

    assert server.store.revision == revision
    assert written.entry.body() == before


def test_a_write_to_the_object_keeps_its_status(server: Requests) -> None:
    before = node(server, status={"phase": "Running"})
    change = {"spec": {"unschedulable": True}, "status": {"phase": "Pending"}}

    body = strategic(server, NODE, change).entry.body()

    assert body["spec"]["unschedulable"] is True
    assert body["status"] == before["status"]


def test_a_write_to_the_status_keeps_the_spec_but_lets_metadata_through(server: Requests) -> None:
    before = node(server)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"unschedulable": True}, "status": ready}

    body = strategic(server, STATUS, change).entry.body()

    assert (body["spec"], body["metadata"]["labels"]) == (before["spec"], {"a": "b"})
    assert body["status"]["conditions"][0]["status"] == "True"


def test_identity_cannot_be_patched(server: Requests) -> None:
    before = node(server)

    with refused(400, "BadRequest", "does not match the name on the URL"):
        strategic(server, NODE, {"metadata": {"name": "other"}})
    with refused(422, "Invalid", "field is immutable"):
        strategic(server, NODE, {"metadata": {"uid": "other"}})
    stamps = {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9, "namespace": "x"}
    assert server.patch(NODE, {"metadata": stamps}).entry.body() == before


def test_a_provider_id_is_set_once(server: Requests) -> None:
    node(server)
    strategic(server, NODE, {"spec": {"providerID": "sim://1"}})

    for value in ("sim://2", None):
        with refused(422, "Invalid", "node updates may not change providerID"):
            strategic(server, NODE, {"spec": {"providerID": value}})


@pytest.mark.parametrize(
    ("content_type", "raw", "code"),
    [
        ("application/json", b"{}", 415),
        (api.MERGE_PATCH, b"{", 400),
        (api.MERGE_PATCH, b"[]", 400),
        (api.JSON_PATCH, b'[{"op":"test","path":"/kind","value":"Pod"}]', 422),
        (api.JSON_PATCH, b'[{"op":"replace","path":"","value":5}]', 422),
        (api.STRATEGIC_PATCH, b'{"spec":{"unschedulable":"x"}}', 422),
        (api.STRATEGIC_PATCH, b'{"spec":{"$patch":"x"}}', 400),
        (api.APPLY_PATCH, b"{}", 422),
    ],
)
def test_a_bad_patch_is_refused(server: Requests, content_type: str, raw: bytes, code: int) -> None:
    node(server)

    with pytest.raises(errors.ApiError) as caught:
        server.api.patch(NODE, raw, content_type, PLAIN)

    assert caught.value.code == code


def test_a_precondition_that_does_not_hold_conflicts(server: Requests) -> None:
    metadata = node(server)["metadata"]
    held = {"uid": metadata["uid"], "resource_version": metadata["resourceVersion"]}
    before = server.store.revision

    with refused(409, "Conflict", "its uid is"):
        server.delete(NODE, uid="other")
    with refused(409, "Conflict", "its resourceVersion is"):
        server.delete(NODE, resource_version="1")
    server.delete(NODE, uid=metadata["uid"], dry_run=True)
    written = server.delete(NODE, **held)

    assert written.deleted
    assert written.entry.revision == before + 1
    with refused(404, "NotFound"):
        strategic(server, NODE, {})


def test_delete_options_come_from_the_body() -> None:
    raw = b'{"kind":"DeleteOptions","preconditions":{"uid":"u"},"gracePeriodSeconds":0}'

    assert decode.delete_options(raw, "application/json", {}) == query.DeleteOptions(
        uid="u", grace_s=0
    )
    assert decode.delete_options(b"", "", {"dryRun": "All"}).dry_run
    with refused(400, "BadRequest"):
        decode.delete_options(b'{"preconditions":5}', "application/json", {})


def test_finalizers_hold_a_deletion_until_they_are_gone(server: Requests) -> None:
    node(server, metadata={"finalizers": ["a.io/x", "b.io/y"]})

    marked = server.delete(NODE)
    again = server.delete(NODE)

    metadata = marked.entry.body()["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert not marked.deleted
    assert again.entry is marked.entry
    with refused(409, "AlreadyExists", "object is being deleted: "):
        node(server)
    with refused(422, "Invalid", "no new finalizers can be added"):
        strategic(server, NODE, {"metadata": {"finalizers": ["c.io/z"]}})
    strategic(server, NODE, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.io/x"]}})
    last = strategic(server, NODE, {"metadata": {"finalizers": None}})
    assert last.deleted
    with refused(404, "NotFound"):
        server.api.get(NODE)


def test_a_deletion_cannot_be_taken_back(server: Requests) -> None:
    node(server, metadata={"finalizers": ["a.io/x"]})
    marked = server.delete(NODE).entry.body()

    server.patch(NODE, {"metadata": {"deletionTimestamp": None}})

    assert server.api.get(NODE).body() == marked


def test_a_collection_is_deleted_by_selector(server: Requests) -> None:
    for name in ("a", "b", "c"):
        server.create(kinds.NODES, name, metadata={"labels": {"x": name}})
    options = query.list_options(kinds.NODES, {"labelSelector": "x in (a,c)"})

    page = server.api.delete_collection(NODES, options, query.DeleteOptions())

    assert names(page) == ["a", "c"]
    assert server.keys(NODES) == ["b"]


def test_a_namespace_takes_its_contents_along(server: Requests) -> None:
    space, inside = at(kinds.NAMESPACES, "x"), at(kinds.CONFIG_MAPS, "held", namespace="x")
    server.create(kinds.NAMESPACES, "x")
    held = {"namespace": "x", "finalizers": ["a.io/x"]}
    server.create(kinds.CONFIG_MAPS, "held", metadata=held)
    server.create(kinds.CONFIG_MAPS, "free", metadata={"namespace": "x"})

    server.delete(space)

    assert server.api.get(space).body()["status"] == {"phase": "Terminating"}
    assert server.keys(inside) == ["x/held"]
    with refused(403, "Forbidden", "is being terminated"):
        server.create(kinds.CONFIG_MAPS, "new", metadata={"namespace": "x"})
    strategic(server, inside, {"metadata": {"finalizers": None}})
    with refused(404, "NotFound"):
        server.api.get(space)


def test_pages_show_the_list_as_it_was_at_the_first(server: Requests) -> None:
    for name in ("a", "b", "c", "d"):
        server.create(kinds.NODES, name)
    first = server.page(NODES, limit=2)
    server.delete(at(kinds.NODES, "c"))
    server.create(kinds.NODES, "e")

    second = server.page(NODES, limit=5, page=query.Continue.parse(first.meta.next_token))

    assert (names(first), first.meta.remaining_item_count) == (["a", "b"], 2)
    assert (names(second), second.meta) == (
        ["c", "d"],
        render.ListMeta(first.meta.resource_version),
    )


def test_an_expired_page_is_gone() -> None:
    server = Requests(store.Store(history=2))
    for name in ("a", "b"):
        server.create(kinds.NODES, name)
    token = server.page(NODES, limit=1).meta.next_token
    for name in ("c", "d", "e"):
        server.create(kinds.NODES, name)

    with refused(410, "Expired"):
        server.page(NODES, limit=1, page=query.Continue.parse(token))
    with refused(410, "Expired"):
        server.page(NODES, revision=5, match=query.EXACT)


def test_a_list_is_exact_on_demand(server: Requests) -> None:
    node(server)
    revision = server.store.revision
    server.create(kinds.NODES, "n2")

    exact = server.page(NODES, revision=revision, match=query.EXACT)
    recent = server.page(NODES, revision=revision)

    assert (names(exact), exact.meta.resource_version) == (["n1"], str(revision))
    assert names(recent) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("token", "given", "status"),
    [
        ("secret", "secret", {"authenticated": True}),
        ("secret", "guess", {"error": "unknown"}),
        ("", "any", {"authenticated": True}),
    ],
)
def test_a_daemon_learns_who_its_callers_are(
    token: str, given: str, status: dict[str, Any]
) -> None:
    server = Requests(token=token)

    told = server.create(kinds.BUILTIN["tokenreviews"], "", spec={"token": given})["status"]

    assert status.items() <= told.items()
    groups = told.get("user", {}).get("groups", [])
    asked = {"groups": groups, "nonResourceAttributes": {"path": "/explain", "verb": "get"}}
    review = server.create(kinds.BUILTIN["subjectaccessreviews"], "", spec=asked)
    assert review["status"]["allowed"] is ("authenticated" in status)
    assert server.store.revision == Requests().store.revision

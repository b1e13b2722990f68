"""The verbs as a client sees them, without HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ccm.sandbox.apiserver import api, decode, errors, kinds, listing, query, routes, store

NODE = routes.Target(kind=kinds.NODES, name="n1")
NODES = routes.Target(kind=kinds.NODES)
STATUS = routes.Target(kind=kinds.NODES, name="n1", subresource="status")
CONFIG_MAPS = routes.Target(kind=kinds.CONFIG_MAPS, namespace="default")
CONFIG_MAP = routes.Target(kind=kinds.CONFIG_MAPS, namespace="default", name="c1")
LEASE = routes.Target(kind=kinds.LEASES, namespace="default", name="l1")
PLAIN = query.WriteOptions()
STRICT = query.WriteOptions(field_validation="Strict")


@pytest.fixture
def server() -> api.Api:
    return api.Api(store.Store())


def create(
    server: api.Api, target: routes.Target, options: query.WriteOptions = PLAIN, **body: Any
) -> dict[str, Any]:
    raw = json.dumps(body).encode()
    return server.create(target, raw, "application/json", options).entry.body()


def node(server: api.Api, **body: Any) -> dict[str, Any]:
    metadata = {"name": "n1", **body.pop("metadata", {})}
    return create(server, NODES, metadata=metadata, **body)


def patch(
    server: api.Api,
    target: routes.Target,
    body: Any,
    content_type: str = api.STRATEGIC_PATCH,
    options: query.WriteOptions = PLAIN,
) -> api.Written:
    return server.patch(target, json.dumps(body).encode(), content_type, options)


def update(server: api.Api, target: routes.Target, body: dict[str, Any]) -> dict[str, Any]:
    raw = json.dumps(body).encode()
    return server.update(target, raw, "application/json", PLAIN).entry.body()


def refused(code: int, reason: str, text: str = "") -> Any:
    """A context in which a request must be refused so."""
    return pytest.raises(errors.ApiError, match=re.escape(text) or None, check=_is(code, reason))


def _is(code: int, reason: str) -> Any:
    return lambda error: (error.code, error.reason) == (code, reason)


def names(page: listing.Page) -> list[str]:
    return [entry.key for entry in page.entries]


def test_create_sets_what_the_server_sets(server: api.Api) -> None:
    body = node(server, metadata={"uid": "mine", "deletionTimestamp": "2026-01-01T00:00:00Z"})

    metadata = body["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"] == str(server.store.revision)
    assert "deletionTimestamp" not in metadata
    assert "generation" not in metadata


def test_a_new_node_keeps_its_status_and_is_tainted_not_ready(server: api.Api) -> None:
    body = node(server, status={"capacity": {"cpu": "2"}}, spec={"unschedulable": True})

    assert body["status"]["capacity"] == body["status"]["allocatable"] == {"cpu": "2"}
    assert body["spec"] == {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
    }


def test_other_kinds_lose_the_status_they_were_created_with(server: api.Api) -> None:
    target = routes.Target(kind=kinds.SERVICES, namespace="default")

    status = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
    spec = {"ports": [{"port": 80}]}
    body = create(server, target, metadata={"name": "s"}, spec=spec, status=status)

    assert body["status"] == {"loadBalancer": {}}
    assert body["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]


def test_create_of_what_exists_is_refused(server: api.Api) -> None:
    node(server)

    with refused(409, "AlreadyExists", 'nodes "n1" already exists'):
        node(server)


def test_names_are_generated_and_lists_go_across_namespaces(server: api.Api) -> None:
    made = create(server, CONFIG_MAPS, metadata={"generateName": "gen-"})["metadata"]
    elsewhere = routes.Target(kind=kinds.CONFIG_MAPS, namespace="kube-system")
    create(server, elsewhere, metadata={"name": "b"})

    assert re.fullmatch(r"gen-[a-z0-9]{5}", made["name"])
    every = server.list_page(routes.Target(kind=kinds.CONFIG_MAPS), query.ListOptions())
    assert names(every) == [f"default/{made['name']}", "kube-system/b"]
    one = server.list_page(elsewhere, query.ListOptions())
    assert names(one) == ["kube-system/b"]


def test_the_namespace_must_exist_and_be_the_requests(server: api.Api) -> None:
    nowhere = routes.Target(kind=kinds.CONFIG_MAPS, namespace="nope")
    with refused(404, "NotFound", 'namespaces "nope" not found'):
        create(server, nowhere, metadata={"name": "a"})
    with refused(400, "BadRequest", "does not match the namespace sent"):
        create(server, CONFIG_MAPS, metadata={"name": "a", "namespace": "kube-system"})


def test_a_trial_stores_nothing(server: api.Api) -> None:
    revision = server.store.revision

    create(server, NODES, query.WriteOptions(dry_run="All"), metadata={"name": "n1"})

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
    server: api.Api, body: dict[str, Any], text: str
) -> None:
    with refused(400, "BadRequest", text):
        node(server, **body)


@pytest.mark.parametrize("raw", [b"{bad", b"[]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(server: api.Api, raw: bytes) -> None:
    with refused(400, "BadRequest"):
        server.create(NODES, raw, "application/json", PLAIN)


# --- field validation ----------------------------------------------------------------

_UNKNOWN = b'{"metadata":{"name":"n1"},"spec":{"foo":1}}'


def test_strict_validation_refuses_unknown_fields(server: api.Api) -> None:
    with refused(400, "BadRequest", 'strict decoding error: unknown field "spec.foo"'):
        server.create(NODES, _UNKNOWN, "application/json", STRICT)


@pytest.mark.parametrize(
    ("validation", "warnings"), [("Warn", ('unknown field "spec.foo"',)), ("Ignore", ())]
)
def test_unknown_fields_are_left_out(
    server: api.Api, validation: Any, warnings: tuple[str, ...]
) -> None:
    options = query.WriteOptions(field_validation=validation)

    written = server.create(NODES, _UNKNOWN, "application/json", options)

    assert written.warnings == warnings
    assert "foo" not in written.entry.body()["spec"]


def test_a_strict_patch_with_an_unknown_field_is_invalid(server: api.Api) -> None:
    node(server)

    with refused(422, "Invalid", 'strict decoding error: unknown field "spec.foo"'):
        patch(server, NODE, {"spec": {"foo": 1}}, options=STRICT)


def test_a_stale_version_conflicts_whatever_the_write(server: api.Api) -> None:
    body = node(server)
    patch(server, NODE, {"spec": {"unschedulable": True}})
    stale = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}}

    for content_type in (api.STRATEGIC_PATCH, api.MERGE_PATCH):
        with refused(409, "Conflict", "the object has been modified; please apply"):
            patch(server, NODE, stale, content_type)
    with refused(409, "Conflict"):
        update(server, NODE, body)


def test_an_update_without_a_version_wins_except_for_leases(server: api.Api) -> None:
    node(server)
    update(server, NODE, {"metadata": {"name": "n1", "labels": {"a": "b"}}})
    create(server, LEASE, metadata={"name": "l1"})

    with refused(422, "Invalid", "must be specified for an update"):
        update(server, LEASE, {"metadata": {"name": "l1"}})


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (api.STRATEGIC_PATCH, {"metadata": {"labels": {"a": "b"}}, "spec": {"providerID": "x"}}),
        (api.MERGE_PATCH, {"spec": {"unschedulable": False, "providerID": "x"}}),
        (api.JSON_PATCH, [{"op": "test", "path": "/spec/providerID", "value": "x"}]),
    ],
)
def test_a_write_that_changes_nothing_takes_no_revision(
    server: api.Api, content_type: str, body: Any
) -> None:
    before = node(server, metadata={"labels": {"a": "b"}}, spec={"providerID": "x"})
    revision = server.store.revision

    written = patch(server, NODE, body, content_type)

    assert server.store.revision == revision
    assert written.entry.body() == before


def test_a_write_to_the_object_keeps_its_status(server: api.Api) -> None:
    before = node(server, status={"phase": "Running"})

    body = patch(
        server, NODE, {"spec": {"unschedulable": True}, "status": {"phase": "Pending"}}
    ).entry.body()

    assert body["spec"]["unschedulable"] is True
    assert body["status"] == before["status"]


def test_a_write_to_the_status_keeps_the_spec_but_lets_metadata_through(server: api.Api) -> None:
    before = node(server)

    body = patch(
        server,
        STATUS,
        {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"unschedulable": True},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
    ).entry.body()

    assert body["spec"] == before["spec"]
    assert body["metadata"]["labels"] == {"a": "b"}
    assert body["status"]["conditions"][0]["status"] == "True"


def test_identity_cannot_be_patched(server: api.Api) -> None:
    before = node(server)

    with refused(400, "BadRequest", "does not match the name on the URL"):
        patch(server, NODE, {"metadata": {"name": "other"}})
    with refused(422, "Invalid", "field is immutable"):
        patch(server, NODE, {"metadata": {"uid": "other"}})
    assert patch(server, NODE, {"metadata": {"namespace": "x"}}).entry.body() == before


def test_times_that_the_server_sets_cannot_be_changed(server: api.Api) -> None:
    before = node(server)
    stamps = {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9}

    after = patch(server, NODE, {"metadata": stamps}, api.MERGE_PATCH).entry.body()

    assert after == before


def test_a_provider_id_is_set_once(server: api.Api) -> None:
    node(server)
    patch(server, NODE, {"spec": {"providerID": "sim://1"}})

    for value in ("sim://2", None):
        with refused(422, "Invalid", "node updates may not change providerID"):
            patch(server, NODE, {"spec": {"providerID": value}})


@pytest.mark.parametrize(
    ("content_type", "raw", "code"),
    [
        ("application/json", b"{}", 415),
        (api.MERGE_PATCH, b"{", 400),
        (api.MERGE_PATCH, b"[]", 400),
        (api.JSON_PATCH, b"{}", 400),
        (api.JSON_PATCH, b'[{"op":"test","path":"/kind","value":"Pod"}]', 422),
        (api.JSON_PATCH, b'[{"op":"replace","path":"","value":5}]', 422),
        (api.STRATEGIC_PATCH, b'{"spec":{"unschedulable":"x"}}', 422),
        (api.STRATEGIC_PATCH, b'{"spec":{"$patch":"x"}}', 400),
        (api.APPLY_PATCH, b"{}", 422),
    ],
)
def test_a_bad_patch_is_refused(server: api.Api, content_type: str, raw: bytes, code: int) -> None:
    node(server)

    with pytest.raises(errors.ApiError) as caught:
        server.patch(NODE, raw, content_type, PLAIN)

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (query.DeleteOptions(uid="other"), "its uid is"),
        (query.DeleteOptions(resource_version="1"), "its resourceVersion is"),
    ],
)
def test_a_precondition_that_does_not_hold_conflicts(
    server: api.Api, options: query.DeleteOptions, text: str
) -> None:
    metadata = node(server)["metadata"]
    held = query.DeleteOptions(uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    before = server.store.revision

    with refused(409, "Conflict", text):
        server.delete(NODE, options)
    server.delete(NODE, query.DeleteOptions(uid=metadata["uid"], dry_run=True))
    written = server.delete(NODE, held)

    assert written.deleted
    assert written.entry.revision == before + 1
    with refused(404, "NotFound"):
        patch(server, NODE, {})


def test_delete_options_come_from_the_body() -> None:
    raw = b'{"kind":"DeleteOptions","preconditions":{"uid":"u"},"gracePeriodSeconds":0}'

    assert decode.delete_options(raw, "application/json", {}) == query.DeleteOptions(uid="u")
    assert decode.delete_options(b"", "", {"dryRun": "All"}).dry_run
    with refused(400, "BadRequest"):
        decode.delete_options(b'{"preconditions":5}', "application/json", {})


def test_finalizers_hold_a_deletion_until_they_are_gone(server: api.Api) -> None:
    node(server, metadata={"finalizers": ["a.io/x", "b.io/y"]})

    marked = server.delete(NODE, query.DeleteOptions())
    again = server.delete(NODE, query.DeleteOptions())

    metadata = marked.entry.body()["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert not marked.deleted
    assert again.entry is marked.entry
    with refused(409, "AlreadyExists", "object is being deleted: "):
        node(server)
    with refused(422, "Invalid", "no new finalizers can be added"):
        patch(server, NODE, {"metadata": {"finalizers": ["c.io/z"]}})
    patch(server, NODE, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.io/x"]}})
    last = patch(server, NODE, {"metadata": {"finalizers": None}})
    assert last.deleted
    with refused(404, "NotFound"):
        server.get(NODE)


def test_a_deletion_cannot_be_taken_back(server: api.Api) -> None:
    node(server, metadata={"finalizers": ["a.io/x"]})
    marked = server.delete(NODE, query.DeleteOptions()).entry.body()

    patch(server, NODE, {"metadata": {"deletionTimestamp": None}}, api.MERGE_PATCH)

    assert server.get(NODE).body() == marked


def test_a_collection_is_deleted_by_selector(server: api.Api) -> None:
    for name in ("a", "b", "c"):
        create(server, NODES, metadata={"name": name, "labels": {"x": name}})
    options = query.list_options(kinds.NODES, {"labelSelector": "x in (a,c)"})

    page = server.delete_collection(NODES, options, query.DeleteOptions())

    assert names(page) == ["a", "c"]
    assert names(server.list_page(NODES, query.ListOptions())) == ["b"]


def test_a_namespace_takes_its_contents_along(server: api.Api) -> None:
    spaces = routes.Target(kind=kinds.NAMESPACES)
    create(server, spaces, metadata={"name": "x"})
    inside = routes.Target(kind=kinds.CONFIG_MAPS, namespace="x", name="held")
    create(server, inside, metadata={"name": "held", "finalizers": ["a.io/x"]})
    create(server, inside, metadata={"name": "free"})
    space = routes.Target(kind=kinds.NAMESPACES, name="x")

    server.delete(space, query.DeleteOptions())

    assert server.get(space).body()["status"] == {"phase": "Terminating"}
    assert names(server.list_page(inside, query.ListOptions())) == ["x/held"]
    with refused(403, "Forbidden", "is being terminated"):
        create(server, inside, metadata={"name": "new"})
    patch(server, inside, {"metadata": {"finalizers": None}})
    with refused(404, "NotFound"):
        server.get(space)


def test_pages_show_the_list_as_it_was_at_the_first(server: api.Api) -> None:
    for name in ("a", "b", "c", "d"):
        create(server, NODES, metadata={"name": name})
    first = server.list_page(NODES, query.ListOptions(limit=2))
    server.delete(routes.Target(kind=kinds.NODES, name="c"), query.DeleteOptions())
    create(server, NODES, metadata={"name": "e"})

    options = query.ListOptions(limit=5, page=query.Continue.parse(first.next_token))
    second = server.list_page(NODES, options)

    assert (names(first), first.remaining) == (["a", "b"], 2)
    assert (names(second), second.next_token, second.remaining) == (["c", "d"], "", None)
    assert second.revision == first.revision


def test_an_expired_page_is_gone() -> None:
    server = api.Api(store.Store(history=2))
    for name in ("a", "b"):
        create(server, NODES, metadata={"name": name})
    token = server.list_page(NODES, query.ListOptions(limit=1)).next_token
    for name in ("c", "d", "e"):
        create(server, NODES, metadata={"name": name})

    with refused(410, "Expired"):
        server.list_page(NODES, query.ListOptions(limit=1, page=query.Continue.parse(token)))
    with refused(410, "Expired"):
        server.list_page(NODES, query.ListOptions(revision=5, match=query.EXACT))


def test_a_list_is_exact_on_demand(server: api.Api) -> None:
    node(server)
    revision = server.store.revision
    create(server, NODES, metadata={"name": "n2"})

    exact = server.list_page(NODES, query.ListOptions(revision=revision, match=query.EXACT))
    recent = server.list_page(NODES, query.ListOptions(revision=revision))

    assert (names(exact), exact.revision) == (["n1"], revision)
    assert names(recent) == ["n1", "n2"]

"""Typed calls, and decoding of responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ccm.kube import decode, errors, exec_plugin, resources
from ccm.kube.client import Client, Resource, encode
from ccm.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, SERVICES, ResourceKind
from ccm.model import Lease, Node, ObjectMeta, meta, node, objects, service
from tests.unit.kube.proxy import Server, a_status, no_answer, says, sends, streams

NODE = {"metadata": {"name": "n1", "resourceVersion": "5"}}
LEASE = {"metadata": {"name": "ccm", "namespace": "kube-system"}}


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.transport, name="node-controller")


@pytest.fixture
def nodes(client: Client) -> Resource[Node]:
    return client.resource(NODES)


@pytest.fixture
def leases(client: Client) -> Resource[Lease]:
    return client.resource(LEASES)


async def test_response_that_is_no_object_counts_as_no_answer(
    server: Server, nodes: Resource[Node]
) -> None:
    server.will(sends(b"<html>"))

    with no_answer("garbage"):
        await nodes.get("n1")


async def test_pages_follow_the_continue_token(server: Server, leases: Resource[Lease]) -> None:
    server.will(
        says({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [LEASE]}),
        says({"metadata": {"resourceVersion": "9"}, "items": None}),
    )

    found = leases.pages(namespace="kube-system", field_selector="metadata.name=ccm")
    pages = [page async for page in found]

    assert [len(page.items) for page in pages] == [1, 0]
    assert [page.resource_version for page in pages] == ["9", "9"]
    assert {seen.path for seen in server.seen} == {
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    }
    assert [seen.query for seen in server.seen] == [
        {"limit": "500", "fieldSelector": "metadata.name=ccm"},
        {"limit": "500", "fieldSelector": "metadata.name=ccm", "continue": "more"},
    ]


async def test_replace_sends_put_for_a_completely_modelled_kind(
    server: Server, leases: Resource[Lease]
) -> None:
    server.will(says(LEASE))
    meta = ObjectMeta(name="ccm", namespace="kube-system", resource_version="5")

    await leases.replace(Lease(metadata=meta))

    seen = server.seen[0]
    assert (seen.method, seen.path) == (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ccm",
    )
    assert seen.json["metadata"]["resourceVersion"] == "5"


async def test_replace_refuses_a_partially_modelled_kind(
    server: Server, nodes: Resource[Node]
) -> None:
    with pytest.raises(TypeError, match="patch"):
        await nodes.replace(Node(metadata=ObjectMeta(name="n1")))

    assert server.seen == []


async def test_request_requires_namespace_and_name_by_kind(
    nodes: Resource[Node], leases: Resource[Lease], server: Server
) -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        await leases.get("ccm")
    with pytest.raises(ValueError, match="has no namespace"):
        await nodes.get("n1", namespace="x")
    with pytest.raises(ValueError, match="needs a name"):
        await nodes.delete("")

    assert server.seen == []


def _line(event: str, body: Any) -> bytes:
    return json.dumps({"type": event, "object": body}).encode() + b"\n"


async def test_error_event_ends_the_watch(server: Server, nodes: Resource[Node]) -> None:
    server.will(streams(_line("ADDED", NODE), _line("ERROR", a_status(410, "Expired"))))
    async with nodes.watch(resource_version="1", timeout_s=60) as events:
        first = await anext(events)
        with pytest.raises(errors.Gone):
            await anext(events)

    assert first.key == "n1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"items": 5}',
        b'{"items": [{"metadata": 1}',
        b'{"metadata": {"resourceVersion": "\xff"}}',
    ],
)
def test_body_that_is_no_list_counts_as_no_answer(body: bytes) -> None:
    with no_answer("garbage"):
        decode.decode_page(NODES, body)


def test_malformed_list_item_is_reported_by_namespace_and_name() -> None:
    body = (
        b'{"items": [{"metadata": {"namespace": "blue", "name": "n", "labels": 5}},'
        b' {"metadata": {"namespace": "blue", "labels": 5}},'
        b' {"metadata": {"name": "\xff"}}, {"metadata": {"name": "n"}}]}'
    )

    page = decode.decode_page(NODES, body)

    assert [node.name for node in page.items] == ["n"]
    assert page.malformed_keys == ["blue/n", "", ""]


@pytest.mark.parametrize(
    "line",
    [
        b"<html>502</html>",
        b'{"type": "ADDED", "object": {"metadata":',
        b'{"object": {}}',
        b'{"type": "ERROR", "object": []}',
        b'{"type": "BOOKMARK", "object": {"metadata": 3}}',
        b'{"kind": "Status", "code": 500}',
        b'{"type": "\xff", "object": {}}',
    ],
)
def test_watch_line_that_is_no_event_is_a_connection_error(line: bytes) -> None:
    with no_answer("garbage"):
        decode.decode_event(NODES, line)


KINDS: list[ResourceKind[Any]] = [NODES, SERVICES, LEASES, EVENTS, CONFIG_MAPS]

"""Types whose name in the official client is not `V1` and their own name."""

"""Types that no kind of the API has."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_page_with_null_items_is_decoded(kind: ResourceKind[Any]) -> None:
    page = kind.page_decoder.decode(b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    assert page.items is None
    assert page.metadata.resource_version == "5"


def test_causes_and_retry_after_are_read_from_status_details() -> None:
    status = a_status(504, "Timeout")
    status["details"] = {
        "retryAfterSeconds": 7,
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "m", "field": "f"}],
    }

    body = json.dumps(status).encode()
    error = errors.from_response(504, {}, body)

    assert error.retry_after == 7
    assert errors.from_response(504, {"Retry-After": "3"}, body).retry_after == 3
    assert error.has_cause(errors.REASON_RESOURCE_VERSION_TOO_LARGE)
    assert not error.has_cause("Other")
    assert error.causes[0].field == "f"


def test_plain_text_error_is_shortened_to_one_line() -> None:
    body = b"Too many requests,\n\x1b[31m try later " + b"y" * 1000

    error = errors.from_response(429, {"Content-Type": "text/plain; charset=utf-8"}, body)

    assert type(error) is errors.TooManyRequests
    assert "Too many requests, [31m try later" in error.message
    assert len(error.message) < 300


def test_lone_surrogate_is_replaced_in_requests() -> None:
    sent = encode({"status": {"conditions": [{"message": "no \udcff"}]}})

    assert json.loads(sent) == {"status": {"conditions": [{"message": "no ?"}]}}


@pytest.mark.parametrize("levels", [1_100, 9_000])
@pytest.mark.parametrize("where", ["first", "last"])
def test_deeply_nested_object_does_not_hide_the_others(levels: int, where: str) -> None:
    """The API server stores such an object, and a tenant may create it."""
    spec = '{"a\\"]}": [' * levels + "1" + "]}" * levels
    head = {"name": "bad", "namespace": "n", "resourceVersion": "7"}
    bad = f'{{"metadata": {json.dumps(head)}, "x": {spec}}}'
    good = '{"metadata": {"name": "good", "resourceVersion": "6"}}'
    items = f"{bad}, {good}" if where == "first" else f"{good}, {bad}"
    body = f'{{"items": [{items}], "metadata": {{"resourceVersion": "9"}}}}'.encode()

    page = decode.decode_page(NODES, body)
    event = decode.decode_event(NODES, f'{{"type": "MODIFIED", "object": {bad}}}'.encode())

    assert [one.name for one in page.items] == ["good"]
    assert (page.malformed_keys, page.resource_version) == (["n/bad"], "9")
    assert (event.type, event.key, event.resource_version) == ("MALFORMED", "n/bad", "7")


@pytest.mark.parametrize("levels", [1_100])
@pytest.mark.parametrize("end", ["", "]", '"', "}}}}"])
def test_truncated_deeply_nested_body_counts_as_no_answer(levels: int, end: str) -> None:
    with no_answer("garbage"):
        decode.decode_page(NODES, ('{"items": [' * levels + end).encode())
    with no_answer("garbage"):
        decode.decode_event(NODES, ('{"object": [' * levels + end).encode())


_MODELS = {
    "Envelope": "V1WatchEvent",
    "Event": "CoreV1Event",
    "EventSource": "V1EventSource",
    "ObjectReference": "V1ObjectReference",
    "PortStatus": "V1PortStatus",
}


_NOT_THERE = {"ExecCredential", "ExecStatus", "Bookmark", "NamedObject", "NameMeta", "RawList"}


_MODULES = (meta, node, service, objects, resources, errors, exec_plugin)


def _wire_types() -> Iterator[type[meta.Wire]]:
    """Return every wire type of the model and of this layer, except base and generic types."""
    skipped = (meta.Wire, meta.KubeObject, resources.ItemList, resources.WatchChange)
    for module in _MODULES:
        for found in vars(module).values():
            ours = isinstance(found, type) and found.__module__ == module.__name__
            if ours and issubclass(found, meta.Wire) and found not in skipped:
                yield found


def test_model_fields_have_the_names_of_the_kubernetes_api() -> None:
    from kubernetes.client import models  # slow to import, needed only here

    for each in _wire_types():
        if each.__name__ not in _NOT_THERE:
            model = getattr(models, _MODELS.get(each.__name__, f"V1{each.__name__}"))
            ours = {item.encode_name for item in msgspec.structs.fields(each)}
            assert ours <= {"kind", *model.attribute_map.values()}, each


def test_resource_kinds_build_escaped_paths() -> None:
    assert NODES.path() == "/api/v1/nodes"
    assert NODES.path(name="n1", subresource="status") == "/api/v1/nodes/n1/status"
    assert NODES.path(name="../secrets?x#y%") == "/api/v1/nodes/..%2Fsecrets%3Fx%23y%25"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    assert LEASES.path(namespace="kube-system", name="ccm") == f"{leases}/ccm"


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (400, "BadRequest", errors.ApiError),
    ],
)
def test_status_response_becomes_the_matching_error(
    status: int, reason: str, expected: type[errors.ApiError]
) -> None:
    body = json.dumps(a_status(status, reason, "because")).encode()

    error = errors.from_response(status, {}, body)

    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (status, reason, "because")
    assert str(error) == f"because ({status} {reason})"


@pytest.mark.parametrize("seconds", ["86400", "9" * 5000], ids=["a day", "no end"])
def test_retry_after_is_limited_to_five_minutes(seconds: str) -> None:
    details = {"details": {"retryAfterSeconds": 86400}}
    body = json.dumps(a_status(429, "TooManyRequests") | details).encode()

    assert errors.retry_after_seconds({"Retry-After": seconds}) == 300
    assert errors.from_response(429, {"Retry-After": seconds}, b"").retry_after == 300
    assert errors.from_response(429, {}, body).retry_after == 300


async def test_delete_sends_uid_and_resource_version_preconditions(
    server: Server, nodes: Resource[Node]
) -> None:
    await nodes.delete("n1")
    await nodes.delete("n1", uid="u")
    await nodes.delete("n1", uid="u", resource_version="7")

    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert [(seen.method, seen.target) for seen in server.seen] == [
        ("DELETE", "/api/v1/nodes/n1")
    ] * 3
    assert [seen.json for seen in server.seen] == [
        options,
        {**options, "preconditions": {"uid": "u"}},
        {**options, "preconditions": {"uid": "u", "resourceVersion": "7"}},
    ]


def test_html_error_page_of_a_proxy_is_not_shown() -> None:
    body = b"<html><body>" + b"x" * 10_000 + b"</body></html>"

    error = errors.from_response(502, {"Content-Type": "text/html"}, body)

    assert type(error) is errors.ServerError
    assert error.message == "the server returned 502 without a Status"
    assert error.reason == "InternalError"


def test_event_message_is_masked_but_annotations_are_not() -> None:
    body = {"metadata": {"annotations": {"note": "token: abcdefgh"}}, "message": "token: abcdefgh"}

    sent = json.loads(encode(body))

    assert sent["metadata"] == body["metadata"]
    assert sent["message"] == "token: [redacted]"

"""Typed calls, and decoding of what the server answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ccm.base.throttle import Unlimited
from ccm.kube import decode, errors, exec_plugin, metrics, resources
from ccm.kube.client import Client, Resource, encode
from ccm.kube.decode import WatchEvent
from ccm.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, SERVICES, Kind
from ccm.model import Lease, LeaseSpec, Node, ObjectMeta, meta, node, objects, service
from tests.unit.kube.proxy import Server, a_status, connect, no_answer, says, sends, streams

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


async def test_each_client_has_its_own_limiter(server: Server) -> None:
    class Counting(Unlimited):
        turns = 0

        async def acquire(self) -> float:
            self.turns += 1
            return 0.0

    one, two = Counting(), Counting()
    server.will(says(NODE))

    async with connect(server.url) as transport:
        await Client(transport, name="one", limiter=one).resource(NODES).get("n1")
        await Client(transport, name="two", limiter=two).raw("GET", "/version")
        await Client(transport, name="three").raw("GET", "/version")

    assert (one.turns, two.turns) == (1, 1)


async def test_what_is_no_object_is_no_answer(server: Server, nodes: Resource[Node]) -> None:
    server.will(sends(b"<html>"))

    with no_answer("garbage"):
        await nodes.get("n1")


async def test_pages_follow_the_token(server: Server, leases: Resource[Lease]) -> None:
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


async def test_create_says_what_it_creates(server: Server, leases: Resource[Lease]) -> None:
    server.will(says(LEASE, status=201), says(LEASE, status=201))
    lease = Lease(
        metadata=ObjectMeta(name="ccm", namespace="kube-system"),
        spec=LeaseSpec(holder_identity="me", lease_transitions=0),
    )

    await leases.create(lease)
    await leases.create({"metadata": {"name": "ccm"}}, namespace="kube-system")

    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    ] * 2
    assert server.seen[0].json == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "ccm", "namespace": "kube-system"},
        "spec": {"holderIdentity": "me", "leaseTransitions": 0},
    }
    assert server.seen[1].json["kind"] == "Lease"


async def test_a_complete_kind_is_replaced(server: Server, leases: Resource[Lease]) -> None:
    server.will(says(LEASE))
    meta = ObjectMeta(name="ccm", namespace="kube-system", resource_version="5")

    await leases.replace(Lease(metadata=meta))

    seen = server.seen[0]
    assert (seen.method, seen.path) == (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ccm",
    )
    assert seen.json["metadata"]["resourceVersion"] == "5"


async def test_a_narrow_kind_is_never_replaced(server: Server, nodes: Resource[Node]) -> None:
    with pytest.raises(TypeError, match="patch"):
        await nodes.replace(Node(metadata=ObjectMeta(name="n1")))

    assert server.seen == []


@pytest.mark.parametrize(
    ("verb", "content_type"),
    [
        ("patch_strategic", "application/strategic-merge-patch+json"),
        ("patch_merge", "application/merge-patch+json"),
    ],
)
async def test_a_patch_says_its_kind(
    server: Server, nodes: Resource[Node], verb: str, content_type: str
) -> None:
    server.will(says(NODE))
    patch = {"spec": {"x": None}}

    node = await getattr(nodes, verb)("n1", patch, subresource="status")

    seen = server.seen[0]
    assert node.name == "n1"
    assert (seen.method, seen.target) == ("PATCH", "/api/v1/nodes/n1/status")
    assert seen.headers["Content-Type"] == content_type
    assert seen.json == patch


async def test_delete_carries_its_precondition(server: Server, nodes: Resource[Node]) -> None:
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


async def test_an_object_needs_its_namespace_and_its_name(
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


async def test_a_watch_yields_its_events(server: Server, nodes: Resource[Node]) -> None:
    bookmark = {"metadata": {"resourceVersion": "8"}}
    server.will(
        streams(_line("ADDED", NODE), _line("MODIFIED", {"spec": 1}), _line("BOOKMARK", bookmark))
    )

    async with nodes.watch(resource_version="4", timeout_s=300) as events:
        found = [event async for event in events]

    assert [event.type for event in found] == ["ADDED", "MALFORMED", "BOOKMARK"]
    assert [event.resource_version for event in found] == ["5", "", "8"]
    assert server.seen[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "4",
    }


async def test_a_watch_may_begin_with_the_present_objects(
    server: Server, leases: Resource[Lease]
) -> None:
    server.will(streams())

    async with leases.watch(
        namespace="kube-system",
        timeout_s=60,
        send_initial_events=True,
        field_selector="metadata.name=ccm",
    ) as events:
        assert [event async for event in events] == []

    assert server.seen[0].path.endswith("/namespaces/kube-system/leases")
    assert server.seen[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "60",
        "resourceVersion": "",
        "resourceVersionMatch": "NotOlderThan",
        "sendInitialEvents": "true",
        "fieldSelector": "metadata.name=ccm",
    }


async def test_an_error_event_ends_the_watch(server: Server, nodes: Resource[Node]) -> None:
    server.will(streams(_line("ADDED", NODE), _line("ERROR", a_status(410, "Expired"))))
    async with nodes.watch(resource_version="1", timeout_s=60) as events:
        first = await anext(events)
        with pytest.raises(errors.Gone):
            await anext(events)

    assert first.key == "n1"


def _node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": f"rv-{name}"}, **more}


def _event_line(event: str, body: Any) -> bytes:
    return json.dumps({"type": event, "object": body}).encode()


def _malformed_count() -> float:
    found: Any = metrics.malformed("nodes")
    return float(found._value.get())


def test_a_page_with_one_malformed_node_keeps_the_others() -> None:
    items = [_node(f"n{number}") for number in range(500)]
    items[77] = _node("bad", spec={"taints": "none"})
    before = _malformed_count()

    page = decode.decode_page(
        NODES,
        json.dumps(
            {"metadata": {"resourceVersion": "9", "continue": "next"}, "items": items}
        ).encode(),
    )

    assert len(page.items) == 499
    assert page.malformed_keys == ["bad"]
    assert (page.resource_version, page.continue_) == ("9", "next")
    assert "bad" not in {node.name for node in page.items}
    assert _malformed_count() - before == 1


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
def test_what_is_no_list_is_no_answer(body: bytes) -> None:
    with no_answer("garbage"):
        decode.decode_page(NODES, body)


def test_a_malformed_item_is_told_by_namespace_and_name() -> None:
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
def test_a_line_that_is_no_event_is_trouble_with_the_connection(line: bytes) -> None:
    with no_answer("garbage"):
        decode.decode_event(NODES, line)


@pytest.mark.parametrize("event", ["MODIFIED", "DELETED", "SURPRISE"])
@pytest.mark.parametrize(
    ("head", "key", "version"),
    [
        ({"name": "n1", "resourceVersion": "8", "labels": 5}, "n1", "8"),
        ("gone", "", ""),
    ],
    ids=["readable", "unreadable"],
)
def test_a_malformed_object_is_told_by_key_and_version(
    event: str, head: object, key: str, version: str
) -> None:
    before = _malformed_count()

    found = decode.decode_event(NODES, _event_line(event, {"metadata": head}))

    assert found == WatchEvent(
        type="MALFORMED", object=None, resource_version=version, key=key, wire_type=event
    )
    assert _malformed_count() - before == 1


KINDS: list[Kind[Any]] = [NODES, SERVICES, LEASES, EVENTS, CONFIG_MAPS]

_MODELS = {
    "Cause": "V1StatusCause",
    "Envelope": "V1WatchEvent",
    "Event": "CoreV1Event",
    "EventSource": "V1EventSource",
    "ObjectReference": "V1ObjectReference",
    "PortStatus": "V1PortStatus",
}
"""Types whose name in the official client is not theirs with `V1` before it."""

_NOT_THERE = {"ExecCredential", "ExecStatus", "Bookmark", "Named", "NameMeta", "RawList"}
"""Types that no kind of the API has."""


_MODULES = (meta, node, service, objects, resources, errors, exec_plugin)


def _wire_types() -> Iterator[type[meta.Wire]]:
    """Every wire type of the model and of this layer, bases and generic ones apart."""
    skipped = (meta.Wire, meta.KubeObject, resources.ItemList, resources.Change)
    for module in _MODULES:
        for found in vars(module).values():
            ours = isinstance(found, type) and found.__module__ == module.__name__
            if ours and issubclass(found, meta.Wire) and found not in skipped:
                yield found


def test_fields_are_spelled_as_the_server_spells_them() -> None:
    from kubernetes.client import models  # heavy: nobody else needs it

    for each in _wire_types():
        if each.__name__ not in _NOT_THERE:
            model = getattr(models, _MODELS.get(each.__name__, f"V1{each.__name__}"))
            ours = {item.encode_name for item in msgspec.structs.fields(each)}
            assert ours <= {"kind", *model.attribute_map.values()}, each


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_page_with_null_items_is_empty(kind: Kind[Any]) -> None:
    page = kind.page.decode(b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    assert page.items is None
    assert page.metadata.resource_version == "5"


def test_kinds_know_their_paths() -> None:
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
def test_a_status_becomes_the_error_of_its_code(
    status: int, reason: str, expected: type[errors.ApiError]
) -> None:
    body = json.dumps(a_status(status, reason, "because")).encode()

    error = errors.from_response(status, {}, body)

    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (status, reason, "because")
    assert str(error) == f"because ({status} {reason})"


def test_causes_and_wait_come_from_the_details() -> None:
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


@pytest.mark.parametrize("seconds", ["86400", "9" * 5000], ids=["a day", "no end"])
def test_a_server_is_waited_for_five_minutes_at_most(seconds: str) -> None:
    details = {"details": {"retryAfterSeconds": 86400}}
    body = json.dumps(a_status(429, "TooManyRequests") | details).encode()

    assert errors.retry_after_seconds({"Retry-After": seconds}) == 300
    assert errors.from_response(429, {"Retry-After": seconds}, b"").retry_after == 300
    assert errors.from_response(429, {}, body).retry_after == 300


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "²"])
def test_only_whole_seconds_count_as_retry_after(text: str) -> None:
    assert errors.retry_after_seconds({"Retry-After": text}) is None


def test_a_proxys_page_is_not_shown() -> None:
    body = b"<html><body>" + b"x" * 10_000 + b"</body></html>"

    error = errors.from_response(502, {"Content-Type": "text/html"}, body)

    assert type(error) is errors.ServerError
    assert error.message == "the server answered 502 without a Status"
    assert error.reason == "InternalError"


def test_a_plain_text_is_shown_short_and_on_one_line() -> None:
    body = b"Too many requests,\n\x1b[31m try later " + b"y" * 1000

    error = errors.from_response(429, {"Content-Type": "text/plain; charset=utf-8"}, body)

    assert type(error) is errors.TooManyRequests
    assert "Too many requests, [31m try later" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"[]", b'{"kind": "Node"}', b'{"kind": "Status", "code": "x"}']
)
def test_a_body_that_is_no_status_still_gives_the_error_of_the_code(body: bytes) -> None:
    assert isinstance(errors.from_response(404, {}, body), errors.NotFound)


def test_a_status_in_a_watch_is_judged_by_its_own_code() -> None:
    gone = errors.from_status(errors.Status(kind="Status", code=410, reason="Expired"))
    bare = errors.from_status(errors.Status(kind="Status"))

    assert isinstance(gone, errors.Gone)
    assert isinstance(bare, errors.ServerError)


def test_half_a_character_is_mended() -> None:
    sent = encode({"status": {"conditions": [{"message": "no \udcff"}]}})

    assert json.loads(sent) == {"status": {"conditions": [{"message": "no ?"}]}}


def test_an_annotation_of_that_name_is_left_as_it_is() -> None:
    body = {"metadata": {"annotations": {"note": "token: abcdefgh"}}, "message": "token: abcdefgh"}

    sent = json.loads(encode(body))

    assert sent["metadata"] == body["metadata"]
    assert sent["message"] == "token: [redacted]"


@pytest.mark.parametrize("levels", [1_100, 9_000])
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_object_nested_too_deeply_keeps_no_other_from_being_read(
    levels: int, where: str
) -> None:
    """The API server stores it, and a tenant may create it."""
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
def test_what_is_nested_too_deeply_and_cut_off_is_no_list(levels: int, end: str) -> None:
    with no_answer("garbage"):
        decode.decode_page(NODES, ('{"items": [' * levels + end).encode())
    with no_answer("garbage"):
        decode.decode_event(NODES, ('{"object": [' * levels + end).encode())

"""Typed calls, and decoding of what the server answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccm.kube import decode, errors
from ccm.kube.client import Client, Resource, encode
from ccm.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, SERVICES, Kind
from ccm.model import Lease, Node, ObjectMeta
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


async def test_an_error_event_ends_the_watch(server: Server, nodes: Resource[Node]) -> None:
    server.will(streams(_line("ADDED", NODE), _line("ERROR", a_status(410, "Expired"))))
    async with nodes.watch(resource_version="1", timeout_s=60) as events:
        first = await anext(events)
        with pytest.raises(errors.Gone):
            await anext(events)

    assert first.key == "n1"


def _node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": f"rv-{name}"}, **more}


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


KINDS: list[Kind[Any]] = [NODES, SERVICES, LEASES, EVENTS, CONFIG_MAPS]

"""Types whose name in the official client is not theirs with `V1` before it."""

"""Types that no kind of the API has."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_page_with_null_items_is_empty(kind: Kind[Any]) -> None:
    page = kind.page.decode(b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    assert page.items is None
    assert page.metadata.resource_version == "5"


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


def test_a_plain_text_is_shown_short_and_on_one_line() -> None:
    body = b"Too many requests,\n\x1b[31m try later " + b"y" * 1000

    error = errors.from_response(429, {"Content-Type": "text/plain; charset=utf-8"}, body)

    assert type(error) is errors.TooManyRequests
    assert "Too many requests, [31m try later" in error.message
    assert len(error.message) < 300


def test_half_a_character_is_mended() -> None:
    sent = encode({"status": {"conditions": [{"message": "no \udcff"}]}})

    assert json.loads(sent) == {"status": {"conditions": [{"message": "no ?"}]}}


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

"""One malformed object never takes the others with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccm.kube import decode, errors, metrics
from ccm.kube.decode import WatchEvent
from ccm.kube.resources import NODES
from ccm.model import names
from tests.unit.kube.proxy import a_status, no_answer


def _node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": f"rv-{name}"}, **more}


def _line(event: str, body: Any) -> bytes:
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
    "taint", [{"key": "k"}, {"key": "k", "value": ""}], ids=["no effect", "no effect, a value"]
)
def test_a_node_with_gaps_is_not_malformed(taint: dict[str, str]) -> None:
    node = _node("n", spec={"taints": [taint]}, status={"conditions": [{"type": "Ready"}]})

    page = decode.decode_page(NODES, json.dumps({"items": [node]}).encode())

    assert not page.malformed_keys
    assert page.items[0].taints[0].key == "k"


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


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_carries_its_object(event: str) -> None:
    found = decode.decode_event(NODES, _line(event, _node("n1")))

    assert found.type == event == found.wire_type
    assert found.object is not None
    assert (found.object.name, found.key, found.resource_version) == ("n1", "n1", "rv-n1")


@pytest.mark.parametrize(
    ("marks", "ends"), [({}, False), ({names.INITIAL_EVENTS_END: "true"}, True)]
)
def test_a_bookmark_carries_a_version(marks: dict[str, str], ends: bool) -> None:
    head = {"resourceVersion": "7", "annotations": marks}

    found = decode.decode_event(NODES, _line("BOOKMARK", {"kind": "Node", "metadata": head}))

    assert (found.type, found.object, found.resource_version) == ("BOOKMARK", None, "7")
    assert found.initial_events_end is ends


def test_an_error_event_raises_what_its_status_says() -> None:
    with pytest.raises(errors.Gone) as caught:
        decode.decode_event(NODES, _line("ERROR", a_status(410, "Expired", "too old")))

    assert caught.value.message == "too old"


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

    found = decode.decode_event(NODES, _line(event, {"metadata": head}))

    assert found == WatchEvent(
        type="MALFORMED", object=None, resource_version=version, key=key, wire_type=event
    )
    assert _malformed_count() - before == 1

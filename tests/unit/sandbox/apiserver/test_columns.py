from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.sandbox.apiserver import columns, decode, kinds, render, schema, store

ROWS = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text())


def ago(**span: float) -> str:
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.timedelta(**span)).strftime("%Y-%m-%dT%H:%M:%SZ")


def cells(kind: kinds.Kind, **body: Any) -> list[Any]:
    metadata = {"name": "x", "creationTimestamp": ago(days=3), **body.pop("metadata", {})}
    cleaned = decode.clean(kind, {"metadata": metadata, **body}, [])
    schema.fill(kind.shape, cleaned)
    if kind.default is not None:
        kind.default(cleaned, None)
    return [column.value(cleaned) for column in kind.columns]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400 + 3600, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert columns.human_duration(seconds) == text


@pytest.mark.parametrize(
    ("conditions", "text"),
    [([], "Unknown"), ([{"type": "Ready", "status": "Unknown"}], "NotReady")],
)
def test_a_bare_node(conditions: list[dict[str, str]], text: str) -> None:
    row = cells(kinds.NODES, status={"conditions": conditions})

    none, unknown = "<none>", "<unknown>"
    assert row == ["x", text, none, "3d", "", none, none, unknown, unknown, unknown]


def test_an_event_with_counts() -> None:
    row = cells(
        kinds.EVENTS,
        involvedObject={"kind": "Node", "name": "n1", "fieldPath": "spec"},
        source={"component": "me", "host": "here"},
        type="Warning",
        reason="Bad",
        message=" text\n",
        firstTimestamp=ago(minutes=20),
        lastTimestamp=ago(minutes=15),
        count=3,
    )

    assert row[1:7] == ["Warning", "Bad", "node/n1", "spec", "me, here", " text\n"]
    assert row[7:] == ["20m", "3", "x"]
    assert row[0] == "15m"


def test_an_event_of_the_new_form() -> None:
    series = {"count": 7, "lastObservedTime": ago(minutes=15)}
    me = {"reportingComponent": "me", "involvedObject": {"kind": "Node"}}

    row = cells(kinds.EVENTS, eventTime=ago(minutes=30), series=series, **me)

    assert (row[0], row[3], row[5], row[7], row[8]) == ("15m", "node", "me", "30m", "7")


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_rows(case: dict[str, Any]) -> None:
    (name, body), (_, row) = case.items()
    (kind,) = [one for one in kinds.BUILTIN.values() if one.kind == name]

    assert cells(kind, **body) == row


def _entry() -> store.Entry:
    body = decode.clean(kinds.LEASES, {"metadata": {"name": "l", "resourceVersion": "7"}}, [])
    return store.entry_of(kinds.LEASES, "default/l", body)


@pytest.mark.parametrize(
    ("query", "row_object"),
    [
        ({}, "PartialObjectMetadata"),
        ({"includeObject": "Metadata"}, "PartialObjectMetadata"),
        ({"includeObject": "Object"}, "Lease"),
        ({"includeObject": "None"}, None),
    ],
)
def test_a_table_brings_as_much_of_the_objects_as_is_asked_for(
    query: dict[str, str], row_object: str | None
) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    renderer = render.choose(kinds.LEASES, accept, query)

    table = json.loads(renderer.many([_entry()], render.ListMeta("9")))

    assert table["kind"] == "Table"
    assert table["metadata"] == {"resourceVersion": "9"}
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Holder", "Age"]
    assert table["rows"][0]["cells"] == ["l", "", "<unknown>"]
    assert table["rows"][0].get("object", {}).get("kind") == row_object


def test_items_of_a_list_leave_out_kind_and_version() -> None:
    meta = render.ListMeta("9", "t", 3)

    found = json.loads(render.Whole("Lease", "coordination.k8s.io/v1").many([_entry()], meta))

    assert (found["kind"], found["apiVersion"]) == ("LeaseList", "coordination.k8s.io/v1")
    told = {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}
    assert found["metadata"] == told
    assert set(found["items"][0]) == {"metadata", "spec"}

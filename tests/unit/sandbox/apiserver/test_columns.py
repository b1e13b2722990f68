from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from ccm.sandbox.apiserver import columns, decode, kinds, render, schema, store


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
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400 + 3600, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (735 * 86400, "2y5d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert columns.human_duration(seconds) == text


def test_a_ready_node_in_full() -> None:
    row = cells(
        kinds.NODES,
        metadata={"labels": {"node-role.kubernetes.io/b": "", "kubernetes.io/role": "a"}},
        spec={"unschedulable": True},
        status={
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [
                {"type": "ExternalIP", "address": "1.1.1.1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "InternalIP", "address": "10.0.0.2"},
            ],
            "nodeInfo": {
                "kubeletVersion": "v1",
                "osImage": "Debian",
                "kernelVersion": "6.1",
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2",
            },
        },
    )

    assert row == [
        *("x", "Ready,SchedulingDisabled", "a,b", "3d", "v1"),
        *("10.0.0.1", "1.1.1.1", "Debian", "6.1 (amd64)", "containerd://2"),
    ]


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

    assert row[1:7] == ["Warning", "Bad", "node/n1", "spec", "me, here", "text"]
    assert row[7:] == ["20m", 3, "x"]
    assert row[0] == "15m"


def test_an_event_of_the_new_form() -> None:
    row = cells(
        kinds.EVENTS,
        involvedObject={"kind": "Node"},
        eventTime=ago(minutes=30),
        series={"count": 7, "lastObservedTime": ago(minutes=15)},
        reportingComponent="me",
    )

    assert (row[0], row[3], row[5], row[7], row[8]) == ("15m", "node", "me", "30m", 7)


def test_an_event_without_times() -> None:
    row = cells(kinds.EVENTS)

    assert (row[0], row[7], row[8]) == ("<unknown>", "<unknown>", 1)


@pytest.mark.parametrize(
    ("kind", "body", "row"),
    [
        (kinds.LEASES, {"spec": {"holderIdentity": "me"}}, ["x", "me", "3d"]),
        (kinds.LEASES, {}, ["x", "", "3d"]),
        (kinds.NAMESPACES, {}, ["x", "Active", "3d"]),
        (kinds.CONFIG_MAPS, {"data": {"a": "1"}, "binaryData": {"b": "eA=="}}, ["x", 2, "3d"]),
        (kinds.SECRETS, {"data": {"a": "eA=="}}, ["x", "Opaque", 1, "3d"]),
        (kinds.SERVICE_ACCOUNTS, {}, ["x", "3d"]),
        (
            kinds.SERVICES,
            {"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30080}]}},
            ["x", "ClusterIP", "10.0.0.1", "<none>", "80:30080/TCP", "3d", "<none>"],
        ),
        (
            kinds.SERVICES,
            {"spec": {"type": "LoadBalancer", "selector": {"b": "2", "a": "1"}}},
            ["x", "LoadBalancer", "<none>", "<pending>", "<none>", "3d", "a=1,b=2"],
        ),
        (
            kinds.SERVICES,
            {
                "spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
                "status": {
                    "loadBalancer": {
                        "ingress": [{"ip": "100.100.100.1"}, {"hostname": "a.example.com"}]
                    }
                },
            },
            [
                *(
                    "x",
                    "LoadBalancer",
                    "<none>",
                    "100.100.100.1,a.example.com,9.9.9.9",
                    "<none>",
                    "3d",
                ),
                "<none>",
            ],
        ),
        (
            kinds.SERVICES,
            {"spec": {"type": "ExternalName", "externalName": "e.com"}},
            ["x", "ExternalName", "<none>", "e.com", "<none>", "3d", "<none>"],
        ),
        (
            kinds.PODS,
            {
                "spec": {
                    "containers": [{"name": "a"}, {"name": "b"}],
                    "nodeName": "n1",
                    "readinessGates": [{"conditionType": "g"}],
                },
                "status": {
                    "phase": "Running",
                    "podIPs": [{"ip": "10.1.0.1"}],
                    "conditions": [{"type": "g", "status": "True"}],
                    "containerStatuses": [
                        {"name": "a", "ready": True, "state": {"running": {}}, "restartCount": 2},
                        {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                    ],
                },
            },
            [
                *("x", "1/2", "CrashLoopBackOff", "2", "3d", "10.1.0.1", "n1", "<none>"),
                "g",
            ],
        ),
        (
            kinds.PODS,
            {"metadata": {"deletionTimestamp": ago(seconds=1)}, "spec": {}},
            ["x", "0/0", "Terminating", "0", "3d", "<none>", "<none>", "<none>", "<none>"],
        ),
    ],
)
def test_rows(kind: kinds.Kind, body: dict[str, Any], row: list[Any]) -> None:
    assert cells(kind, **body) == row


def _entry() -> store.Entry:
    body = decode.clean(kinds.LEASES, {"metadata": {"name": "l", "resourceVersion": "7"}}, [])
    return store.trial_entry(kinds.LEASES, "default/l", body)


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


def test_a_watch_of_tables_defines_the_columns_once() -> None:
    renderer = render.Table(kinds.LEASES, version="v1", include="")

    first, second = (json.loads(renderer.event(_entry())) for _ in range(2))

    assert first["columnDefinitions"]
    assert second["columnDefinitions"] is None
    assert json.loads(renderer.one(_entry()))["columnDefinitions"]


def test_metadata_alone() -> None:
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    renderer = render.choose(kinds.LEASES, accept, {})

    found = json.loads(renderer.many([_entry()], render.ListMeta("9")))

    assert found["kind"] == "PartialObjectMetadataList"
    assert found["items"][0]["metadata"]["name"] == "l"
    assert "spec" not in found["items"][0]


def test_items_of_a_list_leave_out_kind_and_version() -> None:
    meta = render.ListMeta("9", "t", 3)

    found = json.loads(render.Whole("Lease", "coordination.k8s.io/v1").many([_entry()], meta))

    assert (found["kind"], found["apiVersion"]) == ("LeaseList", "coordination.k8s.io/v1")
    assert found["metadata"] == {
        "resourceVersion": "9",
        "continue": "t",
        "remainingItemCount": 3,
    }
    assert set(found["items"][0]) == {"metadata", "spec"}

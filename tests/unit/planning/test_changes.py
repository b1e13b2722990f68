"""Text and JSON of a forecast."""

from __future__ import annotations

import msgspec

from ccm.planning import changes
from ccm.planning.changes import (
    ChangedObject,
    ChangeKind,
    Forecast,
    PlannedChange,
    RecordedEvent,
    call_change,
    merge_changes,
)
from ccm.planning.cloud_client import CloudChange
from ccm.testing.builders import node, service

NODE, SHOP = ChangedObject("Node", "", "n1"), ChangedObject("Service", "default", "shop")
NODES = [node(f"n{number:02}") for number in range(22)]


def told(*found: PlannedChange) -> list[str]:
    return list(changes.lines(Forecast(changes=merge_changes(found))))


def test_adopted_load_balancer_is_released_not_deleted() -> None:
    call = CloudChange(
        verb="ensure_load_balancer_deleted",
        arguments={"service": service("old")},
        at_s=0.0,
        listed=True,
        adopted=True,
    )

    assert told(call_change(call, after_s=0)) == [
        "Service default/old",
        f"  ~ load balancer: released ({changes.ADOPTED})",
    ]


FOUND = Forecast(
    changes=[PlannedChange(subject=SHOP, action=ChangeKind.DELETE, what=changes.BALANCER)],
    blocked=[RecordedEvent(subject=NODE, reason="DeletionHeld", message="it may\nnot go")],
    warnings=[
        RecordedEvent(subject=NODE, reason="InitializationFailed", message="no such instance")
    ],
    left_out={"node-route-controller": "not running: the provider does not implement routes"},
    failures=["instance_exists n2: the cloud is down"],
)


def test_json_plan_contains_the_whole_forecast() -> None:
    assert msgspec.json.decode(msgspec.json.encode(changes.document(FOUND))) == {
        "summary": changes.summary(FOUND),
        "changes": [
            {
                "object": {"kind": "Service", "namespace": "default", "name": "shop"},
                "action": "delete",
                "what": "load balancer",
                "old": None,
                "new": None,
                "afterSeconds": 0,
                "note": "",
            }
        ],
        "held": [
            {
                "object": {"kind": "Node", "namespace": "", "name": "n1"},
                "reason": "DeletionHeld",
                "message": "it may not go",
            }
        ],
        "warnings": [
            {
                "object": {"kind": "Node", "namespace": "", "name": "n1"},
                "reason": "InitializationFailed",
                "message": "no such instance",
            }
        ],
        "leftOut": {"node-route-controller": "not running: the provider does not implement routes"},
        "failures": ["instance_exists n2: the cloud is down"],
    }

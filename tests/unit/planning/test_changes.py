"""How a forecast reads."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ccm.cloud.types import Route
from ccm.planning import changes
from ccm.planning.changes import Action, Change, Forecast, Subject, Told, of_call, of_object, tidied
from ccm.testing.builders import node, service, shutdown_taint

NODE, SHOP = Subject("Node", "", "n1"), Subject("Service", "default", "shop")
NODES = [node(f"n{number:02}") for number in range(22)]
SOME = ", ".join(one.name for one in NODES[:20])


def told(*found: Change) -> list[str]:
    return list(changes.lines(Forecast(changes=tidied(found))))


def test_nothing_to_do_is_one_line() -> None:
    assert (list(changes.lines(Forecast())), changes.summary(Forecast())) == ([], "nothing to do")


def test_fields_read_like_a_diff() -> None:
    before = node("n1", labels={"a": "b"}, taints=[shutdown_taint()], provider_id="x://1")
    after = node(
        "n1", labels={"a": "c", "t.io/z": "z"}, provider_id="x://1", pod_cidrs=["1.0.0.0/8"]
    )

    assert told(*of_object("Node", before, after, after_s=0)) == [
        "Node n1",
        "  ~ metadata.labels.a: b → c",
        "  + metadata.labels[t.io/z]: z",
        '  + spec.podCIDRs: ["1.0.0.0/8"]',
        "  - spec.taints: node.cloudprovider.kubernetes.io/shutdown:NoSchedule",
    ]


def test_a_deletion_says_when_and_on_what_it_depends() -> None:
    (gone,) = of_object("Node", node("n1"), None, after_s=65)

    assert told(replace(gone, note=changes.UNLESS)) == [
        "Node n1",
        "  - would delete after 1m5s (if the cloud still denies it)",
    ]
    assert told(replace(gone, after_s=0)) == ["Node n1", "  - would delete"]


def test_what_there_is_in_the_cloud() -> None:
    route = Route(destination_cidr="10.0.1.0/24", target_node="n1")
    shop = {"service": service("shop"), "nodes": NODES}

    assert told(
        of_call("create_route", {"route": route}, listed=None, after_s=0),
        of_call("delete_route", {"route": replace(route, target_node="")}, listed=None, after_s=9),
        of_call("ensure_load_balancer", shop, listed=None, after_s=0),
        of_call("update_load_balancer", shop, listed=True, after_s=3),
        of_call(
            "ensure_load_balancer_deleted", {"service": service("old")}, listed=None, after_s=0
        ),
        of_call(
            "update_load_balancer", {"service": service("web"), "nodes": []}, listed=None, after_s=3
        ),
    ) == [
        "Route 10.0.1.0/24",
        "  + to n1",
        "  - to nowhere (after 9s)",
        "Service default/old",
        "  - load balancer",
        "Service default/shop",
        f"  ~ load balancer: members {SOME} and 2 more ({changes.UNKNOWN})",
        "Service default/web",
        "  ~ members of the load balancer: none (after 3s)",
    ]


def test_a_balancer_that_was_adopted_is_not_deleted() -> None:
    old = {"service": service("old")}

    assert told(
        of_call("ensure_load_balancer_deleted", old, listed=True, adopted=True, after_s=0)
    ) == ["Service default/old", f"  ~ load balancer: released ({changes.ADOPTED})"]


@pytest.mark.parametrize(("listed", "sign"), [(True, "~"), (False, "+")])
def test_whether_a_balancer_is_made_or_changed_follows_from_a_listing(
    listed: bool, sign: str
) -> None:
    shop = {"service": service("shop"), "nodes": NODES[:1]}

    assert told(of_call("ensure_load_balancer", shop, listed=listed, after_s=0))[1:] == [
        f"  {sign} load balancer: members n00"
    ]


FOUND = Forecast(
    changes=[Change(subject=SHOP, action=Action.DELETE, what=changes.BALANCER)],
    held=[Told(subject=NODE, reason="DeletionHeld", message="it may\nnot go")],
    warnings=[Told(subject=NODE, reason="InitializationFailed", message="no such instance")],
    left_out={"node-route-controller": "not running: the provider offers no routes"},
    failures=["instance_exists n2: the cloud is down"],
)


def test_who_is_held_and_what_is_not_known_stands_out() -> None:
    assert list(changes.lines(FOUND)) == [
        "Node n1",
        "  ! held: it may not go",
        "  ! InitializationFailed: no such instance",
        "Service default/shop",
        "  - load balancer",
        "node-route-controller is not running: the provider offers no routes",
        "! not known: instance_exists n2: the cloud is down",
    ]
    assert changes.summary(FOUND) == (
        "1 change to 1 object; 1 deletion held back; incomplete: not all that matters is known"
    )


def test_programs_get_all_of_it() -> None:
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
        "leftOut": {"node-route-controller": "not running: the provider offers no routes"},
        "failures": ["instance_exists n2: the cloud is down"],
    }

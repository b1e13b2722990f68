"""The board: settled objects, counts, news, and the final lines."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ccm.model import (
    Event,
    EventSource,
    Node,
    NodeAddress,
    NodeCondition,
    ObjectMeta,
    ObjectReference,
    Service,
    names,
)
from ccm.model.machines import Phase
from ccm.model.service import LoadBalancerIngress, LoadBalancerStatus, ServiceStatus
from ccm.sandbox import board as boards
from ccm.sandbox.board import SIM_LABELS, Board, is_settled
from ccm.testing import builders
from tests.unit.sandbox.views import machine
from tests.waiting import DEADLINE_S


def ready(name: str = "a", **more: Any) -> Node:
    return builders.node(name, provider_id=f"x://{name}", **more)


def routed(name: str = "a", *, status: str = "False") -> Node:
    node = ready(name, pod_cidrs=["100.64.0.0/24"])
    condition = NodeCondition(type=names.CONDITION_NETWORK_UNAVAILABLE, status=status)
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=[condition])
    )


def service(*ips: str, name: str = "web", uid: str = "u1") -> Service:
    found = builders.service(name, uid=uid)
    ingress = [LoadBalancerIngress(ip=ip) for ip in ips]
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress))
    return msgspec.structs.replace(found, status=status)


def news(board: Board) -> list[str]:
    return [one.text for one in board.happenings.since(0)]


def event(name: str = "a", *, about: str = "Node", key: str = "e", **fields: Any) -> Event:
    return Event(
        metadata=ObjectMeta(name=key, namespace="default"),
        involved_object=ObjectReference(kind=about, name=name, namespace="default"),
        **{"reason": "Synced", "message": "told", "type": "Normal", **fields},
    )


def warning(name: str = "a", **fields: Any) -> Event:
    return event(name, **{"type": names.WARNING, "reason": "Bad", **fields})


@pytest.mark.parametrize(
    "lacking",
    [
        {"provider_id": ""},
        {"addresses": [NodeAddress(type="Hostname", address="a")]},
        {"taints": [builders.uninitialized_taint()]},
        *({"labels": {key: "x" for key in SIM_LABELS if key != label}} for label in SIM_LABELS),
    ],
    ids=str,
)
def test_node_is_settled_only_with_id_address_labels_and_no_taint(lacking: dict[str, Any]) -> None:
    address = NodeAddress(type="InternalIP", address="10.0.0.1")
    whole: dict[str, Any] = {
        "provider_id": "sim://i",
        "addresses": [address],
        "labels": dict.fromkeys(SIM_LABELS, "x"),
    }

    assert is_settled(builders.node(**whole), SIM_LABELS)
    assert not is_settled(builders.node(**{**whole, **lacking}), SIM_LABELS)


def test_node_row_shows_the_settling_time_and_restarts_for_a_new_node() -> None:
    board = Board(["a"])
    board.node_seen(builders.node("a", taints=[builders.uninitialized_taint()]), 10.0)
    for moment in (12.5, 99.0):
        board.node_seen(ready(), moment)
    row = board.nodes.rows["a"]
    assert (row.settled_after, row.changed_at) == (2.5, 12.5)

    board.node_gone("a", 100.0)
    assert board.nodes.rows["a"].is_deleted
    board.node_seen(builders.node("a", uid="other"), 101.0)

    row = board.nodes.rows["a"]
    assert (row.is_deleted, row.settled_after, board.nodes.done) == (False, None, 1)


def test_warnings_are_counted_by_their_count_and_only_for_own_objects() -> None:
    board = Board(["a"])
    for count in (1, 3):
        board.event_seen(warning(count=count), 1.0)
    board.count_warnings(warning(count=3))
    board.event_seen(event(key="other"), 2.0)
    board.event_seen(warning("p", about="Pod", key="p"), 1.0)
    source = EventSource(component="ipallocator-repair-controller")
    board.event_seen(warning(key="r", source=source), 1.0)
    board.daemon_warned("oh", 3.0)

    assert board.warnings == 4


# --- Services ------------------------------------------------------------------------


def test_service_is_served_with_an_address_and_all_nodes_as_members() -> None:
    board = Board([], services=["default/web"])
    board.service_seen(service(), 1.0)
    assert (sorted(board.services.missing), board.is_converged) == (["default/web"], False)
    board.service_seen(service("192.0.2.1"), 3.5)
    row = board.services.rows["default/web"]
    assert (board.is_converged, board.services.done, row.settled_after) == (True, 1, 2.5)
    assert (row.cells["ADDRESS"], row.cells["PORTS"]) == ("192.0.2.1", "80/TCP")

    board = Board(["a", "b"], services=["default/web"], has_members=True)
    board.service_seen(service("192.0.2.1"), 1.0)
    name = board.services.rows["default/web"].balancer
    for members, missing in (({name: 1, "other": 9}, 1), ({name: 2}, 0), ({}, 0)):
        board.members_seen(members, 2.0)
        assert len(board.services.missing) == missing
        assert board.services.rows["default/web"].members == members.get(name)


def test_every_change_of_a_user_service_is_reported() -> None:
    board = Board([])
    board.service_seen(service(), 1.0)
    board.event_seen(event("web", about="Service", reason=names.REASON_ENSURED_BALANCER), 1.0)
    board.service_seen(service("192.0.2.1"), 2.0)
    board.event_seen(warning("web", about="Service", key="w"), 2.0)
    for _ in range(2):
        board.service_gone("default/web", 3.0)

    assert news(board) == [
        "Service web: created",
        "Service web: reachable at 192.0.2.1",
        "Service web: Bad: told",
        "Service web: deleted",
    ]
    assert board.services.rows["default/web"].last_event == "Bad: told"
    assert board.warnings == 1


async def test_machine_deleted_before_running_is_replaced_in_the_expectation() -> None:
    board = Board(["n0"], routes=True, machines=2, machines_join=True)
    board.node_seen(routed("n0"), 0.0)
    for name in ("m0", "m1", "m2"):
        board.machine_seen(machine(name, phase=Phase.PENDING), 1.0)
    assert sorted(board.machines.missing) == ["default/m0", "default/m1"]
    assert sorted(board.nodes.missing) == ["m0", "m1"]
    board.node_seen(routed("m0"), 2.0)
    board.node_seen(routed("m2"), 2.0)
    board.machine_seen(machine("m2", phase=Phase.RUNNING), 2.0)

    board.machine_seen(machine("m0", phase=Phase.PENDING, deleting=True), 3.0)
    board.node_gone("m0", 3.0)
    board.machine_gone("default/m0", 3.0)

    assert sorted(board.machines.missing) == ["default/m1"]
    assert sorted(board.nodes.missing) == sorted(board.unrouted) == ["m1"]
    assert [line.split()[:3] for line in boards.achieved(board)] == [
        ["1", "of", "2"],
        *[["2", "of", "3"]] * 2,
    ]
    board.node_seen(routed("m1"), 4.0)
    board.machine_seen(machine("m1", phase=Phase.RUNNING), 4.0)
    async with asyncio.timeout(DEADLINE_S):
        await board.wait_initialised()
        await board.wait_converged()
    board.machine_gone("default/m1", 5.0)
    assert board.is_converged


# --- texts -------------------------------------------------------------------------------------


def test_last_line_shows_unknown_figures_as_question_marks() -> None:
    board = Board(["n0", "n1"])
    board.node_seen(ready("n0"), 0.0)
    line = boards.last_line(board, writes=None, cloud_calls=None, took_s=None)
    assert line == "not converged: 1 of 2 nodes initialised, ? writes, ? cloud calls, 0 warnings"

    board.node_seen(ready("n1"), 0.0)
    line = boards.last_line(board, writes=4, cloud_calls=1, took_s=6.21)
    assert line == "done: 2 nodes initialised, 4 writes, 1 cloud calls, 0 warnings in 6.2 s"


def test_summary_counts_existing_objects() -> None:
    board = Board(["n0", "n1"], routes=True, services=["default/web-1"])
    board.node_seen(ready("n0"), 0.0)
    board.cloud_calls = 4
    told = "1/2 nodes initialised, 0/2 routes, 0/1 Services, 4 calls, 0 warnings"
    assert boards.summary(board) == told

    board = Board(["n0", "n1"], services=["default/web-1"])
    for name in ("n0", "n1", "n2"):
        board.node_seen(ready(name), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    assert boards.summary(board) == "3/3 nodes initialised, 0/1 Services, 0 warnings"
    board.node_gone("n1", 1.0)
    board.service_gone("default/web-1", 1.0)
    assert boards.summary(board) == "2/2 nodes initialised, 0 warnings"


def test_unsettled_objects_are_listed_with_the_reason() -> None:
    board = Board(
        ["n0", "n1"], routes=True, services=["default/web-1", "default/web-2"], machines=3
    )
    board.node_seen(ready("n0"), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    board.services.rows["default/web-1"].last_event = "SyncLoadBalancerFailed: no"
    board.machine_seen(machine("m0", phase=Phase.RUNNING), 0.0)
    board.machine_seen(machine("m1", phase=Phase.CRASH_LOOP, said="the quota is used up"), 0.0)

    assert list(boards.unsettled_lines(board)) == [
        "not running: Machine default/m1: the quota is used up",
        "not running: 1 Machine: never created",
        "not initialised: node n1: never registered",
        "no route: node n0: no event; see the daemon's log",
        "not served: Service default/web-1: SyncLoadBalancerFailed: no",
        "not served: Service default/web-2: never created",
    ]

"""The board: when objects have settled, the counts, the news, and the words at the end."""

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


def event(
    name: str,
    *,
    reason: str = "Synced",
    kind: str = "Normal",
    count: int = 1,
    key: str = "e",
    about: str = "Node",
) -> Event:
    return Event(
        metadata=ObjectMeta(name=key, namespace="default"),
        involved_object=ObjectReference(kind=about, name=name, namespace="default"),
        reason=reason,
        message="told",
        type=kind,
        count=count,
    )


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
def test_a_node_of_the_simulated_cloud_needs_everything(lacking: dict[str, Any]) -> None:
    address = NodeAddress(type="InternalIP", address="10.0.0.1")
    whole: dict[str, Any] = {
        "provider_id": "sim://i",
        "addresses": [address],
        "labels": dict.fromkeys(SIM_LABELS, "x"),
    }

    assert is_settled(builders.node(**whole), SIM_LABELS)
    assert not is_settled(builders.node(**{**whole, **lacking}), SIM_LABELS)


async def test_it_has_converged_with_the_last_expected_node() -> None:
    board = Board(["a", "b"])
    board.node_seen(ready(), 1.0)
    board.node_seen(ready("stranger"), 1.0)
    assert not board.is_converged
    assert sorted(board.nodes.missing) == ["b"]

    board.node_seen(ready("b"), 2.0)

    async with asyncio.timeout(DEADLINE_S):
        await board.wait_converged()
    assert board.nodes.done == 2
    assert boards.summary(board) == "3/3 nodes initialised, 0 warnings"


def test_a_row_says_how_long_the_node_waited() -> None:
    board = Board(["a"])
    board.node_seen(builders.node("a", taints=[builders.uninitialized_taint()]), 10.0)
    board.node_seen(ready(), 12.5)
    board.node_seen(ready(), 99.0)

    assert board.nodes.rows["a"].settled_after == 2.5
    assert board.nodes.rows["a"].changed_at == 12.5


def test_a_node_made_anew_starts_a_new_row() -> None:
    board = Board(["a"])
    board.node_seen(ready(), 1.0)
    board.node_gone("a", 2.0)
    assert board.nodes.rows["a"].is_deleted

    board.node_seen(builders.node("a", uid="other"), 3.0)

    assert (board.nodes.rows["a"].is_deleted, board.nodes.rows["a"].settled_after) == (False, None)
    assert board.nodes.done == 1


def test_a_repeated_warning_counts_as_often_as_it_says() -> None:
    board = Board(["a"])
    board.event_seen(event("a", kind=names.WARNING, reason="Bad", count=1), 1.0)
    board.event_seen(event("a", kind=names.WARNING, reason="Bad", count=3), 2.0)
    board.count_warnings(event("a", kind=names.WARNING, reason="Bad", count=3))
    board.event_seen(event("a", kind="Normal", key="other"), 2.0)
    board.daemon_warned("oh", 3.0)

    assert board.warnings == 4


def test_powering_off_and_deleting_are_worth_a_line_but_not_the_usual_event() -> None:
    board = Board(["a"])
    board.node_seen(ready(), 1.0)
    board.event_seen(event("a"), 1.0)
    assert board.news.count == 0

    board.node_seen(ready(taints=[builders.shutdown_taint()]), 2.0)
    board.event_seen(event("a", reason=names.REASON_DELETING_NODE), 3.0)
    board.node_gone("a", 3.0)

    assert [one.text for one in board.news.since(0)] == [
        "a: shutdown taint set",
        "a: DeletingNode: told",
        "a: deleted",
    ]
    assert board.nodes.rows["a"].last_event == "DeletingNode: told"


def test_news_are_those_not_told_yet() -> None:
    board = Board(["a"])
    for number in range(500):
        board.news.note(f"{number}", 0.0)

    assert [one.text for one in board.news.since(498)] == ["498", "499"]
    assert board.news.since(500) == []
    assert board.news.since(0)[0].text == "300"


# --- routes --------------------------------------------------------------------------


def routed(name: str = "a", *, status: str = "False") -> Node:
    node = ready(name, pod_cidrs=["100.64.0.0/24"])
    condition = NodeCondition(type=names.CONDITION_NETWORK_UNAVAILABLE, status=status)
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=[condition])
    )


def test_with_routes_a_node_needs_one_to_converge() -> None:
    board = Board(["a"], routes=True)
    board.node_seen(ready(), 1.0)
    assert (sorted(board.nodes.missing), sorted(board.unrouted), board.is_converged) == (
        [],
        ["a"],
        False,
    )
    board.node_seen(routed(status="True"), 2.0)
    assert sorted(board.unrouted) == ["a"]

    board.node_seen(routed(), 3.0)

    assert board.is_converged
    assert board.nodes.rows["a"].cells["POD ROUTE"] == "100.64.0.0/24 made"
    assert board.nodes.rows["a"].changed_at == 3.0


async def test_initialised_comes_before_converged() -> None:
    board = Board(["a"], routes=True)
    board.node_seen(ready(), 1.0)

    async with asyncio.timeout(DEADLINE_S):
        await board.wait_initialised()
    waiting = asyncio.ensure_future(board.wait_converged())
    await asyncio.sleep(0)
    assert not waiting.done()
    board.node_seen(routed(), 2.0)
    async with asyncio.timeout(DEADLINE_S):
        await waiting


# --- Services ------------------------------------------------------------------------


def service(*ips: str, name: str = "web", uid: str = "u1") -> Service:
    found = builders.service(name, uid=uid)
    ingress = [LoadBalancerIngress(ip=ip) for ip in ips]
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress))
    return msgspec.structs.replace(found, status=status)


def test_a_service_is_served_when_it_has_an_address() -> None:
    board = Board([], services=["default/web"])
    board.service_seen(service(), 1.0)
    assert (sorted(board.services.missing), board.is_converged) == (["default/web"], False)

    board.service_seen(service("192.0.2.1"), 3.5)

    row = board.services.rows["default/web"]
    assert board.is_converged
    assert board.services.done == 1
    assert (row.cells["ADDRESS"], row.cells["PORTS"], row.settled_after) == (
        "192.0.2.1",
        "80/TCP",
        2.5,
    )


def test_where_members_are_told_all_nodes_must_be_members() -> None:
    board = Board(["a", "b"], services=["default/web"], has_members=True)
    board.service_seen(service("192.0.2.1"), 1.0)
    assert sorted(board.services.missing) == ["default/web"]
    name = board.services.rows["default/web"].balancer
    board.members_seen({name: 1, "other": 9}, 2.0)
    assert sorted(board.services.missing) == ["default/web"]

    board.members_seen({name: 2}, 3.0)

    assert sorted(board.services.missing) == []
    assert board.services.rows["default/web"].members == 2
    board.members_seen({}, 4.0)
    assert board.services.rows["default/web"].members is None


def test_a_service_of_the_user_is_worth_a_line_at_each_step() -> None:
    board = Board([])
    board.service_seen(service(), 1.0)
    board.event_seen(event("web", about="Service", reason=names.REASON_ENSURED_BALANCER), 1.0)
    board.service_seen(service("192.0.2.1"), 2.0)
    board.event_seen(event("web", about="Service", reason="Bad", kind=names.WARNING, key="w"), 2.0)
    board.service_gone("default/web", 3.0)
    board.service_gone("default/web", 4.0)

    assert [one.text for one in board.news.since(0)] == [
        "Service web: created",
        "Service web: reached at 192.0.2.1",
        "Service web: Bad: told",
        "Service web: deleted",
    ]
    assert board.services.rows["default/web"].last_event == "Bad: told"
    assert board.warnings == 1


def test_what_is_not_about_us_is_no_warning() -> None:
    board = Board(["a"])
    board.event_seen(event("p", about="Pod", reason="Bad", kind=names.WARNING), 1.0)
    assert board.news.count == 0
    repair = msgspec.structs.replace(
        event("a", kind=names.WARNING, reason="ClusterIPNotAllocated"),
        source=EventSource(component="ipallocator-repair-controller"),
    )

    board.event_seen(repair, 1.0)

    assert board.warnings == 0


async def test_a_machine_counts_once_it_ran() -> None:
    board = Board([], machines=1)
    assert (board.is_converged, board.awaited) == (False, 1)
    for phase in (Phase.NEW, Phase.PENDING):
        board.machine_seen(machine("m0", phase=phase), 1.0)
        assert (board.is_converged, sorted(board.machines.missing)) == (False, ["default/m0"])

    board.machine_seen(machine("m0", phase=Phase.RUNNING), 4.0)
    async with asyncio.timeout(DEADLINE_S):
        await board.wait_converged()
    board.machine_seen(machine("m0", phase=Phase.RUNNING, deleting=True), 5.0)

    assert board.machines.done == 1
    assert boards.summary(board) == "0/1 machines, 0/0 nodes initialised, 0 warnings"
    assert board.machines.rows["default/m0"].settled_after == 3.0
    board.machine_gone("default/m0", 6.0)
    assert boards.summary(board) == "0/0 nodes initialised, 0 warnings"
    told = [one.text for one in board.news.since(0)]
    assert told == ["Machine m0: Pending", "Machine m0: Running", "Machine m0: deleted"]


async def test_who_goes_before_it_ran_is_waited_for_in_its_successor() -> None:
    board = Board(["n0"], routes=True, machines=2, machines_join=True)
    board.node_seen(routed("n0"), 0.0)
    for name in ("m0", "m1", "m2"):
        board.machine_seen(machine(name, phase=Phase.PENDING), 1.0)
    assert (sorted(board.machines.missing), sorted(board.nodes.missing)) == (
        ["default/m0", "default/m1"],
        ["m0", "m1"],
    )
    board.node_seen(routed("m0"), 2.0)
    board.node_seen(routed("m2"), 2.0)
    board.machine_seen(machine("m2", phase=Phase.RUNNING), 2.0)

    board.machine_seen(machine("m0", phase=Phase.PENDING, deleting=True), 3.0)
    board.node_gone("m0", 3.0)
    board.machine_gone("default/m0", 3.0)

    assert (
        sorted(board.machines.missing),
        sorted(board.nodes.missing),
        sorted(board.unrouted),
    ) == (["default/m1"], ["m1"], ["m1"])
    assert boards.achieved(board) == [
        "1 of 2 machines run",
        "2 of 3 nodes initialised",
        "2 of 3 routes",
    ]
    board.node_seen(routed("m1"), 4.0)
    board.machine_seen(machine("m1", phase=Phase.RUNNING), 4.0)
    async with asyncio.timeout(DEADLINE_S):
        await board.wait_initialised()
        await board.wait_converged()
    board.machine_gone("default/m1", 5.0)
    assert board.is_converged


async def test_the_nodes_of_machines_that_are_not_there_yet_are_waited_for() -> None:
    board = Board([], machines=1, machines_join=True)
    waiting = asyncio.ensure_future(board.wait_initialised())
    await asyncio.sleep(0)

    board.machine_seen(machine("m0", phase=Phase.PENDING), 1.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    board.node_seen(routed("m0"), 2.0)

    async with asyncio.timeout(DEADLINE_S):
        await waiting


# --- in words ----------------------------------------------------------------------------------


def board_of(*done: str, expected: int) -> Board:
    board = Board([f"n{number}" for number in range(expected)])
    for name in done:
        board.node_seen(builders.node(name, provider_id=f"x://{name}"), 0.0)
    return board


def test_the_last_line_gives_what_is_known_and_makes_nothing_up() -> None:
    board = board_of("n0", "n1", expected=2)
    done = "done: 2 nodes initialised, 4 writes, 1 cloud calls, 0 warnings in 6.2 s"
    assert boards.last_line(board, writes=4, cloud_calls=1, took_s=6.21) == done

    board = board_of("n0", expected=2)
    board.daemon_warned("x", 0.0)
    not_done = "not converged: 1 of 2 nodes initialised, ? writes, ? cloud calls, 1 warnings"
    assert boards.last_line(board, writes=None, cloud_calls=None, took_s=None) == not_done


def test_routes_services_and_cloud_calls_are_summed_up_where_there_are_some() -> None:
    board = Board(["n0", "n1"], routes=True, services=["default/web-1"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.cloud_calls = 4

    told = "1/2 nodes initialised, 0/2 routes, 0/1 Services, 4 calls, 0 warnings"
    assert boards.summary(board) == told


def test_a_deleted_node_or_service_is_counted_no_more() -> None:
    """And one that comes later counts among the expected ones."""
    board = Board(["n0", "n1"], services=["default/web-1"])
    for name in ("n0", "n1", "n2"):
        board.node_seen(builders.node(name, provider_id=f"x://{name}"), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    assert boards.summary(board) == "3/3 nodes initialised, 0/1 Services, 0 warnings"

    board.node_gone("n1", 1.0)
    board.service_gone("default/web-1", 1.0)

    assert boards.summary(board) == "2/2 nodes initialised, 0 warnings"


def test_machines_are_told_of_where_there_are_some() -> None:
    board = Board(["n0"], machines=3)
    board.machine_seen(machine("m0", phase=Phase.RUNNING), 0.0)
    board.machine_seen(machine("m1", phase=Phase.CRASH_LOOP, said="the quota is used up"), 0.0)

    assert boards.summary(board) == "1/3 machines, 0/1 nodes initialised, 0 warnings"
    assert boards.achieved(board)[0] == "1 of 3 machines run"
    assert list(boards.laggards(board))[:2] == [
        "not running: Machine default/m1: the quota is used up",
        "not running: 1 of the Machines: never created",
    ]


def test_those_left_behind_are_named_with_what_is_known() -> None:
    board = Board(["n0", "n1"], routes=True, services=["default/web-1", "default/web-2"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    board.services.rows["default/web-1"].last_event = "SyncLoadBalancerFailed: no"

    assert list(boards.laggards(board)) == [
        "not initialised: node n1: never registered",
        "no route: node n0: no event tells why; see the daemon's log",
        "not served: Service default/web-1: SyncLoadBalancerFailed: no",
        "not served: Service default/web-2: never created",
    ]

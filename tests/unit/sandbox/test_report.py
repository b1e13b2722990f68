"""What a sandbox says at its end."""

from __future__ import annotations

from ccm.model.machines import Phase
from ccm.sandbox import report
from ccm.sandbox.board import Board
from ccm.testing import builders
from tests.unit.sandbox.views import machine


def board_of(*done: str, expected: int) -> Board:
    board = Board([f"n{number}" for number in range(expected)])
    for name in done:
        board.node_seen(builders.node(name, provider_id=f"x://{name}"), 0.0)
    return board


def test_the_last_line_gives_what_is_known_and_makes_nothing_up() -> None:
    board = board_of("n0", "n1", expected=2)
    done = "done: 2 nodes initialised, 4 writes, 1 cloud calls, 0 warnings in 6.2 s"
    assert report.last_line(board, writes=4, cloud_calls=1, took_s=6.21) == done

    board = board_of("n0", expected=2)
    board.daemon_warned("x", 0.0)
    not_done = "not converged: 1 of 2 nodes initialised, ? writes, ? cloud calls, 1 warnings"
    assert report.last_line(board, writes=None, cloud_calls=None, took_s=None) == not_done


def test_routes_services_and_cloud_calls_are_summed_up_where_there_are_some() -> None:
    board = Board(["n0", "n1"], routes=True, services=["default/web-1"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.counts.cloud_calls = 4

    told = "1/2 nodes initialised, 0/2 routes, 0/1 Services, 4 calls, 0 warnings"
    assert report.summary(board) == told


def test_a_deleted_node_or_service_is_counted_no_more() -> None:
    """And one that comes later counts among the expected ones."""
    board = Board(["n0", "n1"], services=["default/web-1"])
    for name in ("n0", "n1", "n2"):
        board.node_seen(builders.node(name, provider_id=f"x://{name}"), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    assert report.summary(board) == "3/3 nodes initialised, 0/1 Services, 0 warnings"

    board.node_gone("n1", 1.0)
    board.service_gone("default/web-1", 1.0)

    assert report.summary(board) == "2/2 nodes initialised, 0 warnings"


def test_hundreds_of_nodes_are_summed_up_in_80_columns() -> None:
    names = [f"n{number}" for number in range(500)]
    board = Board(names, routes=True, services=["default/web-1"])
    board.counts.cloud_calls = 1518

    assert len(report.summary(board)) <= 80


def test_the_last_line_tells_of_routes_and_services_where_there_are_some() -> None:
    board = Board(["n0"], routes=True, services=["default/web-1"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.counts.services = 1

    line = report.last_line(board, writes=3, cloud_calls=5, took_s=None)

    assert line == (
        "not converged: 1 nodes initialised, 0 of 1 routes, 1 Services served, 3 writes, "
        "5 cloud calls, 0 warnings"
    )


def test_machines_are_told_of_where_there_are_some() -> None:
    board = Board(["n0"], machines=3)
    board.machine_seen(machine("m0", phase=Phase.RUNNING), 0.0)
    board.machine_seen(machine("m1", phase=Phase.CRASH_LOOP, said="the quota is used up"), 0.0)

    assert report.summary(board) == "1/3 machines, 0/1 nodes initialised, 0 warnings"
    assert report.achieved(board.counts)[0] == "1 of 3 machines run"
    assert list(report.laggards(board))[:2] == [
        "not running: Machine default/m1: the quota is used up",
        "not running: 1 of the Machines: never created",
    ]


def test_those_left_behind_are_named_with_what_is_known() -> None:
    board = Board(["n0", "n1"], routes=True, services=["default/web-1", "default/web-2"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.service_seen(builders.service("web-1"), 0.0)
    board.services["default/web-1"].last_event = "SyncLoadBalancerFailed: no"

    assert list(report.laggards(board)) == [
        "not initialised: node n1: never registered",
        "no route: node n0: no event tells why; see the daemon's log",
        "not served: Service default/web-1: SyncLoadBalancerFailed: no",
        "not served: Service default/web-2: never created",
    ]


def test_only_some_of_many_are_named() -> None:
    board = board_of(expected=100)

    assert len(list(report.laggards(board))) == report.LAGGARDS

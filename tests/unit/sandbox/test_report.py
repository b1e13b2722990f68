"""What a sandbox says at its end."""

from __future__ import annotations

from ccm.sandbox import report
from ccm.sandbox.board import Board, Counts
from ccm.testing import builders


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
    counts = Counts(expected=2, initialised=2, registered=2, routes_expected=2, services_expected=1)
    counts.cloud_calls = 4

    told = "0 of 2 routes, 0 of 1 Services served, 4 cloud calls, 0 warnings"
    assert report.summary(counts) == f"2 of 2 nodes initialised, 2 registered, {told}"


def test_the_last_line_tells_of_routes_and_services_where_there_are_some() -> None:
    board = Board(["n0"], routes=True, services=["default/web-1"])
    board.node_seen(builders.node("n0", provider_id="x://n0"), 0.0)
    board.counts.services = 1

    line = report.last_line(board, writes=3, cloud_calls=5, took_s=None)

    assert line == (
        "not converged: 1 nodes initialised, 0 of 1 routes, 1 Services served, 3 writes, "
        "5 cloud calls, 0 warnings"
    )


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

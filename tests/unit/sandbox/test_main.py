"""The last line of a sandbox."""

from __future__ import annotations

from ccm.sandbox import main
from ccm.sandbox.board import Board
from ccm.testing import builders


def board_of(*done: str, expected: int) -> Board:
    board = Board([f"n{number}" for number in range(expected)])
    for name in done:
        board.node_seen(builders.node(name, provider_id=f"x://{name}"), 0.0)
    return board


def test_the_last_line_gives_nodes_writes_cloud_calls_and_warnings() -> None:
    board = board_of("n0", "n1", expected=2)

    line = main.last_line(board, writes=4, cloud_calls=1, took_s=6.21)

    assert line == "done: 2 nodes initialised, 4 writes, 1 cloud calls, 0 warnings in 6.2 s"


def test_what_is_not_known_is_not_made_up() -> None:
    board = board_of("n0", expected=2)
    board.daemon_warned("x", 0.0)

    line = main.last_line(board, writes=None, cloud_calls=None, took_s=None)

    assert line == ("not converged: 1 of 2 nodes initialised, ? writes, ? cloud calls, 1 warnings")

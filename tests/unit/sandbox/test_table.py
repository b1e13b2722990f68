"""The table: columns, what is shown when not everything fits, and that nothing wraps."""

from __future__ import annotations

import pytest

from ccm.model import NodeAddress, names
from ccm.sandbox import table
from ccm.sandbox.board import Board, Row
from ccm.testing import builders


def row(name: str = "a", *, changed_at: float = 0.0, settled_after: float | None = None) -> Row:
    return Row(name=name, seen_at=0.0, changed_at=changed_at, settled_after=settled_after)


def board_of(count: int) -> Board:
    board = Board([f"node-{number:04d}" for number in range(count)])
    for number in range(count):
        node = builders.node(
            f"node-{number:04d}",
            provider_id=f"sim://i-{number}",
            labels={names.LABEL_INSTANCE_TYPE: "small", names.LABEL_ZONE: "sim-1a"},
            addresses=[NodeAddress(type="InternalIP", address=f"10.0.0.{number}")],
        )
        board.node_seen(node, float(number))
    return board


def texts(board: Board, *, width: int = 200, height: int = 24) -> list[str]:
    return [line.text for line in table.render(board, now=9.0, width=width, height=height)]


def test_each_node_has_a_line_under_the_headers() -> None:
    lines = texts(board_of(2))

    assert lines[0] == "2 of 2 nodes initialised, 2 registered, 0 warnings"
    assert lines[1].split("  ")[0] == "NAME"
    assert lines[2].split() == [
        *("node-0000", "True", "init", "in", "0", "ms", "sim://i-0", "small", "sim-1a"),
        *("10.0.0.0", "-"),
    ]
    assert lines[2].index("sim://") == lines[1].index("PROVIDER ID")


@pytest.mark.parametrize("width", [1, 20, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    board = board_of(3)
    board.note("x" * 300, 0.0)

    assert max(map(len, texts(board, width=width))) <= width


@pytest.mark.parametrize("height", [12, 24, 60])
def test_the_picture_is_no_higher_than_its_room(height: int) -> None:
    board = board_of(100)
    for number in range(9):
        board.note(f"{number}", 0.0)

    lines = texts(board, height=height)

    assert len(lines) == height
    assert "... and " in "\n".join(lines)


def test_where_not_all_fit_the_latest_changes_stay() -> None:
    rows = [row("a", changed_at=1), row("b", changed_at=3), row("c", changed_at=2)]

    assert [one.name for one in table.pick(rows, room=2)] == ["b", "c"]
    assert [one.name for one in table.pick(rows, room=3)] == ["a", "b", "c"]


def test_a_state_says_what_the_daemon_did() -> None:
    waiting, done, off, gone = row(), row(settled_after=1.25), row(settled_after=1), row()
    off.is_shut_down = gone.is_deleted = True

    said = [table.state_of(one, now=7.0) for one in (waiting, done, off, gone)]

    assert said == ["waits 7 s", "init in 1.2 s", "shutdown taint", "deleted"]


def test_the_cloud_calls_are_named_once_they_are_known() -> None:
    board = board_of(1)
    board.counts.cloud_calls = 4

    assert "4 cloud calls" in table.summary(board.counts)


def test_an_event_of_several_lines_stays_on_one() -> None:
    one = row()
    one.last_event = "Failed: first\n  second"

    assert table.cells(one, now=0.0)[-1] == "Failed: first second"

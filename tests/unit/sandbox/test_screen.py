"""Screens: lines in a pipe, one picture on a terminal."""

from __future__ import annotations

import io
import os

import pytest

from ccm.sandbox import screen
from ccm.sandbox.board import Board
from ccm.testing import builders


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(out: io.StringIO, *sizes: tuple[int, int]) -> screen.Terminal:
    queue = [os.terminal_size(size) for size in sizes]
    return screen.Terminal(
        out, colour=False, size=lambda: queue.pop(0) if len(queue) > 1 else queue[0]
    )


@pytest.mark.parametrize(
    ("out", "term", "kind"),
    [
        (Tty(), "xterm", screen.Terminal),
        (Tty(), "dumb", screen.Lines),
        (io.StringIO(), "xterm", screen.Lines),
    ],
)
def test_only_a_capable_terminal_gets_a_picture(
    out: io.StringIO, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)

    assert isinstance(screen.open_screen(out), kind)


def test_lines_tell_progress_only_when_there_is_some() -> None:
    out, board = io.StringIO(), Board(["a"])
    lines = screen.Lines(out)

    lines.show(board, now=10.0)
    lines.show(board, now=11.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 11.5)
    lines.show(board, now=12.0)

    assert out.getvalue().splitlines() == [
        "    0.0 s  0 of 1 nodes initialised, 0 registered, 0 warnings",
        "    2.0 s  1 of 1 nodes initialised, 1 registered, 0 warnings",
    ]


def test_lines_tell_warnings_at_once_and_the_rest_after_convergence() -> None:
    out, board = io.StringIO(), Board(["a"])
    lines = screen.Lines(out)
    board.note("early", 1.0)
    board.daemon_warned("careful", 1.0)
    lines.show(board, now=1.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 2.0)
    board.note("late", 2.0)
    lines.show(board, now=2.0)

    said = out.getvalue()

    assert "early" not in said
    assert "daemon: careful" in said
    assert said.splitlines()[-2:] == [
        "    1.0 s  late",
        "    1.0 s  1 of 1 nodes initialised, 1 registered, 1 warnings",
    ]


def test_the_picture_is_drawn_in_its_old_place() -> None:
    out = Tty()
    shown = terminal(out, (80, 24))
    shown.show(Board(["a"]), now=0.0)
    drawn = out.getvalue().count("\n")
    out.truncate(0)

    shown.show(Board(["a"]), now=1.0)

    assert f"\x1b[{drawn}F\x1b[J" in out.getvalue()


def test_a_lasting_line_takes_the_place_of_the_picture() -> None:
    out = Tty()
    shown = terminal(out, (80, 24))
    shown.show(Board(["a"]), now=0.0)
    out.truncate(0)

    shown.say("hello")
    shown.show(Board(["a"]), now=0.0)

    assert out.getvalue().lstrip("\0").startswith("\x1b[2F\x1b[Jhello\n")
    assert out.getvalue().count("\x1b[2F") == 1


def test_after_a_change_of_size_everything_is_drawn_anew() -> None:
    out = Tty()
    shown = terminal(out, (80, 24), (60, 20))
    shown.say("stays")
    shown.show(Board(["a"]), now=0.0)
    out.truncate(0)

    shown.show(Board(["a"]), now=1.0)

    assert "\x1b[2J\x1b[Hstays\n" in out.getvalue()


def test_the_picture_never_fills_more_than_the_terminal() -> None:
    out = Tty()
    shown = terminal(out, (80, 10))
    board = Board(["a"])
    for number in range(50):
        board.node_seen(builders.node(f"n{number}"), 0.0)

    shown.show(board, now=0.0)

    assert out.getvalue().count("\n") < 10


def test_the_cursor_comes_back() -> None:
    out = Tty()
    shown = terminal(out, (80, 24))
    shown.show(Board(["a"]), now=0.0)

    shown.close()

    assert out.getvalue().endswith("\x1b[?25h")

"""Screens: lines in a pipe, one picture on a terminal."""

from __future__ import annotations

import io
import sys

import pyte
import pytest
from rich.console import Console

from ccm.sandbox import picture, screen
from ccm.sandbox.board import Board
from ccm.testing import builders


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Terminal:
    """A terminal with a picture on it, and what a person sees there.

    Args:
        columns: its width.
        lines: its height.
    """

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.out = Tty()
        self.console = Console(
            file=self.out, force_terminal=True, width=columns, height=lines, markup=False
        )
        self.picture = picture.Picture(self.console)
        self._screen = pyte.Screen(columns, lines)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)

    def resize(self, columns: int, lines: int) -> None:
        self.console.size = (columns, lines)
        self._screen.resize(lines, columns)

    @property
    def seen(self) -> list[str]:
        self._stream.feed(self.out.getvalue())
        self.out.seek(0)
        self.out.truncate()
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def shows_cursor(self) -> bool:
        return bool(self.seen) and not self._screen.cursor.hidden


@pytest.mark.parametrize(
    ("out", "term", "kind"),
    [
        (Tty(), "xterm", picture.Picture),
        (Tty(), "dumb", screen.Lines),
        (io.StringIO(), "xterm", screen.Lines),
    ],
)
def test_only_a_capable_terminal_gets_a_picture(
    out: io.StringIO, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)

    assert isinstance(screen.open_screen(out), kind)


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert isinstance(screen.open_screen(Tty()), screen.Lines)


def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def drawn() -> str:
        out = Tty()
        shown = screen.open_screen(out)
        shown.show(Board(["a"]), now=0.0)
        shown.close()
        return out.getvalue()

    assert "\x1b[1m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1m" not in drawn()


def test_lines_tell_progress_and_warnings_at_once_and_the_rest_after_convergence() -> None:
    out, board = io.StringIO(), Board(["a"])
    lines = screen.Lines(out)
    board.news.note("early", 10.0)

    lines.show(board, now=10.0)
    lines.show(board, now=11.0)
    board.daemon_warned("careful", 11.0)
    lines.show(board, now=11.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 11.5)
    board.news.note("late", 12.0)
    lines.show(board, now=12.0)

    assert out.getvalue().splitlines() == [
        "    0.0 s  0/1 nodes initialised, 0 warnings",
        "    1.0 s  daemon: careful",
        "    1.0 s  0/1 nodes initialised, 1 warnings",
        "    2.0 s  late",
        "    2.0 s  1/1 nodes initialised, 1 warnings",
    ]


SUMMARY = "0/1 nodes initialised, 0 warnings"


def header(terminal: Terminal) -> str:
    return " ".join(terminal.seen[-1].split())


def test_the_picture_is_drawn_in_its_old_place_and_a_lasting_line_above_it() -> None:
    terminal = Terminal()
    for moment in range(3):
        terminal.picture.show(Board(["a"]), now=float(moment))

        assert terminal.seen[0] == SUMMARY
        assert len(terminal.seen) == 2

    terminal.picture.say("hello [bold]you[/bold]")
    terminal.picture.show(Board(["a"]), now=0.0)

    assert terminal.seen[:2] == ["hello [bold]you[/bold]", SUMMARY]
    assert header(terminal).startswith("NAME READY STATE")
    assert len(terminal.seen) == 3


def test_after_a_change_of_size_everything_is_drawn_anew() -> None:
    terminal = Terminal(80, 24)
    terminal.picture.say("stays")
    terminal.picture.show(Board(["a"]), now=0.0)
    assert len(terminal.seen) == 3

    terminal.resize(40, 20)
    terminal.picture.show(Board(["a"]), now=1.0)

    assert terminal.seen[0] == "stays"
    assert terminal.seen[1].startswith("0/1 nodes initialised")
    assert header(terminal) == "NAME STATE PROVIDER ID ADDRESSES"
    assert len(terminal.seen) == 3


@pytest.mark.parametrize("columns", [80, 10, 3])
def test_the_picture_never_fills_more_than_the_terminal(columns: int) -> None:
    terminal = Terminal(columns, 10)
    board = Board(["a"])
    for number in range(50):
        board.node_seen(builders.node(f"n{number}"), 0.0)
    board.news.note("[red]x" * 50, 0.0)

    for moment in range(2):
        terminal.picture.show(board, now=float(moment))

        assert terminal.out.getvalue().count("\n") < 10
        assert terminal.seen[0].startswith("0/51 nodes"[: columns - 1])


def test_the_cursor_comes_back() -> None:
    terminal = Terminal()
    terminal.picture.show(Board(["a"]), now=0.0)
    assert not terminal.shows_cursor()

    terminal.picture.close()
    terminal.picture.say("the end")
    terminal.picture.close()

    assert terminal.shows_cursor()
    assert terminal.seen[0] == SUMMARY
    assert terminal.seen[-1] == "the end"

"""Where the sandbox shows itself: a terminal that is drawn anew, or lines in a pipe.

Both take lasting lines (`say`) and the state of the board (`show`, called again and
again). The terminal keeps one picture below the lasting lines; escape sequences are the
ones every terminal since the VT100 knows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from ccm.sandbox import table
from ccm.sandbox.board import Board

STYLES: dict[table.Style, str] = {
    "plain": "",
    "head": "\x1b[1m",
    "good": "\x1b[32m",
    "bad": "\x1b[33m",
    "faint": "\x1b[2m",
}

_RESET = "\x1b[0m"
_HIDE_CURSOR = "\x1b[?25l"
_SHOW_CURSOR = "\x1b[?25h"
_ERASE_BELOW = "\x1b[J"
_CLEAR = "\x1b[2J\x1b[H"


class Screen(Protocol):
    """What the sandbox needs of a place to show itself."""

    period_s: float
    """Seconds between two calls of `show`."""

    def say(self, text: str) -> None:
        """Write a line that stays."""
        ...

    def show(self, board: Board, *, now: float) -> None:
        """Show how things stand; `now` is in monotonic seconds."""
        ...

    def close(self) -> None:
        """Leave the place as it was; lasting lines stay."""
        ...


def open_screen(out: TextIO) -> Screen:
    """A live picture if `out` is a capable terminal, else plain lines."""
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Terminal(out, colour="NO_COLOR" not in os.environ)
    return Lines(out)


class Lines:
    """Plain lines, each flushed: how far it is, and after that what happens."""

    period_s = 1.0

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started: float | None = None
        self._told = 0
        self._last = ""

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._out, flush=True)

    def show(self, board: Board, *, now: float) -> None:
        """Write the summary if it changed; after convergence, each happening."""
        if self._started is None:
            self._started = now
        happenings = board.news(self._told)
        self._told = board.happened
        for one in happenings:
            if board.is_converged or one.is_warning:
                self._stamped(one.at - self._started, one.text)
        line = table.summary(board.counts)
        if line != self._last:
            self._last = line
            self._stamped(now - self._started, line)

    def close(self) -> None:
        """Nothing to restore."""

    def _stamped(self, seconds: float, text: str) -> None:
        self.say(f"{max(0.0, seconds):7.1f} s  {text}")


class Terminal:
    """One picture at the end of the screen, drawn again in place."""

    period_s = 0.25

    def __init__(
        self,
        out: TextIO,
        *,
        colour: bool = True,
        size: Callable[[], os.terminal_size] = shutil.get_terminal_size,
    ) -> None:
        self._out = out
        self._colour = colour
        self._size = size
        self._seen_size: os.terminal_size | None = None
        self._said: list[str] = []
        self._drawn = 0

    def say(self, text: str) -> None:
        """Write a line above the picture."""
        self._said.append(text)
        self._write(f"{self._rewind()}{text}\n")

    def show(self, board: Board, *, now: float) -> None:
        """Draw the picture again; after a change of size, the whole screen."""
        size = self._size()
        start = self._rewind()
        if self._seen_size not in (None, size):
            start = _CLEAR + "".join(f"{text}\n" for text in self._said)
        self._seen_size = size
        room = size.lines - 1 - min(len(self._said), size.lines // 2)
        lines = table.render(board, now=now, width=size.columns, height=room)
        lines = lines[: size.lines - 1]
        self._write(_HIDE_CURSOR + start + self._paint(lines))
        self._drawn = len(lines)

    def close(self) -> None:
        """Show the cursor; the last picture stays above what follows."""
        self._drawn = 0
        self._write(_SHOW_CURSOR)

    def _rewind(self) -> str:
        """Back to where the picture starts, and nothing below."""
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._drawn = 0
        return up + _ERASE_BELOW

    def _paint(self, lines: Sequence[table.Line]) -> str:
        return "".join(self._painted(line) + "\n" for line in lines)

    def _painted(self, line: table.Line) -> str:
        code = STYLES[line.style] if self._colour else ""
        return f"{code}{line.text}{_RESET}" if code else line.text

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

"""Where the sandbox shows itself: a terminal that is drawn anew, or lines in a pipe.

Both take lasting lines (`say`) and the state of the board (`show`, called again and
again). The terminal keeps one picture below the lasting lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, TextIO

from ccm.base import terminal
from ccm.sandbox import report
from ccm.sandbox.board import Board


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
    """A live picture if `out` is a capable terminal and rich is installed, else plain lines."""
    console = terminal.console(out, os.environ)
    if console is None:
        return Lines(out)
    from ccm.sandbox.picture import Picture

    return Picture(console)


class Lines:
    """Plain lines, each flushed: how far it is, and after that what happens."""

    period_s = 1.0

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started: float | None = None
        self._told = 0
        self._last = ""
        self._deployments: Sequence[str] = ()

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._out, flush=True)

    def show(self, board: Board, *, now: float) -> None:
        """Write the summary if it changed; after convergence, each happening, and how it rolls."""
        if self._started is None:
            self._started = now
        happenings = board.news.since(self._told)
        self._told = board.news.count
        for one in happenings:
            if board.is_converged or one.is_warning:
                self._stamped(one.at - self._started, one.text)
        for text in board.deployments.values() if board.is_converged else ():
            if text not in self._deployments:
                self._stamped(now - self._started, f"MachineDeployment {text}")
        self._deployments = tuple(board.deployments.values())
        line = report.summary(board)
        if line != self._last:
            self._last = line
            self._stamped(now - self._started, line)

    def close(self) -> None:
        """Nothing to restore."""

    def _stamped(self, seconds: float, text: str) -> None:
        self.say(f"{max(0.0, seconds):7.1f} s  {text}")

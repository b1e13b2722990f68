"""The live picture on a terminal, below the lines that stay."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live

from ccm.sandbox import table
from ccm.sandbox.board import Board


class Picture:
    """One picture at the end of the screen, drawn again in place."""

    period_s = 0.25

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = console.size
        self._said: list[str] = []
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Write a line above the picture."""
        self._said.append(text)
        self._console.print(text, soft_wrap=True)

    def show(self, board: Board, *, now: float) -> None:
        """Draw the picture again; after a change of size, the whole screen."""
        size = self._console.size
        if size != self._size:
            self._size = size
            self._start_again()
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        room = size.height - 1 - min(len(self._said), size.height // 2)
        self._live.update(table.render(board, now=now, height=room), refresh=True)

    def close(self) -> None:
        """Show the cursor; the last picture stays above what follows."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start_again(self) -> None:
        """Terminals wrap what was drawn for another width, so nothing can be drawn over it."""
        self.close()
        self._console.clear()
        for text in self._said:
            self._console.print(text, soft_wrap=True)

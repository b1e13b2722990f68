"""The live picture on a terminal, below the lines that stay; and the last one as a file."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.live import Live

from ccm.sandbox import table
from ccm.sandbox.board import Board

SVG_COLUMNS, SVG_LINES = 132, 40

_WEB_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""A picture in a document must not make its reader's program fetch anything."""


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


def write_svg(board: Board, file: Path, *, now: float) -> None:
    """Draw how things stand as an image for documents.

    Raises:
        OSError: the file cannot be written.
    """
    console = Console(
        file=io.StringIO(),
        record=True,
        width=SVG_COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table.render(board, now=now, height=SVG_LINES))
    # A fixed ID, so that two pictures of the same differ in nothing.
    drawn = console.export_svg(title="kube-ccm sandbox", unique_id="sandbox")
    file.write_text(_WEB_FONTS.sub("", drawn))

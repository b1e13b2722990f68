"""The screen of the sandbox: a live picture on a terminal, or lines in a pipe.

`Picture` and `Lines` both take permanent lines (`say`) and the state of the board (`show`, called
repeatedly). A terminal shows one picture below the permanent lines. No line of the picture wraps:
lines are truncated at the terminal's width, and columns that do not fit are left out. If not all
objects fit, existing objects with the latest changes are shown.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ccm.base import terminal
from ccm.sandbox.board import Board, ObjectRow, RowGroup, summary

if TYPE_CHECKING:  # rich is an extra
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

SVG_COLUMNS, SVG_LINES = 132, 40
MIN_ROWS = 3
"""Minimum number of visible nodes, however few lines the terminal has."""

RECENT_LINES = 4

GOOD, BAD, FAINT, PLAIN = "green", "yellow", "dim", ""

_LAST_COLUMN = "LAST EVENT"
_NODE_COLUMNS = ("NAME", "READY", "STATE", "PROVIDER ID", "TYPE", "ZONE", "ADDRESSES")
_SERVICE_COLUMNS = ("SERVICE", "TYPE", "STATE", "ADDRESS", "PORTS", "MEMBERS")
_MACHINE_COLUMNS = ("MACHINE", "CLASS", "PHASE", "STATE", "NODE", "PROVIDER ID")
_SPARED = (_LAST_COLUMN, "TYPE", "ZONE", "PORTS", "READY", "PROVIDER ID", "NODE", "ADDRESSES")
"""Columns that are dropped if the terminal is too narrow, in this order."""

_SHARE = 3
"""Services and Machines each get at most a third of the lines of the picture."""

_WIDEST = 40
_GAP = 2
_EVENT_WIDTH = 20
"""Minimum width of the event column; the terminal truncates longer events."""

_WEB_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Font rules in an SVG, for which a viewer would download fonts."""


def open_screen(out: TextIO) -> Lines | Picture:
    """Return a live picture if `out` is a capable terminal and rich is installed, else lines."""
    console = terminal.console(out, os.environ)
    return Lines(out) if console is None else Picture(console)


class Lines:
    """Plain lines, each flushed: progress and warnings, and after convergence all log entries."""

    period_s = 1.0
    """Interval between calls of `show`, in seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started: float | None = None
        self._shown_count = 0
        self._last = ""
        self._deployments: Sequence[str] = ()

    def say(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._out, flush=True)

    def show(self, board: Board, *, now: float) -> None:
        """Write new warnings, and the summary if it changed.

        After convergence also write all new log entries and the changed progress of rollouts.
        """
        if self._started is None:
            self._started = now
        happenings = board.happenings.since(self._shown_count)
        self._shown_count = board.happenings.count
        for happening in happenings:
            if board.is_converged or happening.is_warning:
                self._stamped(happening.at - self._started, happening.text)
        for text in board.deployments.values() if board.is_converged else ():
            if text not in self._deployments:
                self._stamped(now - self._started, f"MachineDeployment {text}")
        self._deployments = tuple(board.deployments.values())
        line = summary(board)
        if line != self._last:
            self._last = line
            self._stamped(now - self._started, line)

    def close(self) -> None:
        """Do nothing."""

    def _stamped(self, seconds: float, text: str) -> None:
        self.say(f"{max(0.0, seconds):7.1f} s  {text}")


class Picture:
    """A picture at the bottom of the screen, redrawn in place."""

    period_s = 0.25

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = console.size
        self._lines: list[str] = []
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Write a line above the picture."""
        self._lines.append(text)
        self._console.print(text, soft_wrap=True)

    def show(self, board: Board, *, now: float) -> None:
        """Redraw the picture, or the whole screen after a change of the terminal's size."""
        from rich.live import Live

        size = self._console.size
        if size != self._size:
            # Terminals rewrap old lines at the new width: the old picture cannot be overwritten.
            self._size = size
            self.close()
            self._console.clear()
            for text in self._lines:
                self._console.print(text, soft_wrap=True)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        room = size.height - 1 - min(len(self._lines), size.height // 2)
        self._live.update(render(board, now=now, width=size.width, height=room), refresh=True)

    def close(self) -> None:
        """Restore the cursor; the last picture stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def write_svg(board: Board, file: Path, *, now: float) -> None:
    """Draw the current state as an SVG image for documents.

    Raises:
        OSError: the file cannot be written.
    """
    from rich.console import Console

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
    console.print(render(board, now=now, width=SVG_COLUMNS, height=SVG_LINES))
    # A fixed ID, so that pictures of the same state are equal.
    drawn = console.export_svg(title="kube-ccm sandbox", unique_id="sandbox")
    file.write_text(_WEB_FONTS.sub("", drawn))


Screen = Lines | Picture


def render(board: Board, *, now: float, width: int, height: int) -> RenderableType:
    """Return the whole picture.

    Args:
        now: monotonic seconds, for waiting times.
        width: available columns.
        height: available lines.
    """
    from rich.console import Group as Lined

    recent = board.happenings.since(board.happenings.count - RECENT_LINES)
    room = height - len(recent) - 3
    above: list[RenderableType] = []
    below: list[RenderableType] = []
    machines = pick(board.machines.rows.values(), room=max(1, room // _SHARE))
    services = pick(board.services.rows.values(), room=max(1, room // _SHARE))
    if machines:
        above = [
            *(_line(f"MachineDeployment {text}") for text in board.deployments.values()),
            _grid(_MACHINE_COLUMNS, machines, "joined", now, width),
            *_hidden(board.machines, machines),
        ]
    if services:
        grid = _grid(_SERVICE_COLUMNS, services, "served", now, width)
        below = [grid, *_hidden(board.services, services)]
    # Each grid counts one line, its header.
    taken = len(services) + len(below) + len(machines) + len(above)
    nodes = pick(board.nodes.rows.values(), room=max(MIN_ROWS, room - taken))
    columns = (*_NODE_COLUMNS, *(["POD ROUTE"] if board.routes else ()))
    return Lined(
        _line(summary(board), "bold"),
        *above,
        _grid(columns, nodes, "init", now, width),
        *_hidden(board.nodes, nodes),
        *below,
        *(
            _line(f"> {happening.text}", BAD if happening.is_warning else FAINT)
            for happening in recent
        ),
    )


def pick(rows: Iterable[ObjectRow], *, room: int) -> list[ObjectRow]:
    """Return the rows that fit, sorted by name.

    If not all fit, the latest changes are kept. Deleted rows have the lowest priority: otherwise
    they would hide their successors in a rollout.
    """
    candidates = sorted(rows, key=lambda row: (row.is_deleted, -row.changed_at, row.name))
    return sorted(candidates[:room], key=lambda row: row.name)


def _line(text: str, style: str = PLAIN) -> Text:
    from rich.text import Text

    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _hidden(group: RowGroup, shown: Sequence[ObjectRow]) -> list[Text]:
    count = len(group.rows) - len(shown)
    return [_line(f"... and {count} more; the latest changes are shown", FAINT)] if count else []


def _grid(
    columns: Sequence[str], rows: Sequence[ObjectRow], settled: str, now: float, width: int
) -> Table:
    """Return a header and one line for each row, with as many columns as fit."""
    from rich.table import Table

    shown = [*columns, _LAST_COLUMN]
    lines = [_texts(shown, row, settled, now) for row in rows]
    widths = {
        name: min(_WIDEST, max(len(name), *(len(line[name]) for line in lines), 0))
        for name in shown
    }
    widths[_LAST_COLUMN] = _EVENT_WIDTH
    for name in _SPARED:
        if sum(widths[column] + _GAP for column in shown) - _GAP <= width:
            break
        if name in shown:
            shown.remove(name)
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in shown:
        fixed = None if name == _LAST_COLUMN else widths[name]
        grid.add_column(_line(name), min_width=fixed, max_width=fixed)
    for row, line in zip(rows, lines, strict=True):
        grid.add_row(*(_line(line[name]) for name in shown), style=_style(row))
    return grid


def _texts(columns: Sequence[str], row: ObjectRow, settled: str, now: float) -> dict[str, str]:
    special = {
        columns[0]: row.name,
        "STATE": _state(row, settled, now),
        "MEMBERS": "" if row.members is None else str(row.members),
        _LAST_COLUMN: row.last_event,
    }
    cells = {**({} if row.is_deleted and "READY" in columns else row.cells), **special}
    return {name: " ".join(cells.get(name, "").split()) or "-" for name in columns}


def _state(row: ObjectRow, settled: str, now: float) -> str:
    if row.is_deleted:
        return "deleted"
    if row.state:
        return row.state
    if row.settled_after is None:
        return f"waiting {now - row.seen_at:.0f} s"
    after_s = row.settled_after
    return f"{settled} in " + (f"{after_s * 1000:.0f} ms" if after_s < 1 else f"{after_s:.1f} s")


def _style(row: ObjectRow) -> str:
    if row.is_deleted:
        return FAINT
    if row.settled_after is None:
        return PLAIN
    return GOOD if row.is_good else BAD

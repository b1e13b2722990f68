"""Draws the board. Pure: rows in, a picture for rich out.

No line wraps: each ends where the terminal does, and columns that do not fit are left out, the
dearest last. Where not all objects fit, those stay that are there and that the daemon touched last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ccm.model import names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox import report
from ccm.sandbox.board import Board
from ccm.sandbox.rows import MachineRow, Row, ServiceRow, Shown, runs

MIN_ROWS = 3
"""Nodes that are shown however low the terminal is."""

RECENT_LINES = 4

GOOD, BAD, FAINT, PLAIN = "green", "yellow", "dim", ""

_HEAD = "bold"
_COLUMNS = ("NAME", "READY", "STATE", "PROVIDER ID", "TYPE", "ZONE", "ADDRESSES")
_ROUTE_COLUMN = "POD ROUTE"
_SERVICE_COLUMNS = ("SERVICE", "TYPE", "STATE", "ADDRESS", "PORTS", "MEMBERS")
_MACHINE_COLUMNS = ("MACHINE", "CLASS", "PHASE", "STATE", "NODE", "PROVIDER ID")
_LAST_COLUMN = "LAST EVENT"
_SPARED = (_LAST_COLUMN, "TYPE", "ZONE", "PORTS", "READY", "PROVIDER ID", "NODE", "ADDRESSES")
"""Columns that go first where the terminal is too narrow for all, in this order."""
_SHARE = 3
"""Services, and Machines, take a third of the picture at most, where nodes need the room."""

_WIDEST = 40
_GAP = 2
_EVENT_WIDTH = 20
"""Characters of an event that are worth a column."""


def render(board: Board, *, now: float, height: int) -> RenderableType:
    """The whole picture.

    Args:
        board: what to show.
        now: monotonic seconds, for nodes that still wait.
        height: lines that may be used.
    """
    recent = board.news.since(board.news.count - RECENT_LINES)
    room = height - len(recent) - 3
    services = pick(board.services.values(), room=max(1, room // _SHARE))
    machines = pick(board.machines.values(), room=max(1, room // _SHARE))
    above: list[RenderableType] = []
    below: list[RenderableType] = []
    if machines:
        above = [
            *(_line(f"MachineDeployment {text}") for text in board.deployments.values()),
            machine_grid(machines, now=now),
            *_hidden(len(board.machines) - len(machines)),
        ]
    if services:
        below = [service_grid(services, now=now), *_hidden(len(board.services) - len(services))]
    # A grid itself stands for its header.
    taken = len(services) + len(below) + len(machines) + len(above)
    shown = pick(board.rows.values(), room=max(MIN_ROWS, room - taken))
    return Group(
        _line(report.summary(board), _HEAD),
        *above,
        node_grid(shown, now=now, routes=board.counts.routes_expected > 0),
        *_hidden(len(board.rows) - len(shown)),
        *below,
        *(_line(f"> {one.text}", BAD if one.is_warning else FAINT) for one in recent),
    )


def _line(text: str, style: str = PLAIN) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _hidden(count: int) -> list[Text]:
    return [_line(f"... and {count} more; shown: the latest changes", FAINT)] if count else []


AnyRow = TypeVar("AnyRow", bound=Shown)


def pick(rows: Iterable[AnyRow], *, room: int) -> list[AnyRow]:
    """The rows that fit, by name; where not all do, those that changed last, what is gone after
    what is there: in a roll it would take its successors' places.
    """
    every = list(rows)
    if len(every) > room:
        every.sort(key=lambda row: (row.is_deleted, -row.changed_at, row.name))
        del every[room:]
    return sorted(every, key=lambda row: row.name)


def node_grid(rows: Sequence[Row], *, now: float, routes: bool) -> Grid:
    """A header and one line for each node; with a column for its route if there are any."""
    return Grid(
        (*_COLUMNS, *([_ROUTE_COLUMN] if routes else ())),
        [node_cells(row, now=now, routes=routes) for row in rows],
        [style_of(row) for row in rows],
    )


def service_grid(rows: Sequence[ServiceRow], *, now: float) -> Grid:
    """A header and one line for each Service."""
    return Grid(
        _SERVICE_COLUMNS,
        [service_cells(row, now=now) for row in rows],
        [service_style_of(row) for row in rows],
    )


def machine_grid(rows: Sequence[MachineRow], *, now: float) -> Grid:
    """A header and one line for each Machine."""
    return Grid(
        _MACHINE_COLUMNS,
        [machine_cells(row, now=now) for row in rows],
        [machine_style_of(row) for row in rows],
    )


class Grid:
    """A header and one line for each row; a narrow terminal gets fewer columns, each whole.

    Args:
        columns: their names; that of events comes after them.
        rows: the cells of each, the event last.
        styles: how each row looks.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]
    ) -> None:
        cells = zip((*columns, _LAST_COLUMN), zip(*rows, strict=True), strict=True)
        self._cells = dict(cells) if rows else dict.fromkeys((*columns, _LAST_COLUMN), ())
        self._styles = styles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The columns that fit the terminal's width."""
        shown = self.shown(options.max_width)
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style=_HEAD)
        for name in shown:
            width = None if name == _LAST_COLUMN else self._width(name)
            grid.add_column(_line(name), min_width=width, max_width=width)
        for number, style in enumerate(self._styles):
            grid.add_row(*(_line(self._cells[name][number]) for name in shown), style=style)
        yield grid

    def shown(self, width: int) -> list[str]:
        """The names of the columns that fit so many characters."""
        shown = list(self._cells)
        for name in _SPARED:
            needed = sum(self._width(one) + _GAP for one in shown) - _GAP
            if needed <= width:
                break
            if name in shown:
                shown.remove(name)
        return shown

    def _width(self, name: str) -> int:
        if name == _LAST_COLUMN:
            return _EVENT_WIDTH  # longer ones end where the terminal does
        return min(_WIDEST, max(map(len, (name, *self._cells[name]))))


def node_cells(row: Row, *, now: float, routes: bool) -> tuple[str, ...]:
    """The texts of a node, in the order of the columns."""
    return _filled(
        row.name,
        "" if row.is_deleted else row.ready,
        state_of(row, now=now),
        row.provider_id,
        row.type,
        row.zone,
        ",".join(row.addresses),
        *([route_of(row)] if routes else ()),
        row.last_event,
    )


def service_cells(row: ServiceRow, *, now: float) -> tuple[str, ...]:
    """The texts of a Service, in the order of the columns."""
    return _filled(
        row.name,
        row.type,
        service_state_of(row, now=now),
        ",".join(row.addresses),
        ",".join(row.ports),
        "" if row.members is None else str(row.members),
        row.last_event,
    )


def machine_cells(row: MachineRow, *, now: float) -> tuple[str, ...]:
    """The texts of a Machine, in the order of the columns."""
    return _filled(
        row.name,
        row.made_of,
        row.phase,
        machine_state_of(row, now=now),
        row.node,
        row.provider_id,
        row.last_event,
    )


def _filled(*texts: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) or "-" for text in texts)


def state_of(row: Row, *, now: float) -> str:
    """Where a node stands with the daemon."""
    if row.is_deleted:
        return "deleted"
    if row.is_shut_down:
        return "shutdown taint"
    if row.settled_after is None:
        return f"waits {now - row.seen_at:.0f} s"
    return f"init in {span(row.settled_after)}"


def route_of(row: Row) -> str:
    """The range of a node's pods, and whether the cloud knows the way there."""
    if not row.pod_range or row.is_deleted:
        return ""
    return f"{row.pod_range} {'made' if row.has_route else 'waits'}"


def service_state_of(row: ServiceRow, *, now: float) -> str:
    """Where a Service stands with the daemon."""
    if row.is_deleted:
        return "deleted"
    if row.is_deleting:
        return "being deleted"
    if row.type != TYPE_LOAD_BALANCER:
        return "no balancer"
    if row.settled_after is None:
        return f"waits {now - row.seen_at:.0f} s"
    return f"served in {span(row.settled_after)}"


def machine_state_of(row: MachineRow, *, now: float) -> str:
    """Where a Machine stands with the daemon."""
    if row.is_deleted:
        return "deleted"
    if row.is_deleting:
        return "being deleted"
    if row.settled_after is None:
        return f"waits {now - row.seen_at:.0f} s"
    return f"joined in {span(row.settled_after)}"


def span(seconds: float) -> str:
    """A short time as people say it."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def style_of(row: Row) -> str:
    """How a row looks."""
    if row.is_deleted:
        return FAINT
    if row.settled_after is None:
        return PLAIN
    return GOOD if row.ready == names.STATUS_TRUE and not row.is_shut_down else BAD


def service_style_of(row: ServiceRow) -> str:
    """How the row of a Service looks."""
    if row.is_deleted:
        return FAINT
    return GOOD if row.settled_after is not None and not row.is_deleting else PLAIN


def machine_style_of(row: MachineRow) -> str:
    """How the row of a Machine looks."""
    if row.is_deleted:
        return FAINT
    if row.settled_after is None:
        return PLAIN
    return GOOD if runs(row) else BAD

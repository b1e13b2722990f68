"""Draws the board as lines of text. Pure: rows in, lines out.

A line is as wide as the terminal at most, so that nothing wraps and the picture can be
drawn again in place. Where not all nodes or Services fit, those that the daemon touched
last stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ccm.model import names
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox.board import Board, Counts
from ccm.sandbox.rows import Row, ServiceRow

Style = Literal["plain", "head", "good", "bad", "faint"]

MIN_ROWS = 3
"""Nodes that are shown however low the terminal is."""

RECENT_LINES = 4

_COLUMNS = ("NAME", "READY", "STATE", "PROVIDER ID", "TYPE", "ZONE", "ADDRESSES")
_ROUTE_COLUMN = "POD ROUTE"
_SERVICE_COLUMNS = ("SERVICE", "TYPE", "STATE", "ADDRESS", "PORTS", "MEMBERS")
_LAST_COLUMN = "LAST EVENT"
_SERVICE_SHARE = 3
"""Services take a third of the picture at most, where nodes need the room."""

_GAP = "  "
_WIDEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line and what it means."""

    text: str
    style: Style = "plain"


def render(board: Board, *, now: float, width: int, height: int) -> list[Line]:
    """The whole picture.

    Args:
        board: what to show.
        now: monotonic seconds, for nodes that still wait.
        width: columns of the terminal.
        height: lines that may be used.
    """
    recent = board.news(board.happened - RECENT_LINES)
    room = height - len(recent) - 3
    services = pick(board.services.values(), room=max(1, room // _SERVICE_SHARE))
    below = _service_lines(board, services, now=now)
    shown = pick(board.rows.values(), room=max(MIN_ROWS, room - len(below)))
    lines = [Line(text=summary(board.counts), style="head")]
    lines += node_grid(shown, now=now, routes=board.counts.routes_expected > 0)
    lines += _hidden(len(board.rows) - len(shown))
    lines += below
    lines += [
        Line(text=f"> {one.text}", style="bad" if one.is_warning else "faint") for one in recent
    ]
    return [Line(text=clip(line.text, width), style=line.style) for line in lines]


def _service_lines(board: Board, shown: Sequence[ServiceRow], *, now: float) -> list[Line]:
    if not shown:
        return []
    return service_grid(shown, now=now) + _hidden(len(board.services) - len(shown))


def _hidden(count: int) -> list[Line]:
    if not count:
        return []
    return [Line(text=f"... and {count} more; shown: the latest changes", style="faint")]


AnyRow = TypeVar("AnyRow", Row, ServiceRow)


def pick(rows: Iterable[AnyRow], *, room: int) -> list[AnyRow]:
    """The rows that fit, by name; where not all do, those that changed last."""
    every = list(rows)
    if len(every) > room:
        every.sort(key=lambda row: (-row.changed_at, row.name))
        del every[room:]
    return sorted(every, key=lambda row: row.name)


def node_grid(rows: Sequence[Row], *, now: float, routes: bool) -> list[Line]:
    """A header and one line for each node; with a column for its route if there are any."""
    columns = (*_COLUMNS, *([_ROUTE_COLUMN] if routes else ()), _LAST_COLUMN)
    return _grid(
        columns,
        [node_cells(row, now=now, routes=routes) for row in rows],
        [style_of(row) for row in rows],
    )


def service_grid(rows: Sequence[ServiceRow], *, now: float) -> list[Line]:
    """A header and one line for each Service."""
    return _grid(
        (*_SERVICE_COLUMNS, _LAST_COLUMN),
        [service_cells(row, now=now) for row in rows],
        [service_style_of(row) for row in rows],
    )


def _grid(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[Style]
) -> list[Line]:
    """A header and one line for each row, in aligned columns."""
    table = [columns, *rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*table, strict=True)]
    widths[-1] = 0  # the last column may be as long as it likes
    texts = [
        _GAP.join(
            clip(cell, limit or len(cell)).ljust(limit)
            for cell, limit in zip(row, widths, strict=True)
        )
        for row in table
    ]
    every: list[Style] = ["head", *styles]
    return [Line(text=text.rstrip(), style=style) for text, style in zip(texts, every, strict=True)]


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


def span(seconds: float) -> str:
    """A short time as people say it."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def style_of(row: Row) -> Style:
    """How a row looks."""
    if row.is_deleted:
        return "faint"
    if row.settled_after is None:
        return "plain"
    return "good" if row.ready == names.STATUS_TRUE and not row.is_shut_down else "bad"


def service_style_of(row: ServiceRow) -> Style:
    """How the row of a Service looks."""
    if row.is_deleted:
        return "faint"
    return "good" if row.settled_after is not None and not row.is_deleting else "plain"


def summary(counts: Counts) -> str:
    """Everything in one line."""
    parts = [
        f"{counts.initialised} of {counts.expected} nodes initialised",
        f"{counts.registered} registered",
    ]
    if counts.routes_expected:
        parts.append(f"{counts.routes} of {counts.routes_expected} routes")
    if counts.services_expected:
        parts.append(f"{counts.services} of {counts.services_expected} Services served")
    if counts.cloud_calls is not None:
        parts.append(f"{counts.cloud_calls} cloud calls")
    parts.append(f"{counts.warnings} warnings")
    return ", ".join(parts)


def clip(text: str, width: int) -> str:
    """The text, cut at the end if it is longer than that."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"

"""Draws the board as lines of text. Pure: rows in, lines out.

A line is as wide as the terminal at most, so that nothing wraps and the picture can be
drawn again in place. Where not all nodes fit, those that the daemon touched last stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ccm.model import names
from ccm.sandbox.board import Board, Counts, Row

Style = Literal["plain", "head", "good", "bad", "faint"]

MIN_ROWS = 3
"""Nodes that are shown however low the terminal is."""

RECENT_LINES = 4

_COLUMNS = ("NAME", "READY", "STATE", "PROVIDER ID", "TYPE", "ZONE", "ADDRESSES", "LAST EVENT")
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
    shown = pick(board.rows.values(), room=max(MIN_ROWS, room))
    lines = [Line(text=summary(board.counts), style="head")]
    lines += grid(shown, now=now)
    hidden = len(board.rows) - len(shown)
    if hidden:
        lines.append(Line(text=f"... and {hidden} more; shown: the latest changes", style="faint"))
    lines += [
        Line(text=f"> {one.text}", style="bad" if one.is_warning else "faint") for one in recent
    ]
    return [Line(text=clip(line.text, width), style=line.style) for line in lines]


def pick(rows: Iterable[Row], *, room: int) -> list[Row]:
    """The rows that fit, by name; where not all do, those that changed last."""
    every = list(rows)
    if len(every) > room:
        every.sort(key=lambda row: (-row.changed_at, row.name))
        del every[room:]
    return sorted(every, key=lambda row: row.name)


def grid(rows: Sequence[Row], *, now: float) -> list[Line]:
    """A header and one line for each row, in aligned columns."""
    table = [_COLUMNS, *(cells(row, now=now) for row in rows)]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*table, strict=True)]
    widths[-1] = 0  # the last column may be as long as it likes
    texts = [
        _GAP.join(
            clip(cell, limit or len(cell)).ljust(limit)
            for cell, limit in zip(row, widths, strict=True)
        )
        for row in table
    ]
    styles: list[Style] = ["head", *map(style_of, rows)]
    return [
        Line(text=text.rstrip(), style=style) for text, style in zip(texts, styles, strict=True)
    ]


def cells(row: Row, *, now: float) -> tuple[str, ...]:
    """The texts of one row, in the order of the columns."""
    texts = (
        row.name,
        "" if row.is_deleted else row.ready,
        state_of(row, now=now),
        row.provider_id,
        row.type,
        row.zone,
        ",".join(row.addresses),
        row.last_event,
    )
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


def summary(counts: Counts) -> str:
    """Everything in one line."""
    parts = [
        f"{counts.initialised} of {counts.expected} nodes initialised",
        f"{counts.registered} registered",
    ]
    if counts.cloud_calls is not None:
        parts.append(f"{counts.cloud_calls} cloud calls")
    parts.append(f"{counts.warnings} warnings")
    return ", ".join(parts)


def clip(text: str, width: int) -> str:
    """The text, cut at the end if it is longer than that."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"

"""What a sandbox says of itself in words: how far it is, and at its end who was left behind."""

from __future__ import annotations

from collections.abc import Iterator

from ccm.sandbox.board import Board
from ccm.sandbox.counts import Counts
from ccm.sandbox.rows import Shown

LAGGARDS = 5
"""Objects of each kind that are named."""

_SILENCE = "no event tells why; see the daemon's log"


def summary(board: Board) -> str:
    """How things stand now, in one line of 80 columns with hundreds of nodes."""
    now, counts = board.standing, board.counts
    parts = [f"{now.running}/{now.machines} machines"] if now.machines else []
    parts.append(f"{now.initialised}/{now.nodes} nodes initialised")
    if counts.routes_expected:
        parts.append(f"{now.routed}/{now.nodes} routes")
    if now.services:
        parts.append(f"{now.served}/{now.services} Services")
    if counts.cloud_calls is not None:
        parts.append(f"{counts.cloud_calls} calls")
    parts.append(f"{counts.warnings} warnings")
    return ", ".join(parts)


def laggards(board: Board) -> Iterator[str]:
    """A line for each object that did not get what it needs, with the last that is known."""
    for key in board.idle[:LAGGARDS]:
        yield f"not running: Machine {key}: {_last_word(board.machines.get(key), 'never created')}"
    if board.awaited:
        yield f"not running: {board.awaited} of the Machines: never created"
    for name in board.missing[:LAGGARDS]:
        yield f"not initialised: {_node(board, name)}"
    waiting = [name for name in board.unrouted if name not in set(board.missing)]
    for name in waiting[:LAGGARDS]:
        yield f"no route: {_node(board, name)}"
    for key in board.unserved[:LAGGARDS]:
        yield f"not served: Service {key}: {_last_word(board.services.get(key), 'never created')}"


def _node(board: Board, name: str) -> str:
    return f"node {name}: {_last_word(board.rows.get(name), 'never registered')}"


def _last_word(row: Shown | None, nothing: str) -> str:
    return (row.last_event or _SILENCE) if row else nothing


def last_line(
    board: Board, *, writes: int | None, cloud_calls: int | None, took_s: float | None
) -> str:
    """What it came to: nodes, routes, Services, the daemon's writes about nodes and Services,
    cloud calls, warnings.

    Args:
        board: nodes and Services.
        writes: None: the daemon did not live to tell.
        cloud_calls: None: likewise.
        took_s: seconds until it had converged; None: it has not.
    """
    parts = (
        *achieved(board.counts),
        f"{'?' if writes is None else writes} writes",
        f"{'?' if cloud_calls is None else cloud_calls} cloud calls",
        f"{board.counts.warnings} warnings",
    )
    start = "done" if took_s is not None else "not converged"
    end = f" in {took_s:.1f} s" if took_s is not None else ""
    return f"{start}: {', '.join(parts)}{end}"


def achieved(counts: Counts) -> list[str]:
    """What is done of all that was expected, each in some words."""
    parts = []
    if counts.machines_expected:
        parts.append(f"{_part(counts.machines, counts.machines_expected)} machines run")
    if counts.expected or not parts:
        parts.append(f"{_part(counts.initialised, counts.expected)} nodes initialised")
    if counts.routes_expected:
        parts.append(f"{_part(counts.routes, counts.routes_expected)} routes")
    if counts.services_expected:
        parts.append(f"{_part(counts.services, counts.services_expected)} Services served")
    return parts


def _part(done: int, expected: int) -> str:
    return str(done) if done == expected else f"{done} of {expected}"

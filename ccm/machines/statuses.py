"""Whether a status says anything new, so that a failure that repeats is written once. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ccm.model.machines import MachineStatus

STALE_S = 1800.0
"""A status older than this is written again, though it says the same (reference)."""

SIMILAR = 0.75
"""Texts with a greater similarity say the same: they may differ in the ID of a request."""

_MOST = 512
"""Characters that are compared: a distance takes time as the square of them."""


def says_nothing_new(old: MachineStatus, new: MachineStatus) -> bool:
    """Whether a status need not be written.

    What the driver wants to remember is compared too: losing it may lose a VM.
    """
    if old.updated is None or new.updated is None or _age_s(old.updated, new.updated) > STALE_S:
        return False
    if not similar(old.description, new.description):
        return False
    return _timeless(old) == _timeless(new)


def similar(one: str, other: str) -> bool:
    """Whether two descriptions say the same."""
    if one == other:
        return True
    longest = max(len(one), len(other))
    start = _common(one, other)
    one, other = one[start:], other[start:]
    end = _common(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    rest = max(len(one), len(other))
    # What differs is taken to go on as it begins.
    scale = max(1.0, rest / _MOST)
    return 1 - _distance(one[:_MOST], other[:_MOST]) * scale / longest > SIMILAR


def _timeless(status: MachineStatus) -> MachineStatus:
    return replace(status, description="", since=None, updated=None, conditions=())


def _age_s(old: datetime, new: datetime) -> float:
    return abs((new - old).total_seconds())


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _distance(one: str, other: str) -> int:
    """Levenshtein's: the fewest characters to insert, delete or exchange."""
    row = list(range(len(other) + 1))
    for number, char in enumerate(one, start=1):
        before, row[0] = row[0], number
        for at, fellow in enumerate(other, start=1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (char != fellow))
    return row[-1]

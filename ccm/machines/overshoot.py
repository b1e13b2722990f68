"""When a set has so many machines that something must be wrong, no more are made. Pure.

A brake, and no judgement of who is to blame: nothing is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """How much is too much.

    Attributes:
        up: machines above what is wanted at which a set is frozen.
        down: machines below that at which it thaws.
    """

    up: int = 2
    down: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A set and its machines.

    Attributes:
        count: machines that it owns, with all labels of its template, on their way out or not.
        replicas: how many it wants.
        most: how many its deployment wants, with its surge; None = it has none.
        is_frozen: it makes no machines.
        is_told: a condition says whether it does.
        asked: a person wants it to thaw.
        is_pardoned: a person had it thaw, and no machine was made since.
    """

    count: int
    replicas: int
    most: int | None = None
    is_frozen: bool = False
    is_told: bool = True
    asked: bool = False
    is_pardoned: bool = False


class Verdict(Enum):
    """What follows."""

    STAY = "stay"
    FREEZE = "freeze"
    SAY = "say"
    """It is frozen, and the condition that says so got lost."""
    UNSAY = "unsay"
    """It is not frozen, and a condition says it is."""
    THAW = "thaw"
    """There are few enough machines."""
    THAW_ASKED = "thaw as asked"
    """A person wants it; once: with the next machine it may freeze again."""


def limits(stock: Stock, margins: Margins) -> tuple[int, int]:
    """How many machines freeze a set, and how many thaw it."""
    base = 2 * stock.replicas if stock.most is None else stock.most
    higher = base + margins.up
    return higher, higher - margins.down


def judge(stock: Stock, margins: Margins) -> Verdict:
    """What follows for a set."""
    higher, lower = limits(stock, margins)
    if stock.asked:
        return Verdict.THAW_ASKED
    if not stock.is_frozen and stock.count >= higher and not stock.is_pardoned:
        return Verdict.FREEZE
    if stock.is_frozen and stock.count <= lower:
        return Verdict.THAW
    if not stock.is_told:
        return Verdict.SAY if stock.is_frozen else Verdict.UNSAY
    return Verdict.STAY

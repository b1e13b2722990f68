"""A set whose machines fail one after the other makes them more and more slowly. Pure.

A machine that is never going to work costs a VM and the time in which somebody waits for it, and
so does the one that replaces it, for ever. After a few in a row the set waits, each time longer,
and then tries a single one. If that works, all is as before. The pause ends early when its cause
may be mended: the template, the class, its Secret or the answer of the cloud changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ccm.base.backoff import Exponential
from ccm.machines import creation
from ccm.machines.replicas import Member
from ccm.model.machines import Phase

FREE = 3
"""So many machines may fail in a row before the set slows down."""

PAUSES = Exponential(base_s=60.0, factor=2.0, cap_s=1800.0)
"""1, 2, 4 … 30 minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setbacks:
    """Machines that failed in a row before they ever worked.

    Attributes:
        row: how many.
        level: how many pauses followed; 0: the set is as fast as ever.
        since: when the last pause began.
        text: why the last one failed, for people.
        code: with which the cloud refused to create it; empty = it was created.
        ended: time at which the last pause was ended early; failures of older machines do not
            count.
    """

    row: int = 0
    level: int = 0
    since: datetime | None = None
    text: str = ""
    code: str = ""
    ended: datetime | None = None


NONE = Setbacks()


def failed(
    before: Setbacks, *, made: datetime, now: datetime, text: str, code: str = ""
) -> Setbacks:
    """After a machine failed that was made, or tried, at some time.

    Those that were made before the last pause began say nothing new: they were made together
    with those for which it began.
    """
    if before.ended is not None and made < before.ended:
        return before
    after = replace(before, row=before.row + 1, text=text, code=code)
    known = before.since is not None and made < before.since
    if after.row < FREE or known:
        return after
    return replace(after, level=before.level + 1, since=now)


def ended(now: datetime) -> Setbacks:
    """Return the setbacks of a set after its cause was mended, or a user asked for machines."""
    # Creation timestamps of machines have whole seconds.
    return Setbacks(ended=now.replace(microsecond=0))


def is_another_answer(found: Setbacks, *, code: str, text: str) -> bool:
    """Return whether the cloud's answer to a creation differs from the one that a set failed with.

    Args:
        found: setbacks of a set of the same class.
        code: code with which the cloud refused to create a machine; empty = it was created.
        text: text of the refusal.
    """
    return bool(found.code) and (code != found.code or not creation.similar(text, found.text))


def resumed(since: datetime) -> Setbacks:
    """Those of a set that had slowed down when another daemon had the lead."""
    return Setbacks(row=FREE, level=1, since=since, text="machines failed in a row")


def until(found: Setbacks) -> datetime | None:
    """When the last pause ends, or ended; None: there was none."""
    if found.since is None:
        return None
    return found.since + timedelta(seconds=PAUSES.even_delay(found.level - 1))


def wait_s(found: Setbacks, now: datetime) -> float:
    """Seconds for which no machine is made; 0: one may be."""
    end = until(found)
    return 0.0 if end is None else max(0.0, (end - now).total_seconds())


def allowed(found: Setbacks, wanted: int, members: Iterable[Member], now: datetime) -> int:
    """How many of the machines that a set wants to make it makes now."""
    if found.since is None:
        return wanted
    if wait_s(found, now) > 0 or any(_is_trial(one, found.since) for one in members):
        return 0
    return min(wanted, 1)


def _is_trial(member: Member, since: datetime) -> bool:
    """Whether it was made after the pause, and nobody knows yet what becomes of it."""
    machine = member.machine
    is_open = machine.phase in (Phase.NEW, Phase.PENDING, Phase.CRASH_LOOP)
    return is_open and not machine.is_ending and machine.created >= since

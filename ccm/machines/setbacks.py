"""Back-off of a set whose machines fail one after the other. Pure.

A machine that can never work costs a VM and the time until its timeout, and so does each of its
replacements. After a few failures in a row the set pauses, each time longer, and then tries a
single machine. A success resets the back-off. The pause ends early when its cause may be cured: the
template, the class, its Secret or the error of the cloud changed.
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
"""Number of failures in a row that start a pause."""

PAUSES = Exponential(base_s=60.0, factor=2.0, cap_s=1800.0)
"""1, 2, 4 … 30 minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setbacks:
    """Machines that failed in a row before they ever worked.

    Attributes:
        row: number of failures.
        level: number of pauses so far; 0 = no back-off.
        since: start of the last pause.
        text: reason of the last failure, for users.
        code: code of the cloud's error for the last creation; empty = the VM was created.
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
    """Return the setbacks after a machine failed.

    Machines created before the last pause count, but cause no further pause: they were created
    together with those that caused it.

    Args:
        before: setbacks before the failure.
        made: time of the creation, or of the failed attempt.
        now: the time.
        text: reason of the failure.
        code: code of the cloud's error; empty = the VM was created.
    """
    if before.ended is not None and made < before.ended:
        return before
    after = replace(before, row=before.row + 1, text=text, code=code)
    is_known = before.since is not None and made < before.since
    if after.row < FREE or is_known:
        return after
    return replace(after, level=before.level + 1, since=now)


def ended(now: datetime) -> Setbacks:
    """Return the setbacks of a set after the cause was cured, or a user requested machines."""
    # Creation timestamps of machines have whole seconds.
    return Setbacks(ended=now.replace(microsecond=0))


def is_another_answer(found: Setbacks, *, code: str, text: str) -> bool:
    """Return whether the result of a creation differs from the failure of a set.

    Args:
        found: setbacks of a set of the same class.
        code: code of the cloud's error; empty = the VM was created.
        text: text of the error.
    """
    return bool(found.code) and (code != found.code or not creation.similar(text, found.text))


def resumed(since: datetime) -> Setbacks:
    """Return the setbacks of a set that another daemon had slowed down while it was the leader."""
    return Setbacks(row=FREE, level=1, since=since, text="machines failed in a row")


def until(found: Setbacks) -> datetime | None:
    """Return the end of the last pause; None = there was none."""
    if found.since is None:
        return None
    return found.since + timedelta(seconds=PAUSES.even_delay(found.level - 1))


def wait_s(found: Setbacks, now: datetime) -> float:
    """Return the seconds until a machine may be created; 0 = now."""
    end = until(found)
    return 0.0 if end is None else max(0.0, (end - now).total_seconds())


def allowed(found: Setbacks, wanted: int, members: Iterable[Member], now: datetime) -> int:
    """Return how many of the wanted machines a set may create now."""
    if found.since is None:
        return wanted
    if wait_s(found, now) > 0 or any(_is_trial(member, found.since) for member in members):
        return 0
    return min(wanted, 1)


def _is_trial(member: Member, since: datetime) -> bool:
    """Return whether a machine younger than the pause has neither worked nor failed yet."""
    machine = member.machine
    is_open = machine.phase in (Phase.NEW, Phase.PENDING, Phase.CRASH_LOOP)
    return is_open and not machine.is_ending and machine.created >= since

"""Back-off of a set whose machines fail one after the other. No I/O.

A machine that can never work costs a VM and the time until its timeout, and so does each of its
replacements. After a few failures in a row the set pauses its creations, each time longer, and then
tries a single machine. A success resets the back-off. A pause ends early if the cause may be cured:
the template, the class, its Secret or the error of the cloud changed, or a user requests machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ccm.base.backoff import ExponentialBackoff
from ccm.machines import creation
from ccm.machines.replicas import Member
from ccm.model.machines import Phase

FAILURES_BEFORE_PAUSE = 3
"""Number of failures in a row that start a pause."""

PAUSES = ExponentialBackoff(base_s=60.0, factor=2.0, cap_s=1800.0)
"""Durations of the pauses: 1, 2, 4 … 30 minutes. Each trial after a pause costs a VM and the time
until its timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBackoff:
    """Consecutive failures of machines that never worked, and the pauses that followed.

    Attributes:
        failures: number of failures.
        pauses: number of pauses so far; 0 = no back-off.
        paused_at: start of the last pause.
        error: reason of the last failure, for users.
        code: code of the cloud's error in the last failure; empty = the cloud reported no error.
        ended_at: time at which the back-off was last ended early; failures of machines created
            before that time do not count.
    """

    failures: int = 0
    pauses: int = 0
    paused_at: datetime | None = None
    error: str = ""
    code: str = ""
    ended_at: datetime | None = None


NONE = FailureBackoff()


def record_failure(
    before: FailureBackoff, *, created_at: datetime, now: datetime, text: str, code: str = ""
) -> FailureBackoff:
    """Return the back-off after a machine failed.

    The failure of a machine that was created before the last pause began is counted, but starts no
    further pause: the machine was created together with those whose failures started that pause.

    Args:
        before: back-off before the failure.
        created_at: creation time of the machine; if the API server rejected the machine, the time
            of that response.
        now: the time.
        text: reason of the failure.
        code: code of the cloud's error; empty = the cloud reported no error.
    """
    if before.ended_at is not None and created_at < before.ended_at:
        return before
    after = replace(before, failures=before.failures + 1, error=text, code=code)
    is_known = before.paused_at is not None and created_at < before.paused_at
    if after.failures < FAILURES_BEFORE_PAUSE or is_known:
        return after
    return replace(after, pauses=before.pauses + 1, paused_at=now)


def end_backoff(now: datetime) -> FailureBackoff:
    """Return a back-off that ended early: the cause may be cured, or a user requests machines."""
    # Creation timestamps of machines have whole seconds.
    return FailureBackoff(ended_at=now.replace(microsecond=0))


def is_different_result(backoff: FailureBackoff, *, code: str, text: str) -> bool:
    """Return whether a creation's result differs from that of the last failed creation of a set.

    False if that failure was no error of the cloud.

    Args:
        backoff: back-off of the set; the created machine has the same class.
        code: code of the cloud's error; empty = the VM was created.
        text: text of the error.
    """
    return bool(backoff.code) and (
        code != backoff.code or not creation.is_similar(text, backoff.error)
    )


def restore_backoff(since: datetime) -> FailureBackoff:
    """Return the back-off of a set whose creations the former leader delayed.

    A pause of the shortest duration starts at `since`, because the former pauses are not known.
    """
    return FailureBackoff(
        failures=FAILURES_BEFORE_PAUSE, pauses=1, paused_at=since, error="not known to this replica"
    )


def pause_end(backoff: FailureBackoff) -> datetime | None:
    """Return the end of the last pause; None = no pause has begun."""
    if backoff.paused_at is None:
        return None
    return backoff.paused_at + timedelta(seconds=PAUSES.delay_without_jitter(backoff.pauses - 1))


def remaining_pause_s(backoff: FailureBackoff, now: datetime) -> float:
    """Return the seconds until a machine may be created; 0 = now."""
    end = pause_end(backoff)
    return 0.0 if end is None else max(0.0, (end - now).total_seconds())


def allowed_creations(
    backoff: FailureBackoff, wanted: int, members: Iterable[Member], now: datetime
) -> int:
    """Return how many of the wanted machines a set may create now.

    After a pause, a set may create a single machine. The set creates no further machine until that
    machine works or has failed.
    """
    if backoff.paused_at is None:
        return wanted
    if remaining_pause_s(backoff, now) > 0 or any(
        _is_trial(member, backoff.paused_at) for member in members
    ):
        return 0
    return min(wanted, 1)


def _is_trial(member: Member, since: datetime) -> bool:
    """Return whether a machine was created after the pause began, and is still joining."""
    machine = member.machine
    is_open = machine.phase in (Phase.NEW, Phase.PENDING, Phase.CRASH_LOOP)
    return is_open and not machine.is_terminating and machine.created >= since

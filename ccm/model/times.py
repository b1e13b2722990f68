"""Kubernetes' time formats: seconds (`Time`) and microseconds (`MicroTime`), always UTC."""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime.fromtimestamp(0, UTC)
"""Placeholder for an absent time: the start of Unix time."""


def format_time(moment: datetime) -> str:
    """Format a time as `2026-01-02T03:04:05Z`."""
    return _in_utc(moment).isoformat(timespec="seconds") + "Z"


def format_micro_time(moment: datetime) -> str:
    """Format a time as `2026-01-02T03:04:05.000000Z`; Go's layout requires six fraction digits."""
    return _in_utc(moment).isoformat(timespec="microseconds") + "Z"


def parse_time(text: str) -> datetime:
    """Parse a time in either format, with any offset.

    Raises:
        ValueError: the text is not an RFC 3339 time with a time zone, or is out of range in UTC.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:  # at the first or last day of the calendar
        raise ValueError(f"{text!r} is out of range") from error


def parse_optional_time(text: str | None) -> datetime | None:
    """Parse a time that another program wrote; None = missing or invalid."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)

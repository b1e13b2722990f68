"""Booleans, integers and durations in text, parsed as Go does.

`str.isdigit` also accepts `²` and the digits of other scripts, and `int` raises for thousands of
digits. So `int` after `str.isdigit` is not safe; use `parse_digits`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlsplit

_WORDS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_bool(text: str) -> bool | None:
    """Return the boolean; None for any other text, such as `tRUE`, `yes` or white space."""
    return _WORDS.get(text)


MAX_INT64 = 2**63 - 1
"""Largest integer that Kubernetes, Go and the clouds' APIs all accept."""

_MAX_DIGITS = len(str(MAX_INT64))


def parse_digits(text: str, *, maximum: int = MAX_INT64) -> int | None:
    """Return the number written in ASCII digits; None if above `maximum`, or for other text."""
    if not (len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= maximum else None


_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_PART = re.compile(r"(?=\.?[0-9])([0-9]{0,40})(?:\.([0-9]{0,40}))?(ns|us|µs|μs|ms|s|m|h)")
_MAX_NS = 2**63 - 1
"""Go's maximum duration in nanoseconds: 64 bits, about 292 years."""


def parse_duration(text: str) -> timedelta:
    """Parse a Go duration such as `1h2m3.5s`, `-300ms` or `0`.

    Digits below a microsecond are truncated.

    Raises:
        ValueError: the text is no Go duration, or exceeds Go's maximum; the message quotes the
            text.
    """
    body = text
    sign = 1
    if body[:1] in ("+", "-"):
        sign = -1 if body[0] == "-" else 1
        body = body[1:]
    if body == "0":
        return timedelta(0)
    total_ns = 0
    position = 0
    for match in _PART.finditer(body):
        if match.start() != position:
            break
        whole, fraction, unit_ns = match[1] or "0", match[2] or "0", _UNITS_NS[match[3]]
        total_ns += int(whole) * unit_ns + int(fraction) * unit_ns // 10 ** len(fraction)
        position = match.end()
    if not body or position != len(body):
        raise ValueError(f"{text!r} is not a duration; write it like 300ms, 1.5h or 2h45m")
    if total_ns > _MAX_NS:
        raise ValueError(f"{text!r} is too long; a duration has at most 2562047 hours")
    return timedelta(microseconds=sign * (total_ns // 1_000))


def format_duration(value: timedelta) -> str:
    """Format a duration as Go does: `5m0s`, `1h0m0s`, `1.5s`, `300ms`, `0s`."""
    micros = value // timedelta(microseconds=1)
    if micros == 0:
        return "0s"
    sign = "-" if micros < 0 else ""
    micros = abs(micros)
    if micros < 1_000:
        return f"{sign}{micros}µs"
    if micros < 1_000_000:
        return f"{sign}{_decimal(micros, 1_000)}ms"
    minutes, rest = divmod(micros, 60_000_000)
    text = f"{_decimal(rest, 1_000_000)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"


def parse_url(text: str) -> str:
    """Return the URL of an HTTP server without trailing slashes.

    Raises:
        ValueError: the text is not such a URL.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(text)
    return text.rstrip("/")

"""Go duration text (`1h2m3.5s`, `300ms`, `0`) to and from `timedelta`."""

from __future__ import annotations

import re
from datetime import timedelta

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
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> timedelta:
    """Parse a Go duration such as `1h2m3.5s`, `-300ms` or `0`.

    Digits below a microsecond are cut off.

    Raises:
        ValueError: the text is no Go duration; the message shows it and an example.
    """
    body = text
    sign = 1
    if body[:1] in ("+", "-"):
        sign = -1 if body[0] == "-" else 1
        body = body[1:]
    if body == "0":
        return timedelta(0)
    total_ns = 0.0
    position = 0
    for match in _PART.finditer(body):
        if match.start() != position:
            break
        total_ns += float(match[1]) * _UNITS_NS[match[2]]
        position = match.end()
    if not body or position != len(body):
        raise ValueError(f"{text!r} is not a duration; write it like 300ms, 1.5h or 2h45m")
    return timedelta(microseconds=sign * int(total_ns // 1_000))


def format_duration(value: timedelta) -> str:
    """Write a duration as Go does: `5m0s`, `1h0m0s`, `1.5s`, `300ms`, `0s`."""
    micros = round(value / timedelta(microseconds=1))
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

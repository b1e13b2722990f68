"""Rendering of log lines: klog's text, klog's JSON, or colours for a developer's terminal.

A renderer receives the facts of a line, and may modify the mapping. Some keys have a fixed meaning
and place: `event` (the message), `_caller`, `logger`, `error`, `exception` (the traceback) and, on
leveled lines, `v`. The other facts follow in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from typing import Any

import msgspec

from ccm.base import redact

Event = MutableMapping[str, Any]
Render = Callable[[str, Event], bytes]
"""Function from (level, facts) to the bytes of the line, without the final line break."""

_LETTERS = {"debug": "I", "info": "I", "warning": "W", "error": "E", "critical": "F"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:")
_COLOURS = {"debug": "36", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}
_MESSAGE_COLUMNS = 36

MAX_CHARACTERS = 64 << 10
"""Maximum characters of one fact, message or traceback in the log: masking costs time."""


def render_text(level: str, event: Event) -> bytes:
    """Render klog's text: `I1231 23:59:59.123456     123 file.py:12] "message" key="value"`."""
    now = datetime.now()  # noqa: TID251, DTZ005 - a log line carries the real, local time
    when = now.isoformat(" ", "microseconds")  # several times faster than strftime
    head = (
        f"{_LETTERS[level]}{when[5:7]}{when[8:]} "
        f"{threading.get_native_id():7d} {event.pop('_caller', '?')}]"
    )
    event.pop("v", None)
    message = _quote(event.pop("event", ""))
    trace = event.pop("exception", None)
    facts = "".join(f" {name}={_format_value(value)}" for name, value in _iter_facts(event))
    return _with_trace(f"{head} {message}{facts}", trace)


def render_json(level: str, event: Event) -> bytes:
    """Render one JSON object: ts (milliseconds), caller, msg, v, logger, err, the facts, level."""
    line: dict[str, Any] = {
        "ts": round(time.time() * 1000, 3),  # noqa: TID251 - a log line carries the real time
        "caller": event.pop("_caller", "?"),
        "msg": event.pop("event", ""),
    }
    verbosity = event.pop("v", 0)
    if level in ("debug", "info"):
        line["v"] = verbosity
    line.update(_iter_facts(event))
    # klog writes no level. Without this key, warnings and info lines would look the same.
    line["level"] = level
    try:
        written = msgspec.json.encode(line, enc_hook=str)
    # Lone surrogates cannot be encoded, so all texts are escaped first.
    except UnicodeEncodeError:
        line = {
            name: value
            if isinstance(value, int | float)
            else _escape_surrogates(_truncate(str(value)))
            for name, value in line.items()
        }
        written = msgspec.json.encode(line)
    if len(written) > MAX_CHARACTERS:
        return msgspec.json.encode(
            {name: _short(value) for name, value in line.items()}, enc_hook=str
        )
    return written


def render_development(level: str, event: Event, *, colours: bool) -> bytes:
    """Render time, level, message, facts and call site, for a developer's terminal."""

    def paint(words: str, colour: str) -> str:
        return f"\x1b[{colour}m{words}\x1b[0m" if colours else words

    now = datetime.now()  # noqa: TID251, DTZ005 - a log line carries the real, local time
    caller = event.pop("_caller", "?")
    event.pop("v", None)
    name = event.pop("logger", "")
    message = escape_control(_truncate(str(event.pop("event", "")))).ljust(_MESSAGE_COLUMNS)
    trace = event.pop("exception", None)
    facts = " ".join(
        f"{paint(key, '36')}={_format_value(value)}" for key, value in _iter_facts(event)
    )
    parts = [
        paint(f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}", "2"),
        paint(f"{level:8}", _COLOURS[level]),
        paint(message, "1"),
        facts,
        paint(f"{name} {caller}", "2"),
    ]
    return _with_trace(" ".join(filter(None, parts)), trace)


def _with_trace(line: str, trace: str | None) -> bytes:
    if trace:
        # Only log lines may begin in the first column, so the lines of a traceback are indented.
        rows = redact.mask_text(trace, MAX_CHARACTERS).split("\n")
        line = "\n\t".join((line, *map(escape_control, rows)))
    return line.encode(errors="backslashreplace")


def _iter_facts(event: Event) -> Iterator[tuple[str, Any]]:
    """Yield the facts under klog's names: the logger first, then the error."""
    if "logger" in event:
        yield "logger", event.pop("logger")
    if "error" in event:
        yield "err", event.pop("error")
    yield from event.items()


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    words = _truncate(str(value))
    if words and not isinstance(value, str) and _PLAIN.issuperset(words):
        return words
    return _quote(words)


def _quote(words: Any) -> str:
    text = _truncate(str(words))
    if text.isprintable():
        return msgspec.json.encode(text).decode()
    return escape_control(msgspec.json.encode(_escape_surrogates(text)).decode())


def _truncate(words: str) -> str:
    return words if len(words) <= MAX_CHARACTERS else redact.mask_text(words, MAX_CHARACTERS)


def _short(value: Any) -> Any:
    """Return the fact, or the start of its JSON if the JSON exceeds `MAX_CHARACTERS`."""
    if isinstance(value, str):
        return _truncate(value)
    written = msgspec.json.encode(value, enc_hook=str)
    if len(written) <= MAX_CHARACTERS:
        return value
    decoded = msgspec.json.decode(written)
    return _truncate(decoded if isinstance(decoded, str) else written.decode())


def escape_control(words: str) -> str:
    """Escape characters that would move a terminal's cursor or end its line."""
    if words.isprintable():
        return words
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in words
    )


def _escape_surrogates(words: str) -> str:
    """Escape lone surrogates, which no encoding can write."""
    return words.encode(errors="backslashreplace").decode()

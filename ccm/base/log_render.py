"""One log line as bytes: klog's text, klog's JSON, or colours for a developer's terminal.

A renderer gets the facts of a line with four of its own among them: `event` (the message),
`_caller`, `logger` and, on leveled lines, `v`. It takes them out and writes the rest in order.
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
"""(level, facts) to the bytes of the line, without the line break at its end."""

_LETTERS = {"debug": "I", "info": "I", "warning": "W", "error": "E", "critical": "F"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:")
_COLOURS = {"debug": "36", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}
_MESSAGE_COLUMNS = 36

LONGEST = 64 << 10
"""Characters of one fact, message or traceback that are logged: to mask each costs time."""


def text(level: str, event: Event) -> bytes:
    """`I1231 23:59:59.123456     123 file.py:12] "message" key="value"`, as klog writes."""
    now = datetime.now()  # noqa: TID251, DTZ005 - a log line carries the real, local time
    when = now.isoformat(" ", "microseconds")  # several times faster than strftime
    head = (
        f"{_LETTERS[level]}{when[5:7]}{when[8:]} "
        f"{threading.get_native_id():7d} {event.pop('_caller', '?')}]"
    )
    event.pop("v", None)
    message = _quote(event.pop("event", ""))
    trace = event.pop("exception", None)
    facts = "".join(f" {name}={_quoted(value)}" for name, value in _ordered(event))
    return _with_trace(f"{head} {message}{facts}", trace)


def json(level: str, event: Event) -> bytes:
    """One object: ts (milliseconds), caller, msg, v, logger, err, the facts, level."""
    line: dict[str, Any] = {
        "ts": round(time.time() * 1000, 3),  # noqa: TID251 - a log line carries the real time
        "caller": event.pop("_caller", "?"),
        "msg": event.pop("event", ""),
    }
    verbosity = event.pop("v", 0)
    if level in ("debug", "info"):
        line["v"] = verbosity
    line.update(_ordered(event))
    # klog has no name for it; without it a warning could not be told from an info line.
    line["level"] = level
    try:
        written = msgspec.json.encode(line, enc_hook=str)
    except UnicodeEncodeError:
        line = {
            name: value if isinstance(value, int | float) else _sound(_cut(str(value)))
            for name, value in line.items()
        }
        written = msgspec.json.encode(line)
    if len(written) > LONGEST:
        return msgspec.json.encode(
            {name: _short(value) for name, value in line.items()}, enc_hook=str
        )
    return written


def development(level: str, event: Event, *, colours: bool) -> bytes:
    """Time, level, message, facts, and where the line comes from, for a developer's terminal."""

    def paint(words: str, colour: str) -> str:
        return f"\x1b[{colour}m{words}\x1b[0m" if colours else words

    now = datetime.now()  # noqa: TID251, DTZ005 - a log line carries the real, local time
    caller = event.pop("_caller", "?")
    event.pop("v", None)
    name = event.pop("logger", "")
    message = visible(_cut(str(event.pop("event", "")))).ljust(_MESSAGE_COLUMNS)
    trace = event.pop("exception", None)
    facts = " ".join(f"{paint(key, '36')}={_quoted(value)}" for key, value in _ordered(event))
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
        # What was raised may hold line breaks: only our own lines begin in the first column.
        rows = redact.words(trace, LONGEST).split("\n")
        line = "\n\t".join((line, *map(visible, rows)))
    return line.encode(errors="backslashreplace")


def _ordered(event: Event) -> Iterator[tuple[str, Any]]:
    """The facts: the component's name first, then what went wrong, under klog's names."""
    if "logger" in event:
        yield "logger", event.pop("logger")
    if "error" in event:
        yield "err", event.pop("error")
    yield from event.items()


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    words = _cut(str(value))
    if words and not isinstance(value, str) and _PLAIN.issuperset(words):
        return words
    return _quote(words)


def _quote(words: Any) -> str:
    text = _cut(str(words))
    if text.isprintable():
        return msgspec.json.encode(text).decode()
    return visible(msgspec.json.encode(_sound(text)).decode())


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST else redact.words(words, LONGEST)


def _short(value: Any) -> Any:
    """The fact, or the beginning of what it looks like in JSON."""
    if isinstance(value, str):
        return _cut(value)
    written = msgspec.json.encode(value, enc_hook=str)
    if len(written) <= LONGEST:
        return value
    said = msgspec.json.decode(written)
    return _cut(said if isinstance(said, str) else written.decode())


def visible(words: str) -> str:
    """The text with escapes for what would move a terminal's cursor or end its line."""
    if words.isprintable():
        return words
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in words
    )


def _sound(words: str) -> str:
    """The text without lone surrogates, which no encoding can write."""
    return words.encode(errors="backslashreplace").decode()

"""Logging: structlog straight to a stream, klog's text format or JSON, and `-v` levels.

A component binds its logger once (`log = logger("node")`) and passes facts as keys.
`logger.debug` lines appear from verbosity 4 on; everything else always does.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import IO, Any, Literal, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

Format = Literal["text", "json"]
Logger = FilteringBoundLogger

_DEBUG_VERBOSITY = 4
_LETTERS = {"debug": "I", "info": "I", "warning": "W", "error": "E", "critical": "F"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:")


def logger(name: str, **facts: Any) -> Logger:
    """A logger bound to a component's name and lasting facts; bind once, use often."""
    return cast("Logger", structlog.get_logger().bind(logger=name, **facts))


def bound(**facts: Any) -> AbstractContextManager[object]:
    """Facts that every line logged inside the block carries, whoever logs it."""
    return structlog.contextvars.bound_contextvars(**facts)


def setup(*, fmt: Format = "text", verbosity: int = 0, stream: IO[bytes] | None = None) -> None:
    """Route every log line of the process to one stream (stderr by default).

    Args:
        fmt: `text` is klog's line format, `json` one object a line with klog's keys.
        verbosity: klog's `-v`; debug lines appear from 4 on.
        stream: where the bytes go.
    """
    target = stream if stream is not None else sys.stderr.buffer
    level = logging.DEBUG if verbosity >= _DEBUG_VERBOSITY else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _render_json if fmt == "json" else _render_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.BytesLoggerFactory(file=cast("Any", target)),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(logging.DEBUG if verbosity >= 2 * _DEBUG_VERBOSITY else logging.WARNING)


def _render_text(_: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    now = datetime.now(UTC).astimezone()  # noqa: TID251 - a log line carries the real time
    message = event.pop("event", "")
    trace = event.pop("exception", None)
    name = event.pop("logger", "ccm")
    head = f"{_LETTERS.get(method, 'I')}{now:%m%d %H:%M:%S.%f} {os.getpid():7d} {name}] "
    facts = "".join(f" {key}={_quoted(value)}" for key, value in event.items())
    line = f'{head}"{message}"{facts}'
    return (line + (f"\n{trace}" if trace else "")).encode()


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else str(value)
    if text and _PLAIN.issuperset(text) and not isinstance(value, str):
        return text
    return msgspec.json.encode(text).decode()


def _render_json(_: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    now = datetime.now(UTC)  # noqa: TID251 - a log line carries the real time
    line: dict[str, Any] = {"ts": round(now.timestamp() * 1000, 3), "level": method}
    line["msg"] = event.pop("event", "")
    if "error" in event:
        line["err"] = event.pop("error")
    line.update(cast("Mapping[str, Any]", event))
    return msgspec.json.encode(line, enc_hook=str)


class _Forward(logging.Handler):
    """Hands records of libraries that use stdlib logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        target = logger(record.name)
        method = record.levelname.lower() if record.levelname.lower() in _LETTERS else "info"
        facts = (
            {"exception": logging.Formatter().formatException(record.exc_info)}
            if (record.exc_info and record.exc_info[0])
            else {}
        )
        getattr(target, method)(record.getMessage(), **facts)

"""Logging: facts bound once, levels by klog's `-v`, text or JSON as klog writes them.

A component binds its logger once (`log = logger("node")`) and passes facts as keys. Every
decision is a `debug` line, which appears from verbosity 4 on; `v(n)` gives other levels.
Verbosity and formats may change at any time, also for loggers that exist already.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any, Literal

from ccm.base import log_render, log_stream, redact
from ccm.base.log_levels import DEBUG, LIBRARIES, Levels


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Inside, this package cannot be imported, unless somebody has done so already."""
    is_hidden = package not in sys.modules
    if is_hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # absent, to `import`
    yield
    if is_hidden:
        del sys.modules[package]


# structlog has a renderer for developers, not used here, that loads rich where it is installed:
# a tenth of a second of CPU and 3 MiB at each start of the daemon.
with _without("rich"):
    import structlog

Format = Literal["text", "json", "dev"]

_METHODS = frozenset({"debug", "info", "warning", "error", "critical"})


class _State:
    """How the process logs now."""

    def __init__(self) -> None:
        self.levels = Levels()
        self.render: log_render.Render = log_render.text
        self.out: log_stream.Out | None = None


_STATE = _State()
_LEVELS = _STATE.levels
_BOUND: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=MappingProxyType({}))


class _Finish:
    """Where rendered lines leave structlog."""

    def __init__(self) -> None:
        for level in _METHODS:
            setattr(self, level, partial(_write, level))


class Logger(structlog.BoundLoggerBase):
    """Logs with the facts it is bound to; `bind(...)` makes one with more facts."""

    def debug(self, event: str, **facts: Any) -> None:
        """A decision; appears from verbosity 4 on."""
        if _LEVELS.ceiling >= DEBUG:
            self._leveled("debug", event, facts, DEBUG, sys._getframe(1))  # noqa: SLF001

    def info(self, event: str, **facts: Any) -> None:
        """A change made in the world."""
        self._emit("info", event, facts, sys._getframe(1))  # noqa: SLF001

    def warning(self, event: str, **facts: Any) -> None:
        """A person may have to act."""
        self._emit("warning", event, facts, sys._getframe(1))  # noqa: SLF001

    def error(self, event: str, **facts: Any) -> None:
        """Something failed that should not."""
        self._emit("error", event, facts, sys._getframe(1))  # noqa: SLF001

    def critical(self, event: str, **facts: Any) -> None:
        """The process cannot go on."""
        self._emit("critical", event, facts, sys._getframe(1))  # noqa: SLF001

    def exception(self, event: str, **facts: Any) -> None:
        """An error, with the traceback of the exception being handled."""
        facts.setdefault("exc_info", True)
        self._emit("error", event, facts, sys._getframe(1))  # noqa: SLF001

    def v(self, level: int) -> Verbose:
        """For lines of that level: `log.v(6).info(...)` appears from verbosity 6 on."""
        return Verbose(self, level)

    def forward(self, method: str, event: str, caller: str, **facts: Any) -> None:
        """Log what somebody else said at a place of his own."""
        self._proxy_to_logger(method, event, _caller=caller, **facts)

    def _leveled(
        self, method: str, event: str, facts: dict[str, Any], level: int, frame: FrameType
    ) -> None:
        if _LEVELS.appears(level, frame.f_globals.get("__name__", "")):
            self._emit(method, event, {"v": level, **facts}, frame)

    def _emit(self, method: str, event: str, facts: dict[str, Any], frame: FrameType) -> None:
        self._proxy_to_logger(method, event, _caller=_place(frame), **facts)


class Verbose:
    """Logs at one level of verbosity."""

    __slots__ = ("_level", "_logger")

    def __init__(self, target: Logger, level: int) -> None:
        self._logger = target
        self._level = level

    def info(self, event: str, **facts: Any) -> None:
        """A line that appears from this verbosity on."""
        if _LEVELS.ceiling >= self._level:
            frame = sys._getframe(1)  # noqa: SLF001
            self._logger._leveled("info", event, facts, self._level, frame)  # noqa: SLF001


def logger(name: str, **facts: Any) -> Logger:
    """A logger bound to a component's name and lasting facts; bind once, use often."""
    return Logger(_FINISH, _PROCESSORS, {"logger": name, **facts})


@contextmanager
def bound(**facts: Any) -> Iterator[None]:
    """Facts that every line logged inside the block carries, whoever logs it."""
    # One variable for all of them: structlog's own way takes one for each, at each reconcile.
    before = _BOUND.set({**_BOUND.get(), **facts})
    try:
        yield
    finally:
        _BOUND.reset(before)


def setup(
    *,
    fmt: Format = "text",
    verbosity: int = 0,
    vmodule: Iterable[tuple[str, int]] = (),
    stream: log_stream.Stream | None = None,
    info_stream: log_stream.Stream | None = None,
    buffer_bytes: int = 0,
    colours: bool | None = None,
) -> None:
    """Say how the process logs from now on.

    Args:
        fmt: `text` is klog's line format, `json` one object a line with klog's keys, `dev` is
            for a developer's terminal.
        verbosity: klog's `-v`; debug lines appear from 4 on.
        vmodule: a verbosity of its own for modules, see `Levels.set`.
        stream: where the bytes go; stderr by default.
        info_stream: where all but errors go; None = to `stream` too.
        buffer_bytes: how much of `info_stream` may be held back until `flush`.
        colours: whether `dev` uses them; None = if the stream is a terminal.
    """
    flush()
    target = stream if stream is not None else sys.stderr.buffer
    _STATE.out = log_stream.Out(target, info_stream, buffer_bytes=buffer_bytes)
    _STATE.render = _renderer(fmt, _is_terminal(target) if colours is None else colours)
    _LEVELS.set(verbosity, vmodule)
    root = logging.getLogger()
    root.handlers = [_Forward()]
    _set_libraries(verbosity)


def capture_python_errors() -> None:
    """Take what Python itself would write to stderr: warnings, and errors that nobody awaits.

    A library's thread or a `__del__` would write past the log there, secrets included.
    """
    python = logger("python")

    def thread_failed(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is not SystemExit:
            name = failed.thread.name if failed.thread else "?"
            python.error("a thread failed", thread=name, exc_info=failed.exc_value)

    def unraisable(failed: Any) -> None:
        what = failed.err_msg or "an error was ignored"
        python.error(what, where=repr(failed.object), exc_info=failed.exc_value)

    logging.captureWarnings(True)
    threading.excepthook = thread_failed
    sys.unraisablehook = unraisable


def verbosity() -> int:
    """The verbosity in force."""
    return _LEVELS.verbosity


def change(level: int, vmodule: Iterable[tuple[str, int]]) -> None:
    """Change the verbosity of the running process, and that of single modules."""
    _LEVELS.set(level, vmodule)
    _set_libraries(level)


def flush() -> None:
    """Write the lines that are held back."""
    if _STATE.out is not None:
        _STATE.out.flush()


async def flush_every(period_s: float) -> None:
    """Write the lines that are held back again and again, until cancelled."""
    while True:
        await asyncio.sleep(period_s)
        flush()


def _renderer(fmt: Format, colours: bool) -> log_render.Render:
    if fmt == "json":
        return log_render.json
    if fmt == "text":
        return log_render.text
    return log_render.coloured if colours else log_render.plain


def _is_terminal(stream: log_stream.Stream) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())


def _set_libraries(level: int) -> None:
    logging.getLogger().setLevel(logging.DEBUG if level >= LIBRARIES else logging.WARNING)


def _place(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    return f"{path[path.rfind('/') + 1 :]}:{frame.f_lineno}"


def _merge_bound(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, fact in _BOUND.get().items():
        event.setdefault(name, fact)
    return event


def _render(_: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    return _STATE.render(method, event)


def _write(level: str, line: bytes) -> None:
    out = _STATE.out or log_stream.Out(sys.stderr.buffer)
    out.write(level, redact.line(line))


class _Forward(logging.Handler):
    """Hands records of libraries that use stdlib logging to the one log."""

    def emit(self, record: logging.LogRecord) -> None:
        method = record.levelname.lower()
        facts: dict[str, Any] = {}
        if record.exc_info and record.exc_info[0]:
            facts["exception"] = logging.Formatter().formatException(record.exc_info)
        logger(record.name).forward(
            method if method in _METHODS else "info",
            record.getMessage(),
            f"{record.filename}:{record.lineno}",
            **facts,
        )


_FINISH = _Finish()
# One list for all loggers, changed in place by whoever captures lines in a test.
_PROCESSORS: list[Any] = [
    _merge_bound,
    structlog.processors.format_exc_info,
    _render,
]
structlog.configure(
    processors=_PROCESSORS,
    wrapper_class=Logger,
    logger_factory=lambda *_: _FINISH,
    cache_logger_on_first_use=False,
)

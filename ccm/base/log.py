"""Logging: facts (key-value pairs), klog's verbosity levels, and klog's text or JSON format.

A component creates its logger once (`log = logger("node")`) and passes facts as keyword arguments.
Every decision is a `debug` line, which appears from verbosity 4 on; `v(n)` logs at level n.
Verbosity and format may change at any time, also for existing loggers. A line of level n appears if
n is at most the verbosity, or at most the level of the first `--vmodule` pattern that matches its
source file.

A line is written as a whole. If a stream cannot be written to, lines are lost and the process
continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any, Literal, Protocol

import structlog

from ccm.base import clock, log_render, redact

DEBUG = 4
"""Verbosity level of `debug` lines, which report decisions."""

LIBRARY_DEBUG = 8
"""Verbosity from which on libraries log more than warnings."""


class Levels:
    """Verbosity of the process.

    Attributes:
        verbosity: general verbosity.
        ceiling: highest level that may appear in any module; rules out most lines quickly.
        patterns: (pattern, level) pairs of `--vmodule`.
    """

    __slots__ = ("_cache", "ceiling", "patterns", "verbosity")

    def __init__(self) -> None:
        self.verbosity = 0
        self.ceiling = 0
        self.patterns: tuple[tuple[str, int], ...] = ()
        self._cache: dict[str, int] = {}

    def set(self, verbosity: int, patterns: Iterable[tuple[str, int]] = ()) -> None:
        """Set the general verbosity and the patterns.

        Args:
            verbosity: general verbosity, 0 or more.
            patterns: (pattern, level) pairs. A pattern with a slash must match the whole path of a
                module, such as `ccm/kube/client`; any other pattern must match its last part. `*`,
                `?` and `[...]` work as in file names.
        """
        self.patterns = tuple(patterns)
        self._cache = {}
        self.verbosity = verbosity
        self.ceiling = max((verbosity, *(level for _, level in self.patterns)))

    def is_enabled(self, level: int, module: str) -> bool:
        """Return whether to write a line of this level from this module (dotted name)."""
        return level <= self.verbosity or level <= self._of(module)

    def _of(self, module: str) -> int:
        # Read the attribute once: other threads log too, and `set` may replace the cache meanwhile.
        cache = self._cache
        if module not in cache:
            path, last = module.replace(".", "/"), module.rpartition(".")[2]
            fitting = (
                level
                for pattern, level in self.patterns
                if fnmatchcase(path if "/" in pattern else last, pattern)
            )
            cache[module] = next(fitting, 0)
        return cache[module]


class Stream(Protocol):
    """Binary output stream."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


class LineWriter:
    """Writer of log lines.

    Args:
        errors: stream for errors.
        infos: stream for all other lines; None = `errors`.
        buffer_bytes: bytes of `infos` to buffer before they are written; 0 = unbuffered.
    """

    def __init__(
        self, errors: Stream, infos: Stream | None = None, *, buffer_bytes: int = 0
    ) -> None:
        self._errors = errors
        self._infos = infos or errors
        self._buffer_bytes = buffer_bytes if infos is not None else 0
        self._buffered: list[bytes] = []
        self._size = 0
        self._lock = threading.Lock()

    def write(self, level: str, line: bytes) -> None:
        """Write a line, given without its line break."""
        if level in ("error", "critical"):
            _write_bytes(self._errors, line + b"\n")
        elif self._buffer_bytes == 0:
            _write_bytes(self._infos, line + b"\n")
        else:
            self._buffer(line + b"\n")

    def flush(self) -> None:
        """Write the buffered lines."""
        with self._lock:
            self._write_buffered()

    def _buffer(self, line: bytes) -> None:
        with self._lock:
            self._buffered.append(line)
            self._size += len(line)
            if self._size >= self._buffer_bytes:
                self._write_buffered()

    def _write_buffered(self) -> None:
        held, self._buffered, self._size = self._buffered, [], 0
        if held:
            _write_bytes(self._infos, b"".join(held))


def _write_bytes(stream: Stream, data: bytes) -> None:
    # A closed pipe or a full disk: there is no other place to report it.
    with contextlib.suppress(OSError, ValueError):
        stream.write(data)
        stream.flush()


Format = Literal["text", "json", "dev"]

_METHODS = frozenset({"debug", "info", "warning", "error", "critical"})


class _State:
    """Current log configuration of the process."""

    def __init__(self) -> None:
        self.levels = Levels()
        self.render: log_render.Render = log_render.render_text
        self.out: LineWriter | None = None


_STATE = _State()
_LEVELS = _STATE.levels
_BOUND: ContextVar[Mapping[str, Any]] = ContextVar("bound", default=MappingProxyType({}))


class _Sink:
    """Last step of structlog: one method per level that writes a rendered line."""

    def __init__(self) -> None:
        for level in _METHODS:
            setattr(self, level, partial(_write, level))


class Logger(structlog.BoundLoggerBase):
    """Logger with bound facts; `bind(...)` returns a logger with additional facts."""

    def debug(self, event: str, **facts: Any) -> None:
        """Log a decision; appears from verbosity 4 on."""
        if _LEVELS.ceiling >= DEBUG:
            self._leveled("debug", event, facts, DEBUG, sys._getframe(1))  # noqa: SLF001

    def info(self, event: str, **facts: Any) -> None:
        """Log a change of state."""
        self._emit("info", event, facts, sys._getframe(1))  # noqa: SLF001

    def warning(self, event: str, **facts: Any) -> None:
        """Log a problem that an operator may have to solve."""
        self._emit("warning", event, facts, sys._getframe(1))  # noqa: SLF001

    def error(self, event: str, **facts: Any) -> None:
        """Log an unexpected failure."""
        self._emit("error", event, facts, sys._getframe(1))  # noqa: SLF001

    def critical(self, event: str, **facts: Any) -> None:
        """Log why the process cannot continue."""
        self._emit("critical", event, facts, sys._getframe(1))  # noqa: SLF001

    def exception(self, event: str, **facts: Any) -> None:
        """Log an error, with the traceback of the current exception."""
        facts.setdefault("exc_info", True)
        self._emit("error", event, facts, sys._getframe(1))  # noqa: SLF001

    def v(self, level: int) -> Verbose:
        """Return a logger for a level: `log.v(6).info(...)` appears from verbosity 6 on."""
        return Verbose(self, level)

    def forward(self, method: str, event: str, caller: str, **facts: Any) -> None:
        """Log a record of another logger, with the call site of that record."""
        self._proxy_to_logger(method, event, _caller=caller, **facts)

    def _leveled(
        self, method: str, event: str, facts: dict[str, Any], level: int, frame: FrameType
    ) -> None:
        if _LEVELS.is_enabled(level, frame.f_globals.get("__name__", "")):
            self._emit(method, event, {"v": level, **facts}, frame)

    def _emit(self, method: str, event: str, facts: dict[str, Any], frame: FrameType) -> None:
        self._proxy_to_logger(method, event, _caller=_call_site(frame), **facts)


class Verbose:
    """Logger for one verbosity level."""

    __slots__ = ("_level", "_logger")

    def __init__(self, target: Logger, level: int) -> None:
        self._logger = target
        self._level = level

    def info(self, event: str, **facts: Any) -> None:
        """Log a line that appears from this verbosity on."""
        if _LEVELS.ceiling >= self._level:
            frame = sys._getframe(1)  # noqa: SLF001
            self._logger._leveled("info", event, facts, self._level, frame)  # noqa: SLF001


def logger(name: str, **facts: Any) -> Logger:
    """Return a logger with the name of a component, and facts for each of its lines."""
    return Logger(_FINISH, _PROCESSORS, {"logger": name, **facts})


@contextmanager
def bound(**facts: Any) -> Iterator[None]:
    """Add facts to every line logged inside the block, by any logger."""
    # One context variable for all facts: structlog would set one per fact in each reconcile.
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
    stream: Stream | None = None,
    info_stream: Stream | None = None,
    buffer_bytes: int = 0,
    colours: bool | None = None,
) -> None:
    """Configure the log of the process.

    Args:
        fmt: `text` is klog's text format, `json` is klog's JSON with one object per line, `dev` is
            for a developer's terminal.
        verbosity: klog's `-v`; debug lines appear from 4 on.
        vmodule: verbosity of single modules, see `Levels.set`.
        stream: output stream; stderr by default.
        info_stream: stream for all lines but errors; None = `stream`.
        buffer_bytes: bytes of `info_stream` to buffer before they are written.
        colours: whether `dev` uses colours; None = only if the stream is a terminal.
    """
    flush()
    target = stream if stream is not None else sys.stderr.buffer
    _STATE.out = LineWriter(target, info_stream, buffer_bytes=buffer_bytes)
    if colours is None:
        isatty = getattr(target, "isatty", None)
        colours = isatty is not None and bool(isatty())
    _STATE.render = log_render.render_json if fmt == "json" else log_render.render_text
    if fmt == "dev":
        _STATE.render = partial(log_render.render_development, colours=colours)
    _LEVELS.set(verbosity, vmodule)
    root = logging.getLogger()
    root.handlers = [_Forward()]
    _set_libraries(verbosity)


def capture_python_errors() -> None:
    """Log the warnings and unhandled errors that Python itself would write to stderr.

    Otherwise the error of a library's thread or of a `__del__` would bypass the log, and secrets
    in the error would not be masked.
    """
    python = logger("python")

    def thread_failed(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is not SystemExit:
            name = failed.thread.name if failed.thread else "?"
            python.error("thread failed", thread=name, exc_info=failed.exc_value)

    def unraisable(failed: Any) -> None:
        what = failed.err_msg or "unraisable error"
        python.error(what, where=repr(failed.object), exc_info=failed.exc_value)

    logging.captureWarnings(True)
    threading.excepthook = thread_failed
    sys.unraisablehook = unraisable


def verbosity() -> int:
    """Return the current verbosity."""
    return _LEVELS.verbosity


def set_verbosity(level: int, vmodule: Iterable[tuple[str, int]]) -> None:
    """Change the verbosity of the running process and of single modules."""
    _LEVELS.set(level, vmodule)
    _set_libraries(level)


def flush() -> None:
    """Write the buffered lines."""
    if _STATE.out is not None:
        _STATE.out.flush()


async def flush_every(period_s: float) -> None:
    """Write the buffered lines periodically, until cancelled."""
    while True:
        await asyncio.sleep(period_s)
        flush()


def _set_libraries(level: int) -> None:
    logging.getLogger().setLevel(logging.DEBUG if level >= LIBRARY_DEBUG else logging.WARNING)


def _call_site(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    return f"{path[path.rfind('/') + 1 :]}:{frame.f_lineno}"


def _merge_bound(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, fact in _BOUND.get().items():
        event.setdefault(name, fact)
    return event


def _write(level: str, line: bytes) -> None:
    out = _STATE.out or LineWriter(sys.stderr.buffer)
    out.write(level, redact.mask_log_line(line))


class _Forward(logging.Handler):
    """Handler that forwards records of the standard library's `logging` to this log."""

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


_FINISH = _Sink()
# One list for all loggers: tests that capture lines change it in place.
_PROCESSORS: list[Any] = [
    _merge_bound,
    structlog.processors.format_exc_info,
    lambda _, method, event: _STATE.render(method, event),
]
structlog.configure(
    processors=_PROCESSORS,
    wrapper_class=Logger,
    logger_factory=lambda *_: _FINISH,
    cache_logger_on_first_use=False,
)

REPEAT_WARNING_S = 300.0
"""Minimum seconds between two warnings about one outage."""


class Outage:
    """State of an outage, and the log lines about it.

    Args:
        log: logger of the lines.
        start_message: message at the start, a warning. While the outage lasts, the message is
            repeated: as a warning every `REPEAT_WARNING_S`, otherwise as `debug`.
        end_message: message at the end, an `info` line with the duration.
    """

    def __init__(self, log: Logger, *, start_message: str, end_message: str) -> None:
        self._log = log
        self._begins = start_message
        self._ends = end_message
        self.since: float | None = None
        """Monotonic start time; None = no outage."""
        self._warned_at = 0.0
        self.last_period = (0.0, 0.0)
        """Monotonic start and end of the last outage that ended; (0, 0) = none."""

    def __bool__(self) -> bool:
        """Return whether an outage is in progress."""
        return self.since is not None

    def record_failure(self, **facts: Any) -> None:
        """Record a failure: start the outage, or continue it."""
        now = clock.monotonic()
        if self.since is not None and now < self._warned_at + REPEAT_WARNING_S:
            self._log.debug(self._begins, **facts)
            return
        self.since = now if self.since is None else self.since
        self._warned_at = now
        self._log.warning(self._begins, **facts)

    def record_success(self, **facts: Any) -> None:
        """Record a success: end the outage, if there is one."""
        if self.since is not None:
            self.last_period = self.since, clock.monotonic()
            lasted_s = round(self.last_period[1] - self.last_period[0], 1)
            self.since = None
            self._log.info(self._ends, after_s=lasted_s, **facts)

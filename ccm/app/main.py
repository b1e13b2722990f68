"""The daemon's command: reads the flags, runs the daemon, and returns the exit code.

Exit codes: 0 after a signal, 1 for a configuration error, a lost lease or a second signal, 255 for
a bug.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ccm.app import daemon, options, shutdown
from ccm.app.http import serving
from ccm.app.options import Options, UsageError, config
from ccm.app.provider import find_misconfigured
from ccm.base import log, redact
from ccm.base.files import describe_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command that runs controllers: the daemon or a machine command.

    Attributes:
        name: name of the command.
        read: parses a command line; returns the settings, or text to print, such as the help.
            Raises UsageError.
        serve: context manager that serves HTTP while the command runs.
    """

    name: str
    read: Callable[[Sequence[str]], Options | str]
    serve: daemon.Serve


def _read(words: Sequence[str]) -> Options | str:
    chosen = options.parse(words)
    text = options.help_or_version(chosen)
    if text is not None:
        return text
    chosen = config.with_config_file(chosen)
    options.check(chosen)
    return chosen


DAEMON = Program(name=options.PROGRAM, read=_read, serve=serving)


def main(argv: Sequence[str] | None = None, program: Program = DAEMON) -> int:
    """Run the command and return its exit code."""
    try:
        chosen = program.read(sys.argv[1:] if argv is None else argv)
        if isinstance(chosen, str):
            sys.stdout.write(chosen)
            return shutdown.EXIT_OK
        if chosen.write_config_to:
            return _write_config(chosen)
    except UsageError as error:
        return _report_config_error(error, program)
    return _run(chosen, program)


def _report_config_error(error: BaseException, program: Program) -> int:
    """Write a configuration error to stderr, and return the exit code for it."""
    # Continuation lines are indented, so that a provider's text does not look like a log line.
    lines = redact.mask_text(f"{program.name}: {error}").splitlines()
    sys.stderr.write("\n  ".join(map(str.strip, lines)) + "\n")
    return shutdown.EXIT_CONFIGURATION


def _write_config(chosen: Options) -> int:
    text = config.write(chosen)
    if chosen.write_config_to == "-":
        sys.stdout.write(text)
        return shutdown.EXIT_OK
    try:
        Path(chosen.write_config_to).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = f"cannot be written: {describe_error(error)}"
        raise UsageError([f"--write-config-to={chosen.write_config_to} {cause}"]) from error
    return shutdown.EXIT_OK


def _set_up_logging(chosen: Options) -> None:
    as_json = chosen.logging_format == "json"
    split = chosen.log_json_split_stream if as_json else chosen.log_text_split_stream
    size = chosen.log_json_info_buffer_size if as_json else chosen.log_text_info_buffer_size
    log.setup(
        fmt=cast("log.Format", chosen.logging_format),
        verbosity=chosen.v,
        vmodule=chosen.vmodule,
        info_stream=sys.stdout.buffer if split else None,
        buffer_bytes=size,
    )


def _run(chosen: Options, program: Program) -> int:
    _set_up_logging(chosen)
    log.capture_python_errors()
    logger = log.logger("daemon")
    for notice in chosen.deprecations():
        logger.warning("deprecated flag", detail=notice)
    for notice in chosen.notices():
        logger.info("setting without effect", detail=notice)
    for detail in chosen.warnings():
        logger.warning("setting may be wrong", detail=detail)
    if chosen.v >= 1:
        for line in chosen.flag_lines():
            logger.info("flag", setting=line)
    raise_open_file_limit()
    # Imported modules are never freed. A full garbage collection that scans them would block the
    # event loop for tens of milliseconds.
    gc.freeze()
    # Reference counting frees nearly everything that a request allocates. Reference cycles are
    # rare, so few collections suffice. A collection blocks the event loop, in proportion to its
    # objects: up to 5,000 in the first generation, 15,000 in the second. With 15,000 nodes, the
    # third takes 60 ms, so it is not collected while these nodes are initialised, but before two
    # million new objects, of which some may be cycles.
    gc.set_threshold(5_000, 1, 200)
    gc.enable()
    try:
        with (
            shutdown.exit_on_signal(),
            shutdown.bounded_exit() as bound_exit,
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
        ):
            return bound_exit(_outcome(runner, chosen, program))
    finally:
        log.flush()


def _outcome(runner: asyncio.Runner, chosen: Options, program: Program) -> int:
    """Run the daemon and return the exit code; report a failure to the log or to stderr."""
    try:
        return runner.run(daemon.run(chosen, os.environ, program.serve))
    except (Exception, BaseExceptionGroup) as error:
        if config_error := find_misconfigured(error):
            return _report_config_error(config_error, program)
        logger = log.logger("daemon")
        logger.error("the daemon failed unexpectedly", exc_info=error)
        return shutdown.EXIT_DEFECT


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory; None, for asyncio's default, if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def exit_process(code: int) -> None:
    """End the process, even while a thread of a vendor SDK hangs in a call."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(not thread.daemon for thread in threading.enumerate()[1:]):
        os._exit(code)
    sys.exit(code)


MAX_OPEN_FILES = 65_536
"""Upper bound of the open-file limit; a higher limit would only delay the discovery of a leak."""


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to `MAX_OPEN_FILES`.

    The usual soft limit of 1,024 is too low. The Go runtime raises the limit too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A sandbox may forbid a higher limit; the daemon then runs with the lower one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

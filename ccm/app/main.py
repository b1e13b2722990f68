"""The daemon's command: reads the flags, runs, and turns the outcome into an exit code.

Exit codes: 0 after a signal, 1 for what a person has to correct and for a lost lease, 255
for a defect of ours.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from ccm.app import daemon, files, options, stopping
from ccm.app.options import Options, checks, config
from ccm.app.options.argv import UsageError
from ccm.app.provider import misconfigured
from ccm.base import log, redact
from ccm.base.files import reason


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        chosen = options.parse(sys.argv[1:] if argv is None else argv)
        text = options.answer(chosen)
        if text is not None:
            sys.stdout.write(text)
            return stopping.EXIT_OK
        chosen = config.effective(chosen)
        checks.check(chosen)
        if chosen.write_config_to:
            return _write_config(chosen)
    except UsageError as error:
        return _refuse(error)
    return _run(chosen)


def _refuse(error: BaseException) -> int:
    """Say what a person has to correct."""
    # On lines of their own, no word of a provider begins where a line of the log does.
    said = redact.words(f"{options.PROGRAM}: {error}").splitlines()
    sys.stderr.write("\n  ".join(map(str.strip, said)) + "\n")
    return stopping.EXIT_CONFIGURATION


def _write_config(chosen: Options) -> int:
    text = config.write(chosen)
    if chosen.write_config_to == "-":
        sys.stdout.write(text)
        return stopping.EXIT_OK
    try:
        Path(chosen.write_config_to).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        said = f"cannot be written: {reason(error)}"
        raise UsageError([f"--write-config-to={chosen.write_config_to} {said}"]) from error
    return stopping.EXIT_OK


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


def _run(chosen: Options) -> int:
    _set_up_logging(chosen)
    log.capture_python_errors()
    logger = log.logger("daemon")
    for notice in chosen.notices():
        logger.info("setting without effect", detail=notice)
    if chosen.v >= 1:
        for line in chosen.flag_lines():
            logger.info("flag", setting=line)
    files.raise_limit()
    # What was imported stays: a full round of the garbage collector over it would stall the
    # event loop for tens of milliseconds.
    gc.freeze()
    # What a request leaves behind is freed without the collector: so few cycles are worth few
    # rounds, and one over so many young objects takes about a millisecond.
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    try:
        with (
            stopping.at_once(),
            stopping.without_those_left() as known,
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
        ):
            return known(_outcome(runner, chosen))
    finally:
        log.flush()


def _outcome(runner: asyncio.Runner, chosen: Options) -> int:
    """Be the daemon; the exit code, and a word about what went wrong."""
    try:
        return runner.run(daemon.run(chosen, os.environ))
    except (Exception, BaseExceptionGroup) as error:
        if mistake := misconfigured(error):
            return _refuse(mistake)
        logger = log.logger("daemon")
        logger.error("the daemon failed unexpectedly", exc_info=error)
        return stopping.EXIT_DEFECT


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None: the standard library's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def leave(code: int) -> None:
    """End the process, even when a vendor SDK's thread hangs in a call for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(not thread.daemon for thread in threading.enumerate()[1:]):
        os._exit(code)
    sys.exit(code)

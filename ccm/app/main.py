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
from collections.abc import Sequence

from ccm.app import checks, daemon, options
from ccm.app.flags import UsageError
from ccm.app.options import Options
from ccm.app.provider import Misconfigured
from ccm.base import log

EXIT_DEFECT = 255


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        chosen = options.parse(sys.argv[1:] if argv is None else argv)
        text = options.answer(chosen)
        if text is not None:
            sys.stdout.write(text)
            return daemon.EXIT_OK
        checks.check(chosen)
    except UsageError as error:
        sys.stderr.write(f"{options.PROGRAM}: {error}\n")
        return daemon.EXIT_CONFIGURATION
    return _run(chosen)


def _run(chosen: Options) -> int:
    log.setup(fmt="json" if chosen.logging_format == "json" else "text", verbosity=chosen.v)
    logger = log.logger("daemon")
    for notice in chosen.notices():
        logger.info("setting without effect", detail=notice)
    if chosen.v >= 1:
        for line in chosen.flag_lines():
            logger.info("flag", setting=line)
    # What was imported stays: a full round of the garbage collector over it would stall the
    # event loop for tens of milliseconds.
    gc.freeze()
    try:
        return asyncio.run(daemon.run(chosen, os.environ))
    except Misconfigured as error:
        sys.stderr.write(f"{options.PROGRAM}: {error}\n")
        return daemon.EXIT_CONFIGURATION
    except BaseExceptionGroup as group:
        faults = group.subgroup(Misconfigured)
        if faults is not None:
            sys.stderr.write(f"{options.PROGRAM}: {_first(faults)}\n")
            return daemon.EXIT_CONFIGURATION
        logger.error("the daemon failed unexpectedly", exc_info=group)
        return EXIT_DEFECT
    except Exception as error:
        logger.error("the daemon failed unexpectedly", exc_info=error)
        return EXIT_DEFECT


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def leave(code: int) -> None:
    """End the process, even when a vendor SDK's thread hangs in a call for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(not thread.daemon for thread in threading.enumerate()[1:]):
        os._exit(code)
    sys.exit(code)

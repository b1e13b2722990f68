"""Signals, the grace period, and the end of the process.

After the first signal, the daemon starts no new work and cancels reads. In-flight changes may run
until the grace period is over. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ccm.base import log
from ccm.base.drain import Drain
from ccm.base.lease_guard import Watchdog
from ccm.base.tasks import cancel_and_join, spawn

EXIT_OK = 0
EXIT_CONFIGURATION = 1
EXIT_LOST_LEASE = 1
EXIT_FORCED = 1
EXIT_DEFECT = 255

MARGIN_S = 8.0
"""Seconds for the shutdown after the grace period.

With the default grace period of 20 s, the process ends before the kubelet kills it after 30 s.
"""

ABANDONED_LIMIT_S = 0.5
"""Seconds for which hanging threads and tasks may delay the end of the process."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let a signal end the process at once, with `EXIT_OK`, until `signals` installs its handlers.

    Until then, no work has begun. A handler is needed in a container: the kernel ignores signals
    for which PID 1 has no handler.
    """

    def on_signal(*_: object) -> None:
        raise SystemExit(EXIT_OK)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def bounded_exit() -> Iterator[Callable[[int], int]]:
    """Yield a function that takes and returns the exit code; call it at the end of the block.

    If the block has not ended `ABANDONED_LIMIT_S` seconds after the call, the process ends with
    that code. Without this limit, closing the event loop would wait for all threads and tasks of
    the loop, even if a call to a vendor library hangs.
    """
    ended = threading.Event()

    def leave(code: int) -> None:
        if not ended.wait(ABANDONED_LIMIT_S):
            log.flush()
            os._exit(code)

    def bound_exit(code: int) -> int:
        threading.Thread(target=leave, args=(code,), daemon=True).start()
        return code

    try:
        yield bound_exit
    finally:
        ended.set()


@contextmanager
def signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets; a second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            log.flush()
            os._exit(EXIT_FORCED)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def wind_down(
    work: asyncio.Task[Any], *, drain: Drain, grace_s: float, watchdog: Watchdog
) -> None:
    """Start no new work, and wait for in-flight changes until the grace period is over.

    Args:
        work: task of the daemon; waiting ends early if the task ends.
        drain: rejects new units of work, and waits for units that have changed something.
        grace_s: grace period in seconds.
        watchdog: armed here, so that the process ends even if the shutdown hangs.
    """
    watchdog.arm("stop", grace_s + MARGIN_S)
    drained = spawn(drain.drain(grace_s), name="drain")
    try:
        await asyncio.wait({drained, work}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done() and not drained.result():
            log.logger("daemon").warning(
                "grace period ended, in-flight changes cancelled", count=drain.units_in_progress
            )
    finally:
        await cancel_and_join(drained)

"""How the daemon learns that it has to stop, and how it lets its work come to an end.

After the first signal nothing is begun any more, what only asks is cancelled, and changes under
way may take until the grace period is over. A second signal ends the process at once.
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
"""Time for all that comes after the grace period; with its default of 20 s the daemon has ended
before the 30 s are over after which a kubelet ends a pod by force."""

LEFT_S = 0.5
"""How long threads and tasks that somebody left behind may hold up the end of the process."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def at_once() -> Iterator[None]:
    """Until `signals` takes over nothing is begun yet, and a signal just ends the process.

    The first process of a container does not get a signal that it has no handler for.
    """

    def told(*_: object) -> None:
        raise SystemExit(EXIT_OK)

    before = {number: signal.signal(number, told) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def without_those_left() -> Iterator[Callable[[int], int]]:
    """Takes the exit code, and returns it; from then on the block ends soon, or the process does.

    An event loop that is closed waits for threads and for tasks, also for those of a vendor's
    library that nobody ends.
    """
    over = threading.Event()

    def leave(code: int) -> None:
        if not over.wait(LEFT_S):
            log.flush()
            os._exit(code)

    def known(code: int) -> int:
        threading.Thread(target=leave, args=(code,), daemon=True).start()
        return code

    try:
        yield known
    finally:
        over.set()


@contextmanager
def signals() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; the second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        if stop.is_set():
            log.flush()
            os._exit(EXIT_FORCED)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def wind_down(
    work: asyncio.Task[Any], *, drain: Drain, grace_s: float, last_resort: Watchdog
) -> None:
    """Begin nothing any more, and let changes under way come to their end.

    Args:
        work: the daemon's; it may end by itself meanwhile.
        drain: that of the work.
        grace_s: how long changes may take.
        last_resort: armed, so that the process ends also if something hangs afterwards.
    """
    last_resort.arm("stop", grace_s + MARGIN_S)
    drained = spawn(drain.drained(grace_s), name="drain")
    try:
        await asyncio.wait({drained, work}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done() and not drained.result():
            log.logger("daemon").warning(
                "changes under way are cut, the grace period is over", count=drain.under_way
            )
    finally:
        await cancel_and_join(drained)

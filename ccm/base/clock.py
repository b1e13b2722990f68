"""What time it is: the two clocks the project reads, and nothing to pass around.

Waiting belongs to the event loop (`asyncio.sleep`, `asyncio.timeout`), so a component
takes no clock: a test that wants time to obey it runs on a loop of its own
(`ccm.testing.clock`), which answers here as well while it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def now() -> datetime:
    """Wall-clock time in UTC, for what is written down: lease times, events."""
    return _wall()


def monotonic() -> float:
    """Seconds since an arbitrary start; never runs backwards, and goes on in a stuck loop."""
    return _steady()


_wall: Callable[[], datetime] = partial(datetime.now, UTC)
_steady: Callable[[], float] = time.monotonic


@contextmanager
def replaced(
    wall: Callable[[], datetime], steady: Callable[[], float], *, here: bool = False
) -> Iterator[None]:
    """For as long as the block runs, `now` and `monotonic` ask these: virtual time.

    Args:
        wall: in place of `now`.
        steady: in place of `monotonic`.
        here: only in this thread; time in the others is what it was.
    """
    global _wall, _steady
    before = _wall, _steady
    _wall, _steady = wall, steady
    if here:
        _wall, _steady = _in_this_thread(wall, before[0]), _in_this_thread(steady, before[1])
    try:
        yield
    finally:
        _wall, _steady = before


def _in_this_thread(ours: Callable[[], T], others: Callable[[], T]) -> Callable[[], T]:
    thread = threading.get_ident()
    return lambda: ours() if threading.get_ident() == thread else others()

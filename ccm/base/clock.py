"""The wall clock and the monotonic clock, as functions: no component takes a clock as argument.

Waiting belongs to the event loop (`asyncio.sleep`, `asyncio.timeout`). A test that controls time
runs on its own event loop (`ccm.testing.clock`), which replaces both clocks while it runs.
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
    """Return the wall-clock time in UTC, for stored times such as those of leases and events."""
    return _wall()


def monotonic() -> float:
    """Return seconds since an arbitrary start.

    The value never decreases, and it also advances while the event loop is blocked.
    """
    return _steady()


_wall: Callable[[], datetime] = partial(datetime.now, UTC)
_steady: Callable[[], float] = time.monotonic


@contextmanager
def replaced(
    wall: Callable[[], datetime], steady: Callable[[], float], *, this_thread_only: bool = False
) -> Iterator[None]:
    """Replace both clocks inside the block, for virtual time.

    Args:
        wall: replacement for `now`.
        steady: replacement for `monotonic`.
        this_thread_only: replace the clocks for this thread only.
    """
    global _wall, _steady
    before = _wall, _steady
    _wall, _steady = wall, steady
    if this_thread_only:
        _wall, _steady = _in_this_thread(wall, before[0]), _in_this_thread(steady, before[1])
    try:
        yield
    finally:
        _wall, _steady = before


def _in_this_thread(ours: Callable[[], T], others: Callable[[], T]) -> Callable[[], T]:
    thread = threading.get_ident()
    return lambda: ours() if threading.get_ident() == thread else others()

"""Waits in real time. A test waits for an event; its deadline only ends a wait that never would.

Tests without real input and output run in virtual time instead (`ccm.testing.clock`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 120.0
"""Limit for an event that comes at once where nothing is broken, however busy the machine is.

Below the limit of a whole test (`timeout` in pyproject.toml), so that a failure names the event.
"""

_POLL_S = 0.01


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(_POLL_S)


async def due_by(seconds: float) -> None:
    """Let everything happen in this event loop that falls due within this time.

    For what must not happen: a busy machine may hide it, and never shows it wrongly.
    """
    await asyncio.sleep(seconds)
    for _ in range(100):  # what fell due at the same time goes on, after a stall too
        await asyncio.sleep(0)


def eventually_blocking(condition: Callable[[], object], explanation: Callable[[], str]) -> None:
    """Wait until a condition is true, without an event loop.

    Args:
        condition: tried again and again.
        explanation: text of the failure.
    """
    ends = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends, explanation()
        time.sleep(_POLL_S)

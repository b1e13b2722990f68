"""Runs a pass again and again: at once, then a period after the previous one ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ccm.base import log
from ccm.base.clock import SYSTEM, Clock


async def run_every(
    period_s: float, work: Callable[[], Awaitable[None]], *, name: str, clock: Clock = SYSTEM
) -> None:
    """Repeat `work` until cancelled; an error it lets through is logged, never fatal.

    Args:
        period_s: seconds between the end of one pass and the start of the next.
        work: one pass; handles the errors it expects.
        name: in logs.
        clock: where time comes from.
    """
    logger = log.logger(name)
    while True:
        try:
            await work()
        except Exception as error:
            logger.error("pass failed unexpectedly", exc_info=error)
        await clock.sleep(period_s)

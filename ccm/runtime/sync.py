"""Waiting for the shared cache, however long the API server takes."""

from __future__ import annotations

from typing import Protocol

from ccm.base import log

REMIND_S = 60.0
"""Seconds between two lines that say what is waited for."""


class Syncing(Protocol):
    """A cache that becomes complete some time."""

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until it is complete; TimeoutError when that takes longer."""
        ...


async def until_synced(cache: Syncing, *, who: str) -> None:
    """Wait until the cache is complete; there is no useful work before."""
    while True:
        try:
            await cache.wait_synced(REMIND_S)
        except TimeoutError as error:
            log.logger(who).warning("still waiting for the cache", error=str(error))
        else:
            return

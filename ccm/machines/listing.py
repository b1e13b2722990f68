"""Listings of VMs, shared: one per class and pass serves all who ask for the same.

A listing tells of the time at which it began. That a VM is missing from it says nothing about
one whose creation ended later; so who asks says since when it has to have begun.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.machines import MachineRecord
from ccm.machines.classes import ResolvedClass

MAX_AGE_S = 30.0
"""How old a listing may be that still serves."""

Fetch = Callable[[ResolvedClass], Awaitable[Sequence[MachineRecord]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All VMs of a class, at some moment after `began`, on the event loop's clock."""

    began: float
    records: Sequence[MachineRecord]


class Listings:
    """The listings of all classes.

    Args:
        fetch: lists the VMs of a class.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._pools: dict[str, _Pool] = {}

    async def of(self, made_of: ResolvedClass, *, since: float = -math.inf) -> Listing:
        """A listing of a class that began after `since`.

        Raises:
            CloudError: it failed; all who waited for it are told.
        """
        pool = self._pools.get(made_of.name)
        if pool is None or pool.version != made_of.version:
            # Other credentials may see other VMs.
            pool = self._pools[made_of.name] = _Pool(made_of.version)
        while True:
            now = asyncio.get_running_loop().time()
            if pool.last is not None and pool.last.began > max(since, now - MAX_AGE_S):
                return pool.last
            serves = pool.flight is not None and pool.began > since
            if pool.flight is None:
                pool.began, serves = now, True
                pool.flight = spawn(self._list(pool, made_of, now), name="machine-listing")
                pool.flight.add_done_callback(_noted)
            # Shielded: one waiter's end must not take the listing from the others.
            done, _ = await asyncio.wait({pool.flight})
            if serves:
                return done.pop().result()

    def drop(self) -> None:
        """Another cloud answers from now on: what was listed counts no more."""
        self._pools.clear()

    async def close(self) -> None:
        """Cancel listings under way."""
        await cancel_and_join(*(pool.flight for pool in self._pools.values()))

    async def _list(self, pool: _Pool, made_of: ResolvedClass, began: float) -> Listing:
        try:
            found = Listing(began=began, records=tuple(await self._fetch(made_of)))
            pool.last = found
            return found
        finally:
            pool.flight = None


def _noted(flight: asyncio.Task[Listing]) -> None:
    """A failure is told to whoever waits; perhaps nobody does any more."""
    if not flight.cancelled():
        flight.exception()


class _Pool:
    """What is known of one class."""

    def __init__(self, version: tuple[str, ...]) -> None:
        self.version = version
        self.last: Listing | None = None
        self.began = -math.inf
        self.flight: asyncio.Task[Listing] | None = None

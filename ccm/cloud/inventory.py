"""One bulk listing shared by all controllers, used only where it saves cloud requests.

A listing is worth its price when more single requests are waiting than it took last
time. It proves presence only: an instance missing from it is asked for on its own. A
listing that answered fewer questions than it cost, or failed, pauses bulk listing for a
while, so that a slow consumer never makes the cloud pay for listings nobody reads.

What a listing says may be as old as its beginning, so its age counts from there. A node without
provider ID is looked up by its name, which another machine may have had before: it needs a
listing begun after the node was first seen.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from ccm.base import log, metrics
from ccm.base.clock import monotonic
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.errors import CloudError
from ccm.cloud.types import InstanceListing, InstanceRecord
from ccm.model import Node

PAGE_GUESS = 50
"""Instances per cloud request assumed before the first listing told; a small usual page."""

PATIENCE_S = 60.0
"""Longest wait for a listing; after it a node is asked for on its own, so that one hanging
listing holds nobody up for longer than one hanging call would."""

PACE_S = 1.0
"""Shortest time between the beginnings of two listings: new nodes come one after the other, and
each that comes meanwhile shares the next one, which reads all instances again."""

PAUSE_S = 60.0
"""How long bulk listing rests after a listing that failed or did not pay off."""

_LISTINGS = metrics.counter(
    "ccm_cloud_inventory_listings",
    "Bulk listings by outcome.",
    ["outcome"],
)
_ANSWERS = metrics.counter(
    "ccm_cloud_inventory_lookups",
    "Questions put to the shared listing: answered by it, or left to a single call.",
    ["source"],
)


class SharedInventory:
    """The shared listing.

    Args:
        fetch: makes a listing; one runs at a time.
        population: how many nodes the cluster has, for guessing the price of the first one.
        max_age_s: seconds since the beginning of a listing for which it may be used. Who asked
            before it began may use it however long it took.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[InstanceListing]],
        *,
        population: Callable[[], int],
        max_age_s: float,
    ) -> None:
        self._fetch = fetch
        self._population = population
        self._max_age_s = max_age_s
        self._log = log.logger("inventory")
        self._index: _Index | None = None
        self._paused_until = -math.inf
        self._flight: asyncio.Task[_Index | None] | None = None
        self._is_outdated = False
        self._began = -math.inf
        self._without_id_since: dict[str, float] = {}

    def note(self, old: Node | None, new: Node | None) -> None:
        """A node came, changed or went (None: it is not there); tells how long it is known."""
        if old is not None and (new is None or new.uid != old.uid):
            self._without_id_since.pop(old.uid, None)
        if new is not None and new.provider_id:
            self._without_id_since.pop(new.uid, None)
        elif new is not None:
            self._without_id_since.setdefault(new.uid, monotonic())

    async def find(self, node: Node, *, single_requests: int) -> InstanceRecord | None:
        """The node's instance in a listing; None = ask for it on its own.

        Args:
            node: looked up by its provider ID, or by its name where it has none.
            single_requests: how many requests asking one by one would cost all those who
                wait now, this question included.
        """
        since = -math.inf if node.provider_id else self._without_id_since.get(node.uid, math.inf)
        index = await self._usable(since, single_requests)
        record = index.find(node) if index is not None else None
        _ANSWERS.labels("listing" if record is not None else "single").inc()
        return record

    def drop(self) -> None:
        """Another cloud answers from now on: what the former one listed counts no more."""
        self._index = None
        self._paused_until = -math.inf
        self._is_outdated = self._flight is not None

    async def close(self) -> None:
        """Cancel a listing under way."""
        await cancel_and_join(self._flight)
        self._flight = None

    def _is_fresh(self, began: float, since: float) -> bool:
        """Whether a listing begun then says something about a node known since then."""
        return began >= since and monotonic() < began + self._max_age_s

    async def _usable(self, since: float, single_requests: int) -> _Index | None:
        if self._index is not None and self._is_fresh(self._index.began, since):
            return self._index
        if since == math.inf:
            return None
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._awaited(since, single_requests)
        except TimeoutError:
            return None

    async def _awaited(self, since: float, single_requests: int) -> _Index | None:
        while not self._is_outdated:
            serves = self._flight is not None and self._is_fresh(self._began, since)
            # Many who came while one was under way share the next one, unless that takes long.
            is_slow = self._flight is not None and monotonic() >= self._began + PACE_S
            if not serves and (is_slow or not self._worth_it(single_requests)):
                return None
            if self._flight is None:
                self._began = math.inf
                self._flight = spawn(self._refresh(), name="inventory-listing")
                serves = True
            # Shielded: one waiter's end must not take the listing from the others.
            index = await asyncio.shield(self._flight)
            if serves or index is None:
                return index
        return None

    def _worth_it(self, single_requests: int) -> bool:
        now = monotonic()
        last = self._index
        # One that is still young is only too old for a newer node, which says nothing of its worth.
        if last is not None and not last.judged and now >= last.began + self._max_age_s:
            last.judged = True
            if last.hits < last.requests:
                self._paused_until = now + PAUSE_S
        if now < self._paused_until:
            return False
        expected = last.requests if last else math.ceil(self._population() / PAGE_GUESS)
        return single_requests > max(1, expected)

    async def _refresh(self) -> _Index | None:
        try:
            if self._index is not None:
                await asyncio.sleep(self._index.began + PACE_S - monotonic())
            began = self._began = monotonic()
            listing = await self._fetch()
        except CloudError as error:
            if self._is_outdated:
                return None
            self._paused_until = monotonic() + PAUSE_S
            _LISTINGS.labels("error").inc()
            self._log.warning("bulk listing failed, asking one by one", error=str(error))
            return None
        else:
            _LISTINGS.labels("success").inc()
            if self._is_outdated:
                return None
            self._index = _Index(listing, began)
            return self._index
        finally:
            self._flight, self._is_outdated = None, False


class _Index:
    """A listing by provider ID and by name; one that occurs twice proves nothing."""

    def __init__(self, listing: InstanceListing, began: float) -> None:
        self.began = began
        self.requests = listing.requests
        self.hits = 0
        self.judged = False
        self._by_id: dict[str, InstanceRecord | None] = {}
        self._by_name: dict[str, InstanceRecord | None] = {}
        for record in listing.instances:
            _enter(self._by_id, record.metadata.provider_id, record)
            _enter(self._by_name, record.name, record)

    def find(self, node: Node) -> InstanceRecord | None:
        key = node.provider_id
        found = self._by_id.get(key) if key else self._by_name.get(node.name)
        if found is not None:
            self.hits += 1
        return found


def _enter(index: dict[str, InstanceRecord | None], key: str, record: InstanceRecord) -> None:
    index[key] = None if key in index else record

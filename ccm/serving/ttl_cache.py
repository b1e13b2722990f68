"""TTL cache for lookups.

Concurrent callers with the same key share one lookup, which is cancelled when the last of these
callers is cancelled.

Any HTTP client can cause any number of lookups. Therefore keys are short (digests), expired
answers are removed, and all caches that use one `LRUStore` share its limit in bytes. A cache that
HTTP clients cannot fill may have an `LRUStore` of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from ccm.base import clock, metrics
from ccm.base.tasks import cancel_and_join, spawn

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_OVERHEAD = 1 << 10
"""Approximate bytes of an entry, without its answer."""

SWEEP_S = 10.0
"""Seconds between removals of expired answers, while the store has entries."""

_BYTES = metrics.gauge(
    "ccm_serving_cache_bytes",
    "Approximate memory of cached TokenReview and SubjectAccessReview results.",
    ["cache"],
)


def digest(question: object) -> bytes:
    """Return a key of 32 bytes for a question of any size."""
    return hashlib.sha256(repr(question).encode()).digest()


class LRUStore:
    """Storage with LRU eviction that several caches may share.

    Args:
        max_bytes: approximate maximum bytes of all entries.
    """

    def __init__(self, max_bytes: int = 4 << 20) -> None:
        self.size = 0
        self._most = max_bytes
        self._entries: OrderedDict[tuple[str, Hashable], tuple[float, Any, int]] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def get(self, cache: str, key: Hashable) -> tuple[Any] | None:
        """Return the answer in a 1-tuple, as an answer may be None; None = missing or expired."""
        entry = self._entries.get((cache, key))
        if entry is None or entry[0] <= clock.monotonic():
            return None
        self._entries.move_to_end((cache, key))
        return (entry[1],)

    def put(self, cache: str, key: Hashable, answer: Any, keep_s: float) -> None:
        """Store an answer for `keep_s` seconds.

        Above `max_bytes`, the least recently used answers are evicted.
        """
        self._remove((cache, key))
        size = ENTRY_OVERHEAD + len(msgspec.json.encode(answer))
        self._entries[cache, key] = (clock.monotonic() + keep_s, answer, size)
        self._resize(cache, size)
        while self.size > self._most:
            # Entries are ordered by last use, so the first one is the least recently used.
            self._remove(next(iter(self._entries)))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._remove_expired)

    def close(self) -> None:
        """Remove all answers, and stop the timer that removes expired answers."""
        for entry_key in list(self._entries):
            self._remove(entry_key)
        if self._sweep is not None:
            self._sweep.cancel()

    def _remove_expired(self) -> None:
        """Remove expired answers, and restart the timer if answers are left."""
        now = clock.monotonic()
        for entry_key in [
            entry_key for entry_key, entry in self._entries.items() if entry[0] <= now
        ]:
            self._remove(entry_key)
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_S, self._remove_expired) if self._entries else None

    def _remove(self, entry_key: tuple[str, Hashable]) -> None:
        if entry := self._entries.pop(entry_key, None):
            self._resize(entry_key[0], -entry[2])

    def _resize(self, cache: str, size: int) -> None:
        self.size += size
        _BYTES.labels(cache).inc(size)


@dataclass(slots=True)
class _Lookup(Generic[V]):
    """A running lookup, and the number of its waiting callers."""

    task: asyncio.Task[V]
    waiting: int = 0


class TTLCache(Generic[K, V]):
    """Cache in front of a lookup.

    Args:
        keep_s: returns how many seconds to cache an answer; 0 means that it is not cached.
        name: name of the cache in metrics; unique in its store.
        store: storage of the answers; None means a store of its own.
    """

    def __init__(
        self, keep_s: Callable[[V], float], *, name: str, store: LRUStore | None = None
    ) -> None:
        self._keep_s = keep_s
        self._name = name
        self._store = LRUStore() if store is None else store
        self._lookups: dict[K, _Lookup[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()

    async def get(self, key: K, lookup: Callable[[], Awaitable[V]]) -> V:
        """Return the cached answer, or the result of `lookup` if none is cached.

        Args:
            key: key of the question.
            lookup: looks the answer up. An exception of `lookup` is raised to all waiting callers
                and not cached. `lookup` is cancelled when the last waiting caller is cancelled.
        """
        cached = self._store.get(self._name, key)
        if cached is not None:
            answer: V = cached[0]
            return answer
        question = self._lookups.get(key)
        if question is None:
            question = self._lookups[key] = _Lookup(self._start(key, lookup))
        task = question.task
        question.waiting += 1
        try:
            # The shield keeps one caller's cancellation from cancelling the lookup for the others.
            return await asyncio.shield(task)
        finally:
            question.waiting -= 1
            if not question.waiting:
                # The next caller must not wait for a lookup that is being cancelled.
                if self._lookups.get(key) is question:
                    del self._lookups[key]
                task.cancel()

    async def close(self) -> None:
        """Cancel running lookups, and clear the store, including the answers of other caches."""
        await cancel_and_join(*self._tasks)
        self._store.close()

    def _start(self, key: K, ask: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        task = spawn(self._look_up(key, ask), name="review")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[V]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: all callers may have been cancelled

    async def _look_up(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        keep_s = self._keep_s(answer)
        if keep_s > 0:
            self._store.put(self._name, key, answer, keep_s)
        return answer

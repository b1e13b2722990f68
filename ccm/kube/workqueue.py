"""The work queue: keys only, each at most once, never in two hands at once.

The semantics are client-go's. A key that waits already is not queued again. A key that
is added while a worker holds it comes back as soon as the worker is done. Delayed keys
wait aside; of several delays for one key the earliest wins, and a plain `add` neither
waits for nor removes a delay. After `shut_down` nothing is taken in, what is queued is
still handed out, and then `get` raises `ShutDown`.

Ours beside that: a key may be added in the background. It is handed out when no other key
waits, and loses that mark when it is added once more without it.

All methods but `get` return at once; none of them may be called from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from ccm.kube.queue_metrics import QueueMetrics

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue was shut down and has nothing left to hand out."""


class WorkQueue(Generic[K]):
    """A queue of keys for a set of workers.

    Args:
        name: value of the label `name` of its metrics.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._metrics: QueueMetrics[K] = QueueMetrics(name)
        self._ready: _Lanes[K] = _Lanes()
        self._dirty: set[K] = set()
        self._unhurried: set[K] = set()
        self._processing: set[K] = set()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._delayed: _Delayed[K] = _Delayed()
        self._timer: asyncio.TimerHandle | None = None
        self._shutting_down = False

    def __len__(self) -> int:
        """Keys that could be handed out now."""
        return len(self._ready)

    def add(self, key: K, *, background: bool = False) -> None:
        """Queue a key, now, unless it waits already.

        Args:
            key: what to queue.
            background: let it wait until no other key does.
        """
        if self._shutting_down:
            return
        if key in self._dirty:
            if not background and key in self._unhurried:
                self._unhurried.discard(key)
                self._ready.hurry(key)
            return
        self._metrics.added(key)
        self._dirty.add(key)
        if background:
            self._unhurried.add(key)
        if key not in self._processing:
            self._queue(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Queue a key after a delay, unless it is due earlier already."""
        if self._shutting_down:
            return
        self._metrics.retried()
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._delayed.push(key, due):
            self._wake_at(due)

    def is_processing(self, key: K) -> bool:
        """Whether a worker has the key in hand."""
        return key in self._processing

    async def get(self) -> K:
        """Take the next key; `done` must follow, whatever happens to the work.

        Raises:
            ShutDown: the queue was shut down and is empty.
        """
        while not self._ready:
            if self._shutting_down:
                raise ShutDown(self.name)
            await self._wait_for_key()
        key = self._ready.pop()
        self._metrics.got(key)
        self._processing.add(key)
        self._dirty.discard(key)
        self._unhurried.discard(key)
        return key

    def done(self, key: K) -> None:
        """Give a key back; it is queued at once if it was added meanwhile."""
        self._metrics.done(key)
        self._processing.discard(key)
        if key in self._dirty:
            self._queue(key)

    def shut_down(self) -> None:
        """Take nothing in any more; drop delayed keys; let workers empty the queue."""
        self._shutting_down = True
        self._delayed.clear()
        self._wake_at(None)
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    def _queue(self, key: K) -> None:
        self._ready.push(key, background=key in self._unhurried)
        self._wake_getter()

    async def _wait_for_key(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            # Woken and cancelled in the same breath: pass the turn on, or a key is stuck.
            if getter.done() and not getter.cancelled() and self._ready:
                self._wake_getter()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._getters.remove(getter)

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _wake_at(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._release_delayed)

    def _release_delayed(self) -> None:
        """Queue the delayed keys that are due."""
        # A timer fires up to one tick of the loop's clock early.
        due = self._delayed.next_due()
        assert due is not None
        for key in self._delayed.pop_due(max(due, asyncio.get_running_loop().time())):
            self.add(key)
        self._wake_at(self._delayed.next_due())


class _Lanes(Generic[K]):
    """Keys in the order of their arrival; those in the background after all others."""

    def __init__(self) -> None:
        self._first: OrderedDict[K, None] = OrderedDict()
        self._second: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def push(self, key: K, *, background: bool) -> None:
        """Append a key to its lane."""
        (self._second if background else self._first)[key] = None

    def pop(self) -> K:
        """Remove and return the next key."""
        return (self._first or self._second).popitem(last=False)[0]

    def hurry(self, key: K) -> None:
        """Move a key out of the background, if it waits there."""
        if key in self._second:
            del self._second[key]
            self._first[key] = None


class _Delayed(Generic[K]):
    """Keys with the time they fall due; the earliest time of a key wins."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def push(self, key: K, due: float) -> bool:
        """Remember a key; True when it is now the first of all to fall due."""
        known = self._due.get(key)
        if known is not None and known <= due:
            return False
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        return self._heap[0][2] == key

    def next_due(self) -> float | None:
        """When the first key falls due, if there is one."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys that are due, earliest first."""
        ready: list[K] = []
        while (due := self.next_due()) is not None and due <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            ready.append(key)
        return ready

    def clear(self) -> None:
        """Drop everything."""
        self._due.clear()
        self._heap.clear()

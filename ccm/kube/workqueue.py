"""Work queue of keys: a key waits at most once, and one worker at a time processes it.

The semantics are client-go's. A key that already waits is not queued again. A key that is added
while a worker processes it is queued when the worker is done. Delayed keys wait separately. If a
key is delayed several times, the earliest due time counts. `add` queues a delayed key at once, and
the key stays delayed too. After `shut_down` the queue accepts no more keys; when workers have taken
all keys in the queue, `get` raises `ShutDown`.

Unlike in client-go, there are three lanes, which are served in rotation so that no lane starves:
the foreground, several times per round; the background, with keys added by
`add(..., background=True)` and delayed keys; and a lane of isolated keys, whose processing was slow
last time. Workers take an isolated key only if a spare worker is free. If a key waits in the
background, `add` without `background=True` moves it to the foreground. Within a lane the namespaces
are served in rotation, small namespaces more often: many objects in one namespace do not delay
objects of other namespaces.

All methods except `get` return at once. No method may be called from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

from ccm.base import clock, metrics

K = TypeVar("K", bound=Hashable)

_BORDERS = metrics.exponential_buckets(10e-9, 10, 10)

_depth = metrics.gauge("workqueue_depth", "[BETA] Current depth of workqueue", ("name",))
_adds = metrics.counter(
    "workqueue_adds_total", "[BETA] Total number of adds handled by workqueue", ("name",)
)
_waited = metrics.histogram(
    "workqueue_queue_duration_seconds",
    "[BETA] How long in seconds an item stays in workqueue before being requested.",
    ("name",),
    buckets=_BORDERS,
)
_worked = metrics.histogram(
    "workqueue_work_duration_seconds",
    "[BETA] How long in seconds processing an item from workqueue takes.",
    ("name",),
    buckets=_BORDERS,
)
_unfinished = metrics.gauge(
    "workqueue_unfinished_work_seconds",
    "[BETA] How many seconds of work has been done that is in progress and hasn't been observed "
    "by work_duration. Large values indicate stuck threads.",
    ("name",),
)
_longest = metrics.gauge(
    "workqueue_longest_running_processor_seconds",
    "[BETA] How many seconds has the longest running processor for workqueue been running.",
    ("name",),
)
_retries = metrics.counter(
    "workqueue_retries_total", "[BETA] Total number of retries handled by workqueue", ("name",)
)


def longest_running() -> Mapping[str, float]:
    """Return queue name -> seconds since the longest running processing began; 0 = idle queue."""
    (family,) = _longest.collect()
    return {sample.labels["name"]: sample.value for sample in family.samples}


FOREGROUND_TURNS = 3
"""Number of keys taken from the foreground for each key from another lane."""


SMALL_NAMESPACE_TURNS = 3
"""Maximum number of keys in a row from smaller namespaces before the larger namespace is served."""


class ShutDown(Exception):
    """The queue was shut down and is empty."""


class WorkQueue(Generic[K]):
    """Work queue for a set of workers.

    Args:
        name: value of the label `name` of the queue's metrics.
        can_spare: returns whether the caller of `get` may receive an isolated key.
    """

    def __init__(self, name: str, *, can_spare: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        self._can_spare = can_spare
        self._ready: _Lanes[K] = _Lanes()
        self._dirty: dict[K, float] = {}
        """Key that needs processing -> time at which it was added."""
        self._background_keys: set[K] = set()
        self._isolated: set[K] = set()
        self._processing: dict[K, float] = {}
        """Key that a worker processes -> start of the processing."""
        self._getters: deque[asyncio.Future[None]] = deque()
        self._delayed: _Delayed[K] = _Delayed()
        self._timer: asyncio.TimerHandle | None = None
        self._shutting_down = False
        # A later queue with the same name uses the same time series.
        self._depth = _depth.labels(name)
        self._adds = _adds.labels(name)
        self._waited = _waited.labels(name)
        self._worked = _worked.labels(name)
        self._retries = _retries.labels(name)
        self._depth.set(0)
        _unfinished.labels(name).set_function(lambda: sum(self._processing_s()))
        _longest.labels(name).set_function(lambda: max(self._processing_s(), default=0.0))

    def _processing_s(self) -> list[float]:
        now = clock.monotonic()
        return [now - started for started in self._processing.values()]

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker, without delayed keys."""
        return len(self._ready)

    def add(self, key: K, *, background: bool = False) -> None:
        """Queue a key now, unless it already waits.

        Args:
            key: the key.
            background: whether the key waits in the background lane.
        """
        if self._shutting_down:
            return
        if key in self._dirty:
            # An add to the foreground moves a key from the background.
            if not background and key in self._background_keys:
                self._background_keys.discard(key)
                self._ready.promote(key)
            return
        self._adds.inc()
        self._depth.inc()
        self._dirty[key] = clock.monotonic()
        if background:
            self._background_keys.add(key)
        # `done` queues a key that is being processed: two workers must not process it at once.
        if key not in self._processing:
            self._queue(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Queue a key in the background after a delay, unless it already has an earlier due time.

        Without a delay (`delay_s` <= 0) the key is queued at once.
        """
        if self._shutting_down:
            return
        self._retries.inc()
        if delay_s <= 0:
            self.add(key, background=True)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._delayed.push(key, due):
            self._wake_at(due)

    def is_processing(self, key: K) -> bool:
        """Return whether a worker processes the key."""
        return key in self._processing

    def is_queued(self, key: K) -> bool:
        """Return whether the key waits for a worker, or was added again during its processing."""
        return key in self._dirty

    def due_s(self, key: K) -> float | None:
        """Return the seconds until a delayed key is queued; None = it is not delayed."""
        due = self._delayed.due(key)
        return None if due is None else max(0.0, due - asyncio.get_running_loop().time())

    @property
    def processing(self) -> Collection[K]:
        """Keys that workers process."""
        return tuple(self._processing)

    def is_isolated(self, key: K) -> bool:
        """Return whether the key is isolated."""
        return key in self._isolated

    def set_isolated(self, key: K, isolated: bool) -> None:
        """Set whether a key is isolated; takes effect when the key is queued next."""
        if isolated:
            self._isolated.add(key)
        else:
            self._isolated.discard(key)

    async def get(self) -> K:
        """Wait for the next key and return it; the caller must call `done` after the processing.

        Raises:
            ShutDown: the queue was shut down and is empty.
        """
        # Check again after each wake-up: another worker may have taken the key.
        while (lane := self._ready.choose_lane(serve_isolated=self._can_spare())) is None:
            if self._shutting_down and not self._ready:
                raise ShutDown(self.name)
            await self._wait_for_key()
        key, now = lane.pop_by_namespace_turn(), clock.monotonic()
        self._depth.dec()
        self._waited.observe(now - self._dirty.pop(key))
        self._processing[key] = now
        self._background_keys.discard(key)
        return key

    def done(self, key: K) -> None:
        """End the processing of a key; if the key was added meanwhile, queue it at once."""
        started = self._processing.pop(key, None)
        if started is not None:
            self._worked.observe(clock.monotonic() - started)
        if key in self._dirty:
            self._queue(key)
        if self._ready.isolated:
            # The worker that is free now may be the spare worker for an isolated key.
            self._wake_getter()

    def shut_down(self) -> None:
        """Accept no more keys, and drop the delayed keys; workers process the other keys."""
        self._shutting_down = True
        self._delayed.clear()
        self._wake_at(None)
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    def _queue(self, key: K) -> None:
        if key in self._isolated:
            self._ready.isolated.push(key)
        elif key in self._background_keys:
            self._ready.background.push(key)
        else:
            self._ready.foreground.push(key)
        self._wake_getter()

    async def _wait_for_key(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            # Woken and cancelled at the same time: wake another worker to take the key.
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
        # A timer may fire up to one tick of the loop's clock early.
        due = self._delayed.next_due()
        assert due is not None
        for key in self._delayed.pop_due(max(due, asyncio.get_running_loop().time())):
            self.add(key, background=True)
        self._wake_at(self._delayed.next_due())


class _Lane(Generic[K]):
    """Lane of unique keys: namespaces in rotation, keys of a namespace in order of arrival."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, OrderedDict[K, None]] = OrderedDict()
        self._count = 0
        self._small_turns = 0

    def __len__(self) -> int:
        return self._count

    def push(self, key: K) -> None:
        """Append a key to its namespace."""
        space = self._namespaces.setdefault(_namespace(key), OrderedDict())
        self._count += key not in space
        space[key] = None

    def pop_by_namespace_turn(self) -> K:
        """Remove and return the first key of the namespace that is next in the rotation.

        If the namespace after it has at most half as many keys, that namespace is served first, but
        only `SMALL_NAMESPACE_TURNS` times in a row.
        """
        name, space = self._namespaces.popitem(last=False)
        following = next(iter(self._namespaces.items()), (name, space))
        if 2 * len(following[1]) <= len(space) and self._small_turns < SMALL_NAMESPACE_TURNS:
            self._small_turns += 1
            self._namespaces[name] = space
            self._namespaces.move_to_end(name, last=False)
            name, space = following
            del self._namespaces[name]
        else:
            self._small_turns = 0
        key = space.popitem(last=False)[0]
        self._count -= 1
        if space:
            self._namespaces[name] = space
        return key

    def remove(self, key: K) -> bool:
        """Remove a key; return whether the lane had the key."""
        name = _namespace(key)
        space = self._namespaces.get(name)
        if space is None or key not in space:
            return False
        del space[key]
        self._count -= 1
        if not space:
            del self._namespaces[name]
        return True


def _namespace(key: Hashable) -> str:
    """Return the namespace of a key `namespace/name`; empty for a key without a namespace."""
    return key.rpartition("/")[0] if isinstance(key, str) else ""


class _Lanes(Generic[K]):
    """Lanes of a queue, served in rotation."""

    def __init__(self) -> None:
        self.foreground: _Lane[K] = _Lane()
        self.background: _Lane[K] = _Lane()
        self.isolated: _Lane[K] = _Lane()
        self._turns = deque((*[self.foreground] * FOREGROUND_TURNS, self.background, self.isolated))

    def __len__(self) -> int:
        return len(self.foreground) + len(self.background) + len(self.isolated)

    def choose_lane(self, *, serve_isolated: bool) -> _Lane[K] | None:
        """Return the next lane with keys; None = no lane that may be served has keys.

        Args:
            serve_isolated: whether the lane of isolated keys may be served.
        """
        for turn, lane in enumerate(self._turns):
            if lane and (serve_isolated or lane is not self.isolated):
                del self._turns[turn]
                self._turns.append(lane)
                return lane
        return None

    def promote(self, key: K) -> None:
        """Move a key to the foreground, if it waits in the background."""
        if self.background.remove(key):
            self.foreground.push(key)


class _Delayed(Generic[K]):
    """Delayed keys, and the earliest due time of each."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def push(self, key: K, due: float) -> bool:
        """Add a key; return whether its new due time is now the earliest of all keys."""
        known = self._due.get(key)
        if known is not None and known <= due:
            return False
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        return self._heap[0][2] == key

    def due(self, key: K) -> float | None:
        """Return the due time of a key; None = it is not delayed."""
        return self._due.get(key)

    def next_due(self) -> float | None:
        """Return the earliest due time; None = no key is delayed."""
        # Drop outdated entries: the key got an earlier due time, or is no longer delayed.
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
        self._due.clear()
        self._heap.clear()

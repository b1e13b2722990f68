"""Answers that are remembered for a while; a question is asked once, however many wait for it,
and no longer than somebody does.

Anybody can ask, and about as much as they like: so a key is as short as its owner can make it
(a digest), an answer leaves when its time is over, and all caches together have one limit, in
bytes. A cache that nobody can fill needs no `Shelf`.
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

ENTRY = 1 << 10
"""Bytes that an entry takes beside its answer, roughly."""

SWEEP_S = 10.0
"""How often answers whose time is over are looked for, while there are any."""

_BYTES = metrics.gauge(
    "ccm_serving_cache_bytes",
    "Memory for the API server's answers about callers, roughly.",
    ["cache"],
)


def digest(question: object) -> bytes:
    """A key that stands for a question, whatever its size."""
    return hashlib.sha256(repr(question).encode()).digest()


class Shelf:
    """Where caches keep their answers; who asked for room last pushes out what is unused.

    Args:
        most: bytes of all answers, roughly.
    """

    def __init__(self, most: int = 4 << 20) -> None:
        self.size = 0
        self._most = most
        self._entries: OrderedDict[tuple[str, Hashable], tuple[float, Any, int]] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def get(self, cache: str, key: Hashable) -> tuple[Any] | None:
        """An answer while it is good; None: there is none."""
        found = self._entries.get((cache, key))
        if found is None or found[0] <= clock.monotonic():
            return None
        self._entries.move_to_end((cache, key))
        return (found[1],)

    def put(self, cache: str, key: Hashable, answer: Any, keep_s: float) -> None:
        """Remember an answer; others may be forgotten for it."""
        self._remove((cache, key))
        size = ENTRY + len(msgspec.json.encode(answer))
        self._entries[cache, key] = (clock.monotonic() + keep_s, answer, size)
        self._resize(cache, size)
        while self.size > self._most:
            self._remove(next(iter(self._entries)))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._forget)

    def close(self) -> None:
        """Remember nothing any more."""
        for place in list(self._entries):
            self._remove(place)
        if self._sweep is not None:
            self._sweep.cancel()

    def _forget(self) -> None:
        """Drop what is no longer good."""
        now = clock.monotonic()
        for place in [place for place, entry in self._entries.items() if entry[0] <= now]:
            self._remove(place)
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_S, self._forget) if self._entries else None

    def _remove(self, place: tuple[str, Hashable]) -> None:
        if entry := self._entries.pop(place, None):
            self._resize(place[0], -entry[2])

    def _resize(self, cache: str, size: int) -> None:
        self.size += size
        _BYTES.labels(cache).inc(size)


@dataclass(slots=True)
class _Question(Generic[V]):
    """One that is under way, and how many wait for its answer."""

    task: asyncio.Task[V]
    waiting: int = 0


class TTLCache(Generic[K, V]):
    """A memory to ask through.

    Args:
        keep_s: how long an answer is good for, in seconds; 0: not at all.
        name: of the cache, in metrics; two on one shelf have two.
        shelf: where answers are kept; None: one of its own.
    """

    def __init__(
        self, keep_s: Callable[[V], float], *, name: str, shelf: Shelf | None = None
    ) -> None:
        self._keep_s = keep_s
        self._name = name
        self._shelf = Shelf() if shelf is None else shelf
        self._asking: dict[K, _Question[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, from memory while it is good.

        Args:
            key: stands for the question.
            ask: finds the answer; its exceptions are passed on and not remembered. It is
                cancelled when nobody waits any more.
        """
        known = self._shelf.get(self._name, key)
        if known is not None:
            answer: V = known[0]
            return answer
        question = self._asking.get(key)
        if question is None:
            question = self._asking[key] = _Question(self._start(key, ask))
        task = question.task
        question.waiting += 1
        try:
            # A caller who leaves must not take the answer away from those who wait too.
            return await asyncio.shield(task)
        finally:
            question.waiting -= 1
            if not question.waiting:
                # Whoever asks next must not get what is being cancelled.
                if self._asking.get(key) is question:
                    del self._asking[key]
                task.cancel()

    async def close(self) -> None:
        """Ask no more, and forget."""
        await cancel_and_join(*self._tasks)
        self._shelf.close()

    def _start(self, key: K, ask: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        task = spawn(self._learn(key, ask), name="review")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[V]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: everybody may have left

    async def _learn(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        keep_s = self._keep_s(answer)
        if keep_s > 0:
            self._shelf.put(self._name, key, answer, keep_s)
        return answer

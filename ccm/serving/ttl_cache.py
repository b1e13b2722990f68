"""Answers that are remembered for a while; a question is asked once, however many wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TTLCache(Generic[K, V]):
    """A memory to ask through.

    Args:
        keep_s: how long an answer is good for, in seconds; 0: not at all.
        size: most answers kept; the one unused for longest is forgotten.
    """

    def __init__(self, keep_s: Callable[[V], float], *, size: int = 4096) -> None:
        self._keep_s = keep_s
        self._size = size
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, from memory while it is good.

        Args:
            key: stands for the question.
            ask: finds the answer; its exceptions are passed on and not remembered.
        """
        known = self._known.get(key)
        if known is not None and known[0] > clock.monotonic():
            self._known.move_to_end(key)
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = spawn(self._learn(key, ask), name="review")
            self._asking[key] = task
        # A caller who leaves must not take the answer away from those who wait too.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ask no more."""
        await cancel_and_join(*self._asking.values())

    async def _learn(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        try:
            answer = await ask()
            keep_s = self._keep_s(answer)
            if keep_s > 0:
                self._known[key] = (clock.monotonic() + keep_s, answer)
                self._known.move_to_end(key)
                if len(self._known) > self._size:
                    self._known.popitem(last=False)
            return answer
        finally:
            del self._asking[key]

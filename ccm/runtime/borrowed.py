"""Caches that are there only while somebody needs them.

What most clusters never need, such as all disruption budgets, is not watched from the start as
the shared caches are: the first who needs it starts the watch, the last one ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.informer import Informer
from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class Borrowed(Generic[T]):
    """A cache that several use at times.

    Args:
        make: makes it, for the first of them.
    """

    def __init__(self, make: Callable[[], Informer[T]]) -> None:
        self._make = make
        self._users = 0
        self._informer: Informer[T] | None = None
        self._task: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Informer[T]]:
        """The cache, followed for as long as the block runs; it may not be complete yet."""
        self._users += 1
        if self._informer is None:
            self._informer = self._make()
            self._task = spawn(self._informer.run(), name=f"borrowed-{self._informer.resource}")
        try:
            yield self._informer
        finally:
            self._users -= 1
            if not self._users:
                task, self._informer, self._task = self._task, None, None
                await cancel_and_join(task)


@asynccontextmanager
async def following(informer: Informer[T]) -> AsyncIterator[Informer[T]]:
    """A cache of one's own, followed for as long as the block runs."""
    async with Borrowed(lambda: informer).use() as found:
        yield found

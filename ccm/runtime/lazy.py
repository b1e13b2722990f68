"""Informers and controllers that start on demand.

Many clusters never need some of the informers, such as the informer of PodDisruptionBudgets. Unlike
a shared informer, a `RefCountedInformer` starts with its first user and stops with its last user.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.informer import Informer
from ccm.model.meta import KubeObject
from ccm.runtime.controller import Runnable
from ccm.runtime.object_status import ControllerStatus

T = TypeVar("T", bound=KubeObject)


class RefCountedInformer(Generic[T]):
    """Informer that runs while it has users.

    Args:
        make: creates the informer for the first user.
    """

    def __init__(self, make: Callable[[], Informer[T]]) -> None:
        self._make = make
        self._users = 0
        self._informer: Informer[T] | None = None
        self._task: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Informer[T]]:
        """Yield the running informer, which may not be synced yet."""
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
async def running_informer(informer: Informer[T]) -> AsyncIterator[Informer[T]]:
    """Run an informer, which must have no other users, while the block runs."""
    async with RefCountedInformer(lambda: informer).use() as running:
        yield running


class LazyController:
    """Controller that is created when its preconditions are met.

    Args:
        ready: waits until the controller can be created.
        make: creates the controller.
    """

    def __init__(self, ready: Callable[[], Awaitable[None]], make: Callable[[], Runnable]) -> None:
        self._ready = ready
        self._make = make
        self._controller: Runnable | None = None

    async def run(self) -> None:
        """Wait for `ready`, then run the controller until cancelled."""
        await self._ready()
        self._controller = self._make()
        await self._controller.run()

    def retry_now(self) -> None:
        """See `Runnable`."""
        if self._controller is not None:
            self._controller.retry_now()

    def object_status(self, kind: str, name: str) -> ControllerStatus | None:
        """See `Runnable`."""
        return None if self._controller is None else self._controller.object_status(kind, name)

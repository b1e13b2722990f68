"""The open provider, and how it is exchanged for one with another configuration.

A provider lives in a task of its own, in which it is opened and closed: it may hold a task
group or a cancel scope. The new one is opened and has to answer a first call before the old
one is let go; the old one is closed when its last call has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any

from ccm.base import log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud

DRAIN_S = 900.0
"""Longest time that calls of an old provider may still take; that of its longest call."""

CLOSE_S = 30.0
"""Longest time that a provider may take to close before it is cancelled."""

Opening = Callable[[], AbstractAsyncContextManager[Cloud]]
"""Opens the provider with the configuration of now."""


class Crashed(Exception):
    """The provider ended by itself; its cause says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """One provider while it is open."""

    cloud: Cloud
    task: asyncio.Task[None]
    leave: asyncio.Event

    async def end(self) -> None:
        """Close it; raises whatever closing raises, TimeoutError if it takes too long."""
        self.leave.set()
        try:
            ended, _ = await asyncio.wait({self.task}, timeout=CLOSE_S)
        finally:
            await cancel_and_join(self.task)
        if not ended:
            raise TimeoutError(f"the provider did not close within {CLOSE_S:g} s")
        if not self.task.cancelled():
            self.task.result()


class Tenant:
    """The provider in use."""

    def __init__(self) -> None:
        self._log = log.logger("provider")
        self._stay: _Stay | None = None
        self._leaving: dict[asyncio.Task[None], _Stay] = {}
        self._moved = asyncio.Event()

    async def enter(self, opening: Opening) -> Cloud:
        """Open the first provider; raises whatever opening raises."""
        self._stay = await _enter(opening)
        return self._stay.cloud

    async def exchange(
        self, opening: Opening, handle: Handle, accept: Callable[[Cloud], Awaitable[None]]
    ) -> None:
        """Open another provider, and use it once `accept` has not raised.

        Raises:
            Exception: whatever opening or accepting raised; the old provider stays in use.
        """
        new = await _enter(opening)
        try:
            await accept(new.cloud)
            if new.task.done():
                raise _crash(new)
        except BaseException:
            await self._close(new)
            raise
        old, self._stay = self._stay, new
        self._moved.set()
        handle.swap(new.cloud)
        if old is not None:
            self._leaving = {task: stay for task, stay in self._leaving.items() if not task.done()}
            task = spawn(self._let_go(old, handle), name="provider-drain")
            self._leaving[task] = old

    async def until_crash(self) -> None:
        """Wait for a provider that ends by itself.

        Raises:
            Crashed: it did.
        """
        while True:
            self._moved.clear()
            stay = self._stay
            assert stay is not None
            moved = spawn(self._moved.wait(), name="provider-moved")
            try:
                await asyncio.wait({stay.task, moved}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_join(moved)
            if stay is self._stay:
                raise _crash(stay)

    async def leave(self) -> None:
        """Close the provider in use, and those that are not closed yet."""
        stay, self._stay = self._stay, None
        self._moved.set()
        try:
            await cancel_and_join(*self._leaving)
            for old in self._leaving.values():
                if not old.task.done():
                    await self._close(old)
        finally:
            if stay is not None:
                await stay.end()

    async def _let_go(self, old: _Stay, handle: Handle) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await handle.ended(old.cloud)
        await self._close(old)

    async def _close(self, stay: _Stay) -> None:
        """Close one that is not in use."""
        try:
            await stay.end()
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            self._log.warning("a provider did not close well", error=str(error))


def _crash(stay: _Stay) -> Crashed:
    fault = None if stay.task.cancelled() else stay.task.exception()
    found = Crashed(f"the provider ended by itself: {fault!r}")
    found.__cause__ = fault
    return found


async def _enter(opening: Opening) -> _Stay:
    ready: asyncio.Future[Cloud] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()
    task = spawn(_hold(opening, ready, leave), name="provider")
    try:
        waited: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await cancel_and_join(task)
        raise
    if not ready.done():
        task.result()
    return _Stay(cloud=ready.result(), task=task, leave=leave)


async def _hold(opening: Opening, ready: asyncio.Future[Cloud], leave: asyncio.Event) -> None:
    async with opening() as cloud:
        ready.set_result(cloud)
        await leave.wait()

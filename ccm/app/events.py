"""Events of the whole daemon: one client, one recorder per component."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.kube.client import Client
from ccm.kube.events import EventRecorder
from ccm.kube.resources import EVENTS

FLUSH_S = 2.0
"""Longest time that stopping waits for recorded events to be delivered."""

HURRIED_FLUSH_S = 0.5
"""The same while a successor waits for the lease; the rest is delivered afterwards."""


class Events:
    """One client for all events of a cluster, one recorder per component.

    An async context manager: recorders deliver while it is open; leaving it delivers what
    is left, for at most `FLUSH_S`, unless they were abandoned.

    Args:
        client: writes them.
        others: of other clusters, which are delivered and abandoned together with these.
    """

    def __init__(self, client: Client, others: Sequence[Events] = ()) -> None:
        self._resource = client.resource(EVENTS)
        self._others = others
        self._recorders: dict[str, EventRecorder] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned = False

    def recorder(self, component: str) -> EventRecorder:
        """The recorder that reports as this component."""
        known = self._recorders.get(component)
        if known is None:
            known = EventRecorder(self._resource, component=component)
            self._recorders[component] = known
            self._tasks.append(spawn(known.run(), name=f"events-{component}"))
        return known

    def abandon(self) -> None:
        """The process must end now: nothing more is delivered."""
        self._abandoned = True
        for task in self._tasks:
            task.cancel()
        for one in self._others:
            one.abandon()

    async def flush(self, limit_s: float = FLUSH_S) -> None:
        """Deliver what was recorded, for at most so many seconds."""
        async with Group() as group:
            for component, recorder in self._recorders.items():
                group.start(recorder.flush(limit_s), name=f"events-flush-{component}")
            for one in self._others:
                group.start(one.flush(limit_s), name="events-flush-others")

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._abandoned:
                await self.flush()
        finally:
            await cancel_and_join(*self._tasks)

"""The daemon's vital signs: it writes them down here while it runs, and `health` reads them.

Nothing here looks for anything, and nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from ccm.base import clock
from ccm.cloud.calls.handle import Handle
from ccm.kube.informer import Informer, Informers
from ccm.kube.leader import LeaderElector
from ccm.model import Node
from ccm.runtime.controller import Runnable
from ccm.runtime.deletions import DeletionRecord
from ccm.serving.health import WELL, Finding, wrong

BEAT_S = 1.0
LATE_S = 2.0
"""An event loop that comes so much later than it was asked to is late."""


class Vitals:
    """What the daemon knows about itself.

    Attributes:
        opening: why the provider is not open yet; empty once it is.
        handle: the handle to the cloud, once the provider is open.
        informers: the caches, while we lead.
        others: those of other clusters, by what these are to controllers.
        nodes: the nodes that controllers look after, while any does.
        waiting: what the HTTPS server still waits for, in words.
        stopping: whether the process was told to stop.
        late_beats: how often in a row the event loop was late.
        electors: who competes, by the name of the lease.
        at_work: the controllers that run, by name.
        deletions: what the brakes hold back, while we lead.
        controllers: those that were started, or left out, since we lead, and what is to be
            said of them.
        persistence: how storage is; None: none is configured.
    """

    def __init__(self) -> None:
        self.opening = "the provider is not open yet"
        self.handle: Handle | None = None
        self.informers: Informers | None = None
        self.others: Mapping[str, Informers] = {}
        self.nodes: Informer[Node] | None = None
        self.waiting: Callable[[], str] = str
        self.stopping: Callable[[], bool] = bool
        self.late_beats = 0
        self.electors: dict[str, LeaderElector] = {}
        self.controllers: dict[str, Finding] = {}
        self.at_work: dict[str, Runnable] = {}
        self.deletions: DeletionRecord | None = None
        self.persistence: Callable[[], Awaitable[Finding]] | None = None

    async def beat(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            due = clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = clock.monotonic() - due > LATE_S
            self.late_beats = self.late_beats + 1 if late else 0

    def opened(self, handle: Handle) -> None:
        """The provider is open."""
        self.opening = ""
        self.handle = handle

    def not_opened(self, error: Exception) -> None:
        """An attempt to open the provider failed."""
        self.opening = f"the provider cannot be opened: {error}"

    def stand_by(self) -> None:
        """We lead no more: there are no caches, and no controller runs."""
        self.informers = self.deletions = self.nodes = None
        self.others = {}
        self.controllers.clear()

    def node(self, name: str) -> Node | None:
        """The cached node, while we lead."""
        return self.nodes.store.get(name) if self.nodes is not None else None

    @contextmanager
    def running(self, name: str, controller: Runnable) -> Iterator[None]:
        """A controller runs inside the block; it is cancelled, or something is wrong."""
        self.controllers[name] = WELL
        self.at_work[name] = controller
        try:
            yield
        finally:
            del self.at_work[name]
        self.controllers[name] = wrong("it ended unexpectedly")

    def left_out(self, name: str, why: str) -> None:
        """A controller does not run, and that is in order."""
        self.controllers[name] = Finding(detail=f"not running: {why}")

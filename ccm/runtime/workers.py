"""The workers of a queue: as many as declared, and one more for each that is held up.

A reconcile whose call hangs holds its worker until the deadline of the call, which may be a
quarter of an hour away, and all other keys behind it. So when it has lasted `HELD_UP_S`,
another worker is lent, at most `MOST_LENT` of them; one goes when the first comes back. A key
that held up a worker when it was last in work gets a lent one from the start, and waits where
there is none to lend: it never takes the last free worker from keys that hold up none. It
is trusted again when it was dealt with quickly and without an error.

A `Turn` bounds what is worked on at once without counting the wait for a cloud: a worker takes one
for its reconcile and puts it down around each call that may take long.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ccm.base import log, metrics
from ccm.base.log import Outage
from ccm.base.tasks import Group
from ccm.kube.workqueue import ShutDown, WorkQueue


class Turn:
    """One turn; `async with turn` takes it.

    Args:
        free: counts those that are left.
    """

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_taken = False

    async def __aenter__(self) -> Turn:
        await self._take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._put_down()

    @asynccontextmanager
    async def put_down(self) -> AsyncIterator[None]:
        """Without it for as long as the block runs; waits for one afterwards.

        Not after a cancellation, which must not wait for anybody.
        """
        self._put_down()
        try:
            yield
        except Exception:
            await self._take()
            raise
        await self._take()

    async def _take(self) -> None:
        await self._free.acquire()
        self._is_taken = True

    def _put_down(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._free.release()


HELD_UP_S = 30.0
"""A reconcile that lasts longer holds up its worker."""

MOST_LENT = 16
"""Most workers that are lent at the same time: each may mean one more call to the cloud."""

_LENT = metrics.gauge(
    "ccm_workers_lent",
    "Workers lent because others are held up by an object that takes long.",
    ["name"],
)


class Workers:
    """The workers of one controller, and their queue.

    Args:
        name: in logs and task names.
        queue: name of the queue.
        take: one reconcile; whether it did something, without an error. It lets none through.
        count: how many keys are in work at once, apart from those that hold up a worker.
    """

    def __init__(
        self, name: str, *, queue: str, take: Callable[[str], Awaitable[bool]], count: int
    ) -> None:
        self.queue: WorkQueue[str] = WorkQueue(queue, can_spare=self._can_spare)
        self._name = name
        self._take = take
        self._count = count
        self._running = 0
        self._since: dict[str, tuple[float, asyncio.Task[Any] | None]] = {}
        self._slow: set[str] = set()
        self._look_at: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()
        self._group: Group | None = None
        self._used_up = Outage(
            log.logger(name),
            begins="objects hold up all workers that can be lent, the others may have to wait",
            ends="workers can be lent again",
        )
        _LENT.labels(queue).set_function(lambda: self._lent)

    def start(self, group: Group) -> None:
        """Work as tasks of that group from now on."""
        self._group = group
        self._fill_up()

    def busy_s(self, key: str) -> float | None:
        """Return for how long a worker has had the key in hand; None: none has."""
        if key not in self._since:
            return None
        return round(asyncio.get_running_loop().time() - self._since[key][0], 3)

    @property
    def _lent(self) -> int:
        return min(len(self._slow), MOST_LENT)

    def _fill_up(self) -> None:
        assert self._group is not None, "`start` comes first"
        while self._running < self._count + self._lent:
            self._running += 1
            self._group.start(self._work(), name=f"{self._name}-worker-{next(self._numbers)}")

    def _can_spare(self) -> bool:
        """Whether a worker stays free when another takes a key that will hold it up."""
        return self._count + min(len(self._slow) + 1, MOST_LENT) > len(self._since) + 1

    async def _work(self) -> None:
        while self._running <= self._count + self._lent:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            await self._serve(key)
        self._running -= 1

    async def _serve(self, key: str) -> None:
        loop, worker = asyncio.get_running_loop(), asyncio.current_task()
        began = loop.time()
        self._since[key] = began, worker
        if self.queue.is_apart(key):
            self._lend(key, worker)
        if self._look_at is None:
            # One timer for all of them: most are through long before it ends.
            self._look_at = loop.call_later(HELD_UP_S, self._look)
        went_well = False
        try:
            went_well = await self._take(key)
        finally:
            del self._since[key]
            self._slow.discard(key)
            if self._used_up and len(self._slow) < MOST_LENT:
                self._used_up.is_over()
            took_long = loop.time() - began >= HELD_UP_S
            if took_long or went_well:
                # A quick failure proves nothing, as a call that was given up is refused at once;
                # nor does a look that found nothing to do.
                self.queue.set_apart(key, took_long)
            self.queue.done(key)

    def _look(self) -> None:
        """Lend a worker for each that is held up, and look again when the next one may be."""
        self._look_at = None
        loop = asyncio.get_running_loop()
        for key, (began, worker) in list(self._since.items()):  # in the order of their beginning
            if began + HELD_UP_S > loop.time():
                self._look_at = loop.call_at(began + HELD_UP_S, self._look)
                return
            self._lend(key, worker)

    def _lend(self, key: str, worker: asyncio.Task[Any] | None) -> None:
        if key in self._slow or worker is None or worker.cancelling():
            return  # when it is cancelled, the group ends and takes in nobody any more
        self._slow.add(key)
        if len(self._slow) >= MOST_LENT:
            self._used_up.goes_on(workers=MOST_LENT)
        self._fill_up()

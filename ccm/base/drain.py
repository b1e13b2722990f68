"""Stopping in good order: nothing new is begun, a change under way may come to its end.

Work comes in units, such as one reconcile. A unit that has only looked so far can be cancelled
at any moment; one that has changed something should end, so that its next step (a status, a
finalizer) is not left to a successor. So once a drain has begun: no unit is begun any more, no
change is begun by a unit that has made none, and `drained` waits for the units that have.

The drain in force and the unit at work are found through the task's context, so that whoever
works (`unit`) and whoever changes something (`change`) need not know each other. Outside of a
drain both do nothing.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from ccm.base import tasks


class Drain:
    """What is under way, and whether more may be begun.

    Attributes:
        under_way: how many pieces of work have changed something and are not over.
        begun: whether nothing new may be begun.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.begun = False

    def govern(self) -> None:
        """Be the drain of this task and of those that it starts from now on."""
        _DRAIN.set(self)

    async def drained(self, grace_s: float) -> bool:
        """Let nothing new begin and wait for what is under way; False when that takes longer."""
        self.begun = True
        return await tasks.wait_for(self._idle, grace_s)

    def enter(self) -> None:
        """One more is under way."""
        self.under_way += 1
        self._idle.clear()

    def leave(self) -> None:
        """One less is under way."""
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()


class _Unit:
    """A piece of work; `changed` as soon as it should not be cut any more."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self.is_open = True
        self.changed = False
        self._changing = 0
        self._may_be_cut = False

    def begin_change(self) -> None:
        """It changes something."""
        self._changing += 1
        if not self.changed:
            self.changed = True
            self._drain.enter()

    def end_change(self) -> None:
        """One of its changes is over."""
        self._changing -= 1
        self._let_go()

    def give_up(self) -> None:
        """It goes no further, so that it may be cut once no other change of it is under way."""
        self._may_be_cut = True
        self._let_go()

    def end(self) -> None:
        """It is over, though tasks that it started may still run."""
        self.is_open = False
        self.give_up()

    def _let_go(self) -> None:
        if self.changed and self._may_be_cut and not self._changing:
            self.changed = False
            self._drain.leave()


_DRAIN: ContextVar[Drain | None] = ContextVar("drain", default=None)
_UNIT: ContextVar[_Unit | None] = ContextVar("unit", default=None)


class unit:  # noqa: N801 - reads like a function; no generator, as it is around each reconcile
    """A piece of work; once a drain has begun, it waits at its door until it is cancelled."""

    __slots__ = ("_token", "_work")

    async def __aenter__(self) -> None:
        self._work: _Unit | None = None
        drain = _DRAIN.get()
        if drain is None:
            return
        if drain.begun:
            await _never()
        self._work = _Unit(drain)
        self._token = _UNIT.set(self._work)

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            _UNIT.reset(self._token)
            self._work.end()


class change:  # noqa: N801 - as `unit`; it is around each request
    """A change of the world. Where it may not be begun any more, it waits to be cancelled.

    Args:
        long: it may take minutes, so that not even a unit that has changed something may
            begin it once a drain has begun.
    """

    __slots__ = ("_is_own", "_long", "_work")

    def __init__(self, *, long: bool = False) -> None:
        self._long = long

    async def __aenter__(self) -> None:
        self._work: _Unit | None = None
        drain = _DRAIN.get()
        if drain is None:
            return
        work = _UNIT.get()
        self._is_own = work is None or not work.is_open
        if self._is_own or work is None:
            work = _Unit(drain)
        if drain.begun and (self._long or not work.changed):
            work.give_up()
            await _never()
        work.begin_change()
        self._work = work

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.end_change()
            if self._is_own:
                self._work.end()


async def _never() -> None:
    """Wait until cancelled, which whoever has begun the drain does."""
    await asyncio.get_running_loop().create_future()

"""Orderly stop: no new work starts, and changes in progress may finish.

Work consists of units, such as one reconcile. A unit that has only read so far can be cancelled at
any moment. A unit that has changed something should finish, so that its next step (a status, a
finalizer) is not left to the next leader. Once a drain has begun, no unit starts, and a unit that
has changed nothing may not begin a change. `Drain.drain` waits for the units with changes.

The current drain and the current unit are context variables. Code that runs a unit (`unit`) and
code that makes a change (`change`) therefore share no objects. Without a drain, `unit` and `change`
do nothing.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from ccm.base import tasks


class Drain:
    """Work in progress, and whether more may start.

    Attributes:
        units_in_progress: number of units that have changed something and have not ended.
        has_begun: whether the drain has begun, so that nothing new may start.
    """

    def __init__(self) -> None:
        self.units_in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.has_begun = False

    def activate(self) -> None:
        """Make this the drain of the current task and of tasks it starts later."""
        _DRAIN.set(self)

    async def drain(self, grace_s: float) -> bool:
        """Begin the drain; return whether all work in progress ended within `grace_s` seconds."""
        self.has_begun = True
        return await tasks.wait_for(self._idle, grace_s)

    def enter(self) -> None:
        """Count a unit as in progress."""
        self.units_in_progress += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a unit as ended."""
        self.units_in_progress -= 1
        if not self.units_in_progress:
            self._idle.set()


class _Unit:
    """Unit of work; once it has `changed` something, it should finish."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self.is_open = True
        self.changed = False
        self._changing = 0
        self._is_cancellable = False

    def begin_change(self) -> None:
        self._changing += 1
        if not self.changed:
            self.changed = True
            self._drain.enter()

    def end_change(self) -> None:
        self._changing -= 1
        self._leave_if_done()

    def allow_cancellation(self) -> None:
        """Allow cancellation once no change of this unit is in progress."""
        self._is_cancellable = True
        self._leave_if_done()

    def end(self) -> None:
        """End the unit, though tasks that it started may still run."""
        self.is_open = False
        self.allow_cancellation()

    def _leave_if_done(self) -> None:
        if self.changed and self._is_cancellable and not self._changing:
            self.changed = False
            self._drain.leave()


_DRAIN: ContextVar[Drain | None] = ContextVar("drain", default=None)
_UNIT: ContextVar[_Unit | None] = ContextVar("unit", default=None)


def exempt() -> None:
    """Exempt the current task, and tasks it starts later, from the drain.

    For the task that stores records of changes: it must still store the record of the last change.
    """
    _DRAIN.set(None)


class unit:  # noqa: N801 - reads like a function; no generator, because it wraps each reconcile
    """Context manager of a unit of work.

    Once a drain has begun, entering blocks until the task is cancelled.
    """

    __slots__ = ("_token", "_work")

    async def __aenter__(self) -> None:
        self._work: _Unit | None = None
        drain = _DRAIN.get()
        if drain is None:
            return
        if drain.has_begun:
            await _wait_for_cancellation()
        self._work = _Unit(drain)
        self._token = _UNIT.set(self._work)

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            _UNIT.reset(self._token)
            self._work.end()


class change:  # noqa: N801 - as `unit`; it wraps each request
    """Context manager of a change.

    Once a drain has begun, a change may start only in a unit that has already changed something.
    Entering any other change blocks until the task is cancelled.

    Args:
        long: whether the change may take minutes. Such a change never starts during a drain.
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
        # A change outside a unit, or in a task that outlives its unit, is a unit of its own.
        self._is_own = work is None or not work.is_open
        if self._is_own or work is None:
            work = _Unit(drain)
        if drain.has_begun and (self._long or not work.changed):
            work.allow_cancellation()
            await _wait_for_cancellation()
        work.begin_change()
        self._work = work

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.end_change()
            if self._is_own:
                self._work.end()


async def _wait_for_cancellation() -> None:
    """Block until the owner of the drain cancels this task."""
    await asyncio.get_running_loop().create_future()

"""How old machines are, whatever our own clock says: a jump of it must not end one.

A creation timestamp is the API server's, so its clock is the one to compare with. From when a
machine was first seen time goes on by a clock that nobody sets; of both the lower age counts, as
too short a time for a machine costs its VM, and too long a one costs minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ccm.base import clock
from ccm.machines.views import MachineView


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """When a machine was first asked about, on the monotonic clock, and how old it was then."""

    at: float
    age_s: float


class Ages:
    """The ages of all machines.

    Args:
        server_time: the time at the API server.
    """

    def __init__(self, server_time: Callable[[], datetime]) -> None:
        self._server_time = server_time
        self._seen: dict[str, _Sight] = {}

    def of(self, machine: MachineView) -> float:
        """Seconds since the machine's object was made."""
        now, told_s = clock.monotonic(), (self._server_time() - machine.created).total_seconds()
        sight = self._seen.setdefault(machine.uid, _Sight(at=now, age_s=told_s))
        return max(0.0, min(told_s, sight.age_s + now - sight.at))

    def by(self, now: datetime, machine: MachineView) -> MachineView:
        """The machine with the time of its creation on our own clock, which says `now`."""
        return replace(machine, created=now - timedelta(seconds=self.of(machine)))

    def forget(self, uid: str) -> None:
        """The machine is gone."""
        self._seen.pop(uid, None)

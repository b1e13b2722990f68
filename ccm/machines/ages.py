"""How old machines are, whatever our own clock says: a jump of it must not end one.

A creation timestamp is the API server's, so its clock is the one to compare with. From when a
machine was first seen time goes on by a clock that nobody sets; of both the lower age counts, as
too short a time for a machine costs its VM, and too long a one costs minutes. The same holds for
other moments that stand on machines, and from or until which something is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from ccm.base import clock
from ccm.model.machines import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """When a moment was first asked about, on the monotonic clock, and how old it was then."""

    at: float
    age_s: float


class Ages:
    """The ages of all machines, and of moments that matter to them.

    Args:
        server_time: the time at the API server.
    """

    def __init__(self, server_time: Callable[[], datetime]) -> None:
        self._server_time = server_time
        self._seen: dict[str, dict[datetime, _Sight]] = {}

    def of(self, machine: Machine) -> float:
        """Seconds since the machine's object was made."""
        return max(0.0, self.since(machine.uid, machine.created))

    def since(self, uid: str, moment: datetime) -> float:
        """Seconds since a moment that matters to a machine; negative: it is yet to come."""
        now, told_s = clock.monotonic(), (self._server_time() - moment).total_seconds()
        known = self._seen.setdefault(uid, {})
        sight = known.setdefault(moment, _Sight(at=now, age_s=told_s))
        return min(told_s, sight.age_s + now - sight.at)

    def now(self, uid: str, moment: datetime) -> datetime:
        """What time it is, as far as that moment is concerned."""
        return moment + timedelta(seconds=self.since(uid, moment))

    def by(self, now: datetime, machine: Machine) -> Machine:
        """The machine with the time of its creation on our own clock, which says `now`."""
        return replace(machine, created=now - timedelta(seconds=self.of(machine)))

    def forget(self, uid: str) -> None:
        """The machine is gone."""
        self._seen.pop(uid, None)

"""Load balancers whose Services are gone though nobody saw them deleted."""

from __future__ import annotations

from collections.abc import Mapping

from ccm.base import clock
from ccm.controllers.service.record import Record
from ccm.runtime.deletions import ALLOW, Holds, MassDeletionGuard

REASON = "services_missing"


class Vanished:
    """Those Services, and whether their load balancers may be removed.

    Args:
        holds: where load balancers are shown that stay.
        guard: says whether they do.
    """

    def __init__(self, holds: Holds, guard: MassDeletionGuard) -> None:
        self._holds = holds
        self._guard = guard
        self._keys: set[str] = set()
        self._counted: tuple[int, int] | None = None
        self._settled = 0

    def add(self, key: str) -> None:
        """A Service that is served is gone, or another now, and nobody saw it deleted."""
        self._keys.add(key)
        self._counted = None
        self._guard.missing(clock.monotonic())

    def back(self, record: Record) -> None:
        """The Service that was served is there."""
        if record.applied.key in self._keys:
            self._guard.back(clock.monotonic())
            self.forget(record)

    def forget(self, record: Record) -> None:
        """Nothing is left of it to decide."""
        if record.applied.key in self._keys:
            self._keys.discard(record.applied.key)
            self._counted = None
            self._holds.release(record.applied.reference)

    def wait_s(self, record: Record, records: Mapping[str, Record]) -> float:
        """Seconds until the next look; 0 = the load balancer may be removed.

        Args:
            record: of a Service that is gone.
            records: of all Services.
        """
        if record.applied.key not in self._keys:
            return 0.0
        settled, missing = self._count(records), len(self._keys)
        wait_s = self._guard.wait_s(missing, settled, clock.monotonic())
        if wait_s and self._guard.in_doubt:
            self._holds.hold(
                record.applied.reference,
                REASON,
                f"{missing} of {settled} Services with load balancers are gone, though nobody saw "
                "them deleted. Their load balancers stay until the Services are back; to remove "
                f"them all the same, {ALLOW}",
            )
        return wait_s

    def _count(self, records: Mapping[str, Record]) -> int:
        counted = (len(self._keys), len(records))
        if counted != self._counted:
            self._counted = counted
            self._settled = sum(each.may_exist for each in records.values())
        return self._settled

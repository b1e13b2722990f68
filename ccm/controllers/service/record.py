"""What this process did for one Service; forgotten when the Service is gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ccm.cloud.types import Status
from ccm.model import Service

LONG_AGO = float("-inf")


@dataclass(slots=True, kw_only=True)
class Record:
    """What was done and is known about one Service and its load balancer.

    Attributes:
        given: the Service as it was last given to the provider, or is about to be; what its
            load balancer is removed by when the Service is gone.
        ensured: the Service that the provider confirmed; None = it has to be ensured.
        members: fingerprint of the members the provider knows; empty = they have to be given.
        burst: how many bursts of nodes were over when those members were looked at.
        status: the status the Service shall show; None = not ours to write.
        latest: the Service as the answer to our last write had it.
        unverified: it was there at the start, and the cloud was not looked at yet.
        finished: what was in the cloud is removed.
        busy: a worker has it in hand.
        waiting: the operation about which the provider said "come back later"; empty = none.
        unannounced: ensure it without telling people: nobody knows of a change.
        update_failures: failed changes of the members in a row.
        not_before: monotonic time before which a change of nodes is no reason to call.
        touched_at: monotonic time of the last call to the provider.
        repaired_at: monotonic time of the last repair.
    """

    given: Service
    ensured: Service | None = None
    members: str = ""
    burst: int = 0
    status: Status | None = None
    latest: Service | None = None
    unverified: bool = False
    finished: bool = False
    busy: bool = False
    waiting: str = ""
    unannounced: bool = False
    update_failures: int = 0
    not_before: float = LONG_AGO
    touched_at: float = LONG_AGO
    repaired_at: float = LONG_AGO

    @property
    def served(self) -> bool:
        """Whether there may be something in the cloud."""
        return not self.finished

    @property
    def settled(self) -> bool:
        """Whether the provider confirmed the Service and nothing but members can be due."""
        return self.ensured is not None and not self.finished

    def is_due(self, members: str, now: float) -> bool:
        """Whether a settled one has to be given other members, and may be now."""
        return self.settled and self.members != members and self.not_before <= now

    def newest(self, cached: Service) -> Service:
        """The cached state, or that of our last write where the cache lags behind it."""
        latest = self.latest
        if latest is None or latest.uid != cached.uid:
            return cached
        lags = _is_older(cached.resource_version, latest.resource_version)
        return latest if lags else cached

    def confirm(self, service: Service, members: str, status: Status | None) -> None:
        """The load balancer is known to be as this Service and these members want it."""
        self.given = self.ensured = service
        self.members = members
        self.status = status
        self.update_failures = 0
        self.unverified = self.unannounced = False
        self.waiting = ""

    def resumes(self, operation: str) -> bool:
        """Whether an operation only goes on, which is no news; asked once per attempt."""
        resumed = self.waiting == operation
        self.waiting = ""
        return resumed

    def doubt(self) -> None:
        """It has to be ensured again."""
        self.ensured = None


def _is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older; unknown ones never are."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)

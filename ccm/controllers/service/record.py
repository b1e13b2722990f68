"""What this process did for one Service; forgotten when the Service is gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ccm.cloud.types import Status
from ccm.model import Service

LONG_AGO = float("-inf")


class State(Enum):
    """What is known about a Service's load balancer.

    ```text
    UNVERIFIED ──listing: as it should be──▶ APPLIED ◀──ensured── PENDING
        └───────────otherwise───────────────▶ PENDING ◀──drift, failures, a call begun──┘
    any ──removed──▶ REMOVED ──wanted again──▶ a new record
    ```
    """

    UNVERIFIED = "unverified"
    """It was there at the start, and the cloud was not looked at yet."""
    PENDING = "pending"
    """It has to be ensured; there may be something in the cloud."""
    APPLIED = "applied"
    """The provider confirmed it; nothing but members can be due."""
    REMOVED = "removed"
    """Nothing is left in the cloud."""


@dataclass(slots=True, kw_only=True)
class Record:
    """What was done and is known about one Service and its load balancer.

    Attributes:
        applied: the Service as it was last given to the provider, or is about to be; what its
            load balancer is removed by when the Service is gone.
        state: what is known about the load balancer.
        members: fingerprint of the members the provider knows; empty = they have to be given.
        burst: how many bursts of nodes were over when those members were looked at.
        status: the status the Service shall show; None = not ours to write.
        waiting: the operation about which the provider said "come back later"; empty = none.
        silent: ensure it without telling people: nobody knows of a change.
        update_failures: failed changes of the members in a row.
        failing: the last ensure failed, so that only updates change the members until the next.
        absent: there is no load balancer in the cloud, so that there is nothing to update.
        not_before: monotonic time before which a change of nodes is no reason to call.
        touched_at: monotonic time of the last call to the provider.
        repaired_at: monotonic time of the last repair.
        opening: the opening of the provider that confirmed it last.
        owner_deleted: the Service was seen to be deleted; else it may just not be there.
    """

    applied: Service
    state: State = State.PENDING
    members: str = ""
    burst: int = 0
    status: Status | None = None
    waiting: str = ""
    silent: bool = False
    update_failures: int = 0
    failing: bool = False
    absent: bool = False
    not_before: float = LONG_AGO
    touched_at: float = LONG_AGO
    repaired_at: float = LONG_AGO
    opening: int = -1
    owner_deleted: bool = False

    @property
    def may_exist(self) -> bool:
        """Whether there may be something in the cloud."""
        return self.state is not State.REMOVED

    def wants_members(self, fingerprint: str, now: float) -> bool:
        """Whether it has to be given other members by an update, and may be now."""
        follows = self.state is State.APPLIED or (self.failing and not self.absent)
        return follows and self.members != fingerprint and self.not_before <= now

    def confirm(
        self, service: Service, members: str, burst: int, status: Status | None, *, opening: int
    ) -> None:
        """The load balancer is known to be as this Service and these members want it."""
        self.applied = service
        self.opening = opening
        self.state = State.APPLIED
        self.took(members, burst)
        self.status = status
        self.failing = self.absent = False
        self.silent = False
        self.waiting = ""

    def took(self, members: str, burst: int) -> None:
        """The load balancer has these members."""
        self.members, self.burst = members, burst
        self.update_failures = 0

    def changed(self) -> None:
        """Somebody changed the Service: people are told, and no listing says how it should be."""
        self.silent = False
        if self.state is State.UNVERIFIED:
            self.invalidate()

    def invalidate(self) -> None:
        """It has to be ensured again."""
        self.state = State.PENDING

    def resumes(self, operation: str) -> bool:
        """Whether an operation only goes on, which is no news; asked once per attempt."""
        resumed = self.waiting == operation
        self.waiting = ""
        return resumed

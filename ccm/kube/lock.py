"""The lock that replicas compete for: one Lease, and the rules of one try to hold it.

The rules and the wire format are client-go's, so that its replicas and ours may share a
Lease. Nobody trusts anybody else's clock: a lease runs out when its record has not
changed for as long as the record says, counted from the local moment it was last seen to
change. Times inside the record are only compared, as they are written.

Deviation: client-go compares them in whole seconds. A leader that renews more often than once a
second would be taken for silent up to a second early then, before it has given up itself.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from ccm.base import clock, metrics
from ccm.kube import errors
from ccm.model.lease import Lease, LeaseSpec
from ccm.model.meta import ObjectMeta, ObjectReference
from ccm.model.times import format_micro_time, parse_time

_RELEASED_S = 1
"""Duration written into a released lease; the API server refuses zero (client-go)."""

_RELEASE_PAUSE_S = 0.25

_MOST_TRANSITIONS = (1 << 31) - 1
"""The API server's int32: a larger count is refused, and with it the lease."""

_slowpath = metrics.counter(
    "leader_election_slowpath_total",
    "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is the string "
    "used to identify the lease. Please make sure to group by name.",
    ("name",),
)

JITTER = 1.2
"""Retry periods are stretched by up to this fraction (client-go, JitterFactor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """What all replicas agree on, and who we are.

    Attributes:
        namespace: of the Lease.
        name: of the Lease.
        identity: who we are; no two replicas may have the same, see `new_identity`.
        lease_duration_s: how long standbys wait once the leader falls silent; written in
            whole seconds, rounded up.
        renew_deadline_s: how long a leader tries to renew before it gives up.
        retry_period_s: time between two tries.

    Raises:
        ValueError: the values contradict each other; the message names all faults.
    """

    namespace: str
    name: str
    identity: str
    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise ValueError("leader election: " + "; ".join(faults))

    @property
    def request_timeout_s(self) -> float:
        """The limit for one request about the Lease: two must fit into the deadline."""
        return max(1.0, self.renew_deadline_s / 2)

    def _faults(self) -> Iterator[str]:
        lease, renew, retry = self.lease_duration_s, self.renew_deadline_s, self.retry_period_s
        if not self.identity:
            yield "the identity must not be empty"
        if not (self.namespace and self.name):
            yield "the Lease needs a namespace and a name"
        if lease < 1:
            yield f"the lease duration must be at least 1s, not {lease:g}s"
        if retry <= 0:
            yield f"the retry period must be above 0s, not {retry:g}s"
        if lease <= renew:
            yield f"the lease duration ({lease:g}s) must exceed the renew deadline ({renew:g}s)"
        if renew <= JITTER * retry:
            limit = f"{JITTER:g} times the retry period ({retry:g}s)"
            yield f"the renew deadline ({renew:g}s) must exceed {limit}"


def new_identity(hostname: str) -> str:
    """A name for this process that no other replica has: `<hostname>_<random UUID>`."""
    return f"{hostname}_{uuid.uuid4()}"


class Leases(Protocol):
    """What the lock needs of the resource of Leases."""

    async def get(self, name: str, *, namespace: str) -> Lease:
        """Read a Lease."""
        ...

    async def create(self, obj: Lease, *, namespace: str) -> Lease:
        """Create a Lease."""
        ...

    async def replace(self, obj: Lease) -> Lease:
        """Write a Lease, guarded by its resourceVersion."""
        ...


class LeaseLock:
    """What this replica knows of the Lease, and its tries to hold it.

    Args:
        leases: where to read and write.
        config: which Lease, for how long, and who we are.
    """

    def __init__(self, leases: Leases, config: LeaderElectionConfig) -> None:
        self._leases = leases
        self._namespace = config.namespace
        self._name = config.name
        self._identity = config.identity
        self._duration_s = math.ceil(config.lease_duration_s)
        self._lease: Lease | None = None
        self._record: LeaseSpec | None = None
        self.observed_at = -math.inf
        """Monotonic time when the record was last seen to change."""
        self.in_doubt = False
        """Whether a write of ours may have been carried out without our knowing."""
        self._slowpath = _slowpath.labels(config.name)

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty for nobody."""
        return (self._lease.spec.holder_identity or "") if self._lease is not None else ""

    @property
    def transitions(self) -> int:
        """How often it changed hands, as far as we know."""
        return (self._lease.spec.lease_transitions or 0) if self._lease is not None else 0

    @property
    def is_ours(self) -> bool:
        """Whether we held the Lease when it was last seen."""
        return self.holder == self._identity

    @property
    def expires_at(self) -> float:
        """Monotonic time from when on the record no longer protects its holder."""
        duration = self._lease.spec.lease_duration_seconds if self._lease is not None else 0
        return self.observed_at + (duration or 0)

    @property
    def reference(self) -> ObjectReference:
        """The Lease, for events."""
        metadata = self._lease.metadata if self._lease is not None else ObjectMeta()
        return ObjectReference(
            kind="Lease",
            api_version="coordination.k8s.io/v1",
            namespace=self._namespace,
            name=self._name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )

    def observe(self, lease: Lease) -> None:
        """Take note of the Lease as somebody wrote it."""
        self._lease = lease
        record = lease.spec
        if record != self._record:
            self._record = record
            self.observed_at = clock.monotonic()

    def observe_absence(self) -> None:
        """Take note that there is no Lease."""
        self._lease = None
        self._record = None

    async def attempt(self) -> bool:
        """Try once to take or to renew the lease; False when somebody else holds it.

        Raises:
            errors.KubeError: the try failed; who holds the lease may have changed.
        """
        if self.is_ours and self._is_valid() and await self._renew_unread():
            return True
        try:
            lease = await self._leases.get(self._name, namespace=self._namespace)
        except errors.NotFound:
            self.observe_absence()
            return await self._create()
        self.in_doubt = False
        self.observe(lease)
        if self.holder and not self.is_ours and self._is_valid():
            return False
        if self.is_ours:
            self._slowpath.inc()
        await self._write(lease, self._claim(lease.spec))
        return True

    async def release(self) -> bool:
        """Give the lease back, so that a successor need not wait; False if not ours.

        Repeats itself on conflicts and while the server cannot be reached: the caller
        sets the limit.

        Raises:
            errors.ApiError: the server refuses.
        """
        lease = None if self.in_doubt else self._lease
        while True:
            try:
                if lease is None:
                    lease = await self._leases.get(self._name, namespace=self._namespace)
                    self.observe(lease)
                if lease.spec.holder_identity != self._identity:
                    return False
                await self._write(lease, self._release_of(lease.spec))
            except errors.NotFound:
                return False
            except (errors.Conflict, errors.Unreachable, errors.ServerError) as problem:
                lease = None
                if not isinstance(problem, errors.Conflict):
                    await asyncio.sleep(_RELEASE_PAUSE_S)
            else:
                return True

    async def _renew_unread(self) -> bool:
        """Renew what we wrote last, without reading it first; False if that failed."""
        assert self._lease is not None
        try:
            await self._write(self._lease, self._claim(self._lease.spec))
        except errors.KubeError:
            return False
        return True

    async def _create(self) -> bool:
        metadata = ObjectMeta(name=self._name, namespace=self._namespace)
        lease = Lease(metadata=metadata, spec=self._claim(None))
        await self._written(self._leases.create(lease, namespace=self._namespace))
        return True

    async def _write(self, lease: Lease, spec: LeaseSpec) -> None:
        await self._written(self._leases.replace(msgspec.structs.replace(lease, spec=spec)))

    async def _written(self, writing: Awaitable[Lease]) -> None:
        self.in_doubt = True
        try:
            lease = await writing
        except errors.ApiError:
            self.in_doubt = False
            raise
        self.in_doubt = False
        self._record = None  # our own write always counts as a change
        self.observe(lease)

    def _is_valid(self) -> bool:
        return self.expires_at > clock.monotonic()

    def _claim(self, old: LeaseSpec | None) -> LeaseSpec:
        """The record that makes us the holder; a term of ours that runs is continued."""
        now = clock.now()
        transitions = 0
        acquired = format_micro_time(now)
        if old is not None:
            transitions = old.lease_transitions or 0
            if old.holder_identity == self._identity:
                acquired = _micro(old.acquire_time, now)
            else:
                transitions = min(transitions + 1, _MOST_TRANSITIONS)
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._duration_s,
            acquire_time=acquired,
            renew_time=format_micro_time(now),
            lease_transitions=transitions,
        )

    def _release_of(self, old: LeaseSpec) -> LeaseSpec:
        now = format_micro_time(clock.now())
        return LeaseSpec(
            holder_identity="",
            lease_duration_seconds=_RELEASED_S,
            acquire_time=now,
            renew_time=now,
            lease_transitions=old.lease_transitions or 0,
        )


def _micro(text: str | None, default: datetime) -> str:
    try:
        return format_micro_time(parse_time(text) if text else default)
    except ValueError:
        return format_micro_time(default)

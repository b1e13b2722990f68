"""Leader election: one replica is active, the others stand by.

The rules and the wire format of one attempt (`LeaseLock`) are client-go's, so that programs with
client-go and this one may compete for the same Lease. The clocks of other replicas are never
trusted. A lease expires when the spec of the Lease has not changed for `leaseDurationSeconds`,
measured from the local time at which the last change was observed. Unlike in client-go, times are
not rounded to seconds: otherwise the lease of a leader that renews more than once per second would
seem to expire up to a second too early.

`LeaderElector` repeats the attempts. After an attempt, a standby waits for the first of three
events:

- The watch shows a Lease without holder, or that the Lease was deleted: next attempt at once.
- The lease of a silent holder expires: next attempt at the expiry.
- The watch shows no events for a retry period, or fails: next attempt after a retry period,
  stretched by a random factor in [1, 2.2).

A leader renews every retry period. If it cannot renew within the renew deadline, it stops leading,
even if the API server does not respond.

Counterpart in client-go: tools/leaderelection. Differences: the lease is released after an orderly
end of the work, and standbys watch the Lease. The renew deadline counts from the last successful
renewal, and a leader that observes another holder stops at once.

A standby watches only the Lease. Warm caches would cost the API server a second watch of all nodes
and Services, and the standby the memory of a second copy, all the time. They would only save one
list per change of the leader: tenths of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ccm.base import clock, metrics, tasks
from ccm.base.backoff import ExponentialBackoff, FailureStreak, jittered
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import Resource
from ccm.kube.decode import WatchEvent
from ccm.kube.events import EventRecorder
from ccm.model import names
from ccm.model.meta import ObjectMeta, ObjectReference
from ccm.model.objects import Lease, LeaseSpec
from ccm.model.times import format_micro_time, parse_time

_RELEASED_S = 1
"""`leaseDurationSeconds` of a released lease; the API server rejects zero (client-go)."""

_RELEASE_PAUSE_S = 0.25
"""Delay in seconds between attempts to release the lease. Short, because a successor waits for the
release."""

_MAX_TRANSITIONS = (1 << 31) - 1
"""Maximum of `leaseTransitions`, an int32: the API server rejects a Lease with a larger number."""

_slowpath = metrics.counter(
    "leader_election_slowpath_total",
    "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is the string "
    "used to identify the lease. Please make sure to group by name.",
    ("name",),
)

JITTER = 1.2
"""Maximum fraction by which retry periods are stretched (client-go, JitterFactor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """Settings that all replicas share, and the identity of this replica.

    Attributes:
        namespace: namespace of the Lease.
        name: name of the Lease.
        identity: identity of this replica; must be unique, see `new_identity`.
        lease_duration_s: seconds without a renewal after which the lease expires; written to the
            Lease in whole seconds, rounded up.
        renew_deadline_s: seconds after which a leader that cannot renew stops leading.
        retry_period_s: seconds between two attempts.

    Raises:
        ValueError: a value is invalid, or values contradict each other; the message has all faults.
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
        """Time limit in seconds for one request about the Lease.

        Half of the renew deadline, so that two requests fit; at least 1 s.
        """
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
    """Return a unique identity of this process: `<hostname>_<random UUID>`."""
    return f"{hostname}_{uuid.uuid4()}"


class LeaseLock:
    """Last observed state of the Lease, and attempts to acquire, renew and release it.

    Args:
        leases: resource of Leases.
        config: name and duration of the Lease, and the identity of this replica.
        ended: identity of a replica that has certainly ended, so that its lease counts as expired;
            empty = none.
    """

    def __init__(
        self, leases: Resource[Lease], config: LeaderElectionConfig, *, ended: str = ""
    ) -> None:
        self._leases = leases
        self._ended = ended
        self._namespace = config.namespace
        self._name = config.name
        self._identity = config.identity
        self._duration_s = math.ceil(config.lease_duration_s)
        self._lease: Lease | None = None
        self._record: LeaseSpec | None = None
        self.is_renewed = False
        """Whether the last observed change of the Lease was a renewal by its holder."""
        self.former_holder = ""
        """Holder from which this replica took over the lease; empty = there was no holder."""
        self.observed_at = -math.inf
        """Monotonic time at which a change of the Lease's spec was last observed."""
        self.outcome_unknown = False
        """Whether the last write had no response, so that it may have succeeded."""
        self._slowpath = _slowpath.labels(config.name)

    @property
    def holder(self) -> str:
        """Last observed holder of the lease; empty = none."""
        return (self._lease.spec.holder_identity or "") if self._lease is not None else ""

    @property
    def transitions(self) -> int:
        """Last observed number of changes of the holder."""
        return (self._lease.spec.lease_transitions or 0) if self._lease is not None else 0

    @property
    def is_ours(self) -> bool:
        """Whether this replica is the last observed holder."""
        return self.holder == self._identity

    @property
    def expires_at(self) -> float:
        """Monotonic time at which the lease of the last observed holder expires."""
        duration = self._lease.spec.lease_duration_seconds if self._lease is not None else 0
        return self.observed_at + (duration or 0)

    @property
    def reference(self) -> ObjectReference:
        """Reference to the Lease, for events."""
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
        """Record the observed state of the Lease."""
        self._lease = lease
        record, before = lease.spec, self._record
        if record != before:
            self.is_renewed = (
                before is not None and before.holder_identity == record.holder_identity
            )
            self._record = record
            self.observed_at = clock.monotonic()

    def observe_absence(self) -> None:
        """Record that the Lease does not exist."""
        self._lease = None
        self._record = None

    async def attempt(self) -> bool:
        """Try once to acquire or to renew the lease; return False if another replica holds it.

        Raises:
            errors.KubeError: the attempt failed; the holder may have changed.
        """
        if self._lease is not None and self.is_ours and self._is_valid():
            with contextlib.suppress(errors.KubeError):  # fast path: write without a read
                await self._write(self._lease, self._claim(self._lease.spec))
                return True
        try:
            lease = await self._leases.get(self._name, namespace=self._namespace)
        except errors.NotFound:
            self.observe_absence()
            return await self._create()
        self.outcome_unknown = False
        self.observe(lease)
        if self.holder and not self.is_ours and self._is_valid():
            return False
        if self.is_ours:
            self._slowpath.inc()
        await self._write(lease, self._claim(lease.spec))
        return True

    async def release(self) -> bool:
        """Release the lease, so that a successor need not wait for its expiry.

        After a conflict or a 5xx, and while the server is unreachable, the release is retried
        without a limit: the caller sets the time limit.

        Returns:
            False if this replica does not hold the lease.

        Raises:
            errors.ApiError: the server rejects the read or the write.
        """
        # After a write with an unknown outcome the observed resourceVersion may be outdated.
        lease = None if self.outcome_unknown else self._lease
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

    async def _create(self) -> bool:
        metadata = ObjectMeta(name=self._name, namespace=self._namespace)
        lease = Lease(metadata=metadata, spec=self._claim(None))
        await self._track_write(self._leases.create(lease, namespace=self._namespace))
        return True

    async def _write(self, lease: Lease, spec: LeaseSpec) -> None:
        await self._track_write(self._leases.replace(msgspec.structs.replace(lease, spec=spec)))

    async def _track_write(self, writing: Awaitable[Lease]) -> None:
        # Cancellation or a lost response leaves the outcome unknown.
        self.outcome_unknown = True
        try:
            lease = await writing
        except errors.ApiError:
            self.outcome_unknown = False
            raise
        self.outcome_unknown = False
        self._record = None  # a successful write always counts as a change
        self.observe(lease)

    def _is_valid(self) -> bool:
        return self.expires_at > clock.monotonic() and self.holder != self._ended

    def _claim(self, old: LeaseSpec | None) -> LeaseSpec:
        """Return the spec that makes this replica the holder.

        If this replica already is the holder, `acquireTime` and `leaseTransitions` stay.
        """
        now = clock.now()
        transitions = 0
        acquired = format_micro_time(now)
        if old is None:
            self.former_holder = ""  # forget the holder that a failed attempt recorded
        else:
            transitions = old.lease_transitions or 0
            if old.holder_identity == self._identity:
                with contextlib.suppress(ValueError):
                    acquired = format_micro_time(parse_time(old.acquire_time or ""))
            else:
                self.former_holder = old.holder_identity or ""
                transitions = min(transitions + 1, _MAX_TRANSITIONS)
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


HEALTH_TOLERANCE_S = 20.0
"""Seconds from the expiry of the lease until the health check fails, if the replica still acts as
leader (cloud-controller-manager)."""

_WATCH_TIMEOUT_S = 300
"""Requested duration of a watch in seconds (client-go, minimum of a reflector)."""

_WATCH_BACKOFF = ExponentialBackoff(base_s=1.0, factor=2.0, cap_s=60.0, jitter=0.5)
"""Delays after failed watches. They may be long, because a standby without a watch reads the Lease
every retry period."""

_SHORT_WATCH_S = 1.0
"""Minimum duration of a watch, in seconds. After a shorter watch the next watch is delayed: a
server may end each watch at once (client-go)."""

_EXPIRY_MARGIN_S = 0.001
"""Seconds from the expiry of a lease to the next attempt, so that the lease has surely expired."""

_master_status = metrics.gauge(
    "leader_election_master_status",
    "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates "
    "backup, 1 indicates master. 'name' is the string used to identify the lease. Please "
    "make sure to group by name.",
    ("name",),
)


class LostLease(Exception):
    """The leader could not renew its lease; another replica may lead now.

    Attributes:
        lease: namespace and name of the Lease.
    """

    def __init__(self, message: str, *, lease: str) -> None:
        super().__init__(message)
        self.lease = lease


class LeaderElector:
    """Competes for a Lease, and runs the work of the leader while it holds the Lease.

    Args:
        leases: resource of Leases. Its client must have no rate limiter, and should have the time
            limit `LeaderElectionConfig.request_timeout_s`.
        config: see `LeaderElectionConfig`.
        recorder: records an event when this replica becomes leader or stops leading.
        on_renewed: called when the lease was acquired or renewed, with the monotonic time at which
            the attempt began: a successor measures the lease duration from a later time.
        on_lost: called when the lease is lost, before the work is cancelled. A successor may start
            when the lease duration less the renew deadline has passed since this call.
        before_release: awaited after the work has ended and before the lease is released. It must
            have a time limit, because a successor waits meanwhile. If it returns False, some work
            has not ended, and the lease is left to expire instead.
        on_rival: called with the identity of another replica when that replica renews the lease;
            once for each replica.
        ended: as for `LeaseLock`.
        rng: source of jitter.
    """

    def __init__(
        self,
        leases: Resource[Lease],
        config: LeaderElectionConfig,
        *,
        recorder: EventRecorder,
        on_renewed: Callable[[float], object],
        on_lost: Callable[[], object],
        before_release: Callable[[], Awaitable[bool]],
        on_rival: Callable[[str], object] = lambda _holder: None,
        ended: str = "",
        rng: random.Random | None = None,
    ) -> None:
        self._leases = leases
        self._config = config
        self._recorder = recorder
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._before_release = before_release
        self._on_rival = on_rival
        self._rng = rng or random.Random()
        self._log = logger("leader", lease=f"{config.namespace}/{config.name}")
        self._lock = LeaseLock(leases, config, ended=ended)
        self._status = _master_status.labels(config.name)
        self._status.set(0)
        self.is_leader = False
        """Whether this replica is the leader; after the loss of the lease, True until its work has
        ended.
        """
        self._renewed_at = -math.inf
        self._reported = self._reported_rival = ""
        self._unreachable = Outage(
            self._log,
            start_message="cannot acquire or renew lease, retrying",
            end_message="lease access recovered",
        )
        self._lease_changed = asyncio.Event()
        self._last_watch_event_at: float | None = None

    @property
    def holder(self) -> str:
        """Last observed holder of the lease; empty = none."""
        return self._lock.holder

    @property
    def renewal_problem(self) -> str:
        """Message if this replica is the leader but cannot renew its lease; else empty."""
        if not (self.is_leader and self._unreachable):
            return ""
        silent_s = clock.monotonic() - self._lock.observed_at
        return (
            f"lease {self._config.name} could not be renewed for {silent_s:.0f} s; after "
            f"{self._config.renew_deadline_s:g} s this replica stops leading"
        )

    @property
    def former_holder(self) -> str:
        """Holder from which this replica took over the lease; empty = there was no holder."""
        return self._lock.former_holder

    @property
    def transitions(self) -> int:
        """Last observed number of changes of the holder."""
        return self._lock.transitions

    def check(self, now_s: float | None = None) -> str | None:
        """Return the fault for a health check; None = healthy.

        Only a leader whose lease expired more than `HEALTH_TOLERANCE_S` ago is unhealthy.

        Args:
            now_s: monotonic time; None = now.
        """
        now = clock.monotonic() if now_s is None else now_s
        silent_s = now - self._lock.observed_at
        if not self.is_leader or silent_s <= self._config.lease_duration_s + HEALTH_TOLERANCE_S:
            return None
        return f"failed election to renew leadership on lease {self._config.name}"

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stand by until elected, then run `lead` while this replica is the leader.

        When `lead` ends, the lease is released; then this method returns, or raises the error of
        `lead`. If this method is cancelled, it cancels `lead`, waits for its end, and releases the
        lease.

        Raises:
            LostLease: the lease could not be renewed; `lead` was cancelled and has ended.
        """
        try:
            await self._acquire()
        except asyncio.CancelledError:
            # The last attempt may have acquired the lease.
            if self._lock.outcome_unknown or self._lock.is_ours:
                await self._release()
            raise
        self._start_leading()
        work = tasks.spawn(lead(), name="leading")
        renewal = tasks.spawn(self._renew_until_lost(), name="renewing")
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
            if lost:
                self._on_lost()
        finally:
            await self._stop_leading(work, renewal)
        if lost:
            where = f"{self._config.namespace}/{self._config.name}"
            fault = None if renewal.cancelled() else renewal.exception()
            holder = "" if self._lock.is_ours else self._lock.holder
            held = f": held by {holder}" if holder else ""
            raise LostLease(f"could not renew lease {where}{held}", lease=where) from fault
        work.result()

    async def _acquire(self) -> None:
        watcher = tasks.spawn(self._follow(), name="lease-watch")
        try:
            while True:
                # Clear the event before the attempt, so that a change during the attempt ends the
                # next wait.
                self._lease_changed.clear()
                if await self._attempt(self._config.renew_deadline_s):
                    return
                await self._wait_for_attempt()
        finally:
            await tasks.cancel_and_join(watcher)

    async def _wait_for_attempt(self) -> None:
        """Wait until the next attempt is due, or the watch shows a Lease without a holder."""
        tried_at = clock.monotonic()
        period_s = jittered(self._config.retry_period_s, JITTER, self._rng)
        while True:
            left = self._next_try(tried_at, period_s) - clock.monotonic()
            if not await tasks.wait_for(self._lease_changed, left):
                return
            self._lease_changed.clear()
            if not self._lock.holder:
                return

    def _next_try(self, tried_at: float, period_s: float) -> float:
        poll_at = tried_at + period_s
        if self._last_watch_event_at is not None:
            # No read is needed while the watch delivers the leader's renewals.
            quiet_from = max(tried_at, self._last_watch_event_at) + self._config.retry_period_s
            poll_at = quiet_from + period_s
        expiry = self._lock.expires_at + _EXPIRY_MARGIN_S
        return min(poll_at, expiry) if self._lock.holder and expiry > tried_at else poll_at

    async def _follow(self) -> None:
        """Watch the Lease while standing by."""
        # The delays are reset as in client-go's reflector: rare failures must not lead to long
        # delays.
        streak = FailureStreak(policy=_WATCH_BACKOFF, reset_after_s=120.0, rng=self._rng)
        while True:
            opened_at = clock.monotonic()
            try:
                await self._follow_once()
            except errors.KubeError as problem:
                self._log.debug("lease watch failed, polling the lease instead", error=str(problem))
            finally:
                self._last_watch_event_at = None
            now = clock.monotonic()
            lasted = now - opened_at >= _SHORT_WATCH_S
            await asyncio.sleep(0 if lasted else streak.next_delay(now))

    async def _follow_once(self) -> None:
        async with self._leases.watch(
            namespace=self._config.namespace,
            timeout_s=_WATCH_TIMEOUT_S,
            field_selector=f"metadata.name={self._config.name}",
            # A leader renews several times in this time: after a longer silence, the connection may
            # be dead.
            idle_timeout_s=self._config.lease_duration_s,
        ) as events:
            self._last_watch_event_at = clock.monotonic()
            async for event in events:
                self._last_watch_event_at = clock.monotonic()
                if event.object is not None and event.object.name == self._config.name:
                    self._take_event(event, event.object)

    def _take_event(self, event: WatchEvent[Lease], lease: Lease) -> None:
        if event.type == "DELETED":
            self._lock.observe_absence()
        else:
            self._lock.observe(lease)
            self._report_holder()
        self._lease_changed.set()

    async def _attempt(self, limit_s: float) -> bool:
        """Make one attempt within `limit_s` seconds; return whether this replica holds the lease.

        Failures are logged and return False.
        """
        started = clock.monotonic()
        try:
            held = await tasks.with_timeout(limit_s, self._lock.attempt(), name="lease-try")
        except errors.Conflict as conflict:
            self._log.debug("lease taken by another replica", error=str(conflict))
            held = False
        except (errors.KubeError, TimeoutError) as problem:
            self._unreachable.record_failure(error=str(problem))
            return False
        self._unreachable.record_success()
        self._report_holder()
        if held:
            self._renewed_at = started
            self._on_renewed(started)
        return held

    def _report_holder(self) -> None:
        holder, is_rival = self._lock.holder, self._lock.is_renewed and not self._lock.is_ours
        if holder and holder != self._reported:
            self._reported = holder
            self._log.info("new leader elected", leader=holder)
        if holder and is_rival and holder != self._reported_rival:
            self._reported_rival = holder
            self._on_rival(holder)

    async def _renew_until_lost(self) -> None:
        while True:
            await asyncio.sleep(self._config.retry_period_s)
            if not await self._renew():
                return

    async def _renew(self) -> bool:
        """Renew the lease, with attempts until the renew deadline; False = the lease is lost."""
        while (left := self._renewed_at + self._config.renew_deadline_s - clock.monotonic()) > 0:
            if await self._attempt(left):
                return True
            # Once another replica holds the lease, there is no reason to wait for the deadline.
            if self._lock.holder and not self._lock.is_ours:
                return False
            left = self._renewed_at + self._config.renew_deadline_s - clock.monotonic()
            await asyncio.sleep(min(self._config.retry_period_s, left))
        return False

    def _start_leading(self) -> None:
        self.is_leader = True
        self._status.set(1)
        self._log.info("became leader", identity=self._config.identity)
        self._record_event("became leader")

    async def _stop_leading(self, work: asyncio.Task[None], renewal: asyncio.Task[None]) -> None:
        """End the work while renewals continue; then release the lease, unless it was lost."""
        may_release = False
        try:
            # Renewals continue, because no successor may start before the work has ended.
            await tasks.cancel_and_join(work)
            self._record_event("stopped leading")
            if not renewal.done():
                may_release = await self._before_release()
        finally:
            lost = renewal.done()
            await tasks.cancel_and_join(renewal)
            self.is_leader = False
            self._status.set(0)
            self._log.info("stopped leading", identity=self._config.identity, lost=lost)
        if may_release and not lost:
            await self._release()

    async def _release(self) -> None:
        try:
            released = await tasks.with_timeout(
                self._config.request_timeout_s, self._lock.release(), name="lease-release"
            )
        except (errors.KubeError, TimeoutError) as problem:
            self._log.warning("lease release failed", error=str(problem))
        else:
            self._log.info("lease released", released=released)

    def _record_event(self, what: str) -> None:
        self._recorder.event(
            self._lock.reference,
            names.NORMAL,
            names.REASON_LEADER_ELECTION,
            f"{self._config.identity} {what}",
        )

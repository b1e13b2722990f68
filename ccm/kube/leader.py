"""Leader election: of all replicas one works, the others stand by.

The rules of a single try are in `ccm.kube.lock`. Here are the loops around it. Standing
by: try, then wait for the first of three. The Lease is watched, and an empty holder or
a missing Lease is tried at once; a holder that falls silent is challenged at the moment
its lease runs out; and where the watch says nothing, the Lease is read again every
retry period, stretched by a random factor in [1, 2.2). Leading: renew every retry
period; without a success for the renew deadline the leadership is lost, whatever the API
server is doing meanwhile.

Counterpart in client-go: tools/leaderelection. Beyond it: the lease is given back when
the work has ended in an orderly way, standbys watch, the renew deadline is counted from
the last success, and a leader that sees another holder stops at once.

A standby watches the Lease and nothing else. Caches that it kept warm would cost the API server
a second watch of every node and Service and the standby their memory, all the time, to save one
listing per hand-over, which takes tenths of a second.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ccm.base import clock, metrics, tasks
from ccm.base.backoff import Exponential, Streak, jittered
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import WatchEvent
from ccm.kube.lock import JITTER, LeaderElectionConfig, LeaseLock, Leases
from ccm.model import names
from ccm.model.lease import Lease
from ccm.model.meta import ObjectReference

HEALTH_TOLERANCE_S = 20.0
"""How long beyond its own end a leader's lease may go unnoticed until the health check
fails (cloud-controller-manager)."""

_WATCH_TIMEOUT_S = 300
_WATCH_BACKOFF = Exponential(base_s=1.0, factor=2.0, cap_s=60.0, jitter=0.5)
_SHORT_WATCH_S = 1.0
_JUST_AFTER_S = 0.001

_master_status = metrics.gauge(
    "leader_election_master_status",
    "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates "
    "backup, 1 indicates master. 'name' is the string used to identify the lease. Please "
    "make sure to group by name.",
    ("name",),
)


class LostLease(Exception):
    """We led and could not renew; another replica may lead now."""


class WatchedLeases(Leases, Protocol):
    """What the elector needs of the resource of Leases."""

    def watch(
        self, *, namespace: str, timeout_s: int, field_selector: str, idle_timeout_s: float | None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[Lease]]]:
        """Follow one Lease."""
        ...


class Recorder(Protocol):
    """Who tells people (an `EventRecorder`)."""

    def event(self, reference: ObjectReference, type_: str, reason: str, message: str) -> None:
        """Record an event; never blocks."""
        ...


class LeaderElector:
    """Competes for a Lease and works while it holds it.

    Args:
        leases: the resource of Leases; its client must not wait for a rate limiter and
            should have a timeout of `LeaderElectionConfig.request_timeout_s`.
        config: see `LeaderElectionConfig`.
        recorder: gets an event when we begin and when we stop to lead.
        on_renewed: called when the lease was taken or renewed, with the time at which the request
            for that began: a successor counts from a later one.
        on_lost: called when the lease is lost, before the work is cancelled: from then on
            a successor may lead after the lease duration less the renew deadline.
        before_release: awaited when the work has ended and before the lease is given back; it
            sets a limit to itself, because a successor waits meanwhile. False: something of the
            work has not ended after all, and the lease has to run out.
        rng: where jitter comes from.
    """

    def __init__(
        self,
        leases: WatchedLeases,
        config: LeaderElectionConfig,
        *,
        recorder: Recorder,
        on_renewed: Callable[[float], object],
        on_lost: Callable[[], object],
        before_release: Callable[[], Awaitable[bool]],
        rng: random.Random | None = None,
    ) -> None:
        self._leases = leases
        self._config = config
        self._recorder = recorder
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._before_release = before_release
        self._rng = rng or random.Random()
        self._log = logger("leader", lease=f"{config.namespace}/{config.name}")
        self._lock = LeaseLock(leases, config)
        self._status = _master_status.labels(config.name)
        self._status.set(0)
        self.is_leader = False
        """Whether the work runs under a lease of ours now."""
        self._renewed_at = -math.inf
        self._reported = ""
        self._unreachable = Outage(
            self._log,
            begins="cannot acquire or renew lease, retrying",
            ends="lease can be read and written again",
        )
        self._news = asyncio.Event()
        self._heard_at: float | None = None

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty for nobody."""
        return self._lock.holder

    @property
    def trouble(self) -> str:
        """What keeps us from renewing a lease of ours; empty: nothing."""
        if not (self.is_leader and self._unreachable):
            return ""
        silent_s = clock.monotonic() - self._lock.observed_at
        return (
            f"lease {self._config.name} could not be renewed for {silent_s:.0f} s; after "
            f"{self._config.renew_deadline_s:g} s another daemon may lead"
        )

    @property
    def transitions(self) -> int:
        """How often the lease changed hands."""
        return self._lock.transitions

    def check(self, now_s: float | None = None) -> str | None:
        """What is wrong, for a health check; None while all is well.

        Only a leader can be unhealthy: one that did not notice the end of its lease.
        """
        now = clock.monotonic() if now_s is None else now_s
        silent_s = now - self._lock.observed_at
        if not self.is_leader or silent_s <= self._config.lease_duration_s + HEALTH_TOLERANCE_S:
            return None
        return f"failed election to renew leadership on lease {self._config.name}"

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stand by until we lead, then run `lead` for as long as we do.

        When `lead` ends, its result or exception is ours, after the lease was given
        back. When this is cancelled, `lead` is cancelled, joined, and the lease given
        back.

        Raises:
            LostLease: the lease could not be renewed; `lead` was cancelled and joined.
        """
        try:
            await self._acquire()
        except asyncio.CancelledError:
            if self._lock.in_doubt or self._lock.is_ours:
                await self._release()
            raise
        self._begin()
        work = tasks.spawn(lead(), name="leading")
        renewal = tasks.spawn(self._renew_until_lost(), name="renewing")
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
            if lost:
                self._on_lost()
        finally:
            await self._end(work, renewal)
        if lost:
            where = f"{self._config.namespace}/{self._config.name}"
            fault = None if renewal.cancelled() else renewal.exception()
            holder = "" if self._lock.is_ours else self._lock.holder
            held = f": {holder} holds it" if holder else ""
            raise LostLease(f"could not renew lease {where}{held}") from fault
        work.result()

    async def _acquire(self) -> None:
        watcher = tasks.spawn(self._follow(), name="lease-watch")
        try:
            while True:
                self._news.clear()
                if await self._attempt(self._config.renew_deadline_s):
                    return
                await self._wait_for_turn()
        finally:
            await tasks.cancel_and_join(watcher)

    async def _wait_for_turn(self) -> None:
        """Wait until the next try is due, or the watch shows that nobody leads."""
        tried_at = clock.monotonic()
        period_s = jittered(self._config.retry_period_s, JITTER, self._rng)
        while True:
            left = self._next_try(tried_at, period_s) - clock.monotonic()
            if not await tasks.wait_for(self._news, left):
                return
            self._news.clear()
            if not self._lock.holder:
                return

    def _next_try(self, tried_at: float, period_s: float) -> float:
        poll_at = tried_at + period_s
        if self._heard_at is not None:
            # While the watch delivers the leader's renewals there is nothing to read.
            quiet_from = max(tried_at, self._heard_at) + self._config.retry_period_s
            poll_at = quiet_from + period_s
        expiry = self._lock.expires_at + _JUST_AFTER_S
        return min(poll_at, expiry) if self._lock.holder and expiry > tried_at else poll_at

    async def _follow(self) -> None:
        """Watch the Lease while standing by."""
        streak = Streak(policy=_WATCH_BACKOFF, reset_after_s=120.0, rng=self._rng)
        while True:
            opened_at = clock.monotonic()
            try:
                await self._follow_once()
            except errors.KubeError as problem:
                self._log.debug("cannot watch the lease, reading it instead", error=str(problem))
            finally:
                self._heard_at = None
            now = clock.monotonic()
            lasted = now - opened_at >= _SHORT_WATCH_S
            await asyncio.sleep(0 if lasted else streak.next(now))

    async def _follow_once(self) -> None:
        async with self._leases.watch(
            namespace=self._config.namespace,
            timeout_s=_WATCH_TIMEOUT_S,
            field_selector=f"metadata.name={self._config.name}",
            idle_timeout_s=self._config.lease_duration_s,
        ) as events:
            self._heard_at = clock.monotonic()
            async for event in events:
                self._heard_at = clock.monotonic()
                if event.object is not None and event.object.name == self._config.name:
                    self._take_event(event, event.object)

    def _take_event(self, event: WatchEvent[Lease], lease: Lease) -> None:
        if event.type == "DELETED":
            self._lock.observe_absence()
        else:
            self._lock.observe(lease)
            self._report_holder()
        self._news.set()

    async def _attempt(self, limit_s: float) -> bool:
        """One try that never takes longer than the limit; failures are no exceptions."""
        started = clock.monotonic()
        try:
            held = await tasks.within(limit_s, self._lock.attempt(), name="lease-try")
        except errors.Conflict as conflict:
            self._log.debug("another replica was faster", error=str(conflict))
            held = False
        except (errors.KubeError, TimeoutError) as problem:
            self._unreachable.goes_on(error=str(problem))
            return False
        self._unreachable.is_over()
        self._report_holder()
        if held:
            self._renewed_at = started
            self._on_renewed(started)
        return held

    def _report_holder(self) -> None:
        holder = self._lock.holder
        if not holder or holder == self._reported:
            return
        self._reported = holder
        self._log.info("new leader elected", leader=holder)

    async def _renew_until_lost(self) -> None:
        while True:
            await asyncio.sleep(self._config.retry_period_s)
            if not await self._renew():
                return

    async def _renew(self) -> bool:
        """Renew once, trying until the deadline; False when the leadership is lost."""
        while (left := self._renewed_at + self._config.renew_deadline_s - clock.monotonic()) > 0:
            if await self._attempt(left):
                return True
            if self._lock.holder and not self._lock.is_ours:
                return False
            left = self._renewed_at + self._config.renew_deadline_s - clock.monotonic()
            await asyncio.sleep(min(self._config.retry_period_s, left))
        return False

    def _begin(self) -> None:
        self.is_leader = True
        self._status.set(1)
        self._log.info("became leader", identity=self._config.identity)
        self._tell("became leader")

    async def _end(self, work: asyncio.Task[None], renewal: asyncio.Task[None]) -> None:
        """End the work, still renewing; then give the lease back, if it is ours."""
        may_release = False
        try:
            await tasks.cancel_and_join(work)
            self._tell("stopped leading")
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
            released = await tasks.within(
                self._config.request_timeout_s, self._lock.release(), name="lease-release"
            )
        except (errors.KubeError, TimeoutError) as problem:
            self._log.warning("could not give the lease back", error=str(problem))
        else:
            self._log.info("lease given back", released=released)

    def _tell(self, what: str) -> None:
        self._recorder.event(
            self._lock.reference,
            names.NORMAL,
            names.REASON_LEADER_ELECTION,
            f"{self._config.identity} {what}",
        )

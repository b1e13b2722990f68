"""Who leads: one process at a time holds the Lease; what two managers share has a second one.

While it is ours two things keep us from working beside a successor, also when the event loop is
blocked or the process stood still: nothing is begun once the lease may have run out
(`LeaseGuard`), and the process is ended before it does (`Watchdog`). Both count from the start of
the last renewal that succeeded, because a successor counts from its arrival, which is later.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any

from ccm.app.clients import HURRIED_FLUSH_S, Clients, Events
from ccm.app.health import Vitals
from ccm.app.options import Options, migration
from ccm.app.options.documents import DocumentError
from ccm.app.options.generic import GUARDED
from ccm.app.provider import Misconfigured
from ccm.app.stopping import EXIT_LOST_LEASE, EXIT_OK
from ccm.base import clock, log
from ccm.base.lease_guard import LeaseGuard, Watchdog
from ccm.kube.leader import LeaderElectionConfig, LeaderElector, LostLease, new_identity
from ccm.kube.resources import LEASES
from ccm.model.meta import ObjectReference

LAST_MOMENT = 0.8
"""Part of the time between the loss of the lease and its end after which all has to be over."""

Lead = Callable[[], Coroutine[Any, Any, None]]
"""What is done while we lead."""


class Election:
    """Competes for leases, all under one identity.

    Args:
        options: the flags.
        clients: makes the client that writes leases.
        events: told who leads.
        vitals: told who competes.
        last_resort: armed while a lease is ours.
    """

    def __init__(
        self,
        options: Options,
        clients: Clients,
        events: Events,
        vitals: Vitals,
        last_resort: Watchdog,
    ) -> None:
        self._options = options
        self._renew_deadline_s = options.leader_elect_renew_deadline.total_seconds()
        self._leases = clients.lease(self._renew_deadline_s).resource(LEASES)
        self._events = events
        self._vitals = vitals
        self._last_resort = last_resort
        self._identity = new_identity(socket.gethostname())
        self._log = log.logger("daemon")

    async def run(self, lead: Lead) -> int:
        """Lead when it is our turn, at once if there is no election; the exit code."""
        if not self._options.leader_elect:
            await lead()
            return EXIT_OK
        try:
            await self.hold(self._options.leader_elect_resource_name, lead)
        except LostLease as error:
            self._log.error("leaderelection lost", error=str(error))
            return EXIT_LOST_LEASE
        except BaseExceptionGroup as group:
            lost = group.subgroup(LostLease)
            if lost is None:
                raise
            self._log.error("migration leaderelection lost", error=str(lost.exceptions[0]))
            return EXIT_LOST_LEASE
        return EXIT_OK

    async def hold(self, lease: str, lead: Lead) -> None:
        """Compete for one lease and lead while it is ours.

        Raises:
            LostLease: it is not ours any more.
        """
        options, fence = self._options, LeaseGuard()

        async def fenced() -> None:
            fence.govern()
            await lead()

        elector = LeaderElector(
            self._leases,
            LeaderElectionConfig(
                namespace=options.leader_elect_resource_namespace,
                name=lease,
                identity=self._identity,
                lease_duration_s=options.leader_elect_lease_duration.total_seconds(),
                renew_deadline_s=self._renew_deadline_s,
                retry_period_s=options.leader_elect_retry_period.total_seconds(),
            ),
            recorder=self._events.recorder(options.program),
            on_renewed=lambda began: self._renewed(lease, fence, began),
            on_lost=lambda: self._lost(fence),
            before_release=self._ready_to_release,
        )
        self._vitals.electors[lease] = elector
        try:
            await elector.run(fenced)
        finally:
            # One that could not be given back, or must not be, still ends us before it runs out.
            if elector.holder != self._identity:
                self._last_resort.call_off(lease)

    def writer(self) -> tuple[str, int]:
        """Under which name we lead, and how often the lease changed hands; 0 without one."""
        elector = self._vitals.electors.get(self._options.leader_elect_resource_name)
        return self._identity, elector.transitions if elector is not None else 0

    def tell(self, kind: str, reason: str, message: str) -> None:
        """Record an event about our own lease: it stands for the daemon as a whole."""
        about = ObjectReference(
            api_version=LEASES.api_version,
            kind=LEASES.kind,
            namespace=self._options.leader_elect_resource_namespace,
            name=self._options.leader_elect_resource_name,
        )
        self._events.recorder(self._options.program).event(about, kind, reason, message)

    def _renewed(self, lease: str, fence: LeaseGuard, began: float) -> None:
        duration_s = self._options.leader_elect_lease_duration.total_seconds()
        until = began + GUARDED * duration_s
        fence.extend(until)
        self._last_resort.arm(lease, until - clock.monotonic())

    def _lost(self, fence: LeaseGuard) -> None:
        """A successor may lead soon; nothing of ours may run then, not even a thread."""
        fence.lapse()
        self._events.abandon()
        log.flush()
        left = self._options.leader_elect_lease_duration - self._options.leader_elect_renew_deadline
        self._last_resort.arm("lost lease", LAST_MOMENT * left.total_seconds())

    async def _ready_to_release(self) -> bool:
        """Our work has ended; whether a successor may begin at once."""
        await self._events.flush(HURRIED_FLUSH_S)
        handle = self._vitals.handle
        left = handle.abandoned_changes if handle is not None else 0
        if left:
            self._log.warning("cloud calls do not end, the lease is left to run out", calls=left)
        return not left


def migration_plan(options: Options) -> migration.Plan | None:
    """Which controllers run under a second lease; None = no migration.

    Raises:
        Misconfigured: the file with the plan cannot be used, or both leases are the same.
    """
    if not (options.leader_elect and options.enable_leader_migration):
        return None
    file = options.leader_migration_config
    try:
        plan = migration.load(file) if file else options.leader_migration or migration.DEFAULT
    except DocumentError as error:
        raise Misconfigured(str(error)) from error
    if plan.leader_name == options.leader_elect_resource_name:
        raise Misconfigured(
            f"--leader-migration-config={file}: leaderName is {plan.leader_name!r}, which is "
            "--leader-elect-resource-name already; give the shared lease a name of its own"
        )
    return plan

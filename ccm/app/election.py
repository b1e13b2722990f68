"""Leader election: one process holds the Lease; some controllers need another, shared Lease.

The controllers of a leader migration run under a Lease that several managers share. A controller
whose manifest has a `SharedLease` needs that Lease too, which excludes other programs with the same
task.

Two guards prevent a leader from working at the same time as its successor, even if the leader's
event loop was blocked or its process was suspended. `LeaseGuard` lets no operation start once the
lease may have expired. `Watchdog` ends the process before the lease expires. Both measure from the
moment at which the last successful renewal was sent. The successor measures from a later moment, at
which it observed that renewal.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any

from ccm.app.clients import HURRIED_FLUSH_S, ClientFactory, EventRecorders
from ccm.app.health import DaemonState
from ccm.app.options import Options, controllers, migration
from ccm.app.options.documents import DocumentError
from ccm.app.options.generic import GUARDED_FRACTION
from ccm.app.provider import Misconfigured
from ccm.app.shutdown import EXIT_LOST_LEASE, EXIT_OK
from ccm.base import clock, log
from ccm.base.lease_guard import LeaseGuard, Watchdog
from ccm.base.tasks import leaf_exceptions
from ccm.kube.leader import LeaderElectionConfig, LeaderElector, LostLease, new_identity
from ccm.kube.resources import LEASES
from ccm.model.meta import ObjectReference
from ccm.runtime.manifest import SharedLease

KILL_FRACTION = 0.8
"""Fraction of the time between loss and expiry of the lease.

After this part of the time, the watchdog ends the process.
"""

Lead = Callable[[], Coroutine[Any, Any, None]]
"""Coroutine function with the leader's work; the elector cancels it when the lease is lost."""


class Election:
    """Leader election for the daemon's lease and the shared leases, under one identity.

    Args:
        options: the flags.
        clients: factory of the client that writes leases.
        events: event recorders; they record leader changes.
        vitals: receives the electors, for health checks.
        watchdog: ends the process at a deadline; it is armed while this process holds a lease.
    """

    def __init__(
        self,
        options: Options,
        clients: ClientFactory,
        events: EventRecorders,
        vitals: DaemonState,
        watchdog: Watchdog,
    ) -> None:
        self._options = options
        self._renew_deadline_s = options.leader_elect_renew_deadline.total_seconds()
        self._leases = clients.lease(self._renew_deadline_s).resource(LEASES)
        self._events = events
        self._vitals = vitals
        self._watchdog = watchdog
        self._identity = new_identity(socket.gethostname())
        self._log = log.logger("daemon")

    async def run(self, lead: Lead) -> int:
        """Acquire the daemon's lease and run `lead`; return the exit code.

        With `--leader-elect=false`, run `lead` at once.
        """
        if not self._options.leader_elect:
            await lead()
            return EXIT_OK
        try:
            await self.run_lease(self._options.leader_elect_resource_name, lead)
        except LostLease as error:
            self._log.error("leaderelection lost", error=str(error))
            return EXIT_LOST_LEASE
        except BaseExceptionGroup as group:
            lost = [error for error in leaf_exceptions(group) if isinstance(error, LostLease)]
            if not lost:
                raise
            # `lease` is NAMESPACE/NAME; only a `SharedLease` has such a key in `electors`.
            if lost[0].lease in self._vitals.electors:
                self._log.error("leaderelection lost", error=str(lost[0]))
            else:
                self._log.error("migration leaderelection lost", error=str(lost[0]))
            return EXIT_LOST_LEASE
        return EXIT_OK

    async def run_lease(self, lease: str, lead: Lead, *, shared: SharedLease | None = None) -> None:
        """Compete for one lease, and run `lead` while this process holds it.

        Args:
            lease: name of the Lease; not used for a shared lease.
            lead: the work.
            shared: lease that `lead` needs besides the daemon's, and that another program may hold;
                None = `lease` in the namespace of the daemon's Lease.

        Raises:
            LostLease: the lease was lost.
        """
        options, guard = self._options, LeaseGuard()
        namespace, name = options.leader_elect_resource_namespace, lease
        own = self._vitals.electors.get(options.leader_elect_resource_name)
        if shared is not None:
            namespace, name, lease = shared.namespace, shared.name, str(shared)

        async def guarded() -> None:
            guard.activate(nested=shared is not None)
            await lead()

        def report_rival(holder: str) -> None:
            if shared is not None:
                self._log.warning(
                    "controllers wait, another program holds their lease",
                    lease=lease,
                    holder=holder,
                    advice=shared.advice,
                )

        elector = LeaderElector(
            self._leases,
            LeaderElectionConfig(
                namespace=namespace,
                name=name,
                identity=self._identity,
                lease_duration_s=options.leader_elect_lease_duration.total_seconds(),
                renew_deadline_s=self._renew_deadline_s,
                retry_period_s=options.leader_elect_retry_period.total_seconds(),
            ),
            recorder=self._events.recorder(options.program),
            on_renewed=lambda began: self._on_renewed(lease, guard, began),
            on_lost=lambda: self._on_lost(guard),
            before_release=self._may_release,
            on_rival=report_rival,
            # The daemon's former leader has ended: its watchdog ended it before its lease expired.
            # So a shared lease that it held is free. The lease of a leader migration may belong to
            # another program, which has no watchdog.
            ended=own.former_holder if own is not None and shared is not None else "",
        )
        self._vitals.electors[lease] = elector
        try:
            await elector.run(guarded)
        finally:
            # While the lease is not released, the watchdog stays armed: the process must end
            # before the lease expires.
            if elector.holder != self._identity:
                self._watchdog.cancel(lease)

    def writer(self) -> tuple[str, int]:
        """Return this process's identity, and the Lease's `leaseTransitions`.

        Without an election, the number is 0.
        """
        elector = self._vitals.electors.get(self._options.leader_elect_resource_name)
        return self._identity, elector.transitions if elector is not None else 0

    async def next_epoch(self, stored: int) -> int | None:
        """Return the epoch after `stored`, or None if this process does not hold the lease.

        Storage rejects writes under a lower epoch than the stored one. A leader's epoch is the
        Lease's `leaseTransitions`, which goes back if the Lease is deleted, or restored from a
        backup. Storage would then reject every leader until the count reaches its former value. The
        lease is read from the API server, so that a former leader cannot take over storage.

        Raises:
            KubeError: the lease cannot be read.
        """
        options = self._options
        if options.leader_elect:
            namespace = options.leader_elect_resource_namespace
            lease = await self._leases.get(options.leader_elect_resource_name, namespace=namespace)
            if lease.spec.holder_identity != self._identity:
                return None
        return stored + 1

    def record_event(self, kind: str, reason: str, message: str) -> None:
        """Record an event about the daemon, with the Lease as the involved object."""
        about = ObjectReference(
            api_version=LEASES.api_version,
            kind=LEASES.kind,
            namespace=self._options.leader_elect_resource_namespace,
            name=self._options.leader_elect_resource_name,
        )
        self._events.recorder(self._options.program).event(about, kind, reason, message)

    def _on_renewed(self, lease: str, guard: LeaseGuard, began: float) -> None:
        duration_s = self._options.leader_elect_lease_duration.total_seconds()
        until = began + GUARDED_FRACTION * duration_s
        guard.extend(until)
        self._watchdog.arm(lease, until - clock.monotonic())

    def _on_lost(self, guard: LeaseGuard) -> None:
        """Stop all operations, and arm the watchdog to end the process before the lease expires."""
        guard.expire()
        self._events.abandon()
        log.flush()
        remaining = (
            self._options.leader_elect_lease_duration - self._options.leader_elect_renew_deadline
        )
        self._watchdog.arm("lost lease", KILL_FRACTION * remaining.total_seconds())

    async def _may_release(self) -> bool:
        """Flush events; return whether the lease may be released.

        The lease is kept while a cancelled call still changes the cloud, so that no successor acts
        at the same time.
        """
        await self._events.flush(HURRIED_FLUSH_S)
        handle = self._vitals.handle
        hanging_calls = handle.abandoned_changes if handle is not None else 0
        if hanging_calls:
            self._log.warning(
                "lease not released, cloud calls are still running", calls=hanging_calls
            )
        return not hanging_calls


def load_migration(options: Options) -> migration.LeaderMigration | None:
    """Return the leader migration plan; None if leader migration or election is off.

    Raises:
        Misconfigured: the configuration is invalid, two leases have the same name, or the plan
            migrates a controller that already has a `SharedLease`.
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
            f"--leader-migration-config={file}: leaderName {plan.leader_name!r} is also "
            "--leader-elect-resource-name; give the shared lease another name"
        )
    migrated = f"{options.leader_elect_resource_namespace}/{plan.leader_name}"
    for manifest in controllers.enabled(options.controllers):
        shared = manifest.lease(options)
        if str(shared) == migrated:
            raise Misconfigured(
                f"--leader-migration-config={file}: leaderName {plan.leader_name!r} is also the "
                f"Lease of {manifest.name}; give the shared lease another name"
            )
        if shared and plan.assignment(manifest.name) is migration.LeaseAssignment.MIGRATED:
            raise Misconfigured(
                f"--leader-migration-config={file}: {manifest.name} is in controllerLeaders, but "
                f"has the Lease {shared} already; remove the entry"
            )
    return plan

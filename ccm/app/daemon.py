"""The daemon: connects all components, and starts and stops them in order.

Start: credentials, transport, provider (opening is retried after temporary failures), leader
election. The leader then starts caches, events and controllers.

Stop, on SIGTERM or SIGINT: wait for in-flight changes until the grace period is over. Then stop
controllers and caches, flush events, release the Lease, close the provider and the transport.

Lost Lease: cancel all work and exit with 1. A watchdog kills the process before a successor may
lead, even if the process hangs (`election`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import ccm
from ccm.app import http, metrics, provider, reload, shutdown
from ccm.app.clients import (
    EVENTS,
    PERSISTENCE,
    AccountTransports,
    ClientFactory,
    EventRecorders,
    RemoteCluster,
    other_clusters,
    provider_opener,
    user_agent,
)
from ccm.app.controllers import ControllerRunner
from ccm.app.election import Election, load_migration
from ccm.app.health import DaemonState
from ccm.app.http import ServerContext, serving
from ccm.app.options import Options, migration
from ccm.app.options.generic import JOURNAL_OFF
from ccm.base import log
from ccm.base.drain import Drain
from ccm.base.lease_guard import Watchdog
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.kube import config as kube_config
from ccm.kube.transport import Transport

if TYPE_CHECKING:
    from ccm.app.journal import DaemonJournal
    from ccm.app.persistence import PersistenceStores

Serve = Callable[[ServerContext], AbstractAsyncContextManager[asyncio.Task[None]]]
"""Context manager that serves HTTP; the task that it yields ends only with an exception."""

FORCED_EXIT_DELAY_S = 2.0
"""Maximum seconds for closing everything before a forced exit because of hanging cloud calls."""


async def run(options: Options, environ: Mapping[str, str], serve: Serve = serving) -> int:
    """Run the daemon until a signal stops it, and return the exit code.

    Args:
        options: the flags.
        environ: environment variables of the process.
        serve: context manager that serves HTTP while the daemon runs.

    Raises:
        Misconfigured: a file or a flag is invalid.
    """
    since = reload.signatures(options.kubeconfig, options.cloud_config, options.config)
    opened = provider_opener(options)
    try:
        cluster = await asyncio.to_thread(
            kube_config.load, options.kubeconfig, options.master, environ=environ
        )
    except kube_config.ClusterConfigError as error:
        given = "--kubeconfig=" if options.kubeconfig else ""
        raise provider.Misconfigured(f"{given}{error}") from error
    plan = load_migration(options)
    async with (
        _logged_lifetime(options, cluster) as closed,
        Transport(cluster, user_agent=user_agent(options.program)) as transport,
        AccountTransports(transport) as accounts,
        other_clusters(options, environ) as others,
    ):
        acting = accounts if options.use_service_account_credentials else None
        clients = ClientFactory(
            transport,
            options.api_rate,
            is_default=options.is_default_api_rate,
            accounts=acting,
        )
        configured = provider.ConfiguredProvider(options, opened, clients)
        kubeconfig = reload.KubeconfigSource(
            options.kubeconfig,
            transport,
            environ=environ,
            master=options.master,
            on_adopted=accounts.update_tls,
        )
        daemon = Daemon(
            options,
            clients,
            configured,
            plan=plan,
            kubeconfig=kubeconfig,
            others=others,
            signatures=since,
            closed=closed,
        )
        if options.uses_storage:
            await asyncio.to_thread(daemon.load_persistence, clients)
        context = ServerContext(
            options=options,
            vitals=daemon.vitals,
            transport=transport,
            environ=environ,
            others={role: other.transport for other in others for role in other.roles[:1]},
        )
        async with serve(context) as served:
            return await _run_until_stopped(daemon, served, options)


@asynccontextmanager
async def _logged_lifetime(
    options: Options, cluster: kube_config.ClusterConfig
) -> AsyncIterator[threading.Event]:
    """Log "starting", and "stopped" after the block; then set the yielded event.

    The block must contain all other context managers, so that all are closed before "stopped" is
    logged.
    """
    logger, closed = log.logger("daemon"), threading.Event()
    logger.info(
        "starting",
        version=ccm.__version__,
        provider=options.cloud_provider,
        server=cluster.server,
        source=cluster.source,
        event_loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
    )
    try:
        yield closed
    finally:
        logger.info("stopped", **metrics.summary())
        closed.set()


async def _run_until_stopped(daemon: Daemon, served: asyncio.Task[None], options: Options) -> int:
    """Run until a signal, the end of the daemon's task or a failure of the HTTP server.

    Returns:
        The exit code.
    """
    logger, fault = log.logger("daemon"), None
    with shutdown.signals() as stop:
        work = spawn(daemon.run(), name="daemon")
        stop_signal = spawn(stop.wait(), name="stop-signal")
        period_s = options.log_flush_frequency.total_seconds()
        flushing = spawn(log.flush_every(period_s), name="log-flush") if period_s > 0 else None
        try:
            await asyncio.wait({work, stop_signal, served}, return_when=asyncio.FIRST_COMPLETED)
            if served.done() and not work.done():
                served.result()
            if not work.done():
                logger.info("stopping")
                await shutdown.wind_down(
                    work,
                    drain=daemon.drain,
                    grace_s=options.shutdown_grace_period.total_seconds(),
                    watchdog=daemon.watchdog,
                )
            return work.result() if work.done() else shutdown.EXIT_OK
        except BaseException as error:
            fault = error
            raise
        finally:
            await cancel_and_join(stop_signal, work)
            await cancel_and_join(flushing)
            if stop.is_set() and not work.cancelled():
                fault = work.exception()
            if fault is not None and (stop.is_set() or daemon.abandoned_calls):
                # Logged here, because a hanging cloud call may keep `main` from logging the error.
                logger.error("the daemon failed", exc_info=fault)
            code = shutdown.EXIT_LOST_LEASE if fault is None else shutdown.EXIT_DEFECT
            daemon.finish(shutdown.EXIT_OK if stop.is_set() else code)


class Daemon:
    """The daemon: its provider, leader election and controllers.

    Args:
        options: the flags.
        clients: factory of API clients.
        configured: opens the provider.
        plan: leader migration, which assigns controllers to the second lease; None = no migration.
        kubeconfig: credentials for the API server, watched for changes.
        others: clusters other than the daemon's.
        signatures: signatures of the configuration files, taken before the files were read.
        closed: event that is set once `run` has closed the transports.
    """

    def __init__(
        self,
        options: Options,
        clients: ClientFactory,
        configured: provider.ConfiguredProvider,
        *,
        plan: migration.LeaderMigration | None,
        kubeconfig: reload.ReloadSource,
        others: Sequence[RemoteCluster] = (),
        signatures: reload.Signatures,
        closed: threading.Event,
    ) -> None:
        self.drain = Drain()
        self.watchdog = Watchdog()
        self.vitals = DaemonState()
        self.vitals.stopping = lambda: self.drain.has_begun
        self._options = options
        self._configured = configured
        self._kubeconfig = kubeconfig
        self._others = others
        self._signatures = {
            **signatures,
            **{path: was for cluster in others for path, was in cluster.signatures.items()},
        }
        self._closed = closed
        self._stores: PersistenceStores | None = None
        self._journal: DaemonJournal | None = None
        self._events = EventRecorders(clients.named(EVENTS), [cluster.events for cluster in others])
        self._election = Election(options, clients, self._events, self.vitals, self.watchdog)
        self._controllers = ControllerRunner(
            options, clients, self._events, self.vitals, plan, others=others
        )
        self._holder = provider.ProviderHolder(
            make=partial(provider.make_handle, options), on_exchanged=self._controllers.retry_now
        )

    async def run(self) -> int:
        """Open the provider, compete for the lease, lead; return the exit code."""
        async with self._events:
            try:
                # Watch credentials from the start: opening a provider may need the API server.
                return await _run_beside(
                    self._reloader(*self._initial_sources()).run(), self._serve()
                )
            finally:
                await self._holder.close()

    @property
    def abandoned_calls(self) -> int:
        """Number of cloud calls that were cancelled but still run."""
        return self.vitals.handle.abandoned_calls if self.vitals.handle is not None else 0

    def finish(self, code: int) -> None:
        """Disarm the watchdog; if cancelled cloud calls still run, force the exit instead.

        Call this method after all other work has ended.
        """
        if hanging_calls := self.abandoned_calls:
            log.logger("daemon").warning(
                "exit forced, cloud calls are still running", calls=hanging_calls
            )
            threading.Thread(target=_force_exit, args=(self._closed, code), daemon=True).start()
        else:
            self.watchdog.cancel()

    async def _serve(self) -> int:
        if name := self._options.cloud_provider:
            self._configured.events = self._events.recorder(f"{name}-{migration.COMPONENT}")
        handle = await self._holder.open(lambda: self._configured.opened(self.vitals.not_opened))
        self.vitals.opened(handle)
        return await _run_beside(self._watch_provider(), self._election.run(self._lead))

    async def _lead(self) -> None:
        """Run storage and controllers until cancelled.

        Storage is opened after the lease is acquired, beside the controllers, and closed before the
        lease is released.
        """
        self.drain.activate()
        async with (
            nullcontext()
            if self._stores is None
            else self._stores.opened(self._options.cluster_name, *self._election.writer()),
            nullcontext() if self._journal is None else self._journal.running(self._holder.handle),
        ):
            beside = None if self._journal is None else self._journal.run
            await self._controllers.run(self._holder.handle, self._election, beside=beside)

    def load_persistence(self, clients: ClientFactory) -> None:
        """Read the persistence configuration, and prepare the journal. Raises Misconfigured."""
        from ccm.app import journal, persistence  # needed only with these flags

        self._stores = persistence.PersistenceStores(
            self._options.persistence_config,
            clients.named(PERSISTENCE),
            namespace=self._options.leader_elect_resource_namespace,
            lease=self._options.leader_elect_resource_name,
            record_event=self._election.record_event,
            next_epoch=self._election.next_epoch,
        )
        self.vitals.persistence = self._stores.health
        if self._options.journal != JOURNAL_OFF:
            self._journal = self.vitals.journal = journal.DaemonJournal(
                self._options, self._stores, self._election.record_event
            )

    async def _watch_provider(self) -> None:
        """Serve webhooks and reload the provider's files until cancelled.

        Raises:
            ProviderCrashed: the provider's task ended.
            Misconfigured: the webhooks cannot be served.
        """
        async with NamedTaskGroup() as group:
            if self._options.cloud_config or self._configured.watched_files:
                file, accept = self._options.cloud_config, self._controllers.check_provider
                source = reload.CloudConfigSource(file, self._configured, self._holder, accept)
                group.start(self._reloader(source).run(), name="reload-provider")
            group.start(self._controllers.preload_modules(), name="prepare")
            group.start(self._holder.wait_for_crash(), name="provider-watch")
            serving = http.serve_webhooks(self._options, lambda: self._holder.handle.cloud)
            group.start(serving, name="webhooks")

    def _initial_sources(self) -> list[reload.ReloadSource]:
        """Return the files to watch before the provider is open: kubeconfigs and `--config`."""
        options, sources = self._options, [cluster.source for cluster in self._others]
        if options.kubeconfig or not options.master:
            sources.append(self._kubeconfig)
        if options.config:
            sources.append(reload.DaemonConfigSource(options))
        return sources

    def _reloader(self, *sources: reload.ReloadSource) -> reload.Reloader:
        return reload.Reloader(sources, self._election.record_event, since=self._signatures)


def _force_exit(closed: threading.Event, code: int) -> None:
    """Exit once `closed` is set, at the latest after `FORCED_EXIT_DELAY_S`."""
    if not closed.wait(FORCED_EXIT_DELAY_S):
        log.logger("daemon").info("stopped", **metrics.summary())
    log.flush()
    os._exit(code)


async def _run_beside(follow: Coroutine[Any, Any, None], serve: Coroutine[Any, Any, int]) -> int:
    """Run both coroutines until `serve` ends, and return its exit code.

    A failure of `follow` cancels `serve` and is raised.
    """
    following, work = spawn(follow, name="follow"), spawn(serve, name="serve")
    try:
        await asyncio.wait({following, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            following.result()
            await asyncio.wait({work})  # `follow` returned, because it has no file to watch
        return work.result()
    finally:
        await cancel_and_join(following, work)
        # If `serve` failed during the stop, raise its error: it says more than the cancellation.
        if not work.cancelled() and (fault := work.exception()) is not None:
            raise fault

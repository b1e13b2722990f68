"""Wires everything together; the order of start and stop is written down here.

Start: credentials, transport, provider (retried until its cloud answers), leader
election; on leadership caches, events, controllers.
Stop, on SIGTERM or SIGINT: changes under way come to their end, for as long as the grace period
lasts; then controllers, caches; events flushed, Lease released, provider closed, transport
closed. On a lost Lease: everything is cancelled at once, exit 1; what has not ended by the time
a successor may lead is ended by force.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ccm
from ccm.app import controllers, metrics, reload, sources, stopping, webhooks
from ccm.app.accounts import Accounts
from ccm.app.clients import EVENTS, INFORMERS, Clients, user_agent
from ccm.app.events import HURRIED_FLUSH_S, Events
from ccm.app.informers import ProviderInformers
from ccm.app.options import PROGRAM, Options, gates, migration
from ccm.app.options.controllers import MANIFESTS
from ccm.app.options.documents import DocumentError
from ccm.app.provider import Misconfigured, context, opened, opened_once
from ccm.app.serving import Surroundings, serving
from ccm.app.tenant import Tenant
from ccm.app.vitals import Vitals
from ccm.base import log
from ccm.base.backoff import jittered
from ccm.base.drain import Drain
from ccm.base.files import Signature
from ccm.base.lastresort import LastResort
from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.base.throttle import TokenBucket
from ccm.cloud import registry
from ccm.cloud.calls.handle import Handle
from ccm.cloud.config import Context
from ccm.cloud.interface import Cloud, Inventory
from ccm.cloud.inventory import SharedInventory
from ccm.kube import config as kube_config
from ccm.kube.informer import Informer, Informers
from ccm.kube.leader import LeaderElector, LostLease
from ccm.kube.lock import Terms, new_identity
from ccm.kube.resources import LEASES, NODES
from ccm.kube.transport import Transport
from ccm.model import Node
from ccm.model.meta import ObjectReference
from ccm.model.names import COMPONENT_MANAGER
from ccm.runtime.controller import Controller
from ccm.runtime.manifest import ControllerContext, Manifest
from ccm.runtime.sync import until_synced

EXIT_OK = 0
EXIT_CONFIGURATION = 1
EXIT_LOST_LEASE = 1

LEAVE_S = 2.0
"""How long the process outlives a provider's call that does not let itself be ended."""

LAST_MOMENT = 0.8
"""Part of the time between the loss of the lease and its end after which all has to be over."""

_NO_MIGRATION = migration.Plan(leader_name="")


async def run(options: Options, environ: Mapping[str, str]) -> int:
    """Run the daemon until it is told to stop; the exit code.

    Raises:
        Misconfigured: a person has to correct something.
    """
    logger = log.logger("daemon")
    since = reload.signatures(options.kubeconfig, options.cloud_config, options.config)
    try:
        opener = registry.load(options.cloud_provider)
        cluster, parts = await asyncio.to_thread(
            sources.read_cluster, options.kubeconfig, options.master, environ
        )
        plan = migration_plan(options)
    except kube_config.ConfigError as error:
        given = f"--kubeconfig={options.kubeconfig}: " if options.kubeconfig else ""
        raise Misconfigured(f"{given}{error}") from error
    except (registry.ProviderError, DocumentError) as error:
        raise Misconfigured(str(error)) from error
    logger.info("starting", version=ccm.__version__, server=cluster.server, source=cluster.source)
    async with (
        Transport(cluster, user_agent=user_agent(PROGRAM)) as transport,
        Accounts(transport) as accounts,
    ):
        clients = Clients(
            transport,
            options.api_rate,
            accounts=accounts if options.use_service_account_credentials else None,
        )
        wire = sources.Kubeconfig(
            options.kubeconfig,
            transport,
            master=options.master,
            environ=environ,
            adopted=accounts.follow,
            more=parts,
        )
        daemon = Daemon(
            options,
            clients,
            opener,
            plan=plan,
            followed=reload.Followed(
                since=since, sources=[wire] if options.kubeconfig or not options.master else []
            ),
        )
        around = Surroundings(vitals=daemon.vitals, transport=transport, environ=environ)
        async with serving(options, around) as served:
            return await _live(daemon, served, options)


async def _live(daemon: Daemon, served: asyncio.Task[None], options: Options) -> int:
    """Run the daemon until it is told to stop, or its HTTPS server fails; the exit code."""
    logger = log.logger("daemon")
    with stopping.signals() as stop:
        work = spawn(daemon.run(), name="daemon")
        told = spawn(stop.wait(), name="stop-signal")
        flushing = spawn(_keep_flushing(options), name="log-flush")
        try:
            await asyncio.wait({work, told, served}, return_when=asyncio.FIRST_COMPLETED)
            if served.done() and not work.done():
                served.result()
            if not work.done():
                logger.info("stopping")
                await stopping.wind_down(
                    work,
                    drain=daemon.drain,
                    grace_s=options.shutdown_grace_period.total_seconds(),
                    last_resort=daemon.last_resort,
                )
            return work.result() if work.done() else EXIT_OK
        finally:
            await cancel_and_join(told, work)
            await cancel_and_join(flushing)
            daemon.let_go(EXIT_OK if stop.is_set() else EXIT_LOST_LEASE)
            if stop.is_set() and not work.cancelled() and work.exception() is not None:
                logger.error("stopping did not go well", exc_info=work.exception())
            logger.info("stopped", **metrics.summary())


class Daemon:
    """One process: provider, election, controllers.

    Args:
        options: the flags.
        clients: makes API clients.
        opener: opens the provider.
        plan: which controllers run under a second lease; None = no migration.
        followed: what else than our own and the provider's configuration is followed.
    """

    def __init__(
        self,
        options: Options,
        clients: Clients,
        opener: registry.Opener,
        *,
        plan: migration.Plan | None = None,
        followed: reload.Followed = reload.NOTHING,
    ) -> None:
        self._options = options
        self._clients = clients
        self._opener = opener
        self._plan = plan
        self._followed = followed
        self._provider_files: dict[Path, Signature] = {}
        self._tenant = Tenant()
        self._informers: ProviderInformers | None = None
        self._nodes: Informer[Node] | None = None
        self._handle: Handle | None = None
        self._identity = new_identity(socket.gethostname())
        self._log = log.logger("daemon")
        self._events = Events(clients.named(EVENTS))
        self.drain = Drain()
        self.last_resort = LastResort()
        self.vitals = Vitals()

    async def run(self) -> int:
        """Open the provider, then lead when it is our turn; the exit code."""
        name, given = self._options.cloud_provider, self._context()
        async with self._events:
            try:
                cloud = await self._tenant.enter(
                    lambda: opened(
                        name,
                        self._opener,
                        given,
                        anew=self._context,
                        told=self.vitals.not_opened,
                    )
                )
                self._check_cluster_id(cloud)
                return await self._serve(self._open_handle(cloud))
            finally:
                await self._tenant.leave()

    def let_go(self, code: int) -> None:
        """All work has ended; what a provider does not end will not hold up our end."""
        left = self._handle.abandoned_calls if self._handle is not None else 0
        if left:
            self._log.warning("cloud calls do not end, leaving without them", calls=left)
            self.last_resort.arm(LEAVE_S, code)
        else:
            self.last_resort.call_off()

    def _context(self) -> Context:
        return context(
            file=self._options.cloud_config,
            cluster_name=self._options.cluster_name,
            clients=self._clients,
            followed=self._provider_files,
        )

    async def _serve(self, handle: Handle) -> int:
        """Lead when it is our turn, and follow the files meanwhile; the exit code."""
        following = spawn(self._follow(handle), name="follow")
        work = spawn(self._elect(handle), name="elect")
        try:
            await asyncio.wait({following, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                following.result()
            return work.result()
        finally:
            await cancel_and_join(following, work)
            if not work.cancelled() and (fault := work.exception()) is not None:
                raise fault

    async def _elect(self, handle: Handle) -> int:
        options = self._options
        if not options.leader_elect:
            await self._lead(handle)
            return EXIT_OK
        try:
            lease = options.leader_elect_resource_name
            await self._elector(lease).run(lambda: self._lead(handle))
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

    async def _follow(self, handle: Handle) -> None:
        """Follow files and the provider, serve webhooks; ends only by an exception."""
        options, name = self._options, self._options.cloud_provider
        found = [*self._followed.sources]
        if options.config:
            found.append(sources.Configuration(options))
        if options.cloud_config:
            found.append(
                sources.CloudConfig(
                    Path(options.cloud_config),
                    lambda: opened_once(name, self._opener, self._context()),
                    tenant=self._tenant,
                    handle=handle,
                    accept=self._accept,
                    followed=self._provider_files,
                )
            )
        about = ObjectReference(
            api_version=LEASES.api_version,
            kind=LEASES.kind,
            namespace=options.leader_elect_resource_namespace,
            name=options.leader_elect_resource_name,
        )
        tell = reload.teller(self._events.recorder(COMPONENT_MANAGER), about)
        reloader = reload.Reloader(found, tell, since=self._followed.since)
        async with Group() as group:
            group.start(reloader.run(), name="reload")
            group.start(self._tenant.until_crash(), name="provider-watch")
            serving = webhooks.serve(options, lambda: handle.cloud)
            group.start(serving, name="webhooks")

    async def _accept(self, cloud: Cloud) -> None:
        """The last word on a new provider before it is used."""
        self._check_cluster_id(cloud)
        known = self._nodes.store.list() if self._nodes is not None else ()
        await sources.answers(cloud, next(iter(known), None))
        if cloud.set_informers is not None and self._informers is not None:
            cloud.set_informers(self._informers)

    def _elector(self, lease: str) -> LeaderElector:
        options = self._options
        renew_deadline_s = options.leader_elect_renew_deadline.total_seconds()
        elector = LeaderElector(
            self._clients.lease(renew_deadline_s).resource(LEASES),
            Terms(
                namespace=options.leader_elect_resource_namespace,
                name=lease,
                identity=self._identity,
                lease_duration_s=options.leader_elect_lease_duration.total_seconds(),
                renew_deadline_s=renew_deadline_s,
                retry_period_s=options.leader_elect_retry_period.total_seconds(),
            ),
            recorder=self._events.recorder(COMPONENT_MANAGER),
            on_lost=self._lost,
            before_release=lambda: self._events.flush(HURRIED_FLUSH_S),
        )
        return self.vitals.elects(lease, elector)

    def _lost(self) -> None:
        """A successor may lead soon; nothing of ours may run then, not even a thread."""
        options = self._options
        self._events.abandon()
        log.flush()
        left = options.leader_elect_lease_duration - options.leader_elect_renew_deadline
        self.last_resort.arm(LAST_MOMENT * left.total_seconds(), EXIT_LOST_LEASE)

    async def _lead(self, handle: Handle) -> None:
        """Everything that only the leader does, until cancelled."""
        self.drain.govern()
        informers = Informers(
            self._clients.named(INFORMERS), resync_s=self._options.min_resync_period.total_seconds()
        )
        nodes = informers.of(NODES)
        self._nodes, self._informers = nodes, ProviderInformers(nodes)
        if handle.cloud.set_informers is not None:
            handle.cloud.set_informers(self._informers)
        inventory = self._inventory(handle, nodes)
        parts = ControllerContext(
            client=self._clients.named,
            recorder=self._events.recorder,
            informers=informers,
            handle=handle,
            inventory=inventory,
            cluster_name=self._options.cluster_name,
            gates=gates.build(self._options.feature_gates),
        )
        self.vitals.informers = informers
        try:
            async with Group() as group:
                group.start(informers.run(), name="informers")
                group.start(_settle(informers), name="settle")
                if self._plan is not None:
                    group.start(self._lead_migrated(parts, self._plan), name="migration")
                await self._start(group, parts, migration.Runs.MAIN)
        finally:
            self.vitals.stand_by()
            if inventory is not None:
                await inventory.close()

    async def _lead_migrated(self, parts: ControllerContext, plan: migration.Plan) -> None:
        """Run what two managers share, whenever the second lease is ours too."""

        async def lead() -> None:
            async with Group() as group:
                await self._start(group, parts, migration.Runs.MIGRATED)

        await self._elector(plan.leader_name).run(lead)

    async def _start(self, group: Group, parts: ControllerContext, runs: migration.Runs) -> None:
        plan = self._plan or _NO_MIGRATION
        among = [entry for entry in MANIFESTS if plan.of(entry.name) is runs]
        for manifest, controller in controllers.enabled(
            self._options, parts, among, self.vitals.left_out
        ):
            group.start(self._run(manifest, controller), name=manifest.name)
            await self._pause_between_starts()

    async def _run(self, manifest: Manifest[Any], controller: Controller) -> None:
        with metrics.running(manifest.metric), self.vitals.running(manifest.name):
            await controller.run()

    def _open_handle(self, cloud: Cloud) -> Handle:
        options = self._options
        rate = options.cloud_rate
        limiter = TokenBucket(qps=rate[0], burst=rate[1]) if rate else None
        self._handle = Handle(
            cloud,
            deadline_s=options.cloud_call_timeout.total_seconds() or None,
            limiter=limiter,
        )
        self.vitals.opened(self._handle)
        return self._handle

    def _inventory(self, handle: Handle, nodes: Informer[Node]) -> SharedInventory | None:
        if handle.cloud.inventory is None:
            return None
        return SharedInventory(
            lambda: handle.call(Inventory.list_instances),
            population=lambda: len(nodes.store),
            max_age_s=self._options.inventory_max_age.total_seconds(),
        )

    async def _pause_between_starts(self) -> None:
        interval_s = self._options.controller_start_interval.total_seconds()
        if interval_s > 0:
            await asyncio.sleep(jittered(interval_s, 1.0, random.Random()))

    def _check_cluster_id(self, cloud: Cloud) -> None:
        if cloud.has_cluster_id:
            return
        detail = (
            f"cloud provider {cloud.name!r} cannot tell this cluster's objects from others "
            "(no cluster ID)"
        )
        if not self._options.allow_untagged_cloud:
            raise Misconfigured(f"{detail}; give it one, or pass --allow-untagged-cloud")
        self._log.warning("cloud has no cluster ID", error=detail)


def migration_plan(options: Options) -> migration.Plan | None:
    """Which controllers run under a second lease; None = no migration.

    Raises:
        DocumentError: the file with the plan cannot be used.
        Misconfigured: both leases are the same.
    """
    if not (options.leader_elect and options.enable_leader_migration):
        return None
    file = options.leader_migration_config
    plan = migration.load(file) if file else options.leader_migration or migration.DEFAULT
    if plan.leader_name == options.leader_elect_resource_name:
        raise Misconfigured(
            f"--leader-migration-config={file}: leaderName is {plan.leader_name!r}, which is "
            "--leader-elect-resource-name already; give the shared lease a name of its own"
        )
    return plan


async def _keep_flushing(options: Options) -> None:
    period_s = options.log_flush_frequency.total_seconds()
    if period_s > 0:
        await log.flush_every(period_s)


async def _settle(informers: Informers) -> None:
    """Once the caches are complete, take them out of the garbage collector's rounds."""
    await until_synced(informers, who="daemon")
    gc.collect()
    gc.freeze()

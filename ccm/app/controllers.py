"""Work of the leader: the shared caches, and the controllers that use them.

A controller starts if it is enabled, its flags are valid, and the provider implements the
interfaces that it needs.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import random
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ccm.app import metrics
from ccm.app.clients import DELETIONS, INFORMERS, RemoteCluster, counts_deletions
from ccm.app.election import Election
from ccm.app.health import DaemonState
from ccm.app.options import Options, controllers, gates, migration
from ccm.app.options.controllers import MANIFESTS
from ccm.app.provider import check_knows_nodes, check_reachable
from ccm.base import log
from ccm.base.backoff import jittered
from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud, Inventory
from ccm.cloud.lookup import NodeOwnership, SharedInventory
from ccm.kube.client import Client
from ccm.kube.informer import Informer, SharedInformers
from ccm.kube.resources import CONFIG_MAPS, NODES
from ccm.model import Node
from ccm.runtime.controller import Runnable, wait_for_sync
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.manifest import ClusterContext, ControllerContext, Manifest, SharedLease
from ccm.runtime.writer import Recorder

NO_MIGRATION = migration.LeaderMigration(leader_name="")

PREPARE_AFTER_S = 1.0
"""Seconds after the start until the controllers' modules are imported ahead of time.

By then, the first requests have been sent, and a leader has already imported the modules.
"""


class NamedClients(Protocol):
    """Factory of API clients (`ccm.app.clients.ClientFactory`)."""

    def named(self, name: str) -> Client:
        """Return the client with this name, for the service account of the same name."""
        ...


class NamedRecorders(Protocol):
    """Factory of event recorders (`ccm.app.clients.EventRecorders`)."""

    def recorder(self, component: str) -> Recorder:
        """Return the recorder of a component, such as a controller."""
        ...


class NodeCache:
    """Shared Node cache for providers; implements `ccm.cloud.InformerFactory`."""

    def __init__(self, nodes: Informer[Node]) -> None:
        self._nodes = nodes

    def on_node(
        self, handler: Callable[[Node | None, Node | None], None], *, name: str = "provider"
    ) -> None:
        """Call `handler(old, new)` for every change of a Node; `name` appears in logs.

        `old` is None for an added Node, `new` is None for a deleted one.
        """
        self._nodes.add_handler(
            name=name,
            on_add=lambda node, _: handler(None, node),
            on_update=handler,
            on_delete=lambda node, _: handler(node, None),
        )

    def node(self, name: str) -> Node | None:
        """Return the Node with this name; None if the cache lacks it."""
        return self._nodes.store.get(name)


class ControllerRunner:
    """Runner of the leader's controllers.

    Args:
        options: the flags.
        clients: factory of API clients.
        events: factory of event recorders.
        vitals: receives the caches and running controllers, for health checks.
        plan: leader migration, which assigns controllers to the second lease; None = no migration.
        others: clusters other than the daemon's.
    """

    def __init__(
        self,
        options: Options,
        clients: NamedClients,
        events: NamedRecorders,
        vitals: DaemonState,
        plan: migration.LeaderMigration | None = None,
        *,
        others: Sequence[RemoteCluster] = (),
    ) -> None:
        self._options = options
        self._clients = clients
        self._events = events
        self._vitals = vitals
        self._plan = plan or NO_MIGRATION
        self._others = others
        self._node_informer: Informer[Node] | None = None
        self._handle: CloudClient | None = None
        self._inventory: SharedInventory | None = None
        self._running: list[Runnable] = []

    async def check_provider(self, cloud: Cloud) -> None:
        """Check a new provider with a read-only call, then pass it the shared Node cache.

        Raises:
            CloudError: the call failed, or the provider knows none of the nodes that the old
                provider knows.
        """
        nodes = self._node_informer.store.list() if self._node_informer is not None else []
        node_selector = self._options.node_selector
        ownership = NodeOwnership.for_cloud(cloud, node_selector)
        ours = (node for node in nodes if not ownership.is_foreign(node))
        await check_reachable(cloud, next(ours, None))
        if self._handle is not None:
            await check_knows_nodes(cloud, self._handle, nodes, node_selector=node_selector)
        self._set_informers(cloud)

    def retry_now(self) -> None:
        """Drop the shared inventory and retry all failed keys, after a change of the provider."""
        if self._inventory is not None:
            self._inventory.invalidate()
        for controller in self._running:
            controller.retry_now()

    async def preload_modules(self) -> None:
        """Import the enabled controllers' modules, so that a standby can become leader quickly."""
        await asyncio.sleep(PREPARE_AFTER_S)
        for manifest in controllers.enabled(self._options.controllers):
            importlib.import_module(manifest.modules[0])
            await asyncio.sleep(0)  # an import blocks; let leader election run before the next

    async def run(
        self,
        handle: CloudClient,
        election: Election | None,
        *,
        beside: Callable[[ControllerContext], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Run the leader's caches and controllers until cancelled.

        Args:
            handle: client for calls to the cloud.
            election: competes for the shared leases; None means that all controllers run without
                them.
            beside: further work, which gets the dependencies of the controllers.
        """
        resync_s = self._options.min_resync_period.total_seconds()
        informers = SharedInformers(self._clients.named(INFORMERS), resync_s=resync_s)
        others = {cluster.roles[0]: cluster.context(resync_s) for cluster in self._others}
        by_role = {
            role: others[cluster.roles[0]] for cluster in self._others for role in cluster.roles
        }
        self._node_informer = _node_informer(self._options, informers, by_role)
        self._set_informers(handle.cloud)
        self._handle = handle
        self._inventory = inventory = self._shared_inventory(handle, self._node_informer)
        context = ControllerContext(
            client=self._clients.named,
            recorder=self._events.recorder,
            informers=informers,
            cloud_client=handle,
            inventory=inventory,
            gates=gates.values(self._options.feature_gates),
            deletions=self._deletions(),
            clusters=by_role,
        )
        vitals = self._vitals
        vitals.informers, vitals.deletions = informers, context.deletions
        vitals.other_informers = {role: cluster.informers for role, cluster in others.items()}
        try:
            async with NamedTaskGroup() as group:
                for informer_set in (informers, *vitals.other_informers.values()):
                    group.start(informer_set.run(), name="informers")
                    group.start(_settle(informer_set), name="settle")
                if counts_deletions(self._options):
                    group.start(context.deletions.run(), name="deletions")
                if self._plan is not NO_MIGRATION:
                    group.start(self._run_migrated(context, election), name="migration")
                if beside is not None:
                    group.start(beside(context), name="beside")
                await self._run_assigned(context, election)
        finally:
            self._running.clear()
            self._handle = self._inventory = None
            self._vitals.stand_by()
            if inventory is not None:
                await inventory.close()

    async def _run_migrated(self, context: ControllerContext, election: Election | None) -> None:
        """Run the migrated controllers while this process holds the shared lease."""
        runs = migration.LeaseAssignment.MIGRATED
        among = [manifest for manifest in MANIFESTS if self._plan.assignment(manifest.name) is runs]
        run = partial(self._run_controllers, context, among)
        if election is None:
            await run()
        else:
            await election.run_lease(self._plan.leader_name, run)

    async def _run_assigned(self, context: ControllerContext, election: Election | None) -> None:
        """Run the controllers that are not migrated, some of them under a shared lease."""
        by_lease: dict[SharedLease | None, list[Manifest[Any]]] = {None: []}
        for manifest in MANIFESTS:
            if self._plan.assignment(manifest.name) is migration.LeaseAssignment.MAIN:
                lease = self._shared_lease(manifest, context.cloud_client.cloud)
                by_lease.setdefault(lease, []).append(manifest)
        async with NamedTaskGroup() as group:
            for lease, among in by_lease.items():
                run = partial(self._run_controllers, context, among)
                if lease is None or election is None:
                    group.start(run(), name="controllers")
                    continue
                for manifest in among:
                    self._vitals.skipped(manifest.name, f"the Lease {lease} is not held yet")
                group.start(
                    election.run_lease(lease.name, run, shared=lease), name=f"lease {lease}"
                )

    def _shared_lease(self, manifest: Manifest[Any], cloud: Cloud) -> SharedLease | None:
        """Return the lease that a controller needs; None if it needs none, or cannot run."""
        options = self._options
        can_run = manifest in controllers.enabled(options.controllers) and not (
            manifest.skip_reason(options, cloud) or manifest.config_fault(options)
        )
        return manifest.lease(options) if can_run and options.leader_elect else None

    async def _run_controllers(
        self, context: ControllerContext, among: Collection[Manifest[Any]]
    ) -> None:
        """Run the enabled controllers of `among`."""
        options = self._options
        interval_s = options.controller_start_interval.total_seconds()
        started = []
        async with NamedTaskGroup() as group:
            for manifest, controller in build_enabled(
                options, context, among, self._vitals.skipped
            ):
                self._running.append(controller)
                group.start(self._run(manifest, controller), name=manifest.name)
                started.append(manifest.name)
                await asyncio.sleep(jittered(interval_s, 1.0, random.Random()))
            log.logger("daemon").info("controllers started", controllers=started)

    async def _run(self, manifest: Manifest[Any], controller: Runnable) -> None:
        reported = metrics.running(manifest.metric, self._options.program)
        with reported, self._vitals.running(manifest.name, controller):
            await controller.run()

    def _deletions(self) -> DeletionRecord:
        options = self._options
        return DeletionRecord(
            self._clients.named(DELETIONS).resource(CONFIG_MAPS),
            namespace=options.leader_elect_resource_namespace,
            # Daemons of several providers share the ConfigMap; each daemon has its own keys.
            owner=options.leader_elect_resource_name,
        )

    def _set_informers(self, cloud: Cloud) -> None:
        if cloud.set_informers is not None and self._node_informer is not None:
            cloud.set_informers(NodeCache(self._node_informer))

    def _shared_inventory(
        self, handle: CloudClient, nodes: Informer[Node] | None
    ) -> SharedInventory | None:
        if handle.cloud.inventory is None or nodes is None:
            return None
        inventory = SharedInventory(
            lambda: handle.call(Inventory.list_instances),
            population=lambda: len(nodes.store),
            max_age_s=self._options.inventory_max_age.total_seconds(),
        )
        NodeCache(nodes).on_node(inventory.on_node_event, name="inventory")
        return inventory


def build_enabled(
    options: Options,
    context: ControllerContext,
    among: Collection[Manifest[Any]] = MANIFESTS,
    on_skipped: Callable[[str, str], object] = lambda _name, _why: None,
) -> Iterator[tuple[Manifest[Any], Runnable]]:
    """Yield manifest and controller for each controller that can run, in start order.

    Each controller is built when the iterator reaches it.

    Args:
        options: the flags.
        context: inputs of the controllers.
        among: manifests to choose from.
        on_skipped: called with (name, reason) for an enabled controller that cannot run.
    """
    logger = log.logger("daemon")
    wanted = controllers.enabled(options.controllers)
    for manifest in (candidate for candidate in among if candidate in wanted):
        if reason := manifest.skip_reason(options, context.cloud_client.cloud):
            if not manifest.disabled_by(options):  # turned off on purpose: no line
                logger.info("controller skipped", controller=manifest.name, reason=reason)
            on_skipped(manifest.name, reason)
        elif fault := manifest.config_fault(options):
            # The other controllers still run. The Go cloud-controller-manager exits here.
            logger.error("controller not started", controller=manifest.name, error=fault)
            on_skipped(manifest.name, fault)
        else:
            yield manifest, manifest.build(context, options)


def _node_informer(
    options: Options, informers: SharedInformers, others: Mapping[str, ClusterContext]
) -> Informer[Node] | None:
    """Return the Node informer for the provider; None if no enabled controller watches Nodes.

    If controllers watch Nodes of several clusters, the daemon's cluster has precedence.
    """
    roles = {
        role
        for manifest in controllers.enabled(options.controllers)
        if NODES.plural in manifest.watched
        for role in manifest.roles(options, NODES.plural, "")
    }
    if not roles:
        return None
    own = roles - others.keys()
    return (informers if own else others[min(roles)].informers).informer_for(NODES)


async def _settle(informers: SharedInformers) -> None:
    """Wait until the caches are synced, then exempt them from garbage collection.

    Otherwise every full collection would scan them. The oldest generation is not collected first:
    with 15,000 nodes that would block the event loop for 60 ms, and it has hardly any garbage yet.
    """
    await wait_for_sync(informers, component="daemon")
    gc.collect(1)
    gc.freeze()

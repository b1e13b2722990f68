"""What only the leader runs: the shared caches, and the controllers that stand on them.

A controller starts if it is turned on and the provider can serve it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ccm.app import metrics
from ccm.app.clients import DELETIONS, INFORMERS, Cluster, counts_deletions
from ccm.app.election import Election
from ccm.app.health import Vitals
from ccm.app.options import Options, gates, migration, names
from ccm.app.options.names import MANIFESTS
from ccm.app.provider import answers, knows_nodes
from ccm.base import log
from ccm.base.backoff import jittered
from ccm.base.tasks import Group
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud, Inventory
from ccm.cloud.lookup import NodeOwnership, SharedInventory
from ccm.kube.client import Client
from ccm.kube.informer import Informer, Informers
from ccm.kube.resources import CONFIG_MAPS, NODES
from ccm.model import Node
from ccm.runtime.controller import Runnable, until_synced
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.manifest import ClusterContext, ControllerContext, Manifest
from ccm.runtime.writer import Recorder

NO_MIGRATION = migration.Plan(leader_name="")

PREPARE_AFTER_S = 1.0
"""When a standby imports the controllers: its first requests are out by then, and those of a
leader are imported already."""


class Clients(Protocol):
    """Makes API clients (`ccm.app.clients.Clients`)."""

    def named(self, name: str) -> Client:
        """The client of a service account, by the account's name."""
        ...


class Events(Protocol):
    """Makes event recorders (`ccm.app.clients.Events`)."""

    def recorder(self, component: str) -> Recorder:
        """The recorder that reports as this component."""
        ...


class NodeCache:
    """The shared cache of nodes as the provider SDK promises it (`ccm.cloud.InformerFactory`)."""

    def __init__(self, nodes: Informer[Node]) -> None:
        self._nodes = nodes

    def on_node(
        self, handler: Callable[[Node | None, Node | None], None], *, name: str = "provider"
    ) -> None:
        """Call `handler(old, new)` for every change of a Node; the name is for logs."""
        self._nodes.add_handler(
            name=name,
            on_add=lambda node, _: handler(None, node),
            on_update=handler,
            on_delete=lambda node, _: handler(node, None),
        )

    def node(self, name: str) -> Node | None:
        """The cached Node; None when there is none."""
        return self._nodes.store.get(name)


class Controllers:
    """Runs the controllers, once we lead.

    Args:
        options: the flags.
        clients: makes API clients.
        events: makes event recorders.
        vitals: told what runs.
        plan: which controllers run under a second lease; None = no migration.
        others: clusters beside our own.
    """

    def __init__(
        self,
        options: Options,
        clients: Clients,
        events: Events,
        vitals: Vitals,
        plan: migration.Plan | None = None,
        *,
        others: Sequence[Cluster] = (),
    ) -> None:
        self._options = options
        self._clients = clients
        self._events = events
        self._vitals = vitals
        self._plan = plan or NO_MIGRATION
        self._others = others
        self._nodes: Informer[Node] | None = None
        self._handle: Handle | None = None
        self._inventory: SharedInventory | None = None
        self._running: list[Runnable] = []

    async def accept(self, cloud: Cloud) -> None:
        """Let a new provider answer a first call, and give it what the old one had.

        Raises:
            CloudError: it does not answer, or knows none of the nodes that the old one knows.
        """
        nodes = self._nodes.store.list() if self._nodes is not None else []
        own_nodes = self._options.own_nodes
        ownership = NodeOwnership.at(cloud, own_nodes)
        ours = (node for node in nodes if not ownership.is_foreign(node))
        await answers(cloud, next(ours, None))
        if self._handle is not None:
            await knows_nodes(cloud, self._handle, nodes, own_nodes=own_nodes)
        self._introduce(cloud)

    def retry_now(self) -> None:
        """Another provider is in use: what failed with the old one is tried at once."""
        if self._inventory is not None:
            self._inventory.drop()
        for controller in self._running:
            controller.retry_now()

    async def prepare(self) -> None:
        """Import the controllers, so that the cluster does not wait for that at a take-over."""
        await asyncio.sleep(PREPARE_AFTER_S)
        for manifest in names.enabled(self._options.controllers):
            importlib.import_module(manifest.modules[0])
            await asyncio.sleep(0)  # the Lease is watched meanwhile

    async def run(self, handle: Handle, election: Election | None) -> None:
        """Run until cancelled what the leader runs.

        Args:
            handle: the way to the cloud.
            election: for the second lease; None: as if we held it.
        """
        resync_s = self._options.min_resync_period.total_seconds()
        informers = Informers(self._clients.named(INFORMERS), resync_s=resync_s)
        others = {one.roles[0]: one.context(resync_s) for one in self._others}
        by_role = {role: others[one.roles[0]] for one in self._others for role in one.roles}
        self._nodes = _nodes(self._options, informers, by_role)
        self._introduce(handle.cloud)
        self._handle = handle
        self._inventory = inventory = self._shared_inventory(handle, self._nodes)
        context = ControllerContext(
            client=self._clients.named,
            recorder=self._events.recorder,
            informers=informers,
            handle=handle,
            inventory=inventory,
            gates=gates.values(self._options.feature_gates),
            deletions=self._deletions(),
            clusters=by_role,
        )
        vitals = self._vitals
        vitals.informers, vitals.deletions = informers, context.deletions
        vitals.others = {role: one.informers for role, one in others.items()}
        try:
            async with Group() as group:
                for each in (informers, *vitals.others.values()):
                    group.start(each.run(), name="informers")
                    group.start(_settle(each), name="settle")
                if counts_deletions(self._options):
                    group.start(context.deletions.run(), name="deletions")
                if self._plan is not NO_MIGRATION:
                    group.start(self._run_shared(context, election), name="migration")
                await self._run_those(context, migration.Runs.MAIN)
        finally:
            self._running.clear()
            self._handle = self._inventory = None
            self._vitals.stand_by()
            if inventory is not None:
                await inventory.close()

    async def _run_shared(self, context: ControllerContext, election: Election | None) -> None:
        """Run what two managers share, while we hold its lease."""

        async def run() -> None:
            await self._run_those(context, migration.Runs.MIGRATED)

        if election is None:
            await run()
        else:
            await election.hold(self._plan.leader_name, run)

    async def _run_those(self, context: ControllerContext, runs: migration.Runs) -> None:
        """Run what belongs to our own lease, or what two managers share."""
        options = self._options
        among = [manifest for manifest in MANIFESTS if self._plan.of(manifest.name) is runs]
        interval_s = options.controller_start_interval.total_seconds()
        started = []
        async with Group() as group:
            for manifest, controller in enabled(options, context, among, self._vitals.left_out):
                self._running.append(controller)
                group.start(self._run(manifest, controller), name=manifest.name)
                started.append(manifest.name)
                await asyncio.sleep(jittered(interval_s, 1.0, random.Random()))
            log.logger("daemon").info("controllers started", controllers=started)

    async def _run(self, manifest: Manifest[Any], controller: Runnable) -> None:
        who = metrics.running(manifest.metric, self._options.program)
        with who, self._vitals.running(manifest.name, controller):
            await controller.run()

    def _deletions(self) -> DeletionRecord:
        options = self._options
        return DeletionRecord(
            self._clients.named(DELETIONS).resource(CONFIG_MAPS),
            namespace=options.leader_elect_resource_namespace,
            # Daemons of several providers share the ConfigMap, but not what is in it.
            owner=options.leader_elect_resource_name,
        )

    def _introduce(self, cloud: Cloud) -> None:
        if cloud.set_informers is not None and self._nodes is not None:
            cloud.set_informers(NodeCache(self._nodes))

    def _shared_inventory(
        self, handle: Handle, nodes: Informer[Node] | None
    ) -> SharedInventory | None:
        if handle.cloud.inventory is None or nodes is None:
            return None
        inventory = SharedInventory(
            lambda: handle.call(Inventory.list_instances),
            population=lambda: len(nodes.store),
            max_age_s=self._options.inventory_max_age.total_seconds(),
        )
        NodeCache(nodes).on_node(inventory.note, name="inventory")
        return inventory


def enabled(
    options: Options,
    context: ControllerContext,
    among: Collection[Manifest[Any]] = MANIFESTS,
    left_out: Callable[[str, str], object] = lambda _name, _why: None,
) -> Iterator[tuple[Manifest[Any], Runnable]]:
    """Make those of some controllers that will run, in the order in which they start.

    `left_out` is told (name, why) of those that are turned on and will not run.
    """
    logger = log.logger("daemon")
    wanted = names.enabled(options.controllers)
    # Without the flag nothing was turned off: a command for machines never has the others.
    for manifest in among if "controllers" in options.explicit else ():
        if manifest not in wanted:
            level = logger.info if manifest.off_by_default else logger.warning
            level("controller is disabled", controller=manifest.name)
    for manifest in (one for one in among if one in wanted):
        if reason := manifest.turned_off(options) or manifest.lacks(context.handle.cloud):
            logger.info("controller is skipped", controller=manifest.name, reason=reason)
            left_out(manifest.name, reason)
        elif fault := manifest.wrong(options):
            # The others can do their work; the Go reference ends the whole process here.
            logger.error("controller cannot start", controller=manifest.name, error=fault)
            left_out(manifest.name, fault)
        else:
            yield manifest, manifest.build(context, options)


def _nodes(
    options: Options, informers: Informers, others: Mapping[str, ClusterContext]
) -> Informer[Node] | None:
    """The nodes that our controllers look after; None: they look after none.

    Those of our own cluster, if any controller follows those.
    """
    roles = {
        role
        for one in names.enabled(options.controllers)
        if NODES.plural in one.follows
        for role in one.roles(options, NODES.plural, "")
    }
    if not roles:
        return None
    own = roles - others.keys()
    return (informers if own else others[min(roles)].informers).of(NODES)


async def _settle(informers: Informers) -> None:
    """Once the caches are complete, take them out of the garbage collector's rounds."""
    await until_synced(informers, who="daemon")
    gc.collect()
    gc.freeze()

"""Node controller: a queue for new nodes and labels, a periodic pass for addresses.

Handlers of the shared informer add node names to the queue. To initialise a node, a worker queries
the cloud once and writes twice. The first patch sets the addresses in the status. The precondition
of the second patch is the resourceVersion that the first patch returned. On a conflict the
controller reads the node from the API server and plans the patches again. The periodic pass updates
only the addresses of initialised nodes.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from ccm.base import clock, log
from ccm.base.log import Outage
from ccm.base.tasks import in_slices, run_bounded
from ccm.cloud.errors import CloudError, FailedPrecondition, Retry
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.types import InstanceMetadata
from ccm.controllers.node import metrics, plan
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, names
from ccm.model.node import age_s, is_uninitialized
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.backoff import FailureReports, RetryDecision, classify, default_backoff
from ccm.runtime.controller import (
    DONE,
    IDLE,
    NOT_READY,
    Controller,
    PeriodicTask,
    ReconcileResult,
    Watch,
)
from ccm.runtime.writer import ObjectWriter, PatchClient, PatchStep, Recorder

BACK_OFF_CAP_S = 30.0
"""Maximum back-off of one node.

`Deviation:` the Go controller uses client-go's cap of 1000 s, but retries at each heartbeat of the
node. This controller ignores heartbeats, so its back-off must stay short."""

NEW_NODE_S = 900.0
"""Age in seconds of a node below which slow retries (`Retry.SLOW`) have shorter delays.

The cloud may not report all properties of a new instance yet."""

WRITE_ATTEMPTS = 20
WRITE_PAUSE_S = 0.05
"""Maximum attempts of a conflicting write, and minimum seconds between two attempts; with jitter
the pause is 50 to 100 ms (Go controller)."""

SAME_EVENT_S = 60.0
"""Minimum seconds between two Warning events with the same cause about the same node.

Otherwise each retry would record an event."""


class NodeController:
    """The cloud node controller.

    Args:
        nodes: the shared informer of nodes.
        api: client for nodes with this controller's service account.
        lookup: instance queries to the cloud.
        ownership: which nodes belong to this daemon.
        events: event recorder.
        workers: maximum number of nodes reconciled concurrently.
        status_workers: maximum number of nodes updated concurrently in the periodic pass.
        status_period_s: seconds between two periodic passes.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: PatchClient[Node],
        lookup: InstanceLookup,
        ownership: NodeOwnership,
        events: Recorder,
        workers: int = 1,
        status_workers: int = 1,
        status_period_s: float = 300.0,
        rng: random.Random | None = None,
    ) -> None:
        self._nodes = nodes
        self._lookup = lookup
        self._ownership = ownership
        self._events = events
        self._status_workers = status_workers
        self._log = log.logger(names.COMPONENT_NODE)
        self._waiting: set[str] = set()
        self._writer = ObjectWriter(
            api, cache=nodes.store, attempts=WRITE_ATTEMPTS, pause_s=WRITE_PAUSE_S, rng=rng
        )
        self._address_outage = Outage(
            self._log,
            start_message="node addresses could not be updated, retrying",
            end_message="all node addresses can be updated again",
        )
        self.controller = Controller(
            names.COMPONENT_NODE,
            queue="Nodes",
            reconcile=self.sync_node,
            workers=workers,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[Watch(informer=nodes, changed=self._changed)],
            passes=[PeriodicTask(work=self.update_addresses, period_s=status_period_s)],
            classify=self._classify,
            on_error=self._failed,
            reports=FailureReports(repeat_s=SAME_EVENT_S),
        )

    async def sync_node(self, name: str) -> ReconcileResult:
        """Initialise a node; for an initialised node, copy its beta labels to the stable labels.

        Raises:
            CloudError: the query failed.
            FailedPrecondition: the cloud's metadata does not fit the node.
            KubeError: a write failed.
        """
        node = self._nodes.store.get(name)
        if node is None or self._ownership.is_foreign(node):
            return DONE
        if not is_uninitialized(node):
            may_touch = self._ownership.may_change(node, is_confirmed=self._lookup.confirmed(node))
            if may_touch and (await self._writer.change(node, PatchStep(plan.label_patch))).changed:
                self._log.info("stable labels updated from beta labels", node=name)
            return DONE
        if not is_uninitialized(self._writer.newest(node)):
            # The cache lags behind this controller's own write.
            return IDLE
        session = self._lookup.provider_session
        metadata = await self._lookup.metadata(node, waiting=len(self._waiting))
        if metadata is None:
            self._log.info("cloud has no metadata for the node yet, retrying", node=name)
            return NOT_READY
        try:
            done = await self._initialize(node, metadata, session)
        except plan.Rejected as error:
            raise FailedPrecondition(str(error)) from error
        if done is not None:
            self._initialized(node, done)
        return DONE if self._lookup.provider_session == session else NOT_READY

    async def update_addresses(self) -> None:
        """Run one periodic pass over the addresses of all initialised nodes of this cloud."""
        nodes = in_slices(self._nodes.store.list())
        due = [node async for node in nodes if self._is_settled(node)]
        faults: list[str] = []

        async def update_node(node: Node) -> None:
            try:
                outcome = await self._update_addresses_of(node.name, waiting=len(due))
            except (CloudError, KubeError, plan.Rejected) as error:
                outcome = "error"
                faults.append(f"{node.name}: {error}")
            except Exception as error:  # noqa: BLE001 - one failed node must not end the pass
                outcome = "error"
                self._log.error("address update failed", node=node.name, exc_info=error)
            metrics.ADDRESS_UPDATES.labels(outcome).inc()

        await run_bounded(due, update_node, limit=self._status_workers, name="node-addresses")
        if faults:
            self._address_outage.record_failure(count=len(faults), error=faults[0])
        else:
            self._address_outage.record_success()

    # --- initialisation -------------------------------------------------------------------

    async def _initialize(
        self, node: Node, metadata: InstanceMetadata, provider_session: int
    ) -> Node | None:
        """Write the addresses, then the labels, the provider ID and the taints.

        Returns:
            The initialised node. None if the node was already initialised or is gone, or if the
            provider was reopened since the query.
        """

        def complete(current: Node) -> InstanceMetadata:
            self._require_session(provider_session)
            return plan.complete_metadata(
                current,
                metadata,
                id_required=self._lookup.uses_v2,
                schemes=self._ownership.schemes,
                others=self._ownership.foreign_prefixes,
            )

        def addresses(current: Node) -> Patch | None:
            return plan.address_patch(current, complete(current).addresses)

        def final(current: Node) -> Patch:
            patch, warnings = plan.initialization(current, complete(current))
            for warning in warnings:
                self._log.warning("additional label ignored", node=node.name, detail=warning)
            return patch

        try:
            written = await self._writer.change(
                node, PatchStep(addresses, "status"), PatchStep(final)
            )
        except StaleObject:
            return None
        return written.obj

    def _initialized(self, before: Node, after: Node) -> None:
        delay_s = max(0.0, age_s(before, clock.now()) or 0.0)
        metrics.TAINT_REMOVAL_DELAY.observe(delay_s)
        metrics.INITIAL_SYNC_DELAY.observe(delay_s)
        self._log.info("node initialised", node=before.name, provider_id=after.provider_id)
        self._events.event(
            _reference(before), names.NORMAL, names.REASON_SYNCED, "Node synced successfully"
        )

    def _classify(self, name: str, error: Exception) -> RetryDecision:
        node = self._nodes.store.get(name)
        age = None if node is None else age_s(node, clock.now())
        return replace(classify(error), eager=age is not None and age < NEW_NODE_S)

    def _failed(self, name: str, error: Exception, decision: RetryDecision) -> None:
        node, is_busy = self._nodes.store.get(name), decision.retry is Retry.AFTER
        if node is None or not is_uninitialized(node):
            return
        if not is_busy:
            metrics.INITIALIZATION_FAILURES.labels(type(error).__name__).inc()
        if decision.report and (decision.event or is_busy):
            self._events.event(
                _reference(node),
                names.WARNING,
                names.REASON_INITIALIZATION_FAILED,
                f"Initialization failed: {error}",
            )

    # --- labels and addresses ---------------------------------------------------------------

    async def _update_addresses_of(self, name: str, *, waiting: int) -> str:
        node = self._nodes.store.get(name)
        if node is None or not self._is_settled(node):
            return "unchanged"
        session = self._lookup.provider_session
        addresses = await self._lookup.addresses(node, waiting=waiting)
        if self._lookup.confirmed(node) and plan.needs_sync(None, node):
            # The query confirmed that the node belongs to this daemon, so its labels may be
            # changed now.
            self.controller.queue.add(name)
        if not addresses:
            return "no_answer"
        # The node may have changed during the query: compare with its current state.
        node = self._nodes.store.get(name) or node

        def step(current: Node) -> Patch | None:
            self._require_session(session)
            if not self._is_settled(current):
                raise StaleObject
            return plan.address_patch(current, addresses)

        try:
            written = await self._writer.change(node, PatchStep(step, "status"))
        except StaleObject:
            return "unchanged"
        if not written.changed:
            return "unchanged"
        self._log.info("node addresses updated", node=name)
        return "updated"

    def _require_session(self, provider_session: int) -> None:
        """Raise StaleObject if the provider was reopened after this session."""
        if self._lookup.provider_session != provider_session:
            raise StaleObject

    def _is_settled(self, node: Node) -> bool:
        return not is_uninitialized(node) and not self._ownership.is_foreign(node)

    # --- the cache ----------------------------------------------------------------------------

    def _changed(self, old: Node | None, new: Node | None, initial: bool) -> bool:  # noqa: ARG002 - shape of a watch
        if new is None:
            assert old is not None
            self._forget(old.name)
            self._lookup.forget(old)
            return False
        if is_uninitialized(new) and not self._ownership.is_foreign(new):
            self._waiting.add(new.name)
            metrics.UNINITIALIZED.set(len(self._waiting))
        else:
            self._forget(new.name)
        return plan.needs_sync(old, new)

    def _forget(self, name: str) -> None:
        self._waiting.discard(name)
        self._writer.forget(name)
        metrics.UNINITIALIZED.set(len(self._waiting))


def _reference(node: Node) -> ObjectReference:
    """Return a reference for events, with the resourceVersion as in the Go controller."""
    return msgspec.structs.replace(node.reference, resource_version=node.resource_version)

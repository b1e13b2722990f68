"""Carries out what `plan` decides: a queue for new nodes and labels, a pass for addresses.

Handlers of the shared cache put node names into the queue. A worker asks the cloud once
and writes twice: a status patch with the addresses, then a patch bound to the version
that the first one returned. On a conflict the node is read again from the API server and
everything is decided anew. The periodic pass keeps the addresses of initialised nodes in
step and touches nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ccm.base import log
from ccm.base.backoff import Exponential, PerItem, jittered
from ccm.base.clock import SYSTEM, Clock
from ccm.base.tasks import Group, bounded
from ccm.cloud.errors import CloudError, FailedPrecondition, Retry
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.provider_id import is_foreign
from ccm.cloud.types import InstanceMetadata
from ccm.controllers.node import metrics, plan
from ccm.kube import requeue
from ccm.kube.errors import Conflict, Invalid, KubeError, Missing
from ccm.kube.informer import Informer
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node, ObjectReference, names
from ccm.model.node import is_uninitialized
from ccm.model.times import parse_time
from ccm.runtime.loop import DONE, NOT_YET, Loop, Result
from ccm.runtime.periodic import run_every
from ccm.runtime.recorder import Recorder
from ccm.runtime.requests import Reads
from ccm.runtime.retry import Again
from ccm.runtime.sync import until_synced

QUEUE_NAME = "Nodes"
"""Value of the work-queue metrics' label (Go reference)."""

BACK_OFF_CAP_S = 30.0
"""Longest back-off of one node.

`Deviation:` client-go's cap is 1000 s; there, heartbeats override the back-off, here they
do not, so the back-off itself must stay short."""

WRITE_ATTEMPTS = 20
WRITE_PAUSE_S = 0.05
"""Attempts of an initialising write on conflict, pauses of 50 to 100 ms (Go reference)."""

SAME_EVENT_S = 60.0
"""Shortest time between two Warning events with one cause about one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hard the controller works.

    Attributes:
        workers: nodes initialised at once.
        status_workers: nodes looked at once in the periodic pass.
        status_period_s: seconds between two periodic passes.
    """

    workers: int = 1
    status_workers: int = 1
    status_period_s: float = 300.0


class NodeController:
    """The cloud node controller.

    Args:
        nodes: the shared cache of nodes.
        api: requests in this controller's name.
        lookup: questions to the cloud.
        schemes: provider-ID schemes of our cloud.
        events: where events go.
        settings: numbers of workers and periods.
        clock: where time comes from.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: Reads[Node],
        lookup: InstanceLookup,
        schemes: tuple[str, ...],
        events: Recorder,
        settings: Settings,
        clock: Clock = SYSTEM,
        rng: random.Random | None = None,
    ) -> None:
        self._nodes = nodes
        self._api = api
        self._lookup = lookup
        self._schemes = schemes
        self._events = events
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()
        self._log = log.logger(names.COMPONENT_NODE)
        self._waiting: set[str] = set()
        self._written: dict[str, tuple[str, str]] = {}
        self._told: dict[str, tuple[str, float]] = {}
        self._behind = False
        self._queue: WorkQueue[str] = WorkQueue(
            QUEUE_NAME,
            policy=requeue.Longest(
                PerItem(policy=Exponential(base_s=0.005, cap_s=BACK_OFF_CAP_S)),
                requeue.SharedBucket(
                    qps=requeue.DEFAULT_QPS, burst=requeue.DEFAULT_BURST, clock=clock
                ),
            ),
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        self._nodes.add_handler(
            name=names.COMPONENT_NODE,
            on_add=self._added,
            on_update=self._updated,
            on_delete=self._deleted,
        )
        await until_synced(self._nodes, who=names.COMPONENT_NODE)
        loop = Loop(
            names.COMPONENT_NODE,
            queue=self._queue,
            reconcile=self.sync_node,
            workers=self._settings.workers,
            on_error=self._failed,
            clock=self._clock,
        )
        async with Group() as group:
            group.start(loop.run(), name="node-controller-loop")
            group.start(
                run_every(
                    self._settings.status_period_s,
                    self.update_addresses,
                    name=names.COMPONENT_NODE,
                    clock=self._clock,
                ),
                name="node-controller-addresses",
            )

    async def sync_node(self, name: str) -> Result:
        """Initialise one node, or bring its labels in step.

        Raises:
            CloudError: the cloud did not answer, or its answer does not fit the node.
            KubeError: a write failed.
        """
        node = self._nodes.store.get(name)
        if node is None:
            return DONE
        if not is_uninitialized(node):
            await self._reconcile_labels(node)
            return DONE
        if is_foreign(node.provider_id, self._schemes) or self._written_already(node):
            return DONE
        metadata = await self._lookup.metadata(node, waiting=len(self._waiting))
        if metadata is None:
            self._log.info("cloud has nothing to say about the node yet", node=name)
            return NOT_YET
        try:
            done = await self._initialize(node, metadata)
        except plan.Rejected as error:
            raise FailedPrecondition(str(error)) from error
        if done is not None:
            self._initialized(node, done)
        return DONE

    async def update_addresses(self) -> None:
        """One periodic pass: the addresses of all initialised nodes of our cloud."""
        due = [node for node in self._nodes.store.list() if self._is_settled(node)]
        faults: list[str] = []

        async def look(node: Node) -> None:
            try:
                outcome = await self._update_addresses_of(node.name, waiting=len(due))
            except (CloudError, KubeError, plan.Rejected) as error:
                outcome = "error"
                faults.append(f"{node.name}: {error}")
            except Exception as error:  # noqa: BLE001 - one node's trouble never ends the pass
                outcome = "error"
                self._log.error("address update failed", node=node.name, exc_info=error)
            metrics.ADDRESS_UPDATES.labels(outcome).inc()

        await bounded(due, look, limit=self._settings.status_workers, name="node-addresses")
        self._tell_of_addresses(faults)

    # --- initialisation -------------------------------------------------------------------

    async def _initialize(self, node: Node, metadata: InstanceMetadata) -> Node | None:
        """Write until done; None when the node needs it no more."""
        uid = node.uid
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                return await self._write(node, metadata)
            except Missing:
                return None
            except (Conflict, Invalid) as error:
                if attempt == WRITE_ATTEMPTS or not _moved_on(error):
                    raise
            pause = jittered(WRITE_PAUSE_S, 1.0, self._rng) if attempt > 1 else 0.0
            await self._clock.sleep(pause)
            try:
                node = await self._api.get(node.name)
            except Missing:
                return None
            if node.uid != uid or not is_uninitialized(node):
                return None
        return None

    async def _write(self, node: Node, metadata: InstanceMetadata) -> Node | None:
        complete = plan.completed(
            node, metadata, id_required=self._lookup.by_node, schemes=self._schemes
        )
        patch = plan.address_patch(node, complete.addresses)
        if patch is not None:
            uid = node.uid
            node = await self._api.patch_strategic(node.name, patch, subresource="status")
            if node.uid != uid or not is_uninitialized(node):
                return None
        final = plan.initialization(node, complete)
        for warning in final.warnings:
            self._log.warning("additional label left out", node=node.name, detail=warning)
        return await self._api.patch_strategic(node.name, final.patch)

    def _initialized(self, before: Node, after: Node) -> None:
        name = before.name
        self._written[name] = (after.uid, after.resource_version)
        self._told.pop(name, None)
        age_s = self._age_s(before)
        metrics.TAINT_REMOVAL_DELAY.observe(age_s)
        metrics.INITIAL_SYNC_DELAY.observe(age_s)
        self._log.info("node initialised", node=name, provider_id=after.provider_id)
        self._events.event(
            _reference(before), names.NORMAL, names.REASON_SYNCED, "Node synced successfully"
        )

    def _written_already(self, node: Node) -> bool:
        """Whether the cache lags behind our own write of this node."""
        uid, version = self._written.get(node.name, ("", ""))
        return uid == node.uid and _older(node.resource_version, version)

    def _failed(self, name: str, error: Exception, answer: Again) -> None:
        if answer.retry is Retry.AFTER:
            return
        node = self._nodes.store.get(name)
        if node is None or not is_uninitialized(node):
            if not answer.outage:
                self._log.warning("node could not be synced", node=name, error=str(error))
            return
        metrics.INITIALIZATION_FAILURES.labels(type(error).__name__).inc()
        message = f"Initialization failed: {error}"
        now = self._clock.monotonic()
        # Passing trouble is told by its kind: its words may carry a request ID of each attempt.
        subject = message if answer.retry is Retry.SLOW else type(error).__name__
        told, when = self._told.get(name, ("", float("-inf")))
        if told == subject and now - when < SAME_EVENT_S:
            return
        self._told[name] = (subject, now)
        level = self._log.debug if answer.outage else self._log.warning
        level("node could not be initialised", node=name, error=str(error))
        if answer.event:
            self._events.event(
                _reference(node), names.WARNING, names.REASON_INITIALIZATION_FAILED, message
            )

    def _age_s(self, node: Node) -> float:
        created = node.metadata.creation_timestamp
        if not created:
            return 0.0
        return max(0.0, (self._clock.now() - parse_time(created)).total_seconds())

    # --- labels and addresses ---------------------------------------------------------------

    async def _reconcile_labels(self, node: Node) -> None:
        patch = plan.label_patch(node)
        if patch is None:
            return
        try:
            await self._api.patch_strategic(node.name, patch)
        except (Missing, Conflict, Invalid) as error:
            if not _moved_on(error):
                raise
            return
        self._log.info("stable labels brought in step with beta labels", node=node.name)

    async def _update_addresses_of(self, name: str, *, waiting: int) -> str:
        node = self._nodes.store.get(name)
        if node is None or not self._is_settled(node):
            return "unchanged"
        addresses = await self._lookup.addresses(node, waiting=waiting)
        if not addresses:
            return "no_answer"
        # The cloud may have taken its time: what is compared is the node as it is now.
        node = self._nodes.store.get(name) or node
        patch = plan.address_patch(node, addresses)
        if patch is None:
            return "unchanged"
        try:
            await self._api.patch_strategic(name, patch, subresource="status")
        except (Missing, Conflict, Invalid) as error:
            if not _moved_on(error):
                raise
            return "unchanged"
        self._log.info("node addresses updated", node=name)
        return "updated"

    def _tell_of_addresses(self, faults: Sequence[str]) -> None:
        """Say when a trouble starts and when it ends, not in every pass."""
        if faults:
            level = self._log.debug if self._behind else self._log.warning
            level(
                "addresses of some nodes could not be brought in step",
                count=len(faults),
                error=faults[0],
            )
        elif self._behind:
            self._log.info("addresses of all nodes are in step again")
        self._behind = bool(faults)

    def _is_settled(self, node: Node) -> bool:
        return not is_uninitialized(node) and not is_foreign(node.provider_id, self._schemes)

    # --- cache handlers: they only note and enqueue -----------------------------------------

    def _added(self, node: Node, initial: bool) -> None:  # noqa: ARG002 - handler shape
        self._note(node)
        if plan.needs_sync(None, node):
            self._queue.add(node.name)

    def _updated(self, old: Node, new: Node) -> None:
        self._note(new)
        if plan.needs_sync(old, new):
            self._queue.add(new.name)

    def _deleted(self, node: Node) -> None:
        self._waiting.discard(node.name)
        self._written.pop(node.name, None)
        self._told.pop(node.name, None)
        metrics.UNINITIALIZED.set(len(self._waiting))

    def _note(self, node: Node) -> None:
        if is_uninitialized(node) and not is_foreign(node.provider_id, self._schemes):
            self._waiting.add(node.name)
        else:
            self._waiting.discard(node.name)
            self._written.pop(node.name, None)
        metrics.UNINITIALIZED.set(len(self._waiting))


def _moved_on(error: Missing | Conflict | Invalid) -> bool:
    """Whether a refused write means that the node is gone or another by now."""
    return not isinstance(error, Invalid) or any(
        cause.field == "metadata.uid" for cause in error.causes
    )


def _older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older; unknown ones never are."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def _reference(node: Node) -> ObjectReference:
    return ObjectReference(
        kind="Node",
        api_version="v1",
        name=node.name,
        uid=node.uid,
        resource_version=node.resource_version,
    )

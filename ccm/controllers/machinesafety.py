"""Deletes VMs that no Machine owns, class by class, and annotates nodes that no Machine owns.

A pass runs at the start, periodically, and after the deletion of a Machine. With a driver that
finds VMs by name only, another pass follows a minute later while orphans may be left. If the
listing of a class fails, the pass continues with the next class. Before a VM is deleted,
`ccm.machines.orphans` compares the VM with the cache and with a live list of Machines. The list
contains all namespaces if the service account may list them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from ccm.base import log, tasks
from ccm.base.backoff import jittered
from ccm.base.log import Outage
from ccm.cloud.errors import CloudError, NotFound
from ccm.cloud.machines import Identity, MachineDriver, MachineRequest
from ccm.kube.errors import Forbidden, KubeError
from ccm.kube.resources import NODES
from ccm.machines import metrics, node_metadata, orphans, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.driver import SharedComponents
from ccm.machines.orphans import (
    DeletedMachine,
    DeletedMachines,
    OrphanCandidates,
    OrphanDecision,
    Sighting,
)
from ccm.machines.settings import DEFAULT_CREATION_S, MachineSettings
from ccm.model import Node
from ccm.model.machines import Machine, MachineClass
from ccm.model.names import NORMAL, WARNING
from ccm.model.node import age_s
from ccm.model.patches import Patch
from ccm.runtime.controller import Controller, ReconcileResult, Watch
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

NAME = "machine-safety-controller"
QUEUE_NAME = "machinesafety"

SOON_S = 5.0
"""Delay in seconds of a pass after the deletion of a Machine, to collect further deletions."""

AGAIN_S = 60.0
"""Seconds until the next pass while orphans may be left, if the driver finds VMs by name only. The
more time passes, the more likely another owner creates a VM with the name of a deleted Machine."""

JITTER = 0.1


TRIGGER = "OutOfRange"
"""Text in the status description of a Machine that may have left a VM behind (Gardener's MCM)."""


class MachineSafetyController:
    """The machine safety controller.

    Args:
        shared: components of all machine controllers; the caches are ready.
        events: recorder of events.
        period_s: seconds between two passes.
        rng: source of jitter.
    """

    def __init__(
        self,
        *,
        shared: SharedComponents,
        events: Recorder,
        period_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self._caches, self._driver, self._vms = shared.caches, shared.driver, shared.vms
        caches = shared.caches
        # Without class objects in the API group, events refer to the kind of machines.
        self._class_kind = caches.codec.machine_classes or caches.codec.machines
        self._machines = caches.client.resource(caches.codec.machines)
        nodes = caches.target.client.resource(NODES)
        self._events = events
        self._period_s = period_s
        self._rng = rng or random.Random()
        self._write_nodes = ObjectWriter(nodes, cache=caches.nodes.store, rng=rng)
        self._sightings: dict[str, dict[str, Sighting]] = {}
        self._reported: dict[str, set[str]] = {}
        """Key of a class -> texts of the events of its last pass."""
        self._gone = DeletedMachines()
        self._imported: set[str] = set()
        """UIDs of Machines that were created with a provider ID: a VM with such a Machine's name
        does not count as ours."""
        self._recheck_soon = False
        self._triggered = asyncio.Event()
        self._log = log.logger(NAME)
        self._outage = Outage(
            self._log,
            start_message="VM check of a class failed, retrying",
            end_message="VM checks of all classes succeed again",
        )
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self._no_op,
            watches=[
                Watch(informer=caches.secrets, changed=lambda _old, _new, _initial: False),
                Watch(informer=caches.classes, changed=lambda _old, _new, _initial: False),
                Watch(informer=caches.nodes, changed=lambda _old, _new, _initial: False),
                Watch(
                    informer=caches.machines,
                    changed=self._machine_changed,
                    deleted=self._machine_deleted,
                ),
            ],
            tasks={"passes": self._passes, "listings": shared.vms.run_until_cancelled},
            rng=rng,
        )

    async def run_pass(self) -> None:
        """Run a pass over the VMs of all classes, and over all nodes."""
        classes = self._caches.classes.store.list()
        for gone in self._sightings.keys() - {machine_class.key for machine_class in classes}:
            del self._sightings[gone]
            self._reported.pop(gone, None)
        self._gone.keep({machine_class.name for machine_class in classes})
        self._recheck_soon = False
        results, faults = list[tuple[OrphanCandidates, OrphanDecision]](), list[str]()
        for machine_class in classes:
            view = self._caches.resolve(machine_class)
            if view.faults:
                continue
            try:
                results.append(await self._delete_orphans_of_class(machine_class, view))
                metrics.PASSES.labels("success").inc()
            except (CloudError, KubeError) as error:
                metrics.PASSES.labels("error").inc()
                faults.append(f"{machine_class.key}: {error}")
        _set_vm_metrics(results)
        await self._mark_nodes(faults)
        if faults:
            self._outage.record_failure(count=len(faults), error=faults[0])
        else:
            self._outage.record_success()

    async def _delete_orphans_of_class(
        self, obj: MachineClass, resolved: ResolvedClass
    ) -> tuple[OrphanCandidates, OrphanDecision]:
        """Check the VMs of one class, and delete the orphans.

        Raises:
            CloudError: the VMs cannot be listed, or an orphan cannot be deleted.
            KubeError: Machines cannot be read.
        """
        # Reuse a shared listing if it began after the deletion that triggered the pass.
        since = asyncio.get_running_loop().time() - SOON_S
        listing = await self._vms.listings.of(resolved, since=since)
        machines = self._caches.machines.store.list()
        by_name = self._driver.finds_by_name
        # With a driver that labels VMs, a VM without labels never counts as ours.
        gone = self._gone.of(resolved.name, resolved.origin) if by_name else {}
        judgement = orphans.find_candidates(
            listing.records,
            machines,
            self._sightings.get(obj.key, {}),
            self._caches.now(),
            cluster=self._caches.settings.cluster,
            namespace=self._caches.namespace,
            gone=gone,
        )
        self._sightings[obj.key] = dict(judgement.sightings)
        listed = {record.identity.name for record in listing.records}
        early = self._gone.settle(resolved.name, listed, listing.began)
        self._recheck_soon |= by_name and (early or bool(judgement.waiting))
        decision = OrphanDecision()
        if judgement.candidates and not self._caches.machines.malformed_keys:
            decision = await self._decide(judgement)
        self._report(obj, judgement, decision)
        failed: CloudError | None = None
        for record in decision.to_delete:
            identity = record.identity if record.identity.cluster else gone[record.identity.name]
            try:
                await self._delete(obj, resolved, identity, record.info.provider_id)
            except CloudError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return judgement, decision

    async def _decide(self, judgement: OrphanCandidates) -> OrphanDecision:
        """Compare candidates with a live list of the Machines.

        Raises:
            KubeError: Machines cannot be read.
        """
        try:
            machines = await self._list_live("")
        except Forbidden:
            # The Role in manifests/ allows reads in our namespace only.
            machines = await self._list_live(self._caches.namespace)
            return orphans.decide_deletions(judgement, machines, all_namespaces=False)
        return orphans.decide_deletions(judgement, machines, all_namespaces=True)

    async def _list_live(self, namespace: str) -> Sequence[Machine]:
        """Return a live list of the Machines of a namespace; empty = of all namespaces.

        Raises:
            KubeError: the request failed, or a Machine cannot be decoded and so may own any VM.
        """
        machines: list[Machine] = []
        async for page in self._machines.pages(namespace=namespace):
            if page.malformed_keys:
                raise KubeError(f"Machines cannot be decoded: {', '.join(page.malformed_keys)}")
            machines += page.items
        return machines

    async def _delete(
        self, obj: MachineClass, resolved: ResolvedClass, identity: Identity, provider_id: str
    ) -> None:
        request = MachineRequest(
            identity=identity,
            provider_spec=resolved.provider_spec,
            credentials=resolved.credentials,
            provider_id=provider_id,
        )
        try:
            await self._driver.call(MachineDriver.delete_machine, request)
        except NotFound:
            return
        metrics.ORPHANS_DELETED.inc()
        self._log.info("VM without Machine deleted", provider_id=provider_id)
        text = f"VM {provider_id} ({identity.name}) belonged to no Machine and was deleted"
        self._events.event(
            self._class_kind.reference(obj), NORMAL, reasons.REASON_ORPHAN_DELETED, text
        )

    def _report(
        self, obj: MachineClass, judgement: OrphanCandidates, decision: OrphanDecision
    ) -> None:
        """Log VMs that are not deleted, and record events; skip texts of the previous pass."""
        texts = dict(_ignored_vms(judgement, decision, obj.namespace))
        before, self._reported[obj.key] = self._reported.get(obj.key, set()), set(texts)
        for text in sorted(texts.keys() - before):
            self._log.warning("VMs not deleted", key=obj.key, reason=text)
            self._events.event(self._class_kind.reference(obj), WARNING, texts[text], text)

    # --- nodes ------------------------------------------------------------------------------

    async def _mark_nodes(self, faults: list[str]) -> None:
        settings = self._caches.settings
        if not settings.has_target or self._caches.machines.malformed_keys:
            return
        by_node: dict[str, list[Machine]] = {}
        for machine in self._caches.machines.store.list():
            by_node.setdefault(machine.node_name, []).append(machine)
        for node in self._caches.nodes.store.list():
            try:
                await self._mark_node(node, by_node.get(node.name, []))
            except KubeError as error:
                faults.append(f"{node.name}: {error}")

    async def _mark_node(self, node: Node, machines: Sequence[Machine]) -> None:
        settings = self._caches.settings
        if len(machines) > 1:
            self._log.warning("node belongs to several machines", node=node.name)

        def marked(latest: Node) -> Patch | None:
            return _node_patch(latest, machines, self._caches.now(), settings)

        await self._write_nodes.change(self._write_nodes.newest(node), PatchStep(marked))

    # --- triggers ---------------------------------------------------------------------------

    async def _passes(self) -> None:
        while True:
            self._triggered.clear()
            try:
                await self.run_pass()
            except Exception as error:  # noqa: BLE001 - one pass must not end the others
                self._log.error("pass failed unexpectedly", exc_info=error)
            pause_s = min(AGAIN_S, self._period_s) if self._recheck_soon else self._period_s
            if await tasks.wait_for(self._triggered, jittered(pause_s, JITTER, self._rng)):
                await asyncio.sleep(SOON_S)

    def _machine_changed(self, old: Machine | None, new: Machine | None, initial: bool) -> bool:
        if old is not None and (new is None or new.uid != old.uid):
            self._imported.discard(old.uid)
        if new is not None and (old is None or new.uid != old.uid):
            self._gone.remove(new.name)
            if new.provider_id and not initial:
                # A user or a restore created the Machine with a provider ID: its annotations do not
                # prove that we created its VM.
                self._imported.add(new.uid)
        if _triggers_pass(old, new):
            self._triggered.set()
        return False

    def _machine_deleted(self, obj: Machine) -> None:
        """Remember a deleted Machine that may have left a VM."""
        if obj.uid not in self._imported and orphans.may_leave_vm(obj):
            origins = obj.origins or (self._caches.class_of(obj).origin,)
            now = asyncio.get_running_loop().time()
            identity = self._caches.settings.identity(obj)
            self._gone.add(DeletedMachine(identity=identity, origins=origins, at=now))

    @staticmethod
    async def _no_op(_key: str) -> ReconcileResult:
        raise AssertionError("this controller has no keys to reconcile")


def _ignored_vms(
    judgement: OrphanCandidates, decision: OrphanDecision, namespace: str
) -> Iterator[tuple[str, str]]:
    """Yield text and reason of each event about VMs that are not deleted."""
    if decision.over_limit:
        text = (
            f"{len(decision.to_delete) + len(decision.over_limit)} VMs of this cluster belong to "
            f"no Machine, at most {len(decision.to_delete)} are deleted in one pass; check "
            "whether Machines are missing"
        )
        yield text, reasons.REASON_ORPHAN_HELD
    if decision.unconfirmed:
        # The text has no count, because every change of the count would cause another event.
        text = (
            "VMs of this cluster carry no namespace and belong to no Machine in namespace "
            f"{namespace}; they are kept, as Machines of other namespaces may own them; to delete "
            "orphans, allow the service account to list machines in all namespaces"
        )
        yield text, reasons.REASON_ORPHAN_UNCONFIRMED
    for record in judgement.strangers:
        # The controller of another cluster or namespace reports its own VMs.
        if not record.identity.cluster:
            vm = f"VM {record.info.provider_id} ({record.identity.name})"
            yield f"{vm} has no marker and is ignored", reasons.REASON_STRANGER


def _set_vm_metrics(results: Sequence[tuple[OrphanCandidates, OrphanDecision]]) -> None:
    for kind, count in (
        ("ours", sum(judgement.owned_count for judgement, _ in results)),
        ("waiting", sum(len(judgement.waiting) for judgement, _ in results)),
        (
            "held",
            sum(len(decision.over_limit) + len(decision.unconfirmed) for _, decision in results),
        ),
        ("stranger", sum(len(judgement.strangers) for judgement, _ in results)),
    ):
        metrics.VMS.labels(kind).set(count)


def _triggers_pass(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a change of a Machine triggers a pass.

    Triggers are the deletion of the Machine, and a status which says that the Machine may have left
    a VM.
    """
    if new is None:
        return old is not None
    if old is None:
        return False
    before, after = (version.status.description for version in (old, new))
    return TRIGGER in after and TRIGGER not in before


def _node_patch(
    node: Node, machines: Collection[Machine], now: datetime, settings: MachineSettings
) -> Patch | None:
    """Return the patch that annotates a node without a Machine, or removes the annotation.

    None = no change.

    A node with several Machines is not changed, because its owner is unknown. A node without a
    Machine is annotated only once it is older than the creation timeout.

    Args:
        node: the node.
        machines: Machines whose `node_name` is the name of the node.
        now: the time.
        settings: names and settings.
    """
    if len(machines) > 1:
        return None
    if machines:
        return node_metadata.managed_patch(node, settings)
    age = age_s(node, now)
    if age is None or age <= (settings.creation_timeout_s or DEFAULT_CREATION_S):
        return None
    return node_metadata.unmanaged_patch(node, settings)

"""Looks for VMs that no Machine owns, class by class, and for nodes that none stands behind.

A pass comes at the start, every period and when a Machine is gone; where VMs have no marks, another
one follows a minute later. A class whose listing fails does not delay the others. Before a VM is
deleted, `ccm.machines.orphans` compares it with the cache, and with a live list of Machines: of all
namespaces where we may read them.
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
from ccm.machines import metrics, nodesync, orphans, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.driver import Shared
from ccm.machines.orphans import Decision, GoneMachine, GoneMachines, Judgement, Sighting
from ccm.machines.settings import Settings
from ccm.model import Node
from ccm.model.machines import Machine, MachineClass
from ccm.model.names import NORMAL, WARNING
from ccm.model.node import age_s
from ccm.model.patches import Patch
from ccm.runtime.controller import Controller, Result, Watch
from ccm.runtime.writer import Recorder, Step, Writer

NAME = "machinesafety"

SOON_S = 5.0
"""A pass for a Machine that is gone waits that long for others to go."""

AGAIN_S = 60.0
"""Time until VMs without marks are listed again. Later, the name of a deleted Machine says nothing
about a VM."""

JITTER = 0.1


TRIGGER = "OutOfRange"
"""A machine with this in its description may have left a VM behind (reference)."""


class MachineSafetyController:
    """The machine safety controller.

    Args:
        shared: what the machine controllers share; the caches are ready.
        events: where events go.
        period_s: seconds between two passes.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        shared: Shared,
        events: Recorder,
        period_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self._caches, self._driver, self._vms = shared.caches, shared.driver, shared.vms
        caches = shared.caches
        # An API group without class objects has none to tell of.
        self._class_kind = caches.codec.machine_classes or caches.codec.machines
        self._machines = caches.client.resource(caches.codec.machines)
        nodes = caches.target.client.resource(NODES)
        self._events = events
        self._period_s = period_s
        self._rng = rng or random.Random()
        self._write_nodes = Writer(nodes, cache=caches.nodes.store, rng=rng)
        self._sightings: dict[str, dict[str, Sighting]] = {}
        self._told: dict[str, set[str]] = {}
        """By class, of what people were told in the last pass over it."""
        self._gone = GoneMachines()
        self._imported: set[str] = set()
        """UIDs of Machines created with a provider ID: their VMs are never ours by name."""
        self._recheck_soon = False
        self._asked = asyncio.Event()
        self._log = log.logger(NAME)
        self._outage = Outage(
            self._log,
            begins="VMs of a class cannot be looked over, retrying",
            ends="VMs of all classes can be looked over again",
        )
        self.controller = Controller(
            NAME,
            queue=NAME,
            reconcile=self._nothing,
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
            tasks={"passes": self._passes, "listings": shared.vms.tend},
            rng=rng,
        )

    async def look(self) -> None:
        """One pass over the VMs of all classes, and over all nodes."""
        classes = self._caches.classes.store.list()
        for gone in self._sightings.keys() - {machine_class.key for machine_class in classes}:
            del self._sightings[gone]
            self._told.pop(gone, None)
        self._gone.keep({machine_class.name for machine_class in classes})
        self._recheck_soon = False
        found, faults = list[tuple[Judgement, Decision]](), list[str]()
        for machine_class in classes:
            view = self._caches.resolve(machine_class)
            if view.faults:
                continue
            try:
                found.append(await self._look_over(machine_class, view))
                metrics.PASSES.labels("success").inc()
            except (CloudError, KubeError) as error:
                metrics.PASSES.labels("error").inc()
                faults.append(f"{machine_class.key}: {error}")
        _count(found)
        await self._mark_nodes(faults)
        if faults:
            self._outage.goes_on(count=len(faults), error=faults[0])
        else:
            self._outage.is_over()

    async def _look_over(
        self, obj: MachineClass, made_of: ResolvedClass
    ) -> tuple[Judgement, Decision]:
        """The VMs of one class.

        Raises:
            CloudError: they cannot be listed, or one of them cannot be deleted.
            KubeError: Machines cannot be read.
        """
        # One that others had made serves too, if it began after what asked for the pass.
        since = asyncio.get_running_loop().time() - SOON_S
        listing = await self._vms.listings.of(made_of, since=since)
        machines = self._caches.machines.store.list()
        by_name = self._driver.finds_by_name
        # Where VMs are marked, one without marks is never ours.
        gone = self._gone.of(made_of.name, made_of.origin) if by_name else {}
        found = orphans.judge(
            listing.records,
            machines,
            self._sightings.get(obj.key, {}),
            self._caches.now(),
            cluster=self._caches.settings.cluster,
            namespace=self._caches.namespace,
            gone=gone,
        )
        self._sightings[obj.key] = dict(found.sightings)
        listed = {record.identity.name for record in listing.records}
        early = self._gone.settle(made_of.name, listed, listing.began)
        self._recheck_soon |= by_name and (early or bool(found.waiting))
        decision = Decision()
        if found.candidates and not self._caches.machines.undecodable:
            decision = await self._decide(found)
        self._tell(obj, found, decision)
        failed: CloudError | None = None
        for record in decision.due:
            identity = record.identity if record.identity.cluster else gone[record.identity.name]
            try:
                await self._delete(obj, made_of, identity, record.info.provider_id)
            except CloudError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return found, decision

    async def _decide(self, found: Judgement) -> Decision:
        """Compare candidates with the Machines as the API server has them now.

        Raises:
            KubeError: Machines cannot be read.
        """
        try:
            machines = await self._live("")
        except Forbidden:
            # The shipped Role grants our namespace only.
            machines = await self._live(self._caches.namespace)
            return orphans.decide(found, machines, all_namespaces=False)
        return orphans.decide(found, machines, all_namespaces=True)

    async def _live(self, namespace: str) -> Sequence[Machine]:
        """Read the Machines of a namespace from the API server; empty = of all namespaces.

        Raises:
            KubeError: a Machine cannot be read; it may own any VM.
        """
        every: list[Machine] = []
        async for page in self._machines.pages(namespace=namespace):
            if page.malformed_keys:
                raise KubeError(f"Machines cannot be read: {', '.join(page.malformed_keys)}")
            every += page.items
        return every

    async def _delete(
        self, obj: MachineClass, made_of: ResolvedClass, identity: Identity, provider_id: str
    ) -> None:
        request = MachineRequest(
            identity=identity,
            provider_spec=made_of.provider_spec,
            credentials=made_of.credentials,
            provider_id=provider_id,
        )
        try:
            await self._driver.call(MachineDriver.delete_machine, request)
        except NotFound:
            return
        metrics.ORPHANS_DELETED.inc()
        self._log.info("VM without Machine deleted", provider_id=provider_id)
        text = f"VM {provider_id} ({identity.name}) belonged to no Machine"
        self._events.event(
            self._class_kind.reference(obj), NORMAL, reasons.REASON_ORPHAN_DELETED, text
        )

    def _tell(self, obj: MachineClass, found: Judgement, decision: Decision) -> None:
        """Tell people of what is left alone, once for as long as it is."""
        texts = dict(_left_alone(found, decision, obj.namespace))
        before, self._told[obj.key] = self._told.get(obj.key, set()), set(texts)
        for text in sorted(texts.keys() - before):
            self._log.warning("VMs are left alone", key=obj.key, reason=text)
            self._events.event(self._class_kind.reference(obj), WARNING, texts[text], text)

    # --- nodes ------------------------------------------------------------------------------

    async def _mark_nodes(self, faults: list[str]) -> None:
        settings = self._caches.settings
        if not settings.has_target or self._caches.machines.undecodable:
            return
        by_node: dict[str, list[Machine]] = {}
        for machine in self._caches.machines.store.list():
            by_node.setdefault(machine.node_name, []).append(machine)
        for node in self._caches.nodes.store.list():
            try:
                await self._mark(node, by_node.get(node.name, []))
            except KubeError as error:
                faults.append(f"{node.name}: {error}")

    async def _mark(self, node: Node, machines: Sequence[Machine]) -> None:
        settings = self._caches.settings
        if len(machines) > 1:
            self._log.warning("node belongs to several machines", node=node.name)

        def marked(one: Node) -> Patch | None:
            return _node_patch(one, machines, self._caches.now(), settings)

        await self._write_nodes.change(self._write_nodes.newest(node), Step(marked))

    # --- when -------------------------------------------------------------------------------

    async def _passes(self) -> None:
        while True:
            self._asked.clear()
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - one pass must not end the others
                self._log.error("pass failed unexpectedly", exc_info=error)
            pause_s = min(AGAIN_S, self._period_s) if self._recheck_soon else self._period_s
            if await tasks.wait_for(self._asked, jittered(pause_s, JITTER, self._rng)):
                await asyncio.sleep(SOON_S)

    def _machine_changed(self, old: Machine | None, new: Machine | None, initial: bool) -> bool:
        if old is not None and (new is None or new.uid != old.uid):
            self._imported.discard(old.uid)
        if new is not None and (old is None or new.uid != old.uid):
            self._gone.remove(new.name)
            if new.provider_id and not initial:
                # Set by a user, or restored: the annotations say nothing about this object.
                self._imported.add(new.uid)
        if _asks_for_a_pass(old, new):
            self._asked.set()
        return False

    def _machine_deleted(self, obj: Machine) -> None:
        """Remember a Machine that may have left a VM behind."""
        if obj.uid not in self._imported and orphans.may_leave_vm(obj):
            origins = obj.origins or (self._caches.class_of(obj).origin,)
            now = asyncio.get_running_loop().time()
            identity = self._caches.settings.identity(obj)
            self._gone.add(GoneMachine(identity=identity, origins=origins, at=now))

    @staticmethod
    async def _nothing(_key: str) -> Result:
        raise AssertionError("this controller has passes, and no keys")


def _left_alone(found: Judgement, decision: Decision, namespace: str) -> Iterator[tuple[str, str]]:
    """What people are told of, and the reason of the event."""
    if decision.held:
        text = (
            f"{len(decision.due) + len(decision.held)} VMs of this cluster belong to no Machine, "
            f"at most {len(decision.due)} are deleted in one pass; are Machines missing?"
        )
        yield text, reasons.REASON_ORPHAN_HELD
    if decision.unconfirmed:
        # No number: each VM that comes or goes would be another event.
        text = (
            "VMs of this cluster carry no namespace and belong to no Machine in namespace "
            f"{namespace}; Machines of other namespaces may own them: left alone; allow the "
            "service account to list machines in all namespaces to have orphans among them deleted"
        )
        yield text, reasons.REASON_ORPHAN_UNCONFIRMED
    for record in found.strangers:
        # A VM of another cluster or namespace is reported there.
        if not record.identity.cluster:
            who = f"VM {record.info.provider_id} ({record.identity.name})"
            yield f"{who} bears no marker: left alone", reasons.REASON_STRANGER


def _count(found: Sequence[tuple[Judgement, Decision]]) -> None:
    for kind, count in (
        ("ours", sum(one.ours for one, _ in found)),
        ("waiting", sum(len(one.waiting) for one, _ in found)),
        ("held", sum(len(one.held) + len(one.unconfirmed) for _, one in found)),
        ("stranger", sum(len(one.strangers) for one, _ in found)),
    ):
        metrics.VMS.labels(kind).set(count)


def _asks_for_a_pass(old: Machine | None, new: Machine | None) -> bool:
    """Whether VMs should be looked over at once: a machine is gone, or has a doubtful VM."""
    if new is None:
        return old is not None
    if old is None:
        return False
    before, after = (one.status.description for one in (old, new))
    return TRIGGER in after and TRIGGER not in before


def _node_patch(
    node: Node, machines: Collection[Machine], now: datetime, settings: Settings
) -> Patch | None:
    """What is written on a node, from the machines that name it; None: nothing.

    Of several nobody knows which is the right one: the node is left as it is.
    """
    if len(machines) > 1:
        return None
    if machines:
        return nodesync.managed_patch(node, settings)
    age = age_s(node, now)
    if age is None or age <= settings.creation_timeout_s:
        return None
    return nodesync.unmanaged_patch(node, settings)

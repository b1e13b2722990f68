"""Shared objects of the machine controller's modules, and the writes of a pass over a machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from ccm.base import log, redact
from ccm.cloud.errors import FailedPrecondition
from ccm.cloud.helpers import is_label_value
from ccm.cloud.machines import UIDMigration
from ccm.controllers.machine.tokens import Tokens
from ccm.kube.resources import NODES, SECRETS
from ccm.machines import metrics, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.creation import PassResult
from ccm.machines.drain import DrainProgress, DrainTask
from ccm.machines.driver import SharedComponents
from ccm.machines.settings import MachineSettings
from ccm.model import Node
from ccm.model.machines import Machine, OperationState, Phase
from ccm.model.names import NORMAL, WARNING
from ccm.model.patches import Patch, StaleObject, annotations_patch
from ccm.runtime.workers import ConcurrencySlot
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

_TOLD = {
    Phase.UNKNOWN: (WARNING, reasons.REASON_NODE_UNHEALTHY),
    Phase.FAILED: (WARNING, reasons.REASON_MACHINE_FAILED),
    Phase.RUNNING: (NORMAL, reasons.REASON_NODE_HEALTHY),
    Phase.UPDATING: (NORMAL, reasons.REASON_UPDATE_READY),
    Phase.UPDATED: (NORMAL, reasons.REASON_UPDATE_SUCCESSFUL),
    Phase.UPDATE_FAILED: (WARNING, reasons.REASON_UPDATE_FAILED),
}
"""Phases whose start is reported by an event."""


class Drains(Protocol):
    """Drains of nodes, by the UID of the machine."""

    def start(self, task: DrainTask, wake: Callable[[], None]) -> None:
        """Start or continue the drain of a machine's node; call `wake` on progress."""
        ...

    def progress(self, uid: str) -> DrainProgress | None:
        """Return the progress of a machine's drain; None = this process has not started one."""
        ...

    def states(self) -> Sequence[tuple[str, float]]:
        """Return state (see `metrics.DRAINS`) and age in seconds of each drain that has not ended.

        A drain that was started again after a failure keeps its age.
        """
        ...

    async def stop(self, uid: str) -> None:
        """Stop and forget the drain of a machine, complete or not."""
        ...

    async def run_until_cancelled(self) -> None:
        """Wait for cancellation, then stop all drains."""
        ...


class MachineContext:
    """Caches, driver, writers and events of the machine controller.

    Args:
        shared: components of all machine controllers; the caches are ready.
        drains: drains nodes.
        events: recorder of events.
        rng: source of jitter.

    Attributes:
        creations_ended: UID of a machine -> event loop time at which its last `create_machine`
            call ended.
        wake: requeues machines by their keys; set by the controller.
    """

    def __init__(
        self,
        shared: SharedComponents,
        *,
        drains: Drains,
        events: Recorder,
        rng: random.Random | None = None,
    ) -> None:
        caches = shared.caches
        self.shared, self.caches, self.codec = shared, caches, caches.codec
        self.driver, self.vms = shared.driver, shared.vms
        self.machines = caches.client.resource(caches.codec.machines)
        self.nodes = caches.target.client.resource(NODES)
        self.write = caches.writer(caches.codec.machines, rng)
        self.write_nodes = ObjectWriter(self.nodes, cache=caches.nodes.store, rng=rng)
        self.tokens = Tokens(caches.target.client.resource(SECRETS))
        self.drains, self.events = drains, events
        self.creations_ended: dict[str, float] = {}
        self.wake: Callable[[Iterable[str]], None] = lambda _keys: None
        self.log = log.logger(self.codec.controller_name("machine"))

    @property
    def settings(self) -> MachineSettings:
        return self.caches.settings

    def node_of(self, machine: Machine) -> Node | None:
        """Return the newest known version of the machine's node; None = not in the cache."""
        node = self.caches.nodes.store.get(machine.node_name) if machine.node_name else None
        return None if node is None else self.write_nodes.newest(node)

    def own_node_of(self, machine: Machine) -> Node | None:
        """Return the machine's node if it is confirmed to run on the machine's VM, else None."""
        node = self.node_of(machine)
        return node if node is not None and self.vms.owns_node(machine, node) else None

    def record_event(self, machine: Machine, kind: str, reason: str, text: str) -> None:
        self.events.event(self.codec.machines.reference(machine), kind, reason, text)

    async def save(
        self, machine: Machine, patch: Callable[[Machine], Patch | None], part: str = ""
    ) -> Machine:
        """Write a machine, and return its new version.

        Raises:
            StaleObject: the machine is gone, or changed so that the patch no longer applies; its
                watch event triggers the next pass.
            KubeError: the write failed.
        """
        after = (await self.write.change(machine, PatchStep(patch, part))).obj
        if after is None:
            raise StaleObject
        return after

    async def migrate_uid(
        self, machine: Machine, machine_class: ResolvedClass, turn: ConcurrencySlot
    ) -> Machine:
        """Label a restored machine's VM with the machine's new UID; return the machine as written.

        Raises:
            FailedPrecondition: the VM cannot get the UID; an event says why.
            CloudError: a call failed.
            StaleObject, KubeError: the annotation with the former UID was not removed.
        """
        try:
            async with turn.release():
                await self._migrate_vm(machine, machine_class)
        except FailedPrecondition as error:
            text = redact.mask_for_api(str(error))
            self.record_event(machine, WARNING, reasons.REASON_UID_NOT_MIGRATED, text)
            raise
        note = {self.settings.names.former_uid: None}
        return await self.save(machine, lambda obj: annotations_patch(obj, note))

    async def _migrate_vm(self, machine: Machine, machine_class: ResolvedClass) -> None:
        """Replace the machine's former UID in the label of its VM by the present UID.

        Raises:
            FailedPrecondition: the former UID is invalid, or that of another Machine; or the
                machine has another VM already.
            CloudError: a call failed.
        """
        name = self.settings.names.former_uid
        former = machine.annotation(name)
        if not (former and is_label_value(former)):
            # An empty label value would match the VMs of no machine.
            raise FailedPrecondition(
                f"annotation {name} is {former!r}; set it to the former UID of the Machine, or "
                "remove it"
            )
        for other in self.caches.machines.store.list():
            if other.uid == former != machine.uid:
                # Otherwise permission to edit one machine would be enough to take all VMs.
                raise FailedPrecondition(
                    f"annotation {name} has the UID of Machine {other.key}; remove the annotation"
                )
        request = self.driver.request(machine, machine_class)
        by_uid = replace(request, provider_id="")  # the provider ID may be that of either VM
        own = await self.driver.vm_of(by_uid)
        if own is not None:
            identity = replace(request.identity, uid=former)
            other_vm = await self.driver.vm_of(replace(by_uid, identity=identity))
            # After an interrupted migration, the only VM has the present UID.
            if other_vm is not None and other_vm.provider_id != own.provider_id:
                raise FailedPrecondition(
                    f"annotation {name} names VM {other_vm.provider_id}, but VM {own.provider_id} "
                    "has the UID of the Machine; delete the VM that is not needed, or remove the "
                    "annotation"
                )
        await self.driver.call(UIDMigration.migrate_uid, request, former)

    async def write_result(self, machine: Machine, outcome: PassResult) -> PassResult:
        """Write the result of a pass.

        Raises:
            StaleObject: the machine is gone, or changed in a way that makes the result outdated.
            KubeError: a write failed.
        """
        wanted = outcome.status
        if outcome.joined:
            # Delete the token before the status is written: a restart in between would otherwise
            # leave the token of a joined machine.
            took_s = self.caches.ages.of(machine)
            metrics.observe_duration("join", machine, self.caches.class_of(machine), took_s)
            await self.tokens.delete(machine, self.settings)
        if wanted is None:
            return outcome
        written = await self.write.change(
            machine, PatchStep(lambda obj: self.codec.new_status(obj, machine, wanted), "status")
        )
        if written.obj is None:
            raise StaleObject
        if written.obj.phase is not machine.phase:
            self._report_phase(machine, written.obj)
        if outcome.is_invalid and written.changed:
            self.record_event(written.obj, WARNING, reasons.REASON_INVALID, wanted.description)
        return outcome

    def _report_phase(self, before: Machine, after: Machine) -> None:
        metrics.count_phase_change(after.phase)
        # No event when a machine joins: its health did not change, and joins are frequent.
        joined = after.phase is Phase.RUNNING and before.phase not in (Phase.UNKNOWN, Phase.FAILED)
        if not joined and (event := _TOLD.get(after.phase)) is not None:
            self.record_event(after, *event, after.status.description)
        if after.phase is Phase.FAILED and before.phase is Phase.PENDING:
            metrics.count_failed_join(before, self.caches.class_of(before))
        is_failed = after.status.state == OperationState.FAILED.value
        level = self.log.warning if is_failed else self.log.info
        text = {"error" if is_failed else "description": after.status.description}
        level("machine phase changed", machine=after.key, phase=after.phase.value, **text)


class Pauses:
    """Pauses of machines, by key. A pause ends at a time, or as soon as a version value changes.

    Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, object]] = {}

    def begin(self, key: str, until: float, version: object) -> None:
        """Pause a machine until a time, or until `version` changes."""
        self._pauses[key] = until, version

    def end(self, key: str) -> None:
        self._pauses.pop(key, None)

    def end_all(self) -> list[str]:
        """End all pauses, and return their keys."""
        keys = list(self._pauses)
        self._pauses.clear()
        return keys

    def left_s(self, key: str, now: float, version: object) -> float:
        """Return the remaining seconds of a machine's pause; 0 = none."""
        until, former = self._pauses.get(key, (now, version))
        return max(0.0, until - now) if former == version else 0.0

"""Deletion of machines: a work queue, and the stages that `ccm.machines.deletion` defines.

Deletions have their own work queue, so that they never wait for creations. If a deletion is
requested during a pass of the other queue, the deletion begins after that pass. The node and the
finalizer are removed last, after the cloud confirmed that the VM is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import msgspec

from ccm.base import clock, redact
from ccm.cloud import errors
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import (
    DeleteMachineResponse,
    MachineDriver,
    MachineInfo,
    MachineRequest,
)
from ccm.controllers.machine.context import MachineContext, Pauses
from ccm.kube.errors import Forbidden, NotFound
from ccm.kube.resources import ATTACHMENTS, NODE_VOLUMES
from ccm.machines import creation, deletion, metrics, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.crdguard import RECHECK, CRDGuard
from ccm.machines.creation import SHORT_S
from ccm.machines.deletion import DeletionStage, StageOutcome, StageResult, StageTransition
from ccm.machines.drain import DrainProgress, DrainState
from ccm.machines.node_metadata import release_patch
from ccm.model import Node
from ccm.model.machines import Machine, Phase
from ccm.model.names import WARNING
from ccm.model.patches import Patch, StaleObject, annotations_patch, remove_finalizer_patch
from ccm.model.times import parse_optional_time
from ccm.runtime import writer
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult
from ccm.runtime.workers import ConcurrencySlot
from ccm.runtime.writer import PatchStep

QUEUE_NAME = "machinetermination"
"""Name of the queue in the labels of the work-queue metrics (Gardener's MCM)."""

WORKERS = 256
"""Number of workers, which limits concurrent cloud calls."""

BACK_OFF_CAP_S = 30.0
"""Maximum back-off after a failed write of the object. client-go's 1000 s would delay a machine for
too long once writes succeed again."""

_STARTED = DrainProgress(state=DrainState.RUNNING, message="")


class TerminationQueue:
    """Work queue of the machines that are being deleted.

    Args:
        context: shared objects of the machine controller.
        guard: blocks deletions that result from the deletion of the CRD.
        elsewhere: keys that the other queue of the machine controller is processing.
        turns: maximum number of machines processed concurrently, not counting machines that wait
            for the cloud (--machine-concurrent-syncs).
        rng: source of jitter.
    """

    def __init__(
        self,
        context: MachineContext,
        guard: CRDGuard,
        elsewhere: Collection[str],
        *,
        turns: int,
        rng: random.Random | None = None,
    ) -> None:
        self._context, self._caches, self._guard = context, context.caches, guard
        self._processing_elsewhere = elsewhere
        self._free = asyncio.Semaphore(turns)
        self._pauses = Pauses()
        self._deletions: dict[str, DeleteFlow] = {}
        """UID of a machine -> progress of its deletion in this process."""
        self._uids: dict[str, str] = {}
        self.controller = Controller(
            context.codec.controller_name("machine"),
            queue=f"{context.codec.prefix}{QUEUE_NAME}",
            reconcile=self.sync,
            workers=WORKERS,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            on_retry=self._retry,
            rng=rng,
        )

    def add(self, key: str) -> None:
        """Queue a machine that is being deleted."""
        self.controller.queue.add(key)

    def add_deleted(self, machine: Machine) -> None:
        """Queue a machine whose object no longer exists, to clean up after it.

        Another program may have removed its finalizers.
        """
        self._uids.setdefault(machine.key, machine.uid)
        self.add(machine.key)

    def has(self, key: str) -> bool:
        """Return whether a worker of this queue is processing the key."""
        return self.controller.queue.is_processing(key)

    async def sync(self, key: str) -> ReconcileResult:
        """Continue the deletion of one machine.

        Raises:
            KubeError: a write failed, or the CRD cannot be read.
        """
        cached = self._caches.machines.store.get(key)
        if (former := self._uids.get(key)) is not None and (cached is None or cached.uid != former):
            self._pauses.end(key)
            self._guard.forget(former)
            self._deletions.pop(self._uids.pop(key), None)
            await self._context.drains.stop(former)
        # A key that the other queue is processing is added again when that pass ends.
        if cached is None or not cached.is_deleting or key in self._processing_elsewhere:
            return IDLE
        machine = self._context.write.newest(cached)
        if self._caches.codec.is_ignored(machine):
            return IDLE
        if (
            left_s := self._pauses.left_s(key, clock.monotonic(), self._pause_version(machine))
        ) > 0:
            return ReconcileResult(after_s=left_s, idle=True)
        self._uids[key] = machine.uid
        if await self._guard.blocks(machine):
            return RECHECK
        finalizers = self._context.settings.names.machine_finalizers
        if not any(finalizer in machine.finalizers for finalizer in finalizers):
            self._pauses.end(key)
            return DONE
        ongoing = self._deletions.setdefault(machine.uid, DeleteFlow(self._context, machine))
        try:
            async with ConcurrencySlot(self._free) as turn:
                event = await ongoing.run(machine, turn, lambda: self.add(key))
        except StaleObject:
            # The change that made an object stale adds the key to the queue. But a conflict about a
            # node may have another reason, and then nothing changes.
            return ReconcileResult(after_s=SHORT_S, idle=True)
        self._pauses.end(key)
        if event is None or event.after_s is None:
            return DONE
        if not event.eager:
            self._pauses.begin(key, clock.monotonic() + event.after_s, self._pause_version(machine))
        return ReconcileResult(after_s=event.after_s, busy=event.busy)

    def _pause_version(self, machine: Machine) -> object:
        """Return the value whose change ends a machine's pause."""
        machine_class = self._caches.class_to_delete_with(machine)
        return (machine.spec, machine_class.version, machine.force_deletion)

    def _retry(self) -> None:
        """End all pauses, because the provider was replaced."""
        for key in self._pauses.end_all():
            self.controller.queue.add(key, background=True)


class DeleteFlow:
    """Deletion of one machine, across passes, with state that is kept in memory.

    Args:
        context: shared objects of the machine controller.
        machine: the machine.
    """

    def __init__(self, context: MachineContext, machine: Machine) -> None:
        self._context, self._machine = context, machine
        self._caches, self._driver, self._vms = context.caches, context.driver, context.vms
        self._settings, self._drains = context.settings, context.drains
        self._deletion_state = deletion.deletion_state(machine, self._settings)
        """Current progress; the annotation may lag behind."""
        self._transition = deletion.current_transition(self._deletion_state.stage, machine)
        """Transition for the next status."""
        self._waits: dict[DeletionStage, int] = {}
        """Stage -> number of passes that ended at the stage."""
        self._first_denial_s = 0.0
        """Monotonic time of the first query that found no VM of the machine; 0 = none yet."""
        self._has_failed = False
        """Whether the drain failed and has to be started again."""
        self._drain_began = 0.0
        """Monotonic time at which this flow first started the drain; 0 = not started yet."""
        self._absent_id = ""
        """Provider ID of the VM if the owner check of this pass did not find the VM; else empty."""
        self._is_done = False

    async def run(
        self, machine: Machine, turn: ConcurrencySlot, wake: Callable[[], None]
    ) -> StageResult | None:
        """Run stages until one has to wait.

        Args:
            machine: the newest known version of the machine.
            turn: concurrency slot, released during cloud calls.
            wake: called on progress of the drain.

        Returns:
            Result of the stage that waits; None once our finalizer is removed.

        Raises:
            StaleObject: the object was changed or deleted; its watch event triggers the next pass.
            KubeError: a write failed.
        """
        if self._is_done:
            # The cache does not show the removal of the finalizer yet.
            return None
        self._machine, self._turn, self._wake = machine, turn, wake
        self._absent_id = ""
        stored = deletion.deletion_state(machine, self._settings)
        self._deletion_state = deletion.further_state(self._deletion_state, stored)
        steps: dict[DeletionStage, Callable[[], Awaitable[StageResult]]] = {
            DeletionStage.STATUS: self._find_node,
            DeletionStage.DRAIN: self._drain,
            DeletionStage.VOLUMES: self._delete_attachments,
            DeletionStage.VM: self._delete_vm,
            DeletionStage.NODE: self._delete_node,
        }
        while (stage := self._deletion_state.stage) is not DeletionStage.FINALIZER:
            event = await self._check_owner() or await steps[stage]()
            self._transition = deletion.transition(stage, event, self._machine)
            if self._transition.to is stage:
                await self._write_wait(event)
                return event
            self._update_state(stage=self._transition.to)
        await self._write_terminating()
        finalizers = self._settings.names.machine_finalizers
        await self._context.write.change(
            self._machine,
            PatchStep(lambda obj: remove_finalizer_patch(obj, *finalizers, strategic=False)),
        )
        self._is_done = True
        return None

    # --- stages -----------------------------------------------------------------------------

    async def _check_owner(self) -> StageResult | None:
        """Check the owner of the machine's VM before a stage.

        A VM of another owner blocks the deletion. A failed owner check also blocks the deletion,
        unless the node is missing, or confirmed as the machine's. The VM of a restored machine is
        first labeled with the machine's new UID: otherwise the deletion would look for that UID and
        find no VM.

        Returns:
            The result that blocks the deletion; None = continue.
        """
        machine = self._machine
        machine_class = self._caches.class_to_delete_with(machine)
        if machine_class.access_faults:
            return None
        if self._settings.names.former_uid in machine.annotations:
            try:
                machine = await self._context.migrate_uid(machine, machine_class, self._turn)
            except CloudError as error:
                return deletion.error_result(error, cause=StageOutcome.OWNER_UNCLEAR)
            self._machine = machine
        if not machine.provider_id or self._vms.owns_vm(machine):
            return None
        if machine.provider_id == self._absent_id:
            return None
        is_proved = (
            machine.node_name not in self._caches.nodes.store
            or self._context.own_node_of(machine) is not None
        )
        if self._deletion_state.stage is DeletionStage.NODE and is_proved:
            return None  # The VM is gone.
        try:
            async with self._turn.release():
                if not await self._vms.confirm(machine, machine_class):
                    # Query the cloud once for all stages of the pass.
                    self._absent_id = machine.provider_id
        except errors.NotOwned as error:
            await self._write_terminating()
            self._record_event(reasons.REASON_VM_NOT_OWNED, redact.mask_for_api(str(error)))
            return deletion.error_result(error, cause=StageOutcome.OWNER_UNCLEAR)
        except CloudError as error:
            return (
                None
                if is_proved
                else deletion.error_result(error, cause=StageOutcome.OWNER_UNCLEAR)
            )
        return None

    async def _find_node(self) -> StageResult:
        machine = self._machine
        if not self._settings.has_target:
            return StageResult(outcome=StageOutcome.NO_TARGET)
        if machine.node_name:
            return StageResult(outcome=StageOutcome.NODE_KNOWN)
        nodes = self._caches.nodes.store.list()
        vm = MachineInfo(node_name=deletion.node_name_by_label(machine, nodes, self._settings))
        origin = ""
        if not vm.node_name:
            await self._write_terminating()
            machine_class = self._caches.class_to_delete_with(machine)
            if machine_class.access_faults:
                if machine.force_deletion:
                    return StageResult(outcome=StageOutcome.NODE_KNOWN)
                return deletion.unusable_class_result(
                    machine_class.access_faults, cause=StageOutcome.OWNER_UNCLEAR
                )
            try:
                vm = await self._vm_status(self._driver.request(machine, machine_class)) or vm
            except CloudError as error:
                return deletion.error_result(error, cause=StageOutcome.OWNER_UNCLEAR)
            # As after a successful creation, the provider ID and the origin are stored, and the
            # record of the started creation is removed.
            origin = machine_class.origin if vm.provider_id else ""
        if vm.node_name:
            vm = replace(vm, provider_id=self._machine.provider_id or vm.provider_id)
            codec = self._context.codec
            await self._save(lambda obj: codec.identity(obj, vm, has_target=True, origin=origin))
        return StageResult(outcome=StageOutcome.NODE_KNOWN)

    async def _drain(self) -> StageResult:
        machine, drains = self._machine, self._drains
        node = self._context.own_node_of(machine)
        now = self._caches.now_since(machine.uid, deletion.requested_at(machine))
        if node is None:
            if await self._is_unseen(now):
                text = f"node {machine.node_name} exists, but is not in the cache yet"
                return StageResult(outcome=StageOutcome.DRAINING, text=text, after_s=SHORT_S)
            await drains.stop(machine.uid)
            return StageResult(outcome=StageOutcome.NO_NODE)
        if self._settings.names.skip_eviction in node.annotations:
            await drains.stop(machine.uid)
            return StageResult(outcome=StageOutcome.NO_NODE)
        await self._write_terminating()
        task = deletion.deletion_drain_task(self._machine, node, now, self._settings)
        # The result of a drain that was started for another purpose, such as the preservation of
        # the machine, does not count.
        progress = drains.progress(machine.uid) if self._drain_began else None
        if progress is None or progress.state is DrainState.RUNNING or self._has_failed:
            # A running drain continues, with force if the task requests it now.
            drains.start(task, self._wake)
            self._drain_began = self._drain_began or clock.monotonic()
            progress = drains.progress(machine.uid) or _STARTED
        event = deletion.drain_result(progress, task, now)
        self._has_failed = event.outcome is StageOutcome.DRAIN_FAILED
        if event.outcome in (
            StageOutcome.DRAINED,
            StageOutcome.FORCED,
            StageOutcome.FORCED_DRAIN_FAILED,
        ):
            await drains.stop(machine.uid)
            metrics.observe_drain(machine, clock.monotonic() - self._drain_began)
            self._update_state(forced=event.outcome is not StageOutcome.DRAINED)
        return event

    async def _is_unseen(self, now: datetime) -> bool:
        """Return whether the machine's node exists, but is missing in the cache.

        False if the deletion ignores failed drains: then the deletion does not wait for the cache.
        """
        machine = self._machine
        is_seen = not machine.node_name or machine.node_name in self._caches.nodes.store
        if is_seen or deletion.ignores_drain_failure(machine, now, self._settings):
            return False
        try:
            node = await self._context.nodes.get(machine.node_name)
        except NotFound:
            return False
        return self._vms.owns_node(machine, node)

    async def _delete_attachments(self) -> StageResult:
        """Delete the VolumeAttachments that a forced drain left, and wait for the detachment."""
        await self._write_terminating()
        name, client = self._machine.node_name, self._caches.target.client
        if name in self._caches.nodes.store and self._context.own_node_of(self._machine) is None:
            return StageResult(
                outcome=StageOutcome.DETACHED
            )  # The node belongs to another VM by now.
        left: tuple[str, ...] = ()
        if name:
            with suppress(NotFound):
                left = (await client.resource(NODE_VOLUMES).get(name)).attached
        if not left:
            return StageResult(outcome=StageOutcome.DETACHED)
        self._deletion_state = seen = deletion.start_volume_wait(
            self._deletion_state, self._caches.now()
        )
        count = len(left)
        text = f"{count} volume{'s are' if count > 1 else ' is'} still attached to node {name}"
        now = self._caches.now_since(self._machine.uid, parse_optional_time(seen.since))
        if deletion.volume_wait_s(seen, now) > self._settings.detach_timeout_s:
            return StageResult(outcome=StageOutcome.DETACH_TIMED_OUT, text=text)
        attachments = client.resource(ATTACHMENTS)
        async for page in attachments.pages():
            for attachment in page.items:
                if attachment.spec.node_name == name and not attachment.is_deleting:
                    with suppress(NotFound):
                        await attachments.delete(attachment.name, uid=attachment.uid)
        return StageResult(outcome=StageOutcome.ATTACHED, text=text, after_s=SHORT_S)

    async def _delete_vm(self) -> StageResult:
        machine = self._machine
        machine_class = self._caches.class_to_delete_with(machine)
        await self._write_terminating()
        if machine_class.access_faults:
            # A forced deletion removes a machine that never had a VM; every other machine waits
            # until its class is usable.
            if machine.force_deletion and not deletion.may_have_vm(machine):
                return StageResult(outcome=StageOutcome.VM_DELETED)
            return deletion.unusable_class_result(machine_class.access_faults)
        try:
            is_not_visible = await self._is_elsewhere(machine, machine_class)
            wait = (
                await self._wait_for_credentials(machine_class.origin) if is_not_visible else None
            )
            if wait is not None:
                return wait
            if not is_not_visible and self._deletion_state.not_visible:
                # The cloud shows the VM again: after the next rotation, wait for the full time.
                self._update_state(not_visible="", not_visible_origin="")
                await self._persist()
            answer = await self._call_delete(machine, machine_class)
        except CloudError as error:
            self._first_denial_s = 0.0
            return deletion.error_result(error)
        if is_not_visible:
            self._record_event(
                reasons.REASON_VM_PRESUMED_DELETED,
                f"VM {machine.provider_id} counts as deleted: the credentials of class "
                f"{machine_class.name} were replaced, and the new ones have not shown the VM for "
                f"{deletion.NOT_VISIBLE_S / 60:.0f} min; if it still exists, delete it manually",
            )
        elif machine.provider_id:
            self._context.log.info(
                "VM deleted", machine=machine.key, provider_id=machine.provider_id
            )
        elif machine.creation_started and not self._is_denied_twice():
            return StageResult(
                outcome=StageOutcome.VM_NOT_FOUND_ONCE,
                after_s=deletion.DENIAL_S,
                known_state=answer.last_known_state,
            )
        return StageResult(outcome=StageOutcome.VM_DELETED, known_state=answer.last_known_state)

    def _is_denied_twice(self) -> bool:
        """Record that a query found no VM; return whether the VM counts as deleted.

        An earlier query, at least `deletion.DENIAL_S` before, must have found no VM either: a
        listing may lag behind a creation whose response was lost.
        """
        now = clock.monotonic()
        self._first_denial_s = self._first_denial_s or now
        return now - self._first_denial_s >= deletion.DENIAL_S

    async def _call_delete(
        self, machine: Machine, machine_class: ResolvedClass
    ) -> DeleteMachineResponse:
        request, called_at = self._driver.request(machine, machine_class), clock.monotonic()
        if self._driver.finds_by_name and not self._vms.owns_vm(machine):
            # A driver that finds VMs by name does not check the owner of a provider ID. This VM is
            # not confirmed as the machine's, or is gone. So delete by name, because a creation
            # whose response was lost may have left another VM.
            started = machine.creation_started or bool(machine.provider_id)
            request = replace(request, provider_id="", creation_started=started)
        async with self._turn.release():
            try:
                answer = await self._driver.call(MachineDriver.delete_machine, request)
            except errors.NotFound:
                return DeleteMachineResponse()
        metrics.observe_duration("delete", machine, machine_class, clock.monotonic() - called_at)
        return answer

    async def _is_elsewhere(self, machine: Machine, machine_class: ResolvedClass) -> bool:
        """Return whether the cloud may hide the VM because the class's credentials were replaced.

        Raises:
            CloudError: a call failed.
        """
        if not deletion.may_be_other_project(machine, machine_class.origin):
            return False
        if await self._vm_status(self._driver.request(machine, machine_class)) is not None:
            # Record the origin before the VM is deleted: afterwards, the cloud does not show the
            # VM.
            names, origin = self._settings.names, machine_class.origin
            await self._save(lambda obj: creation.origin_patch(obj, origin, names))
            return False
        trusted = deletion.same_project_vms(machine, self._caches.machines.store.list())
        async with self._turn.release():
            since = asyncio.get_running_loop().time()
            listing = await self._vms.listings.of(machine_class, since=since)
        return trusted.isdisjoint(record.info.provider_id for record in listing.records)

    async def _wait_for_credentials(self, origin: str) -> StageResult | None:
        """Return the result that waits for the former credentials; None = the wait has ended.

        `origin` is the `ResolvedClass.origin` of the present credentials.
        """
        machine, before = self._machine, self._deletion_state
        seen = deletion.mark_not_visible(before, origin, self._caches.now())
        self._deletion_state, since = seen, parse_optional_time(seen.not_visible)
        assert since is not None
        now = self._caches.now_since(machine.uid, since)
        wait = deletion.wait_for_credentials(machine, since, now)
        if seen != before:
            # Write at once: after a restart, the wait must not begin again.
            await self._persist()
            if wait is not None:
                self._record_event(reasons.REASON_VM_NOT_VISIBLE, wait.text)
        return wait

    async def _vm_status(self, request: MachineRequest) -> MachineInfo | None:
        """See `DriverClient.vm_of`."""
        async with self._turn.release():
            return await self._driver.vm_of(request)

    async def _delete_node(self) -> StageResult:
        machine = self._machine
        if not self._settings.has_target:
            return StageResult(outcome=StageOutcome.NO_LABEL)
        try:
            await self._context.tokens.delete(machine, self._settings)
            # A node that belongs to another VM and only has the same name is kept.
            if (node := self._context.own_node_of(machine)) is not None:
                await self._let_go(node)
        except Forbidden as error:
            await self._write_terminating()
            return StageResult(outcome=StageOutcome.BLOCKED, text=str(error), after_s=SHORT_S)
        return StageResult(
            outcome=StageOutcome.RELEASED if machine.node_name else StageOutcome.NO_LABEL
        )

    async def _let_go(self, node: Node) -> None:
        settings = self._settings
        released = await self._context.write_nodes.change(
            node, PatchStep(lambda obj: release_patch(obj, settings))
        )
        if released.obj is not None and not released.obj.is_deleting:
            await writer.delete(self._context.nodes, released.obj)

    # --- writes -----------------------------------------------------------------------------

    def _record_event(self, reason: str, text: str) -> None:
        self._context.record_event(self._machine, WARNING, reason, text)

    def _update_state(self, **changes: object) -> None:
        self._deletion_state = msgspec.structs.replace(self._deletion_state, **changes)

    async def _write_terminating(self) -> None:
        """Write the phase Terminating, if not done yet, before the deletion changes anything."""
        if self._machine.phase is not Phase.TERMINATING:
            await self._write_status(self._transition, None)

    async def _write_wait(self, event: StageResult) -> None:
        move = self._transition
        self._waits[move.to] = self._waits.get(move.to, 0) + 1
        brief = deletion.is_brief(move, event, self._waits[move.to])
        wanted = deletion.transition_status(self._machine, move, event, clock.now())
        if not deletion.needs_write(self._machine, wanted, move, brief=brief):
            return
        if deletion.needs_annotation(self._deletion_state):
            await self._persist()
        await self._write_status(move, event)

    async def _write_status(self, move: StageTransition, event: StageResult | None) -> None:
        # A deletion ends the preservation, even if another pass has just started it.
        status = deletion.transition_status(self._machine, move, event, clock.now())
        wanted, codec = replace(status, preserve_until=None), self._context.codec
        await self._save(lambda obj: codec.machine_status_patch(obj, wanted), "status")

    async def _persist(self) -> None:
        note = {self._settings.names.deletion: self._deletion_state.text()}
        await self._save(lambda obj: annotations_patch(obj, note, any_version=True))

    async def _save(self, patch: Callable[[Machine], Patch | None], part: str = "") -> None:
        self._machine = await self._context.save(self._machine, patch, part)

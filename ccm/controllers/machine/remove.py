"""Carries out a deletion, stage by stage as `ccm.machines.deletion` says.

Nothing of a machine goes before the cloud said that its VM is gone; its node and its finalizer
are the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from ccm.base import clock, log, redact
from ccm.cloud import errors
from ccm.cloud.errors import CloudError, RetryAfter
from ccm.cloud.machines import (
    DeleteMachineResponse,
    MachineDriver,
    MachineInfo,
    MachineRequest,
    known,
)
from ccm.controllers.machine import plan
from ccm.controllers.machine.tokens import Tokens
from ccm.kube.decode import Page
from ccm.kube.errors import Forbidden, NotFound
from ccm.machines import deletion, metrics, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.creation import SHORT_S
from ccm.machines.deletion import Cause, Event, Move, Progress, Stage
from ccm.machines.drain import DrainProgress, DrainState, DrainTask
from ccm.machines.driver import Shared
from ccm.machines.nodesync import release_patch
from ccm.model import Node, NodeVolumes, VolumeAttachment
from ccm.model.machines import Machine, Phase
from ccm.model.names import WARNING
from ccm.model.patches import Patch, StaleObject, annotations_patch, remove_finalizer
from ccm.runtime import writer
from ccm.runtime.workers import Turn
from ccm.runtime.writer import Deletes, Recorder, Step, Writer

_log = log.logger("machine")

STARTED = DrainProgress(state=DrainState.RUNNING, said="")
"""A drain that has said nothing yet."""


class Drains(Protocol):
    """Empties nodes; keyed by the UID of the machine."""

    def start(self, task: DrainTask, wake: Callable[[], None]) -> None:
        """See to it that it runs, unless it is done; tell whenever there is something to say."""
        ...

    def progress(self, uid: str) -> DrainProgress | None:
        """How far it is; None: it was not begun here."""
        ...

    async def stop(self, uid: str) -> None:
        """End it, done or not."""
        ...

    async def tend(self) -> None:
        """Until cancelled; then none is left under way."""
        ...


class NodesVolumes(Protocol):
    """Reads the volumes of nodes."""

    async def get(self, name: str) -> NodeVolumes:
        """Of one."""
        ...


class ListsAttachments(Protocol):
    """Reads and deletes attachments of volumes."""

    def pages(self) -> AsyncIterator[Page[VolumeAttachment]]:
        """All of them."""
        ...

    async def delete(self, name: str, *, uid: str) -> None:
        """Delete one, if it has this UID."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a deletion touches in the cluster that machines join.

    Attributes:
        nodes: writes Nodes.
        delete_nodes: deletes them.
        volumes: reads their volumes.
        attachments: of volumes.
        tokens: the bootstrap tokens.
        drains: empties nodes.
    """

    nodes: Writer[Node]
    delete_nodes: Deletes[Node]
    volumes: NodesVolumes
    attachments: ListsAttachments
    tokens: Tokens
    drains: Drains


@dataclass(slots=True, kw_only=True)
class Known:
    """What this process knows of a deletion it works on.

    Attributes:
        progress: how far it is; what stands in the annotation may be older.
        move: what a status would say.
        rests: how often it rested at each stage.
        denied: monotonic time of the first denial of a VM whose provider ID is not stored; 0 = none
            yet.
        failed: whether the drain failed and is to begin anew.
        drain_began: when it began first; 0 = not here.
        done: nothing of ours holds the machine any more.
    """

    progress: Progress
    move: Move
    rests: dict[Stage, int] = field(default_factory=dict)
    denied: float = 0.0
    failed: bool = False
    drain_began: float = 0.0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """How a pass ended: when it comes back, and whether it may come back before that.

    Attributes:
        busy: see `deletion.Event`.
    """

    after_s: float | None = None
    eager: bool = False
    busy: RetryAfter | None = None


class Remover:
    """Ends machines.

    Args:
        shared: what the machine controllers share.
        write: writes Machines.
        target: what it touches beside them.
        events: where events go.
    """

    def __init__(
        self, shared: Shared, write: Writer[Machine], target: Target, *, events: Recorder
    ) -> None:
        self.shared = shared
        self.caches = shared.caches
        self.target = target
        self.write = write
        self.events = events
        self._known: dict[str, Known] = {}

    async def run(self, machine: Machine, turn: Turn, wake: Callable[[], None]) -> Rest:
        """Go as far as it goes.

        Args:
            machine: the machine.
            turn: put down while the cloud works.
            wake: called when there is news of its drain.

        Raises:
            StaleObject: the object is another now; a change of it brings it back.
            KubeError: a write failed.
        """
        if self.caches.settings.names.finalizer not in machine.finalizers:
            return Rest()
        known = self._known.setdefault(machine.uid, self._new(machine))
        if known.done:
            # Gone; the cache learns that from an event that is on its way.
            return Rest()
        said = deletion.progress(machine, self.caches.settings)
        known.progress = deletion.further(known.progress, said)
        return await _DeleteFlow(self, machine, known, turn, wake).run()

    async def forget(self, uid: str) -> None:
        """The machine is gone."""
        self._known.pop(uid, None)
        await self.target.drains.stop(uid)

    def _new(self, machine: Machine) -> Known:
        progress = deletion.progress(machine, self.caches.settings)
        return Known(progress=progress, move=deletion.at(progress.stage, machine))


class _DeleteFlow:
    """One pass over a machine that is being deleted."""

    def __init__(
        self, remover: Remover, machine: Machine, known: Known, turn: Turn, wake: Callable[[], None]
    ) -> None:
        shared, self._target = remover.shared, remover.target
        self._caches, self._driver, self._vms = shared.caches, shared.driver, shared.vms
        self._settings = shared.caches.settings
        self._write, self._events = remover.write, remover.events
        self._machine, self._known = machine, known
        self._turn, self._wake = turn, wake

    @property
    def _stage(self) -> Stage:
        return self._known.progress.stage

    async def run(self) -> Rest:
        """Stage by stage, until one rests."""
        acts: dict[Stage, Callable[[], Awaitable[Event]]] = {
            Stage.STATUS: self._look,
            Stage.DRAIN: self._drain,
            Stage.VOLUMES: self._detach,
            Stage.VM: self._delete_vm,
            Stage.NODE: self._delete_node,
        }
        while (stage := self._stage) is not Stage.FINALIZER:
            event = await self._disowned() or await acts[stage]()
            self._known.move = deletion.moved(stage, event, self._machine)
            if self._known.move.to is stage:
                await self._rests(event)
                return Rest(after_s=event.after_s, eager=event.eager, busy=event.busy)
            self._note(stage=self._known.move.to)
        await self._announce()
        finalizer = self._settings.names.finalizer
        await self._write.change(
            self._machine, Step(lambda one: remove_finalizer(one, finalizer, strategic=False))
        )
        self._known.done = True
        return Rest()

    # --- stages -----------------------------------------------------------------------------

    async def _disowned(self) -> Event | None:
        """Return why neither VM nor node may be touched; None = the deletion goes on.

        Nothing is touched while the VM of the provider ID is another's, or while the cloud does not
        say whose it is and nothing else proves that the node is the machine's.
        """
        machine = self._machine
        made_of = self._caches.class_to_delete_with(machine)
        if not machine.provider_id or self._vms.owns_vm(machine) or made_of.lacking:
            return None
        is_proved = machine.node_name not in self._caches.nodes.store or self._node() is not None
        if self._stage is Stage.NODE and is_proved:
            return None  # The VM is gone.
        try:
            async with self._turn.put_down():
                await self._vms.confirm(machine, made_of)
        except errors.NotOwned as error:
            await self._announce()
            self._tell(reasons.REASON_VM_NOT_OWNED, redact.public(str(error)))
            return deletion.refused(error, cause=Cause.UNCLEAR)
        except CloudError as error:
            return None if is_proved else deletion.refused(error, cause=Cause.UNCLEAR)
        return None

    async def _look(self) -> Event:
        """Which node is the machine's."""
        machine = self._machine
        if not self._settings.has_target:
            return Event(cause=Cause.NO_TARGET)
        if machine.node_name:
            return Event(cause=Cause.KNOWN)
        nodes = self._caches.nodes.store.list()
        vm = MachineInfo(node_name=deletion.node_named_after(machine, nodes, self._settings))
        origin = ""
        if not vm.node_name:
            await self._announce()
            made_of = self._caches.class_to_delete_with(machine)
            if made_of.lacking:
                if machine.force_deletion:
                    return Event(cause=Cause.KNOWN)
                return deletion.impossible(made_of.lacking, cause=Cause.UNCLEAR)
            try:
                vm = await self._state(self._driver.request(machine, made_of)) or vm
            except CloudError as error:
                return deletion.refused(error, cause=Cause.UNCLEAR)
            # It replaces the record of the creation, as after a creation that was answered.
            origin = made_of.origin if vm.provider_id else ""
        if vm.node_name:
            await self._store(vm, origin)
        return Event(cause=Cause.KNOWN)

    async def _drain(self) -> Event:
        machine, known, drains = self._machine, self._known, self._target.drains
        node = self._node()
        if node is None:
            if await self._is_unseen():
                said = f"node {machine.node_name} is there, and not seen yet"
                return Event(cause=Cause.DRAINING, said=said, after_s=SHORT_S)
            await drains.stop(machine.uid)
            return Event(cause=Cause.NO_NODE)
        await self._announce()
        now = self._caches.now_since(machine.uid, deletion.asked_at(machine))
        task = deletion.drain_task(self._machine, node, now, self._settings)
        # One that was begun for another end, such as to preserve the machine, is not this one.
        progress = drains.progress(machine.uid) if known.drain_began else None
        if progress is None or progress.state is DrainState.RUNNING or known.failed:
            # One that runs goes on, by force if that is wanted by now.
            drains.start(task, self._wake)
            known.drain_began = known.drain_began or clock.monotonic()
            progress = drains.progress(machine.uid) or STARTED
        event = deletion.drained(progress, task, now)
        known.failed = event.cause is Cause.UNDRAINED
        if event.cause in (Cause.DRAINED, Cause.FORCED, Cause.UNDRAINED_BY_FORCE):
            await drains.stop(machine.uid)
            metrics.drained(machine, clock.monotonic() - known.drain_began)
            self._note(forced=event.cause is not Cause.DRAINED)
        return event

    async def _detach(self) -> Event:
        """Volumes that a drain by force left attached."""
        await self._announce()
        name = self._machine.node_name
        if name in self._caches.nodes.store and self._node() is None:
            return Event(cause=Cause.DETACHED)  # That of another VM by now.
        try:
            left = (await self._target.volumes.get(name)).attached if name else ()
        except NotFound:
            left = ()
        if not left:
            return Event(cause=Cause.DETACHED)
        self._known.progress = seen = deletion.waits(self._known.progress, self._caches.now())
        count = len(left)
        said = f"{count} volume{'s are' if count > 1 else ' is'} still attached to node {name}"
        now = self._caches.now_since(self._machine.uid, deletion.waits_since(seen))
        if deletion.waited_s(seen, now) > self._settings.detach_timeout_s:
            return Event(cause=Cause.STUCK, said=said)
        async for page in self._target.attachments.pages():
            for one in page.items:
                if one.spec.node_name == name and not one.is_deleting:
                    await self._delete_attachment(one)
        return Event(cause=Cause.ATTACHED, said=said, after_s=SHORT_S)

    async def _delete_attachment(self, one: VolumeAttachment) -> None:
        try:
            await self._target.attachments.delete(one.name, uid=one.uid)
        except NotFound:
            return

    async def _delete_vm(self) -> Event:
        machine = self._machine
        made_of = self._caches.class_to_delete_with(machine)
        await self._announce()
        if made_of.lacking:
            # Force deletes a machine that never had a VM; any other one waits for its class.
            if machine.force_deletion and not deletion.may_have_vm(machine):
                return Event(cause=Cause.GONE)
            return deletion.impossible(made_of.lacking)
        try:
            is_not_visible = await self._is_elsewhere(machine, made_of)
            wait = await self._wait_for_credentials(made_of.origin) if is_not_visible else None
            if wait is not None:
                return wait
            if not is_not_visible and self._known.progress.not_visible:
                # The former credentials are back; the next rotation has the whole time again.
                self._note(not_visible="", not_visible_origin="")
                await self._persist()
            answer = await self._called(machine, made_of)
        except CloudError as error:
            self._known.denied = 0.0
            return deletion.refused(error)
        if is_not_visible:
            self._tell(
                reasons.REASON_VM_PRESUMED_DELETED,
                f"VM {machine.provider_id} counts as deleted: the credentials of class "
                f"{made_of.name} were replaced, and the new ones have not shown it for "
                f"{deletion.NOT_VISIBLE_S / 60:.0f} min; if it is still there, delete it by hand",
            )
        elif machine.provider_id:
            _log.info("VM deleted", machine=machine.key, provider_id=machine.provider_id)
        elif machine.creation_started and not self._is_denied_twice():
            return Event(
                cause=Cause.DENIED, after_s=deletion.DENIAL_S, known_state=answer.last_known_state
            )
        return Event(cause=Cause.GONE, known_state=answer.last_known_state)

    def _is_denied_twice(self) -> bool:
        """Return whether two answers, with time between them, say that there is no VM.

        The listing of a cloud may lag behind a creation whose answer was lost. After the second
        denial the cloud is asked no more.
        """
        now = clock.monotonic()
        self._known.denied = self._known.denied or now
        return now - self._known.denied >= deletion.DENIAL_S

    async def _called(self, machine: Machine, made_of: ResolvedClass) -> DeleteMachineResponse:
        request, began = self._driver.request(machine, made_of), clock.monotonic()
        if self._driver.finds_by_name and not self._vms.owns_vm(machine):
            # Such a driver does not check whose VM a provider ID names. No VM has the machine's
            # name, or the pass would have ended; what was created beside it may still be there.
            started = machine.creation_started or bool(machine.provider_id)
            request = replace(request, provider_id="", creation_started=started)
        async with self._turn.put_down():
            try:
                answer = await self._driver.call(MachineDriver.delete_machine, request)
            except errors.NotFound:
                return DeleteMachineResponse()
        metrics.took("delete", machine, made_of, clock.monotonic() - began)
        return answer

    async def _is_elsewhere(self, machine: Machine, made_of: ResolvedClass) -> bool:
        """Whether the cloud would deny the VM for want of a look at where it is.

        Raises:
            CloudError: it cannot be said.
        """
        if not deletion.is_elsewhere(machine, made_of.origin):
            return False
        if await self._state(self._driver.request(machine, made_of)) is not None:
            # Before the deletion: afterwards the cloud does not show the VM any more.
            origin = made_of.origin
            await self._save(lambda one: plan.origin(one, origin, self._settings.names))
            return False
        trusted = deletion.witnesses(machine, self._caches.machines.store.list())
        async with self._turn.put_down():
            since = asyncio.get_running_loop().time()
            listing = await self._vms.listings.of(made_of, since=since)
        return trusted.isdisjoint(record.info.provider_id for record in listing.records)

    async def _wait_for_credentials(self, origin: str) -> Event | None:
        """Return how to wait for the former credentials; None = the wait is over."""
        machine, before = self._machine, self._known.progress
        seen = deletion.mark_not_visible(before, origin, self._caches.now())
        self._known.progress, since = seen, deletion.not_visible_since(seen)
        assert since is not None
        now = self._caches.now_since(machine.uid, since)
        wait = deletion.wait_for_credentials(machine, since, now)
        if seen != before:
            # Written at once: a restart must not begin the wait anew.
            await self._persist()
            if wait is not None:
                self._tell(reasons.REASON_VM_NOT_VISIBLE, wait.said)
        return wait

    def _tell(self, reason: str, text: str) -> None:
        self._events.event(
            self._caches.codec.machines.reference(self._machine), WARNING, reason, text
        )

    async def _state(self, request: MachineRequest) -> MachineInfo | None:
        """What the cloud says of the VM; None: nothing. Raises CloudError."""
        async with self._turn.put_down():
            try:
                return await self._driver.call(MachineDriver.get_machine_status, request)
            except (errors.NotFound, errors.Unimplemented):
                return None
            except errors.Uninitialized as error:
                return known(error)

    async def _delete_node(self) -> Event:
        machine = self._machine
        if not self._settings.has_target:
            return Event(cause=Cause.NO_LABEL)
        try:
            await self._target.tokens.delete(machine, self._settings)
            await self._let_go()
        except Forbidden as error:
            await self._announce()
            return Event(cause=Cause.HELD, said=str(error), after_s=SHORT_S)
        return Event(cause=Cause.RELEASED if machine.node_name else Cause.NO_LABEL)

    async def _let_go(self) -> None:
        """The node of the VM that is gone; one of another VM under that name stays."""
        if (node := self._node()) is None:
            return
        settings = self._settings
        released = await self._target.nodes.change(
            node, Step(lambda one: release_patch(one, settings))
        )
        if released.obj is not None and not released.obj.is_deleting:
            await writer.delete(self._target.delete_nodes, released.obj)

    # --- what is written --------------------------------------------------------------------

    def _node(self) -> Node | None:
        """The machine's node, and no other that has its name."""
        machine = self._machine
        node = self._caches.nodes.store.get(machine.node_name) if machine.node_name else None
        if node is None or not self._vms.owns_node(machine, node):
            return None
        return self._target.nodes.newest(node)

    async def _is_unseen(self) -> bool:
        """Whether a node that the cache lacks is to be drained; nobody waits when force is due."""
        machine = self._machine
        now = self._caches.now_since(machine.uid, deletion.asked_at(machine))
        is_seen = not machine.node_name or machine.node_name in self._caches.nodes.store
        if is_seen or deletion.is_impatient(machine, now, self._settings):
            return False
        try:
            node = await self._target.delete_nodes.get(machine.node_name)
        except NotFound:
            return False
        return self._vms.owns_node(machine, node)

    def _note(self, **news: object) -> None:
        self._known.progress = msgspec.structs.replace(self._known.progress, **news)

    async def _announce(self) -> None:
        """Say that the machine goes, before anything is done to it."""
        if self._machine.phase is not Phase.TERMINATING:
            await self._say(self._known.move, None)

    async def _rests(self, event: Event) -> None:
        move, known = self._known.move, self._known
        known.rests[move.to] = known.rests.get(move.to, 0) + 1
        brief = deletion.is_brief(move, event, known.rests[move.to])
        wanted = deletion.status(self._machine, move, event, clock.now())
        if not deletion.is_worth_writing(self._machine, wanted, move, brief=brief):
            return
        if deletion.is_worth_noting(known.progress):
            await self._persist()
        await self._say(move, event)

    async def _say(self, move: Move, event: Event | None) -> None:
        # It is preserved no longer, whatever others wrote.
        found = deletion.status(self._machine, move, event, clock.now())
        wanted = replace(found, preserve_until=None)
        codec = self._caches.codec
        await self._save(lambda one: codec.machine_status_patch(one, wanted), "status")

    async def _persist(self) -> None:
        note = {self._settings.names.deletion: self._known.progress.text()}
        await self._save(lambda one: annotations_patch(one, note, any_version=True))

    async def _store(self, vm: MachineInfo, origin: str) -> None:
        """Store which node, and which VM, is the machine's."""
        known = replace(vm, provider_id=self._machine.provider_id or vm.provider_id)
        codec = self._caches.codec
        await self._save(lambda one: codec.identity(one, known, has_target=True, origin=origin))

    async def _save(self, patch: Callable[[Machine], Patch | None], part: str = "") -> None:
        found = await self._write.change(self._machine, Step(patch, part))
        if found.obj is None:
            raise StaleObject
        self._machine = found.obj

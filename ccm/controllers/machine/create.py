"""Carries out a creation, step by step as `ccm.machines.creation` says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ccm.base import clock, log
from ccm.cloud import errors
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import (
    SPEC_USER_DATA,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    known,
)
from ccm.controllers.machine import plan
from ccm.controllers.machine.tokens import Taken, Tokens
from ccm.machines import creation, metrics, tokens
from ccm.machines.classes import ResolvedClass
from ccm.machines.creation import SHORT_S, Evidence, Outcome, Step
from ccm.machines.driver import Shared
from ccm.machines.listing import Listing
from ccm.machines.tokens import is_id
from ccm.model.machines import Machine
from ccm.model.patches import Patch, StaleObject
from ccm.runtime import writer
from ccm.runtime.workers import Turn
from ccm.runtime.writer import Writer

T = TypeVar("T")

_CLAIMS = frozenset({"annotations", "finalizers"})

_log = log.logger("machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResult:
    """How a pass ended.

    Attributes:
        machine: the machine as it is then.
        outcome: status to write, and when the next pass is due.
    """

    machine: Machine
    outcome: Outcome


class Creator:
    """Makes VMs.

    Args:
        shared: what the machine controllers share.
        write: writes Machines.
        tokens: the bootstrap tokens.
    """

    def __init__(self, shared: Shared, write: Writer[Machine], tokens: Tokens) -> None:
        self.shared = shared
        self.caches = shared.caches
        self.creations_ended: dict[str, float] = {}
        """When the last call ended that may have created a machine's VM, by UID."""
        self.tokens = tokens
        self._write = write

    async def run(self, machine: Machine, turn: Turn) -> CreateResult:
        """Run steps until one has to wait; the turn is released during cloud calls.

        Raises:
            StaleObject: the object was replaced or deleted; its change brings the next pass.
            KubeError: a write failed.
        """
        made_of = self.caches.class_of(machine)
        if made_of.faults:
            outcome = creation.impossible(machine, made_of.faults, clock.now())
            return CreateResult(machine=machine, outcome=outcome)
        if not made_of.is_held:
            # The class must not vanish under its machines; its own controller sees to that.
            return CreateResult(machine=machine, outcome=Outcome(after_s=SHORT_S))
        flow = _CreateFlow(self, machine, made_of, turn)
        outcome = await flow.run()
        return CreateResult(machine=flow.machine, outcome=outcome)

    def claim(self, machine: Machine) -> Mapping[str, Any]:
        """What a machine that is about to be made can bear from the beginning, as metadata.

        Nothing, where its class is of no use yet: such a machine has no VM, and our finalizer
        would only keep it from going.
        """
        made_of = self.caches.class_of(machine)
        if made_of.faults or not made_of.is_held:
            return {}
        found = self.claim_patch(machine, self.token_id(machine, made_of)) or {"metadata": {}}
        return {key: found["metadata"][key] for key in found["metadata"].keys() & _CLAIMS}

    def claim_patch(self, machine: Machine, token_id: str) -> Patch | None:
        """See `plan.claim`."""
        records = not self.shared.driver.finds_by_name
        return plan.claim(machine, self.caches.settings.names, token_id, records=records)

    def token_id(self, machine: Machine, made_of: ResolvedClass) -> str:
        """ID of the machine's bootstrap token, a new one where it has none; empty: needs none."""
        if not creation.needs_token(made_of, self.caches.settings):
            return ""
        known = machine.annotation(self.caches.settings.names.token_id)
        return known if is_id(known) else Tokens.new_id()

    async def written(
        self, machine: Machine, patch: Callable[[Machine], Patch | None], part: str = ""
    ) -> Machine:
        """The object after a write. Raises StaleObject where it is gone."""
        found = await self._write.change(machine, writer.Step(patch, part))
        if found.obj is None:
            raise StaleObject
        return found.obj


class _CreateFlow:
    """One pass over a machine in creation.

    Args:
        creator: what it works with.
        machine: the machine.
        made_of: the machine's class.
        turn: see `Creator.run`.

    Attributes:
        machine: the machine after the last write.
    """

    def __init__(
        self, creator: Creator, machine: Machine, made_of: ResolvedClass, turn: Turn
    ) -> None:
        self.machine = machine
        self._creator = creator
        shared = creator.shared
        self._caches, self._driver, self._vms = shared.caches, shared.driver, shared.vms
        self._settings = shared.caches.settings
        self._made_of = made_of
        self._turn = turn
        self._seen = Evidence()

    async def run(self) -> Outcome:
        """Run steps until one has to wait."""
        while (step := self._next()) is not Step.SETTLE:
            try:
                await self._do(step)
            except CloudError as error:
                at, now = step is Step.INITIALIZE, clock.now()
                aged = self._caches.ages.by(now, self.machine)
                return creation.failed(aged, error, now, self._settings, initializing=at)
        return creation.settled(self.machine, self._seen, clock.now(), self._settings)

    def _next(self) -> Step:
        vm = self._seen.created
        node = self._caches.nodes.store.get(vm.node_name) if vm is not None else None
        return creation.next_step(
            self.machine, self._made_of, self._seen, self._settings, node=node
        )

    async def _do(self, step: Step) -> None:
        match step:
            case Step.CLAIM:
                await self._claim(self._creator.token_id(self.machine, self._made_of))
            case Step.LOOK:
                self._seen = await self._looked(self.machine)
            case Step.RECORD:
                await self._write(lambda one: plan.record(one, self._settings.names))
            case Step.CREATE:
                await self._create()
            case Step.STORE:
                vm = creation.vm_of(self.machine, self._seen)
                has_target, origin = self._settings.has_target, self._made_of.origin
                await self._write(
                    lambda one: self._caches.codec.identity(
                        one, vm, has_target=has_target, origin=origin
                    )
                )
            case Step.DISCARD:
                await self._discard()
                self._seen = replace(self._seen, discarded=True)
            case Step.INITIALIZE:
                await self._initialize()
                self._seen = replace(self._seen, initialized=True)

    async def _claim(self, token_id: str) -> None:
        await self._write(lambda one: self._creator.claim_patch(one, token_id))

    async def _write(self, patch: Callable[[Machine], Patch | None], part: str = "") -> None:
        self.machine = await self._creator.written(self.machine, patch, part)

    async def _looked(self, machine: Machine) -> Evidence:
        # A VM is missing only from a listing that began after the last call that may have made it.
        since = self._creator.creations_ended.get(machine.uid, float("-inf"))
        listing = await self._waited(self._vms.listings.of(self._made_of, since=since))
        if machine.provider_id:
            if not await self._waited(self._vms.confirm(machine, self._made_of)):
                return replace(self._seen, looked=True)
            listed = (one for one in listing.records if one.info.provider_id == machine.provider_id)
            record = next(listed, None)
            if record is None or not (record.info.node_name or machine.node_name):
                # The VM is not in the listing of its class, as when a user set the provider ID;
                # or the driver lists IDs and names only.
                with contextlib.suppress(errors.Unimplemented):
                    record = await self._status(self._driver.request(machine, self._made_of))
            return replace(self._seen, looked=True, found=record)
        if self._driver.finds_by_name:
            record, obstacle = await self._match_named(machine, listing)
        else:
            record, obstacle = creation.match_marked(
                listing.records,
                self._settings.identity(machine),
                adopt_unmarked=self._settings.adopt_unmarked,
            )
        return replace(self._seen, looked=True, found=record, obstacle=obstacle)

    async def _match_named(
        self, machine: Machine, listing: Listing
    ) -> tuple[MachineRecord | None, str]:
        # Asked by name even before the creation is recorded: the answer says whether the name is
        # free. `match_named` decides whether the VM is the machine's.
        request = replace(self._driver.request(machine, self._made_of), creation_started=True)
        try:
            status = await self._status(request)
        except errors.Unimplemented:
            if machine.creation_started:
                # Only `create_machine` can find the VM; such a driver does so by name.
                return None, ""
            status = None
        return creation.match_named(
            listing.records, status, machine, adopt_unmarked=self._settings.adopt_unmarked
        )

    async def _status(self, request: MachineRequest) -> MachineRecord | None:
        """Return the VM that the driver names; None: there is none.

        Raises:
            Unimplemented: the driver cannot tell.
            CloudError: the cloud did not say.
        """
        try:
            info = await self._call(MachineDriver.get_machine_status, request)
        except errors.NotFound:
            return None
        except errors.Uninitialized as error:
            info = known(error)
        return MachineRecord(identity=request.identity, info=info)

    async def _create(self) -> None:
        machine = self.machine
        try:
            known = await self._placeholders(machine)
        except Taken:
            await self._claim(Tokens.new_id())
            return
        request = self._filled(self._driver.request(machine, self._made_of), known)
        began = clock.monotonic()
        try:
            info = await self._call(MachineDriver.create_machine, request)
        finally:
            loop = asyncio.get_running_loop()
            self._creator.creations_ended[machine.uid] = loop.time()
        metrics.took("create", machine, self._made_of, clock.monotonic() - began)
        _log.info(
            "VM created", machine=machine.key, provider_id=info.provider_id, node=info.node_name
        )
        self._vms.note(machine.uid, info.provider_id)
        self._seen = replace(self._seen, created=info)
        await self._remember(info)

    async def _placeholders(self, machine: Machine) -> Mapping[str, str]:
        """What user data may ask for, and what stands for it."""
        known = {tokens.NAME: machine.name}
        if creation.needs_token(self._made_of, self._settings):
            known[tokens.TOKEN] = await self._creator.tokens.ensure(machine, self._settings)
        return known

    def _filled(self, request: MachineRequest, known: Mapping[str, str]) -> MachineRequest:
        """The request with user data, wherever they stand, that are ready to use."""
        of_secret, of_spec = self._made_of.user_data, self._made_of.spec_user_data
        for placeholder, value in known.items():
            of_secret = tokens.filled(of_secret, placeholder, value)
            of_spec = tokens.filled(of_spec, placeholder, value)
        if not of_spec:
            return replace(request, user_data=of_secret)
        spec = {**request.provider_spec, SPEC_USER_DATA: of_spec.decode()}
        return replace(request, user_data=of_secret, provider_spec=spec)

    async def _remember(self, info: MachineInfo) -> None:
        """Store the driver's state before the driver is called again."""
        state = info.last_known_state
        if state is not None and state != self.machine.status.known_state:
            await self._write(
                lambda one: self._caches.codec.known_state_patch(one, state), "status"
            )

    async def _initialize(self) -> None:
        machine, began = self.machine, clock.monotonic()
        request = self._driver.request(machine, self._made_of)
        try:
            info = await self._call(MachineDriver.initialize_machine, request)
        except errors.Unimplemented:
            return
        metrics.took("initialize", machine, self._made_of, clock.monotonic() - began)
        await self._remember(info)

    async def _discard(self) -> None:
        """Delete the VM that this pass created; if it stays, it is collected as an orphan."""
        vm, machine = creation.vm_of(self.machine, self._seen), self.machine
        request = replace(self._driver.request(machine, self._made_of), provider_id=vm.provider_id)
        try:
            await self._call(MachineDriver.delete_machine, request)
        except CloudError as error:
            _log.warning(
                "VM whose node name is taken could not be deleted",
                machine=machine.key,
                provider_id=vm.provider_id,
                error=str(error),
            )

    async def _call(self, method: Any, request: MachineRequest) -> Any:
        return await self._waited(self._driver.call(method, request))

    async def _waited(self, call: Awaitable[T]) -> T:
        async with self._turn.put_down():
            return await call

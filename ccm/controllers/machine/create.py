"""Creation of VMs: runs the steps that `ccm.machines.creation` describes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import (
    SPEC_USER_DATA,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    partial_info,
)
from ccm.controllers.machine.context import MachineContext
from ccm.controllers.machine.tokens import TokenIDTaken, Tokens
from ccm.machines import creation, metrics, tokens
from ccm.machines.classes import ResolvedClass
from ccm.machines.creation import SHORT_S, PassResult
from ccm.machines.driver import VMListing
from ccm.model.machines import Machine
from ccm.model.patches import Patch
from ccm.runtime.workers import ConcurrencySlot

T = TypeVar("T")

_CLAIMS = frozenset({"annotations", "finalizers"})


class CreateFlow:
    """One pass over a machine whose VM has to be found, created or initialised.

    Args:
        context: shared objects of the machine controller.
        machine: the machine.
        turn: concurrency slot, released during cloud calls.

    Attributes:
        machine: the machine after the last write.
    """

    def __init__(self, context: MachineContext, machine: Machine, turn: ConcurrencySlot) -> None:
        self.machine = machine
        self._context, self._turn = context, turn
        self._caches, self._driver, self._vms = context.caches, context.driver, context.vms
        self._settings = context.settings
        self._machine_class = context.caches.class_of(machine)
        self._existing_vm: MachineRecord | None = None
        self._new_vm: MachineInfo | None = None
        self._has_looked = False
        self._is_initialized = False
        self._user_data: bytes | None = None

    async def run(self) -> PassResult:
        """Run steps until one has to wait.

        Raises:
            StaleObject: the object was changed or deleted; its watch event triggers the next pass.
            KubeError: a write failed.
        """
        machine_class = self._machine_class
        if machine_class.faults:
            return creation.unusable_class_result(self.machine, machine_class.faults, clock.now())
        if not machine_class.is_held:
            # Wait until the class controller has set the finalizer that keeps a class in use from
            # being deleted.
            return PassResult(after_s=SHORT_S)
        initializing = False
        try:
            if (ended := await self._ensure_vm()) is not None:
                return ended
            if self._new_vm is not None or (
                self._existing_vm is not None and not self._is_initialized
            ):
                initializing = True
                await self._initialize()
                # The write of the driver's state may have returned a newer version of the object.
                if (ended := await self._ensure_vm()) is not None:
                    return ended
        except CloudError as error:
            return self._failed(error, initializing=initializing)
        vm = self._vm()
        assert vm is not None
        is_new = self._new_vm is not None
        return creation.success_result(self.machine, vm, clock.now(), self._settings, is_new=is_new)

    async def _ensure_vm(self) -> PassResult | None:
        """Find or create the VM, and store its provider ID and node name.

        Each write may return a newer version of the object, so the next step is chosen after the
        write.

        Returns:
            Result of the pass if it ends here; None = provider ID and node name are stored.
        """
        settings = self._settings
        while True:
            machine, vm = self.machine, self._vm()
            if settings.names.former_uid in machine.annotations:
                self.machine = await self._context.migrate_uid(
                    machine, self._machine_class, self._turn
                )
            elif not creation.is_claimed(machine, self._machine_class, settings):
                await self._claim(_token_id(self._context, machine, self._machine_class))
            elif not self._has_looked:
                self._existing_vm, obstacle = await self._find_vm()
                self._has_looked = True
                if obstacle:
                    return self._failed(errors.AlreadyExists(obstacle))
            elif vm is None and (waiting := self._read_user_data()) is not None:
                return waiting
            elif vm is None and not machine.creation_started:
                await self._save(lambda obj: creation.creation_record_patch(obj, settings.names))
            elif vm is None:
                await self._create()
            elif self._new_vm is not None and self._is_name_taken(vm):
                await self._discard(vm)
                return creation.discarded_vm_result(machine, clock.now())
            elif lacking := creation.vm_fault(vm, settings):
                return self._failed(errors.Internal(lacking))
            elif not creation.is_stored(machine, settings):
                await self._store(vm)
            else:
                return None

    def _read_user_data(self) -> PassResult | None:
        """Read the user data, unless they are part of the class.

        Returns:
            Result of the pass if it ends here; None = the pass goes on.
        """
        if not self._context.codec.user_data_namespace:
            return None
        try:
            self._user_data = self._caches.user_data_of(self.machine)
        except CloudError as error:
            return replace(self._failed(error), eager=True)
        return PassResult(after_s=SHORT_S, eager=True) if self._user_data is None else None

    def _vm(self) -> MachineInfo | None:
        found_vm = self._existing_vm.info if self._existing_vm is not None else None
        return creation.merge_vm(self.machine, self._new_vm or found_vm)

    def _failed(self, error: CloudError, *, initializing: bool = False) -> PassResult:
        now = clock.now()
        aged = self._caches.ages.with_local_creation(now, self.machine)
        return creation.failure_result(aged, error, now, self._settings, initializing=initializing)

    def _is_name_taken(self, vm: MachineInfo) -> bool:
        named = self._new_vm.node_name if self._new_vm is not None else ""
        node = self._caches.nodes.store.get(named)
        return creation.is_name_taken(self.machine, vm, node, self._settings)

    async def _claim(self, token_id: str) -> None:
        await self._save(lambda obj: _claim_patch(self._context, obj, token_id))

    async def _store(self, vm: MachineInfo) -> None:
        has_target, origin = self._settings.has_target, self._machine_class.origin
        codec = self._context.codec
        await self._save(lambda obj: codec.identity(obj, vm, has_target=has_target, origin=origin))

    async def _save(self, patch: Callable[[Machine], Patch | None], part: str = "") -> None:
        self.machine = await self._context.save(self.machine, patch, part)

    async def _find_vm(self) -> tuple[MachineRecord | None, str]:
        """Find the machine's VM, as `creation.match_marked` and `creation.match_named` decide.

        Returns:
            The VM, or None; and the reason why another VM prevents a creation, or empty.
        """
        machine = self.machine
        # Only a listing that began after the last `create_machine` ended proves that a VM is
        # missing.
        since = self._context.creations_ended.get(machine.uid, float("-inf"))
        listing = await self._without_slot(self._vms.listings.of(self._machine_class, since=since))
        adopts = self._settings.adopt_unmarked
        if machine.provider_id:
            return await self._confirmed_vm(listing), ""
        if not self._driver.lists_machines:
            return await self._status(self._driver.request(machine, self._machine_class)), ""
        if not self._driver.finds_by_name:
            identity = self._settings.identity(machine)
            record, obstacle = creation.match_marked(
                listing.records, identity, adopt_unmarked=adopts
            )
            if record is None and not obstacle and machine.may_be_unlisted:
                record = await self._status(self._driver.request(machine, self._machine_class))
                self._is_initialized = record is not None and record.initialized
            return record, obstacle
        # Query by name even before the creation is recorded: the result shows whether the name is
        # free. `match_named` decides whether the VM belongs to the machine.
        request = replace(self._driver.request(machine, self._machine_class), creation_started=True)
        try:
            status = await self._status(request)
        except errors.Unimplemented:
            if machine.creation_started:
                # The driver cannot query a VM; its `create_machine` finds an existing VM by name.
                return None, ""
            status = None
        return creation.match_named(listing.records, status, machine, adopt_unmarked=adopts)

    async def _confirmed_vm(self, listing: VMListing) -> MachineRecord | None:
        """Return the VM with the stored provider ID; None = missing, or owner not confirmed."""
        machine = self.machine
        if not await self._without_slot(self._vms.confirm(machine, self._machine_class)):
            return None
        listed = (
            record for record in listing.records if record.info.provider_id == machine.provider_id
        )
        record = next(listed, None)
        if record is None or not (record.info.node_name or machine.node_name):
            # The VM is not in the listing of its class, for example because a user set the provider
            # ID; or the driver lists provider IDs and names only.
            with contextlib.suppress(errors.Unimplemented):
                record = await self._status(self._driver.request(machine, self._machine_class))
        return record

    async def _status(self, request: MachineRequest) -> MachineRecord | None:
        """Return the VM that the driver finds for a request; None = there is none.

        Raises:
            Unimplemented: the driver has no `get_machine_status`.
            CloudError: the call failed.
        """
        try:
            info, initialized = await self._call(MachineDriver.get_machine_status, request), True
        except errors.NotFound:
            return None
        except errors.Uninitialized as error:
            info, initialized = partial_info(error), False
        return MachineRecord(identity=request.identity, info=info, initialized=initialized)

    async def _create(self) -> None:
        machine, machine_class = self.machine, self._machine_class
        placeholders = {tokens.NAME: machine.name}
        try:
            if creation.needs_token(machine_class, self._settings):
                token = await self._context.tokens.ensure(machine, self._settings)
                placeholders[tokens.TOKEN] = token
        except TokenIDTaken:
            await self._claim(Tokens.new_id())
            return
        request = _with_user_data(
            self._driver.request(machine, machine_class), machine_class, placeholders
        )
        if self._user_data is not None:
            request = replace(request, user_data=self._user_data)
        started = clock.monotonic()
        try:
            info = await self._call(MachineDriver.create_machine, request)
        finally:
            loop = asyncio.get_running_loop()
            self._context.creations_ended[machine.uid] = loop.time()
        metrics.observe_duration("create", machine, machine_class, clock.monotonic() - started)
        self._context.log.info(
            "VM created", machine=machine.key, provider_id=info.provider_id, node=info.node_name
        )
        self._vms.record(machine.uid, info.provider_id)
        self._new_vm = info
        await self._save_known_state(info)

    async def _save_known_state(self, info: MachineInfo) -> None:
        """Store the state that the driver returned, before the driver is called again."""
        state, codec = info.last_known_state, self._context.codec
        if state is not None and state != self.machine.status.known_state:
            await self._save(lambda obj: codec.known_state_patch(obj, state), "status")

    async def _initialize(self) -> None:
        machine, started = self.machine, clock.monotonic()
        request = self._driver.request(machine, self._machine_class)
        try:
            info = await self._call(MachineDriver.initialize_machine, request)
        except errors.Unimplemented:
            return
        metrics.observe_duration(
            "initialize", machine, self._machine_class, clock.monotonic() - started
        )
        await self._save_known_state(info)

    async def _discard(self, vm: MachineInfo) -> None:
        """Delete the VM that this pass created.

        If that fails, the machine safety controller deletes the VM as an orphan.
        """
        request = self._driver.request(self.machine, self._machine_class)
        request = replace(request, provider_id=vm.provider_id)
        try:
            await self._call(MachineDriver.delete_machine, request)
        except CloudError as error:
            self._context.log.warning(
                "VM not deleted after node name conflict",
                machine=self.machine.key,
                provider_id=vm.provider_id,
                error=str(error),
            )

    async def _call(self, method: Any, request: MachineRequest) -> Any:
        return await self._without_slot(self._driver.call(method, request))

    async def _without_slot(self, call: Awaitable[T]) -> T:
        async with self._turn.release():
            return await call


def initial_metadata(context: MachineContext, machine: Machine) -> Mapping[str, Any]:
    """Return the finalizers and annotations with which a machine can be created.

    Empty if its class is unusable, or another program is responsible: the machine gets no VM, and
    our finalizers would only delay its deletion.
    """
    machine_class = context.caches.class_of(machine)
    is_ignored = context.codec.is_ignored(machine)
    if machine_class.faults or not machine_class.is_held or is_ignored:
        return {}
    token_id = _token_id(context, machine, machine_class)
    patch = _claim_patch(context, machine, token_id) or {"metadata": {}}
    return {key: patch["metadata"][key] for key in patch["metadata"].keys() & _CLAIMS}


def _claim_patch(context: MachineContext, machine: Machine, token_id: str) -> Patch | None:
    records = not context.driver.finds_by_name
    return creation.claim_patch(machine, context.settings.names, token_id, records=records)


def _token_id(context: MachineContext, machine: Machine, machine_class: ResolvedClass) -> str:
    """Return the ID of the machine's bootstrap token, or a new ID; empty = no token needed."""
    if not creation.needs_token(machine_class, context.settings):
        return ""
    known = machine.annotation(context.settings.names.token_id)
    return known if tokens.is_id(known) else Tokens.new_id()


def _with_user_data(
    request: MachineRequest, machine_class: ResolvedClass, placeholders: Mapping[str, str]
) -> MachineRequest:
    """Return the request with the user data of the class, in which placeholders are replaced."""
    of_secret, of_spec = machine_class.user_data, machine_class.spec_user_data
    for placeholder, value in placeholders.items():
        of_secret = tokens.fill_placeholder(of_secret, placeholder, value)
        of_spec = tokens.fill_placeholder(of_spec, placeholder, value)
    if not of_spec:
        return replace(request, user_data=of_secret)
    spec = {**request.provider_spec, SPEC_USER_DATA: of_spec.decode()}
    return replace(request, user_data=of_secret, provider_spec=spec)

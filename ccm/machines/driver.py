"""Calls to the driver, listings of VMs, and the confirmed owners of VMs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, TypeVarTuple

from ccm.base import clock, metrics
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.errors import CloudError, NotFound, NotOwned, Unimplemented, Uninitialized, code_of
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import (
    CORRECT_OWNER,
    ListMachinesRequest,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    is_owner,
    partial_info,
)
from ccm.cloud.operation import ProviderClient
from ccm.machines import deletion
from ccm.machines.caches import Caches
from ccm.machines.classes import ResolvedClass
from ccm.model import Node
from ccm.model.machines import Machine

T = TypeVar("T")
Args = TypeVarTuple("Args")

REQUEST_DURATION = metrics.histogram(
    "mcm_cloud_api_driver_request_duration_seconds",
    "Duration of driver calls.",
    ["provider", "operation"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
FAILED_REQUESTS = metrics.counter(
    "mcm_cloud_api_driver_requests_failed",
    "Failed driver calls, by error code.",
    ["provider", "operation", "error_code"],
)


class DriverCaller(ProviderClient, Protocol):
    """Client that calls the driver (a `CloudClient`)."""

    @property
    def cloud(self) -> Cloud:
        """Current cloud of the provider. Only read its attributes; use `call` for its methods."""
        ...

    def compute(self, method: Callable[[Any, *Args], T], *args: *Args) -> T:
        """Call a synchronous method that does no I/O. Raises CloudError for any exception."""
        ...

    def account_of(self, request: MachineRequest | None) -> str:
        """Return the account of the cloud in which a machine's VM is; empty = unknown."""
        ...


class DriverClient:
    """Calls to the driver about machines.

    Args:
        caller: client of the provider, with deadlines and concurrency limits.
        caches: caches of the machine controllers.
    """

    def __init__(self, caller: DriverCaller, caches: Caches) -> None:
        self.caller = caller
        self._caches = caches

    @property
    def finds_by_name(self) -> bool:
        """Whether the driver finds VMs by name only; see `ccm.cloud.machines.Driver`."""
        return bool(getattr(self.caller.cloud.machines, "finds_by_name", False))

    @property
    def lists_machines(self) -> bool:
        """Whether the driver lists VMs; see `ccm.cloud.machines.Driver`."""
        return bool(getattr(self.caller.cloud.machines, "lists_machines", True))

    def request(self, machine: Machine, machine_class: ResolvedClass) -> MachineRequest:
        """Return a driver request about a machine, without user data."""
        settings = self._caches.settings
        return MachineRequest(
            identity=settings.identity(machine),
            provider_spec=machine_class.provider_spec,
            credentials=machine_class.credentials,
            provider_id=machine.provider_id,
            last_known_state=machine.status.known_state,
            creation_started=machine.creation_started,
            is_imported=machine.provider_id in machine_class.imports,
            adopts_unmarked=settings.adopt_unmarked,
            kubelet_version=machine.kubelet_version,
            owner=self._caches.codec.machines.reference(machine),
        )

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call the driver, and record the metrics of Gardener's machine-controller-manager.

        Raises:
            CloudError: the call failed.
        """
        provider, operation, started = self.caller.name, method.__name__, clock.monotonic()
        try:
            return await self.caller.call(method, *args)
        except CloudError as error:
            FAILED_REQUESTS.labels(provider, operation, code_of(error).name).inc()
            raise
        finally:
            took_s = clock.monotonic() - started
            REQUEST_DURATION.labels(provider, operation).observe(took_s)

    async def vm_of(self, request: MachineRequest) -> MachineInfo | None:
        """Return the VM that the cloud shows for a request; None = no VM, or not implemented.

        Raises:
            CloudError: the call failed.
        """
        try:
            return await self.call(MachineDriver.get_machine_status, request)
        except (NotFound, Unimplemented):
            return None
        except Uninitialized as error:
            return partial_info(error)


class ConfirmedVMs:
    """Owners of VMs, as the cloud confirmed them since the start of the process.

    A provider ID on an object proves nothing: every user who may edit machines can set it.

    Args:
        driver: calls the driver.
        caches: caches of the machine controllers.

    Attributes:
        listings: listings of VMs; each listing confirms the owners of its VMs.
        new_origins: UID of a machine -> `ResolvedClass.origin` of credentials that showed its VM,
            if the machine does not record this origin yet. The machine controller records the
            origin, and removes the entry.
        on_new_origins: callback that receives the keys of machines added to `new_origins`.
    """

    def __init__(self, driver: DriverClient, caches: Caches) -> None:
        self.listings = VMListings(self._list)
        self.new_origins: dict[str, str] = {}
        self.on_new_origins: Callable[[Sequence[str]], None] = lambda _keys: None
        self._driver = driver
        self._caches = caches
        self._confirmed: dict[str, str] = {}

    def owns_vm(self, machine: Machine) -> bool:
        """Return whether the machine is confirmed as the owner of the VM with its provider ID."""
        provider_id = machine.provider_id
        return bool(provider_id) and self._confirmed.get(machine.uid) == provider_id

    def owns_node(self, machine: Machine, node: Node) -> bool:
        """Return whether a node is confirmed to run on the machine's VM.

        The machine's label on the node is a confirmation: the machine controller sets this label
        only on confirmed nodes.
        """
        if not deletion.is_its_node(machine, node):
            return False
        is_labeled = self._caches.settings.names.is_labeled(node, machine)
        return is_labeled or self.owns_vm(machine)

    async def confirm(self, machine: Machine, machine_class: ResolvedClass) -> bool:
        """Ask the cloud whether a machine owns the VM of its provider ID.

        If the cloud has confirmed the owner before, there is no further query.

        Returns:
            True: the machine owns the VM. False: there is no provider ID, the class is unusable,
            or the cloud does not show the VM or cannot tell its owner.

        Raises:
            NotOwned: the VM has another owner.
            CloudError: a call failed.
        """
        if not machine.provider_id or self.owns_vm(machine):
            return bool(machine.provider_id)
        if machine_class.access_faults:
            return False
        # One listing confirms all machines of a class, for example after a restart.
        listing = await self.listings.of(machine_class)
        listed = [
            record for record in listing.records if record.info.provider_id == machine.provider_id
        ]
        self._update_owner(machine, listed)
        if self.owns_vm(machine):
            return True
        request = self._driver.request(machine, machine_class)
        if self._driver.finds_by_name and not request.is_imported:
            if listed:
                raise _wrong_owner_error(machine)
            # A query by provider ID would only echo the ID; a query by name proves the owner.
            request = replace(request, provider_id="", creation_started=True)
        info = await self._driver.vm_of(request)
        if info is None:
            return False
        if info.provider_id and not is_same_instance(info.provider_id, machine.provider_id):
            raise _wrong_owner_error(machine)
        self.record(machine.uid, machine.provider_id)
        return True

    def record(self, uid: str, provider_id: str) -> None:
        """Record that the cloud confirmed a machine as the owner of a VM."""
        self._confirmed[uid] = provider_id

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self._confirmed.pop(uid, None)
        self.new_origins.pop(uid, None)

    async def run_until_cancelled(self) -> None:
        """Wait for cancellation, then cancel the listings in flight."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.listings.close()

    async def _list(self, machine_class: ResolvedClass) -> Sequence[MachineRecord]:
        if not self._driver.lists_machines:
            return ()
        records = await self._driver.call(
            MachineDriver.list_machines,
            ListMachinesRequest(
                cluster=self._caches.settings.cluster,
                pool=machine_class.name,
                provider_spec=machine_class.provider_spec,
                credentials=machine_class.credentials,
            ),
        )
        by_id = {listed.info.provider_id: listed for listed in records}
        keys: list[str] = []
        for machine in self._caches.machines.store.list():
            record = by_id.get(machine.provider_id) if machine.provider_id else None
            if record is None:
                continue
            self._update_owner(machine, [record])
            is_alive = machine.class_name == machine_class.name and not machine.is_deleting
            if is_alive and machine.origins and machine_class.origin not in machine.origins:
                # After a rotation, the new credentials show this VM for the first time.
                self.new_origins[machine.uid] = machine_class.origin
                keys.append(machine.key)
        if keys:
            self.on_new_origins(keys)
        return records

    def _update_owner(self, machine: Machine, records: Sequence[MachineRecord]) -> None:
        """Update the confirmed owner from listed VMs with the machine's provider ID."""
        identity = self._caches.settings.identity(machine)
        for record in records:
            marks = record.identity
            by_name = self._driver.finds_by_name
            if marks.name == machine.name if by_name else is_owner(identity, marks):
                self.record(machine.uid, machine.provider_id)
            elif (by_name or marks.cluster) and (
                machine.provider_id not in self._caches.class_of(machine).imports
            ):
                # Labels of another owner disprove the ownership; so does another name if the driver
                # finds VMs by name only. Missing labels do not: some clouds show labels late after
                # a creation. An imported VM may have any labels or name.
                self._confirmed.pop(machine.uid, None)


@dataclass(frozen=True, slots=True)
class SharedComponents:
    """Components that the machine controllers of one daemon share."""

    caches: Caches
    driver: DriverClient
    vms: ConfirmedVMs

    @classmethod
    def of(cls, caches: Caches, caller: DriverCaller) -> SharedComponents:
        """Return the components that use these caches."""
        driver = DriverClient(caller, caches)
        return cls(caches, driver, ConfirmedVMs(driver, caches))

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self.caches.forget(uid)
        self.vms.forget(uid)


def _wrong_owner_error(machine: Machine) -> NotOwned:
    return NotOwned(
        f"VM {machine.provider_id} has another name than this machine and was not changed; "
        f"{CORRECT_OWNER}"
    )


# --- listings -------------------------------------------------------------------------------------

MAX_AGE_S = 30.0
"""Maximum age in seconds of a listing that is reused: each listing costs calls to the cloud, and
many machines need a listing at about the same time. Callers that need a newer listing pass `since`.
"""

Fetch = Callable[[ResolvedClass], Awaitable[Sequence[MachineRecord]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VMListing:
    """All VMs of a class, listed after `began` (seconds of the event loop's clock)."""

    began: float
    records: Sequence[MachineRecord]


class VMListings:
    """VM listings of all classes; concurrent callers share a listing.

    A listing may lack VMs that were created after it began. So each caller passes the time after
    which the listing must have begun.

    Args:
        fetch: lists the VMs of a class.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._pools: dict[str, _ClassListing] = {}

    async def of(self, machine_class: ResolvedClass, *, since: float = -math.inf) -> VMListing:
        """Return a listing of the VMs of a class; the listing began after `since`.

        Raises:
            CloudError: the listing failed; every waiting caller gets the error.
        """
        pool = self._pools.get(machine_class.name)
        if pool is None or pool.version != machine_class.version:
            # Other credentials may show other VMs.
            pool = self._pools[machine_class.name] = _ClassListing(machine_class.version)
        while True:
            now = asyncio.get_running_loop().time()
            if pool.last is not None and pool.last.began > max(since, now - MAX_AGE_S):
                return pool.last
            is_new_enough = pool.flight is not None and pool.began > since
            if pool.flight is None:
                pool.began, is_new_enough = now, True
                pool.flight = spawn(self._list(pool, machine_class, now), name="machine-listing")
                pool.flight.add_done_callback(_retrieve_error)
            # Unlike await, wait() does not cancel the task if one waiter is cancelled.
            done, _ = await asyncio.wait({pool.flight})
            # If that listing began too early, list again: at most one per class is in flight.
            if is_new_enough:
                return done.pop().result()

    def drop(self) -> None:
        """Drop all listings, because the provider was replaced."""
        self._pools.clear()

    async def close(self) -> None:
        """Cancel the listings in flight."""
        await cancel_and_join(*(pool.flight for pool in self._pools.values()))

    async def _list(
        self, pool: _ClassListing, machine_class: ResolvedClass, began: float
    ) -> VMListing:
        try:
            listing = VMListing(began=began, records=tuple(await self._fetch(machine_class)))
            pool.last = listing
            return listing
        finally:
            pool.flight = None


def _retrieve_error(flight: asyncio.Task[VMListing]) -> None:
    """Retrieve the task's error, which asyncio would log if every waiter was cancelled."""
    if not flight.cancelled():
        flight.exception()


class _ClassListing:
    """Last listing of one class, and the listing in flight."""

    def __init__(self, version: tuple[str, ...]) -> None:
        self.version = version
        self.last: VMListing | None = None
        self.began = -math.inf
        self.flight: asyncio.Task[VMListing] | None = None

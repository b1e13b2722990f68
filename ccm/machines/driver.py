"""Calls to the driver, and the confirmed owners of VMs."""

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
    MachineRecord,
    MachineRequest,
    is_owner,
    known,
)
from ccm.cloud.operation import Caller
from ccm.machines import deletion
from ccm.machines.caches import Caches
from ccm.machines.classes import ResolvedClass
from ccm.model import Node
from ccm.model.machines import Machine

T = TypeVar("T")
Args = TypeVarTuple("Args")

REQUEST_DURATION = metrics.histogram(
    "mcm_cloud_api_driver_request_duration_seconds",
    "Time a call of the driver took.",
    ["provider", "operation"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
FAILED_REQUESTS = metrics.counter(
    "mcm_cloud_api_driver_requests_failed",
    "Calls of the driver that failed, by the code of the error.",
    ["provider", "operation", "error_code"],
)


class Calls(Caller, Protocol):
    """Caller of the driver (a `Handle`)."""

    @property
    def cloud(self) -> Cloud:
        """Present cloud of the provider, for its settings; never called directly."""
        ...


class Driver:
    """Calls to the driver about machines.

    Args:
        caller: calls the driver.
        caches: caches of the machine controllers.
    """

    def __init__(self, caller: Calls, caches: Caches) -> None:
        self.caller = caller
        self._caches = caches

    @property
    def finds_by_name(self) -> bool:
        """Whether the driver finds VMs by name alone; see `ccm.cloud.machines.Driver`."""
        return bool(getattr(self.caller.cloud.machines, "finds_by_name", False))

    def request(self, machine: Machine, made_of: ResolvedClass) -> MachineRequest:
        """Return a request about a machine, without user data."""
        settings = self._caches.settings
        return MachineRequest(
            identity=settings.identity(machine),
            provider_spec=made_of.provider_spec,
            credentials=made_of.credentials,
            provider_id=machine.provider_id,
            last_known_state=machine.status.known_state,
            creation_started=machine.creation_started,
            is_imported=machine.provider_id in made_of.imports,
            adopts_unmarked=settings.adopt_unmarked,
        )

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call the driver, and record the reference's metrics.

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


class ConfirmedVMs:
    """Owners of VMs that the cloud confirmed since the start of the process.

    A provider ID on an object proves nothing: every user who may edit machines can set it.

    Args:
        driver: calls the driver.
        caches: caches of the machine controllers.

    Attributes:
        listings: listings of VMs; each confirms the owners of its VMs.
        new_origins: UID of a machine -> origin of credentials that showed its VM and are not
            recorded on it yet. The machine controller records and removes them.
        on_new_origins: callback that receives the keys of such machines.
    """

    def __init__(self, driver: Driver, caches: Caches) -> None:
        self.listings = Listings(self._list)
        self.new_origins: dict[str, str] = {}
        self.on_new_origins: Callable[[Sequence[str]], None] = lambda _keys: None
        self._driver = driver
        self._caches = caches
        self._confirmed: dict[str, str] = {}

    def owns_vm(self, machine: Machine) -> bool:
        """Return whether the VM of the provider ID is confirmed to be the machine's."""
        provider_id = machine.provider_id
        return bool(provider_id) and self._confirmed.get(machine.uid) == provider_id

    def owns_node(self, machine: Machine, node: Node) -> bool:
        """Return whether a node is that of the machine's VM.

        A label with the machine's name proves it: this controller sets the label on confirmed nodes
        only.
        """
        if not deletion.is_its_node(machine, node):
            return False
        name = node.labels.get(self._caches.settings.names.machine_label)
        return name == machine.name or self.owns_vm(machine)

    async def confirm(self, machine: Machine, made_of: ResolvedClass) -> bool:
        """Ask the cloud whether the machine owns the VM of its provider ID, unless that is known.

        Returns:
            Whether the machine owns it. False: the cloud shows no such VM, or cannot tell.

        Raises:
            NotOwned: the VM has another owner.
            CloudError: a call failed.
        """
        if not machine.provider_id or self.owns_vm(machine):
            return bool(machine.provider_id)
        if made_of.lacking:
            return False
        # One listing confirms all machines of a class, for example after a restart.
        listing = await self.listings.of(made_of)
        listed = [
            record for record in listing.records if record.info.provider_id == machine.provider_id
        ]
        self._learn(machine, listed)
        if self.owns_vm(machine):
            return True
        request = self._driver.request(machine, made_of)
        if self._driver.finds_by_name and not request.is_imported:
            if listed:
                raise _misnamed(machine)
            # A status by provider ID would only echo the ID; a status by name proves the owner.
            request = replace(request, provider_id="", creation_started=True)
        try:
            info = await self._driver.call(MachineDriver.get_machine_status, request)
        except Uninitialized as error:
            info = known(error)
        except (NotFound, Unimplemented):
            return False
        if info.provider_id and not is_same_instance(info.provider_id, machine.provider_id):
            raise _misnamed(machine)
        self.note(machine.uid, machine.provider_id)
        return True

    def note(self, uid: str, provider_id: str) -> None:
        """Record that the cloud confirmed the VM of a machine."""
        self._confirmed[uid] = provider_id

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self._confirmed.pop(uid, None)
        self.new_origins.pop(uid, None)

    async def tend(self) -> None:
        """Wait for cancellation, then cancel the listings in flight."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.listings.close()

    async def _list(self, machine_class: ResolvedClass) -> Sequence[MachineRecord]:
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
            self._learn(machine, [record])
            is_alive = machine.class_name == machine_class.name and not machine.is_deleting
            if is_alive and machine.origins and machine_class.origin not in machine.origins:
                # After a rotation, the new credentials show this VM for the first time.
                self.new_origins[machine.uid] = machine_class.origin
                keys.append(machine.key)
        if keys:
            self.on_new_origins(keys)
        return records

    def _learn(self, machine: Machine, records: Sequence[MachineRecord]) -> None:
        """Update the confirmed owner from listed VMs with the machine's provider ID."""
        identity = self._caches.settings.identity(machine)
        for record in records:
            marks = record.identity
            by_name = self._driver.finds_by_name
            if marks.name == machine.name if by_name else is_owner(identity, marks):
                self.note(machine.uid, machine.provider_id)
            elif (by_name or marks.cluster) and (
                machine.provider_id not in self._caches.class_of(machine).imports
            ):
                # Missing marks deny nothing: some clouds show them late after a creation. Marks of
                # another owner do, and so does another name if the driver knows names only. An
                # imported VM may have either.
                self._confirmed.pop(machine.uid, None)


@dataclass(frozen=True, slots=True)
class Shared:
    """Components that the machine controllers of one daemon share."""

    caches: Caches
    driver: Driver
    vms: ConfirmedVMs

    @classmethod
    def of(cls, caches: Caches, caller: Calls) -> Shared:
        """Return the components that use these caches."""
        driver = Driver(caller, caches)
        return cls(caches, driver, ConfirmedVMs(driver, caches))

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self.caches.forget(uid)
        self.vms.forget(uid)


def _misnamed(machine: Machine) -> NotOwned:
    return NotOwned(
        f"VM {machine.provider_id} has not the name of this machine, and is left alone; "
        f"{CORRECT_OWNER.format(machine.class_name)}"
    )


# --- listings -------------------------------------------------------------------------------------

MAX_AGE_S = 30.0
"""Maximum age of a listing that is reused."""

Fetch = Callable[[ResolvedClass], Awaitable[Sequence[MachineRecord]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All VMs of a class at some time after `began`, which is on the event loop's clock."""

    began: float
    records: Sequence[MachineRecord]


class Listings:
    """Listings of all classes; concurrent callers share one.

    A VM created after a listing began may be missing from it. So each caller gives the time after
    which the listing has to have begun.

    Args:
        fetch: lists the VMs of a class.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._pools: dict[str, _Pool] = {}

    async def of(self, made_of: ResolvedClass, *, since: float = -math.inf) -> Listing:
        """Return a listing of a class that began after `since`.

        Raises:
            CloudError: the listing failed; every waiting caller gets the error.
        """
        pool = self._pools.get(made_of.name)
        if pool is None or pool.version != made_of.version:
            # Other credentials may show other VMs.
            pool = self._pools[made_of.name] = _Pool(made_of.version)
        while True:
            now = asyncio.get_running_loop().time()
            if pool.last is not None and pool.last.began > max(since, now - MAX_AGE_S):
                return pool.last
            is_new_enough = pool.flight is not None and pool.began > since
            if pool.flight is None:
                pool.began, is_new_enough = now, True
                pool.flight = spawn(self._list(pool, made_of, now), name="machine-listing")
                pool.flight.add_done_callback(_noted)
            # Unlike await, wait() does not cancel the task if one waiter is cancelled.
            done, _ = await asyncio.wait({pool.flight})
            # A listing that began too early is awaited, because only one per class is in flight.
            if is_new_enough:
                return done.pop().result()

    def drop(self) -> None:
        """Drop all listings, because another cloud answers from now on."""
        self._pools.clear()

    async def close(self) -> None:
        """Cancel the listings in flight."""
        await cancel_and_join(*(pool.flight for pool in self._pools.values()))

    async def _list(self, pool: _Pool, machine_class: ResolvedClass, began: float) -> Listing:
        try:
            listing = Listing(began=began, records=tuple(await self._fetch(machine_class)))
            pool.last = listing
            return listing
        finally:
            pool.flight = None


def _noted(flight: asyncio.Task[Listing]) -> None:
    """Retrieve the error, in case every waiter was cancelled: asyncio would log it otherwise."""
    if not flight.cancelled():
        flight.exception()


class _Pool:
    """Last listing of one class, and the one in flight."""

    def __init__(self, version: tuple[str, ...]) -> None:
        self.version = version
        self.last: Listing | None = None
        self.began = -math.inf
        self.flight: asyncio.Task[Listing] | None = None

"""Calls to the driver, and the memory of which VM belongs to which machine."""

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
    """Calls to the driver (a `Handle`)."""

    @property
    def cloud(self) -> Cloud:
        """Current offer of the provider, for its settings; never called."""
        ...


class Driver:
    """Calls to the driver about machines.

    Args:
        caller: calls the driver.
        caches: the caches.
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
        """Call the driver, and count that as the reference does.

        Raises:
            CloudError: the call failed.
        """
        provider, operation, began = self.caller.name, method.__name__, clock.monotonic()
        try:
            return await self.caller.call(method, *args)
        except CloudError as error:
            FAILED_REQUESTS.labels(provider, operation, code_of(error).name).inc()
            raise
        finally:
            took_s = clock.monotonic() - began
            REQUEST_DURATION.labels(provider, operation).observe(took_s)


class ConfirmedVMs:
    """Which VM is a machine's, as the cloud confirmed since the start.

    A provider ID alone proves nothing: every user that may edit machines can set it.

    Args:
        driver: calls the driver.
        caches: the caches.

    Attributes:
        listings: listings of VMs; each of them confirms the owners of the VMs in it.
        new_origins: by UID of a machine, the origin of credentials that have shown its VM, while
            the machine does not record it; the machine controller writes and removes them.
        on_new_origins: called with the keys of such machines.
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

        The machine's name in its label proves it, as the label is copied to nodes that were proved.
        """
        if not deletion.is_its_node(machine, node):
            return False
        name = node.labels.get(self._caches.settings.names.machine_label)
        return name == machine.name or self.owns_vm(machine)

    async def confirm(self, machine: Machine, made_of: ResolvedClass) -> bool:
        """Ask the cloud whose VM the provider ID of a machine names, if that is not known.

        Returns:
            Whether it is the machine's. False: the cloud shows no such VM, or cannot tell.

        Raises:
            NotOwned: the VM is not the machine's.
            CloudError: the cloud did not answer.
        """
        if not machine.provider_id or self.owns_vm(machine):
            return bool(machine.provider_id)
        if made_of.lacking:
            return False
        # One listing tells it of all machines of a class, as after a restart.
        listing = await self.listings.of(made_of)
        listed = [one for one in listing.records if one.info.provider_id == machine.provider_id]
        self._learn(machine, listed)
        if self.owns_vm(machine):
            return True
        request = self._driver.request(machine, made_of)
        if self._driver.finds_by_name and not request.is_imported:
            if listed:
                raise _misnamed(machine)
            # An answer by provider ID would repeat what was asked.
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
        """Note which VM is a machine's, as the cloud said."""
        self._confirmed[uid] = provider_id

    def forget(self, uid: str) -> None:
        """Forget a machine that is gone."""
        self._confirmed.pop(uid, None)
        self.new_origins.pop(uid, None)

    async def tend(self) -> None:
        """Wait to be cancelled; then no listing is left under way."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.listings.close()

    async def _list(self, made_of: ResolvedClass) -> Sequence[MachineRecord]:
        records = await self._driver.call(
            MachineDriver.list_machines,
            ListMachinesRequest(
                cluster=self._caches.settings.cluster,
                pool=made_of.name,
                provider_spec=made_of.provider_spec,
                credentials=made_of.credentials,
            ),
        )
        by_id = {one.info.provider_id: one for one in records}
        seen: list[str] = []
        for machine in self._caches.machines.store.list():
            record = by_id.get(machine.provider_id) if machine.provider_id else None
            if record is None:
                continue
            self._learn(machine, [record])
            is_alive = machine.class_name == made_of.name and not machine.is_deleting
            if is_alive and machine.origins and made_of.origin not in machine.origins:
                # After a rotation, credentials show VMs for the first time.
                self.new_origins[machine.uid] = made_of.origin
                seen.append(machine.key)
        if seen:
            self.on_new_origins(seen)
        return records

    def _learn(self, machine: Machine, records: Sequence[MachineRecord]) -> None:
        """Learn from listed VMs with the provider ID of a machine."""
        identity = self._caches.settings.identity(machine)
        for record in records:
            marks = record.identity
            by_name = self._driver.finds_by_name
            if marks.name == machine.name if by_name else is_owner(identity, marks):
                self.note(machine.uid, machine.provider_id)
            elif (by_name or marks.cluster) and (
                machine.provider_id not in self._caches.class_of(machine).imports
            ):
                # Marks that follow a creation late are no denial. Those of another owner are, and
                # so is another name where names are all there is; an imported VM may bear either.
                self._confirmed.pop(machine.uid, None)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the machine controllers of one daemon share."""

    caches: Caches
    driver: Driver
    vms: ConfirmedVMs

    @classmethod
    def of(cls, caches: Caches, caller: Calls) -> Shared:
        """Return what stands on the caches."""
        driver = Driver(caller, caches)
        return cls(caches, driver, ConfirmedVMs(driver, caches))

    def forget(self, uid: str) -> None:
        """Forget a machine that is gone."""
        self.caches.forget(uid)
        self.vms.forget(uid)


def _misnamed(machine: Machine) -> NotOwned:
    return NotOwned(
        f"VM {machine.provider_id} has not the name of this machine, and is left alone; "
        f"{CORRECT_OWNER.format(machine.class_name)}"
    )


# --- listings -------------------------------------------------------------------------------------

MAX_AGE_S = 30.0
"""How old a listing may be that still serves."""

Fetch = Callable[[ResolvedClass], Awaitable[Sequence[MachineRecord]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All VMs of a class, at some moment after `began`, on the event loop's clock."""

    began: float
    records: Sequence[MachineRecord]


class Listings:
    """The listings of all classes: one serves all who ask for the same at about the same time.

    A VM that was created after a listing began may be missing from it, so each caller says since
    when the listing has to have begun.

    Args:
        fetch: lists the VMs of a class.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._pools: dict[str, _Pool] = {}

    async def of(self, made_of: ResolvedClass, *, since: float = -math.inf) -> Listing:
        """A listing of a class that began after `since`.

        Raises:
            CloudError: it failed; all who waited for it are told.
        """
        pool = self._pools.get(made_of.name)
        if pool is None or pool.version != made_of.version:
            # Other credentials may see other VMs.
            pool = self._pools[made_of.name] = _Pool(made_of.version)
        while True:
            now = asyncio.get_running_loop().time()
            if pool.last is not None and pool.last.began > max(since, now - MAX_AGE_S):
                return pool.last
            serves = pool.flight is not None and pool.began > since
            if pool.flight is None:
                pool.began, serves = now, True
                pool.flight = spawn(self._list(pool, made_of, now), name="machine-listing")
                pool.flight.add_done_callback(_noted)
            # Shielded: one waiter's end must not take the listing from the others.
            done, _ = await asyncio.wait({pool.flight})
            if serves:
                return done.pop().result()

    def drop(self) -> None:
        """Another cloud answers from now on: what was listed counts no more."""
        self._pools.clear()

    async def close(self) -> None:
        """Cancel listings under way."""
        await cancel_and_join(*(pool.flight for pool in self._pools.values()))

    async def _list(self, pool: _Pool, made_of: ResolvedClass, began: float) -> Listing:
        try:
            found = Listing(began=began, records=tuple(await self._fetch(made_of)))
            pool.last = found
            return found
        finally:
            pool.flight = None


def _noted(flight: asyncio.Task[Listing]) -> None:
    """A failure is told to whoever waits; perhaps nobody does any more."""
    if not flight.cancelled():
        flight.exception()


class _Pool:
    """What is known of one class."""

    def __init__(self, version: tuple[str, ...]) -> None:
        self.version = version
        self.last: Listing | None = None
        self.began = -math.inf
        self.flight: asyncio.Task[Listing] | None = None

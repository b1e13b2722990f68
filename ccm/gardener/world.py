"""What the machine controllers of one daemon share: caches, listings, and what they wait for.

None of them starts before the API server serves the objects and the marker of the cluster is
known; until then that is said once, and looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar, TypeVarTuple

from ccm.base import clock, log
from ccm.base.backoff import Exponential
from ccm.base.log import Outage
from ccm.cloud.errors import CloudError, NotFound, NotOwned, Unimplemented, Uninitialized, code_of
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import (
    CORRECT_OWNER,
    Identity,
    ListMachinesRequest,
    MachineDriver,
    MachineRecord,
    MachineRequest,
    is_owner,
    known,
)
from ccm.cloud.operation import Caller
from ccm.gardener import codec, metrics, served
from ccm.gardener.arrivals import Arrivals
from ccm.gardener.kinds import MACHINE_CLASSES, MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.gardener.types import MachineClass
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer, Informers
from ccm.kube.resources import NAMESPACES, NODES, SECRETS, Kind
from ccm.machines import deletion
from ccm.machines.ages import Ages
from ccm.machines.classes import ClassView
from ccm.machines.listing import Listings
from ccm.machines.settings import Settings
from ccm.model import Namespace, Node, Secret
from ccm.model.machines import Machine

T = TypeVar("T")
Args = TypeVarTuple("Args")

SYSTEM_NAMESPACE = "kube-system"
"""Whose UID is the marker of a cluster that was given none: it lives as long as the cluster. It is
that of the cluster which machines join: many may have their Machines in one control cluster."""

_PAUSES = Exponential(base_s=1.0, factor=2.0, cap_s=30.0)


class Asks(Protocol):
    """What is asked of the API server before anything starts (a `Client`)."""

    async def raw(self, method: str, path: str) -> bytes:
        """Any request."""
        ...

    def server_time(self) -> datetime:
        """What time it is there."""
        ...

    def resource(self, kind: Any) -> Any:
        """Calls about one kind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster that machines join, where it is another than that of their objects.

    Attributes:
        informers: its caches.
        client: asks its API server.
    """

    informers: Informers
    client: Asks


class Calls(Caller, Protocol):
    """Calls to the driver (a `Handle`)."""

    @property
    def cloud(self) -> Cloud:
        """Current offer of the provider, for its settings; never called."""
        ...


class World:
    """Caches, listings and settings.

    Args:
        informers: the shared caches of the cluster that has the Machines.
        client: asks what has to be known before anything starts.
        caller: calls the driver.
        namespace: namespace of the objects.
        settings: of flags; without a cluster, the marker is the UID of the target cluster's
            `kube-system`, or without a target that of the namespace.
        target: the cluster that machines join; None = the same, or none at all.

    Attributes:
        ages: of all machines.
        arrivals: what the controllers tell each other of what is about to come.
        new_origins: by UID of a Machine, the `ClassView.origin` of credentials that have shown its
            VM, while its annotation lacks it; the machine controller writes and removes them.
        on_new_origins: called with the keys of such Machines.
    """

    def __init__(
        self,
        *,
        informers: Informers,
        client: Asks,
        caller: Calls,
        namespace: str,
        settings: Settings,
        target: Target | None = None,
    ) -> None:
        self.caller = caller
        self.namespace = namespace
        self.listings = Listings(self._list)
        self.ages = Ages(client.server_time)
        self.arrivals = Arrivals()
        self.new_origins: dict[str, str] = {}
        self.on_new_origins: Callable[[Sequence[str]], None] = lambda _keys: None
        self.lacking = ""
        """What is still waited for; empty: nothing."""
        self._informers = informers
        self._client = client
        self._settings = settings
        self._is_ready = False
        self._target = target or Target(informers=informers, client=client)
        self._no_nodes: Informer[Node] = Informer.nowhere(NODES)
        self._opening = asyncio.Lock()
        self._creations_ended: dict[str, float] = {}
        self._owned: dict[str, str] = {}
        self._listed: dict[str, Mapping[str, Identity]] = {}
        self._usable: dict[str, ClassView] = {}

    @property
    def settings(self) -> Settings:
        """Names and settings; there are none before `ready`."""
        assert self._is_ready
        return self._settings

    @property
    def finds_by_name(self) -> bool:
        """Whether the driver finds VMs by name alone; see `ccm.cloud.machines.Driver`."""
        return bool(getattr(self.caller.cloud.machines, "finds_by_name", False))

    @property
    def machines(self) -> Informer[Machine]:
        """All Machines."""
        return self._informers.of(MACHINES, namespace=self.namespace)

    @property
    def classes(self) -> Informer[MachineClass]:
        """All MachineClasses."""
        return self._informers.of(MACHINE_CLASSES, namespace=self.namespace)

    @property
    def machine_sets(self) -> Informer[MachineSet]:
        """All MachineSets."""
        return self._informers.of(MACHINE_SETS, namespace=self.namespace)

    @property
    def machine_deployments(self) -> Informer[MachineDeployment]:
        """All MachineDeployments."""
        return self._informers.of(MACHINE_DEPLOYMENTS, namespace=self.namespace)

    @property
    def secrets(self) -> Informer[Secret]:
        """The Secrets beside them."""
        return self._informers.of(SECRETS, namespace=self.namespace)

    @property
    def nodes(self) -> Informer[Node]:
        """All Nodes of the cluster that machines join."""
        return self._target.informers.of(NODES) if self._settings.has_target else self._no_nodes

    def now(self) -> datetime:
        """The time at the API server that has the Machines: ages count by it, not by our clock."""
        return self._client.server_time()

    def now_since(self, uid: str, moment: datetime | None) -> datetime:
        """The time, to compare it with a moment that stands on a machine: no jump of any clock
        makes that a later one. None: it is about to be written down.
        """
        return self.now() if moment is None else self.ages.now(uid, moment)

    async def ready(self, *kinds: Kind[Any]) -> None:
        """Wait until the objects are served, and the marker is known.

        Args:
            kinds: what has to be served beside Machines and their classes.
        """
        async with self._opening:
            if not self._is_ready:
                await self._until(self._opened)
        if kinds:
            await self._until(lambda: self._served(*kinds))

    async def _until(self, step: Callable[[], Awaitable[None]]) -> None:
        """Try until it is done."""
        outage = Outage(
            log.logger("machines"),
            begins="machine controllers wait for what they need, retrying",
            ends="machine controllers have what they need",
        )
        attempt = 0
        while True:
            try:
                await step()
            except KubeError as error:
                self.lacking = "" if self._is_ready else str(error)
                outage.goes_on(error=str(error))
                await asyncio.sleep(_PAUSES.even_delay(attempt))
                attempt += 1
            else:
                outage.is_over()
                return

    async def _opened(self) -> None:
        await self._served(MACHINES, MACHINE_CLASSES)
        cluster = self._settings.cluster or await self._marker()
        self._settings, self._is_ready = replace(self._settings, cluster=cluster), True
        self.lacking = ""

    async def tend(self) -> None:
        """Until cancelled; then no listing is left under way."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.listings.close()

    def class_of(self, machine: Machine) -> ClassView:
        """The machine's class; one with a fault where it has none."""
        namespace, name = machine.metadata.namespace, machine.class_name
        found = self.classes.store.get(f"{namespace}/{name}") if name else None
        if found is None:
            return codec.no_class(name, namespace)
        view = self.class_view(found)
        if not view.lacking:
            self._usable[found.key] = view
        return view

    def class_to_delete_with(self, machine: Machine) -> ClassView:
        """The machine's class; where it or its Secret is gone, as it was while it was of use."""
        found = self.class_of(machine)
        key = f"{machine.metadata.namespace}/{machine.class_name}"
        return self._usable.get(key, found) if found.lacking else found

    def class_faults(self, namespace: str, name: str) -> Sequence[str]:
        """Why no VM can be created of a class, as `kube-ccm doctor` says too.

        Empty: one can, or the controllers in use do not follow classes and Secrets.
        """
        followed = {one.resource for one in self._informers.all if one.has_synced}
        if not {MACHINE_CLASSES.plural, SECRETS.plural} <= followed:
            return ()
        found = self.classes.store.get(f"{namespace}/{name}") if name else None
        if found is None:
            return codec.no_class(name, namespace).faults
        view = self.class_view(found)
        # Without a driver nothing is known of the providers that it serves.
        faults = view.lacking if self.caller.cloud.machines is None else view.faults
        return faults or codec.class_refusals(found)

    def classes_with_secret(self, name: str) -> Sequence[MachineClass]:
        """Return the classes that refer to a Secret."""
        return [
            one
            for one in self.classes.store.list()
            if any(reference.name == name for reference in one.secrets)
        ]

    def class_view(self, found: MachineClass) -> ClassView:
        """A class in neutral terms, with what its Secrets hold now."""
        return codec.machine_class(
            found, self._secret, providers=self.caller.cloud.machine_providers
        )

    def request(self, machine: Machine, made_of: ClassView) -> MachineRequest:
        """What the driver is asked about a machine; without user data."""
        return MachineRequest(
            identity=self.settings.identity(machine),
            provider_spec=made_of.provider_spec,
            credentials=made_of.credentials,
            provider_id=machine.provider_id,
            last_known_state=machine.status.known_state,
            creation_started=machine.creation_started,
            is_imported=machine.provider_id in made_of.imports,
            adopts_unmarked=self.settings.adopt_unmarked,
        )

    def owns_vm(self, machine: Machine) -> bool:
        """Return whether the cloud has confirmed, since the start, whose VM the provider ID names.

        A provider ID alone proves nothing: whoever may edit Machines can set it.
        """
        provider_id = machine.provider_id
        if provider_id and self._owned.get(machine.uid) == provider_id:
            return True
        listed = (vms[provider_id] for vms in self._listed.values() if provider_id in vms)
        return any(self._is_owner(machine, marks) for marks in listed)

    def _is_owner(self, machine: Machine, marks: Identity) -> bool:
        if self.finds_by_name:
            return marks.name == machine.name
        return is_owner(self.settings.identity(machine), marks)

    def owns_node(self, machine: Machine, node: Node) -> bool:
        """Return whether a node is that of the machine's VM.

        The machine's name in its label proves it, as the label is copied to nodes that were proved.
        """
        if not deletion.is_its_node(machine, node):
            return False
        is_labelled = node.labels.get(self.settings.names.machine_label) == machine.name
        return is_labelled or self.owns_vm(machine)

    async def confirm_owner(self, machine: Machine, made_of: ClassView) -> bool:
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
        if self.owns_vm(machine):
            return True
        request = self.request(machine, made_of)
        if self.finds_by_name and not request.is_imported:
            if any(one.info.provider_id == machine.provider_id for one in listing.records):
                raise _misnamed(machine)
            # An answer by provider ID would repeat what was asked.
            request = replace(request, provider_id="", creation_started=True)
        try:
            info = await self.call(MachineDriver.get_machine_status, request)
        except Uninitialized as error:
            info = known(error)
        except (NotFound, Unimplemented):
            return False
        if info.provider_id and not is_same_instance(info.provider_id, machine.provider_id):
            raise _misnamed(machine)
        self.note_owner(machine.uid, machine.provider_id)
        return True

    def note_owner(self, uid: str, provider_id: str) -> None:
        """Note which VM is a machine's, as the cloud said."""
        self._owned[uid] = provider_id

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call the driver, and count that as the reference does. Raises CloudError."""
        provider, operation, began = self.caller.name, method.__name__, clock.monotonic()
        try:
            return await self.caller.call(method, *args)
        except CloudError as error:
            metrics.FAILED_REQUESTS.labels(provider, operation, code_of(error).name).inc()
            raise
        finally:
            took_s = clock.monotonic() - began
            metrics.REQUEST_DURATION.labels(provider, operation).observe(took_s)

    def creation_ended(self, uid: str) -> None:
        """A call that may have made the machine's VM is over; tells `listed_since`."""
        self._creations_ended[uid] = asyncio.get_running_loop().time()

    def listed_since(self, uid: str) -> float:
        """When a listing has to have begun for a VM missing from it not to be there."""
        return self._creations_ended.get(uid, float("-inf"))

    def forget(self, uid: str) -> None:
        """The machine is gone."""
        self._creations_ended.pop(uid, None)
        self._owned.pop(uid, None)
        self.new_origins.pop(uid, None)
        self.ages.forget(uid)
        gone = [key for key in self._usable if self.classes.store.get(key) is None]
        if gone:
            # Credentials are kept no longer than there is something to delete with them.
            machines = self.machines.store.list()
            wanted = {f"{one.namespace}/{one.class_name}" for one in machines}
            for key in set(gone) - wanted:
                del self._usable[key]

    async def _list(self, made_of: ClassView) -> Sequence[MachineRecord]:
        records = await self.call(
            MachineDriver.list_machines,
            ListMachinesRequest(
                cluster=self.settings.cluster,
                pool=made_of.name,
                provider_spec=made_of.provider_spec,
                credentials=made_of.credentials,
            ),
        )
        self._listed[made_of.name] = {one.info.provider_id: one.identity for one in records}
        self._note_origins(made_of, records)
        return records

    def _note_origins(self, made_of: ClassView, records: Sequence[MachineRecord]) -> None:
        """Note Machines whose VMs new credentials show for the first time.

        It happens after a rotation only. Each listing is looked at once, as several share one.
        """
        unseen: dict[str, Machine] = {}
        for one in self.machines.store.list():
            if one.class_name == made_of.name and not one.is_deleting:
                recorded = one.origins
                if recorded and made_of.origin not in recorded:
                    unseen[one.provider_id] = one
        ids = (record.info.provider_id for record in records) if unseen else ()
        seen = [unseen[provider_id] for provider_id in ids if provider_id in unseen]
        if seen:
            self.new_origins |= {one.uid: made_of.origin for one in seen}
            self.on_new_origins([one.key for one in seen])

    def _secret(self, namespace: str, name: str) -> Secret | None:
        return self.secrets.store.get(f"{namespace}/{name}")

    async def _served(self, *kinds: Kind[Any]) -> None:
        """Raises KubeError where objects of these kinds cannot be used yet."""
        known = await served.resources(self._client)
        missing = [one for one in kinds if one.plural not in known]
        if missing:
            names = " and ".join(one.plural for one in missing)
            raise NotServed(f"{MACHINES.api_version} has no {names}; apply manifests/crds.yaml")

    async def _marker(self) -> str:
        target = self._target.client if self._settings.has_target else None
        return await marker(self._client, target, self.namespace)


def _misnamed(machine: Machine) -> NotOwned:
    return NotOwned(
        f"VM {machine.provider_id} has not the name of this machine, and is left alone; "
        f"{CORRECT_OWNER.format(machine.class_name)}"
    )


async def marker(control: Asks, target: Asks | None, namespace: str) -> str:
    """The marker of a cluster that was given none.

    Args:
        control: the cluster that has the Machines.
        target: the one that they join; None = there is none.
        namespace: where the Machines are.

    Raises:
        KubeError: nobody knows.
    """
    client, where = (target, SYSTEM_NAMESPACE) if target is not None else (control, namespace)
    found: Namespace = await client.resource(NAMESPACES).get(where)
    return found.uid


class NotServed(KubeError):
    """The definitions of the objects are missing."""

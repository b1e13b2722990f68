"""The machine driver: what a cloud may offer so that VMs become objects of the cluster.

The methods and their words are those of Gardener's driver interface; requests know neither that
front's objects nor another's, so that one driver serves every kind of Machine object.

Rules beside those of `ccm.cloud.interface`:

* A call is one short step. What takes time in the cloud is begun, and the answer is
  `RetryAfter(seconds)`: the same call comes again then. Nothing waits inside a call.
* Every VM, and whatever is made beside it, carries the whole `Identity`. A VM is looked for by
  cluster and UID, as a copy of a cluster has its UIDs too. One that has our name and another
  identity, or none, is never adopted, changed or deleted: `AlreadyExists` says that it is in the
  way.
* A provider ID proves nothing, because users with the right to edit Machines can set it to that of
  any server of the project. Before a VM is described, changed or deleted by provider ID, the driver
  reads its marks and calls `check_owner`.
* Credentials come with each request, and may be others each time: a driver opens without
  them, and keeps one client for each `Credentials.digest`.
* A provider spec that makes no sense stops creation and initialisation, never a question or a
  deletion: VMs that were made by an older one have to be found and removed.
* An error of a creation means "unknown", whatever its class: the server may exist. The controller
  records a creation on the Machine before it calls `create_machine`, and asks for the deletion of
  every machine whose creation was recorded.
* What is known in spite of an error travels with it: `raise Uninitialized("…").carrying(info)`.
  Of other errors the `last_known_state` alone is kept, and is stored before the next call.

`ccm.cloud.sessions` keeps those clients; `ccm.cloud.gardener` takes a driver that was written to
the origin's shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from ccm.base.credentials import header_value
from ccm.cloud.errors import CloudError, InvalidArgument, NotOwned, Unimplemented
from ccm.cloud.operation import LISTING_S, operation
from ccm.model import NodeAddress

CHANGE_S = 300.0
"""Deadline of a call that makes or removes a VM: one request or a few, never the VM's boot."""

IMPORT_ANNOTATION = "kube-ccm/import-vms"
"""On a MachineClass: provider IDs, separated by commas, of VMs that its Machines may name although
their marks are others or none."""

CORRECT_OWNER = (
    "correct spec.providerID, or list the VM in the annotation "
    f"{IMPORT_ANNOTATION} of MachineClass {{}}"
)
"""What to do about `NotOwned`."""

SPEC_USER_DATA = "userData"
"""Field of a provider spec whose placeholders are filled in as those of the Secret are."""

S = TypeVar("S")


class Credentials(Mapping[str, bytes]):
    """Secret data of a request, resolved; shows its keys and never its values.

    Two with equal data are equal, and so is their `digest`.
    """

    def __init__(self, data: Mapping[str, bytes]) -> None:
        self._data = dict(data)

    def __getitem__(self, key: str) -> bytes:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self._data))})"

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """A short text that is equal for equal data and says nothing about it."""
        found = sha256()
        for key, value in sorted(self._data.items()):
            # With lengths, so that no two ways to cut the same bytes are alike.
            found.update(b"%d:%b%d:%b" % (len(key.encode()), key.encode(), len(value), value))
        return found.hexdigest()[:32]


def token_of(credentials: Mapping[str, bytes], key: str) -> str:
    """Return a credential that goes into a header; empty where there is none.

    White space around it is left out: a Secret is often made of a file, which ends with a line
    break.

    Raises:
        InvalidArgument: no header can carry it; the message names its key and size.
    """
    try:
        return header_value(credentials.get(key, b"").decode(errors="replace").strip())
    except ValueError as error:
        raise InvalidArgument(f"{key} of the credentials {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Owner of a VM. Drivers write all five fields into the VM's labels, tags or metadata.

    Attributes:
        cluster: the marker of the cluster, one and the same for all its machines.
        namespace: of the machine object; at most 63 letters a-z, digits and `-`. Empty in a listing
            for a VM that was created before drivers wrote this mark.
        pool: what machines alike have in common; the name of the MachineClass.
        name: of the machine, unique in its cluster at any time; the VM's name.
        uid: of the machine, unique for ever.
    """

    cluster: str
    pool: str
    name: str
    uid: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Names of the labels, tags or metadata in which a cloud keeps the fields of an `Identity`."""

    cluster: str
    namespace: str
    pool: str
    name: str
    uid: str

    def of(self, who: Identity) -> dict[str, str]:
        """Return the marks of an identity."""
        return {getattr(self, each): getattr(who, each) for each in self.__slots__}

    def identity(self, labels: Mapping[str, Any] | None, vm_name: str) -> Identity:
        """Return the identity that labels say; a VM without a mark of the name has its own."""
        found = {each: (labels or {}).get(getattr(self, each)) for each in self.__slots__}
        texts = {each: text if isinstance(text, str) else "" for each, text in found.items()}
        return Identity(**{**texts, "name": texts["name"] or vm_name})

    def bear(self, labels: Mapping[str, Any] | None, who: Identity) -> bool:
        """Return whether labels are those of an identity; without marks they are of none."""
        found = self.identity(labels, "")
        is_marked = bool(found.cluster and found.uid)
        return is_marked and (found.cluster, found.uid) == (who.cluster, who.uid)


class Phase(Enum):
    """What a VM does, as far as the cloud says."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    DELETING = "deleting"
    FAILED = "failed"
    """The cloud gave it up; it will not run by itself."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """What is asked about one machine.

    Attributes:
        identity: whose VM it is.
        provider_spec: what the VM is to be like, in the driver's own words; read-only.
        credentials: of the cloud.
        user_data: what the VM is booted with, ready to use; empty outside of the creation.
        provider_id: of the VM, once it was stored with the machine; else empty.
        last_known_state: what the driver said last in `MachineInfo.last_known_state`.
        creation_started: whether the Machine records that its creation was started. A driver that
            finds VMs by name takes a VM of the machine's name for the machine's only then. Drivers
            that mark VMs ignore it.
        is_imported: whether the MachineClass lists `provider_id` among the VMs to import, so that
            `check_owner` accepts any marks.
        adopts_unmarked: whether `check_owner` accepts a VM that has the machine's name and no
            marks.
    """

    identity: Identity
    provider_spec: Mapping[str, Any] = field(repr=False)
    credentials: Credentials
    user_data: bytes = field(default=b"", repr=False)
    provider_id: str = ""
    last_known_state: str = ""
    creation_started: bool = False
    is_imported: bool = False
    adopts_unmarked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """What a cloud knows about one VM.

    Attributes:
        provider_id: what the same cloud's nodes have in `spec.providerID`; never empty in the
            answer of a creation.
        node_name: the name under which the VM's kubelet registers.
        addresses: in this order.
        phase: what the VM does.
        message: why, for people; such as the cloud's words about a VM that failed.
        last_known_state: kept with the machine and handed in again; None = as it was.
    """

    provider_id: str = ""
    node_name: str = ""
    addresses: Sequence[NodeAddress] = ()
    phase: Phase = Phase.UNKNOWN
    message: str = ""
    last_known_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """One VM in a listing.

    Attributes:
        identity: as the VM's marks say it; what is missing there is empty.
        info: what `get_machine_status` would say of it.
        initialized: False where it would raise `Uninitialized`.
        created: when the VM was made; None where the cloud does not say.
    """

    identity: Identity
    info: MachineInfo
    initialized: bool = True
    created: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachinesRequest:
    """Which machines are asked about: the VMs of a pool, whatever cluster they are marked with."""

    cluster: str
    pool: str
    provider_spec: Mapping[str, Any]
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMachineResponse:
    """The VM is gone, and all that was made beside it.

    Attributes:
        last_known_state: kept with the machine; None = as it was.
    """

    last_known_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVolumeIDsRequest:
    """Which volumes are asked about: the specs of PersistentVolumes as the API server has them."""

    pv_specs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequest:
    """An old class of a provider's own kind, and the MachineClass that is to hold what it says."""

    provider_specific_machine_class: Mapping[str, Any]
    machine_class: dict[str, Any]
    class_spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a provider spec.

    Attributes:
        field: where, such as `spec.networking.networkId`.
        message: the value, and what would be right.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def _machine(req: MachineRequest) -> str:
    # A VM that nobody claims is deleted by its provider ID alone.
    return req.identity.uid or req.provider_id or req.identity.name


class MachineDriver(Protocol):
    """VMs by request. Calls about one machine never overlap."""

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine)
    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """Make the VM, or find the one that an earlier call made.

        Called for a machine whose provider ID is not known, after a look for a VM of its
        identity found none. May be repeated at any time: there is one VM in the end. An answer
        means that the VM is there, not that it runs. An error keeps the machine without a VM,
        is shown in its status, and is tried again according to its class.

        Raises:
            AlreadyExists: a VM of this name is not this machine's; none was made beside it.
            InvalidArgument: the provider spec asks for what cannot be had.
            ResourceExhausted: quota or capacity is used up.
            RetryAfter: not yet; called again then.
        """

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine)
    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """Do what needs a VM that exists: network settings, volumes.

        Called once after the provider ID was stored, again after every error, and whenever
        `get_machine_status` raises `Uninitialized`. Repeating it is harmless.

        Raises:
            NotOwned: the VM of the provider ID is not this machine's.
            Unimplemented: nothing of that kind is needed; counts as done.
            RetryAfter: not yet; called again then.
            CloudError: the VM will never run, if it carries a `MachineInfo` whose phase is FAILED;
                the machine has failed then, and its set replaces it.
        """

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine)
    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Remove the VM and what was made beside it; silent when nothing is there.

        With a provider ID that VM and no other, if `check_owner` accepts its marks; without one,
        all that bears this identity, which after a creation cut short may be something beside no
        VM. An answer means that all is gone. With a provider ID this is the last call. Without one,
        after a creation was started, a second call follows some seconds later, because a listing of
        the cloud may lag behind. The answer has to be about the place of the VM: a driver
        whose provider IDs say neither project nor region remembers them in `last_known_state`, and
        looks there.

        Raises:
            NotOwned: the VM of the provider ID is not this machine's; nothing was deleted.
            RetryAfter: the cloud still works on it; called again then.
            NotFound: nothing is there; counts as an answer.
        """

    @operation()
    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """What the cloud knows about the VM: by provider ID, or else by identity.

        Raises:
            NotFound: there is no such VM, on positive knowledge.
            NotOwned: the VM of the provider ID is not this machine's.
            Uninitialized: the VM is there and `initialize_machine` has to run; carries a
                `MachineInfo` with provider ID and node name.
            Unimplemented: the cloud cannot tell; counts as `NotFound` in a creation.
        """

    @operation(deadline_s=LISTING_S)
    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """All VMs of a pool, every page of them, those of other clusters included.

        Each once, with its provider ID; what is being deleted may be left out. One listing serves
        the look for a VM before a creation, the state of many, and the search for VMs without a
        machine. Whose a VM is, is decided by the caller from its identity: only VMs that carry the
        request's marker, or whose provider ID stands in a machine, are ever touched.
        """

    @operation()
    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """Names by which nodes know volumes, where they are this cloud's; others are left out.

        Raises:
            Unimplemented: a drain does not wait for volumes to be detached.
        """

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:
        """Fill `machine_class` from a class of a provider's own kind. The daemon never calls it."""


@runtime_checkable
class SpecValidation(Protocol):
    """Optional on the same object as `MachineDriver`."""

    @operation()
    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        """What is wrong with a provider spec; nothing where it can be used.

        Called when a MachineClass or its Secret changes; what it says becomes a condition of the
        class. Without `live` no request is made.
        """


@runtime_checkable
class MachineMetrics(Protocol):
    """Optional on the same object as `MachineDriver`; no metric of the daemon has them yet."""

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Labels for metrics about machines of that spec; pure, no call. `size` is among them.

        A spec that cannot be read has an empty `size`; it is never an error.
        """


class Driver(Generic[S]):
    """Base of a driver: what is optional answers `Unimplemented`.

    Args:
        spi: the session with the cloud, injected so that tests can hand in their own.

    Attributes:
        csi_driver: the name of the CSI driver of this cloud's volumes; empty: it has none.
        finds_by_name: whether VMs carry no marks, so that only the machine's name finds them.
            The controller then calls `get_machine_status` before each creation, and records the
            creation only after the name was free.
        provider_names: values of `MachineClass.provider` for which this driver creates VMs, in
            upper or lower case. Empty = the name of the provider, `Cloud.name`. A class with
            another value gets no VMs; a class without a value belongs to every driver. Deletions
            do not depend on the value.
    """

    csi_driver = ""
    finds_by_name: ClassVar[bool] = False
    provider_names: Collection[str] = ()

    def __init__(self, spi: S) -> None:
        self.spi = spi

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:  # noqa: ARG002
        """See `MachineDriver.initialize_machine`."""
        raise Unimplemented("this driver has nothing to initialise")

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """See `MachineDriver.get_volume_ids`; the handles of `csi_driver`."""
        if not self.csi_driver:
            raise Unimplemented("this driver does not know volumes")
        found = [spec.get("csi") or {} for spec in req.pv_specs]
        return [str(one["volumeHandle"]) for one in found if one.get("driver") == self.csi_driver]

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:  # noqa: ARG002
        """See `MachineDriver.generate_machine_class_for_migration`."""
        raise Unimplemented("this driver has no classes to migrate from")


def known(error: CloudError) -> MachineInfo:
    """What an error of a driver carries, whichever answer it was made of; empty where nothing."""
    match error.partial:
        case MachineInfo() as info:
            return info
        case DeleteMachineResponse(last_known_state=state):
            return MachineInfo(last_known_state=state)
        case _:
            return MachineInfo()


def found(records: Iterable[MachineRecord], identity: Identity) -> MachineRecord | None:
    """The VM of an identity in a listing; None where there is none.

    Cluster and UID decide. The name and the pool do not: names come again. The namespace does not:
    older VMs have no mark of it.
    """
    for record in records:
        if (record.identity.cluster, record.identity.uid) == (identity.cluster, identity.uid):
            return record
    return None


def is_owner(who: Identity, marks: Identity) -> bool:
    """Return whether a VM with these marks belongs to a machine.

    Cluster and UID decide. A Machine that was restored has another UID than its VM says; the VM is
    its own if cluster, namespace, pool and name agree, as no two Machines of a namespace share a
    name.
    """
    if not who.cluster or who.cluster != marks.cluster or not marks.uid:
        return bool(who.cluster) and who == marks
    restored = bool(marks.namespace) and replace(marks, uid=who.uid) == who
    return marks.uid == who.uid or restored


def check_owner(req: MachineRequest, marks: Identity) -> Identity:
    """Check that the VM of `req.provider_id` belongs to the request's machine.

    Args:
        req: the request.
        marks: the VM's, as a listing returns them: where no mark says a name, the name of the VM.

    Returns:
        The identity that what was created beside the VM bears.

    Raises:
        NotOwned: the VM is another machine's, or has no marks. The daemon neither drains nor
            deletes then, and says so in the Machine's status.
    """
    who = req.identity
    is_unmarked = not (marks.cluster or marks.uid)
    adopted = req.adopts_unmarked and is_unmarked and marks.name == who.name
    if not (adopted or req.is_imported or is_owner(who, marks)):
        owner = "has no marks of a machine"
        if not is_unmarked:
            owner = f"belongs to machine {marks.name} ({marks.uid}) of cluster {marks.cluster}"
        raise NotOwned(
            f"VM {req.provider_id} {owner}, and is left alone; {CORRECT_OWNER.format(who.pool)}"
        )
    return marks if marks.uid else who


MOST_DEPTH = 32
"""Levels of lists and mappings in a field; no cloud has more, and recursion has its limit."""


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is stated: null is the same as nothing."""
    return {name: value for name, value in given.items() if value is not None}


def converted(
    given: Mapping[str, Any], declared: type[msgspec.Struct], *, knows_all: bool = True
) -> tuple[dict[str, Any], list[Problem]]:
    """The values of the right type by the names that a spec has for them, and what is wrong.

    Args:
        given: the spec.
        declared: a Struct with the fields of one.
        knows_all: whether a field that it does not declare is a fault.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(declared)}
    stated = without_nulls(given)
    found = [
        Problem(field=name, message=f"no such field; there are {', '.join(known)}")
        for name in stated
        if knows_all and name not in known
    ]
    values: dict[str, Any] = {}
    for name in known.keys() & stated.keys():
        if message := _beyond_json(stated[name], MOST_DEPTH):
            found.append(Problem(field=name, message=message))
            continue
        try:
            values[name] = msgspec.convert(stated[name], known[name].type)
        except msgspec.ValidationError as error:
            found.append(Problem(field=name, message=str(error)))
    return values, found


def _beyond_json(value: Any, levels: int) -> str:
    """Return why a value can be neither sent nor shown; empty for one that can."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "must hold no number of more than 64 bits"
    if not isinstance(value, Mapping | list | tuple):
        return ""
    if not levels:
        return f"must have at most {MOST_DEPTH} levels of lists and mappings"
    inner = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_beyond_json(one, levels - 1) for one in inner)), "")

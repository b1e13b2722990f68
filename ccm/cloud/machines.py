"""The machine driver interface: VMs of a cloud as Machine objects of the cluster.

Methods and names follow Gardener's driver interface. Requests contain no Machine objects of any
API, so one driver serves every kind of Machine object.

Rules in addition to those of `ccm.cloud.interface`:

* A call is one short step and never waits. If the cloud needs time, start the operation and
  raise `RetryAfter(seconds)`; the daemon repeats the call after that delay.
* Every VM and every resource created with it carries the complete `Identity` in its labels, tags
  or metadata: its *marks*. Look up a VM by cluster and UID, not by UID alone: a copy of a
  cluster has the same UIDs. Never adopt, change or delete a VM that has the machine's name but
  another identity or none; raise `AlreadyExists` for it.
* A provider ID is no proof of ownership: users who may edit Machines can set it to the ID of any
  server in the project. Before describing, changing or deleting a VM by provider ID, the driver
  reads the VM's marks and calls `check_owner`.
* Each request carries credentials, which may differ between requests. A driver opens without
  credentials, and keeps one client for each `Credentials.digest`.
* An invalid provider spec stops creation and initialisation, never a lookup or a deletion: VMs
  created with an older spec must still be found and removed.
* After an error of `create_machine`, whatever its class, the VM may exist. The controller
  records a creation on the Machine before it calls `create_machine`. To delete a Machine with a
  recorded creation, the controller always calls `delete_machine`.
* An error can carry a partial result: `raise Uninitialized("…").carrying(info)`.
  If the error is not `Uninitialized`, the controller stores only `last_known_state` of the result,
  before the next call.

`ccm.cloud.sessions` manages one client per set of credentials. `ccm.cloud.gardener` adapts a driver
with Gardener's method signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from ccm.base.credentials import check_header_value
from ccm.cloud.errors import CloudError, InvalidArgument, NotOwned, Unimplemented
from ccm.cloud.operation import LISTING_S, operation
from ccm.model import NodeAddress, ObjectReference

CHANGE_S = 300.0
"""Deadline in seconds of a call that creates or deletes a VM. Such a call sends a few requests and
does not wait for the boot."""

IMPORT_ANNOTATION = "kube-ccm/import-vms"
"""Annotation of a MachineClass: comma-separated provider IDs of VMs that its Machines may own, even
if the labels or tags of the VMs name another owner or none."""

CORRECT_OWNER = (
    "correct spec.providerID, or, if the Machine has a MachineClass, list the VM in the class's "
    f"annotation {IMPORT_ANNOTATION}"
)
"""Advice in the message of `NotOwned`."""

SPEC_USER_DATA = "userData"
"""Field of a provider spec that may contain user data; placeholders in it are replaced, as in the
user data of the Secret."""

S = TypeVar("S")


class Credentials(Mapping[str, bytes]):
    """Resolved secret data of a request; `repr` shows its keys and never its values.

    Two objects with equal data are equal and have the same `digest`.
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
        """Short hash of the data: 32 hexadecimal digits."""
        sha = sha256()
        for key, value in sorted(self._data.items()):
            # With lengths: otherwise `ab`, `c` and `a`, `bc` would have the same hash.
            sha.update(b"%d:%b%d:%b" % (len(key.encode()), key.encode(), len(value), value))
        return sha.hexdigest()[:32]


def token_of(credentials: Mapping[str, bytes], key: str) -> str:
    """Return a credential for use in an HTTP header; empty if the key is absent.

    Surrounding white space is removed: a Secret is often created from a file that ends with a
    line break.

    Raises:
        InvalidArgument: the value is invalid in a header; the message names its key and size.
    """
    try:
        return check_header_value(credentials.get(key, b"").decode(errors="replace").strip())
    except ValueError as error:
        raise InvalidArgument(f"{key} of the credentials {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Owner of a VM. Drivers write all five fields into the VM's labels, tags or metadata.

    Attributes:
        cluster: identifier of the cluster, the same for all its machines.
        namespace: namespace of the machine object; at most 63 letters a-z, digits and `-`. Empty
            in a listing for a VM that was created before drivers wrote the namespace.
        pool: name of the MachineClass.
        name: name of the machine and of the VM, unique in its cluster at any time.
        uid: UID of the machine, never reused.
    """

    cluster: str
    pool: str
    name: str
    uid: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Keys of the labels, tags or metadata that store the fields of an `Identity` on a VM."""

    cluster: str
    namespace: str
    pool: str
    name: str
    uid: str

    def to_labels(self, owner: Identity) -> dict[str, str]:
        """Return an identity as labels."""
        return {
            getattr(self, field_name): getattr(owner, field_name) for field_name in self.__slots__
        }

    def to_identity(self, labels: Mapping[str, Any] | None, vm_name: str) -> Identity:
        """Return the identity in a VM's labels.

        If the labels contain no name, the name is `vm_name`; other absent fields are empty.
        """
        values = {
            field_name: (labels or {}).get(getattr(self, field_name))
            for field_name in self.__slots__
        }
        texts = {
            field_name: text if isinstance(text, str) else "" for field_name, text in values.items()
        }
        return Identity(**{**texts, "name": texts["name"] or vm_name})

    def selector(self, owner: Identity) -> Mapping[str, str]:
        """Return the labels by which the resources of an identity are found."""
        return {self.cluster: owner.cluster, self.uid: owner.uid}

    def match(self, labels: Mapping[str, Any] | None, owner: Identity) -> bool:
        """Return whether a VM's labels have the cluster and the UID of `owner`, both not empty."""
        identity = self.to_identity(labels, "")
        is_marked = bool(identity.cluster and identity.uid)
        return is_marked and (identity.cluster, identity.uid) == (owner.cluster, owner.uid)


class Phase(Enum):
    """State of a VM as reported by the cloud."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    DELETING = "deleting"
    FAILED = "failed"
    """Permanently failed in the cloud; it will not recover by itself."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """Request about one machine.

    Attributes:
        identity: owner of the VM.
        provider_spec: desired properties of the VM, in the driver's own schema; read-only.
        credentials: credentials for the cloud.
        user_data: boot data with placeholders already replaced; empty except in `create_machine`.
        provider_id: provider ID of the VM; empty until it is stored with the machine.
        last_known_state: the driver's last `MachineInfo.last_known_state`.
        creation_started: whether the Machine records that the creation of its VM was started. Only
            then may a driver that finds VMs by name treat a VM with the machine's name as the
            machine's VM. Drivers that store an `Identity` on their VMs ignore this field.
        is_imported: whether the MachineClass lists `provider_id` among the VMs to import, so that
            `check_owner` accepts any owner in the VM's labels or tags.
        adopts_unmarked: whether `check_owner` accepts a VM with the machine's name and no owner in
            its labels or tags.
        kubelet_version: version of the kubelet in the Machine; empty = not stated.
        owner: reference to the machine object, for the journal; None = the VM has no machine
            object.
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
    kubelet_version: str = ""
    owner: ObjectReference | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """The cloud's data about one VM.

    Attributes:
        provider_id: the `spec.providerID` of the VM's node; never empty in the result of
            `create_machine`.
        node_name: name under which the VM's kubelet registers.
        addresses: node addresses, in order.
        phase: state of the VM.
        message: reason of the phase, such as the cloud's error message for a failed VM.
        last_known_state: driver state, stored with the machine and passed to the next request;
            None = unchanged.
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
        identity: identity in the VM's labels or tags; an absent field is empty.
        info: the result that `get_machine_status` would return.
        initialized: False where `get_machine_status` would raise `Uninitialized`.
        created: creation time of the VM; None if the cloud does not report it.
    """

    identity: Identity
    info: MachineInfo
    initialized: bool = True
    created: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachinesRequest:
    """Request for all VMs of a pool, whichever cluster their labels or tags name."""

    cluster: str
    pool: str
    provider_spec: Mapping[str, Any]
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMachineResponse:
    """Confirmation that the VM is gone, with all resources created with it.

    Attributes:
        last_known_state: driver state, stored with the machine; None = unchanged.
    """

    last_known_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVolumeIDsRequest:
    """Request for volume IDs: specs of PersistentVolumes as returned by the API server."""

    pv_specs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequest:
    """Request to convert a provider-specific class into `machine_class`."""

    provider_specific_machine_class: Mapping[str, Any]
    machine_class: dict[str, Any]
    class_spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Error in a provider spec.

    Attributes:
        field: path of the field, such as `spec.networking.networkId`.
        message: the invalid value and the valid values.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def _machine_subject(req: MachineRequest) -> str:
    # The request to delete an orphaned VM has a provider ID but no UID.
    return req.identity.uid or req.provider_id or req.identity.name


class MachineDriver(Protocol):
    """Creation, deletion and lookup of VMs. Calls about one machine never overlap."""

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine_subject)
    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """Create the VM, or return the VM that an earlier call created.

        Called for a machine without provider ID, after a lookup by identity found no VM. It must be
        idempotent: repeated calls result in one VM. A result means that the VM exists, not that it
        runs. After an error the machine has no provider ID; the error is shown in the machine's
        status, and the call is retried according to the error's class.

        Raises:
            AlreadyExists: a VM of this name belongs to another owner; no VM was created.
            InvalidArgument: the cloud cannot fulfil the provider spec.
            ResourceExhausted: quota or capacity is exhausted.
            RetryAfter: the creation is in progress; the call is repeated after the delay.
        """

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine_subject)
    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """Set the properties that need an existing VM, such as network settings and volumes.

        Called once after the provider ID was stored, again after every error, and whenever
        `get_machine_status` raises `Uninitialized`. It must be idempotent.

        Raises:
            NotOwned: the VM of the provider ID does not belong to this machine.
            Unimplemented: no initialisation is needed; counts as success.
            RetryAfter: the operation is in progress; the call is repeated after the delay.
            CloudError: if it carries a `MachineInfo` with phase FAILED, the VM will never run; the
                machine is marked failed, and its MachineSet replaces it.
        """

    @operation(deadline_s=CHANGE_S, change=True, subject=_machine_subject)
    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Delete the VM and all resources created with it; succeed if nothing exists.

        With a provider ID, delete only that VM, and only if `check_owner` accepts its labels or
        tags. Without a provider ID, delete every resource with this identity; an interrupted
        creation may have left resources without a VM. Return only when all resources are gone.

        With a provider ID, the controller does not repeat a successful call. Without a provider ID,
        if a creation was started, it repeats the call some seconds later, because a cloud listing
        may be stale. Search in the project and region of the VM; if the provider ID lacks one of
        them, store it in `last_known_state`.

        Raises:
            NotOwned: the VM of the provider ID does not belong to this machine; nothing was
                deleted.
            RetryAfter: the deletion is in progress; the call is repeated after the delay.
            NotFound: no resource exists; counts as success.
        """

    @operation()
    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """Return the cloud's data about the VM, looked up by provider ID or else by identity.

        Raises:
            NotFound: the cloud confirms that there is no such VM.
            NotOwned: the VM of the provider ID does not belong to this machine.
            Uninitialized: the VM exists and `initialize_machine` must run; carries a
                `MachineInfo` with provider ID and node name.
            Unimplemented: the cloud has no such lookup; counts as `NotFound` in a creation.
        """

    @operation(deadline_s=LISTING_S)
    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """Return all VMs of a pool, from all pages, whichever cluster their labels or tags name.

        Return each VM once, with its provider ID; VMs being deleted may be omitted. The daemon uses
        one listing for the lookup before a creation, for the states of many VMs, and for the search
        for orphaned VMs. The caller decides ownership: it changes only VMs whose identity has the
        request's cluster, or whose provider ID is stored in a machine.
        """

    @operation()
    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """Return the IDs under which nodes report this cloud's volumes; omit other volumes.

        Raises:
            Unimplemented: volume IDs are unknown; a drain then does not wait for detachments.
        """

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:
        """Fill `machine_class` from a class of a provider's own kind. The daemon never calls it."""


@runtime_checkable
class SpecValidation(Protocol):
    """Optional interface of the `MachineDriver` object: validation of provider specs."""

    @operation()
    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        """Return the errors in a provider spec; none for a valid one.

        Called when a MachineClass or its Secret changes; the result becomes a condition of the
        class. For Kubermatic's machines, called before a creation; if there are errors, no VM is
        created. Without `live`, make no cloud requests.
        """


@runtime_checkable
class CreationCheck(Protocol):
    """Optional interface of the `MachineDriver` object: the check that precedes a creation."""

    @operation()
    async def check_creation(self, req: MachineRequest) -> None:
        """Check a request as `create_machine` does before it creates a VM; change nothing.

        `kube-ccm plan` calls it in place of `create_machine`.

        Raises:
            CloudError: `create_machine` would raise this error, and create nothing.
        """


def _request_subject(req: MachineRequest, **_: object) -> str:
    return _machine_subject(req)


@runtime_checkable
class UIDMigration(Protocol):
    """Optional interface of the `MachineDriver` object: new UIDs in the labels or tags of VMs."""

    @operation(deadline_s=CHANGE_S, change=True, subject=_request_subject)
    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """Replace a former UID in the labels or tags of the machine's VM; keep all other labels.

        Called for a machine whose annotation names the former UID: the machine was restored
        from a backup, or converted. Succeeds if there is no VM with the former UID.

        Args:
            req: request about the machine, with its new UID.
            former: the former UID.

        Raises:
            NotOwned: the VM belongs to another machine.
        """


@runtime_checkable
class MachineMetrics(Protocol):
    """Optional interface of the `MachineDriver` object: metric labels of Kubermatic's Machines."""

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the metric labels of machines with this spec, including `size`; no I/O.

        Never raise an error: for an unreadable spec, `size` is empty.
        """


@runtime_checkable
class MachineMetricsUpdate(Protocol):
    """Optional interface of the `MachineDriver` object: metrics of the provider."""

    @operation()
    async def set_metrics_for_machines(self, requests: Sequence[MachineRequest]) -> None:
        """Update metrics of the provider.

        Called every ten minutes for Kubermatic's Machines.

        Args:
            requests: one request about each machine of the provider, without user data.
        """


class Driver(Generic[S]):
    """Base class of drivers: optional methods raise `Unimplemented`.

    Args:
        spi: the session with the cloud, injected so that tests can pass their own.

    Attributes:
        csi_driver: name of the CSI driver of this cloud's volumes; empty = none.
        finds_by_name: whether VMs have no owner in labels or tags and can only be found by name.
            The controller then calls `get_machine_status` before each creation, and records the
            creation only if no VM has the name.
        lists_machines: whether the driver implements `list_machines`. Otherwise the controller
            calls `get_machine_status` for each machine, and finds no orphaned VMs.
        provider_names: values of `MachineClass.provider` for which this driver creates VMs,
            case-insensitive. Empty = the provider's name, `Cloud.name`. A class with
            another value gets no VMs; a class without a value belongs to every driver. Deletions
            do not depend on the value.
    """

    csi_driver = ""
    finds_by_name: bool = False
    lists_machines: bool = True
    provider_names: Collection[str] = ()

    def __init__(self, spi: S) -> None:
        self.spi = spi

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:  # noqa: ARG002
        """See `MachineDriver.initialize_machine`."""
        raise Unimplemented("this driver does not implement initialize_machine")

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """See `MachineDriver.get_volume_ids`; returns the volume handles of `csi_driver`."""
        if not self.csi_driver:
            raise Unimplemented("this driver does not support volume IDs")
        csi_sources = [spec.get("csi") or {} for spec in req.pv_specs]
        return [
            str(csi["volumeHandle"]) for csi in csi_sources if csi.get("driver") == self.csi_driver
        ]

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:  # noqa: ARG002
        """See `MachineDriver.generate_machine_class_for_migration`."""
        raise Unimplemented("this driver does not support migration from other machine classes")


def partial_info(error: CloudError) -> MachineInfo:
    """Return the partial result of a driver's error; an empty `MachineInfo` if it has none."""
    match error.partial:
        case MachineInfo() as info:
            return info
        case DeleteMachineResponse(last_known_state=state):
            return MachineInfo(last_known_state=state)
        case _:
            return MachineInfo()


def find_record(records: Iterable[MachineRecord], identity: Identity) -> MachineRecord | None:
    """Return the VM of an identity in a listing; None if there is none.

    Only cluster and UID are compared: names are reused, and older VMs have no namespace label.
    """
    for record in records:
        if (record.identity.cluster, record.identity.uid) == (identity.cluster, identity.uid):
            return record
    return None


def is_owner(identity: Identity, marks: Identity) -> bool:
    """Return whether a VM belongs to a machine.

    Cluster and UID must be equal. A Machine restored from a backup has a new UID. It still owns the
    VM if cluster, namespace, pool and name are equal: names of Machines are unique in a namespace.
    If the VM has no UID, all fields must be equal. An identity without a cluster owns no VM.

    Args:
        identity: identity of the machine.
        marks: identity in the VM's labels or tags.
    """
    if not identity.cluster or identity.cluster != marks.cluster or not marks.uid:
        return bool(identity.cluster) and identity == marks
    restored = bool(marks.namespace) and replace(marks, uid=identity.uid) == identity
    return marks.uid == identity.uid or restored


def check_owner(req: MachineRequest, marks: Identity) -> Identity:
    """Check that the VM of `req.provider_id` belongs to the request's machine.

    Args:
        req: the request.
        marks: identity in the VM's labels or tags; if they contain no name, the name of the VM.

    Returns:
        The identity by which to find the resources created with the VM.

    Raises:
        NotOwned: the VM belongs to another machine, or its labels and tags name no owner. The
            daemon then neither drains nor deletes the VM, and reports the error in the Machine's
            status.
    """
    identity = req.identity
    is_unmarked = not (marks.cluster or marks.uid)
    adopted = req.adopts_unmarked and is_unmarked and marks.name == identity.name
    if not (adopted or req.is_imported or is_owner(identity, marks)):
        owner = "has no labels or tags of a machine"
        if not is_unmarked:
            owner = f"belongs to machine {marks.name} ({marks.uid}) of cluster {marks.cluster}"
        raise NotOwned(f"VM {req.provider_id} {owner} and was not changed; {CORRECT_OWNER}")
    return marks if marks.uid else identity


MAX_DEPTH = 32
"""Maximum nesting of lists and mappings in a field of a spec: bounds the recursion, and no cloud
needs more levels."""


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without null values; null counts as unset."""
    return {name: value for name, value in given.items() if value is not None}


def convert_spec(
    given: Mapping[str, Any],
    declared: type[msgspec.Struct],
    *,
    reject_unknown: bool = True,
    dec_hook: Callable[[type, object], object] | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """Convert the fields of a spec; return the values by the spec's field names, and the errors.

    Args:
        given: the spec.
        declared: a Struct that declares the fields.
        reject_unknown: whether an undeclared field is an error.
        dec_hook: decodes values of types that msgspec does not know.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(declared)}
    stated = without_nulls(given)
    problems = [
        Problem(field=name, message=f"unknown field; known are {', '.join(known)}")
        for name in stated
        if reject_unknown and name not in known
    ]
    values: dict[str, Any] = {}
    for name in known.keys() & stated.keys():
        if message := _json_error(stated[name], MAX_DEPTH):
            problems.append(Problem(field=name, message=message))
            continue
        try:
            values[name] = msgspec.convert(stated[name], known[name].type, dec_hook=dec_hook)
        except msgspec.ValidationError as error:
            problems.append(Problem(field=name, message=str(error)))
    return values, problems


def _json_error(value: Any, levels: int) -> str:
    """Return why a value cannot be encoded as JSON; empty if it can."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "must not contain a number of more than 64 bits"
    if not isinstance(value, Mapping | list | tuple):
        return ""
    if not levels:
        return f"must have at most {MAX_DEPTH} levels of lists and mappings"
    inner = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_json_error(item, levels - 1) for item in inner)), "")

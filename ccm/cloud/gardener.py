"""Adapter for machine drivers with the method signatures of Gardener's driver interface.

`from_gardener(driver)` turns an object with Gardener's methods, in snake case, into a
`MachineDriver`:

* Each method takes a `GardenerRequest` with `machine`, `machine_class` and `secret`, and returns an
  object or a mapping with `provider_id`, `node_name`, `last_known_state` and `addresses`.
* `get_volume_ids` takes a `GardenerVolumeRequest`.
* `list_machines` returns a mapping from provider ID to machine name.
* A missing method raises `Unimplemented`.
* A synchronous method runs in a thread (`ccm.cloud.blocking`).
* The class of an error follows from its `code` (number or name), or from Gardener's error text.
  Any other error is normalized (`ccm.cloud.errors.normalize`).

Ownership: such a driver finds VMs by name, without labels or tags that name the owner. A VM with
the Machine's name counts as its VM only while the Machine records that the creation of its VM has
started (`creation_started`). The controller calls `get_machine_status` first, and records the
creation only if no VM has the name. Without a recorded creation, a lookup by name raises `NotFound`
and a deletion by name does nothing. While a creation is recorded, a VM that another cluster creates
under that name would be adopted. So give each cluster its own cloud project.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.cloud import errors
from ccm.cloud.blocking import invoke
from ccm.cloud.machines import (
    Credentials,
    DeleteMachineResponse,
    Driver,
    GetVolumeIDsRequest,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    MigrationRequest,
    Phase,
)
from ccm.model import NodeAddress

USER_DATA = "userData"
"""Key of the user data in the Secret that a driver with Gardener's signatures receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMetadata:
    """Metadata of a machine or a machine class."""

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineSpec:
    """Spec of a machine."""

    provider_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineStatus:
    """Status of a machine."""

    last_known_state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachine:
    """Machine of a request."""

    metadata: GardenerMetadata
    spec: GardenerMachineSpec = GardenerMachineSpec()
    status: GardenerMachineStatus = GardenerMachineStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineClass:
    """Machine class of a request."""

    metadata: GardenerMetadata
    provider_spec: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerSecret:
    """Secret of a request; includes the user data with placeholders already filled in."""

    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerRequest:
    """Argument of most methods of the adapted driver; `machine` is None in `list_machines`."""

    machine_class: GardenerMachineClass
    secret: GardenerSecret
    machine: GardenerMachine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerVolumeRequest:
    """Argument of the adapted driver's `get_volume_ids`."""

    pv_specs: Sequence[Mapping[str, Any]]


def from_gardener(driver: Any, *, provider_names: Collection[str] = ()) -> FromGardener:
    """Adapt a driver with Gardener's method signatures.

    Args:
        driver: object with Gardener's methods and its own session with the cloud, like the result
            of Gardener's `NewProvider(spi)`.
        provider_names: see `Driver.provider_names`.
    """
    return FromGardener(driver, provider_names=provider_names)


class FromGardener(Driver[Any]):
    """`MachineDriver` that delegates to a driver with Gardener's method signatures.

    The docstring of the module describes the ownership of VMs.
    """

    finds_by_name = True

    def __init__(self, spi: Any, *, provider_names: Collection[str] = ()) -> None:
        super().__init__(spi)
        self.provider_names = provider_names

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """Create the VM. Raises FailedPrecondition if the creation is not recorded."""
        if not req.creation_started:
            raise errors.FailedPrecondition(
                f"the creation of {req.identity.name} is not recorded, so a VM of that name may "
                "belong to another Machine; call get_machine_status, then record the creation"
            )
        return _to_machine_info(await self._call_for_machine("create_machine", req))

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """Call the driver's method."""
        return _to_machine_info(await self._call_for_machine("initialize_machine", req))

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """Return the VM of the provider ID, or of the name if a creation is recorded.

        Raises:
            NotFound: the Machine has neither a provider ID nor a recorded creation, or there is no
                such VM.
        """
        if not req.provider_id and not req.creation_started:
            raise errors.NotFound(f"no creation of a VM for {req.identity.name} is recorded")
        return _to_machine_info(await self._call_for_machine("get_machine_status", req))

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Delete by provider ID, or by name if a creation is recorded; else do nothing."""
        if not req.provider_id and not req.creation_started:
            return DeleteMachineResponse()
        answer = await self._call_for_machine("delete_machine", req)
        return DeleteMachineResponse(last_known_state=_state(answer))

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """List provider IDs and names; the identities have only name and pool."""
        request = GardenerRequest(
            machine_class=_class(req.pool, req.provider_spec), secret=_secret(req.credentials)
        )
        answer = await self._call("list_machines", request)
        listing = _field(answer, "machine_list", answer)
        if not isinstance(listing, Mapping):
            raise errors.Internal(f"list_machines returned {type(listing).__name__}, not a mapping")
        return [
            MachineRecord(
                identity=Identity(cluster="", pool=req.pool, name=str(name), uid=""),
                info=MachineInfo(provider_id=str(provider_id)),
            )
            for provider_id, name in listing.items()
        ]

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """Call the driver's method."""
        answer = await self._call("get_volume_ids", GardenerVolumeRequest(pv_specs=req.pv_specs))
        return [str(volume_id) for volume_id in _field(answer, "volume_ids", answer) or ()]

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:
        """Call the driver's method."""
        await self._call("generate_machine_class_for_migration", req)

    async def _call_for_machine(self, method: str, req: MachineRequest) -> Any:
        machine = GardenerMachine(
            metadata=GardenerMetadata(name=req.identity.name, uid=req.identity.uid),
            spec=GardenerMachineSpec(provider_id=req.provider_id),
            status=GardenerMachineStatus(last_known_state=req.last_known_state),
        )
        request = GardenerRequest(
            machine=machine,
            machine_class=_class(req.identity.pool, req.provider_spec),
            secret=_secret(req.credentials, req.user_data),
        )
        return await self._call(method, request)

    async def _call(self, method: str, request: object) -> Any:
        function = getattr(self.spi, method, None)
        if function is None:
            raise errors.Unimplemented(f"this driver does not implement {method}")
        try:
            return await invoke(function, request)
        except errors.CloudError:
            raise
        except Exception as error:
            raise _to_cloud_error(error) from error


def _to_cloud_error(error: Exception) -> errors.CloudError:
    """Convert a driver's exception to a `CloudError`, with the partial result it carries."""
    message = str(error)
    parsed = errors.parse_error(message)
    kind = errors.class_of(getattr(error, "code", None))
    if kind is not None:
        cloud_error = kind(str(parsed) if parsed else message)
    else:
        cloud_error = parsed or errors.normalize(error)
    carried = getattr(error, "response", None)
    info = _to_machine_info(error if carried is None else carried)
    return cloud_error if info == MachineInfo() else cloud_error.carrying(info)


def _class(pool: str, spec: Mapping[str, Any]) -> GardenerMachineClass:
    return GardenerMachineClass(metadata=GardenerMetadata(name=pool), provider_spec=spec)


def _secret(credentials: Credentials, user_data: bytes = b"") -> GardenerSecret:
    data = dict(credentials)
    return GardenerSecret(data=data | {USER_DATA: user_data} if user_data else data)


def _to_machine_info(answer: Any) -> MachineInfo:
    return MachineInfo(
        provider_id=str(_field(answer, "provider_id") or ""),
        node_name=str(_field(answer, "node_name") or ""),
        addresses=tuple(_to_address(address) for address in _field(answer, "addresses") or ()),
        phase=Phase.UNKNOWN,
        last_known_state=_state(answer),
    )


def _state(answer: Any) -> str | None:
    state = _field(answer, "last_known_state")
    return None if state is None else str(state)


def _to_address(value: Any) -> NodeAddress:
    if isinstance(value, NodeAddress):
        return value
    return NodeAddress(type=str(_field(value, "type")), address=str(_field(value, "address")))


def _field(answer: Any, name: str, default: Any = None) -> Any:
    """Return a field of an object or a mapping."""
    if isinstance(answer, Mapping):
        return answer.get(name, default)
    return getattr(answer, name, default)

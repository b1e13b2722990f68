"""Machine drivers that were written to the shape of Gardener's, as they are.

`from_gardener(driver)` makes a `MachineDriver` of an object with the origin's methods in snake
case: each takes a `GardenerRequest`, with `machine`, `machine_class` and `secret`, and answers an
object or a mapping with `provider_id`, `node_name`, `last_known_state` and `addresses`;
`get_volume_ids` takes a `GardenerVolumeRequest`; `list_machines` answers a map from provider ID to
machine name. What is missing is `Unimplemented`.
A method that is no coroutine function runs in a thread (`ccm.cloud.blocking`). Errors are
understood by a `code`, number or name, or by the origin's text; any other is `Internal`.

Ownership. Such a driver finds VMs by name and keeps no marks. A VM of the machine's name is taken
for the machine's only while the Machine records a started creation (`creation_started`): the
controller calls `get_machine_status` first, and records the creation only when no VM has the name.
Without the record, a question by name answers `NotFound` and a deletion by name does nothing. While
a creation is recorded, a VM that another cluster creates under the same name would be taken for the
machine's: give each cluster its own project.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.cloud import errors
from ccm.cloud.blocking import blocking
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
"""Key of the secret under which such drivers find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMetadata:
    """Of a machine or a class."""

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineSpec:
    """Of a machine."""

    provider_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineStatus:
    """Of a machine."""

    last_known_state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachine:
    """What a request says of the machine."""

    metadata: GardenerMetadata
    spec: GardenerMachineSpec = GardenerMachineSpec()
    status: GardenerMachineStatus = GardenerMachineStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerMachineClass:
    """What a request says of the class."""

    metadata: GardenerMetadata
    provider_spec: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerSecret:
    """What a request says of the secret; user data is among it, ready to use."""

    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerRequest:
    """What such a driver is handed; a listing has no machine."""

    machine_class: GardenerMachineClass
    secret: GardenerSecret
    machine: GardenerMachine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GardenerVolumeRequest:
    """What such a driver is handed to name volumes."""

    pv_specs: Sequence[Mapping[str, Any]]


def from_gardener(driver: Any, *, provider_names: Collection[str] = ()) -> FromGardener:
    """A machine driver, of one that was written to the origin's shape.

    Args:
        driver: with the origin's methods, its session in it (the origin's `NewProvider(spi)`).
        provider_names: see `Driver.provider_names`.
    """
    return FromGardener(driver, provider_names=provider_names)


class FromGardener(Driver[Any]):
    """`MachineDriver`, around an object of the origin's shape; see the head of the module."""

    finds_by_name = True

    def __init__(self, spi: Any, *, provider_names: Collection[str] = ()) -> None:
        super().__init__(spi)
        self.provider_names = provider_names

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """Create by name. Raises FailedPrecondition where the creation is not recorded."""
        if not req.creation_started:
            raise errors.FailedPrecondition(
                f"the creation of {req.identity.name} is not recorded: a VM of that name may be "
                "another's; ask for its status first, then record the creation"
            )
        return _info(await self._ask("create_machine", req))

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """The driver's own."""
        return _info(await self._ask("initialize_machine", req))

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """Return the VM with the provider ID, or with the name once the creation was started."""
        if not req.provider_id and not req.creation_started:
            raise errors.NotFound(f"no VM of {req.identity.name} was ordered yet")
        return _info(await self._ask("get_machine_status", req))

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Delete by provider ID, or by name once the creation was started."""
        if not req.provider_id and not req.creation_started:
            return DeleteMachineResponse()
        answer = await self._ask("delete_machine", req)
        return DeleteMachineResponse(last_known_state=_state(answer))

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """Provider IDs and names, marked with the pool alone."""
        asked = GardenerRequest(
            machine_class=_class(req.pool, req.provider_spec), secret=_secret(req.credentials)
        )
        answer = await self._call("list_machines", asked)
        found = _field(answer, "machine_list", answer)
        if not isinstance(found, Mapping):
            raise errors.Internal(f"list_machines answered {type(found).__name__}, no mapping")
        return [
            MachineRecord(
                identity=Identity(cluster="", pool=req.pool, name=str(name), uid=""),
                info=MachineInfo(provider_id=str(provider_id)),
            )
            for provider_id, name in found.items()
        ]

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """The driver's own."""
        answer = await self._call("get_volume_ids", GardenerVolumeRequest(pv_specs=req.pv_specs))
        return [str(one) for one in _field(answer, "volume_ids", answer) or ()]

    async def generate_machine_class_for_migration(self, req: MigrationRequest) -> None:
        """The driver's own."""
        await self._call("generate_machine_class_for_migration", req)

    async def _ask(self, method: str, req: MachineRequest) -> Any:
        machine = GardenerMachine(
            metadata=GardenerMetadata(name=req.identity.name, uid=req.identity.uid),
            spec=GardenerMachineSpec(provider_id=req.provider_id),
            status=GardenerMachineStatus(last_known_state=req.last_known_state),
        )
        asked = GardenerRequest(
            machine=machine,
            machine_class=_class(req.identity.pool, req.provider_spec),
            secret=_secret(req.credentials, req.user_data),
        )
        return await self._call(method, asked)

    async def _call(self, method: str, asked: object) -> Any:
        own = getattr(self.spi, method, None)
        if own is None:
            raise errors.Unimplemented(f"this driver has no {method}")
        try:
            return await _called(own, asked)
        except errors.CloudError:
            raise
        except Exception as error:
            raise _understood(error) from error


async def _called(own: Callable[[object], Any], asked: object) -> Any:
    if inspect.iscoroutinefunction(own):
        return await own(asked)
    answer = await blocking(own, asked)
    return await answer if isinstance(answer, Awaitable) else answer


def _understood(error: Exception) -> errors.CloudError:
    """The error of the tree for one of the driver's; what travels with it comes along."""
    said = str(error)
    read = errors.parse_error(said)
    kind = errors.kind_of(getattr(error, "code", None))
    if kind is not None:
        found = kind(str(read) if read else said)
    else:
        found = read or errors.normalized(error)
    carried = getattr(error, "response", None)
    info = _info(error if carried is None else carried)
    return found if info == MachineInfo() else found.carrying(info)


def _class(pool: str, spec: Mapping[str, Any]) -> GardenerMachineClass:
    return GardenerMachineClass(metadata=GardenerMetadata(name=pool), provider_spec=spec)


def _secret(credentials: Credentials, user_data: bytes = b"") -> GardenerSecret:
    data = dict(credentials)
    return GardenerSecret(data=data | {USER_DATA: user_data} if user_data else data)


def _info(answer: Any) -> MachineInfo:
    return MachineInfo(
        provider_id=str(_field(answer, "provider_id") or ""),
        node_name=str(_field(answer, "node_name") or ""),
        addresses=tuple(_address(one) for one in _field(answer, "addresses") or ()),
        phase=Phase.UNKNOWN,
        last_known_state=_state(answer),
    )


def _state(answer: Any) -> str | None:
    state = _field(answer, "last_known_state")
    return None if state is None else str(state)


def _address(one: Any) -> NodeAddress:
    if isinstance(one, NodeAddress):
        return one
    return NodeAddress(type=str(_field(one, "type")), address=str(_field(one, "address")))


def _field(answer: Any, name: str, otherwise: Any = None) -> Any:
    """A field of an object or a mapping."""
    if isinstance(answer, Mapping):
        return answer.get(name, otherwise)
    return getattr(answer, name, otherwise)

"""VMs by request for the cloud in memory: the shortest machine driver.

`MemoryMachineApi` is the cloud, `MemoryMachines` translates. A VM takes two writes, one for its
disk and one for itself, so that a crash can fall in between; one that was made has to be tagged
with a role before it counts as initialised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import (
    Credentials,
    DeleteMachineResponse,
    Driver,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    Phase,
    Problem,
    check_owner,
)
from ccm.cloud.provider_id import format_provider_id, parse_provider_id
from ccm.cloud.types import address
from ccm.testing.memory import (
    SCHEME,
    MemoryApi,
    MemoryApiError,
    MemoryInstance,
    MemoryProvider,
    translated,
)

SIZES = ("small", "big")
"""What VMs there are."""

ROLE = "role"
"""The tag of a VM that was initialised."""


@dataclass(kw_only=True)
class MemoryMachineApi(MemoryApi):
    """The cloud, where VMs can be ordered.

    Attributes:
        writes: how many requests changed something.
        lost: the answer to the write of this number is lost; None = of none.
        slow: VMs stay `starting` when they are ordered, and `deleting` when they are deleted.
        disks: tags of each disk, by its name.
    """

    writes: int = 0
    lost: int | None = None
    slow: bool = False
    disks: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def heal(self) -> None:
        """End the fault."""
        self.lost = None
        super().heal()

    async def tagged(self, token: str, tags: Mapping[str, str]) -> list[MemoryInstance]:
        """All VMs with these tags, page by page. Raises MemoryApiError."""
        found: list[MemoryInstance] = []
        more = True
        while more:
            page = await self.page(token, len(found))
            found += page
            more = len(page) == self.page_size
        return [one for one in found if tags.items() <= one.labels.items()]

    async def put_disk(self, token: str, name: str, tags: Mapping[str, str]) -> None:
        """Make a disk, or leave the one that is there. Raises MemoryApiError."""
        await self.request(token)
        self.disks.setdefault(name, tags)
        self._written()

    async def drop_disk(self, token: str, name: str) -> None:
        """Delete a disk. Raises MemoryApiError."""
        await self.request(token)
        self.disks.pop(name, None)
        self._written()

    async def order(self, token: str, name: str, tags: Mapping[str, str]) -> MemoryInstance:
        """Make a VM under a name that nobody has. Raises MemoryApiError."""
        await self.request(token)
        if any(one.name == name for one in self.instances.values()):
            raise MemoryApiError(412)
        made = self.create(name)
        made.labels = tags
        made.state = "starting" if self.slow else "running"
        self._written()
        return made

    async def tag(self, token: str, instance_id: str, tags: Mapping[str, str]) -> MemoryInstance:
        """Add tags to a VM. Raises MemoryApiError."""
        found = await self.get(token, instance_id)
        found.labels = {**found.labels, **tags}
        self._written()
        return found

    async def drop(self, token: str, instance_id: str) -> None:
        """Delete a VM. Raises MemoryApiError."""
        found = await self.get(token, instance_id)
        if self.slow:
            found.state = "deleting"
        else:
            del self.instances[instance_id]
        self._written()

    def _written(self) -> None:
        self.writes += 1
        if self.writes == self.lost:
            raise MemoryApiError(503)


class MemoryMachines(Driver[MemoryMachineApi]):
    """Translates between that cloud and the daemon."""

    csi_driver = "csi.memory"

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """The disk first, then the VM."""
        check(req.provider_spec)
        token = token_of(req.credentials)
        found = await self._find(req)
        if found is not None:
            return info(found)
        tags = asdict(req.identity)
        for one in await translated(self.spi.tagged(token, {})):
            if one.name == req.identity.name:
                raise errors.AlreadyExists(f"{one.id} has the name {one.name}")
        await translated(self.spi.put_disk(token, req.identity.uid, tags))
        return info(await translated(self.spi.order(token, req.identity.name, tags)))

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """Tag it with its role."""
        token = token_of(req.credentials)
        found = await self._there(req)
        return info(await translated(self.spi.tag(token, found.id, {ROLE: "worker"})))

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """One that has no role wants one."""
        found = await self._there(req)
        if ROLE not in found.labels:
            raise errors.Uninitialized(f"{found.id} has no role").carrying(info(found))
        return info(found)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """The VM first, then the disk of whoever it was."""
        token = token_of(req.credentials)
        found, disk = await self._find(req), req.identity.uid
        if found is not None:
            await translated(self.spi.drop(token, found.id))
            if found.state == "deleting":
                raise errors.RetryAfter(f"{found.id} is being deleted", seconds=1.0)
            disk = found.labels.get("uid", "")
        await translated(self.spi.drop_disk(token, disk))
        return DeleteMachineResponse()

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """All with the pool's tag."""
        found = await translated(self.spi.tagged(token_of(req.credentials), {"pool": req.pool}))
        return [
            MachineRecord(
                identity=_identity(one),
                info=info(one),
                initialized=ROLE in one.labels,
            )
            for one in found
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        """Whether there is such a size, and the cloud may be asked."""
        try:
            check(spec)
        except errors.InvalidArgument as error:
            return [Problem(field="size", message=str(error))]
        if live:
            await translated(self.spi.page(token_of(credentials), 0))
        return []

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The size."""
        return {"size": str(spec.get("size", ""))}

    async def _there(self, req: MachineRequest) -> MemoryInstance:
        found = await self._find(req)
        if found is None:
            raise errors.NotFound(f"no VM of {req.identity.name}")
        return found

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        token = token_of(req.credentials)
        if req.provider_id:
            instance_id = parse_provider_id(req.provider_id, SCHEME)
            try:
                found = await translated(self.spi.get(token, instance_id))
            except errors.NotFound:
                return None
            check_owner(req, _identity(found))
            return found
        marks = {"cluster": req.identity.cluster, "uid": req.identity.uid}
        return next(iter(await translated(self.spi.tagged(token, marks))), None)


def _identity(vm: MemoryInstance) -> Identity:
    return Identity(**{mark: vm.labels.get(mark, "") for mark in _MARKS})


_MARKS = tuple(one.name for one in fields(Identity))


@asynccontextmanager
async def open_memory_machines(
    api: MemoryMachineApi, *, driver: type[MemoryMachines] = MemoryMachines
) -> AsyncIterator[Cloud]:
    """A provider with instances and machines."""
    yield Cloud(
        name=SCHEME, instances=MemoryProvider(api), machines=driver(api), has_cluster_id=True
    )


def token_of(credentials: Mapping[str, bytes]) -> str:
    """The token in some credentials, under its own name or the cloud's."""
    for key in ("token", SCHEME):
        if key in credentials:
            return credentials[key].decode()
    raise errors.InvalidArgument("the credentials lack token")


def check(spec: Mapping[str, Any]) -> None:
    """Refuse a spec that makes no sense. Raises InvalidArgument."""
    if spec.get("size") not in SIZES:
        raise errors.InvalidArgument(f"size {spec.get('size')!r} is none of {', '.join(SIZES)}")


def info(found: MemoryInstance) -> MachineInfo:
    """What is told about a VM."""
    return MachineInfo(
        provider_id=format_provider_id(SCHEME, found.id),
        node_name=found.name,
        addresses=(address("InternalIP", found.ip),),
        phase=Phase.RUNNING if found.state == "running" else Phase.UNKNOWN,
    )

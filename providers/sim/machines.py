"""VMs of the simulated cloud by request, over its client: the driver for MachineClasses.

Provider spec  see `Spec`
Credentials    `token`, as in the cloud config; they never say where the cloud is

A VM bears its identity as labels below `client.MARKS`, and so do its data volumes, which are made
before it. It is ordered with cluster and UID as the order's token, so that an order whose answer
was lost is the same order when it comes again.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from ccm import cloud
from ccm.cloud.machines import Marks, converted, without_nulls
from ccm.model.times import moment

from . import client, instances

MARKS = Marks(
    cluster=client.MARK_CLUSTER,
    namespace=client.MARK_NAMESPACE,
    pool=client.MARK_POOL,
    name=client.MARK_NAME,
    uid=client.MARK_UID,
)

AGAIN_S = 1.0
"""Seconds after which to ask whether the cloud has done it."""

PHASES: Mapping[str, cloud.Phase] = {
    "starting": cloud.Phase.CREATING,
    "running": cloud.Phase.RUNNING,
    "stopping": cloud.Phase.STOPPED,
    "stopped": cloud.Phase.STOPPED,
    "deleting": cloud.Phase.DELETING,
    "error": cloud.Phase.FAILED,
}

Clients = cloud.Sessions[client.Client]


def open_clients(url: str) -> Clients:
    """Clients of the cloud at an address, by credentials."""

    def opener(
        _: str, credentials: cloud.Credentials
    ) -> AbstractAsyncContextManager[client.Client]:
        return client.open_client(client.Config(url=url, token=token(credentials)))

    return cloud.Sessions(opener)


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

    `allowedAddresses` are ranges from which the VM may send besides its own addresses, such as
    those of its pods; they are set when the VM has started. `dataVolumes` are sizes in GiB of
    volumes that are made with it and go with it.
    """

    machine_type: str = "small"
    zone: str = "sim-1a"
    region: str = "sim-1"
    labels: dict[str, str] = {}
    allowed_addresses: tuple[str, ...] = ()
    data_volumes: tuple[int, ...] = ()


def read(given: Mapping[str, Any]) -> Spec:
    """A spec that holds.

    Raises:
        InvalidArgument: it does not; the message names every fault.
    """
    if problems := _problems(given):
        raise cloud.InvalidArgument("; ".join(map(str, problems)))
    return msgspec.convert(without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Everything that is wrong with a spec and its credentials."""
    found = _problems(given)
    try:
        token(credentials)
    except cloud.InvalidArgument as error:
        found.append(cloud.Problem(field="secretRef", message=str(error)))
    return found


def token(credentials: Mapping[str, bytes]) -> str:
    """Return the bearer token.

    Raises:
        InvalidArgument: there is none, or no header can carry it; its value is not told.
    """
    if not (found := cloud.token_of(credentials, "token")):
        raise cloud.InvalidArgument("the credentials lack token, as in the cloud config")
    return found


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, found = converted(given, Spec)
    for name, value in values.items():
        found += _wrong(name, value)
    return sorted(found, key=lambda one: one.field)


def _wrong(name: str, value: Any) -> list[cloud.Problem]:
    """What is wrong with a value of the right type."""
    match name:
        case "labels":
            said = f"keys below {client.MARKS} are the cluster's marks; take others"
            bad = any(key.startswith(client.MARKS) for key in value)
        case "allowedAddresses":
            said = "each must be a range like 10.244.0.0/16"
            bad = any(cloud.parse_cidr(one) is None for one in value)
        case "dataVolumes":
            said, bad = "each must be a number of GiB above 0", any(one < 1 for one in value)
        case _:
            said, bad = "must not be empty", not value
    return [cloud.Problem(field=name, message=f"{value!r}: {said}")] if bad else []


class SimMachines(cloud.Driver[Clients]):
    """`MachineDriver`, `SpecValidation` and `MachineMetrics`."""

    csi_driver = "csi.sim"

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Two requests, more for data volumes; one for a VM that an earlier call made."""
        spec, name = read(req.provider_spec), req.identity.name
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            found, _ = await api.servers(name)
            before = _before(found, req.identity)
            if before is not None:
                return _info(before)
            volumes = await _make_volumes(api, req.identity, spec.data_volumes)
            order = client.ServerOrder(
                name=name,
                type=spec.machine_type,
                zone=spec.zone,
                region=spec.region,
                labels=spec.labels | MARKS.of(req.identity),
                token=f"{req.identity.cluster}/{req.identity.uid}",
                user_data=base64.b64encode(req.user_data).decode(),
                volumes=volumes,
            )
            return _info(await api.create_server(order))

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Two requests, where the spec has allowed addresses; the VM must have started."""
        spec = read(req.provider_spec)
        if not spec.allowed_addresses:
            raise cloud.Unimplemented("the spec has no allowed addresses to set")
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            server, _ = await _find(api, req)
            if not _is_initialized(server, req.provider_spec):
                server = await api.allow_addresses(server.id, spec.allowed_addresses)
            return _info(server)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            server, _ = await _find(api, req)
        if not _is_initialized(server, req.provider_spec):
            text = f"{server.name} lacks its allowed addresses"
            raise cloud.Uninitialized(text).carrying(_info(server))
        return _info(server)

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Four requests, more for data volumes; not over before the VM is gone."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            instance_ids, who = await _to_delete(api, req)
            for instance_id in instance_ids:
                with suppress(cloud.NotFound):
                    await api.delete_server(instance_id)
                    if instances.is_there(await api.server(instance_id)):
                        text = f"{instance_id} is being deleted"
                        raise cloud.RetryAfter(text, seconds=AGAIN_S)
            # Whether there are any, a spec of today does not say. Those of another VM go with it.
            for volume in await _volumes(api, who):
                if not volume.instance:
                    with suppress(cloud.NotFound):
                        await api.delete_volume(volume.id)
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """One request for each page of 500."""
        async with self.spi.of(req.credentials, pool=req.pool) as api:
            found, _ = await api.servers(label=(client.MARK_POOL, req.pool))
        return [
            cloud.MachineRecord(
                identity=MARKS.identity(one.labels, one.name),
                info=_info(one),
                initialized=_is_initialized(one, req.provider_spec),
                created=moment(one.created),
            )
            for one in found
            if instances.is_there(one)
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """One request if it is to be live, whether the credentials open the cloud."""
        found = list(problems(spec, credentials))
        if live and not found:
            try:
                async with self.spi.of(credentials) as api:
                    await api.servers("none-is-named-so")
            except (cloud.Unauthenticated, cloud.PermissionDenied) as error:
                found.append(cloud.Problem(field="secretRef", message=str(error)))
        return found

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Type and place."""
        try:
            found = read(spec)
        except cloud.InvalidArgument:
            return {"size": "", "zone": "", "region": ""}
        return {"size": found.machine_type, "zone": found.zone, "region": found.region}


async def _find(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[client.Server, cloud.Identity]:
    """Return the VM of a request, by provider ID or marks, and the identity of its volumes.

    Raises:
        NotFound: there is no such VM.
        NotOwned: that of the provider ID is not the machine's.
    """
    if req.provider_id:
        server = await api.server(instances.parse_id(req.provider_id))
        if instances.is_there(server):
            return server, cloud.check_owner(req, MARKS.identity(server.labels, server.name))
    else:
        for server in await _marked(api, req.identity):
            return server, req.identity
    raise cloud.NotFound(f"no VM of machine {req.identity.name}")


async def _to_delete(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[Sequence[str], cloud.Identity]:
    """Return the IDs of the VMs, and the identity of their volumes."""
    if not req.provider_id:
        return [server.id for server in await _marked(api, req.identity)], req.identity
    try:
        server, who = await _find(api, req)
    except cloud.NotFound:
        return [], req.identity
    return [server.id], who


async def _make_volumes(
    api: client.Client, identity: cloud.Identity, sizes: Sequence[int]
) -> Sequence[str]:
    """IDs of the data volumes, of which an earlier call may have made some."""
    if not sizes:
        return []
    there = {one.labels.get(client.MARK_VOLUME): one for one in await _volumes(api, identity)}
    found = []
    for number, size in enumerate(sizes):
        volume = there.get(str(number))
        if volume is None:
            order = client.VolumeOrder(
                name=f"{identity.name}-{number}",
                size_gib=size,
                labels=MARKS.of(identity) | {client.MARK_VOLUME: str(number)},
            )
            volume = await api.create_volume(order)
        found.append(volume.id)
    return found


async def _volumes(api: client.Client, identity: cloud.Identity) -> Sequence[client.Volume]:
    """The data volumes that bear an identity."""
    if not identity.uid:
        return []
    found = await api.volumes((client.MARK_UID, identity.uid))
    return [one for one in found if MARKS.bear(one.labels, identity)]


async def _marked(api: client.Client, identity: cloud.Identity) -> Sequence[client.Server]:
    """The VMs that bear an identity."""
    found, _ = await api.servers(label=(client.MARK_UID, identity.uid))
    return [one for one in found if instances.is_there(one) and MARKS.bear(one.labels, identity)]


def _before(found: Sequence[client.Server], identity: cloud.Identity) -> client.Server | None:
    """The VM of an identity among those of its name.

    Raises:
        RetryAfter: it is being deleted.
        AlreadyExists: another has the name.
    """
    there = [server for server in found if instances.is_there(server)]
    for server in there:
        if MARKS.bear(server.labels, identity):
            if server.state == "deleting":
                raise cloud.RetryAfter(f"{server.id} is being deleted", seconds=AGAIN_S)
            return server
    for server in there:
        raise cloud.AlreadyExists(
            f"instance {server.id} has the name {identity.name} and is not this machine's; delete "
            "the machine, or the instance if nobody needs it"
        )
    return None


def _is_initialized(server: client.Server, given: Mapping[str, Any]) -> bool:
    try:
        spec = read(given)
    except cloud.InvalidArgument:
        return True  # what makes no sense stops a creation, and neither a search nor a deletion
    return set(spec.allowed_addresses) <= set(server.allowed_addresses)


def _info(server: client.Server) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=cloud.format_provider_id(instances.SCHEME, server.id),
        node_name=server.name,
        addresses=instances.addresses(server),
        phase=PHASES.get(server.state, cloud.Phase.UNKNOWN),
        message=server.reason,
    )

"""Machine driver of the simulated cloud.

Provider spec  see `Spec`
Credentials    `token`, as in the cloud config; they do not contain the cloud's address

A VM and its data volumes carry the machine's identity as labels with the prefix
`client.MARK_PREFIX`. The volumes are created first. Cluster and UID form the token of the creation:
repeating a creation whose response was lost returns the same VM.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from ccm import cloud
from ccm.base import tasks
from ccm.cloud.machines import Marks, convert_spec, without_nulls
from ccm.model.times import parse_optional_time

from . import client, instances

MARKS = Marks(
    cluster=client.MARK_CLUSTER,
    namespace=client.MARK_NAMESPACE,
    pool=client.MARK_POOL,
    name=client.MARK_NAME,
    uid=client.MARK_UID,
)

RETRY_S = 1.0
"""Retry delay, in seconds, while the cloud deletes a VM."""

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
    """Return a pool of clients for the cloud at a URL, one per set of credentials."""

    def opener(
        _: str, credentials: cloud.Credentials
    ) -> AbstractAsyncContextManager[client.Client]:
        return client.open_client(client.Config(url=url, token=token(credentials)))

    return cloud.Sessions(opener)


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null means the default.

    `allowedAddresses` are CIDRs from which the VM may send besides its own addresses, such as the
    CIDRs of its Pods; they are set once the VM has started. `dataVolumes` are sizes in GiB of
    volumes that are created and deleted with the VM.
    """

    machine_type: str = "small"
    zone: str = "sim-1a"
    region: str = "sim-1"
    labels: dict[str, str] = {}
    allowed_addresses: tuple[str, ...] = ()
    data_volumes: tuple[int, ...] = ()


def parse_spec(given: Mapping[str, Any]) -> Spec:
    """Parse a provider spec.

    Raises:
        InvalidArgument: the spec is invalid; the message lists every problem.
    """
    if problems := _problems(given):
        raise cloud.InvalidArgument("; ".join(map(str, problems)))
    return msgspec.convert(without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Return all problems of a provider spec and its credentials."""
    faults = _problems(given)
    try:
        token(credentials)
    except cloud.InvalidArgument as error:
        faults.append(cloud.Problem(field="secretRef", message=str(error)))
    return faults


def token(credentials: Mapping[str, bytes]) -> str:
    """Return the bearer token.

    Raises:
        InvalidArgument: the token is missing, or not valid in a header; the message omits it.
    """
    if not (value := cloud.token_of(credentials, "token")):
        raise cloud.InvalidArgument(
            "the credentials lack the key `token`; set it to the token of the cloud config"
        )
    return value


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, faults = convert_spec(given, Spec)
    for name, value in values.items():
        faults += _check_value(name, value)
    return sorted(faults, key=lambda problem: problem.field)


def _check_value(name: str, value: Any) -> list[cloud.Problem]:
    """Return the problem of a value that has the right type, if any."""
    match name:
        case "labels":
            reason = f"keys must not have the reserved prefix {client.MARK_PREFIX}"
            bad = any(key.startswith(client.MARK_PREFIX) for key in value)
        case "allowedAddresses":
            reason = "each must be a CIDR such as 10.244.0.0/16"
            bad = any(cloud.parse_cidr(entry) is None for entry in value)
        case "dataVolumes":
            reason, bad = "each must be a number of GiB above 0", any(entry < 1 for entry in value)
        case _:
            reason, bad = "must not be empty", not value
    return [cloud.Problem(field=name, message=f"{value!r}: {reason}")] if bad else []


class SimMachines(cloud.Driver[Clients]):
    """Implementation of `MachineDriver`, `SpecValidation` and `MachineMetrics`."""

    csi_driver = "csi.sim"

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Create the VM: two requests, more with data volumes; one if the VM exists."""
        spec, name = parse_spec(req.provider_spec), req.identity.name
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            servers, _ = await api.servers(name)
            existing = _find_existing(servers, req.identity)
            if existing is not None:
                return _info(existing)
            volumes = await _ensure_volumes(api, req.identity, spec.data_volumes)
            order = client.ServerOrder(
                name=name,
                type=spec.machine_type,
                zone=spec.zone,
                region=spec.region,
                labels=spec.labels | MARKS.to_labels(req.identity),
                token=f"{req.identity.cluster}/{req.identity.uid}",
                user_data=base64.b64encode(req.user_data).decode(),
                volumes=volumes,
            )
            return _info(await api.create_server(order))

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Set the allowed addresses of a started VM: two requests, or one if they are set already.

        Raises `RetryAfter` while the VM starts, `Unimplemented` if the spec has no allowed
        addresses.
        """
        spec = parse_spec(req.provider_spec)
        if not spec.allowed_addresses:
            raise cloud.Unimplemented("the spec has no allowed addresses to set")
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            server, _ = await _find(api, req)
            if not _is_initialized(server, req.provider_spec):
                server = await api.allow_addresses(server.id, spec.allowed_addresses)
            return _info(server)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Return the status of the VM: one request. Raises `NotFound` or `Uninitialized`."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            server, _ = await _find(api, req)
        if not _is_initialized(server, req.provider_spec):
            text = f"instance {server.name} lacks its allowed addresses"
            raise cloud.Uninitialized(text).carrying(_info(server))
        return _info(server)

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Delete VM and volumes: four requests, more with volumes. Raises `RetryAfter`."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            instance_ids, identity = await _find_vms_to_delete(api, req)
            for instance_id in instance_ids:
                with suppress(cloud.NotFound):
                    await api.delete_server(instance_id)
            # Always search for volumes: the current spec may differ from the spec at creation. The
            # search runs concurrently with the check of the VM, which saves the time of a request.
            listing = tasks.spawn(find_volumes(api, identity), name="volumes")
            try:
                for instance_id in instance_ids:
                    with suppress(cloud.NotFound):
                        if instances.exists(await api.server(instance_id)):
                            text = f"instance {instance_id} is being deleted"
                            raise cloud.RetryAfter(text, seconds=RETRY_S)
                volumes = await listing
            finally:
                await tasks.cancel_and_join(listing)
            for volume in volumes:
                # Skip attached volumes: the deletion of the VM that has them deletes them.
                if not volume.instance:
                    with suppress(cloud.NotFound):
                        await api.delete_volume(volume.id)
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """Return the VMs of a pool: one request per page of 500."""
        async with self.spi.of(req.credentials, pool=req.pool) as api:
            servers, _ = await api.servers(label=(client.MARK_POOL, req.pool))
        return [
            cloud.MachineRecord(
                identity=MARKS.to_identity(server.labels, server.name),
                info=_info(server),
                initialized=_is_initialized(server, req.provider_spec),
                created=parse_optional_time(server.created),
            )
            for server in servers
            if instances.exists(server)
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """Return the problems of a spec; if `live`, test the credentials with one request."""
        faults = list(problems(spec, credentials))
        if live and not faults:
            try:
                async with self.spi.of(credentials) as api:
                    await api.servers("none-is-named-so")
            except (cloud.Unauthenticated, cloud.PermissionDenied) as error:
                faults.append(cloud.Problem(field="secretRef", message=str(error)))
        return faults

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Return size, zone and region for the metrics; empty values for an invalid spec."""
        try:
            parsed = parse_spec(spec)
        except cloud.InvalidArgument:
            return {"size": "", "zone": "", "region": ""}
        return {"size": parsed.machine_type, "zone": parsed.zone, "region": parsed.region}


async def _find(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[client.Server, cloud.Identity]:
    """Find the VM by provider ID or identity labels; return it, and the identity of its volumes.

    Raises:
        NotFound: the VM does not exist.
        NotOwned: the VM with the provider ID belongs to another machine.
    """
    if req.provider_id:
        server = await api.server(instances.parse_id(req.provider_id))
        if instances.exists(server):
            return server, cloud.check_owner(req, MARKS.to_identity(server.labels, server.name))
    else:
        for server in await find_by_identity(api, req.identity):
            return server, req.identity
    raise cloud.NotFound(f"machine {req.identity.name} has no VM")


async def _find_vms_to_delete(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[Sequence[str], cloud.Identity]:
    """Return the IDs of the VMs to delete, and the identity in the labels of their volumes."""
    if not req.provider_id:
        return [server.id for server in await find_by_identity(api, req.identity)], req.identity
    try:
        server, identity = await _find(api, req)
    except cloud.NotFound:
        return [], req.identity
    return [server.id], identity


async def _ensure_volumes(
    api: client.Client, identity: cloud.Identity, sizes: Sequence[int]
) -> Sequence[str]:
    """Return the IDs of the data volumes; create those that do not exist yet."""
    if not sizes:
        return []
    existing = {
        entry.labels.get(client.MARK_VOLUME): entry for entry in await find_volumes(api, identity)
    }
    volume_ids = []
    for number, size in enumerate(sizes):
        volume = existing.get(str(number))
        if volume is None:
            order = client.VolumeOrder(
                name=f"{identity.name}-{number}",
                size_gib=size,
                labels=MARKS.to_labels(identity) | {client.MARK_VOLUME: str(number)},
            )
            volume = await api.create_volume(order)
        volume_ids.append(volume.id)
    return volume_ids


async def find_volumes(api: client.Client, identity: cloud.Identity) -> Sequence[client.Volume]:
    if not identity.uid:
        return []
    volumes = await api.volumes((client.MARK_UID, identity.uid))
    return [volume for volume in volumes if MARKS.match(volume.labels, identity)]


async def find_by_identity(api: client.Client, identity: cloud.Identity) -> Sequence[client.Server]:
    servers, _ = await api.servers(label=(client.MARK_UID, identity.uid))
    return [
        server
        for server in servers
        if instances.exists(server) and MARKS.match(server.labels, identity)
    ]


def _find_existing(
    servers: Sequence[client.Server], identity: cloud.Identity
) -> client.Server | None:
    """Return the VM of an identity among the VMs with its name.

    Raises:
        RetryAfter: the VM is being deleted.
        AlreadyExists: another VM has the name.
    """
    existing = [server for server in servers if instances.exists(server)]
    for server in existing:
        if MARKS.match(server.labels, identity):
            if server.state == "deleting":
                raise cloud.RetryAfter(f"instance {server.id} is being deleted", seconds=RETRY_S)
            return server
    for server in existing:
        raise cloud.AlreadyExists(
            f"instance {server.id} is named {identity.name}, but does not belong to this machine; "
            "delete the machine, or the instance if it is unused"
        )
    return None


def _is_initialized(server: client.Server, given: Mapping[str, Any]) -> bool:
    try:
        spec = parse_spec(given)
    except cloud.InvalidArgument:
        return True  # an invalid spec must block creations only, not searches and deletions
    return set(spec.allowed_addresses) <= set(server.allowed_addresses)


def _info(server: client.Server) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=cloud.format_provider_id(instances.SCHEME, server.id),
        node_name=server.name,
        addresses=instances.addresses(server),
        phase=PHASES.get(server.state, cloud.Phase.UNKNOWN),
        message=server.reason,
    )

"""Machine driver of STACKIT, compatible with STACKIT's own driver.

Provider spec  see `Spec`
Credentials    `project-id` and `serviceaccount.json`, see `Spec`

A server has the labels of the vendor's driver, which name machine and class, and three more:
cluster, namespace and UID of the machine. Server names are not unique in this cloud. A server
with the name of a machine but other labels still blocks the machine, since nodes are found by name.

Provider IDs do not contain the region, and the region of a class may change. Each machine therefore
records the region of its server (`LastKnownState`); the recorded region takes precedence over that
of the class.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn

import msgspec

from ccm import cloud
from ccm.base.decoding import DECODE_ERRORS
from ccm.cloud.helpers import is_label_value
from ccm.cloud.machines import Marks, convert_spec, without_nulls
from ccm.model.times import parse_optional_time

from . import auth, config, iaas, instances, refusals
from .config import REGION, UUID
from .iaas import Place
from .marks import (
    CLUSTER,
    NAMESPACE,
    UID,
    StackitMachineClassLabel,
    StackitMachineLabel,
    StackitProviderName,
)

PROJECT_ID = "project-id"
SERVICE_ACCOUNT = "serviceaccount.json"
"""Keys of the Secret: the project ID, a UUID, and a service account key in JSON."""

CREDENTIALS = "secretRef"
"""Field of the class that credential problems refer to. Never `secret`: log redaction removes the
text after `secret:`."""

_MACHINE_TYPE = re.compile(r"[a-z]+\d+[a-z]*\.\d+[a-z]*(\.[a-z]+\d+)*", re.ASCII)
_ZONE = re.compile(r"[a-z0-9]+-(?:\d+|m)", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_./]*[a-zA-Z0-9])?", re.ASCII)
_KEYPAIR = re.compile(r"[A-Za-z0-9@._-]{0,127}", re.ASCII)
_MAIL = re.compile(r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}", re.ASCII)
_HOST = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)

SOURCES = ("image", "snapshot", "volume")
"""Possible sources of a boot volume. The API documents only image and volume."""


class Networking(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Network, or existing NICs: exactly one of the two. A NIC can serve one machine only."""

    network_id: str | None = None
    nic_ids: tuple[str, ...] | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of a boot volume."""

    type: str = ""
    id: str = ""


class BootVolume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Boot volume of a server; `size` is in GB."""

    size: int = 0
    performance_class: str = ""
    delete_on_termination: bool = True
    source: Source | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor's agent on the server."""

    provisioned: bool | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null means the default.

    `userData` takes precedence over that of the Secret. The boot volume is deleted with its server
    unless `bootVolume.deleteOnTermination` is false.
    """

    region: str
    machine_type: str
    networking: Networking
    image_id: str = ""
    labels: dict[str, str] = {}
    allowed_addresses: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    user_data: str = ""
    boot_volume: BootVolume | None = None
    volumes: tuple[str, ...] = ()
    keypair_name: str = ""
    availability_zone: str = ""
    affinity_group: str = ""
    service_account_mails: tuple[str, ...] = ()
    agent: Agent | None = None
    metadata: dict[str, Any] = {}


def parse_spec(given: Mapping[str, Any]) -> Spec:
    """Parse a provider spec.

    Raises:
        InvalidArgument: the spec is invalid; the message lists every problem.
    """
    if faults := list(_problems(given)):
        raise cloud.InvalidArgument("; ".join(map(str, faults)))
    return msgspec.convert(without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Return all problems of the credentials and the spec, in that order."""
    return [*_find_secret_problems(credentials), *_problems(given)]


def region_of(given: Mapping[str, Any]) -> str:
    """Return the region of a spec that may be invalid; empty if the region is not valid."""
    region = given.get("region")
    return region if isinstance(region, str) and REGION.fullmatch(region) else ""


def project(credentials: Mapping[str, bytes]) -> str:
    """Return the project ID of a Secret. Raises `InvalidArgument`."""
    if faults := [
        fault for fault in _find_secret_problems(credentials) if PROJECT_ID in fault.message
    ]:
        raise cloud.InvalidArgument(faults[0].message)
    return _text(credentials, PROJECT_ID).lower()


def name_fault(identity: cloud.Identity) -> str:
    """Return the problem with the names of a machine; empty if there is none."""
    if not _HOST.fullmatch(identity.name):
        return f"machine name {identity.name!r} is not a host name of at most 63 characters"
    for word, text in (("cluster", identity.cluster), ("class", identity.pool)):
        if not is_label_value(text):
            return (
                f"the {word} of the machine, {text!r}, is not a valid label value; use at most 63 "
                "characters"
            )
    return ""


def _text(credentials: Mapping[str, bytes], key: str) -> str:
    # A Secret created from a file usually ends with a line feed.
    return credentials.get(key, b"").decode(errors="replace").strip()


def _find_secret_problems(credentials: Mapping[str, bytes]) -> Iterator[cloud.Problem]:
    project_id = _text(credentials, PROJECT_ID)
    if not project_id:
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is missing; set the ID of the project")
    elif not UUID.fullmatch(project_id):
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is {project_id!r}; it must be a UUID")
    key = _text(credentials, SERVICE_ACCOUNT)
    if not key:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} is missing; set a service account key")
        return
    try:
        msgspec.json.decode(key)
    except DECODE_ERRORS:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} must be JSON")


def _problem(field: str, message: str) -> cloud.Problem:
    return cloud.Problem(field=field, message=message)


def _problems(given: Mapping[str, Any]) -> Iterator[cloud.Problem]:
    values, unread = convert_spec(given, Spec, reject_unknown=False)
    broken = {fault.field for fault in unread}
    for field, check in _CHECKS.items():
        yield from (fault for fault in unread if fault.field == field)
        if field not in broken:
            for text in check(values.get(field), values):
                yield _problem(field, text)
    yield from (fault for fault in unread if fault.field not in _CHECKS)


Check = Callable[[Any, Mapping[str, Any]], Iterator[str]]


def _check_required(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if not pattern.fullmatch(value or ""):
        yield f"{value!r} must be {what}" if value else f"is missing; set {what}"


def _check_optional(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if value and not pattern.fullmatch(value):
        yield f"{value!r} must be {what}"


def _check_each(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
        for at, entry in enumerate(value or ()):
            if not pattern.fullmatch(entry):
                yield f"[{at}] {entry!r} must be {what}"

    return check


def _check_image(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    volume: BootVolume | None = values.get("bootVolume")
    if value:
        yield from _check_optional(value, UUID, "a UUID")
    elif volume is None or volume.source is None:
        yield "is missing; set the ID of an image, or bootVolume.source"


def _check_labels(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for key, text in (value or {}).items():
        if len(key) > 63 or not _LABEL.fullmatch(key):
            yield (
                f"key {key!r} must be at most 63 characters from [-A-Za-z0-9_./], alphanumeric "
                "at both ends"
            )
        if not is_label_value(text):
            yield (
                f"value {text!r} must be at most 63 characters from [-A-Za-z0-9_.], alphanumeric "
                "at both ends"
            )


def _check_networking(value: Networking | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None or (value.network_id is None) == (not value.nic_ids):
        yield "needs exactly one of networkId and nicIds"
        return
    for uuid in (value.network_id,) if value.network_id is not None else value.nic_ids or ():
        yield from _check_required(uuid, UUID, "a UUID")


def _check_boot_volume(value: BootVolume | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None:
        return
    if value.size < 0:
        yield f"size is {value.size}; it must be at least 0 (GB)"
    if value.source is not None:
        if value.source.type not in SOURCES:
            yield f"source.type is {value.source.type!r}; it must be one of {', '.join(SOURCES)}"
        for text in _check_required(value.source.id, UUID, "a UUID"):
            yield f"source.id {text}"


def _check_security_groups(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    if "" in (value or ()):
        yield "must not contain an empty string"


def _check_allowed_addresses(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for at, cidr in enumerate(value or ()):
        if "/" not in cidr or cloud.parse_cidr(cidr) is None:
            yield f"[{at}] {cidr!r} must be a CIDR such as 10.0.0.0/24"


def _check_mails(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    if len(value or ()) > 1:
        yield f"has {len(value)} entries; at most one is allowed"
    yield from _check_each(_MAIL, "a mail address")(value, values)


_CHECKS: Mapping[str, Check] = {
    "region": lambda value, _: _check_required(value, REGION, "a region such as eu01"),
    "availabilityZone": lambda value, _: _check_optional(
        value, _ZONE, "a zone such as eu01-1 or eu01-m"
    ),
    "machineType": lambda value, _: _check_required(value, _MACHINE_TYPE, "a type such as c2i.2"),
    "imageId": _check_image,
    "labels": _check_labels,
    "networking": _check_networking,
    "securityGroups": _check_security_groups,
    "bootVolume": _check_boot_volume,
    "volumes": _check_each(UUID, "a UUID"),
    "keypairName": lambda value, _: _check_optional(
        value, _KEYPAIR, "at most 127 letters, digits, @, ., _ or -"
    ),
    "allowedAddresses": _check_allowed_addresses,
    "affinityGroup": lambda value, _: _check_optional(value, UUID, "a UUID"),
    "serviceAccountMails": _check_mails,
}
"""Field -> check, in the order in which problems are reported."""


MARKS = Marks(
    cluster=CLUSTER,
    namespace=NAMESPACE,
    pool=StackitMachineClassLabel,
    name=StackitMachineLabel,
    uid=UID,
)

_STATE_PATTERN = re.compile(r"region=([a-z0-9]+)", re.ASCII)

PHASES: Mapping[str, cloud.Phase] = {
    "CREATING": cloud.Phase.CREATING,
    "ACTIVE": cloud.Phase.RUNNING,
    "STOPPING": cloud.Phase.STOPPED,
    "INACTIVE": cloud.Phase.STOPPED,
    "PAUSED": cloud.Phase.STOPPED,
    "DEALLOCATING": cloud.Phase.STOPPED,
    "DEALLOCATED": cloud.Phase.STOPPED,
    "DELETING": cloud.Phase.DELETING,
    "DELETED": cloud.Phase.DELETING,
    "ERROR": cloud.Phase.FAILED,
}

DELETING_STATES = tuple(word for word, phase in PHASES.items() if phase is cloud.Phase.DELETING)

Clients = cloud.Sessions[iaas.Client]


def open_clients(given: config.Variables, url: str = config.IAAS_URL) -> Clients:
    """Return a pool of clients, one per set of credentials.

    Args:
        given: environment variables.
        url: URL of the IaaS API, unless the variables contain one.
    """

    @contextlib.asynccontextmanager
    async def opener(_: str, credentials: cloud.Credentials) -> AsyncIterator[iaas.Client]:
        flow: AbstractAsyncContextManager[auth.NoAuthorizer | auth.KeyFlow]
        if given.no_auth:
            flow = contextlib.nullcontext(auth.NoAuthorizer())
        else:
            flow = auth.open_key_flow(_key(credentials), given.token_baseurl)
        place = given.iaas_endpoint or url
        async with flow as authorizer, iaas.open_client(place, authorizer) as api:
            yield api

    return cloud.Sessions(opener)


def _key(credentials: cloud.Credentials) -> auth.ServiceAccountKey:
    try:
        return auth.ServiceAccountKey(credentials[SERVICE_ACCOUNT])
    except (KeyError, ValueError) as error:
        raise cloud.InvalidArgument(f"{SERVICE_ACCOUNT} of the credentials {error}") from None


class StackitMachines(cloud.Driver[Clients]):
    """Implementation of `MachineDriver`, `SpecValidation`, `MachineMetrics`, `MachineAccounts`."""

    csi_driver = "block-storage.csi.stackit.cloud"

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Create the server: two requests, a listing and the creation; one if the server exists."""
        if faults := problems(req.provider_spec, req.credentials):
            raise cloud.InvalidArgument("; ".join(map(str, faults)))
        spec, identity = parse_spec(req.provider_spec), req.identity
        if fault := name_fault(identity):
            raise cloud.InvalidArgument(fault)
        place = Place(project(req.credentials), spec.region)
        order = _build_order(req, spec)
        async with self.client(req.credentials, identity.pool) as api:
            servers = await api.servers(place)
            server = await _find_existing(api, place, servers, identity)
            if server is None:
                _check_nics(spec, servers)
                server = await _create_server(api, place, order)
        return _info(server, place)

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Check that the server runs, and set `allowedAddresses` of its NICs.

        Sends one request. If the spec has `allowedAddresses`, it also sends one to list the NICs,
        and one for each NIC to change. Raises `RetryAfter` until the server runs.
        """
        spec = parse_spec(req.provider_spec)
        async with self.client(req.credentials, req.identity.pool) as api:
            place, server_id = await _find_server(api, req)
            server = await api.wait_until_server_running(place, server_id)
            _check_owner(req, server)
            if server.status == "ERROR":
                await _failed(api, place, server, req.identity)
            if not server.nics:
                raise cloud.Unavailable(f"no NICs found for server {server_id}")
            if spec.allowed_addresses:
                for nic in await api.nics(place, server_id):
                    wanted = _addresses_to_allow(spec, nic.network_id, nic.id, nic)
                    if wanted:
                        await api.set_allowed_addresses(place, nic, wanted)
        return _info(server, place)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Return the status of the server: one request, or more without provider ID.

        Raises:
            NotFound: the server does not exist.
            NotOwned: the server belongs to another machine.
            Uninitialized: the server is being created, or a NIC lacks allowed addresses.
        """
        if _never_had_server(req):
            raise cloud.NotFound(f"machine {req.identity.name} never had a server")
        async with self.client(req.credentials, req.identity.pool) as api:
            place, server_id = await _find_server(api, req)
            server = await api.server(place, server_id)
        _check_owner(req, server)
        info = _info(server, place)
        if server.status == "CREATING" or _lacks_addresses(req.provider_spec, server):
            text = f"server {server_id} is {server.status}, not initialised yet"
            raise cloud.Uninitialized(text).carrying(info)
        return info

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Delete the server: three requests, four without provider ID. Raises `RetryAfter`."""
        if _never_had_server(req):
            return cloud.DeleteMachineResponse()
        async with self.client(req.credentials, req.identity.pool) as api:
            for place, server_id in await find_servers(api, req):
                await _delete(api, place, server_id, req)
        return cloud.DeleteMachineResponse()

    def machine_account(self, req: cloud.MachineRequest) -> str:
        """Return `PROJECT/REGION` of the server; see `Cloud.account`."""
        return "/".join(_place(req.provider_spec, req.credentials, req.last_known_state))

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """Return the servers of a class: one request."""
        place = _place(req.provider_spec, req.credentials)
        async with self.client(req.credentials, req.pool) as api:
            servers = await api.servers(place, {StackitMachineClassLabel: req.pool})
        return [
            cloud.MachineRecord(
                identity=MARKS.to_identity(server.labels, server.name),
                info=_info(server, place),
                initialized=server.status != "CREATING",
                created=parse_optional_time(server.created_at),
            )
            for server in servers
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """Return the problems of a spec; if `live`, look up each referenced ID in a request."""
        faults = list(problems(spec, credentials))
        if live and not faults:
            try:
                faults += await self._find_missing(parse_spec(spec), credentials)
            except (cloud.Unauthenticated, cloud.PermissionDenied, cloud.InvalidArgument) as error:
                faults.append(cloud.Problem(field=CREDENTIALS, message=str(error)))
        return faults

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Return machine type and zone for the metrics."""
        names = {"size": "machineType", "zone": "availabilityZone"}
        texts = {label: spec.get(field) for label, field in names.items()}
        return {label: text if isinstance(text, str) else "" for label, text in texts.items()}

    async def _find_missing(
        self, spec: Spec, credentials: cloud.Credentials
    ) -> Sequence[cloud.Problem]:
        """Return a problem for each referenced ID that does not exist in the project."""
        place = _place({"region": spec.region}, credentials)
        network = spec.networking.network_id
        named = [
            *([("networking.networkId", "networks", network)] if network else []),
            *([("imageId", "images", spec.image_id)] if spec.image_id else []),
            *(("volumes", "volumes", volume) for volume in spec.volumes),
        ]
        async with self.client(credentials, "") as api:
            return [
                cloud.Problem(field=field, message=f"{word!r} does not exist in this project")
                for field, table, word in named
                if not await api.exists(place, f"{table}/{word}")
            ]

    def client(
        self, credentials: cloud.Credentials, pool: str
    ) -> AbstractAsyncContextManager[iaas.Client]:
        """Return the client for a set of credentials, for the duration of one call."""
        # Only the keys that identify the account, so that classes whose Secrets differ only in the
        # user data share a client.
        held = {
            key: credentials[key] for key in (PROJECT_ID, SERVICE_ACCOUNT) if key in credentials
        }
        return self.spi.of(cloud.Credentials(held), pool=pool)


# --- creation -----------------------------------------------------------------------------------


async def _find_existing(
    api: iaas.Client, place: Place, servers: Sequence[iaas.Server], identity: cloud.Identity
) -> iaas.Server | None:
    """Return the server among `servers` that an earlier call created for the machine, or None.

    Raises:
        AlreadyExists: a server with the name belongs to another machine.
        RetryAfter: the machine's server is being deleted.
        Aborted: the machine's server failed and was deleted; see `_failed`.
    """
    named = [
        server
        for server in servers
        if identity.name in (server.name, server.label(StackitMachineLabel))
    ]
    # The cloud may execute both a creation whose response was lost and its repetition: keep the
    # oldest server.
    own = sorted(
        (server for server in named if MARKS.match(server.labels, identity)),
        key=lambda server: (server.created_at or "", server.id),
    )
    for spare in own[1:]:
        await api.delete_server(place, spare.id)
    if not own and named:
        raise cloud.AlreadyExists(
            f"server {named[0].id} is named {identity.name}, but does not belong to this machine; "
            "delete the machine, or the server if it is unused"
        )
    if not own:
        return None
    if own[0].status == "ERROR":
        await _failed(api, place, own[0], identity)
    if own[0].status in DELETING_STATES:
        raise cloud.RetryAfter(f"server {own[0].id} is being deleted", seconds=iaas.RETRY_S)
    return own[0]


def _check_nics(spec: Spec, servers: Sequence[iaas.Server]) -> None:
    """Check that no other server has the NICs: the API's error would not explain the cause.

    Raises:
        FailedPrecondition: a NIC is in use.
        RetryAfter: a NIC is in use by a server that is being deleted.
    """
    wanted = {nic_id.lower() for nic_id in spec.networking.nic_ids or ()}
    for server in servers:
        for nic in server.nics or ():
            if nic.nic_id.lower() not in wanted:
                continue
            if server.status in DELETING_STATES:
                raise cloud.RetryAfter(f"server {server.id} is being deleted", seconds=iaas.RETRY_S)
            raise cloud.FailedPrecondition(
                f"networking.nicIds: NIC {nic.nic_id} is in use by server {server.id}; use "
                "networkId for more than one machine"
            )


async def _create_server(api: iaas.Client, place: Place, order: Mapping[str, Any]) -> iaas.Server:
    """Create a server; an error carries the region, since the cloud may have created the server."""
    try:
        return await api.create_server(place, order)
    except cloud.CloudError as error:
        error.carrying(cloud.MachineInfo(last_known_state=_format_state(place)))
        raise


def _build_order(req: cloud.MachineRequest, spec: Spec) -> Mapping[str, Any]:
    """Return the request body that creates a server, without unset fields of the spec.

    Raises:
        InvalidArgument: the user data, without which no server joins a cluster, are missing.
    """
    identity = req.identity
    user_data = spec.user_data.encode() or req.user_data
    if not user_data:
        raise cloud.InvalidArgument(
            "userData is missing, and without it no server joins the cluster; set userData in the "
            "Secret or in the providerSpec of the class"
        )
    networking = spec.networking
    optional = {
        "imageId": spec.image_id,
        "securityGroups": spec.security_groups,
        "volumes": spec.volumes,
        "serviceAccountMails": spec.service_account_mails,
        "userData": base64.b64encode(user_data).decode(),
        "keypairName": spec.keypair_name,
        "availabilityZone": spec.availability_zone,
        "affinityGroup": spec.affinity_group,
        "agent": spec.agent and msgspec.to_builtins(spec.agent),
        "metadata": spec.metadata,
    }
    return {
        "name": identity.name,
        "machineType": spec.machine_type,
        "labels": {**spec.labels, **MARKS.to_labels(identity)},
        "networking": {"networkId": networking.network_id}
        if networking.network_id
        else {"nicIds": networking.nic_ids},
        "bootVolume": _boot_volume(spec.boot_volume),
        **{key: value for key, value in optional.items() if value},
    }


def _boot_volume(given: BootVolume | None) -> Mapping[str, Any]:
    """Return the boot volume for a request body.

    `deleteOnTermination` is always set: if it is missing, the API may keep the volume.
    """
    volume = given or BootVolume()
    order: dict[str, Any] = {"deleteOnTermination": volume.delete_on_termination}
    if volume.size:
        order["size"] = volume.size
    if volume.performance_class:
        order["performanceClass"] = volume.performance_class
    if volume.source is not None:
        order["source"] = msgspec.to_builtins(volume.source)
    return order


async def _failed(
    api: iaas.Client, place: Place, server: iaas.Server, identity: cloud.Identity
) -> NoReturn:
    """Raise the error of a failed server; delete the server if it never ran and is the machine's.

    Raises:
        FailedPrecondition: the server ran before, or belongs to another machine.
        ResourceExhausted: the server never ran, for lack of capacity or quota.
        Aborted: the server never ran, for another reason.
    """
    reason = server.error_message or "no reason given"
    if server.launched_at or not MARKS.match(server.labels, identity):
        raise cloud.FailedPrecondition(
            f"server {server.id} is in state ERROR: {reason}; the server may hold data; "
            "delete the machine if the data is not needed"
        )
    with contextlib.suppress(cloud.NotFound):
        await api.delete_server(place, server.id)
    kind = cloud.ResourceExhausted if refusals.exhaustion_text(reason) else cloud.Aborted
    error = kind(f"server {server.id} never ran and was deleted: {reason}")
    raise error.carrying(_info(server, place))


def _addresses_to_allow(
    spec: Spec, network_id: str, nic_id: str, nic: iaas.Nic | iaas.ServerNic
) -> Sequence[str]:
    """Return the addresses that a NIC is to allow: those allowed already, and those of the spec.

    Empty = nothing to change: the NIC allows all addresses of the spec already, or the spec names
    neither the NIC nor its network.
    """
    held, networking = nic.allowed_addresses or (), spec.networking
    is_meant = network_id == networking.network_id or nic_id in (networking.nic_ids or ())
    missing = [address for address in spec.allowed_addresses if address not in held]
    return (*held, *missing) if is_meant and missing else ()


def _lacks_addresses(given: Mapping[str, Any], server: iaas.Server) -> bool:
    """Return whether a NIC lacks `allowedAddresses` of the spec; False for an invalid spec."""
    try:
        spec = parse_spec(given)
    except cloud.InvalidArgument:
        return False
    return any(
        _addresses_to_allow(spec, nic.network_id, nic.nic_id, nic) for nic in server.nics or ()
    )


# --- location and ownership ---------------------------------------------------------------------


def _place(given: Mapping[str, Any], credentials: Mapping[str, bytes], state: str = "") -> Place:
    """Return project and region of a server: the recorded region, or else that of the class."""
    return Place(project(credentials), _region(given, state))


def _region(given: Mapping[str, Any], state: str) -> str:
    remembered = _STATE_PATTERN.search(state)
    region = remembered[1] if remembered else region_of(given)
    if not region:
        raise cloud.InvalidArgument("region of the class is missing; set one such as eu01")
    return region


def _format_state(place: Place) -> str:
    return f"region={place.region}"


def _never_had_server(req: cloud.MachineRequest) -> bool:
    """Return whether a machine never had a server.

    True if the Machine has neither provider ID nor recorded region, and the class lacks a region or
    its Secret lacks a project. A server cannot be created without region and project, and each
    attempt records the region on the Machine, even if the response was lost. The result is wrong if
    the process died before it recorded the region, and the class became invalid afterwards; the
    orphan controller finds such a server.
    """
    if req.provider_id or req.last_known_state:
        return False
    try:
        _place(req.provider_spec, req.credentials)
    except cloud.InvalidArgument:
        return True
    return False


async def _find_server(api: iaas.Client, req: cloud.MachineRequest) -> tuple[Place, str]:
    """Return place (project and region) and ID of a machine's server. Raises `NotFound`."""
    for location in await find_servers(api, req):
        return location
    raise cloud.NotFound(f"machine {req.identity.name} has no server")


async def find_servers(api: iaas.Client, req: cloud.MachineRequest) -> Sequence[tuple[Place, str]]:
    """Return place and ID of the servers of a machine.

    These are the server of the provider ID, or else all servers with the machine's identity in two
    regions: the recorded region and the region of the class, which may differ.
    """
    if req.provider_id:
        parsed = instances.parse_id(req.provider_id)
        if parsed.region:
            raise cloud.InvalidArgument(f"provider ID {req.provider_id!r} does not name a machine")
        owner = parsed.project or project(req.credentials)
        region = _region(req.provider_spec, req.last_known_state)
        return [(Place(owner, region), parsed.server)]
    place = _place(req.provider_spec, req.credentials, req.last_known_state)
    identity = req.identity
    if not identity.uid or name_fault(identity):
        return []
    regions = {place.region, region_of(req.provider_spec) or place.region}
    places = [place._replace(region=candidate) for candidate in sorted(regions)]
    labels = {CLUSTER: identity.cluster, UID: identity.uid}
    return [
        (candidate, server.id)
        for candidate in places
        for server in await api.servers(candidate, labels)
    ]


async def _delete(
    api: iaas.Client, place: Place, server_id: str, req: cloud.MachineRequest
) -> None:
    """Delete a server. Raises `RetryAfter` until it is gone, `NotOwned` for a foreign server."""
    try:
        server = await api.server(place, server_id)
        _check_owner(req, server)
        if server.status not in DELETING_STATES:
            await api.delete_server(place, server_id)
    except cloud.NotFound:
        return
    await api.wait_until_server_deleted(place, server_id)


def _check_owner(req: cloud.MachineRequest, server: iaas.Server) -> None:
    """Raise `NotOwned` for a server that does not belong to the machine.

    Servers of the vendor's driver only have the labels of machine and class; these suffice.
    """
    identity, marks = req.identity, MARKS.to_identity(server.labels, server.name)
    machine = (server.label(StackitMachineLabel), server.label(StackitMachineClassLabel))
    is_vendors = not (marks.cluster or marks.uid) and machine == (identity.name, identity.pool)
    if req.provider_id and not is_vendors:
        cloud.check_owner(req, marks)


def _info(server: iaas.Server, place: Place) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=f"{StackitProviderName}://{place.project}/{server.id}",
        node_name=server.label(StackitMachineLabel) or server.name,
        addresses=instances.addresses(server),
        phase=PHASES.get(server.status or "", cloud.Phase.UNKNOWN),
        message=server.error_message or "",
        last_known_state=_format_state(place),
    )

"""Machine driver of OpenStack.

Provider spec  see `Spec`; fields are named as in Gardener's driver where that has them
Credentials    see `SECRET_KEYS`

The metadata of a server have the identity of its machine, and a server tag has its pool, so that
listings need not read the servers of other pools. Server names are not unique: a server with the
name of a machine but other metadata blocks the machine, since nodes are found by name.

Nova creates the ports of a server, and deletes them with it. Nova cannot choose the subnet of a
port, and cannot allow further addresses: for such a network, the driver creates the port before the
server. The description of such a port has the identity of the machine. A boot volume is created
and deleted by Nova too.

Provider IDs may lack the region, and the region of a class may change. Each machine therefore
records the region of its server (`LastKnownState`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

import msgspec

from ccm import cloud
from ccm.cloud.machines import Marks, convert_spec, without_nulls
from ccm.model.times import parse_optional_time

from . import client, config, instances, neutron, nova

CREDENTIALS = "secretRef"
"""Field of the class that credential problems refer to. Never `secret`: log redaction removes the
text after `secret:`."""

NETWORKS = "networks"
"""Field of the class that problems of `networkID` and `subnetID` refer to, too."""

_WORDS = {"id": "ID", "cidrs": "CIDRs", "api": "API", "gb": "GB", "url": "URL"}


def to_field(field: str) -> str:
    """Return the name of a field in JSON: `pod_network_cidrs` -> `podNetworkCIDRs`."""
    first, *more = field.split("_")
    return first + "".join(_WORDS.get(word, word.capitalize()) for word in more)


SECRET_KEYS: Mapping[str, str] = {
    **{
        to_field(name): name.replace("_", "-")
        for name in (
            *("auth_url", "username", "user_id", "password", "token"),
            *("domain_name", "domain_id", "user_domain_name", "user_domain_id"),
            *("tenant_name", "tenant_id", "tenant_domain_name", "tenant_domain_id"),
            *("application_credential_id", "application_credential_name"),
            "application_credential_secret",
        )
    },
    "endpointType": "os-endpoint-type",
    "insecure": "tls-insecure",
}
"""Key of the Secret -> key of `[Global]` in `cloud.conf`."""

SECRET_FILES = {"caCert": "ca-file", "clientCert": "cert-file", "clientKey": "key-file"}
"""Key of the Secret, whose value is the content of a file -> key of `[Global]`."""

PREFIX = "kube-ccm."
"""Prefix of the metadata that have the identity of a machine. Keys must not contain a slash."""

MARKS = Marks(**{field: f"{PREFIX}{field}" for field in Marks.__slots__})

MAX_USER_DATA = 65535 // 4 * 3
"""Maximum size of user data in bytes: Nova accepts 65535 characters of base64."""

RETRY_S = 5.0
"""Retry delay, in seconds, while a server is created or deleted."""

_STOPPED = ("PAUSED", "SHELVED", "SHELVED_OFFLOADED", "SHUTOFF", "SUSPENDED")

PHASES: Mapping[str, cloud.Phase] = {
    "BUILD": cloud.Phase.CREATING,
    "ACTIVE": cloud.Phase.RUNNING,
    "ERROR": cloud.Phase.FAILED,
    **dict.fromkeys(_STOPPED, cloud.Phase.STOPPED),
}
"""Status of a server -> its phase, unless it is being deleted."""

GONE = ("DELETED", "SOFT_DELETED")
"""Status of a server that counts as absent. Only administrators can restore a SOFT_DELETED one."""

EXHAUSTION_TEXTS = ("no valid host", "no fixed ip", "quota", "exhausted", "limitexceeded")
"""Texts in lower case; in the fault of a server, they mean exhausted capacity or quota."""

_HOST = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)
_REGION = re.compile(r"[^\s/]{0,255}")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_:. ]{1,255}")
_STATE = re.compile(r"region=([^\s/]*)")
_FILE = "/proc/self/fd/"


# --- provider spec ------------------------------------------------------------------------------


class Attachment(msgspec.Struct, frozen=True, kw_only=True, rename=to_field):
    """Network of a server: exactly one of `id`, `name` and `portID`, the ID of an existing port.

    `subnet` is the name or ID of a subnet; empty = OpenStack chooses. With `podNetwork`, the port
    may send from `podNetworkCIDRs` of the spec. An existing port serves one machine only.
    """

    id: str = ""
    name: str = ""
    port_id: str = ""
    subnet: str = ""
    pod_network: bool = False


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=to_field):
    """The `providerSpec` of a MachineClass; null means the default.

    `region` is empty for the first region of the catalogue. `networkID` with `subnetID` is short
    for one entry in `networks`, with `podNetwork`. `securityGroups` are names or IDs; without them,
    ports have the group `default`. With `rootDiskSize`, in GB, the server boots from a volume of
    this size and of the type `rootDiskType`, which is deleted with the server. `tags` become
    metadata of the server.
    """

    region: str = ""
    availability_zone: str = ""
    flavor_name: str
    image_id: str = ""
    image_name: str = ""
    network_id: str = ""
    subnet_id: str = ""
    networks: tuple[Attachment, ...] = ()
    pod_network_cidrs: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    server_group_id: str = ""
    root_disk_size: int = 0
    root_disk_type: str = ""
    use_config_drive: bool = False
    tags: dict[str, str] = {}

    @property
    def attachments(self) -> Sequence[Attachment]:
        """All networks, in the order of the server's interfaces."""
        if self.networks:
            return self.networks
        return (Attachment(id=self.network_id, subnet=self.subnet_id, pod_network=True),)

    def allowed_cidrs(self, network: Attachment) -> Sequence[str]:
        """Return the CIDRs from which the port in a network may send."""
        return self.pod_network_cidrs if network.pod_network else ()

    def needs_port(self, network: Attachment) -> bool:
        """Return whether the driver creates the port in a network, because Nova cannot."""
        return bool(network.subnet or self.allowed_cidrs(network))


def parse_spec(given: Mapping[str, Any]) -> Spec:
    """Parse a provider spec.

    Raises:
        InvalidArgument: the spec is invalid; the message lists every problem.
    """
    if faults := _find_spec_problems(given):
        raise cloud.InvalidArgument("; ".join(map(str, faults)))
    return msgspec.convert(without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Return all problems of the credentials and the spec, in that order."""
    return [*_find_secret_problems(credentials), *_find_spec_problems(given)]


def _find_spec_problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, faults = convert_spec(given, Spec)
    broken = {fault.field for fault in faults}
    faults += [
        cloud.Problem(field=field, message=text)
        for field, text in _check_values(values)
        if field not in broken
    ]
    return sorted(faults, key=lambda fault: fault.field)


def _check_values(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield field and text of each problem of values that have the right types."""
    for field in ("imageID", "networkID", "subnetID", "serverGroupID"):
        if (text := values.get(field)) and not config.is_uuid(text):
            yield field, f"{text!r} must be a UUID"
    if not _REGION.fullmatch(region := values.get("region", "")):
        yield "region", f"{region!r} must not contain spaces or slashes"
    if not values.get("flavorName"):
        yield "flavorName", "is missing; set the name of a flavor"
    if not (values.get("imageID") or values.get("imageName")):
        yield "imageID", "is missing; set the ID of an image, or imageName"
    if "" in values.get("securityGroups", ()):
        yield "securityGroups", "must not contain an empty string"
    if (size := values.get("rootDiskSize", 0)) < 0:
        yield "rootDiskSize", f"{size} must be at least 0 (GB)"
    if values.get("rootDiskType") and not size:
        yield "rootDiskType", "needs rootDiskSize, the size of the boot volume in GB"
    yield from _check_networks(values)
    for key, text in values.get("tags", {}).items():
        if not _METADATA_KEY.fullmatch(key) or len(text) > 255 or key.startswith(PREFIX):
            rule = (
                "must be at most 255 characters from [-a-zA-Z0-9_:. ], without the reserved "
                f"prefix {PREFIX}, and its value at most 255 characters"
            )
            yield "tags", f"{key!r} {rule}"


def _check_networks(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    networks: Sequence[Attachment] = values.get("networks", ())
    if bool(values.get("networkID")) == bool(networks):
        yield NETWORKS, "needs exactly one of networks and networkID"
    if values.get("subnetID") and not values.get("networkID"):
        yield "subnetID", "needs networkID; with networks, set their field subnet"
    for at, network in enumerate(networks):
        yield from ((NETWORKS, f"[{at}]{text}") for text in _check_network(network))
    names = [network.id or network.name for network in networks]
    if repeated := {name for name in names if name and names.count(name) > 1}:
        yield NETWORKS, f"{min(repeated)} is listed twice; list each network once"
    for at, cidr in enumerate(values.get("podNetworkCIDRs", ())):
        if "/" not in cidr or cloud.parse_cidr(cidr) is None:
            yield "podNetworkCIDRs", f"[{at}] {cidr!r} must be a CIDR such as 10.0.0.0/24"


def _check_network(network: Attachment) -> Iterator[str]:
    if [network.id, network.name, network.port_id].count("") != 2:
        yield " needs exactly one of id, name and portID"
    for field in ("id", "port_id"):
        if (text := getattr(network, field)) and not config.is_uuid(text):
            yield f".{to_field(field)} {text!r} must be a UUID"
    if network.port_id and (network.subnet or network.pod_network):
        yield ".portID excludes subnet and podNetwork; set them on the port itself"


# --- credentials --------------------------------------------------------------------------------


def parse_credentials(credentials: Mapping[str, bytes], region: str) -> config.Global:
    """Return the address and credentials of a Secret, without the files of `SECRET_FILES`.

    Raises:
        InvalidArgument: the Secret is invalid; the message lists every problem.
    """
    texts = {
        key: credentials[name].decode(errors="replace").strip()
        for name, key in {**SECRET_KEYS, **SECRET_FILES}.items()
        if name in credentials
    }
    given = {"region": region, **{key: text for key, text in texts.items() if text}}
    try:
        return cloud.Fields(given).read(config.Global)
    except cloud.ConfigError as error:
        raise _secret_error(error) from None


def _secret_error(error: cloud.ConfigError) -> cloud.InvalidArgument:
    """Return the error with the names of the Secret, instead of those in `cloud.conf`."""
    names = {key: name for name, key in {**SECRET_KEYS, **SECRET_FILES}.items()}
    text = re.sub(rf"Global\.| {_FILE}\d+", "", str(error))
    return cloud.InvalidArgument(
        re.sub(r"[a-z]+(-[a-z]+)+", lambda word: names.get(word[0], word[0]), text)
    )


def _find_secret_problems(credentials: Mapping[str, bytes]) -> Iterator[cloud.Problem]:
    try:
        parse_credentials(credentials, "")
    except cloud.InvalidArgument as error:
        yield cloud.Problem(field=CREDENTIALS, message=str(error))


@contextlib.contextmanager
def _files(credentials: Mapping[str, bytes]) -> Iterator[Mapping[str, str]]:
    """Provide the files of a Secret; yield their paths by the keys of `[Global]`.

    The TLS library reads keys and certificates from files only. These are in memory: a key never
    gets on a disk, and the root file system may be read-only.
    """
    with contextlib.ExitStack() as stack:
        paths = {}
        for name, key in SECRET_FILES.items():
            if content := credentials.get(name):
                file = stack.enter_context(os.fdopen(os.memfd_create(name), "wb"))
                file.write(content)
                file.flush()
                paths[key.replace("-", "_")] = f"{_FILE}{file.fileno()}"
        yield paths


class Session(NamedTuple):
    """Clients of the services in one region, with one set of credentials."""

    api: client.Client
    nova: nova.Nova
    neutron: neutron.Neutron


Clients = cloud.Sessions[Session]


def open_clients() -> Clients:
    """Return a pool of clients, one per region and set of credentials."""

    @contextlib.asynccontextmanager
    async def opener(region: str, credentials: cloud.Credentials) -> AsyncIterator[Session]:
        settings = parse_credentials(credentials, region)
        with _files(credentials) as paths:
            try:
                async with client.open_client(msgspec.structs.replace(settings, **paths)) as api:
                    yield Session(api, nova.Nova(api), neutron.Neutron(api))
            except cloud.ConfigError as error:
                raise _secret_error(error) from None

    return cloud.Sessions(opener)


class Place(NamedTuple):
    """Region with its clients, and the servers of a machine in it."""

    session: Session
    region: str
    servers: Sequence[nova.Server]


# --- the driver ---------------------------------------------------------------------------------

JOURNAL = cloud.PartJournal()
PORT = "port"
"""Kind of parts in the journal."""


class OpenStackMachines(cloud.Driver[Clients]):
    """Implementation of `MachineDriver`, `SpecValidation`, `MachineMetrics` and `JournalParts`.

    Args:
        clients: pool of clients.
        is_regional: whether provider IDs contain the region.
    """

    csi_driver = "cinder.csi.openstack.org"
    marks = MARKS

    def __init__(self, clients: Clients, *, is_regional: bool = False) -> None:
        super().__init__(clients)
        self._is_regional = is_regional

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Create the server: three requests, for servers, flavors and the creation.

        Each image, network, subnet and security group that is given by name takes another request.
        Networks whose ports Nova cannot create take one to list the ports, and one for each port.
        One request if the server exists.
        """
        if faults := problems(req.provider_spec, req.credentials):
            raise cloud.InvalidArgument("; ".join(map(str, faults)))
        spec, identity = parse_spec(req.provider_spec), req.identity
        if not _HOST.fullmatch(identity.name):
            text = f"machine name {identity.name!r} is not a host name of at most 63 characters"
            raise cloud.InvalidArgument(text)
        if len(req.user_data) > MAX_USER_DATA:
            raise cloud.InvalidArgument(
                f"userData has {len(req.user_data)} bytes, but Nova accepts at most "
                f"{MAX_USER_DATA}; shorten it"
            )
        async with self.client(req.credentials, spec.region, identity.pool) as api:
            server = await _find_existing(api, identity, self.marks)
            if server is None:
                server = await _create_server(api, req, spec, self.marks)
            elif server.status == "ERROR":
                await self._fail(api, server, identity, spec.region)
        return self._info(server, spec.region)

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Check that the server runs: one request. Raises `RetryAfter` until it does."""
        async with self.locate(req) as places:
            place, server = _first_server(places, req)
            if _phase(server) is cloud.Phase.CREATING:
                text = f"server {server.id} is {server.status}, not ACTIVE yet"
                raise cloud.RetryAfter(text, seconds=RETRY_S)
            if server.status == "ERROR":
                await self._fail(place.session, server, req.identity, place.region)
        return self._info(server, place.region)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Return the status of the server: one request, or more without provider ID.

        Raises:
            NotFound: the server does not exist.
            NotOwned: the server belongs to another machine.
            Uninitialized: the server is being created.
        """
        async with self.locate(req) as places:
            place, server = _first_server(places, req)
        info = self._info(server, place.region)
        if info.phase is cloud.Phase.CREATING:
            text = f"server {server.id} is {server.status}, not ACTIVE yet"
            raise cloud.Uninitialized(text).carrying(info)
        return info

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Delete the server and its ports: three requests or more. Raises `RetryAfter`.

        The ports are deleted before the server: its metadata may have another identity, that of an
        imported or restored machine, by which its ports are found, also after a failed call.
        """
        async with self.locate(req) as places:
            for session, _, servers in places:
                owners = [req.identity, *(self._owner(req, server) for server in servers)]
                for owner in dict.fromkeys(owners):
                    await _delete_ports(session, owner, req.provider_id)
                for server in servers:
                    if _phase(server) is not cloud.Phase.DELETING:
                        await session.nova.delete_server(server.id)
            if left := [server.id for place in places for server in place.servers]:
                raise cloud.RetryAfter(f"server {left[0]} is being deleted", seconds=RETRY_S)
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """Return the servers of a class: one request per page."""
        region = _region_of_class(req.provider_spec)
        async with self.client(req.credentials, region, req.pool) as api:
            servers, _ = await api.nova.servers({"tags": pool_tag(req.pool)})
        records = [
            cloud.MachineRecord(
                identity=self.marks.to_identity(server.metadata, server.name),
                info=self._info(server, region),
                initialized=_phase(server) is not cloud.Phase.CREATING,
                created=parse_optional_time(server.created),
            )
            for server in servers
        ]
        return [record for record in records if record.identity.pool == req.pool]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """Return the problems of a spec; if `live`, look up each reference in a request."""
        faults = list(problems(spec, credentials))
        if live and not faults:
            parsed = parse_spec(spec)
            try:
                async with self.client(credentials, parsed.region, "") as api:
                    faults += await _find_missing(api, parsed)
            except (cloud.Unauthenticated, cloud.PermissionDenied, cloud.InvalidArgument) as error:
                faults.append(cloud.Problem(field=CREDENTIALS, message=str(error)))
            except cloud.FailedPrecondition as error:
                faults.append(cloud.Problem(field="region", message=str(error)))
        return faults

    async def find_part(self, req: cloud.PartRequest) -> str | None:
        """Return the ID of a port with our description: one request."""
        async with self._part_client(req) as api:
            port = await _find_part(api, req)
        return None if port is None else port.id

    async def delete_part(self, req: cloud.PartRequest) -> None:
        """Delete the port that `find_part` finds: two requests, or one if there is none."""
        async with self._part_client(req) as api:
            if (port := await _find_part(api, req)) is not None:
                await api.neutron.delete_port(port.id)

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Return flavor and zone for the metrics."""
        names = {"size": "flavorName", "zone": "availabilityZone"}
        texts = {label: spec.get(field) for label, field in names.items()}
        return {label: text if isinstance(text, str) else "" for label, text in texts.items()}

    def client(
        self, credentials: cloud.Credentials, region: str, pool: str
    ) -> AbstractAsyncContextManager[Session]:
        """Return the clients of a region for the duration of one call."""
        # Only the keys that identify the account, so that classes whose Secrets differ only in the
        # user data share a client.
        known = [key for key in (*SECRET_KEYS, *SECRET_FILES) if key in credentials]
        held = cloud.Credentials({key: credentials[key] for key in known})
        return self.spi.of(held, endpoint=region, pool=pool)

    def _part_client(self, req: cloud.PartRequest) -> AbstractAsyncContextManager[Session]:
        region = _region_of_class(req.provider_spec)
        return self.client(req.credentials, region, req.identity.pool)

    # --- location and ownership -----------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def locate(self, req: cloud.MachineRequest) -> AsyncIterator[Sequence[Place]]:
        """Yield the regions in which the server of a machine may be, with its servers there.

        Raises:
            NotOwned: the server of the provider ID belongs to another machine.
        """
        async with contextlib.AsyncExitStack() as stack:
            places = []
            for region in _regions(req):
                opened = self.client(req.credentials, region, req.identity.pool)
                session = await stack.enter_async_context(opened)
                try:
                    servers = await self._find_servers(session, req)
                except cloud.FailedPrecondition:
                    # The catalogue has no such region. Unless it is recorded, nothing was created
                    # there, and a misspelt region of the class must not block the deletion.
                    if req.provider_id or req.last_known_state == _format_state(region):
                        raise
                else:
                    places.append(Place(session, region, servers))
            yield places

    async def _find_servers(
        self, session: Session, req: cloud.MachineRequest
    ) -> Sequence[nova.Server]:
        """Return the server of the provider ID, or else those with the machine's identity."""
        if not req.provider_id:
            servers = await session.nova.servers_named(req.identity.name)
            return [server for server in servers if self.marks.match(server.metadata, req.identity)]
        try:
            region = _region_of_id(req.provider_id)
            server = await session.nova.server(instances.parse_id(req.provider_id, region))
        except cloud.NotFound:
            return []
        self._owner(req, server)
        return [] if server.status in GONE else [server]

    def _owner(self, req: cloud.MachineRequest, server: nova.Server) -> cloud.Identity:
        """Return the identity that the ports of a server have. Raises `NotOwned`."""
        if self.marks.match(server.metadata, req.identity):
            return req.identity
        return cloud.check_owner(req, self.marks.to_identity(server.metadata, server.name))

    async def _fail(
        self, session: Session, server: nova.Server, identity: cloud.Identity, region: str
    ) -> NoReturn:
        """Raise the error of a failed server; delete the server if it never ran and is our own.

        Raises:
            FailedPrecondition: the server ran before, or belongs to another machine.
            ResourceExhausted: the server never ran, for lack of capacity or quota.
            Aborted: the server never ran, for another reason.
        """
        info = self._info(server, region)
        reason = info.message or "no reason given"
        if server.launched_at or not self.marks.match(server.metadata, identity):
            raise cloud.FailedPrecondition(
                f"server {server.id} is in state ERROR: {reason}; the server may hold data; "
                "delete the machine if the data is not needed"
            )
        await session.nova.delete_server(server.id)
        is_exhausted = any(word in reason.lower() for word in EXHAUSTION_TEXTS)
        kind = cloud.ResourceExhausted if is_exhausted else cloud.Aborted
        error = kind(f"server {server.id} never ran and was deleted: {reason}")
        raise error.carrying(info)

    def _info(self, server: nova.Server, region: str) -> cloud.MachineInfo:
        path = f"{region if self._is_regional else ''}/{server.id}"
        return cloud.MachineInfo(
            provider_id=cloud.format_provider_id(instances.SCHEME, path),
            node_name=server.name,
            addresses=_addresses(server),
            phase=_phase(server),
            message=server.fault.message if server.fault else "",
            last_known_state=_format_state(region),
        )


def _regions(req: cloud.MachineRequest) -> Sequence[str]:
    """Return the regions in which the server of a machine may be.

    With a provider ID, the region of the server. Otherwise the recorded region and that of the
    class, which may differ. None if no server was ever created: no region is recorded, and region
    or Secret of the class are invalid.

    Raises:
        InvalidArgument: the provider ID is invalid, or the region of its server is unknown.
    """
    recorded = _STATE.search(req.last_known_state)
    known = [recorded[1]] if recorded else []
    if req.provider_id:
        region = _region_of_id(req.provider_id)
        return [region] if region else known or [_region_of_class(req.provider_spec)]
    if not recorded and any(_find_secret_problems(req.credentials)):
        return []
    with contextlib.suppress(cloud.InvalidArgument):
        known.append(_region_of_class(req.provider_spec))
    return list(dict.fromkeys(known))


def _region_of_id(provider_id: str) -> str:
    """Return the region in a provider ID; empty = none. Raises `InvalidArgument`."""
    region = provider_id.partition("://")[2].partition("/")[0]
    instances.parse_id(provider_id, region)
    return region


def _region_of_class(given: Mapping[str, Any]) -> str:
    region = without_nulls(given).get("region", "")
    if not (isinstance(region, str) and _REGION.fullmatch(region)):
        value = repr(region) if isinstance(region, str) else "no text"
        raise cloud.InvalidArgument(f"region of the class is {value}; use no spaces or slashes")
    return region


def _first_server(places: Sequence[Place], req: cloud.MachineRequest) -> tuple[Place, nova.Server]:
    for place in places:
        for server in place.servers:
            return place, server
    raise cloud.NotFound(f"machine {req.identity.name} has no server")


def _format_state(region: str) -> str:
    return f"region={region}"


def _phase(server: nova.Server) -> cloud.Phase:
    if server.task_state == "deleting" or server.status in GONE:
        return cloud.Phase.DELETING
    return PHASES.get(server.status, cloud.Phase.UNKNOWN)


def _addresses(server: nova.Server) -> Sequence[cloud.NodeAddress]:
    """Return all addresses, by the names of their networks."""
    return [
        cloud.address("ExternalIP" if entry.kind == "floating" else "InternalIP", entry.addr)
        for _, entry in server.listed
    ]


def pool_tag(pool: str) -> str:
    """Return the server tag of a pool; tags have at most 60 characters."""
    return f"{PREFIX}pool-{sha256(pool.encode()).hexdigest()[:32]}"


def describe_port(identity: cloud.Identity) -> str:
    """Return the description of the ports of a machine."""
    return f"kube-ccm machine {identity.uid} of cluster {identity.cluster}"


# --- creation -----------------------------------------------------------------------------------


async def _find_existing(
    session: Session, identity: cloud.Identity, marks: Marks
) -> nova.Server | None:
    """Return the server that an earlier call created for the machine, or None.

    Raises:
        AlreadyExists: a server with the name belongs to another machine.
        RetryAfter: the machine's server is being deleted.
    """
    servers = await session.nova.servers_named(identity.name)
    # The cloud may execute both a creation whose response was lost and its repetition: keep the
    # oldest server.
    own = [server for server in servers if marks.match(server.metadata, identity)]
    own.sort(key=lambda server: (server.created, server.id))
    for spare in own[1:]:
        await session.nova.delete_server(spare.id)
    if not own and servers:
        raise cloud.AlreadyExists(
            f"server {servers[0].id} is named {identity.name}, but does not belong to this "
            "machine; delete the machine, or the server if it is unused"
        )
    if own and _phase(own[0]) is cloud.Phase.DELETING:
        raise cloud.RetryAfter(f"server {own[0].id} is being deleted", seconds=RETRY_S)
    return own[0] if own else None


async def _create_server(
    session: Session, req: cloud.MachineRequest, spec: Spec, marks: Marks
) -> nova.Server:
    """Create ports and server; an error carries the region, since they may have been created."""
    identity = req.identity
    flavor = await _find_id(session, FLAVOR, "flavorName", spec.flavor_name)
    image = spec.image_id or await _find_id(session, IMAGE, "imageName", spec.image_name)
    metadata = {**spec.tags, **marks.to_labels(identity)}
    try:
        networks = await _attach(session, identity, spec)
        order = _build_order(req, spec, flavor=flavor, image=image)
        order |= {"networks": networks, "metadata": metadata, "tags": [pool_tag(identity.pool)]}
        hints = {"group": spec.server_group_id} if spec.server_group_id else {}
        server_id = await session.nova.create_server(order, hints)
    except cloud.CloudError as error:
        error.carrying(cloud.MachineInfo(last_known_state=_format_state(spec.region)))
        raise
    return nova.Server(id=server_id, name=identity.name, status="BUILD", metadata=metadata)


def _build_order(
    req: cloud.MachineRequest, spec: Spec, *, flavor: str, image: str
) -> dict[str, Any]:
    """Return the request body that creates a server, without unset fields of the spec."""
    optional: dict[str, Any] = {
        "availability_zone": spec.availability_zone,
        "key_name": spec.key_name,
        "config_drive": spec.use_config_drive,
        "security_groups": [{"name": group} for group in spec.security_groups],
        "user_data": base64.b64encode(req.user_data).decode(),
    }
    order = {"name": req.identity.name, "flavorRef": flavor}
    order |= {key: value for key, value in optional.items() if value}
    if not spec.root_disk_size:
        return order | {"imageRef": image}
    volume: dict[str, Any] = {
        "boot_index": 0,
        "uuid": image,
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": spec.root_disk_size,
        "delete_on_termination": True,
    }
    if spec.root_disk_type:
        volume["volume_type"] = spec.root_disk_type
    return order | {"block_device_mapping_v2": [volume]}


async def _attach(
    session: Session, identity: cloud.Identity, spec: Spec
) -> Sequence[Mapping[str, str]]:
    """Return the networks of a server for Nova; create the ports that Nova cannot create."""
    needs_ports = any(map(spec.needs_port, spec.attachments))
    existing = await list_ports(session, identity) if needs_ports else []
    names = spec.security_groups if needs_ports else ()
    groups = [await _find_id(session, GROUP, "securityGroups", name) for name in names]
    networks = []
    for network in spec.attachments:
        if network.port_id:
            networks.append({"port": network.port_id})
            continue
        number = network.id or await _find_id(session, NETWORK, NETWORKS, network.name)
        if not spec.needs_port(network):
            networks.append({"uuid": number})
            continue
        order: dict[str, Any] = {
            "name": f"{identity.name}-{number}",
            "description": describe_port(identity),
            "network_id": number,
            "allowed_address_pairs": [{"ip_address": cidr} for cidr in spec.allowed_cidrs(network)],
        }
        if groups:
            order["security_groups"] = groups
        if network.subnet:
            subnet = await _find_id(session, SUBNET, NETWORKS, network.subnet, network_id=number)
            order["fixed_ips"] = [{"subnet_id": subnet}]
        networks.append({"port": await _ensure_port(session, order, existing)})
    return networks


async def _ensure_port(
    session: Session, order: Mapping[str, Any], existing: Sequence[neutron.Port]
) -> str:
    """Return the ID of a port; create it unless an earlier call created an equal one."""
    for port in existing:
        if port.name == order["name"]:
            if _is_equal(port, order):
                return port.id
            # The class was changed after a failed creation.
            await session.neutron.delete_port(port.id)
    async with JOURNAL.part(PORT, order["name"]) as part:
        number = (await session.neutron.create_port(order)).id
        part.created(number)
    return number


def _is_equal(port: neutron.Port, order: Mapping[str, Any]) -> bool:
    """Return whether a port has the addresses and security groups of an order."""
    pairs = {pair["ip_address"] for pair in order["allowed_address_pairs"]}
    subnets = {address["subnet_id"] for address in order.get("fixed_ips", ())}
    groups = set(order.get("security_groups", port.security_groups))
    return (
        {pair.ip_address for pair in port.allowed_address_pairs or ()} == pairs
        and subnets <= {address.subnet_id for address in port.fixed_ips}
        and set(port.security_groups) == groups
    )


# --- ports --------------------------------------------------------------------------------------


async def list_ports(session: Session, identity: cloud.Identity) -> Sequence[neutron.Port]:
    """Return the ports with the identity of a machine: one request; none without an identity."""
    if not (identity.cluster and identity.uid):
        return []
    text = describe_port(identity)
    ports, _ = await session.neutron.ports({"description": text})
    return [port for port in ports if port.description == text]


async def _delete_ports(session: Session, owner: cloud.Identity, provider_id: str) -> None:
    """Delete the ports of an owner; with a provider ID, not those of the owner's other servers."""
    for port in await list_ports(session, owner):
        if not (provider_id and port.device_id) or provider_id.lower().endswith(port.device_id):
            await session.neutron.delete_port(port.id)


async def _find_part(session: Session, req: cloud.PartRequest) -> neutron.Port | None:
    if req.kind != PORT:
        raise cloud.Unimplemented(f"parts of kind {req.kind!r} are unknown")
    ports = await list_ports(session, req.identity)
    return next((port for port in ports if port.name == req.name), None)


# --- references of a spec -----------------------------------------------------------------------


Kind = tuple[str, str, str]
"""Resources that a spec names: service of `client.Client`, path and key of the listing."""

FLAVOR: Kind = ("compute", "/flavors", "flavors")
IMAGE: Kind = ("image", "/v2/images", "images")
NETWORK: Kind = ("network", "/v2.0/networks", "networks")
SUBNET: Kind = ("network", "/v2.0/subnets", "subnets")
GROUP: Kind = ("network", "/v2.0/security-groups", "security_groups")
PORTS: Kind = ("network", "/v2.0/ports", "ports")
SERVER_GROUP: Kind = ("compute", "/os-server-groups", "server_groups")


async def _find_ids(session: Session, kind: Kind, word: str, **query: str) -> Sequence[str]:
    """Return the IDs of the resources with an ID or a name, and with the fields of a query."""
    name, path, key = kind
    service: client.Service = getattr(session.api, name)
    if name != "compute":  # Nova has no such filters, so all resources are listed
        query = {**query, "id" if config.is_uuid(word) else "name": word}
    found, _ = await service.list_all(path, key, neutron.Named, query=query)
    return [entry.id for entry in found if word in (entry.id, entry.name)]


async def _find_id(session: Session, kind: Kind, field: str, word: str, **query: str) -> str:
    """Return the ID of a resource, which is given by name or ID; no request for an ID.

    Raises:
        InvalidArgument: no resource has the name, or several have it.
    """
    if config.is_uuid(word):
        return word
    ids = await _find_ids(session, kind, word, **query)
    if len(ids) != 1:
        raise cloud.InvalidArgument(f"{field}: {_count_fault(word, ids)}")
    return ids[0]


def _count_fault(word: str, ids: Sequence[str]) -> str:
    if not ids:
        return f"{word!r} does not exist in this project"
    return f"{len(ids)} resources are named {word!r}: {', '.join(sorted(ids))}; set an ID"


async def _find_missing(session: Session, spec: Spec) -> Sequence[cloud.Problem]:
    """Return a problem for each reference to a resource that does not exist or is ambiguous."""
    faults = []

    async def check(field: str, kind: Kind, word: str, **query: str) -> Sequence[str]:
        if not word:
            return []
        ids = await _find_ids(session, kind, word, **query)
        if len(ids) != 1:
            faults.append(cloud.Problem(field=field, message=_count_fault(word, ids)))
        return ids

    await check("flavorName", FLAVOR, spec.flavor_name)
    if not spec.image_id:  # hidden and community images are not listed
        await check("imageName", IMAGE, spec.image_name)
    for network in spec.attachments:
        ids = await check(NETWORKS, NETWORK, network.id or network.name)
        if len(ids) == 1:
            await check(NETWORKS, SUBNET, network.subnet, network_id=ids[0])
        await check(NETWORKS, PORTS, network.port_id)
    for group in spec.security_groups:
        await check("securityGroups", GROUP, group)
    await check("serverGroupID", SERVER_GROUP, spec.server_group_id)
    if spec.key_name and not await session.nova.has_keypair(spec.key_name):
        text = f"{spec.key_name!r} does not exist; key pairs belong to a user, not to the project"
        faults.append(cloud.Problem(field="keyName", message=text))
    return faults

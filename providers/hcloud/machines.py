"""Machine driver of the Hetzner Cloud.

Provider spec  see `Spec`
Credentials    `token`, an API token with write permission

Servers, their SSH keys and their volumes carry the machine's identity as labels. Keys and volumes
are created before the server. Placement groups are shared by the machines of a pool; their
labels are cluster, namespace and pool. Server names are unique in a project: repeating a creation
whose response was lost yields a name conflict. The driver then returns the existing server if its
labels have the machine's identity.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud.helpers import is_label_value
from ccm.cloud.machines import Marks, convert_spec, without_nulls
from ccm.model.selectors import BadSelectorError, parse_labels
from ccm.model.times import parse_optional_time

from . import client, instances, names
from .names import CLUSTER

MARKS = Marks(
    cluster=CLUSTER, namespace=names.NAMESPACE, pool=names.POOL, name=names.NAME, uid=names.UID
)
PREFIX = CLUSTER.partition("/")[0] + "/"
"""Prefix of all identity labels."""

MIN_VOLUME_GB, MAX_VOLUME_GB = 10, 10240
"""Limits of the API, in GB."""

_NAMES = {"assign_public_ipv4": "assignPublicIPv4", "assign_public_ipv6": "assignPublicIPv6"}


def to_field(field: str) -> str:
    """Return the name of a field in JSON."""
    first, *more = field.split("_")
    return _NAMES.get(field) or first + "".join(map(str.capitalize, more))


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=to_field):
    """The `providerSpec` of a MachineClass; null means the default.

    `sshKeys`, `networks` and `firewalls` are names or IDs. Without `sshKeys` the server gets a
    generated public key without a private key, since the API would mail a password otherwise.
    `placementGroupPrefix` spreads the servers of a pool over placement groups that are created
    with this prefix. `volumes` are sizes in GB of volumes that are created and deleted with the
    server. Of `datacenter`, only the location is used.
    """

    server_type: str
    image: str = "ubuntu-24.04"
    location: str = ""
    datacenter: str = ""
    placement_group_prefix: str = ""
    ssh_keys: tuple[str | int, ...] = ()
    networks: tuple[str | int, ...] = ()
    firewalls: tuple[str | int, ...] = ()
    volumes: tuple[int, ...] = ()
    labels: dict[str, str] = {}
    assign_public_ipv4: bool = True
    assign_public_ipv6: bool = True

    @property
    def effective_location(self) -> str:
        """Location; empty = the cloud chooses."""
        return self.location or self.datacenter.partition("-")[0]


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
    """Return the API token.

    Raises:
        InvalidArgument: the token is missing, or not valid in a header; the message omits it.
    """
    value = cloud.token_of(credentials, "token")
    if not value:
        raise cloud.InvalidArgument(
            "the credentials lack the key `token`; set it to an API token of the project"
        )
    return value


def user_data(content: bytes) -> str:
    """Return user data in the API's form. Raises `InvalidArgument` unless it is UTF-8."""
    try:
        return content.decode()
    except ValueError:
        raise cloud.InvalidArgument("user data must be text in UTF-8") from None


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, faults = convert_spec(given, Spec)
    for name, value in values.items():
        faults += _check_value(name, value)
    if given.get("serverType") is None:
        faults.append(cloud.Problem(field="serverType", message="is missing; set one such as cx23"))
    return sorted([*faults, *_contradictions(values)], key=lambda fault: fault.field)


def _contradictions(values: Mapping[str, Any]) -> list[cloud.Problem]:
    faults = []
    if values.get("location") and values.get("datacenter"):
        text = "conflicts with location; remove one of the two"
        faults.append(cloud.Problem(field="datacenter", message=text))
    if values.get("volumes") and not (values.get("location") or values.get("datacenter")):
        text = "is missing; volumes need the location of the server"
        faults.append(cloud.Problem(field="location", message=text))
    ways = ("assignPublicIPv4", "assignPublicIPv6")
    if not values.get("networks") and not any(values.get(way, True) for way in ways):
        text = f"is missing; set a network, or enable {' or '.join(ways)}"
        faults.append(cloud.Problem(field="networks", message=text))
    return faults


def _check_value(name: str, value: Any) -> list[cloud.Problem]:
    """Return the problem of a value that has the right type, if any."""
    match name:
        case "labels":
            reason = f"must be valid labels, without the reserved key prefix {PREFIX}"
            bad = not all(_is_label(*entry) for entry in value.items())
        case "volumes":
            reason = f"each must be a size from {MIN_VOLUME_GB} to {MAX_VOLUME_GB} GB"
            bad = not all(MIN_VOLUME_GB <= entry <= MAX_VOLUME_GB for entry in value)
        case "datacenter":
            reason = "must be a name such as fsn1-dc14; prefer location"
            bad = parse_digits(value) is not None or (value != "" and not value.partition("-")[0])
        case "sshKeys" | "networks" | "firewalls":
            reason, bad = "each must be a name or an ID", not all(map(_is_name_or_id, value))
        case "serverType":
            reason, bad = "must not be empty", not value
        case _:
            return []
    return [cloud.Problem(field=name, message=f"{value!r}: {reason}")] if bad else []


def _is_name_or_id(word: str | int) -> bool:
    """Return whether a value is a name or an ID; digits alone must be a valid ID."""
    if isinstance(word, int) or word.isdigit():
        return bool(parse_digits(str(word)))
    return bool(word)


def _is_label(key: str, value: str) -> bool:
    try:
        parse_labels(f"{key}={value}")
    except BadSelectorError:
        return False
    return is_label_value(value) and not key.startswith(PREFIX)


RETRY_S = 2.0
"""Retry delay, in seconds, while the cloud deletes a resource."""

MAX_GROUP_SERVERS = 10
"""Maximum number of servers in a spread placement group (limit of the API)."""

PHASES: Mapping[str, cloud.Phase] = {
    "initializing": cloud.Phase.CREATING,
    "starting": cloud.Phase.CREATING,
    "running": cloud.Phase.RUNNING,
    "stopping": cloud.Phase.STOPPED,
    "off": cloud.Phase.STOPPED,
    "deleting": cloud.Phase.DELETING,
}

Clients = cloud.Sessions[client.Client]

JOURNAL = cloud.PartJournal()
SSH_KEY, PLACEMENT_GROUP, VOLUME = "sshkey", "placementgroup", "volume"
"""Kinds of parts in the journal."""

PARTS: Mapping[str, tuple[str, type[client.Labelled]]] = {
    SSH_KEY: ("ssh_keys", client.Labelled),
    PLACEMENT_GROUP: ("placement_groups", client.PlacementGroup),
    VOLUME: ("volumes", client.Volume),
}
"""Kind of part -> table of the API, and type of its resources."""


def open_clients(endpoint: str) -> Clients:
    """Return a pool of clients, one per set of credentials."""
    return cloud.Sessions(lambda _, credentials: client.open_client(endpoint, token(credentials)))


class HcloudMachines(cloud.Driver[Clients]):
    """Implementation of `MachineDriver`, `SpecValidation`, `MachineMetrics` and `JournalParts`."""

    csi_driver = "csi.hetzner.cloud"
    # Kubermatic's machine-controller calls this cloud "hetzner".
    provider_names = ("hcloud", "hetzner")

    marks = MARKS

    def __init__(self, spi: Clients) -> None:
        super().__init__(spi)
        # Weak values: a lock is dropped with its last user.
        self._groups: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Create the server: two requests, or one if the spec has SSH keys.

        Each network or firewall that is given by name takes another request. Volumes take one to
        list them and one for each new volume; a placement group takes one, or two if it is new.
        """
        spec, identity = parse_spec(req.provider_spec), req.identity
        _check_label_values(identity)
        async with self.spi.of(req.credentials, pool=identity.pool) as api:
            order = await _build_order(api, req, spec, self.marks)
            if not spec.placement_group_prefix:
                return await _create_server(api, identity, order, self.marks)
            # Locked, since a concurrent deletion would remove the group while it is still empty.
            async with self._group_lock(identity):
                group = await _ensure_group(api, identity, spec.placement_group_prefix)
                order["placement_group"] = group
                return await _create_server(api, identity, order, self.marks)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Return the status of the server: one request. Raises `NotFound` or `NotOwned`."""
        marks, identity = self.marks, req.identity
        async with self.spi.of(req.credentials, pool=identity.pool) as api:
            if req.provider_id:
                return _info((await _get_owned_server(api, req, marks))[0])
            for server in await list_by_identity(api, "servers", client.Server, identity, marks):
                return _info(server)
        raise cloud.NotFound(f"machine {req.identity.name} has no server")

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Delete the server and its resources: five requests or more. Raises `RetryAfter`."""
        marks = self.marks
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            numbers, identity = await _find_servers_to_delete(api, req, marks)
            # Keys first: the labels may have another identity (of an imported or restored machine),
            # which is known only while the server exists.
            for key in await list_by_identity(api, "ssh_keys", client.Labelled, identity, marks):
                await _delete(api, f"/ssh_keys/{key.id}")
            if identity != req.identity:
                # Volumes can be deleted only after the server, so they get the machine's identity.
                for volume in await _list_volumes(api, identity, numbers, marks):
                    await _relabel(api, volume, marks.selector(req.identity))
            for number in numbers:
                await _delete(api, f"/servers/{number}")
            for volume in await _list_volumes(api, req.identity, numbers, marks):
                await _delete(api, f"/volumes/{volume.id}")
            if not (req.identity.cluster and req.identity.pool):
                return cloud.DeleteMachineResponse()
            async with self._group_lock(req.identity):
                for group in await _list_groups(api, req.identity):
                    if not group.servers:
                        await _delete(api, f"/placement_groups/{group.id}")
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """Return the servers of a pool: one request per page of 50."""
        if not is_label_value(req.pool):
            return []
        async with self.spi.of(req.credentials, pool=req.pool) as api:
            servers = await api.list_by_labels("servers", client.Server, {names.POOL: req.pool})
        return [
            cloud.MachineRecord(
                identity=self.marks.to_identity(server.labels, server.name),
                info=_info(server),
                created=parse_optional_time(server.created),
            )
            for server in servers
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """Return the problems of a spec; if `live`, look up each referenced name in a request."""
        faults = list(problems(spec, credentials))
        if live and not faults:
            try:
                async with self.spi.of(credentials) as api:
                    faults += await _find_missing(api, parse_spec(spec))
            except (cloud.Unauthenticated, cloud.PermissionDenied) as error:
                faults.append(cloud.Problem(field="secretRef", message=str(error)))
        return faults

    async def find_part(self, req: cloud.PartRequest) -> str | None:
        """Return the ID of a key, volume or empty placement group with our labels: one request."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            part = await _find_part(api, req, self.marks)
        return None if part is None else str(part.id)

    async def delete_part(self, req: cloud.PartRequest) -> None:
        """Delete the part that `find_part` finds: two requests, or one if there is none."""
        # Locked, so that no server is created in the group in between.
        async with (
            self.spi.of(req.credentials, pool=req.identity.pool) as api,
            self._group_lock(req.identity),
        ):
            if (part := await _find_part(api, req, self.marks)) is not None:
                if isinstance(part, client.Volume) and part.server is not None:
                    # The deletion of that server deletes it, or a user has attached it.
                    text = f"volume {part.id} is attached to server {part.server}"
                    raise cloud.RetryAfter(text, seconds=RETRY_S)
                await _delete(api, f"/{PARTS[req.kind][0]}/{part.id}")

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Return size and location for the metrics; empty values for an invalid spec."""
        try:
            parsed = parse_spec(spec)
        except cloud.InvalidArgument:
            return {"size": "", "location": ""}
        return {"size": parsed.server_type, "location": parsed.effective_location}

    def _group_lock(self, identity: cloud.Identity) -> asyncio.Lock:
        return self._groups.setdefault((identity.cluster, identity.pool), asyncio.Lock())


# --- creation -----------------------------------------------------------------------------------


async def _build_order(
    api: client.Client, req: cloud.MachineRequest, spec: Spec, marks: Marks
) -> dict[str, Any]:
    """Create volumes and key of a server; return the request body that creates the server."""
    content = user_data(req.user_data)
    networks = await _resolve_ids(api, "networks", spec.networks)
    firewalls = await _resolve_ids(api, "firewalls", spec.firewalls)
    volumes = await _ensure_volumes(api, req.identity, spec, marks)
    keys = [str(reference) for reference in spec.ssh_keys]
    order: dict[str, Any] = {
        "name": req.identity.name,
        "server_type": spec.server_type,
        "image": spec.image,
        "ssh_keys": keys or [await _ensure_key(api, req.identity, marks)],
        "user_data": content,
        "labels": {**spec.labels, **marks.to_labels(req.identity)},
        "networks": networks,
        "firewalls": [{"firewall": reference} for reference in firewalls],
        "volumes": volumes,
        "public_net": {
            "enable_ipv4": spec.assign_public_ipv4,
            "enable_ipv6": spec.assign_public_ipv6,
        },
    }
    return order | ({"location": spec.effective_location} if spec.effective_location else {})


async def _create_server(
    api: client.Client, identity: cloud.Identity, order: Mapping[str, Any], marks: Marks
) -> cloud.MachineInfo:
    try:
        server, _ = await api.create("servers", "server", client.Server, order)
    except cloud.AlreadyExists:
        existing = await api.find_by_name("servers", client.Server, identity.name)
        if existing is None:
            raise
        if not marks.match(existing.labels, identity):
            # The server belongs to another machine: delete the key and volumes of this machine.
            for table in ("ssh_keys", "volumes"):
                for leftover in await list_by_identity(
                    api, table, client.Labelled, identity, marks
                ):
                    await _delete(api, f"/{table}/{leftover.id}")
            raise cloud.AlreadyExists(
                f"server {existing.id} is named {identity.name}, but does not belong to this "
                "machine; delete the machine, or the server if it is unused"
            ) from None
        if existing.status == "deleting":
            raise cloud.RetryAfter(
                f"server {existing.id} is being deleted", seconds=RETRY_S
            ) from None
        server = existing
    return _info(server)


async def _resolve_ids(api: client.Client, table: str, words: Sequence[str | int]) -> list[int]:
    """Return the IDs of resources given by name or ID."""
    key, ids = table.removesuffix("s"), []
    for word in map(str, words):
        number = parse_digits(word)
        if number is None:
            number = (await api.resolve(table, key, client.Named, word)).id
        ids.append(number)
    return ids


async def _ensure_key(api: client.Client, identity: cloud.Identity, marks: Marks) -> str:
    """Create a public key without a private key, and return its name.

    For a server without a key, the API mails a password.
    """
    seed = sha256(f"{identity.cluster}/{identity.uid}".encode()).digest()
    name = f"kube-ccm-{seed.hex()[:32]}"
    kind = b"ssh-ed25519"
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, seed))
    public = f"{kind.decode()} {base64.b64encode(blob).decode()} {name}"
    order = {"name": name, "public_key": public, "labels": marks.to_labels(identity)}
    async with JOURNAL.part(SSH_KEY, name) as part:
        with suppress(cloud.AlreadyExists):  # created by an earlier call
            await api.create("ssh_keys", "ssh_key", client.Labelled, order)
        part.created(name)  # keys can be given by name
    return name


async def _ensure_volumes(
    api: client.Client, identity: cloud.Identity, spec: Spec, marks: Marks
) -> list[int]:
    """Return the IDs of the volumes; create those that do not exist yet."""
    if not spec.volumes:
        return []
    existing = {
        entry.labels.get(names.VOLUME_INDEX): entry.id
        for entry in await list_by_identity(api, "volumes", client.Volume, identity, marks)
    }
    ids = []
    for number, size in enumerate(spec.volumes):
        volume_id = existing.get(str(number))
        if volume_id is None:
            labels = {**marks.to_labels(identity), names.VOLUME_INDEX: str(number)}
            name = f"{identity.name}-{number}"
            order = {
                "name": name,
                "size": size,
                "location": spec.effective_location,
                "labels": labels,
            }
            async with JOURNAL.part(VOLUME, name) as part:
                volume_id = (await api.create("volumes", "volume", client.Volume, order))[0].id
                part.created(str(volume_id))
        ids.append(volume_id)
    return ids


async def _ensure_group(api: client.Client, identity: cloud.Identity, prefix: str) -> int:
    """Return the ID of a group of this pool with room for a server; create one if necessary."""
    for group in await _list_groups(api, identity):
        if group.name.startswith(f"{prefix}-") and len(group.servers) < MAX_GROUP_SERVERS:
            return group.id
    labels = {
        CLUSTER: identity.cluster,
        names.NAMESPACE: identity.namespace,
        names.POOL: identity.pool,
    }
    name = f"{prefix}-{token_hex(3)}"
    order = {"name": name, "type": "spread", "labels": labels}
    async with JOURNAL.part(PLACEMENT_GROUP, name) as part:
        created, _ = await api.create(
            "placement_groups", "placement_group", client.PlacementGroup, order
        )
        part.created(str(created.id))
    return created.id


async def _list_groups(
    api: client.Client, identity: cloud.Identity
) -> Sequence[client.PlacementGroup]:
    """Return the placement groups of a pool, including older groups without a namespace label.

    A pool in another namespace may have the same name. Its groups are excluded: the deletion of a
    machine also deletes empty groups, and another process, which has its own lock, may be about to
    create the first server in such a group.
    """
    labels = {names.CLUSTER: identity.cluster, names.POOL: identity.pool}
    groups = await api.list_by_labels("placement_groups", client.PlacementGroup, labels)
    return [
        group
        for group in groups
        if group.labels.get(names.NAMESPACE, "") in ("", identity.namespace)
    ]


async def _find_part(
    api: client.Client, req: cloud.PartRequest, marks: Marks
) -> client.Labelled | None:
    if req.kind not in PARTS:
        raise cloud.Unimplemented(f"parts of kind {req.kind!r} are unknown")
    part = await api.find_by_name(*PARTS[req.kind], req.name)
    if isinstance(part, client.PlacementGroup):
        # A group belongs to a pool. While it has servers, their deletions remove it.
        owner = marks.to_identity(part.labels, "")
        is_ours = (owner.cluster, owner.pool) == (req.identity.cluster, req.identity.pool)
        return part if is_ours and owner.cluster and not part.servers else None
    return part if part is not None and marks.match(part.labels, req.identity) else None


async def _list_volumes(
    api: client.Client, identity: cloud.Identity, servers: Sequence[int], marks: Marks
) -> Sequence[client.Volume]:
    """Return the volumes of an identity, except those attached to servers other than `servers`."""
    volumes = await list_by_identity(api, "volumes", client.Volume, identity, marks)
    return [volume for volume in volumes if volume.server in (None, *servers)]


async def _relabel(api: client.Client, volume: client.Volume, labels: Mapping[str, str]) -> None:
    with suppress(cloud.NotFound):
        await api.set_name_and_labels(
            "volumes", "volume", volume, name=volume.name, labels={**volume.labels, **labels}
        )


async def _delete(api: client.Client, path: str) -> None:
    """Delete a resource. Raises `RetryAfter` if the deletion takes time."""
    with suppress(cloud.NotFound):
        action = await api.delete(path)
        if action is not None and action.status == "running":
            raise cloud.RetryAfter(f"{path} is being deleted", seconds=RETRY_S)


async def _find_missing(api: client.Client, spec: Spec) -> list[cloud.Problem]:
    """Return a problem for each referenced name that does not exist in the project."""
    named = [
        ("serverType", "server_types", spec.server_type),
        ("image", "images", spec.image),
        *([("location", "locations", spec.effective_location)] if spec.effective_location else []),
        *(("networks", "networks", str(reference)) for reference in spec.networks),
        *(("firewalls", "firewalls", str(reference)) for reference in spec.firewalls),
        *(("sshKeys", "ssh_keys", str(reference)) for reference in spec.ssh_keys),
    ]
    return [
        cloud.Problem(field=field, message=f"{word!r} does not exist in this project")
        for field, table, word in named
        if parse_digits(word) is None and await api.find_by_name(table, client.Named, word) is None
    ]


# --- ownership ----------------------------------------------------------------------------------


def _check_label_values(identity: cloud.Identity) -> None:
    for word, text in (
        ("cluster", identity.cluster),
        ("pool", identity.pool),
        ("name", identity.name),
    ):
        if not is_label_value(text):
            raise cloud.InvalidArgument(
                f"the {word} of the machine, {text!r}, is not a valid label value; use at most 63 "
                "characters"
            )


async def list_by_identity(
    api: client.Client, table: str, kind: type[client.L], identity: cloud.Identity, marks: Marks
) -> Sequence[client.L]:
    """Return the resources whose labels have an identity; none without UID or valid cluster."""
    if not identity.uid or not is_label_value(identity.cluster):
        return []
    resources = await api.list_by_labels(table, kind, marks.selector(identity))
    return [resource for resource in resources if marks.match(resource.labels, identity)]


async def _get_owned_server(
    api: client.Client, req: cloud.MachineRequest, marks: Marks
) -> tuple[client.Server, cloud.Identity]:
    """Return the server with the provider ID, and the identity in the labels of its resources.

    Raises:
        NotFound: the server does not exist.
        NotOwned: the server belongs to another machine.
    """
    number = instances.parse_id(req.provider_id)
    server = await api.get(f"/servers/{number}", "server", client.Server)
    if marks.match(server.labels, req.identity):
        return server, req.identity
    return server, cloud.check_owner(req, marks.to_identity(server.labels, server.name))


async def _find_servers_to_delete(
    api: client.Client, req: cloud.MachineRequest, marks: Marks
) -> tuple[Sequence[int], cloud.Identity]:
    """Return the IDs of the servers to delete, and the identity in labels of their resources."""
    if not req.provider_id:
        servers = await list_by_identity(api, "servers", client.Server, req.identity, marks)
        return [entry.id for entry in servers], req.identity
    try:
        server, identity = await _get_owned_server(api, req, marks)
    except cloud.NotFound:
        return [], req.identity
    return [server.id], identity


def _info(server: client.Server) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=cloud.format_provider_id(instances.SCHEME, str(server.id)),
        node_name=server.name,
        addresses=_addresses(server),
        phase=PHASES.get(server.status, cloud.Phase.UNKNOWN),
    )


def _addresses(server: client.Server) -> Sequence[cloud.NodeAddress]:
    """Return the name, the public addresses, and the address in each network.

    The spec of a MachineClass may name several networks, and none of them has precedence.
    """
    private = [cloud.address("InternalIP", net.ip) for net in server.private_net if net.ip]
    return (*instances.addresses(server, "dualstack", None), *private)

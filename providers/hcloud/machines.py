"""Servers by request: the driver for MachineClasses.

Provider spec  see `Spec`
Credentials    `token`, an API token with rights to write

A server carries its identity as labels, and so do the SSH key and the volumes that are created
before it or beside it. Placement groups are shared by the machines of a pool and carry
cluster, namespace and pool. Names of servers are unique in a project, so an order whose answer was
lost is refused when it comes again, and what has the name is looked at.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any

import msgspec

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud.helpers import is_label_value
from ccm.cloud.machines import Marks, converted, without_nulls
from ccm.model.selectors import BadSelectorError, parse_labels
from ccm.model.times import moment

from . import client, instances, names
from .names import CLUSTER

MARKS = Marks(
    cluster=CLUSTER, namespace=names.NAMESPACE, pool=names.POOL, name=names.NAME, uid=names.UID
)
PREFIX = CLUSTER.partition("/")[0] + "/"
"""What the names of all of them begin with."""

SMALLEST_VOLUME, LARGEST_VOLUME = 10, 10240
"""GB, as the API has them."""

_NAMES = {"assign_public_ipv4": "assignPublicIPv4", "assign_public_ipv6": "assignPublicIPv6"}


def _name(field: str) -> str:
    first, *more = field.split("_")
    return _NAMES.get(field) or first + "".join(map(str.capitalize, more))


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=_name):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

    `sshKeys`, `networks` and `firewalls` are names or IDs. Without `sshKeys` the server gets a key
    that nobody has, or else a password would be mailed. `placementGroupPrefix` spreads the servers
    of a pool over groups of that name that are made for it. `volumes` are sizes in GB of volumes
    that are made with the server and go with it. Of `datacenter` only the location counts.
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
    def place(self) -> str:
        """The location; empty = the cloud chooses."""
        return self.location or self.datacenter.partition("-")[0]


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
    """The API token.

    Raises:
        InvalidArgument: there is none, or none for a header; its value is not told.
    """
    found = cloud.token_of(credentials, "token")
    if not found:
        raise cloud.InvalidArgument("the credentials lack token, an API token of the project")
    return found


def user_data(content: bytes) -> str:
    """User data as the API takes it. Raises InvalidArgument."""
    try:
        return content.decode()
    except ValueError:
        raise cloud.InvalidArgument("user data must be text in UTF-8") from None


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, found = converted(given, Spec)
    for name, value in values.items():
        found += _wrong(name, value)
    if given.get("serverType") is None:
        found.append(cloud.Problem(field="serverType", message="is missing; such as cx23"))
    return sorted([*found, *_contradictions(values)], key=lambda one: one.field)


def _contradictions(values: Mapping[str, Any]) -> list[cloud.Problem]:
    found = []
    if values.get("location") and values.get("datacenter"):
        text = "is given beside location; leave it out"
        found.append(cloud.Problem(field="datacenter", message=text))
    if values.get("volumes") and not (values.get("location") or values.get("datacenter")):
        text = "is missing; volumes have to be made where the server will be"
        found.append(cloud.Problem(field="location", message=text))
    ways = ("assignPublicIPv4", "assignPublicIPv6")
    if not values.get("networks") and not any(values.get(one, True) for one in ways):
        text = f"is missing; without {' and '.join(ways)} a server needs one"
        found.append(cloud.Problem(field="networks", message=text))
    return found


def _wrong(name: str, value: Any) -> list[cloud.Problem]:
    """What is wrong with a value of the right type."""
    match name:
        case "labels":
            said = f"must be labels, with no key below {PREFIX}, which are the cluster's marks"
            bad = not all(_is_label(*one) for one in value.items())
        case "volumes":
            said = f"each must be a size from {SMALLEST_VOLUME} to {LARGEST_VOLUME} (GB)"
            bad = not all(SMALLEST_VOLUME <= one <= LARGEST_VOLUME for one in value)
        case "datacenter":
            said = "must be a name such as fsn1-dc14; better use location"
            bad = parse_digits(value) is not None or (value != "" and not value.partition("-")[0])
        case "sshKeys" | "networks" | "firewalls":
            said, bad = "each must be a name or an ID", not all(map(_is_name_or_id, value))
        case "serverType":
            said, bad = "must not be empty", not value
        case _:
            return []
    return [cloud.Problem(field=name, message=f"{value!r}: {said}")] if bad else []


def _is_name_or_id(word: str | int) -> bool:
    """Whether a word names a thing; what is all digits is an ID, and has to be one."""
    if isinstance(word, int) or word.isdigit():
        return bool(parse_digits(str(word)))
    return bool(word)


def _is_label(key: str, value: str) -> bool:
    try:
        parse_labels(f"{key}={value}")
    except BadSelectorError:
        return False
    return is_label_value(value) and not key.startswith(PREFIX)


AGAIN_S = 2.0
"""Seconds after which to ask whether the cloud has done it."""

GROUP_SERVERS = 10
"""Most servers of a spread group."""

PHASES: Mapping[str, cloud.Phase] = {
    "initializing": cloud.Phase.CREATING,
    "starting": cloud.Phase.CREATING,
    "running": cloud.Phase.RUNNING,
    "stopping": cloud.Phase.STOPPED,
    "off": cloud.Phase.STOPPED,
    "deleting": cloud.Phase.DELETING,
}

Clients = cloud.Sessions[client.Client]


def open_clients(endpoint: str) -> Clients:
    """Clients of the cloud by credentials."""
    return cloud.Sessions(lambda _, credentials: client.open_client(endpoint, token(credentials)))


class HcloudMachines(cloud.Driver[Clients]):
    """`MachineDriver`, `SpecValidation` and `MachineMetrics`."""

    csi_driver = "csi.hetzner.cloud"
    # Kubermatic's machine-controller calls this cloud "hetzner".
    provider_names = ("hcloud", "hetzner")

    def __init__(self, spi: Clients) -> None:
        super().__init__(spi)
        self._groups: dict[tuple[str, str], asyncio.Lock] = {}

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Two requests, one with keys in the spec; one for each volume, name of a network or
        firewall, and two for a placement group.
        """
        spec, who = read(req.provider_spec), req.identity
        _check_marks(who)
        async with self.spi.of(req.credentials, pool=who.pool) as api:
            order = await _order(api, req, spec)
            if not spec.placement_group_prefix:
                return await _make(api, who, order)
            # Nobody may take an empty group away between its making and its first server.
            async with self._group_lock(who):
                group = await _group(api, who, spec.placement_group_prefix)
                return await _make(api, who, {**order, "placement_group": group})

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            if req.provider_id:
                return _info((await _owned(api, req))[0])
            for server in await _marked(api, "servers", client.Server, req.identity):
                return _info(server)
        raise cloud.NotFound(f"no server of machine {req.identity.name}")

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Five requests, more for what was made beside it; not over before all is gone."""
        async with self.spi.of(req.credentials, pool=req.identity.pool) as api:
            numbers, who = await _to_delete(api, req)
            # First, for with the server whoever asks by provider ID alone loses the trace of it.
            for key in await _marked(api, "ssh_keys", client.Labelled, who):
                await _gone(api, f"/ssh_keys/{key.id}")
            for number in numbers:
                await _gone(api, f"/servers/{number}")
            for volume in await _marked(api, "volumes", client.Volume, who):
                if volume.server in (None, *numbers):
                    await _gone(api, f"/volumes/{volume.id}")
            if not (req.identity.cluster and req.identity.pool):
                return cloud.DeleteMachineResponse()
            async with self._group_lock(req.identity):
                for group in await _groups(api, req.identity):
                    if not group.servers:
                        await _gone(api, f"/placement_groups/{group.id}")
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """One request for each page of 50."""
        if not is_label_value(req.pool):
            return []
        async with self.spi.of(req.credentials, pool=req.pool) as api:
            found = await api.labelled("servers", client.Server, {names.POOL: req.pool})
        return [
            cloud.MachineRecord(
                identity=MARKS.identity(one.labels, one.name),
                info=_info(one),
                created=moment(one.created),
            )
            for one in found
        ]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """One request for each thing that the spec names, if it is to be live."""
        found = list(problems(spec, credentials))
        if live and not found:
            try:
                async with self.spi.of(credentials) as api:
                    found += await _absent(api, read(spec))
            except (cloud.Unauthenticated, cloud.PermissionDenied) as error:
                found.append(cloud.Problem(field="secretRef", message=str(error)))
        return found

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Type and place."""
        try:
            found = read(spec)
        except cloud.InvalidArgument:
            return {"size": "", "location": ""}
        return {"size": found.server_type, "location": found.place}

    def _group_lock(self, who: cloud.Identity) -> asyncio.Lock:
        return self._groups.setdefault((who.cluster, who.pool), asyncio.Lock())


# --- making -------------------------------------------------------------------------------------


async def _order(api: client.Client, req: cloud.MachineRequest, spec: Spec) -> dict[str, Any]:
    """The order of a server; what it needs beside it is made."""
    content = user_data(req.user_data)
    networks = await _numbers(api, "networks", spec.networks)
    firewalls = await _numbers(api, "firewalls", spec.firewalls)
    volumes = await _make_volumes(api, req.identity, spec)
    keys = [str(one) for one in spec.ssh_keys] or [await _make_key(api, req.identity)]
    order: dict[str, Any] = {
        "name": req.identity.name,
        "server_type": spec.server_type,
        "image": spec.image,
        "ssh_keys": keys,
        "user_data": content,
        "labels": {**spec.labels, **MARKS.of(req.identity)},
        "networks": networks,
        "firewalls": [{"firewall": one} for one in firewalls],
        "volumes": volumes,
        "public_net": {
            "enable_ipv4": spec.assign_public_ipv4,
            "enable_ipv6": spec.assign_public_ipv6,
        },
    }
    return order | ({"location": spec.place} if spec.place else {})


async def _make(
    api: client.Client, who: cloud.Identity, order: Mapping[str, Any]
) -> cloud.MachineInfo:
    try:
        made, _ = await api.create("servers", "server", client.Server, order)
    except cloud.AlreadyExists:
        found = await api.named("servers", client.Server, who.name)
        if found is None:
            raise
        if not MARKS.bear(found.labels, who):
            # Nothing of ours stays beside a server that is not ours.
            for table in ("ssh_keys", "volumes"):
                for one in await _marked(api, table, client.Labelled, who):
                    await _gone(api, f"/{table}/{one.id}")
            raise cloud.AlreadyExists(
                f"server {found.id} has the name {who.name} and is not this machine's; delete the "
                "machine, or the server if nobody needs it"
            ) from None
        if found.status == "deleting":
            raise cloud.RetryAfter(f"{found.id} is being deleted", seconds=AGAIN_S) from None
        made = found
    return _info(made)


async def _numbers(api: client.Client, table: str, words: Sequence[str | int]) -> list[int]:
    """IDs of things that are named by name or ID."""
    key, found = table.removesuffix("s"), []
    for word in map(str, words):
        number = parse_digits(word)
        if number is None:
            number = (await api.resolved(table, key, client.Named, word)).id
        found.append(number)
    return found


async def _make_key(api: client.Client, who: cloud.Identity) -> str:
    """The name of a key that nobody has: with none the API mails a password to the account."""
    seed = sha256(f"{who.cluster}/{who.uid}".encode()).digest()
    name = f"kube-ccm-{seed.hex()[:32]}"
    kind = b"ssh-ed25519"
    blob = b"".join(len(one).to_bytes(4, "big") + one for one in (kind, seed))
    public = f"{kind.decode()} {base64.b64encode(blob).decode()} {name}"
    order = {"name": name, "public_key": public, "labels": MARKS.of(who)}
    with suppress(cloud.AlreadyExists):  # by an earlier call
        await api.create("ssh_keys", "ssh_key", client.Labelled, order)
    return name


async def _make_volumes(api: client.Client, who: cloud.Identity, spec: Spec) -> list[int]:
    """IDs of the volumes, of which an earlier call may have made some."""
    if not spec.volumes:
        return []
    there = {
        one.labels.get(names.NUMBER): one.id
        for one in await _marked(api, "volumes", client.Volume, who)
    }
    found = []
    for number, size in enumerate(spec.volumes):
        made = there.get(str(number))
        if made is None:
            labels = {**MARKS.of(who), names.NUMBER: str(number)}
            name = f"{who.name}-{number}"
            order = {"name": name, "size": size, "location": spec.place, "labels": labels}
            made = (await api.create("volumes", "volume", client.Volume, order))[0].id
        found.append(made)
    return found


async def _group(api: client.Client, who: cloud.Identity, prefix: str) -> int:
    """The ID of a group of this pool that has room; else one is made."""
    for one in await _groups(api, who):
        if one.name.startswith(f"{prefix}-") and len(one.servers) < GROUP_SERVERS:
            return one.id
    labels = {CLUSTER: who.cluster, names.NAMESPACE: who.namespace, names.POOL: who.pool}
    order = {"name": f"{prefix}-{token_hex(3)}", "type": "spread", "labels": labels}
    made, _ = await api.create("placement_groups", "placement_group", client.Group, order)
    return made.id


async def _groups(api: client.Client, who: cloud.Identity) -> Sequence[client.Group]:
    """Return the groups of a pool, with those that were created before groups had a namespace.

    Another namespace's pool of the same name is left out: its group may be empty only because its
    first server is being ordered, under a lock of another process.
    """
    labels = {names.CLUSTER: who.cluster, names.POOL: who.pool}
    found = await api.labelled("placement_groups", client.Group, labels)
    return [one for one in found if one.labels.get(names.NAMESPACE, "") in ("", who.namespace)]


async def _gone(api: client.Client, path: str) -> None:
    """Delete a thing. Raises RetryAfter: the cloud still works on it."""
    with suppress(cloud.NotFound):
        action = await api.delete(path)
        if action is not None and action.status == "running":
            raise cloud.RetryAfter(f"{path} is being deleted", seconds=AGAIN_S)


async def _absent(api: client.Client, spec: Spec) -> list[cloud.Problem]:
    """What a spec names and the project does not have."""
    named = [
        ("serverType", "server_types", spec.server_type),
        ("image", "images", spec.image),
        *([("location", "locations", spec.place)] if spec.place else []),
        *(("networks", "networks", str(one)) for one in spec.networks),
        *(("firewalls", "firewalls", str(one)) for one in spec.firewalls),
        *(("sshKeys", "ssh_keys", str(one)) for one in spec.ssh_keys),
    ]
    return [
        cloud.Problem(field=field, message=f"{word!r} does not exist in this project")
        for field, table, word in named
        if parse_digits(word) is None and await api.named(table, client.Named, word) is None
    ]


# --- whose it is --------------------------------------------------------------------------------


def _check_marks(who: cloud.Identity) -> None:
    for word, text in (("cluster", who.cluster), ("pool", who.pool), ("name", who.name)):
        if not is_label_value(text):
            raise cloud.InvalidArgument(
                f"the {word} of the machine, {text!r}, cannot be a label of a server; it may have "
                "at most 63 characters"
            )


async def _marked(
    api: client.Client, table: str, kind: type[client.L], who: cloud.Identity
) -> Sequence[client.L]:
    """What bears an identity; nothing for none."""
    if not who.uid or not is_label_value(who.cluster):
        return []
    found = await api.labelled(table, kind, {names.CLUSTER: who.cluster, names.UID: who.uid})
    return [one for one in found if MARKS.bear(one.labels, who)]


async def _owned(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[client.Server, cloud.Identity]:
    """Return the server of the provider ID, and the identity of what was created beside it.

    Raises:
        NotFound: there is no such server.
        NotOwned: it is not the machine's.
    """
    number = instances.parse_id(req.provider_id)
    server = await api.one(f"/servers/{number}", "server", client.Server)
    return server, cloud.check_owner(req, MARKS.identity(server.labels, server.name))


async def _to_delete(
    api: client.Client, req: cloud.MachineRequest
) -> tuple[Sequence[int], cloud.Identity]:
    """Return the IDs of the servers, and the identity of what was created beside them."""
    if not req.provider_id:
        found = await _marked(api, "servers", client.Server, req.identity)
        return [one.id for one in found], req.identity
    try:
        server, who = await _owned(api, req)
    except cloud.NotFound:
        return [], req.identity
    return [server.id], who


def _info(server: client.Server) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=cloud.format_provider_id(instances.SCHEME, str(server.id)),
        node_name=server.name,
        addresses=_addresses(server),
        phase=PHASES.get(server.status, cloud.Phase.UNKNOWN),
    )


def _addresses(server: client.Server) -> Sequence[cloud.NodeAddress]:
    """Name, public addresses, and those in every network: a class does not say which counts."""
    private = [cloud.address("InternalIP", one.ip) for one in server.private_net if one.ip]
    return (*instances.addresses(server, "dualstack", None), *private)

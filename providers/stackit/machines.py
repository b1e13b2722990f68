"""Servers by request: the driver for MachineClasses, in the words of STACKIT's own driver.

Provider spec  see `Spec`
Credentials    `project-id` and `serviceaccount.json`, see `Spec`

A server has the labels of the vendor's driver, machine and class, and three more: the cluster's
marker, the machine's namespace and its UID. Names of servers are not unique here. A server that has
the name of a machine and other labels is in the way all the same: nodes are found by their names.

Provider IDs do not say the region, and a class may change it. So each machine remembers where its
server is (`LastKnownState`), and is looked for there first.
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
from ccm.base.decoding import UNDECODABLE
from ccm.cloud.helpers import is_label_value
from ccm.cloud.machines import Marks, converted, without_nulls
from ccm.model.times import moment

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
"""Keys of the Secret; the project is a UUID, the other one a service account's key, JSON."""

CREDENTIALS = "secretRef"
"""The field of a class that its problems with credentials are about. Never `secret`: a text after
`secret:` is taken for one, and redacted."""

_MACHINE_TYPE = re.compile(r"[a-z]+\d+[a-z]*\.\d+[a-z]*(\.[a-z]+\d+)*", re.ASCII)
_ZONE = re.compile(r"[a-z0-9]+-(?:\d+|m)", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_./]*[a-zA-Z0-9])?", re.ASCII)
_KEYPAIR = re.compile(r"[A-Za-z0-9@._-]{0,127}", re.ASCII)
_MAIL = re.compile(r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}", re.ASCII)
_HOST = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)

SOURCES = ("image", "snapshot", "volume")
"""What a boot volume may be made of. The API documents image and volume."""


class Networking(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Exactly one of the two; cards fit one machine only."""

    network_id: str | None = None
    nic_ids: tuple[str, ...] | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a boot volume is made of."""

    type: str = ""
    id: str = ""


class BootVolume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The volume that a server boots from; `size` is GB."""

    size: int = 0
    performance_class: str = ""
    delete_on_termination: bool = True
    source: Source | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor's agent in the server."""

    provisioned: bool | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

    `userData` goes before that of the Secret. `bootVolume` goes with its server unless it says
    otherwise, and so it does where there is nothing about it.
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


def read(given: Mapping[str, Any]) -> Spec:
    """A spec that holds.

    Raises:
        InvalidArgument: it does not; the message names every fault.
    """
    if found := list(_problems(given)):
        raise cloud.InvalidArgument("; ".join(map(str, found)))
    return msgspec.convert(without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Everything that is wrong with credentials and a spec, in that order."""
    return [*_secret(credentials), *_problems(given)]


def region_of(given: Mapping[str, Any]) -> str:
    """The region that a spec names, whatever else is wrong with it; empty without one."""
    found = given.get("region")
    return found if isinstance(found, str) and REGION.fullmatch(found) else ""


def project(credentials: Mapping[str, bytes]) -> str:
    """The project of a Secret. Raises InvalidArgument."""
    if found := [one for one in _secret(credentials) if PROJECT_ID in one.message]:
        raise cloud.InvalidArgument(found[0].message)
    return _text(credentials, PROJECT_ID).lower()


def name_fault(who: cloud.Identity) -> str:
    """What is wrong with the names of a machine; empty: nothing."""
    if not _HOST.fullmatch(who.name):
        return f"the name of the machine, {who.name!r}, cannot be that of a server: 63 characters"
    for word, text in (("cluster", who.cluster), ("class", who.pool)):
        if not is_label_value(text):
            return (
                f"the {word} of the machine, {text!r}, cannot be a label of a server; it may have "
                "at most 63 characters"
            )
    return ""


def _text(credentials: Mapping[str, bytes], key: str) -> str:
    # A Secret is often made of a file, and a file ends with a line.
    return credentials.get(key, b"").decode(errors="replace").strip()


def _secret(credentials: Mapping[str, bytes]) -> Iterator[cloud.Problem]:
    said = _text(credentials, PROJECT_ID)
    if not said:
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is missing; give the ID of the project")
    elif not UUID.fullmatch(said):
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is {said!r}; it must be a UUID")
    key = _text(credentials, SERVICE_ACCOUNT)
    if not key:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} is missing; give a service account's key")
        return
    try:
        msgspec.json.decode(key)
    except UNDECODABLE:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} must be JSON; its value is not told")


def _problem(field: str, message: str) -> cloud.Problem:
    return cloud.Problem(field=field, message=message)


def _problems(given: Mapping[str, Any]) -> Iterator[cloud.Problem]:
    values, unread = converted(given, Spec, knows_all=False)
    broken = {one.field for one in unread}
    for field, check in _CHECKS.items():
        yield from (one for one in unread if one.field == field)
        if field not in broken:
            for text in check(values.get(field), values):
                yield _problem(field, text)
    yield from (one for one in unread if one.field not in _CHECKS)


Check = Callable[[Any, Mapping[str, Any]], Iterator[str]]


def _must(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if not pattern.fullmatch(value or ""):
        yield f"{value!r} must be {what}" if value else f"is missing; it must be {what}"


def _may(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if value and not pattern.fullmatch(value):
        yield f"{value!r} must be {what}"


def _each(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
        for at, one in enumerate(value or ()):
            if not pattern.fullmatch(one):
                yield f"[{at}] {one!r} must be {what}"

    return check


def _check_image(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    volume: BootVolume | None = values.get("bootVolume")
    if value:
        yield from _may(value, UUID, "a UUID")
    elif volume is None or volume.source is None:
        yield "is missing; give the ID of an image, or bootVolume.source"


def _check_labels(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for key, text in (value or {}).items():
        if len(key) > 63 or not _LABEL.fullmatch(key):
            yield f"key {key!r} must be 63 letters, digits, -, _, . or /, at its ends no sign"
        if not is_label_value(text):
            yield f"value {text!r} must be 63 letters, digits, -, _ or ., at its ends no sign"


def _check_networking(value: Networking | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None or (value.network_id is None) == (not value.nic_ids):
        yield "needs exactly one of networkId and nicIds"
        return
    for one in (value.network_id,) if value.network_id is not None else value.nic_ids or ():
        yield from _must(one, UUID, "a UUID")


def _check_boot_volume(value: BootVolume | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None:
        return
    if value.size < 0:
        yield f"size is {value.size}; it must be GB, 0 or above"
    if value.source is not None:
        if value.source.type not in SOURCES:
            yield f"source.type is {value.source.type!r}; it must be one of {', '.join(SOURCES)}"
        for text in _must(value.source.id, UUID, "a UUID"):
            yield f"source.id {text}"


def _groups(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    if "" in (value or ()):
        yield "must hold no empty text"


def _allowed(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for at, one in enumerate(value or ()):
        if "/" not in one or cloud.parse_cidr(one) is None:
            yield f"[{at}] {one!r} must be a range such as 10.0.0.0/24"


def _mails(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    if len(value or ()) > 1:
        yield f"holds {len(value)}; there may be one"
    yield from _each(_MAIL, "a mail address")(value, values)


_CHECKS: Mapping[str, Check] = {
    "region": lambda value, _: _must(value, REGION, "a region such as eu01"),
    "availabilityZone": lambda value, _: _may(value, _ZONE, "a zone such as eu01-1 or eu01-m"),
    "machineType": lambda value, _: _must(value, _MACHINE_TYPE, "a type such as c2i.2"),
    "imageId": _check_image,
    "labels": _check_labels,
    "networking": _check_networking,
    "securityGroups": _groups,
    "bootVolume": _check_boot_volume,
    "volumes": _each(UUID, "a UUID"),
    "keypairName": lambda value, _: _may(value, _KEYPAIR, "127 letters, digits, @, ., _ or -"),
    "allowedAddresses": _allowed,
    "affinityGroup": lambda value, _: _may(value, UUID, "a UUID"),
    "serviceAccountMails": _mails,
}
"""Field -> what is wrong with it, in the order in which it is told."""


MARKS = Marks(
    cluster=CLUSTER,
    namespace=NAMESPACE,
    pool=StackitMachineClassLabel,
    name=StackitMachineLabel,
    uid=UID,
)

_STATE = re.compile(r"region=([a-z0-9]+)", re.ASCII)

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

GOING = tuple(word for word, phase in PHASES.items() if phase is cloud.Phase.DELETING)

Clients = cloud.Sessions[iaas.Client]


def open_clients(given: config.Variables, url: str = config.IAAS_URL) -> Clients:
    """Clients of the cloud by credentials.

    Args:
        given: the variables.
        url: of the IaaS API, where they do not say.
    """

    @contextlib.asynccontextmanager
    async def opener(_: str, credentials: cloud.Credentials) -> AsyncIterator[iaas.Client]:
        flow: AbstractAsyncContextManager[auth.Nobody | auth.KeyFlow]
        if given.no_auth:
            flow = contextlib.nullcontext(auth.Nobody())
        else:
            flow = auth.open_key_flow(_key(credentials), given.token_baseurl)
        place = given.iaas_endpoint or url
        async with flow as authorizer, iaas.open_client(place, authorizer) as api:
            yield api

    return cloud.Sessions(opener)


def _key(credentials: cloud.Credentials) -> auth.Key:
    try:
        return auth.Key(credentials[SERVICE_ACCOUNT])
    except (KeyError, ValueError) as error:
        raise cloud.InvalidArgument(f"{SERVICE_ACCOUNT} of the credentials {error}") from None


class StackitMachines(cloud.Driver[Clients]):
    """`MachineDriver`, `SpecValidation` and `MachineMetrics`."""

    csi_driver = "block-storage.csi.stackit.cloud"

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Two requests: a look for what has the name, and the order."""
        if found := problems(req.provider_spec, req.credentials):
            raise cloud.InvalidArgument("; ".join(map(str, found)))
        spec, who = read(req.provider_spec), req.identity
        if fault := name_fault(who):
            raise cloud.InvalidArgument(fault)
        place = Place(project(req.credentials), spec.region)
        order = _order(req, spec)
        async with self._client(req.credentials, who.pool) as api:
            every = await api.servers(place)
            server = await _adoptable(api, place, every, who)
            if server is None:
                _check_cards(spec, every)
                server = await _ordered(api, place, order)
        return _info(server, place)

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request while it boots; then, for `allowedAddresses`, one and one for each card."""
        spec = read(req.provider_spec)
        async with self._client(req.credentials, req.identity.pool) as api:
            place, server_id = await _located(api, req)
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
                        await api.allow(place, nic, wanted)
        return _info(server, place)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request."""
        if _was_never_ordered(req):
            raise cloud.NotFound(f"no server of machine {req.identity.name} was ever ordered")
        async with self._client(req.credentials, req.identity.pool) as api:
            place, server_id = await _located(api, req)
            server = await api.server(place, server_id)
        _check_owner(req, server)
        info = _info(server, place)
        if server.status == "CREATING" or _lacks_addresses(req.provider_spec, server):
            text = f"server {server_id} is {server.status}, and not initialised yet"
            raise cloud.Uninitialized(text).carrying(info)
        return info

    async def delete_machine(self, req: cloud.MachineRequest) -> cloud.DeleteMachineResponse:
        """Three requests, one more without a provider ID; not over before the server is gone."""
        if _was_never_ordered(req):
            return cloud.DeleteMachineResponse()
        async with self._client(req.credentials, req.identity.pool) as api:
            for place, server_id in await _to_delete(api, req):
                await _gone(api, place, server_id, req)
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        """One request."""
        place = _place(req.provider_spec, req.credentials)
        async with self._client(req.credentials, req.pool) as api:
            found = await api.servers(place, {StackitMachineClassLabel: req.pool})
        return [
            cloud.MachineRecord(
                identity=MARKS.identity(one.labels, one.name),
                info=_info(one, place),
                initialized=one.status != "CREATING",
                created=moment(one.created_at),
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
                found += await self._absent(read(spec), credentials)
            except (cloud.Unauthenticated, cloud.PermissionDenied, cloud.InvalidArgument) as error:
                found.append(cloud.Problem(field=CREDENTIALS, message=str(error)))
        return found

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Type and zone."""
        names = {"size": "machineType", "zone": "availabilityZone"}
        texts = {label: spec.get(field) for label, field in names.items()}
        return {label: text if isinstance(text, str) else "" for label, text in texts.items()}

    async def _absent(self, spec: Spec, credentials: cloud.Credentials) -> Sequence[cloud.Problem]:
        """What a spec names and the project does not have."""
        place = _place({"region": spec.region}, credentials)
        network = spec.networking.network_id
        named = [
            *([("networking.networkId", "networks", network)] if network else []),
            *([("imageId", "images", spec.image_id)] if spec.image_id else []),
            *(("volumes", "volumes", one) for one in spec.volumes),
        ]
        async with self._client(credentials, "") as api:
            return [
                cloud.Problem(field=field, message=f"{word!r} does not exist in this project")
                for field, table, word in named
                if not await api.exists(place, f"{table}/{word}")
            ]

    def _client(
        self, credentials: cloud.Credentials, pool: str
    ) -> AbstractAsyncContextManager[iaas.Client]:
        # Classes with user data of their own share a client all the same.
        held = {
            key: credentials[key] for key in (PROJECT_ID, SERVICE_ACCOUNT) if key in credentials
        }
        return self.spi.of(cloud.Credentials(held), pool=pool)


# --- making -------------------------------------------------------------------------------------


async def _adoptable(
    api: iaas.Client, place: Place, every: Sequence[iaas.Server], who: cloud.Identity
) -> iaas.Server | None:
    """Of every server of a place the one that an earlier call made; None: there is none.

    Raises:
        AlreadyExists: what has the name is not this machine's.
        RetryAfter: the machine's own is on its way out, or failed and was sent there.
    """
    named = [one for one in every if who.name in (one.name, one.label(StackitMachineLabel))]
    # A copy of an order whose answer was lost may have come through late: one of them stays.
    own = sorted(
        (one for one in named if MARKS.bear(one.labels, who)),
        key=lambda one: (one.created_at or "", one.id),
    )
    for spare in own[1:]:
        await api.delete_server(place, spare.id)
    if not own and named:
        raise cloud.AlreadyExists(
            f"server {named[0].id} has the name {who.name} and is not this machine's; delete the "
            "machine, or the server if nobody needs it"
        )
    if not own:
        return None
    if own[0].status == "ERROR":
        await _failed(api, place, own[0], who)
    if own[0].status in GOING:
        raise cloud.RetryAfter(f"{own[0].id} is being deleted", seconds=iaas.AGAIN_S)
    return own[0]


def _check_cards(spec: Spec, every: Sequence[iaas.Server]) -> None:
    """Refuse cards that another server has: the API would, in words that tell nobody why.

    Raises:
        FailedPrecondition: one is in use.
        RetryAfter: it will be free in a moment.
    """
    wanted = {one.lower() for one in spec.networking.nic_ids or ()}
    for server in every:
        for nic in server.nics or ():
            if nic.nic_id.lower() not in wanted:
                continue
            if server.status in GOING:
                raise cloud.RetryAfter(f"{server.id} is being deleted", seconds=iaas.AGAIN_S)
            raise cloud.FailedPrecondition(
                f"networking.nicIds: card {nic.nic_id} is in use by server {server.id}; cards fit "
                "one machine only, for more give networkId"
            )


async def _ordered(api: iaas.Client, place: Place, order: Mapping[str, Any]) -> iaas.Server:
    """Order a server; an error carries its place, as the order may have come through."""
    try:
        return await api.create_server(place, order)
    except cloud.CloudError as error:
        error.carrying(cloud.MachineInfo(last_known_state=_state(place)))
        raise


def _order(req: cloud.MachineRequest, spec: Spec) -> Mapping[str, Any]:
    """Return the order of a server; what the spec does not say is left out.

    Raises:
        InvalidArgument: there are no user data, without which no server joins a cluster.
    """
    who = req.identity
    user_data = spec.user_data.encode() or req.user_data
    if not user_data:
        raise cloud.InvalidArgument(
            "userData is missing, and the server would never join; give it in the Secret of the "
            "class or in its providerSpec"
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
        "name": who.name,
        "machineType": spec.machine_type,
        "labels": {**spec.labels, **MARKS.of(who)},
        "networking": {"networkId": networking.network_id}
        if networking.network_id
        else {"nicIds": networking.nic_ids},
        "bootVolume": _boot_volume(spec.boot_volume),
        **{key: value for key, value in optional.items() if value},
    }


def _boot_volume(said: BootVolume | None) -> Mapping[str, Any]:
    """Without a word about it the API may leave it behind, so that is always said."""
    volume = said or BootVolume()
    order: dict[str, Any] = {"deleteOnTermination": volume.delete_on_termination}
    if volume.size:
        order["size"] = volume.size
    if volume.performance_class:
        order["performanceClass"] = volume.performance_class
    if volume.source is not None:
        order["source"] = msgspec.to_builtins(volume.source)
    return order


async def _failed(
    api: iaas.Client, place: Place, server: iaas.Server, who: cloud.Identity
) -> NoReturn:
    """Say why a server failed; one of this machine that never came up is taken away.

    That it did not is final, which the error says.
    """
    why = server.error_message or "it says no reason"
    if server.launched_at or not MARKS.bear(server.labels, who):
        raise cloud.FailedPrecondition(
            f"server {server.id} is in state ERROR: {why}; it has run before, so look at it, and "
            "delete the machine if nothing in it is needed"
        )
    with contextlib.suppress(cloud.NotFound):
        await api.delete_server(place, server.id)
    kind = cloud.ResourceExhausted if refusals.exhausted(why) else cloud.Aborted
    error = kind(f"server {server.id} never came up and was deleted: {why}")
    raise error.carrying(_info(server, place))


def _addresses_to_allow(
    spec: Spec, network_id: str, nic_id: str, nic: iaas.Nic | iaas.ServerNic
) -> Sequence[str]:
    """All that a network card has to allow; empty where nothing is missing, or it is not meant."""
    held, networking = nic.allowed_addresses or (), spec.networking
    is_meant = network_id == networking.network_id or nic_id in (networking.nic_ids or ())
    missing = [one for one in spec.allowed_addresses if one not in held]
    return (*held, *missing) if is_meant and missing else ()


def _lacks_addresses(given: Mapping[str, Any], server: iaas.Server) -> bool:
    """Whether some network card does not allow what its class says; a bad class says nothing."""
    try:
        spec = read(given)
    except cloud.InvalidArgument:
        return False
    return any(
        _addresses_to_allow(spec, nic.network_id, nic.nic_id, nic) for nic in server.nics or ()
    )


# --- where it is, and whose ---------------------------------------------------------------------


def _place(given: Mapping[str, Any], credentials: Mapping[str, bytes], state: str = "") -> Place:
    """Where a server is: as its machine remembers, or as its class says."""
    return Place(project(credentials), _region(given, state))


def _region(given: Mapping[str, Any], state: str) -> str:
    remembered = _STATE.search(state)
    region = remembered[1] if remembered else region_of(given)
    if not region:
        raise cloud.InvalidArgument("region of the class is missing; it must be such as eu01")
    return region


def _state(place: Place) -> str:
    return f"region={place.region}"


def _was_never_ordered(req: cloud.MachineRequest) -> bool:
    """Return whether a machine has no server: its class names no place, and it remembers none.

    No server is ordered without region and project, and each order leaves a state on the Machine,
    also one whose answer was lost. The exception is a process that dies between the order and that
    write, with a class that is broken afterwards: the orphan controller finds that server.
    """
    if req.provider_id or req.last_known_state:
        return False
    try:
        _place(req.provider_spec, req.credentials)
    except cloud.InvalidArgument:
        return True
    return False


async def _located(api: iaas.Client, req: cloud.MachineRequest) -> tuple[Place, str]:
    """Place and ID of a machine's server. Raises NotFound."""
    for found in await _to_delete(api, req):
        return found
    raise cloud.NotFound(f"no server of machine {req.identity.name}")


async def _to_delete(api: iaas.Client, req: cloud.MachineRequest) -> Sequence[tuple[Place, str]]:
    """By its provider ID, or else all that bear the identity; in both regions if there are two."""
    if req.provider_id:
        said = instances.parse_id(req.provider_id)
        if said.region:
            raise cloud.InvalidArgument(f"provider ID {req.provider_id!r} is of no machine")
        owner = said.project or project(req.credentials)
        region = _region(req.provider_spec, req.last_known_state)
        return [(Place(owner, region), said.server)]
    place = _place(req.provider_spec, req.credentials, req.last_known_state)
    who = req.identity
    if not who.uid or name_fault(who):
        return []
    regions = {place.region, region_of(req.provider_spec) or place.region}
    places = [place._replace(region=one) for one in sorted(regions)]
    labels = {CLUSTER: who.cluster, UID: who.uid}
    return [(one, server.id) for one in places for server in await api.servers(one, labels)]


async def _gone(api: iaas.Client, place: Place, server_id: str, req: cloud.MachineRequest) -> None:
    """Delete a server. Raises RetryAfter: it is not gone yet; NotOwned: it is not the machine's."""
    try:
        server = await api.server(place, server_id)
        _check_owner(req, server)
        if server.status not in GOING:
            await api.delete_server(place, server_id)
    except cloud.NotFound:
        return
    await api.wait_until_server_deleted(place, server_id)


def _check_owner(req: cloud.MachineRequest, server: iaas.Server) -> None:
    """Raise NotOwned for a server that is not the machine's.

    The vendor's driver leaves the labels of machine and class and no others.
    """
    who, marks = req.identity, MARKS.identity(server.labels, server.name)
    machine = (server.label(StackitMachineLabel), server.label(StackitMachineClassLabel))
    is_vendors = not (marks.cluster or marks.uid) and machine == (who.name, who.pool)
    if req.provider_id and not is_vendors:
        cloud.check_owner(req, marks)


def _info(server: iaas.Server, place: Place) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=f"{StackitProviderName}://{place.project}/{server.id}",
        node_name=server.label(StackitMachineLabel) or server.name,
        addresses=instances.addresses(server),
        phase=PHASES.get(server.status or "", cloud.Phase.UNKNOWN),
        message=server.error_message or "",
        last_known_state=_state(place),
    )

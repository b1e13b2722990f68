"""Servers by request: the driver for MachineClasses, in the words of STACKIT's own driver.

Provider spec  see `machine_specs.Spec`
Credentials    `project-id` and `serviceaccount.json`, see `machine_specs`

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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, NoReturn

import msgspec

from ccm import cloud
from ccm.model.times import moment

from . import auth, config, iaas, instances, machine_specs, refusals
from .machine_specs import PROJECT_ID, SERVICE_ACCOUNT, Spec
from .marks import (
    CLUSTER,
    NAMESPACE,
    UID,
    StackitMachineClassLabel,
    StackitMachineLabel,
    StackitProviderName,
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
        async with contextlib.AsyncExitStack() as stack:
            authorizer: auth.Nobody | auth.KeyFlow = auth.Nobody()
            if not given.no_auth:
                flow = auth.open_key_flow(_key(credentials), given.token_baseurl)
                authorizer = await stack.enter_async_context(flow)
            opened = iaas.open_client(given.iaas_endpoint or url, authorizer)
            yield await stack.enter_async_context(opened)

    return cloud.Sessions(opener)


def _key(credentials: cloud.Credentials) -> auth.Key:
    try:
        return auth.Key(credentials[SERVICE_ACCOUNT])
    except (KeyError, ValueError) as error:
        raise cloud.InvalidArgument(f"{SERVICE_ACCOUNT} of the credentials {error}") from None


class Place(NamedTuple):
    """Where a server is."""

    project: str
    region: str


class StackitMachines(cloud.Driver[Clients]):
    """`MachineDriver`, `SpecValidation` and `MachineMetrics`."""

    csi_driver = "block-storage.csi.stackit.cloud"

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """Two requests: a look for what has the name, and the order."""
        if found := machine_specs.problems(req.provider_spec, req.credentials):
            raise cloud.InvalidArgument("; ".join(map(str, found)))
        spec, who = machine_specs.read(req.provider_spec), req.identity
        if fault := machine_specs.name_fault(who):
            raise cloud.InvalidArgument(fault)
        place = Place(machine_specs.project(req.credentials), spec.region)
        order = _order(req, spec)
        async with self._client(req.credentials, who.pool) as api:
            every = await api.servers(*place)
            server = await _adoptable(api, place, every, who)
            if server is None:
                _check_cards(spec, every)
                server = await _ordered(api, place, order)
        return _info(server, place)

    async def initialize_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request while it boots; then, for `allowedAddresses`, one and one for each card."""
        spec = machine_specs.read(req.provider_spec)
        async with self._client(req.credentials, req.identity.pool) as api:
            place, server_id = await _located(api, req)
            server = await api.wait_until_server_running(*place, server_id)
            _check_owner(req, server)
            if server.status == "ERROR":
                await _failed(api, place, server, req.identity)
            if not server.nics:
                raise cloud.Unavailable(f"no NICs found for server {server_id}")
            if spec.allowed_addresses:
                for nic in await api.nics(*place, server_id):
                    wanted = _addresses_to_allow(spec, nic.network_id, nic.id, nic)
                    if wanted:
                        await api.allow(*place, nic, wanted)
        return _info(server, place)

    async def get_machine_status(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        """One request."""
        if _was_never_ordered(req):
            raise cloud.NotFound(f"no server of machine {req.identity.name} was ever ordered")
        async with self._client(req.credentials, req.identity.pool) as api:
            place, server_id = await _located(api, req)
            server = await api.server(*place, server_id)
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
            found = await api.servers(*place, {StackitMachineClassLabel: req.pool})
        return [_record(server, place) for server in found]

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        """One request for each thing that the spec names, if it is to be live."""
        found = list(machine_specs.problems(spec, credentials))
        if live and not found:
            try:
                found += await self._absent(machine_specs.read(spec), credentials)
            except (cloud.Unauthenticated, cloud.PermissionDenied, cloud.InvalidArgument) as error:
                found.append(cloud.Problem(field=machine_specs.CREDENTIALS, message=str(error)))
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
                if not await api.exists(*place, f"{table}/{word}")
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
        (one for one in named if _is(one, who)), key=lambda one: (one.created_at or "", one.id)
    )
    for spare in own[1:]:
        await api.delete_server(*place, spare.id)
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
        return await api.create_server(*place, order)
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
        "labels": {**spec.labels, **_labels(who)},
        "networking": {"networkId": networking.network_id}
        if networking.network_id
        else {"nicIds": networking.nic_ids},
        "bootVolume": _boot_volume(spec.boot_volume),
        **{key: value for key, value in optional.items() if value},
    }


def _boot_volume(said: machine_specs.BootVolume | None) -> Mapping[str, Any]:
    """Without a word about it the API may leave it behind, so that is always said."""
    volume = said or machine_specs.BootVolume()
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
    if server.launched_at or not _is(server, who):
        raise cloud.FailedPrecondition(
            f"server {server.id} is in state ERROR: {why}; it has run before, so look at it, and "
            "delete the machine if nothing in it is needed"
        )
    with contextlib.suppress(cloud.NotFound):
        await api.delete_server(*place, server.id)
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
        spec = machine_specs.read(given)
    except cloud.InvalidArgument:
        return False
    return any(
        _addresses_to_allow(spec, nic.network_id, nic.nic_id, nic) for nic in server.nics or ()
    )


# --- where it is, and whose ---------------------------------------------------------------------


def _place(given: Mapping[str, Any], credentials: Mapping[str, bytes], state: str = "") -> Place:
    """Where a server is: as its machine remembers, or as its class says."""
    return Place(machine_specs.project(credentials), _region(given, state))


def _region(given: Mapping[str, Any], state: str) -> str:
    remembered = _STATE.search(state)
    region = remembered[1] if remembered else machine_specs.region_of(given)
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
        project = said.project or machine_specs.project(req.credentials)
        region = _region(req.provider_spec, req.last_known_state)
        return [(Place(project, region), said.server)]
    place = _place(req.provider_spec, req.credentials, req.last_known_state)
    who = req.identity
    if not who.uid or machine_specs.name_fault(who):
        return []
    regions = {place.region, machine_specs.region_of(req.provider_spec) or place.region}
    places = [place._replace(region=one) for one in sorted(regions)]
    labels = {CLUSTER: who.cluster, UID: who.uid}
    return [(one, server.id) for one in places for server in await api.servers(*one, labels)]


async def _gone(api: iaas.Client, place: Place, server_id: str, req: cloud.MachineRequest) -> None:
    """Delete a server. Raises RetryAfter: it is not gone yet; NotOwned: it is not the machine's."""
    try:
        server = await api.server(*place, server_id)
        _check_owner(req, server)
        if server.status not in GOING:
            await api.delete_server(*place, server_id)
    except cloud.NotFound:
        return
    await api.wait_until_server_deleted(*place, server_id)


def _labels(who: cloud.Identity) -> Mapping[str, str]:
    return {
        StackitMachineLabel: who.name,
        StackitMachineClassLabel: who.pool,
        CLUSTER: who.cluster,
        NAMESPACE: who.namespace,
        UID: who.uid,
    }


def _is(server: iaas.Server, who: cloud.Identity) -> bool:
    """Whether it bears an identity; what has no marks bears none."""
    found = (server.label(CLUSTER), server.label(UID))
    return bool(who.uid) and found == (who.cluster, who.uid)


def _check_owner(req: cloud.MachineRequest, server: iaas.Server) -> None:
    """Raise NotOwned for a server that is not the machine's.

    The vendor's driver leaves the labels of machine and class and no others.
    """
    who, marks = req.identity, _identity(server)
    machine = (server.label(StackitMachineLabel), server.label(StackitMachineClassLabel))
    is_vendors = not (marks.cluster or marks.uid) and machine == (who.name, who.pool)
    if req.provider_id and not is_vendors:
        cloud.check_owner(req, marks)


def _identity(server: iaas.Server) -> cloud.Identity:
    return cloud.Identity(
        cluster=server.label(CLUSTER),
        namespace=server.label(NAMESPACE),
        pool=server.label(StackitMachineClassLabel),
        name=server.label(StackitMachineLabel) or server.name,
        uid=server.label(UID),
    )


def _record(server: iaas.Server, place: Place) -> cloud.MachineRecord:
    return cloud.MachineRecord(
        identity=_identity(server),
        info=_info(server, place),
        initialized=server.status != "CREATING",
        created=moment(server.created_at),
    )


def _info(server: iaas.Server, place: Place) -> cloud.MachineInfo:
    return cloud.MachineInfo(
        provider_id=f"{StackitProviderName}://{place.project}/{server.id}",
        node_name=server.label(StackitMachineLabel) or server.name,
        addresses=instances.addresses(server),
        phase=PHASES.get(server.status or "", cloud.Phase.UNKNOWN),
        message=server.error_message or "",
        last_known_state=_state(place),
    )

"""What the calls about servers and their network cards do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

from ccm.model.selectors import BadSelectorError, parse_labels

from . import state
from .state import Answer, ApiError, Call, Cloud, Handler, Thing

NAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")
MACHINE_TYPES = re.compile(r"[a-z]+\d+[a-z]*\.\d+[a-z]*(\.[a-z]+\d+)*")
MOST_LABELS = 64

NO_HOST = "No valid host was found. There are not enough hosts available."

Place = tuple[str, str]


def make(cloud: Cloud, order: Thing, place: Place = (state.PROJECT, state.REGION)) -> Thing:
    """A server as its order says, in the form of the wire; it is among the others."""
    made: Thing = {
        "id": cloud.new_id(),
        "name": order["name"],
        "machineType": order["machineType"],
        "status": "CREATING",
        "powerStatus": "RUNNING",
        "labels": dict(order.get("labels") or {}),
        "availabilityZone": order.get("availabilityZone") or f"{place[1]}-1",
        "createdAt": cloud.now(),
        "updatedAt": cloud.now(),
        "nics": [],
    }
    for field in ("imageId", "keypairName", "affinityGroup", "agent", "metadata", "volumes"):
        if order.get(field):
            made[field] = order[field]
    for nic in _cards(cloud, order):
        nic["device"] = made["id"]
        network = cloud.networks[nic["networkId"]]
        made["nics"].append(_shown(nic, network["name"]))
    cloud.servers[made["id"]] = made
    cloud.places[made["id"]] = place
    made["_order"] = order
    return made


def _cards(cloud: Cloud, order: Thing) -> Iterable[Thing]:
    networking = order.get("networking") or {}
    if network := networking.get("networkId"):
        yield new_nic(cloud, network)
        return
    for number in networking.get("nicIds") or ():
        nic = state.get(cloud.nics, number, "nic")
        if nic.get("device"):
            raise ApiError("conflict", f"nic {number} is in use by server {nic['device']}")
        yield nic


def new_nic(cloud: Cloud, network_id: str, **fields: Any) -> Thing:
    """A network card with addresses of a network."""
    network = state.get(cloud.networks, network_id, "network")
    number = cloud.number()
    v4 = ip_network(network["ipv4"]["prefixes"][0])
    nic: Thing = {
        "id": cloud.new_id(),
        "networkId": network_id,
        "ipv4": str(v4[number % (v4.num_addresses - 12) + 10]),
        "mac": f"fa:16:3e:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
        "nicSecurity": True,
        "status": "ACTIVE",
        "type": "server",
        "allowedAddresses": [],
        "securityGroups": [],
        "labels": {},
        **fields,
    }
    if network.get("ipv6"):
        nic["ipv6"] = str(ip_network(network["ipv6"]["prefixes"][0])[number + 10])
    cloud.nics[nic["id"]] = nic
    return nic


def _shown(nic: Thing, network_name: str) -> Thing:
    """A card as its server shows it."""
    fields = ("ipv4", "ipv6", "mac", "networkId", "nicSecurity", "allowedAddresses")
    found = {field: nic[field] for field in fields if field in nic}
    return {**found, "nicId": nic["id"], "networkName": network_name}


def public(cloud: Cloud, made: Thing, details: bool = True) -> Thing:
    """A server as an answer has it."""
    hidden = {"_order"} if details else {"_order", "nics"}
    found = {key: value for key, value in made.items() if key not in hidden}
    if details:
        found["nics"] = [
            {**one, "allowedAddresses": cloud.nics[one["nicId"]]["allowedAddresses"]}
            for one in made["nics"]
        ]
    return found


def _check(cloud: Cloud, order: Thing, place: Place) -> None:
    name, labels = order.get("name"), order.get("labels") or {}
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise state.invalid("name", "must be a host name of at most 63 characters")
    if not MACHINE_TYPES.fullmatch(str(order.get("machineType"))):
        raise state.invalid("machineType", f"{order.get('machineType')} does not exist")
    if len(labels) > MOST_LABELS or any(
        len(key) > 63 or len(str(value)) > 63 or key.startswith("stackit-")
        for key, value in labels.items()
    ):
        raise state.invalid("labels", "are too many, too long or reserved")
    source: Any = (order.get("bootVolume") or {}).get("source")
    if not order.get("imageId") and not source:
        raise state.invalid("imageId", "or bootVolume.source is required")
    image = order.get("imageId") or (source["id"] if source["type"] == "image" else "")
    if image:
        state.get(cloud.images, image, "image")
    if sum(one == place for one in cloud.places.values()) >= cloud.settings.servers:
        raise ApiError("quota", "Quota exceeded for servers")


def create(cloud: Cloud, call: Call) -> Answer:
    """Order a server."""
    _check(cloud, call.body, call.place)
    is_full = len(cloud.servers) >= cloud.settings.hosts
    made = make(cloud, call.body, call.place)

    def run() -> None:
        if made["status"] != "CREATING":
            return
        if is_full:
            made.update(status="ERROR", errorMessage=NO_HOST)
        else:
            made.update(status="ACTIVE", launchedAt=cloud.now())

    cloud.later(cloud.settings.boot_s, run)
    return 201, public(cloud, made)


def one(cloud: Cloud, call: Call) -> Thing:
    """The server that a call is about, which is in its place."""
    number = call.path["serverId"]
    if cloud.places.get(number) != call.place:
        raise ApiError("not_found", f"server {number} not found")
    return cloud.servers[number]


def show(cloud: Cloud, call: Call) -> Answer:
    """One server."""
    return 200, public(cloud, one(cloud, call), call.query.get("details") == "true")


def index(cloud: Cloud, call: Call) -> Answer:
    """All of a place, or those with labels."""
    try:
        terms = parse_labels(call.query.get("label_selector", ""))
    except BadSelectorError as error:
        raise state.invalid("label_selector", "is malformed") from error
    found = [
        public(cloud, made, call.query.get("details") == "true")
        for number, made in cloud.servers.items()
        if cloud.places[number] == call.place
        and all(term.matches(made["labels"]) for term in terms)
    ]
    return 200, {"items": found}


def delete(cloud: Cloud, call: Call) -> Answer:
    """Begin to take one away."""
    made = one(cloud, call)
    made["status"] = "DELETING"
    cloud.later(cloud.settings.removal_s, lambda: remove(cloud, made["id"]))
    return 204, None


def remove(cloud: Cloud, number: str) -> None:
    """Take one away with its cards; those that were there before it stay."""
    made = cloud.servers.pop(number, None)
    cloud.places.pop(number, None)
    if made is None:
        return
    given = ((made["_order"].get("networking")) or {}).get("nicIds") or ()
    for nic in made["nics"]:
        if nic["nicId"] in given:
            cloud.nics[nic["nicId"]].pop("device", None)
        else:
            cloud.nics.pop(nic["nicId"], None)


def power(cloud: Cloud, number: str, *, on: bool) -> None:
    """Switch one."""
    made = cloud.servers[number]
    made["status"] = "STARTING" if on else "STOPPING"

    def switched() -> None:
        made["status"] = "ACTIVE" if on else "INACTIVE"

    cloud.later(cloud.settings.power_s, switched)


def powers(*, on: bool) -> Handler:
    """Switch one on or off."""

    def switch(cloud: Cloud, call: Call) -> Answer:
        power(cloud, one(cloud, call)["id"], on=on)
        return 202, None

    return switch


def nics(cloud: Cloud, call: Call) -> Answer:
    """The cards of a server."""
    return 200, {"items": [cloud.nics[each["nicId"]] for each in one(cloud, call)["nics"]]}


def create_nic(cloud: Cloud, call: Call) -> Answer:
    """Make a card."""
    given = {key: call.body[key] for key in ("allowedAddresses", "name") if key in call.body}
    return 201, new_nic(cloud, call.path["networkId"], **given)


def quotas(cloud: Cloud, call: Call) -> Answer:
    """How many of each kind there are and may be."""
    used = sum(place == call.place for place in cloud.places.values())
    whole = {"limit": cloud.settings.servers, "usage": used}
    names = ("backupGigabytes", "backups", "gigabytes", "networks", "nics", "publicIps", "ram")
    more = ("securityGroupRules", "securityGroups", "snapshots", "vcpu", "volumes")
    return 200, {"quotas": dict.fromkeys((*names, *more), whole)}


def patch_nic(cloud: Cloud, call: Call) -> Answer:
    """Change a card; a list that is given replaces the one that is there."""
    network, number, change = call.path["networkId"], call.path["nicId"], call.body
    nic = state.get(cloud.nics, number, "nic")
    if nic["networkId"] != network:
        raise ApiError("not_found", f"nic {number} not found in network {network}")
    nic.update(
        {key: change[key] for key in ("allowedAddresses", "name", "labels") if key in change}
    )
    return 200, nic

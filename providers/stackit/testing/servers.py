"""Handlers for servers and their NICs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

from ccm.model.selectors import BadSelectorError, parse_labels

from . import state
from .state import Answer, ApiError, Call, Cloud, Handler, Resource

NAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")
MACHINE_TYPES = re.compile(r"[a-z]+\d+[a-z]*\.\d+[a-z]*(\.[a-z]+\d+)*")
MAX_LABELS = 64

NO_HOST = "No valid host was found. There are not enough hosts available."

Place = tuple[str, str]


def new_server(
    cloud: Cloud, order: Resource, place: Place = (state.PROJECT, state.REGION)
) -> Resource:
    """Create a server in the wire format, without checks."""
    server: Resource = {
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
            server[field] = order[field]
    for nic in _nics_of_order(cloud, order):
        nic["device"] = server["id"]
        network = cloud.networks[nic["networkId"]]
        server["nics"].append(_nic_details(nic, network["name"]))
    cloud.servers[server["id"]] = server
    cloud.places[server["id"]] = place
    server["_order"] = order
    return server


def _nics_of_order(cloud: Cloud, order: Resource) -> Iterable[Resource]:
    networking = order.get("networking") or {}
    if network := networking.get("networkId"):
        yield new_nic(cloud, network)
        return
    for number in networking.get("nicIds") or ():
        nic = state.get(cloud.nics, number, "nic")
        if nic.get("device"):
            raise ApiError("conflict", f"nic {number} is in use by server {nic['device']}")
        yield nic


def new_nic(cloud: Cloud, network_id: str, **fields: Any) -> Resource:
    """Create a NIC with addresses of a network."""
    network = state.get(cloud.networks, network_id, "network")
    number = cloud.number()
    v4 = ip_network(network["ipv4"]["prefixes"][0])
    nic: Resource = {
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


def _nic_details(nic: Resource, network_name: str) -> Resource:
    """Return a NIC as in the details of its server."""
    fields = ("ipv4", "ipv6", "mac", "networkId", "nicSecurity", "allowedAddresses")
    visible = {field: nic[field] for field in fields if field in nic}
    return {**visible, "nicId": nic["id"], "networkName": network_name}


def response_of(cloud: Cloud, server: Resource, details: bool = True) -> Resource:
    """Return a server as in a response."""
    hidden = {"_order"} if details else {"_order", "nics"}
    fields = {key: value for key, value in server.items() if key not in hidden}
    if details:
        fields["nics"] = [
            {**nic, "allowedAddresses": cloud.nics[nic["nicId"]]["allowedAddresses"]}
            for nic in server["nics"]
        ]
    return fields


def _check(cloud: Cloud, order: Resource, place: Place) -> None:
    name, labels = order.get("name"), order.get("labels") or {}
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise state.invalid("name", "must be a host name of at most 63 characters")
    if not MACHINE_TYPES.fullmatch(str(order.get("machineType"))):
        raise state.invalid("machineType", f"{order.get('machineType')} does not exist")
    if len(labels) > MAX_LABELS or any(
        len(key) > 63 or len(str(value)) > 63 or key.startswith("stackit-")
        for key, value in labels.items()
    ):
        raise state.invalid(
            "labels",
            f"at most {MAX_LABELS} labels of at most 63 characters, without prefix stackit-",
        )
    source: Any = (order.get("bootVolume") or {}).get("source")
    if not order.get("imageId") and not source:
        raise state.invalid("imageId", "required without bootVolume.source")
    image = order.get("imageId") or (source["id"] if source["type"] == "image" else "")
    if image:
        state.get(cloud.images, image, "image")
    if sum(owner == place for owner in cloud.places.values()) >= cloud.settings.servers:
        raise ApiError("quota", "Quota exceeded for servers")


def create(cloud: Cloud, call: Call) -> Answer:
    """Create a server; without capacity it ends in state ERROR."""
    _check(cloud, call.body, call.place)
    is_full = len(cloud.servers) >= cloud.settings.hosts
    server = new_server(cloud, call.body, call.place)

    def run() -> None:
        if server["status"] != "CREATING":
            return
        if is_full:
            server.update(status="ERROR", errorMessage=NO_HOST)
        else:
            server.update(status="ACTIVE", launchedAt=cloud.now())

    cloud.schedule(cloud.settings.boot_s, run)
    return 201, response_of(cloud, server)


def find_server(cloud: Cloud, call: Call) -> Resource:
    """Return the server of the path, which must be in the project and region of the path."""
    number = call.path["serverId"]
    if cloud.places.get(number) != call.place:
        raise ApiError("not_found", f"server {number} not found")
    return cloud.servers[number]


def show(cloud: Cloud, call: Call) -> Answer:
    return 200, response_of(cloud, find_server(cloud, call), call.query.get("details") == "true")


def index(cloud: Cloud, call: Call) -> Answer:
    """List the servers of a project and region, optionally by labels."""
    try:
        terms = parse_labels(call.query.get("label_selector", ""))
    except BadSelectorError as error:
        raise state.invalid("label_selector", "is malformed") from error
    matching = [
        response_of(cloud, server, call.query.get("details") == "true")
        for number, server in cloud.servers.items()
        if cloud.places[number] == call.place
        and all(term.matches(server["labels"]) for term in terms)
    ]
    return 200, {"items": matching}


def delete(cloud: Cloud, call: Call) -> Answer:
    """Start the deletion of a server."""
    server = find_server(cloud, call)
    server["status"] = "DELETING"
    cloud.schedule(cloud.settings.removal_s, lambda: remove(cloud, server["id"]))
    return 204, None


def remove(cloud: Cloud, number: str) -> None:
    """Remove a server with its NICs, except NICs that existed before the server."""
    server = cloud.servers.pop(number, None)
    cloud.places.pop(number, None)
    if server is None:
        return
    given = ((server["_order"].get("networking")) or {}).get("nicIds") or ()
    for nic in server["nics"]:
        if nic["nicId"] in given:
            cloud.nics[nic["nicId"]].pop("device", None)
        else:
            cloud.nics.pop(nic["nicId"], None)


def power(cloud: Cloud, number: str, *, on: bool) -> None:
    """Switch a server on or off."""
    server = cloud.servers[number]
    server["status"] = "STARTING" if on else "STOPPING"

    def switched() -> None:
        server["status"] = "ACTIVE" if on else "INACTIVE"

    cloud.schedule(cloud.settings.power_s, switched)


def power_handler(*, on: bool) -> Handler:
    """Return a handler that switches a server on or off."""

    def switch(cloud: Cloud, call: Call) -> Answer:
        power(cloud, find_server(cloud, call)["id"], on=on)
        return 202, None

    return switch


def nics(cloud: Cloud, call: Call) -> Answer:
    """List the NICs of a server."""
    return 200, {"items": [cloud.nics[nic["nicId"]] for nic in find_server(cloud, call)["nics"]]}


def create_nic(cloud: Cloud, call: Call) -> Answer:
    given = {key: call.body[key] for key in ("allowedAddresses", "name") if key in call.body}
    return 201, new_nic(cloud, call.path["networkId"], **given)


def quotas(cloud: Cloud, call: Call) -> Answer:
    """Return quotas of all kinds of resources, each with the limit and usage of servers."""
    used = sum(place == call.place for place in cloud.places.values())
    whole = {"limit": cloud.settings.servers, "usage": used}
    names = ("backupGigabytes", "backups", "gigabytes", "networks", "nics", "publicIps", "ram")
    more = ("securityGroupRules", "securityGroups", "snapshots", "vcpu", "volumes")
    return 200, {"quotas": dict.fromkeys((*names, *more), whole)}


def patch(cloud: Cloud, call: Call) -> Answer:
    """Change name, labels or metadata of a server; a given value replaces the existing one."""
    server = state.get(cloud.servers, call.path["serverId"], "server")
    server.update(
        {key: call.body[key] for key in ("name", "labels", "metadata") if key in call.body}
    )
    return 200, server


def patch_nic(cloud: Cloud, call: Call) -> Answer:
    """Change a NIC; a given value replaces the existing one."""
    network, number, change = call.path["networkId"], call.path["nicId"], call.body
    nic = state.get(cloud.nics, number, "nic")
    if nic["networkId"] != network:
        raise ApiError("not_found", f"nic {number} not found in network {network}")
    nic.update(
        {key: change[key] for key in ("allowedAddresses", "name", "labels") if key in change}
    )
    return 200, nic

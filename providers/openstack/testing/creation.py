"""Handlers for the creation of servers and their ports, with what a server refers to."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from . import compute, network, state
from .state import Answer, ApiError, Call, Cloud, Operation, Resource

NO_HOST = "No valid host was found. There are not enough hosts available."

_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_:. ]{1,255}")
_TAG = re.compile(r"[^,/]{1,60}")
_FIELDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("name", "flavorRef", "imageRef", "networks", "metadata", "availability_zone"),
            *("key_name", "config_drive", "security_groups", "user_data"),
            "block_device_mapping_v2",
        ),
        (2, 1),
    ),
    "tags": (2, 52),
}
"""Field of an order -> microversion from which Nova accepts it."""

_VOLUME = {
    *("boot_index", "uuid", "source_type", "destination_type", "volume_size"),
    "delete_on_termination",
}


def new_image(cloud: Cloud, name: str) -> Resource:
    """Create an image."""
    return cloud.new("images", name, status="active", os_hidden=False)


def new_security_group(cloud: Cloud, name: str) -> Resource:
    """Create a security group without rules."""
    return cloud.new("security_groups", name, description="", security_group_rules=[])


def new_server_group(cloud: Cloud, name: str) -> Resource:
    """Create a server group."""
    return cloud.new("server_groups", name, policies=["anti-affinity"], members=[], metadata={})


def _invalid(text: str) -> ApiError:
    return ApiError("badRequest", text, status=400)


def _find(things: Mapping[str, Resource], word: str) -> Resource:
    """Return a resource by its ID or name, as Nova does with security groups."""
    for thing in things.values():
        if word in (thing["id"], thing["name"]):
            return thing
    raise _invalid(f"{word} could not be found.")


def _check(cloud: Cloud, call: Call, order: Resource) -> None:
    """Raise the error 400 of Nova for an invalid order, and 403 above the quota."""
    version = compute.microversion(cloud, call)
    if unknown := [name for name in order if version < _FIELDS.get(name, (3,))]:
        raise _invalid(f"Additional properties are not allowed ({unknown[0]!r} was unexpected)")
    for volume in order.get("block_device_mapping_v2") or ():
        known = _VOLUME | ({"volume_type"} if version >= (2, 67) else set())
        if unknown := sorted(volume.keys() - known):
            raise _invalid(f"Additional properties are not allowed ({unknown[0]!r} was unexpected)")
    if not isinstance(order.get("networks"), list) or not order["networks"]:
        raise _invalid("'networks' is a required property")
    for key, text in (order.get("metadata") or {}).items():
        if not _METADATA_KEY.fullmatch(key) or len(text) > 255:
            raise _invalid(f"Invalid input for field/attribute metadata. Value: {key}")
    if any(not _TAG.fullmatch(tag) for tag in order.get("tags") or ()):
        raise _invalid(f"Invalid input for field/attribute tags. Value: {order['tags']}")
    try:
        base64.b64decode(order.get("user_data") or "", validate=True)
    except binascii.Error as error:
        raise _invalid("Invalid input for field/attribute user_data.") from error
    if len(order.get("user_data") or "") > 65535:
        raise _invalid("Invalid input for field/attribute user_data. It is too long")
    if order.get("key_name") and order["key_name"] not in cloud.keypairs:
        raise _invalid("Invalid key_name provided.")
    if len(cloud.servers) >= cloud.settings.servers:
        raise ApiError("quota", state.MESSAGES["quota"])


def create_server(cloud: Cloud, call: Call) -> Answer:
    """Create a server, which runs after `Settings.boot_s`; without capacity, it ends in ERROR."""
    order: Resource = call.body["server"]
    _check(cloud, call, order)
    flavor = cloud.flavors.get(order["flavorRef"])
    volumes = order.get("block_device_mapping_v2") or []
    image = volumes[0]["uuid"] if volumes else order.get("imageRef")
    if flavor is None:
        raise _invalid(f"Flavor {order['flavorRef']} could not be found.")
    if image not in cloud.images:
        raise _invalid("Can not find requested image")
    hint = call.body.get("os:scheduler_hints", {}).get("group")
    if hint and hint not in cloud.server_groups:
        raise _invalid(f"Instance group {hint} could not be found.")
    groups = [_find(cloud.security_groups, one["name"]) for one in order.get("security_groups", ())]
    for entry in order["networks"]:
        _check_network(cloud, entry)
    is_full = len(cloud.servers) >= cloud.settings.hosts
    zone = order.get("availability_zone") or "az1"
    server = compute.new_server(cloud, order["name"], flavor, zone=zone)
    server.update(
        {
            "status": "BUILD",
            "metadata": order.get("metadata") or {},
            "tags": order.get("tags") or [],
            "key_name": order.get("key_name"),
            "config_drive": "True" if order.get("config_drive") else "",
            "OS-EXT-STS:vm_state": "building",
            "OS-EXT-STS:task_state": "scheduling",
            "OS-SRV-USG:launched_at": None,
        }
    )

    def run() -> None:
        if server["OS-EXT-STS:vm_state"] != "building" or server["id"] not in cloud.servers:
            return
        server["OS-EXT-STS:task_state"] = None
        if is_full:
            fault = {"code": 500, "created": cloud.now(), "message": NO_HOST}
            server.update({"status": "ERROR", "OS-EXT-STS:vm_state": "error", "fault": fault})
            return
        for entry in order["networks"]:
            _plug(cloud, server, entry, groups)
        for volume in volumes:
            cloud.new("volumes", "", **volume, server=server["id"])
        server.update({"status": "ACTIVE", "OS-EXT-STS:vm_state": "active"})
        server["OS-SRV-USG:launched_at"] = cloud.now()

    cloud.after(cloud.settings.boot_s, run)
    answer = {"id": server["id"], "links": [], "OS-DCF:diskConfig": "MANUAL", "adminPass": "x7Qd"}
    return 202, {"server": {**answer, "security_groups": order.get("security_groups", [])}}


def _check_network(cloud: Cloud, entry: Resource) -> None:
    if "port" not in entry:
        if entry["uuid"] not in cloud.networks:
            raise _invalid(f"Network {entry['uuid']} could not be found.")
        return
    port = cloud.ports.get(entry["port"])
    if port is None:
        raise _invalid(f"Port id {entry['port']} could not be found.")
    if port["device_id"]:
        raise ApiError("conflictingRequest", f"Port {port['id']} is still in use.", status=409)


def _plug(cloud: Cloud, server: Resource, entry: Resource, groups: list[Resource]) -> None:
    if "port" in entry:
        zone = server["OS-EXT-AZ:availability_zone"]
        if port := cloud.ports.get(entry["port"]):
            port.update(device_id=server["id"], device_owner=f"compute:{zone}", status="ACTIVE")
        return
    port = network.new_port(cloud, entry["uuid"], device=server)
    port["security_groups"] = [group["id"] for group in groups]


def delete_server(cloud: Cloud, call: Call) -> Answer:
    """Start the deletion of a server."""
    server = state.get(cloud.servers, call.path["id"], "Instance")
    server["OS-EXT-STS:task_state"] = "deleting"
    cloud.after(cloud.settings.removal_s, lambda: compute.remove(cloud, server["id"]))
    return 204, None


def set_metadata(cloud: Cloud, call: Call) -> Answer:
    """Add or replace metadata of a server."""
    server = state.get(cloud.servers, call.path["id"], "Instance")
    server["metadata"].update(call.body["metadata"])
    return 200, {"metadata": server["metadata"]}


def show_keypair(cloud: Cloud, call: Call) -> Answer:
    """Return a key pair, which has no ID but a name."""
    name = call.path["name"]
    if name not in cloud.keypairs:
        text = f"Keypair {name} not found for user u1"
        raise ApiError("itemNotFound", text, status=404)
    return 200, {"keypair": cloud.keypairs[name]}


def create_port(cloud: Cloud, call: Call) -> Answer:
    """Create a port."""
    order: Resource = call.body["port"]
    groups = order.get("security_groups", ())
    for group in groups:
        state.get(cloud.security_groups, group, "SecurityGroup")
    subnets = [address["subnet_id"] for address in order.get("fixed_ips", ())]
    for subnet in subnets:
        if state.get(cloud.subnets, subnet, "Subnet")["network_id"] != order["network_id"]:
            text = f"Invalid input for operation: subnet {subnet} is of another network."
            raise ApiError("InvalidInput", text, status=400)
    port = network.new_port(cloud, order["network_id"])
    pairs = [
        {"mac_address": port["mac_address"], **pair}
        for pair in order.get("allowed_address_pairs", ())
    ]
    port.update(
        name=order.get("name", ""),
        description=order.get("description", ""),
        security_groups=list(groups),
        allowed_address_pairs=pairs,
    )
    if subnets:
        port["fixed_ips"] = [one for one in port["fixed_ips"] if one["subnet_id"] in subnets]
    return 201, {"port": port}


def delete_port(cloud: Cloud, call: Call) -> Answer:
    """Delete a port, even that of a server."""
    del cloud.ports[state.get(cloud.ports, call.path["id"], "Port")["id"]]
    return 204, None


def _lister(table: str) -> state.Handler:
    """Return a handler that lists resources by ID or name, without pages."""

    def index(cloud: Cloud, call: Call) -> Answer:
        things = state.filtered(getattr(cloud, table).values(), call.query)
        return 200, {table: things}

    return index


COMPUTE_CALLS: list[Operation] = [
    ("POST", "/servers", create_server),
    ("DELETE", "/servers/{id}", delete_server),
    ("POST", "/servers/{id}/metadata", set_metadata),
    ("GET", "/os-keypairs/{name}", show_keypair),
    ("GET", "/os-server-groups", _lister("server_groups")),
]
"""Operations of Nova."""

NETWORK_CALLS: list[Operation] = [
    ("POST", "/v2.0/ports", create_port),
    ("DELETE", "/v2.0/ports/{id}", delete_port),
]
"""Operations of Neutron."""

IMAGE_CALLS: list[Operation] = [("GET", "/v2/images", _lister("images"))]
"""Operations of Glance."""

"""Handlers for the creation of servers and their ports, with what a server refers to."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from . import compute, network, state
from .state import Answer, ApiError, Call, Cloud, Operation, Resource

_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_:. ]{1,255}")
_TAG = re.compile(r"[^,/]{1,60}")
_FIELDS = {
    *("name", "flavorRef", "imageRef", "networks", "metadata", "availability_zone", "tags"),
    *("key_name", "config_drive", "security_groups", "user_data", "block_device_mapping_v2"),
    *("boot_index", "uuid", "source_type", "destination_type", "volume_size", "volume_type"),
    "delete_on_termination",
}
"""Fields of a server and of its volumes."""

_SINCE: Mapping[str, tuple[int, ...]] = {"tags": (2, 52), "volume_type": (2, 67)}
"""Field -> microversion from which Nova accepts it."""


def new_image(cloud: Cloud, name: str) -> Resource:
    """Create an image."""
    return cloud.new("images", name, status="active", os_hidden=False)


def _invalid(text: str) -> ApiError:
    return ApiError("badRequest", text, status=400)


def _check(cloud: Cloud, call: Call, order: Resource) -> None:
    """Raise the error 400 of Nova for an invalid order, and 403 above the quota."""
    version = compute.microversion(cloud, call)
    for body in (order, *(order.get("block_device_mapping_v2") or ())):
        for name in body:
            if name not in _FIELDS or version < _SINCE.get(name, (2, 1)):
                text = f"Additional properties are not allowed ({name!r} was unexpected)"
                raise _invalid(text)
    if not isinstance(order.get("networks"), list) or not order["networks"]:
        raise _invalid("'networks' is a required property")
    for key, text in (order.get("metadata") or {}).items():
        if not _METADATA_KEY.fullmatch(key) or len(text) > 255:
            raise _invalid(f"Invalid input for field/attribute metadata. Value: {key}")
    if any(not _TAG.fullmatch(tag) for tag in order.get("tags") or ()):
        raise _invalid(f"Invalid input for field/attribute tags. Value: {order['tags']}")
    base64.b64decode(order.get("user_data") or "", validate=True)
    if len(cloud.servers) >= cloud.settings.servers:
        raise ApiError("quota", state.MESSAGES["quota"])


def create_server(cloud: Cloud, call: Call) -> Answer:
    """Create a server, which runs after `Settings.boot_s`."""
    order: Resource = call.body["server"]
    _check(cloud, call, order)
    volumes = order.get("block_device_mapping_v2") or []
    image = volumes[0]["uuid"] if volumes else order.get("imageRef")
    group = call.body.get("os:scheduler_hints", {}).get("group", "")
    for word, things, text in (
        (order["flavorRef"], cloud.flavors, f"Flavor {order['flavorRef']} could not be found."),
        (image, cloud.images, "Can not find requested image"),
        (group, cloud.server_groups, f"Instance group {group} could not be found."),
        (order.get("key_name", ""), cloud.keypairs, "Invalid key_name provided."),
    ):
        if word != "" and word not in things:
            raise _invalid(text)
    names = {one["name"] for one in order.get("security_groups", ())}
    groups = [one for one in cloud.security_groups.values() if names & {one["id"], one["name"]}]
    if len(groups) != len(names):
        raise _invalid(f"Security group {', '.join(names)} could not be found.")
    for entry in order["networks"]:
        _check_network(cloud, entry)
    zone = order.get("availability_zone") or "az1"
    server = compute.new_server(cloud, order["name"], cloud.flavors[order["flavorRef"]], zone=zone)
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
    things, kind = (cloud.ports, "Port id") if "port" in entry else (cloud.networks, "Network")
    number = entry.get("port") or entry["uuid"]
    if number not in things:
        raise _invalid(f"{kind} {number} could not be found.")
    if things[number].get("device_id"):
        raise ApiError("conflictingRequest", f"Port {number} is still in use.", status=409)


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
    return 200, {"keypair": state.get(cloud.keypairs, call.path["name"], "Keypair")}


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
    fixed = [entry for entry in port["fixed_ips"] if entry["subnet_id"] in subnets]
    port.update(network.with_pairs(port, order), fixed_ips=fixed or port["fixed_ips"])
    return 201, {"port": port}


COMPUTE_CALLS: list[Operation] = [
    ("POST", "/servers", create_server),
    ("DELETE", "/servers/{id}", delete_server),
    ("POST", "/servers/{id}/metadata", set_metadata),
    ("GET", "/os-keypairs/{name}", show_keypair),
    ("GET", "/os-server-groups", state.list_handler("server_groups")),
]
"""Operations of Nova."""

NETWORK_CALLS: list[Operation] = [
    ("POST", "/v2.0/ports", create_port),
    ("DELETE", "/v2.0/ports/{id}", state.remover("ports", "Port")),
]
"""Operations of Neutron."""

IMAGE_CALLS: list[Operation] = [("GET", "/v2/images", state.list_handler("images"))]
"""Operations of Glance."""

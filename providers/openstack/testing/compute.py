"""Handlers of Nova: servers and flavors."""

from __future__ import annotations

import re
from copy import deepcopy

from . import network, state
from .state import Answer, ApiError, Call, Cloud, Operation, Resource

VERSION_HEADER = "openstack-api-version"


def new_flavor(cloud: Cloud, name: str) -> Resource:
    """Create a flavor."""
    return cloud.new("flavors", name)


def new_server(
    cloud: Cloud, name: str, flavor: Resource, network_id: str = "", *, zone: str = "az1"
) -> Resource:
    """Create a server that runs, with a port in a network; empty = without a port."""
    server = cloud.new("servers", name, flavor=flavor["id"], metadata={}, created=cloud.now())
    server |= {
        "accessIPv4": "",
        "accessIPv6": "",
        "OS-EXT-AZ:availability_zone": zone,
        "OS-EXT-STS:vm_state": "active",
        "OS-EXT-STS:power_state": 1,
        "OS-SRV-USG:launched_at": cloud.now(),
    }
    if network_id:
        network.new_port(cloud, network_id, device=server)
    return server


def remove(cloud: Cloud, number: str) -> None:
    """Delete a server with its volumes, and its ports, except those that existed before it.

    Ports that Nova creates have no name.
    """
    cloud.servers.pop(number, None)
    for volume in [entry for entry in cloud.volumes.values() if entry["server"] == number]:
        del cloud.volumes[volume["id"]]
    for port in [port for port in cloud.ports.values() if port["device_id"] == number]:
        if port["name"]:
            port.update(device_id="", device_owner="", status="DOWN")
        else:
            del cloud.ports[port["id"]]


def shown(cloud: Cloud, call: Call, server: Resource) -> Resource:
    """Return a server in the wire format of the requested microversion."""
    flavor = cloud.flavors[server["flavor"]]
    if microversion(cloud, call) >= (2, 47):
        shown_flavor = {"original_name": flavor["name"], "vcpus": 1, "ram": 512, "disk": 1}
    else:
        shown_flavor = {"id": flavor["id"], "links": []}
    addresses = network.addresses_of(cloud, server["id"])
    return {**deepcopy(server), "flavor": shown_flavor, "addresses": addresses}


def microversion(cloud: Cloud, call: Call) -> tuple[int, ...]:
    """Return the requested microversion. Raises the error 406 for one that is too new."""
    asked = call.headers.get(VERSION_HEADER, "compute 2.1").removeprefix("compute ")
    newest = cloud.settings.microversion
    version = tuple(map(int, asked.split(".")))
    if not newest:
        return (2, 1)  # older than microversions: the header is ignored
    if version > tuple(map(int, newest.split("."))):
        text = (
            f"Version {asked} is not supported by the API. Minimum is 2.1 and maximum is {newest}."
        )
        raise ApiError("computeFault", text, status=406)
    return version


def index(cloud: Cloud, call: Call) -> Answer:
    """List servers; the filter `name` is a regular expression."""
    query = dict(call.query)
    patterns = query.pop("name", [".*"])
    matching = [
        server
        for server in state.filtered(cloud.servers.values(), query)
        if re.search(patterns[0], server["name"])
    ]
    servers = [shown(cloud, call, server) for server in matching]
    return state.listing(cloud, call, "servers", servers)


def show(cloud: Cloud, call: Call) -> Answer:
    """Return a server."""
    server = state.get(cloud.servers, call.path["id"], "Instance")
    return 200, {"server": shown(cloud, call, server)}


def limits(cloud: Cloud, _: Call) -> Answer:
    """Return the quotas and their use."""
    absolute = {
        "maxTotalInstances": cloud.settings.servers,
        "totalInstancesUsed": len(cloud.servers),
    }
    return 200, {"limits": {"rate": [], "absolute": absolute}}


CALLS: list[Operation] = [
    ("GET", "/limits", limits),
    ("GET", "/servers/detail", index),
    ("GET", "/servers/{id}", show),
    ("GET", "/flavors", state.list_handler("flavors")),
    ("GET", "/flavors/detail", state.list_handler("flavors")),
]
"""Operations of Nova."""

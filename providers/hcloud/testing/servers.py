"""Handlers for servers."""

from __future__ import annotations

from typing import Any

from . import catalog, networks, state
from .state import Answer, ApiError, Call, Cloud, Handler, Resource

MAX_USER_DATA_BYTES = 32 * 1024
"""Maximum size of user data in bytes (limit of the API)."""


def create(cloud: Cloud, call: Call) -> Answer:
    """Create a server; it runs when its action has ended."""
    order = call.body
    name = state.text(order, "name")
    state.unique(cloud.servers, name, "server")
    if len(cloud.servers) >= cloud.settings.servers:
        raise ApiError("resource_limit_exceeded", "server limit exceeded")
    if len(str(order.get("user_data") or "").encode()) > MAX_USER_DATA_BYTES:
        raise state.invalid("user_data", "is too long")
    created = new_server(cloud, name, order)
    cloud.servers[created["id"]] = created
    _attach_resources(cloud, created, order)

    def run() -> None:
        created["status"] = "running" if order.get("start_after_create", True) else "off"

    action = cloud.act(
        "create_server", [("server", created["id"])], run, takes_s=cloud.settings.boot_s
    )
    password = None if order.get("ssh_keys") else "YItygq1v3GYjjMomLaKc"
    answer: Resource = {
        "server": created,
        "action": action,
        "next_actions": [],
        "root_password": password,
    }
    return 201, answer


def new_server(cloud: Cloud, name: str, order: Resource) -> Resource:
    """Return a server in the wire format, without networks."""
    kind = catalog.find(catalog.SERVER_TYPES, str(order.get("server_type")))
    if kind is None:
        raise state.invalid("server_type", "server type not found")
    fits = [entry for entry in catalog.IMAGES if entry["architecture"] == kind["architecture"]]
    image = catalog.find(fits, str(order.get("image")))
    if image is None:
        raise state.invalid("image", f"image {order.get('image')} not found")
    place = str(order.get("location") or str(order.get("datacenter") or "fsn1").split("-")[0])
    location = catalog.find(catalog.LOCATIONS, place)
    if location is None:
        raise state.invalid("location", "location not found")
    for word in order.get("ssh_keys") or []:
        if not any(str(word) in (str(k["id"]), k["name"]) for k in cloud.ssh_keys.values()):
            raise state.invalid("ssh_keys", f"SSH key {word} not found")
    public = order.get("public_net") or {}
    number = cloud.new_id()
    return {
        "id": number,
        "name": name,
        "status": "initializing",
        "created": cloud.now(),
        "public_net": _public_net(cloud, number, public),
        "private_net": [],
        "server_type": kind,
        "datacenter": {
            "id": location["id"],
            "name": f"{location['name']}-dc{location['id']}",
            "description": location["description"],
            "location": location,
            "server_types": {"available": [], "available_for_migration": [], "supported": []},
        },
        "location": location,
        "image": image,
        "iso": None,
        "rescue_enabled": False,
        "locked": False,
        "backup_window": None,
        "outgoing_traffic": 0,
        "ingoing_traffic": 0,
        "included_traffic": 21990232555520,
        "protection": {"delete": False, "rebuild": False},
        "labels": state.labels(order),
        "volumes": [],
        "load_balancers": [],
        "primary_disk_size": kind["disk"],
        "placement_group": None,
    }


def _public_net(cloud: Cloud, number: int, public: Resource) -> Resource:
    v4, v6 = cloud.new_address()
    net: Resource = {"ipv4": None, "ipv6": None, "floating_ips": [], "firewalls": []}
    if public.get("enable_ipv4", True):
        static = f"static.{number}.clients.your-server.de"
        net["ipv4"] = {"id": cloud.new_id(), "ip": v4, "blocked": False, "dns_ptr": static}
    if public.get("enable_ipv6", True):
        net["ipv6"] = {"id": cloud.new_id(), "ip": v6, "blocked": False, "dns_ptr": []}
    return net


def _attach_resources(cloud: Cloud, created: Resource, order: Resource) -> None:
    """Attach networks, firewalls, volumes and placement group; if one fails, remove the server."""
    try:
        for number in order.get("networks") or []:
            networks.join(cloud, state.get(cloud.networks, number, "network"), created, "servers")
        for entry in order.get("firewalls") or []:
            firewall = state.get(cloud.firewalls, entry["firewall"], "firewall")
            created["public_net"]["firewalls"].append({"id": firewall["id"], "status": "applied"})
        for number in order.get("volumes") or []:
            volume = state.get(cloud.volumes, number, "volume")
            if volume["server"] is not None:
                raise ApiError("conflict", f"volume {number} is attached already")
            volume["server"] = created["id"]
            created["volumes"].append(number)
        if order.get("placement_group"):
            _join_group(cloud, created, order["placement_group"])
    except ApiError:
        remove(cloud, created["id"])
        raise


def _join_group(cloud: Cloud, created: Resource, number: int) -> None:
    group = state.get(cloud.placement_groups, number, "placement_group")
    if len(group["servers"]) >= cloud.settings.group_servers:
        raise ApiError("placement_error", "the placement group is full")
    group["servers"].append(created["id"])
    created["placement_group"] = group


def remove(cloud: Cloud, number: int) -> None:
    """Delete a server and all references to it."""
    cloud.servers.pop(number, None)
    for network in cloud.networks.values():
        network["servers"] = [entry for entry in network["servers"] if entry != number]
    for group in cloud.placement_groups.values():
        group["servers"] = [entry for entry in group["servers"] if entry != number]
    for volume in cloud.volumes.values():
        if volume["server"] == number:
            volume["server"] = None
    for balancer in cloud.load_balancers.values():
        balancer["targets"] = [
            target
            for target in balancer["targets"]
            if (target.get("server") or {}).get("id") != number
        ]


def index(cloud: Cloud, call: Call) -> Answer:
    """List all servers, or those with a status in the query."""
    wanted: Any = call.query.get("status")
    matching = [
        server for server in cloud.servers.values() if not wanted or server["status"] in wanted
    ]
    return state.listing(cloud, call, "servers", matching)


def delete(cloud: Cloud, call: Call) -> Answer:
    """Start an action that deletes a server."""
    server = state.get(cloud.servers, call.id, "server")
    if server["protection"]["delete"]:
        raise ApiError("protected", "server deletion is protected")
    cloud.check_free("server", call.id)
    server["status"] = "deleting"
    action = cloud.act(
        "delete_server",
        [("server", call.id)],
        lambda: remove(cloud, call.id),
        takes_s=cloud.settings.removal_s,
    )
    return 200, {"action": action}


def power(cloud: Cloud, number: int, *, on: bool) -> Resource:
    """Start an action that switches a server on or off."""
    server = state.get(cloud.servers, number, "server")
    cloud.check_free("server", number)
    server["status"] = "starting" if on else "stopping"

    def switched() -> None:
        server["status"] = "running" if on else "off"

    command = "start_server" if on else "stop_server"
    return cloud.act(command, [("server", number)], switched)


def power_handler(*, on: bool) -> Handler:
    """Return a handler that switches a server on or off."""
    return lambda cloud, call: (201, {"action": power(cloud, call.id, on=on)})


def attach(cloud: Cloud, call: Call) -> Answer:
    """Attach a server to a network."""
    server = state.get(cloud.servers, call.id, "server")
    network = state.get(cloud.networks, call.body.get("network", 0), "network")
    cloud.check_free("server", call.id)
    networks.join(cloud, network, server, "servers", ip=str(call.body.get("ip") or ""))
    about = [("server", call.id), ("network", network["id"])]
    return 201, {"action": cloud.act("attach_to_network", about, lambda: None)}

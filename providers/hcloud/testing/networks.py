"""Handlers for networks, and addresses of servers and load balancers in networks."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address, ip_network

from . import extras, state
from .state import Answer, ApiError, Call, Cloud, Resource


def create(cloud: Cloud, call: Call) -> Answer:
    whole = state.text(call.body, "ip_range")
    network = extras.create_resource(
        cloud,
        "networks",
        call,
        ip_range=whole,
        subnets=[
            {
                "type": entry.get("type", "cloud"),
                "ip_range": entry.get("ip_range") or whole,
                "network_zone": entry.get("network_zone", "eu-central"),
                "gateway": str(ip_network(whole)[1]),
                "vswitch_id": None,
            }
            for entry in call.body.get("subnets") or []
        ],
        routes=[],
        servers=[],
        load_balancers=[],
        protection={"delete": False},
        expose_routes_to_vswitch=False,
    )
    return 201, {"network": network}


def join(
    cloud: Cloud, network: Resource, thing: Resource, kind: str, *, ip: str = "", ip_range: str = ""
) -> None:
    """Attach a server or a load balancer to a network."""
    if any(entry["network"] == network["id"] for entry in thing["private_net"]):
        raise ApiError("conflict", "already attached to this network")
    if kind == "servers" and len(network["servers"]) >= cloud.settings.network_servers:
        raise ApiError("resource_limit_exceeded", "too many servers in this network")
    if not network["subnets"]:
        raise ApiError("invalid_input", "the network has no subnet")
    address = _address(cloud, network, ip, ip_range)
    net: Resource = {"network": network["id"], "ip": address}
    if kind == "servers":
        number = thing["id"] % 0xFFFFFF
        net |= {"alias_ips": [], "mac_address": "86:00:ff:" + number.to_bytes(3, "big").hex(":")}
    thing["private_net"].append(net)
    network[kind].append(thing["id"])


def _address(cloud: Cloud, network: Resource, ip: str, ip_range: str) -> str:
    ranges = [net["ip_range"] for net in network["subnets"]]
    if ip_range and ip_range not in ranges:
        raise state.invalid("ip_range", "is not a subnet of the network")
    taken = _taken(cloud, network["id"]) | {net["gateway"] for net in network["subnets"]}
    if ip:
        if ip in taken:
            raise ApiError("conflict", f"{ip} is not available")
        if not any(ip_address(ip) in ip_network(entry) for entry in ranges):
            raise state.invalid("ip", "is in no subnet of the network")
        return ip
    subnet = ip_network(ip_range or ranges[0])
    first = int(subnet[2])
    free = (str(IPv4Address(entry)) for entry in range(first, int(subnet[-1])))
    address = next((entry for entry in free if entry not in taken), "")
    if not address:
        raise ApiError("resource_limit_exceeded", "the subnet is full")
    return address


def _taken(cloud: Cloud, number: int) -> set[str]:
    things = [*cloud.servers.values(), *cloud.load_balancers.values()]
    return {
        net["ip"] for thing in things for net in thing["private_net"] if net["network"] == number
    }


def add_route(cloud: Cloud, call: Call) -> Answer:
    """Start an action that adds a route."""
    network = state.get(cloud.networks, call.id, "network")
    route = {
        "destination": state.text(call.body, "destination"),
        "gateway": state.text(call.body, "gateway"),
    }
    cloud.check_free("network", call.id)
    try:
        destination, gateway = ip_network(route["destination"]), ip_address(route["gateway"])
    except ValueError as error:
        raise state.invalid("destination", "must be an IPv4 CIDR") from error
    if destination.version != 4 or gateway not in ip_network(network["ip_range"]):
        raise state.invalid("gateway", "must be inside of the network")
    taken = [entry["destination"] for entry in network["routes"]]
    if route["destination"] in taken:
        raise state.invalid("destination", "a route with this destination exists already")
    subnets = [entry["ip_range"] for entry in network["subnets"]]
    if any(destination.overlaps(ip_network(cidr)) for cidr in [*taken, *subnets]):
        raise state.invalid("destination", "overlaps with a subnet or with another route")
    if len(network["routes"]) >= cloud.settings.network_routes:
        raise ApiError("resource_limit_exceeded", "too many routes in this network")
    about = [("network", call.id)]
    action = cloud.act("add_route", about, lambda: network["routes"].append(route))
    return 201, {"action": action}


def delete_route(cloud: Cloud, call: Call) -> Answer:
    """Start an action that deletes a route."""
    network = state.get(cloud.networks, call.id, "network")
    route = {name: call.body.get(name) for name in ("destination", "gateway")}
    cloud.check_free("network", call.id)
    if route not in network["routes"]:
        raise ApiError("not_found", "route not found")
    action = cloud.act(
        "delete_route", [("network", call.id)], lambda: network["routes"].remove(route)
    )
    return 201, {"action": action}

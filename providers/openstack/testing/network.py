"""Handlers of Neutron: networks, ports and routers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network

from . import state
from .state import Answer, ApiError, Call, Cloud, Handler, Operation, Resource


def new_network(
    cloud: Cloud, name: str, cidrs: Sequence[str], *, external: bool = False
) -> Resource:
    """Create a network with a subnet for each CIDR."""
    network = cloud.new("networks", name, shared=external, subnets=[], port_security_enabled=True)
    network["router:external"] = external
    for cidr in map(ip_network, cidrs):
        subnet = cloud.new("subnets", f"{name}-v{cidr.version}", network_id=network["id"])
        subnet |= {"cidr": str(cidr), "ip_version": cidr.version, "gateway_ip": str(cidr[1])}
        network["subnets"].append(subnet["id"])
    return network


def new_port(
    cloud: Cloud, network_id: str, *, device: Resource | None = None, owner: str = ""
) -> Resource:
    """Create a port with an address of each subnet, usually of a server."""
    network = state.get(cloud.networks, network_id, "Network")
    fixed = [
        {"subnet_id": subnet, "ip_address": free_address(cloud, subnet)}
        for subnet in network["subnets"]
    ]
    zone = device and device.get("OS-EXT-AZ:availability_zone")
    has_pairs = "allowed-address-pairs" in cloud.settings.extensions
    return cloud.new(
        "ports",
        "",
        description="",
        network_id=network_id,
        device_id=device["id"] if device else "",
        device_owner=owner or (f"compute:{zone}" if device else ""),
        status="ACTIVE" if device else "DOWN",
        mac_address=f"fa:16:3e:00:{len(cloud.ports) // 256:02x}:{len(cloud.ports) % 256:02x}",
        fixed_ips=fixed,
        port_security_enabled=True,
        security_groups=[],
        **({"allowed_address_pairs": []} if has_pairs else {}),
    )


def free_address(cloud: Cloud, subnet_id: str) -> str:
    """Return an unused address of a subnet. Raises the error for an exhausted subnet."""
    used = {entry["ip_address"] for port in cloud.ports.values() for entry in port["fixed_ips"]}
    used |= {entry["floating_ip_address"] for entry in cloud.floating_ips.values()}
    hosts = ip_network(state.get(cloud.subnets, subnet_id, "Subnet")["cidr"])
    for number in range(10, hosts.num_addresses - 1):
        if str(hosts[number]) not in used:
            return str(hosts[number])
    text = f"No more IP addresses available on subnet {subnet_id}."
    raise ApiError("IpAddressGenerationFailure", text, status=409)


def new_router(cloud: Cloud, name: str, subnets: Sequence[str]) -> Resource:
    """Create a router with an interface in each subnet."""
    router = cloud.new("routers", name, routes=[], external_gateway_info=None)
    for subnet_id in subnets:
        subnet, owner = cloud.subnets[subnet_id], "network:router_interface"
        port = new_port(cloud, subnet["network_id"], device=router, owner=owner)
        port["fixed_ips"] = [{"subnet_id": subnet_id, "ip_address": subnet["gateway_ip"]}]
    return router


def addresses_of(cloud: Cloud, server_id: str) -> Resource:
    """Return the addresses of a server in the wire format of Nova."""
    addresses: Resource = {}
    for port in cloud.ports.values():
        if port["device_id"] == server_id:
            name = cloud.networks[port["network_id"]]["name"]
            addresses.setdefault(name, []).extend(
                {
                    "addr": entry["ip_address"],
                    "version": ip_address(entry["ip_address"]).version,
                    "OS-EXT-IPS:type": "fixed",
                    "OS-EXT-IPS-MAC:mac_addr": port["mac_address"],
                }
                for entry in port["fixed_ips"]
            )
    return addresses


def with_pairs(port: Resource, order: Resource) -> Resource:
    """Return a port's order, with the MAC address of the port in address pairs without one."""
    if "allowed_address_pairs" not in order:
        return order
    own = {"mac_address": port["mac_address"]}
    pairs = [{**own, **pair} for pair in order["allowed_address_pairs"]]
    return {**order, "allowed_address_pairs": pairs}


def change_port(cloud: Cloud, call: Call) -> Answer:
    """Change a port."""
    port = state.get(cloud.ports, call.path["id"], "Port")
    order = call.body["port"]
    if order.get("allowed_address_pairs") and not port["port_security_enabled"]:
        text = "Port Security must be enabled in order to have allowed address pairs on a port."
        raise ApiError("AddressPairAndPortSecurityRequired", text, status=409)
    port.update(with_pairs(port, order))
    port["revision_number"] += 1
    return 200, {"port": port}


Routes = Callable[[list[Resource], list[Resource]], list[Resource]]


def routes_handler(change: Routes, *, needs: str) -> Handler:
    """Return a handler that changes the extra routes of a router."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        if needs not in cloud.settings.extensions:
            raise ApiError("HTTPNotFound", "The resource could not be found.", status=404)
        router = state.get(cloud.routers, call.path["id"], "Router")
        expected = call.headers.get("if-match", "").removeprefix("revision_number=")
        if expected and expected != str(router["revision_number"]):
            text = f"Constrained to {expected}, but current revision is {router['revision_number']}"
            raise ApiError("RevisionNumberConstraintFailed", text, status=412)
        routes = change(router["routes"], call.body["router"].get("routes", router["routes"]))
        _check_routes(cloud, router, routes)
        router["routes"] = routes
        router["revision_number"] += 1
        return 200, {"router": router}

    return handler


def _check_routes(cloud: Cloud, router: Resource, routes: list[Resource]) -> None:
    if len(routes) > cloud.settings.router_routes:
        text = f"Unable to complete operation for {router['id']}. The number of routes exceeds"
        raise ApiError("RoutesExhausted", f"{text} the maximum.", status=400)
    subnets = [
        ip_network(cloud.subnets[entry["subnet_id"]]["cidr"])
        for port in cloud.ports.values()
        if port["device_id"] == router["id"]
        for entry in port["fixed_ips"]
    ]
    for route in routes:
        if not any(ip_address(route["nexthop"]) in subnet for subnet in subnets):
            text = f"Invalid format for routes: {route}, the nexthop is not connected with router"
            raise ApiError("InvalidRoutes", text, status=400)


CALLS: list[Operation] = [
    *state.readable("networks", "network", prefix="/v2.0"),
    *state.readable("subnets", "subnet", prefix="/v2.0"),
    *state.readable("ports", "port", prefix="/v2.0"),
    *state.readable("routers", "router", prefix="/v2.0"),
    ("PUT", "/v2.0/ports/{id}", change_port),
    ("PUT", "/v2.0/routers/{id}", routes_handler(lambda _, routes: routes, needs="extraroute")),
    *(
        ("PUT", f"/v2.0/routers/{{id}}/{word}", routes_handler(change, needs="extraroute-atomic"))
        for word, change in (
            ("add_extraroutes", lambda old, more: [*old, *(row for row in more if row not in old)]),
            ("remove_extraroutes", lambda old, less: [row for row in old if row not in less]),
        )
    ),
]
"""Operations of Neutron."""

"""Handlers of Neutron: networks, ports and routers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network

from . import state
from .state import PROJECT, Answer, ApiError, Call, Cloud, Handler, Operation, Resource


def new_network(
    cloud: Cloud, name: str, cidrs: Sequence[str], *, external: bool = False
) -> Resource:
    """Create a network with a subnet for each CIDR."""
    number = cloud.new_id()
    network: Resource = {
        "id": number,
        "name": name,
        "status": "ACTIVE",
        "admin_state_up": True,
        "router:external": external,
        "shared": external,
        "port_security_enabled": True,
        "subnets": [],
        "tags": [],
        "project_id": PROJECT,
    }
    for cidr in cidrs:
        subnet = cloud.new_id()
        cloud.subnets[subnet] = {
            "id": subnet,
            "name": f"{name}-v{ip_network(cidr).version}",
            "network_id": number,
            "cidr": cidr,
            "ip_version": ip_network(cidr).version,
            "gateway_ip": str(ip_network(cidr)[1]),
            "tags": [],
            "project_id": PROJECT,
        }
        network["subnets"].append(subnet)
    cloud.networks[number] = network
    return network


def new_port(
    cloud: Cloud, network_id: str, *, device: Resource | None = None, owner: str = ""
) -> Resource:
    """Create a port with an address of each subnet, usually of a server."""
    number = cloud.new_id()
    network = state.get(cloud.networks, network_id, "Network")
    zone = device and device.get("OS-EXT-AZ:availability_zone")
    port: Resource = {
        "id": number,
        "name": "",
        "network_id": network_id,
        "device_id": device["id"] if device else "",
        "device_owner": owner or (f"compute:{zone}" if device else ""),
        "status": "ACTIVE" if device else "DOWN",
        "admin_state_up": True,
        "mac_address": f"fa:16:3e:00:{len(cloud.ports) // 256:02x}:{len(cloud.ports) % 256:02x}",
        "fixed_ips": [
            {"subnet_id": subnet, "ip_address": _free_address(cloud, subnet)}
            for subnet in network["subnets"]
        ],
        "allowed_address_pairs": [],
        "port_security_enabled": True,
        "security_groups": [],
        "tags": [],
        "project_id": PROJECT,
        "revision_number": 1,
    }
    cloud.ports[number] = port
    return port


def _free_address(cloud: Cloud, subnet_id: str) -> str:
    used = {entry["ip_address"] for port in cloud.ports.values() for entry in port["fixed_ips"]}
    hosts = ip_network(cloud.subnets[subnet_id]["cidr"])
    for number in range(10, hosts.num_addresses - 1):
        if str(hosts[number]) not in used:
            return str(hosts[number])
    text = f"No more IP addresses available on network {cloud.subnets[subnet_id]['network_id']}."
    raise ApiError("IpAddressGenerationFailure", text, status=409)


def new_router(cloud: Cloud, name: str, subnets: Sequence[str]) -> Resource:
    """Create a router with an interface in each subnet."""
    number = cloud.new_id()
    router: Resource = {
        "id": number,
        "name": name,
        "status": "ACTIVE",
        "admin_state_up": True,
        "routes": [],
        "external_gateway_info": None,
        "project_id": PROJECT,
        "revision_number": 1,
        "tags": [],
    }
    cloud.routers[number] = router
    for subnet_id in subnets:
        subnet = cloud.subnets[subnet_id]
        port = new_port(
            cloud, subnet["network_id"], device=router, owner="network:router_interface"
        )
        address = {"subnet_id": subnet_id, "ip_address": subnet["gateway_ip"]}
        port["fixed_ips"] = [address]
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


def extensions(cloud: Cloud, _: Call) -> Answer:
    """List the extensions."""
    return 200, {
        "extensions": [
            {"alias": alias, "name": alias, "description": "", "links": []}
            for alias in cloud.settings.extensions
        ]
    }


def change_port(cloud: Cloud, call: Call) -> Answer:
    """Change a port."""
    port = state.get(cloud.ports, call.path["id"], "Port")
    order = call.body["port"]
    if order.get("allowed_address_pairs") and not port["port_security_enabled"]:
        text = "Port Security must be enabled in order to have allowed address pairs on a port."
        raise ApiError("AddressPairAndPortSecurityRequired", text, status=409)
    if "allowed_address_pairs" in order:
        order["allowed_address_pairs"] = [
            {"mac_address": port["mac_address"], **pair} for pair in order["allowed_address_pairs"]
        ]
    port.update(order)
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
            text = "the nexthop is not connected with router"
            raise ApiError(
                "InvalidRoutes", f"Invalid format for routes: {route}, {text}", status=400
            )


def _added(routes: list[Resource], more: list[Resource]) -> list[Resource]:
    return [*routes, *(route for route in more if route not in routes)]


def _removed(routes: list[Resource], fewer: list[Resource]) -> list[Resource]:
    return [route for route in routes if route not in fewer]


CALLS: list[Operation] = [
    ("GET", "/v2.0/extensions", extensions),
    ("GET", "/v2.0/networks", state.list_handler("networks")),
    ("GET", "/v2.0/networks/{id}", state.show_handler("networks", "network", "Network")),
    ("GET", "/v2.0/subnets", state.list_handler("subnets")),
    ("GET", "/v2.0/subnets/{id}", state.show_handler("subnets", "subnet", "Subnet")),
    ("GET", "/v2.0/ports", state.list_handler("ports")),
    ("GET", "/v2.0/ports/{id}", state.show_handler("ports", "port", "Port")),
    ("PUT", "/v2.0/ports/{id}", change_port),
    ("GET", "/v2.0/routers", state.list_handler("routers")),
    ("GET", "/v2.0/routers/{id}", state.show_handler("routers", "router", "Router")),
    (
        "PUT",
        "/v2.0/routers/{id}",
        routes_handler(lambda _, routes: routes, needs="extraroute"),
    ),
    (
        "PUT",
        "/v2.0/routers/{id}/add_extraroutes",
        routes_handler(_added, needs="extraroute-atomic"),
    ),
    (
        "PUT",
        "/v2.0/routers/{id}/remove_extraroutes",
        routes_handler(_removed, needs="extraroute-atomic"),
    ),
]
"""Operations of Neutron."""

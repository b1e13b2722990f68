"""Handlers for load balancers."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from ipaddress import ip_network

from . import catalog, networks, state
from .state import Answer, ApiError, Call, Cloud, Resource


def create(cloud: Cloud, call: Call) -> Answer:
    """Create a load balancer; it has no address before its action ends."""
    order = call.body
    name = state.text(order, "name")
    state.unique(cloud.load_balancers, name, "load balancer")
    if len(cloud.load_balancers) >= cloud.settings.balancers:
        raise ApiError("resource_limit_exceeded", "load balancer limit exceeded")
    created = _new_balancer(cloud, name, order)
    for service in order.get("services") or []:
        add_service(cloud, created, service)
    if order.get("network"):
        network = state.get(cloud.networks, order["network"], "network")
        networks.join(cloud, network, created, "load_balancers")
    for target in order.get("targets") or []:
        add_target(cloud, created, target)
    cloud.load_balancers[created["id"]] = created
    v4, v6 = cloud.new_address()

    def run() -> None:
        first = str(ip_network(v6)[1])
        created["public_net"]["ipv4"] = {"ip": v4, "dns_ptr": f"static.{v4}.example.com"}
        created["public_net"]["ipv6"] = {"ip": first, "dns_ptr": None}

    about = [("load_balancer", created["id"])]
    takes = cloud.settings.balancer_s
    action = cloud.act("create_load_balancer", about, run, takes_s=takes)
    return 201, {"load_balancer": created, "action": action}


def _new_balancer(cloud: Cloud, name: str, order: Resource) -> Resource:
    kind = _type(str(order.get("load_balancer_type")))
    word, zone = order.get("location"), order.get("network_zone")
    if bool(word) == bool(zone):
        raise state.invalid("location", "exactly one of location and network_zone is required")
    places = [location for location in catalog.LOCATIONS if location["network_zone"] == zone]
    place = catalog.find(catalog.LOCATIONS, str(word)) if word else next(iter(places), None)
    if place is None:
        raise state.invalid("location", "location not found")
    nothing = {"ip": None, "dns_ptr": None}
    return {
        "id": cloud.new_id(),
        "name": name,
        "public_net": {
            "enabled": order.get("public_interface", True),
            "ipv4": dict(nothing),
            "ipv6": dict(nothing),
        },
        "private_net": [],
        "location": place,
        "load_balancer_type": kind,
        "protection": {"delete": False},
        "labels": state.labels(order),
        "targets": [],
        "services": [],
        "algorithm": order.get("algorithm") or {"type": "round_robin"},
        "outgoing_traffic": None,
        "ingoing_traffic": None,
        "included_traffic": 654321,
        "created": cloud.now(),
    }


def _type(word: str) -> Resource:
    kind = catalog.find(catalog.BALANCER_TYPES, word)
    if kind is None:
        raise state.invalid("load_balancer_type", "load balancer type not found")
    return kind


def delete(cloud: Cloud, call: Call) -> Answer:
    balancer = state.get(cloud.load_balancers, call.id, "load_balancer")
    if balancer["protection"]["delete"]:
        raise ApiError("protected", "load balancer deletion is protected")
    cloud.check_free("load_balancer", call.id)
    if not cloud.settings.deletion_actions:
        _remove(cloud, call.id)
        return 204, None
    about = [("load_balancer", call.id)]
    action = cloud.act("delete_load_balancer", about, lambda: _remove(cloud, call.id))
    return 200, {"action": action}


def _remove(cloud: Cloud, number: int) -> None:
    del cloud.load_balancers[number]
    for network in cloud.networks.values():
        network["load_balancers"] = [
            entry for entry in network["load_balancers"] if entry != number
        ]


Change = Callable[[Cloud, Resource, Resource], None]


def action_handler(command: str, change: Change) -> state.Handler:
    """Return a handler that checks a change at once, and applies it when its action ends."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        balancer = state.get(cloud.load_balancers, call.id, "load_balancer")
        cloud.check_free("load_balancer", call.id)
        attempt = deepcopy(balancer)
        change(_DryRunCloud(cloud), attempt, call.body)  # an impossible change is refused at once
        about = [("load_balancer", call.id)]
        return 201, {
            "action": cloud.act(command, about, lambda: change(cloud, balancer, call.body))
        }

    return handler


class _DryRunCloud(Cloud):
    """Copy of a cloud on which a change is tried; the copy is then discarded."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud.settings)
        self.servers, self.load_balancers = cloud.servers, cloud.load_balancers
        self.certificates = cloud.certificates
        self.networks = {number: deepcopy(network) for number, network in cloud.networks.items()}


def add_service(cloud: Cloud, balancer: Resource, service: Resource) -> None:
    """Add a listener (`service` in the API)."""
    port = service.get("listen_port")
    if any(entry["listen_port"] == port for entry in balancer["services"]):
        raise ApiError("source_port_already_used", f"listen port {port} is used", status=409)
    for name in ("listen_port", "destination_port"):
        _in_range(service, name, 1, 65535)
    if len(balancer["services"]) >= balancer["load_balancer_type"]["max_services"]:
        raise ApiError("resource_limit_exceeded", "too many services")
    created = {"proxyprotocol": False, **service, "health_check": _check(service["health_check"])}
    if created["protocol"] != "tcp":
        created["http"] = {
            "cookie_name": "HCLBSTICKY",
            "cookie_lifetime": 300,
            "timeout_idle": 50,
            "certificates": [],
            "redirect_http": False,
            "sticky_sessions": False,
            **(service.get("http") or {}),
        }
        numbers = created["http"]["certificates"]
        if created["protocol"] == "https" and not numbers:
            raise state.invalid("certificates", "https needs a certificate")
        if any(number not in cloud.certificates for number in numbers):
            raise state.invalid("certificates", "certificate not found")
        _in_range(created["http"], "timeout_idle", 30, 300)
        _in_range(created["http"], "cookie_lifetime", 1, 2**31)
    else:
        created.pop("http", None)
    balancer["services"].append(created)


def _check(given: Resource) -> Resource:
    """Return a health check with the API's defaults filled in."""
    plain = {"interval": 15, "timeout": 10, "retries": 3, **given}
    plain.pop("http", None)
    for name, (least, most) in _CHECK_RANGES.items():
        _in_range(plain, name, least, most)
    if plain["protocol"] == "tcp":
        return plain
    if plain["protocol"] != "http":
        raise state.invalid("protocol", "must be tcp or http")
    http: Resource = {"domain": None, "path": "/", "tls": False, "status_codes": ["2??", "3??"]}
    http |= given.get("http") or {}
    if not all(re.fullmatch(r"[1-5?*][0-9?*]{0,2}", code) for code in http["status_codes"]):
        raise state.invalid("status_codes", "must be codes such as 2?? or 404")
    if http["domain"] == "" or not http["path"].startswith("/"):
        raise state.invalid("path", "must begin with /, and a domain must not be empty")
    return {**plain, "http": http}


_CHECK_RANGES = {"port": (1, 65535), "interval": (3, 60), "timeout": (1, 60), "retries": (1, 5)}


def _in_range(thing: Resource, name: str, least: int, most: int) -> None:
    value = thing.get(name)
    if not isinstance(value, int) or not least <= value <= most:
        raise state.invalid(name, f"must be from {least} to {most}")


def update_service(cloud: Cloud, balancer: Resource, body: Resource) -> None:
    """Change a listener (`service` in the API)."""
    old = next(
        (entry for entry in balancer["services"] if entry["listen_port"] == body["listen_port"]),
        None,
    )
    if old is None:
        raise ApiError("not_found", f"no service listens on {body['listen_port']}")
    merged = {**old, **body}
    for part in ("health_check", "http"):
        if part in old or part in body:
            merged[part] = {**(old.get(part) or {}), **(body.get(part) or {})}
    balancer["services"] = [entry for entry in balancer["services"] if entry is not old]
    add_service(cloud, balancer, merged)


def delete_service(_: Cloud, balancer: Resource, body: Resource) -> None:
    """Remove a listener (`service` in the API)."""
    kept = [entry for entry in balancer["services"] if entry["listen_port"] != body["listen_port"]]
    if len(kept) == len(balancer["services"]):
        raise ApiError("not_found", f"no service listens on {body['listen_port']}")
    balancer["services"] = kept


def _key(target: Resource) -> tuple[object, ...]:
    kind = target["type"]
    return (kind, tuple(sorted((target.get(kind) or {}).items())))


def add_target(cloud: Cloud, balancer: Resource, target: Resource) -> None:
    if any(_key(entry) == _key(target) for entry in balancer["targets"]):
        raise ApiError("target_already_defined", "target is already defined", status=409)
    if len(balancer["targets"]) >= balancer["load_balancer_type"]["max_targets"]:
        raise ApiError("resource_limit_exceeded", "too many targets")
    created = {**target, "health_status": []}
    if target["type"] == "server":
        server = state.get(cloud.servers, target["server"]["id"], "server")
        created["use_private_ip"] = private = bool(target.get("use_private_ip"))
        ours = {entry["network"] for entry in balancer["private_net"]}
        if private and not ours:
            code = "load_balancer_not_attached_to_network"
            raise ApiError(code, "load balancer is in no network", status=422)
        if private and not any(entry["network"] in ours for entry in server["private_net"]):
            code = "server_not_attached_to_network"
            raise ApiError(code, "server and load balancer share no network", status=422)
    balancer["targets"].append(created)


def remove_target(_: Cloud, balancer: Resource, body: Resource) -> None:
    kept = [target for target in balancer["targets"] if _key(target) != _key(body)]
    if len(kept) == len(balancer["targets"]):
        raise ApiError("not_found", "target not found")
    balancer["targets"] = kept


def attach(cloud: Cloud, balancer: Resource, body: Resource) -> None:
    """Attach a load balancer to a network."""
    network = state.get(cloud.networks, body["network"], "network")
    ip, ip_range = str(body.get("ip") or ""), str(body.get("ip_range") or "")
    networks.join(cloud, network, balancer, "load_balancers", ip=ip, ip_range=ip_range)


def detach(cloud: Cloud, balancer: Resource, body: Resource) -> None:
    """Detach a load balancer from a network."""
    network = state.get(cloud.networks, body["network"], "network")
    kept = [entry for entry in balancer["private_net"] if entry["network"] != network["id"]]
    if len(kept) == len(balancer["private_net"]):
        raise ApiError("not_found", "not attached to this network")
    balancer["private_net"] = kept
    network["load_balancers"] = [
        number for number in network["load_balancers"] if number != balancer["id"]
    ]


def change_algorithm(_: Cloud, balancer: Resource, body: Resource) -> None:
    balancer["algorithm"] = {"type": state.text(body, "type")}


def change_type(_: Cloud, balancer: Resource, body: Resource) -> None:
    kind = _type(str(body.get("load_balancer_type")))
    if kind["deprecation"]:
        raise ApiError("unsupported_error", "load balancer type is deprecated", status=422)
    if len(balancer["targets"]) > kind["max_targets"]:
        raise state.invalid("load_balancer_type", "has more targets than this type may have")
    balancer["load_balancer_type"] = kind


def change_dns_ptr(_: Cloud, balancer: Resource, body: Resource) -> None:
    for family in ("ipv4", "ipv6"):
        if balancer["public_net"][family]["ip"] == body.get("ip"):
            balancer["public_net"][family] = {"ip": body["ip"], "dns_ptr": body["dns_ptr"]}
            return
    raise ApiError("not_found", "the load balancer has no such address")


def change_protection(_: Cloud, balancer: Resource, body: Resource) -> None:
    """Switch the protection from deletion on or off."""
    balancer["protection"] = {"delete": bool(body.get("delete"))}


def public_interface_change(*, on: bool) -> Change:
    """Return a change that switches the public interface on or off."""

    def switch(_: Cloud, balancer: Resource, __: Resource) -> None:
        if not on and not balancer["private_net"]:
            code = "load_balancer_not_attached_to_network"
            raise ApiError(code, "load balancer is in no network", status=422)
        servers = [entry for entry in balancer["targets"] if entry["type"] == "server"]
        if not on and not all(entry.get("use_private_ip") for entry in servers):
            code = "targets_without_use_private_ip"
            raise ApiError(code, "targets use the public IP", status=422)
        balancer["public_net"] = {**balancer["public_net"], "enabled": on}

    return switch

"""What the calls about load balancers do."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from ipaddress import ip_network

from . import catalog, networks, state
from .state import Answer, ApiError, Call, Cloud, Thing


def create(cloud: Cloud, call: Call) -> Answer:
    """Order one; it has no address before its action ends."""
    order = call.body
    name = state.text(order, "name")
    state.unique(cloud.load_balancers, name, "load balancer")
    if len(cloud.load_balancers) >= cloud.settings.balancers:
        raise ApiError("resource_limit_exceeded", "load balancer limit exceeded")
    made = _bare(cloud, name, order)
    for service in order.get("services") or []:
        add_service(cloud, made, service)
    if order.get("network"):
        network = state.get(cloud.networks, order["network"], "network")
        networks.join(cloud, network, made, "load_balancers")
    for target in order.get("targets") or []:
        add_target(cloud, made, target)
    cloud.load_balancers[made["id"]] = made
    v4, v6 = cloud.new_address()

    def run() -> None:
        first = str(ip_network(v6)[1])
        made["public_net"]["ipv4"] = {"ip": v4, "dns_ptr": f"static.{v4}.example.com"}
        made["public_net"]["ipv6"] = {"ip": first, "dns_ptr": None}

    about = [("load_balancer", made["id"])]
    takes = cloud.settings.balancer_s
    action = cloud.act("create_load_balancer", about, run, takes_s=takes)
    return 201, {"load_balancer": made, "action": action}


def _bare(cloud: Cloud, name: str, order: Thing) -> Thing:
    kind = _type(str(order.get("load_balancer_type")))
    word, zone = order.get("location"), order.get("network_zone")
    if bool(word) == bool(zone):
        raise state.invalid("location", "exactly one of location and network_zone is required")
    places = [one for one in catalog.LOCATIONS if one["network_zone"] == zone]
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


def _type(word: str) -> Thing:
    found = catalog.find(catalog.BALANCER_TYPES, word)
    if found is None:
        raise state.invalid("load_balancer_type", "load balancer type not found")
    return found


def change(cloud: Cloud, call: Call) -> Answer:
    """Another name, other labels; those that are given replace all."""
    found = state.get(cloud.load_balancers, call.id, "load_balancer")
    if name := state.text(call.body, "name", required=False):
        state.unique(cloud.load_balancers, name, "load balancer", but=call.id)
        found["name"] = name
    if "labels" in call.body:
        found["labels"] = state.labels(call.body)
    return 200, {"load_balancer": found}


def delete(cloud: Cloud, call: Call) -> Answer:
    """Take one away."""
    found = state.get(cloud.load_balancers, call.id, "load_balancer")
    if found["protection"]["delete"]:
        raise ApiError("protected", "load balancer deletion is protected")
    cloud.check_free("load_balancer", call.id)
    if not cloud.settings.told_deletions:
        _remove(cloud, call.id)
        return 204, None
    about = [("load_balancer", call.id)]
    action = cloud.act("delete_load_balancer", about, lambda: _remove(cloud, call.id))
    return 200, {"action": action}


def _remove(cloud: Cloud, number: int) -> None:
    del cloud.load_balancers[number]
    for network in cloud.networks.values():
        network["load_balancers"] = [each for each in network["load_balancers"] if each != number]


Change = Callable[[Cloud, Thing, Thing], None]


def acts(command: str, change: Change) -> state.Handler:
    """An action about one: what it asks for is looked at now, and is so when it ends."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        found = state.get(cloud.load_balancers, call.id, "load_balancer")
        cloud.check_free("load_balancer", call.id)
        attempt = deepcopy(found)
        change(_Dry(cloud), attempt, call.body)  # what cannot be had is refused at once
        about = [("load_balancer", call.id)]
        return 201, {"action": cloud.act(command, about, lambda: change(cloud, found, call.body))}

    return handler


class _Dry(Cloud):
    """A cloud to try a change in: what it gives out and notes is forgotten."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud.settings)
        self.servers, self.load_balancers = cloud.servers, cloud.load_balancers
        self.certificates = cloud.certificates
        self.networks = {number: deepcopy(one) for number, one in cloud.networks.items()}


def add_service(_: Cloud, balancer: Thing, service: Thing) -> None:
    """Listen on one more port."""
    port = service.get("listen_port")
    if any(one["listen_port"] == port for one in balancer["services"]):
        raise ApiError("source_port_used", f"listen port {port} is used", status=409)
    if len(balancer["services"]) >= balancer["load_balancer_type"]["max_services"]:
        raise ApiError("resource_limit_exceeded", "too many services")
    made = {"proxyprotocol": False, **service, "health_check": _check(service["health_check"])}
    if made["protocol"] != "tcp":
        made["http"] = {
            "cookie_name": "HCLBSTICKY",
            "cookie_lifetime": 300,
            "timeout_idle": 50,
            "certificates": [],
            "redirect_http": False,
            "sticky_sessions": False,
            **(service.get("http") or {}),
        }
        if made["protocol"] == "https" and not made["http"]["certificates"]:
            raise state.invalid("certificates", "https needs a certificate")
    else:
        made.pop("http", None)
    balancer["services"].append(made)


def _check(given: Thing) -> Thing:
    """A health check with all that the API fills in."""
    plain = {key: value for key, value in given.items() if key != "http"}
    if given["protocol"] == "tcp":
        return plain
    http = {"domain": None, "path": "/", "tls": False, "status_codes": ["2??", "3??"]}
    return {**plain, "http": {**http, **(given.get("http") or {})}}


def update_service(cloud: Cloud, balancer: Thing, body: Thing) -> None:
    """Change what happens on a port."""
    old = next(
        (one for one in balancer["services"] if one["listen_port"] == body["listen_port"]), None
    )
    if old is None:
        raise ApiError("not_found", f"no service listens on {body['listen_port']}")
    merged = {**old, **body}
    for part in ("health_check", "http"):
        if part in old or part in body:
            merged[part] = {**(old.get(part) or {}), **(body.get(part) or {})}
    balancer["services"] = [one for one in balancer["services"] if one is not old]
    add_service(cloud, balancer, merged)


def delete_service(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Listen no more on a port."""
    kept = [one for one in balancer["services"] if one["listen_port"] != body["listen_port"]]
    if len(kept) == len(balancer["services"]):
        raise ApiError("not_found", f"no service listens on {body['listen_port']}")
    balancer["services"] = kept


def _key(target: Thing) -> tuple[object, ...]:
    kind = target["type"]
    return (kind, tuple(sorted((target.get(kind) or {}).items())))


def add_target(cloud: Cloud, balancer: Thing, target: Thing) -> None:
    """Send traffic to one more."""
    if any(_key(one) == _key(target) for one in balancer["targets"]):
        raise ApiError("target_already_defined", "target is already defined", status=409)
    if len(balancer["targets"]) >= balancer["load_balancer_type"]["max_targets"]:
        raise ApiError("resource_limit_exceeded", "too many targets")
    made = {**target, "health_status": []}
    if target["type"] == "server":
        server = state.get(cloud.servers, target["server"]["id"], "server")
        made["use_private_ip"] = private = bool(target.get("use_private_ip"))
        ours = {one["network"] for one in balancer["private_net"]}
        if private and not any(one["network"] in ours for one in server["private_net"]):
            raise state.invalid("use_private_ip", "server and load balancer share no network")
    balancer["targets"].append(made)


def remove_target(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Send no more traffic to one."""
    kept = [one for one in balancer["targets"] if _key(one) != _key(body)]
    if len(kept) == len(balancer["targets"]):
        raise ApiError("not_found", "target not found")
    balancer["targets"] = kept


def attach(cloud: Cloud, balancer: Thing, body: Thing) -> None:
    """Bring it into a network."""
    network = state.get(cloud.networks, body["network"], "network")
    ip, ip_range = str(body.get("ip") or ""), str(body.get("ip_range") or "")
    networks.join(cloud, network, balancer, "load_balancers", ip=ip, ip_range=ip_range)


def detach(cloud: Cloud, balancer: Thing, body: Thing) -> None:
    """Take it out of a network."""
    network = state.get(cloud.networks, body["network"], "network")
    kept = [one for one in balancer["private_net"] if one["network"] != network["id"]]
    if len(kept) == len(balancer["private_net"]):
        raise ApiError("not_found", "not attached to this network")
    if any(one.get("use_private_ip") for one in balancer["targets"]):
        raise ApiError("targets_without_use_private_ip", "targets use the network", status=422)
    balancer["private_net"] = kept
    network["load_balancers"] = [
        each for each in network["load_balancers"] if each != balancer["id"]
    ]


def change_algorithm(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Choose members in another way."""
    balancer["algorithm"] = {"type": state.text(body, "type")}


def change_type(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Become larger or smaller."""
    kind = _type(str(body.get("load_balancer_type")))
    if kind["deprecated"]:
        raise ApiError("unsupported_error", "load balancer type is deprecated", status=422)
    if len(balancer["targets"]) > kind["max_targets"]:
        raise state.invalid("load_balancer_type", "has more targets than this type may have")
    balancer["load_balancer_type"] = kind


def change_dns_ptr(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Answer to another name."""
    for family in ("ipv4", "ipv6"):
        if balancer["public_net"][family]["ip"] == body.get("ip"):
            balancer["public_net"][family] = {"ip": body["ip"], "dns_ptr": body["dns_ptr"]}
            return
    raise ApiError("not_found", "the load balancer has no such address")


def change_protection(_: Cloud, balancer: Thing, body: Thing) -> None:
    """Be safe from deletion, or no more."""
    balancer["protection"] = {"delete": bool(body.get("delete"))}


def publishes(*, on: bool) -> Change:
    """Be in reach from outside, or no more."""

    def switch(_: Cloud, balancer: Thing, __: Thing) -> None:
        balancer["public_net"] = {**balancer["public_net"], "enabled": on}

    return switch

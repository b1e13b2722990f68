"""Handlers of Octavia: load balancers, listeners, pools, members and health monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from . import network, state
from .state import PROJECT, Answer, ApiError, Call, Cloud, Handler, Operation, Resource

POOL_PROTOCOLS: Mapping[str, frozenset[str]] = {
    "HTTP": frozenset({"HTTP", "PROXY", "PROXYV2"}),
    "TCP": frozenset({"HTTP", "HTTPS", "PROXY", "PROXYV2", "TCP"}),
    "TERMINATED_HTTPS": frozenset({"HTTP", "PROXY", "PROXYV2"}),
    "UDP": frozenset({"UDP"}),
}
"""Protocol of a listener -> protocols of its pool."""

ALGORITHMS = frozenset({"ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"})

MINOR_VERSIONS: Mapping[str, int] = {
    **dict.fromkeys(("timeout_client_data", "timeout_tcp_inspect"), 1),
    "tags": 5,
    "flavor_id": 6,
    "allowed_cidrs": 12,
    "availability_zone": 14,
}
"""Field -> minor version of the API that introduced it."""


def invalid(text: str) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError("badRequest", text, status=400)


def get(cloud: Cloud, table: str, number: str) -> Resource:
    """Return a resource by its ID. Raises the error 404."""
    return state.get(getattr(cloud, table), number, table.title())


def _check_fields(cloud: Cloud, order: Mapping[str, Any]) -> None:
    for field in order:
        if MINOR_VERSIONS.get(field, 0) > cloud.settings.octavia_minor:
            raise invalid(f"Unknown attribute for argument {field}: {field}")


_PARENTS = frozenset({"loadbalancer_id", "listener_id", "pool_id"})


def _resource(cloud: Cloud, order: Mapping[str, Any], **fields: Any) -> Resource:
    _check_fields(cloud, order)
    given = {key: value for key, value in order.items() if key not in _PARENTS}
    tags: Resource = {"tags": []} if cloud.settings.octavia_minor >= MINOR_VERSIONS["tags"] else {}
    return {
        "name": "",
        "admin_state_up": True,
        "operating_status": "OFFLINE",
        "provisioning_status": "ACTIVE",
        "project_id": PROJECT,
        "created_at": cloud.now(),
        "updated_at": None,
        **tags,
        **fields,
        **given,
        "id": cloud.new_id(),
    }


# --- load balancers -------------------------------------------------------------------------------


def create(cloud: Cloud, call: Call) -> Answer:
    """Create a load balancer with its parts."""
    order = dict(call.body["loadbalancer"])
    if len(cloud.balancers) >= cloud.settings.balancers:
        raise ApiError("quota", "Quota has been met for resources: Load Balancer", status=403)
    port = _vip_port(cloud, order)
    entry = port["fixed_ips"][0]
    listeners = order.pop("listeners", [])
    balancer = _resource(
        cloud,
        order,
        vip_address=entry["ip_address"],
        vip_port_id=port["id"],
        vip_subnet_id=entry["subnet_id"],
        vip_network_id=port["network_id"],
        description="",
    )
    balancer.update(provisioning_status="PENDING_CREATE", vip_subnet_id=entry["subnet_id"])
    port["name"] = f"octavia-lb-{balancer['id']}"
    cloud.balancers[balancer["id"]] = balancer
    try:
        for part in listeners:
            pool = part.pop("default_pool", None)
            listener = new_listener(cloud, balancer, part)
            if pool:
                members, monitor = pool.pop("members", []), pool.pop("healthmonitor", None)
                new = _new_pool(cloud, balancer, {**pool, "listener_id": listener["id"]})
                _set_members(cloud, new, members)
                if monitor:
                    _new_monitor(cloud, balancer, {**monitor, "pool_id": new["id"]})
    except ApiError:
        _remove(cloud, balancer)
        raise
    _settle(cloud, balancer, cloud.settings.balancer_s)
    return 201, {"loadbalancer": shown(cloud, balancer)}


def _vip_port(cloud: Cloud, order: Mapping[str, Any]) -> Resource:
    """Return the existing or new port of the VIP, with one address."""
    if number := order.get("vip_port_id"):
        return state.get(cloud.ports, number, "Port")
    if number := order.get("vip_subnet_id"):
        subnet = state.get(cloud.subnets, number, "Subnet")
    elif number := order.get("vip_network_id"):
        subnet = cloud.subnets[state.get(cloud.networks, number, "Network")["subnets"][0]]
    else:
        names = "vip_port_id, vip_network_id, vip_subnet_id"
        raise invalid(f"Validation failure: VIP must contain one of: {names}.")
    port = network.new_port(cloud, subnet["network_id"], owner="Octavia")
    own = [entry for entry in port["fixed_ips"] if entry["subnet_id"] == subnet["id"]]
    port["fixed_ips"] = [{**own[0], "ip_address": order.get("vip_address", own[0]["ip_address"])}]
    return port


def _settle(cloud: Cloud, balancer: Resource, seconds: float) -> None:
    """Make a load balancer ACTIVE after some time, unless it failed meanwhile."""

    def ready() -> None:
        if balancer["provisioning_status"].startswith("PENDING"):
            balancer["provisioning_status"] = "ACTIVE"

    cloud.after(seconds, ready)


def shown(cloud: Cloud, resource: Resource) -> Resource:
    """Return a load balancer or part in the wire format."""
    if "vip_address" not in resource:
        return resource
    parts = {"listeners": cloud.listeners, "pools": cloud.pools}
    return {**resource, **{key: _references(table, resource) for key, table in parts.items()}}


def _references(table: Mapping[str, Resource], balancer: Resource) -> list[Resource]:
    reference = {"id": balancer["id"]}
    return [{"id": part["id"]} for part in table.values() if reference in part["loadbalancers"]]


def _changeable(cloud: Cloud, number: str, *, deletion: bool = False) -> Resource:
    """Return a load balancer and mark it as being changed. Raises the error 409."""
    balancer = get(cloud, "balancers", number)
    status = balancer["provisioning_status"]
    if status not in ("ACTIVE", *(["ERROR"] if deletion else [])):
        text = f"Invalid state {status} of loadbalancer resource {number}"
        raise ApiError("immutable", text if deletion else state.MESSAGES["immutable"], status=409)
    if not deletion:
        balancer["provisioning_status"] = "PENDING_UPDATE"
        balancer["updated_at"] = cloud.now()
        _settle(cloud, balancer, cloud.settings.balancer_change_s)
    return balancer


def delete(cloud: Cloud, call: Call) -> Answer:
    """Start the deletion of a load balancer; one with parts needs `cascade`."""
    number = call.path["id"]
    balancer = get(cloud, "balancers", number)
    if number in cloud.protected:
        raise ApiError("forbidden", f"Load Balancer {number} is protected", status=403)
    cascade = call.query.get("cascade", ["false"])[0].lower() == "true"
    if not cascade and (shown(cloud, balancer)["listeners"] or shown(cloud, balancer)["pools"]):
        raise invalid(f"Cannot delete Load Balancer {number} - it has children")
    _changeable(cloud, number, deletion=True)
    balancer["provisioning_status"] = "PENDING_DELETE"
    cloud.after(cloud.settings.balancer_removal_s, lambda: _remove(cloud, balancer))
    return 204, None


def _remove(cloud: Cloud, balancer: Resource) -> None:
    """Remove a load balancer, its parts and its port."""
    cloud.balancers.pop(balancer["id"], None)
    for table in (cloud.listeners, cloud.pools):
        for reference in _references(table, balancer):
            part = table.pop(reference["id"])
            cloud.monitors.pop(part.get("healthmonitor_id") or "", None)
            cloud.members.pop(part["id"], None)
    port = cloud.ports[balancer["vip_port_id"]]
    if port["device_owner"] == "Octavia":
        del cloud.ports[port["id"]]
        for entry in cloud.floating_ips.values():
            if entry["port_id"] == port["id"]:
                entry.update(port_id=None, status="DOWN")


# --- parts ----------------------------------------------------------------------------------------


def new_listener(cloud: Cloud, balancer: Resource, order: Mapping[str, Any]) -> Resource:
    """Create a listener without delay."""
    protocol, number = order.get("protocol"), order.get("protocol_port")
    if protocol not in POOL_PROTOCOLS:
        raise invalid(f"Invalid input for field/attribute protocol. Value: '{protocol}'.")
    if not isinstance(number, int) or not 1 <= number <= 65535:
        raise invalid(f"Invalid input for field/attribute protocol_port. Value: '{number}'.")
    if order.get("insert_headers") and protocol not in ("HTTP", "TERMINATED_HTTPS"):
        raise invalid(f"insert-headers is not a valid option for a {protocol} protocol listener.")
    if (protocol == "TERMINATED_HTTPS") != bool(order.get("default_tls_container_ref")):
        raise invalid("Validation failure: certificate and protocol do not match.")
    transport = (number, protocol == "UDP")
    for part in cloud.listeners.values():
        is_taken = (part["protocol_port"], part["protocol"] == "UDP") == transport
        if is_taken and _balancer_of(cloud, part) == balancer["id"]:
            text = f"Another Listener on this Load Balancer is already using protocol_port {number}"
            raise ApiError("conflict", text, status=409)
    _check_cidrs(balancer, order)
    listener = _resource(
        cloud,
        order,
        description="",
        connection_limit=-1,
        default_pool_id=None,
        default_tls_container_ref=None,
        insert_headers={},
        l7policies=[],
        loadbalancers=[{"id": balancer["id"]}],
    )
    cloud.listeners[listener["id"]] = listener
    return listener


def _check_cidrs(balancer: Resource, order: Mapping[str, Any]) -> None:
    version = 6 if ":" in balancer["vip_address"] else 4
    for cidr in order.get("allowed_cidrs") or ():
        if ip_network(cidr).version != version:
            text = f"CIDR {cidr} IP version incompatible with VIP {balancer['vip_address']}"
            raise invalid(f"Validation failure: {text} IP version.")


def _new_pool(cloud: Cloud, balancer: Resource, order: Mapping[str, Any]) -> Resource:
    listener = get(cloud, "listeners", order["listener_id"])
    protocol, algorithm = order.get("protocol"), order.get("lb_algorithm")
    if protocol not in POOL_PROTOCOLS[listener["protocol"]]:
        text = f"pool protocol '{protocol}' is invalid while the listener protocol is"
        raise invalid(f"Validation failure: The {text} '{listener['protocol']}'.")
    if algorithm not in ALGORITHMS or (
        balancer.get("provider") == "ovn" and algorithm != "SOURCE_IP_PORT"
    ):
        raise invalid(f"Invalid input for field/attribute lb_algorithm. Value: '{algorithm}'.")
    if listener["default_pool_id"]:
        raise ApiError("conflict", "This listener already has a default pool", status=409)
    pool = _resource(
        cloud,
        order,
        description="",
        session_persistence=None,
        healthmonitor_id=None,
        listeners=[{"id": listener["id"]}],
        loadbalancers=[{"id": balancer["id"]}],
        members=[],
    )
    cloud.pools[pool["id"]] = pool
    cloud.members[pool["id"]] = []
    listener["default_pool_id"] = pool["id"]
    return pool


def _set_members(cloud: Cloud, pool: Resource, members: Iterable[Resource]) -> Resource:
    """Replace the members of a pool; one with the same address and port keeps its ID."""
    held = {(m["address"], m["protocol_port"]): m for m in cloud.members[pool["id"]]}
    after = []
    for order in members:
        if order.get("subnet_id"):
            state.get(cloud.subnets, order["subnet_id"], "Subnet")
        known = held.get((order["address"], order["protocol_port"]))
        default = {"weight": 1, "backup": False, "subnet_id": None, "monitor_port": None}
        member = _resource(cloud, {**default, **order})
        after.append({**member, "id": known["id"]} if known else member)
    cloud.members[pool["id"]] = after
    pool["members"] = [{"id": member["id"]} for member in after]
    return pool


def _new_monitor(cloud: Cloud, _: Resource, order: Mapping[str, Any]) -> Resource:
    pool = get(cloud, "pools", order["pool_id"])
    types = ("HTTP", "TCP", "UDP-CONNECT") if pool["protocol"] == "UDP" else ("HTTP", "TCP")
    if order["type"] not in types:
        text = f"The type '{order['type']}' is invalid while the pool protocol is"
        raise invalid(f"Validation failure: {text} '{pool['protocol']}'.")
    if pool["healthmonitor_id"]:
        raise ApiError("conflict", "This pool already has a health monitor", status=409)
    http = {"http_method": None, "url_path": None, "expected_codes": None}
    monitor = _resource(cloud, order, max_retries_down=3, pools=[{"id": pool["id"]}], **http)
    cloud.monitors[monitor["id"]] = monitor
    pool["healthmonitor_id"] = monitor["id"]
    return monitor


def _balancer_of(cloud: Cloud, part: Resource) -> str:
    """Return the ID of a load balancer, or of that of a listener, pool or health monitor."""
    if "vip_address" in part:
        return str(part["id"])
    owner = cloud.pools[part["pools"][0]["id"]] if "pools" in part else part
    number: str = owner["loadbalancers"][0]["id"]
    return number


def _creation(key: str, make: Callable[[Cloud, Resource, Resource], Resource]) -> Handler:
    """Return a handler that creates a listener, or the pool or monitor of one."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        order = call.body[key]
        of = next(kind for kind in ("pool", "listener", "loadbalancer") if f"{kind}_id" in order)
        parent = get(cloud, f"{of}s".removeprefix("load"), order[f"{of}_id"])
        balancer = get(cloud, "balancers", _balancer_of(cloud, parent))
        return 201, {key: _changed(cloud, balancer, lambda: make(cloud, balancer, order))}

    return handler


def _changed(cloud: Cloud, balancer: Resource, make: Callable[[], Resource]) -> Resource:
    """Change a load balancer; a refused change leaves it ACTIVE."""
    _changeable(cloud, balancer["id"])
    try:
        return make()
    except ApiError:
        balancer["provisioning_status"] = "ACTIVE"
        raise


def put_members(cloud: Cloud, call: Call) -> Answer:
    """Replace the members of a pool."""
    pool = get(cloud, "pools", call.path["id"])
    balancer = get(cloud, "balancers", _balancer_of(cloud, pool))
    _changed(cloud, balancer, lambda: _set_members(cloud, pool, call.body["members"]))
    return 202, None


def list_members(cloud: Cloud, call: Call) -> Answer:
    """List the members of a pool."""
    pool = get(cloud, "pools", call.path["id"])
    return state.listing(cloud, call, "members", cloud.members[pool["id"]])


def list_all(table: str, key: str) -> Handler:
    """Return a handler that lists load balancers or parts, these also by load balancer."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        query = dict(call.query)
        wanted = query.pop("loadbalancer_id", None)
        things = [shown(cloud, thing) for thing in getattr(cloud, table).values()]
        chosen = [thing for thing in things if not wanted or _balancer_of(cloud, thing) in wanted]
        return state.listing(cloud, call, key, state.filtered(chosen, query))

    return handler


def show(table: str, key: str) -> Handler:
    """Return a handler that returns a load balancer or part."""
    return lambda cloud, call: (200, {key: shown(cloud, get(cloud, table, call.path["id"]))})


def change(table: str, key: str) -> Handler:
    """Return a handler that changes a load balancer or part."""
    fixed = _PARENTS | {"protocol", "protocol_port", "type", "vip_address"}

    def handler(cloud: Cloud, call: Call) -> Answer:
        thing, order = get(cloud, table, call.path["id"]), call.body[key]
        if refused := fixed & order.keys():
            raise invalid(f"Unknown attribute for argument {key}: {min(refused)}")
        _check_fields(cloud, order)
        balancer = get(cloud, "balancers", _balancer_of(cloud, thing))
        _check_cidrs(balancer, order)
        _changeable(cloud, balancer["id"])
        thing.update(order)
        return 200, {key: shown(cloud, thing)}

    return handler


def delete_part(table: str) -> Handler:
    """Return a handler that deletes a listener, pool or health monitor."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        number = call.path["id"]
        part = get(cloud, table, number)
        _changeable(cloud, _balancer_of(cloud, part))
        del getattr(cloud, table)[number]
        if table == "pools":
            cloud.monitors.pop(part["healthmonitor_id"] or "", None)
            del cloud.members[number]
            cloud.listeners.get(part["listeners"][0]["id"], {})["default_pool_id"] = None
        elif table == "monitors":
            cloud.pools[part["pools"][0]["id"]]["healthmonitor_id"] = None
        return 204, None

    return handler


def versions(cloud: Cloud, _: Call) -> Answer:
    """List the versions of the API."""
    newest = cloud.settings.octavia_minor
    listed = [{"id": f"v2.{minor}", "status": "SUPPORTED"} for minor in range(newest + 1)]
    return 200, {"versions": listed}


def quotas(cloud: Cloud, _: Call) -> Answer:
    """Return the quotas."""
    return 200, {"quota": {"load_balancer": cloud.settings.balancers}}


_KINDS: Sequence[tuple[str, str, str, Handler, Handler]] = (
    ("loadbalancers", "loadbalancer", "balancers", create, delete),
    *(
        (f"{key}s", key, table, _creation(key, make), delete_part(table))
        for key, table, make in (
            ("listener", "listeners", new_listener),
            ("pool", "pools", _new_pool),
            ("healthmonitor", "monitors", _new_monitor),
        )
    ),
)
"""Path, key in bodies, table, and handlers of creation and deletion."""

CALLS: list[Operation] = [
    ("GET", "/", versions),
    ("GET", "/v2/lbaas/quotas/{id}", quotas),
    ("GET", "/v2/lbaas/pools/{id}/members", list_members),
    ("PUT", "/v2/lbaas/pools/{id}/members", put_members),
    *(
        operation
        for path, key, table, creation, deletion in _KINDS
        for operation in (
            ("GET", f"/v2/lbaas/{path}", list_all(table, path)),
            ("POST", f"/v2/lbaas/{path}", creation),
            ("GET", f"/v2/lbaas/{path}/{{id}}", show(table, key)),
            ("PUT", f"/v2/lbaas/{path}/{{id}}", change(table, key)),
            ("DELETE", f"/v2/lbaas/{path}/{{id}}", deletion),
        )
    ),
]
"""Operations of Octavia."""

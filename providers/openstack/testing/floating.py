"""Handlers of Neutron for load balancers: floating IPs, security groups, and tags of ports."""

from __future__ import annotations

from . import network, state
from .state import Answer, ApiError, Call, Cloud, Operation, Resource


def new_floating_ip(
    cloud: Cloud,
    floating_network_id: str,
    *,
    floating_ip_address: str = "",
    subnet_id: str = "",
    port_id: str | None = None,
    description: str = "",
) -> Resource:
    """Create a floating IP in an external network."""
    found = state.get(cloud.networks, floating_network_id, "Network")
    if not found["router:external"]:
        text = f"Network {floating_network_id} is not a valid external network."
        raise ApiError("BadRequest", f"Bad floatingip request: {text}", status=400)
    if len(cloud.floating_ips) >= cloud.settings.floating_ips:
        raise ApiError("OverQuota", "Quota exceeded for resources: ['floatingip'].", status=409)
    _check_port(cloud, port_id)
    subnet = subnet_id or next(
        number for number in found["subnets"] if cloud.subnets[number]["ip_version"] == 4
    )
    return cloud.new(
        "floating_ips",
        "",
        floating_network_id=floating_network_id,
        floating_ip_address=floating_ip_address or network.free_address(cloud, subnet),
        port_id=port_id,
        description=description,
    )


def _check_port(cloud: Cloud, port_id: str | None) -> None:
    if port_id is None:
        return
    state.get(cloud.ports, port_id, "Port")
    if any(entry["port_id"] == port_id for entry in cloud.floating_ips.values()):
        text = f"Cannot associate floating IP with port {port_id}: it already has a floating IP"
        raise ApiError("FloatingIPPortAlreadyAssociated", text, status=409)


def create_floating_ip(cloud: Cloud, call: Call) -> Answer:
    """Create a floating IP."""
    return 201, {"floatingip": new_floating_ip(cloud, **call.body["floatingip"])}


def change_floating_ip(cloud: Cloud, call: Call) -> Answer:
    """Associate a floating IP with a port, or with none."""
    entry = state.get(cloud.floating_ips, call.path["id"], "FloatingIP")
    order = call.body["floatingip"]
    if order.get("port_id") != entry["port_id"]:
        _check_port(cloud, order.get("port_id"))
    entry.update(order)
    return 200, {"floatingip": entry}


def new_security_group(cloud: Cloud, name: str, description: str = "") -> Resource:
    """Create a security group, which lets all traffic out."""
    rules = [{"direction": "egress", "ethertype": family} for family in ("IPv4", "IPv6")]
    held = [_rule(cloud, rule) for rule in rules]
    return cloud.new("security_groups", name, description=description, security_group_rules=held)


def create_group(cloud: Cloud, call: Call) -> Answer:
    """Create a security group."""
    return 201, {"security_group": new_security_group(cloud, **call.body["security_group"])}


def _rule(cloud: Cloud, order: Resource) -> Resource:
    default = {"ethertype": "IPv4", "protocol": None, "remote_ip_prefix": None}
    ports = {"port_range_min": None, "port_range_max": None}
    return {**default, **ports, **order, "id": cloud.new_id()}


def create_rules(cloud: Cloud, call: Call) -> Answer:
    """Create several rules."""
    created = []
    for order in call.body["security_group_rules"]:
        group = state.get(cloud.security_groups, order["security_group_id"], "SecurityGroup")
        held = [{**rule, "id": ""} for rule in group["security_group_rules"]]
        rule = _rule(cloud, order)
        if {**rule, "id": ""} in held:
            raise ApiError("SecurityGroupRuleExists", "Security group rule exists.", status=409)
        group["security_group_rules"].append(rule)
        created.append(rule)
    return 201, {"security_group_rules": created}


def delete_rule(cloud: Cloud, call: Call) -> Answer:
    """Delete a rule."""
    for group in cloud.security_groups.values():
        rules = group["security_group_rules"]
        group["security_group_rules"] = [rule for rule in rules if rule["id"] != call.path["id"]]
    return 204, None


def delete_group(cloud: Cloud, call: Call) -> Answer:
    """Delete a security group unless a port has it."""
    group = state.get(cloud.security_groups, call.path["id"], "SecurityGroup")
    if any(group["id"] in port["security_groups"] for port in cloud.ports.values()):
        raise ApiError("SecurityGroupInUse", f"Security Group {group['id']} in use.", status=409)
    del cloud.security_groups[group["id"]]
    return 204, None


def set_port_tags(cloud: Cloud, call: Call) -> Answer:
    """Replace the tags of a port."""
    port = state.get(cloud.ports, call.path["id"], "Port")
    port["tags"] = list(call.body["tags"])
    return 200, {"tags": port["tags"]}


def quotas(cloud: Cloud, _: Call) -> Answer:
    """Return the quotas and their use; negative = unlimited."""
    tables = {"port": cloud.ports, "security_group": cloud.security_groups}
    quota = {name: {"limit": -1, "used": len(table)} for name, table in tables.items()}
    used = len(cloud.floating_ips)
    quota["floatingip"] = {"limit": cloud.settings.floating_ips, "used": used}
    return 200, {"quota": quota}


CALLS: list[Operation] = [
    ("GET", "/v2.0/quotas/{id}/details", quotas),
    ("GET", "/v2.0/floatingips", state.list_handler("floating_ips", "floatingips")),
    ("POST", "/v2.0/floatingips", create_floating_ip),
    ("PUT", "/v2.0/floatingips/{id}", change_floating_ip),
    ("DELETE", "/v2.0/floatingips/{id}", state.remover("floating_ips", "FloatingIP")),
    ("GET", "/v2.0/security-groups", state.list_handler("security_groups")),
    ("POST", "/v2.0/security-groups", create_group),
    ("DELETE", "/v2.0/security-groups/{id}", delete_group),
    ("POST", "/v2.0/security-group-rules", create_rules),
    ("DELETE", "/v2.0/security-group-rules/{id}", delete_rule),
    ("PUT", "/v2.0/ports/{id}/tags", set_port_tags),
]
"""Operations of Neutron that only load balancers need."""

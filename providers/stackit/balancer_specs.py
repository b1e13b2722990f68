"""Comparison of wanted and existing load balancers, and request bodies. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from ccm import cloud

from . import config, lbapi
from . import service_annotations as ann

T = TypeVar("T")

MAX_NAME = 63
"""Maximum length of names (limit of the API); `k8s-svc-<UID>-<name>` is truncated to it."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9-]")

ROLE_BOTH, ROLE_LISTENERS, ROLE_TARGETS = (
    "ROLE_LISTENERS_AND_TARGETS",
    "ROLE_LISTENERS",
    "ROLE_TARGETS",
)


class BalancerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted load balancer."""

    name: str
    internal: bool
    external_address: str
    networks: tuple[lbapi.Network, ...]
    plan: str
    listeners: tuple[lbapi.Listener, ...]
    pools: tuple[lbapi.Pool, ...]
    ranges: tuple[str, ...]

    @property
    def ephemeral(self) -> bool:
        """Whether the load balancer has a public address that is created and deleted with it."""
        return not self.internal and not self.external_address


def balancer_name(service: cloud.Service) -> str:
    """Return the name of a Service's load balancer, as in the vendor's manager: never change it."""
    whole = f"k8s-svc-{service.uid}-{service.name}"
    return whole if len(whole) <= MAX_NAME else whole[:MAX_NAME].rstrip("-")


def desired_spec(
    service: cloud.Service, nodes: Iterable[cloud.Node], settings: config.LoadBalancer
) -> BalancerSpec:
    """Return the load balancer that a Service specifies.

    Raises:
        InvalidArgument: the specification is unsupported or contradictory.
    """
    private = ann.read_either(service, ann.INTERNAL, ann.OLD_INTERNAL)
    internal = bool(private)
    external = ann.read_either(service, ann.EXTERNAL, ann.OLD_EXTERNAL)
    pool_targets, keeps = targets(nodes), bool(ann.PERSISTENCE.read(service))
    listeners = _listeners(service)
    pools = [
        lbapi.Pool(
            name=listener.target_pool or "",
            target_port=_node_port(port),
            targets=pool_targets,
            session_persistence=lbapi.Persistence(use_source_ip_address=keeps),
        )
        for listener, port in zip(listeners, service.ports, strict=True)
    ]
    return BalancerSpec(
        name=balancer_name(service),
        internal=internal,
        external_address="" if internal else external or "",
        networks=_networks(service, settings.network_id),
        plan=ann.PLAN.read(service) or ann.FLAVOR.read(service) or ann.PLAN.shown,
        listeners=listeners,
        pools=tuple(pools),
        ranges=_ranges(service),
    )


def _node_port(port: cloud.ServicePort) -> int:
    if not port.node_port:
        raise cloud.InvalidArgument(
            f"port {port.port} needs a node port; set spec.allocateLoadBalancerNodePorts to true"
        )
    return port.node_port


def _networks(service: cloud.Service, nodes_network: str) -> tuple[lbapi.Network, ...]:
    other = ann.LISTENER_NETWORK.read(service)
    if not other:
        return (lbapi.Network(network_id=nodes_network, role=ROLE_BOTH),)
    return (
        lbapi.Network(network_id=nodes_network, role=ROLE_TARGETS),
        lbapi.Network(network_id=other, role=ROLE_LISTENERS),
    )


def _ranges(service: cloud.Service) -> tuple[str, ...]:
    ranges = service.spec.load_balancer_source_ranges or ann.OLD_RANGES.read(service) or ()
    for entry in ranges:
        if cloud.parse_cidr(entry.strip()) is None:
            raise cloud.InvalidArgument(
                f"source range {entry!r} is not a CIDR; expected entries like 10.0.0.0/24"
            )
    return tuple(entry.strip() for entry in ranges)


def _listeners(service: cloud.Service) -> tuple[lbapi.Listener, ...]:
    proxied = ann.read_either(service, ann.PROXY, ann.OLD_PROXY)
    ports = ann.read_either(service, ann.PROXY_PORTS, ann.OLD_PROXY_PORTS) if proxied else ()
    tcp = _first(ann.read_either(service, ann.TCP_TIMEOUT, ann.OLD_TCP_TIMEOUT), ann.TCP_IDLE)
    udp = _first(ann.read_either(service, ann.UDP_TIMEOUT, ann.OLD_UDP_TIMEOUT), ann.UDP_IDLE)
    listeners = []
    for port in service.ports:
        name = port.name or f"port-{port.protocol.lower()}-{port.port}"
        is_proxied = bool(proxied) and (ports is None or port.port in ports)
        match port.protocol:
            case "TCP":
                word = "PROTOCOL_TCP_PROXY" if is_proxied else "PROTOCOL_TCP"
                idle = {"tcp": _idle(tcp)}
            case "UDP":
                word, idle = "PROTOCOL_UDP", {"udp": _idle(udp)}
            case _:
                raise cloud.InvalidArgument(
                    f"port {port.port}: protocol {port.protocol} is not supported; use TCP or UDP"
                )
        listeners.append(
            lbapi.Listener(
                display_name=name, port=port.port, protocol=word, target_pool=name, **idle
            )
        )
    return tuple(listeners)


def _first(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _idle(time: timedelta) -> lbapi.IdleTimeout:
    return lbapi.IdleTimeout(idle_timeout=f"{time.total_seconds():.0f}s")


@cloud.cached_for_nodes
def targets(nodes: Iterable[cloud.Node]) -> tuple[lbapi.Target, ...]:
    """Return a target for each node with an internal address, at the first such address."""
    pool_targets = []
    for node in nodes:
        internal = [
            address.address
            for address in node.status.addresses or ()
            if address.type == "InternalIP"
        ]
        if internal:
            pool_targets.append(lbapi.Target(display_name=target_name(node.name), ip=internal[0]))
    return tuple(sorted(pool_targets, key=_target_key))


def target_name(name: str) -> str:
    """Return the name of a node as a valid target name; a changed name gets a hash suffix."""
    plain = _NO_NAME.sub("-", name)
    if plain == name and len(name) <= MAX_NAME:
        return name
    return f"{plain[:54]}-{sha256(name.encode()).hexdigest()[:7]}"


def _target_key(target: lbapi.Target) -> tuple[str, str]:
    return (target.display_name or "", target.ip or "")


# --- comparison ---------------------------------------------------------------------------------


def find_immutable_change(held: lbapi.Balancer, recipe: BalancerSpec) -> str:
    """Return the first changed immutable property and its annotation; empty if there is none."""
    options = held.options or lbapi.Options()
    if options.private_network_only != recipe.internal:
        return f".options.privateNetworkOnly ({ann.INTERNAL.name})"
    if recipe.external_address and held.external_address != recipe.external_address:
        return f".externalAddress ({ann.EXTERNAL.name})"
    if recipe.ephemeral and not options.ephemeral_address:
        return f".options.ephemeralAddress ({ann.EXTERNAL.name})"
    networks = held.networks or ()
    if len(networks) != len(recipe.networks):
        return f"len(.networks) ({ann.LISTENER_NETWORK.name})"
    for at, (network, other) in enumerate(zip(networks, recipe.networks, strict=True)):
        if network.network_id != other.network_id:
            return f".networks[{at}].networkId ({ann.LISTENER_NETWORK.name})"
        if network.role != other.role:
            return f".networks[{at}].role ({ann.LISTENER_NETWORK.name})"
    return ""


def matches(held: lbapi.Balancer, recipe: BalancerSpec, metrics: lbapi.Metrics | None) -> bool:
    """Return whether an existing load balancer has the wanted mutable properties and metrics."""
    return (
        _mutable_properties(recipe) == _mutable_properties(spec_of(held))
        and held.metrics == metrics
        and not (recipe.external_address and (held.options or lbapi.Options()).ephemeral_address)
    )


def spec_of(held: lbapi.Balancer) -> BalancerSpec:
    """Return the `BalancerSpec` that an existing load balancer fulfils."""
    options = held.options or lbapi.Options()
    access = options.access_control or lbapi.AccessControl()
    is_static = not options.private_network_only and not options.ephemeral_address
    return BalancerSpec(
        name=held.name,
        internal=options.private_network_only,
        external_address=(held.external_address or "") if is_static else "",
        networks=held.networks or (),
        plan=held.plan_id or "",
        listeners=held.listeners or (),
        pools=held.target_pools or (),
        ranges=access.allowed_source_ranges or (),
    )


def _mutable_properties(recipe: BalancerSpec) -> Any:
    """Return the mutable properties; the order of targets does not count."""
    listeners = [
        (item.display_name, item.port, item.protocol, item.target_pool, _idle_timeout(item))
        for item in recipe.listeners
    ]
    pools = [
        (item.name, item.target_port, _has_persistence(item), members(item))
        for item in recipe.pools
    ]
    return [recipe.plan, listeners, pools, list(recipe.ranges)]


def _idle_timeout(listener: lbapi.Listener) -> str | None:
    settings = listener.udp if listener.protocol == "PROTOCOL_UDP" else listener.tcp
    return settings.idle_timeout if settings else None


def _has_persistence(pool: lbapi.Pool) -> bool:
    return bool(pool.session_persistence and pool.session_persistence.use_source_ip_address)


def members(pool: lbapi.Pool) -> list[tuple[str, str]]:
    """Return the targets of a pool, sorted."""
    return sorted(map(_target_key, pool.targets or ()))


def digest(recipe: BalancerSpec, *more: object) -> str:
    """Return the digest of a load balancer; `more` has further properties to include."""
    fixed = [recipe.name, recipe.internal, recipe.external_address, recipe.networks]
    return sha256(msgspec.json.encode([fixed, _mutable_properties(recipe), more])).hexdigest()[:32]


# --- request bodies -----------------------------------------------------------------------------


def build_order(
    recipe: BalancerSpec,
    labels: Mapping[str, str],
    metrics: lbapi.Metrics | None,
    held: lbapi.Balancer | None = None,
) -> Mapping[str, Any]:
    """Return the request body that creates a load balancer, or that replaces `held`."""
    options: dict[str, Any] = {
        "privateNetworkOnly": recipe.internal,
        "ephemeralAddress": recipe.ephemeral,
        "accessControl": {"allowedSourceRanges": recipe.ranges} if recipe.ranges else {},
    }
    if metrics is not None:
        options["observability"] = {"metrics": msgspec.to_builtins(metrics)}
    body: dict[str, Any] = {
        "name": recipe.name,
        "labels": dict(labels),
        "networks": msgspec.to_builtins(recipe.networks),
        "planId": recipe.plan,
        "listeners": msgspec.to_builtins(recipe.listeners),
        "targetPools": [build_pool(pool, _pool(held, pool.name)) for pool in recipe.pools],
        "options": options,
        # The creator of the nodes is responsible for their security groups.
        "disableTargetSecurityGroupAssignment": True
        if held is None
        else bool(held.disable_target_security_group_assignment),
    }
    if recipe.external_address:
        body["externalAddress"] = recipe.external_address
    if held is not None:
        body["version"] = held.version
    return body


def _pool(held: lbapi.Balancer | None, name: str) -> lbapi.Pool | None:
    pools = (held and held.target_pools) or ()
    return next((pool for pool in pools if pool.name == name), None)


def build_pool(pool: lbapi.Pool, held: lbapi.Pool | None) -> Mapping[str, Any]:
    """Return the request body of a pool; it keeps a health check that another client set."""
    body: dict[str, Any] = {
        "name": pool.name,
        "targetPort": pool.target_port,
        "targets": msgspec.to_builtins(pool.targets),
        "sessionPersistence": {"useSourceIpAddress": _has_persistence(pool)},
    }
    if held is not None and held.active_health_check is not None:
        body["activeHealthCheck"] = held.active_health_check
    return body


def with_targets(pool: lbapi.Pool, targets: tuple[lbapi.Target, ...]) -> lbapi.Pool:
    """Return a copy of a pool with other targets."""
    return msgspec.structs.replace(pool, targets=targets)


def without_new_targets(recipe: BalancerSpec, held: lbapi.Balancer | None) -> BalancerSpec:
    """Return a copy of a specification without the targets that the existing pools lack."""
    pools = []
    for pool in recipe.pools:
        present = _pool(held, pool.name)
        held_targets = (present and present.targets) or ()
        targets = tuple(target for target in pool.targets or () if target in held_targets)
        pools.append(with_targets(pool, targets))
    return msgspec.structs.replace(recipe, pools=tuple(pools))


# --- status -------------------------------------------------------------------------------------


def status(held: lbapi.Balancer, service: cloud.Service | None) -> cloud.Status:
    """Return the status; without a Service, the status for a Service without annotations."""
    internal = (held.options or lbapi.Options()).private_network_only
    address = held.private_address if internal else held.external_address
    mode: Any = "Proxy" if service is not None and ann.IP_MODE.read(service) else None
    return cloud.Status(ingress=(cloud.Ingress(ip=address, ip_mode=mode),) if address else ())

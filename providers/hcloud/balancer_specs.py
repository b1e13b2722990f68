"""Load balancers as a Service specifies them and as the API returns them: comparison and actions.

No I/O. A Service may leave properties unset. Such properties are not compared, so that manual
changes of a load balancer survive; a new load balancer gets the API's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, NamedTuple

import msgspec

from ccm import cloud
from ccm.model.selectors import parse_labels

from . import client, config, instances
from . import service_annotations as ann

DEFAULT_TYPE = "lb11"
MAX_TARGETS: Mapping[str, int] = {"lb11": 25, "lb21": 75, "lb31": 150}
"""Type -> maximum number of targets; used until the API has reported the limit."""


TargetKey = int | str
"""ID of a server, or IP address of an IP target."""


class HealthCheckSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Health check; None = the API chooses the value.

    `http` holds `tls` and the HTTP settings that the Service specifies; None = a TCP check.
    """

    protocol: str
    port: int
    interval: int | None = None
    timeout: int | None = None
    retries: int | None = None
    http: Mapping[str, Any] | None = None


class ListenerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Listener; `http` holds only the HTTP settings that the Service specifies."""

    protocol: str
    listen_port: int
    destination_port: int
    proxyprotocol: bool | None
    check: HealthCheckSpec
    http: Mapping[str, Any] = {}


class BalancerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted load balancer; None or empty = the existing value, or else the API's default."""

    type: str
    algorithm: str | None
    public: bool | None
    network: int | None
    private_ip: str | None
    subnet: str
    private_targets: bool
    dns: Mapping[str, str]
    ports: tuple[ListenerSpec, ...]


def first_set(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def desired_spec(
    service: cloud.Service,
    settings: config.Config,
    *,
    network: int | None,
    certificates: Sequence[int] = (),
) -> BalancerSpec:
    """Return the load balancer that a Service and the settings specify.

    Raises:
        InvalidArgument: the specification is unsupported or contradictory.
    """
    private = first_set(ann.USE_PRIVATE_IP.read(service), settings.balancers_use_private_ip)
    if private and network is None:
        raise cloud.InvalidArgument(
            f"private targets need a network; set HCLOUD_NETWORK, or {ann.USE_PRIVATE_IP.name} to "
            "false"
        )
    disabled = first_set(
        ann.DISABLE_PUBLIC_NETWORK.read(service), settings.balancers_disable_public_network
    )
    dns = {"ipv4": ann.IPV4_RDNS.read(service), "ipv6": ann.IPV6_RDNS.read(service)}
    return BalancerSpec(
        type=first_set(ann.TYPE.read(service), settings.balancers_type),
        algorithm=first_set(ann.ALGORITHM.read(service), settings.balancers_algorithm_type),
        public=None if disabled is None else not disabled,
        network=network,
        private_ip=ann.PRIVATE_IPV4.read(service),
        subnet=first_set(
            ann.PRIVATE_SUBNET.read(service), settings.balancers_private_subnet_ip_range
        ),
        private_targets=private,
        dns={family: name for family, name in dns.items() if name},
        ports=tuple(_port(service, port, settings, certificates) for port in tcp_ports(service)),
    )


def tcp_ports(service: cloud.Service) -> Sequence[cloud.ServicePort]:
    """Return the ports that can be served.

    Raises:
        InvalidArgument: the Service has ports, but none of them is TCP.
    """
    ports = [port for port in service.ports if port.protocol == "TCP"]
    if service.ports and not ports:
        raise cloud.InvalidArgument(f"{omitted_ports(service)} not supported; add a TCP port")
    return ports


def omitted_ports(service: cloud.Service) -> str:
    """Return the ports that cannot be served, with their protocols; empty if all are TCP."""
    return ", ".join(
        f"port {port.port}/{port.protocol}" for port in service.ports if port.protocol != "TCP"
    )


def _port(
    service: cloud.Service,
    port: cloud.ServicePort,
    settings: config.Config,
    certificates: Sequence[int],
) -> ListenerSpec:
    if not port.node_port:
        raise cloud.InvalidArgument(
            f"port {port.port} needs a node port; set spec.allocateLoadBalancerNodePorts to true"
        )
    protocol = ann.PROTOCOL.read(service)
    return ListenerSpec(
        protocol=protocol,
        listen_port=port.port,
        destination_port=port.node_port,
        proxyprotocol=first_set(
            ann.PROXYPROTOCOL.read(service), settings.balancers_uses_proxyprotocol
        ),
        check=_check(service, protocol, port.node_port, settings),
        http={} if protocol == "tcp" else _http(service, protocol, certificates),
    )


def unused_annotations(service: cloud.Service, recipe: BalancerSpec) -> Sequence[str]:
    """Return the annotations of a Service that its ports and their health checks do not use."""
    protocol = ann.PROTOCOL.read(service)
    unused: list[cloud.ServiceAnnotation[Any]] = []
    if protocol == "tcp":
        unused += ann.HTTP_SETTINGS
    if protocol != "https":
        unused += ann.HTTPS_SETTINGS
    if all(port.check.http is None for port in recipe.ports):
        unused += ann.HTTP_CHECK_SETTINGS
    return [item.name for item in unused if item.name in service.annotations]


def _http(service: cloud.Service, protocol: str, certificates: Sequence[int]) -> Mapping[str, Any]:
    values = {
        "cookie_name": ann.COOKIE_NAME.read(service),
        "cookie_lifetime": _whole_seconds(ann.COOKIE_LIFETIME.read(service)),
        "timeout_idle": _whole_seconds(ann.TIMEOUT_IDLE.read(service)),
        "sticky_sessions": ann.STICKY.read(service),
        "redirect_http": ann.REDIRECT.read(service) if protocol == "https" else None,
        "certificates": sorted(certificates) if protocol == "https" and certificates else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _check(
    service: cloud.Service, protocol: str, node_port: int, settings: config.Config
) -> HealthCheckSpec:
    """Return the health check: TCP to the node port unless a setting of the check is set.

    HTTP settings alone do not count, so that the check is the same as with the vendor's manager.
    """
    times: dict[str, Any] = {
        "interval": _whole_seconds(
            first_set(ann.CHECK_INTERVAL.read(service), settings.balancers_health_check_interval)
        ),
        "timeout": _whole_seconds(
            first_set(ann.CHECK_TIMEOUT.read(service), settings.balancers_health_check_timeout)
        ),
        "retries": first_set(
            ann.CHECK_RETRIES.read(service), settings.balancers_health_check_retries
        )
        or None,
    }
    check_protocol = ann.CHECK_PROTOCOL.read(service)
    port = ann.CHECK_PORT.read(service)
    if not any(value is not None for value in (*times.values(), check_protocol, port)):
        return HealthCheckSpec(protocol="tcp", port=node_port)
    kind = check_protocol or protocol
    if kind == "tcp":
        return HealthCheckSpec(protocol=kind, port=port or node_port, **times)
    http = _http_check(service)
    http["tls"] = kind == "https" or bool(http.get("tls"))  # always sent: false resets it
    return HealthCheckSpec(protocol="http", port=port or node_port, http=http, **times)


def _http_check(service: cloud.Service) -> dict[str, Any]:
    """Return the HTTP settings of the health check that the Service's annotations set."""
    codes = ann.STATUS_CODES.read(service)
    values: dict[str, Any] = {
        "domain": ann.CHECK_DOMAIN.read(service),
        "path": ann.CHECK_PATH.read(service),
        "tls": ann.CHECK_TLS.read(service),
        "status_codes": sorted(codes) if codes else None,
    }
    # Empty text means the default, and the API refuses empty text.
    empty = {"domain": None, "path": "/"}
    asked = {name: value for name, value in values.items() if value is not None}
    return {name: empty[name] if value == "" else value for name, value in asked.items()}


def _whole_seconds(duration: timedelta | None) -> int | None:
    """Return whole seconds; None for zero or None: the API chooses the value."""
    return int(duration.total_seconds()) or None if duration is not None else None


# --- members ------------------------------------------------------------------------------------


def members(service: cloud.Service, nodes: Iterable[cloud.Node]) -> Sequence[int]:
    """Return the IDs of the servers that get traffic.

    Raises:
        InvalidArgument: the node selector is malformed.
    """
    return sorted(servers(nodes, ann.NODE_SELECTOR.read(service)))


def existing_first(
    targets: Iterable[TargetKey], held: client.Balancer | None, others: Mapping[str, str]
) -> Sequence[TargetKey]:
    """Sort targets so that a full load balancer keeps its targets; otherwise keep their order.

    `others` has the other address of each IP target: its server keeps its place too.
    """
    present: set[TargetKey] = {*target_servers(held), *target_ips(held)} if held else set()
    return sorted(targets, key=lambda key: present.isdisjoint((key, others.get(str(key), ""))))


def members_of(
    held: client.Balancer,
    service: cloud.Service,
    nodes: Iterable[cloud.Node],
    settings: config.Config,
) -> Mapping[int, bool]:
    """Return the wanted members of an existing load balancer.

    The result maps the server ID to whether the server is reached by its private address. Invalid
    annotations do not block an update: existing targets keep their kind of address, and a malformed
    node selector selects all nodes.
    """
    present = target_servers(held)
    ways = set(present.values())
    private = first_set(
        ann.read_or_none(service, ann.USE_PRIVATE_IP), settings.balancers_use_private_ip
    )
    if len(ways) == 1:
        (private,) = ways
    selected = servers(nodes, ann.read_or_none(service, ann.NODE_SELECTOR))
    return {number: present.get(number, private) for number in sorted(selected)}


@cloud.cached_for_nodes
def servers(nodes: Iterable[cloud.Node], selector: str | None) -> Mapping[int, str]:
    """Return the selected nodes: server ID -> node name."""
    terms = parse_labels(selector or "")
    return {
        number: node.name
        for node in nodes
        if all(term.matches(node.labels) for term in terms)
        and (number := _server(node)) is not None
    }


def _server(node: cloud.Node) -> int | None:
    try:
        return int(instances.parse_id(node.provider_id))
    except cloud.InvalidArgument:
        return None  # not a server of this cloud, or no provider ID yet


@cloud.cached_for_nodes
def foreign_nodes(nodes: Iterable[cloud.Node]) -> Mapping[str, cloud.Node]:
    """Return by UID the nodes whose provider ID belongs to no server of this cloud."""
    return {
        node.uid: node
        for node in nodes
        if node.provider_id and _server(node) is None and not has_robot_nodes([node])
    }


@cloud.cached_for_nodes
def has_robot_nodes(nodes: Iterable[cloud.Node]) -> bool:
    """Return whether some nodes are Robot servers.

    hcloud-cloud-controller-manager adds these as IP targets.
    """
    return any(instances.ROBOT_PATTERN.fullmatch(node.provider_id) for node in nodes)


def max_targets(recipe: BalancerSpec, held: client.Balancer | None) -> int:
    """Return the maximum number of targets; 0 = unknown."""
    if held is not None and recipe.type in ("", held.load_balancer_type.name):
        return held.load_balancer_type.max_targets
    return MAX_TARGETS.get(recipe.type or DEFAULT_TYPE, 0)


# --- request bodies -----------------------------------------------------------------------------


def build_target(target: TargetKey, *, private: bool | None = None) -> Mapping[str, Any]:
    """Return the request body for a target; `private` is set only to add the target."""
    if isinstance(target, str):
        return {"type": "ip", "ip": {"ip": target}}
    order: dict[str, Any] = {"type": "server", "server": {"id": target}}
    return order if private is None else {**order, "use_private_ip": private}


def build_listener(port: ListenerSpec, held: client.Listener | None = None) -> Mapping[str, Any]:
    """Return the request body for a listener; unset values come from `held`, or are defaults."""
    check = held.health_check if held else client.HealthCheck(protocol="tcp", port=1)
    order: dict[str, Any] = {
        "protocol": port.protocol,
        "listen_port": port.listen_port,
        "destination_port": port.destination_port,
        "proxyprotocol": first_set(port.proxyprotocol, held.proxyprotocol if held else False),
        "health_check": {
            "protocol": port.check.protocol,
            "port": port.check.port,
            "interval": first_set(port.check.interval, check.interval),
            "timeout": first_set(port.check.timeout, check.timeout),
            "retries": first_set(port.check.retries, check.retries),
        },
    }
    if port.check.http is not None:
        present = msgspec.to_builtins(check.http or client.HttpCheck())
        codes = present.pop("status_codes")
        kept = {**present, "status_codes": codes} if codes else present
        order["health_check"]["http"] = {**kept, **port.check.http}
    if port.http:
        order["http"] = dict(port.http)
    return order


def matches(held: client.Listener, port: ListenerSpec) -> bool:
    """Return whether an existing listener has all values that the wanted listener sets."""
    present, asked = held.health_check, port.check
    return (
        (held.protocol, held.destination_port) == (port.protocol, port.destination_port)
        and port.proxyprotocol in (None, held.proxyprotocol)
        and (present.protocol, present.port) == (asked.protocol, asked.port)
        and asked.interval in (None, present.interval)
        and asked.timeout in (None, present.timeout)
        and asked.retries in (None, present.retries)
        and _has_values(present.http or client.HttpCheck(), asked.http or {})
        and _has_values(held.http or client.Http(), port.http)
    )


def _has_values(present: msgspec.Struct, asked: Mapping[str, Any]) -> bool:
    return all(_plain(getattr(present, name)) == value for name, value in asked.items())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


# --- digests ------------------------------------------------------------------------------------


def desired_digest(
    name: str, recipe: BalancerSpec, targets: Sequence[TargetKey], *more: object
) -> str:
    """Return the digest of a wanted load balancer that does not exist, or needs changes.

    `more` has properties that the API does not return for a load balancer.
    """
    ports = [msgspec.convert(build_listener(item), client.Listener) for item in recipe.ports]
    networks = [recipe.network] if recipe.network is not None else []
    shown = [
        name,
        recipe.type or DEFAULT_TYPE,
        recipe.algorithm or "round_robin",
        first_set(recipe.public, True),
        networks,
        _sorted(ports),
        sorted((item, recipe.private_targets) for item in targets if isinstance(item, int)),
        sorted(item for item in targets if isinstance(item, str)),
        *[item for item in (recipe.private_ip, dict(recipe.dns), *more) if item],
    ]
    return _digest(shown)


def actual_digest(held: client.Balancer, network: int | None) -> str:
    """Return the digest of an existing load balancer."""
    joined = [item.network for item in held.private_net]
    shown = [
        held.name,
        held.load_balancer_type.name,
        held.algorithm.type,
        held.public_net.enabled,
        [] if network is None else joined,
        _sorted(held.services),
        sorted(target_servers(held).items()),
        sorted(target_ips(held)),
    ]
    return _digest(shown)


def _sorted(listeners: Iterable[client.Listener]) -> list[Any]:
    plain: list[Any] = msgspec.to_builtins(sorted(listeners, key=lambda item: item.listen_port))
    return plain


def _digest(shown: object) -> str:
    return sha256(msgspec.json.encode(shown)).hexdigest()[:32]


def target_servers(held: client.Balancer) -> dict[int, bool]:
    """Return the server targets: server ID -> whether it is reached by its private address."""
    return {
        entry.server.id: entry.use_private_ip
        for entry in held.targets
        if entry.type == "server" and entry.server
    }


def target_ips(held: client.Balancer) -> list[str]:
    """Return the addresses of the IP targets."""
    return [entry.ip["ip"] for entry in held.targets if entry.type == "ip" and entry.ip]


# --- status -------------------------------------------------------------------------------------


def status(
    held: client.Balancer, service: cloud.Service | None, settings: config.Config
) -> cloud.Status:
    """Return the status; without a Service, the status for a Service without annotations."""
    hidden_v6 = settings.balancers_disable_ipv6
    hidden_private = settings.balancers_disable_private_ingress
    if service is not None:
        if hostname := ann.HOSTNAME.read(service):
            return cloud.Status(ingress=(cloud.Ingress(hostname=hostname),))
        hidden_v6 = first_set(ann.IPV6_DISABLED.read(service), hidden_v6)
        hidden_private = first_set(ann.DISABLE_PRIVATE_INGRESS.read(service), hidden_private)
    public, addresses = held.public_net, []
    if public.enabled:
        addresses += [public.ipv4, *([] if hidden_v6 else [public.ipv6])]
    texts = [item.ip for item in addresses if item and item.ip]
    texts += [] if hidden_private else [item.ip for item in held.private_net if item.ip]
    mode: Any = "Proxy" if any(item.proxyprotocol for item in held.services) else "VIP"
    return cloud.Status(ingress=tuple(cloud.Ingress(ip=item, ip_mode=mode) for item in texts))


def status_annotations(service: cloud.Service) -> Sequence[object]:
    """Return the annotations that only affect the Service's status; empty if none is set."""
    asked = (ann.HOSTNAME, ann.IPV6_DISABLED, ann.DISABLE_PRIVATE_INGRESS)
    values = [(annotation.name, annotation.read(service)) for annotation in asked]
    return [(name, value) for name, value in values if value is not None]


def has_address(held: client.Balancer) -> bool:
    """Return whether the load balancer has an address yet."""
    if held.public_net.enabled:
        return bool(held.public_net.ipv4 and held.public_net.ipv4.ip)
    return any(net.ip for net in held.private_net)


class BalancerAction(NamedTuple):
    """Action on a load balancer, with its request body.

    `interrupts`: traffic would be lost if another target cannot be added.
    """

    action: str
    order: Mapping[str, Any] | None
    interrupts: bool = False

    @property
    def server(self) -> TargetKey | None:
        """ID or IP address of the server that the action adds or removes as a target."""
        order = self.order or {}
        if order.get("type") == "ip":
            return str(order["ip"]["ip"])
        return order.get("server") and int(order["server"]["id"])


REREAD_ACTIONS = frozenset(
    {
        "attach_to_network",
        "detach_from_network",
        "enable_public_interface",
        "disable_public_interface",
        "update_service",
        "add_service",
    }
)
"""Actions that may change the addresses or the IP mode in the Service's status."""


def plan_steps(
    held: client.Balancer,
    recipe: BalancerSpec,
    targets: Sequence[TargetKey],
    others: Mapping[str, str],
) -> list[BalancerAction]:
    """Return all necessary actions, one for each change: the API cannot combine changes.

    The public interface is enabled first and disabled last: the API refuses to disable it while
    targets are reached through it.

    Args:
        held: the existing load balancer.
        recipe: the wanted load balancer.
        targets: its targets.
        others: IP target -> other address of its server.

    Raises:
        InvalidArgument: the public interface cannot be disabled.
    """
    moves = list(_networks(held, recipe))
    leaving: list[BalancerAction] = []
    if any(item.action == "detach_from_network" for item in moves):
        # The API refuses to detach a network while targets are reached through it.
        stay = tuple(item for item in held.targets if not item.use_private_ip)
        through = [number for number, private in target_servers(held).items() if private]
        leaving = [
            BalancerAction("remove_target", build_target(server)) for server in sorted(through)
        ]
        held = msgspec.structs.replace(held, targets=stay)
    switches = recipe.public not in (None, held.public_net.enabled)
    has_servers = any(isinstance(target, int) for target in targets)
    if switches and has_servers and not (recipe.public or recipe.private_targets):
        raise cloud.InvalidArgument(
            f"{ann.DISABLE_PUBLIC_NETWORK.name}: targets are reached through the public interface; "
            f"set {ann.USE_PRIVATE_IP.name} to true"
        )
    enabling = [BalancerAction("enable_public_interface", None)]
    disabling = [BalancerAction("disable_public_interface", None, interrupts=True)]
    return [
        *_properties(held, recipe),
        *(enabling if switches and recipe.public else ()),
        *leaving,
        *moves,
        *_ports(held, recipe),
        *plan_target_steps(held, dict.fromkeys(targets, recipe.private_targets), others),
        *(disabling if switches and not recipe.public else ()),
    ]


def plan_release(
    held: client.Balancer, service: cloud.Service
) -> tuple[Sequence[BalancerAction], Sequence[int]]:
    """Return the steps that release an adopted load balancer, and the ports that stay.

    `ensure_load_balancer` may have run only some steps before the Service was deleted. A listener
    is therefore the Service's if port and node port match; the targets are the Service's unless
    other listeners remain.
    """
    # A Service that is no longer of type LoadBalancer may have lost its node ports.
    brought = {port.port: port.node_port for port in service.ports if port.protocol == "TCP"}
    ours = [
        entry.listen_port
        for entry in held.services
        if entry.listen_port in brought
        and brought[entry.listen_port] in (0, entry.destination_port)
    ]
    stay = sorted({entry.listen_port for entry in held.services} - set(ours))
    steps = [BalancerAction("delete_service", {"listen_port": port}) for port in sorted(ours)]
    if not stay:
        gone: list[TargetKey] = [*sorted(target_servers(held)), *target_ips(held)]
        steps += [BalancerAction("remove_target", build_target(entry)) for entry in gone]
    return steps, stay


def _properties(held: client.Balancer, recipe: BalancerSpec) -> Iterator[BalancerAction]:
    for family, name in recipe.dns.items():
        address: client.Ip | None = getattr(held.public_net, family)
        if address and address.ip and address.dns_ptr != name:
            yield BalancerAction("change_dns_ptr", {"ip": address.ip, "dns_ptr": name})
    if recipe.algorithm not in (None, held.algorithm.type):
        yield BalancerAction("change_algorithm", {"type": recipe.algorithm})
    if recipe.type not in ("", held.load_balancer_type.name):
        yield BalancerAction("change_type", {"load_balancer_type": recipe.type})


def _networks(held: client.Balancer, recipe: BalancerSpec) -> Iterator[BalancerAction]:
    if recipe.network is not None:
        is_in = False
        for net in held.private_net:
            if net.network == recipe.network and recipe.private_ip in (None, net.ip):
                is_in = True
            else:
                yield BalancerAction("detach_from_network", {"network": net.network})
        if not is_in:
            yield BalancerAction("attach_to_network", build_attachment(recipe))


def needs_attachment(held: client.Balancer | None, recipe: BalancerSpec) -> bool:
    """Return whether the load balancer is not in the network with the wanted address."""
    if held is None:
        return recipe.network is not None
    return any(step.action == "attach_to_network" for step in _networks(held, recipe))


def check_attachment(recipe: BalancerSpec, network: client.Network) -> None:
    """Raise `InvalidArgument` if the private address or the subnet is not in the network."""
    ranges = [cloud.parse_cidr(subnet.ip_range) for subnet in network.subnets]
    if recipe.private_ip:
        setting = f"{ann.PRIVATE_IPV4.name}: {recipe.private_ip}"
        is_inside = any(item and ip_address(recipe.private_ip) in item for item in ranges)
    else:
        names = f"{ann.PRIVATE_SUBNET.name} or HCLOUD_LOAD_BALANCERS_PRIVATE_SUBNET_IP_RANGE"
        setting = f"{names}: {recipe.subnet}"
        is_inside = cloud.parse_cidr(recipe.subnet) in ranges
    if not is_inside:
        raise cloud.InvalidArgument(
            f"{setting} is not in the network {network.name}; its subnets are "
            f"{', '.join(subnet.ip_range for subnet in network.subnets)}"
        )


def build_attachment(recipe: BalancerSpec) -> Mapping[str, Any]:
    """Return the request body that attaches the load balancer to the network."""
    order: dict[str, Any] = {"network": recipe.network}
    if recipe.private_ip:
        order["ip"] = recipe.private_ip
    elif recipe.subnet:
        order["ip_range"] = recipe.subnet
    return order


def _ports(held: client.Balancer, recipe: BalancerSpec) -> Iterator[BalancerAction]:
    present = {item.listen_port: item for item in held.services}
    for number in sorted(present.keys() - {item.listen_port for item in recipe.ports}):
        yield BalancerAction("delete_service", {"listen_port": number})
    for port in recipe.ports:
        existing = present.get(port.listen_port)
        if existing is None:
            yield BalancerAction("add_service", build_listener(port))
        elif not matches(existing, port):
            yield BalancerAction("update_service", build_listener(port, existing))


def plan_target_steps(
    held: client.Balancer, wanted: Mapping[TargetKey, bool], others: Mapping[str, str]
) -> Iterator[BalancerAction]:
    """Yield the steps that change the targets.

    Targets whose kind of address changes are replaced one after the other, so that the others get
    traffic meanwhile. A dedicated server gets its new IP target before it loses the old one, unless
    the load balancer is full. A server of the cloud cannot be a target twice.

    Args:
        held: the existing load balancer.
        wanted: each target -> whether a server is reached by its private address.
        others: IP target -> other address of its server.
    """
    present, ips = target_servers(held), target_ips(held)
    existing: list[TargetKey] = [*present, *ips]
    moves = {
        new: old
        for new, old in others.items()
        if new in wanted and new not in ips and old in ips and old not in wanted
    }
    staying = {*wanted, *moves.values()}
    leaving = [key for key in existing if key not in staying]
    joining = [key for key in wanted if key not in existing and key not in moves]
    for key in leaving:
        yield BalancerAction("remove_target", build_target(key))
    for key in joining:
        yield BalancerAction("add_target", build_target(key, private=wanted[key]))
    most = held.load_balancer_type.max_targets
    is_full = 0 < most <= len(held.targets) - len(leaving) + len(joining)
    pairs: list[tuple[TargetKey, TargetKey]] = [*moves.items()]
    pairs += [(key, key) for key, private in present.items() if wanted.get(key, private) != private]
    for key, former in pairs:
        target = build_target(key, private=wanted[key])
        adding = BalancerAction("add_target", target, interrupts=True)
        removal = BalancerAction("remove_target", build_target(former), interrupts=True)
        yield from (removal, adding) if is_full or key == former else (adding, removal)

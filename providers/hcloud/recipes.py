"""What a load balancer is made of: as a Service asks for it, and as the API says it is. Pure.

Much of it may be left to the API. What a Service does not ask for is compared with nothing, so that
a load balancer that somebody else settled stays as it is; a new one gets the API's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from ccm import cloud
from ccm.model.selectors import parse_labels

from . import client, config, instances
from . import service_annotations as ann

DEFAULT_TYPE = "lb11"
MOST_TARGETS: Mapping[str, int] = {"lb11": 25, "lb21": 75, "lb31": 150}
"""Type -> targets that it may have, as long as nobody has said so."""

DEFAULT_HTTP: Mapping[str, Any] = {"cookie_name": "HCLBSTICKY", "cookie_lifetime": 300}
DEFAULT_CODES = ("2??", "3??")
"""What the API fills in; used for digests alone, where a mistake costs a look."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A health check; None leaves the choice to the API.

    `http` has what a Service asks for where it is one by HTTP; None: it is none.
    """

    protocol: str
    port: int
    interval: int | None = None
    timeout: int | None = None
    retries: int | None = None
    http: Mapping[str, Any] | None = None


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """Where a load balancer listens; `http` has what a Service asks for."""

    protocol: str
    listen_port: int
    destination_port: int
    proxyprotocol: bool | None
    check: Check
    http: Mapping[str, Any] = {}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a Service asks for; None and empty text leave the choice to the API."""

    type: str
    algorithm: str | None
    public: bool | None
    network: int | None
    private_ip: str | None
    subnet: str
    private_targets: bool
    dns: Mapping[str, str]
    ports: tuple[Port, ...]


def first(*values: Any) -> Any:
    """The first that is not None."""
    return next((one for one in values if one is not None), None)


def wanted(
    service: cloud.Service,
    settings: config.Config,
    *,
    network: int | None,
    certificates: Sequence[int] = (),
) -> Recipe:
    """What a Service asks for.

    Raises:
        InvalidArgument: what cannot be had, or what makes no sense.
    """
    private = first(ann.USE_PRIVATE_IP.read(service), settings.balancers_use_private_ip)
    if private and network is None:
        raise cloud.InvalidArgument(
            f"{ann.USE_PRIVATE_IP.name} needs a network; set HCLOUD_NETWORK, or leave it out"
        )
    disabled = first(
        ann.DISABLE_PUBLIC_NETWORK.read(service), settings.balancers_disable_public_network
    )
    dns = {"ipv4": ann.IPV4_RDNS.read(service), "ipv6": ann.IPV6_RDNS.read(service)}
    return Recipe(
        type=first(ann.TYPE.read(service), settings.balancers_type),
        algorithm=first(ann.ALGORITHM.read(service), settings.balancers_algorithm_type),
        public=None if disabled is None else not disabled,
        network=network,
        private_ip=ann.PRIVATE_IPV4.read(service),
        subnet=first(ann.PRIVATE_SUBNET.read(service), settings.balancers_private_subnet_ip_range),
        private_targets=private,
        dns={family: name for family, name in dns.items() if name},
        ports=tuple(_port(service, one, settings, certificates) for one in service.ports),
    )


def _port(
    service: cloud.Service,
    port: cloud.ServicePort,
    settings: config.Config,
    certificates: Sequence[int],
) -> Port:
    if port.protocol != "TCP":
        raise cloud.InvalidArgument(
            f"port {port.port}: load balancers of this cloud have TCP only, not {port.protocol}"
        )
    if not port.node_port:
        raise cloud.InvalidArgument(
            f"port {port.port} has no node port, to which load balancers of this cloud send traffic"
        )
    protocol = ann.PROTOCOL.read(service)
    return Port(
        protocol=protocol,
        listen_port=port.port,
        destination_port=port.node_port,
        proxyprotocol=first(ann.PROXYPROTOCOL.read(service), settings.balancers_uses_proxyprotocol),
        check=_check(service, protocol, port.node_port, settings),
        http={} if protocol == "tcp" else _http(service, protocol, certificates),
    )


def _http(service: cloud.Service, protocol: str, certificates: Sequence[int]) -> Mapping[str, Any]:
    found = {
        "cookie_name": ann.COOKIE_NAME.read(service),
        "cookie_lifetime": _whole(ann.COOKIE_LIFETIME.read(service)),
        "timeout_idle": _whole(ann.TIMEOUT_IDLE.read(service)),
        "sticky_sessions": ann.STICKY.read(service),
        "redirect_http": ann.REDIRECT.read(service) if protocol == "https" else None,
        "certificates": sorted(certificates) if protocol == "https" and certificates else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _check(service: cloud.Service, protocol: str, node_port: int, settings: config.Config) -> Check:
    """The health check; a plain one where nothing is said about it anywhere."""
    times: dict[str, Any] = {
        "interval": _whole(
            first(ann.CHECK_INTERVAL.read(service), settings.balancers_health_check_interval)
        ),
        "timeout": _whole(
            first(ann.CHECK_TIMEOUT.read(service), settings.balancers_health_check_timeout)
        ),
        "retries": first(ann.CHECK_RETRIES.read(service), settings.balancers_health_check_retries)
        or None,
    }
    said = ann.CHECK_PROTOCOL.read(service)
    port = ann.CHECK_PORT.read(service)
    http = _http_check(service)
    if not any(one is not None for one in (*times.values(), said, port)) and not http:
        return Check(protocol="tcp", port=node_port)
    kind = said or protocol
    if kind == "tcp":
        return Check(protocol=kind, port=port or node_port, **times)
    http["tls"] = kind == "https" or bool(http.get("tls"))  # always: so that it goes back, too
    return Check(protocol="http", port=port or node_port, http=http, **times)


def _http_check(service: cloud.Service) -> dict[str, Any]:
    """What is asked for of HTTP, if the check should be one."""
    codes = ann.STATUS_CODES.read(service)
    found: dict[str, Any] = {
        "domain": ann.CHECK_DOMAIN.read(service),
        "path": ann.CHECK_PATH.read(service),
        "tls": ann.CHECK_TLS.read(service),
        "status_codes": sorted(codes) if codes else None,
    }
    # The API takes no empty text: it stands for its default.
    empty = {"domain": None, "path": "/"}
    asked = {name: value for name, value in found.items() if value is not None}
    return {name: empty[name] if value == "" else value for name, value in asked.items()}


def _whole(duration: timedelta | None) -> int | None:
    """Whole seconds; zero leaves the choice to the API."""
    return int(duration.total_seconds()) or None if duration is not None else None


# --- members ------------------------------------------------------------------------------------


def members(service: cloud.Service, nodes: Iterable[cloud.Node], most: int) -> tuple[int, ...]:
    """Return IDs of the servers that get traffic, at most so many of them: always the same ones.

    Raises:
        InvalidArgument: the node selector cannot be read.
    """
    found = sorted(servers(nodes, ann.NODE_SELECTOR.read(service)))
    return tuple(found[:most] if most else found)


def members_of(
    held: client.Balancer,
    service: cloud.Service,
    nodes: Iterable[cloud.Node],
    settings: config.Config,
) -> Mapping[int, bool]:
    """Return the members of an existing load balancer: server -> whether by its private address.

    The Service may ask for what cannot be had. Targets are reached in the way they already are, and
    an unreadable node selector selects all nodes. Present targets come before new ones.
    """
    there = held_servers(held)
    ways = set(there.values())
    private = first(ann.lenient(service, ann.USE_PRIVATE_IP), settings.balancers_use_private_ip)
    if len(ways) == 1:
        (private,) = ways
    found = servers(nodes, ann.lenient(service, ann.NODE_SELECTOR))
    ordered = sorted(found, key=lambda number: (number not in there, number))
    return {number: there.get(number, private) for number in ordered}


def servers(nodes: Iterable[cloud.Node], selector: str | None = None) -> Mapping[int, str]:
    """Return the ID of the server of each selected node -> the node's name."""
    terms = parse_labels(selector or "")
    return {
        number: node.name
        for node in nodes
        if all(term.matches(node.labels) for term in terms)
        for number in _server(node)
    }


def _server(node: cloud.Node) -> Iterable[int]:
    try:
        yield int(instances.parse_id(node.provider_id))
    except cloud.InvalidArgument:
        return  # no server of ours, or not known yet


def has_dedicated(nodes: Iterable[cloud.Node]) -> bool:
    """Whether some nodes are Robot servers, which the vendor's manager reaches by IP targets."""
    return any(instances.ROBOT.fullmatch(node.provider_id) for node in nodes)


def most_targets(recipe: Recipe, held: client.Balancer | None) -> int:
    """How many targets there may be; 0 = it is not known."""
    if held is not None and recipe.type in ("", held.load_balancer_type.name):
        return held.load_balancer_type.max_targets
    return MOST_TARGETS.get(recipe.type or DEFAULT_TYPE, 0)


# --- orders -------------------------------------------------------------------------------------


def target(number: int, *, private: bool | None = None) -> Mapping[str, Any]:
    """A target as the API takes it; `private` only where one is added."""
    found: dict[str, Any] = {"type": "server", "server": {"id": number}}
    return found if private is None else {**found, "use_private_ip": private}


def listener(port: Port, held: client.Listener | None = None) -> Mapping[str, Any]:
    """A service as the API takes it: what is asked for, and else what is there, or a default."""
    check = held.health_check if held else client.HealthCheck(protocol="tcp", port=1)
    order: dict[str, Any] = {
        "protocol": port.protocol,
        "listen_port": port.listen_port,
        "destination_port": port.destination_port,
        "proxyprotocol": first(port.proxyprotocol, held.proxyprotocol if held else False),
        "health_check": {
            "protocol": port.check.protocol,
            "port": port.check.port,
            "interval": first(port.check.interval, check.interval),
            "timeout": first(port.check.timeout, check.timeout),
            "retries": first(port.check.retries, check.retries),
        },
    }
    if port.check.http is not None:
        there = msgspec.to_builtins(check.http or client.HttpCheck())
        codes = there.pop("status_codes")
        kept = {**there, "status_codes": codes} if codes else there
        order["health_check"]["http"] = {**kept, **port.check.http}
    if port.http:
        order["http"] = dict(port.http)
    return order


def fits(held: client.Listener, port: Port) -> bool:
    """Whether a service is as it is asked for, where it is."""
    there, asked = held.health_check, port.check
    return (
        (held.protocol, held.destination_port) == (port.protocol, port.destination_port)
        and port.proxyprotocol in (None, held.proxyprotocol)
        and (there.protocol, there.port) == (asked.protocol, asked.port)
        and asked.interval in (None, there.interval)
        and asked.timeout in (None, there.timeout)
        and asked.retries in (None, there.retries)
        and _has(there.http or client.HttpCheck(), asked.http or {})
        and _has(held.http or client.Http(), port.http)
    )


def _has(there: msgspec.Struct, asked: Mapping[str, Any]) -> bool:
    """Whether something is so as far as it is asked for."""
    return all(_plain(getattr(there, name)) == value for name, value in asked.items())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


# --- digests ------------------------------------------------------------------------------------


def wanted_digest(name: str, recipe: Recipe, servers: Sequence[int], *more: object) -> str:
    """The digest of what a Service asks for; `more` is what no load balancer shows of itself."""
    ports = [msgspec.convert(_whole_listener(one), client.Listener) for one in recipe.ports]
    networks = [recipe.network] if recipe.network is not None else []
    shown = [
        name,
        recipe.type or DEFAULT_TYPE,
        recipe.algorithm or "round_robin",
        first(recipe.public, True),
        networks,
        _sorted(ports),
        sorted((one, recipe.private_targets) for one in servers),
        [],
        *[one for one in (recipe.private_ip, dict(recipe.dns), *more) if one],
    ]
    return _digest(shown)


def _whole_listener(port: Port) -> Mapping[str, Any]:
    """A new service, with what the API fills in."""
    order = dict(listener(port))
    if port.protocol != "tcp":
        order["http"] = {**DEFAULT_HTTP, **port.http}
    if port.check.http is not None:
        http = {"status_codes": DEFAULT_CODES, **order["health_check"]["http"]}
        order["health_check"] = {**order["health_check"], "http": http}
    return order


def held_digest(held: client.Balancer, network: int | None) -> str:
    """The digest of what there is."""
    joined = [one.network for one in held.private_net]
    plain = [_in_order(one) for one in held.services]
    shown = [
        held.name,
        held.load_balancer_type.name,
        held.algorithm.type,
        held.public_net.enabled,
        [] if network is None else joined,
        _sorted(plain),
        sorted(held_servers(held).items()),
        sorted(str(one.ip) for one in held.targets if one.type == "ip"),
    ]
    return _digest(shown)


def _in_order(one: client.Listener) -> client.Listener:
    check = one.health_check
    if check.http:
        codes = tuple(sorted(check.http.status_codes))
        http = msgspec.structs.replace(check.http, status_codes=codes)
        check = msgspec.structs.replace(check, http=http)
    return msgspec.structs.replace(one, http=_known(one.http), health_check=check)


def _known(http: client.Http | None) -> client.Http | None:
    """Without what the API fills in by itself."""
    idle = None if http is None or http.timeout_idle == 50 else http.timeout_idle
    return http and msgspec.structs.replace(
        http, timeout_idle=idle, certificates=tuple(sorted(http.certificates))
    )


def _sorted(listeners: Iterable[client.Listener]) -> list[Any]:
    found: list[Any] = msgspec.to_builtins(sorted(listeners, key=lambda one: one.listen_port))
    return found


def _digest(shown: object) -> str:
    return sha256(msgspec.json.encode(shown)).hexdigest()[:32]


def held_servers(held: client.Balancer) -> dict[int, bool]:
    """ID of each server that is a target -> whether by its private address."""
    return {
        one.server.id: one.use_private_ip
        for one in held.targets
        if one.type == "server" and one.server
    }


# --- status -------------------------------------------------------------------------------------


def status(
    held: client.Balancer, service: cloud.Service | None, settings: config.Config
) -> cloud.Status:
    """Where it is reached; without a Service as if nothing special was asked for."""
    hidden_v6 = settings.balancers_disable_ipv6
    hidden_private = settings.balancers_disable_private_ingress
    if service is not None:
        if hostname := ann.HOSTNAME.read(service):
            return cloud.Status(ingress=(cloud.Ingress(hostname=hostname),))
        hidden_v6 = first(ann.IPV6_DISABLED.read(service), hidden_v6)
        hidden_private = first(ann.DISABLE_PRIVATE_INGRESS.read(service), hidden_private)
    public, found = held.public_net, []
    if public.enabled:
        found += [public.ipv4, *([] if hidden_v6 else [public.ipv6])]
    texts = [one.ip for one in found if one and one.ip]
    texts += [] if hidden_private else [one.ip for one in held.private_net if one.ip]
    mode: Any = "Proxy" if any(one.proxyprotocol for one in held.services) else "VIP"
    return cloud.Status(ingress=tuple(cloud.Ingress(ip=one, ip_mode=mode) for one in texts))


def shape(service: cloud.Service) -> Sequence[object]:
    """What only the Service's status shows; empty where nothing special is asked for."""
    asked = (ann.HOSTNAME, ann.IPV6_DISABLED, ann.DISABLE_PRIVATE_INGRESS)
    found = [(one.name, one.read(service)) for one in asked]
    return [(name, value) for name, value in found if value is not None]


def has_address(held: client.Balancer) -> bool:
    """Whether it can be reached at all yet."""
    if held.public_net.enabled:
        return bool(held.public_net.ipv4 and held.public_net.ipv4.ip)
    return any(one.ip for one in held.private_net)


class Step(NamedTuple):
    """An action about a load balancer, and what it is told."""

    action: str
    order: Mapping[str, Any] | None

    @property
    def server(self) -> int | None:
        """ID of the server that it adds or removes as a target."""
        about = (self.order or {}).get("server")
        return about and int(about["id"])


READ_AGAIN = frozenset(
    {
        "attach_to_network",
        "detach_from_network",
        "enable_public_interface",
        "disable_public_interface",
        "update_service",
        "add_service",
    }
)
"""Actions that may change where, or how, a load balancer is reached."""


def steps(
    held: client.Balancer, recipe: Recipe, servers: Sequence[int], *, keep_ips: bool
) -> list[Step]:
    """All actions that it takes; the API has none for several things at once."""
    moves = list(_networks(held, recipe))
    leaving: list[Step] = []
    if any(one.action == "detach_from_network" for one in moves):
        # No network is left while targets are reached through it.
        stay = tuple(one for one in held.targets if not one.use_private_ip)
        through = [number for number, private in held_servers(held).items() if private]
        leaving = [Step("remove_target", target(each)) for each in sorted(through)]
        held = msgspec.structs.replace(held, targets=stay)
    return [
        *_properties(held, recipe),
        *leaving,
        *moves,
        *_ports(held, recipe),
        *targets(held, dict.fromkeys(servers, recipe.private_targets), keep_ips=keep_ips),
    ]


def release(held: client.Balancer, service: cloud.Service) -> tuple[Sequence[Step], Sequence[int]]:
    """Return what takes a Service off a load balancer that was adopted, and the ports that stay.

    A Service may go before all that it asks for was done. What it did not bring is somebody
    else's: a listener is the Service's where port and node port are, and targets are the Service's
    where no other listener sends traffic to them.
    """
    # A Service that is no load balancer any more may have lost its node ports.
    brought = {port.port: port.node_port for port in service.ports}
    ours = [
        one.listen_port
        for one in held.services
        if one.listen_port in brought and brought[one.listen_port] in (0, one.destination_port)
    ]
    stay = sorted({one.listen_port for one in held.services} - set(ours))
    steps = [Step("delete_service", {"listen_port": port}) for port in sorted(ours)]
    if not stay:
        gone = sorted(held_servers(held))
        steps += [Step("remove_target", target(one)) for one in gone]
    return steps, stay


def _properties(held: client.Balancer, recipe: Recipe) -> Iterator[Step]:
    for family, name in recipe.dns.items():
        address: client.Ip | None = getattr(held.public_net, family)
        if address and address.ip and address.dns_ptr != name:
            yield Step("change_dns_ptr", {"ip": address.ip, "dns_ptr": name})
    if recipe.algorithm not in (None, held.algorithm.type):
        yield Step("change_algorithm", {"type": recipe.algorithm})
    if recipe.type not in ("", held.load_balancer_type.name):
        yield Step("change_type", {"load_balancer_type": recipe.type})


def _networks(held: client.Balancer, recipe: Recipe) -> Iterator[Step]:
    if recipe.network is not None:
        is_in = False
        for one in held.private_net:
            if one.network == recipe.network and recipe.private_ip in (None, one.ip):
                is_in = True
            else:
                yield Step("detach_from_network", {"network": one.network})
        if not is_in:
            yield Step("attach_to_network", attachment(recipe))
    if recipe.public not in (None, held.public_net.enabled):
        word = "enable" if recipe.public else "disable"
        yield Step(f"{word}_public_interface", None)


def attachment(recipe: Recipe) -> Mapping[str, Any]:
    """The order to be in the network."""
    order: dict[str, Any] = {"network": recipe.network}
    if recipe.private_ip:
        order["ip"] = recipe.private_ip
    elif recipe.subnet:
        order["ip_range"] = recipe.subnet
    return order


def _ports(held: client.Balancer, recipe: Recipe) -> Iterator[Step]:
    there = {one.listen_port: one for one in held.services}
    for number in sorted(there.keys() - {one.listen_port for one in recipe.ports}):
        yield Step("delete_service", {"listen_port": number})
    for port in recipe.ports:
        found = there.get(port.listen_port)
        if found is None:
            yield Step("add_service", listener(port))
        elif not fits(found, port):
            yield Step("update_service", listener(port, found))


def targets(held: client.Balancer, wanted: Mapping[int, bool], *, keep_ips: bool) -> Iterator[Step]:
    """Yield the steps for members alone; a change of the way to one takes it out and in again.

    Args:
        held: the load balancer as it is.
        wanted: ID of each server -> whether it is reached by its private address.
        keep_ips: whether IP targets stay.
    """
    there = held_servers(held)
    for number in sorted(there):
        if wanted.get(number) != there[number]:
            yield Step("remove_target", target(number))
    for one in held.targets:
        if one.type == "ip" and not keep_ips:
            yield Step("remove_target", {"type": "ip", "ip": one.ip})
    for number in sorted(wanted):
        if there.get(number) != wanted[number]:
            yield Step("add_target", target(number, private=wanted[number]))

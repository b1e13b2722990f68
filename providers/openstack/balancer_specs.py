"""Wanted load balancers, and their comparison with existing ones. No I/O.

Parts are request bodies; a body has only the fields that the cloud's version supports. An existing
part matches if it has the values of the body, whatever its index in names: the Go manager does not
rename the parts of other ports when a port is removed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec

from ccm import cloud
from ccm.model.ip import parse_ip
from ccm.model.selectors import Requirement, parse_labels

from . import config, octavia
from . import service_annotations as ann

T = TypeVar("T")
Body = Mapping[str, Any]
"""Request body."""

MAX_NAME = 255
"""Maximum length of names (limit of the API)."""

NAME_PREFIX = "kube_service_"
"""Prefix of the names of Services' load balancers."""


# --- names ----------------------------------------------------------------------------------------


def balancer_name(cluster_name: str, service: cloud.Service) -> str:
    """Return the name of a Service's load balancer, as in the Go manager: never change it."""
    return f"{NAME_PREFIX}{cluster_name}_{service.namespace}_{service.name}"[:MAX_NAME]


def parse_name(name: str) -> tuple[str, str, str] | None:
    """Return cluster, namespace and name of the Service of a load balancer; None if it has none."""
    # Clusters may have underscores in their names; namespaces and Services have none.
    cluster, *rest = name.removeprefix(NAME_PREFIX).rsplit("_", 2)
    return (cluster, rest[0], rest[1]) if name.startswith(NAME_PREFIX) and len(rest) == 2 else None


def describe(cluster: str, namespace: str, name: str) -> str:
    """Return the description of a Service's load balancer."""
    return f"Kubernetes external service {namespace}/{name} from cluster {cluster}"


def is_marked(held: octavia.Balancer, name: str) -> bool:
    """Return whether tags or description show that a load balancer is used by a Service."""
    parsed = parse_name(name)
    is_described = parsed is not None and held.description == describe(*parsed)
    return name in held.tags or (held.name == name and is_described)


def service_tags(tags: Iterable[str], *others: str) -> list[str]:
    """Return the tags of Services, except for the given ones."""
    return [tag for tag in tags if tag.startswith(NAME_PREFIX) and tag not in others]


# --- settings and annotations ---------------------------------------------------------------------


_BY_ANNOTATION: Mapping[str, cloud.ServiceAnnotation[str | None]] = {
    "floating_network_id": ann.FLOATING_NETWORK,
    "floating_subnet_id": ann.FLOATING_SUBNET_ID,
    "floating_subnet": ann.FLOATING_SUBNET,
    "floating_subnet_tags": ann.FLOATING_SUBNET_TAGS,
    "network_id": ann.NETWORK,
    "subnet_id": ann.SUBNET,
    "member_subnet_id": ann.MEMBER_SUBNET,
}
"""Field of a class -> annotation."""

_SUBNET = ("floating_subnet_id", "floating_subnet", "floating_subnet_tags")


class Part(NamedTuple):
    """Wanted listener with its pool, health monitor and members, as request bodies."""

    listener: Body
    pool: Body
    monitor: Body | None
    members: tuple[Body, ...]


@dataclass(frozen=True)
class Request:
    """A Service, with all on which its load balancer depends.

    Reading raises `InvalidArgument` for an invalid value of an annotation.

    Attributes:
        cluster: name of the cluster.
        service: the Service.
        conf: settings.
        features: features of the cloud.
        tolerant: whether an invalid annotation counts as missing.
    """

    cluster: str
    service: cloud.Service
    conf: config.Config
    features: octavia.Features
    tolerant: bool = False

    @property
    def settings(self) -> config.LoadBalancer:
        """Settings of all load balancers."""
        return self.conf.load_balancer

    @property
    def name(self) -> str:
        """Name of the Service's own load balancer."""
        return balancer_name(self.cluster, self.service)

    @property
    def description(self) -> str:
        """Description of the Service's own load balancer."""
        return describe(self.cluster, self.service.namespace, self.service.name)

    def former_names(self, held: octavia.Balancer) -> list[str]:
        """Return the Service's marks on a load balancer under another name of the cluster."""
        # Without the address in an annotation, the user wants to share another Service's. With a
        # tag of its own, the Service shares one with an equally named Service of another cluster.
        if ann.BALANCER_ADDRESS.name not in self.service.annotations or self.name in held.tags:
            return []
        key = (parse_name(self.name) or ())[1:]
        marks = {held.name, *held.tags} - {self.name}
        return [mark for mark in marks if key and (parse_name(mark) or ())[1:] == key]

    @property
    def is_internal(self) -> bool:
        """Whether the load balancer gets no floating IP."""
        return self.read(ann.INTERNAL, self.settings.internal_lb)

    @property
    def is_ipv6(self) -> bool:
        """Whether the Service's first IP family is IPv6; further families are not served."""
        return (self.service.spec.ip_families or ("IPv4",))[0] == "IPv6"

    def read(self, annotation: cloud.ServiceAnnotation[T | None], otherwise: T) -> T:
        """Return the value of an annotation, or `otherwise`."""
        try:
            given = annotation.read(self.service)
        except cloud.InvalidArgument:
            if not self.tolerant:
                raise
            given = None
        return otherwise if given is None else given

    @cached_property
    def networks(self) -> config.BalancerClass:
        """Networks of the class, or else of the annotations, or else of the file."""
        classes = self.conf.load_balancer_class
        name = self.read(ann.CLASS, "")
        if name and name not in classes and not self.tolerant:
            known = ", ".join(sorted(classes)) or "none"
            raise cloud.InvalidArgument(
                f"annotation {ann.CLASS.name}: cloud.conf has no [LoadBalancerClass {name!r}]; "
                f"known classes: {known}"
            )
        of_class = msgspec.structs.asdict(classes.get(name, config.BalancerClass()))
        of_file = msgspec.structs.asdict(self.settings)
        given = {
            field: of_class[field] or self.read(annotation, of_file[field])
            for field, annotation in _BY_ANNOTATION.items()
        }
        # One way to select the subnet hides the others, wherever these are set.
        annotated = {field: self.read(_BY_ANNOTATION[field], "") for field in _SUBNET}
        sources = (of_class, annotated, of_file)
        layers = ({field: source[field] for field in _SUBNET} for source in sources)
        given |= next((layer for layer in layers if any(layer.values())), {})
        return config.BalancerClass(**given)

    @cached_property
    def source_ranges(self) -> list[str]:
        """Allowed source ranges, sorted; all addresses of the IP family without any."""
        ranges = cloud.load_balancer_source_ranges(self.service)
        is_open = self.is_ipv6 and cloud.is_allow_all(ranges)
        return ["::/0"] if is_open else sorted(map(str, ranges))

    # --- members ----------------------------------------------------------------------------------

    def select(self, nodes: Iterable[cloud.Node]) -> tuple[cloud.Node, ...]:
        """Return the nodes that the node selector selects, sorted by name."""
        terms = self.read(ann.NODE_SELECTOR, parse_labels(self.settings.node_selector))
        return _select(nodes, tuple(terms))

    def members(
        self, port: cloud.ServicePort, nodes: Iterable[cloud.Node], vip_subnet: str | None
    ) -> tuple[Body, ...]:
        """Return the members of a port's pool; none without a node port.

        Args:
            port: the port.
            nodes: all nodes.
            vip_subnet: subnet of the load balancer; None = not known.
        """
        if not port.node_port:
            return ()
        subnet = self.member_subnet(vip_subnet)
        more: dict[str, Any] = {"subnet_id": subnet} if subnet else {}
        if self._is_checked_by_http(port):
            more["monitor_port"] = cloud.health_check_path_port(self.service)[1]
        # Octavia accepts an address once; the node of a replaced VM may have that of its successor.
        names = {ip: name for name, ip in addresses(self.select(nodes), self.is_ipv6).items()}
        return tuple(
            {"name": name, "address": address, "protocol_port": port.node_port, **more}
            for address, name in names.items()
        )

    def member_subnet(self, vip_subnet: str | None) -> str:
        """Return the subnet of the members; empty = not known."""
        subnet = self.networks.member_subnet_id or self.networks.subnet_id
        return subnet or ("" if self.networks.network_id else vip_subnet or "")

    # --- parts ------------------------------------------------------------------------------------

    def parts(self, nodes: Sequence[cloud.Node], vip_subnet: str | None = None) -> list[Part]:
        """Return the wanted parts, one for each port."""
        return [
            Part(*self._part(index, port), self.members(port, nodes, vip_subnet))
            for index, port in enumerate(self.service.ports)
        ]

    def _part(self, index: int, port: cloud.ServicePort) -> tuple[Body, Body, Body | None]:
        is_tcp = port.protocol == "TCP"
        tls = self.read(ann.TLS_CONTAINER, self.settings.default_tls_container_ref)
        proxy, forwards = self.read(ann.PROXY_PROTOCOL, ""), self.read(ann.X_FORWARDED_FOR, False)
        if proxy and forwards:
            raise cloud.InvalidArgument(
                f"annotations {ann.PROXY_PROTOCOL.name} and {ann.X_FORWARDED_FOR.name} exclude "
                "each other; remove one"
            )
        tls, is_http = tls if is_tcp else "", forwards and is_tcp
        inner = "HTTP" if tls or is_http else port.protocol
        method = self.settings.lb_method
        if self.features.provider == "ovn":
            method = "SOURCE_IP_PORT"  # the only one of that provider
        listener = {
            "name": f"listener_{index}_{self.name}"[:MAX_NAME],
            "protocol": "TERMINATED_HTTPS" if tls else inner,
            "protocol_port": port.port,
            "connection_limit": self.read(ann.CONNECTION_LIMIT, -1),
            "tags": [self.name],
            "timeout_client_data": self.read(ann.TIMEOUT_CLIENT_DATA, 50000),
            "timeout_member_connect": self.read(ann.TIMEOUT_MEMBER_CONNECT, 5000),
            "timeout_member_data": self.read(ann.TIMEOUT_MEMBER_DATA, 50000),
            "timeout_tcp_inspect": self.read(ann.TIMEOUT_TCP_INSPECT, 0),
            "insert_headers": {"X-Forwarded-For": "true"} if is_http else {},
            "default_tls_container_ref": tls or None,
            "allowed_cidrs": self.source_ranges,
        }
        keeps = self.service.spec.session_affinity == "ClientIP"
        pool = {
            "name": f"pool_{index}_{self.name}"[:MAX_NAME],
            "protocol": proxy if proxy and is_tcp else inner,
            "lb_algorithm": self.read(ann.LB_METHOD, method),
            "session_persistence": {"type": "SOURCE_IP"} if keeps else None,
        }
        supported = {key: value for key, value in listener.items() if self.features.has(key)}
        return supported, pool, self._monitor(index, port)

    def _has_monitor(self) -> bool:
        return self.read(ann.HEALTH_MONITOR, self.settings.create_monitor)

    def _is_checked_by_http(self, port: cloud.ServicePort) -> bool:
        """Return whether members are checked by kube-proxy's health check of the Service."""
        has_check = bool(cloud.health_check_path_port(self.service)[1])
        return has_check and self._has_monitor() and self.features.has_http_monitor(port.protocol)

    def _monitor(self, index: int, port: cloud.ServicePort) -> Body | None:
        if not self._has_monitor():
            return None
        given = self.settings
        monitor = {
            "name": f"monitor_{index}_{self.name}"[:MAX_NAME],
            "type": "UDP-CONNECT" if port.protocol == "UDP" else port.protocol,
            "delay": self.read(ann.MONITOR_DELAY, int(given.monitor_delay.total_seconds())),
            "timeout": self.read(ann.MONITOR_TIMEOUT, int(given.monitor_timeout.total_seconds())),
            "max_retries": self.read(ann.MONITOR_RETRIES, given.monitor_max_retries),
            "max_retries_down": self.read(ann.MONITOR_RETRIES_DOWN, given.monitor_max_retries_down),
        }
        if self._is_checked_by_http(port):
            path, _ = cloud.health_check_path_port(self.service)
            http = {"type": "HTTP", "http_method": "GET", "url_path": path, "expected_codes": "200"}
            return {**monitor, **http}
        return monitor

    def order(self, parts: Iterable[Part], subnet: str) -> dict[str, Any]:
        """Return the request body that creates the load balancer, with all parts unless serial.

        Args:
            parts: the parts.
            subnet: subnet of the load balancer, if neither a network nor a port is set.
        """
        port = self.read(ann.PORT, "")
        vip = {"vip_subnet_id": subnet, "vip_network_id": self.networks.network_id}
        order: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "provider": self.settings.lb_provider,
            "tags": [self.name],
            "flavor_id": self.read(ann.FLAVOR, self.settings.flavor_id),
            "availability_zone": self.read(ann.ZONE, self.settings.availability_zone),
            "vip_address": self.service.spec.load_balancer_ip if self.is_internal else "",
            **({"vip_port_id": port} if port else vip),
        }
        order = {key: value for key, value in order.items() if value and self.features.has(key)}
        if not self.settings.provider_requires_serial_api_calls:
            order["listeners"] = [
                set_fields(
                    part.listener,
                    default_pool=set_fields(
                        part.pool, members=part.members, healthmonitor=part.monitor
                    ),
                )
                for part in parts
            ]
        return order

    # --- status -----------------------------------------------------------------------------------

    def status(self, address: str) -> cloud.Status:
        """Return the Service's status for an address."""
        if hostname := self.read(ann.HOSTNAME, ""):
            return cloud.Status(ingress=(cloud.Ingress(hostname=hostname),))
        has_tcp = any(port.protocol == "TCP" for port in self.service.ports)
        is_proxied = has_tcp and self.read(ann.PROXY_PROTOCOL, "") != ""
        return status(address, self.settings, is_proxied=is_proxied)

    def digest(self, nodes: Sequence[cloud.Node]) -> str:
        """Return the digest of the wanted load balancer."""
        rows = [
            (_row(part.listener), _row(part.pool), _row(part.monitor), _wanted(part.members))
            for part in self.parts(nodes)
        ]
        is_public = not self.is_internal and not self.is_ipv6
        # A hostname is not known for existing ones; such a Service is always ensured.
        hostname = self.read(ann.HOSTNAME, "")
        return digest(self.name, is_public, self.settings.manage_security_groups, rows, hostname)


@cloud.cached_for_nodes
def _select(nodes: Iterable[cloud.Node], terms: tuple[Requirement, ...]) -> tuple[cloud.Node, ...]:
    chosen = (node for node in nodes if all(term.matches(node.labels) for term in terms))
    return tuple(sorted(chosen, key=lambda node: node.name))


@cloud.cached_for_nodes
def addresses(nodes: Iterable[cloud.Node], is_ipv6: bool) -> Mapping[str, str]:
    """Return by name the first internal, or else external, address of each node in a family."""
    return {
        node.name: entry.address
        for node in nodes
        for kind in ("ExternalIP", "InternalIP")  # the last one found counts
        for entry in reversed(node.addresses)
        if entry.type == kind and (ip := parse_ip(entry.address)) and (ip.version == 6) is is_ipv6
    }


def set_fields(body: Body, **more: Any) -> dict[str, Any]:
    """Return a body for a creation, without fields that are unset."""
    return {key: value for key, value in {**body, **more}.items() if value not in (None, {})}


def status(address: str, settings: config.LoadBalancer, *, is_proxied: bool) -> cloud.Status:
    """Return the status for an address."""
    if is_proxied and settings.enable_ingress_hostname:
        name = f"{address}.{settings.ingress_hostname_suffix}"
        return cloud.Status(ingress=(cloud.Ingress(hostname=name),))
    mode: Any = "Proxy" if is_proxied else "VIP"
    return cloud.Status(ingress=(cloud.Ingress(ip=address, ip_mode=mode),))


# --- comparison -----------------------------------------------------------------------------------


def key_of(protocol: str, port: int) -> tuple[str, int]:
    """Return transport protocol and port, by which listeners are matched with ports."""
    return protocol if protocol in ("UDP", "SCTP") else "TCP", port


def own_parts(parts: Iterable[octavia.HeldPart], *names: str) -> list[octavia.HeldPart]:
    """Return the parts of one Service: those with its name as tag, or in the listener's name.

    A listener that a user added has neither, and is left alone.
    """
    return [
        part
        for part in parts
        if set(names) & set(part.listener.tags)
        or (not service_tags(part.listener.tags) and _is_named_after(part.listener.name, names))
    ]


def _is_named_after(name: str, owners: Iterable[str]) -> bool:
    owner = name.split("_", 2)[-1]
    is_cut = len(name) == MAX_NAME
    return any(owner == each or (is_cut and each.startswith(owner)) for each in owners)


def changed_fields(held: msgspec.Struct, wanted: Body, owner: str) -> dict[str, Any]:
    """Return the fields of a wanted part that differ from the existing part.

    Name and tags differ only if they are of another load balancer than `owner`.
    """
    changes = {
        key: value
        for key, value in wanted.items()
        if key not in ("name", "tags", "protocol", "protocol_port", "type")
        and _plain(getattr(held, key)) != _plain(value)
    }
    name: str = getattr(held, "name", None) or ""
    if not _is_named_after(name, [owner]) and parse_name(name.split("_", 2)[-1]):
        changes["name"] = wanted["name"]  # the cluster was renamed
    tags: Sequence[str] = getattr(held, "tags", ())
    if "tags" in wanted and owner not in tags:
        changes["tags"] = [*(tag for tag in tags if tag not in service_tags(tags)), owner]
    return changes


def _plain(value: Any) -> Any:
    value = msgspec.to_builtins(value)
    if isinstance(value, list | tuple):
        value = sorted(value)
    return value or None  # the API shows an unset field as null or empty


def same_members(held: Iterable[octavia.Member], wanted: Iterable[Body]) -> bool:
    """Return whether the members are the wanted ones; their order and subnet do not count."""
    return _held(held) == _wanted(wanted)


def _held(members: Iterable[octavia.Member]) -> list[Any]:
    return sorted((m.name or "", m.address, m.protocol_port, m.monitor_port or 0) for m in members)


def _wanted(members: Iterable[Body]) -> list[Any]:
    keys = ("name", "address", "protocol_port")
    return sorted((*(m[key] for key in keys), m.get("monitor_port", 0)) for m in members)


_HIDDEN = frozenset(
    {"id", "name", "tags", "default_pool_id", "loadbalancers", "healthmonitor_id", "members"}
)
"""Fields that are not part of a digest."""

_HTTP = frozenset({"http_method", "url_path", "expected_codes"})


def held_row(part: octavia.HeldPart, features: octavia.Features) -> tuple[Any, ...]:
    """Return what a digest has of an existing part."""
    shown = (msgspec.structs.asdict(each) if each else None for each in part[:3])
    listener, pool, monitor = shown
    hidden = frozenset() if monitor and monitor["type"] == "HTTP" else _HTTP
    supported = {key: value for key, value in (listener or {}).items() if features.has(key)}
    return _row(supported), _row(pool), _row(monitor, hidden), _held(part.members)


def _row(fields: Body | None, hidden: frozenset[str] = frozenset()) -> list[Any]:
    """Return the set fields, sorted."""
    given = fields or {}
    shown = {key: _plain(given[key]) for key in given.keys() - _HIDDEN - hidden}
    return sorted((key, value) for key, value in shown.items() if value is not None)


def digest(name: str, is_public: bool, has_group: bool, rows: Iterable[Any], more: str = "") -> str:
    """Return the digest of a Service's load balancer: floating IP, security group and parts."""
    texts = sorted(msgspec.json.encode(row).decode() for row in rows)
    shown = msgspec.json.encode([name, is_public, has_group, texts, more])
    return sha256(shown).hexdigest()[:32]


# --- subnets of floating IPs ----------------------------------------------------------------------


def subnet_matches(name: str, tags: Sequence[str], networks: config.BalancerClass) -> bool:
    """Return whether a subnet has the name and the tags that are asked for.

    Raises:
        InvalidArgument: the name pattern is no regular expression.
    """
    is_named = _name_matches(name, networks.floating_subnet)
    return is_named and _tags_match(tags, networks.floating_subnet_tags)


def _name_matches(name: str, pattern: str) -> bool:
    text = pattern.removeprefix("!")
    regex = text[1:] if text.startswith("~") else rf"\A{fnmatch.translate(text or '*')}"
    try:
        return (re.search(regex, name) is not None) is not pattern.startswith("!")
    except re.error as error:
        raise cloud.InvalidArgument(
            f"floating-subnet {pattern!r} is invalid: {error}; expected a regular expression "
            "after `~`"
        ) from error


def _tags_match(tags: Sequence[str], pattern: str) -> bool:
    text = pattern.removeprefix("!")
    wanted = {tag.strip() for tag in text.removeprefix("&").split(",") if tag.strip()}
    common = wanted & set(tags)
    is_match = common == wanted if text.startswith("&") or not wanted else bool(common)
    return is_match is not pattern.startswith("!")

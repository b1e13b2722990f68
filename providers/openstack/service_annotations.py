"""Service annotations of OpenStack, named as in openstack-cloud-controller-manager.

Unlike there, an invalid value is an error: the other manager silently uses the default instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud.annotations import markdown, truth
from ccm.model import names
from ccm.model.selectors import Requirement, parse_labels

from . import config

T = TypeVar("T")

PREFIX = "loadbalancer.openstack.org/"
"""Prefix of the annotation names. Services store them: never change it."""

METHODS = ("ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT")
"""Algorithms of pools."""

MAX_TIMEOUT_MS = 365 * 24 * 3600 * 1000
"""Maximum timeout of a listener in milliseconds (limit of the API)."""


def _annotation(
    name: str, help_: str, expects: str, parse: Callable[[str], T], shown: str = ""
) -> cloud.ServiceAnnotation[T | None]:
    return cloud.ServiceAnnotation(
        name=name if "/" in name else PREFIX + name,
        expects=expects,
        default=None,
        shown=shown,
        help=help_,
        parse=parse,
    )


def _text(name: str, help_: str, expects: str = "text") -> cloud.ServiceAnnotation[str | None]:
    return _annotation(name, help_, expects, str)


def _id(name: str, help_: str) -> cloud.ServiceAnnotation[str | None]:
    # An empty text overrides the setting and stands for none.
    return _annotation(name, help_, "a UUID", lambda text: text and config.parse_uuid(text))


def _bool(name: str, help_: str, shown: str = "") -> cloud.ServiceAnnotation[bool | None]:
    return _annotation(name, help_, "true or false", truth, shown)


def _number(
    name: str, help_: str, least: int, most: int, expects: str, shown: str = ""
) -> cloud.ServiceAnnotation[int | None]:
    return _annotation(name, help_, expects, lambda text: _parse_number(text, least, most), shown)


def _timeout(name: str, help_: str, default: int) -> cloud.ServiceAnnotation[int | None]:
    return _number(f"timeout-{name}", help_, 0, MAX_TIMEOUT_MS, "milliseconds", str(default))


def _seconds(name: str, help_: str) -> cloud.ServiceAnnotation[int | None]:
    return _number(f"health-monitor-{name}", help_, 1, 2**31 - 1, "a number of seconds")


def _retries(name: str, help_: str) -> cloud.ServiceAnnotation[int | None]:
    return _number(f"health-monitor-{name}", help_, 1, 10, "a number from 1 to 10")


def _parse_number(text: str, least: int, most: int) -> int:
    number = parse_digits(text, maximum=most)
    if number is None or number < least:
        raise ValueError(text)
    return number


def _parse_limit(text: str) -> int:
    return -1 if text == "-1" else _parse_number(text, 1, 2**31 - 1)


def _parse_proxy(text: str) -> str:
    """Return the protocol of pools; empty for false."""
    return {"v1": "PROXY", "v2": "PROXYV2"}.get(text) or ("PROXY" if truth(text) else "")


def _parse_method(text: str) -> str:
    if text.upper() not in METHODS:
        raise ValueError(text)
    return text.upper()


INTERNAL = _bool(names.ANNOTATION_OPENSTACK_INTERNAL, "No floating IP.")
FLOATING_NETWORK = _id("floating-network-id", "External network of the floating IP.")
FLOATING_SUBNET = _text(
    "floating-subnet",
    "Subnet of the floating IP by name: a glob, a regular expression after `~`, or either negated "
    "by a leading `!`.",
    "a name pattern",
)
FLOATING_SUBNET_ID = _id(
    "floating-subnet-id", "Subnet of the floating IP; wins over name and tags."
)
FLOATING_SUBNET_TAGS = _text(
    "floating-subnet-tags",
    "Subnet of the floating IP by tags: one of them, all after a leading `&`, or either negated by "
    "a leading `!`.",
    "comma-separated tags",
)
CLASS = _text("class", "Section `[LoadBalancerClass]`, whose networks win.", "name of a class")
SUBNET = _id("subnet-id", "Subnet of a new load balancer.")
MEMBER_SUBNET = _id("member-subnet-id", "Subnet of the members.")
NETWORK = _id("network-id", "Network of a new load balancer.")
PORT = _id("port-id", "Existing port that becomes the VIP of a new one.")
CONNECTION_LIMIT = _annotation(
    "connection-limit",
    "Maximum connections of each listener; -1 = unlimited.",
    "a number of connections, or -1",
    _parse_limit,
    "-1",
)
KEEP_FLOATING_IP = _bool(
    "keep-floatingip", "Keep the floating IP when the Service is deleted.", "false"
)
PROXY_PROTOCOL = _annotation(
    "proxy-protocol",
    "Send members the client's address by the PROXY protocol, for TCP; true = v1.",
    "true, false, v1 or v2",
    _parse_proxy,
    "false",
)
X_FORWARDED_FOR = _bool(
    "x-forwarded-for",
    "Balance HTTP and send members the client's address in `X-Forwarded-For`, for TCP.",
    "false",
)
LB_METHOD = _annotation("lb-method", "Selects a member.", " or ".join(METHODS), _parse_method)
TIMEOUT_CLIENT_DATA = _timeout("client-data", "Inactivity timeout of clients.", 50000)
TIMEOUT_MEMBER_CONNECT = _timeout("member-connect", "Timeout of connecting to members.", 5000)
TIMEOUT_MEMBER_DATA = _timeout("member-data", "Inactivity timeout of members.", 50000)
TIMEOUT_TCP_INSPECT = _timeout("tcp-inspect", "Wait for packets to inspect.", 0)
HEALTH_MONITOR = _bool(
    "enable-health-monitor",
    "Check the health of members; needed for `externalTrafficPolicy: Local`.",
)
MONITOR_DELAY = _seconds("delay", "Time between checks.")
MONITOR_TIMEOUT = _seconds("timeout", "Limit of a check.")
MONITOR_RETRIES = _retries("max-retries", "Successes until a member is ONLINE.")
MONITOR_RETRIES_DOWN = _retries("max-retries-down", "Failures until a member is in ERROR.")
FLAVOR = _id("flavor-id", "Flavor of a new load balancer.")
ZONE = _text("availability-zone", "Zone of a new load balancer.")
TLS_CONTAINER = _text(
    "default-tls-container-ref",
    "Terminate TLS with this certificate, for TCP.",
    "reference to a secret",
)
BALANCER_ID = _id(
    "load-balancer-id",
    "Written by the controller. Given in a new Service: share this load balancer; a later change "
    "has no effect.",
)
BALANCER_ADDRESS = _text("load-balancer-address", "Written by the controller.")
HOSTNAME = _text(
    "hostname", "Host name in the Service's status, instead of the address.", "a host name"
)
NODE_SELECTOR: cloud.ServiceAnnotation[tuple[Requirement, ...] | None] = _annotation(
    "node-selector",
    "Only nodes with these labels are members.",
    "a label selector such as role=worker,zone",
    parse_labels,
)

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, cloud.ServiceAnnotation)
)
"""All annotations, in the order above."""

WRITTEN = (BALANCER_ID.name, BALANCER_ADDRESS.name)
"""Annotations that the provider writes."""

RELEVANT = tuple(annotation.name for annotation in SCHEMA if annotation.name not in WRITTEN)
"""Annotations whose change causes a call: not those that the provider writes."""


def table() -> str:
    """Return the annotations as a Markdown table."""
    return markdown(SCHEMA, without="as configured")

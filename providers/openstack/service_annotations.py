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


def _id(text: str) -> str:
    """Parse an ID; an empty text overrides the setting and stands for none."""
    return config.parse_uuid(text) if text else ""


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = parse_digits(text, maximum=most)
        if number is None or number < least:
            raise ValueError(text)
        return number

    return parse


def _limit(text: str) -> int:
    return -1 if text == "-1" else _number(1, 2**31 - 1)(text)


def _proxy(text: str) -> str:
    """Return the protocol of pools; empty for false."""
    return {"v1": "PROXY", "v2": "PROXYV2"}.get(text) or ("PROXY" if truth(text) else "")


def _method(text: str) -> str:
    if text.upper() not in METHODS:
        raise ValueError(text)
    return text.upper()


def _annotation(
    name: str, expects: str, help_: str, parse: Callable[[str], T], shown: str = ""
) -> cloud.ServiceAnnotation[T | None]:
    return cloud.ServiceAnnotation(
        name=PREFIX + name, expects=expects, default=None, shown=shown, help=help_, parse=parse
    )


_BOOL = "true or false"
_ID = "a UUID"
_TIMEOUT = "milliseconds"
_SECONDS = "a number of seconds"
_RETRIES = "a number from 1 to 10"
_milliseconds = _number(0, MAX_TIMEOUT_MS)
_seconds = _number(1, 2**31 - 1)
_retries = _number(1, 10)

INTERNAL: cloud.ServiceAnnotation[bool | None] = cloud.ServiceAnnotation(
    name=names.ANNOTATION_OPENSTACK_INTERNAL,
    expects=_BOOL,
    default=None,
    shown="",
    help="No floating IP.",
    parse=truth,
)
FLOATING_NETWORK = _annotation(
    "floating-network-id", _ID, "External network of the floating IP.", _id
)
FLOATING_SUBNET = _annotation(
    "floating-subnet",
    "a name pattern",
    "Subnet of the floating IP by name: a glob, a regular expression after `~`, or either negated "
    "by a leading `!`.",
    str,
)
FLOATING_SUBNET_ID = _annotation(
    "floating-subnet-id", _ID, "Subnet of the floating IP; wins over name and tags.", _id
)
FLOATING_SUBNET_TAGS = _annotation(
    "floating-subnet-tags",
    "comma-separated tags",
    "Subnet of the floating IP by tags: one of them, all after a leading `&`, or either negated by "
    "a leading `!`.",
    str,
)
CLASS = _annotation(
    "class", "name of a class", "Section `[LoadBalancerClass]`, whose networks win.", str
)
SUBNET = _annotation("subnet-id", _ID, "Subnet of a new load balancer.", _id)
MEMBER_SUBNET = _annotation("member-subnet-id", _ID, "Subnet of the members.", _id)
NETWORK = _annotation("network-id", _ID, "Network of a new load balancer.", _id)
PORT = _annotation("port-id", _ID, "Existing port that becomes the VIP of a new one.", _id)
CONNECTION_LIMIT = _annotation(
    "connection-limit",
    "a number of connections, or -1",
    "Maximum connections of each listener; -1 = unlimited.",
    _limit,
    "-1",
)
KEEP_FLOATING_IP = _annotation(
    "keep-floatingip", _BOOL, "Keep the floating IP when the Service is deleted.", truth, "false"
)
PROXY_PROTOCOL = _annotation(
    "proxy-protocol",
    "true, false, v1 or v2",
    "Send members the client's address by the PROXY protocol, for TCP; true = v1.",
    _proxy,
    "false",
)
X_FORWARDED_FOR = _annotation(
    "x-forwarded-for",
    _BOOL,
    "Balance HTTP and send members the client's address in `X-Forwarded-For`, for TCP.",
    truth,
    "false",
)
LB_METHOD = _annotation("lb-method", " or ".join(METHODS), "Selects a member.", _method)
TIMEOUT_CLIENT_DATA = _annotation(
    "timeout-client-data", _TIMEOUT, "Inactivity timeout of clients.", _milliseconds, "50000"
)
TIMEOUT_MEMBER_CONNECT = _annotation(
    "timeout-member-connect", _TIMEOUT, "Timeout of connecting to members.", _milliseconds, "5000"
)
TIMEOUT_MEMBER_DATA = _annotation(
    "timeout-member-data", _TIMEOUT, "Inactivity timeout of members.", _milliseconds, "50000"
)
TIMEOUT_TCP_INSPECT = _annotation(
    "timeout-tcp-inspect", _TIMEOUT, "Wait for packets to inspect.", _milliseconds, "0"
)
HEALTH_MONITOR = _annotation(
    "enable-health-monitor",
    _BOOL,
    "Check the health of members; needed for `externalTrafficPolicy: Local`.",
    truth,
)
MONITOR_DELAY = _annotation("health-monitor-delay", _SECONDS, "Time between checks.", _seconds)
MONITOR_TIMEOUT = _annotation("health-monitor-timeout", _SECONDS, "Limit of a check.", _seconds)
MONITOR_RETRIES = _annotation(
    "health-monitor-max-retries", _RETRIES, "Successes until a member is ONLINE.", _retries
)
MONITOR_RETRIES_DOWN = _annotation(
    "health-monitor-max-retries-down", _RETRIES, "Failures until a member is in ERROR.", _retries
)
FLAVOR = _annotation("flavor-id", _ID, "Flavor of a new load balancer.", _id)
ZONE = _annotation("availability-zone", "text", "Zone of a new load balancer.", str)
TLS_CONTAINER = _annotation(
    "default-tls-container-ref",
    "reference to a secret",
    "Terminate TLS with this certificate, for TCP.",
    str,
)
BALANCER_ID = _annotation(
    "load-balancer-id",
    _ID,
    "Written by the controller. Given in a new Service: share this load balancer; a later change "
    "has no effect.",
    _id,
)
BALANCER_ADDRESS = _annotation("load-balancer-address", "text", "Written by the controller.", str)
HOSTNAME = _annotation(
    "hostname", "a host name", "Host name in the Service's status, instead of the address.", str
)
NODE_SELECTOR: cloud.ServiceAnnotation[tuple[Requirement, ...] | None] = _annotation(
    "node-selector",
    "a label selector such as role=worker,zone",
    "Only nodes with these labels are members.",
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


def read_or_none(service: cloud.Service, annotation: cloud.ServiceAnnotation[T]) -> T | None:
    """Return the value of an annotation; None if it is missing or malformed."""
    try:
        return annotation.read(service)
    except cloud.InvalidArgument:
        return None


def table() -> str:
    """Return the annotations as a Markdown table."""
    return markdown(SCHEMA, without="as configured")

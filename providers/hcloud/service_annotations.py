"""Service annotations of the Hetzner Cloud, with the vendor's names.

Parsing, error messages and documentation are all derived from `SCHEMA`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud.annotations import markdown, truth
from ccm.model.selectors import BadSelectorError, parse_labels

from . import config

T = TypeVar("T")

MAX_DURATION_S = (2**63 - 1) // 1_000_000_000
"""Maximum Go duration in seconds."""

PREFIX = "load-balancer.hetzner.cloud/"
"""Prefix of the annotation names. Services store them: never change it."""


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(text)
        return text.lower()

    return parse


def _seconds(text: str) -> timedelta:
    """Parse a Go duration or, as in the vendor's documentation, a number of seconds."""
    seconds = parse_digits(text, maximum=MAX_DURATION_S)
    return config.parse_duration(text) if seconds is None else timedelta(seconds=seconds)


def _between(shortest: timedelta, longest: timedelta) -> Callable[[str], timedelta]:
    def parse(text: str) -> timedelta:
        duration = _seconds(text)
        if not shortest <= duration <= longest:
            raise ValueError(text)
        return duration

    return parse


def _port(text: str) -> int:
    port = parse_digits(text, maximum=65535)
    if not port:
        raise ValueError(text)
    return port


def _count(text: str) -> int:
    count = parse_digits(text)
    if count is None:
        raise ValueError(text)
    return count


def _ip(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


def _selector(text: str) -> str:
    try:
        parse_labels(text)
    except BadSelectorError as error:
        raise ValueError(text) from error
    return text


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _certificates(text: str) -> tuple[str, ...]:
    """Parse names and IDs; an entry of digits alone must be a valid ID."""
    entries = _split(text)
    if any(entry.isdigit() and parse_digits(entry) is None for entry in entries):
        raise ValueError(text)
    return entries


def _annotation(
    name: str, expects: str, help_: str, parse: Callable[[str], T], default: Any = None
) -> cloud.ServiceAnnotation[Any]:
    shown = "" if default is None else str(default).lower()
    return cloud.ServiceAnnotation(
        name=PREFIX + name, expects=expects, default=default, shown=shown, help=help_, parse=parse
    )


_CODE = re.compile(r"[1-5*?][0-9*?]{0,2}")
"""Pattern of HTTP status codes: `?` stands for one digit, `*` for several."""

_BOOL = "true or false"
_DURATION = "a duration such as 15s, or a number of seconds"


def _codes(text: str) -> tuple[str, ...]:
    codes = _split(text)
    if not codes or not all(_CODE.fullmatch(code) for code in codes):
        raise ValueError(text)
    return codes


NAME = _annotation(
    "name", "text", "Name of the load balancer; a change renames it, unless it was adopted.", str
)
LOCATION = _annotation(
    "location",
    "a location such as fsn1",
    "Location of a new load balancer; empty = use the network zone.",
    str,
)
NETWORK_ZONE = _annotation(
    "network-zone", "a zone such as eu-central", "Network zone of a new load balancer.", str
)
TYPE = _annotation("type", "a type such as lb11", "Type of the load balancer; can be changed.", str)
ALGORITHM = _annotation(
    "algorithm-type",
    "round_robin or least_connections",
    "Algorithm that selects a target.",
    _one_of("round_robin", "least_connections"),
)
DISABLE_PUBLIC_NETWORK = _annotation(
    "disable-public-network", _BOOL, "Disable the public interface.", truth
)
IPV6_DISABLED = _annotation(
    "ipv6-disabled", _BOOL, "Leave IPv6 out of the Service's status.", truth
)
DISABLE_PRIVATE_INGRESS = _annotation(
    "disable-private-ingress", _BOOL, "Leave private addresses out of the Service's status.", truth
)
USE_PRIVATE_IP = _annotation(
    "use-private-ip", _BOOL, "Reach targets by their private addresses; needs a network.", truth
)
PRIVATE_IPV4 = _annotation(
    "private-ipv4",
    "an IPv4 address",
    "Private address; a change detaches the network and attaches it again.",
    _ip,
)
PRIVATE_SUBNET = _annotation(
    "private-subnet-ip-range",
    "a CIDR such as 10.0.0.0/24",
    "Subnet of the private address.",
    config.parse_cidr,
)
HOSTNAME = _annotation(
    "hostname", "a host name", "Host name in the Service's status, instead of addresses.", str
)
IPV4_RDNS = _annotation("ipv4-rdns", "a host name", "Reverse DNS of the IPv4 address.", str)
IPV6_RDNS = _annotation("ipv6-rdns", "a host name", "Reverse DNS of the IPv6 address.", str)
ID = _annotation("id", "text", "No effect; the vendor documents it as an output.", str)
IPV4 = _annotation("ipv4", "text", "No effect; the vendor documents it as an output.", str)
IPV6 = _annotation("ipv6", "text", "No effect; the vendor documents it as an output.", str)
NODE_SELECTOR = _annotation(
    "node-selector", "a label selector", "Only nodes with these labels are targets.", _selector
)
PROTOCOL = _annotation(
    "protocol",
    "tcp, http or https",
    "Protocol of all ports.",
    _one_of("tcp", "http", "https"),
    "tcp",
)
PROXYPROTOCOL = _annotation(
    "uses-proxyprotocol", _BOOL, "Send targets the client's address by the PROXY protocol.", truth
)
COOKIE_NAME = _annotation("http-cookie-name", "text", "Name of the session cookie.", str)
COOKIE_LIFETIME = _annotation("http-cookie-lifetime", _DURATION, "Cookie lifetime.", _seconds)
TIMEOUT_IDLE = _annotation(
    "http-timeout-idle",
    "a duration from 30s to 300s",
    "Idle timeout of connections.",
    _between(timedelta(seconds=30), timedelta(seconds=300)),
)
STICKY = _annotation("http-sticky-sessions", _BOOL, "Session affinity by cookie.", truth)
REDIRECT = _annotation("http-redirect-http", _BOOL, "Redirect HTTP on port 80 to HTTPS.", truth)
CERTIFICATE_TYPE = _annotation(
    "certificate-type",
    "uploaded or managed",
    "Use existing certificates, or create a managed one.",
    _one_of("uploaded", "managed"),
    "uploaded",
)
CERTIFICATES = _annotation(
    "http-certificates", "comma-separated names or IDs", "Existing certificates.", _certificates
)
MANAGED_NAME = _annotation(
    "http-managed-certificate-name",
    "text",
    "Name of the managed certificate; default ccm-managed-certificate-<UID>.",
    str,
)
MANAGED_DOMAINS = _annotation(
    "http-managed-certificate-domains",
    "comma-separated names",
    "Domain names of the managed certificate; at least one is required.",
    _split,
)
MANAGED_STAGING = _annotation(
    "http-managed-certificate-acme-staging",
    _BOOL,
    "Request the managed certificate from the issuer's staging environment.",
    lambda text: bool(cloud.parse_bool(text)),  # any text is valid, as for the vendor's manager
)
CHECK_PROTOCOL = _annotation(
    "health-check-protocol",
    "tcp, http or https",
    "Protocol of the health check; default: the protocol of the ports, or tcp without port, "
    "interval, timeout and retries of the check.",
    _one_of("tcp", "http", "https"),
)
CHECK_PORT = _annotation(
    "health-check-port", "a port", "Port of the health check; default: the node port.", _port
)
CHECK_INTERVAL = _annotation("health-check-interval", _DURATION, "Time between checks.", _seconds)
CHECK_TIMEOUT = _annotation("health-check-timeout", _DURATION, "Timeout of a check.", _seconds)
CHECK_RETRIES = _annotation(
    "health-check-retries", "a number", "Failures until a target is unhealthy.", _count
)
CHECK_DOMAIN = _annotation("health-check-http-domain", "a host name", "Host of HTTP checks.", str)
CHECK_PATH = _annotation("health-check-http-path", "a path", "Path of HTTP checks.", str)
CHECK_TLS = _annotation(
    "health-check-http-validate-certificate",
    _BOOL,
    "Use HTTPS and verify the target's certificate.",
    truth,
)
STATUS_CODES = _annotation(
    "http-status-codes",
    "comma-separated status codes such as 2??,404",
    "HTTP status codes of a healthy target.",
    _codes,
)

HTTP_SETTINGS = (COOKIE_NAME, COOKIE_LIFETIME, TIMEOUT_IDLE, STICKY)
"""Annotations without effect on TCP ports."""

HTTPS_SETTINGS = (
    REDIRECT,
    CERTIFICATE_TYPE,
    CERTIFICATES,
    MANAGED_NAME,
    MANAGED_DOMAINS,
    MANAGED_STAGING,
)
"""Annotations without effect unless the protocol is https."""

HTTP_CHECK_SETTINGS = (CHECK_DOMAIN, CHECK_PATH, CHECK_TLS, STATUS_CODES)
"""Annotations without effect on a TCP health check."""

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, cloud.ServiceAnnotation)
)
"""All annotations, in the order above."""


def read_or_none(service: cloud.Service, annotation: cloud.ServiceAnnotation[T | None]) -> T | None:
    """Return the value of an annotation; None if it is missing or malformed."""
    try:
        return annotation.read(service)
    except cloud.InvalidArgument:
        return None


def table() -> str:
    """Return the annotations as a Markdown table."""
    return markdown(SCHEMA, without="as configured, or the API's")

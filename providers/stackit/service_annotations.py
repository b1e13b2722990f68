"""Service annotations of STACKIT, with the vendor's names.

Names below `yawol.stackit.cloud/` are older; some have a newer equivalent. A Service may have both
if their values agree. Invalid booleans and durations in older annotations are ignored, for
compatibility.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ccm import cloud
from ccm.base import parsing
from ccm.base.parsing import parse_digits
from ccm.cloud.annotations import markdown, truth

from . import config

PLANS = ("p10", "p50", "p250", "p750")
"""Service plans, smallest first."""

FLAVORS: Mapping[str, str] = dict(
    line.split() for line in Path(__file__).with_name("flavors.txt").read_text().splitlines()
)
"""Flavor ID -> service plan."""


T = TypeVar("T")

PREFIX = "lb.stackit.cloud/"
LEGACY = "yawol.stackit.cloud/"
"""Prefixes of the annotation names. Services store them: never change them."""

TCP_IDLE, UDP_IDLE = timedelta(minutes=60), timedelta(minutes=2)
"""Default idle timeouts of the vendor's manager; the defaults of the API differ."""


def _plan(text: str) -> str:
    if text not in PLANS:
        raise ValueError(text)
    return text


def _flavor(text: str) -> str:
    if text not in FLAVORS:
        raise ValueError(text)
    return FLAVORS[text]


def _ipv4(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


def _duration(text: str) -> timedelta:
    duration = parsing.parse_duration(text)
    if duration < timedelta(0):
        raise ValueError(text)
    return duration


def _ports(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    ports = [parse_digits(word, maximum=65535) for word in words]
    if None in ports:
        raise ValueError(text)
    return tuple(word for word in ports if word is not None)


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _or_none(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    def tried(text: str) -> T | None:
        try:
            return parse(text)
        except ValueError:
            return None

    return tried


def _annotation(
    name: str, expects: str, help_: str, parse: Callable[[str], T], shown: str = ""
) -> cloud.ServiceAnnotation[T | None]:
    return cloud.ServiceAnnotation(
        name=name, expects=expects, default=None, shown=shown, help=help_, parse=parse
    )


_BOOL = "true or false"
_TIME = "a duration such as 15m"
_IP = "an IPv4 address"
_PORTS = "comma-separated ports"

INTERNAL = _annotation(
    f"{PREFIX}internal-lb", _BOOL, "No public address; immutable.", truth, "false"
)
EXTERNAL = _annotation(
    f"{PREFIX}external-address", _IP, "Existing public address; never deleted.", _ipv4
)
PROXY = _annotation(
    f"{PREFIX}tcp-proxy-protocol",
    _BOOL,
    "Send targets the client's address by the PROXY protocol, for TCP.",
    truth,
    "false",
)
PROXY_PORTS = _annotation(
    f"{PREFIX}tcp-proxy-protocol-ports-filter",
    _PORTS,
    "Limits the PROXY protocol to these ports; empty = no port.",
    _ports,
)
TCP_TIMEOUT = _annotation(
    f"{PREFIX}tcp-idle-timeout", _TIME, "Idle timeout of connections.", _duration, "60m"
)
UDP_TIMEOUT = _annotation(
    f"{PREFIX}udp-idle-timeout", _TIME, "Idle timeout of clients.", _duration, "2m"
)
PLAN = _annotation(
    f"{PREFIX}service-plan-id", " or ".join(PLANS), "Service plan; can be changed.", _plan, "p10"
)
IP_MODE = _annotation(
    f"{PREFIX}ip-mode-proxy",
    _BOOL,
    "Route traffic from inside the cluster through the load balancer too (ipMode Proxy).",
    truth,
    "false",
)
PERSISTENCE = _annotation(
    f"{PREFIX}session-persistence-with-source-ip",
    _BOOL,
    "Session affinity by source address.",
    truth,
    "false",
)
LISTENER_NETWORK = _annotation(
    f"{PREFIX}listener-network",
    "ID of a network",
    "Network of the listeners, instead of the nodes' network; immutable.",
    lambda text: config.parse_uuid(text) if text else None,
)

OLD_INTERNAL = _annotation(f"{LEGACY}internalLB", _BOOL, f"As `{INTERNAL.name}`.", _or_none(truth))
OLD_EXTERNAL = _annotation(f"{LEGACY}existingFloatingIP", _IP, f"As `{EXTERNAL.name}`.", _ipv4)
OLD_RANGES = _annotation(
    f"{LEGACY}loadBalancerSourceRanges",
    "comma-separated CIDRs",
    "As `spec.loadBalancerSourceRanges`, which takes precedence.",
    _split,
)
OLD_PROXY = _annotation(f"{LEGACY}tcpProxyProtocol", _BOOL, f"As `{PROXY.name}`.", _or_none(truth))
OLD_PROXY_PORTS = _annotation(
    f"{LEGACY}tcpProxyProtocolPortsFilter", _PORTS, f"As `{PROXY_PORTS.name}`.", _ports
)
OLD_TCP_TIMEOUT = _annotation(
    f"{LEGACY}tcpIdleTimeout", _TIME, f"As `{TCP_TIMEOUT.name}`.", _or_none(_duration)
)
OLD_UDP_TIMEOUT = _annotation(
    f"{LEGACY}udpIdleTimeout", _TIME, f"As `{UDP_TIMEOUT.name}`.", _or_none(_duration)
)
FLAVOR = _annotation(
    f"{LEGACY}flavorId",
    "ID of a flavor",
    f"Selects the equivalent plan, unless `{PLAN.name}` is set.",
    _flavor,
)
CLASS_NAME = _annotation(
    f"{LEGACY}className",
    "text",
    "With a value other than `stackit`, a Service that has no load balancer yet is left to other "
    "controllers.",
    str,
)

UNSUPPORTED = tuple(
    _annotation(f"{LEGACY}{name}", "text", "No effect; logged as a warning.", str)
    for name in (
        "imageId",
        "defaultNetworkID",
        "skipCloudControllerDefaultNetworkID",
        "floatingNetworkID",
        "availabilityZone",
        "debug",
        "debugsshkey",
        "replicas",
        "logForward",
        "logForwardLokiURL",
        "serverGroupPolicy",
        "additionalNetworks",
    )
)
"""Annotations of older load balancers, without effect."""

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, cloud.ServiceAnnotation)
)
SCHEMA += UNSUPPORTED
"""All annotations, in the order above."""


def read_either(
    service: cloud.Service,
    new: cloud.ServiceAnnotation[T | None],
    old: cloud.ServiceAnnotation[T | None],
) -> T | None:
    """Return the value of an annotation under its new or its old name; None without either.

    Raises:
        InvalidArgument: a value is malformed, or the two differ.
    """
    value, legacy_value = new.read(service), old.read(service)
    if value is not None and legacy_value is not None and value != legacy_value:
        raise cloud.InvalidArgument(
            f"annotations {new.name} and {old.name} differ; remove the older one"
        )
    return legacy_value if value is None else value


def table() -> str:
    """Return the annotations as a Markdown table."""
    return markdown(SCHEMA)

"""Limits on single values: numbers, lengths, patterns, and what texts must look like.

Every rule tells why a value is not what it should be; nothing if it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[[str], str]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_MADE_OF = "made of letters, digits, '-', '_' and '.', and begins and ends with one of the former"


def _rule(pattern: str, longest: int, text: str) -> Rule:
    def judge(value: str) -> str:
        if len(value) > longest:
            return f"must be no more than {longest} bytes"
        return "" if re.fullmatch(pattern, value) else text

    return judge


_DNS = "must be a lowercase RFC 1123 "
subdomain = _rule(rf"{_LABEL}(\.{_LABEL})*", 253, f"{_DNS}subdomain, such as example.com")
label = _rule(_LABEL, 63, f"{_DNS}label, such as my-name")
label_value = _rule(f"({_KEY})?", 63, f"a valid label is empty or {_MADE_OF}")
_PORT = f"(?!.*--)(?=.*[a-z]){_LABEL}"
port_name = _rule(_PORT, 15, "must be lower case letters, digits and single '-'")
path_segment = _rule(r"(?!\.\.?$)[^/%]+", 253, "must not be '.' or '..', nor contain '/' or '%'")
_key_name = _rule(_KEY, 63, f"name part must be {_MADE_OF}")


def key(value: str) -> str:
    """A label key: a name with an optional DNS prefix."""
    prefix, slash, name = value.rpartition("/")
    fault = subdomain(prefix) if slash else ""
    return f"prefix part: {fault}" if fault else _key_name(name)


def address(value: str) -> str:
    """An IP address."""
    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    mapped = found.version == 6 and found.ipv4_mapped is not None
    return "must not be an IPv4-mapped IPv6 address" if mapped else ""


def outside(value: str) -> str:
    """An IP address that can stand for a machine on a network."""
    if fault := address(value):
        return fault
    found = ipaddress.ip_address(value)
    inside = found.is_unspecified or found.is_loopback or found.is_link_local
    return "may not be unspecified, loopback or link-local" if inside else ""


def cidr(value: str) -> str:
    """An address range; blanks around it do not matter."""
    try:
        ipaddress.ip_network(value.strip())
    except ValueError:
        return "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
    return "" if "/" in value else "must be a valid CIDR value with a prefix length"


def host(value: str) -> str:
    """A DNS name."""
    return subdomain(value) if address(value) else "must be a DNS name, not an IP address"


RULES: Mapping[str, Rule] = {
    "subdomain": subdomain, "label": label, "labelvalue": label_value, "segment": path_segment,
    "portname": port_name, "key": key, "address": address, "outside": outside, "cidr": cidr,
    "host": host,
}  # fmt: skip
"""What a text can be, by the name that shapes use."""

LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: value >= limit, "must be greater than or equal to {}"),
    "maximum": (lambda value, limit: value <= limit, "must be less than or equal to {}"),
    "minLength": (lambda value, limit: len(value) >= limit, "must have at least {} characters"),
    "maxLength": (lambda value, limit: len(value) <= limit, "must have at most {} characters"),
    "minItems": (lambda value, limit: len(value) >= limit, "must have at least {} items"),
    "maxItems": (lambda value, limit: len(value) <= limit, "must have at most {} items"),
    "pattern": (lambda value, limit: re.search(limit, value) is not None, "must match {}"),
}
"""Limits of OpenAPI schemas: whether a value keeps one, and how to say that it does not."""


def fault(name: str, limit: Any, value: Any) -> str:
    """Why a value does not keep a limit, `rule` or one of OpenAPI's."""
    if name == "rule":
        return RULES[limit](value) if isinstance(value, str) and value else ""
    if isinstance(value, str) and name in ("minimum", "maximum"):
        return ""
    holds, text = LIMITS[name]
    return "" if holds(value, limit) else text.format(limit)

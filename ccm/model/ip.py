"""IP text as Kubernetes parses it, which differs from Python's `ipaddress` in three points.

Leading zeros of an IPv4 part are accepted and decimal (`01.2.3.004` is 1.2.3.4), an IPv6 zone
(`fe80::1%eth0`) is refused, and an IPv4-mapped IPv6 address equals the IPv4 address.
"""

from __future__ import annotations

import ipaddress

IP = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_ip(text: str) -> IP | None:
    """Return the address; None for invalid text, such as text with surrounding blanks."""
    if "%" in text or not text.isascii():
        return None
    try:
        parsed = ipaddress.ip_address(_without_leading_zeros(text))
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


def _without_leading_zeros(text: str) -> str:
    head, separator, quad = text.rpartition(":")
    if "." not in quad:
        return text
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in quad.split(".")]
    return head + separator + ".".join(parts)

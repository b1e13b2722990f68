"""CIDR text as Kubernetes parses it, which is more lenient than Python's `ipaddress`.

Leading zeros are accepted and decimal (`010.0.0.0/08` is 10.0.0.0/8), host bits are cleared, and an
IPv4-mapped IPv6 range equals the IPv4 range.
"""

from __future__ import annotations

import ipaddress

from ccm.base.parsing import parse_digits
from ccm.model.ip import parse_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_RANGES = 2
"""Maximum number of Pod ranges of a cluster: one of each IP family."""

_MAPPED_BITS = 96


def parse_cidr(text: str) -> Network | None:
    """Return the network; None for invalid text, such as text with surrounding blanks."""
    address, separator, length = text.partition("/")
    parsed = parse_ip(address)
    bits = parse_digits(length.lstrip("0") or length[:1])
    if parsed is None or not separator or bits is None:
        return None
    if parsed.version == 4 and ":" in address:
        return _mapped(parsed, bits)
    if bits > parsed.max_prefixlen:
        return None
    return ipaddress.ip_network((parsed, bits), strict=False)


def parse_cidrs(text: str) -> list[Network] | None:
    """Return the networks of a comma separated list; None = an item is invalid.

    Blanks around an item are allowed.
    """
    parsed = [parse_cidr(part.strip()) for part in text.split(",")]
    networks = [network for network in parsed if network is not None]
    return networks if len(networks) == len(parsed) else None


def parse_ranges(text: str) -> tuple[Network, ...]:
    """Return the Pod ranges in `--cluster-cidr`: one range, or an IPv4 and an IPv6 range.

    Raises:
        ValueError: the text is invalid; the message has the reason, without the flag.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if entries == [""]:
        raise ValueError(
            "is empty; it must be the range of the cluster's Pods, such as 10.244.0.0/16"
        )
    parsed = [(entry, parse_cidr(entry)) for entry in entries]
    wrong = [repr(entry) for entry, network in parsed if network is None]
    if wrong:
        are = "is not a CIDR; it" if len(wrong) == 1 else "are not CIDRs; each"
        raise ValueError(f"{', '.join(wrong)} {are} must look like 10.244.0.0/16")
    ranges = tuple(network for _, network in parsed if network is not None)
    if len(ranges) > MAX_RANGES:
        raise ValueError(
            f"must be one range or an IPv4 and an IPv6 range, but has {len(ranges)} ranges"
        )
    if len(ranges) == MAX_RANGES and ranges[0].version == ranges[1].version:
        raise ValueError("must be an IPv4 and an IPv6 range, but has two ranges of the same family")
    return ranges


def overlap(first: Network, second: Network) -> bool:
    """Return whether two networks share an address; False for different IP families."""
    if isinstance(first, ipaddress.IPv4Network) and isinstance(second, ipaddress.IPv4Network):
        return first.overlaps(second)
    if isinstance(first, ipaddress.IPv6Network) and isinstance(second, ipaddress.IPv6Network):
        return first.overlaps(second)
    return False


def _mapped(parsed: ipaddress.IPv4Address, bits: int) -> Network | None:
    """Return the range around an IPv4-mapped IPv6 address; None = the prefix is too long.

    The range is an IPv4 range, or an IPv6 range if its prefix is shorter than /96.
    """
    if bits > 128:
        return None
    if bits >= _MAPPED_BITS:
        return ipaddress.IPv4Network((parsed, bits - _MAPPED_BITS), strict=False)
    return ipaddress.IPv6Network((int(parsed) | 0xFFFF << 32, bits), strict=False)

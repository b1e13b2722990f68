"""What texts must look like: names, labels, keys, addresses; the faults in Kubernetes' words."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character"
)
_LINK_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))
_PORT_NAME_LENGTH = 15


def subdomain_faults(value: str) -> Iterator[str]:
    """Why a text is no lower case RFC 1123 subdomain."""
    if len(value) > 253:
        yield "must be no more than 253 bytes"
    if re.fullmatch(_SUBDOMAIN, value) is None:
        yield (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
            "characters, '-' or '.', and must start and end with an alphanumeric character "
            f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
        )


def qualified_name_faults(value: str) -> Iterator[str]:
    """Why a text is no label key (a name with an optional DNS prefix)."""
    examples = (
        f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_KEY}')"
    )
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        yield (
            f"a valid label key {_KEY_RULE} {examples} with an optional DNS subdomain prefix "
            "and '/' (e.g. 'example.com/MyName')"
        )
        return
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash:
        yield from (f"prefix part {fault}" for fault in subdomain_faults(prefix))
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 bytes"
    if re.fullmatch(_KEY, name) is None:
        yield f"name part {_KEY_RULE} {examples}"


def label_value_faults(value: str) -> Iterator[str]:
    """Why a text is no label value."""
    if len(value) > 63:
        yield "must be no more than 63 bytes"
    if re.fullmatch(f"({_KEY})?", value) is None:
        yield (
            "a valid label must be an empty string or consist of alphanumeric characters, "
            "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
            f"'MyValue',  or 'my_value',  or '12345', regex used for validation is '({_KEY})?')"
        )


def label_faults(value: str) -> Iterator[str]:
    """Why a text is no lower case RFC 1123 label."""
    if len(value) > 63:
        yield "must be no more than 63 bytes"
    if re.fullmatch(_LABEL, value) is None:
        yield (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters "
            "or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  "
            f"or '123-abc', regex used for validation is '{_LABEL}')"
        )


def service_name_faults(value: str) -> Iterator[str]:
    """Why a text is no name of a Service."""
    if len(value) > 63:
        yield "must be no more than 63 characters"
    elif "." in value:
        yield "must not contain dots"
    else:
        yield from label_faults(value)


def port_name_faults(value: str) -> Iterator[str]:
    """Why a text is no name of a port that a Service may point to (RFC 6335)."""
    if len(value) > _PORT_NAME_LENGTH:
        yield f"must be no more than {_PORT_NAME_LENGTH} characters"
    if re.fullmatch("[-a-z0-9]+", value) is None:
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if re.search("[a-z]", value) is None:
        yield "must contain at least one letter (a-z)"
    if "--" in value:
        yield "must not contain consecutive hyphens"
    if value.startswith("-") or value.endswith("-"):
        yield "must not begin or end with a hyphen"


def address_faults(value: str) -> Iterator[str]:
    """Why a text is no IP address that new objects may have."""
    address = _address(value)
    if address is None:
        yield "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        return
    if _plain(value) != value:
        yield "must not have leading 0s"
    if address.version == 6 and address.ipv4_mapped is not None:
        yield "must not be an IPv4-mapped IPv6 address"


def special_address_faults(value: str) -> Iterator[str]:
    """Why an IP address cannot stand for a machine on a network."""
    address = ipaddress.ip_address(_plain(value))
    if address.is_unspecified:
        yield f"may not be unspecified ({value})"
    if address.is_loopback:
        yield "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    if address.is_link_local:
        yield "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    if any(address in network for network in _LINK_LOCAL_MULTICAST):
        yield "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"


def cidr_faults(value: str) -> Iterator[str]:
    """Why a text is no address range that new objects may have."""
    head, slash, length = value.partition("/")
    address = _address(head)
    if (
        address is None
        or not slash
        or not length.isascii()
        or not length.isdigit()
        or (int(length) > address.max_prefixlen)
    ):
        yield "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        return
    if _plain(head) != head or length != str(int(length)):
        yield "must not have leading 0s in IP or prefix length"
    if address.version == 6 and address.ipv4_mapped is not None:
        yield "must not have an IPv4-mapped IPv6 address"
    network = ipaddress.ip_network(f"{address}/{int(length)}", strict=False)
    if network.network_address != address:
        yield "must not have bits set beyond the prefix length"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in text:
        return None
    try:
        return ipaddress.ip_address(_plain(text))
    except ValueError:
        return None


def _plain(text: str) -> str:
    """An IPv4 address without leading zeros, which older Kubernetes took as decimal."""
    return text if ":" in text else re.sub(r"(?<!\d)0+(?=\d)", "", text)

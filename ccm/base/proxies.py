"""HTTP proxies that the environment names: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, by Go's rules.

aiohttp's own way, `trust_env`, also sends what `.netrc` holds. Calls to the API server use no
proxy: they do not come here.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ccm.base import redact
from ccm.base.parsing import parse_digits

NEVER = "localhost,127.0.0.0/8,::1,169.254.0.0/16,fe80::/10,fd00:ec2::254"
"""Hosts for which no proxy is used, as NO_PROXY spells them: loopback, link-local, metadata.

A metadata service tells a machine's credentials to whoever asks from that machine's address.
"""

_PORTS = {"http": 80, "https": 443}

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Proxies:
    """The proxies of an environment.

    Attributes:
        http: proxy for URLs with `http`, with its credentials; empty: none.
        https: the same for `https`.
        excluded: hosts that are reached directly, as NO_PROXY lists them.
    """

    http: str
    https: str
    excluded: str

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> Proxies:
        """Read the variables; of two spellings the upper-case one counts."""

        def read(name: str) -> str:
            return (environ.get(name.upper()) or environ.get(name) or "").strip()

        return cls(http=read("http_proxy"), https=read("https_proxy"), excluded=read("no_proxy"))

    def proxy_for(self, url: str) -> str:
        """Return the URL of the proxy for requests to a server; empty: ask it directly.

        Raises:
            ValueError: the variable names no HTTP proxy.
        """
        parts = urlsplit(url)
        given = {"http": self.http, "https": self.https}.get(parts.scheme, "")
        if not given or self._excludes(parts.hostname or "", parts.port or _PORTS[parts.scheme]):
            return ""
        proxy = given if "://" in given else f"http://{given}"
        try:
            found = urlsplit(proxy)
            is_usable = found.scheme in _PORTS and bool(found.hostname) and found.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            name = f"{parts.scheme.upper()}_PROXY"
            raise ValueError(
                f"{name}: {shown(proxy)!r} is no HTTP proxy; give a URL such as "
                "http://proxy.example:3128, or unset it"
            )
        try:
            redact.know(unquote(found.password or ""))
        except ValueError as problem:
            raise ValueError(f"{parts.scheme.upper()}_PROXY: its password {problem}") from None
        return proxy

    def _excludes(self, host: str, port: int) -> bool:
        host = host.rstrip(".").lower()
        address = _address(host)
        entries = re.split(r"[,\s]+", f"{NEVER},{self.excluded.lower()}")
        return any(_matches(entry, host, port, address) for entry in entries if entry)


def shown(proxy: str) -> str:
    """Return a proxy's URL without user and password."""
    scheme, separator, rest = proxy.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _matches(entry: str, host: str, port: int, address: _Address | None) -> bool:
    """Whether an entry of NO_PROXY is about a host: `*`, an address, a range or a domain."""
    if entry == "*":
        return True
    network = _network(entry)
    name, separator, number = entry.rpartition(":")
    entry_port = parse_digits(number) if network is None and separator else None
    if entry_port is not None:
        if entry_port != port:
            return False
        entry, network = name, _network(name)
    if network is not None:
        return address is not None and address in network
    domain = entry.removeprefix("*").rstrip(".")
    if domain.startswith("."):
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


def _address(host: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None

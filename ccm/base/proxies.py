"""HTTP proxies from the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY, by Go's rules.

aiohttp's `trust_env` is not used, because it also sends the credentials in `.netrc`. Calls to the
API server use no proxy and do not pass through this module.
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

NO_PROXY_HOSTS = "localhost,127.0.0.0/8,::1,169.254.0.0/16,fe80::/10,fd00:ec2::254"
"""Hosts without a proxy, in NO_PROXY syntax: loopback, link-local and metadata services.

A metadata service returns the credentials of the machine that sends the request; through a proxy,
that would be the proxy's machine.
"""

_PORTS = {"http": 80, "https": 443}

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProxySettings:
    """Proxy settings of an environment.

    Attributes:
        http: proxy for `http` URLs, with its credentials; empty = none.
        https: proxy for `https` URLs, with its credentials; empty = none.
        no_proxy: hosts without a proxy, in NO_PROXY syntax.
    """

    http: str
    https: str
    no_proxy: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> ProxySettings:
        """Read the environment variables; upper-case names take precedence."""

        def read(name: str) -> str:
            return (environ.get(name.upper()) or environ.get(name) or "").strip()

        return cls(http=read("http_proxy"), https=read("https_proxy"), no_proxy=read("no_proxy"))

    def proxy_for(self, url: str) -> str:
        """Return the URL of the proxy for requests to `url`; empty = no proxy.

        The password of the proxy is masked in all output from then on.

        Raises:
            ValueError: the value of the variable is not the URL of an HTTP proxy, or contains a
                password that is too long.
        """
        parts = urlsplit(url)
        given = {"http": self.http, "https": self.https}.get(parts.scheme, "")
        if not given or self._excludes(parts.hostname or "", parts.port or _PORTS[parts.scheme]):
            return ""
        proxy = given if "://" in given else f"http://{given}"
        try:
            parsed = urlsplit(proxy)
            is_usable = parsed.scheme in _PORTS and bool(parsed.hostname) and parsed.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            name = f"{parts.scheme.upper()}_PROXY"
            raise ValueError(
                f"{name}: {without_credentials(proxy)!r} is not an HTTP proxy; use a URL such as "
                "http://proxy.example:3128, or unset it"
            )
        try:
            redact.register(unquote(parsed.password or ""))
        except ValueError as problem:
            raise ValueError(f"{parts.scheme.upper()}_PROXY: its password {problem}") from None
        return proxy

    def _excludes(self, host: str, port: int) -> bool:
        host = host.rstrip(".").lower()
        address = _address(host)
        entries = re.split(r"[,\s]+", f"{NO_PROXY_HOSTS},{self.no_proxy.lower()}")
        return any(_matches(entry, host, port, address) for entry in entries if entry)


def without_credentials(proxy: str) -> str:
    """Return a proxy's URL without user and password, for messages."""
    scheme, separator, rest = proxy.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _matches(entry: str, host: str, port: int, address: _Address | None) -> bool:
    """Return whether an entry of NO_PROXY (`*`, address, range or domain) matches a host."""
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
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None

"""Opens the port a server listens on, on IPv4 or IPv6."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

BACKLOG = 1024
"""Callers that wait in the kernel; who finds no room there tries again only after a second."""


class ListenError(OSError):
    """The port cannot be opened; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens.

    Attributes:
        address: `::` means every address of both families.
        port: 0: one that is free.
        share_port: let other processes listen on it too (SO_REUSEPORT).
    """

    address: IPv4Address | IPv6Address
    port: int
    share_port: bool = False

    def __str__(self) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


def bind(endpoint: Endpoint) -> socket.socket:
    """Open the port; whoever calls meanwhile waits in the kernel until somebody accepts.

    Raises:
        ListenError: it cannot be opened.
    """
    family = socket.AF_INET6 if endpoint.address.version == 6 else socket.AF_INET
    try:
        opened = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror}") from error
    try:
        # Go always sets it too: without it a restarted process waits for old connections.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if endpoint.share_port:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not endpoint.address.is_unspecified)
            )
        opened.bind((str(endpoint.address), endpoint.port))
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror}") from error
    return opened

"""Which cluster IPs and node ports the stored Services hold, and what is free.

The ledger follows the store: it is told every Service that was written or removed, so
nothing must ever be given back. One request works on a `Draft`, which also keeps apart
what that request takes itself; a draft that comes to nothing leaves no trace.

As in kube-apiserver, numbers are picked at random and from the upper part of a range
first: the lower part is left to those who ask for a number of their own.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccm.sandbox.apiserver import service_rules as rules

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NODE_PORTS = range(30000, 32768)
"""The ports of every node that Services may have (kube-apiserver, --service-node-port-range)."""

CLUSTER_IPS: tuple[Network, ...] = (ipaddress.ip_network("10.96.0.0/16"),)
"""The range of cluster IPs unless told otherwise."""

_NODE_PORT_BAND = 86


class RefusedError(Exception):
    """A number that cannot be had; the text is kube-apiserver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """What one Service holds."""

    addresses: frozenset[str]
    ports: frozenset[int]


class Ledger:
    """Who holds what.

    Args:
        ranges: of cluster IPs, one or two of different families; the first is the default.
        chance: where random numbers come from.
    """

    def __init__(
        self, ranges: Sequence[Network] = CLUSTER_IPS, *, chance: random.Random | None = None
    ) -> None:
        self.ranges = {f"IPv{network.version}": network for network in ranges}
        self.chance = chance or random.Random()
        self._claims: dict[str, _Claim] = {}
        self.addresses: set[str] = set()
        self.ports: set[int] = set()

    @property
    def families(self) -> list[str]:
        """The IP families of the cluster, the default first."""
        return list(self.ranges)

    @property
    def first_address(self) -> str:
        """The first cluster IP; it belongs to the API server."""
        return str(next(iter(self.ranges.values()))[1])

    def hold(self, key: str, body: Mapping[str, Any] | None) -> None:
        """The Service of that key is stored so; None: it is gone."""
        before = self._claims.pop(key, None)
        if before is not None:
            self.addresses -= before.addresses
            self.ports -= before.ports
        if body is not None:
            claim = _claim(body["spec"])
            self._claims[key] = claim
            self.addresses |= claim.addresses
            self.ports |= claim.ports

    def draft(self) -> Draft:
        """The numbers as one request may take them."""
        return Draft(self)


class Draft:
    """What one request takes, beside what is held already."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._addresses: set[str] = set()
        self._ports: set[int] = set()

    @property
    def families(self) -> list[str]:
        """The IP families of the cluster, the default first."""
        return self._ledger.families

    def take_port(self, number: int) -> int:
        """A certain node port.

        Raises:
            RefusedError: it is taken or out of range.
        """
        if number not in NODE_PORTS:
            raise RefusedError(
                "provided port is not in the valid range. The range of valid ports is "
                f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
            )
        if number in self._ports or number in self._ledger.ports:
            raise RefusedError("provided port is already allocated")
        self._ports.add(number)
        return number

    def any_port(self) -> int:
        """A free node port.

        Raises:
            RefusedError: there is none.
        """
        taken = self._ledger.ports | self._ports
        number = _pick(
            len(NODE_PORTS),
            _NODE_PORT_BAND,
            lambda place: NODE_PORTS[place] in taken,
            self._ledger.chance,
        )
        if number is None:
            raise RefusedError("range is full")
        return self.take_port(NODE_PORTS[number])

    def take_address(self, text: str) -> str:
        """A certain cluster IP.

        Raises:
            RefusedError: it is taken or out of range.
        """
        address = ipaddress.ip_address(text)
        network = self._ledger.ranges.get(rules.family_of(text))
        if network is None or not 1 <= int(address) - int(network[0]) <= _size(network):
            raise RefusedError("the provided network does not match the current range")
        if str(address) in self._ledger.addresses or str(address) in self._addresses:
            raise RefusedError("provided IP is already allocated")
        self._addresses.add(str(address))
        return text

    def any_address(self, family: str) -> str:
        """A free cluster IP.

        Raises:
            RefusedError: there is none.
        """
        network = self._ledger.ranges[family]
        size = _size(network)
        band = min(max(16, size // 16), 256) if size > 16 else 0
        taken = self._ledger.addresses | self._addresses
        number = _pick(
            size, band, lambda place: str(network[place + 1]) in taken, self._ledger.chance
        )
        if number is None:
            raise RefusedError("range is full")
        return self.take_address(str(network[number + 1]))


def _pick(
    size: int, band: int, is_taken: Callable[[int], bool], chance: random.Random
) -> int | None:
    """A free number below `size`, of the first `band` only if no other is free."""
    for low, high in ((band, size), (0, band)):
        if low == high:
            continue
        start = chance.randrange(low, high)
        for number in itertools.chain(range(start, high), range(low, start)):
            if not is_taken(number):
                return number
    return None


def _size(network: Network) -> int:
    """How many cluster IPs a range has: all but its first, and for IPv4 its last."""
    return network.num_addresses - (2 if network.version == 4 else 1)


def _claim(spec: Mapping[str, Any]) -> _Claim:
    addresses = spec.get("clusterIPs") or [] if rules.needs_cluster_ip(spec) else []
    ports = set(rules.node_ports(spec)) if rules.needs_node_ports(spec) else set()
    if rules.needs_health_check_port(spec) and spec.get("healthCheckNodePort"):
        ports.add(spec["healthCheckNodePort"])
    return _Claim(
        addresses=frozenset(
            str(ipaddress.ip_address(text)) for text in addresses if text != "None"
        ),
        ports=frozenset(ports),
    )

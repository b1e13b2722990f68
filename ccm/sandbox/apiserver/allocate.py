"""Which cluster IPs and node ports the stored Services hold, and what is free.

The allocator follows the store: it is told every Service that was written or removed, so
nothing must ever be given back. One request works on a `Draft`, which also keeps apart
what that request takes itself; a draft that comes to nothing leaves no trace.

As in kube-apiserver, numbers are picked at random and from the upper part of a range
first: the lower part is left to those who ask for a number of their own.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
from collections.abc import Callable, Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Sequence[Network]
Number = int | str
"""A node port, or a cluster IP as text."""

NODE_PORTS = range(30000, 32768)
"""The ports of every node that Services may have (kube-apiserver, --service-node-port-range)."""

CLUSTER_IPS: tuple[Network, ...] = (ipaddress.ip_network("10.96.0.0/16"),)
"""The range of cluster IPs unless told otherwise."""

_PORT_BAND = 86


class RefusedError(Exception):
    """A number that cannot be had, and why; `wish` is the one that was asked for, if any."""

    def __init__(self, why: str, field: str = "", wish: Number = "") -> None:
        super().__init__(why)
        self.field = field
        self.wish = wish


class Allocator:
    """Who holds what.

    Args:
        ranges: of cluster IPs, one or two of different families; the first is the default.
        chance: where random numbers come from.
    """

    def __init__(
        self, ranges: Networks = CLUSTER_IPS, *, chance: random.Random | None = None
    ) -> None:
        self.ranges = {f"IPv{network.version}": network for network in ranges}
        self.chance = chance or random.Random()
        self._held: dict[str, frozenset[Number]] = {}
        self.taken: set[Number] = set()

    @property
    def first_address(self) -> str:
        """The first cluster IP; it belongs to the API server."""
        return str(next(iter(self.ranges.values()))[1])

    def hold(self, key: str, numbers: Iterable[Number]) -> None:
        """The Service of that key holds these and nothing else."""
        self.taken -= self._held.pop(key, frozenset())
        self._held[key] = frozenset(numbers)
        self.taken |= self._held[key]


class Draft:
    """What one request takes, beside what is held already.

    Every method raises RefusedError: the number is taken or out of range, or none is left.
    `field` is where the wish stands.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._mine: set[Number] = set()
        self.families = list(allocator.ranges)

    def port(self, wish: int = 0, field: str = "") -> int:
        """That node port, or any."""
        if not wish:
            return int(self._pick(len(NODE_PORTS), _PORT_BAND, lambda place: NODE_PORTS[place]))
        known = f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
        self._take(wish, wish, field, "" if wish in NODE_PORTS else known)
        return wish

    def address(self, family: str, wish: str = "", field: str = "") -> str:
        """That cluster IP, or any of the family."""
        network = self._allocator.ranges[family]
        # All but the first, which is the network, and for IPv4 the last, which is broadcast.
        size = network.num_addresses - (2 if network.version == 4 else 1)
        if not wish:
            band = min(max(16, size // 16), 256) if size > 16 else 0
            return str(self._pick(size, band, lambda place: str(network[place + 1])))
        found = ipaddress.ip_address(wish)
        is_inside = 1 <= int(found) - int(network[0]) <= size
        self._take(str(found), wish, field, "" if is_inside else str(network))
        return wish

    def _take(self, number: Number, wish: Number, field: str, missed: str) -> None:
        if missed:
            raise RefusedError(f"it is not in the range {missed}", field, wish)
        if number in self._allocator.taken or number in self._mine:
            raise RefusedError("it is already allocated", field, wish)
        self._mine.add(number)

    def _pick(self, size: int, band: int, number_at: Callable[[int], Number]) -> Number:
        """A free number, of the first `band` only if no other is free."""
        for low, high in ((band, size), (0, band)):
            start = self._allocator.chance.randrange(low, high) if low < high else low
            for place in itertools.chain(range(start, high), range(low, start)):
                number = number_at(place)
                if number not in self._allocator.taken and number not in self._mine:
                    self._mine.add(number)
                    return number
        raise RefusedError("range is full")

"""Which of thousands of networks overlap another. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from ccm.model.cidr import Network, overlap


class Overlaps:
    """Networks by position, asked which of them overlap another; cheap for thousands.

    Two CIDRs overlap only if one contains the other.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._at: dict[Network, list[int]] = {}
        for position, network in enumerate(networks):
            self._at.setdefault(network, []).append(position)
        self._lengths = {(one.version, one.prefixlen) for one in self._at}
        self._ordered = sorted(self._at, key=place)
        self._places = [place(one) for one in self._ordered]

    def with_(self, network: Network) -> Sequence[int]:
        """The positions of the networks that overlap this one, in order."""
        found: list[int] = []
        for version, length in self._lengths:
            if version == network.version and length < network.prefixlen:
                found += self._at.get(network.supernet(new_prefix=length), ())
        position = bisect.bisect_left(self._places, (*place(network)[:2], 0))
        while position < len(self._ordered) and overlap(self._ordered[position], network):
            one = self._ordered[position]
            if one.prefixlen >= network.prefixlen:
                found += self._at[one]
            position += 1
        return sorted(found)


def place(network: Network) -> tuple[int, int, int]:
    """Where it stands in the order of all networks: by family, address and length."""
    return (network.version, int(network.network_address), network.prefixlen)

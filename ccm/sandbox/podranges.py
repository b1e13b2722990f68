"""Ranges of pod addresses, one for each node, as kube-controller-manager gives them out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

WHOLE = "100.64.0.0/10"
"""All of them: room for more nodes than a sandbox can have, and none of the simulated
cloud's own addresses."""

LENGTH = 24
"""Bits of the prefix of a node's range (kube-controller-manager, --node-cidr-mask-size)."""


class PodRanges:
    """Who has which range; the lowest free one is given out first.

    Args:
        whole: the range that all are part of.
    """

    def __init__(self, whole: str = WHOLE) -> None:
        self._free = ipaddress.ip_network(whole).subnets(new_prefix=LENGTH)
        self._returned: list[str] = []
        self._held: dict[str, str] = {}
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The range of a node; a new one if it has none.

        Raises:
            ValueError: there is none left.
        """
        if name not in self._held:
            self.hold(name, [self._next()])
        return self._held[name]

    def hold(self, name: str, ranges: Iterable[str]) -> None:
        """A node came with ranges of its own, or with those it was given."""
        for one in ranges:
            if self._held.setdefault(name, one) == one:
                self._taken.add(one)

    def release(self, name: str) -> None:
        """A node is gone."""
        returned = self._held.pop(name, None)
        if returned is not None:
            self._taken.discard(returned)
            self._returned.append(returned)

    def _next(self) -> str:
        while self._returned:
            returned = self._returned.pop()
            if returned not in self._taken:
                return returned
        for network in self._free:
            if str(network) not in self._taken:
                return str(network)
        raise ValueError("no range of pod addresses is left")

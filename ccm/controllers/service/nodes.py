"""Which nodes are members of load balancers, and whether that changed. Pure.

All Services have the same members. The set is kept up to date node by node, so that a
change costs one look at the changed node, however many nodes and Services there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ccm.base.booleans import parse_bool
from ccm.model import Node, names
from ccm.model.node import is_uninitialized

NAMES_SHOWN = 20
"""Most node names in a message (Go cloud-provider, service controller)."""


def is_member(node: Node) -> bool:
    """Whether load balancers may send traffic to the node.

    Readiness, cordoning and the provider ID do not count: the health checks of the load
    balancer decide who gets traffic (KEP-3458).
    """
    return (
        node.metadata.deletion_timestamp is None
        and not is_excluded(node)
        and not any(taint.key == names.TAINT_AUTOSCALER_DELETION for taint in node.taints)
    )


def is_excluded(node: Node) -> bool:
    """Whether the exclusion label is there, with any value but one that Go reads as false."""
    value = node.labels.get(names.LABEL_EXCLUDE_BALANCERS)
    return value is not None and parse_bool(value) is not False


def matters(old: Node, new: Node) -> bool:
    """Whether an update of a node is a reason to look at the members of all load balancers.

    Taints and a deletion that has begun are none: they count as soon as there is another.
    """
    return is_excluded(old) != is_excluded(new) or old.provider_id != new.provider_id


def shown(members: Sequence[Node]) -> str:
    """The names for a message; after `NAMES_SHOWN` only how many more there are."""
    some = [node.name for node in members[:NAMES_SHOWN]]
    if len(members) > NAMES_SHOWN:
        some.append(f"<{len(members) - NAMES_SHOWN} more>")
    return f"[{' '.join(some)}]"


def are_known(missing: int, nodes: int) -> bool:
    """Whether members may be given although some nodes are missing, as they cannot be decoded.

    One of many is no reason to give the others none; without a third of them a load balancer
    would lose more than it may.
    """
    return missing * 3 <= missing + nodes


class Members:
    """The members, told of every change of a node."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._sorted: tuple[Node, ...] | None = ()
        self._fingerprint: str | None = None
        self._at_burst = ""
        self.bursts = 0
        """How many bursts of changes are over."""
        self.unsettled: set[str] = set()
        """Names of those whose initialisation will change them: they have no provider ID yet."""
        self.missing: set[str] = set()
        """Names of those that are merely not there any more: nobody saw them deleted."""

    def put(self, node: Node) -> None:
        """A node appeared or changed."""
        if not is_member(node):
            self.remove(node.name)
            return
        self.missing.discard(node.name)
        old = self._nodes.get(node.name)
        self._nodes[node.name] = node
        waits = is_uninitialized(node) and not node.provider_id
        (self.unsettled.add if waits else self.unsettled.discard)(node.name)
        self._sorted = None
        if old is None or old.provider_id != node.provider_id:
            self._fingerprint = None

    def remove(self, name: str) -> None:
        """A node is gone, or no member any more."""
        self.unsettled.discard(name)
        self.missing.discard(name)
        if self._nodes.pop(name, None) is not None:
            self._sorted = None
            self._fingerprint = None

    def miss(self, name: str) -> None:
        """A node is not there any more, which may be wrong: it stays a member until `believe`."""
        self.unsettled.discard(name)
        if name in self._nodes:
            self.missing.add(name)

    def believe(self) -> None:
        """Those that are missing are gone."""
        for name in tuple(self.missing):
            self.remove(name)

    @property
    def all(self) -> Sequence[Node]:
        """The members as they are now, by name; the same object until a node changes."""
        if self._sorted is None:
            self._sorted = tuple(self._nodes[name] for name in sorted(self._nodes))
        return self._sorted

    @property
    def fingerprint(self) -> str:
        """Equal for equal sets: the same names with the same provider IDs."""
        if self._fingerprint is None:
            content = hashlib.sha256()
            for name in sorted(self._nodes):
                # Neither part can contain a blank or a line break.
                content.update(f"{name} {self._nodes[name].provider_id}\n".encode())
            self._fingerprint = content.hexdigest()
        return self._fingerprint

    def end_burst(self) -> bool:
        """A burst of changes is over; whether it left other members than the one before.

        Those are what load balancers get.
        """
        before, self._at_burst = self._at_burst, self.fingerprint
        self.bursts += 1
        return before != self._at_burst

    def are_due(self, known: str, burst: int) -> bool:
        """Whether a load balancer has to be given the members now.

        While a burst lasts, members change every moment; whatever calls for a look at the
        Service meanwhile is no reason to give it some of them.

        Args:
            known: fingerprint of the members it has; empty = nobody knows.
            burst: how many bursts were over when it got them.
        """
        if known in ("", self.fingerprint):
            return not known
        return burst != self.bursts and known != self._at_burst

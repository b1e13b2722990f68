"""Which nodes are members of load balancers, and whether that changed. Pure.

All Services have the same members; where load balancers do not check health, all of one
externalTrafficPolicy. A pool is kept up to date node by node, so that a change costs one look at
the changed node, however many nodes and Services there are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

from ccm.base.parsing import parse_bool
from ccm.model import Node, Service, names
from ccm.model.node import is_uninitialized
from ccm.model.service import POLICY_LOCAL

NAMES_SHOWN = 20
"""Most node names in a message (Go cloud-provider, service controller)."""


def is_member(node: Node) -> bool:
    """Whether load balancers may send traffic to the node.

    Cordoning and the provider ID do not count, nor does readiness: the health checks of the load
    balancer decide which members get traffic (KEP-3458). For one without, see `is_fit`.
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


def is_fit(node: Node, *, local: bool) -> bool:
    """Whether a member may get traffic where the load balancer does not check its health.

    Args:
        node: the member.
        local: for policy Local. A node that is being drained goes on serving its own Pods then;
            for policy Cluster the others serve them.
    """
    if node.ready != names.STATUS_TRUE:
        return False
    return local or node.condition_status(names.CONDITION_TERMINATING) != names.STATUS_TRUE


def matters(old: Node, new: Node, *, by_health: bool = False) -> bool:
    """Whether an update of a node is a reason to look at the members of all load balancers.

    Taints and a deletion that has begun are none: they count as soon as there is another.

    Args:
        old: the node before.
        new: the node now.
        by_health: whether unfit nodes are no members.
    """
    if is_excluded(old) != is_excluded(new) or old.provider_id != new.provider_id:
        return True
    return by_health and any(
        is_fit(old, local=local) != is_fit(new, local=local) for local in (False, True)
    )


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


class Pool:
    """The members of load balancers of one kind."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._sorted: tuple[Node, ...] | None = ()
        self._fingerprint: str | None = None
        self._at_burst = ""
        self.unfit_since = math.inf
        """Monotonic time since which there are unfit members."""
        self.left_at: list[float] = []
        """Monotonic times at which unfit members were removed lately."""
        self.bursts = 0
        """How many bursts of changes are over."""
        self.unfit: set[str] = set()
        """Names of members that should get no traffic any more; they stay until `drop_unfit`."""

    def __len__(self) -> int:
        """Members."""
        return len(self._nodes)

    def __contains__(self, name: str) -> bool:
        """Whether the node of that name is a member."""
        return name in self._nodes

    def put(self, node: Node, *, fit: bool = True) -> None:
        """Add or replace a member; an unfit node that is none is not added."""
        old = self._nodes.get(node.name)
        if fit:
            self.unfit.discard(node.name)
        elif old is None:
            return
        else:
            self.unfit.add(node.name)
        self._nodes[node.name] = node
        self._sorted = None
        if old is None or old.provider_id != node.provider_id:
            self._fingerprint = None

    def remove(self, name: str) -> None:
        """Remove a member."""
        self.unfit.discard(name)
        if self._nodes.pop(name, None) is not None:
            self._sorted = None
            self._fingerprint = None

    def drop_unfit(self, now: float) -> None:
        """Remove unfit members at this monotonic time."""
        for name in tuple(self.unfit):
            self.remove(name)
            self.left_at.append(now)
        self.unfit_since = math.inf

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


class Members:
    """The members of all load balancers, told of every change of a node.

    Args:
        by_health: whether unfit nodes are no members: load balancers do not check their health.
    """

    def __init__(self, *, by_health: bool = False) -> None:
        self.unsettled: set[str] = set()
        """Names of those whose initialisation will change them: they have no provider ID yet."""
        self.missing: set[str] = set()
        """Names of those that are merely not there any more: nobody saw them deleted."""
        self._use(by_health=by_health)

    def _use(self, *, by_health: bool) -> None:
        self.by_health = by_health
        self._cluster = Pool()
        self._local = Pool() if by_health else self._cluster

    def rebuild(self, nodes: Collection[Node], *, by_health: bool) -> None:
        """Begin anew with these nodes: the load balancers are of another kind."""
        self._use(by_health=by_health)
        self.missing.clear()
        for node in nodes:
            self.put(node)
        self.adopt_unknown(nodes)

    def adopt_unknown(self, nodes: Collection[Node]) -> None:
        """At a start without a fit node, make nodes of unknown health members until one is fit.

        An API server that lost its nodes must not empty the load balancers of a new leader.
        """
        for pool in self.pools:
            if self.by_health and not pool:
                for node in nodes:
                    if is_member(node) and node.ready == names.STATUS_UNKNOWN:
                        pool.put(node)
                        pool.put(node, fit=False)

    def __len__(self) -> int:
        """Nodes that are members of some load balancer."""
        # Each member for policy Cluster is one for policy Local, unless it stays though unfit.
        return max(len(pool) for pool in self.pools)

    @property
    def pools(self) -> Sequence[Pool]:
        """Each pool once."""
        return (self._cluster, self._local) if self.by_health else (self._cluster,)

    def of(self, service: Service) -> Pool:
        """The members of a Service's load balancer."""
        is_local = service.spec.external_traffic_policy == POLICY_LOCAL
        return self._local if is_local else self._cluster

    def put(self, node: Node) -> None:
        """A node appeared or changed."""
        if not is_member(node):
            self.remove(node.name)
            return
        self.missing.discard(node.name)
        waits = is_uninitialized(node) and not node.provider_id
        (self.unsettled.add if waits else self.unsettled.discard)(node.name)
        if self.by_health:
            self._cluster.put(node, fit=is_fit(node, local=False))
            self._local.put(node, fit=is_fit(node, local=True))
        else:
            self._cluster.put(node)

    def remove(self, name: str) -> None:
        """A node is gone, or no member any more."""
        self.unsettled.discard(name)
        self.missing.discard(name)
        for pool in self.pools:
            pool.remove(name)

    def miss(self, name: str) -> None:
        """A node is not there any more, which may be wrong: it stays a member until `believe`."""
        self.unsettled.discard(name)
        if any(name in pool for pool in self.pools):
            self.missing.add(name)

    def believe(self) -> None:
        """Those that are missing are gone."""
        for name in tuple(self.missing):
            self.remove(name)

    def end_burst(self) -> bool:
        """A burst of changes is over; whether it left other members than the one before."""
        changed = [pool for pool in self.pools if pool.end_burst()]
        return bool(changed)

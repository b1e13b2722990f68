"""The members of load balancers: which nodes, what makes that doubtful, and when they change.

All Services have the same members; where load balancers do not check health, all of one
externalTrafficPolicy. A pool is kept up to date node by node, so that a change costs one look at
the changed node, however many nodes and Services there are.

A load balancer without members serves no client. So nodes that a new list merely lacks stay members
while they are many: an API server restored from a backup, or one that lists nothing, has deleted
no node. Nodes that are not Ready, where that counts, stay for a while likewise.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence

from ccm.base import clock, log
from ccm.base.log import Outage
from ccm.base.parsing import parse_bool
from ccm.controllers.service.plan import Given
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.node import is_uninitialized
from ccm.model.service import POLICY_LOCAL
from ccm.runtime.deletions import ALLOW, DOUBT_S, Holds, MassDeletionGuard, is_mass

NAMES_SHOWN = 20
"""Most node names in a message (Go cloud-provider, service controller)."""

MISSING_LONGEST_S = 1800.0
"""How long nodes that are missing stay members while other nodes are there."""

PACE = 10.0
"""A pass rests so many times as long as the last one took."""

LONGEST_REST_S = 60.0
"""But not longer."""

LONGEST_WAVE_S = 600.0
"""Longest time that a wave of initialisation counts as one burst: 5,000 nodes at the default rate
of writes."""


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


class Pool:
    """The members of load balancers of one kind."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._sorted: tuple[Node, ...] | None = ()
        self._fingerprint: str | None = None
        self._at_burst = ""
        self._unfit_since = math.inf
        self._left_at: list[float] = []
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
            self._sorted = self._fingerprint = None

    def drop_unfit(self, now: float) -> bool:
        """Remove unfit members; return True where they stay.

        An API server that loses its nodes makes all of them unfit, one after the other. So many
        within `DOUBT_S` stay as long, and the last ones until another node is fit.
        """
        if not self.unfit:
            self._unfit_since = math.inf
            return False
        self._unfit_since = min(self._unfit_since, now)
        self._left_at = [left_at for left_at in self._left_at if now < left_at + DOUBT_S]
        left = len(self._left_at)
        is_doubtful = is_mass(len(self.unfit) + left, len(self) + left)
        is_doubtful = is_doubtful and now < self._unfit_since + DOUBT_S
        if is_doubtful or len(self.unfit) == len(self):
            return True
        for name in tuple(self.unfit):
            self.remove(name)
            self._left_at.append(now)
        self._unfit_since = math.inf
        return False

    @property
    def now(self) -> Given:
        """The members as they are now."""
        if self._sorted is None:
            self._sorted = tuple(self._nodes[name] for name in sorted(self._nodes))
        return Given(self._sorted, self.fingerprint, self.bursts)

    @property
    def fingerprint(self) -> str:
        """See `Given`."""
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
            known: fingerprint of the members it has; empty = they are not known.
            burst: how many bursts were over when it got them.
        """
        if known in ("", self.fingerprint):
            return not known
        return burst != self.bursts and known != self._at_burst


class Members:
    """The members of all load balancers, told of every change of a node.

    Args:
        cache: the shared cache of nodes.
        by_health: whether unfit nodes are no members: load balancers do not check their health.
        holds: where it is shown that members stay.
        guard: says whether those do that are missing.
        about: the object of events about members that stay.
    """

    def __init__(
        self,
        cache: Informer[Node],
        *,
        by_health: bool,
        holds: Holds,
        guard: MassDeletionGuard,
        about: ObjectReference,
    ) -> None:
        self._cache = cache
        self._holds = holds
        self._guard = guard
        self._about = about
        self._missing: set[str] = set()
        self._missing_since = math.inf
        self._deleted: set[str] = set()
        self.unsettled: set[str] = set()
        """Names of those whose initialisation will change them: they have no provider ID yet."""
        logger = log.logger(names.COMPONENT_SERVICE)
        self._unfit = Outage(
            logger,
            begins="nodes that are not ready stay members of load balancers, too many are at once",
            ends="members of load balancers are ready again",
        )
        self._undecodable = Outage(
            logger,
            begins="members of load balancers stay as they are, too many nodes cannot be decoded",
            ends="enough nodes can be decoded again to change members",
        )
        self._use(by_health=by_health)

    def _use(self, *, by_health: bool) -> None:
        self.by_health = by_health
        self._cluster = Pool()
        self._local = Pool() if by_health else self._cluster

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

    def rebuild(self, *, by_health: bool) -> None:
        """Begin anew with all nodes: the load balancers are of another kind."""
        self._use(by_health=by_health)
        self._missing.clear()
        for node in self._cache.store.list():
            self._put(node)
        self.adopt_unknown()

    def adopt_unknown(self) -> None:
        """At a start without a fit node, make nodes of unknown health members until one is fit.

        An API server that lost its nodes must not empty the load balancers of a new leader.
        """
        for pool in self.pools:
            if self.by_health and not pool:
                for node in self._cache.store.list():
                    if is_member(node) and node.ready == names.STATUS_UNKNOWN:
                        pool.put(node)
                        pool.put(node, fit=False)

    def seen_deleted(self, node: Node) -> None:
        """The node that is gone next was deleted."""
        self._deleted.add(node.name)

    def gone(self, name: str) -> None:
        """A node is not there any more; unless it was deleted, it stays a member until `settle`."""
        if name in self._deleted:
            self._deleted.discard(name)
            self._remove(name)
            return
        now = clock.monotonic()
        self.unsettled.discard(name)
        if any(name in pool for pool in self.pools):
            self._missing.add(name)
        self._missing_since = min(self._missing_since, now)
        self._guard.missing(now)

    def came(self, node: Node) -> None:
        """A node is there, as it was or another."""
        if node.name in self._missing:
            self._guard.back(clock.monotonic())
        self._put(node)

    def _put(self, node: Node) -> None:
        if not is_member(node):
            self._remove(node.name)
            return
        self._missing.discard(node.name)
        waits = is_uninitialized(node) and not node.provider_id
        (self.unsettled.add if waits else self.unsettled.discard)(node.name)
        if self.by_health:
            self._cluster.put(node, fit=is_fit(node, local=False))
            self._local.put(node, fit=is_fit(node, local=True))
        else:
            self._cluster.put(node)

    def _remove(self, name: str) -> None:
        self.unsettled.discard(name)
        self._missing.discard(name)
        for pool in self.pools:
            pool.remove(name)

    def are_doubtful(self) -> bool:
        """Whether some nodes are members although they are missing or unfit."""
        return bool(self._missing) or any(pool.unfit for pool in self.pools)

    def settle(self) -> None:
        """Let those that are missing or unfit be members no more, unless they are too many."""
        now = clock.monotonic()
        stay = [pool for pool in self.pools if pool.drop_unfit(now)]
        if not stay:
            self._unfit.is_over()
        else:
            self._unfit.goes_on(nodes=max(len(pool.unfit) for pool in stay))
        if self._missing and self._missing_stay(now):
            return
        for name in tuple(self._missing):
            self._remove(name)
        self._missing_since = math.inf
        self._holds.only(())

    def _missing_stay(self, now: float) -> bool:
        missing, among = len(self._missing), len(self)
        many = missing == among or is_mass(missing, among)
        # A cluster without any node needs no other members.
        lasts = not len(self._cache.store) or now < self._missing_since + MISSING_LONGEST_S
        wait_s = self._guard.wait_s(missing, among, now, is_many=many and lasts)
        if wait_s and self._guard.in_doubt:
            self._holds.hold(
                self._about,
                "nodes_missing",
                f"{missing} of {among} nodes are missing, though nobody saw them deleted. They "
                "stay members of load balancers until they are back, or half an hour while others "
                f"are there; to let them go, {ALLOW}",
            )
        return wait_s > 0

    def are_known(self) -> bool:
        """Whether members may be given to a load balancer of which nobody asked for anything.

        One node of many that cannot be decoded is no reason to give the others none; without a
        third of them a load balancer would lose more than it may.
        """
        store = self._cache.store
        missing = sum(key not in store for key in self._cache.undecodable)
        known = missing * 3 <= missing + len(store)
        if known:
            self._undecodable.is_over()
        else:
            self._undecodable.goes_on(missing=missing)
        return known

    def end_burst(self) -> bool:
        """A burst of changes is over; whether it left other members than the one before."""
        changed = [pool for pool in self.pools if pool.end_burst()]
        return bool(changed)


class Bursts:
    """Collects changes of nodes and acts once for all of them, at a pace.

    A burst of changes ends when they pause, but not for ever later. While new nodes are
    initialised, each of which changes the members twice, it lasts until all are or none has been
    for a while. And since one pass over all Services may be dear, the next one rests first, in
    proportion. A node that goes away waits for none of this longer than `longest_s`.

    Args:
        act: called once per burst of changes; returns at once.
        quiet_s: seconds without a change that end a burst.
        longest_s: seconds after its first change at which a burst ends, and after which a wave
            of initialisation that gets nowhere is none any more.
    """

    def __init__(self, act: Callable[[], None], *, quiet_s: float, longest_s: float) -> None:
        self._act = act
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._first = self._last = self._left = math.inf
        self._wave = self._rests_until = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def note(self, *, leaves: bool = False) -> None:
        """Something changed; `leaves`: a node went away."""
        self._last = asyncio.get_running_loop().time()
        self._first = min(self._first, self._last)
        if leaves:
            self._left = min(self._left, self._last)
        self._arm()

    def wave(self, *, goes_on: bool) -> None:
        """A new node waits for its initialisation or has it; `goes_on`: others still wait."""
        self._wave = asyncio.get_running_loop().time() if goes_on else -math.inf

    def rest(self, took_s: float = LONGEST_REST_S) -> None:
        """A pass over all Services begins, or is over after so many seconds."""
        rest_s = min(LONGEST_REST_S, PACE * took_s)
        self._rests_until = asyncio.get_running_loop().time() + rest_s
        self._arm()

    @property
    def _due(self) -> float:
        """When the burst is over; infinity while there is none."""
        burst = min(self._last + self._quiet_s, self._first + self._longest_s)
        wave = min(self._wave + self._longest_s, self._first + LONGEST_WAVE_S)
        return min(max(burst, wave, self._rests_until), self._left + self._longest_s)

    def _arm(self) -> None:
        """Look when the burst is over; one that ends later than thought is looked at twice."""
        due = self._due
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() < self._due:
            self._arm()
            return
        self._first = self._last = self._left = math.inf
        self._act()

"""Members of load balancers: selection of nodes, protection of members, time of updates.

All Services have the same members, unless the provider's load balancers do not check health. In
that case readiness counts, and there is one pool of members per externalTrafficPolicy. A change of
a node updates only this node in the pools, so each change costs the same for any number of nodes
and Services.

A load balancer without members serves no client. So when many nodes vanish without deletion events,
they stay members: the API server may have been restored from a backup or return an empty list.
Where readiness counts, many nodes that cease to be Ready together stay members for a while too.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence

from ccm.base import clock, log
from ccm.base.log import Outage
from ccm.base.parsing import parse_bool
from ccm.controllers.service.plan import MemberSnapshot
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, Service, names
from ccm.model.node import is_uninitialized
from ccm.model.service import POLICY_LOCAL
from ccm.runtime.deletions import (
    ALLOW_HINT,
    MASS_HOLD_S,
    DeletionBlocks,
    MassDeletionGuard,
    is_mass,
)

MAX_NAMES_SHOWN = 20
"""Limit of node names in a message (Go cloud-provider, service controller)."""

SNAPSHOT_S = 1.0
"""Minimum seconds for which a copy of the members serves during a burst of node changes."""

SNAPSHOT_S_PER_MEMBER = 0.001
MAX_SNAPSHOT_S = 10.0
"""The same time for each member, and at most: copies of many members are expensive, for the
provider too, so that their cost must not grow with the square of the number of new nodes."""

MAX_MISSING_S = 1800.0
"""Maximum seconds for which nodes that left the cache without a deletion event stay members, while
the cluster has other nodes.

After that time even the loss of many nodes counts as real."""

DELAY_FACTOR = 10.0
"""Time after an update of all load balancers during which no burst of node changes ends, as a
multiple of the update's duration.

Such updates are expensive; with this factor they take about a tenth of the time."""

MAX_DELAY_S = 60.0
"""Maximum seconds after an update of all load balancers during which no burst of node changes ends.

New nodes must not wait long for traffic after a slow update."""

MAX_INITIALISATION_S = 600.0
"""Maximum seconds that the initialisation of new nodes delays the end of a burst.

Enough for 5,000 nodes at the default rate of writes."""


def is_member(node: Node) -> bool:
    """Return whether the node may be a member of load balancers.

    Cordoning, the provider ID and readiness do not count: the health checks of the load balancer
    decide which members get traffic (KEP-3458). For a load balancer without health checks, see
    `is_fit`.
    """
    return (
        node.metadata.deletion_timestamp is None
        and not has_exclusion_label(node)
        and not any(taint.key == names.TAINT_AUTOSCALER_DELETION for taint in node.taints)
    )


def has_exclusion_label(node: Node) -> bool:
    """Return whether the node has the exclusion label with a value that Go does not parse as false.

    An empty value excludes the node.
    """
    value = node.labels.get(names.LABEL_EXCLUDE_BALANCERS)
    return value is not None and parse_bool(value) is not False


def is_fit(node: Node, *, local: bool) -> bool:
    """Return whether a member may get traffic from a load balancer without health checks.

    Args:
        node: the member.
        local: whether externalTrafficPolicy is Local. If so, a node that is being drained stays
            fit, because only the node itself can serve its Pods.
    """
    if node.ready != names.STATUS_TRUE:
        return False
    return local or node.condition_status(names.CONDITION_TERMINATING) != names.STATUS_TRUE


def affects_members(old: Node, new: Node, *, by_health: bool = False) -> bool:
    """Return whether an update of a node requires an update of the members.

    New taints and a deletion timestamp do not: they take effect with the next relevant change.

    Args:
        old: the node before.
        new: the node now.
        by_health: whether unfit nodes lose their membership.
    """
    if has_exclusion_label(old) != has_exclusion_label(new) or old.provider_id != new.provider_id:
        return True
    return by_health and any(
        is_fit(old, local=local) != is_fit(new, local=local) for local in (False, True)
    )


def format_names(members: Sequence[Node]) -> str:
    """Return at most `MAX_NAMES_SHOWN` node names, and the number of further nodes, as text."""
    some = [node.name for node in members[:MAX_NAMES_SHOWN]]
    if len(members) > MAX_NAMES_SHOWN:
        some.append(f"<{len(members) - MAX_NAMES_SHOWN} more>")
    return f"[{' '.join(some)}]"


class MemberPool:
    """Members shared by all load balancers, or by all with the same externalTrafficPolicy."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._snapshot = MemberSnapshot((), f"{0:064x}", 0)
        self._snapshot_at = -math.inf
        self._is_outdated = False
        self._digest = 0
        self._at_burst = ""
        self._unfit_since = math.inf
        self._left_at: list[float] = []
        self.bursts = 0
        """Number of ended bursts of node changes."""
        self.unfit: set[str] = set()
        """Names of unfit members (see `is_fit`); they stay members until `drop_unfit`."""

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._nodes)

    def __contains__(self, name: str) -> bool:
        """Return whether the named node is a member."""
        return name in self._nodes

    def put(self, node: Node, *, fit: bool = True) -> None:
        """Add or replace a member; an unfit node is only replaced, never added."""
        old = self._nodes.get(node.name)
        if fit:
            self.unfit.discard(node.name)
        elif old is None:
            return
        else:
            self.unfit.add(node.name)
        self._nodes[node.name] = node
        if old is None or old.provider_id != node.provider_id:
            self._digest ^= _digest(node) ^ (_digest(old) if old is not None else 0)
        elif not is_uninitialized(node) and (
            is_uninitialized(old) or _selectable(old) != _selectable(node)
        ):
            # No end of a burst causes an update. A node that is being initialised changes several
            # times, so it counts only when it is initialised.
            self._snapshot_at = -math.inf
        elif (_selectable(old), _state(old)) == (_selectable(node), _state(node)):
            # A heartbeat: the provider may continue to use its results for the copy.
            return
        self._is_outdated = True

    def remove(self, name: str) -> None:
        """Remove a member."""
        self.unfit.discard(name)
        if (old := self._nodes.pop(name, None)) is not None:
            self._is_outdated = True
            self._digest ^= _digest(old)

    def drop_unfit(self, now: float) -> bool:
        """Remove the unfit members; return True if one of the two rules below keeps all of them.

        When the API server loses contact with the nodes, they become unfit one after the other. So
        a mass (see `is_mass`) of members that became unfit within `MASS_HOLD_S` stays that long.
        If all members are unfit, they stay until a node is fit.
        """
        if not self.unfit:
            self._unfit_since = math.inf
            return False
        self._unfit_since = min(self._unfit_since, now)
        self._left_at = [left_at for left_at in self._left_at if now < left_at + MASS_HOLD_S]
        left = len(self._left_at)
        is_doubtful = is_mass(len(self.unfit) + left, len(self) + left)
        is_doubtful = is_doubtful and now < self._unfit_since + MASS_HOLD_S
        if is_doubtful or len(self.unfit) == len(self):
            return True
        for name in tuple(self.unfit):
            self.remove(name)
            self._left_at.append(now)
        self._unfit_since = math.inf
        return False

    @property
    def snapshot(self) -> MemberSnapshot:
        """The members, with their fingerprint and the number of ended bursts.

        During a burst, the members may be up to `MAX_SNAPSHOT_S` old: the end of the burst causes
        an update. Otherwise each of many Services would copy the members, as a node joins between
        two of them.
        """
        now = clock.monotonic()
        serves_s = max(SNAPSHOT_S, min(MAX_SNAPSHOT_S, SNAPSHOT_S_PER_MEMBER * len(self)))
        if self._is_outdated and now >= self._snapshot_at + serves_s:
            nodes = tuple(self._nodes[name] for name in sorted(self._nodes))
            self._snapshot = MemberSnapshot(nodes, self.fingerprint, self.bursts)
            self._snapshot_at, self._is_outdated = now, False
        return self._snapshot

    @property
    def fingerprint(self) -> str:
        """See `MemberSnapshot.fingerprint`."""
        # Combined from the members' digests, because each of many Services may ask for it between
        # two changes of many nodes.
        return f"{self._digest:064x}"

    def end_burst(self) -> bool:
        """End a burst of node changes; return whether the members changed since the last burst."""
        before, self._at_burst = self._at_burst, self.fingerprint
        self.bursts += 1
        self._snapshot_at, self._is_outdated = -math.inf, True
        return before != self._at_burst

    def needs_update(self, known: str, burst: int) -> bool:
        """Return whether a load balancer needs an update of its members now.

        The members change continuously during a burst of node changes. A reconcile for another
        reason must not set an intermediate state.

        Args:
            known: fingerprint of the load balancer's members; empty = unknown, so an update is
                needed.
            burst: number of bursts that had ended when the load balancer got these members.
        """
        if known in ("", self.fingerprint):
            return not known
        return burst != self.bursts and known != self._at_burst


def _selectable(node: Node) -> object:
    """Return the parts by which a provider may select nodes."""
    return node.labels, node.annotations, node.addresses


def _state(node: Node) -> object:
    conditions = node.status.conditions or ()
    return node.uid, node.spec, [(condition.type, condition.status) for condition in conditions]


def _digest(node: Node) -> int:
    # Neither part can contain a blank.
    content = f"{node.name} {node.provider_id}".encode()
    return int.from_bytes(hashlib.sha256(content).digest(), "big")


class LoadBalancerMembers:
    """Members of all load balancers, updated with every change of a node.

    Args:
        cache: the shared informer of nodes.
        by_health: whether unfit nodes lose their membership, because load balancers do not check
            health.
        holds: records that nodes which left the cache without a deletion event stay members.
        guard: decides whether these nodes stay members.
        about: object of the events which report that these nodes stay members.
    """

    def __init__(
        self,
        cache: Informer[Node],
        *,
        by_health: bool,
        holds: DeletionBlocks,
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
        self.initialising: set[str] = set()
        """Names of uninitialised nodes whose provider ID will be set by the initialisation."""
        logger = log.logger(names.CONTROLLER_SERVICE)
        self._unfit = Outage(
            logger,
            start_message="too many nodes not ready, keeping them as load balancer members",
            end_message="enough load balancer members ready again",
        )
        self._undecodable = Outage(
            logger,
            start_message=(
                "too many nodes cannot be decoded, load balancer member updates suspended"
            ),
            end_message="load balancer member updates resumed",
        )
        self._use(by_health=by_health)

    def _use(self, *, by_health: bool) -> None:
        self.by_health = by_health
        self._cluster = MemberPool()
        self._local = MemberPool() if by_health else self._cluster

    def __len__(self) -> int:
        """Return the number of members in the larger pool."""
        # A node that is fit for policy Cluster is fit for Local too, so this counts all members.
        return max(len(pool) for pool in self.pools)

    @property
    def pools(self) -> Sequence[MemberPool]:
        """The pools: one per externalTrafficPolicy if `by_health`, else one for all Services."""
        return (self._cluster, self._local) if self.by_health else (self._cluster,)

    def of(self, service: Service) -> MemberPool:
        """Return the pool of a Service's load balancer."""
        is_local = service.spec.external_traffic_policy == POLICY_LOCAL
        return self._local if is_local else self._cluster

    def rebuild(self, *, by_health: bool) -> None:
        """Rebuild the pools from all nodes, after a change of `by_health`."""
        self._use(by_health=by_health)
        self._missing.clear()
        for node in self._cache.store.list():
            self._put(node)
        self.adopt_unknown()

    def adopt_unknown(self) -> None:
        """If no node is fit at a start, make nodes with Ready=Unknown members until a node is fit.

        Otherwise a new leader would empty all load balancers when the API server has lost contact
        with the nodes.
        """
        for pool in self.pools:
            if self.by_health and not pool:
                for node in self._cache.store.list():
                    if is_member(node) and node.ready == names.STATUS_UNKNOWN:
                        # First as fit, because `put` does not add an unfit node.
                        pool.put(node)
                        pool.put(node, fit=False)

    def node_deleted(self, node: Node) -> None:
        """Note a deletion event of the watch; `node_gone` follows."""
        self._deleted.add(node.name)

    def node_gone(self, name: str) -> None:
        """Handle a node that left the cache.

        The node is removed if `node_deleted` was called; else it stays a member until
        `drop_missing_and_unfit`.
        """
        if name in self._deleted:
            self._deleted.discard(name)
            self._remove(name)
            return
        now = clock.monotonic()
        self.initialising.discard(name)
        if any(name in pool for pool in self.pools):
            self._missing.add(name)
        self._missing_since = min(self._missing_since, now)
        self._guard.owner_missing(now)

    def node_seen(self, node: Node) -> None:
        """Handle a new or changed node."""
        if node.name in self._missing:
            self._guard.owner_returned(clock.monotonic())
        self._put(node)

    def _put(self, node: Node) -> None:
        if not is_member(node):
            self._remove(node.name)
            return
        self._missing.discard(node.name)
        waits = is_uninitialized(node) and not node.provider_id
        (self.initialising.add if waits else self.initialising.discard)(node.name)
        if self.by_health:
            self._cluster.put(node, fit=is_fit(node, local=False))
            self._local.put(node, fit=is_fit(node, local=True))
        else:
            self._cluster.put(node)

    def _remove(self, name: str) -> None:
        self.initialising.discard(name)
        self._missing.discard(name)
        for pool in self.pools:
            pool.remove(name)

    def has_missing_or_unfit(self) -> bool:
        """Return whether some members are missing or unfit."""
        return bool(self._missing) or any(pool.unfit for pool in self.pools)

    def drop_missing_and_unfit(self) -> None:
        """Remove missing and unfit members; too many missing, or too many unfit, members stay."""
        now = clock.monotonic()
        stay = [pool for pool in self.pools if pool.drop_unfit(now)]
        if not stay:
            self._unfit.record_success()
        else:
            self._unfit.record_failure(nodes=max(len(pool.unfit) for pool in stay))
        if self._missing and self._keep_missing(now):
            return
        for name in tuple(self._missing):
            self._remove(name)
        self._missing_since = math.inf
        self._holds.keep_only(())

    def _keep_missing(self, now: float) -> bool:
        missing, among = len(self._missing), len(self)
        many = missing == among or is_mass(missing, among)
        # While the cluster has no node, removal would leave load balancers without members.
        lasts = not len(self._cache.store) or now < self._missing_since + MAX_MISSING_S
        wait_s = self._guard.wait_s(missing, among, now, is_many=many and lasts)
        if wait_s and self._guard.is_blocking:
            self._holds.block(
                self._about,
                "nodes_missing",
                f"{missing} of {among} nodes disappeared without a deletion event. They stay load "
                "balancer members until they are back, or for half an hour while other nodes "
                f"exist; to remove them, {ALLOW_HINT}",
            )
        return wait_s > 0

    def can_update(self) -> bool:
        """Return False if more than a third of the nodes are missing because of decoding errors.

        An update of the members would then remove too many healthy nodes.
        """
        store = self._cache.store
        missing = sum(key not in store for key in self._cache.malformed_keys)
        is_known = missing * 3 <= missing + len(store)
        if is_known:
            self._undecodable.record_success()
        else:
            self._undecodable.record_failure(missing=missing)
        return is_known

    def end_burst(self) -> bool:
        """End a burst of node changes in all pools; return whether any pool changed."""
        changed = [pool for pool in self.pools if pool.end_burst()]
        return bool(changed)


class NodeChangeDebouncer:
    """Debouncer of node changes: calls `act` once per burst, and limits the rate of bursts.

    A burst ends after `quiet_s` without a change, or `longest_s` after its first change. Each new
    node changes the members twice: on creation and on initialisation. So the burst continues until
    all new nodes are initialised, or no node has been initialised for `longest_s`, but at most for
    `MAX_INITIALISATION_S`. An update of all load balancers may be expensive, so the next burst's
    end is delayed in proportion to the duration of the update. The removal of a node never waits
    longer than `longest_s`.

    Args:
        act: called at the end of each burst; must not block.
        quiet_s: seconds without a change that end a burst.
        longest_s: maximum seconds from the first change to the end of the burst, and maximum
            seconds between two initialisations that the burst waits for.
    """

    def __init__(self, act: Callable[[], None], *, quiet_s: float, longest_s: float) -> None:
        self._act = act
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._first = self._last = self._first_removal = math.inf
        self._last_progress = self._delayed_until = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, *, leaves: bool = False) -> None:
        """Record a change of a node; `leaves`: the node is no member any more."""
        self._last = asyncio.get_running_loop().time()
        self._first = min(self._first, self._last)
        if leaves:
            self._first_removal = min(self._first_removal, self._last)
        self._set_timer()

    def initialisation_progress(self, *, goes_on: bool) -> None:
        """Record a change of the number of nodes to initialise; `goes_on`: the number is not 0."""
        self._last_progress = asyncio.get_running_loop().time() if goes_on else -math.inf

    def delay(self, took_s: float = MAX_DELAY_S) -> None:
        """Let no burst end for `DELAY_FACTOR` * `took_s`, at most for `MAX_DELAY_S`.

        Called at the start and at the end of an update of all load balancers. The call at the end
        passes the duration of the update as `took_s`, and replaces the delay set at the start.
        The removal of a node still waits no longer than `longest_s`.
        """
        rest_s = min(MAX_DELAY_S, DELAY_FACTOR * took_s)
        self._delayed_until = asyncio.get_running_loop().time() + rest_s
        self._set_timer()

    @property
    def _due(self) -> float:
        """Time at which the burst ends, on the event loop's clock; infinity without a burst."""
        burst = min(self._last + self._quiet_s, self._first + self._longest_s)
        wave = min(self._last_progress + self._longest_s, self._first + MAX_INITIALISATION_S)
        return min(max(burst, wave, self._delayed_until), self._first_removal + self._longest_s)

    def _set_timer(self) -> None:
        """Set the timer for the end of the burst.

        A timer that is too early stays: `_fire` sets a new one.
        """
        due = self._due
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() < self._due:
            self._set_timer()
            return
        self._first = self._last = self._first_removal = math.inf
        self._act()

"""Plan of route changes: missing routes, superfluous routes, and their order. Pure.

`compare` is the one place where the deletion of a route is decided. Only routes within the
cluster's Pod ranges are deleted, and only if no node wants them or they do not serve the node that
does. Ranges are compared as networks, never as text.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from ccm.cloud.types import Route
from ccm.model import Node, names
from ccm.model.cidr import Network, overlap, parse_cidr
from ccm.model.patches import Patch, uid_precondition

CREATED_MESSAGE = "RouteController created a route"
NOT_CREATED_MESSAGE = "RouteController failed to create a route"
"""Messages of the node condition (Go cloud-provider, route controller)."""

CHUNK = 500
"""Routes or nodes processed before other tasks can run: a few milliseconds of work."""

CallKey = tuple[str, ...]
"""Identifier of a call in the back-off: operation, node, range, name."""

NodeRange = tuple[str, Network]
"""Name of a node, and a range for which it wants a route."""

_parsed = lru_cache(maxsize=1 << 16)(parse_cidr)
"""Cached, since ranges rarely change and each is parsed several times per comparison."""


class DeletionReason(Enum):
    """Reason of a deletion; the values appear in logs and metrics."""

    STRAY = "stray"
    """No node wants it."""
    BLACKHOLE = "blackhole"
    """It has no target."""
    DUPLICATE = "duplicate"
    """Another route serves the same range of the same node."""
    STALE = "stale"
    """Its target addresses are no longer those of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDeletion:
    """Superfluous route.

    Attributes:
        route: as the cloud listed it.
        network: parsed destination range.
        reason: why it is deleted.
    """

    route: Route
    network: Network
    reason: DeletionReason

    @property
    def key(self) -> CallKey:
        """Identifier in the back-off."""
        return ("delete", self.route.target_node, str(self.network), self.route.name)

    @property
    def node_range(self) -> NodeRange:
        """The node and range that the route serves or served."""
        return (self.route.target_node, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCreation:
    """Route to create.

    Attributes:
        node: target of the route.
        cidr: destination range in the node's spelling.
        network: the range, parsed.
        after: positions in `RoutePlan.deletions` of overlapping routes, which have to be deleted
            first.
    """

    node: Node
    cidr: str
    network: Network
    after: Sequence[int] = ()

    @property
    def key(self) -> CallKey:
        """Identifier in the back-off."""
        return creation_key(self.node.name, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """Result of a comparison.

    Attributes:
        deletions: superfluous routes.
        creations: missing routes that can be created.
        kept: number of wanted routes that exist.
        missing: name of each node with Pod ranges -> ranges without a route; those that cannot be
            parsed as text.
        cut_off: names of nodes without Pod ranges that are the target of a route.
        undecidable: number of routes kept because their node may be one that cannot be decoded.
    """

    deletions: Sequence[RouteDeletion] = ()
    creations: Sequence[RouteCreation] = ()
    kept: int = 0
    missing: Mapping[str, Collection[Network | str]] = field(default_factory=dict)
    cut_off: Collection[str] = ()
    undecidable: int = 0


def creation_key(node: str, network: Network) -> CallKey:
    """Return the key of a `RouteCreation`."""
    return ("create", node, str(network))


class NetworkIndex:
    """Index of networks by position, for fast overlap queries.

    Two CIDRs overlap only if one contains the other.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._at: dict[Network, list[int]] = {}
        for position, network in enumerate(networks):
            self._at.setdefault(network, []).append(position)
        self._lengths = {(network.version, network.prefixlen) for network in self._at}
        self._ordered = sorted(self._at, key=sort_key)
        self._places = [sort_key(network) for network in self._ordered]

    def overlapping(self, network: Network) -> Sequence[int]:
        """Return the sorted positions of the networks that overlap this one."""
        positions: list[int] = []
        for version, length in self._lengths:
            if version == network.version and length < network.prefixlen:
                positions += self._at.get(network.supernet(new_prefix=length), ())
        position = bisect.bisect_left(self._places, (*sort_key(network)[:2], 0))
        while position < len(self._ordered) and overlap(self._ordered[position], network):
            candidate = self._ordered[position]
            if candidate.prefixlen >= network.prefixlen:
                positions += self._at[candidate]
            position += 1
        return sorted(positions)


def sort_key(network: Network) -> tuple[int, int, int]:
    """Return the sort key of a network: family, address and length."""
    return (network.version, int(network.network_address), network.prefixlen)


def is_managed(network: Network, ranges: Iterable[Network]) -> bool:
    """Return whether the controller manages routes of this range: it has only Pod addresses.

    A range that is wider than the cluster's is not managed, even if it begins or ends with it:
    networks have routes for other purposes and other clusters.
    """
    return any(
        network.version == whole.version
        and network.network_address in whole
        and network.broadcast_address in whole
        for whole in ranges
    )


def pod_networks(node: Node) -> Mapping[Network, str]:
    """Return the node's distinct Pod ranges in its spelling, without invalid ones."""
    networks: dict[Network, str] = {}
    for cidr in node.spec.pod_cidrs or ():
        network = _parsed(cidr)
        if network is not None:
            networks.setdefault(network, cidr)
    return networks


def has_no_pod_cidrs(node: Node) -> bool:
    """Return whether the node has no Pod ranges, perhaps not yet."""
    return not node.spec.pod_cidrs


def _may_have_routes(node: Node) -> bool:
    return bool(node.addresses) and not has_no_pod_cidrs(node)


def affects_routes(old: Node | None, new: Node | None, *, targets: Collection[str]) -> bool:
    """Return whether a change of a node may change its routes.

    A new node causes no comparison before it has an address. Otherwise the change that adds the
    address would have to wait for the minimum interval.

    Args:
        old: the node before; None = it did not exist.
        new: the node now; None = it is gone.
        targets: names of the nodes that routes of the cloud lead to.
    """
    if old is None or new is None:
        node = new or old
        return node is not None and (_may_have_routes(node) or node.name in targets)
    if has_no_pod_cidrs(old) and has_no_pod_cidrs(new):
        return False
    if not (_may_have_routes(old) or _may_have_routes(new) or new.name in targets):
        return False
    return (
        old.uid != new.uid
        or (old.spec.pod_cidrs or []) != (new.spec.pod_cidrs or [])
        or list(old.addresses) != list(new.addresses)
    )


def drop_foreign(
    nodes: Iterable[Node], routes: Sequence[Route], is_foreign: Callable[[Node], bool]
) -> tuple[Sequence[Node], Sequence[Route]]:
    """Drop foreign nodes and the routes to them.

    Args:
        nodes: all nodes of a complete cache.
        routes: all routes of the cloud.
        is_foreign: whether a node belongs to another manager.
    """
    known = list(nodes)
    foreign = {node.name: node for node in known if is_foreign(node)}
    own = [node for node in known if node.name not in foreign]
    # A blackhole names no node: it belongs to the node with its target address.
    claimed = {entry.address for node in foreign.values() for entry in node.addresses}
    claimed -= {entry.address for node in own for entry in node.addresses}

    def leads_to_others(route: Route) -> bool:
        return route.target_node in foreign or any(
            end in claimed for end in _blackhole_targets(route)
        )

    return own, [route for route in routes if not leads_to_others(route)]


def compare(
    nodes: Iterable[Node],
    routes: Sequence[Route],
    *,
    ranges: Sequence[Network],
    held: Collection[str] = (),
    undecodable: Collection[str] = (),
) -> Generator[None, None, RoutePlan]:
    """Return a plan from the nodes and the cloud's routes; yield after each chunk.

    With 5,000 nodes the comparison takes 0.1 to 0.5 s, too long to block the event loop.

    Args:
        nodes: all nodes of a complete cache.
        routes: all routes of the cloud.
        ranges: the cluster's Pod ranges.
        held: names of nodes that lost their Pod ranges recently: their routes stay, unless another
            node wants an overlapping range.
        undecodable: names of nodes whose newest state cannot be decoded; an empty name stands for a
            node whose name cannot be decoded either. Routes that may be theirs are not deleted.
    """
    by_name = {node.name: node for node in nodes}
    holders = _address_holders(by_name.values())
    wanted: dict[NodeRange, str] = {}
    for number, (name, node) in enumerate(by_name.items()):
        if number % CHUNK == 0:
            yield
        wanted |= {(name, network): cidr for network, cidr in pod_networks(node).items()}
    serving, unserving = yield from _classify_routes(routes, wanted, holders, ranges)
    satisfied: set[NodeRange] = set()
    deletions: list[RouteDeletion] = []
    for number, (key, candidates) in enumerate(serving.items()):
        if number % CHUNK == 0:
            yield
        best, unwanted = _choose(by_name[key[0]], key[1], candidates)
        deletions += [deletion for deletion in unwanted if is_managed(deletion.network, ranges)]
        if best is not None:
            satisfied.add(key)
    yield
    lacking = [key for key in wanted if key not in satisfied]
    lacking.sort(key=lambda key: (key[0], sort_key(key[1])))
    # A route to an address that a newer node holds would lead to that node, and be deleted again.
    # A node without an address cannot be a target yet.
    creatable = [
        (name, network)
        for name, network in lacking
        if by_name[name].addresses and not _is_displaced(by_name[name], network, holders)
    ]
    in_the_way = NetworkIndex(network for _, network in creatable if held)
    deletions += [
        deletion
        for deletion in unserving
        if deletion.reason is not DeletionReason.STRAY
        or deletion.route.target_node not in held
        or in_the_way.overlapping(deletion.network)
    ]
    sure = [
        deletion for deletion in deletions if not may_be_undecodable(deletion, by_name, undecodable)
    ]
    sure.sort(
        key=lambda deletion: (
            str(deletion.network),
            deletion.route.target_node,
            deletion.route.name,
        )
    )
    yield
    obstacles = NetworkIndex(deletion.network for deletion in sure if creatable)
    creations: list[RouteCreation] = []
    for number, (name, network) in enumerate(creatable):
        if number % CHUNK == 0:
            yield
        creations.append(
            RouteCreation(
                node=by_name[name],
                cidr=wanted[name, network],
                network=network,
                after=obstacles.overlapping(network),
            )
        )
    yield
    # An invalid range can never have a route, so it stays missing.
    missing: dict[str, set[Network | str]] = {
        name: {cidr for cidr in node.spec.pod_cidrs or () if _parsed(cidr) is None}
        for name, node in by_name.items()
        if not has_no_pod_cidrs(node)
    }
    for name, network in lacking:
        missing[name].add(network)
    targets = {route.target_node for route in routes}
    return RoutePlan(
        deletions=sure,
        creations=creations,
        kept=len(satisfied),
        missing=missing,
        cut_off=tuple(
            name
            for name, node in by_name.items()
            if has_no_pod_cidrs(node) and name in targets and name not in held
        ),
        undecidable=len(deletions) - len(sure),
    )


def may_be_undecodable(
    deletion: RouteDeletion, nodes: Collection[str], undecodable: Collection[str]
) -> bool:
    """Return whether the route may belong to a node that cannot be decoded."""
    if not undecodable:
        return False
    target = deletion.route.target_node
    return target in undecodable or ("" in undecodable and target not in nodes)


def is_wanted(route: Route, node: Node | None) -> bool:
    """Return whether the target node wants the route's range."""
    return node is not None and _parsed(route.destination_cidr) in pod_networks(node)


def stray_ranges(planned: RoutePlan) -> set[NodeRange]:
    """Return the (node, range) pairs of the planned STRAY deletions."""
    return {
        deletion.node_range
        for deletion in planned.deletions
        if deletion.reason is DeletionReason.STRAY
    }


def unexplained_deletions(
    planned: RoutePlan, node_of: Callable[[str], Node | None], released: Collection[NodeRange]
) -> list[RouteDeletion]:
    """Return the STRAY deletions whose only cause is a missing node, or one without ranges.

    Args:
        planned: the plan.
        node_of: returns the named node, or None.
        released: (node, range) pairs whose deletion the watch reported.
    """

    def is_unexplained(deletion: RouteDeletion) -> bool:
        if deletion.reason is not DeletionReason.STRAY or deletion.node_range in released:
            return False
        node = node_of(deletion.route.target_node)
        return node is None or has_no_pod_cidrs(node)

    return [deletion for deletion in planned.deletions if is_unexplained(deletion)]


def drop_deletions(planned: RoutePlan, held: Collection[RouteDeletion]) -> RoutePlan:
    """Return the plan without the deletions `held` and the creations that depend on them."""
    if not held:
        return planned
    staying = {id(deletion) for deletion in held}
    targets = {deletion.route.target_node for deletion in held}
    going = [
        position
        for position, deletion in enumerate(planned.deletions)
        if id(deletion) not in staying
    ]
    moved = {before: after for after, before in enumerate(going)}
    return replace(
        planned,
        deletions=[planned.deletions[position] for position in going],
        creations=[
            replace(creation, after=[moved[position] for position in creation.after])
            for creation in planned.creations
            if all(position in moved for position in creation.after)
        ],
        cut_off=[name for name in planned.cut_off if name not in targets],
    )


def condition_patch(
    node: Node, *, created: bool, now: str, keep_foreign_reason: bool = False
) -> Patch | None:
    """Return the status patch for NetworkUnavailable; None when the condition is right.

    Args:
        node: current node.
        created: whether every route of the node exists.
        now: the time to write, RFC 3339.
        keep_foreign_reason: do not overwrite the reason if the status is right.
    """
    status = names.STATUS_FALSE if created else names.STATUS_TRUE
    reason = names.REASON_ROUTE_CREATED if created else names.REASON_NO_ROUTE_CREATED
    if any(
        present.type == names.CONDITION_NETWORK_UNAVAILABLE
        and present.status == status
        and (present.reason == reason or keep_foreign_reason)
        for present in node.status.conditions or ()
    ):
        return None
    condition = {
        "type": names.CONDITION_NETWORK_UNAVAILABLE,
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": reason,
        "message": CREATED_MESSAGE if created else NOT_CREATED_MESSAGE,
    }
    return {"metadata": uid_precondition(node), "status": {"conditions": [condition]}}


def _classify_routes(
    routes: Iterable[Route],
    wanted: Collection[NodeRange],
    holders: Mapping[str, Node],
    ranges: Sequence[Network],
) -> Generator[None, None, tuple[Mapping[NodeRange, list[Route]], list[RouteDeletion]]]:
    """Return the routes that may serve a wanted range, and deletions of other managed ones."""
    serving: dict[NodeRange, list[Route]] = {}
    others: list[RouteDeletion] = []
    for number, route in enumerate(routes):
        if number % CHUNK == 0:
            yield
        network = _parsed(route.destination_cidr)
        if network is None:
            continue
        # A blackhole to an address that a node still claims is kept. The VM is gone before its
        # node, so a new route would be a blackhole too.
        target = "" if route.blackhole else route.target_node
        ends = (holders.get(end) for end in _blackhole_targets(route))
        key = (next(("" if node is None else node.name for node in ends), target), network)
        if key in wanted:
            serving.setdefault(key, []).append(route)
        elif is_managed(network, ranges):
            reason = DeletionReason.BLACKHOLE if route.blackhole else DeletionReason.STRAY
            others.append(RouteDeletion(route=route, network=network, reason=reason))
    return serving, others


def _address_holders(nodes: Iterable[Node]) -> Mapping[str, Node]:
    """Return the node that holds each address: the newest of those that claim it."""
    holders: dict[str, Node] = {}
    for node in nodes:
        for entry in node.addresses:
            if not _is_newer(holders.setdefault(entry.address, node), node):
                holders[entry.address] = node
    return holders


def _is_newer(node: Node, other: Node) -> bool:
    return (node.metadata.creation_timestamp or "") > (other.metadata.creation_timestamp or "")


def _is_displaced(node: Node, network: Network, holders: Mapping[str, Node]) -> bool:
    """Return whether newer nodes hold the addresses that lead to a node's range.

    Then the VM of the older node is gone, though its node may be deleted much later. Only internal
    addresses count, and only if all are taken: nodes may share an external address, or that of a
    bridge.
    """
    internal = [
        entry.address
        for entry in node.addresses
        if entry.type == names.ADDRESS_INTERNAL_IP
        and (":" in entry.address) == (network.version == 6)
    ]
    return bool(internal) and all(_is_newer(holders[address], node) for address in internal)


def _blackhole_targets(route: Route) -> Sequence[str]:
    """Return the target addresses of a blackhole, which names no node."""
    return [entry.address for entry in route.target_addresses] if route.blackhole else ()


def _choose(
    node: Node, network: Network, candidates: Sequence[Route]
) -> tuple[Route | None, list[RouteDeletion]]:
    """Choose the route to keep for a node's range, and delete the others."""
    fitting = [route for route in candidates if _has_addresses_of(route, node)]
    best = min(fitting, key=lambda route: (route.blackhole, route.name), default=None)
    unwanted: list[RouteDeletion] = []
    for route in candidates:
        if route is best:
            continue
        reason = DeletionReason.STALE if best is None else DeletionReason.DUPLICATE
        # Calls identify routes by name: deleting a second one of that name deletes the first.
        if best is None or route.name != best.name:
            unwanted.append(RouteDeletion(route=route, network=network, reason=reason))
    return best, unwanted


def _has_addresses_of(route: Route, node: Node) -> bool:
    # A node without addresses does not make its route stale: it could not be created again.
    if not route.enable_node_addresses or not node.addresses:
        return True
    listed = [(entry.type, entry.address) for entry in route.target_addresses]
    present = [(entry.type, entry.address) for entry in node.addresses]
    return len(listed) == len(present) and set(listed) == set(present)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Settings of the route controller.

    Attributes:
        period_s: seconds between the starts of two comparisons; None = when nodes change.
        interval_s: minimum seconds between two comparisons triggered by node changes.
        settle_s: minimum seconds from a node change to the comparison; covers further changes.
        safety_s: maximum seconds between two comparisons, plus jitter.
        concurrency: maximum concurrent calls that create or delete routes.
        grace_s: seconds for which a node without Pod ranges keeps its routes.
        keep_foreign_reason: do not overwrite another writer's reason in a NetworkUnavailable
            condition whose status is right.
        allow_mass_deletion: delete routes regardless of the number of missing nodes.
    """

    period_s: float | None = None
    interval_s: float = 10.0
    settle_s: float = 0.5
    safety_s: float = 600.0
    concurrency: int = 200
    grace_s: float = 60.0
    keep_foreign_reason: bool = False
    allow_mass_deletion: bool = False


class Schedule:
    """Time of the next comparison; all times are monotonic seconds.

    There is one due time, and each request can only bring it forward. With a fixed period (the Go
    reference's default) only the period counts.

    Args:
        settings: intervals.
        wake: called with the due time whenever it may have changed.
    """

    def __init__(self, settings: RouteSettings, wake: Callable[[float], object]) -> None:
        self._settings = settings
        self._wake = wake
        self._compared_at = -math.inf
        self.due = math.inf
        """Due time of the next comparison; infinity if none is requested."""

    def begin(self, now: float) -> bool:
        """Begin a comparison if one is due; return whether it is."""
        if now < self.due:
            # An earlier comparison served this wake-up, so only set the next one.
            self.force(self.due)
            return False
        self._compared_at = now
        self.due = math.inf
        return True

    def listing_failed(self, now: float, pause_s: float) -> None:
        """Schedule the next attempt after a failed listing."""
        period_s = self._settings.period_s
        self.force(now + pause_s if period_s is None else self._compared_at + period_s)

    def finished(self, due_times: Iterable[float], *, safety_s: float) -> None:
        """End a comparison; the next comes at the earliest of some times.

        Args:
            due_times: times at which a comparison may find work; past ones are ignored.
            safety_s: maximum seconds since the start of the comparison that ends.
        """
        began, period_s = self._compared_at, self._settings.period_s
        if period_s is None:
            period_s = min([safety_s, *(wish - began for wish in due_times if wish > began)])
        self.force(began + period_s)

    def request(self, now: float) -> None:
        """Schedule a comparison after a change has settled, but not too often."""
        self._request_at(
            max(now + self._settings.settle_s, self._compared_at + self._settings.interval_s)
        )

    def retry(self, now: float, pause_s: float) -> None:
        """Schedule a comparison for the end of a failed call's delay."""
        spacing_s = min(pause_s, self._settings.interval_s)
        self._request_at(max(now + pause_s, self._compared_at + spacing_s))

    def force(self, due: float) -> None:
        """Schedule a comparison at that time at the latest, even with a fixed period."""
        self.due = min(self.due, due)
        if self.due < math.inf:
            self._wake(self.due)

    def _request_at(self, due: float) -> None:
        if self._settings.period_s is None:
            self.force(due)

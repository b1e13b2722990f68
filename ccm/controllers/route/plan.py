"""Plan of route changes: missing routes, superfluous routes, and their order. No I/O.

Only `compare` decides whether to delete a route. It selects only routes within the cluster's Pod
ranges. Such a route is superfluous if it leads to no node that has its range, if its target
addresses are wrong, or if it is a duplicate (see `DeletionReason`). Ranges are compared as
networks, never as text.
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
"""Messages of the condition NetworkUnavailable (Go cloud-provider, route controller)."""

CHUNK = 500
"""Routes or nodes processed before other tasks can run: a few milliseconds of work."""

CallKey = tuple[str, ...]
"""Key of the back-off for a call: operation, node, range, and for a deletion the route's name."""

NodeRange = tuple[str, Network]
"""Name of a node, and a Pod range of the node."""

_parsed = lru_cache(maxsize=1 << 16)(parse_cidr)
"""Cached, since ranges rarely change and each is parsed several times per comparison."""


class DeletionReason(Enum):
    """Reason for the deletion of a route; the values appear in logs and metrics."""

    STRAY = "stray"
    """The target node is gone or does not have the range."""
    BLACKHOLE = "blackhole"
    """The target instance is gone, and no node with the range has the target address."""
    DUPLICATE = "duplicate"
    """Another route leads to the same range of the same node."""
    STALE = "stale"
    """The target addresses of the route differ from the addresses of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDeletion:
    """Superfluous route.

    Attributes:
        route: the listed route.
        network: destination range of the route, parsed.
        reason: reason for the deletion.
    """

    route: Route
    network: Network
    reason: DeletionReason

    @property
    def key(self) -> CallKey:
        """Key of the back-off."""
        return ("delete", self.route.target_node, str(self.network), self.route.name)

    @property
    def node_range(self) -> NodeRange:
        """Target node and destination range of the route."""
        return (self.route.target_node, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCreation:
    """Route to create.

    Attributes:
        node: target of the route.
        cidr: destination range as written in the node's spec.
        network: destination range, parsed.
        after: positions in `RoutePlan.deletions` of overlapping routes, which have to be deleted
            before the creation.
    """

    node: Node
    cidr: str
    network: Network
    after: Sequence[int] = ()

    @property
    def key(self) -> CallKey:
        """Key of the back-off."""
        return creation_key(self.node.name, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """Result of a comparison.

    Attributes:
        deletions: superfluous routes.
        creations: missing routes that can be created.
        kept: number of (node, range) pairs that have a route.
        missing: name of each node with Pod ranges -> its ranges without a route; invalid ranges as
            text.
        cut_off: names of nodes that are the target of a route, but have no Pod ranges and had none
            recently.
        undecidable: number of superfluous routes that are kept because their node may be one that
            cannot be decoded.
    """

    deletions: Sequence[RouteDeletion] = ()
    creations: Sequence[RouteCreation] = ()
    kept: int = 0
    missing: Mapping[str, Collection[Network | str]] = field(default_factory=dict)
    cut_off: Collection[str] = ()
    undecidable: int = 0


def creation_key(node: str, network: Network) -> CallKey:
    """Return the key of the back-off for the creation of a route."""
    return ("create", node, str(network))


class NetworkIndex:
    """Index that finds the positions of overlapping networks in a list.

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
        """Return the sorted positions of the networks that overlap `network`."""
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
    """Return the sort key of a network: IP version, address and prefix length."""
    return (network.version, int(network.network_address), network.prefixlen)


def is_managed(network: Network, ranges: Iterable[Network]) -> bool:
    """Return whether the controller manages routes to `network`: a cluster Pod range contains it.

    A network wider than the Pod range is not managed, because cloud networks also have routes for
    other purposes and other clusters.

    Args:
        network: destination range of a route.
        ranges: the cluster's Pod ranges.
    """
    return any(
        network.version == whole.version
        and network.network_address in whole
        and network.broadcast_address in whole
        for whole in ranges
    )


def pod_networks(node: Node) -> Mapping[Network, str]:
    """Return the node's valid, distinct Pod ranges: parsed range -> text in the node's spec."""
    networks: dict[Network, str] = {}
    for cidr in node.spec.pod_cidrs or ():
        network = _parsed(cidr)
        if network is not None:
            networks.setdefault(network, cidr)
    return networks


def has_no_pod_cidrs(node: Node) -> bool:
    """Return whether the node has no Pod ranges: they may not be allocated yet."""
    return not node.spec.pod_cidrs


def _may_have_routes(node: Node) -> bool:
    return bool(node.addresses) and not has_no_pod_cidrs(node)


def affects_routes(old: Node | None, new: Node | None, *, targets: Collection[str]) -> bool:
    """Return whether a change of a node may change its routes.

    A new node triggers no comparison before it has an address. Otherwise the change that adds the
    address would have to wait until the end of the minimum interval.

    Args:
        old: the node before the change; None = it did not exist.
        new: the node after the change; None = it is gone.
        targets: names of the target nodes of the listed routes.
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
        nodes: all nodes of a synced cache.
        routes: all routes of the cloud.
        is_foreign: whether a node belongs to another cloud or manager.
    """
    known = list(nodes)
    foreign = {node.name: node for node in known if is_foreign(node)}
    own = [node for node in known if node.name not in foreign]
    # A blackhole names no node, so its target address shows which node it belongs to.
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
    """Return a plan from the nodes and the cloud's routes; yield after each chunk (`CHUNK`).

    With 5,000 nodes the comparison takes 0.1 to 0.5 s, too long to block the event loop.

    Args:
        nodes: all nodes of a synced cache.
        routes: all routes of the cloud.
        ranges: the cluster's Pod ranges.
        held: names of nodes that recently lost their Pod ranges. Routes to these nodes stay, unless
            a missing route of another node overlaps.
        undecodable: names of nodes whose newest object cannot be decoded; an empty name stands for
            a node whose name cannot be decoded either. Routes that may lead to such a node are not
            deleted.
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
    # If a newer node has the address, the route would lead to the newer node and be deleted again.
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
    # An invalid range never gets a route, so it is always missing.
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
    """Return whether `node` has the destination range of the route; False if `node` is None."""
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
    """Return the STRAY deletions of routes to nodes that are missing or have no Pod ranges.

    Deletions in `released` are not returned.

    Args:
        planned: the plan.
        node_of: returns the named node, or None if it is missing.
        released: (node, range) pairs for which the watch reported the deletion of the node.
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
    """Return the status patch for NetworkUnavailable; None if the condition needs no change.

    Args:
        node: current node.
        created: whether all routes of the node exist.
        now: the time to write, in RFC 3339 format.
        keep_foreign_reason: do not overwrite a reason set by another client if the status is
            correct.
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
    """Sort the routes by their use.

    Args:
        routes: all routes of the cloud.
        wanted: (node, range) pairs of all nodes.
        holders: see `_address_holders`.
        ranges: the cluster's Pod ranges.

    Returns:
        The routes of each wanted pair, and the deletions of all other managed routes.
    """
    serving: dict[NodeRange, list[Route]] = {}
    others: list[RouteDeletion] = []
    for number, route in enumerate(routes):
        if number % CHUNK == 0:
            yield
        network = _parsed(route.destination_cidr)
        if network is None:
            continue
        # A blackhole to the address of a node counts as a route to that node. The VM is deleted
        # before its Node, so a new route would be a blackhole too.
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
    """Return a mapping: address -> newest node with this address."""
    holders: dict[str, Node] = {}
    for node in nodes:
        for entry in node.addresses:
            if not _is_newer(holders.setdefault(entry.address, node), node):
                holders[entry.address] = node
    return holders


def _is_newer(node: Node, other: Node) -> bool:
    return (node.metadata.creation_timestamp or "") > (other.metadata.creation_timestamp or "")


def _is_displaced(node: Node, network: Network, holders: Mapping[str, Node]) -> bool:
    """Return whether newer nodes have taken over the internal addresses of an older node.

    If so, the VM of the older node is gone, though its Node may be deleted much later. All internal
    addresses must be taken over: nodes may share one, such as the address of a bridge. External
    addresses do not count, because nodes may share them too.

    Args:
        node: the older node.
        network: Pod range of the older node; only addresses of the same IP family count.
        holders: see `_address_holders`.
    """
    internal = [
        entry.address
        for entry in node.addresses
        if entry.type == names.ADDRESS_INTERNAL_IP
        and (":" in entry.address) == (network.version == 6)
    ]
    return bool(internal) and all(_is_newer(holders[address], node) for address in internal)


def _blackhole_targets(route: Route) -> Sequence[str]:
    """Return the target addresses of a blackhole; empty for any other route."""
    return [entry.address for entry in route.target_addresses] if route.blackhole else ()


def _choose(
    node: Node, network: Network, candidates: Sequence[Route]
) -> tuple[Route | None, list[RouteDeletion]]:
    """Choose the route to keep for a node's range.

    Returns:
        The route to keep, None if all routes are stale; and the deletions of the other routes.
    """
    fitting = [route for route in candidates if _has_addresses_of(route, node)]
    best = min(fitting, key=lambda route: (route.blackhole, route.name), default=None)
    unwanted: list[RouteDeletion] = []
    for route in candidates:
        if route is best:
            continue
        reason = DeletionReason.STALE if best is None else DeletionReason.DUPLICATE
        # Calls identify routes by name: deleting a route with the name of `best` deletes `best`.
        if best is None or route.name != best.name:
            unwanted.append(RouteDeletion(route=route, network=network, reason=reason))
    return best, unwanted


def _has_addresses_of(route: Route, node: Node) -> bool:
    # Keep the route of a node without addresses: the route could not be created again.
    if not route.enable_node_addresses or not node.addresses:
        return True
    listed = [(entry.type, entry.address) for entry in route.target_addresses]
    present = [(entry.type, entry.address) for entry in node.addresses]
    return len(listed) == len(present) and set(listed) == set(present)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Settings of the route controller.

    Attributes:
        period_s: seconds between the starts of two comparisons; None = compare when nodes change.
        interval_s: minimum seconds between two comparisons triggered by node changes.
        settle_s: minimum seconds from a node change to the comparison, which covers all changes in
            this time.
        safety_s: maximum seconds between two comparisons, plus jitter.
        concurrency: maximum concurrent calls that create or delete routes.
        grace_s: seconds for which a node without Pod ranges keeps its routes.
        keep_foreign_reason: do not overwrite the reason that another client set in a
            NetworkUnavailable condition with the correct status.
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

    There is one due time, and a request can only make it earlier. With a fixed period (default of
    the Go controller), node changes and failed calls do not change the due time.

    Args:
        settings: intervals.
        wake: called with the due time whenever the due time may have changed.
    """

    def __init__(self, settings: RouteSettings, wake: Callable[[float], object]) -> None:
        self._settings = settings
        self._wake = wake
        self._compared_at = -math.inf
        self.due = math.inf
        """Due time of the next comparison; infinity if none is requested."""

    def begin(self, now: float) -> bool:
        """Begin a comparison if it is due; return whether it is due."""
        if now < self.due:
            # An earlier comparison served this wake-up, so only schedule the next wake-up.
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
        """End a comparison, and schedule the next.

        With a fixed period the next comparison is one period after the start of the ended one.
        Otherwise it is at the earliest due time, or after `safety_s`.

        Args:
            due_times: times at which a comparison may find work. Times before the start of the
                ended comparison are ignored.
            safety_s: maximum seconds from the start of the ended comparison to the next comparison.
        """
        began, period_s = self._compared_at, self._settings.period_s
        if period_s is None:
            period_s = min([safety_s, *(wish - began for wish in due_times if wish > began)])
        self.force(began + period_s)

    def request(self, now: float) -> None:
        """Schedule a comparison in `settle_s`, at least `interval_s` after the last one's start."""
        self._request_at(
            max(now + self._settings.settle_s, self._compared_at + self._settings.interval_s)
        )

    def retry(self, now: float, pause_s: float) -> None:
        """Schedule a comparison for the end of a failed call's delay."""
        spacing_s = min(pause_s, self._settings.interval_s)
        self._request_at(max(now + pause_s, self._compared_at + spacing_s))

    def force(self, due: float) -> None:
        """Schedule a comparison for `due` or earlier, even with a fixed period."""
        self.due = min(self.due, due)
        if self.due < math.inf:
            self._wake(self.due)

    def _request_at(self, due: float) -> None:
        if self._settings.period_s is None:
            self.force(due)

"""Nodes and routes: what is missing, what is too much, in which order. Pure.

`compare` is the one place where the deletion of a route is decided. A route goes only if it
lies in the cluster's Pod ranges, and then only if no node wants it or it does not do what
the node wants. Ranges are compared as networks, never as text.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ccm.cloud.types import Route
from ccm.model import Node, NodeCondition, names
from ccm.model.cidr import Network, overlap, parse_cidr
from ccm.model.patches import Patch, same_object

MOST_RANGES = 2
"""A cluster has one Pod range, or one of each family."""

CREATED_MESSAGE = "RouteController created a route"
NOT_CREATED_MESSAGE = "RouteController failed to create a route"
"""Messages of the node condition (Go cloud-provider, route controller)."""

Key = tuple[str, ...]
"""What names a route in pauses: what is done, node, range, name."""

Wanted = tuple[str, Network]
"""The name of a node and a range that it wants a route to."""


class DeletionReason(Enum):
    """Why a route is deleted; the words go into logs and metrics."""

    STRAY = "stray"
    """No node wants it."""
    BLACKHOLE = "blackhole"
    """It leads nowhere."""
    DUPLICATE = "duplicate"
    """Another route does the same."""
    STALE = "stale"
    """It leads to addresses that its node no longer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A route that has to go.

    Attributes:
        route: as the cloud listed it.
        network: its range.
        reason: why.
    """

    route: Route
    network: Network
    reason: DeletionReason

    @property
    def key(self) -> Key:
        """Names it in pauses."""
        return ("delete", self.route.target_node, str(self.network), self.route.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A route that is missing.

    Attributes:
        node: the node it leads to.
        cidr: its range as the node spells it.
        network: the same, parsed.
        after: positions in `Plan.deletions` of the routes that are in its way.
    """

    node: Node
    cidr: str
    network: Network
    after: Sequence[int] = ()

    @property
    def key(self) -> Key:
        """Names it in pauses."""
        return creation_key(self.node.name, self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What follows from one listing.

    Attributes:
        deletions: routes that have to go.
        creations: routes that are missing.
        kept: how many routes are as they should be.
        missing: names of the nodes that have Pod ranges -> those of them without a route,
            as text where nobody can read it.
        cut_off: names of the nodes without Pod ranges that some route leads to.
    """

    deletions: Sequence[Deletion] = ()
    creations: Sequence[Creation] = ()
    kept: int = 0
    missing: Mapping[str, Collection[Network | str]] = field(default_factory=dict)
    cut_off: Collection[str] = ()


def creation_key(node: str, network: Network) -> Key:
    """The key of a `Creation`."""
    return ("create", node, str(network))


def parse_ranges(text: str) -> tuple[Network, ...]:
    """The cluster's Pod ranges out of `--cluster-cidr`: one, or one of each family.

    Raises:
        ValueError: they are something else; the message says what.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if entries == [""]:
        raise ValueError("is empty; expected the range of the cluster's Pods, like 10.244.0.0/16")
    found = [(entry, parse_cidr(entry)) for entry in entries]
    wrong = [repr(entry) for entry, network in found if network is None]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is no CIDR; expected one like 10.244.0.0/16")
    ranges = tuple(network for _, network in found if network is not None)
    if len(ranges) > MOST_RANGES:
        raise ValueError(f"names {len(ranges)} ranges; expected at most {MOST_RANGES}")
    if len(ranges) == MOST_RANGES and ranges[0].version == ranges[1].version:
        raise ValueError("names two ranges of one family; expected one IPv4 and one IPv6 range")
    return ranges


def is_managed(network: Network, ranges: Iterable[Network]) -> bool:
    """Whether a route of this range is ours: its first or last address is a Pod's.

    A range that is wider than the cluster's is not.
    """
    return any(
        one.version == network.version
        and (network.network_address in one or network.broadcast_address in one)
        for one in ranges
    )


def pod_networks(node: Node) -> Mapping[Network, str]:
    """The node's Pod ranges, each once, as it spells them; what is no CIDR is left out."""
    found: dict[Network, str] = {}
    for cidr in node.spec.pod_cidrs or ():
        network = parse_cidr(cidr)
        if network is not None:
            found.setdefault(network, cidr)
    return found


def has_no_pod_cidrs(node: Node) -> bool:
    """Whether the node has no Pod ranges (yet, or for a moment)."""
    return not node.spec.pod_cidrs


def concerns_routes(old: Node | None, new: Node | None, *, targets: Collection[str]) -> bool:
    """Whether a change of a node may change its routes.

    Args:
        old: the node as it was; None = it was not there.
        new: the node as it is; None = it is gone.
        targets: names of the nodes that routes of the cloud lead to.
    """
    if old is None or new is None:
        one = new or old
        return one is not None and (not has_no_pod_cidrs(one) or one.name in targets)
    if has_no_pod_cidrs(old) and has_no_pod_cidrs(new):
        return False
    return (
        old.uid != new.uid
        or (old.spec.pod_cidrs or []) != (new.spec.pod_cidrs or [])
        or list(old.addresses) != list(new.addresses)
    )


def compare(
    nodes: Iterable[Node],
    routes: Iterable[Route],
    *,
    ranges: Sequence[Network],
    held: Collection[str] = (),
) -> Plan:
    """Say what follows from the nodes and the cloud's routes.

    Args:
        nodes: all nodes of a complete cache.
        routes: all routes of the cloud.
        ranges: the cluster's Pod ranges.
        held: names of nodes that lost their Pod ranges a moment ago: their routes stay, as
            long as no other node wants a range that overlaps.
    """
    by_name = {node.name: node for node in nodes}
    wanted = {
        (name, network): cidr
        for name, node in by_name.items()
        for network, cidr in pod_networks(node).items()
    }
    routes = list(routes)
    serving, unserving = _sorted_out(routes, wanted, ranges)
    deletions: list[Deletion] = []
    spared: list[Deletion] = []
    for each in unserving:
        is_spared = each.reason is DeletionReason.STRAY and each.route.target_node in held
        (spared if is_spared else deletions).append(each)
    satisfied = set()
    for key, candidates in serving.items():
        best, unwanted = _choose(by_name[key[0]], key[1], candidates)
        deletions += [each for each in unwanted if is_managed(each.network, ranges)]
        if best is not None:
            satisfied.add(key)
    missing = {key: cidr for key, cidr in wanted.items() if key not in satisfied}
    targets = {route.target_node for route in routes}
    in_the_way = Overlaps(network for _, network in missing)
    deletions += [each for each in spared if in_the_way.with_(each.network)]
    deletions.sort(key=lambda each: (str(each.network), each.route.target_node, each.route.name))
    obstacles = Overlaps(each.network for each in deletions)
    return Plan(
        deletions=deletions,
        creations=[
            Creation(node=by_name[name], cidr=cidr, network=network, after=obstacles.with_(network))
            for (name, network), cidr in sorted(missing.items(), key=_by_node)
        ],
        kept=len(satisfied),
        missing=_by_name(by_name.values(), missing),
        cut_off=tuple(
            name
            for name, node in by_name.items()
            if has_no_pod_cidrs(node) and name in targets and name not in held
        ),
    )


def is_wanted(route: Route, node: Node | None) -> bool:
    """Whether the node that a route leads to wants the route's range."""
    return node is not None and parse_cidr(route.destination_cidr) in pod_networks(node)


def condition_patch(
    node: Node, *, created: bool, now: str, keep_foreign_reason: bool = False
) -> Patch | None:
    """The status patch for NetworkUnavailable; None when the condition is right already.

    Args:
        node: the node as it is.
        created: whether every route of the node is there.
        now: the time to write, RFC 3339.
        keep_foreign_reason: leave a condition of the right status alone whatever its reason.
    """
    status = names.STATUS_FALSE if created else names.STATUS_TRUE
    reason = names.REASON_ROUTE_CREATED if created else names.REASON_NO_ROUTE_CREATED
    present = _condition(node)
    if (
        present is not None
        and present.status == status
        and (present.reason == reason or keep_foreign_reason)
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
    return {"metadata": same_object(node), "status": {"conditions": [condition]}}


class Overlaps:
    """Networks by position, asked which of them overlap another; cheap for thousands.

    Two CIDRs overlap only if one contains the other.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._at: dict[Network, list[int]] = {}
        for position, network in enumerate(networks):
            self._at.setdefault(network, []).append(position)
        self._lengths = {(one.version, one.prefixlen) for one in self._at}
        self._ordered = sorted(self._at, key=_place)
        self._places = [_place(one) for one in self._ordered]

    def with_(self, network: Network) -> Sequence[int]:
        """The positions of the networks that overlap this one, in order."""
        found: list[int] = []
        for version, length in self._lengths:
            if version == network.version and length < network.prefixlen:
                found += self._at.get(network.supernet(new_prefix=length), ())
        position = bisect.bisect_left(self._places, (*_place(network)[:2], 0))
        while position < len(self._ordered) and overlap(self._ordered[position], network):
            one = self._ordered[position]
            if one.prefixlen >= network.prefixlen:
                found += self._at[one]
            position += 1
        return sorted(found)


def _by_node(item: tuple[tuple[str, Network], str]) -> tuple[str, tuple[int, int, int]]:
    (name, network), _ = item
    return (name, _place(network))


def _place(network: Network) -> tuple[int, int, int]:
    return (network.version, int(network.network_address), network.prefixlen)


def _sorted_out(
    routes: Iterable[Route], wanted: Collection[Wanted], ranges: Sequence[Network]
) -> tuple[Mapping[Wanted, list[Route]], list[Deletion]]:
    """The routes that may do what a node wants, and those of ours that do not."""
    serving: dict[Wanted, list[Route]] = {}
    others: list[Deletion] = []
    for route in routes:
        network = parse_cidr(route.destination_cidr)
        if network is None:
            continue
        key = (route.target_node, network)
        if key in wanted and not route.blackhole:
            serving.setdefault(key, []).append(route)
        elif is_managed(network, ranges):
            reason = DeletionReason.BLACKHOLE if route.blackhole else DeletionReason.STRAY
            others.append(Deletion(route=route, network=network, reason=reason))
    return serving, others


def _choose(
    node: Node, network: Network, candidates: Sequence[Route]
) -> tuple[Route | None, list[Deletion]]:
    """Of the routes that lead to a node's range: the one to keep, and those to delete."""
    fitting = [route for route in candidates if _has_addresses_of(route, node)]
    best = min(fitting, key=lambda route: route.name, default=None)
    unwanted: list[Deletion] = []
    for route in candidates:
        if route is best:
            continue
        reason = DeletionReason.STALE if best is None else DeletionReason.DUPLICATE
        # Routes of one name cannot be told apart: deleting the second deletes the first.
        if best is None or route.name != best.name:
            unwanted.append(Deletion(route=route, network=network, reason=reason))
    return best, unwanted


def _has_addresses_of(route: Route, node: Node) -> bool:
    if not route.enable_node_addresses:
        return True
    listed = [(one.type, one.address) for one in route.target_addresses]
    present = [(one.type, one.address) for one in node.addresses]
    return len(listed) == len(present) and set(listed) == set(present)


def _by_name(
    nodes: Iterable[Node], missing: Collection[tuple[str, Network]]
) -> Mapping[str, Collection[Network | str]]:
    found: dict[str, set[Network | str]] = {
        # A range that nobody can read will never have a route.
        node.name: {cidr for cidr in node.spec.pod_cidrs or () if parse_cidr(cidr) is None}
        for node in nodes
        if not has_no_pod_cidrs(node)
    }
    for name, network in missing:
        found[name].add(network)
    return found


def _condition(node: Node) -> NodeCondition | None:
    for condition in node.status.conditions or ():
        if condition.type == names.CONDITION_NETWORK_UNAVAILABLE:
            return condition
    return None

"""Nodes and routes: what is missing, what is too much, in which order. Pure.

`compare` is the one place where the deletion of a route is decided. A route goes only if it
lies in the cluster's Pod ranges, and then only if no node wants it or it does not do what
the node wants. Ranges are compared as networks, never as text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from ccm.cloud.types import Route
from ccm.controllers.route.overlaps import Overlaps, place
from ccm.model import Node, NodeCondition, names
from ccm.model.cidr import Network, parse_cidr
from ccm.model.patches import Patch, same_object

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that stops now and then, so that whoever drives it can let others go on."""

CHUNK = 500
"""Nodes or routes between two stops; some milliseconds of work."""

CREATED_MESSAGE = "RouteController created a route"
NOT_CREATED_MESSAGE = "RouteController failed to create a route"
"""Messages of the node condition (Go cloud-provider, route controller)."""

Key = tuple[str, ...]
"""What names a route in pauses: what is done, node, range, name."""

Wanted = tuple[str, Network]
"""The name of a node and a range that it wants a route to."""

_parsed = lru_cache(maxsize=1 << 16)(parse_cidr)
"""Ranges rarely change, and each is read several times in each comparison."""


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
        doubtful: how many routes stay because their node may be one that cannot be decoded.
    """

    deletions: Sequence[Deletion] = ()
    creations: Sequence[Creation] = ()
    kept: int = 0
    missing: Mapping[str, Collection[Network | str]] = field(default_factory=dict)
    cut_off: Collection[str] = ()
    doubtful: int = 0


def creation_key(node: str, network: Network) -> Key:
    """The key of a `Creation`."""
    return ("create", node, str(network))


def is_managed(network: Network, ranges: Iterable[Network]) -> bool:
    """Whether a route of this range is ours: all its addresses are Pods'.

    One that is wider than the cluster's is not, also where it begins or ends with it: networks
    have routes that other things need, and other clusters.
    """
    return any(_lies_in(network, one) for one in ranges)


def _lies_in(network: Network, whole: Network) -> bool:
    return (
        network.version == whole.version
        and network.network_address in whole
        and network.broadcast_address in whole
    )


def pod_networks(node: Node) -> Mapping[Network, str]:
    """The node's Pod ranges, each once, as it spells them; what is no CIDR is left out."""
    found: dict[Network, str] = {}
    for cidr in node.spec.pod_cidrs or ():
        network = _parsed(cidr)
        if network is not None:
            found.setdefault(network, cidr)
    return found


def has_no_pod_cidrs(node: Node) -> bool:
    """Whether the node has no Pod ranges (yet, or for a moment)."""
    return not node.spec.pod_cidrs


def _may_have_routes(node: Node) -> bool:
    return bool(node.addresses) and not has_no_pod_cidrs(node)


def concerns_routes(old: Node | None, new: Node | None, *, targets: Collection[str]) -> bool:
    """Whether a change of a node may change its routes.

    A new node causes no comparison before it has an address: its addresses would then wait for
    the shortest time between two comparisons.

    Args:
        old: the node as it was; None = it was not there.
        new: the node as it is; None = it is gone.
        targets: names of the nodes that routes of the cloud lead to.
    """
    if old is None or new is None:
        one = new or old
        return one is not None and (_may_have_routes(one) or one.name in targets)
    if has_no_pod_cidrs(old) and has_no_pod_cidrs(new):
        return False
    if not (_may_have_routes(old) or _may_have_routes(new) or new.name in targets):
        return False
    return (
        old.uid != new.uid
        or (old.spec.pod_cidrs or []) != (new.spec.pod_cidrs or [])
        or list(old.addresses) != list(new.addresses)
    )


def ours(
    nodes: Iterable[Node], routes: Sequence[Route], is_foreign: Callable[[Node], bool]
) -> tuple[Sequence[Node], Sequence[Route]]:
    """Nodes and routes without others' nodes and the routes to them.

    Args:
        nodes: all nodes of a complete cache.
        routes: all routes of the cloud.
        is_foreign: whether a node is another's.
    """
    every = list(nodes)
    others = {node.name: node for node in every if is_foreign(node)}
    mine = [node for node in every if node.name not in others]
    # A blackhole names no node: it waits for whoever has the address that it leads to.
    claimed = {one.address for node in others.values() for one in node.addresses}
    claimed -= {one.address for node in mine for one in node.addresses}

    def leads_to_others(route: Route) -> bool:
        return route.target_node in others or any(end in claimed for end in _ends(route))

    return mine, [route for route in routes if not leads_to_others(route)]


def compare(
    nodes: Iterable[Node],
    routes: Sequence[Route],
    *,
    ranges: Sequence[Network],
    held: Collection[str] = (),
    undecodable: Collection[str] = (),
) -> Steps[Plan]:
    """Say what follows from the nodes and the cloud's routes.

    Args:
        nodes: all nodes of a complete cache.
        routes: all routes of the cloud.
        ranges: the cluster's Pod ranges.
        held: names of nodes that lost their Pod ranges a moment ago: their routes stay, as
            long as no other node wants a range that overlaps.
        undecodable: names of nodes whose newest state cannot be decoded; empty: one whose name
            cannot be read either. No route that could be theirs is deleted.
    """
    by_name = {node.name: node for node in nodes}
    holders = _holders(by_name.values())
    wanted = yield from _wanted(by_name.values())
    serving, unserving = yield from _sorted_out(routes, wanted, holders, ranges)
    satisfied, unwanted = yield from _chosen(serving, by_name, ranges)
    lacking = yield from _lacking(wanted, satisfied)
    # A route to an address of another node would lead to that one, and be deleted again. Without
    # an address there is nothing to route to yet.
    creatable = [
        each
        for each in lacking
        if by_name[each[0]].addresses and not _is_displaced(by_name[each[0]], each[2], holders)
    ]
    spared = [each for each in unserving if _is_spared(each, held)]
    deletions = [*unwanted, *(each for each in unserving if not _is_spared(each, held))]
    if spared:
        in_the_way = Overlaps(network for _, _, network, _ in creatable)
        deletions += [each for each in spared if in_the_way.with_(each.network)]
    sure = [each for each in deletions if not is_doubtful(each, by_name, undecodable)]
    sure.sort(key=lambda each: (str(each.network), each.route.target_node, each.route.name))
    yield
    targets = {route.target_node for route in routes}
    return Plan(
        deletions=sure,
        creations=(
            yield from _creations(
                creatable, by_name, Overlaps(one.network for one in sure if creatable)
            )
        ),
        kept=len(satisfied),
        missing=(yield from _by_name(by_name.values(), lacking)),
        cut_off=tuple(
            name
            for name, node in by_name.items()
            if has_no_pod_cidrs(node) and name in targets and name not in held
        ),
        doubtful=len(deletions) - len(sure),
    )


def is_doubtful(each: Deletion, nodes: Collection[str], undecodable: Collection[str]) -> bool:
    """Whether the route may belong to a node that cannot be decoded."""
    if not undecodable:
        return False
    target = each.route.target_node
    return target in undecodable or ("" in undecodable and target not in nodes)


def is_wanted(route: Route, node: Node | None) -> bool:
    """Whether the node that a route leads to wants the route's range."""
    return node is not None and _parsed(route.destination_cidr) in pod_networks(node)


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


_Lacking = tuple[str, tuple[int, int, int], Network, str]
"""A missing route: node, place in the order of networks, range, and as the node spells it."""


def _chunks(items: Iterable[T]) -> Iterator[Sequence[T]]:
    every = list(items)
    for start in range(0, len(every), CHUNK):
        yield every[start : start + CHUNK]


def _wanted(nodes: Iterable[Node]) -> Steps[Mapping[Wanted, str]]:
    """What the nodes want, as they spell it."""
    found: dict[Wanted, str] = {}
    for part in _chunks(nodes):
        for node in part:
            for network, cidr in pod_networks(node).items():
                found[node.name, network] = cidr
        yield
    return found


def _sorted_out(
    routes: Iterable[Route],
    wanted: Collection[Wanted],
    holders: Mapping[str, Node],
    ranges: Sequence[Network],
) -> Steps[tuple[Mapping[Wanted, list[Route]], list[Deletion]]]:
    """The routes that may do what a node wants, and those of ours that do not."""
    serving: dict[Wanted, list[Route]] = {}
    others: list[Deletion] = []
    for part in _chunks(routes):
        for route in part:
            network = _parsed(route.destination_cidr)
            if network is None:
                continue
            # Made anew, one that leads to an address its node still claims would lead nowhere
            # too: a VM goes before its node. It goes with the node, or with the claim.
            target = "" if route.blackhole else route.target_node
            ends = (holders.get(end) for end in _ends(route))
            key = (next(("" if node is None else node.name for node in ends), target), network)
            if key in wanted:
                serving.setdefault(key, []).append(route)
            elif is_managed(network, ranges):
                reason = DeletionReason.BLACKHOLE if route.blackhole else DeletionReason.STRAY
                others.append(Deletion(route=route, network=network, reason=reason))
        yield
    return serving, others


def _holders(nodes: Iterable[Node]) -> Mapping[str, Node]:
    """Return the node that has each address: of several that claim an address, the newest."""
    found: dict[str, Node] = {}
    for node in nodes:
        for one in node.addresses:
            if not _is_newer(found.setdefault(one.address, node), node):
                found[one.address] = node
    return found


def _is_newer(one: Node, other: Node) -> bool:
    return (one.metadata.creation_timestamp or "") > (other.metadata.creation_timestamp or "")


def _is_displaced(node: Node, network: Network, holders: Mapping[str, Node]) -> bool:
    """Return whether the addresses that lead to a node's range went to newer nodes.

    Then the VM of the older node is gone, and its node may be deleted much later. Only internal
    addresses count, and only if all are taken: nodes may share an external one, or one of a bridge.
    """
    internal = [
        one.address
        for one in node.addresses
        if one.type == names.ADDRESS_INTERNAL_IP and (":" in one.address) == (network.version == 6)
    ]
    return bool(internal) and all(_is_newer(holders[address], node) for address in internal)


def _ends(route: Route) -> Sequence[str]:
    """Where a blackhole leads; it names no node, as other routes do."""
    return [one.address for one in route.target_addresses] if route.blackhole else ()


def _chosen(
    serving: Mapping[Wanted, Sequence[Route]], nodes: Mapping[str, Node], ranges: Sequence[Network]
) -> Steps[tuple[Collection[Wanted], list[Deletion]]]:
    """What has its route, and the routes beside it that have to go."""
    satisfied: set[Wanted] = set()
    deletions: list[Deletion] = []
    for part in _chunks(serving.items()):
        for key, candidates in part:
            best, unwanted = _choose(nodes[key[0]], key[1], candidates)
            deletions += [each for each in unwanted if is_managed(each.network, ranges)]
            if best is not None:
                satisfied.add(key)
        yield
    return satisfied, deletions


def _lacking(
    wanted: Mapping[Wanted, str], satisfied: Collection[Wanted]
) -> Steps[Sequence[_Lacking]]:
    """What has no route, by node and range."""
    found: list[_Lacking] = []
    for part in _chunks(wanted.items()):
        for key, cidr in part:
            if key not in satisfied:
                found.append((key[0], place(key[1]), key[1], cidr))
        yield
    return sorted(found, key=lambda each: each[:2])


def _creations(
    lacking: Iterable[_Lacking], nodes: Mapping[str, Node], obstacles: Overlaps
) -> Steps[Sequence[Creation]]:
    found: list[Creation] = []
    for part in _chunks(lacking):
        for name, _, network, cidr in part:
            after = obstacles.with_(network)
            found.append(Creation(node=nodes[name], cidr=cidr, network=network, after=after))
        yield
    return found


def _is_spared(each: Deletion, held: Collection[str]) -> bool:
    return each.reason is DeletionReason.STRAY and each.route.target_node in held


def _choose(
    node: Node, network: Network, candidates: Sequence[Route]
) -> tuple[Route | None, list[Deletion]]:
    """Of the routes that lead to a node's range: the one to keep, and those to delete."""
    fitting = [route for route in candidates if _has_addresses_of(route, node)]
    best = min(fitting, key=lambda route: (route.blackhole, route.name), default=None)
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
    # No address is no other address: without one the route could not be made anew.
    if not route.enable_node_addresses or not node.addresses:
        return True
    listed = [(one.type, one.address) for one in route.target_addresses]
    present = [(one.type, one.address) for one in node.addresses]
    return len(listed) == len(present) and set(listed) == set(present)


def _by_name(
    nodes: Iterable[Node], lacking: Iterable[_Lacking]
) -> Steps[Mapping[str, Collection[Network | str]]]:
    found: dict[str, set[Network | str]] = {}
    for part in _chunks(nodes):
        for node in part:
            if not has_no_pod_cidrs(node):
                # A range that nobody can read will never have a route.
                cidrs = node.spec.pod_cidrs or ()
                found[node.name] = {cidr for cidr in cidrs if _parsed(cidr) is None}
        yield
    for name, _, network, _ in lacking:
        found[name].add(network)
    return found


def _condition(node: Node) -> NodeCondition | None:
    for condition in node.status.conditions or ():
        if condition.type == names.CONDITION_NETWORK_UNAVAILABLE:
            return condition
    return None

"""Nodes and routes: what is missing, what is too much, in which order. Pure.

`compare` is the one place where the deletion of a route is decided. A route goes only if it
lies in the cluster's Pod ranges, and then only if no node wants it or it does not do what
the node wants. Ranges are compared as networks, never as text.
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
from ccm.model.patches import Patch, same_object

CREATED_MESSAGE = "RouteController created a route"
NOT_CREATED_MESSAGE = "RouteController failed to create a route"
"""Messages of the node condition (Go cloud-provider, route controller)."""

CHUNK = 500
"""Routes or nodes that are dealt with before others get their turn; some milliseconds of work."""

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

    @property
    def wanted(self) -> Wanted:
        """The node and range that the route serves, or served."""
        return (self.route.target_node, self.network)


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


def is_managed(network: Network, ranges: Iterable[Network]) -> bool:
    """Whether a route of this range is ours: all its addresses are Pods'.

    One that is wider than the cluster's is not, also where it begins or ends with it: networks
    have routes that other things need, and other clusters.
    """
    return any(
        network.version == whole.version
        and network.network_address in whole
        and network.broadcast_address in whole
        for whole in ranges
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
) -> Generator[None, None, Plan]:
    """Return a plan from the nodes and the cloud's routes; yield after each chunk.

    With 5,000 nodes the whole comparison takes 0.1 to 0.5 s, too long for one turn of the event
    loop.

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
    wanted: dict[Wanted, str] = {}
    for number, (name, node) in enumerate(by_name.items()):
        if number % CHUNK == 0:
            yield
        wanted |= {(name, network): cidr for network, cidr in pod_networks(node).items()}
    serving, unserving = yield from _sorted_out(routes, wanted, holders, ranges)
    satisfied: set[Wanted] = set()
    deletions: list[Deletion] = []
    for number, (key, candidates) in enumerate(serving.items()):
        if number % CHUNK == 0:
            yield
        best, unwanted = _choose(by_name[key[0]], key[1], candidates)
        deletions += [each for each in unwanted if is_managed(each.network, ranges)]
        if best is not None:
            satisfied.add(key)
    yield
    lacking = [key for key in wanted if key not in satisfied]
    lacking.sort(key=lambda key: (key[0], place(key[1])))
    # A route to an address of another node would lead to that one, and be deleted again. Without
    # an address there is nothing to route to yet.
    creatable = [
        (name, network)
        for name, network in lacking
        if by_name[name].addresses and not _is_displaced(by_name[name], network, holders)
    ]
    in_the_way = Overlaps(network for _, network in creatable if held)
    deletions += [
        each
        for each in unserving
        if each.reason is not DeletionReason.STRAY
        or each.route.target_node not in held
        or in_the_way.with_(each.network)
    ]
    sure = [each for each in deletions if not is_doubtful(each, by_name, undecodable)]
    sure.sort(key=lambda each: (str(each.network), each.route.target_node, each.route.name))
    yield
    obstacles = Overlaps(each.network for each in sure if creatable)
    creations: list[Creation] = []
    for number, (name, network) in enumerate(creatable):
        if number % CHUNK == 0:
            yield
        creations.append(
            Creation(
                node=by_name[name],
                cidr=wanted[name, network],
                network=network,
                after=obstacles.with_(network),
            )
        )
    yield
    # A range that cannot be read will never have a route.
    missing: dict[str, set[Network | str]] = {
        name: {cidr for cidr in node.spec.pod_cidrs or () if _parsed(cidr) is None}
        for name, node in by_name.items()
        if not has_no_pod_cidrs(node)
    }
    for name, network in lacking:
        missing[name].add(network)
    targets = {route.target_node for route in routes}
    return Plan(
        deletions=sure,
        creations=creations,
        kept=len(satisfied),
        missing=missing,
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


def strays(found: Plan) -> set[Wanted]:
    """The routes that shall go because no node wants them."""
    return {each.wanted for each in found.deletions if each.reason is DeletionReason.STRAY}


def unexplained(
    found: Plan, node_of: Callable[[str], Node | None], released: Collection[Wanted]
) -> list[Deletion]:
    """Those of them that rest on the absence of a node, or of all its ranges, alone.

    Args:
        found: what follows from a listing.
        node_of: the node of that name, if there is one.
        released: nodes that were seen to be deleted, with their ranges.
    """

    def is_unexplained(each: Deletion) -> bool:
        if each.reason is not DeletionReason.STRAY or each.wanted in released:
            return False
        node = node_of(each.route.target_node)
        return node is None or has_no_pod_cidrs(node)

    return [each for each in found.deletions if is_unexplained(each)]


def without(found: Plan, held: Collection[Deletion]) -> Plan:
    """The plan without some deletions, and without what they were to make room for."""
    if not held:
        return found
    staying = {id(each) for each in held}
    targets = {each.route.target_node for each in held}
    going = [place for place, each in enumerate(found.deletions) if id(each) not in staying]
    moved = {before: after for after, before in enumerate(going)}
    return replace(
        found,
        deletions=[found.deletions[place] for place in going],
        creations=[
            replace(each, after=[moved[place] for place in each.after])
            for each in found.creations
            if all(place in moved for place in each.after)
        ],
        cut_off=[name for name in found.cut_off if name not in targets],
    )


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
    return {"metadata": same_object(node), "status": {"conditions": [condition]}}


def _sorted_out(
    routes: Iterable[Route],
    wanted: Collection[Wanted],
    holders: Mapping[str, Node],
    ranges: Sequence[Network],
) -> Generator[None, None, tuple[Mapping[Wanted, list[Route]], list[Deletion]]]:
    """Return the routes that may do what a node wants, and those of ours that do not."""
    serving: dict[Wanted, list[Route]] = {}
    others: list[Deletion] = []
    for number, route in enumerate(routes):
        if number % CHUNK == 0:
            yield
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often the controller compares, and what it may do.

    Attributes:
        period_s: seconds between the starts of two comparisons; None = when nodes change.
        interval_s: shortest time between two comparisons that changes of nodes cause.
        settle_s: how long the first change waits for others.
        safety_s: longest time without a comparison, before jitter.
        concurrency: calls that create and delete at once.
        grace_s: how long a node without Pod ranges keeps the routes it has.
        keep_foreign_reason: leave a NetworkUnavailable condition of the right status alone
            when another writer wrote it.
        allow_mass_deletion: delete routes however many nodes are missing.
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
    """The next comparison; all moments are monotonic seconds.

    There is one moment at which it is due, and every reason for one can only bring it forward.
    With a fixed period (the Go reference's default) the period alone counts.

    Args:
        settings: how often.
        wake: told the moment whenever it may have changed.
    """

    def __init__(self, settings: Settings, wake: Callable[[float], object]) -> None:
        self._settings = settings
        self._wake = wake
        self._compared_at = -math.inf
        self.due = math.inf
        """When the next comparison is due; infinity while nothing asks for one."""

    def begin(self, now: float) -> bool:
        """Begin a comparison, if one is due."""
        if now < self.due:
            # What had asked for this moment was dealt with earlier.
            self.force(self.due)
            return False
        self._compared_at = now
        self.due = math.inf
        return True

    def listing_failed(self, now: float, pause_s: float) -> None:
        """There is nothing to compare with: try again after a pause."""
        period_s = self._settings.period_s
        self.force(now + pause_s if period_s is None else self._compared_at + period_s)

    def finished(self, wishes: Iterable[float], *, safety_s: float) -> None:
        """A comparison is over: the next comes at the first of some moments at latest.

        Args:
            wishes: when it would find something to do; moments of the past say nothing.
            safety_s: when it comes in any case, in seconds since the one that is over.
        """
        began, period_s = self._compared_at, self._settings.period_s
        if period_s is None:
            period_s = min([safety_s, *(wish - began for wish in wishes if wish > began)])
        self.force(began + period_s)

    def soon(self, now: float) -> None:
        """Something changed: compare when it has settled, and not too often."""
        self._wish(
            max(now + self._settings.settle_s, self._compared_at + self._settings.interval_s)
        )

    def retry(self, now: float, pause_s: float) -> None:
        """A call failed: compare when its pause is over."""
        spacing_s = min(pause_s, self._settings.interval_s)
        self._wish(max(now + pause_s, self._compared_at + spacing_s))

    def force(self, due: float) -> None:
        """Compare at that moment at latest, fixed period or not."""
        self.due = min(self.due, due)
        if self.due < math.inf:
            self._wake(self.due)

    def _wish(self, due: float) -> None:
        if self._settings.period_s is None:
            self.force(due)

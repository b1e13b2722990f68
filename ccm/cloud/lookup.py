"""Lookup of instances: which nodes are ours, and the cloud's data about their instances.

`InstancesV2` takes precedence. Otherwise `Instances` with `Zones` is used, with the order of calls
and the fallbacks of the Go cloud-controller-manager. If the provider has an inventory, all
controllers share one bulk listing, made only if it saves cloud requests.

A listing saves requests if single calls for all waiting lookups would take more requests than the
last listing took. A listing proves presence only: an instance missing from it is looked up by a
single call. Bulk listing pauses after a listing that failed. For the same time after a listing that
served fewer lookups than it took requests, a listing must save `PAUSE_FACTOR` times its requests.

The data of a listing may be as old as its start, so the age of a listing counts from its start. A
node without provider ID is looked up by its name, which another machine may have had before. So the
lookup needs a listing that started after the node was first seen.

Initialisation would take a listing for every few new nodes, so the requests would grow with the
square of the cluster. Therefore an older listing initialises a new node whose instance it holds:
for `RECENT_S`, in which no instance can be created, boot and register its node, or for
`UNCHANGED_S` if an earlier listing held the same data, so that the instance was complete. The
record may still be of a former instance of the same name. So the lookup needs a new listing if a
Node of that name was deleted, if the kubelet reports an IP that the record lacks, or if the listing
started so long before the node was first seen that the instance may have been replaced
(`_Index.replacement_s`). The rate of listings does not depend on the number of nodes
(`REQUESTS_PER_S`), and between two listings, single calls for new nodes take no more requests than
a listing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ccm.base import log, metrics
from ccm.base.clock import monotonic
from ccm.base.tasks import cancel_and_join, in_slices, spawn
from ccm.cloud.errors import CloudError, FailedPrecondition, NotFound, Unimplemented
from ccm.cloud.helpers import format_provider_id, is_foreign
from ccm.cloud.interface import Cloud, Instances, InstanceStates, InstancesV2, Zones
from ccm.cloud.operation import ProviderClient
from ccm.cloud.types import (
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    Power,
    Zone,
)
from ccm.model import Node, NodeAddress, names
from ccm.model.node import is_uninitialized
from ccm.model.selectors import Requirement, parse_labels


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOwnership:
    """Rules that tell which nodes are ours; other nodes are neither looked up nor changed.

    Attributes:
        schemes: provider ID schemes of our cloud.
        foreign_prefixes: prefixes of provider IDs that have one of these schemes, but belong to
            another controller.
        selector: label selector of our nodes; empty = every node matches.
    """

    schemes: Collection[str]
    foreign_prefixes: Collection[str] = ()
    selector: tuple[Requirement, ...] = ()

    @classmethod
    def from_flag(cls, schemes: Collection[str], node_selector: str) -> NodeOwnership:
        """Build from the value of `--node-selector`. Raises BadSelectorError."""
        return cls(schemes=tuple(schemes), selector=parse_labels(node_selector))

    @classmethod
    def for_cloud(cls, cloud: Cloud, node_selector: str) -> NodeOwnership:
        """Build from a provider and the value of `--node-selector`. Raises BadSelectorError."""
        return replace(
            cls.from_flag(cloud.provider_schemes, node_selector), foreign_prefixes=cloud.foreign_ids
        )

    @property
    def has_selector(self) -> bool:
        """Whether a label selector is configured."""
        return bool(self.selector)

    def is_foreign(self, node: Node) -> bool:
        """Return whether a node belongs to another cloud or to another controller."""
        return self.has_foreign_id(node) or not all(
            term.matches(node.labels) for term in self.selector
        )

    def may_change(self, node: Node, *, is_confirmed: bool) -> bool:
        """Return whether a node may be changed without a lookup in the cloud.

        A foreign node may never be changed. A node with neither provider ID nor uninitialized taint
        has an unknown owner: it may be changed only if a selector is configured or `is_confirmed`.

        Args:
            node: the node.
            is_confirmed: whether the current provider session has confirmed the node's instance.
        """
        says_ours = node.provider_id or is_uninitialized(node) or self.has_selector
        return (bool(says_ours) or is_confirmed) and not self.is_foreign(node)

    def has_foreign_id(self, node: Node) -> bool:
        """Return whether the node's provider ID belongs to another cloud or controller."""
        return is_foreign(node.provider_id, self.schemes, self.foreign_prefixes)


ASSUMED_PAGE_SIZE = 50
"""Instances per cloud request, assumed before the first listing; a small common page size."""

LISTING_WAIT_S = 60.0
"""Maximum seconds that a lookup waits for a listing; a single call follows. So a hanging listing
delays a node no longer than a hanging single call."""

LISTING_INTERVAL_S = 1.0
"""Minimum seconds between the starts of two listings, because a listing reads all instances. Nodes
that appear in this time share the next listing."""

REQUESTS_PER_S = 3.0
"""Average of the requests per second that listings take at most: the next listing after one of 30
pages starts 10 s later."""

LONGEST_INTERVAL_S = 30.0
"""Limit of the seconds between two listings of many pages, because lookups wait for the second."""

RECENT_S = 10.0
"""Age in seconds up to which a listing initialises nodes that were first seen after its start. An
instance that registers its node in this time had its addresses when the listing started."""

UNCHANGED_S = 120.0
"""The same for an instance that a listing at least `RECENT_S` earlier held with the same data.

Nodes that registered in time (`_Index.replacement_s`) may wait this long for their turn."""

REPLACEMENT_S = 30.0
"""Maximum seconds from the start of a listing until an instance in it may have been deleted, and
replaced by one of the same name and IPs that registered its node. See `_Index.replacement_s`."""

FORMER_NAME_S = 3600.0
"""Seconds after the deletion of a Node in which its name may mean its former instance."""

_IP_TYPES = (names.ADDRESS_INTERNAL_IP, names.ADDRESS_EXTERNAL_IP)

LISTING_PAUSE_S = 60.0
"""Seconds without bulk listing after a listing that failed; see `PAUSE_FACTOR` too."""

PAUSE_FACTOR = 10
"""Factor by which single calls must exceed the requests of a listing, for `LISTING_PAUSE_S` after a
listing that saved no requests.

The last listing of many may serve few nodes, and the next pass over all nodes must not make a
single call for each of thousands."""

_LISTINGS = metrics.counter(
    "ccm_cloud_inventory_listings", "Bulk listings by outcome.", ["outcome"]
)
_LOOKUPS = metrics.counter(
    "ccm_cloud_inventory_lookups",
    "Lookups of instances that began with the shared listing, by source of the result: listing or "
    "single call.",
    ["source"],
)


class SharedInventory:
    """Bulk listing of instances, shared by all controllers.

    Args:
        fetch: makes a listing; never called concurrently.
        population: returns the number of nodes in the cluster, from which the requests of the first
            listing are estimated.
        max_age_s: seconds from the start of a listing until new lookups no longer use it. A lookup
            that waited for the listing uses it, however long the listing took.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[InstanceListing]],
        *,
        population: Callable[[], int],
        max_age_s: float,
    ) -> None:
        self._fetch = fetch
        self._population = population
        self._max_age_s = max_age_s
        self._log = log.logger("inventory")
        self._index: _Index | None = None
        self._paused_until = self._inefficient_until = -math.inf
        self._listing_task: asyncio.Task[_Index | None] | None = None
        self._is_outdated = False
        self._started_at = -math.inf
        self._without_id_since: dict[str, float] = {}
        self._former_names: dict[str, float] = {}
        self._single_calls = 0
        """Single calls for new nodes since the last listing: they never cost more than the next."""

    def on_node_event(self, old: Node | None, new: Node | None) -> None:
        """Handle a node event: record when a node without provider ID was first seen.

        Args:
            old: the former node; None for a new one.
            new: the current node; None for a deleted one.
        """
        if old is not None and (new is None or new.uid != old.uid):
            self._without_id_since.pop(old.uid, None)
            self._record_former_name(old.name)
        if new is not None and new.provider_id:
            self._without_id_since.pop(new.uid, None)
        elif new is not None:
            self._without_id_since.setdefault(new.uid, monotonic())

    async def find(
        self, node: Node, *, single_requests: int, initial: bool = False
    ) -> InstanceRecord | None:
        """Return a node's instance from a listing; None = a single call is needed.

        Args:
            node: the node, looked up by its provider ID, or by its name if it has none.
            single_requests: number of requests to the cloud if all waiting lookups, including
                this one, were made by single calls.
            initial: whether the lookup initialises the node, so that an older listing may serve.
        """
        since = -math.inf if node.provider_id else self._without_id_since.get(node.uid, math.inf)
        record = self._initial_record(node, since) if initial else None
        if record is None:
            record = await self._find_in_new(node, since, single_requests, initial)
        _LOOKUPS.labels("listing" if record is not None else "single").inc()
        return record

    def invalidate(self) -> None:
        """Discard all listings, including one in flight, after the provider was replaced."""
        self._index = None
        self._paused_until = self._inefficient_until = -math.inf
        self._is_outdated = self._listing_task is not None

    async def close(self) -> None:
        """Cancel a listing in flight."""
        await cancel_and_join(self._listing_task)
        self._listing_task = None

    def _is_fresh(self, began: float, since: float) -> bool:
        """Return whether a listing started at `began` is valid for a node first seen at `since`."""
        return began >= since and monotonic() < began + self._max_age_s

    def _record_former_name(self, name: str) -> None:
        now = monotonic()
        self._former_names.pop(name, None)
        self._former_names[name] = now
        # The oldest name comes first.
        while now - self._former_names[oldest := next(iter(self._former_names))] >= FORMER_NAME_S:
            del self._former_names[oldest]

    def _initial_record(self, node: Node, since: float) -> InstanceRecord | None:
        """Return the record that may initialise the node; None = the lookup needs a new listing."""
        index = self._index
        entry = index.entry(node) if index is not None and self._max_age_s > 0 else None
        if index is None or entry is None or since == math.inf:
            return None
        record, unchanged_since = entry
        is_unchanged = index.started_at - unchanged_since >= RECENT_S
        if monotonic() >= index.started_at + (UNCHANGED_S if is_unchanged else RECENT_S):
            return None
        if index.started_at < since and (
            node.name in self._former_names
            or not _has_ips(record, node)
            or since - index.started_at >= index.replacement_s
        ):
            return None
        index.hits += 1
        return record

    async def _find_in_new(
        self, node: Node, since: float, single_requests: int, initial: bool
    ) -> InstanceRecord | None:
        if self._index is not None and self._is_fresh(self._index.started_at, since):
            return self._index.find(node)
        if since == math.inf or (initial and self._is_absent(node, since)):
            return None
        try:
            async with asyncio.timeout(LISTING_WAIT_S):
                return await self._await_listing(node, since, single_requests, initial)
        except TimeoutError:
            return None

    def _is_absent(self, node: Node, since: float) -> bool:
        """Return whether a listing lacks a node without provider ID, although it is newer.

        The node may be of another cloud, so it must not wait for the next listing at each retry.
        """
        index = self._index
        return (
            index is not None
            and index.entry(node) is None
            and -math.inf < since <= index.started_at
            and monotonic() < index.started_at + UNCHANGED_S
        )

    async def _await_listing(
        self, node: Node, since: float, single_requests: int, initial: bool
    ) -> InstanceRecord | None:
        while not self._is_outdated:
            serves = self._listing_task is not None and self._is_fresh(self._started_at, since)
            may_serve = (
                initial
                and self._listing_task is not None
                and monotonic() < self._started_at + RECENT_S
            )
            if not (serves or may_serve) and self._may_call(single_requests, initial):
                return None
            if self._listing_task is None:
                # The listing starts after a delay (`_interval_s`); until then all lookups can
                # share it.
                self._started_at = math.inf
                self._listing_task = spawn(self._refresh(), name="inventory-listing")
                serves = True
            # Shielded, because other lookups wait for the same listing.
            index = await asyncio.shield(self._listing_task)
            if serves or index is None:
                return None if index is None else index.find(node)
            if initial and (record := self._initial_record(node, since)) is not None:
                return record
        return None

    def _may_call(self, single_requests: int, initial: bool) -> bool:
        """Return whether a lookup may make a single call rather than wait for the next listing."""
        last = self._index
        if initial:
            single_requests += self._single_calls
            if last is not None and monotonic() < last.started_at + 2 * UNCHANGED_S:
                # As many nodes may follow as before.
                single_requests = max(single_requests, last.hits)
        if monotonic() < self._paused_until:
            return True
        # If the listing in flight is slow, a single call is faster than the listing after it.
        is_slow = (
            not initial
            and self._listing_task is not None
            and monotonic() >= self._started_at + LISTING_INTERVAL_S
        )
        if self._saves_requests(single_requests) and not is_slow:
            return False
        self._single_calls += initial
        return True

    def _saves_requests(self, single_requests: int) -> bool:
        now = monotonic()
        last = self._index
        # Decide only after the expiry of a listing whether it saved requests: until then, more
        # lookups may use it, even if it is too old for a new node.
        if last is not None and not last.is_judged and now >= last.started_at + self._max_age_s:
            last.is_judged = True
            if last.hits < last.requests:
                self._inefficient_until = now + LISTING_PAUSE_S
        expected = last.requests if last else math.ceil(self._population() / ASSUMED_PAGE_SIZE)
        if now < self._inefficient_until:
            expected *= PAUSE_FACTOR
        return single_requests > max(1, expected)

    def _interval_s(self, index: _Index) -> float:
        """Return the minimum seconds between the start of a listing and the next start."""
        return min(LONGEST_INTERVAL_S, max(LISTING_INTERVAL_S, index.requests / REQUESTS_PER_S))

    async def _refresh(self) -> _Index | None:
        last = self._index
        try:
            if last is not None:
                await asyncio.sleep(last.started_at + self._interval_s(last) - monotonic())
            began = self._started_at = monotonic()
            listing = await self._fetch()
            index = await _Index.build(listing, began, last)
        except CloudError as error:
            if self._is_outdated:
                return None
            self._paused_until = monotonic() + LISTING_PAUSE_S
            _LISTINGS.labels("error").inc()
            self._log.warning("bulk listing failed, falling back to single calls", error=str(error))
            return None
        else:
            _LISTINGS.labels("success").inc()
            if self._is_outdated:
                return None
            self._index, self._single_calls = index, 0
            return index
        finally:
            self._listing_task, self._is_outdated = None, False


_Entry = tuple[InstanceRecord, float]
"""A record, and the start of the first of consecutive listings with the same data."""


class _Index:
    """Index of a listing by provider ID and by name; an ambiguous ID or name is not found."""

    def __init__(self, began: float, requests: int) -> None:
        self.started_at = began
        self.requests = requests
        self.hits = 0
        self.is_judged = False
        self._by_id: dict[str, _Entry | None] = {}
        self._by_name: dict[str, _Entry | None] = {}

    @classmethod
    async def build(cls, listing: InstanceListing, began: float, last: _Index | None) -> _Index:
        """Index a listing, and let other tasks run meanwhile.

        Args:
            listing: the listing.
            began: monotonic time of its start.
            last: index of the listing before; unchanged records are shared with it.
        """
        index = cls(began, listing.requests)
        async for record in in_slices(listing.instances):
            entry = last._by_id.get(record.metadata.provider_id) if last is not None else None  # noqa: SLF001
            index._add(entry if entry is not None and entry[0] == record else (record, began))
        return index

    def _add(self, entry: _Entry) -> None:
        record = entry[0]
        for index, key in (
            (self._by_id, record.metadata.provider_id),
            (self._by_name, record.name),
        ):
            index[key] = None if key in index else entry

    @property
    def replacement_s(self) -> float:
        """Seconds from the start of the listing until an instance in it may have been replaced.

        A former instance may never have had a Node, so no event tells that it was replaced. Up to
        ten requests, a new listing is cheap, so that `RECENT_S` applies. A larger listing serves
        for a second per request, up to `REPLACEMENT_S`: few clouds can delete an instance, and
        create, boot and join another, in that time.
        """
        return max(RECENT_S, min(REPLACEMENT_S, self.requests))

    def entry(self, node: Node) -> _Entry | None:
        """Return the entry of a node's instance."""
        key = node.provider_id
        return self._by_id.get(key) if key else self._by_name.get(node.name)

    def find(self, node: Node) -> InstanceRecord | None:
        """Return the record of a node's instance, and count the hit."""
        entry = self.entry(node)
        if entry is None:
            return None
        self.hits += 1
        return entry[0]


def _has_ips(record: InstanceRecord, node: Node) -> bool:
    """Return whether a record has all IPs that the kubelet reports."""
    known = {entry.address for entry in record.metadata.addresses}
    return all(entry.address in known for entry in node.addresses if entry.type in _IP_TYPES)


T = TypeVar("T")


class InstanceLookup:
    """Lookup of the instance behind a node.

    Args:
        client: client of the cloud.
        inventory: the shared listing; None if the provider has no inventory.
    """

    def __init__(self, client: ProviderClient, inventory: SharedInventory | None = None) -> None:
        self._client = client
        self._inventory = inventory

    @property
    def uses_v2(self) -> bool:
        """Whether the provider implements `InstancesV2`."""
        return self._client.offers(InstancesV2)

    @property
    def provider_session(self) -> int:
        """Number of the provider session; changes when the provider is replaced."""
        return self._client.provider_session

    def confirmed(self, node: Node) -> bool:
        """Return whether the provider session found the instance of a node without provider ID."""
        return node.uid in self._client.confirmed

    def forget(self, node: Node) -> None:
        """Drop the confirmation of a deleted node."""
        self._client.confirmed.discard(node.uid)

    async def metadata(self, node: Node, *, waiting: int = 1) -> InstanceMetadata | None:
        """Return the metadata for the initialisation of a node; None = not available yet.

        Args:
            node: the node to look up.
            waiting: number of nodes that wait for this kind of lookup, including this one.

        Raises:
            CloudError: the lookup failed.
        """
        opening = self.provider_session
        instance = await self._metadata(node, waiting)
        self._record_confirmation(node, opening, exists=instance is not None)
        return instance

    async def addresses(self, node: Node, *, waiting: int = 1) -> Sequence[NodeAddress] | None:
        """Return the current addresses of a node; None = not available yet. Raises CloudError."""
        if self.uses_v2:
            metadata = await self.metadata(node, waiting=waiting)
            return None if metadata is None else metadata.addresses
        opening = self.provider_session
        addresses = await self._v1_addresses(node.provider_id, node.name)
        self._record_confirmation(node, opening, exists=bool(addresses))
        return addresses

    async def state(self, node: Node, *, waiting: int = 1) -> InstanceState:
        """Return existence and power state of the instance.

        Raises:
            CloudError: existence or power state is unknown; the node must be left unchanged.
        """
        opening = self.provider_session
        instance_state = await self._state(node, waiting)
        self._record_confirmation(node, opening, exists=instance_state.exists)
        return instance_state

    async def confirmed_gone(self, node: Node) -> bool:
        """Return whether a single call, never a listing, reports the instance as gone.

        Raises:
            CloudError: existence is unknown; the node must be kept.
        """
        if not self.uses_v2:
            return await self._existing_provider_id(node) is None
        return not await self._client.call(InstancesV2.instance_exists, node)

    async def _state(self, node: Node, waiting: int) -> InstanceState:
        if not self.uses_v2:
            return await self._v1_state(node)
        combined = self._client.offers(InstanceStates)
        record = await self._find_in_listing(node, single_requests=waiting * (1 if combined else 2))
        if record is not None:
            return InstanceState(exists=True, power=record.power)
        if combined:
            return await self._client.call(InstanceStates.instance_state, node)
        if not await self._client.call(InstancesV2.instance_exists, node):
            return GONE
        return await _power_state(self._client.call(InstancesV2.instance_shutdown, node))

    async def _metadata(self, node: Node, waiting: int) -> InstanceMetadata | None:
        if not self.uses_v2:
            return await self._v1_metadata(node)
        record = await self._find_in_listing(
            node, single_requests=waiting, initial=is_uninitialized(node)
        )
        if record is not None:
            return record.metadata
        return await self._client.call(InstancesV2.instance_metadata, node)

    def _record_confirmation(self, node: Node, provider_session: int, *, exists: bool) -> None:
        """Record a node without provider ID as confirmed, if its instance exists.

        The lookup began in `provider_session`. Do nothing if the provider was replaced since then.
        """
        if exists and not node.provider_id and self.provider_session == provider_session:
            self._client.confirmed.add(node.uid)

    async def _find_in_listing(
        self, node: Node, *, single_requests: int, initial: bool = False
    ) -> InstanceRecord | None:
        if self._inventory is None:
            return None
        return await self._inventory.find(node, single_requests=single_requests, initial=initial)

    async def _v1_state(self, node: Node) -> InstanceState:
        provider_id = await self._existing_provider_id(node)
        if provider_id is None:
            return GONE
        ask = Instances.instance_shutdown_by_provider_id
        return await _power_state(self._client.call(ask, provider_id))

    async def _v1_metadata(self, node: Node) -> InstanceMetadata:
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id(node)
            except Unimplemented:
                _warn("provider does not implement instance_id", node)
        addresses = await self._v1_addresses(provider_id, node.name)
        instance_type = await self._first_of(
            lambda: self._client.call(Instances.instance_type_by_provider_id, provider_id),
            lambda: self._client.call(Instances.instance_type, node.name),
            what="instance type",
        )
        zone = Zone()
        if self._client.offers(Zones):
            zone = await self._first_of(
                lambda: self._client.call(Zones.get_zone_by_provider_id, provider_id),
                lambda: self._client.call(Zones.get_zone_by_node_name, node.name),
                what="zone",
            )
        return InstanceMetadata(
            provider_id=provider_id,
            instance_type=instance_type,
            addresses=addresses,
            zone=zone.failure_domain,
            region=zone.region,
        )

    async def _existing_provider_id(self, node: Node) -> str | None:
        """Return the provider ID of the instance if it exists, else None."""
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id(node)
            except NotFound:
                return None
        # A NotFound from here on is an ordinary error: only False means "gone".
        try:
            exists = await self._client.call(Instances.instance_exists_by_provider_id, provider_id)
        except NotFound as error:
            raise FailedPrecondition(f"existence of {provider_id} is unclear: {error}") from error
        return provider_id if exists else None

    async def _v1_addresses(self, provider_id: str, name: str) -> Sequence[NodeAddress]:
        return await self._first_of(
            lambda: self._client.call(Instances.node_addresses_by_provider_id, provider_id),
            lambda: self._client.call(Instances.node_addresses, name),
            what="addresses",
        )

    async def _provider_id(self, node: Node) -> str:
        instance_id = await self._client.call(Instances.instance_id, node.name)
        return format_provider_id(self._client.name, instance_id)

    async def _first_of(
        self, first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[T]], *, what: str
    ) -> T:
        try:
            return await first()
        except CloudError as by_id:
            try:
                return await second()
            except CloudError as by_name:
                text = f"{what}: by provider ID: {by_id}; by name: {by_name}"
                raise _with_message(by_name, text) from by_name


async def _power_state(is_off: Awaitable[bool]) -> InstanceState:
    """Return the state of an existing instance; RUNNING if the provider reports no power state."""
    try:
        return SHUTDOWN if await is_off else RUNNING
    except Unimplemented:
        return RUNNING


def _with_message(error: CloudError, text: str) -> CloudError:
    """Return a copy of an error with another text; class and attributes stay the same.

    The original must not change, because a provider may raise one error object repeatedly.
    """
    kind = type(error)
    copied = kind.__new__(kind, text)
    copied.__dict__.update(error.__dict__)
    return copied


def _warn(message: str, node: Node) -> None:
    log.logger("lookup").warning(message, node=node.name)


GONE = InstanceState(exists=False)
RUNNING = InstanceState(exists=True, power=Power.RUNNING)
SHUTDOWN = InstanceState(exists=True, power=Power.SHUTDOWN)

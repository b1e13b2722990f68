"""Instance lookups of the node controllers: call order and fallbacks of both interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import pytest

from ccm.cloud import (
    Cloud,
    CloudError,
    FailedPrecondition,
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    NotFound,
    Power,
    Unavailable,
    Unimplemented,
    Zone,
    address,
)
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Inventory
from ccm.cloud.lookup import (
    GONE,
    LISTING_INTERVAL_S,
    LISTING_PAUSE_S,
    LISTING_WAIT_S,
    PAUSE_FACTOR,
    RECENT_S,
    REPLACEMENT_S,
    REQUESTS_PER_S,
    RUNNING,
    UNCHANGED_S,
    InstanceLookup,
    SharedInventory,
)
from ccm.model import Node
from ccm.testing.builders import node
from ccm.testing.clock import advance, elapsed_s, settle
from tests.support.fakecloud import FakeCloud, FakeStateCloud

A3 = (
    address("Hostname", "node0.cloud.internal"),
    address("InternalIP", "10.0.0.1"),
    address("ExternalIP", "132.143.154.163"),
)
WITH_ID = node("node0", provider_id="fake://12345")


def lookup(fake: FakeCloud) -> InstanceLookup:
    return InstanceLookup(CloudClient(fake.cloud()))


class Stubborn(FakeCloud):
    """Cloud that refuses every query by provider ID."""

    async def node_addresses_by_provider_id(self, provider_id: str):  # type: ignore[no-untyped-def]
        await super().node_addresses_by_provider_id(provider_id)
        raise NotFound("no address by ID")

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        await super().instance_type_by_provider_id(provider_id)
        raise Unimplemented("no type by ID")

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        await super().get_zone_by_provider_id(provider_id)
        raise ValueError("no zone by ID")


async def test_old_interface_falls_back_to_node_names_for_each_query() -> None:
    fake = Stubborn(
        v2=False, addresses=A3, instance_types={"node0": "small"}, zone=Zone(region="r")
    )

    found = await lookup(fake).metadata(WITH_ID)

    assert fake.calls == [
        "node-addresses-by-provider-id",
        "node-addresses",
        "instance-type-by-provider-id",
        "instance-type",
        "get-zone-by-provider-id",
        "get-zone-by-node-name",
    ]
    assert found == InstanceMetadata(
        provider_id="fake://12345", instance_type="small", addresses=A3, region="r"
    )


@pytest.mark.parametrize(
    "ask", [InstanceLookup.addresses, InstanceLookup.state, InstanceLookup.metadata]
)
async def test_cloud_without_instances_raises_unimplemented(
    ask: Callable[..., Awaitable[object]],
) -> None:
    with pytest.raises(Unimplemented):
        await ask(InstanceLookup(CloudClient(Cloud(name="bare"))), WITH_ID)


MAX_AGE_S = 30.0

pytestmark = pytest.mark.virtual_time


def record(name: str, *, power: Power = Power.RUNNING, provider_id: str = "") -> InstanceRecord:
    metadata = InstanceMetadata(provider_id=provider_id or f"fake://{name}")
    return InstanceRecord(name=name, power=power, metadata=metadata)


def known(name: str) -> Node:
    return node(name, provider_id=f"fake://{name}")


class Listings:
    """Fetch function that returns listings, and blocks on request."""

    def __init__(self, names: Iterable[str] = ("a", "b"), *, requests: int = 1) -> None:
        self.records = [record(name) for name in names]
        self.requests = requests
        self.error: Exception | None = None
        self.fetched = 0
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self) -> InstanceListing:
        self.fetched += 1
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return InstanceListing(instances=list(self.records), requests=self.requests)


def shared(fetch: Listings, *, population: int = 2) -> SharedInventory:
    return SharedInventory(fetch, population=lambda: population, max_age_s=MAX_AGE_S)


async def waiting(inventory: SharedInventory, listings: Listings) -> asyncio.Task[object]:
    """Start a lookup that waits for a blocked listing."""
    listings.free.clear()
    asked = asyncio.ensure_future(inventory.find(known("a"), single_requests=5))
    await settle()
    return asked


async def test_node_without_provider_id_needs_a_listing_newer_than_the_node() -> None:
    listings = Listings(["a", "b", "c"])
    inventory = shared(listings)
    inventory.on_node_event(None, node("a"))
    assert await inventory.find(node("a"), single_requests=5)
    await advance(1)
    inventory.on_node_event(None, node("b"))
    inventory.on_node_event(node("a"), node("a", uid="another"))

    assert await inventory.find(node("b"), single_requests=1) is None
    assert await inventory.find(node("a", uid="another"), single_requests=1) is None
    assert await inventory.find(node("stranger"), single_requests=5) is None
    assert listings.fetched == 1
    assert await inventory.find(node("b"), single_requests=5)
    assert listings.fetched == 2


async def test_inefficient_listing_pauses_bulk_listing() -> None:
    listings = Listings(requests=3)
    inventory = shared(listings)
    await inventory.find(known("a"), single_requests=9)
    await inventory.find(known("nobody"), single_requests=9)
    await advance(MAX_AGE_S)

    most = PAUSE_FACTOR * listings.requests
    assert await inventory.find(known("a"), single_requests=most) is None
    await advance(LISTING_PAUSE_S - 0.001)
    assert await inventory.find(known("a"), single_requests=most) is None
    assert listings.fetched == 1
    await advance(0.001)
    assert await inventory.find(known("a"), single_requests=most)
    assert listings.fetched == 2


async def test_pass_over_many_nodes_makes_no_single_calls_after_an_inefficient_listing() -> None:
    """The last listing of a bring-up serves few nodes, long before the next pass."""
    names = [str(number) for number in range(1000)]
    listings = Listings(names, requests=20)
    inventory = shared(listings, population=len(names))
    assert await inventory.find(known("0"), single_requests=30)
    await advance(MAX_AGE_S + 200)

    found = [await inventory.find(known(name), single_requests=len(names)) for name in names]

    assert None not in found
    assert listings.fetched == 2


def listing(size: int, *, requests: int = 1, kind: type[FakeCloud] = FakeStateCloud) -> FakeCloud:
    """Return a cloud with this many instances; its listing takes this many requests."""
    records = [record(str(number)) for number in range(size)]
    told = InstanceListing(instances=records, requests=requests)
    return kind(exists=True, listing=told, v1=False)


def lookup_of(cloud: FakeCloud, *, population: int) -> InstanceLookup:
    handle = CloudClient(cloud.cloud())
    inventory = SharedInventory(
        lambda: handle.call(Inventory.list_instances),
        population=lambda: population,
        max_age_s=MAX_AGE_S,
    )
    return InstanceLookup(handle, inventory)


async def test_absence_in_a_listing_is_verified_by_a_single_query() -> None:
    cloud = listing(10)
    lookup = lookup_of(cloud, population=10)

    assert await lookup.state(known("newborn"), waiting=10) == RUNNING
    assert cloud.calls == ["list-instances", "instance-state"]
    cloud.exists = False
    assert await lookup.state(known("newborn"), waiting=10) == GONE
    assert await lookup.state(known("3"), waiting=10) == RUNNING


def old(**script: object) -> FakeCloud:
    """A cloud with the old interface only."""
    return FakeCloud(v2=False, **script)  # type: ignore[arg-type]


def wrapped(cause: CloudError) -> Exception:
    error = Unavailable("the proxy failed")
    error.__cause__ = cause
    return error


UNCLEAR = [
    wrapped(NotFound("gone")),
    Unavailable("down"),
    Unimplemented("cannot"),
    ValueError("odd"),
]


@pytest.mark.parametrize("ask", [InstanceLookup.state, InstanceLookup.confirmed_gone])
@pytest.mark.parametrize("error", [*UNCLEAR, NotFound("gone"), TimeoutError()], ids=repr)
async def test_existence_error_is_never_treated_as_not_found(
    ask: Callable[..., Awaitable[object]], error: Exception
) -> None:
    """Through the old interface, the caller does not get NotFound either."""
    with pytest.raises(CloudError) as caught:
        await ask(lookup(old(exists_error=error)), WITH_ID)

    assert not isinstance(caught.value, NotFound)
    if isinstance(error, NotFound):
        assert isinstance(caught.value, FailedPrecondition)
        assert str(caught.value) == "existence of fake://12345 is unclear: gone"


async def test_age_of_a_listing_counts_from_its_start() -> None:
    """Earlier callers get its result; a later query needs a newer listing."""
    listings = Listings()
    inventory = shared(listings)
    asked = await waiting(inventory, listings)
    await advance(MAX_AGE_S)
    assert await inventory.find(known("b"), single_requests=5) is None
    listings.free.set()
    assert await asked
    assert listings.fetched == 1

    assert await inventory.find(known("a"), single_requests=5)
    assert listings.fetched == 2


async def test_unknown_provider_id_is_not_matched_by_name() -> None:
    inventory = shared(Listings())

    assert await inventory.find(node("a", provider_id="fake://x"), single_requests=5) is None


async def test_final_check_before_a_deletion_never_uses_a_listing() -> None:
    cloud = listing(10)
    lookup = lookup_of(cloud, population=10)
    assert await lookup.state(known("3"), waiting=10) == RUNNING
    assert await lookup.metadata(known("3"), waiting=10) == InstanceMetadata(provider_id="fake://3")
    cloud.exists = False

    assert await lookup.confirmed_gone(known("3"))
    assert cloud.calls == ["list-instances", "instance-exists"]


@pytest.mark.parametrize("asked", [known("a"), node("a")], ids=["by_id", "by_name"])
async def test_instance_listed_twice_is_not_used(asked: Node) -> None:
    inventory = shared(Listings(["a", "b", "a"]))
    inventory.on_node_event(None, asked)

    assert await inventory.find(asked, single_requests=100) is None
    assert await inventory.find(known("b"), single_requests=100) is not None


async def test_waiter_gives_up_on_a_hanging_listing() -> None:
    """After a timeout the caller queries its own node; the listing continues for the others."""
    listings = Listings()
    inventory = shared(listings)

    assert await (await waiting(inventory, listings)) is None

    assert elapsed_s() == LISTING_WAIT_S
    await inventory.close()


async def test_listing_is_reused_until_its_maximum_age() -> None:
    listings = Listings()
    inventory = shared(listings)

    for _ in range(3):
        assert await inventory.find(known("a"), single_requests=5)
    await advance(MAX_AGE_S - 0.001)
    assert await inventory.find(known("b"), single_requests=1)
    assert listings.fetched == 1
    await advance(0.001)
    assert await inventory.find(known("b"), single_requests=5)
    assert listings.fetched == 2


async def test_next_listing_must_save_requests_compared_with_the_last_one() -> None:
    listings = Listings(requests=3)
    inventory = shared(listings)
    for name in ("a", "b", "a"):
        await inventory.find(known(name), single_requests=9)
    await advance(MAX_AGE_S)

    await inventory.find(known("a"), single_requests=3)
    assert listings.fetched == 1
    await inventory.find(known("a"), single_requests=4)
    assert listings.fetched == 2


async def test_failed_listing_falls_back_to_single_queries_and_pauses() -> None:
    listings = Listings()
    inventory = shared(listings)
    listings.error = Unavailable("down")

    answers = await asyncio.gather(
        *(inventory.find(known("a"), single_requests=50) for _ in range(10))
    )
    listings.error = None

    assert answers == [None] * 10
    await advance(LISTING_PAUSE_S - 0.001)
    assert await inventory.find(known("a"), single_requests=50) is None
    assert listings.fetched == 1
    await advance(0.001)
    assert await inventory.find(known("a"), single_requests=50)


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("question", ["metadata", "addresses", "state"])
async def test_node_without_provider_id_is_confirmed_per_opened_provider(
    v2: bool, question: str
) -> None:
    fake = FakeCloud(v2=v2, exists=True, addresses=[address("InternalIP", "10.0.0.1")])
    handle = CloudClient(fake.cloud())
    lookup, bare, other = InstanceLookup(handle), node("a"), node("b", provider_id="fake://b")
    for each in (bare, other):
        await getattr(lookup, question)(each)
    assert [lookup.confirmed(bare), lookup.confirmed(other)] == [True, False]

    handle.swap(fake.cloud())
    assert not lookup.confirmed(bare)

    await getattr(lookup, question)(bare)
    lookup.forget(bare)
    assert not lookup.confirmed(bare)


async def test_cancelled_waiter_does_not_cancel_the_listing_of_others() -> None:
    listings = Listings()
    inventory = shared(listings)
    first, second = [await waiting(inventory, listings) for _ in range(2)]

    first.cancel()
    await settle()
    assert first.cancelled()
    listings.free.set()

    assert await second
    assert listings.fetched == 1


async def test_wave_of_new_nodes_shares_a_few_listings() -> None:
    """A node joins every 10 ms and is looked up at once; each lookup waits for a shared listing."""
    fresh = [node(str(number)) for number in range(300)]
    listings = Listings((each.name for each in fresh), requests=2)
    inventory = shared(listings)

    async def come(new: Node, after_s: float) -> object:
        await asyncio.sleep(after_s)
        inventory.on_node_event(None, new)
        return await inventory.find(new, single_requests=9)

    answers = await asyncio.gather(*(come(new, n / 100) for n, new in enumerate(fresh)))

    assert None not in answers
    assert listings.fetched == 4
    assert elapsed_s() <= 2.99 + LISTING_INTERVAL_S


@pytest.mark.parametrize("ask", [InstanceLookup.state, InstanceLookup.confirmed_gone])
@pytest.mark.parametrize("error", UNCLEAR, ids=repr)
async def test_instance_id_error_is_never_treated_as_not_found(
    ask: Callable[..., Awaitable[object]], error: Exception
) -> None:
    with pytest.raises(CloudError):
        await ask(lookup(old(external_id_errors={"a": error})), node("a"))


async def test_answer_of_an_exchanged_provider_confirms_nothing() -> None:
    """The provider is exchanged during a single query, and during a listing."""
    handle = CloudClient(FakeCloud(exists=True).cloud())

    class Exchanged(FakeCloud):
        async def instance_exists(self, node: Node) -> bool:
            handle.swap(FakeCloud().cloud())
            return True

    handle.swap(Exchanged().cloud())
    asked, bare = InstanceLookup(handle), node("a")
    assert (await asked.state(bare)).exists
    assert not asked.confirmed(bare)

    listings = Listings()
    inventory = shared(listings)
    wait = await waiting(inventory, listings)
    inventory.invalidate()
    listings.free.set()
    assert await wait is None
    assert await inventory.find(known("a"), single_requests=1) is None, "it is not kept either"


JOIN_S = 100.0
"""Seconds in which the nodes of a new cluster register."""


class PagedListings(Listings):
    """Listings of the instances that exist at their start, in pages of 50 that take 50 ms each.

    Args:
        created: name of each instance -> time of its creation.
    """

    def __init__(self, created: Mapping[str, float]) -> None:
        super().__init__(requests=len(created) // 50)
        self.created = created

    async def __call__(self) -> InstanceListing:
        began = elapsed_s()
        self.records = [record(name) for name, at in self.created.items() if at <= began]
        await asyncio.sleep(self.requests * 0.05)
        return await super().__call__()


async def join(
    inventory: SharedInventory, name: str, *, after_s: float = 0.0, waiting: int = 64
) -> InstanceRecord | None:
    """A node registers, and is looked up at once to be initialised."""
    await asyncio.sleep(after_s)
    new = node(name)
    inventory.on_node_event(None, new)
    return await inventory.find(new, single_requests=waiting, initial=True)


@pytest.mark.parametrize("boot_s", [3600.0, 20.0], ids=["instances exist", "instances boot"])
async def test_rate_of_listings_does_not_grow_with_the_number_of_new_nodes(boot_s: float) -> None:
    fetched = []
    for size in (500, 2000):
        began = elapsed_s()
        joins = {f"{size}-{number}": JOIN_S * number / size for number in range(size)}
        listings = PagedListings({name: began + at - boot_s for name, at in joins.items()})
        inventory = shared(listings, population=size)

        answers = await asyncio.gather(
            *(join(inventory, name, after_s=at) for name, at in joins.items())
        )

        assert [answer and answer.name for answer in answers] == [*joins]
        fetched.append(listings.fetched)
        assert listings.fetched * listings.requests <= REQUESTS_PER_S * JOIN_S + listings.requests
    if boot_s > UNCHANGED_S:
        longest = "at the start, RECENT_S later, and then each REPLACEMENT_S"
        assert fetched[1] <= 2 + JOIN_S / REPLACEMENT_S, longest
        assert fetched[0] <= JOIN_S / RECENT_S
    else:
        assert fetched[1] <= fetched[0] <= JOIN_S / RECENT_S


async def test_single_calls_for_new_nodes_are_limited() -> None:
    """Few nodes wait at a time, so that a single call seems cheaper than a listing."""
    size = 2000
    listings = PagedListings({str(number): 0.0 for number in range(size)})
    inventory = shared(listings, population=size)

    answers = [await join(inventory, str(n), after_s=0.05, waiting=1) for n in range(size)]

    assert answers.count(None) <= listings.requests
    assert listings.fetched * listings.requests <= REQUESTS_PER_S * elapsed_s()


def with_ip(ip: str, *, name: str = "a", uid: str = "u") -> Node:
    return node(name, uid=uid, addresses=[address("Hostname", name), address("InternalIP", ip)])


@pytest.mark.parametrize(
    ("new", "former", "after_s", "is_served"),
    [
        (node("a"), None, RECENT_S - 1, True),
        (node("a"), None, RECENT_S, False),
        (with_ip("10.0.0.1"), None, RECENT_S - 1, True),
        (with_ip("10.0.0.2"), None, RECENT_S - 1, False),
        (node("a"), node("a", uid="former"), RECENT_S - 1, False),
        (node("c"), None, RECENT_S - 1, False),
    ],
    ids=["recent", "old", "same IP", "other IP", "name of a former node", "not listed"],
)
async def test_older_listing_initialises_a_node_only_with_its_own_instance(
    new: Node, former: Node | None, after_s: float, is_served: bool
) -> None:
    listings = Listings()
    addresses = [address("InternalIP", "10.0.0.1")]
    metadata = InstanceMetadata(provider_id="fake://a", addresses=addresses)
    listings.records[0] = InstanceRecord(name="a", power=Power.RUNNING, metadata=metadata)
    inventory = shared(listings)
    inventory.on_node_event(None, former or node("b"))
    assert await inventory.find(known("b"), single_requests=9)
    if former is not None:
        inventory.on_node_event(former, None)
    await advance(after_s)
    inventory.on_node_event(None, new)

    await inventory.find(new, single_requests=9, initial=True)

    assert listings.fetched == (1 if is_served else 2)


@pytest.mark.parametrize(
    ("is_changed", "after_s", "is_served"),
    [(False, 24.0, True), (False, 25.0, False), (True, RECENT_S, False)],
    ids=["unchanged", "old", "changed"],
)
async def test_unchanged_instance_is_initialised_from_a_listing_for_longer(
    is_changed: bool, after_s: float, is_served: bool
) -> None:
    """The data of an instance that is being created may be incomplete."""
    listings = Listings(["a", "b"], requests=25)
    inventory = shared(listings)
    assert await join(inventory, "b")
    await advance(RECENT_S)
    if is_changed:
        listings.records[0] = record("a", power=Power.SHUTDOWN)
    await join(inventory, "stranger")
    assert await inventory.find(known("b"), single_requests=9)
    assert listings.fetched == 2
    await advance(after_s)

    assert await join(inventory, "a")

    assert listings.fetched == (2 if is_served else 3)


@pytest.mark.parametrize(("requests", "after_s"), [(1, RECENT_S), (20, 20.0), (40, REPLACEMENT_S)])
async def test_node_of_a_replaced_instance_never_gets_the_former_provider_id(
    requests: int, after_s: float
) -> None:
    """The replacement has the same name and IPs, and the former instance never had a Node."""
    listings = Listings(["a", "b"], requests=requests)
    inventory = shared(listings)
    assert await join(inventory, "b")
    await advance(RECENT_S)
    await join(inventory, "stranger")
    await advance(after_s)
    listings.records[0] = record("a", provider_id="fake://replacement")

    found = await join(inventory, "a")

    # A single call (None) finds the replacement too.
    assert found is None or found.metadata.provider_id == "fake://replacement"


@pytest.mark.parametrize(("after_s", "is_served"), [(-1, True), (0, False)])
async def test_node_seen_in_time_is_initialised_later_from_the_unchanged_listing(
    after_s: float, is_served: bool
) -> None:
    """A queue of new nodes causes no listing: their instances existed when they registered."""
    listings = Listings(["a", "b"])
    inventory = shared(listings)
    assert await join(inventory, "b")
    await advance(RECENT_S)
    await join(inventory, "stranger")
    new = node("a")
    await advance(1)
    inventory.on_node_event(None, new)
    await advance(UNCHANGED_S - 1 + after_s)

    assert await inventory.find(new, single_requests=11, initial=True)

    assert listings.fetched == (2 if is_served else 3)


async def test_new_node_that_a_newer_listing_lacks_waits_for_no_listing() -> None:
    listings = Listings()
    inventory = shared(listings)
    stranger = node("stranger")
    inventory.on_node_event(None, stranger)

    for _ in range(2):
        assert await inventory.find(stranger, single_requests=9, initial=True) is None
        await advance(MAX_AGE_S)

    assert listings.fetched == 1


async def test_older_listing_serves_no_other_lookups() -> None:
    """Existence and power must be new."""
    listings = Listings()
    inventory = shared(listings)
    new = node("a")
    assert await join(inventory, "b")
    await advance(1)
    inventory.on_node_event(None, new)

    assert await inventory.find(new, single_requests=9)

    assert listings.fetched == 2

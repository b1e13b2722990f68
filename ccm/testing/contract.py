"""The provider contract: a test class that checks the behaviour on which the daemon relies.

Install `kube-ccm[testing]`. Write a `Harness` for your cloud and a subclass with a `harness`
fixture. pytest then collects every case below, once for each interface your cloud offers
(`InstancesV2`, or `Instances` with `Zones`). Cases for capabilities that your cloud lacks are
skipped with a reason.

```python
import pytest_asyncio
from ccm.cloud import Context

from ccm_acme import open_cloud
from fake_acme import FakeAcme


class AcmeHarness(Harness):
    faults = {"outage": 503, "denied": 401, "rate_limited": 429}

    def __init__(self, fake):
        self.fake = fake

    def open(self):
        return open_cloud(Context(config=f"url: {self.fake.url}".encode()))

    async def create(self):
        server = await self.fake.create(size="small", zone="z1")
        return Made(name=server.name, provider_id=f"acme://{server.id}", zone="z1")

    async def stop(self, made):
        await self.fake.power_off(made.name)

    async def delete(self, made):
        await self.fake.delete(made.name)

    async def fail(self, how):
        self.fake.answer_everything_with(status=how)

    async def heal(self):
        self.fake.answer_everything_with(status=None)


class TestAcme(ProviderContract):
    @pytest_asyncio.fixture
    async def harness(self):
        async with FakeAcme() as fake:
            yield AcmeHarness(fake)
```

A cloud with load balancers or routes also runs the cases of `contract_balancers` and
`contract_routes`; override the hooks about load balancers or routes. `lose_answer` matters most:
it drops the response to one write. `shrink_pages` matters for every API with paged listings: a
provider that reads only the first page works until the cloud grows.

`MachineContract` of `contract_machines` tests a machine driver, with the same harness. A package
with nothing but a machine driver needs no subclass of `ProviderContract`.

Override no case. Declare each permitted deviation of your cloud, with a reason for the report:
`opt_outs = {"free_writes": "a PUT without a change costs nothing"}` (`OPT_OUTS` lists all).

The cases call the provider in the daemon's order, but without deadlines and without error
normalisation, so that they see the errors the provider itself raises. A fake may run in the test's
event loop. Tasks of a fake behind a socket do not count as tasks of the provider; for another fake,
see `Harness.is_task_of_fake`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
from collections.abc import AsyncIterator, Collection
from functools import partial

import msgspec
import pytest
import pytest_asyncio

from ccm.cloud import errors
from ccm.cloud.helpers import load_balancer_status_equal
from ccm.cloud.interface import Cloud, LoadBalancerDigests
from ccm.cloud.lookup import GONE, RUNNING, SHUTDOWN
from ccm.cloud.types import address
from ccm.testing import probes
from ccm.testing.builders import node as build_node
from ccm.testing.builders import service as build_service
from ccm.testing.builders import uninitialized_taint
from ccm.testing.contract_balancers import CHANGES, HTTPS, BalancerCases, deleted, ensured
from ccm.testing.contract_machines import MachineContract
from ccm.testing.contract_routes import RouteCases, created
from ccm.testing.harness import HANG, OPT_OUTS, PROMISED, Harness, HeldBalancer, HeldVM, Made
from ccm.testing.probes import CLUSTER, InstanceLookups, OpeningCases, by_id, by_name, outcome, same

PAGE, PAGED = 2, 5
"""Page size, and number of objects in the cases about pages: more than two pages."""


@pytest.mark.asyncio
class ListingCases:
    """Cases about listings and pages. `ProviderContract` provides the fixtures."""

    async def test_listing_agrees_with_single_questions(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """The inventory has each instance once, with the values that single calls return."""
        inventory = probes.inventory_of(cloud)
        face = InstanceLookups(cloud, old=cloud.instances is None)
        instances = [await harness.create() for _ in range(3)]
        await harness.stop(instances[1])

        listed = (await inventory.list_instances()).instances

        for instance in instances:
            records = [r for r in listed if r.metadata.provider_id == instance.provider_id]
            assert len(records) == 1, f"{instance.provider_id} is listed {len(records)} times"
            state = await face.state(by_id(instance))
            same(records[0].name, instance.name, "listed name")
            same(records[0].power, state.power, f"listed power of {instance.name}")
            same(
                probes.plain(records[0].metadata),
                await face.metadata(by_id(instance)),
                "listed metadata",
            )

    async def test_listing_forgets_the_deleted(self, cloud: Cloud, harness: Harness) -> None:
        """The inventory omits a deleted instance."""
        inventory = probes.inventory_of(cloud)
        instance = await harness.create()
        await harness.delete(instance)

        listed = (await inventory.list_instances()).instances

        assert instance.provider_id not in {r.metadata.provider_id for r in listed}

    async def test_listing_counts_its_requests(self, cloud: Cloud, harness: Harness) -> None:
        """`requests` of a listing is the number of cloud requests that the listing took."""
        inventory = probes.inventory_of(cloud)
        await harness.shrink_pages(PAGE)
        for _ in range(3):
            await harness.create()
        before = await harness.requests()

        listing = await inventory.list_instances()

        same(listing.requests, await harness.requests() - before, "number of requests")

    async def test_every_page_of_instances_is_listed(self, cloud: Cloud, harness: Harness) -> None:
        """The inventory reads every page."""
        inventory = probes.inventory_of(cloud)
        await harness.shrink_pages(PAGE)
        provider_ids = [(await harness.create()).provider_id for _ in range(PAGED)]

        listed = (await inventory.list_instances()).instances

        _has_all([record.metadata.provider_id for record in listed], provider_ids, "instances")

    async def test_a_name_is_looked_for_on_every_page(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """A lookup by name finds an instance on any page of the cloud's listing."""
        await harness.shrink_pages(PAGE)
        for instance in [await harness.create() for _ in range(PAGED)]:
            try:
                same(
                    await face.state(by_name(instance)),
                    RUNNING,
                    f"paged lookup of {instance.name} by name",
                )
            except errors.Unimplemented:
                pytest.skip("not implemented: lookup by name")

    async def test_every_page_of_load_balancers_is_read(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Lookups and listings find load balancers on any page."""
        balancer = probes.balancer_of(cloud)
        await harness.shrink_pages(PAGE)
        services = [build_service(f"web-{number}") for number in range(PAGED)]
        for service in services:
            await ensured(balancer, service, [])

        for service in services:
            status = await balancer.get_load_balancer(CLUSTER, service)
            assert status is not None, (
                f"load balancer of {service.name} is missing in a paged lookup"
            )
        if isinstance(balancer, LoadBalancerDigests):
            names = [balancer.get_load_balancer_name(CLUSTER, service) for service in services]
            _has_all(await _listed(balancer), names, "load balancers")

    async def test_every_page_of_routes_is_listed(self, cloud: Cloud, harness: Harness) -> None:
        """The listing has the routes of every page.

        The route controller would create an unlisted route again, and set the node's condition
        NetworkUnavailable.
        """
        routes = probes.routes_of(cloud)
        await harness.shrink_pages(PAGE)
        nodes = await probes.nodes(cloud, harness, PAGED)
        for number, node in enumerate(nodes):
            await created(routes, node, f"10.120.{number}.0/24")

        listed = await routes.list_routes(CLUSTER)

        _has_all([route.target_node for route in listed], [node.name for node in nodes], "routes")

    async def test_a_listing_tells_where_balancers_are_reached(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A listed load balancer has the status that `ensure_load_balancer` returned."""
        balancer = probes.digests_of(cloud)
        status = await ensured(balancer, build_service(), await probes.nodes(cloud, harness, 1))

        (listed,) = await balancer.list_load_balancers(CLUSTER)

        message = f"listed status: found {listed.status}, expected {status}"
        assert load_balancer_status_equal(listed.status, status), message

    async def test_digests_tell_whether_ensure_is_needed(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """After an ensure, the digest of the Service equals the listed digest.

        The two digests differ after a change of the Service, of its nodes, or of the load balancer.
        """
        balancer = probes.digests_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 3)
        await ensured(balancer, service, nodes)
        name = balancer.get_load_balancer_name(CLUSTER, service)

        shuffled = random.Random(1).sample(nodes, len(nodes))
        wanted = balancer.load_balancer_digest(CLUSTER, service, shuffled)
        same(await _listed(balancer), {name: wanted}, "digests after ensure")
        others = {
            "one member less": balancer.load_balancer_digest(CLUSTER, service, nodes[1:]),
            "another port": balancer.load_balancer_digest(
                CLUSTER, build_service(ports=[HTTPS]), nodes
            ),
        }
        for what, digest in others.items():
            assert digest != wanted, f"digest does not change with {what}"
        await harness.tamper(name)
        assert (await _listed(balancer))[name] != wanted, (
            "the digest does not change with the load balancer"
        )
        await ensured(balancer, service, nodes)
        same(await _listed(balancer), {name: wanted}, "digests after a repair")
        await deleted(balancer, service)
        same(await _listed(balancer), {}, "digests after the deletion")

    async def test_a_digest_tells_apart_what_ensure_tells_apart(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """If a change of the Service makes ensure write, the digest of the Service changes.

        After ensure, the listed digest equals the new digest. Load balancers with different content
        never have the same digest.
        """
        balancer = probes.digests_of(cloud)
        plain, nodes = build_service(), await probes.nodes(cloud, harness, 2)
        name = balancer.get_load_balancer_name(CLUSTER, plain)
        former = balancer.load_balancer_digest(CLUSTER, plain, nodes)
        known: dict[str, tuple[str, object]] = {}
        for what, fields in CHANGES.items():
            await ensured(balancer, plain, nodes)
            before = await _made(harness)
            try:
                service = build_service(**fields)
                wanted = balancer.load_balancer_digest(CLUSTER, service, nodes)
                await ensured(balancer, service, nodes)
            except errors.CloudError:
                continue
            if await _made(harness) != before:
                assert wanted != former, f"digest does not change with {what}"
            same(await _listed(balancer), {name: wanted}, f"listed digests after {what}")
            held = set(await harness.load_balancers())
            other, others = known.setdefault(wanted, (what, held))
            assert held == others, f"the same digest for {what} and {other}"


async def _listed(balancer: LoadBalancerDigests) -> dict[str, str]:
    return {record.name: record.digest for record in await balancer.list_load_balancers(CLUSTER)}


async def _made(harness: Harness) -> object:
    """Return a value that differs after any change of load balancers or any write.

    Writes do not count for a cloud with the opt-out `free_writes`.
    """
    free = probes.is_opted_out(harness, "free_writes")
    return set(await harness.load_balancers()), 0 if free else await harness.writes()


def _has_all(listed: Collection[str], expected: Collection[str], what: str) -> None:
    """Fail unless every expected item is listed exactly once."""
    missing = sorted(set(expected) - set(listed))
    assert not missing, (
        f"{len(missing)} of {len(expected)} {what} are not listed; check that all pages are read"
    )
    twice = sorted({item for item in listed if list(listed).count(item) > 1})
    assert not twice, f"{what} listed more than once: {twice}"


__all__ = [
    "HANG",
    "OPT_OUTS",
    "PROMISED",
    "Harness",
    "HeldBalancer",
    "HeldVM",
    "MachineContract",
    "Made",
    "ProviderContract",
]

AT_ONCE = 4
"""Number of calls that must reach the cloud at the same time."""

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""Valid label values in Kubernetes."""


@pytest.mark.asyncio
class ProviderContract(OpeningCases, ListingCases, BalancerCases, RouteCases):
    """Base class for the tests of a provider.

    Name the subclass `Test...` and give it a fixture `harness`.
    """

    @pytest_asyncio.fixture
    async def cloud(self, harness: Harness) -> AsyncIterator[Cloud]:
        """Open the provider."""
        async with probes.in_one_task(harness.open()) as cloud:
            yield cloud

    @pytest.fixture(params=["InstancesV2", "Instances"])
    def face(self, request: pytest.FixtureRequest, cloud: Cloud) -> InstanceLookups:
        """Return lookups through one interface; each case runs for each offered interface."""
        return InstanceLookups(cloud, old=request.param == "Instances")

    async def test_running_instance_exists(self, face: InstanceLookups, harness: Harness) -> None:
        """A running instance exists and is not shut down."""
        instance = await harness.create()

        same(await face.state(by_id(instance)), RUNNING, "a running instance")

    async def test_stopped_instance_still_exists(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """A stopped instance exists and is shut down; a restarted instance is not shut down."""
        instance = await harness.create()

        await harness.stop(instance)
        same(await face.state(by_id(instance)), SHUTDOWN, "a stopped instance")
        await harness.start(instance)
        same(await face.state(by_id(instance)), RUNNING, "a restarted instance")

    async def test_instance_on_its_way_is_not_shut_down(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """An instance in a transitional state does not count as shut down."""
        instance = await harness.create()

        await harness.transition(instance)

        same(await face.state(by_id(instance)), RUNNING, "an instance in a transitional state")

    async def test_deleted_instance_is_gone(self, face: InstanceLookups, harness: Harness) -> None:
        """Existence calls return False for a deleted instance, and True for other instances."""
        instance, other = await harness.create(), await harness.create()

        await harness.delete(instance)

        same(await face.state(by_id(instance)), GONE, "a deleted instance")
        same(await face.state(by_id(other)), RUNNING, "another instance")

    async def test_absence_elsewhere_is_not_found(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """All calls about an absent instance raise NotFound, except for the existence calls."""
        instance = await harness.create()

        await harness.delete(instance)

        for name, ask in face.about_id(instance.name, instance.provider_id).items():
            if name not in probes.EXISTENCE:
                await probes.must_raise(name, ask, (errors.NotFound,), "for an absent instance")

    async def test_lookup_by_name(self, face: InstanceLookups, harness: Harness) -> None:
        """A node without provider ID is looked up by name; a deleted instance is not found."""
        instance, other = await harness.create(), await harness.create()
        try:
            same(await face.state(by_name(instance)), RUNNING, "an instance looked up by name")
        except errors.Unimplemented:
            pytest.skip("not implemented: lookup by name")

        metadata = await face.metadata(by_name(instance))
        await harness.delete(instance)

        same(metadata.provider_id, instance.provider_id, "provider ID found by name")
        same(await face.state(by_name(instance)), GONE, "a deleted instance looked up by name")
        same(await face.state(by_name(other)), RUNNING, "another instance")

    async def test_provider_id_wins_over_name(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """For a node with the ID of one instance and the name of another, the ID decides."""
        first, second = await harness.create(), await harness.create()
        mixed = build_node(second.name, provider_id=first.provider_id)

        metadata, expected = await face.metadata(mixed), await face.metadata(by_id(first))
        await harness.delete(first)

        same(metadata, expected, "metadata for the provider ID")
        same(await face.state(mixed), GONE, "deleted instance of the provider ID")

    @pytest.mark.parametrize(
        "provider_id",
        ["some-other-cloud://contract-1", "{scheme}://", "{scheme}:/1", "://1"],
        ids=["other_cloud", "no_id", "no_separator", "no_scheme"],
    )
    async def test_foreign_provider_id_is_refused(
        self, face: InstanceLookups, harness: Harness, provider_id: str
    ) -> None:
        """A malformed or foreign provider ID raises InvalidArgument, in existence calls too."""
        instance = await harness.create()
        scheme = instance.provider_id.partition("://")[0]

        for name, ask in face.about_id(instance.name, provider_id.format(scheme=scheme)).items():
            await probes.must_raise(
                name, ask, (errors.InvalidArgument,), "for a foreign provider ID"
            )

    async def test_metadata_is_complete(self, face: InstanceLookups, harness: Harness) -> None:
        """Metadata has provider ID, type, addresses, and the zone and region that the cloud has."""
        instance = await harness.create()

        metadata = await face.metadata(by_id(instance))

        same(metadata.provider_id, instance.provider_id, "provider ID")
        probes.check_own_id(face.cloud, instance.provider_id)
        assert metadata.instance_type, "the instance type is empty"
        for field in ("instance_type", "zone", "region"):
            actual, expected = getattr(metadata, field), getattr(instance, field)
            assert LABEL_VALUE.fullmatch(actual), f"{field} {actual!r} is not a valid label value"
            if expected:
                same(actual, expected, field)
        for key, value in metadata.additional_labels.items():
            assert LABEL_VALUE.fullmatch(value), f"{key}: {value!r} is not a valid label value"
        if not face.old:  # the old interface has no additional labels
            lost = instance.additional_labels.items() - metadata.additional_labels.items()
            assert not lost, f"additional labels missing: {sorted(lost)}"

    async def test_addresses_are_usable(self, face: InstanceLookups, harness: Harness) -> None:
        """Addresses are unique, IPs parse, and expected addresses come in the expected order."""
        instance = await harness.create()

        addresses = list((await face.metadata(by_id(instance))).addresses)

        assert addresses, "a running instance has no address"
        for entry in addresses:
            assert addresses.count(entry) == 1, f"{entry} is not unique"
            if entry.type.endswith("IP"):
                ipaddress.ip_address(entry.address)
        if instance.addresses is not None:
            same(addresses, list(instance.addresses), "addresses")

    async def test_same_question_same_answer(self, face: InstanceLookups, harness: Harness) -> None:
        """Concurrent repetitions of a call return equal results, with addresses in one order."""
        instance = await harness.create()

        for name, ask in face.questions(instance).items():
            first, *rest = await asyncio.gather(*(outcome(ask) for _ in range(10)))
            for other in rest:
                same(other, first, f"{name}, repeated")

    async def test_arguments_are_left_alone(self, face: InstanceLookups, harness: Harness) -> None:
        """The provider does not modify its arguments."""
        instance = await harness.create()
        for provider_id in (instance.provider_id, ""):
            node = build_node(
                instance.name,
                provider_id=provider_id,
                taints=[uninitialized_taint()],
                labels={"colour": "blue"},
                annotations={"note": "read-only"},
                addresses=[address("InternalIP", "10.9.9.9"), address("Hostname", instance.name)],
            )
            before = msgspec.json.encode(node)

            for name, ask in face.about(node).items():
                await outcome(ask)
                assert msgspec.json.encode(node) == before, f"{name} modified the node"

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_fault_arrives_as_promised(
        self, face: InstanceLookups, harness: Harness, fault: str
    ) -> None:
        """During a fault a call raises a promised error or still returns the right result.

        Afterwards all calls work.
        """
        how = probes.fault_argument(harness, fault)
        instance = await harness.create()
        questions = face.questions(instance)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}
        reached = False

        await harness.fail(how)
        for name, ask in questions.items():
            result = await probes.outcome_within_patience(harness, name, ask)
            if result != healthy[name]:
                reached = True
                probes.check_error(result, PROMISED[fault], f"{name} during {fault}")
        await harness.heal()

        assert reached, f"the fault affected no call; check that Harness.fail({how!r}) works"
        for name, ask in questions.items():
            result = await probes.after_fault(harness, ask, healthy[name])
            same(result, healthy[name], f"{name} after {fault}")

    async def test_hanging_cloud_can_be_left(self, face: InstanceLookups, harness: Harness) -> None:
        """Cancelling a hanging call works, leaves no task, and the next call works."""
        how = probes.fault_argument(harness, HANG)
        instance = await harness.create()
        questions = face.questions(instance)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}

        with probes.watch_tasks(harness) as started:
            await harness.fail(how)
            for name, ask in questions.items():
                await probes.check_cancellation(name, ask, healthy[name], after_s=0.05)
            await harness.heal()
            await started.check_ended("after a cancelled call")

        for name, ask in questions.items():
            same(await outcome(ask), healthy[name], f"{name} after a hanging call")

    async def test_cancellation_is_obeyed(self, face: InstanceLookups, harness: Harness) -> None:
        """A call can be cancelled at any await; the next call returns the right result."""
        instance = await harness.create()
        for name, ask in face.questions(instance).items():
            healthy = await outcome(ask)
            with probes.watch_tasks(harness) as started:
                for steps in range(8):
                    await probes.check_cancellation(name, ask, healthy, steps=steps)
                same(await outcome(ask), healthy, f"{name} after a cancelled call")
                await started.check_ended(f"after {name} was cancelled")

    async def test_surprises_are_survived(self, face: InstanceLookups, harness: Harness) -> None:
        """Unknown fields are ignored; an unknown state means neither absent nor shut down."""
        instance = await harness.create()
        before = await face.metadata(by_id(instance))

        await harness.surprise(instance)

        same(await face.state(by_id(instance)), RUNNING, "an instance in an unknown state")
        same(await face.metadata(by_id(instance)), before, "metadata with unknown fields")

    async def test_rotated_credentials(self, face: InstanceLookups, harness: Harness) -> None:
        """After a rotation, calls return the right result or raise an authentication error.

        A provider opened afterwards works.
        """
        instance = await harness.create()
        questions = face.questions(instance)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}

        await harness.rotate()

        for name, ask in questions.items():
            result = await probes.outcome_within_patience(harness, name, ask)
            if result != healthy[name]:
                probes.check_error(result, PROMISED["denied"], f"{name} with old credentials")
        async with harness.open() as reopened:
            renewed = InstanceLookups(reopened, old=face.old).questions(instance)
            for name, ask in renewed.items():
                same(await outcome(ask), healthy[name], f"{name} with new credentials")

    async def test_openings_are_independent(self, harness: Harness) -> None:
        """A reload opens the provider again before it closes the first opening: both work."""
        instance = await harness.create()
        async with harness.open() as first:
            async with harness.open():
                pass
            face = InstanceLookups(first, old=first.instances is None)
            same(await face.state(by_id(instance)), RUNNING, "after another opening was closed")

    async def test_closing_ends_every_session(self, harness: Harness) -> None:
        """Closing the provider closes its sessions and connections, without garbage collection."""
        instance = await harness.create()

        async def ask_and_close() -> None:
            async with probes.in_one_task(harness.open()) as cloud:
                await InstanceLookups(cloud, old=cloud.instances is None).state(by_id(instance))

        left = await probes.unclosed_resources(ask_and_close)

        assert not left, f"resources left open by the closed provider: {left}"

    async def test_calls_reach_the_cloud_side_by_side(
        self, face: InstanceLookups, harness: Harness
    ) -> None:
        """A hanging call does not delay other calls, as it would with a pool of one connection."""
        how = probes.fault_argument(harness, HANG)
        instances = [await harness.create() for _ in range(AT_ONCE)]
        asks = [partial(face.state, by_id(instance)) for instance in instances]
        before = await harness.requests()
        await asyncio.gather(*(outcome(ask) for ask in asks))
        # A provider may serve several calls with one request: expect only as many requests.
        due = min(AT_ONCE, await harness.requests() - before)

        arrived = await probes.concurrent_requests(harness, asks, hang=how)

        message = f"{arrived} of {due} concurrent requests reached the cloud; enlarge the pool"
        assert arrived >= due, message

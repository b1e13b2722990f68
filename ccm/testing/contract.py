"""The provider contract: what the daemon relies on, as a test class to subclass.

Write a `Harness` for your cloud and name it in a subclass; pytest then collects every case
below, once for each interface your cloud offers (`InstancesV2`, or `Instances` with
`Zones`). What your cloud does not offer is skipped with a reason. Install `kube-ccm[testing]`.

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

A cloud with load balancers or routes gets the cases of `contract_balancers` and
`contract_routes` too; override the hooks about them, among which `lose_answer` matters
most: it cuts the provider off after each single write. `shrink_pages` matters to every cloud
that lists: whoever reads the first page only is right until the cloud is large.

A machine driver is held to `MachineContract` of `contract_machines`, with the same harness. A
package that has nothing but a machine driver needs no subclass of `ProviderContract`.

Override no case. What a cloud may do otherwise is declared, with a reason that the report shows:
`opt_outs = {"free_writes": "a PUT of what is there costs nothing"}` (`OPT_OUTS` has all).

The cases ask exactly as the daemon does, but without its protection: no deadline and no
normalising of errors, so that what a provider really raises can be seen. A fake may run in the
test's own event loop, also behind a socket: its tasks are not taken for the provider's.
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
from ccm.testing.probes import CLUSTER, Face, OpeningCases, by_id, by_name, outcome, same

PAGE, PAGED = 2, 5
"""Items on a page, and how many there are of a kind."""


@pytest.mark.asyncio
class ListingCases:
    """Mixed into `ProviderContract`, which brings the fixtures."""

    async def test_listing_agrees_with_single_questions(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """The inventory has each instance once, with the name, power and metadata it has."""
        inventory = probes.inventory_of(cloud)
        face = Face(cloud, old=cloud.instances is None)
        made = [await harness.create() for _ in range(3)]
        await harness.stop(made[1])

        listed = (await inventory.list_instances()).instances

        for each in made:
            found = [r for r in listed if r.metadata.provider_id == each.provider_id]
            assert len(found) == 1, f"{each.provider_id} is listed {len(found)} times"
            state = await face.state(by_id(each))
            same(found[0].name, each.name, "listed name")
            same(found[0].power, state.power, f"listed power of {each.name}")
            same(
                probes.plain(found[0].metadata), await face.metadata(by_id(each)), "listed metadata"
            )

    async def test_listing_forgets_the_deleted(self, cloud: Cloud, harness: Harness) -> None:
        """A deleted instance is not listed."""
        inventory = probes.inventory_of(cloud)
        made = await harness.create()
        await harness.delete(made)

        listed = (await inventory.list_instances()).instances

        assert made.provider_id not in {r.metadata.provider_id for r in listed}

    async def test_listing_counts_its_requests(self, cloud: Cloud, harness: Harness) -> None:
        """A listing tells how many cloud requests it took."""
        inventory = probes.inventory_of(cloud)
        await harness.shrink_pages(PAGE)
        for _ in range(3):
            await harness.create()
        before = await harness.requests()

        listing = await inventory.list_instances()

        same(listing.requests, await harness.requests() - before, "requests of a listing")

    async def test_every_page_of_instances_is_listed(self, cloud: Cloud, harness: Harness) -> None:
        """A listing goes on to the last page."""
        inventory = probes.inventory_of(cloud)
        await harness.shrink_pages(PAGE)
        made = [(await harness.create()).provider_id for _ in range(PAGED)]

        listed = (await inventory.list_instances()).instances

        _has_all([each.metadata.provider_id for each in listed], made, "instances")

    async def test_a_name_is_looked_for_on_every_page(self, face: Face, harness: Harness) -> None:
        """An instance is found by its name wherever it stands in the cloud's listing."""
        await harness.shrink_pages(PAGE)
        for made in [await harness.create() for _ in range(PAGED)]:
            try:
                same(await face.state(by_name(made)), RUNNING, f"{made.name}, by name, amid pages")
            except errors.Unimplemented:
                pytest.skip("this cloud says Unimplemented: it cannot look up by name")

    async def test_every_page_of_load_balancers_is_read(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Each is found, and listed where they are listed, wherever it stands."""
        balancer = probes.balancer_of(cloud)
        await harness.shrink_pages(PAGE)
        services = [build_service(f"web-{number}") for number in range(PAGED)]
        for service in services:
            await ensured(balancer, service, [])

        for service in services:
            found = await balancer.get_load_balancer(CLUSTER, service)
            assert found is not None, f"the load balancer of {service.name} is not found amid pages"
        if isinstance(balancer, LoadBalancerDigests):
            names = [balancer.get_load_balancer_name(CLUSTER, service) for service in services]
            _has_all(await _listed(balancer), names, "load balancers")

    async def test_every_page_of_routes_is_listed(self, cloud: Cloud, harness: Harness) -> None:
        """What is not listed would be created again, and its node marked as without network."""
        routes = probes.routes_of(cloud)
        await harness.shrink_pages(PAGE)
        nodes = await probes.nodes(cloud, harness, PAGED)
        for number, node in enumerate(nodes):
            await created(routes, node, f"10.120.{number}.0/24")

        listed = await routes.list_routes(CLUSTER)

        _has_all([each.target_node for each in listed], [node.name for node in nodes], "routes")

    async def test_a_listing_tells_where_balancers_are_reached(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A listed load balancer has the status that asking for it alone gives."""
        balancer = probes.digests_of(cloud)
        status = await ensured(balancer, build_service(), await probes.nodes(cloud, harness, 1))

        (listed,) = await balancer.list_load_balancers(CLUSTER)

        told = f"listed status: found {listed.status}, expected {status}"
        assert load_balancer_status_equal(listed.status, status), told

    async def test_digests_tell_whether_ensure_is_needed(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Equal right after an ensure, different when anything differs on either side."""
        balancer = probes.digests_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 3)
        await ensured(balancer, service, nodes)
        name = balancer.get_load_balancer_name(CLUSTER, service)

        shuffled = random.Random(1).sample(nodes, len(nodes))
        wanted = balancer.load_balancer_digest(CLUSTER, service, shuffled)
        same(await _listed(balancer), {name: wanted}, "digests after an ensure")
        others = {
            "a member less": balancer.load_balancer_digest(CLUSTER, service, nodes[1:]),
            "another port": balancer.load_balancer_digest(
                CLUSTER, build_service(ports=[HTTPS]), nodes
            ),
        }
        for what, digest in others.items():
            assert digest != wanted, f"the same digest with {what}"
        await harness.tamper(name)
        assert (await _listed(balancer))[name] != wanted, "a change in the cloud is not noticed"
        await ensured(balancer, service, nodes)
        same(await _listed(balancer), {name: wanted}, "digests after an ensure that repaired")
        await deleted(balancer, service)
        same(await _listed(balancer), {}, "digests after deleting")

    async def test_a_digest_tells_apart_what_ensure_tells_apart(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Whatever changes the load balancer changes the digest, and the listed one follows."""
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
                assert wanted != former, f"the digest does not notice {what}"
            same(await _listed(balancer), {name: wanted}, f"listed digests after {what}")
            held = set(await harness.load_balancers())
            other, others = known.setdefault(wanted, (what, held))
            assert held == others, f"one digest for {what} and {other}"


async def _listed(balancer: LoadBalancerDigests) -> dict[str, str]:
    return {one.name: one.digest for one in await balancer.list_load_balancers(CLUSTER)}


async def _made(harness: Harness) -> object:
    """What tells that load balancers were changed: themselves, and writes unless they are free."""
    free = probes.is_opted_out(harness, "free_writes")
    return set(await harness.load_balancers()), 0 if free else await harness.writes()


def _has_all(found: Collection[str], made: Collection[str], what: str) -> None:
    """Fail unless each is there once."""
    missing = sorted(set(made) - set(found))
    assert not missing, f"{len(missing)} of {len(made)} {what} are not listed: is every page read?"
    twice = sorted({one for one in found if list(found).count(one) > 1})
    assert not twice, f"{what} listed twice: {twice}"


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
"""Calls that have to reach the cloud at one time."""

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""What Kubernetes accepts as the value of a label."""


@pytest.mark.asyncio
class ProviderContract(OpeningCases, ListingCases, BalancerCases, RouteCases):
    """Subclass it under a name `Test...` and give the subclass a fixture `harness`."""

    @pytest_asyncio.fixture
    async def cloud(self, harness: Harness) -> AsyncIterator[Cloud]:
        """The opened provider."""
        async with probes.in_one_task(harness.open()) as cloud:
            yield cloud

    @pytest.fixture(params=["InstancesV2", "Instances"])
    def face(self, request: pytest.FixtureRequest, cloud: Cloud) -> Face:
        """One way to look up instances; each case runs for both that the cloud may offer."""
        return Face(cloud, old=request.param == "Instances")

    async def test_running_instance_exists(self, face: Face, harness: Harness) -> None:
        """A running instance exists and is not shut down."""
        made = await harness.create()

        same(await face.state(by_id(made)), RUNNING, "a running instance")

    async def test_stopped_instance_still_exists(self, face: Face, harness: Harness) -> None:
        """A stopped instance exists and is shut down; a restarted one is not."""
        made = await harness.create()

        await harness.stop(made)
        same(await face.state(by_id(made)), SHUTDOWN, "a stopped instance")
        await harness.start(made)
        same(await face.state(by_id(made)), RUNNING, "a restarted instance")

    async def test_instance_on_its_way_is_not_shut_down(self, face: Face, harness: Harness) -> None:
        """Only what is known to be switched off counts as shut down."""
        made = await harness.create()

        await harness.transition(made)

        same(await face.state(by_id(made)), RUNNING, "an instance between two states")

    async def test_deleted_instance_is_gone(self, face: Face, harness: Harness) -> None:
        """Absence is the answer False about existence, not an error, and only for that one."""
        made, other = await harness.create(), await harness.create()

        await harness.delete(made)

        same(await face.state(by_id(made)), GONE, "a deleted instance")
        same(await face.state(by_id(other)), RUNNING, "another instance")

    async def test_absence_elsewhere_is_not_found(self, face: Face, harness: Harness) -> None:
        """Every other question about an absent instance raises NotFound itself."""
        made = await harness.create()

        await harness.delete(made)

        for name, ask in face.about_id(made.name, made.provider_id).items():
            if name not in probes.EXISTENCE:
                await probes.must_raise(name, ask, (errors.NotFound,), "about an absent instance")

    async def test_lookup_by_name(self, face: Face, harness: Harness) -> None:
        """A node without provider ID is found by its name, and gone with its instance."""
        made, other = await harness.create(), await harness.create()
        try:
            same(await face.state(by_name(made)), RUNNING, "an instance looked up by name")
        except errors.Unimplemented:
            pytest.skip("this cloud says Unimplemented: it cannot look up by name")

        metadata = await face.metadata(by_name(made))
        await harness.delete(made)

        same(metadata.provider_id, made.provider_id, "provider ID of a node without one")
        same(await face.state(by_name(made)), GONE, "a deleted instance looked up by name")
        same(await face.state(by_name(other)), RUNNING, "another instance")

    async def test_provider_id_wins_over_name(self, face: Face, harness: Harness) -> None:
        """A node that carries the ID of one instance and the name of another is the first."""
        first, second = await harness.create(), await harness.create()
        mixed = build_node(second.name, provider_id=first.provider_id)

        metadata, expected = await face.metadata(mixed), await face.metadata(by_id(first))
        await harness.delete(first)

        same(metadata, expected, "metadata of the instance behind the provider ID")
        same(await face.state(mixed), GONE, "the deleted instance behind the provider ID")

    @pytest.mark.parametrize(
        "provider_id",
        ["some-other-cloud://contract-1", "{scheme}://", "{scheme}:/1", "://1"],
        ids=["other_cloud", "no_id", "no_separator", "no_scheme"],
    )
    async def test_foreign_provider_id_is_refused(
        self, face: Face, harness: Harness, provider_id: str
    ) -> None:
        """An ID of another cloud, or none at all, is InvalidArgument and never an absence."""
        made = await harness.create()
        scheme = made.provider_id.partition("://")[0]

        for name, ask in face.about_id(made.name, provider_id.format(scheme=scheme)).items():
            await probes.must_raise(
                name, ask, (errors.InvalidArgument,), "about a foreign provider ID"
            )

    async def test_metadata_is_complete(self, face: Face, harness: Harness) -> None:
        """Provider ID, type and addresses are there, zone and region where the cloud has them."""
        made = await harness.create()

        metadata = await face.metadata(by_id(made))

        same(metadata.provider_id, made.provider_id, "provider ID")
        probes.check_own_id(face.cloud, made.provider_id)
        assert metadata.instance_type, "the instance type is empty"
        for field in ("instance_type", "zone", "region"):
            found, expected = getattr(metadata, field), getattr(made, field)
            assert LABEL_VALUE.fullmatch(found), f"{field} {found!r} is no value for a label"
            if expected:
                same(found, expected, field)
        for key, value in metadata.additional_labels.items():
            assert LABEL_VALUE.fullmatch(value), f"label {key} has the impossible value {value!r}"
        if not face.old:  # which cannot say them
            lost = made.additional_labels.items() - metadata.additional_labels.items()
            assert not lost, f"additional labels lost: {sorted(lost)}"

    async def test_addresses_are_usable(self, face: Face, harness: Harness) -> None:
        """Addresses are there once each, IPs are IPs, and the expected ones come in order."""
        made = await harness.create()

        addresses = list((await face.metadata(by_id(made))).addresses)

        assert addresses, "a running instance has no address"
        for entry in addresses:
            assert addresses.count(entry) == 1, f"{entry} is there more than once"
            if entry.type.endswith("IP"):
                ipaddress.ip_address(entry.address)
        if made.addresses is not None:
            same(addresses, list(made.addresses), "addresses")

    async def test_same_question_same_answer(self, face: Face, harness: Harness) -> None:
        """Repeated and concurrent questions get equal answers, addresses in one order."""
        made = await harness.create()

        for name, ask in face.questions(made).items():
            first, *rest = await asyncio.gather(*(outcome(ask) for _ in range(10)))
            for other in rest:
                same(other, first, f"{name}, asked again")

    async def test_arguments_are_left_alone(self, face: Face, harness: Harness) -> None:
        """What is handed in is read-only."""
        made = await harness.create()
        for provider_id in (made.provider_id, ""):
            node = build_node(
                made.name,
                provider_id=provider_id,
                taints=[uninitialized_taint()],
                labels={"colour": "blue"},
                annotations={"note": "read-only"},
                addresses=[address("InternalIP", "10.9.9.9"), address("Hostname", made.name)],
            )
            before = msgspec.json.encode(node)

            for name, ask in face.about(node).items():
                await outcome(ask)
                assert msgspec.json.encode(node) == before, f"{name} changed the node"

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_fault_arrives_as_promised(
        self, face: Face, harness: Harness, fault: str
    ) -> None:
        """A fault is its promised class or hidden by a right answer; afterwards all is well."""
        how = probes.scripted(harness, fault)
        made = await harness.create()
        questions = face.questions(made)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}
        reached = False

        await harness.fail(how)
        for name, ask in questions.items():
            found = await probes.patient(harness, name, ask)
            if found != healthy[name]:
                reached = True
                probes.check_error(found, PROMISED[fault], f"{name} during {fault}")
        await harness.heal()

        assert reached, f"no question noticed the fault; does Harness.fail({how!r}) work?"
        for name, ask in questions.items():
            found = await probes.after_fault(harness, ask, healthy[name])
            same(found, healthy[name], f"{name} after {fault}")

    async def test_hanging_cloud_can_be_left(self, face: Face, harness: Harness) -> None:
        """A call that hangs obeys cancellation, leaves no task, and the next one works."""
        how = probes.scripted(harness, HANG)
        made = await harness.create()
        questions = face.questions(made)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}

        with probes.watched(harness) as started:
            await harness.fail(how)
            for name, ask in questions.items():
                await probes.cancelled(name, ask, healthy[name], after_s=0.05)
            await harness.heal()
            await started.have_ended("after a cancelled call")

        for name, ask in questions.items():
            same(await outcome(ask), healthy[name], f"{name} after a hanging one")

    async def test_cancellation_is_obeyed(self, face: Face, harness: Harness) -> None:
        """A call may be cancelled wherever it waits; the next one gives the right answer."""
        made = await harness.create()
        for name, ask in face.questions(made).items():
            healthy = await outcome(ask)
            with probes.watched(harness) as started:
                for steps in range(8):
                    await probes.cancelled(name, ask, healthy, steps=steps)
                same(await outcome(ask), healthy, f"{name} after a cancelled one")
                await started.have_ended(f"after {name} was cancelled")

    async def test_surprises_are_survived(self, face: Face, harness: Harness) -> None:
        """Unknown fields are skipped; an unknown state is neither absent nor shut down."""
        made = await harness.create()
        before = await face.metadata(by_id(made))

        await harness.surprise(made)

        same(await face.state(by_id(made)), RUNNING, "an instance in an unknown state")
        same(await face.metadata(by_id(made)), before, "metadata with unknown fields around")

    async def test_rotated_credentials(self, face: Face, harness: Harness) -> None:
        """Old credentials give the right answer or a refusal; a new opening works."""
        made = await harness.create()
        questions = face.questions(made)
        healthy = {name: await outcome(ask) for name, ask in questions.items()}

        await harness.rotate()

        for name, ask in questions.items():
            found = await probes.patient(harness, name, ask)
            if found != healthy[name]:
                probes.check_error(found, PROMISED["denied"], f"{name} with old credentials")
        async with harness.open() as reopened:
            renewed = Face(reopened, old=face.old).questions(made)
            for name, ask in renewed.items():
                same(await outcome(ask), healthy[name], f"{name} with new credentials")

    async def test_openings_are_independent(self, harness: Harness) -> None:
        """Two openings live side by side: the daemon opens the new before it closes the old."""
        made = await harness.create()
        async with harness.open() as first:
            async with harness.open():
                pass
            face = Face(first, old=first.instances is None)
            same(await face.state(by_id(made)), RUNNING, "asked beside a closed opening")

    async def test_closing_ends_every_session(self, harness: Harness) -> None:
        """Sessions and connections are closed with the provider, not left to be found."""
        made = await harness.create()

        async def ask_and_close() -> None:
            async with probes.in_one_task(harness.open()) as cloud:
                await Face(cloud, old=cloud.instances is None).state(by_id(made))

        left = await probes.left_open(ask_and_close)

        assert not left, f"left open by a provider that was closed: {left}"

    async def test_calls_reach_the_cloud_side_by_side(self, face: Face, harness: Harness) -> None:
        """A call that hangs keeps no other one waiting, as a pool of one connection would."""
        how = probes.scripted(harness, HANG)
        made = [await harness.create() for _ in range(AT_ONCE)]
        asks = [partial(face.state, by_id(each)) for each in made]
        before = await harness.requests()
        await asyncio.gather(*(outcome(ask) for ask in asks))
        # Fewer where one request answers several questions.
        due = min(AT_ONCE, await harness.requests() - before)

        came = await probes.side_by_side(harness, asks, hang=how)

        told = f"{came} of {due} requests at once reached the cloud: is the pool too small?"
        assert came >= due, told

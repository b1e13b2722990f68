"""The provider contract about listings, their pages and digests; part of `ccm.testing.contract`."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from ccm.cloud import errors
from ccm.cloud.helpers import load_balancer_status_equal
from ccm.cloud.interface import Cloud, LoadBalancerDigests
from ccm.cloud.lookup import RUNNING
from ccm.testing import network_probes, probes
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import CHANGES, HTTPS, deleted, ensured
from ccm.testing.contract_routes import created
from ccm.testing.harness import Harness
from ccm.testing.network_probes import CLUSTER
from ccm.testing.probes import Face, by_id, by_name, same

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
        balancer = network_probes.balancer_of(cloud)
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
        routes = network_probes.routes_of(cloud)
        await harness.shrink_pages(PAGE)
        nodes = await network_probes.nodes(cloud, harness, PAGED)
        for number, node in enumerate(nodes):
            await created(routes, node, f"10.120.{number}.0/24")

        listed = await routes.list_routes(CLUSTER)

        _has_all([each.target_node for each in listed], [node.name for node in nodes], "routes")

    async def test_a_listing_tells_where_balancers_are_reached(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A listed load balancer has the status that asking for it alone gives."""
        balancer = network_probes.digests_of(cloud)
        status = await ensured(
            balancer, build_service(), await network_probes.nodes(cloud, harness, 1)
        )

        (listed,) = await balancer.list_load_balancers(CLUSTER)

        told = f"listed status: found {listed.status}, expected {status}"
        assert load_balancer_status_equal(listed.status, status), told

    async def test_digests_tell_whether_ensure_is_needed(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Equal right after an ensure, different when anything differs on either side."""
        balancer = network_probes.digests_of(cloud)
        service, nodes = build_service(), await network_probes.nodes(cloud, harness, 3)
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
        balancer = network_probes.digests_of(cloud)
        plain, nodes = build_service(), await network_probes.nodes(cloud, harness, 2)
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

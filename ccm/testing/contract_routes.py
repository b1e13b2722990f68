"""The provider contract about routes; part of `ccm.testing.contract`.

Offer `Cloud.routes` and override the hooks of `Harness` about routes.
"""

from __future__ import annotations

from functools import partial

import pytest

from ccm.base.tasks import bounded
from ccm.cloud import errors
from ccm.cloud.interface import Cloud, Routes
from ccm.cloud.types import Route
from ccm.model import Node
from ccm.model.cidr import parse_cidr
from ccm.testing import probes
from ccm.testing.harness import PROMISED, Harness
from ccm.testing.probes import CLUSTER, outcome, patiently, same

CIDR = "10.120.0.0/24"
CIDR_V6 = "fd00:120::/64"


@pytest.mark.asyncio
class RouteCases:
    """Mixed into `ProviderContract`, which brings the fixtures."""

    async def test_no_routes_is_an_empty_list(self, cloud: Cloud) -> None:
        """A cluster without routes has none, which is no error."""
        routes = probes.routes_of(cloud)

        same(list(await routes.list_routes(CLUSTER)), [], "routes")

    @pytest.mark.parametrize("cidr", [CIDR, CIDR_V6], ids=["ipv4", "ipv6"])
    async def test_a_created_route_is_listed(
        self, cloud: Cloud, harness: Harness, cidr: str
    ) -> None:
        """It has the range and the node, and leads there."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        try:
            await created(routes, node, cidr)
        except (errors.InvalidArgument, errors.FailedPrecondition):
            assert cidr != CIDR, "routes of IPv4 are refused"
            pytest.skip("this cloud has no routes of IPv6")

        (listed,) = await routes.list_routes(CLUSTER)

        same(parse_cidr(listed.destination_cidr), parse_cidr(cidr), "listed range")
        same((listed.target_node, listed.blackhole), (node.name, False), "listed target")

    async def test_create_twice_is_one_route(self, cloud: Cloud, harness: Harness) -> None:
        """Repeating a creation is harmless."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)

        await created(routes, node, CIDR)
        await created(routes, node, CIDR)

        same(len(await routes.list_routes(CLUSTER)), 1, "routes listed")
        same(len(await harness.routes()), 1, "routes in the cloud")

    async def test_a_range_of_another_node_is_not_taken_over(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A range that leads to one node is AlreadyExists to another, or both are listed.

        Told as a success, the other node would pass for reachable.
        """
        routes = probes.routes_of(cloud)
        one, other = await probes.nodes(cloud, harness, 2)
        await created(routes, one, CIDR)

        found = await outcome(lambda: patiently(lambda: created(routes, other, CIDR)))

        targets = [each.target_node for each in await routes.list_routes(CLUSTER)]
        assert one.name in targets, f"the route of {one.name} leads to {targets}"
        if other.name not in targets:
            probes.check_error(found, (errors.AlreadyExists,), "a second route to a range")

    async def test_delete_route_twice_is_silent(self, cloud: Cloud, harness: Harness) -> None:
        """Deleting a listed route removes that one only; again is no error."""
        routes = probes.routes_of(cloud)
        one, other = await probes.nodes(cloud, harness, 2)
        await created(routes, one, CIDR)
        await created(routes, other, "10.120.1.0/24")
        listed = {each.target_node: each for each in await routes.list_routes(CLUSTER)}

        await routes.delete_route(CLUSTER, listed[one.name])
        await routes.delete_route(CLUSTER, listed[one.name])

        left = [each.target_node for each in await routes.list_routes(CLUSTER)]
        same(left, [other.name], "targets of the routes left")

    async def test_concurrent_routes(self, cloud: Cloud, harness: Harness) -> None:
        """Many creations at once, and many deletions, all take effect."""
        routes = probes.routes_of(cloud)
        nodes = await probes.nodes(cloud, harness, 10)
        numbered = {node.name: f"10.120.{number}.0/24" for number, node in enumerate(nodes)}

        async def create(node: Node) -> None:
            await patiently(lambda: created(routes, node, numbered[node.name]))

        async def delete(route: Route) -> None:
            await patiently(lambda: routes.delete_route(CLUSTER, route))

        await bounded(nodes, create, limit=10, name="contract-create")
        listed = await routes.list_routes(CLUSTER)
        found = {each.target_node: each.destination_cidr for each in listed}
        same(found, numbered, "routes listed")
        await bounded(listed, delete, limit=10, name="contract-delete")
        same(list(await routes.list_routes(CLUSTER)), [], "routes after deleting")

    async def test_foreign_routes_are_out_of_reach(self, cloud: Cloud, harness: Harness) -> None:
        """What belongs to somebody else is neither listed nor changed."""
        routes = probes.routes_of(cloud)
        probes.unless_opted_out(harness, "no_cluster_marks")
        (node,) = await probes.nodes(cloud, harness, 1)
        await harness.foreign_route("10.121.0.0/24")

        await created(routes, node, CIDR)
        listed = await routes.list_routes(CLUSTER)
        for each in listed:
            await routes.delete_route(CLUSTER, each)

        same([each.target_node for each in listed], [node.name], "targets listed")
        same(list(await harness.routes()), ["10.121.0.0/24"], "routes left in the cloud")

    async def test_a_route_to_a_deleted_instance_leads_to_no_node(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """It is listed as a blackhole, or without its node, or not at all; it can be deleted."""
        routes = probes.routes_of(cloud)
        made = await harness.create()
        await created(routes, await probes.node_of(cloud, made), CIDR)

        await harness.delete(made)

        listed = await routes.list_routes(CLUSTER)
        if not probes.is_opted_out(harness, "routes_name_nodes"):
            assert all(each.blackhole or not each.target_node for each in listed), listed
        for each in listed:
            await routes.delete_route(CLUSTER, each)
        same(list(await routes.list_routes(CLUSTER)), [], "routes after deleting")

    @pytest.mark.parametrize("what", ["create", "delete"])
    async def test_a_crash_after_a_route_write_is_mended(
        self, cloud: Cloud, harness: Harness, what: str
    ) -> None:
        """A write whose answer was lost is repeated without harm."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        if what == "delete":
            await created(routes, node, CIDR)
        listed = list(await routes.list_routes(CLUSTER))

        async def work() -> None:
            for each in listed:
                await routes.delete_route(CLUSTER, each)
            if not listed:
                await created(routes, node, CIDR)

        await harness.lose_answer(1)
        await outcome(work)
        await harness.heal()
        await probes.within_patience(harness, work)

        same(len(await harness.routes()), 0 if what == "delete" else 1, "routes in the cloud")

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_route_fault_arrives_as_promised(
        self, cloud: Cloud, harness: Harness, fault: str
    ) -> None:
        """No fault reads as "no routes" or as success; afterwards all is well."""
        routes = probes.routes_of(cloud)
        how = probes.scripted(harness, fault)
        (node,) = await probes.nodes(cloud, harness, 1)
        await created(routes, node, CIDR)
        (listed,) = await routes.list_routes(CLUSTER)

        await harness.fail(how)
        for name, ask in _questions(routes, node, listed).items():
            found = await probes.patient(harness, name, ask)
            probes.check_error(found, PROMISED[fault], f"{name} during {fault}")
        await harness.heal()

        again = await probes.within_patience(harness, lambda: routes.list_routes(CLUSTER))
        same([each.target_node for each in again], [node.name], "targets after the fault")

    async def test_a_cancelled_route_call_is_mended(self, cloud: Cloud, harness: Harness) -> None:
        """Creation may be cancelled wherever it waits; the next one ends with one route."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        for steps in probes.CANCEL_AFTER:
            with probes.watched(harness) as started:
                await probes.cut_short(lambda: created(routes, node, CIDR), steps=steps)
                await started.have_ended("after a cancelled creation")

            await created(routes, node, CIDR)
            same(len(await harness.routes()), 1, "routes in the cloud")
            for each in await routes.list_routes(CLUSTER):
                await routes.delete_route(CLUSTER, each)


async def created(routes: Routes, node: Node, cidr: str) -> None:
    """Create a route as the route controller does."""
    addresses = tuple(node.addresses)
    route = Route(destination_cidr=cidr, target_node=node.name, target_addresses=addresses)
    await routes.create_route(CLUSTER, node.uid, route)


def _questions(routes: Routes, node: Node, listed: Route) -> dict[str, probes.Question]:
    return {
        "list_routes": partial(routes.list_routes, CLUSTER),
        "create_route": lambda: created(routes, node, "10.120.9.0/24"),
        "delete_route": lambda: routes.delete_route(CLUSTER, listed),
    }

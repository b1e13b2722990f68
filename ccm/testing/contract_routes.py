"""The provider contract about routes; part of `ccm.testing.contract`.

Offer `Cloud.routes` and override the hooks of `Harness` about routes.
"""

from __future__ import annotations

from functools import partial

import pytest

from ccm.base.tasks import run_bounded
from ccm.cloud import errors
from ccm.cloud.interface import Cloud, Routes
from ccm.cloud.types import Route
from ccm.model import Node
from ccm.model.cidr import parse_cidr
from ccm.testing import probes
from ccm.testing.harness import PROMISED, Harness
from ccm.testing.probes import CLUSTER, outcome, retry_after_hints, same

CIDR = "10.120.0.0/24"
CIDR_V6 = "fd00:120::/64"


@pytest.mark.asyncio
class RouteCases:
    """Cases about routes. `ProviderContract` provides the fixtures."""

    async def test_no_routes_is_an_empty_list(self, cloud: Cloud) -> None:
        """The listing of a cluster without routes is empty."""
        routes = probes.routes_of(cloud)

        same(list(await routes.list_routes(CLUSTER)), [], "routes")

    @pytest.mark.parametrize("cidr", [CIDR, CIDR_V6], ids=["ipv4", "ipv6"])
    async def test_a_created_route_is_listed(
        self, cloud: Cloud, harness: Harness, cidr: str
    ) -> None:
        """A created route is listed with its range and its node, and is no blackhole."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        try:
            await created(routes, node, cidr)
        except (errors.InvalidArgument, errors.FailedPrecondition):
            assert cidr != CIDR, "IPv4 routes are refused"
            pytest.skip("not offered: IPv6 routes")

        (listed,) = await routes.list_routes(CLUSTER)

        same(parse_cidr(listed.destination_cidr), parse_cidr(cidr), "listed destination")
        same((listed.target_node, listed.blackhole), (node.name, False), "listed target")

    async def test_create_twice_is_one_route(self, cloud: Cloud, harness: Harness) -> None:
        """Creating the same route twice makes one route."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)

        await created(routes, node, CIDR)
        await created(routes, node, CIDR)

        same(len(await routes.list_routes(CLUSTER)), 1, "routes listed")
        same(len(await harness.routes()), 1, "routes in the cloud")

    async def test_a_range_of_another_node_is_not_taken_over(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A second route to a CIDR, via another node, raises AlreadyExists, or both are listed.

        A false success would make the other node look reachable.
        """
        routes = probes.routes_of(cloud)
        first, other = await probes.nodes(cloud, harness, 2)
        await created(routes, first, CIDR)

        result = await outcome(lambda: retry_after_hints(lambda: created(routes, other, CIDR)))

        targets = [route.target_node for route in await routes.list_routes(CLUSTER)]
        assert first.name in targets, f"{first.name} is not among the listed targets {targets}"
        if other.name not in targets:
            probes.check_error(result, (errors.AlreadyExists,), "a second route for the same range")

    async def test_delete_route_twice_is_silent(self, cloud: Cloud, harness: Harness) -> None:
        """Deleting a listed route removes only that route; deleting it again succeeds."""
        routes = probes.routes_of(cloud)
        first, other = await probes.nodes(cloud, harness, 2)
        await created(routes, first, CIDR)
        await created(routes, other, "10.120.1.0/24")
        listed = {route.target_node: route for route in await routes.list_routes(CLUSTER)}

        await routes.delete_route(CLUSTER, listed[first.name])
        await routes.delete_route(CLUSTER, listed[first.name])

        left = [route.target_node for route in await routes.list_routes(CLUSTER)]
        same(left, [other.name], "targets of the remaining routes")

    async def test_concurrent_routes(self, cloud: Cloud, harness: Harness) -> None:
        """Concurrent creations and concurrent deletions all take effect."""
        routes = probes.routes_of(cloud)
        nodes = await probes.nodes(cloud, harness, 10)
        numbered = {node.name: f"10.120.{number}.0/24" for number, node in enumerate(nodes)}

        async def create(node: Node) -> None:
            await retry_after_hints(lambda: created(routes, node, numbered[node.name]))

        async def delete(route: Route) -> None:
            await retry_after_hints(lambda: routes.delete_route(CLUSTER, route))

        await run_bounded(nodes, create, limit=10, name="contract-create")
        listed = await routes.list_routes(CLUSTER)
        destinations = {
            listed_route.target_node: listed_route.destination_cidr for listed_route in listed
        }
        same(destinations, numbered, "routes listed")
        await run_bounded(listed, delete, limit=10, name="contract-delete")
        same(list(await routes.list_routes(CLUSTER)), [], "routes after the deletion")

    async def test_foreign_routes_are_out_of_reach(self, cloud: Cloud, harness: Harness) -> None:
        """Routes of other owners are neither listed nor changed."""
        routes = probes.routes_of(cloud)
        probes.skip_if_opted_out(harness, "no_cluster_marks")
        (node,) = await probes.nodes(cloud, harness, 1)
        await harness.foreign_route("10.121.0.0/24")

        await created(routes, node, CIDR)
        listed = await routes.list_routes(CLUSTER)
        for route in listed:
            await routes.delete_route(CLUSTER, route)

        same([route.target_node for route in listed], [node.name], "targets listed")
        same(list(await harness.routes()), ["10.121.0.0/24"], "remaining routes in the cloud")

    async def test_a_route_to_a_deleted_instance_leads_to_no_node(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """The route of a deleted instance is listed as a blackhole, without node, or not at all.

        A listed route can be deleted.
        """
        routes = probes.routes_of(cloud)
        instance = await harness.create()
        await created(routes, await probes.node_of(cloud, instance), CIDR)

        await harness.delete(instance)

        listed = await routes.list_routes(CLUSTER)
        if not probes.is_opted_out(harness, "routes_name_nodes"):
            assert all(route.blackhole or not route.target_node for route in listed), listed
        for route in listed:
            await routes.delete_route(CLUSTER, route)
        same(list(await routes.list_routes(CLUSTER)), [], "routes after the deletion")

    @pytest.mark.parametrize("what", ["create", "delete"])
    async def test_a_crash_after_a_route_write_is_mended(
        self, cloud: Cloud, harness: Harness, what: str
    ) -> None:
        """A write whose answer was lost succeeds when repeated; the cloud has the right routes."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        if what == "delete":
            await created(routes, node, CIDR)
        listed = list(await routes.list_routes(CLUSTER))

        async def work() -> None:
            for route in listed:
                await routes.delete_route(CLUSTER, route)
            if not listed:
                await created(routes, node, CIDR)

        await harness.lose_answer(1)
        await outcome(work)
        await harness.heal()
        await probes.retry_within_patience(harness, work)

        same(len(await harness.routes()), 0 if what == "delete" else 1, "routes in the cloud")

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_route_fault_arrives_as_promised(
        self, cloud: Cloud, harness: Harness, fault: str
    ) -> None:
        """Every call during a fault raises a promised error; afterwards the route is listed."""
        routes = probes.routes_of(cloud)
        how = probes.fault_argument(harness, fault)
        (node,) = await probes.nodes(cloud, harness, 1)
        await created(routes, node, CIDR)
        (listed,) = await routes.list_routes(CLUSTER)

        await harness.fail(how)
        for name, ask in _calls(routes, node, listed).items():
            result = await probes.outcome_within_patience(harness, name, ask)
            probes.check_error(result, PROMISED[fault], f"{name} during {fault}")
        await harness.heal()

        again = await probes.retry_within_patience(harness, lambda: routes.list_routes(CLUSTER))
        same([route.target_node for route in again], [node.name], "targets after the fault")

    async def test_a_cancelled_route_call_is_mended(self, cloud: Cloud, harness: Harness) -> None:
        """A creation can be cancelled at any await; the next creation ends with one route."""
        routes = probes.routes_of(cloud)
        (node,) = await probes.nodes(cloud, harness, 1)
        for steps in probes.CANCEL_AFTER:
            with probes.watch_tasks(harness) as started:
                await probes.cancel_after(lambda: created(routes, node, CIDR), steps=steps)
                await started.check_ended("after a cancelled creation")

            await created(routes, node, CIDR)
            same(len(await harness.routes()), 1, "routes in the cloud")
            for route in await routes.list_routes(CLUSTER):
                await routes.delete_route(CLUSTER, route)


async def created(routes: Routes, node: Node, cidr: str) -> None:
    """Create a route as the route controller does."""
    addresses = tuple(node.addresses)
    route = Route(destination_cidr=cidr, target_node=node.name, target_addresses=addresses)
    await routes.create_route(CLUSTER, node.uid, route)


def _calls(routes: Routes, node: Node, listed: Route) -> dict[str, probes.Call]:
    return {
        "list_routes": partial(routes.list_routes, CLUSTER),
        "create_route": lambda: created(routes, node, "10.120.9.0/24"),
        "delete_route": lambda: routes.delete_route(CLUSTER, listed),
    }

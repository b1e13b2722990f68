"""Load balancers and routes with one defect each, and the cases that must notice it.

Not collected by itself: `test_suite.py` runs it and expects every case named here to fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import pytest_asyncio

from ccm.base.tasks import spawn
from ccm.cloud import (
    CloudError,
    LoadBalancerRecord,
    Node,
    NotFound,
    RetryAfter,
    Route,
    Service,
    Status,
)
from ccm.testing.contract import Harness, ProviderContract
from ccm.testing.memory_network import MemoryNetwork
from tests.contract.test_memory_network import NetworkHarness


class Bad(ProviderContract):
    """`network` has the defect; `noticed` names the cases that must fail."""

    network: ClassVar[type[MemoryNetwork]]
    noticed: ClassVar[tuple[str, ...]]

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return NetworkHarness(self.network)


class TestAbsenceRaises(Bad):
    """What is not there is an error instead of None."""

    class network(MemoryNetwork):  # noqa: N801
        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            found = await super().get_load_balancer(cluster_name, service)
            if found is None:
                raise NotFound("no such load balancer")
            return found

    noticed = ("test_no_load_balancer_is_none",)


class TestErrorsReadAsAbsence(Bad):
    """An outage reads as "nothing there", and a deletion as done."""

    class network(MemoryNetwork):  # noqa: N801
        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            try:
                return await super().get_load_balancer(cluster_name, service)
            except CloudError:
                return None

        async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
            try:
                await super().ensure_load_balancer_deleted(cluster_name, service)
            except CloudError:
                return

    noticed = (
        "test_balancer_fault_arrives_as_promised[outage]",
        "test_protection_is_an_error",
    )


class TestWritesAlways(Bad):
    """Each ensure writes the members, changed or not."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            status = await super().ensure_load_balancer(cluster_name, service, nodes)
            name = self.get_load_balancer_name(cluster_name, service)
            members = tuple(sorted(node.name for node in nodes if node.addresses))
            await self.api.put_members(self._token, name, members)
            return status

    noticed = ("test_ensure_again_changes_nothing",)


class TestMembersOnlyGrow(Bad):
    """A node that went stays a member; no node at all is ignored."""

    class network(MemoryNetwork):  # noqa: N801
        async def update_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> None:
            if nodes:
                await super().update_load_balancer(cluster_name, service, nodes)

    noticed = ("test_members_follow_the_nodes",)


class TestPortsStay(Bad):
    """An existing load balancer keeps the ports it was made with."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            found = await self.get_load_balancer(cluster_name, service)
            if found is None:
                return await super().ensure_load_balancer(cluster_name, service, nodes)
            await self.update_load_balancer(cluster_name, service, nodes)
            return found

    noticed = (
        "test_ensure_converges[port_added]",
        "test_ensure_converges[udp]",
        "test_a_crash_after_any_write_is_mended[change]",
    )


class TestNamesNotUnique(Bad):
    """Services of one length of name share a load balancer."""

    class network(MemoryNetwork):  # noqa: N801
        def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
            return "shared"

    noticed = (
        "test_services_do_not_share",
        "test_clusters_do_not_share",
    )


class TestForgetsHalfMade(Bad):
    """A load balancer without members counts as absent: it is left behind."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
            found = await self._find(cluster_name, service)
            if found is not None and found.members:
                await super().ensure_load_balancer_deleted(cluster_name, service)

    noticed = ("test_protection_is_an_error",)


class TestWaits(Bad):
    """While the cloud works, the answer is an ordinary success."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            try:
                return await super().ensure_load_balancer(cluster_name, service, nodes)
            except RetryAfter:
                return Status()

    noticed = ("test_a_slow_cloud_is_not_waited_for",)


class TestSilentFailure(Bad):
    """A failure of the cloud is told without its reason."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            try:
                return await super().ensure_load_balancer(cluster_name, service, nodes)
            except CloudError as error:
                raise type(error)("something went wrong") from error

    noticed = ("test_a_failure_tells_the_reason",)


class TestRandomNames(Bad):
    """Each order makes another load balancer: an order without answer is made twice."""

    class network(MemoryNetwork):  # noqa: N801
        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            if await self._find(cluster_name, service) is None:
                await self.api.put_balancer(
                    self._token, f"draft-{len(self.api.balancers)}", cluster_name, ()
                )
                drafts = [name for name in self.api.balancers if name.startswith("draft")]
                await asyncio.sleep(0)
                draft = self.api.balancers.pop(drafts[-1])
                draft.name = self.get_load_balancer_name(cluster_name, service)
                self.api.balancers[draft.name] = draft
            return await super().ensure_load_balancer(cluster_name, service, nodes)

    noticed = (
        "test_a_crash_after_any_write_is_mended[ensure]",
        "test_a_cancelled_ensure_is_adopted",
    )


class TestArgumentsChanged(Bad):
    """The finalizers of the Service are emptied on the way."""

    class network(MemoryNetwork):  # noqa: N801
        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            if service.metadata.finalizers:
                service.metadata.finalizers.clear()
            return await super().get_load_balancer(cluster_name, service)

    noticed = ("test_balancer_arguments_are_left_alone",)


class TestDigestFromNote(Bad):
    """The listed digest is a note of what was wanted, not what the cloud holds."""

    class network(MemoryNetwork):  # noqa: N801
        notes: ClassVar[dict[str, str]] = {}

        async def ensure_load_balancer(
            self, cluster_name: str, service: Service, nodes: Sequence[Node]
        ) -> Status:
            status = await super().ensure_load_balancer(cluster_name, service, nodes)
            name = self.get_load_balancer_name(cluster_name, service)
            self.notes[name] = self.load_balancer_digest(cluster_name, service, nodes)
            return status

        async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
            found = await super().list_load_balancers(cluster_name)
            return [dataclasses.replace(one, digest=self.notes[one.name]) for one in found]

    noticed = ("test_digests_tell_whether_ensure_is_needed",)


class TestListsAllClusters(Bad):
    """Load balancers and routes of everybody are listed as ours."""

    class network(MemoryNetwork):  # noqa: N801
        async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
            found = list(await super().list_load_balancers(cluster_name))
            return [*found, *await super().list_load_balancers("other")]

        async def list_routes(self, cluster_name: str) -> Sequence[Route]:
            found = list(await super().list_routes(cluster_name))
            return [*found, *await super().list_routes("somebody else")]

    noticed = (
        "test_clusters_do_not_share",
        "test_foreign_routes_are_out_of_reach",
    )


class TestRouteErrorsHidden(Bad):
    """An outage reads as "no routes", and every call as done."""

    class network(MemoryNetwork):  # noqa: N801
        async def list_routes(self, cluster_name: str) -> Sequence[Route]:
            try:
                return await super().list_routes(cluster_name)
            except CloudError:
                return []

    noticed = (
        "test_route_fault_arrives_as_promised[outage]",
        "test_route_fault_arrives_as_promised[denied]",
    )


class TestRoutesTwice(Bad):
    """A repeated creation makes a second route; a repeated deletion is an error."""

    class network(MemoryNetwork):  # noqa: N801
        async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
            for one in self.api.routes.values():
                one.cidr = f" {one.cidr.strip()}"
            await super().create_route(cluster_name, name_hint, route)

        async def delete_route(self, cluster_name: str, route: Route) -> None:
            if route.name not in self.api.routes:
                raise NotFound("no such route")
            await super().delete_route(cluster_name, route)

    noticed = (
        "test_create_twice_is_one_route",
        "test_delete_route_twice_is_silent",
        "test_a_crash_after_a_route_write_is_mended[create]",
        "test_a_crash_after_a_route_write_is_mended[delete]",
    )


class TestRouteTakenOver(Bad):
    """A range goes over to whoever asks last, and dead instances keep their routes."""

    class network(MemoryNetwork):  # noqa: N801
        async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
            for one in self.api.routes.values():
                if one.cidr == route.destination_cidr:
                    one.target = route.target_node
            await super().create_route(cluster_name, name_hint, route)

        async def list_routes(self, cluster_name: str) -> Sequence[Route]:
            found = await super().list_routes(cluster_name)
            return [
                dataclasses.replace(
                    one, target_node=self.api.routes[one.name].target, blackhole=False
                )
                for one in found
            ]

    noticed = (
        "test_a_range_of_another_node_is_not_taken_over",
        "test_a_route_to_a_deleted_instance_leads_to_no_node",
    )


class TestRouteTasksLeft(Bad):
    """Each creation leaves a task behind when it is cancelled."""

    class network(MemoryNetwork):  # noqa: N801
        async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
            watched = spawn(asyncio.sleep(5), name="never-joined")
            await super().create_route(cluster_name, name_hint, route)
            watched.cancel()

    noticed = ("test_a_cancelled_route_call_is_mended",)


DEFECTS: list[type[Bad]] = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Bad) and kind is not Bad
]

"""Load balancers and routes with one defect each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from ccm.base.tasks import spawn
from ccm.cloud import (
    Aborted,
    AlreadyExists,
    CloudError,
    InvalidArgument,
    LoadBalancerRecord,
    Node,
    NotFound,
    RetryAfter,
    Route,
    Service,
    Status,
)
from ccm.testing.contract import HeldBalancer
from tests.contract.defects import noticed_by
from tests.contract.memory import MemoryBalancer, MemoryNetwork, NetworkHarness, RefusedMembers


@noticed_by("test_no_load_balancer_is_none")
class AbsenceRaises(MemoryNetwork):
    """A missing load balancer is an error instead of None."""

    async def get_load_balancer(self, *args: Any) -> Status | None:
        found = await super().get_load_balancer(*args)
        if found is None:
            raise NotFound("no such load balancer")
        return found


@noticed_by("test_no_load_balancer_is_none")
class UpdateOfNothing(MemoryNetwork):
    """New members for a load balancer that is not there are a success."""

    async def update_load_balancer(self, *args: Any) -> None:
        with suppress(NotFound):
            await super().update_load_balancer(*args)


@noticed_by("test_balancer_fault_arrives_as_promised[outage]", "test_protection_is_an_error")
class ErrorsReadAsAbsence(MemoryNetwork):
    """An outage reads as "nothing there", and a deletion as done."""

    async def get_load_balancer(self, *args: Any) -> Status | None:
        try:
            return await super().get_load_balancer(*args)
        except CloudError:
            return None

    async def ensure_load_balancer_deleted(self, *args: Any) -> None:
        try:
            await super().ensure_load_balancer_deleted(*args)
        except CloudError:
            return


@noticed_by("test_ensure_again_changes_nothing")
class WritesAlways(MemoryNetwork):
    """Each ensure writes the members, changed or not."""

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        status = await super().ensure_load_balancer(cluster_name, service, nodes)
        name = self.get_load_balancer_name(cluster_name, service)
        members = tuple(sorted(node.name for node in nodes if node.addresses))
        await self.api.put_members(self._token, name, members)
        return status


@noticed_by("test_members_follow_the_nodes")
class MembersOnlyGrow(MemoryNetwork):
    """A node that went stays a member; no node at all is ignored."""

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        if nodes:
            await super().update_load_balancer(cluster_name, service, nodes)


@noticed_by("test_members_follow_although_ensure_refuses")
class UpdateReadsAll(MemoryNetwork):
    """New members need a Service that is right in everything."""

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        self.load_balancer_digest(cluster_name, service, nodes)
        await super().update_load_balancer(cluster_name, service, nodes)


@noticed_by("test_a_refused_node_keeps_out_no_other")
class AllMembersOrNone(MemoryNetwork):
    """A node that the cloud refuses keeps out all others."""

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        living = self.api.names
        if refused := [node.name for node in nodes if node.name not in living]:
            raise InvalidArgument(f"no such instances: {refused}")
        await super().update_load_balancer(cluster_name, service, nodes)


@noticed_by("test_a_refused_node_keeps_out_no_other")
class RefusalWithoutStatus(MemoryNetwork):
    """The error about a refused node lacks the address of the load balancer."""

    async def ensure_load_balancer(self, *args: Any) -> Status:
        try:
            return await super().ensure_load_balancer(*args)
        except RefusedMembers as error:
            raise Aborted(str(error)) from error


@noticed_by(
    "test_ensure_converges[port_added]",
    "test_ensure_converges[udp]",
    "test_a_crash_after_any_write_is_mended[change]",
)
class PortsStay(MemoryNetwork):
    """An existing load balancer keeps the ports it was made with."""

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        found = await self.get_load_balancer(cluster_name, service)
        if found is None:
            return await super().ensure_load_balancer(cluster_name, service, nodes)
        await self.update_load_balancer(cluster_name, service, nodes)
        return found


@noticed_by("test_source_ranges_limit_who_is_let_in")
class SourceRangesIgnored(MemoryNetwork):
    """All source addresses are allowed, whatever the Service says."""

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        spec = msgspec.structs.replace(service.spec, load_balancer_source_ranges=None)
        service = msgspec.structs.replace(service, spec=spec)
        return await super().ensure_load_balancer(cluster_name, service, nodes)


class UntoldRanges(NetworkHarness):
    """Ignores source ranges."""

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        return [
            dataclasses.replace(one, source_ranges=None) for one in await super().load_balancers()
        ]


@noticed_by("test_source_ranges_limit_who_is_let_in", harness=UntoldRanges)
class SourceRangesIgnoredUntold(SourceRangesIgnored):
    """The same, seen by the writes that are not made."""


@noticed_by("test_services_do_not_share", "test_clusters_do_not_share")
class NamesNotUnique(MemoryNetwork):
    """Services of one length of name share a load balancer."""

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        return "shared"


@noticed_by("test_protection_is_an_error")
class ForgetsHalfMade(MemoryNetwork):
    """A load balancer without members counts as absent: it is left behind."""

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        found = await self._find(cluster_name, service)
        if found is not None and found.members:
            await super().ensure_load_balancer_deleted(cluster_name, service)


@noticed_by("test_one_that_was_there_before_is_not_deleted")
class DeletesWhatItAdopted(MemoryNetwork):
    """An unmarked load balancer of the name is adopted, and deleted with the Service."""

    async def _find(self, cluster_name: str, service: Service) -> MemoryBalancer | None:
        found = self.api.balancers.get(self.get_load_balancer_name(cluster_name, service))
        if found is not None and not found.cluster:
            found.cluster = cluster_name
        return await super()._find(cluster_name, service)


@noticed_by("test_a_slow_cloud_is_not_waited_for")
class Waits(MemoryNetwork):
    """While the cloud works, the answer is an ordinary success."""

    async def ensure_load_balancer(self, *args: Any) -> Status:
        try:
            return await super().ensure_load_balancer(*args)
        except RetryAfter:
            return Status()


@noticed_by("test_a_failure_tells_the_reason")
class SilentFailure(MemoryNetwork):
    """An error of the cloud is reported without its reason."""

    async def ensure_load_balancer(self, *args: Any) -> Status:
        try:
            return await super().ensure_load_balancer(*args)
        except CloudError as error:
            raise type(error)("something went wrong") from error


@noticed_by("test_a_crash_after_any_write_is_mended[ensure]", "test_a_cancelled_ensure_is_adopted")
class RandomNames(MemoryNetwork):
    """Each order makes another load balancer: an order without answer is made twice."""

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


@noticed_by("test_balancer_arguments_are_left_alone")
class ServiceChanged(MemoryNetwork):
    """The finalizers of the Service are emptied on the way."""

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        if service.metadata.finalizers:
            service.metadata.finalizers.clear()
        return await super().get_load_balancer(cluster_name, service)


@noticed_by("test_digests_tell_whether_ensure_is_needed")
class DigestFromNote(MemoryNetwork):
    """The listed digest is that of the last request, not of the state in the cloud."""

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


@noticed_by("test_a_digest_tells_apart_what_ensure_tells_apart")
class DigestWithoutProtocol(MemoryNetwork):
    """UDP and TCP have one digest."""

    def load_balancer_digest(self, *args: Any) -> str:
        return super().load_balancer_digest(*args).replace("UDP", "TCP")

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        found = await super().list_load_balancers(cluster_name)
        return [dataclasses.replace(one, digest=one.digest.replace("UDP", "TCP")) for one in found]


@noticed_by("test_a_listing_tells_where_balancers_are_reached")
class EmptyListedStatus(MemoryNetwork):
    """A listing lacks the addresses of load balancers."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        found = await super().list_load_balancers(cluster_name)
        return [dataclasses.replace(one, status=Status()) for one in found]


@noticed_by("test_every_page_of_load_balancers_is_read", "test_every_page_of_routes_is_listed")
class FirstPageOnly(MemoryNetwork):
    """Of load balancers and routes only the first page is read."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        return (await super().list_load_balancers(cluster_name))[: self.api.page_size]

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        return (await super().list_routes(cluster_name))[: self.api.page_size]


@noticed_by("test_clusters_do_not_share", "test_foreign_routes_are_out_of_reach")
class ListsAllClusters(MemoryNetwork):
    """Load balancers and routes of everybody are listed as ours."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        found = list(await super().list_load_balancers(cluster_name))
        return [*found, *await super().list_load_balancers("other")]

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        found = list(await super().list_routes(cluster_name))
        return [*found, *await super().list_routes("somebody else")]


@noticed_by(
    "test_route_fault_arrives_as_promised[outage]", "test_route_fault_arrives_as_promised[denied]"
)
class RouteErrorsHidden(MemoryNetwork):
    """An outage reads as "no routes", and every call as done."""

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        try:
            return await super().list_routes(cluster_name)
        except CloudError:
            return []


@noticed_by(
    "test_create_twice_is_one_route",
    "test_delete_route_twice_is_silent",
    "test_a_crash_after_a_route_write_is_mended[create]",
    "test_a_crash_after_a_route_write_is_mended[delete]",
)
class RoutesTwice(MemoryNetwork):
    """A repeated creation makes a second route; a repeated deletion is an error."""

    async def create_route(self, *args: Any) -> None:
        for one in self.api.routes.values():
            one.cidr = f" {one.cidr.strip()}"
        await super().create_route(*args)

    async def delete_route(self, cluster_name: str, route: Route) -> None:
        if route.name not in self.api.routes:
            raise NotFound("no such route")
        await super().delete_route(cluster_name, route)


@noticed_by(
    "test_a_range_of_another_node_is_not_taken_over",
    "test_a_route_to_a_deleted_instance_leads_to_no_node",
)
class RouteTakenOver(MemoryNetwork):
    """The last request gets a range, and deleted instances keep their routes."""

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        for one in self.api.routes.values():
            if one.cidr == route.destination_cidr:
                one.target = route.target_node
        await super().create_route(cluster_name, name_hint, route)

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        found = await super().list_routes(cluster_name)
        return [
            dataclasses.replace(one, target_node=self.api.routes[one.name].target, blackhole=False)
            for one in found
        ]


@noticed_by("test_a_range_of_another_node_is_not_taken_over")
class TakenRangeIsSuccess(MemoryNetwork):
    """A range that leads to another node is reported as a success."""

    async def create_route(self, *args: Any) -> None:
        with suppress(AlreadyExists):
            await super().create_route(*args)


@noticed_by("test_a_range_of_another_node_is_not_taken_over")
class TakenRangeIsInvalid(MemoryNetwork):
    """A range that leads to another node is a permanent error."""

    async def create_route(self, *args: Any) -> None:
        try:
            await super().create_route(*args)
        except AlreadyExists as error:
            raise InvalidArgument(str(error)) from error


@noticed_by("test_a_cancelled_route_call_is_mended")
class RouteTasksLeft(MemoryNetwork):
    """Each creation leaves a task behind when it is cancelled."""

    async def create_route(self, *args: Any) -> None:
        watched = spawn(asyncio.sleep(5), name="never-joined")
        await super().create_route(*args)
        watched.cancel()

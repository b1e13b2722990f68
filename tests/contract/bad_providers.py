"""Providers with one defect each."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar

from ccm.base.lazy_aiohttp import aiohttp
from ccm.base.tasks import spawn
from ccm.cloud import (
    Cloud,
    CloudError,
    InstanceListing,
    InstanceMetadata,
    InstanceState,
    InvalidArgument,
    Node,
    NotFound,
    Power,
    Unavailable,
    address,
)
from tests.contract.defects import noticed_by
from tests.contract.memory import (
    MemoryApi,
    MemoryApiError,
    MemoryHarness,
    MemoryInstance,
    MemoryProvider,
    MemoryStateProvider,
)


@noticed_by(
    "test_fault_arrives_as_promised[InstancesV2-outage]",
    "test_fault_arrives_as_promised[InstancesV2-denied]",
    "test_fault_arrives_as_promised[InstancesV2-rate_limited]",
    "test_fault_arrives_as_promised[InstancesV2-garbage]",
    "test_foreign_provider_id_is_refused[InstancesV2-other_cloud]",
    "test_rotated_credentials[InstancesV2]",
)
class ErrorMeansAbsent(MemoryProvider):
    """Every error about existence is read as an absence."""

    async def instance_exists(self, node: Node) -> bool:
        try:
            return await super().instance_exists(node)
        except CloudError:
            return False


@noticed_by(
    "test_fault_arrives_as_promised[Instances-outage]",
    "test_foreign_provider_id_is_refused[Instances-no_id]",
    harness=partial(MemoryHarness, without=("instances",)),
)
class OldErrorMeansAbsent(MemoryProvider):
    """The same through the old interface."""

    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        try:
            return await super().instance_exists_by_provider_id(provider_id)
        except CloudError:
            return False


@noticed_by(
    "test_fault_arrives_as_promised[InstancesV2-outage]",
    "test_absence_elsewhere_is_not_found[InstancesV2]",
)
class ClientErrorsLeak(MemoryProvider):
    """Errors of the client library are not translated."""

    async def instance_shutdown(self, node: Node) -> bool:
        found = await self.api.get(self._token, node.provider_id.removeprefix("memory://"))
        return found.state == "stopped"


@noticed_by("test_fault_arrives_as_promised[InstancesV2-denied]")
class WrongClass(MemoryProvider):
    """A refusal of the credentials is reported as an outage."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        if self.api.fault is not None:
            raise Unavailable("something is wrong")
        return await super().instance_metadata(node)


@noticed_by("test_arguments_are_left_alone[InstancesV2]")
class NodeChanged(MemoryProvider):
    """A label is put on the node that was handed in."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        if node.metadata.labels is not None:
            node.metadata.labels["seen"] = "yes"
        return await super().instance_metadata(node)


@noticed_by("test_same_question_same_answer[InstancesV2]")
class UnstableAddresses(MemoryProvider):
    """The order of addresses changes from answer to answer."""

    turns: ClassVar = itertools.cycle((1, -1))

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        found = await super().instance_metadata(node)
        assert found is not None
        return dataclasses.replace(found, addresses=found.addresses[:: next(self.turns)])


@noticed_by(
    "test_metadata_is_complete[InstancesV2]",
    "test_addresses_are_usable[InstancesV2]",
    "test_listing_agrees_with_single_questions",
)
class PoorMetadata(MemoryProvider):
    """An address twice, no type, a zone that fits no label."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        found = await super().instance_metadata(node)
        assert found is not None
        twice = (address("InternalIP", "10.0.0.1"),) * 2
        return dataclasses.replace(found, addresses=twice, zone="zone 51")


@noticed_by("test_stopped_instance_still_exists[InstancesV2]")
class StoppedMeansAbsent(MemoryProvider):
    """A stopped instance is reported as missing."""

    async def instance_exists(self, node: Node) -> bool:
        return await super().instance_exists(node) and not await self.instance_shutdown(node)


@noticed_by(
    "test_instance_on_its_way_is_not_shut_down[InstancesV2]",
    "test_surprises_are_survived[InstancesV2]",
)
class UnknownMeansStopped(MemoryProvider):
    """Every state but running counts as shut down."""

    async def instance_shutdown(self, node: Node) -> bool:
        return (await self._of(node)).state != "running"


@noticed_by(
    "test_deleted_instance_is_gone[InstancesV2]", "test_absence_elsewhere_is_not_found[InstancesV2]"
)
class AbsenceIsAnError(MemoryProvider):
    """Absence is reported as something else everywhere."""

    async def _get(self, provider_id: str):  # type: ignore[no-untyped-def]
        try:
            return await super()._get(provider_id)
        except NotFound as error:
            raise InvalidArgument("what do you mean?") from error


@noticed_by(
    "test_provider_id_wins_over_name[InstancesV2]",
    "test_foreign_provider_id_is_refused[InstancesV2-other_cloud]",
)
class NameWins(MemoryProvider):
    """Instances are looked up by name although the node has a provider ID."""

    async def _of(self, node: Node):  # type: ignore[no-untyped-def]
        return await self._named(node.name)


@noticed_by(
    "test_cancellation_is_obeyed[InstancesV2]", "test_hanging_cloud_can_be_left[InstancesV2]"
)
class CancellationSwallowed(MemoryProvider):
    """A cancelled call answers instead of ending."""

    async def instance_exists(self, node: Node) -> bool:
        try:
            return await super().instance_exists(node)
        except asyncio.CancelledError:
            return False


@noticed_by(
    "test_cancellation_is_obeyed[InstancesV2]", "test_hanging_cloud_can_be_left[InstancesV2]"
)
class TasksLeftByCalls(MemoryProvider):
    """Each call leaves a task behind when it is cancelled."""

    async def instance_exists(self, node: Node) -> bool:
        asked = asyncio.ensure_future(asyncio.sleep(5, result=node))
        answer = await super().instance_exists(node)
        asked.cancel()
        return answer


class Untidy(MemoryHarness):
    """Opens providers that share a client."""

    shared: MemoryProvider | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        self.shared = self.shared or self._provider(self.api)
        self.background = spawn(asyncio.sleep(5), name="never-joined")
        yield Cloud(name="memory", instances=self.shared)
        self.shared._token = "closed"


@noticed_by("test_closing_leaves_nothing", "test_openings_are_independent", harness=Untidy)
class TasksLeftByClosing(MemoryProvider):
    """A background task outlives the provider, and closing it once closes the others."""

    async def _of(self, node: Node):  # type: ignore[no-untyped-def]
        if self._token == "closed":
            raise Unavailable("the shared client is closed")
        return await super()._of(node)


@noticed_by("test_every_page_of_instances_is_listed", "test_listing_counts_its_requests")
class PoorListing(MemoryProvider):
    """Only the first page is listed, and the requests are made up."""

    async def list_instances(self) -> InstanceListing:
        found = await super().list_instances()
        return InstanceListing(instances=found.instances[: self.api.page_size], requests=7)


@noticed_by("test_a_name_is_looked_for_on_every_page[InstancesV2]")
class NamesOfTheFirstPage(MemoryProvider):
    """Only the first page of instances is searched for a name."""

    async def _named(self, name: str) -> MemoryInstance:
        for one in await self.api.page(self._token, 0):
            if one.name == name:
                return one
        raise NotFound(f"no instance {name}")


@noticed_by("test_metadata_is_complete[InstancesV2]")
class LabelsDropped(MemoryProvider):
    """Metadata besides type and zone gets lost."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        found = await super().instance_metadata(node)
        assert found is not None
        return dataclasses.replace(found, additional_labels={})


class NoneOurs(MemoryHarness):
    """A string instead of a list of prefixes: each letter counts as a prefix."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with super().open() as cloud:
            yield dataclasses.replace(cloud, foreign_ids="cellar://bm-")


@noticed_by("test_metadata_is_complete[InstancesV2]", harness=NoneOurs)
class LeavesItsOwnAlone(MemoryProvider):
    """Its declared prefixes make its own nodes foreign."""


@noticed_by("test_calls_reach_the_cloud_side_by_side[InstancesV2]")
class PoolOfOne(MemoryProvider):
    """One connection for all calls."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(api)
        self._connection = asyncio.Lock()

    async def _get(self, provider_id: str) -> MemoryInstance:
        async with self._connection:
            return await super()._get(provider_id)


class Unclosed(MemoryHarness):
    """Opens an HTTP session for each opening, and forgets about it."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        provider = self._provider(self.api)
        provider.session = aiohttp.ClientSession()  # type: ignore[attr-defined]
        yield Cloud(name="memory", instances=provider)


@noticed_by("test_closing_ends_every_session", harness=Unclosed)
class SessionNeverClosed(MemoryProvider):
    """Works, but never closes its session."""


class Undeclared(MemoryHarness):
    """Opts out of an unknown case, and of a known one without a reason."""

    opt_outs: Mapping[str, str] = {"everything": "we are special", "free_writes": ""}


@noticed_by("test_opt_outs_are_known_and_have_reasons", harness=Undeclared)
class OptsOutOfEverything(MemoryProvider):
    """Right in all things."""


@noticed_by("test_listing_agrees_with_single_questions")
class StaleListing(MemoryProvider):
    """The listing is kept for ever, and shows every instance as running."""

    kept: InstanceListing | None = None

    async def list_instances(self) -> InstanceListing:
        if self.kept is None:
            self.api.create("ghost")
            found = await super().list_instances()
            running = [dataclasses.replace(r, power=Power.RUNNING) for r in found.instances]
            self.kept = InstanceListing(instances=running, requests=found.requests)
        return self.kept


@noticed_by("test_stopped_instance_still_exists[InstancesV2]")
class StatesDisagree(MemoryStateProvider):
    """The combined question answers differently."""

    async def instance_state(self, node: Node) -> InstanceState:
        found = await super().instance_state(node)
        return dataclasses.replace(found, power=Power.RUNNING if found.exists else None)


@noticed_by("test_fault_arrives_as_promised[InstancesV2-garbage]")
class TypeErrorOfItsOwn(MemoryProvider):
    """Garbage from the cloud makes the provider itself stumble."""

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        try:
            return await super().instance_metadata(node)
        except Exception as error:
            if isinstance(error.__cause__, MemoryApiError) and self.api.fault == 200:
                raise TypeError("'NoneType' object is not subscriptable") from None
            raise

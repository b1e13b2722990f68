"""Providers with one defect each, and the cases of the contract that must notice it.

Not collected by itself: `test_suite.py` runs it and expects every case named here to fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest_asyncio

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
from ccm.testing.contract import Harness, ProviderContract
from ccm.testing.memory import MemoryApiError, MemoryProvider, MemoryStateProvider
from tests.contract.test_fake import MemoryHarness


class Bad(ProviderContract):
    """`provider` has the defect; `noticed` names the cases that must fail."""

    provider: ClassVar[type[MemoryProvider]]
    noticed: ClassVar[tuple[str, ...]]
    without: ClassVar[tuple[str, ...]] = ("instances_v1", "zones")

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MemoryHarness(self.provider, without=self.without)


class TestErrorMeansAbsent(Bad):
    """Every error about existence is read as an absence."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_exists(self, node: Node) -> bool:
            try:
                return await super().instance_exists(node)
            except CloudError:
                return False

    noticed = (
        "test_fault_arrives_as_promised[InstancesV2-outage]",
        "test_fault_arrives_as_promised[InstancesV2-denied]",
        "test_fault_arrives_as_promised[InstancesV2-rate_limited]",
        "test_fault_arrives_as_promised[InstancesV2-garbage]",
        "test_foreign_provider_id_is_refused[InstancesV2-other_cloud]",
        "test_rotated_credentials[InstancesV2]",
    )


class TestOldErrorMeansAbsent(Bad):
    """The same through the old interface."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
            try:
                return await super().instance_exists_by_provider_id(provider_id)
            except CloudError:
                return False

    without = ("instances",)
    noticed = (
        "test_fault_arrives_as_promised[Instances-outage]",
        "test_foreign_provider_id_is_refused[Instances-no_id]",
    )


class TestClientErrorsLeak(Bad):
    """What the client raises comes through as it is."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_shutdown(self, node: Node) -> bool:
            found = await self.api.get(self._token, node.provider_id.removeprefix("memory://"))
            return found.state == "stopped"

    noticed = (
        "test_fault_arrives_as_promised[InstancesV2-outage]",
        "test_absence_elsewhere_is_not_found[InstancesV2]",
    )


class TestWrongClass(Bad):
    """A refusal of the credentials is reported as an outage."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
            if self.api.fault is not None:
                raise Unavailable("something is wrong")
            return await super().instance_metadata(node)

    noticed = ("test_fault_arrives_as_promised[InstancesV2-denied]",)


class TestArgumentsChanged(Bad):
    """A label is put on the node that was handed in."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
            if node.metadata.labels is not None:
                node.metadata.labels["seen"] = "yes"
            return await super().instance_metadata(node)

    noticed = ("test_arguments_are_left_alone[InstancesV2]",)


class TestUnstableAddresses(Bad):
    """The order of addresses changes from answer to answer."""

    class provider(MemoryProvider):  # noqa: N801
        turns: ClassVar = itertools.cycle((1, -1))

        async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
            found = await super().instance_metadata(node)
            assert found is not None
            return dataclasses.replace(found, addresses=found.addresses[:: next(self.turns)])

    noticed = ("test_same_question_same_answer[InstancesV2]",)


class TestPoorMetadata(Bad):
    """An address twice, no type, a zone that fits no label."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
            found = await super().instance_metadata(node)
            assert found is not None
            twice = (address("InternalIP", "10.0.0.1"),) * 2
            return dataclasses.replace(found, addresses=twice, zone="zone 51")

    noticed = (
        "test_metadata_is_complete[InstancesV2]",
        "test_addresses_are_usable[InstancesV2]",
        "test_listing_agrees_with_single_questions",
    )


class TestStoppedMeansAbsent(Bad):
    """A stopped instance is said not to exist."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_exists(self, node: Node) -> bool:
            return await super().instance_exists(node) and not await self.instance_shutdown(node)

    noticed = ("test_stopped_instance_still_exists[InstancesV2]",)


class TestUnknownMeansStopped(Bad):
    """Every state but running counts as shut down."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_shutdown(self, node: Node) -> bool:
            return (await self._of(node)).state != "running"

    noticed = (
        "test_instance_on_its_way_is_not_shut_down[InstancesV2]",
        "test_surprises_are_survived[InstancesV2]",
    )


class TestAbsenceIsAnError(Bad):
    """Absence is reported as something else everywhere."""

    class provider(MemoryProvider):  # noqa: N801
        async def _get(self, provider_id: str):  # type: ignore[no-untyped-def]
            try:
                return await super()._get(provider_id)
            except NotFound as error:
                raise InvalidArgument("what do you mean?") from error

    noticed = (
        "test_deleted_instance_is_gone[InstancesV2]",
        "test_absence_elsewhere_is_not_found[InstancesV2]",
    )


class TestNameWins(Bad):
    """Instances are looked up by name although there is a provider ID."""

    class provider(MemoryProvider):  # noqa: N801
        async def _of(self, node: Node):  # type: ignore[no-untyped-def]
            return await self._named(node.name)

    noticed = (
        "test_provider_id_wins_over_name[InstancesV2]",
        "test_foreign_provider_id_is_refused[InstancesV2-other_cloud]",
    )


class TestCancellationSwallowed(Bad):
    """A cancelled call answers instead of ending."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_exists(self, node: Node) -> bool:
            try:
                return await super().instance_exists(node)
            except asyncio.CancelledError:
                return False

    noticed = (
        "test_cancellation_is_obeyed[InstancesV2]",
        "test_hanging_cloud_can_be_left[InstancesV2]",
    )


class TestTasksLeftByCalls(Bad):
    """Each call leaves a task behind when it is cancelled."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_exists(self, node: Node) -> bool:
            asked = asyncio.ensure_future(asyncio.sleep(5, result=node))
            answer = await super().instance_exists(node)
            asked.cancel()
            return answer

    noticed = (
        "test_cancellation_is_obeyed[InstancesV2]",
        "test_hanging_cloud_can_be_left[InstancesV2]",
    )


class TestTasksLeftByClosing(Bad):
    """A background task outlives the provider, and closing it once closes the others."""

    class provider(MemoryProvider):  # noqa: N801
        async def _of(self, node: Node):  # type: ignore[no-untyped-def]
            if self._token == "closed":
                raise Unavailable("the shared client is closed")
            return await super()._of(node)

    class Untidy(MemoryHarness):
        """Opens providers that share a client."""

        shared: MemoryProvider | None = None

        @asynccontextmanager
        async def open(self) -> AsyncIterator[Cloud]:
            self.shared = self.shared or self._provider(self.api)
            self.background = spawn(asyncio.sleep(5), name="never-joined")
            yield Cloud(name="memory", instances=self.shared)
            self.shared._token = "closed"

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return self.Untidy(self.provider)

    noticed = (
        "test_closing_leaves_nothing",
        "test_openings_are_independent",
    )


class TestPoorListing(Bad):
    """Only the first page is listed, and the requests are made up."""

    class provider(MemoryProvider):  # noqa: N801
        async def list_instances(self) -> InstanceListing:
            found = await super().list_instances()
            return InstanceListing(instances=found.instances[:2], requests=7)

    noticed = (
        "test_listing_agrees_with_single_questions",
        "test_listing_counts_its_requests",
    )


class TestStaleListing(Bad):
    """The listing is kept for ever, and shows every instance as running."""

    class provider(MemoryProvider):  # noqa: N801
        kept: InstanceListing | None = None

        async def list_instances(self) -> InstanceListing:
            if self.kept is None:
                self.api.create("ghost")
                found = await super().list_instances()
                running = [dataclasses.replace(r, power=Power.RUNNING) for r in found.instances]
                self.kept = InstanceListing(instances=running, requests=found.requests)
            return self.kept

    noticed = ("test_listing_agrees_with_single_questions",)


class TestStatesDisagree(Bad):
    """The combined question answers differently."""

    class provider(MemoryStateProvider):  # noqa: N801
        async def instance_state(self, node: Node) -> InstanceState:
            found = await super().instance_state(node)
            return dataclasses.replace(found, power=Power.RUNNING if found.exists else None)

    noticed = ("test_stopped_instance_still_exists[InstancesV2]",)


class TestTypeErrorOfItsOwn(Bad):
    """Garbage from the cloud makes the provider itself stumble."""

    class provider(MemoryProvider):  # noqa: N801
        async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
            try:
                return await super().instance_metadata(node)
            except Exception as error:
                if isinstance(error.__cause__, MemoryApiError) and self.api.fault == 200:
                    raise TypeError("'NoneType' object is not subscriptable") from None
                raise

    noticed = ("test_fault_arrives_as_promised[InstancesV2-garbage]",)


DEFECTS: list[type[Bad]] = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Bad) and kind is not Bad
]

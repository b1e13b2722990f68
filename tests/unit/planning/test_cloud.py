"""The cloud of a plan: only reads reach the provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from ccm.base.tasks import spawn
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import (
    InstancesV2,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    LoadBalancerTransfer,
    Routes,
)
from ccm.cloud.journal import JournalParts, PartRequest
from ccm.cloud.machines import Credentials, Identity, MachineDriver, MachineRequest, UIDMigration
from ccm.cloud.operation import DECLARATIONS
from ccm.cloud.types import Route
from ccm.planning.cloud_client import ChangeRefused, Ledger, RecordingCloudClient
from ccm.testing.builders import node, service
from tests.contract.memory import MemoryNetworkApi, open_memory_network

pytestmark = pytest.mark.virtual_time

ROUTE = Route(destination_cidr="10.244.1.0/24", target_node="a", name="r-1")
MACHINE = MachineRequest(
    identity=Identity(cluster="c", pool="p", name="m", uid="u"),
    provider_spec={"size": "small"},
    credentials=Credentials({"token": b"a-tokens-text"}),
)
PART = PartRequest(
    kind="sshkey",
    name="k",
    identity=MACHINE.identity,
    provider_spec={},
    credentials=MACHINE.credentials,
)
CHANGES: dict[Any, tuple[Any, ...]] = {
    LoadBalancer.ensure_load_balancer: ("kubernetes", service(), [node("a")]),
    LoadBalancer.update_load_balancer: ("kubernetes", service(), [node("a")]),
    LoadBalancer.ensure_load_balancer_deleted: ("kubernetes", service()),
    LoadBalancerRemoval.delete_load_balancer: ("kubernetes", "a1"),
    LoadBalancerTransfer.transfer_load_balancer: ("kubernetes", service("old"), service()),
    Routes.create_route: ("kubernetes", "hint", ROUTE),
    Routes.delete_route: ("kubernetes", ROUTE),
    MachineDriver.create_machine: (MACHINE,),
    MachineDriver.initialize_machine: (MACHINE,),
    MachineDriver.delete_machine: (MACHINE,),
    UIDMigration.migrate_uid: (MACHINE, "former"),
    JournalParts.delete_part: (PART,),
}


@pytest.fixture
def api() -> MemoryNetworkApi:
    return MemoryNetworkApi()


@pytest_asyncio.fixture
async def handle(api: MemoryNetworkApi) -> AsyncIterator[RecordingCloudClient]:
    async with open_memory_network(api) as cloud:
        with_machines = replace(cloud, machines=AsyncMock(spec=MachineDriver))
        yield RecordingCloudClient(with_machines, ledger=Ledger())


def test_every_declared_change_is_covered_by_these_tests() -> None:
    assert {method.__name__ for method in CHANGES} == {
        verb for verb, declared in DECLARATIONS.items() if declared.change
    }


@pytest.mark.parametrize("method", CHANGES)
async def test_planned_change_is_recorded_and_never_reaches_the_provider(
    handle: RecordingCloudClient, api: MemoryNetworkApi, method: Any
) -> None:
    with contextlib.suppress(errors.RetryAfter):
        await handle.call(method, *CHANGES[method])
    assert [one.verb for one in handle._ledger.changes] == [method.__name__]
    with pytest.raises(ChangeRefused):
        await CloudClient.call(handle.with_observer(lambda *_: None), method, *CHANGES[method])
    assert api.writes == 0
    assert cast("AsyncMock", handle.cloud.machines).mock_calls == []


class SilentApi(MemoryNetworkApi):
    """API that answers no request while it is `dead`."""

    dead = True

    async def request(self, token: str) -> None:
        await super().request(token)
        if self.dead:
            await asyncio.Event().wait()


@pytest.mark.parametrize("another", [False, True], ids=["silence", "an answer meanwhile"])
async def test_silent_cloud_times_out_only_once(another: bool) -> None:
    api = SilentApi()
    async with open_memory_network(api) as cloud:
        handle = RecordingCloudClient(cloud, ledger=Ledger(), deadline_s=30.0)
        silent = spawn(handle.call(Routes.list_routes, "kubernetes"), name="silent")
        await asyncio.sleep(1.0)
        api.dead = not another
        if another:
            await handle.call(LoadBalancerDigests.list_load_balancers, "kubernetes")
        with pytest.raises(errors.DeadlineExceeded):
            await silent
        asked = api.requests

        if another:
            await handle.call(InstancesV2.instance_exists, node("a"))
        else:
            with pytest.raises(errors.DeadlineExceeded, match="skipped after a timeout"):
                await handle.call(InstancesV2.instance_exists, node("a"))

    assert api.requests == asked + another
    assert ("instance_exists", "a") in handle._ledger.failures or another

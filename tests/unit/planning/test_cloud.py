"""A cloud that is only asked: nothing that changes it is ever handed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, cast, get_type_hints
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from ccm.base.tasks import spawn
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import (
    InstancesV2,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    Routes,
)
from ccm.cloud.machines import Credentials, Identity, MachineDriver, MachineRequest
from ccm.cloud.operation import DECLARED
from ccm.cloud.types import LoadBalancerRecord, Route
from ccm.planning.cloud import KNOWN, AskingHandle, ChangeRefused, Ledger
from ccm.testing.builders import node, service
from tests.contract.memory import MemoryNetwork, MemoryNetworkApi, open_memory_network

pytestmark = pytest.mark.virtual_time

ROUTE = Route(destination_cidr="10.244.1.0/24", target_node="a", name="r-1")
MACHINE = MachineRequest(
    identity=Identity(cluster="c", pool="p", name="m", uid="u"),
    provider_spec={"size": "small"},
    credentials=Credentials({"token": b"a-tokens-text"}),
)
CHANGES: dict[Any, tuple[Any, ...]] = {
    LoadBalancer.ensure_load_balancer: ("kubernetes", service(), [node("a")]),
    LoadBalancer.update_load_balancer: ("kubernetes", service(), [node("a")]),
    LoadBalancer.ensure_load_balancer_deleted: ("kubernetes", service()),
    LoadBalancerRemoval.delete_load_balancer: ("kubernetes", "a1"),
    Routes.create_route: ("kubernetes", "hint", ROUTE),
    Routes.delete_route: ("kubernetes", ROUTE),
    MachineDriver.create_machine: (MACHINE,),
    MachineDriver.initialize_machine: (MACHINE,),
    MachineDriver.delete_machine: (MACHINE,),
}
ALL = pytest.mark.parametrize("method", CHANGES, ids=lambda method: method.__name__)


class Counting(MemoryNetworkApi):
    """Notes every request, whatever it is."""


@pytest_asyncio.fixture
async def api() -> MemoryNetworkApi:
    return Counting()


@pytest_asyncio.fixture
async def handle(api: MemoryNetworkApi) -> AsyncIterator[AskingHandle]:
    async with open_memory_network(api) as cloud:
        with_machines = replace(cloud, machines=AsyncMock(spec=MachineDriver))
        yield AskingHandle(with_machines, ledger=Ledger())


def test_every_change_that_is_declared_is_tried_here() -> None:
    assert {method.__name__ for method in CHANGES} == {
        verb for verb, declared in DECLARED.items() if declared.change
    }


@ALL
async def test_a_change_is_noted_and_taken_for_done(
    handle: AskingHandle, api: MemoryNetworkApi, method: Any
) -> None:
    try:
        answer = await handle.call(method, *CHANGES[method])
        assert answer == KNOWN.get(method.__name__)
    except errors.RetryAfter:
        assert get_type_hints(method)["return"] is not NoneType

    assert [one.verb for one in handle._ledger.changes] == [method.__name__]
    assert api.writes == 0


@ALL
async def test_behind_that_is_a_wall(
    handle: AskingHandle, api: MemoryNetworkApi, method: Any
) -> None:
    """A change that comes this far all the same does not reach the provider."""
    with pytest.raises(ChangeRefused, match=f"{method.__name__} is not called"):
        await Handle.call(handle, method, *CHANGES[method])

    assert (api.writes, api.requests) == (0, 0)
    assert cast("AsyncMock", handle.cloud.machines).mock_calls == []


async def test_a_question_is_put_once_and_its_error_stays(
    handle: AskingHandle, api: MemoryNetworkApi
) -> None:
    api.fault = 503
    for _ in range(3):
        with pytest.raises(errors.Unavailable):
            await handle.call(LoadBalancerDigests.list_load_balancers, "kubernetes")

    assert api.requests == 1
    assert list(handle._ledger.failures) == [("list_load_balancers", "")]


async def test_somebody_who_waits_asks_again(handle: AskingHandle, api: MemoryNetworkApi) -> None:
    handle._ledger.remembers = False
    machine = api.create("a")
    asked = node("a", provider_id=f"memory://{machine.id}")
    assert await handle.call(InstancesV2.instance_exists, asked)

    api.instances.clear()

    assert not await handle.call(InstancesV2.instance_exists, asked)
    handle._ledger.remembers = True
    api.create("a")
    assert not await handle.call(InstancesV2.instance_exists, asked)


class SilentApi(MemoryNetworkApi):
    """No request that comes while it is `dead` is ever answered."""

    dead = True

    async def request(self, token: str) -> None:
        await super().request(token)
        if self.dead:
            await asyncio.Event().wait()


@pytest.mark.parametrize("another", [False, True], ids=["silence", "an answer meanwhile"])
async def test_a_silent_cloud_is_waited_for_once(another: bool) -> None:
    api = SilentApi()
    async with open_memory_network(api) as cloud:
        handle = AskingHandle(cloud, ledger=Ledger(), deadline_s=30.0)
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
            with pytest.raises(errors.DeadlineExceeded, match="not asked after another got"):
                await handle.call(InstancesV2.instance_exists, node("a"))

    assert api.requests == asked + another
    assert ("instance_exists", "a") in handle._ledger.failures or another


async def test_an_answer_that_controllers_take_is_no_failure(handle: AskingHandle) -> None:
    with pytest.raises(errors.NotFound):
        await handle.call(InstancesV2.instance_metadata, node("a", provider_id="memory://i-9"))

    assert handle._ledger.failures == {}


async def test_routes_are_listed_as_they_would_be(
    handle: AskingHandle, api: MemoryNetworkApi
) -> None:
    api.create("a")
    await api.put_route(api.token, "kubernetes", "10.244.2.0/24", "a")
    (listed,) = await handle.call(Routes.list_routes, "kubernetes")

    await handle.call(Routes.delete_route, "kubernetes", listed)
    await handle.call(Routes.create_route, "kubernetes", "hint", ROUTE)

    assert await handle.call(Routes.list_routes, "kubernetes") == [ROUTE]
    assert len(api.routes) == 1


class Adopting(MemoryNetwork):
    """All its load balancers were there before their Services."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        found = await super().list_load_balancers(cluster_name)
        return [replace(one, adopted=True) for one in found]


@pytest.mark.parametrize(("network", "adopted"), [(MemoryNetwork, False), (Adopting, True)])
async def test_a_removal_is_noted_with_what_becomes_of_it(
    api: MemoryNetworkApi, network: type[MemoryNetwork], adopted: bool
) -> None:
    async with open_memory_network(api, network=network) as cloud:
        assert cloud.load_balancer is not None
        await cloud.load_balancer.ensure_load_balancer("kubernetes", service(), [])
        handle = AskingHandle(cloud, ledger=Ledger())
        await handle.call(LoadBalancer.ensure_load_balancer_deleted, "kubernetes", service())

    (noted,) = handle._ledger.changes
    assert (noted.listed, noted.adopted) == (True, adopted)


async def test_a_view_of_it_changes_nothing_either(
    handle: AskingHandle, api: MemoryNetworkApi
) -> None:
    """Controllers look at it through views of their own."""

    async def around(_: Any, step: Any) -> Any:
        return await step()

    view = handle.observe(lambda *_: None).around(around)

    await view.call(Routes.create_route, "kubernetes", "hint", ROUTE)
    with pytest.raises(ChangeRefused):
        await Handle.call(view, Routes.create_route, "kubernetes", "hint", ROUTE)

    assert api.writes == 0
    await asyncio.sleep(0)

"""Members where load balancers do not check health: Ready nodes that are not terminating."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from ccm.controllers.service import nodes as nodes_module
from ccm.model import NodeCondition, names
from ccm.runtime.massguard import DOUBT_S
from tests.support.services import F, World, served

pytestmark = pytest.mark.virtual_time

UNCHECKED = {"load_balancers_check_health": False}
TERMINATING = [NodeCondition(type=names.CONDITION_TERMINATING, status="True")]


def unchecked(*nodes: str, **settings: Any) -> AbstractAsyncContextManager[World]:
    return served(*nodes, cloud=UNCHECKED, **settings)


def members(world: World) -> list[Sequence[str]]:
    return [given for _, given in world.balancers.of("update")]


@pytest.mark.row("service-health-01")
@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_a_node_that_is_not_ready_is_no_member_until_it_is(status: str) -> None:
    async with unchecked("n1", "n2", "n3") as world:
        world.node("n2", ready=status)
        await world.pass_time(2)
        assert members(world) == [("n1", "n3")]
        world.forget()
        world.node("n2", ready=status, labels={"a": "b"})
        await world.pass_time(60)
        assert world.balancers.log == []

        world.node("n2")
        await world.pass_time(20)
        assert members(world) == [("n1", "n2", "n3")]


@pytest.mark.row("service-health-01")
async def test_a_terminating_node_leaves_the_members_of_policy_cluster_only() -> None:
    async with unchecked("n1", "n2") as world:
        world.service("local", externalTrafficPolicy="Local")
        await world.pass_time(60)
        world.forget()
        world.node("n2", conditions=TERMINATING)
        await world.pass_time(60)
        assert world.balancers.log == [("update", "web", ("n1",))]
        world.forget()

        world.node("n2", conditions=TERMINATING, ready="False")
        await world.pass_time(60)
        assert world.balancers.log == [("update", "local", ("n1",))]


@pytest.mark.row("service-health-02")
async def test_where_health_is_checked_neither_counts_nor_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served("n1", "n2") as world:
        monkeypatch.setattr(nodes_module, "is_fit", lambda *_, **__: pytest.fail("a look"))
        world.node("n1", ready="False")
        world.node("n2", conditions=TERMINATING)
        await world.pass_time(60)

        assert world.balancers.log == []


@pytest.mark.row("service-health-03")
async def test_the_last_ready_members_stay() -> None:
    async with unchecked("n1", "n2") as world:
        for name in ("n1", "n2"):
            world.node(name, ready="Unknown")
            await world.pass_time(100)
        assert members(world) == [("n2",)]

        world.node("n1")
        await world.pass_time(100)
        assert members(world)[-1] == ("n1",)


@pytest.mark.row("service-health-03")
async def test_an_api_server_that_loses_all_its_nodes_changes_no_members() -> None:
    every = [f"n{number:02}" for number in range(20)]
    async with unchecked(*every) as world:
        for name in every:
            world.node(name, ready="Unknown")
            await world.pass_time(1.5)
        await world.pass_time(1000)
        assert [each for each in members(world) if len(each) < 14] == []
        kept = members(world)[-1] if members(world) else tuple(every)

        for name in every:
            world.node(name)
        await world.pass_time(100)
        assert (members(world) or [tuple(every)])[-1] == tuple(every)
        assert len(kept) >= 14


@pytest.mark.row("service-health-03")
async def test_many_that_stay_lost_leave_after_a_while() -> None:
    every = [f"n{number:02}" for number in range(10)]
    async with unchecked(*every) as world:
        for name in every[:4]:
            world.node(name, ready="Unknown")
        await world.pass_time(DOUBT_S - 5)
        assert members(world) == []

        await world.pass_time(30)
        assert members(world) == [tuple(every[4:])]


@pytest.mark.row("service-health-03")
async def test_a_start_while_no_node_is_known_to_be_ready_keeps_the_members() -> None:
    world = World(cloud=UNCHECKED)
    for name in ("n1", "n2"):
        world.node(name, ready="Unknown")
    world.node("n3", ready="False")
    world.service(finalizers=[F])
    async with world.running():
        await world.pass_time(60)
        assert world.balancers.of("ensure") == [("web", ("n1", "n2"))]

        world.node("n2")
        await world.pass_time(60)
        assert members(world) == [("n2",)]

"""What a change of nodes costs: looks at nodes, calls, and how both grow."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from ccm.controllers.service import nodes as nodes_module
from tests.support import services as world_module
from tests.support.services import World

pytestmark = pytest.mark.virtual_time


async def settled(services: int, nodes: int, **settings: int) -> World:
    """A world whose start is over; entered and left by the caller."""
    world = World()
    for number in range(nodes):
        world.node(f"n{number:04}")
    for number in range(services):
        world.service(f"s{number:04}")
    return world


@pytest.mark.row("service-cost-01", "service-update-05")
async def test_a_node_costs_one_look_at_it_and_one_update_per_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    real = nodes_module.is_member

    def counted(node: object) -> bool:
        nonlocal looks
        looks += 1
        return real(node)  # type: ignore[arg-type]

    monkeypatch.setattr(nodes_module, "is_member", counted)
    services, nodes = 40, 200
    world = await settled(services, nodes)
    async with world.running(workers=4):
        await world.pass_time(60)
        assert len(world.balancers.of("ensure")) == services
        assert looks == nodes
        world.forget()
        looks = 0

        world.node("new")
        await world.pass_time(10)

        assert looks == 1 <= services + nodes
        assert len(world.balancers.of("update")) == services
        assert {len(members) for _, members in world.balancers.of("update")} == {nodes + 1}
        assert len(world.balancers.log) == services


@contextlib.contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the Python functions that are called or resumed inside, by the file they are in.

    A measure of the work that neither the machine nor its other load has a part in.
    """
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.mark.row("service-cost-01")
async def test_twice_the_services_cost_at_most_twice_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = 60
    # What a provider does with the members is its own affair.
    monkeypatch.setattr(world_module, "_names", lambda nodes: (str(len(nodes)),))

    async def cost(services: int) -> Counter[str]:
        world = await settled(services, 500)
        async with world.running(workers=4):
            await world.pass_time(60)
            world.forget()
            with counted_calls() as found:
                for number in range(5):
                    world.node(f"new{number}")
                    await world.pass_time(2)
            # What was counted is the whole work and nothing else.
            assert world.balancers.calls == ["update"] * 5 * services
            assert world.patches == []
            return found

    small, large = await cost(services), await cost(2 * services)

    assert large.total() <= 2 * small.total()
    assert large[nodes_module.__file__] <= 2 * small[nodes_module.__file__]
    assert small.total() >= 5 * services  # each update is at least a call

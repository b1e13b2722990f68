"""What a person does to machines, against the simulated cloud itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm.sandbox import cloud, hand
from ccm.sandbox.running import Running
from providers.sim import server


@pytest_asyncio.fixture
async def told() -> AsyncIterator[Running]:
    service = server.Service(token="t")
    service.world.transition_s = 0.0
    async with server.serve(service) as url:
        async with cloud.open_admin(url, "t") as admin:
            await admin.place(["n1", "n2"])
        yield Running(url=url, token="t")


async def states(told: Running) -> dict[str, str]:
    async with cloud.open_admin(told.url, told.token) as admin:
        return {one.name: one.state for one in await admin.instances()}


async def test_each_act_changes_the_machine_of_that_node_alone(told: Running) -> None:
    assert "n1: i-0001 is powered off" in await hand.carry_out("poweroff", "n1", told)
    assert await states(told) == {"n1": "stopped", "n2": "running"}

    assert "n1: i-0001 is powered on" in await hand.carry_out("poweron", "n1", told)
    assert await states(told) == {"n1": "running", "n2": "running"}

    assert "n2: i-0002 is deleted" in await hand.carry_out("delete", "n2", told)
    assert await states(told) == {"n1": "running"}

    assert "n3: " in await hand.carry_out("add", "n3", told)
    assert await states(told) == {"n1": "running", "n3": "running"}


async def test_what_cannot_be_done_is_told_with_what_there_is(told: Running) -> None:
    with pytest.raises(hand.Refused, match=r"no machine for 'x'; it has n1, n2$"):
        await hand.carry_out("delete", "x", told)
    with pytest.raises(hand.Refused, match="n1 has a machine already"):
        await hand.carry_out("add", "n1", told)
    with pytest.raises(hand.Refused, match="a cloud of your own: do it there"):
        await hand.carry_out("delete", "n1", Running())

"""The daemon ends at any of its calls while machines go, and another one goes on: no VM is left, no
other deleted, no node, token or Pod forgotten."""

from __future__ import annotations

import asyncio

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import DeleteMachineResponse, Identity, MachineRequest
from ccm.gardener import names
from ccm.testing.clock import advance, settle
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.machine.test_crashes import MOST_POINTS, Fragile, Points
from tests.unit.controllers.machines import BASE, NODES_PATH, TOKENS

pytestmark = pytest.mark.virtual_time

STAY = ("stays-0", "stays-1")


class Gradual(Fragile):
    """Deletes a VM a moment after it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.dying: set[str] = set()

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        if req.provider_id in self.vms and req.provider_id not in self.dying:
            await self.point()
            self.dying.add(req.provider_id)
            await self.point()
            raise errors.RetryAfter("works on it", seconds=1)
        return await super().delete_machine(req)


def peopled(goes: list[str], *, force: bool) -> Drains:
    """Machines that run, with a Pod each; some are about to go."""
    world = Drains()
    world.driver = Gradual()
    world.drains_really = True
    world.ready_class()
    world.driver.add(Identity(cluster="theirs", pool="small", name="foreign", uid="f"))
    for name in (*goes, *STAY):
        labels = {"node": name} | ({"force-deletion": "true"} if force and name in goes else {})
        metadata = {"labels": labels, "finalizers": [names.FINALIZER]}
        status = {"currentStatus": {"phase": "Running"}}
        world.machine(name, metadata=metadata, status=status, providerID=f"fake:///{name}")
        world.driver.add(world.identity(name))
        world.node(name, metadata={"finalizers": [names.FINALIZER_NODE]})
        world.pod(f"on-{name}", node=name, grace_s=1)
    return world


async def story(world: Drains, goes: list[str]) -> None:
    """Their deletion is asked for, and time passes."""
    for name in goes:
        if world.get(name) and "deletionTimestamp" not in world.get(name)["metadata"]:
            world.server.drop(f"{BASE}/machines/{name}")
    await advance(60)


async def ended_at(fatal: int, goes: list[str], *, force: bool) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    points = Points(fatal)
    world = peopled(goes, force=force)
    driver = world.driver
    assert isinstance(driver, Gradual)
    driver.point = world.server.point = points
    async with world.running():
        telling = asyncio.ensure_future(story(world, goes))
        ended = asyncio.ensure_future(points.reached.wait())
        await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, ended):
            task.cancel()
        await asyncio.wait({telling, ended})
    driver.point = world.server.point = Points(fatal=10**9)
    async with world.running():
        await story(world, goes)
        await advance(120)
        await settle()
    kept = {"foreign", *STAY}
    assert {one.identity.name for one in driver.vms.values()} == kept
    assert sorted(driver.deleted) == sorted(f"fake:///{name}" for name in goes)
    assert {one["metadata"]["name"] for one in world.server.list(f"{BASE}/machines")} == set(STAY)
    nodes = {one["metadata"]["name"]: one for one in world.server.list(NODES_PATH)}
    assert nodes.keys() == {"m0", *STAY}
    assert [nodes[name]["spec"].get("unschedulable") for name in STAY] == [None, None]
    assert world.pods() == [f"on-{name}" for name in STAY]
    assert world.server.list(TOKENS) == []
    return points.reached.is_set()


@pytest.mark.parametrize("force", [False, True], ids=["with-regard", "by-force"])
@pytest.mark.parametrize(
    ("machines", "step"), [pytest.param(5, 1, marks=pytest.mark.soak), (1, 6)], ids=["all", "some"]
)
async def test_a_deletion_is_finished_wherever_it_is_cut(
    force: bool, machines: int, step: int
) -> None:
    goes, tried = [f"goes-{number}" for number in range(machines)], 0
    for fatal in range(1, MOST_POINTS, step):
        if not await ended_at(fatal, goes, force=force):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried * step >= (150 if machines == 5 else 30)

"""Plans for Machines, without writes to the cluster or the cloud."""

from __future__ import annotations

import asyncio

import pytest

from ccm.app import options
from ccm.cloud import Cloud
from ccm.gardener import names
from ccm.planning import changes
from ccm.planning.changes import VM, Forecast
from ccm.planning.forecast import forecast
from ccm.planning.timeloop import FastForwardLoop
from tests.unit.controllers.machines import CLUSTER, DEFINITIONS, World

FLAGS = (
    "--cloud-provider=fake",
    "--controllers=machine,machineclass,machinesafety",
    f"--cluster-id={CLUSTER}",
)
HELD = {"finalizers": [names.FINALIZER]}
CHANGES = {"create_machine", "initialize_machine", "delete_machine"}


@pytest.fixture
def world() -> World:
    with asyncio.Runner() as runner:
        return runner.run(_made())


async def _made() -> World:
    found = World()
    found.ready_class()
    return found


def planned(world: World, *flags: str) -> Forecast:
    """Return the plan; check that neither the cluster nor the cloud was changed."""
    before = dict(world.server.requests)
    cloud = Cloud(name="fake", machines=world.driver, has_cluster_id=True)
    chosen = options.parse([*FLAGS, *flags])
    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        found = runner.run(forecast(chosen, world.server.client(), cloud))
    print(*changes.lines(found), changes.summary(found), sep="\n")
    asked = {key for key, number in world.server.requests.items() if number > before.get(key, 0)}
    assert {method for method, _ in asked} == {"GET"}
    assert not CHANGES & world.driver.calls.keys()
    return found


def told(found: Forecast) -> dict[str, list[str]]:
    """Return the lines of each object."""
    every: dict[str, list[str]] = {}
    for line in changes.lines(found):
        if not line.startswith(" "):
            every[line] = []
        else:
            every[[*every][-1]].append(line.strip())
    return every


def test_plan_of_a_deleted_machine_includes_its_vm_and_node(world: World) -> None:
    bare = world.machine("m1", metadata=HELD, providerID="fake:///m1")
    world.driver.add(world.identity("m1"))
    world.server.drop(bare)
    path = world.machine(
        metadata={"labels": {"node": "m0"}, **HELD},
        providerID="fake:///m0",
        status={"currentStatus": {"phase": "Running"}},
    )
    world.driver.add(world.identity())
    world.node()
    world.server.drop(path)

    plan = planned(world)
    found = told(plan)

    assert "- VM: fake:///m0 (drain of node m0 first)" in found["Machine default/m0"]
    assert "- VM: fake:///m1" in found["Machine default/m1"]
    assert found["Node m0"] == ["- would delete (with Machine default/m0)"]
    assert [one.what for one in plan.deletions] == [VM, VM, "Node"]


def test_missing_crds_are_reported_as_skipped_controllers(world: World) -> None:
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")

    found = planned(world)

    assert found.left_out.keys() == {
        "machine-controller",
        "machineclass-controller",
        "machine-safety-controller",
    }
    assert "apply manifests/crds.yaml" in found.left_out["machine-controller"]

"""What is planned for Machines, without a write to the cluster or the cloud."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.app import options
from ccm.cloud import Cloud, errors
from ccm.cloud.machines import Credentials, Problem
from ccm.gardener import names
from ccm.machines import reasons
from ccm.model import ObjectMeta, Secret
from ccm.planning import changes
from ccm.planning.changes import VM, Forecast
from ccm.planning.forecast import forecast
from ccm.planning.timeloop import HurryingLoop
from ccm.testing.clock import VirtualTimeLoop
from tests.unit.controllers.machines import BASE, CLUSTER, DEFINITIONS, FakeDriver, World
from tests.unit.controllers.machinesets import (
    DEPLOYMENTS,
    SELECTOR,
    SETS,
    TEMPLATE,
    owned_by_deployment,
)
from tests.waiting import eventually

FLAGS = (
    "--cloud-provider=fake",
    "--controllers=machine,machineclass,machinesafety",
    f"--cluster-id={CLUSTER}",
)
HELD = {"finalizers": [names.FINALIZER]}
CHANGES = {"create_machine", "initialize_machine", "delete_machine"}


class Picky(FakeDriver):
    """Likes no spec."""

    async def validate_spec(
        self, spec: dict[str, Any], credentials: Credentials, live: bool
    ) -> list[Problem]:
        return [Problem(field="size", message="no such size")]


@pytest.fixture
def world() -> World:
    with asyncio.Runner() as runner:
        return runner.run(_made())


async def _made() -> World:
    found = World()
    found.ready_class()
    return found


def planned(world: World, *flags: str) -> Forecast:
    """The plan; nobody is told to change anything."""
    before = dict(world.server.requests)
    cloud = Cloud(name="fake", machines=world.driver, has_cluster_id=True)
    chosen = options.parse([*FLAGS, *flags])
    with asyncio.Runner(loop_factory=HurryingLoop) as runner:
        found = runner.run(forecast(chosen, world.server.client(), cloud))
    print(*changes.lines(found), changes.summary(found), sep="\n")
    asked = {key for key, number in world.server.requests.items() if number > before.get(key, 0)}
    assert {method for method, _ in asked} == {"GET"}
    assert not CHANGES & world.driver.calls.keys()
    return found


def told(found: Forecast) -> dict[str, list[str]]:
    """Object -> lines about it."""
    every: dict[str, list[str]] = {}
    for line in changes.lines(found):
        if not line.startswith(" "):
            every[line] = []
        else:
            every[[*every][-1]].append(line.strip())
    return every


def test_a_new_machine_gets_a_vm_where_it_is_ours(world: World) -> None:
    world.machine()

    found = told(planned(world))
    assert not planned(world, "--namespace=shoot").changes

    assert found["Machine default/m0"] == [
        "+ VM: of class small",
        "+ metadata.annotations[machinepriority.machine.sapcloud.io]: 3",
        f"+ metadata.finalizers: {names.FINALIZER}",
    ]
    # No bootstrap token, which comes and goes with it; of the class Secret what is added to it.
    assert [key for key in found if key.startswith("Secret")] == ["Secret default/small"]
    assert found["Secret default/small"] == [f"+ metadata.finalizers: {names.FINALIZER_SECRET}"]
    assert "userData" not in str(found)


@pytest.mark.parametrize("refused_by", ["provider", "driver"])
def test_no_vm_of_a_class_that_cannot_be_used(refused_by: str, world: World) -> None:
    """As the doctor says it, also when the condition is there already."""
    message = "size: no such size"
    refusal = {"type": reasons.CONDITION_SPEC_VALID, "status": "False", "message": message}
    changed = {"status": {"conditions": [refusal]}}
    if refused_by == "provider":
        changed = {"provider": "other"}  # type: ignore[dict-item]
    else:
        world.driver = Picky()
    world.server.patch(f"{BASE}/machineclasses/small", changed)
    world.machine()

    plan = planned(world)

    assert "+ VM: of class small" not in told(plan)["Machine default/m0"]
    told_of = {(str(one.subject), one.reason): one.message for one in plan.warnings}
    found = told_of["MachineClass default/small", reasons.REASON_SPEC_INVALID]
    assert refused_by == "provider" or (found, len(told_of)) == (message, 1)


def test_what_was_deleted_with_its_crd_is_held(world: World) -> None:
    world.lived()
    world.driver.add(world.identity())
    world.server.drop(f"{DEFINITIONS}/machines.{names.GROUP}")

    plan = planned(world)

    assert [one for one in plan.changes if one.what == VM] == []
    assert [str(one.subject) for one in plan.held] == [
        f"CustomResourceDefinition machines.{names.GROUP}"
    ]


def test_what_a_secret_holds_is_not_told() -> None:
    made = Secret(metadata=ObjectMeta(name="s", namespace="default"), data={"token": b"hunter2"})

    found = list(changes.of_object("Secret", None, made, after_s=0))

    assert {one.what for one in found} == {"metadata.name", "metadata.namespace"}


def test_a_vm_that_is_there_is_taken(world: World) -> None:
    world.machine(metadata=HELD)
    world.driver.add(world.identity())

    found = told(planned(world))["Machine default/m0"]

    assert "+ spec.providerID: fake:///m0" in found
    assert "~ VM: initialised" in found
    assert "+ status.currentStatus.phase: Pending" in found
    assert not [line for line in found if "lastUpdateTime" in line]


def test_a_machine_that_goes_takes_its_vm_and_its_node(world: World) -> None:
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


def test_a_set_that_shrinks_takes_what_its_machines_have(world: World) -> None:
    spec = {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE}
    world.server.put(SETS, {"metadata": {"name": "pool"}, "spec": spec})
    world.lived(group="web")
    world.driver.add(world.identity())
    world.node()

    found = told(planned(world, "--controllers=machine,machineclass,machineset"))

    assert found["Machine default/m0"][0].startswith("- VM: fake:///m0 (drain of node m0 first")
    assert "- would delete" in "".join(found["Machine default/m0"])
    assert found["Node m0"] == ["- would delete (with Machine default/m0)"]


def test_what_would_come_and_go_again_is_not_told(world: World) -> None:
    """A set makes a machine before it hears that its deployment goes."""
    spec = {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}
    made = world.server.put(DEPLOYMENTS, {"metadata": {"name": "web", **HELD}, "spec": spec})
    owner = owned_by_deployment(made["metadata"]["uid"])
    labels = SELECTOR["matchLabels"]
    metadata = {"name": "web-1", "labels": labels, **HELD, **owner}
    world.server.put(SETS, {"metadata": metadata, "spec": spec})
    world.server.drop(f"{DEPLOYMENTS}/web")

    chosen = "--controllers=machine,machineclass,machineset,machinedeployment"
    found = told(planned(world, chosen))

    # Perhaps not at once: where a creation was recorded first, the cloud is asked twice.
    (line,) = found["MachineSet default/web-1"]
    assert line.partition(" after ")[0] == "- would delete"
    assert not [key for key in found if key.startswith("Machine default/")]


def test_where_all_is_as_it_should_be_there_is_nothing_to_do() -> None:
    async def settled() -> World:
        found = World()
        found.ready_class()
        found.machine()
        async with found.running():
            await eventually(lambda: found.phase() == "Pending")
            found.node(providerID="fake:///0")
            await eventually(lambda: found.phase() == "Running")
        found.driver.calls.clear()
        return found

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        world = runner.run(settled())
    found = planned(world)

    assert (list(found.changes), list(found.failures)) == ([], [])


def test_a_cloud_that_does_not_answer_leaves_it_open(world: World) -> None:
    world.machine()
    world.driver.faults["list_machines"] = errors.Unavailable("503")

    found = planned(world)

    assert any("list_machines of small" in one for one in found.failures)
    assert not [one for one in found.changes if one.what == VM]


def test_definitions_that_are_missing_are_said(world: World) -> None:
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")

    found = planned(world)

    assert found.left_out.keys() == {
        "machine-controller",
        "machineclass-controller",
        "machine-safety-controller",
    }
    assert "apply manifests/crds.yaml" in found.left_out["machine-controller"]

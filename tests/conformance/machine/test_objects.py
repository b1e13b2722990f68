"""Finalizers of classes and Secrets, and node templates, per row of the conformance table."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.cloud import errors
from ccm.cloud.machines import Credentials, Problem
from ccm.gardener import crds, names
from ccm.gardener.codec import MACHINE_CLASSES
from ccm.machines import reasons
from ccm.testing.clock import advance
from tests.conformance.table import case
from tests.unit.controllers.machines import (
    BASE,
    DEFINITIONS,
    NODES_PATH,
    SECRETS_PATH,
    FakeDriver,
    Ready,
    World,
)
from tests.unit.controllers.memory_server import STRATEGIC

pytestmark = pytest.mark.virtual_time

CLASS = f"{BASE}/machineclasses/small"
HELD = [names.FINALIZER]


def held(world: World) -> list[str]:
    """The finalizers of the class."""
    found = world.server.get(CLASS)
    assert found is not None
    return list(found["metadata"].get("finalizers", []))


@pytest.mark.parametrize(
    ("before", "machines", "after"),
    [
        case("machine-finalizer-01", [], 0, []),
        case("machine-finalizer-02", HELD, 0, []),
        case("machine-finalizer-03", [], 1, HELD),
        case("machine-finalizer-04", HELD, 1, HELD),
    ],
)
async def test_class_has_a_finalizer_only_while_machines_use_it(
    world: Ready, before: list[str], machines: int, after: list[str]
) -> None:
    world.server.patch(CLASS, {"metadata": {"finalizers": before}})
    for number in range(machines):
        world.machine(f"m{number}")
    await world.run(1, "machine", "machineclass")

    assert held(world) == after
    assert world.driver.calls["create_machine"] == machines


@pytest.mark.row("machine-finalizer-02", "machine-finalizer-05", "machine-finalizer-06")
async def test_deleting_class_keeps_its_finalizer_until_its_machines_are_gone(world: Ready) -> None:
    async with world.running():
        path = world.machine()
        await advance(1)
        world.server.drop(CLASS)
        await advance(60)
        assert held(world) == HELD
        world.server.drop(path)
        await advance(60)

    assert (world.get(), world.server.get(CLASS)) == ({}, None)


@pytest.mark.row("machine-finalizer-07")
@pytest.mark.parametrize("field", ["secretRef", "credentialsSecretRef"])
async def test_secret_finalizer_follows_the_class_reference(world: World, field: str) -> None:
    for name in ("small", "other"):
        world.secret(name)
    refers: dict[str, Any] = {field: {"name": "small", "namespace": "default"}}
    world.machine_class(**({"secretRef": None} | refers))

    async def marked() -> list[bool]:
        await advance(1)
        found = [world.server.get(f"{SECRETS_PATH}/{name}") for name in ("small", "other")]
        return [names.FINALIZER_SECRET in str(one) for one in found]

    async with world.running("machineclass"):
        assert await marked() == [True, False]
        world.server.patch(CLASS, {field: {"name": "other", "namespace": "default"}})
        assert await marked() == [False, True]
        world.server.drop(CLASS)
        assert await marked() == [False, False]


class Picky(FakeDriver):
    """Driver that validates specs."""

    async def validate_spec(
        self, spec: dict[str, Any], credentials: Credentials, live: bool
    ) -> list[Problem]:
        await self._called("validate_spec", None)
        return [] if spec["size"] == "small" else [Problem(field="size", message="no such size")]


async def test_class_condition_reports_whether_its_spec_is_valid(world: World) -> None:
    world.driver = Picky()
    world.ready_class()
    world.driver.faults["validate_spec"] = [errors.Unavailable("x")]

    async def told() -> tuple[str, str]:
        await advance(5)
        (found,) = (world.server.get(CLASS) or {})["status"]["conditions"]
        assert found["type"] == "SpecValid"
        return found["status"], found["message"]

    async with world.running("machineclass"):
        assert (await told())[0] == "True"
        world.server.patch(CLASS, {"providerSpec": {"size": "huge"}})
        assert await told() == ("False", "size: no such size")
        asked = world.driver.calls["validate_spec"]
        world.server.drop(f"{SECRETS_PATH}/small")
        world.server.patch(f"{SECRETS_PATH}/small", {"metadata": {"finalizers": None}})
        assert "Secret default/small" in (await told())[1]

    assert asked == 3
    assert world.reasons() == ["SpecInvalid", "SpecInvalid"]


async def test_oversized_credential_invalidates_only_its_class(world: World) -> None:
    world.driver = Picky()
    world.secret("small", token="hunter2-" * 38_000, caBundle="x")
    world.machine_class("small")
    world.secret("other", token="short", userData="x" * (1 << 19))
    world.machine_class("other", providerSpec={"size": "small"})
    async with world.running("machine", "machineclass"):
        world.machine("m0")
        world.machine("m1", **{"class": {"kind": "MachineClass", "name": "other"}})
        await advance(5)

    (found,) = (world.server.get(CLASS) or {})["status"]["conditions"]
    said = "Secret default/small of MachineClass small has 304000 bytes in token"
    assert (found["status"], found["message"].partition(";")[0]) == ("False", said)
    assert world.operation("m0")["description"].startswith(said)
    assert {reason for reason, _ in world.events} == {"SpecInvalid", "InvalidSpec"}
    assert {one.identity.name for one in world.driver.vms.values()} == {"m1"}
    assert "hunter2" not in f"{found} {world.get('m0')}"


class GardenersClasses(World):
    """The definition of MachineClass is Gardener's: without a field `status`."""

    def define(self) -> None:
        for one in crds.DEFINITIONS:
            found = deepcopy(dict(one.to_manifest()))
            if one.kind is MACHINE_CLASSES:
                (version,) = found["spec"]["versions"]
                del version["schema"]["openAPIV3Schema"]["properties"]["status"]
            self.server.put(DEFINITIONS, found)


@pytest.mark.row("machine-finalizer-08")
async def test_class_crd_without_status_causes_one_write_and_one_warning(
    world: GardenersClasses,
) -> None:
    world.driver = Picky()
    for name in ("small", "large", "tiny"):
        world.secret(name)
        world.machine_class(name, providerSpec={"size": "small"})
        world.machine(name, **{"class": {"kind": "MachineClass", "name": name}})
    with capture_logs() as lines:
        async with world.running("machine", "machineclass"):
            await advance(5)
            for number in range(20):
                path = world.machine(f"m{number}")
                await advance(5)
                world.server.drop(path)
                await advance(5)
            assert world.server.writes("machineclasses") == 1
            for _ in range(2):
                world.server.patch(CLASS, {"providerSpec": {"size": "huge"}})
                await advance(5)
                world.machine(f"huge-{_}")
                await advance(5)
            world.server.patch(CLASS, {"providerSpec": {"size": "small"}})
            await advance(5)

    assert world.server.writes("machineclasses") == 1
    warned = [line["log_level"] for line in lines if line.get("condition") == "SpecValid"]
    assert warned == ["warning"]
    assert world.reasons() == ["SpecInvalid"]


async def test_class_condition_is_written_once_the_crd_has_a_status(
    world: GardenersClasses,
) -> None:
    world.ready_class()
    world.machine()
    async with world.running("machineclass"):
        await advance(5)
        (definition,) = (one for one in crds.DEFINITIONS if one.kind is MACHINE_CLASSES)
        world.server.patch(
            f"{DEFINITIONS}/machineclasses.{names.GROUP}", dict(definition.to_manifest())
        )
        found = {"type": reasons.CONDITION_SPEC_VALID, "status": "False"}
        world.server.patch(CLASS, {"status": {"conditions": [found]}})
        await advance(5)

    (found,) = (world.server.get(CLASS) or {})["status"]["conditions"]
    assert found["status"] == "True"


# --- what a machine keeps on its node --------------------------------------------------------

TEMPLATE = {
    "metadata": {"labels": {"a": "1", "b": "2"}, "annotations": {"n": "1"}},
    "spec": {"taints": [{"key": "t", "value": "1", "effect": "NoSchedule"}]},
}


class Joined:
    """A machine with its node."""

    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.path = path

    def template(self, **changes: Any) -> None:
        """Another template."""
        self.world.server.patch(self.path, {"spec": {"nodeTemplate": changes}})

    def edit(self, **metadata: Any) -> None:
        """Edit the node as a user."""
        self.world.server.patch(f"{NODES_PATH}/m0", {"metadata": metadata}, STRATEGIC)

    async def found(self) -> dict[str, Any]:
        """The node after a while."""
        await advance(1)
        return self.world.node_object()


def joined(world: World, template: dict[str, Any] | None = None, **more: Any) -> Joined:
    """A machine that runs; the node has labels and taints of others too."""
    world.ready_class()
    node = {"labels": {"theirs": "x"}, "annotations": {"theirs": "x"}}
    world.node(metadata=node, taints=[{"key": "theirs", "effect": "NoExecute"}])
    metadata = {"labels": {"node": "m0"}, "finalizers": [names.FINALIZER]}
    status = {"currentStatus": {"phase": "Running"}}
    path = world.machine(
        metadata=metadata,
        providerID="fake:///m0",
        status=status,
        nodeTemplate=TEMPLATE if template is None else template,
        **more,
    )
    world.driver.add(world.identity())
    return Joined(world, path)


def kept(node: dict[str, Any]) -> tuple[dict[str, str], set[tuple[str, str, str]]]:
    """Return labels and taints without those of the controllers."""
    labels = {key: text for key, text in node["metadata"]["labels"].items() if "/" not in key}
    taints = {
        (one["key"], one.get("value", ""), one["effect"])
        for one in node["spec"].get("taints", [])
        if "/" not in one["key"]
    }
    return labels, taints


OURS = {"a": "1", "b": "2", "theirs": "x"}
THEIR_TAINT = ("theirs", "", "NoExecute")
OUR_TAINT = ("t", "1", "NoSchedule")


@pytest.mark.row("machine-template-01", "machine-template-04")
async def test_node_template_is_applied_with_one_write(world: World) -> None:
    machine = joined(world)
    async with world.running("machine"):
        node = await machine.found()
        writes = world.server.writes("nodes")
        world.heartbeat(Ready="True")
        machine.edit(labels={"theirs": "y"})
        await advance(60)

    assert kept(node) == (OURS, {THEIR_TAINT, OUR_TAINT})
    assert node["metadata"]["annotations"]["n"] == "1"
    assert node["metadata"]["labels"][names.LABEL_MACHINE_NAME] == "m0"
    assert node["metadata"]["finalizers"] == [names.FINALIZER_NODE]
    assert json.loads(node["metadata"]["annotations"][names.ANNOTATION_APPLIED]) == TEMPLATE
    assert (writes, world.server.writes("nodes")) == (1, 1)


@pytest.mark.row("machine-template-02")
async def test_node_template_changes_are_applied_to_the_node(world: World) -> None:
    machine = joined(world)
    async with world.running("machine"):
        await machine.found()
        machine.template(metadata={"labels": {"a": "9", "b": None, "c": "3"}, "annotations": None})
        node = await machine.found()

    assert kept(node)[0] == {"a": "9", "c": "3", "theirs": "x"}
    assert "n" not in node["metadata"]["annotations"]
    assert node["metadata"]["annotations"]["theirs"] == "x"


@pytest.mark.row("machine-template-03")
async def test_edits_of_templated_node_metadata_are_reverted(world: World) -> None:
    machine = joined(world)
    async with world.running("machine"):
        await machine.found()
        machine.edit(labels={"a": "9", "b": None}, annotations={"n": None})
        node = await machine.found()

    assert kept(node)[0] == OURS
    assert node["metadata"]["annotations"]["n"] == "1"


@pytest.mark.row("machine-template-05")
async def test_missing_node_causes_no_write(world: World) -> None:
    machine = joined(world)
    world.server.drop(f"{NODES_PATH}/m0")
    await world.run(60, "machine")

    assert world.server.writes("nodes") == 0
    assert machine.world.phase() == "Running"


@pytest.mark.row("machine-template-06")
async def test_template_taint_changes_are_applied_to_the_node(world: World) -> None:
    machine = joined(world)
    async with world.running("machine"):
        await machine.found()
        other = {"key": "t", "value": "1", "effect": "NoExecute"}
        machine.template(spec={"taints": [{**other, "effect": "NoSchedule", "value": "2"}, other]})
        both = kept(await machine.found())[1]
        machine.template(spec={"taints": [other]})
        one = kept(await machine.found())[1]

    assert both == {THEIR_TAINT, ("t", "2", "NoSchedule"), ("t", "1", "NoExecute")}
    assert one == {THEIR_TAINT, ("t", "1", "NoExecute")}


@pytest.mark.row("machine-template-07")
async def test_virtual_capacity_of_the_class_is_written_to_the_node(world: World) -> None:
    machine = joined(world, template={})
    capacity = {"status": {"capacity": {"cpu": "2"}}}
    world.server.patch(f"{NODES_PATH}/m0/status", capacity, STRATEGIC)
    found = []
    async with world.running("machine"):
        for wanted in ({"x/a": 2}, {"x/a": 3, "x/b": "1Gi"}, {"x/b": "1Gi"}, {}):
            amounts = {"x/a": None, "x/b": None} | wanted
            template = {"capacity": {"cpu": 2, "gpu": 0, "memory": "1Gi"}}
            place = {"instanceType": "s", "region": "r", "zone": "z"}
            patch = {"nodeTemplate": {**template, **place, "virtualCapacity": amounts}}
            world.server.patch(CLASS, patch)
            found.append((await machine.found())["status"]["capacity"])

    assert found == [
        {"cpu": "2", "x/a": "2"},
        {"cpu": "2", "x/a": "3", "x/b": "1Gi"},
        {"cpu": "2", "x/b": "1Gi"},
        {"cpu": "2"},
    ]

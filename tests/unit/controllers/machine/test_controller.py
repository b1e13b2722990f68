"""A machine from its object to its node: what it costs, and what may go wrong on the way."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.cloud import errors
from ccm.cloud.machines import IMPORT_ANNOTATION, Identity, MachineInfo
from ccm.gardener import names
from ccm.kube.errors import ServerError
from ccm.testing.clock import advance, settle
from tests.unit.controllers.machines import (
    BASE,
    CLUSTER,
    DEFINITIONS,
    NODES_PATH,
    SECRETS_PATH,
    TOKENS,
    World,
)

pytestmark = pytest.mark.virtual_time

MANY = 50


async def test_fifty_machines_and_what_each_costs() -> None:
    """Most 4 writes to the Machine, 1 to the Node, 2 for the token, 2.5 calls of the cloud."""
    world = World()
    world.ready_class()
    async with world.running():
        for number in range(MANY):
            world.machine(f"m{number}")
        await advance(1)
        for number in range(MANY):
            world.node(f"m{number}", ready="False")
        await advance(5)
        for number in range(MANY):
            world.heartbeat(f"m{number}", Ready="True")
        await advance(5)
        costs = {
            "machines": world.server.writes("machines/") / MANY,
            "nodes": world.server.writes("nodes") / MANY,
            "tokens": world.server.writes("kube-system/secrets") / MANY,
            "calls": world.driver.calls.total() / MANY,
            "reads": (world.server.reads("machines") + world.server.reads("nodes")) / MANY,
        }
        await advance(600)

    assert {world.phase(f"m{number}") for number in range(MANY)} == {"Running"}
    assert costs["machines"] <= 4
    assert costs["nodes"] <= 1
    assert costs["tokens"] <= 2
    assert costs["calls"] <= 2.5
    assert costs["reads"] == 0
    assert world.driver.calls["list_machines"] <= 3
    assert world.server.list(TOKENS) == []


@pytest.mark.parametrize("turns", [1, 50])
async def test_slow_calls_of_the_cloud_hold_up_nobody(turns: int) -> None:
    world = World()
    world.turns = turns
    world.ready_class()
    world.driver.seconds = 20
    async with world.running("machine", "machineclass"):
        for number in range(MANY):
            world.machine(f"m{number}")
        # A listing, a creation, an initialisation.
        await advance(3 * 20 + 1)

    assert {world.phase(f"m{number}") for number in range(MANY)} == {"Pending"}


async def test_a_machine_that_never_joins() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine(creationTimeout="5m")
        await advance(299)
        assert world.phase() == "Pending"
        await advance(80)
        assert (world.phase(), world.operation()["state"]) == ("Failed", "Failed")
        world.node()
        await advance(1)

    assert world.phase() == "Running"


async def test_only_a_failure_is_logged_as_an_error() -> None:
    world = World()
    world.ready_class()
    with capture_logs() as lines:
        async with world.running("machine", "machineclass"):
            world.machine(creationTimeout="5m")
            await advance(380)
            world.node()
            await advance(1)

    told = {line["phase"]: line for line in lines if "another phase" in line["event"]}
    assert {phase: "error" in line for phase, line in told.items()} == {
        "Pending": False,
        "Failed": True,
        "Running": False,
    }
    assert told["Running"]["description"]


async def test_a_node_with_critical_components_missing_is_not_in_use() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        world.node(taints=[{"key": names.TAINT_CRITICAL, "effect": "NoSchedule"}])
        await advance(10)
        assert world.phase() == "Pending"
        world.server.patch(f"{NODES_PATH}/m0", {"spec": {"taints": None}})
        await advance(1)

    assert world.phase() == "Running"


# --- whose a VM is --------------------------------------------------------------------------


async def test_a_creation_cut_short_by_an_end_is_found_again() -> None:
    """Another leader finds the VM by its UID."""
    world = World()
    world.ready_class()
    world.machine()
    world.driver.add(world.identity())
    async with world.running("machine", "machineclass"):
        await advance(1)

    assert world.get()["spec"]["providerID"] == "fake:///m0"
    assert world.driver.calls["create_machine"] == 0


async def test_a_listing_from_before_the_end_of_a_creation_proves_nothing() -> None:
    """The cloud made the VM and said it had not."""
    world = World()
    world.ready_class()

    async def create(req: Any) -> MachineInfo:
        world.driver.calls["create_machine"] += 1
        await asyncio.sleep(1)
        world.driver.add(req.identity)
        raise errors.Unavailable("cut")

    world.driver.create_machine = create  # type: ignore[method-assign]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(10)

    assert world.driver.calls["create_machine"] == 1
    assert (world.phase(), world.driver.calls["list_machines"]) == ("Pending", 2)


@pytest.mark.parametrize(
    ("cluster", "uid", "adopt", "provider_id"),
    [
        ("", "", False, ""),
        ("", "", True, "fake:///m0"),
        ("theirs", "u", True, ""),
        (CLUSTER, "former", True, ""),
    ],
    ids=["unmarked", "unmarked-adopted", "foreign", "of-a-former-machine"],
)
async def test_a_vm_that_has_the_name(
    cluster: str, uid: str, adopt: bool, provider_id: str
) -> None:
    world = World(adopt_unmarked=adopt)
    world.ready_class()
    world.driver.add(Identity(cluster=cluster, pool="small", name="m0", uid=uid))
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(60)

    assert world.get()["spec"].get("providerID", "") == provider_id
    assert world.driver.calls["create_machine"] == 0
    assert world.operation().get("errorCode", "") == ("" if provider_id else "AlreadyExists")


async def test_a_provider_id_written_by_hand() -> None:
    """The class has to list a VM that bears other marks."""
    world = World()
    world.secret()
    imports = {"annotations": {IMPORT_ANNOTATION: "fake:///x"}, "finalizers": [names.FINALIZER]}
    world.machine_class(metadata={"name": "small", **imports})
    world.driver.add(Identity(cluster="theirs", pool="other", name="x", uid="u"))
    world.driver.hides = {"fake:///x"}
    async with world.running("machine", "machineclass"):
        world.machine(providerID="fake:///x")
        await advance(1)

    assert (world.phase(), world.get()["metadata"]["labels"]) == ("Pending", {"node": "x"})
    assert world.driver.calls["create_machine"] == 0


async def test_a_stored_vm_that_is_gone_is_never_made_again() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine(providerID="fake:///gone", metadata={"labels": {"node": "m0"}})
        await advance(3600)

    assert (world.phase(), world.driver.calls["create_machine"]) == ("Failed", 0)


# --- bad weather ----------------------------------------------------------------------------


async def test_what_failed_is_tried_again_at_once_when_its_class_is_another() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = [errors.InvalidArgument("no such size")]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(10)
        assert (world.phase(), world.driver.calls["create_machine"]) == ("CrashLoopBackOff", 1)
        world.server.patch(f"{BASE}/machineclasses/small", {"providerSpec": {"size": "better"}})
        await advance(1)

    assert (world.phase(), world.driver.calls["create_machine"]) == ("Pending", 2)
    assert world.driver.given["create_machine"].provider_spec == {"size": "better"}


async def test_credentials_that_change_while_a_vm_is_made() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.driver.seconds = 10
        world.machine()
        await advance(12)
        encoded = base64.b64encode(b"new").decode()
        world.server.patch(f"{SECRETS_PATH}/small", {"data": {"key": encoded}})
        await advance(60)

    assert (world.phase(), len(world.driver.vms)) == ("Pending", 1)


async def test_a_driver_that_says_later_is_asked_later() -> None:
    world = World()
    world.ready_class()
    later = [errors.RetryAfter("boots", seconds=7), errors.RetryAfter("boots", seconds=7)]
    world.driver.faults["create_machine"] = [*later]
    world.driver.faults["initialize_machine"] = [errors.RetryAfter("boots", seconds=7)]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(6)
        assert (world.phase(), world.driver.calls["create_machine"]) == ("", 1)
        await advance(24)

    assert world.phase() == "Pending"
    assert world.driver.calls["create_machine"] == 3


async def test_a_driver_that_raises_anything() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = ZeroDivisionError("x")  # type: ignore[assignment]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(10)

    assert world.operation()["errorCode"] == "Internal"
    assert world.driver.calls["create_machine"] == 1


async def test_what_a_cloud_says_shows_no_secret() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = errors.Internal(
        "refused password=hunter2 " + "x" * 5000
    )
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(10)

    said = world.operation()["description"]
    assert "hunter2" not in said
    assert len(said) < 1500


async def test_a_failure_that_repeats_is_written_once() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = errors.Unavailable("request 1234567 failed")
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(60)
        tried, wrote = (
            world.driver.calls["create_machine"],
            world.server.writes("machines/m0/status"),
        )

    assert tried > 5
    assert wrote == 1


@pytest.mark.row("machine-command-05")
async def test_definitions_that_are_missing_are_waited_for() -> None:
    world = World()
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")
    with capture_logs() as lines:
        async with world.running():
            await advance(3600)
            asked = sum(world.server.requests.values())
            world.define()
            world.ready_class()
            world.machine()
            await advance(60)

    said = [line for line in lines if line["log_level"] == "warning"]
    assert {line["event"] for line in said} == {
        "machine controllers wait for what they need, retrying"
    }
    assert 6 <= len(said) <= 12, "once every five minutes at most"
    assert "apply manifests/crds.yaml" in said[0]["error"]
    assert asked < 150
    assert world.phase() == "Pending"


async def test_the_marker_is_the_uid_of_a_namespace_that_lives_as_long_as_the_cluster() -> None:
    world = World()
    world.cluster = ""
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)

    system = world.server.get("/api/v1/namespaces/kube-system")
    assert system is not None
    marker = world.driver.vms["fake:///0"].identity.cluster
    assert marker == system["metadata"]["uid"] != ""


async def test_an_api_server_that_fails_for_a_while() -> None:
    world = World()
    world.ready_class()
    down = [True]
    world.server.refuse = lambda method, _path: (
        ServerError(status=500, reason="InternalError", message="no")
        if down[0] and method != "GET"
        else None
    )
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(60)
        assert world.driver.calls["create_machine"] == 0
        down[0] = False
        await advance(60)
        await settle()

    assert (world.phase(), len(world.driver.vms)) == ("Pending", 1)

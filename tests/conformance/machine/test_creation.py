"""Creation of VMs, per row of the conformance table; with in-memory API server and fake driver."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import MachineInfo, MachineRequest, Phase
from ccm.gardener import names
from ccm.machines import reasons
from ccm.machines.deletion import DENIAL_S
from ccm.model import NodeAddress
from ccm.testing.clock import advance
from tests.conformance.table import case
from tests.unit.controllers.machines import BASE, SECRETS_PATH, TOKENS, Ready, World

pytestmark = pytest.mark.virtual_time

TEMPLATE = {
    "capacity": {"cpu": 2, "gpu": 0, "memory": "8Gi"},
    "instanceType": "small",
    "region": "r",
    "zone": "z",
}
HELD = {"finalizers": [names.FINALIZER]}


def without(field: str) -> dict[str, Any]:
    """Return the template without a capacity field, or with an empty field."""
    capacity = {key: value for key, value in TEMPLATE["capacity"].items() if key != field}  # type: ignore[attr-defined]
    found = {**TEMPLATE, "capacity": capacity}
    return found | ({field: ""} if field in found else {})


# --- classes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lacks",
    [
        case("machine-class-01", "MachineClass default/small does not exist"),
        case("machine-class-02", "Secret default/small"),
    ],
    ids=["class", "secret"],
)
async def test_creation_waits_for_a_missing_class_or_secret(world: World, lacks: str) -> None:
    if "Secret" in lacks:
        world.machine_class()
    async with world.running():
        world.machine()
        await advance(1)
        assert (world.driver.calls["create_machine"], world.phase()) == (0, "CrashLoopBackOff")
        assert lacks in world.operation()["description"]
        assert ("InvalidSpec", world.operation()["description"]) in world.events
        assert "conditions" not in world.status()
        world.secret()
        if "Class" in lacks:
            world.machine_class()
        await advance(1)

    assert (world.driver.calls["create_machine"], world.phase()) == (1, "Pending")


@pytest.mark.row("machine-class-03", "machine-class-05")
@pytest.mark.parametrize(
    ("template", "said"),
    [
        (TEMPLATE, ""),
        *((without(one), f"capacity.{one} is missing") for one in ("cpu", "gpu", "memory")),
        *((without(one), f"{one} is empty") for one in ("instanceType", "region", "zone")),
    ],
    ids=["complete", "cpu", "gpu", "memory", "instanceType", "region", "zone"],
)
async def test_incomplete_node_template_prevents_the_creation(
    world: World, template: dict[str, Any], said: str
) -> None:
    world.secret()
    world.machine_class(nodeTemplate=template)
    async with world.running():
        world.machine()
        await advance(1)

    assert world.driver.calls["create_machine"] == (not said)
    assert said in world.operation()["description"]


@pytest.mark.row("machine-class-04")
async def test_creation_waits_for_the_class_finalizer(world: Ready) -> None:
    world.server.patch(f"{BASE}/machineclasses/small", {"metadata": {"finalizers": []}})
    async with world.running("machine"):
        world.machine()
        await advance(20)
        assert world.driver.calls["create_machine"] == 0
        world.server.patch(f"{BASE}/machineclasses/small", {"metadata": HELD})
        await advance(7)

    assert world.driver.calls["create_machine"] == 1


@pytest.mark.row("machine-class-06")
@pytest.mark.parametrize(
    ("declared", "provider", "is_served"),
    [
        ((), "fake", True),
        ((), "FAKE", True),
        ((), "", True),
        ((), "other", False),
        (("acme", "fake-2"), "Acme", True),
        (("acme", "fake-2"), "fake", False),
    ],
)
async def test_class_of_another_provider_is_rejected(
    world: World, declared: tuple[str, ...], provider: str, is_served: bool
) -> None:
    world.driver.provider_names = declared
    world.secret()
    world.machine_class(provider=provider)
    async with world.running():
        world.machine()
        await advance(1)
        events = [text for reason, text in world.events if reason == reasons.REASON_SPEC_INVALID]
        assert world.driver.calls["create_machine"] == is_served
        assert len(events) == (not is_served)
        for text in (*events, *([] if is_served else [world.operation()["description"]])):
            assert repr(provider) in text
            assert all(repr(one) in text for one in declared or ("fake",))
        world.server.patch(f"{BASE}/machineclasses/small", {"provider": ""})
        await advance(1)

    assert (world.driver.calls["create_machine"], world.phase()) == (1, "Pending")


# --- creation -----------------------------------------------------------------------------


@pytest.mark.row("machine-create-01")
async def test_new_machine_gets_vm_label_finalizer_and_provider_id(world: Ready) -> None:
    async with world.running():
        world.machine()
        await advance(1)

    made = world.get()
    assert made["metadata"]["labels"] == {"node": "m0"}
    assert made["metadata"]["annotations"]["machinepriority.machine.sapcloud.io"] == "3"
    assert made["metadata"]["finalizers"] == ["machine.sapcloud.io/machine-controller-manager"]
    assert made["spec"]["providerID"] == "fake:///0"
    assert world.driver.calls == {"list_machines": 1, "create_machine": 1, "initialize_machine": 1}
    assert world.driver.vms["fake:///0"].identity == world.identity()


@pytest.mark.row("machine-create-02", "machine-create-09")
@pytest.mark.parametrize("phase", ["", "CrashLoopBackOff"])
async def test_machine_with_an_existing_vm_becomes_pending(world: Ready, phase: str) -> None:
    labels = {"labels": {"node": "m0"}, **HELD}
    status = {"currentStatus": {"phase": phase}}
    world.machine(metadata=labels, providerID="fake:///m0", status=status)
    world.driver.add(world.identity())
    await world.run(1)

    operation = world.operation()
    assert (world.phase(), operation["type"], operation["state"]) == (
        "Pending",
        "Create",
        "Processing",
    )
    assert operation["description"] == "Creating machine on cloud provider"
    assert world.status()["currentStatus"]["timeoutActive"] is True
    assert world.driver.calls["create_machine"] == 0


@pytest.mark.row("machine-create-03")
async def test_pending_machine_causes_no_write_and_no_cloud_call(world: Ready) -> None:
    status = {"currentStatus": {"phase": "Pending"}}
    metadata = {"labels": {"node": "m0"}, **HELD}
    world.machine(metadata=metadata, providerID="fake:///m0", status=status)
    world.driver.add(world.identity())
    before = world.get()
    await world.run(60, "machine")

    assert world.get() == before
    assert world.driver.calls.total() == 0


@pytest.mark.parametrize(
    ("error", "flag_s", "age_s", "phase", "after_s"),
    [
        case(
            "machine-create-04",
            errors.Internal("x"),
            600,
            0,
            "CrashLoopBackOff",
            180,
            id="internal",
        ),
        case(
            "machine-create-05",
            errors.ResourceExhausted("x"),
            600,
            0,
            "CrashLoopBackOff",
            600,
            id="exhausted",
        ),
        case(
            "machine-create-06",
            errors.ResourceExhausted("x"),
            540,
            0,
            "CrashLoopBackOff",
            540,
            id="exhausted-9m",
        ),
        case("machine-create-07", errors.Internal("x"), 600, 3600, "Failed", 180, id="too-old"),
        *(
            case("machine-create-16", kind("x"), 600, 0, "CrashLoopBackOff", 5, id=kind.__name__)
            for kind in (
                errors.Unknown,
                errors.DeadlineExceeded,
                errors.Aborted,
                errors.Unavailable,
            )
        ),
    ],
)
async def test_failed_creation_sets_phase_and_error_code_and_is_retried(
    error: errors.CloudError, flag_s: float, age_s: float, phase: str, after_s: float
) -> None:
    world = Ready(exhausted_retry_s=flag_s)
    world.machine()
    await advance(age_s)
    world.driver.faults["create_machine"] = error
    async with world.running("machine", "machineclass"):
        await advance(1)
        code = type(error).__name__
        assert (world.phase(), world.operation()["errorCode"]) == (phase, code)
        assert world.operation()["description"] == (
            f"Cloud provider message - machine codes error: code = [{code}] message = [x]"
        )
        await advance(after_s - 2)
        assert world.driver.calls["create_machine"] == 1
        await advance(after_s * 0.2 + 2)
        assert world.driver.calls["create_machine"] == 2


@pytest.mark.row("machine-create-16")
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (errors.Unavailable("x"), "old"),
        (errors.ResourceExhausted("x"), "old"),
        (errors.Internal("x"), ""),
        (errors.Internal("x").carrying(MachineInfo(last_known_state="new")), "new"),
        (errors.Unavailable("x").carrying(MachineInfo(last_known_state="new")), "new"),
        (errors.RetryAfter("x", seconds=9).carrying(MachineInfo(last_known_state="new")), "new"),
        (errors.RetryAfter("x", seconds=9), "old"),
    ],
    ids=["kept", "kept-exhausted", "cleared", "carried", "carried-passing", "again", "again-kept"],
)
async def test_failed_creation_keeps_clears_or_replaces_last_known_state(
    world: Ready, error: errors.CloudError, state: str
) -> None:
    world.machine(status={"lastKnownState": "old"})
    world.driver.faults["create_machine"] = error
    await world.run(1, "machine", "machineclass")

    assert world.status().get("lastKnownState", "") == state
    assert world.driver.given["create_machine"].last_known_state == "old"


@pytest.mark.row("machine-create-16")
async def test_last_known_state_is_stored_before_the_initialisation(
    world: Ready,
) -> None:
    seen = []
    make, initialize = world.driver.create_machine, world.driver.initialize_machine

    async def created(req: MachineRequest) -> MachineInfo:
        return replace(await make(req), last_known_state="made")

    async def initialized(req: MachineRequest) -> MachineInfo:
        seen.append((req.last_known_state, world.status()["lastKnownState"]))
        return replace(await initialize(req), last_known_state="set up")

    world.driver.create_machine = created  # type: ignore[method-assign]
    world.driver.initialize_machine = initialized  # type: ignore[method-assign]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)

    assert seen == [("made", "made")]
    assert (world.phase(), world.status()["lastKnownState"]) == ("Pending", "set up")


@pytest.mark.row("machine-create-08")
@pytest.mark.parametrize(("is_old", "is_own"), [(True, False), (False, False), (True, True)])
async def test_machine_fails_if_an_older_node_of_another_vm_has_its_name(
    world: World, is_old: bool, is_own: bool
) -> None:
    """The own node may seem older, by the clock of another cluster."""
    provider_id = "fake:///0" if is_own else "fake:///taken"
    world.ready_class()
    world.driver.node_name = lambda _req: "taken"
    world.driver.seconds = 10
    async with world.running("machine", "machineclass"):
        if is_old:
            world.node("taken", ready="False", providerID=provider_id)
            await advance(2)
        world.machine()
        await advance(2)
        if not is_old:
            world.node("taken", ready="False", providerID=provider_id)
        await advance(40)

    is_taken = is_old and not is_own
    assert (world.driver.deleted != []) is is_taken
    assert world.phase() == ("Failed" if is_taken else "Pending")
    assert (world.operation()["description"] == "VM using old node obj") is is_taken


@pytest.mark.row("machine-create-10")
async def test_failed_initialisation_is_retried_without_another_creation(world: Ready) -> None:
    world.driver.faults["initialize_machine"] = [errors.Uninitialized("x")]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        assert (world.phase(), world.operation()["errorCode"]) == (
            "CrashLoopBackOff",
            "Uninitialized",
        )
        assert world.operation()["description"].endswith("Initialize VM Instance")
        await advance(6)

    assert (world.phase(), world.driver.calls["create_machine"]) == ("Pending", 1)
    assert world.driver.calls["initialize_machine"] == 2


@pytest.mark.row("machine-create-12", "machine-create-13", "machine-create-14")
async def test_machine_without_target_cluster_becomes_available() -> None:
    world = Ready(has_target=False)
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        made = world.get()
        await advance(60)

    assert made["spec"]["providerID"] == "fake:///0"
    assert "labels" not in made["metadata"]
    assert made["status"]["addresses"] == [{"type": "Hostname", "address": "m0"}]
    current, operation = made["status"]["currentStatus"], made["status"]["lastOperation"]
    assert (current["phase"], current["timeoutActive"]) == ("Available", False)
    assert (operation["type"], operation["state"]) == ("Create", "Successful")
    assert operation["description"] == "Created machine on cloud provider"
    assert world.get() == made
    assert world.server.list(TOKENS) == []


@pytest.mark.row("machine-create-13")
async def test_addresses_are_merged_without_a_target_cluster() -> None:
    world = Ready(has_target=False)
    known = {"addresses": [{"type": "ExternalIP", "address": "1.2.3.4"}]}
    world.machine(metadata=HELD, providerID="fake:///m0", status=known)
    info = MachineInfo(
        provider_id="fake:///m0",
        node_name="m0",
        addresses=[
            NodeAddress(type="InternalIP", address="10.0.0.1"),
            NodeAddress(type="ExternalIP", address="1.2.3.4"),
        ],
    )
    world.driver.add(world.identity(), info)
    await world.run(1, "machine", "machineclass")

    assert [one["address"] for one in world.status()["addresses"]] == ["1.2.3.4", "m0", "10.0.0.1"]


# --- user data ----------------------------------------------------------------------------


@pytest.mark.row("machine-userdata-01", "machine-userdata-02", "machine-userdata-04")
@pytest.mark.parametrize(
    ("given", "wanted", "has_target"),
    [
        ("a <<BOOTSTRAP_TOKEN>> <<BOOTSTRAP_TOKEN>>", "a TOKEN TOKEN", True),
        ("a %3C%3CBOOTSTRAP_TOKEN%3E%3E", "a TOKEN", True),
        ("<<MACHINE_NAME>>/<<MACHINE_NAME>>", "m0/m0", True),
        ("%3C%3CMACHINE_NAME%3E%3E", "m0", True),
        ("<<MACHINE_NAME>>%3C%3CMACHINE_NAME%3E%3E", "m0%3C%3CMACHINE_NAME%3E%3E", True),
        ("nothing", "nothing", True),
        ("<<MACHINE_NAME>> <<BOOTSTRAP_TOKEN>>", "m0 <<BOOTSTRAP_TOKEN>>", False),
    ],
)
async def test_user_data_placeholders_are_replaced(
    given: str, wanted: str, has_target: bool
) -> None:
    world = World(has_target=has_target)
    world.secret(userData=given)
    world.machine_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)

    found = world.driver.given["create_machine"].user_data.decode()
    secrets = world.server.list(TOKENS)
    for one in secrets:
        found = found.replace(token_of(one), "TOKEN")
    assert found == wanted
    assert len(secrets) == ("TOKEN" in wanted.replace("BOOTSTRAP_TOKEN", ""))


@pytest.mark.row("machine-userdata-03")
async def test_secret_without_user_data_still_creates_a_vm(world: World) -> None:
    world.server.put(SECRETS_PATH, {"metadata": {"name": "small"}, "stringData": {"key": "k"}})
    world.machine_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)

    request = world.driver.given["create_machine"]
    assert (world.phase(), request.user_data) == ("Pending", b"")
    assert request.credentials["key"] == b"k"


def token_of(secret: dict[str, Any]) -> str:
    """Return the bootstrap token in a Secret."""
    data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    assert secret["type"] == "bootstrap.kubernetes.io/token"
    assert secret["metadata"]["name"] == f"bootstrap-token-{data['token-id']}"
    assert data["usage-bootstrap-authentication"] == data["usage-bootstrap-signing"] == "true"
    return f"{data['token-id']}.{data['token-secret']}"


@pytest.mark.row("machine-create-17", "machine-delete-token-01")
@pytest.mark.parametrize("fault", [None, errors.Internal("x"), errors.ResourceExhausted("x")])
async def test_deletion_after_a_creation_removes_vm_and_token(
    world: Ready, fault: errors.CloudError | None
) -> None:
    world.driver.faults["create_machine"] = [fault]
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        assert len(world.driver.vms) == (fault is None)
        assert len(world.server.list(TOKENS)) == 1
        world.server.drop(path)
        await advance(1 if fault is None else DENIAL_S + 2)

    assert (world.get(), world.driver.vms, world.server.list(TOKENS)) == ({}, {}, [])
    # An ordered VM that was never seen must be NotFound twice before the machine is deleted.
    assert world.driver.calls["delete_machine"] == (1 if fault is None else 2)


@pytest.mark.row("machine-create-18")
@pytest.mark.parametrize("kind", [errors.ResourceExhausted, errors.Aborted])
async def test_vm_that_fails_to_start_fails_its_machine_at_once(
    world: Ready, kind: type[errors.CloudError]
) -> None:
    """The error is final, so that the creation timeout is not awaited."""
    lost = kind("no room for it").carrying(MachineInfo(phase=Phase.FAILED))
    world.driver.faults["initialize_machine"] = [errors.RetryAfter("boots", seconds=2.0), lost]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        assert world.phase() == ""
        await advance(2)
        ended = (world.phase(), world.operation()["errorCode"], world.operation()["state"])
        world.driver.vms.clear()
        await advance(1500)

    assert ended == ("Failed", kind.__name__, "Failed")
    assert "no room for it" in world.operation()["description"]
    assert (world.phase(), world.driver.calls["create_machine"]) == ("Failed", 1)


@pytest.mark.row("machine-create-18")
async def test_failed_vm_without_stored_provider_id_is_recreated(world: Ready) -> None:
    """Without a stored provider ID the same machine retries the creation."""
    lost = errors.Aborted("the host died").carrying(MachineInfo(phase=Phase.FAILED))
    world.driver.faults["create_machine"] = [lost]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        assert world.phase() == "CrashLoopBackOff"
        await advance(6)

    assert (world.phase(), world.driver.calls["create_machine"]) == ("Pending", 2)

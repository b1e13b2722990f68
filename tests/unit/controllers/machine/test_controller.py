"""Machine controller with two clusters, clock jumps, foreign objects and other processes."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from ccm.base import clock, lease_guard, redact
from ccm.cloud import errors
from ccm.cloud.machines import (
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
)
from ccm.controllers.machine.context import MachineContext
from ccm.controllers.machine.termination import DeleteFlow
from ccm.controllers.machine.tokens import MAX_REDACTED, Tokens
from ccm.gardener import decoding, names
from ccm.gardener.types import Machine
from ccm.kube.errors import Forbidden, Invalid, Unreachable
from ccm.kube.resources import SECRETS
from ccm.machines import reasons, tokens
from ccm.machines.drain import DrainState
from ccm.machines.settings import MachineSettings
from ccm.model import ObjectMeta
from ccm.runtime.controller import wait_for_sync
from ccm.runtime.workers import ConcurrencySlot
from ccm.testing.clock import START, START_S, VirtualTimeLoop, advance
from tests.conformance.machine import going
from tests.unit.controllers.drains import PODS, Drains
from tests.unit.controllers.machines import (
    BASE,
    CLUSTER,
    DEFINITIONS,
    NODES_PATH,
    TOKENS,
    FakeDriver,
    Ready,
    World,
)
from tests.unit.controllers.memory_server import FragileServer, MemoryServer

pytestmark = pytest.mark.virtual_time

HOUR_S = 3600.0
LONG_S = 4 * HOUR_S
"""Long enough for the deletion of an orphan VM."""
MAKE = ("machine", "machineclass")
KEPT = {names.ANNOTATION_PRESERVE: "now"}


# --- clusters -------------------------------------------------------------------------------------


@pytest.mark.row("machine-command-05")
async def test_controller_waits_for_missing_crds_with_throttled_warnings(world: World) -> None:
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
    assert 6 <= len(said) <= 12, "once every five minutes at most"
    assert "apply manifests/crds.yaml" in said[0]["error"]
    assert (asked < 150, world.phase()) == (True, "Pending")


def two(*, has_target: bool = True, cluster: str = "") -> tuple[World, World]:
    """Return a control cluster with a Machine, and the target cluster."""
    control, target = Ready(has_target=has_target), World()
    control.cluster, control.target = cluster, target.server
    control.machine()
    return control, target


def uid(server: MemoryServer, namespace: str) -> str:
    return str((server.get(f"/api/v1/namespaces/{namespace}") or {})["metadata"]["uid"])


def marker(world: World) -> str:
    (vm,) = world.driver.vms.values()
    return vm.identity.cluster


@pytest.mark.row("machine-cluster-04", "machine-cluster-05")
async def test_machines_are_in_the_control_and_nodes_in_the_target_cluster() -> None:
    control, target = two()
    async with control.running("machine"):
        await advance(1)
        assert (control.phase(), len(target.server.list(TOKENS))) == ("Pending", 1)
        assert marker(control) == uid(target.server, "kube-system")
        assert marker(control) != uid(control.server, "kube-system")
        control.node()  # same name, wrong cluster
        await advance(10)
        assert control.phase() == "Pending"
        target.node(providerID="fake:///0")
        await advance(1)

    assert control.phase() == "Running"
    assert names.FINALIZER_NODE in target.node_object()["metadata"]["finalizers"]
    assert target.server.list(TOKENS) == control.server.list(TOKENS) == []
    asked = {path for _, path in control.server.requests}
    assert not any(NODES_PATH in path or "kube-system" in path for path in asked)
    assert {one.resource for one in control.informers[1].all} == {"nodes"}


@pytest.mark.row("machine-cluster-01", "machine-cluster-05")
async def test_no_node_is_requested_without_a_target_cluster() -> None:
    control, target = two(has_target=False)
    async with control.running("machine"):
        await advance(1)
        assert control.phase() == "Available"
        assert marker(control) == uid(control.server, "default")
        nodes = control.caches.nodes
        assert (nodes.has_synced, list(nodes.store.list())) == (True, [])
        control.server.drop(f"{BASE}/machines/m0")
        await advance(1)

    assert (control.get(), control.driver.vms) == ({}, {})
    assert target.server.requests.total() == 0
    followed = [{one.resource for one in each.all} for each in control.informers]
    assert followed == [{"machines", "machineclasses", "secrets"}, set()]


@pytest.mark.row("machine-cluster-05")
async def test_configured_cluster_marker_is_not_looked_up() -> None:
    control, target = two(cluster="ours")
    await control.run(1, "machine")

    assert marker(control) == "ours"
    asked = [path for _, path in target.server.requests if "kube-system" in path]
    assert all("secrets" in path for path in asked)


# --- clocks ---------------------------------------------------------------------------------------


def jump_of_the_wall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)


class Steady:
    """Server clock that does not follow jumps of the local clock."""

    @staticmethod
    def now() -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() - START_S)


def touch(world: World) -> None:
    """Change the machine to trigger a reconcile."""
    world.server.patch(f"{BASE}/machines/m0", {"metadata": {"annotations": {"touched": "yes"}}})


@pytest.mark.row("machine-clock-01")
@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
async def test_clock_jump_does_not_consume_the_creation_timeout(
    world: Ready, seconds: float
) -> None:
    """The clock of the API server jumps too, as on the same host."""
    async with world.running(*MAKE):
        world.machine(creationTimeout="5m")
        await advance(100)
        jump_of_the_wall(seconds)
        touch(world)
        await advance(190)
        assert world.phase() == "Pending"
        if seconds > 0:
            await advance(80)
            assert world.phase() == "Failed"
        world.node()
        await advance(1)

    assert world.phase() == "Running"


@pytest.mark.row("machine-clock-01")
async def test_wrong_local_clock_does_not_shorten_the_creation_timeout(world: Ready) -> None:
    world.server.clock = Steady()  # type: ignore[assignment]
    world.machine(creationTimeout="5m")
    jump_of_the_wall(HOUR_S)
    world.driver.faults["create_machine"] = [errors.Internal("x")]
    async with world.running(*MAKE):
        for seconds, phase in ((1, "CrashLoopBackOff"), (220, "Pending"), (150, "Failed")):
            await advance(seconds)
            assert world.phase() == phase


@pytest.mark.row("machine-clock-02")
async def test_clock_jump_does_not_make_a_young_orphan_vm_deletable(world: Ready) -> None:
    world.server.clock = Steady()  # type: ignore[assignment]
    world.driver.add(Identity(cluster=CLUSTER, pool="small", name="lost", uid="u"))
    born = clock.now()
    async with world.running("machinesafety"):
        await advance(10)
        jump_of_the_wall(2 * HOUR_S)
        await advance(2 * world.period_s * 1.1)
        assert world.driver.deleted == []
        await advance(HOUR_S)

    assert world.driver.deleted == ["fake:///lost"]
    assert clock.now() - born > timedelta(hours=3)


async def test_clock_jump_does_not_force_a_drain(world: Drains) -> None:
    world.pod("p0", grace_s=100)
    async with world.started(timeout_s=HOUR_S):
        await advance(5)
        jump_of_the_wall(2 * HOUR_S)
        world.heartbeat(Ready="True", Looked="True")
        await advance(60)
        assert (world.progress().forced, world.pods()) == (False, ["p0"])
        await advance(60)
        assert (world.progress().forced, world.state()) == (False, DrainState.DONE)


async def test_clock_jump_does_not_end_preservation(world: Ready) -> None:
    """After the end of preservation its set would delete the machine."""
    world.lived(phase="Failed", metadata={"annotations": KEPT}, machinePreserveTimeout="1h")
    async with world.running("machine"):
        await advance(10)
        jump_of_the_wall(2 * HOUR_S)
        touch(world)
        await advance(60)
        assert "preserveExpiryTime" in world.status()["currentStatus"]
        await advance(HOUR_S)

    assert "preserveExpiryTime" not in world.status()["currentStatus"]


# --- VMs of others, and listings that are wrong ---------------------------------------------------


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
async def test_vm_with_the_machine_name_is_adopted_only_if_unmarked_and_allowed(
    cluster: str, uid: str, adopt: bool, provider_id: str
) -> None:
    world = Ready(adopt_unmarked=adopt)
    world.driver.add(Identity(cluster=cluster, pool="small", name="m0", uid=uid))
    world.machine()
    await world.run(60, *MAKE)

    assert world.get()["spec"].get("providerID", "") == provider_id
    assert world.driver.calls["create_machine"] == 0
    assert world.operation().get("errorCode", "") == ("" if provider_id else "AlreadyExists")


class Stripping(FakeDriver):
    """Driver during whose initialisation another client removes the finalizer."""

    world: World

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        info = await super().initialize_machine(req)
        path = f"{BASE}/machines/{req.identity.name}"
        self.world.server.patch(path, {"metadata": {"finalizers": None}})
        return replace(info, last_known_state="initialised")


async def test_finalizer_removed_during_vm_initialisation_is_restored(world: Ready) -> None:
    world.driver = driver = Stripping()
    driver.world = world
    world.machine()
    await world.run(1, *MAKE)

    assert (world.phase(), world.status()["lastKnownState"]) == ("Pending", "initialised")
    assert names.FINALIZER in world.get()["metadata"]["finalizers"]


class Stale(FakeDriver):
    """Driver whose listings are one call old."""

    before: Sequence[MachineRecord] = ()

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        found, self.before = self.before, await super().list_machines(req)
        return found


async def started(world: World, count: int) -> None:
    """Create machines, and let their nodes join."""
    for number in range(count):
        world.machine(f"m{number}")
    await advance(60)
    for number in range(count):
        world.node(f"m{number}", providerID=world.get(f"m{number}")["spec"]["providerID"])
    await advance(60)


async def test_partial_vm_listing_creates_no_duplicate_and_deletes_no_vm(world: Ready) -> None:
    """The driver finds a VM that the listing lacks by its marks."""
    async with world.running():
        await started(world, 4)
        world.driver.hides = set(list(world.driver.vms)[:2]) | {"fake:///late"}
        world.machine("late")
        info = MachineInfo(provider_id="fake:///late", node_name="late")
        world.driver.add(world.identity("late"), info)
        await advance(LONG_S)

    assert (len(world.driver.vms), world.driver.deleted) == (5, [])
    assert world.get("late")["spec"]["providerID"] == "fake:///late"


async def test_stale_vm_listing_deletes_no_current_vm(world: Ready) -> None:
    world.driver = driver = Stale()
    async with world.running():
        await started(world, 3)
        world.server.drop(f"{BASE}/machines/m0")
        await advance(60)
        # A new machine has the name now; no listing has its VM yet.
        world.machine("m0")
        await advance(LONG_S)

    assert len(driver.deleted) == 1
    assert {one.identity.uid for one in driver.vms.values()} == {
        world.identity(f"m{number}").uid for number in range(3)
    }


async def test_vm_records_without_provider_id_are_not_deleted(world: Ready) -> None:
    async with world.running():
        await started(world, 2)
        for key, record in world.driver.vms.items():
            world.driver.vms[key] = replace(record, info=MachineInfo())
        await advance(LONG_S)

    assert world.driver.deleted == []


# --- deletions ------------------------------------------------------------------------------------


async def test_retry_now_skips_the_back_off_of_a_failed_deletion(world: Ready) -> None:
    going.goes(world)
    world.driver.faults["delete_machine"] = [errors.Internal("x")]
    async with world.running(*MAKE):
        await advance(10)
        assert world.get(going.M) != {}
        world.made["machine"].retry_now()
        await advance(1)

    assert world.get(going.M) == {}


async def test_deleted_machine_in_a_stale_cache_is_not_deleted_again(world: Ready) -> None:
    """Real API servers answer with the former resource version, so that the cache seems current."""
    going.goes(world)
    async with world.running("machineclass"):
        shared = world.shared
        assert shared is not None
        await wait_for_sync(shared.caches.machines, component="test")
        await wait_for_sync(shared.caches.nodes, component="test")
        obj = shared.caches.machines.store.list()[0]
        context = MachineContext(shared, drains=world.drains, events=world)
        deletion, turn = DeleteFlow(context, obj), ConcurrencySlot(asyncio.Semaphore(1))
        async with turn:
            for _ in range(9):
                await deletion.run(obj, turn, lambda: None)
                calls, writes = world.driver.calls.copy(), world.server.writes("machines/")
            await deletion.run(obj, turn, lambda: None)

    assert (world.get(going.M), world.driver.calls["delete_machine"]) == ({}, 1)
    assert (world.driver.calls, world.server.writes("machines/")) == (calls, writes)


@pytest.mark.parametrize("provider_id", ["fake:///m0", "fake:///other"])
async def test_node_deletion_deletes_the_machine_with_the_same_provider_id(
    world: World, provider_id: str
) -> None:
    world.lived()
    world.node(metadata={"finalizers": ["example.com/held"]}, providerID=provider_id)
    async with world.running("machine"):
        await advance(5)
        world.server.drop(f"{NODES_PATH}/m0")
        await advance(60)

    goes = "deletionTimestamp" in world.get()["metadata"]
    assert goes is (provider_id == "fake:///m0")


@pytest.mark.parametrize("returns", [True, False])
async def test_vm_deletion_waits_for_a_node_the_cache_lacks_until_timeout(returns: bool) -> None:
    """If the node stays missing until the drain timeout, its VM is deleted undrained."""
    server = FragileServer()
    world = Ready(server)
    path = world.lived(drainTimeout="10m")
    async with world.running("machine"):
        await advance(5)
        server.forgets(NODES_PATH)
        await advance(5)
        world.node()
        world.server.drop(path)
        await advance(300)
        assert world.driver.calls["delete_machine"] == 0
        if returns:
            server.returns()
        await advance(320)

    assert len(world.drains.tasks) == returns
    assert (world.get(), world.node_object() == {}) == ({}, returns)


@pytest.mark.parametrize("is_own", [True, False])
async def test_forced_deletion_keeps_volume_attachments_of_another_vms_node(
    world: Ready, is_own: bool
) -> None:
    """A forced deletion of a former process is resumed after a new node took the name."""
    going.goes(world, "Force Drain successful. Delete Volume Attachments")
    if not is_own:
        world.server.unmake(f"{NODES_PATH}/{going.M}")
        world.node(going.M, providerID="fake:///other")
    going.attached(world, "v0")
    await world.run(60, "machine")

    assert (world.server.list(going.ATTACHMENTS) != []) is not is_own


@pytest.mark.parametrize("said", ["", "a budget"])
async def test_preserved_machine_is_drained_again_on_deletion(world: Ready, said: str) -> None:
    """The preservation drain that has just ended neither cordoned the node nor used force."""
    labels = {"node": "m0", names.LABEL_FORCE_DELETION: "True"}
    path = world.joined(
        phase="Failed", metadata={"annotations": KEPT, "labels": labels}, ready="Unknown"
    )
    world.drains.seconds = 5
    async with world.running("machine"):
        await advance(1)
        world.drains.finish(world.get()["metadata"]["uid"], said)
        world.server.drop(path)
        await advance(60)

    assert [one.terminating for one in world.drains.tasks][:2] == [False, True]
    assert world.get() == {}


async def test_end_of_preservation_emits_no_event_if_already_written(world: Ready) -> None:
    """A former leader writes the end first; the own write then finds it."""
    path = world.lived(phase="Failed", metadata={"annotations": KEPT})
    status = f"{path}/status"
    async with world.running("machine"):
        await advance(1)

        def ended(method: str, asked: str) -> None:
            if (method, asked) == ("PATCH", status):
                world.server.answers()
                current = {"preserveExpiryTime": None}
                world.server.patch(status, {"status": {"currentStatus": current}})

        world.server.refuse = ended
        world.server.patch(
            path, {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: "false"}}}
        )
        await advance(10)

    assert "preserveExpiryTime" not in world.status()["currentStatus"]
    assert world.server.requests["PATCH", status] == 2
    assert world.reasons() == [reasons.REASON_PRESERVED]


# --- drains ---------------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-29")
@pytest.mark.parametrize("pods", [0, 1])
async def test_drain_without_evicted_pods_emits_no_event(world: Drains, pods: int) -> None:
    for number in range(pods):
        world.pod(f"p{number}")
    async with world.started():
        await advance(6)
        assert world.state() is DrainState.DONE

    assert world.reasons() == ["NodeDrained"] * pods


async def test_stopped_drain_has_no_progress_and_wakes_no_machine(world: Drains) -> None:
    world.pod("p0", grace_s=100)
    async with world.started():
        await advance(1)
        uid = world.get()["metadata"]["uid"]
        await world.drainer.stop(uid)
        await world.drainer.stop(uid)
        assert world.drainer.progress(uid) is None
        woken = world.woken
        await advance(120)
        assert (world.woken, world.pods()) == (woken, [])


@pytest.mark.parametrize("then", [None, {"terminating": True}, {"terminating": False}], ids=str)
async def test_preservation_drain_does_not_cordon_until_another_drain_does(
    world: Drains, then: Any
) -> None:
    """Drains for a deletion or an in-place update take precedence over a preservation drain."""
    world.pod("p0", grace_s=20)
    async with world.draining():
        await advance(1)
        before, kept = world.node_object(), replace(world.task(), terminating=False, cordon=False)
        world.drainer.start(kept, lambda: None)
        await advance(5)
        assert world.node_object() == before
        if then is not None:
            world.drainer.start(replace(world.task(), **then), lambda: None)
        await advance(20)
        assert (world.state(), world.pods(), world.evictions()) == (DrainState.DONE, [], 1)

    assert world.node_object()["spec"].get("unschedulable", False) is (then is not None)


async def test_drain_evicts_no_pod_after_the_lease_expired(world: Drains) -> None:
    """A drain keeps the lease guard of the leader that started it."""
    world.pod("p0")
    held, loop = lease_guard.LeaseGuard(), asyncio.get_running_loop()
    held.activate()
    held.extend(loop.time() + 2)

    def checked(method: str, _path: str) -> Exception | None:
        try:
            if method != "GET":
                lease_guard.check_current_guard()
        except lease_guard.LeaseExpired as error:
            return Unreachable(str(error), kind="timeout")
        return None

    async with world.draining(counting=False):
        await advance(1)
        held.extend(loop.time() + 0.5)
        await advance(1)
        world.server.refuse = checked
        world.start()
        await advance(10)
        assert (world.pods(), world.state()) == (["p0"], DrainState.FAILED)
        held.extend(loop.time() + 60)
        world.start()
        await advance(7)
        assert world.state() is DrainState.DONE


@pytest.mark.parametrize(("force", "evicts"), [(True, True), (False, True), (False, False)])
async def test_drain_keeps_a_recreated_pod_of_the_same_name(
    world: Drains, force: bool, evicts: bool
) -> None:
    """The new Pod appears between decision and eviction, and stays."""
    world.pod("p0")
    world.node("m1")
    world.server.evicts = evicts

    def replaced(method: str, path: str) -> None:
        if path.partition("/eviction")[0].endswith("/p0") and method in ("DELETE", "POST"):
            world.server.answers()
            world.server.kill(f"{PODS}/p0")
            world.pod("p0", node="m1")

    async with world.draining():
        await advance(1)
        world.server.refuse = replaced
        world.start(force=force)
        await advance(0 if force else 60)
        assert world.state() is DrainState.DONE

    assert [one["spec"]["nodeName"] for one in world.server.list(PODS)] == ["m1"]


async def test_pods_blocked_by_a_disruption_budget_are_evicted_in_order(world: Drains) -> None:
    for number in range(3):
        world.pod(f"p{number}", node=f"n{number}", grace_s=1)
        world.node(f"n{number}")
    world.budget(minAvailable=3)
    world.node("m1", ready="False")
    world.pod("unhealthy", node="m1")
    async with world.draining():
        await advance(1)
        for number in (1, 0, 2):
            world.start(f"n{number}")
            await advance(1)
        for left in (["p0", "p2"], ["p2"], []):
            world.pod(f"new{len(left)}", node="m1x", metadata={"labels": {"app": "web"}})
            world.server.patch(
                f"{PODS}/new{len(left)}/status",
                {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            )
            await advance(5)
            assert [one for one in world.pods() if one.startswith("p")] == left


# --- tokens and secrets ---------------------------------------------------------------------------

ID = {names.ANNOTATION_TOKEN_ID: "aaaaaa"}
THEIRS = {"description": "x", "token-secret": "s", "expiration": "2099-01-01T00:00:00Z"}
RULES = MachineSettings(names=decoding.NAMES, cluster="ours")


def listed(world: World) -> list[str]:
    return [one["metadata"]["name"] for one in world.server.list(TOKENS)]


@pytest.mark.row("machine-userdata-05")
@pytest.mark.parametrize("of_secret", ["", "<<BOOTSTRAP_TOKEN>>"])
async def test_user_data_in_the_provider_spec_gets_its_placeholders_filled(
    world: World, of_secret: str
) -> None:
    world.secret(userData=of_secret)
    given = {"size": "small", "userData": "<<MACHINE_NAME>> <<BOOTSTRAP_TOKEN>>"}
    world.machine_class(providerSpec=given)
    world.machine()
    await world.run(1, *MAKE)

    request = world.driver.given["create_machine"]
    name, _, token = request.provider_spec["userData"].partition(" ")
    assert (name, request.provider_spec["size"]) == ("m0", "small")
    assert len(token) == len("aaaaaa.bbbbbbbbbbbbbbbb")
    assert request.user_data.decode() == (token if of_secret else "")
    assert len(listed(world)) == 1


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_bootstrap_token_of_another_owner_is_kept(
    is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admission policy may forbid access to the foreign token."""
    world, ids = Ready(), iter(["aaaaaa", "bbbbbb"])
    monkeypatch.setattr(tokens, "new_id", lambda _choose: next(ids))
    theirs = {"metadata": {"name": "bootstrap-token-aaaaaa"}, "stringData": THEIRS}
    world.server.put(TOKENS, theirs)
    if is_hidden:
        refused = Forbidden(status=403, reason="Forbidden", message="no")
        world.server.fails(refused, "PATCH", "-aaaaaa")
    async with world.running(*MAKE):
        world.machine()
        await advance(1)
        world.node()
        await advance(1)

    assert (world.phase(), listed(world)) == ("Running", ["bootstrap-token-aaaaaa"])


async def test_secret_that_replaced_a_bootstrap_token_is_not_deleted(world: Ready) -> None:
    async with world.running(*MAKE):
        world.machine()
        await advance(1)
        (name,) = listed(world)
        world.server.drop(f"{TOKENS}/{name}")
        world.server.put(TOKENS, {"metadata": {"name": name}, "stringData": {"a": "b"}})
        world.node(providerID="fake:///0")
        await advance(1)

    assert (world.phase(), listed(world)) == ("Running", [name])


async def test_bootstrap_token_lifecycle_needs_no_get_permission() -> None:
    world = Ready(exhausted_retry_s=HOUR_S)
    world.driver.faults["create_machine"] = [errors.ResourceExhausted("x"), None]
    world.server.fails(Forbidden(status=403, reason="Forbidden", message="no"), "GET", TOKENS)

    def expiration() -> str:
        (token,) = world.server.list(TOKENS)
        return base64.b64decode(token["data"]["expiration"]).decode()

    async with world.running(*MAKE):
        world.machine()
        await advance(1)
        first, before = world.driver.given["create_machine"].user_data, expiration()
        await advance(HOUR_S * 1.3)
        assert (world.driver.calls["create_machine"], expiration() > before) == (2, True)
        assert world.driver.given["create_machine"].user_data == first
        world.node()
        await advance(1)

    assert (world.phase(), listed(world)) == ("Running", [])


async def test_forbidden_token_deletion_blocks_neither_joining_nor_deletion(
    world: Ready,
) -> None:
    """An undeleted token expires."""
    async with world.running(*MAKE):
        path = world.machine()
        await advance(1)
        world.server.fails(Forbidden(status=403, reason="x", message="no"), "DELETE", TOKENS)
        world.node()
        await advance(1)
        assert world.phase() == "Running"
        world.server.drop(path)
        await advance(60)

    assert (world.get(), world.driver.vms) == ({}, {})


async def test_token_deletion_is_retried_after_a_forbidden_response(world: Ready) -> None:
    async with world.running(*MAKE):
        world.machine()
        await advance(1)
        errors = [Forbidden(status=403, reason="x", message="no")]
        world.server.refuse = lambda method, path: (
            errors.pop() if errors and method == "DELETE" and TOKENS in path else None
        )
        world.node()
        await advance(1)

    assert (world.phase(), listed(world), errors) == ("Running", [], [])


async def test_token_found_after_a_lost_response_is_deleted(world: Ready) -> None:
    """The response to the creation was lost, and a former token was deleted before."""
    api, other = (Tokens(world.server.client().resource(SECRETS)) for _ in range(2))
    owner = decoding.machine(Machine(metadata=ObjectMeta(name="m0", uid="u", annotations=ID)))
    await api.ensure(owner, RULES)
    await api.delete(owner, RULES)
    await other.ensure(owner, RULES)
    await api.ensure(owner, RULES)
    await api.delete(owner, RULES)

    assert listed(world) == []


def test_redaction_remembers_a_bounded_number_of_tokens() -> None:
    held = Tokens(cast("Any", None))
    for number in range(MAX_REDACTED + 1):
        one = Machine(metadata=ObjectMeta(name="m", uid=str(number)))
        held._redact(decoding.machine(one), f"secret-number-{number:03d}")

    assert redact.mask_text("secret-number-000") == "secret-number-000"
    assert redact.mask_text("secret-number-001") == redact.MASK


def test_new_tokens_match_the_redaction_pattern() -> None:
    for _ in range(2000):
        token = f"{tokens.new_id(secrets.choice)}.{tokens.new_secret(secrets.choice)}"
        assert redact.mask_text(token) == redact.MASK


async def test_token_secret_is_redacted_until_the_node_joins(world: Ready) -> None:
    async with world.running(*MAKE):
        world.machine()
        await advance(1)
        data = world.driver.given["create_machine"].user_data.decode()
        token = data.rpartition("token: ")[2].strip()
        alone = token.partition(".")[2]
        assert alone not in redact.mask_text(f"bad token {alone}")
        world.node()
        await advance(1)

    assert redact.mask_text(f"bad token {alone}") == f"bad token {alone}"
    assert token not in redact.mask_text(f"bad token {token}")


async def test_token_quoted_by_an_admission_webhook_is_masked() -> None:
    """The webhook quotes the rejected token in its message."""
    seen: list[str] = []

    class Refusing:
        async def create(self, obj: Any, *, namespace: str) -> Any:
            seen.append(obj["stringData"]["token-secret"])
            raise Invalid(status=422, reason="Invalid", message=f"bad: {seen[0]} in {namespace}")

    machine = decoding.machine(Machine(metadata=ObjectMeta(name="m0", uid="u", annotations=ID)))
    with pytest.raises(Invalid) as caught:
        await Tokens(cast("Any", Refusing())).ensure(machine, RULES)

    assert seen[0] not in redact.mask_text(str(caught.value))


@pytest.mark.parametrize("of_secret", [True, False])
async def test_user_data_quoted_in_a_cloud_error_is_masked(world: World, of_secret: bool) -> None:
    data = "#cloud-config\ntoken: <<BOOTSTRAP_TOKEN>>\npassword-of-root is swordfish-no-more\n"
    world.secret(userData=data if of_secret else "")
    world.machine_class(providerSpec={"size": "s"} | ({} if of_secret else {"userData": data}))
    quoted: list[str] = []

    async def quoting(req: MachineRequest) -> Any:
        filled = (req.user_data or req.provider_spec["userData"].encode()).decode()
        quoted.append(filled)
        packed = base64.b64encode(filled.encode()).decode()
        text = f"rejected {filled!r}, {filled}, {packed} and {filled[9:52]}" + "x" * 5000
        raise errors.InvalidArgument(text)

    world.driver.create_machine = quoting  # type: ignore[method-assign]
    world.machine()
    with capture_logs() as logs:
        async with world.running(*MAKE):
            await advance(1)
            everything = f"{world.get()} {world.events} {logs}"

    token = quoted[0].partition("token: ")[2].partition("\n")[0]
    assert "rejected" in world.operation()["description"][:1500] == world.operation()["description"]
    for piece in (token, token[7:], "swordfish", base64.b64encode(token[1:].encode()).decode()[4:]):
        assert piece not in everything

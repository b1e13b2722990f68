"""In-place updates of nodes per row of the conformance table; with real drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.kube.errors import Unreachable
from ccm.model.names import CONDITION_TERMINATING
from ccm.model.times import format_time
from ccm.testing.clock import advance
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.unit.controllers.drains import BUDGETS, PODS, Drains
from tests.unit.controllers.machinedeployments import (
    ALL,
    HOLD,
    MACHINES,
    NODES,
    WEB,
    Rolling,
    template,
)
from tests.unit.controllers.machines import NODES_PATH
from tests.unit.controllers.memory_server import STRATEGIC

CHOSEN = {NAMES.candidate: "true", NAMES.selected: "true"}
WELL = {NAMES.update_result: "successful"}
M0 = f"{MACHINES}/m0"
CANDIDATE = {NAMES.candidate: "true"}


def row(number: int) -> pytest.MarkDecorator:
    return pytest.mark.row(f"machine-update-{number:02}")


class Updates(Drains):
    """One machine with a node, and a Pod on it."""

    def __init__(self) -> None:
        super().__init__()
        self.drains_really = True
        self.ready_class()
        self.lived()
        labels = {names.LABEL_MACHINE_NAME: "m0"}
        self.server.patch(f"{NODES_PATH}/m0", {"metadata": {"labels": labels}})
        self.pod("p")

    def label(self, **labels: str | None) -> None:
        """Label the node as a user."""
        keys = {
            "candidate": NAMES.candidate,
            "selected": NAMES.selected,
            "went": NAMES.update_result,
        }
        found = {keys[name]: value for name, value in labels.items()}
        self.server.patch(f"{NODES_PATH}/m0", {"metadata": {"labels": found}})

    def step(self) -> str:
        """The step that the node's condition tells."""
        return reason(self.node_object())

    def at(self) -> tuple[str, list[str], str]:
        """The step, the Pods on the node, and the phase."""
        return self.step(), self.pods(), self.phase()

    def operation_said(self) -> tuple[str, str, str]:
        """Type, state and description of the last operation."""
        found = self.operation()
        return found["type"], found["state"], found["description"]

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """Run the controllers until the node is ready for its update."""
        async with self.running("machine"):
            self.label(candidate="true", selected="true")
            await advance(15)
            assert (self.phase(), self.step()) == ("InPlaceUpdating", NAMES.update_ready)
            yield


def nobody(_method: str, _path: str) -> None:
    """Answer every request."""


def reason(found: dict[str, Any]) -> str:
    told = {one["type"]: one for one in found["status"].get("conditions") or ()}
    return str(told.get(NAMES.update_condition, {}).get("reason", ""))


@row(1)
@row(2)
@row(3)
@row(5)
@pytest.mark.virtual_time
async def test_selected_node_is_drained_and_marked_ready_for_update(world: Updates) -> None:
    async with world.running("machine"):
        await advance(2)
        assert (world.step(), world.pods()) == ("", ["p"])
        world.label(candidate="true")
        await advance(2)
        assert world.at() == (NAMES.update_waiting, ["p"], "Running")
        world.label(selected="true")
        await advance(1)
        assert (world.step(), world.phase()) == (NAMES.update_selected, "Running")
        assert world.node_object()["spec"]["unschedulable"] is True
        await advance(15)
        wrote = world.server.writes("m0")
        assert world.at() == (NAMES.update_ready, [], "InPlaceUpdating")
        await advance(60)

    # The condition is copied to the machine.
    assert world.server.writes("m0") <= wrote + 1
    assert world.driver.calls.total() == 0
    text = "Machine m0 is undergoing an in-place update"
    assert world.operation_said() == ("InPlaceUpdate", "Processing", text)
    kinds = {one["type"] for one in world.node_object()["status"]["conditions"]}
    assert CONDITION_TERMINATING not in kinds


@row(3)
@pytest.mark.virtual_time
async def test_failed_drain_before_an_update_is_retried(world: Updates) -> None:
    refused = Unreachable("no", kind="timeout")
    async with world.running("machine"):
        await advance(2)
        cordon = ("PATCH", f"{NODES_PATH}/m0")
        world.server.refuse = lambda *call: refused if call == cordon else None
        world.label(candidate="true", selected="true")
        await advance(30)
        kind, state, text = world.operation_said()
        assert (kind, state, world.phase()) == ("DrainNode", "Processing", "Running")
        assert text.startswith("Drain failed due to - ")
        assert text.endswith(". Will retry in next sync. Initiate node drain")
        before = world.server.writes("machines/m0/status")
        await advance(60)
        assert world.server.writes("machines/m0/status") == before
        world.server.answers()
        await advance(20)

    assert (world.step(), world.phase()) == (NAMES.update_ready, "InPlaceUpdating")


@row(4)
@pytest.mark.virtual_time
async def test_deselected_node_is_not_drained_any_further(world: Updates) -> None:
    # The Pod is never healthy, so that the budget does not count as misconfigured.
    world.node("m1", ready="False")
    world.pod("elsewhere", node="m1")
    world.sick("m1", Ready="False")
    world.budget(minAvailable=1)
    async with world.running("machine"):
        world.label(candidate="true", selected="true")
        await advance(30)
        assert (world.step(), world.pods()) == (NAMES.update_selected, ["elsewhere", "p"])
        world.label(selected=None)
        await advance(5)
        world.server.drop(f"{BUDGETS}/web")
        await advance(60)

    assert world.at() == (NAMES.update_waiting, ["elsewhere", "p"], "Running")


@row(3)
@pytest.mark.virtual_time
async def test_stale_cache_alone_evicts_no_pod(
    world: Updates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch delivers nothing: the cached node is selected, the stored one is not."""
    world.label(candidate="true", selected="true")
    told = {"type": NAMES.update_condition, "status": "True", "reason": NAMES.update_selected}
    path = f"{NODES_PATH}/m0"
    world.server.patch(f"{path}/status", {"status": {"conditions": [told]}}, STRATEGIC)
    world.server.newer[path] = before = world.node_object()
    world.server.newer[path] = before | {"metadata": before["metadata"] | {"labels": CANDIDATE}}
    await world.run(60, "machine")

    assert (world.pods(), world.phase()) == (["p"], "Running")


@row(5)
@pytest.mark.virtual_time
async def test_ready_for_update_waits_for_the_machine_phase_write(world: Updates) -> None:
    refused = Unreachable("no", kind="timeout")
    world.server.fails(refused, "PATCH", "machines/m0/status")
    async with world.running("machine"):
        world.label(candidate="true", selected="true")
        await advance(60)
        assert (world.pods(), world.step(), world.phase()) == ([], NAMES.update_selected, "Running")
        world.server.answers()
        await advance(60)

    assert (world.step(), world.phase()) == (NAMES.update_ready, "InPlaceUpdating")


@row(8)
@pytest.mark.virtual_time
async def test_node_health_is_ignored_during_an_in_place_update(world: Updates) -> None:
    async with world.ready():
        world.heartbeat(Ready="Unknown", DiskPressure="True")
        await advance(1100)
        assert world.phase() == "InPlaceUpdating"
        world.heartbeat(Ready="True", DiskPressure="False")
        world.label(went="successful")
        await advance(2)

    assert (world.phase(), world.step()) == ("Running", NAMES.update_succeeded)
    assert world.node_object()["spec"]["unschedulable"] is True
    reasons = world.reasons()
    assert reasons == [NAMES.update_ready, NAMES.update_succeeded]


@row(8)
@pytest.mark.virtual_time
async def test_updated_machine_is_unknown_until_its_node_is_healthy(world: Updates) -> None:
    """The machine is Unknown, with a health timeout, until its node is healthy."""
    async with world.ready():
        world.heartbeat(Ready="False")
        world.label(went="successful")
        await advance(60)
        assert (world.phase(), world.step()) == ("Unknown", NAMES.update_succeeded)
        world.heartbeat(Ready="True")
        await advance(2)

    assert world.phase() == "Running"


@row(7)
@row(9)
@pytest.mark.virtual_time
async def test_failed_update_sets_phase_and_reason_until_it_succeeds(world: Updates) -> None:
    async with world.ready():
        note = {"metadata": {"annotations": {NAMES.update_failed_reason: "no space"}}}
        world.server.patch(f"{NODES_PATH}/m0", note)
        world.label(went="failed")
        await advance(2)
        assert (world.phase(), world.step()) == ("InPlaceUpdateFailed", NAMES.update_failed)
        kind, state, text = world.operation_said()
        assert (kind, state) == ("InPlaceUpdate", "Failed")
        assert text.endswith(": no space")
        told = {one["type"]: one for one in world.node_object()["status"]["conditions"]}
        assert told[NAMES.update_condition]["message"] == "no space"
        await advance(3600)
        # The node is healthy, so that a user can still repair the update.
        assert world.phase() == "InPlaceUpdateFailed"
        world.label(went="successful")
        await advance(2)

    assert (world.phase(), world.step()) == ("Running", NAMES.update_succeeded)


@row(9)
@row(10)
@pytest.mark.parametrize("never", [False, True], ids=["given-up", "never-given-up"])
@pytest.mark.virtual_time
async def test_in_place_update_fails_at_its_timeout(world: Updates, never: bool) -> None:
    """Two machines of one deployment: neither blocks the replacement of the other forever."""
    for name in ("m1", "m2"):
        limits = {"inPlaceUpdateTimeout": "5m", "disableHealthTimeout": never}
        world.lived(name, phase="InPlaceUpdating", group="web", **limits)
        world.node(name, ready="Unknown")
    async with world.running("machine"):
        await advance(295)
        assert {world.phase(name) for name in ("m1", "m2")} == {"InPlaceUpdating"}
        await advance(10)
        assert {world.phase(name) for name in ("m1", "m2")} == {"InPlaceUpdateFailed"}
        assert "in 5m0s" in world.operation("m1")["description"]
        await advance(620)
        first = sorted(world.phase(name) for name in ("m1", "m2"))
        gone = next((name for name in ("m1", "m2") if world.phase(name) == "Failed"), "")
        if gone:
            world.server.unmake(f"{MACHINES}/{gone}")
        await advance(60)

    if never:
        assert first == ["InPlaceUpdateFailed"] * 2
        return
    assert first == ["Failed", "InPlaceUpdateFailed"]
    (other,) = {"m1", "m2"} - {gone}
    assert world.phase(other) == "Failed"


@row(9)
@pytest.mark.virtual_time
async def test_preservation_is_kept_during_an_in_place_update(world: Updates) -> None:
    until = format_time(clock.now() + timedelta(hours=50))
    wish = {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: "now"}}}
    world.server.patch(M0, wish)
    status = {"status": {"currentStatus": {"preserveExpiryTime": until}}}
    world.server.patch(f"{M0}/status", status)
    async with world.ready():
        world.label(went="failed")
        await advance(2)

    assert world.phase() == "InPlaceUpdateFailed"
    assert world.status()["currentStatus"]["preserveExpiryTime"] == until


@row(3)
@pytest.mark.virtual_time
async def test_machine_to_preserve_when_failed_can_be_updated(world: Updates) -> None:
    """The machine is not preserved yet, so that its drain is not stopped."""
    wish = {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: "when-failed"}}}
    world.server.patch(M0, wish)
    async with world.ready():
        pass


@row(11)
@pytest.mark.virtual_time
async def test_update_condition_of_the_node_is_copied_to_the_machine(world: Updates) -> None:
    async with world.ready():
        world.label(went="successful")
        await advance(40)

    told = {one["type"]: one for one in world.status()["conditions"]}
    assert told[NAMES.update_condition]["reason"] == NAMES.update_succeeded


# --- all together -----------------------------------------------------------------------------


class Fleet(Rolling):
    """Machines with Pods, and an agent on each node."""

    def __init__(self) -> None:
        super().__init__()
        self.drains_really = True
        self.update_s = 20.0
        self.seen: list[tuple[str, bool, list[str]]] = []
        """Phase, whether it is cordoned, and Pods, of each node when its update began."""
        self.held: set[str] = set()

    def pods_of(self, name: str) -> list[str]:
        """Names of the Pods on a node."""
        found = self.server.list(PODS)
        return [one["metadata"]["name"] for one in found if one["spec"]["nodeName"] == name]

    @contextlib.asynccontextmanager
    async def agents(self) -> AsyncIterator[None]:
        """Run agents that update nodes which are ready for it."""
        task = spawn(self._agents(), name="agents")
        try:
            yield
            assert not task.done(), task
        finally:
            await cancel_and_join(task)

    async def _agents(self) -> None:
        begun: dict[str, float] = {}
        while True:
            for one in self.nodes():
                name = one["metadata"]["name"]
                if HOLD in one["metadata"].get("annotations", {}):
                    self.held.add(name)
                is_done = NAMES.update_result in one["metadata"].get("labels", {})
                if reason(one) == NAMES.update_ready and name not in begun and not is_done:
                    begun[name] = clock.monotonic()
                    cordoned = bool(one["spec"].get("unschedulable"))
                    self.seen.append((self.phase(name), cordoned, self.pods_of(name)))
                    self.heartbeat(name, Ready="Unknown")
                elif name in begun and clock.monotonic() - begun[name] > self.update_s:
                    del begun[name]
                    self.heartbeat(name, Ready="True")
                    self.server.patch(f"{NODES}/{name}", {"metadata": {"labels": WELL}})
            await asyncio.sleep(1)


@row(12)
@pytest.mark.row("rollout-inplace-05", "rollout-inplace-09", "rollout-autoscaler-06")
@pytest.mark.virtual_time
async def test_deployment_is_updated_in_place_and_then_deleted(world: Fleet) -> None:
    """Runs all controllers; only the agents on the nodes are simulated."""
    world.deployment(replicas=3, strategy=IN_PLACE)
    async with world.at_work(*ALL, "machinesafety"), world.agents():
        await world.settled(60)
        first, vms = world.here(), set(world.driver.vms)
        assert (len(first), world.working()) == (3, 3)
        for name in first:
            grace = {"nodeName": name, "terminationGracePeriodSeconds": 2}
            pod = {"metadata": {"name": f"p-{name}"}, "spec": {**grace, "containers": []}}
            world.server.put(PODS, pod)
        world.watch_bounds()
        world.edit(template=template("large"))
        await world.settled(300)
        assert (world.here(), set(world.driver.vms)) == (first, vms)
        assert (world.peak, world.least) == (3, 2)
        assert world.seen == [("InPlaceUpdating", True, [])] * 3
        assert (world.kinds(), world.sizes(), world.working()) == ({"large": 3}, {"large": 3}, 3)
        assert world.said() == ("True", "NewMachineSetAvailable")
        for one in world.nodes():
            assert not CHOSEN.keys() & one["metadata"]["labels"].keys()
            assert (reason(one), one["spec"].get("unschedulable")) == (NAMES.update_succeeded, None)
            assert NAMES.critical_taint in str(one["spec"]["taints"])
            assert HOLD not in one["metadata"].get("annotations", {})
        assert world.held == set(first)
        labels = [one["metadata"]["labels"] for one in world.machines()]
        assert len({one["machine-template-hash"] for one in labels}) == 1
        assert not any(NAMES.update_result in one for one in labels)
        # A second update: labels left by the first one do not count.
        world.edit(template=template("small"))
        await world.settled(300)
        assert (len(world.seen), world.kinds(), world.least) == (6, {"small": 3}, 2)
        world.edit(template=template("large"))
        await world.settled(300)
        world.server.drop(WEB)
        await world.settled(120)

    assert (world.machines(), world.sets(), world.driver.vms) == ([], [], {})

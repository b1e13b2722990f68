"""The daemon crashes before or after any of its calls, and a successor resumes.

`tests/conformance/machine/test_crashes.py` has creation, rolls, scaling and deletion without Pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import (
    DeleteMachineResponse,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
)
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines.drain import DrainState
from ccm.testing.clock import advance, settle
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.conformance.machine.test_updating import CHOSEN, Fleet, Updates, reason
from tests.unit.controllers.drains import PODS, Drains
from tests.unit.controllers.machinedeployments import template
from tests.unit.controllers.machines import BASE, NODES_PATH, TOKENS, FakeDriver, World

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 4000
NEVER = 10**9


class Points:
    """Counter of possible crash points; blocks the daemon forever at one of them."""

    def __init__(self, fatal: int = NEVER) -> None:
        self.count = 0
        self.reached = asyncio.Event()
        self._fatal = fatal

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.count += 1
        if self.count >= self._fatal:
            self.reached.set()
            await asyncio.get_running_loop().create_future()

    async def cut(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the daemon crashes."""
        telling = asyncio.ensure_future(story)
        ended = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()
        for task in (telling, ended):
            task.cancel()
        await asyncio.wait({telling, ended})


async def sweep(
    ended_at: Callable[[int], Awaitable[bool]], *, step: int, least: int, first: int = 1
) -> None:
    """Crash the daemon at each point in turn, until no point is left."""
    for tried, fatal in enumerate(range(first, MOST_POINTS, step)):
        if not await ended_at(fatal):
            print(f"{tried} points")
            assert tried >= least
            return
    pytest.fail("there is no end to the points")


def steps(some: int) -> pytest.MarkDecorator:
    every = pytest.param(1, marks=pytest.mark.soak)
    return pytest.mark.parametrize("step", [every, some], ids=["all", "some"])


class Fragile(FakeDriver):
    """Driver whose calls are crash points; creates a VM on every request."""

    finds = False

    def __init__(self) -> None:
        super().__init__()
        self.point = Points()

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        await self.point()
        found = await super().create_machine(req)
        await self.point()
        return found

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        await self.point()
        return await super().initialize_machine(req)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        await self.point()
        found = await super().delete_machine(req)
        await self.point()
        return found

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        await self.point()
        return await super().list_machines(req)


# --- machines that fail or are preserved ----------------------------------------------------------


def sick_world() -> World:
    """Return a world with three unhealthy machines of a deployment, a preserved failed one,
    and one whose node asks for preservation when it fails.
    """
    # No set replaces a failed machine here: its replacement never ends.
    world = World(creation_timeout_s=86_400.0)
    for number in range(8):
        world.joined(f"w{number}", group="w")
    for number in range(3):
        world.joined(f"m{number}", phase="Unknown", group="d", ready="Unknown")
    wish = {"annotations": {names.ANNOTATION_PRESERVE: "now"}}
    world.joined("p0", phase="Failed", metadata=wish, machinePreserveTimeout="30m", ready="Unknown")
    world.lived("p1", phase="Unknown", group="p")
    when = {"annotations": {names.ANNOTATION_PRESERVE: "when-failed"}}
    world.node("p1", ready="Unknown", metadata=when)
    return world


async def gave_up_until(fatal: int) -> bool:
    points, world = Points(fatal), sick_world()
    ever_kept = True

    async def looks() -> None:
        nonlocal ever_kept
        current = world.status("p1")["currentStatus"]
        ever_kept &= current["phase"] != "Failed" or "preserveExpiryTime" in current
        await points()

    world.server.point = looks
    async with world.running("machine"):
        await points.cut(asyncio.sleep(2400))
    world.server.point = Points()
    await world.run(3600, "machine")
    phases = [world.phase(f"m{number}") for number in range(3)]
    assert sorted(phases) == ["Failed", "Unknown", "Unknown"]
    assert [world.phase(name) for name in ("p0", "p1")] == ["Failed", "Failed"]
    assert ever_kept
    node = world.node_object("p0")
    left = str([node["spec"].get("taints"), node["metadata"].get("annotations")])
    assert [word for word in ("preserve", "scale-down") if word in left] == []
    assert "preserveExpiryTime" not in world.status("p0")["currentStatus"]
    assert names.ANNOTATION_PRESERVE not in world.get("p0")["metadata"].get("annotations", {})
    return points.reached.is_set()


@pytest.mark.row("machine-meltdown-07")
@steps(9)
async def test_crash_never_fails_two_machines_and_preserves_each_once(step: int) -> None:
    await sweep(gave_up_until, step=step, least=40 // step)


# --- machines that go -----------------------------------------------------------------------------

STAY = ("stays-0", "stays-1")


class Gradual(Fragile):
    """Driver that deletes a VM asynchronously."""

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


def peopled(driver: Gradual, goes: list[str], *, force: bool) -> Drains:
    """Return a world with running machines, one Pod each; `goes` are deleted later."""
    world = Drains()
    world.driver = driver
    world.drains_really = True
    world.ready_class()
    driver.add(Identity(cluster="theirs", pool="small", name="foreign", uid="f"))
    for name in (*goes, *STAY):
        labels = {"node": name} | ({"force-deletion": "true"} if force and name in goes else {})
        metadata = {"labels": labels, "finalizers": [names.FINALIZER]}
        status = {"currentStatus": {"phase": "Running"}}
        world.machine(name, metadata=metadata, status=status, providerID=f"fake:///{name}")
        driver.add(world.identity(name))
        world.node(name, metadata={"finalizers": [names.FINALIZER_NODE]})
        world.pod(f"on-{name}", node=name, grace_s=1)
    return world


async def deleted(world: Drains, goes: list[str]) -> None:
    for name in goes:
        if world.get(name) and "deletionTimestamp" not in world.get(name)["metadata"]:
            world.server.drop(f"{BASE}/machines/{name}")
    await advance(60)


@pytest.mark.parametrize("force", [False, True], ids=["with-regard", "by-force"])
@pytest.mark.parametrize(
    ("machines", "step"), [pytest.param(5, 1, marks=pytest.mark.soak), (1, 6)], ids=["all", "some"]
)
async def test_machine_deletion_completes_after_a_crash_at_any_point(
    force: bool, machines: int, step: int
) -> None:
    """Only VMs of the deleted machines are deleted; no node, token or Pod is left behind."""
    goes = [f"goes-{number}" for number in range(machines)]

    async def ended_at(fatal: int) -> bool:
        points, driver = Points(fatal), Gradual()
        world = peopled(driver, goes, force=force)
        driver.point = world.server.point = points
        async with world.running():
            await points.cut(deleted(world, goes))
        driver.point = world.server.point = Points()
        async with world.running():
            await deleted(world, goes)
            await advance(120)
            await settle()
        assert {one.identity.name for one in driver.vms.values()} == {"foreign", *STAY}
        assert sorted(driver.deleted) == sorted(f"fake:///{name}" for name in goes)
        left = {one["metadata"]["name"] for one in world.server.list(f"{BASE}/machines")}
        nodes = {one["metadata"]["name"]: one for one in world.server.list(NODES_PATH)}
        assert (left, set(nodes)) == (set(STAY), {"m0", *STAY})
        assert [nodes[name]["spec"].get("unschedulable") for name in STAY] == [None, None]
        assert world.pods() == [f"on-{name}" for name in STAY]
        assert world.server.list(TOKENS) == []
        return points.reached.is_set()

    await sweep(ended_at, step=step, least=(150 if machines == 5 else 30) // step)


# --- drains ---------------------------------------------------------------------------------------

NODES = ("m0", "m1", "m2")
LEAST = 5
"""`minAvailable` of the budget."""


class Emptied(Drains):
    """Drains of three nodes under a budget; evicted Pods are recreated on another node."""

    def __init__(self, fatal: int) -> None:
        super().__init__(reattach_timeout_s=5.0)
        self.fatal = NEVER
        self.wanted = fatal
        self.points = 0
        self.least = NEVER
        self.moves = 0.5
        self.server.point = self.point
        for name in ("m1", "m2", "other"):
            self.node(name)
        self.volume("a")
        self.pod("m0-v", claims=("a",), owner="StatefulSet", grace_s=2)
        for name in NODES:
            for number in range(2):
                self.pod(f"{name}-{number}", node=name, grace_s=2)
        self.budget(minAvailable=LEAST)

    async def point(self) -> None:
        """Count a crash point before each request and each response of a drain."""
        await asyncio.sleep(0)
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("drain-"):
            self.points += 1
            if self.points >= self.fatal:
                await asyncio.get_running_loop().create_future()

    def ready(self) -> int:
        """Return the number of ready Pods that are not being deleted."""
        return sum(
            bool(one["status"].get("conditions")) and "deletionTimestamp" not in one["metadata"]
            for one in self.server.list(PODS)
        )

    async def goes_on(self, seconds: float, fatal: int) -> None:
        """Drain all nodes for this time, or until the crash point."""
        await advance(1)
        self.fatal = fatal
        for name in NODES:
            self.start(name)
        for _ in range(int(seconds * 5)):
            await advance(0.2)
            self.least = min(self.least, self.ready())
            for one in self.server.list(PODS):
                again = f"{one['metadata']['name']}-again"
                if "deletionTimestamp" in one["metadata"] and again not in self.pods():
                    self.pod(again, node="other", grace_s=2)
            if self.points >= self.fatal:
                return


async def emptied_until(fatal: int) -> bool:
    world = Emptied(fatal)
    pods = world.pods()
    async with world.draining():
        await world.goes_on(40, fatal)
    if world.points < fatal:
        return False
    world.fatal = NEVER
    async with world.draining():
        await world.goes_on(60, NEVER)
        assert {world.state(name) for name in NODES} == {DrainState.DONE}
    assert world.pods() == [f"{name}-again" for name in pods]
    assert world.server.accepted == dict.fromkeys(pods, 1)
    assert world.least >= LEAST
    return True


@pytest.mark.row("machine-drain-26")
@steps(7)
async def test_drain_across_a_crash_evicts_each_pod_exactly_once(step: int) -> None:
    await sweep(emptied_until, step=step, least=20 // step)


# --- updates in place -----------------------------------------------------------------------------


async def updated(world: Updates) -> None:
    """Report an update as successful once the selected node is ready for it."""
    went = False
    for _ in range(300):
        await advance(0.2)
        if went or world.step() != NAMES.update_ready:
            continue
        cordoned = world.node_object()["spec"].get("unschedulable")
        assert (world.phase(), world.pods(), cordoned) == ("InPlaceUpdating", [], True)
        world.label(went="successful")
        went = True


async def updated_until(fatal: int) -> bool:
    world, points = Updates(), Points(fatal)
    world.label(candidate="true", selected="true")
    world.server.point = points
    async with world.running("machine"):
        await points.cut(updated(world))
    world.server.point = Points()
    async with world.running("machine"):
        await updated(world)
    assert (world.phase(), world.step(), world.pods()) == ("Running", NAMES.update_succeeded, [])
    assert world.driver.calls.total() == 0
    return points.reached.is_set()


@steps(5)
async def test_in_place_update_of_one_machine_completes_after_a_crash(step: int) -> None:
    """A node becomes ready for update only when drained and in phase InPlaceUpdating."""
    await sweep(updated_until, step=step, least=30 // step)


AWAY_S = 300.0
"""Longer than all updates."""


async def fleet_until(fatal: int, *, replicas: int) -> bool:
    """Assert that no machine is replaced, the bounds hold, and updated nodes have no Pods."""
    world, driver, points = Fleet(), Fragile(), Points(fatal)
    world.driver = driver
    world.boot_s, world.update_s = 1.0, 5.0
    world.deployment(replicas=replicas, strategy=IN_PLACE)
    async with world.at_work():
        await advance(30)
        assert world.working() == replicas
    for name in world.here():
        spec = {"nodeName": name, "terminationGracePeriodSeconds": 1, "containers": []}
        world.server.put(PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec})
    first, vms = world.here(), set(driver.vms)
    driver.point = world.server.point = points
    world.watch_bounds()
    async with world.agents():
        world.edit(template=template("large"))
        async with world.at_work():
            await points.cut(advance(AWAY_S))
        driver.point = world.server.point = Points()
        async with world.at_work():
            await advance(AWAY_S)
    assert (world.here(), set(driver.vms)) == (first, vms)
    assert (world.kinds(), world.working()) == ({"large": replicas}, replicas)
    assert world.sizes() == {"large": replicas}
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert (world.peak, world.least) == (replicas, replicas - 1)
    assert world.seen == [("InPlaceUpdating", True, [])] * replicas
    for one in world.nodes():
        assert not CHOSEN.keys() & one["metadata"]["labels"].keys()
        assert (reason(one), one["spec"].get("unschedulable")) == (NAMES.update_succeeded, None)
    return points.reached.is_set()


@pytest.mark.parametrize(
    ("replicas", "first", "step", "least"),
    [
        (2, 1, 61, 2),
        # In four parts: together more than a hundred crash points.
        *(pytest.param(3, first, 4, 25, marks=pytest.mark.soak) for first in range(1, 5)),
    ],
)
async def test_in_place_rollout_completes_after_a_crash(
    replicas: int, first: int, step: int, least: int
) -> None:
    async def ended_at(fatal: int) -> bool:
        return await fleet_until(fatal, replicas=replicas)

    await sweep(ended_at, first=first, step=step, least=least)

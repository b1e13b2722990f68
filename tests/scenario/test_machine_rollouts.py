"""A MachineDeployment rolls, scales, is deleted, or is updated in place; a watch checks its bounds.

The whole daemon runs with the shipped rights; `kube-ccm rollout` controls the rollout."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from ccm.cli import rollout
from ccm.doctor import ExaminationError
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from tests.scenario.harness import NODES, Environment, conditions, taints, wait_for
from tests.scenario.machines import ALL_CONTROLLERS, MACHINES, PODS, Fleet, living_pods, vms

LOOK_S = 0.05
STEPS = {NAMES.candidate, NAMES.selected, NAMES.update_result}
QUICKLY = pytest.mark.parametrize("boot_s", [0.1])


async def until_complete(fleet: Fleet) -> None:
    """Wait until the status of the deployment is complete."""

    async def complete() -> bool:
        conditions = (await fleet.said()).get("conditions") or ()
        return "NewMachineSetAvailable" in {one["reason"] for one in conditions}

    await wait_for(complete, "the rollout is complete")


async def nothing_left(env: Environment, fleet: Fleet) -> None:
    """Wait until the deployment and its machines are gone."""

    async def gone() -> bool:
        return not await fleet.said() and not vms(env)

    await fleet.until(lambda one: not one.kinds())
    await wait_for(gone, "all is gone")


@pytest.mark.parametrize(
    ("count", "few", "surge", "unavailable", "boot_s", "roll_s"),
    [
        pytest.param(4, 2, 1, 1, 0.1, 60, id="smoke"),
        pytest.param(50, 10, 5, 2, 2.0, 120, id="fifty", marks=pytest.mark.soak),
        pytest.param(200, 10, 5, 2, 2.0, 400, id="two-hundred", marks=pytest.mark.soak),
    ],
)
async def test_a_deployment_scales_rolls_and_is_deleted_within_its_bounds(
    env: Environment,
    fleet: Fleet,
    count: int,
    few: int,
    surge: int,
    unavailable: int,
    roll_s: float,
) -> None:
    await fleet.deploy(count, kind="one", surge=surge, unavailable=unavailable)
    create_s = await fleet.until(lambda one: one.all_run("one", count))
    await until_complete(fleet)
    fleet.watch_bounds()
    await fleet.roll("two")
    took_s = await fleet.until(lambda one: one.all_run("two", count), within_s=roll_s)
    most, least = fleet.most, fleet.least
    await fleet.scale(few)
    scale_s = await fleet.until(lambda one: one.all_run("two", few))
    await fleet.delete()
    await nothing_left(env, fleet)

    print(f"create {create_s:.1f} s, roll {took_s:.1f} s, scale {scale_s:.1f}")
    assert most <= count + surge
    assert least >= count - unavailable
    assert env.forbidden() == []


@QUICKLY
async def test_rollout_status_pause_resume_undo_restart_and_history(
    env: Environment, fleet: Fleet
) -> None:
    name = "machinedeployment/workers"

    async def asked(verb: str, *words: str) -> tuple[int, str, str]:
        """Status, output and complaint of `kube-ccm rollout`."""
        kubeconfig, out = next(iter(env.folder.glob("*.kubeconfig"))), io.StringIO()
        wanted = rollout.read([verb, *(words or [name]), f"--kubeconfig={kubeconfig}"])
        try:
            status = await rollout.show_or_change(wanted, out, environ={})
        except ExaminationError as error:
            return 1, out.getvalue().strip(), str(error)
        return status, out.getvalue().strip(), ""

    await fleet.deploy(2, kind="one", surge=1, unavailable=0)
    status, said, _ = await asked("status", name, "--timeout=1m")
    assert (status, said.splitlines()[-1]) == (0, '"workers" is rolled out')

    status, said, complaint = await asked("undo")
    assert (status, said, "Known revisions: 1." in complaint) == (1, "", True)
    assert (await asked("pause"))[1].endswith("/workers paused")
    assert "already paused" in (await asked("pause"))[2]
    await fleet.roll("two")
    assert "resume it first" in (await asked("undo"))[2]
    status, _, complaint = await asked("status", name, "--timeout=500ms")
    assert (status, "not complete after 0.5s" in complaint) == (1, True)
    assert "the rollout is paused" in complaint
    assert (await asked("resume"))[1].endswith("/workers resumed")
    assert (await asked("status", "mcd", "workers", "--timeout=1m"))[0] == 0
    assert fleet.all_run("two", 2)

    status, said, _ = await asked("undo", name, "--to-revision=1")
    assert (status, said.endswith("/workers rolled back to revision 1")) == (0, True)
    await fleet.until(lambda one: one.all_run("one", 2))

    before = {one["metadata"]["uid"] for one in await env.cluster.items(MACHINES)}
    status, said, _ = await asked("restart")
    assert (status, said.endswith("/workers restarted")) == (0, True)
    assert (await asked("status", name, "--timeout=1m"))[0] == 0
    assert before.isdisjoint({one["metadata"]["uid"] for one in await env.cluster.items(MACHINES)})
    _, said, _ = await asked("status", name, "-o", "json")
    assert json.loads(said) == {"text": '"workers" is rolled out', "done": True, "failed": False}
    _, said, _ = await asked("history", name, "-o", "yaml")
    first, *_ = yaml.safe_load(said)["revisions"]
    assert [*first] == ["revision", "machineSet", "template", "changeCause"]
    _, said, _ = await asked("history")
    revisions = [line.split() for line in said.splitlines()[1:]]
    assert [(number, kind) for number, _set, kind, _cause in revisions] == [
        ("2", "two"),
        ("3", "one"),
        ("4", "one"),
    ]
    _, said, _ = await asked("history", name, "--revision=4")
    assert "kubectl.kubernetes.io/restartedAt: " in said
    await fleet.delete()
    await nothing_left(env, fleet)
    status, _, complaint = await asked("status")
    assert (status, "not found" in complaint) == (1, True)


# --- in place -------------------------------------------------------------------------------------


class Agents:
    """One on each node: updates it when it is told that the node is ready.

    Attributes:
        begun: phase of the machine, whether its node was cordoned, and its Pods, when an update
            began.
    """

    def __init__(self, env: Environment) -> None:
        self._cluster = env.cluster
        self.begun: list[tuple[str, bool, list[str]]] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for node in await self._cluster.items(NODES):
                if step(node) == NAMES.update_ready and NAMES.update_result not in labels(node):
                    await self._update(node)
            await asyncio.sleep(LOOK_S)

    async def _update(self, node: dict[str, Any]) -> None:
        name = node["metadata"]["name"]
        machine = await self._cluster.get(f"{MACHINES}/{name}") or {}
        phase = machine["status"]["currentStatus"]["phase"]
        found = await self._cluster.items(PODS)
        pods = [one["metadata"]["name"] for one in found if one["spec"].get("nodeName") == name]
        self.begun.append((phase, bool(node["spec"].get("unschedulable")), pods))
        # The machine restarts.
        await self._cluster.set_ready(name, "False")
        await self._cluster.set_ready(name, "True")
        body = {"metadata": {"labels": {NAMES.update_result: NAMES.update_successful}}}
        await self._cluster.patch(f"{NODES}/{name}", body)


def step(node: dict[str, Any]) -> str:
    """Return the update step of the node's condition."""
    return str(conditions(node).get(NAMES.update_condition, {}).get("reason", ""))


def labels(node: dict[str, Any]) -> set[str]:
    """Keys of its labels."""
    return set(node["metadata"].get("labels", ()))


@pytest_asyncio.fixture
async def agents(env: Environment, fleet: Fleet) -> AsyncIterator[Agents]:
    """At work; and Pods begin and end."""
    found = Agents(env)
    async with living_pods(env, found.run()):
        yield found


async def deployed(env: Environment, fleet: Fleet, count: int, **update: Any) -> dict[str, str]:
    """A deployment that is updated in place, a Pod on each node; UIDs of its machines by name."""
    await fleet.deploy(count, kind="one", surge=0, unavailable=1)
    bounds = {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto", **update}
    await fleet.edit(
        strategy={"type": "InPlaceUpdate", "rollingUpdate": None, "inPlaceUpdate": bounds}
    )
    await fleet.until(lambda one: one.all_run("one", count))
    await until_complete(fleet)
    machines = await uids(env)
    for name in machines:
        containers = [{"name": "c", "image": "i"}]
        spec = {"nodeName": name, "terminationGracePeriodSeconds": 0, "containers": containers}
        await env.cluster.create(PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec})
    return machines


async def over(env: Environment, fleet: Fleet, kind: str, count: int) -> None:
    """All machines are of that class, and their nodes in use again."""

    async def settled() -> bool:
        nodes = await env.cluster.items(NODES)
        return fleet.all_run(kind, count) and not any(STEPS & labels(one) for one in nodes)

    await wait_for(settled, f"all are {kind}")
    await until_complete(fleet)


async def uids(env: Environment) -> dict[str, str]:
    """Of all machines, by name."""
    machines = await env.cluster.items(MACHINES)
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in machines}


async def begun(agents: Agents, count: int = 1) -> None:
    """As many updates have begun."""

    async def at_work() -> bool:
        return len(agents.begun) >= count

    await wait_for(at_work, "updates begin")


@pytest.mark.both_servers
@pytest.mark.row("rollout-inplace-05", "rollout-inplace-09")
@QUICKLY
@pytest.mark.parametrize(
    ("count", "missing"),
    [pytest.param(2, 1, id="two"), pytest.param(20, 4, id="twenty", marks=pytest.mark.soak)],
)
async def test_a_deployment_is_updated_in_place_without_replacing_machines(
    env: Environment, fleet: Fleet, agents: Agents, count: int, missing: int
) -> None:
    first, before = await deployed(env, fleet, count, maxUnavailable=missing), vms(env)
    fleet.watch_bounds()
    await fleet.roll("two")
    await over(env, fleet, "two", count)

    assert (await uids(env), vms(env)) == (first, before)
    assert (fleet.most, fleet.least) == (count, count - missing)
    assert agents.begun == [("InPlaceUpdating", True, [])] * count
    for node in await env.cluster.items(NODES):
        assert (step(node), node["spec"].get("unschedulable")) == (NAMES.update_succeeded, None)
        assert names.TAINT_CRITICAL in taints(node)
        assert names.TAINT_OLD_SET not in taints(node)
    assert env.forbidden() == []


@pytest.mark.soak
@QUICKLY
async def test_an_in_place_update_survives_repeated_crashes_of_the_daemon(
    env: Environment, fleet: Fleet, agents: Agents
) -> None:
    # The next daemon need not wait for the Lease of a dead one.
    flags = {"controllers": ",".join(ALL_CONTROLLERS), "kube-api-qps": "-1"}
    hasty = {**flags, "leader-elect": "false"}
    first = await deployed(env, fleet, 4)
    await env.daemons[-1].stop()
    await env.start(flags=hasty)
    fleet.watch_bounds()
    await fleet.roll("two")
    for number in range(6):
        await asyncio.sleep(0.3 + 0.15 * number)
        await env.daemons[-1].kill()
        await env.start(flags=hasty)
    await over(env, fleet, "two", 4)
    assert await uids(env) == first
    assert (fleet.most, fleet.least) == (4, 3)
    assert agents.begun == [("InPlaceUpdating", True, [])] * 4

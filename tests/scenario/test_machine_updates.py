"""A MachineDeployment is updated in place: the whole daemon, with the rights that are shipped for
it, empties nodes, and an agent on each of them updates it. No machine goes; bounds are seen from a
watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.gardener import names
from ccm.gardener.codec import NAMES
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.informer import Informers
from ccm.kube.transport import Transport
from ccm.sandbox import podlife
from tests.scenario.fleet import MACHINES, Fleet
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.test_machine_rolls import FLAGS, fleet, until_complete

__all__ = ["fleet"]  # a fixture

PODS = "/api/v1/namespaces/default/pods"
LOOK_S = 0.05
HASTY = {"leader-elect": "false"}  # the next daemon need not wait for the Lease of a dead one
STEPS = {NAMES.candidate, NAMES.selected, NAMES.update_result}


class Agents:
    """One on each node: updates it when it is told that the node is ready.

    Attributes:
        begun: phase of the machine, whether its node was cordoned, and its Pods, when an update
            began.
        fails: names of nodes whose update fails, until a person mends it.
    """

    def __init__(self, env: Environment) -> None:
        self._cluster = env.cluster
        self.begun: list[tuple[str, bool, list[str]]] = []
        self.fails: set[str] = set()

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
        self.begun.append((phase, bool(node["spec"].get("unschedulable")), await self._pods(name)))
        # The machine restarts.
        await self._cluster.set_ready(name, "False")
        await self._cluster.set_ready(name, "True")
        failed = name in self.fails
        told = {
            NAMES.update_result: NAMES.update_unsuccessful if failed else NAMES.update_successful
        }
        notes = {NAMES.update_failed_reason: "no space left"} if failed else {}
        body = {"metadata": {"labels": told, "annotations": notes}}
        await self._cluster.patch(f"{NODES}/{name}", body)

    async def _pods(self, node: str) -> list[str]:
        pods = await self._cluster.items(PODS)
        return [one["metadata"]["name"] for one in pods if one["spec"].get("nodeName") == node]


def step(node: dict[str, Any]) -> str:
    """The step that the node's condition tells."""
    told = {one["type"]: one for one in node["status"].get("conditions") or ()}
    return str(told.get(NAMES.update_condition, {}).get("reason", ""))


def labels(node: dict[str, Any]) -> set[str]:
    """Keys of its labels."""
    return set(node["metadata"].get("labels", ()))


@pytest_asyncio.fixture
async def agents(env: Environment, fleet: Fleet) -> AsyncIterator[Agents]:
    """At work; and Pods begin and end."""
    found = Agents(env)
    async with contextlib.AsyncExitStack() as stack:
        config = load(kubeconfig=str(env.server.kubeconfig_path))
        client = Client(await stack.enter_async_context(Transport(config)))
        informers = Informers(client)
        runs = [informers.run(), podlife.PodLife(informers, client).run(), found.run()]

        async def work() -> None:
            async with Group() as group:
                for number, each in enumerate(runs):
                    group.start(each, name=f"cluster-{number}")

        task = spawn(work(), name="cluster")
        try:
            yield found
            assert not task.done(), task
        finally:
            await cancel_and_join(task)
    for one in await env.cluster.items(PODS):
        await env.cluster.delete(f"{PODS}/{one['metadata']['name']}?gracePeriodSeconds=0")


async def deployed(env: Environment, fleet: Fleet, count: int, **update: Any) -> dict[str, str]:
    """A deployment that is updated in place, a Pod on each node; UIDs of its machines by name."""
    await fleet.deploy(count, kind="one", surge=0, unavailable=1)
    bounds = {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto", **update}
    await fleet.edit(
        strategy={"type": "InPlaceUpdate", "rollingUpdate": None, "inPlaceUpdate": bounds}
    )
    await fleet.until(lambda one: one.all_run("one", count))
    await until_complete(fleet)
    machines = await env.cluster.items(MACHINES)
    for one in machines:
        name = one["metadata"]["name"]
        spec = {
            "nodeName": name,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}],
        }
        await env.cluster.create(PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec})
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in machines}


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


@pytest.mark.both_servers
@pytest.mark.row("rollout-inplace-05", "rollout-inplace-09")
@pytest.mark.parametrize("boot_s", [0.1])
@pytest.mark.parametrize(
    ("count", "missing"),
    [pytest.param(2, 1, id="two"), pytest.param(20, 4, id="twenty", marks=pytest.mark.soak)],
)
async def test_a_deployment_is_updated_in_place(
    env: Environment, fleet: Fleet, agents: Agents, count: int, missing: int
) -> None:
    first = await deployed(env, fleet, count, maxUnavailable=missing)
    vms = {one.name: one.id for one in env.cloud.world.snapshot()}
    fleet.watch_bounds()
    began = time.monotonic()
    await fleet.roll("two")
    await over(env, fleet, "two", count)

    print(f"{count} machines updated in place in {time.monotonic() - began:.1f} s")
    assert await uids(env) == first
    assert {one.name: one.id for one in env.cloud.world.snapshot()} == vms
    assert (fleet.most, fleet.least) == (count, count - missing)
    assert agents.begun == [("InPlaceUpdating", True, [])] * count
    for node in await env.cluster.items(NODES):
        taints = {one["key"] for one in node["spec"].get("taints") or ()}
        assert (step(node), node["spec"].get("unschedulable")) == (NAMES.update_succeeded, None)
        assert names.TAINT_CRITICAL in taints
        assert names.TAINT_OLD_SET not in taints
    assert env.forbidden() == []


@pytest.mark.soak
@pytest.mark.parametrize("boot_s", [0.1])
class TestInTheMiddle:
    """Something happens while machines are updated."""

    async def begun(self, fleet: Fleet, agents: Agents, count: int = 1) -> None:
        """As many updates have begun."""
        await fleet.roll("two")

        async def at_work() -> bool:
            return len(agents.begun) >= count

        await wait_for(at_work, "updates begin")

    async def test_replicas_change(self, env: Environment, fleet: Fleet, agents: Agents) -> None:
        first = await deployed(env, fleet, 4)
        await self.begun(fleet, agents)
        await fleet.edit(replicas=6)
        await over(env, fleet, "two", 6)
        more = await uids(env)
        assert first.items() <= more.items()

        agents.begun.clear()
        await fleet.roll("one")

        async def again() -> bool:
            return len(agents.begun) >= 2

        await wait_for(again, "updates begin")
        await fleet.edit(replicas=3)
        await over(env, fleet, "one", 3)
        assert (await uids(env)).items() <= more.items()

    async def test_another_template(self, env: Environment, fleet: Fleet, agents: Agents) -> None:
        first = await deployed(env, fleet, 4)
        await self.begun(fleet, agents, 2)
        await fleet.roll("one")
        await over(env, fleet, "one", 4)
        assert await uids(env) == first

    async def test_a_pause(self, env: Environment, fleet: Fleet, agents: Agents) -> None:
        first = await deployed(env, fleet, 4)
        await self.begun(fleet, agents)
        await fleet.edit(paused=True)
        await asyncio.sleep(3)
        seen = len(agents.begun)
        await asyncio.sleep(3)
        assert len(agents.begun) == seen < 4
        await fleet.edit(paused=None)
        await over(env, fleet, "two", 4)
        assert await uids(env) == first

    async def test_the_end_of_the_daemon(
        self, env: Environment, fleet: Fleet, agents: Agents
    ) -> None:
        first = await deployed(env, fleet, 4)
        await env.daemons[-1].stop()
        await env.start(flags=FLAGS | HASTY)
        fleet.watch_bounds()
        await fleet.roll("two")
        for number in range(6):
            await asyncio.sleep(0.3 + 0.15 * number)
            await env.daemons[-1].kill()
            await env.start(flags=FLAGS | HASTY)
        await over(env, fleet, "two", 4)
        assert await uids(env) == first
        assert (fleet.most, fleet.least) == (4, 3)
        assert agents.begun == [("InPlaceUpdating", True, [])] * 4

    async def test_an_update_that_fails_is_mended(
        self, env: Environment, fleet: Fleet, agents: Agents
    ) -> None:
        first = await deployed(env, fleet, 3)
        agents.fails.add(min(first))
        await fleet.roll("two")

        async def failed() -> bool:
            return fleet.kinds().get("one", {}).get("InPlaceUpdateFailed", 0) == 1

        await wait_for(failed, "one update fails")
        fleet.watch_bounds()
        agents.fails.clear()
        body = {"metadata": {"labels": {NAMES.update_result: NAMES.update_successful}}}
        await env.cluster.patch(f"{NODES}/{min(first)}", body)
        await over(env, fleet, "two", 3)
        assert await uids(env) == first

    async def test_the_operator_chooses(
        self, env: Environment, fleet: Fleet, agents: Agents
    ) -> None:
        first = await deployed(env, fleet, 3, orchestrationType="Manual")
        await fleet.roll("two")
        for number, name in enumerate(sorted(first)):

            async def waits(name: str = name) -> bool:
                return step(await env.cluster.node(name) or {"status": {}}) == NAMES.update_waiting

            await wait_for(waits, "it waits")
            assert len(agents.begun) == number
            body = {"metadata": {"labels": {NAMES.selected: "true"}}}
            await env.cluster.patch(f"{NODES}/{name}", body)

            async def begun(number: int = number) -> bool:
                return len(agents.begun) == number + 1

            await wait_for(begun, "it is updated")
        await over(env, fleet, "two", 3)
        assert await uids(env) == first

    async def test_a_surge(self, env: Environment, fleet: Fleet, agents: Agents) -> None:
        first = await deployed(env, fleet, 4, maxSurge=2, maxUnavailable=0)
        fleet.watch_bounds()
        await fleet.roll("two")
        await over(env, fleet, "two", 4)
        assert (fleet.most, fleet.least) == (6, 4)
        assert len((await uids(env)).items() & first.items()) >= 2

    async def test_the_deployment_goes(
        self, env: Environment, fleet: Fleet, agents: Agents
    ) -> None:
        await deployed(env, fleet, 3)
        await self.begun(fleet, agents, 2)
        await fleet.delete()
        await fleet.until(lambda one: one.all_run("two", 0))

        async def nothing() -> bool:
            return not env.cloud.world.snapshot() and not await fleet.said()

        await wait_for(nothing, "all is gone")

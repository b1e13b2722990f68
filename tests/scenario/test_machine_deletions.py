"""Machines go before both API servers: their Pods leave as budgets allow, which are counted by the
real controller where there is one; then VM and node, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.informer import Informers
from ccm.kube.transport import Transport
from ccm.sandbox import podlife, realserver
from tests import servers
from tests.envtest import assets, controllers
from tests.faults.exchange import Match
from tests.scenario.harness import NODES, Environment, wait_for
from tests.scenario.test_drain import BUDGETS, GRACE_S, PODS, Cluster
from tests.scenario.test_machines import FLAGS, MACHINES, all_run, machines
from tests.waiting import DEADLINE_S

__all__ = ["machines"]  # a fixture

EACH = 2
"""Pods of each machine that goes."""

AWAY = 10
"""Pods that the budget lets be away at once."""


@pytest_asyncio.fixture
async def pods(machines: Environment, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Pods start, end and are replaced; budgets are counted."""
    server = machines.server
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(servers.connect(server))
        config = load(kubeconfig=str(server.kubeconfig_path))
        client = Client(await stack.enter_async_context(Transport(config)))
        informers = Informers(client)
        cluster = Cluster(session, cast("Any", None), informers)
        runs = [informers.run(), podlife.PodLife(informers, client).run(), cluster.replace()]
        if isinstance(server, realserver.RealServer):
            try:
                manager = controllers.open_controllers(server, tmp_path / "manager", "disruption")
                await stack.enter_async_context(manager)
            except assets.AssetsError as trouble:
                servers.leave_out(str(trouble))
        else:
            runs.append(podlife.Disruption(informers, client).run())

        async def work() -> None:
            async with Group() as group:
                for number, each in enumerate(runs):
                    group.start(each, name=f"cluster-{number}")

        task = spawn(work(), name="cluster")
        try:
            await informers.wait_synced(DEADLINE_S)
            yield cluster
        finally:
            await cancel_and_join(task)
    for path in (PODS, BUDGETS):
        for one in await machines.cluster.items(path):
            target = f"{path}/{one['metadata']['name']}"
            await machines.cluster.delete(f"{target}?gracePeriodSeconds=0")


async def gone(env: Environment, pods: Cluster, count: int, goes: int) -> tuple[float, float]:
    """Some of so many machines go; the seconds that took, and API writes for each."""
    await env.start_leading(flags=FLAGS)
    await all_run(env, count)
    away = [f"m{number}" for number in range(goes)]
    names = [f"{name}-{number}" for name in away for number in range(EACH)]
    await pods.node("other")
    for name in names:
        await pods.pod(name, name.partition("-")[0])
    await pods.budget("web", len(names) - min(AWAY, goes))
    await wait_for(lambda: pods.ready(len(names)), "Pods are ready and counted")
    pods.least = len(names)
    vms = {one.name: one.id for one in env.cloud.world.snapshot()}
    calls, writes = len(env.calls()), written(env)
    began = time.monotonic()
    await asyncio.gather(*(env.cluster.delete(f"{MACHINES}/{name}") for name in away))
    left = {f"m{number}" for number in range(goes, count)}

    async def over() -> bool:
        return {one["metadata"]["name"] for one in await env.cluster.items(MACHINES)} == left

    await wait_for(over, "the machines are gone", within_s=300)
    took_s = time.monotonic() - began
    assert {one.name: one.id for one in env.cloud.world.snapshot()} == {
        name: vms[name] for name in left
    }
    nodes = {one["metadata"]["name"]: one for one in await env.cluster.items(NODES)}
    assert nodes.keys() == {"other", *left}
    assert [name for name, one in nodes.items() if one["spec"].get("unschedulable")] == []
    assert await pods.pods() == {f"{name}-again" for name in names}
    assert pods.least >= len(names) - min(AWAY, goes)
    each = (written(env) - writes) / goes
    print(
        f"{goes} of {count} machines gone in {took_s:.1f} s, grace {GRACE_S} s; {each:.1f} API "
        f"writes and {(len(env.calls()) - calls) / goes:.1f} requests to the cloud for each"
    )
    return took_s, each


def written(env: Environment) -> int:
    """Writes of the daemon about machines and nodes so far, without the Lease and Events."""
    found = env.writes(Match(write=True))
    return sum(one.path.startswith((MACHINES, NODES)) for one in found)


@pytest.mark.both_servers
async def test_machines_go_as_budgets_allow(machines: Environment, pods: Cluster) -> None:
    _, each = await gone(machines, pods, 4, 2)

    assert each <= 6.5


@pytest.mark.soak
async def test_fifty_of_two_hundred_machines_go(machines: Environment, pods: Cluster) -> None:
    took_s, each = await gone(machines, pods, 200, 50)

    assert each <= 6.5
    # The real controller counts a budget anew after each wave of evictions, a second or two later.
    is_real = isinstance(machines.server, realserver.RealServer)
    assert took_s <= (60 if is_real else GRACE_S + 5)

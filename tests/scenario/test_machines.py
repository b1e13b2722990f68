"""Machines become VMs of the simulated cloud, and nodes; before both API servers, with the rights
that are shipped for it."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from typing import Any

import pytest
import pytest_asyncio

from ccm.cli import plan
from ccm.doctor import outlook
from ccm.gardener import names
from ccm.gardener.names import GROUP, VERSION
from ccm.sandbox import realserver
from tests import servers
from tests.faults import Match
from tests.faults.actions import Hold, Point
from tests.manifests import account, shipped
from tests.scenario import definitions
from tests.scenario.definitions import BASE
from tests.scenario.examination import examined
from tests.scenario.harness import LEASE, NODES, Environment, wait_for

SECRETS = "/api/v1/namespaces/default/secrets"
MACHINES = f"{BASE}/machines"
SETS = f"{BASE}/machinesets"
RIGHTS = shipped.MACHINE_RIGHTS
FLAGS = {"controllers": "machine,machineclass,machinesafety", "kube-api-qps": "-1"}
ALL = FLAGS | {"controllers": f"{FLAGS['controllers']},machineset,machineovershoot"}
TYPE: dict[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}"}
FEW = 10
ORDER = Match(method="POST", path="^/v1/instances$")


@pytest_asyncio.fixture
async def machines(env: Environment) -> Environment:
    """The environment knows machines, and has a class of them."""
    cluster = env.cluster
    async with servers.connect(env.server) as session:
        if isinstance(env.server, realserver.RealServer):
            await account.install(session, shipped.objects(*RIGHTS))
        await definitions.define(session)
    data = {"token": env.cloud.token, "userData": "<<BOOTSTRAP_TOKEN>>"}
    secret = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    await cluster.create(SECRETS, {"metadata": {"name": "small"}, "data": secret})
    await cluster.create(
        f"{BASE}/machineclasses",
        TYPE
        | {
            "kind": "MachineClass",
            "metadata": {"name": "small"},
            "providerSpec": {"machineType": "small", "zone": "sim-1a", "region": "sim-1"},
            "secretRef": {"name": "small", "namespace": "default"},
        },
    )
    return env


async def in_phase(env: Environment, phase: str, count: int) -> list[dict[str, Any]]:
    found = [
        one
        for one in await env.cluster.items(MACHINES)
        if one.get("status", {}).get("currentStatus", {}).get("phase") == phase
    ]
    return found if len(found) == count else []


async def joins(env: Environment, machine: dict[str, Any]) -> None:
    """The VM's kubelet registers its node."""
    name = machine["metadata"]["labels"]["node"]
    await env.cluster.register(name, providerID=machine["spec"]["providerID"])
    await env.cluster.set_ready(name, "True")


async def create(env: Environment, count: int) -> None:
    """Somebody wants machines."""
    for number in range(count):
        body = TYPE | {"kind": "Machine", "metadata": {"name": f"m{number}"}}
        spec = {"class": {"kind": "MachineClass", "name": "small"}}
        await env.cluster.create(MACHINES, {**body, "spec": spec})


async def all_run(env: Environment, count: int) -> float:
    """Let machines become nodes; the seconds it took."""
    began = time.monotonic()
    await create(env, count)
    pending = await wait_for(lambda: in_phase(env, "Pending", count), "machines have VMs")
    for one in pending:
        await joins(env, one)
    await wait_for(lambda: in_phase(env, "Running", count), "machines run")
    return time.monotonic() - began


async def looked_over(env: Environment) -> tuple[list[str], int]:
    """What the doctor says of the machines, and the exit status of a plan for them."""
    words = [f"--controllers={FLAGS['controllers']}"]
    told = await examined(env, *words)
    wanted = plan.read(
        [
            f"--kubeconfig={env.server.kubeconfig_path}",
            f"--cloud-config={env.cloud_config}",
            "--cloud-provider=sim",
            *words,
        ]
    )
    said = io.StringIO()
    code = await outlook.apart(lambda: plan.answer(wanted, said, environ={}))
    print(said.getvalue())
    return [line for line in told.lines if " machine" in line[:16]], code


@pytest.mark.both_servers
async def test_machines_become_vms_and_nodes_and_go_again(machines: Environment) -> None:
    env = machines
    daemon = await env.start_leading(flags=FLAGS)
    await all_run(env, FEW)
    calls = len(env.calls())
    assert {one.name for one in env.cloud.world.snapshot()} == {f"m{n}" for n in range(FEW)}
    assert await looked_over(env) == (
        [
            f"ok    machines: {FEW} Machines, none is in trouble",
            "ok    machine-crds: 4 CustomResourceDefinitions, none is being deleted",
            "ok    machine-classes: VMs can be made of 1 MachineClass",
            f"ok    machine-vms: {FEW} VMs, each belongs to a Machine or to another cluster",
        ],
        plan.EXIT_NOTHING,
    )

    await env.cluster.delete(f"{MACHINES}/m0")
    await env.cluster.delete(f"{NODES}/m1")

    async def gone() -> bool:
        left = {one["metadata"]["name"] for one in await env.cluster.items(MACHINES)}
        return left == {f"m{number}" for number in range(2, FEW)}

    await wait_for(gone, "two machines are gone")
    assert {one.name for one in env.cloud.world.snapshot()} == {f"m{n}" for n in range(2, FEW)}
    assert {one["metadata"]["name"] for one in await env.cluster.items(NODES)} == {
        f"m{number}" for number in range(2, FEW)
    }
    assert calls <= 5 * FEW
    assert await daemon.stop() == 0


@pytest.mark.both_servers
async def test_a_node_falls_sick_and_a_machine_is_preserved(machines: Environment) -> None:
    env = machines
    await env.start_leading(flags=FLAGS)
    await all_run(env, 2)
    calls = len(env.calls())

    await env.cluster.set_ready("m0", "Unknown")
    await wait_for(lambda: in_phase(env, "Unknown", 1), "a machine is in doubt")
    await env.cluster.set_ready("m0", "True")
    await wait_for(lambda: in_phase(env, "Running", 2), "it runs again")

    async def preserved(wish: str | None, status: str) -> bool:
        (node,) = [one for one in await env.cluster.items(NODES) if one["metadata"]["name"] == "m1"]
        (machine,) = [
            one for one in await env.cluster.items(MACHINES) if one["metadata"]["name"] == "m1"
        ]
        told = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        until = machine["status"]["currentStatus"].get("preserveExpiryTime")
        return told.get("Preserved") == status and (until is not None) is (wish is not None)

    for wish, status in (("now", "True"), (None, "False")):
        note = {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: wish}}}
        await env.cluster.patch(f"{NODES}/m1", note, kind="merge")
        await wait_for(lambda: preserved(wish, status), f"preserved is {status}")  # noqa: B023
    assert len(env.calls()) == calls


@pytest.mark.parametrize("at", [Point.BEFORE, Point.TOOK_EFFECT], ids=["on-its-way", "done"])
async def test_another_daemon_goes_on_where_the_first_was_killed(
    machines: Environment, at: Point
) -> None:
    """In mid-creation: the orders were sent, and nobody heard the answers."""
    env = machines
    rule = env.cloud_proxy.on(ORDER, Hold(asyncio.Event(), at=at))
    first = await env.start_leading(flags=FLAGS)
    await create(env, 3)
    await env.cloud_proxy.wait_for(ORDER, count=3)
    if at is Point.TOOK_EFFECT:
        await wait_for(lambda: ordered(env, 3), "the cloud has made them")
    await first.kill()
    env.cloud_proxy.remove(rule)
    await env.cluster.delete(LEASE)

    await env.start_leading(flags=FLAGS)
    pending = await wait_for(lambda: in_phase(env, "Pending", 3), "machines have VMs")

    there = {f"sim://{one.id}" for one in env.cloud.world.snapshot()}
    assert {one["spec"]["providerID"] for one in pending} == there
    assert await ordered(env, 3)


async def ordered(env: Environment, count: int) -> bool:
    """Whether the cloud has so many VMs."""
    return len(env.cloud.world.snapshot()) == count


async def set_up(env: Environment, count: int) -> None:
    """A set whose machines become nodes."""
    template = {
        "metadata": {"labels": {"name": "web"}},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}},
    }
    spec = {"replicas": count, "selector": {"matchLabels": {"name": "web"}}, "template": template}
    body = TYPE | {"kind": "MachineSet", "metadata": {"name": "web"}, "spec": spec}
    await env.cluster.create(SETS, body)
    pending = await wait_for(lambda: in_phase(env, "Pending", count), "machines have VMs")
    for one in pending:
        await joins(env, one)
    await wait_for(lambda: says(env, count), "the set says that they run")


async def says(env: Environment, count: int) -> bool:
    """What the status of the set says."""
    (found,) = await env.cluster.items(SETS)
    status = found.get("status", {})
    return bool(status.get("readyReplicas", 0) == status.get("replicas", 0) == count)


async def scaled(env: Environment, count: int) -> float:
    """Through the sub-resource; the seconds until there are so many VMs."""
    began = time.monotonic()
    await env.cluster.patch(f"{SETS}/web/scale", {"spec": {"replicas": count}}, kind="merge")
    await wait_for(lambda: says(env, count), "the set is scaled")
    assert len(env.cloud.world.snapshot()) == count
    return time.monotonic() - began


async def set_gone(env: Environment) -> float:
    """Delete the set; the seconds until nothing is left."""
    began = time.monotonic()
    await env.cluster.delete(f"{SETS}/web")

    async def gone() -> bool:
        return not await env.cluster.items(SETS)

    await wait_for(gone, "the set is gone")
    assert await env.cluster.items(MACHINES) == []
    assert list(env.cloud.world.snapshot()) == []
    return time.monotonic() - began


@pytest.mark.both_servers
async def test_a_set_becomes_nodes_and_shrinks_and_goes(machines: Environment) -> None:
    daemon = await machines.start_leading(flags=ALL)

    await set_up(machines, FEW)
    await scaled(machines, 3)
    await set_gone(machines)

    assert await daemon.stop() == 0


@pytest.mark.soak
async def test_a_set_of_fifty(machines: Environment) -> None:
    """As fast as the reference is not: 48 s to scale, 33 s to delete."""
    await machines.start_leading(flags=ALL)

    began = time.monotonic()
    await set_up(machines, 50)
    up_s = time.monotonic() - began
    down_s = await scaled(machines, 10)
    gone_s = await set_gone(machines)

    print(f"50 machines: up {up_s:.1f} s, to 10 {down_s:.1f} s, gone {gone_s:.1f} s")
    assert down_s <= 5
    assert gone_s <= 5

"""Machines get VMs of the simulated cloud and nodes, and are deleted with them.

The daemon runs with the shipped rights, at both API servers. The real disruption controller counts
budgets where there is one.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ccm.cli import plan
from ccm.cli.command import EXIT_OK
from ccm.doctor import start_forecast
from ccm.gardener import crds, names
from ccm.model.names import ANNOTATION_ALLOW_DELETION, REASON_DELETION_HELD
from ccm.sandbox import realserver
from tests import servers
from tests.faults import Hold, Match, Point
from tests.manifests.shipped import MANIFESTS
from tests.readme import readme
from tests.scenario import harness
from tests.scenario.examination import examined
from tests.scenario.harness import DEFINITIONS, LEASE, NODES, Environment, wait_for
from tests.scenario.machines import (
    CONTROLLERS,
    DEPLOYMENTS,
    GRACE_S,
    MACHINES,
    PODS,
    SETS,
    Pods,
    all_run,
    create,
    group,
    in_phase,
    living_pods,
    names_of,
    vms,
)

FLAGS = {"controllers": ",".join(CONTROLLERS), "kube-api-qps": "-1"}
ALL = FLAGS | {"controllers": f"{FLAGS['controllers']},machineset,machineovershoot"}
FLEET = ALL | {"controllers": f"{ALL['controllers']},machinedeployment"}
FEW = 10
ORDER = Match(method="POST", path="^/v1/instances$")


async def looked_over(env: Environment) -> tuple[list[str], int]:
    """The doctor's verdicts about the machines, and the exit status of a plan for them."""
    words = [f"--controllers={FLAGS['controllers']}"]
    told = await examined(env, *words)
    config = f"--cloud-config={env.cloud_config}"
    kubeconfig = f"--kubeconfig={env.server.kubeconfig_path}"
    wanted = plan.read([kubeconfig, config, "--cloud-provider=sim", *words])
    code = await start_forecast.run_in_forecast_thread(
        lambda: plan.show_plan(wanted, io.StringIO(), environ={})
    )
    return [one.partition(":")[0] for one in told.lines if " machine" in one[:16]], code


@pytest.mark.both_servers
async def test_machines_get_vms_and_nodes_and_are_deleted_with_them(
    machine_env: Environment,
) -> None:
    env = machine_env
    daemon = await env.start_leading(flags=FLAGS)
    await all_run(env, FEW)
    calls = len(env.calls())
    assert vms(env).keys() == {f"m{n}" for n in range(FEW)}
    checks = ("machines", "machine-crds", "machine-classes", "machine-vms")
    assert await looked_over(env) == ([f"ok    {one}" for one in checks], EXIT_OK)

    await env.cluster.delete(f"{MACHINES}/m0")
    await env.cluster.delete(f"{NODES}/m1")
    left = {f"m{number}" for number in range(2, FEW)}

    async def gone() -> bool:
        return await names_of(env.cluster) == left

    await wait_for(gone, "two machines are gone")
    assert vms(env).keys() == await names_of(env.cluster, NODES) == left
    assert calls <= 5 * FEW
    assert await daemon.stop() == 0


@pytest.mark.both_servers
async def test_an_unready_node_makes_its_machine_unknown_and_preserve_is_kept(
    machine_env: Environment,
) -> None:
    env = machine_env
    await env.start_leading(flags=FLAGS)
    await all_run(env, 2)
    calls = len(env.calls())

    await env.cluster.set_ready("m0", "Unknown")
    await wait_for(lambda: in_phase(env, "Unknown", 1), "a machine is in doubt")
    await env.cluster.set_ready("m0", "True")
    await wait_for(lambda: in_phase(env, "Running", 2), "it runs again")

    async def preserved(wish: str | None, status: str) -> bool:
        node, machine = [await env.cluster.get(f"{path}/m1") or {} for path in (NODES, MACHINES)]
        told = harness.conditions(node).get("Preserved", {})
        until = machine["status"]["currentStatus"].get("preserveExpiryTime")
        return told.get("status") == status and (until is not None) is (wish is not None)

    for wish, status in (("now", "True"), (None, "False")):
        note = {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: wish}}}
        await env.cluster.patch(f"{NODES}/m1", note, kind="merge")
        await wait_for(lambda: preserved(wish, status), f"preserved is {status}")  # noqa: B023
    assert len(env.calls()) == calls


@pytest.mark.parametrize("at", [Point.BEFORE, Point.TOOK_EFFECT], ids=["on-its-way", "done"])
async def test_a_successor_adopts_vms_whose_creation_was_interrupted(
    machine_env: Environment, at: Point
) -> None:
    """The leader is killed after the requests, before their answers."""
    env = machine_env
    rule = env.cloud_proxy.on(ORDER, Hold(asyncio.Event(), at=at))
    first = await env.start_leading(flags=FLAGS)
    await create(env.cluster, 3)
    await env.cloud_proxy.wait_for(ORDER, count=3)

    async def ordered() -> bool:
        return len(vms(env)) == 3

    if at is Point.TOOK_EFFECT:
        await wait_for(ordered, "the cloud has made them")
    await first.kill()
    env.cloud_proxy.remove(rule)
    await env.cluster.delete(LEASE)

    await env.start_leading(flags=FLAGS)
    pending = await wait_for(lambda: in_phase(env, "Pending", 3), "machines have VMs")

    assert {one["spec"]["providerID"] for one in pending} == {
        f"sim://{i}" for i in vms(env).values()
    }
    assert await ordered()


# --- Pods leave first -----------------------------------------------------------------------------


@pytest_asyncio.fixture
async def pods(machine_env: Environment, tmp_path: Path) -> AsyncIterator[Pods]:
    """Pods start, end and are replaced; budgets are counted."""
    folder = tmp_path / "manager"
    async with living_pods(machine_env, replaced=True, counted_in=folder) as found:
        yield found


EACH = 2
"""Pods of each deleted machine."""

PAUSE_S = 0.5
"""In which a Pod would go that is not waited for."""

AWAY = 10
"""Pods that the budget lets be away at once."""


@pytest.mark.both_servers
@pytest.mark.row("machine-drain-14", "machine-drain-28")
@pytest.mark.parametrize(("count", "goes"), [(4, 2), pytest.param(200, 50, marks=pytest.mark.soak)])
async def test_machine_deletion_respects_pod_disruption_budgets(
    machine_env: Environment, pods: Pods, count: int, goes: int
) -> None:
    """Then VM and node are deleted, and no others."""
    env = machine_env
    await env.start_leading(flags=FLAGS)
    await all_run(env, count)
    away = [f"m{number}" for number in range(goes)]
    of = [f"{name}-{number}" for name in away for number in range(EACH)]
    most = min(AWAY, goes)
    await env.cluster.register("other", ready="True", taints=[])
    for name in of:
        await pods.create(name, name.partition("-")[0])
    await pods.budget("web", len(of) - most)
    await wait_for(lambda: pods.ready(len(of)), "Pods are ready and counted")
    pods.least = len(of)
    before, calls, writes = vms(env), len(env.calls()), written(env)
    left = {f"m{number}" for number in range(goes, count)}

    async def over() -> bool:
        return await names_of(env.cluster) == left

    began = time.monotonic()
    await asyncio.gather(*(env.cluster.delete(f"{MACHINES}/{name}") for name in away))
    await wait_for(over, "the machines are gone", within_s=300)
    took_s = time.monotonic() - began

    assert vms(env) == {name: before[name] for name in left}
    nodes = {one["metadata"]["name"]: one for one in await env.cluster.items(NODES)}
    assert nodes.keys() == {"other", *left}
    assert [name for name, one in nodes.items() if one["spec"].get("unschedulable")] == []
    assert await names_of(env.cluster, PODS) == {f"{name}-again" for name in of}
    assert pods.least >= len(of) - most
    each = (written(env) - writes) / goes
    print(
        f"{goes} of {count} machines gone in {took_s:.1f} s, grace {GRACE_S} s; {each:.1f} API "
        f"writes and {(len(env.calls()) - calls) / goes:.1f} requests to the cloud for each"
    )
    assert each <= 6.5
    # The real controller recounts a budget one or two seconds after each wave of evictions.
    is_real = isinstance(env.server, realserver.RealServer)
    assert GRACE_S <= took_s <= (60 if is_real or goes == 2 else GRACE_S + 5)


def written(env: Environment) -> int:
    """Writes of the daemon about machines and nodes so far, without the Lease and Events."""
    found = env.writes(Match(write=True))
    return sum(one.path.startswith((MACHINES, NODES)) for one in found)


class Volumes:
    """Volumes of the cloud's CSI driver, and the nodes that have them."""

    CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
    VOLUMES = "/api/v1/persistentvolumes"
    ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
    DRIVER = "csi.sim"

    def __init__(self, cluster: harness.Cluster) -> None:
        self._cluster = cluster

    async def make(self, name: str, node: str) -> None:
        """A volume that is attached to a node, and its claim."""
        size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
        csi = {"driver": self.DRIVER, "volumeHandle": f"handle-{name}"}
        spec = {"capacity": size, "accessModes": modes, "csi": csi, "storageClassName": "s"}
        await self._cluster.create(self.VOLUMES, {"metadata": {"name": name}, "spec": spec})
        wanted = {"accessModes": modes, "resources": {"requests": size}, "volumeName": name}
        body = {"metadata": {"name": name}, "spec": {**wanted, "storageClassName": "s"}}
        await self._cluster.create(self.CLAIMS, body)
        await self.attach(name, node)

    async def attach(self, name: str, node: str, *others: str) -> None:
        """To a node that has these volumes beside it."""
        source = {"persistentVolumeName": name}
        spec = {"attacher": self.DRIVER, "nodeName": node, "source": source}
        path = f"{self.ATTACHMENTS}/{name}-{node}"
        await self._cluster.create(
            self.ATTACHMENTS, {"metadata": {"name": f"{name}-{node}"}, "spec": spec}
        )
        await self._cluster.patch(f"{path}/status", {"status": {"attached": True}}, kind="merge")
        await self.mount(node, name, *others)

    async def mount(self, node: str, *volumes: str) -> None:
        """Set the volumes in the status of the node."""
        named = [f"kubernetes.io/csi/{self.DRIVER}^handle-{one}" for one in volumes]
        status = {"volumesAttached": [{"name": name, "devicePath": ""} for name in named]}
        await self._cluster.patch(f"{NODES}/{node}/status", {"status": status}, kind="merge")


@pytest.mark.both_servers
@pytest.mark.row("machine-drain-04")
async def test_drain_waits_for_volumes_to_detach_and_attach_elsewhere(
    machine_env: Environment, pods: Pods
) -> None:
    env = machine_env
    volumes = Volumes(env.cluster)
    await env.start_leading(flags=FLAGS)
    await all_run(env, 1)
    await env.cluster.register("other", ready="True", taints=[])
    for name in ("v0", "v1"):
        await volumes.make(name, "m0")
        await pods.create(name, "m0", name)
    await volumes.mount("m0", "v0", "v1")
    await wait_for(lambda: pods.ready(2), "Pods are ready")
    await env.cluster.delete(f"{MACHINES}/m0")

    async def left(name: str) -> bool:
        return name not in await names_of(env.cluster, PODS)

    await wait_for(lambda: left("v0"), "one Pod is gone")
    await asyncio.sleep(PAUSE_S)
    await volumes.mount("m0", "v1")
    await asyncio.sleep(PAUSE_S)  # it is detached, and nowhere else yet
    assert "v1" in await names_of(env.cluster, PODS)
    await volumes.attach("v0", "other")
    await wait_for(lambda: left("v1"), "the other Pod is gone")
    await asyncio.sleep(PAUSE_S)
    assert vms(env).keys() == {"m0"}
    await volumes.mount("m0")
    await volumes.attach("v1", "other", "v0")

    async def gone() -> bool:
        return not await names_of(env.cluster)

    await wait_for(gone, "the machine is gone")
    assert vms(env) == {}


# --- CRDs are deleted, and no VM with them --------------------------------------------------------

CRD = f"{DEFINITIONS}/machines.{names.GROUP}"
GUIDE = "**A deleted CustomResourceDefinition.**"


@pytest_asyncio.fixture
async def defined(machine_env: Environment) -> AsyncIterator[Environment]:
    """Install deleted CRDs again for the clean-up."""
    yield machine_env
    async with servers.connect(machine_env.server) as session:
        await harness.define(session)
    for left in await names_of(machine_env.cluster, DEPLOYMENTS):
        target = f"{DEPLOYMENTS}/{left}"
        await machine_env.cluster.patch(target, {"metadata": {"finalizers": None}}, kind="merge")
        await machine_env.cluster.delete(target)


async def blocked(env: Environment, plural: str = "machines") -> bool:
    """Whether an event on the CRD reports blocked deletions."""
    return bool(await env.cluster.events(f"{plural}.{names.GROUP}", REASON_DELETION_HELD))


@pytest.mark.both_servers
async def test_vms_survive_the_deletion_of_the_machine_crd(defined: Environment) -> None:
    env = defined
    first = await env.start_leading(flags=FLAGS)
    await all_run(env, 3)
    before = vms(env)
    await env.cluster.delete(CRD)
    await wait_for(lambda: blocked(env), "an event on the CRD")
    assert await first.stop() == 0

    # The next daemon finds Machines that were deleted, and nothing else.
    second = await env.start_leading(flags=FLAGS)
    await second.says("deletions blocked, their CRD was deleted")
    assert vms(env) == before
    assert await in_phase(env, "Running", 3)

    async def gone() -> bool:
        """The last one of its objects went before."""
        return await env.cluster.get(CRD) is None

    wish = {"metadata": {"annotations": {ANNOTATION_ALLOW_DELETION: "true"}}}
    await env.cluster.patch(CRD, wish, kind="merge")
    await wait_for(gone, "CRD and Machines are gone")
    assert vms(env) == {}


def follow_the_guide(env: Environment, home: Path) -> None:
    """Run the steps of the guide that need no Pods and no cloud."""
    (home / "manifests").symlink_to(MANIFESTS)
    page = (MANIFESTS / "README.md").read_text()
    part = page[page.index(GUIDE) :].partition("\n## ")[0]
    done = subprocess.run(
        ["bash", "-c", readme.script(part, "DONE")],
        cwd=home,
        env={
            **os.environ,
            "HOME": str(home),
            "KUBECONFIG": str(env.server.kubeconfig_path),
            "PATH": f"{servers.require_assets()}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@servers.only_real
async def test_the_documented_crd_recovery_keeps_every_vm(
    defined: Environment, tmp_path: Path
) -> None:
    env = defined

    async def owned() -> list[dict[str, Any]]:
        """Two machines that have VMs, and belong to the set of the deployment."""
        found = [one for one in await env.cluster.items(MACHINES) if one["spec"].get("providerID")]
        sets = await env.cluster.items(SETS)
        is_whole = all("ownerReferences" in one["metadata"] for one in (*found, *sets))
        return found if is_whole and (len(found), len(sets)) == (2, 1) else []

    first = await env.start_leading(flags=FLEET)
    await env.cluster.create(DEPLOYMENTS, group("MachineDeployment", "web", 2))
    machines = await wait_for(owned, "machines have VMs")
    before = vms(env)
    for one in crds.DEFINITIONS:
        await env.cluster.delete(f"{DEFINITIONS}/{one.kind.plural}.{one.kind.group}")
    for plural in ("machines", "machinesets", "machinedeployments"):
        await wait_for(lambda: blocked(env, plural), f"an event on the CRD of {plural}")  # noqa: B023
    assert await first.stop() == 0

    follow_the_guide(env, tmp_path)
    second = await env.start_leading(flags=FLEET)
    again = await wait_for(owned, "machines have owners again")

    def told(found: list[dict[str, Any]]) -> dict[str, str]:
        return {one["metadata"]["name"]: one["spec"]["providerID"] for one in found}

    assert told(again) == told(machines)
    uids = [{one["metadata"]["uid"] for one in found} for found in (again, machines)]
    assert uids[0].isdisjoint(uids[1])
    await second.says("machine phase changed", phase="Pending")
    assert vms(env) == before
    assert await second.stop() == 0

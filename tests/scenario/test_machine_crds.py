"""CRDs are deleted, and no VM with them; before both API servers, and as the guide says it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ccm.gardener import crds, names
from ccm.model.names import ANNOTATION_ALLOW_DELETION, REASON_DELETION_HELD
from tests import servers
from tests.manifests.shipped import MANIFESTS
from tests.readme import readme
from tests.scenario.definitions import BASE, is_served
from tests.scenario.harness import Environment, wait_for
from tests.scenario.test_machines import ALL, FLAGS, MACHINES, SETS, TYPE, all_run, machines

__all__ = ["machines"]  # a fixture

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/machines.{names.GROUP}"
DEPLOYMENTS = f"{BASE}/machinedeployments"
FLEET = ALL | {"controllers": f"{ALL['controllers']},machinedeployment"}
GUIDE = "**A deleted CustomResourceDefinition.**"


@pytest_asyncio.fixture
async def defined(machines: Environment) -> AsyncIterator[Environment]:
    """What a test undefined is defined again, for those who clear up."""
    yield machines
    async with servers.connect(machines.server) as session:
        for one in crds.DEFINITIONS:
            async with session.post(CRDS, json=crds.manifest(one)) as response:
                assert response.status in (201, 409), await response.text()

            async def served(path: str = f"{BASE}/{one.kind.plural}") -> bool:
                return await is_served(session, path)

            await wait_for(served, f"{one.kind.plural} are served")
    for left in await machines.cluster.items(DEPLOYMENTS):
        target = f"{DEPLOYMENTS}/{left['metadata']['name']}"
        await machines.cluster.patch(target, {"metadata": {"finalizers": None}}, kind="merge")
        await machines.cluster.delete(target)


def vms(env: Environment) -> set[str]:
    return {one.id for one in env.cloud.world.snapshot()}


async def blocked(env: Environment, plural: str = "machines") -> bool:
    """Whether an event on the CRD says so."""
    return bool(await env.cluster.events(f"{plural}.{names.GROUP}", REASON_DELETION_HELD))


async def is_gone(env: Environment) -> bool:
    """Whether the CRD is; the last one of its objects went before."""
    return await env.cluster.get(CRD) is None


@pytest.mark.both_servers
async def test_vms_outlive_the_crd_of_machines(defined: Environment) -> None:
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
    found = await env.cluster.items(MACHINES)
    assert [one["status"]["currentStatus"]["phase"] for one in found] == ["Running"] * 3

    wish = {"metadata": {"annotations": {ANNOTATION_ALLOW_DELETION: "true"}}}
    await env.cluster.patch(CRD, wish, kind="merge")
    await wait_for(lambda: is_gone(env), "CRD and Machines are gone")
    assert vms(env) == set()


async def set_up(env: Environment) -> None:
    """A deployment of two machines."""
    template = {
        "metadata": {"labels": {"name": "web"}},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"name": "web"}}, "template": template}
    body = TYPE | {"kind": "MachineDeployment", "metadata": {"name": "web"}, "spec": spec}
    await env.cluster.create(DEPLOYMENTS, body)


async def owned(env: Environment) -> list[dict[str, Any]]:
    """Two machines that have VMs, and belong to the set of the deployment."""
    found = [one for one in await env.cluster.items(MACHINES) if one["spec"].get("providerID")]
    sets = await env.cluster.items(SETS)
    is_whole = all("ownerReferences" in one["metadata"] for one in (*found, *sets))
    return found if is_whole and (len(found), len(sets)) == (2, 1) else []


def follow_the_guide(env: Environment, home: Path) -> str:
    """Do what the guide says, where it needs no Pods and no cloud."""
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
    return done.stdout


@servers.only_real
async def test_the_recovery_of_the_guide_keeps_every_vm(
    defined: Environment, tmp_path: Path
) -> None:
    env = defined
    first = await env.start_leading(flags=FLEET)
    await set_up(env)
    machines = await wait_for(lambda: owned(env), "machines have VMs")
    before = vms(env)
    for one in crds.DEFINITIONS:
        await env.cluster.delete(f"{CRDS}/{one.kind.plural}.{one.kind.group}")
    for plural in ("machines", "machinesets", "machinedeployments"):
        await wait_for(lambda: blocked(env, plural), f"an event on the CRD of {plural}")  # noqa: B023
    assert await first.stop() == 0

    print(follow_the_guide(env, tmp_path))
    second = await env.start_leading(flags=FLEET)
    again = await wait_for(lambda: owned(env), "machines have owners again")

    def told(found: list[dict[str, Any]]) -> dict[str, str]:
        return {one["metadata"]["name"]: one["spec"]["providerID"] for one in found}

    assert told(again) == told(machines)
    assert {one["metadata"]["uid"] for one in again}.isdisjoint(
        {one["metadata"]["uid"] for one in machines}
    )
    await second.says("machine is in another phase", phase="Pending")
    assert vms(env) == before
    assert await second.stop() == 0

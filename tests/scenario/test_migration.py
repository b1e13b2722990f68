"""Leader migration: two leases, and what runs under which."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.scenario import harness, objects
from tests.scenario.harness import Environment
from tests.scenario.plugin import install

SHARED_NAME = "cloud-provider-extraction-migration"
SHARED = f"{objects.LEASES}/{SHARED_NAME}"
TERMS = {
    "leaseDurationSeconds": 3600,
    "leaseTransitions": 0,
    "acquireTime": "2026-01-01T00:00:00.000000Z",
    "renewTime": "2026-01-01T00:00:00.000000Z",
}


def plan(folder: Path, component: str) -> dict[str, str]:
    """Flags under which both managers may run the node life cycle."""
    file = folder / "migration.yaml"
    file.write_text(
        "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\n"
        "leaderName: cloud-provider-extraction-migration\ncontrollerLeaders:\n"
        f"- {{name: cloud-node-lifecycle, component: '{component}'}}\n"
    )
    return {"enable-leader-migration": "true", "leader-migration-config": str(file)}


async def holder(env: Environment) -> str:
    """Who has the shared lease."""
    lease: dict[str, Any] = await env.cluster.get(SHARED) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


@pytest.mark.both_servers
async def test_a_migrated_controller_waits_for_the_shared_lease(env: Environment) -> None:
    """Held by the other manager, the shared lease keeps the life cycle out; then it runs."""
    held = objects.lease(SHARED_NAME, **TERMS, holderIdentity="the-other-manager")
    await env.cluster.create(objects.LEASES, held)
    daemon = await env.start_leading(flags=plan(env.folder, "*"))
    machine = await env.node("a")
    await env.cluster.initialised("a")
    assert await holder(env) == "the-other-manager"
    await env.cluster.patch(SHARED, {"spec": {"holderIdentity": ""}}, kind="merge")
    await daemon.says("became leader", count=2)
    env.cloud.world.delete(machine.id)
    await env.cluster.gone("a")

    assert await daemon.stop() == 0
    assert await holder(env) == ""


async def test_what_the_plan_gives_to_another_does_not_run(env: Environment) -> None:
    daemon = await env.start_leading(flags=plan(env.folder, "kube-controller-manager"))
    machine = await env.node("a")
    await env.cluster.initialised("a")
    env.cloud.world.delete(machine.id)

    await asyncio.sleep(4 * harness.MONITOR_S)

    assert await env.cluster.node("a") is not None
    assert await daemon.stop() == 0


@pytest.mark.row("daemon-migration-05")
async def test_losing_the_shared_lease_ends_the_process(env: Environment) -> None:
    daemon = await env.start_leading(flags=plan(env.folder, "*"))
    await daemon.says("became leader", count=2)

    await env.cluster.patch(SHARED, {"spec": {"holderIdentity": "thief"}}, kind="merge")

    assert await daemon.ended() == 1
    assert daemon.lines("migration leaderelection lost")


PROVIDER = '''
"""A cloud without capabilities that notes what is done with it."""

from pathlib import Path

from ccm import cloud


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    file = Path(context.config.decode().strip())

    def note(what):
        with file.open("a") as notes:
            notes.write(what + "\\n")

    note("opened")
    yield cloud.Cloud(
        name="noted", has_cluster_id=True, set_informers=lambda informers: note("informers")
    )
    note("closed")
'''


@pytest.mark.row("daemon-migration-06")
@servers.only_builtin
async def test_the_provider_is_opened_once_for_both_leases(env: Environment) -> None:
    notes = env.folder / "notes"
    env.cloud_config.write_text(str(notes))

    daemon = await env.start_leading(
        flags={**plan(env.folder, "*"), "cloud-provider": "noted"},
        env=install(env.folder, "noted", PROVIDER),
    )
    await daemon.says("became leader", count=2)
    assert await daemon.stop() == 0

    assert notes.read_text().split() == ["opened", "informers", "closed"]

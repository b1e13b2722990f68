"""The journal of a whole daemon: kept in the cluster, shown by commands, searched at a start."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ccm.cli import explain, journal
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.doctor import ExaminationError
from ccm.sandbox import process
from tests import servers
from tests.scenario import harness, load
from tests.scenario.harness import Environment, wait_for

PATH = f"{load.SERVICES}/web"


async def told(env: Environment, command: Any, *words: str) -> str:
    """The output of a command."""
    said = io.StringIO()
    request = command.read([f"--kubeconfig={env.server.kubeconfig_path}", *words])
    act = explain.explain_object if command is explain else journal.show_or_change
    await act(request, said, environ={})
    return said.getvalue()


def flags_of(port: int, kubeconfig: str) -> dict[str, str]:
    """Flags of a daemon that keeps a journal, and that the commands can reach."""
    return {
        "secure-port": str(port),
        "bind-address": process.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "controllers": SERVICE.name,
        "journal": "report",
        "journal-check-period": "1s",
    }


async def entries_of(env: Environment, *words: str) -> list[Any]:
    said = await told(env, journal, "list", "-o", "json", *words)
    return list(json.loads(said).get("entries", []))


async def recorded(env: Environment, *way: str) -> dict[str, Any]:
    """Wait until a load balancer is created; its entry."""

    async def created() -> list[Any]:
        return [entry for entry in await entries_of(env, *way) if entry["state"] == "Created"]

    (entry,) = await wait_for(created, "the load balancer is recorded")
    return dict(entry)


@servers.only_builtin
async def test_load_balancer_of_a_lost_service_is_recorded_reported_and_dropped(
    env: Environment,
) -> None:
    port = process.pick_port()
    flags = flags_of(port, str(env.server.kubeconfig_path))
    way = (f"--address={process.LOOPBACK}:{port}", "--insecure")
    daemon = await env.start_leading(flags=flags)
    await daemon.says("journal opened")
    await env.cluster.create(load.SERVICES, load.web("web"))
    entry = await recorded(env, *way)
    assert "  journal: loadbalancer a" in await told(env, explain, "svc", "default/web", *way)
    await daemon.stop()

    assert await entries_of(env, "--offline") == [entry]

    await env.cluster.patch(PATH, {"metadata": {"finalizers": None}})
    await env.cluster.delete(PATH)
    daemon = await env.start_leading(flags=flags)
    await daemon.says("orphan found", name=entry["name"])
    lease = harness.LEASE.rpartition("/")[2]

    async def reported() -> list[Any]:
        return await env.cluster.events(lease, "OrphanedResource")

    assert len(await wait_for(reported, "the orphan is reported")) == 1
    assert "Created, orphan" in await told(env, journal, "list", *way)
    await told(env, journal, "drop", entry["name"], *way)
    assert await entries_of(env, *way) == []
    assert len(env.cloud.worlds.balancers.list()) == 1


@servers.only_builtin
@pytest.mark.row("journal-06")
async def test_load_balancer_is_adopted_offline_by_a_service_that_was_created_anew(
    env: Environment,
) -> None:
    port = process.pick_port()
    flags = flags_of(port, str(env.server.kubeconfig_path))
    way = (f"--address={process.LOOPBACK}:{port}", "--insecure")
    daemon = await env.start_leading(flags=flags)
    await daemon.says("journal opened")
    await env.cluster.create(load.SERVICES, load.web("web"))
    entry = await recorded(env, *way)
    adoption = (
        *("adopt", entry["name"], "service", "default/web", "--offline"),
        *("--cloud-provider=sim", f"--cloud-config={env.cloud_config}"),
    )
    with pytest.raises(ExaminationError, match="holds the Lease; omit --offline"):
        await told(env, journal, *adoption)
    await daemon.stop()
    await env.cluster.patch(PATH, {"metadata": {"finalizers": None}})
    await env.cluster.delete(PATH)
    await env.cluster.create(load.SERVICES, load.web("web"))

    assert "now belongs to Service default/web" in await told(env, journal, *adoption)
    daemon = await env.start_leading(flags=flags)
    await daemon.says("journal opened")

    async def served() -> bool:
        service = await env.cluster.get(PATH)
        return bool(service and service["status"]["loadBalancer"].get("ingress"))

    await wait_for(served, "the Service has its load balancer again")
    (adopted,) = await entries_of(env, *way)
    assert (adopted["state"], adopted["owner"]["uid"] == entry["owner"]["uid"]) == (
        "Created",
        False,
    )
    assert [one.name for one in env.cloud.worlds.balancers.list()] == [adopted["intendedName"]]
    assert len(env.calls("create_balancer")) == 1

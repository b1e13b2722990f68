"""The journal of a daemon: in ConfigMaps of the cluster, read again by the next leader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenario.harness import Environment, wait_for
from tests.support import journals

SERVICES = "/api/v1/namespaces/default/services"
BODY = {
    "metadata": {"name": "web"},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
}
FLAGS = {"journal": "report", "controllers": "service"}


async def entries(env: Environment) -> list[dict[str, Any]]:
    """Return the entries of all pages in the cluster."""
    config_maps = await env.cluster.items("/api/v1/namespaces/kube-system/configmaps")
    return [entry for one in config_maps for entry in journals.entries_in(one)]


@pytest.mark.row("journal-01")
async def test_the_next_leader_continues_the_journal(env: Environment) -> None:
    first = await env.start_leading(flags=FLAGS)
    await first.says("journal opened")
    service = await env.cluster.create(SERVICES, BODY)

    async def states() -> list[str]:
        return [entry["state"] for entry in await entries(env)]

    async def is_created() -> bool:
        return await states() == ["Created"]

    async def is_removed() -> bool:
        return await states() == ["Removed"]

    await wait_for(is_created, "the entry of the load balancer")
    assert await first.stop() == 0
    (entry,) = await entries(env)
    assert entry["owner"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "namespace": "default",
        "name": "web",
        "uid": service["metadata"]["uid"],
    }

    second = await env.start_leading(flags=FLAGS)
    assert (await second.says("journal opened"))["entries"] == 1
    await env.cluster.delete(f"{SERVICES}/web")
    await wait_for(is_removed, "the removal of the entry")
    assert await second.stop() == 0
    assert len(env.calls("delete_balancer")) == 1

"""The queries of the guide to the metrics: each one has data in a real Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ccm.sandbox import process
from tests import prometheus, servers
from tests.manifests import shipped
from tests.manifests.test_metrics import faults, series
from tests.readme import readme
from tests.scenario import load, machines
from tests.scenario.harness import Environment, wait_for

__all__ = ["series"]

PAGE = "manifests/guides/metrics.md"
JOB = f"{shipped.NAME}-metrics"


def queries() -> list[str]:
    """Return the queries of the guide."""
    return re.findall(r"^```promql\n(.*?)^```", readme.text(PAGE), re.MULTILINE | re.DOTALL)


def test_queries_of_the_guide_use_known_metrics_and_labels(
    series: Mapping[str, frozenset[str]],
) -> None:
    asked = queries()

    assert len(asked) >= 10
    assert [fault for one in asked for fault in faults(one, series)] == []


@pytest.mark.slow
@servers.only_builtin
async def test_each_query_of_the_guide_has_data(machine_env: Environment, tmp_path: Path) -> None:
    env, port = machine_env, process.pick_port()
    flags = {
        "controllers": ",".join(("*", *machines.ALL_CONTROLLERS)),
        "configure-cloud-routes": "false",
        "kube-api-qps": "-1",
        "secure-port": str(port),
        "authorization-always-allow-paths": "/metrics",
    }
    every = [f"n{number}" for number in range(9)]
    async with prometheus.running(tmp_path, JOB, [port]) as server:

        async def counts(expression: str) -> bool:
            return bool(await server.values(expression))

        await env.start_leading(flags=flags)
        await wait_for(lambda: counts("up == 1"), "the daemon is scraped")
        vms = [await env.node(name) for name in every]
        await env.cluster.initialised(*every)
        await machines.create(env.cluster, 1)
        await machines.join(env, 1)
        for name in ("web", "shop"):  # the second one raises a counter that Prometheus knows
            await load.create(env, load.web(name))
            served = f'sum(ccm_service_operation_duration_seconds_count{{job="{JOB}"}}) > 0'
            await wait_for(lambda: counts(served), name)  # noqa: B023
        for name, vm in zip(every, vms[:6], strict=False):
            env.cloud.world.delete(vm.id, at_once=True)
            await env.cluster.set_ready(name, "Unknown")

        for query in queries():
            await wait_for(lambda: counts(query), query)  # noqa: B023

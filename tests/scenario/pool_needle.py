"""Where a secret could stand after a run: objects and events, what commands say, metrics."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from ccm.cli import doctor, explain
from ccm.sandbox import process
from tests import pki
from tests.scenario import harness
from tests.scenario.harness import EVENTS, NODES, Environment
from tests.scenario.machines import MACHINES, SERVICES

EVERYTHING = "10"
"""The most that a daemon says."""


def flags(port: int) -> Mapping[str, str]:
    """With which a daemon says everything, and shows its metrics to anybody."""
    return {
        "v": EVERYTHING,
        "secure-port": str(port),
        "authorization-always-allow-paths": "/metrics",
    }


async def objects(env: Environment) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Events, machines, Services and nodes, by path."""
    return {path: await env.cluster.items(path) for path in (EVENTS, MACHINES, SERVICES, NODES)}


async def commands(
    env: Environment,
    given: Mapping[str, str],
    things: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
) -> str:
    """What people are told: by `doctor`, and by `explain` of kinds and names."""
    out = io.StringIO()
    words = [
        f"--kubeconfig={env.server.kubeconfig_path}",
        *harness.command_line({**given, "cloud-config": str(env.cloud_config)}),
    ]
    await doctor.answer(doctor.read(words), out, environ=environ)
    for thing in things:
        await explain.answer(explain.read([*thing, *words]), out, environ=environ)
    return out.getvalue()


async def metrics(port: int) -> str:
    """All that is counted."""
    connector = aiohttp.TCPConnector(ssl=pki.client_context())
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://{process.LOOPBACK}:{port}/metrics") as response,
    ):
        assert response.status == 200
        return await response.text()

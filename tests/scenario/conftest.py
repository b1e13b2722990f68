"""The environment of every scenario."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests import servers
from tests.scenario import harness, machines
from tests.scenario.machines import ALL_CONTROLLERS, Fleet, sim_secret


@pytest_asyncio.fixture
async def env(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[harness.Environment]:
    """An environment with each API server in turn; no daemon runs yet."""
    async with harness.open_environment(api_server, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def machine_env(env: harness.Environment) -> harness.Environment:
    """The environment knows machines, and has the class `small` of them."""
    await machines.prepare(env)
    secret = sim_secret(env.cloud.token)
    await machines.make_class(env.cluster, "small", machines.SIM, secret)
    return env


@pytest_asyncio.fixture
async def fleet(env: harness.Environment, boot_s: float) -> AsyncIterator[Fleet]:
    """Classes of machines `one` and `two`, and kubelets; the daemon leads."""
    await machines.prepare(env)
    for kind in ("one", "two"):
        secret = sim_secret(env.cloud.token)
        await machines.make_class(env.cluster, kind, machines.SIM, secret)
    flags = {"controllers": ",".join(ALL_CONTROLLERS), "kube-api-qps": "-1"}
    await env.start_leading(flags=flags)
    async with (
        servers.connect(env.server) as session,
        Fleet(session, boot_s=boot_s).at_work() as made,
    ):
        yield made
        assert await env.daemons[-1].stop() == 0

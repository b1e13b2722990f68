"""A provider whose calls never return, whatever the daemon does about it."""

from __future__ import annotations

from functools import partial

import pytest

from ccm.model import names
from tests import servers
from tests.scenario import load
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.load import SERVICES, warnings
from tests.scenario.plugin import install

PROVIDER = '''
"""A cloud that gives every Service an address, unless its name says how it hangs."""

import asyncio
import time

from ccm import cloud


class Balancers:
    def __init__(self):
        self._held = set()

    def get_load_balancer_name(self, cluster_name, service):
        return cloud.default_load_balancer_name(service)

    async def get_load_balancer(self, cluster_name, service):
        return cloud.Status() if service.uid in self._held else None

    async def ensure_load_balancer(self, cluster_name, service, nodes):
        if service.name.startswith("deaf"):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass
        if service.name.startswith("thread"):
            await cloud.blocking(time.sleep, 3600)
        if service.name.startswith("silent"):
            await asyncio.sleep(3600)
        self._held.add(service.uid)
        return cloud.Status(ingress=[cloud.Ingress(ip="192.0.2.7")])

    async def update_load_balancer(self, cluster_name, service, nodes):
        return None

    async def ensure_load_balancer_deleted(self, cluster_name, service):
        self._held.discard(service.uid)


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    yield cloud.Cloud(name="stubborn", has_cluster_id=True, load_balancer=Balancers())
'''

pytestmark = pytest.mark.timeout(200)  # a busy machine is slow

ONE_WORKER = {
    "cloud-provider": "stubborn",
    "controllers": "service-lb-controller",
    "concurrent-service-syncs": "1",
    "cloud-call-timeout": "1s",
    "shutdown-grace-period": "1s",
}

PATIENCE_S = 100.0
"""A busy machine is slow; a hang lasts an hour."""


async def has_address(env: Environment, name: str) -> bool:
    """Whether a Service shows one."""
    service = await env.cluster.get(f"{SERVICES}/{name}")
    return service is not None and bool(load.ingress(service))


async def begin(env: Environment, **flags: str) -> Daemon:
    """A daemon with one worker for all Services."""
    variables = install(env.folder, "stubborn", PROVIDER)
    daemon = await env.start(flags={**ONE_WORKER, **flags}, env=variables)
    await daemon.says("became leader", within_s=PATIENCE_S)
    return daemon


@servers.only_builtin
async def test_services_behind_one_that_hangs_are_served(env: Environment) -> None:
    """The one worker goes on; the Service that hangs is left alone, and says so."""
    daemon = await begin(env)
    for name in ("deaf", "silent", "thread"):
        await load.create(env, load.web(name))
    await env.proxy.wait_for(load.SERVICE_WRITE, count=3, timeout_s=PATIENCE_S)
    await load.create(env, load.web("fine"))

    await wait_for(lambda: has_address(env, "fine"), "fine is served", within_s=PATIENCE_S)
    service = await env.cluster.get(f"{SERVICES}/deaf")
    assert service is not None
    left = "cloud call does not end although it was cancelled, going on without it"
    line = await daemon.says(left, subject=service["metadata"]["uid"], within_s=PATIENCE_S)
    assert line["operation"] == "ensure_load_balancer"
    for name in ("deaf", "silent", "thread"):
        warned = partial(warnings, env, name)
        await wait_for(warned, f"{name} is warned", within_s=PATIENCE_S)

    # It is not ensured a second time beside the first, nor deleted under its hands.
    await load.delete(env, "deaf")

    async def refused() -> bool:
        said = await env.cluster.events("deaf", names.REASON_SYNC_BALANCER_FAILED)
        return any("has not ended yet" in event["message"] for event in said)

    await wait_for(refused, "deaf is not touched", within_s=PATIENCE_S)
    assert await env.cluster.get(f"{SERVICES}/deaf") is not None
    assert len(daemon.lines(left, subject=service["metadata"]["uid"])) == 1

    assert await daemon.stop() == 0
    await daemon.says("cloud calls do not end, leaving without them", calls=2)
    await daemon.says("cloud calls do not end, the lease is left to run out", calls=2)


@servers.only_builtin
@pytest.mark.parametrize("kind", ["deaf", "thread", pytest.param("silent", marks=pytest.mark.soak)])
async def test_stopping_during_a_call_that_hangs(env: Environment, kind: str) -> None:
    """The daemon ends in time; the Lease is kept while the call is still under way."""
    daemon = await begin(env, **{"cloud-call-timeout": "10m"})
    await load.create(env, load.web(kind))
    await env.proxy.wait_for(load.SERVICE_WRITE, timeout_s=PATIENCE_S, answered=True)

    assert await daemon.stop() == 0
    kept = bool((await env.cluster.lease()).get("holderIdentity"))
    assert kept is (kind != "silent")

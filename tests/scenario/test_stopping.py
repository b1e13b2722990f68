"""Signals and the end of the process."""

from __future__ import annotations

import asyncio
import signal

import pytest

from ccm.model import names
from ccm.testing.fake_api import Fault
from tests.faults import Delay, Hold, Match
from tests.scenario import harness
from tests.scenario.harness import Environment
from tests.scenario.plugin import install

EVENT_WRITE = Match(write=True, path="/events")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_good_order(env: Environment, number: signal.Signals) -> None:
    """Exit 0 in time: events on their way arrive, the Lease is given back, nothing is lost."""
    proxy = await env.new_proxy()
    proxy.on(EVENT_WRITE, Delay(0.3))
    hosts = [f"host-{number}" for number in range(3)]
    for name in hosts:
        await env.node(name)
    daemon = await env.start_leading(proxy=proxy)
    await daemon.says("node initialised", count=len(hosts))

    daemon.signal(number)
    assert await daemon.ended() == 0

    for name in hosts:
        assert len(await env.cluster.events(name, names.REASON_SYNCED)) == 1
    assert (await env.cluster.lease()).get("holderIdentity", "") == ""
    said = [line["msg"] for line in daemon.lines()]
    assert said.index("stopping") < said.index("lease given back") < said.index("stopped")
    assert said[-1] == "stopped"
    assert daemon.lines("starting")[0]["provider"] == "sim"
    assert "cloud-node-controller" in daemon.lines("controllers started")[0]["controllers"]


@pytest.mark.row("daemon-stop-03")
async def test_a_signal_while_the_cloud_hangs(env: Environment) -> None:
    """Questions without an answer hold up nothing: exit 0 in time, the Lease given back."""
    env.configure_cloud(timeout="60s")
    env.cloud.script.add(Fault(kind="hang"))
    for number in range(8):
        await env.node(f"host-{number}")
    daemon = await env.start_leading()
    await env.cloud_proxy.wait_for(Match())

    assert await daemon.stop() == 0

    assert (await env.cluster.lease()).get("holderIdentity", "") == ""


@pytest.mark.row("daemon-stop-04")
async def test_a_second_signal_ends_it_at_once(env: Environment) -> None:
    """Whoever asks twice does not wait for events and the Lease."""
    proxy = await env.new_proxy()
    never = asyncio.Event()
    daemon = await env.start_leading(proxy=proxy)
    for match in (EVENT_WRITE, harness.LEASE_WRITE):
        proxy.on(match, Hold(never))
    await env.node("alpha")
    await env.cluster.initialised("alpha")

    daemon.signal(signal.SIGTERM)
    await daemon.says("stopping")
    await proxy.wait_for(EVENT_WRITE)
    assert daemon.exit_code is None
    daemon.signal(signal.SIGTERM)

    assert await daemon.ended() == 1


SLEEPY = '''
"""A provider that leaves a thread and a task behind."""

import asyncio
import contextlib
import pathlib
import time

from ccm import cloud

tasks = []


class Sleepy:
    def __init__(self, asked):
        self._asked = asked

    async def instance_exists(self, node):
        return True

    async def instance_shutdown(self, node):
        return False

    async def instance_metadata(self, node):
        self._asked.touch()
        await asyncio.to_thread(time.sleep, 3600)


async def stay():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@cloud.provider(sdk="2.0")
async def open_cloud(ctx):
    asked = pathlib.Path(ctx.config.decode().strip())
    tasks.append(asyncio.create_task(stay()))
    yield cloud.Cloud(name="sleepy", has_cluster_id=True, instances=Sleepy(asked))
'''


async def test_what_nobody_ends_does_not_hold_up_the_end(env: Environment) -> None:
    """A thread, such as one that looks up a name, and a task that is not cancelled."""
    variables = install(env.folder, "sleepy", SLEEPY)
    asked = env.folder / "asked"
    env.cloud_config.write_text(str(asked))
    await env.cluster.register("node-1")
    daemon = await env.start_leading(flags={"cloud-provider": "sleepy"}, env=variables)

    async def is_asked() -> bool:
        return asked.exists()

    await harness.wait_for(is_asked, "the provider is asked")

    daemon.signal(signal.SIGTERM)
    await daemon.says("stopped")

    assert await daemon.ended() == 0

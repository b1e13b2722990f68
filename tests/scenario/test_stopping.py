"""Signals and the end of the process: running changes finish, hanging calls are cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from ccm.app import daemon as program
from ccm.app import options
from ccm.app.options import config
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from ccm.sandbox import realserver
from ccm.testing.fake_api import Fault
from tests import servers
from tests.faults import Delay, Hold, Match
from tests.scenario import harness, load
from tests.scenario.harness import CUT_SHORT, Environment, cut_short, install, wait_for

pytestmark = pytest.mark.timeout(240)

EVENT_WRITE = Match(write=True, path="/events")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_daemon_in_order(env: Environment, number: signal.Signals) -> None:
    """Exit 0 in time: pending events are written, then the Lease is released."""
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
    assert said.index("stopping") < said.index("lease released") < said.index("stopped")
    assert said[-1] == "stopped"
    assert daemon.lines("starting")[0]["provider"] == "sim"
    assert "cloud-node-controller" in daemon.lines("controllers started")[0]["controllers"]


@pytest.mark.row("daemon-stop-03")
async def test_hanging_reads_do_not_delay_the_stop(env: Environment) -> None:
    """Exit 0 in time, and the Lease is released."""
    env.configure_cloud(timeout="60s")
    env.cloud.script.add(Fault(kind="hang"))
    for number in range(8):
        await env.node(f"host-{number}")
    daemon = await env.start_leading()
    await env.cloud_proxy.wait_for(Match())

    assert await daemon.stop() == 0

    assert (await env.cluster.lease()).get("holderIdentity", "") == ""


@pytest.mark.row("daemon-stop-04")
async def test_a_second_signal_ends_the_daemon_at_once(env: Environment) -> None:
    """Without a wait for events and the Lease."""
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


FLAGS = {"controllers": SERVICE.name, "concurrent-service-syncs": "2"}


async def served(env: Environment) -> list[str]:
    """The Services that have an address."""
    found = await env.cluster.items(load.SERVICES)
    return [one["metadata"]["name"] for one in found if one["status"]["loadBalancer"]]


async def two_under_way(env: Environment) -> bool:
    return len(env.calls("create_balancer")) == 2


@pytest.mark.row("daemon-stop-01")
async def test_cloud_changes_in_progress_finish_before_the_stop(env: Environment) -> None:
    """Two of five load balancers are in creation and get their address; the others wait."""
    env.configure_cloud(timeout="60s")
    env.cloud.script.add(Fault(kind="latency", operation="create_balancer", delay_s=3.0))
    for number in range(5):
        await load.create(env, load.web(f"web-{number}"))
    leader = await env.start(flags=FLAGS)
    await wait_for(lambda: two_under_way(env), "two calls are under way")

    leader.signal(signal.SIGTERM)
    assert await leader.ended() == 0

    assert len(env.calls("create_balancer")) == 2
    assert len(await served(env)) == 2
    assert (await env.cluster.lease()).get("holderIdentity", "") == ""
    assert leader.lines("grace period ended") == []


@pytest.mark.row("daemon-stop-02")
async def test_cloud_changes_are_cancelled_after_the_shutdown_grace_period(
    env: Environment,
) -> None:
    """A successor repeats them."""
    env.configure_cloud(timeout="60s")
    env.cloud.script.add(Fault(kind="latency", operation="create_balancer", delay_s=60.0))
    for number in range(3):
        await load.create(env, load.web(f"web-{number}"))
    leader = await env.start(flags={**FLAGS, "shutdown-grace-period": "500ms"})
    await wait_for(lambda: two_under_way(env), "two calls are under way")

    leader.signal(signal.SIGTERM)
    assert await leader.ended() == 0

    assert leader.lines("grace period ended")[0]["count"] == 2
    assert (await env.cluster.lease()).get("holderIdentity", "") == ""
    assert await served(env) == []
    env.cloud.script.clear()
    await env.start(flags=FLAGS)

    async def all_served() -> bool:
        return len(await served(env)) == 3

    await wait_for(all_served, "the successor makes all")


@pytest.mark.row("daemon-stop-06")
async def test_no_task_is_left_after_the_stop(env: Environment) -> None:
    """The daemon runs in the event loop of the test."""
    proxy = await env.new_proxy()
    kubeconfig = env.folder / "own.kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=env.token)
    files = {"kubeconfig": str(kubeconfig), "cloud-config": str(env.cloud_config)}
    argv = harness.command_line({**harness.FLAGS, **files})
    await env.node("alpha")
    before = asyncio.all_tasks()

    running = asyncio.create_task(program.run(config.with_config_file(options.parse(argv)), {}))
    await env.cluster.initialised("alpha")
    os.kill(os.getpid(), signal.SIGTERM)

    assert await running == 0
    # Tasks of the proxies for closed connections do not belong to the daemon.
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert {name for name in left if not name.startswith("Task-")} == set()


PROVIDER = '''
"""A cloud whose calls and clean-up hang, cancelled or not, and that notes what becomes of them."""

import asyncio
from pathlib import Path

from ccm import cloud


async def hang(cancelled):
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.touch()


class Instances:
    def __init__(self, notes):
        self._notes = notes

    async def instance_exists(self, node):
        return True

    async def instance_shutdown(self, node):
        return False

    async def instance_metadata(self, node):
        (self._notes / f"asked-{node.name}").touch()
        await hang(self._notes / f"cancelled-{node.name}")


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    notes = Path(context.config.decode().strip())
    try:
        yield cloud.Cloud(name="stuck", has_cluster_id=True, instances=Instances(notes))
    finally:
        (notes / "closing").touch()
        await hang(notes / "cancelled")
'''


@pytest.mark.row("daemon-lease-15")
@servers.only_builtin
async def test_a_lost_lease_ends_a_daemon_whose_calls_and_clean_up_hang(env: Environment) -> None:
    """Its process has ended when the next daemon leads."""
    flags: dict[str, Any] = {
        "cloud-provider": "stuck",
        "concurrent-node-syncs": "3",
        "leader-elect-lease-duration": "8s",
        "leader-elect-renew-deadline": "4s",
        "leader-elect-retry-period": "1s",
    }
    notes = env.folder / "notes"
    notes.mkdir()
    env.cloud_config.write_text(str(notes))
    variables = install(env.folder, "stuck", PROVIDER)
    for number in range(3):
        await env.cluster.register(f"node-{number}")
    leader = await env.start(flags=flags, env=variables)

    async def all_asked() -> bool:
        return len(list(notes.glob("asked-*"))) == 3

    await wait_for(all_asked, "three calls hang")
    standby = await env.start(flags=flags, env=variables)
    await standby.says("new leader elected")

    await env.proxies[0].down()
    await standby.says("became leader")

    assert leader.exit_code in CUT_SHORT
    assert "ccm/app/main.py" in await cut_short(leader)
    assert len(leader.lines("leaderelection lost")) == 1
    assert {path.name for path in notes.iterdir()} >= {
        *(f"cancelled-node-{number}" for number in range(3)),
        "closing",
    }
    await standby.kill()

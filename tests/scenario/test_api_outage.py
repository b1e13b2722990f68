"""The API server goes away in the middle of the work and comes back."""

from __future__ import annotations

import asyncio

import pytest

from ccm.model import names
from tests.faults import Cut, Rule
from tests.scenario import harness
from tests.scenario.harness import Daemon, Environment

HOSTS = tuple(f"host-{number}" for number in range(6))

LOST = "list or watch failed, retrying"
FOUND = "list and watch work again"


async def half_way(env: Environment) -> Rule:
    """All nodes have their addresses, and none could be finished: that write is cut off."""
    rule = env.proxy.on(harness.NODE_PATCH, Cut())
    for name in HOSTS:
        await env.node(name)
    await env.proxy.wait_for(harness.STATUS_PATCH, count=len(HOSTS), answered=True)
    for name in HOSTS:
        assert await env.cluster.has_taint(name, names.TAINT_UNINITIALIZED)
    return rule


async def restart(env: Environment, rule: Rule, *, down_s: float = 0.0) -> None:
    """End the API server at once, and start it again."""
    await env.server.kill()
    env.proxy.remove(rule)
    await asyncio.sleep(down_s)
    await env.server.start()


async def all_well(env: Environment) -> None:
    """Every node is complete, nothing was deleted, and a new one is served too."""
    await env.node("newcomer")
    await env.cluster.initialised(*HOSTS, "newcomer")
    assert env.writes(harness.NODE_DELETE) == []


def once_each(daemon: Daemon, *messages: str) -> None:
    """Each of these was logged once."""
    assert {text: len(daemon.lines(text)) for text in messages} == dict.fromkeys(messages, 1)


@pytest.mark.both_servers
async def test_the_api_server_restarts_mid_work(env: Environment) -> None:
    """Killed with all nodes half initialised: the same daemon, still the leader, finishes."""
    daemon = await env.start_leading()
    rule = await half_way(env)

    await restart(env, rule)
    await all_well(env)

    assert daemon.exit_code is None
    await daemon.says(FOUND, resource="nodes")
    once_each(daemon, LOST, FOUND, "became leader")


async def test_an_outage_shorter_than_the_lease(env: Environment) -> None:
    """A second without the API server costs nothing: the daemon goes on where it was."""
    daemon = await env.start_leading()
    rule = await half_way(env)

    await env.proxy.down()
    await asyncio.sleep(1.0)
    env.proxy.remove(rule)
    await env.proxy.up()
    await all_well(env)

    assert daemon.exit_code is None
    once_each(daemon, "became leader")
    assert await daemon.stop() == 0


async def test_an_outage_longer_than_the_lease(env: Environment) -> None:
    """The daemon gives up with exit 1; the next one finishes what it left half done."""
    daemon = await env.start_leading(flags=harness.SHORT_LEASE)
    rule = await half_way(env)

    await env.server.kill()
    assert await daemon.ended() == 1
    once_each(daemon, "leaderelection lost")
    env.proxy.remove(rule)
    successor = await env.start(flags=harness.SHORT_LEASE)
    await successor.says("cannot acquire or renew lease, retrying")
    await env.server.start()

    await successor.says("became leader")
    await all_well(env)
    once_each(
        successor,
        "cannot acquire or renew lease, retrying",
        "lease can be read and written again",
    )


async def test_the_api_server_is_not_there_at_start(env: Environment) -> None:
    """The daemon waits for it, says so once, and is stopped in good order while it waits."""
    await env.node(HOSTS[0])
    proxy = await env.new_proxy()
    await proxy.down()
    daemon = await env.start(proxy=proxy)
    impatient = await env.start(proxy=proxy)
    await daemon.says("cannot acquire or renew lease, retrying")
    await impatient.says("cannot acquire or renew lease, retrying")
    assert await impatient.stop() == 0

    await asyncio.sleep(1.5)
    await proxy.up()
    await env.cluster.initialised(HOSTS[0])

    once_each(daemon, "cannot acquire or renew lease, retrying", "became leader")


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_minute_without_the_api_server(env: Environment) -> None:
    """At full length: default lease times, one minute away; a supervisor restarts us."""
    defaults = {
        "leader-elect-lease-duration": "15s",
        "leader-elect-renew-deadline": "10s",
        "leader-elect-retry-period": "2s",
    }
    daemon = await env.start_leading(flags=defaults)
    rule = await half_way(env)

    outage = asyncio.create_task(restart(env, rule, down_s=60.0))
    assert await daemon.ended(within_s=30.0) == 1
    successor = await env.start(flags=defaults)
    await outage
    await successor.says("became leader", within_s=60.0)
    await all_well(env)

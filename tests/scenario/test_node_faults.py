"""Failures of the API server, its watches and the cloud: no node is missed, lost or miswritten."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from ccm.model import names
from ccm.testing.fake_api import Fault
from tests.faults import (
    Action,
    CloseAfterLines,
    Cut,
    InsertLine,
    Match,
    ResetAfterLines,
    Respond,
    RewriteBody,
    RewriteLine,
    Rule,
    SilentAfterLines,
)
from tests.scenario import harness
from tests.scenario.harness import Daemon, Environment, refusal

WATCH_LIST = Match(path=f"^{harness.NODES}$", query="sendInitialEvents=true")

EXPIRED = {
    "type": "ERROR",
    "object": {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": "Expired",
        "message": "too old resource version",
        "code": 410,
    },
}

HTML = Respond(502, b"<html><h1>Bad Gateway</h1></html>", headers={"Content-Type": "text/html"})


def broken(text: bytes) -> bytes:
    """Every object with taints made unreadable: its taints are a word."""
    return re.sub(rb'"taints": ?\[[^]]*\]', b'"taints":"many"', text)


FAULTS: Mapping[str, Action] = {
    "closed at once": CloseAfterLines(0),
    "reset": ResetAfterLines(1),
    "reset before the first line": ResetAfterLines(0),
    "410 as an event": InsertLine(json.dumps(EXPIRED).encode()),
    "401": refusal(401, reason="Unauthorized"),
    "403": refusal(403, reason="Forbidden"),
    "410 as an answer": refusal(410, reason="Expired"),
    "429": refusal(429, reason="TooManyRequests", Retry_After="1"),
    "500": refusal(500, reason="InternalError"),
    "502 of a proxy": HTML,
    "a line that is no JSON": InsertLine(b'{"type":"MODIFIED","object":{"metadata"'),
}


async def settled_node(env: Environment, name: str) -> None:
    """A node that is initialised and ready."""
    await env.node(name)
    await env.cluster.initialised(name)
    await env.cluster.set_ready(name, names.STATUS_TRUE)


def intact(env: Environment, daemon: Daemon) -> None:
    """No node was deleted or initialised twice, and the daemon still leads."""
    assert env.proxy.requests(harness.NODE_DELETE) == []
    assert len(daemon.lines("became leader")) == 1
    done = [line["node"] for line in daemon.lines("node initialised")]
    assert sorted(done) == sorted(set(done))


ALIKE = {"reset before the first line", "403", "500"}
"""What follows is as with another one."""


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[pytest.mark.soak] * (one in ALIKE)) for one in FAULTS]
)
async def test_a_failed_watch_is_restarted(env: Environment, kind: str) -> None:
    """Whether the first watch fails or a later one, the next new node is initialised."""
    proxy = await env.new_proxy()
    at_first = proxy.on(harness.NODE_WATCH, FAULTS[kind], nth=1)
    later = proxy.on(harness.NODE_WATCH, FAULTS[kind], nth=3)
    daemon = await env.start_leading(proxy=proxy)
    await settled_node(env, "early")
    assert (len(at_first.fired), len(later.fired)) == (1, 0)

    proxy.cut_connections()
    await env.node("late")
    await env.cluster.initialised("early", "late")

    assert len(later.fired) == 1
    intact(env, daemon)


@pytest.mark.both_servers
async def test_a_malformed_node_in_a_watch_is_skipped_until_it_is_readable(
    env: Environment,
) -> None:
    """Other nodes are initialised meanwhile."""
    await settled_by_another(env, "early")
    proxy = await env.new_proxy()
    bad = RewriteLine(lambda line: broken(line) if b'"odd"' in line else line)
    rule = proxy.on(harness.NODE_WATCH, bad)
    daemon = await env.start_leading(proxy=proxy)

    await env.node("odd")
    await env.node("late")
    await env.cluster.initialised("early", "late")
    await asyncio.sleep(0.5)
    assert await env.cluster.has_taint("odd", names.TAINT_UNINITIALIZED)

    proxy.remove(rule)
    proxy.cut_connections()
    await env.cluster.patch(f"{harness.NODES}/odd", {"metadata": {"labels": {"healed": "1"}}})
    await env.cluster.initialised("odd")
    intact(env, daemon)


LISTS: Mapping[str, Action] = {
    "410": refusal(410, reason="Expired"),
    "429": refusal(429, reason="TooManyRequests", Retry_After="1"),
    "500": refusal(500, reason="InternalError"),
    "502 of a proxy": HTML,
    "garbage": RewriteBody(lambda body: body[: len(body) // 2]),
    "empty": RewriteBody(lambda _: b""),
    "something else": RewriteBody(lambda _: b'{"kind":"PodList","apiVersion":"v1","items":[]}'),
}


PAIRS = [list(LISTS)[number : number + 2] for number in range(0, len(LISTS), 2)]
"""A daemon suffers both, one after the other."""


@pytest.mark.parametrize("kinds", PAIRS, ids=" and ".join)
async def test_a_failed_list_is_retried_without_watch_list(
    env: Environment, kinds: list[str]
) -> None:
    """A server without watch-list is listed."""
    await settled_by_another(env, "early")
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, refusal(400, reason="BadRequest"))
    rules = [proxy.on(harness.NODE_LIST, LISTS[kind], nth=nth) for nth, kind in enumerate(kinds, 1)]
    await env.node("waiting")

    daemon = await env.start_leading(proxy=proxy)
    await env.cluster.initialised("early", "waiting")
    await env.node("late")
    await env.cluster.initialised("late")

    assert [len(rule.fired) for rule in rules] == [1] * len(kinds)
    intact(env, daemon)


async def test_a_silent_watch_list_falls_back_to_paged_lists(env: Environment) -> None:
    """The daemon gives up the first watch after ten seconds."""
    await env.node("early")
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, SilentAfterLines(0))
    daemon = await env.start_leading(proxy=proxy)

    await env.cluster.initialised("early")

    await daemon.says("server does not support watch-list, using paged lists")
    intact(env, daemon)


@pytest.mark.soak
@pytest.mark.timeout(1000)
async def test_a_silent_watch_is_renewed_at_its_timeout(env: Environment) -> None:
    """In real time: ten minutes without a byte."""
    proxy = await env.new_proxy()
    daemon = await env.start_leading(proxy=proxy)
    await settled_node(env, "early")

    rule = proxy.on(harness.NODE_WATCH, SilentAfterLines(0), times=1)
    proxy.cut_connections()
    await proxy.wait_for(Match(where=lambda exchange: exchange in rule.fired))
    await env.node("late")
    await env.cluster.initialised("early", "late", within_s=700.0)

    intact(env, daemon)


async def settled_by_another(env: Environment, name: str) -> None:
    """A node that was initialised long ago, and is ready."""
    machine = env.machine(name)
    labels = {
        names.LABEL_INSTANCE_TYPE: machine.type,
        names.LABEL_ZONE: machine.zone,
        names.LABEL_REGION: machine.region,
    }
    await env.cluster.register(name, ready=names.STATUS_TRUE, providerID=f"sim://{machine.id}")
    await env.cluster.patch(
        f"{harness.NODES}/{name}", {"metadata": {"labels": labels}, "spec": {"taints": None}}
    )


HOSTS = tuple(f"host-{number}" for number in range(6))

LOST = "list or watch failed, retrying"
FOUND = "list and watch recovered"


async def half_way(env: Environment) -> Rule:
    """All nodes have their addresses, and none could be finished: that write is cut off."""
    rule = env.proxy.on(harness.NODE_PATCH, Cut())
    for name in HOSTS:
        await env.node(name)
    await env.proxy.wait_for(harness.STATUS_PATCH, count=len(HOSTS), answered=True)
    for name in HOSTS:
        assert await env.cluster.has_taint(name, names.TAINT_UNINITIALIZED)
    return rule


async def restart(env: Environment, rule: Rule) -> None:
    """End the API server at once, and start it again."""
    await env.server.kill()
    env.proxy.remove(rule)
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
async def test_node_initialisation_continues_after_an_api_server_restart(env: Environment) -> None:
    """The API server is killed with all nodes half initialised; the same leader finishes."""
    daemon = await env.start_leading()
    rule = await half_way(env)

    await restart(env, rule)
    await all_well(env)

    assert daemon.exit_code is None
    await daemon.says(FOUND, resource="nodes")
    once_each(daemon, LOST, FOUND, "became leader")


async def test_the_leader_survives_an_outage_shorter_than_the_lease(env: Environment) -> None:
    """After one second without the API server, the daemon continues."""
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


DEFAULTS = {
    "leader-elect-lease-duration": "15s",
    "leader-elect-renew-deadline": "10s",
    "leader-elect-retry-period": "2s",
}
AT_LENGTH = pytest.param(DEFAULTS, 60.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)])


@pytest.mark.parametrize(("flags", "down_s"), [(harness.SHORT_LEASE, 0.0), AT_LENGTH])
async def test_the_leader_exits_in_an_outage_longer_than_the_lease(
    env: Environment, flags: Mapping[str, str], down_s: float
) -> None:
    """Exit 1; the next daemon finishes the work."""
    daemon = await env.start_leading(flags=flags)
    rule = await half_way(env)

    await env.server.kill()
    assert await daemon.ended() == 1
    once_each(daemon, "leaderelection lost")
    env.proxy.remove(rule)
    successor = await env.start(flags=flags)
    await successor.says("cannot acquire or renew lease, retrying")
    await asyncio.sleep(down_s)
    await env.server.start()

    await successor.says("became leader")
    await all_well(env)
    once_each(
        successor,
        "cannot acquire or renew lease, retrying",
        "lease access recovered",
    )


async def test_the_daemon_waits_for_the_api_server_at_start(env: Environment) -> None:
    """It logs that once, and SIGTERM stops it while it waits."""
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


NOT_PROCESSED = "node could not be processed, retrying"
PROCESSED_AGAIN = "all nodes can be processed again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble; None as its fault: the cloud cannot be reached."""

    fault: Fault | None = None

    async def strike(self, env: Environment) -> None:
        """Let it begin."""
        if self.fault is None:
            await env.cloud_proxy.down()
        else:
            env.cloud.script.add(self.fault)

    async def pass_by(self, env: Environment) -> None:
        """Let it end."""
        await env.cloud_proxy.up()
        env.cloud.heal()


TROUBLES = {
    "down": Trouble(),
    "too slow": Trouble(fault=Fault(kind="latency", delay_s=30.0)),
    "hanging": Trouble(fault=Fault(kind="hang")),
    "busy": Trouble(fault=Fault(kind="rate_limit", retry_after_s=1.0)),
    "broken": Trouble(fault=Fault(kind="error", status=500)),
    "garbage": Trouble(fault=Fault(kind="garbage")),
    "empty": Trouble(fault=Fault(kind="empty")),
    "somebody else's 404": Trouble(fault=Fault(kind="garbage", status=404)),
}


async def endure(env: Environment, daemon: Daemon, node: str, *, times: int) -> None:
    """The trouble has been met: the node stays uninitialised, and nothing is written.

    Args:
        env: the environment.
        daemon: who meets it.
        node: one that has just been registered.
        times: the how manieth trouble of this daemon it is.
    """
    writes = len(env.proxy.requests(harness.NODE_WRITE))
    await daemon.says(NOT_PROCESSED, count=times)
    await asyncio.sleep(harness.MONITOR_S + 0.1)  # the next pass, which is not logged
    assert await env.cluster.has_taint(node, names.TAINT_UNINITIALIZED)
    assert env.proxy.requests(harness.NODE_WRITE)[writes:] == []


def complaints(daemon: Daemon) -> Counter[tuple[str, str]]:
    """How often each warning was logged about each node; those about settings apart."""
    return Counter(
        (line["msg"], line.get("node", line.get("key", "")))
        for line in daemon.lines()
        if line["level"] in ("warning", "error") and line["logger"] != "daemon"
    )


@pytest.mark.parametrize("kind", TROUBLES)
async def test_cloud_failures_delay_nodes_without_deleting_them(
    env: Environment, kind: str
) -> None:
    """No taint is removed and little logged; once the cloud recovers, work continues at once."""
    trouble = TROUBLES[kind]
    env.configure_cloud(timeout="500ms")
    await env.node("early")
    await trouble.strike(env)
    daemon = await env.start_leading()

    await endure(env, daemon, "early", times=1)
    at_start = complaints(daemon)
    await trouble.pass_by(env)
    await env.cluster.initialised("early")
    await daemon.says(PROCESSED_AGAIN)

    await trouble.strike(env)
    await env.node("late")
    await endure(env, daemon, "late", times=2)
    later = complaints(daemon) - at_start
    await trouble.pass_by(env)
    await env.cluster.initialised("early", "late")
    await daemon.says(PROCESSED_AGAIN, count=2)

    assert env.proxy.requests(harness.NODE_DELETE) == []
    for phase in (at_start, later):
        assert set(phase.values()) == {1}, phase

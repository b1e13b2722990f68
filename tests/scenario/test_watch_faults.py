"""Watches and lists that break, lie or get nowhere: no node is missed, and none is lost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

import pytest

from ccm.model import names
from tests.faults import (
    Action,
    CloseAfterLines,
    InsertLine,
    Match,
    ResetAfterLines,
    Respond,
    RewriteBody,
    RewriteLine,
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
ALIKE = {"reset before the first line", "403", "500"}
"""What follows is as with another one."""


async def settled_node(env: Environment, name: str) -> None:
    """A node that is initialised and ready."""
    await env.node(name)
    await env.cluster.initialised(name)
    await env.cluster.set_ready(name, names.STATUS_TRUE)


def intact(env: Environment, daemon: Daemon) -> None:
    """Nobody was deleted, no node was initialised twice, the daemon still leads."""
    assert env.proxy.requests(harness.NODE_DELETE) == []
    assert len(daemon.lines("became leader")) == 1
    done = [line["node"] for line in daemon.lines("node initialised")]
    assert sorted(done) == sorted(set(done))


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[pytest.mark.soak] * (one in ALIKE)) for one in FAULTS]
)
async def test_a_watch_that_fails(env: Environment, kind: str) -> None:
    """Whether the first watch fails or a later one: the next new node is initialised."""
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


async def test_a_watch_that_never_lasts(env: Environment) -> None:
    """A server that closes every watch after one line is followed all the same."""
    proxy = await env.new_proxy()
    daemon = await env.start_leading(proxy=proxy)
    await settled_node(env, "early")

    proxy.on(harness.NODE_WATCH, CloseAfterLines(1))
    proxy.cut_connections()
    for name in ("one", "two", "three"):
        await env.node(name)
    await env.cluster.initialised("early", "one", "two", "three")

    intact(env, daemon)


@pytest.mark.both_servers
async def test_a_malformed_object_in_a_watch(env: Environment) -> None:
    """A node that cannot be read is left alone, the others are served, and it heals."""
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


async def test_a_node_that_turns_malformed(env: Environment) -> None:
    """What is not readable is not gone: the node stays in the cluster and is served later."""
    proxy = await env.new_proxy()
    daemon = await env.start_leading(proxy=proxy)
    await env.node("odd")
    await env.cluster.initialised("odd")

    rule = proxy.on(harness.NODE_WATCH, RewriteLine(lambda line: line.replace(b'"odd"', b"7")))
    proxy.cut_connections()
    await env.node("late")
    await env.cluster.initialised("late")
    proxy.remove(rule)
    proxy.cut_connections()
    await env.node("later")
    await env.cluster.initialised("odd", "late", "later")

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


@pytest.mark.parametrize("kind", LISTS)
async def test_a_list_that_fails(env: Environment, kind: str) -> None:
    """A server without watch-list is listed, and a list that fails is made again."""
    await settled_by_another(env, "early")
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, refusal(400, reason="BadRequest"))
    rule = proxy.on(harness.NODE_LIST, LISTS[kind], times=1)
    await env.node("waiting")

    daemon = await env.start_leading(proxy=proxy)
    await env.cluster.initialised("early", "waiting")
    await env.node("late")
    await env.cluster.initialised("late")

    assert len(rule.fired) == 1
    intact(env, daemon)


async def test_a_malformed_object_in_a_list(env: Environment) -> None:
    """One node that cannot be read costs no other node anything, and is not taken for gone."""
    await settled_by_another(env, "early")
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, refusal(400, reason="BadRequest"))
    rule = proxy.on(harness.NODE_LIST, RewriteBody(broken))
    await env.node("odd")

    daemon = await env.start_leading(proxy=proxy)
    await proxy.wait_for(harness.NODE_LIST, answered=True)
    await env.node("late")
    await env.cluster.initialised("early", "late")
    assert await env.cluster.has_taint("odd", names.TAINT_UNINITIALIZED)

    proxy.remove(rule)
    await env.cluster.patch(f"{harness.NODES}/odd", {"metadata": {"labels": {"healed": "1"}}})
    await env.cluster.initialised("odd")
    intact(env, daemon)


async def test_a_watch_list_that_never_speaks(env: Environment) -> None:
    """A first watch that stays silent is given up after ten seconds, and the nodes listed."""
    await env.node("early")
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, SilentAfterLines(0))
    daemon = await env.start_leading(proxy=proxy)

    await env.cluster.initialised("early")

    await daemon.says("server does not support watch-list, using paged lists")
    intact(env, daemon)


@pytest.mark.soak
@pytest.mark.timeout(1000)
async def test_a_watch_that_falls_silent(env: Environment) -> None:
    """At full length: a watch without a byte is renewed after its own time, ten minutes."""
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

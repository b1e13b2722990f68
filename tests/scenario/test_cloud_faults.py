"""The cloud is down, slow, busy or talks nonsense: nodes stay as they are, and it passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from ccm.model import names
from ccm.testing.fake_api import Fault
from tests.faults import Match
from tests.scenario import harness
from tests.scenario.harness import Daemon, Environment, wait_for

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
    await asyncio.sleep(harness.MONITOR_S + 0.1)  # the next pass, of which nothing is said
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
async def test_the_cloud_is_in_trouble_at_start_and_later(env: Environment, kind: str) -> None:
    """No taint is lifted, no node deleted, little logged; afterwards the work goes on at once."""
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


async def test_the_cloud_refuses_our_token(env: Environment) -> None:
    """The node waits with a Warning event that has the cause, until the token is accepted."""
    env.configure_cloud(token="wrong")
    await env.node("alpha")
    daemon = await env.start_leading()
    (event,) = await wait_for(
        lambda: env.cluster.events("alpha", names.REASON_INITIALIZATION_FAILED), "a warning"
    )
    assert event["type"] == names.WARNING
    assert "401" in event["message"]
    assert await env.cluster.has_taint("alpha", names.TAINT_UNINITIALIZED)

    # The next try may be half a minute away; whatever changes at the node makes it now.
    tried = len(env.cloud_proxy.log)
    await env.cluster.patch(f"{harness.NODES}/alpha", {"metadata": {"labels": {"touched": "1"}}})
    await env.cloud_proxy.wait_for(Match(), count=tried + 1, answered=True)
    env.cloud.token = "wrong"  # the cloud learns it
    await env.cluster.patch(f"{harness.NODES}/alpha", {"metadata": {"labels": {"touched": "2"}}})
    await env.cluster.initialised("alpha")
    await daemon.says("cloud and API server can be used again")
    assert len(daemon.lines("cannot use cloud or API server, retrying")) == 1

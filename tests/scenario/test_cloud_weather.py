"""The cloud is down, slow, busy or talks nonsense: nodes stay as they are, and it passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from ccm.model import names
from providers.sim.faults import Fault
from tests.scenario import harness
from tests.scenario.harness import Daemon, Stage, wait_for

PROCESSED_AGAIN = "all nodes can be processed again"

PROMPT_S = 20.0
"""Once a trouble is over the work goes on at once, not after a pause of half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble; None as its fault: the cloud cannot be reached."""

    fault: Fault | None = None

    async def strike(self, stage: Stage) -> None:
        """Let it begin."""
        if self.fault is None:
            await stage.cloud_wire.down()
        else:
            stage.cloud.script.add(self.fault)

    async def pass_by(self, stage: Stage) -> None:
        """Let it end."""
        await stage.cloud_wire.up()
        stage.cloud.heal()


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


async def endure(stage: Stage, *nodes: str) -> None:
    """A while of trouble: these nodes stay uninitialised, and nothing is written."""
    writes = len(stage.wire.requests(harness.NODE_WRITE))
    await asyncio.sleep(1.3)
    for name in nodes:
        assert await stage.cluster.has_taint(name, names.TAINT_UNINITIALIZED), name
    assert stage.wire.requests(harness.NODE_WRITE)[writes:] == []


def complaints(daemon: Daemon) -> Counter[tuple[str, str]]:
    """How often each warning was logged about each node; those about settings apart."""
    return Counter(
        (line["msg"], line.get("node", ""))
        for line in daemon.lines()
        if line["level"] in ("warning", "error") and line["logger"] != "daemon"
    )


@pytest.mark.parametrize("kind", TROUBLES)
async def test_the_cloud_is_in_trouble_at_start_and_later(stage: Stage, kind: str) -> None:
    """No taint is lifted, no node deleted, little logged; afterwards the work goes on at once."""
    trouble = TROUBLES[kind]
    stage.configure_cloud(timeout="500ms")
    await stage.node("early")
    await trouble.strike(stage)
    daemon = await stage.start_leading()

    await endure(stage, "early")
    at_start = complaints(daemon)
    await trouble.pass_by(stage)
    await stage.cluster.initialised("early", within_s=PROMPT_S)
    await daemon.says(PROCESSED_AGAIN)

    await trouble.strike(stage)
    await stage.node("late")
    await endure(stage, "late")
    later = complaints(daemon) - at_start
    await trouble.pass_by(stage)
    await stage.cluster.initialised("early", "late", within_s=PROMPT_S)
    await daemon.says(PROCESSED_AGAIN, count=2)

    assert stage.wire.requests(harness.NODE_DELETE) == []
    for phase in (at_start, later):
        assert set(phase.values()) == {1}, phase


async def test_the_cloud_refuses_our_token(stage: Stage) -> None:
    """The node waits with a Warning event that has the cause, until the token is accepted."""
    stage.configure_cloud(token="wrong")
    await stage.node("alpha")
    daemon = await stage.start_leading()
    (event,) = await wait_for(
        lambda: stage.cluster.events("alpha", names.REASON_INITIALIZATION_FAILED), "a warning"
    )
    assert event["type"] == names.WARNING
    assert "401" in event["message"]
    assert await stage.cluster.has_taint("alpha", names.TAINT_UNINITIALIZED)

    await asyncio.sleep(1.0)
    assert len(daemon.lines("cannot use cloud or API server, retrying")) == 1
    stage.cloud.token = "wrong"  # the cloud learns it
    # The next try may be half a minute away; whatever changes at the node makes it now.
    await stage.cluster.patch(f"{harness.NODES}/alpha", {"metadata": {"labels": {"touched": "1"}}})
    await stage.cluster.initialised("alpha")
    await daemon.says("cloud and API server can be used again")

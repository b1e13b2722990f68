"""Signals and the end of the process."""

from __future__ import annotations

import asyncio
import signal

import pytest

from ccm.model import names
from providers.sim.faults import Fault
from tests.faults import Delay, Hold, Match
from tests.scenario import harness
from tests.scenario.harness import Stage

EVENT_WRITE = Match(write=True, path="/events")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_good_order(stage: Stage, number: signal.Signals) -> None:
    """Exit 0 in time: events on their way arrive, the Lease is given back, nothing is lost."""
    wire = await stage.new_wire()
    wire.on(EVENT_WRITE, Delay(0.3))
    hosts = [f"host-{number}" for number in range(3)]
    for name in hosts:
        await stage.node(name)
    daemon = await stage.start_leading(wire=wire)
    await daemon.says("node initialised", count=len(hosts))

    daemon.signal(number)
    assert await daemon.ended() == 0

    for name in hosts:
        assert len(await stage.cluster.events(name, names.REASON_SYNCED)) == 1
    assert (await stage.cluster.lease()).get("holderIdentity", "") == ""
    said = [line["msg"] for line in daemon.lines()]
    assert said.index("stopping") < said.index("lease given back") < said.index("stopped")


@pytest.mark.row("daemon-stop-03")
async def test_a_signal_while_the_cloud_hangs(stage: Stage) -> None:
    """Questions without an answer hold up nothing: exit 0 in time, the Lease given back."""
    stage.configure_cloud(timeout="60s")
    stage.cloud.script.add(Fault(kind="hang"))
    for number in range(8):
        await stage.node(f"host-{number}")
    daemon = await stage.start_leading()
    await stage.cloud_wire.wait_for(Match(), timeout_s=harness.WAIT_S)

    assert await daemon.stop() == 0

    assert (await stage.cluster.lease()).get("holderIdentity", "") == ""


@pytest.mark.row("daemon-stop-04")
async def test_a_second_signal_ends_it_at_once(stage: Stage) -> None:
    """Whoever asks twice does not wait for events and the Lease."""
    wire = await stage.new_wire()
    never = asyncio.Event()
    daemon = await stage.start_leading(wire=wire)
    for match in (EVENT_WRITE, harness.LEASE_WRITE):
        wire.on(match, Hold(never))
    await stage.node("alpha")
    await stage.cluster.initialised("alpha")

    daemon.signal(signal.SIGTERM)
    await daemon.says("stopping")
    await wire.wait_for(EVENT_WRITE, timeout_s=harness.WAIT_S)
    assert daemon.exit_code is None
    daemon.signal(signal.SIGTERM)

    assert await daemon.ended() == 1

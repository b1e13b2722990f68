"""Two replicas take turns under load: who writes when, and how long nobody does."""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.sandbox import realserver
from tests import servers
from tests.scenario import relay
from tests.scenario.relay import Relay

FULL_LENGTH = [pytest.mark.soak, pytest.mark.timeout(3000)]
SHORT = [pytest.mark.timeout(300)]


@pytest_asyncio.fixture
async def series(tmp_path: Path) -> AsyncIterator[Relay]:
    """Two replicas before an API server of their own, which writes down who did what."""
    async with (
        realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            users=relay.USERS,
            audit_log=tmp_path / "audit.log",
        ) as server,
        relay.open_relay(server, tmp_path) as opened,
    ):
        yield opened


@pytest.mark.row("daemon-stop-05")
@pytest.mark.envtest
@pytest.mark.parametrize(
    ("stops", "kills"), [pytest.param(2, 1, marks=SHORT), pytest.param(50, 20, marks=FULL_LENGTH)]
)
async def test_nobody_writes_outside_its_own_lease(
    series: Relay, tmp_path: Path, stops: int, kills: int
) -> None:
    """Neither at the API server nor in the cloud, however the leader ends; no work is lost."""
    end = asyncio.Event()
    load = asyncio.get_running_loop().create_task(series.load.run(end))
    await series.begin()
    for number in [signal.SIGTERM] * stops + [signal.SIGKILL] * kills:
        await series.hand_over(number)
    end.set()
    await load
    await series.settled()

    writes = relay.audited(tmp_path / "audit.log")
    terms = relay.terms(writes)
    assert len(terms) == stops + kills + 1
    for earlier, later in itertools.pairwise(terms):
        assert earlier.end < later.start, (earlier, later)
    acts = [(one.user, one.received, one.path) for one in writes if one.resource != "leases"]
    cloud_acts = list(series.cloud_writes())
    assert acts
    assert cloud_acts
    assert [
        act
        for act in acts + cloud_acts
        if not any(term.user == act[0] and term.start < act[1] < term.end for term in terms)
    ] == []
    for number in (signal.SIGTERM, signal.SIGKILL):
        took = relay.durations(series.handovers, writes, number)
        print(
            f"{number.name}: {len(took)} hand-overs, median {statistics.median(took):.3f} s, "
            f"worst {max(took):.3f} s from the signal to the successor's first write"
        )

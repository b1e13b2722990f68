"""Who we are to the API server: a wrong token is no reason to give up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.faults import Match
from tests.scenario import harness
from tests.scenario.harness import Stage, refusal

REFUSED = "cannot take or renew the lease, trying on"


def kubeconfig_with(path: Path, url: str, token_file: Path) -> Path:
    """A kubeconfig that names a token file."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"tokenFile": str(token_file)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


@pytest.mark.both_servers
async def test_a_wrong_token_becomes_right(stage: Stage) -> None:
    """401 at start is tried again with pauses and said once; a new token is taken at once."""
    token = stage.folder / "token"
    token.write_text("wrong")
    wire = await stage.new_wire()
    await stage.node("alpha")
    daemon = await stage.start(
        kubeconfig=kubeconfig_with(stage.folder / "kubeconfig", wire.url, token)
    )
    await daemon.says(REFUSED)
    await asyncio.sleep(2.0)

    refused = wire.requests(Match())
    assert {exchange.status for exchange in refused} <= {401, None}
    # Every half second or slower the Lease, and now and then its watch.
    assert 2 <= len(refused) <= 12
    token.write_text(stage.token)
    await stage.cluster.initialised("alpha")

    assert len(daemon.lines(REFUSED)) == 1
    assert len(daemon.lines("became leader")) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_in_the_middle_of_the_work(stage: Stage, status: int) -> None:
    """Refused on every path but the Lease's: tried again, until it is allowed."""
    daemon = await stage.start_leading()
    await stage.node("early")
    await stage.cluster.initialised("early")
    rule = stage.wire.on(Match(path=f"^{harness.NODES}"), refusal(status))
    stage.wire.cut_connections()
    await stage.node("late")
    await asyncio.sleep(1.0)

    stage.wire.remove(rule)
    await stage.cluster.initialised("early", "late")

    assert daemon.exit_code is None
    assert stage.writes(harness.NODE_DELETE) == []
    assert len(daemon.lines("cannot follow the API server, trying on", resource="nodes")) == 1

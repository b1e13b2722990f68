"""The vendor's own Go clients, which its managers are made of, work with the fake.

The versions are those of the vendor's cloud-controller-manager.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from ccm.testing.fake_api import Exchange
from providers.stackit.testing import server
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT, REGION
from tests.stackit import document

STORY = Path(__file__).parent / "goclient"
VOLUME = "3f1c1d52-6d1c-4a0e-8e5a-0b7a4f0a9c11"
NOT_OURS = {
    # For other clients of the fake; the daemon has no use for them.
    "GET /networks",
    "GET /quotas",
    "POST /networks/{networkId}/nics",
    "POST /servers/{serverId}/start",
    "POST /servers/{serverId}/stop",
}


@pytest.mark.soak  # building the client takes a minute the first time
@pytest.mark.timeout(1200)
async def test_a_whole_life(
    service: server.Service, endpoint: str, seen: list[Exchange], tmp_path: Path
) -> None:
    """By the key flow: servers, cards, what classes name, load balancers, credentials. What they
    say is what they are told, and the documents agree with all of it."""
    if not shutil.which("go"):
        pytest.fail("no `go` here: the vendor's Go clients did not run; install Go 1.25 or newer")
    document.load()
    program, key = tmp_path / "client", tmp_path / "key.json"
    key.write_bytes(service.account.key)
    service.cloud.volumes[VOLUME] = {"id": VOLUME, "availabilityZone": "eu01-2", "size": 40}
    build = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    await asyncio.to_thread(subprocess.run, build, cwd=STORY, check=True)

    told = await asyncio.to_thread(
        subprocess.run,
        [str(program), endpoint, PROJECT, REGION, NETWORK, IMAGE, VOLUME, str(key)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert told.stdout == "done\n", told.stderr
    ours = {
        f"{method} {path}" for method, path, _ in (*server.IAAS_CALLS, *server.BALANCER_CALLS)
    } - NOT_OURS
    tried = {one.operation.replace(server.ROOT, "") for one in seen}
    print(f"{len(seen)} calls, {len(tried)} kinds")
    assert ours <= tried, f"not tried: {sorted(ours - tried)}"
    assert document.violations(seen) == []

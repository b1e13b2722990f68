"""The vendors' own Go clients, which their managers are made of, work with the fakes.

The versions are those of the vendors' cloud-controller-managers.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ccm.testing.fake_api import Exchange
from providers.hcloud.testing import server as hcloud
from providers.stackit.testing import server as stackit
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT, REGION
from tests.hcloud import document as hcloud_document
from tests.hcloud.test_vendor_client import KEY
from tests.stackit import document as stackit_document

# Building a client takes a minute the first time.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

BY_NUMBER = re.compile(
    r"POST /servers request: image: \d+ is not of type 'string'; "
    r"ssh_keys/0: \d+ is not of type 'string'"
)
"""The client orders what it knows by number; the document wants a text, the cloud takes both."""

VOLUME = "3f1c1d52-6d1c-4a0e-8e5a-0b7a4f0a9c11"
NOT_OURS = {
    # For other clients of the fake; the daemon has no use for them.
    "GET /networks",
    "GET /quotas",
    "POST /networks/{networkId}/nics",
    "POST /servers/{serverId}/start",
    "POST /servers/{serverId}/stop",
}


async def lived(vendor: str, folder: Path, server: Any, fake: Any, *words: str) -> None:
    """The client's story to its end; what it says is what it is told."""
    if not shutil.which("go"):
        pytest.fail("no `go` here: the vendor's Go client did not run; install Go 1.25 or newer")
    program = folder / "client"
    build = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    story = Path(__file__).parents[1] / vendor / "goclient"
    await asyncio.to_thread(subprocess.run, build, cwd=story, check=True)
    async with server.serve(fake) as endpoint:
        told = await asyncio.to_thread(
            subprocess.run,
            [str(program), endpoint, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert told.stdout == "done\n", told.stderr


async def test_the_go_client_of_hcloud_works_with_the_fake(tmp_path: Path) -> None:
    """Servers and related resources, routes and load balancers."""
    seen: list[Exchange] = []
    fake = hcloud.Service(witness=seen.append)
    await lived("hcloud", tmp_path, hcloud, fake, fake.token, KEY)

    violations: Sequence[str] = hcloud_document.violations(seen)
    assert [one for one in violations if not BY_NUMBER.fullmatch(one)] == []


async def test_the_go_client_of_stackit_works_with_the_fake(tmp_path: Path) -> None:
    """Key flow, servers, network interfaces, objects that classes name, and load balancers."""
    stackit_document.load()
    seen: list[Exchange] = []
    fake, key = stackit.Service(witness=seen.append), tmp_path / "key.json"
    key.write_bytes(fake.account.key)
    fake.cloud.volumes[VOLUME] = {"id": VOLUME, "availabilityZone": "eu01-2", "size": 40}
    place = (PROJECT, REGION, NETWORK, IMAGE, VOLUME, str(key))
    await lived("stackit", tmp_path, stackit, fake, *place)

    calls = (*stackit.IAAS_CALLS, *stackit.BALANCER_CALLS)
    ours = {f"{method} {path}" for method, path, _ in calls} - NOT_OURS
    tried = {one.operation.replace(stackit.ROOT, "") for one in seen}
    assert ours <= tried, f"not tried: {sorted(ours - tried)}"
    assert stackit_document.violations(seen) == []

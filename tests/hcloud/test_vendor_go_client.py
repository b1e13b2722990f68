"""The vendor's own Go client, which its managers are made of, works with the fake."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ccm.testing.fake_api import Exchange
from providers.hcloud.testing import server
from tests.hcloud import document
from tests.hcloud.test_vendor_client import KEY

STORY = Path(__file__).parent / "goclient"
BY_NUMBER = re.compile(
    r"POST /servers request: image: \d+ is not of type 'string'; "
    r"ssh_keys/0: \d+ is not of type 'string'"
)
"""The client orders what it knows by number; the document wants a text, the cloud takes both."""


@pytest.mark.soak  # building the client takes a minute the first time
@pytest.mark.timeout(1200)
async def test_a_whole_life(
    service: server.Service, endpoint: str, seen: list[Exchange], tmp_path: Path
) -> None:
    """Servers and what stands beside them, routes and load balancers: what they say is what they
    are told, and the document agrees with all of it."""
    if not shutil.which("go"):
        pytest.fail("no `go` here: the vendor's Go client did not run; install Go 1.25 or newer")
    program = tmp_path / "client"
    build = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    await asyncio.to_thread(subprocess.run, build, cwd=STORY, check=True)

    told = await asyncio.to_thread(
        subprocess.run,
        [str(program), endpoint, service.token, KEY],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert told.stdout == "done\n", told.stderr
    print(f"{len(seen)} calls, {len({one.operation for one in seen})} kinds")
    violations = document.violations(seen)
    assert [one for one in violations if not BY_NUMBER.fullmatch(one)] == []

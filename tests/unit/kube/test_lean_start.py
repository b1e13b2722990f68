"""A daemon inside a cluster loads none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.kube.proxy import CERTS

_START = """
import asyncio, pathlib, sys
from ccm.kube import client, config, transport

async def main():
    found = config.load(
        environ={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"},
        service_account=pathlib.Path(sys.argv[1]),
    )
    async with transport.Transport(found) as opened:
        client.Client(opened, name="x")
        print((await found.credentials.current()).header)

asyncio.run(main())
heavy = {"kubernetes", "pydantic", "requests", "urllib3", "yaml"} & set(sys.modules)
print("heavy:", sorted(heavy))
peak = [line for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
print("rss:", peak.split()[1])
"""


def test_an_in_cluster_start_is_lean(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_bytes((CERTS / "authority-one.pem").read_bytes())
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", _START, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    header, heavy, rss = done.stdout.splitlines()
    assert header == "Bearer t"
    assert heavy == "heavy: []"
    assert int(rss.removeprefix("rss: ")) < 60 * 1024

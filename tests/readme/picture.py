"""Draw the picture of the README: a sandbox in which one machine goes off and one is deleted.

`python -m tests.readme.picture FILE`; it takes half a minute.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

POWERED_OFF, DELETED = "0002", "0004"

SETTLE_S = 12.0
"""Time for both load balancers to lose a member, within 10 s. No output line tells when."""


def main(file: str) -> int:
    """Play, write the file; the exit status."""
    command = [sys.executable, "-m", "ccm.cli", "sandbox", "--picture", file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sandbox:
        try:
            assert sandbox.stdout is not None
            _play(iter(sandbox.stdout))
        finally:
            sandbox.send_signal(signal.SIGINT)
            sandbox.communicate(timeout=60)
    return sandbox.returncode


def _play(said: Iterator[str]) -> None:
    folder = _next(said, "starting;").split()[-1]
    _next(said, "converged:")
    cloud = yaml.safe_load((Path(folder) / "cloud" / "cloud.yaml").read_text())
    _ask(cloud, "POST", f"i-{POWERED_OFF}/actions", b'{"action": "stop"}')
    _ask(cloud, "DELETE", f"i-{DELETED}")
    waited = {f"node-{POWERED_OFF}: shutdown taint set", f"node-{DELETED}: deleted"}
    while waited:
        line = next(said)
        waited = {text for text in waited if text not in line}
    time.sleep(SETTLE_S)


def _next(said: Iterator[str], start: str) -> str:
    return next(line for line in said if line.startswith(start))


def _ask(cloud: dict[str, str], verb: str, path: str, body: bytes | None = None) -> None:
    request = urllib.request.Request(
        f"{cloud['url']}/v1/instances/{path}",
        data=body,
        method=verb,
        headers={"Authorization": f"Bearer {cloud['token']}"},
    )
    urllib.request.urlopen(request, timeout=10).close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A throw-away Prometheus, from Debian's package.

The package is downloaded with apt and unpacked into a cache, not installed: its daemon would start.
Where that does not work tests are skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from ccm.sandbox import process
from tests.waiting import DEADLINE_S

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")
MISSING = "no Prometheus here: `apt install prometheus`; its tests did not run"


def programs() -> Path | None:
    """The folder with `prometheus` and `promtool`; None: there is none, and none can be had."""
    found = shutil.which("promtool")
    if found and shutil.which("prometheus"):
        return Path(found).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ccm" / PACKAGE
    folder = cache / "usr" / "bin"
    if not _is_complete(folder) and shutil.which("apt-get") and shutil.which("dpkg"):
        cache.parent.mkdir(parents=True, exist_ok=True)
        # Several processes of a run want it at the same time.
        with open(cache.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_complete(folder):
                _fetch(cache)
    return folder if _is_complete(folder) else None


def require_programs() -> Path:
    """The folder with the programs; without it the test is skipped, or fails where `CI` is set."""
    folder = programs()
    if folder is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in PROGRAMS)


def _fetch(cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache.parent) as name:
        fresh = Path(name)
        # apt drops its rights to a user who has to be able to write here.
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", PACKAGE]
        if not _works(download, fresh):
            # Without the lists of packages, apt knows none.
            _works(["apt-get", "update", "-qq"], fresh)
            _works(download, fresh)
        packages = map(str, fresh.glob("*.deb"))
        if _works(["dpkg", "-x", next(packages, ""), "unpacked"], fresh):
            shutil.rmtree(cache, ignore_errors=True)
            (fresh / "unpacked").rename(cache)


def _works(command: Sequence[str], folder: Path) -> bool:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=DEADLINE_S, check=False)
    return done.returncode == 0


def promtool(*words: str | Path) -> tuple[int, str]:
    """Run promtool; its exit status and output (both streams)."""
    done = subprocess.run(
        [require_programs() / "promtool", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout


@dataclass(frozen=True, slots=True)
class Server:
    """A running Prometheus."""

    session: aiohttp.ClientSession

    async def values(self, expression: str) -> list[float]:
        """The value of each series that an expression has now, without those that are no numbers.

        Raises:
            AssertionError: the expression is invalid.
        """
        async with self.session.get("/api/v1/query", params={"query": expression}) as response:
            answer: Mapping[str, Any] = await response.json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        found = (float(series["value"][1]) for series in answer["data"]["result"])
        return [value for value in found if math.isfinite(value)]


@contextlib.asynccontextmanager
async def running(
    folder: Path, job: str, ports: Sequence[int], *, token: str = ""
) -> AsyncIterator[Server]:
    """A Prometheus that scrapes daemons of this machine, each at a port of its own.

    Args:
        folder: of the test, for its files.
        job: label of all series.
        ports: of the daemons, which may start later.
        token: with which it authenticates; empty = none.
    """
    place = require_programs()
    config = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s"},
        "scrape_configs": [
            {
                "job_name": job,
                "scheme": "https",
                "tls_config": {"insecure_skip_verify": True},
                **({"authorization": {"credentials": token}} if token else {}),
                "static_configs": [{"targets": [f"{process.LOOPBACK}:{port}" for port in ports]}],
            }
        ],
    }
    file, port = folder / "prometheus.yml", process.pick_port()
    file.write_text(yaml.safe_dump(config))
    address = f"{process.LOOPBACK}:{port}"
    words = (
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    log = folder / "prometheus.log"
    with open(log, "wb") as output:
        child = await asyncio.create_subprocess_exec(
            place / "prometheus", *words, stdout=output, stderr=output
        )
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session:
            await _ready(session, child, log)
            yield Server(session)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _ready(
    session: aiohttp.ClientSession, child: asyncio.subprocess.Process, log: Path
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            assert child.returncode is None, log.read_text()
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get("/-/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)

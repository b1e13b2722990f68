"""A throw-away PostgreSQL server, from Debian's package.

It refuses to run as root, so root runs it as the user that the package makes. Where it is not
installed tests are skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

USER = "postgres"
MISSING = "no PostgreSQL here: `apt install postgresql`; its tests did not run"


def programs() -> Path | None:
    """The folder with `initdb` and `pg_ctl`; None: there is none."""
    found = shutil.which("initdb")
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    place = Path(found).resolve() if found else newest[-1] if newest else None
    return place.parent if place else None


def as_user(*command: str) -> list[str]:
    """The command as one whom the server accepts."""
    if os.getuid() != 0:
        return list(command)
    who = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return [*who, "env", f"HOME={tempfile.gettempdir()}", *command]


@contextmanager
def running() -> Iterator[Path]:
    """The folder of its socket; the database is `postgres`, and so is the user."""
    place = programs()
    if place is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="ccm-pg-"))
    if os.getuid() == 0:
        shutil.chown(folder, USER, USER)
    data, log = str(folder / "data"), str(folder / "log")
    control = as_user(str(place / "pg_ctl"), "-D", data, "-w", "-l", log)
    init = as_user(str(place / "initdb"), "-D", data, "-U", USER, "-A", "trust", "--no-sync")
    try:
        subprocess.run(init, check=True, capture_output=True, cwd="/", timeout=60)
        options = f"-k {folder} -c listen_addresses='' -c fsync=on"
        subprocess.run(
            [*control, "-o", options, "start"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=60,
        )
        yield folder
    finally:
        stop = [*control, "-m", "immediate", "stop"]
        subprocess.run(stop, check=False, capture_output=True, cwd="/", timeout=60)
        shutil.rmtree(folder, ignore_errors=True)

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

from tests import pki
from tests.waiting import DEADLINE_S

USER = "postgres"
BELIEVED = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
"""Authentication: none on the socket, TLS and a password on TCP."""

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


def _listening(folder: Path, port: int, tls: pki.Files | None) -> str:
    if tls is None:
        return "-c listen_addresses=''"
    own = [shutil.copy(path, folder) for path in (tls.chain, tls.key)]
    for path in own:
        os.chmod(path, 0o600)
        if os.getuid() == 0:
            shutil.chown(path, USER, USER)
    words = (f"-p {port}", "-c listen_addresses=127.0.0.1", "-c ssl=on")
    return " ".join((*words, f"-c ssl_cert_file={own[0]}", f"-c ssl_key_file={own[1]}"))


@contextmanager
def running(*, port: int = 0, tls: pki.Files | None = None) -> Iterator[Path]:
    """The folder of its socket, where everybody is believed; the database is `postgres`, and so
    is the user.

    Args:
        port: of 127.0.0.1, for TLS and passwords only; 0: none.
        tls: the certificate that is shown there.
    """
    place = programs()
    if place is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="ccm-pg-"))
    if os.getuid() == 0:
        shutil.chown(folder, USER, USER)
    data, log = str(folder / "data"), str(folder / "log")
    options = f"-k {folder} " + _listening(folder, port, tls)
    control = as_user(str(place / "pg_ctl"), "-D", data, "-w", "-l", log)
    init = as_user(str(place / "initdb"), "-D", data, "-U", USER, "-A", "trust", "--no-sync")
    try:
        subprocess.run(init, check=True, capture_output=True, cwd="/", timeout=DEADLINE_S)
        if tls is not None:
            (folder / "data" / "pg_hba.conf").write_text(BELIEVED)
        subprocess.run(
            [*control, "-o", options, "start"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=DEADLINE_S,
        )
        yield folder
    finally:
        stop = [*control, "-m", "immediate", "stop"]
        subprocess.run(stop, check=False, capture_output=True, cwd="/", timeout=DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)

"""The sandboxes that run on this machine, and how their clouds are reached.

Each says so in a file of its folder, which it keeps locked while it lives: a lock ends with its
process, however that ends, and nobody takes another process for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ccm.base import files

PREFIX = "ccm-sandbox-"
"""How the folder of a sandbox is called, in the folder for temporary files."""

_FILE = "sandbox.json"


class NoSandbox(Exception):
    """None is meant, or several may be; the text says what to do."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud of a running sandbox; `url` empty: it is somebody else's."""

    url: str = ""
    token: str = ""


@contextlib.contextmanager
def announced(folder: Path, told: Running) -> Iterator[None]:
    """Let others find a sandbox while the block runs."""
    path = folder / _FILE
    files.write_private(path, "")
    with path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # who looks for sandboxes holds it for a moment
        held.write(msgspec.json.encode(told))
        held.flush()
        yield


def find(folder: Path | None, kubeconfig: str, *, home: Path | None = None) -> Running:
    """The sandbox that somebody means.

    Args:
        folder: its folder, if they said so.
        kubeconfig: $KUBECONFIG; one in a sandbox's folder names that sandbox.
        home: where the folders lie; None: where temporary files do.

    Raises:
        NoSandbox: it does not run, or several may be meant.
    """
    if folder is not None:
        found = _read(folder)
        if found is None:
            raise NoSandbox(f"no sandbox runs in {folder}")
        return found
    where = Path(tempfile.gettempdir()) if home is None else home
    running = {path: told for path in sorted(where.glob(f"{PREFIX}*")) if (told := _read(path))}
    meant = [path for path in running if path in Path(kubeconfig).parents]
    chosen = meant or list(running)
    if not chosen:
        raise NoSandbox(f"no sandbox runs (none in {where}); start one: kube-ccm sandbox")
    if len(chosen) > 1:
        raise NoSandbox(
            f"{len(chosen)} sandboxes run: {', '.join(map(str, chosen))}; say which one with "
            "--folder=FOLDER, or export the KUBECONFIG that it printed"
        )
    return running[chosen[0]]


def _read(folder: Path) -> Running | None:
    """What a sandbox says of itself; None: it does not run, or is somebody else's."""
    try:
        with (folder / _FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None
    return None

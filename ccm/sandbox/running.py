"""The sandboxes that run on this machine: how to find one, and change the machines of its cloud.

Each says so in a file of its folder, which it keeps locked while it lives: a lock ends with its
process, however that ends, and nobody takes another process for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from ccm.base import files
from ccm.sandbox import cloud

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


class Refused(Exception):
    """It cannot be done; the text says why."""


async def carry_out(act: str, node: str, told: Running) -> str:
    """Do one of `ACTS` to the machine of a node; what was done, for people.

    Raises:
        Refused: the node has no machine there, or already has one.
        CloudTrouble: the cloud refused or did not answer.
    """
    if not told.url:
        raise Refused("this sandbox runs with a cloud of your own: do it there")
    async with cloud.open_admin(told.url, told.token) as admin:
        return await ACTS[act](admin, node)


async def _power_off(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.act(machine.id, "stop")
    return f"{node}: {machine.id} is powered off; its node gets the shutdown taint"


async def _power_on(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.act(machine.id, "start")
    return f"{node}: {machine.id} is powered on; its node loses the shutdown taint"


async def _delete(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.delete(machine.id)
    return f"{node}: {machine.id} is deleted; its node goes when the cloud has denied it twice"


async def _add(admin: cloud.Admin, node: str) -> str:
    found = {one.name for one in await admin.instances()}
    if node in found:
        raise Refused(f"{node} has a machine already")
    machine = await admin.add(node, number=len(found))
    return f"{node}: {machine.id} runs; its node registers"


async def _machine(admin: cloud.Admin, node: str) -> cloud.Instance:
    found = {one.name: one for one in await admin.instances()}
    if node not in found:
        known = ", ".join(sorted(found)[:_SHOWN]) or "none"
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise Refused(f"the cloud has no machine for {node!r}; it has {known}{more}")
    return found[node]


_SHOWN = 5

ACTS: Mapping[str, Callable[[cloud.Admin, str], Awaitable[str]]] = {
    "poweroff": _power_off,
    "poweron": _power_on,
    "delete": _delete,
    "add": _add,
}
"""What can be done, by the words of the command line."""

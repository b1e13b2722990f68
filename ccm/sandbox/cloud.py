"""The simulated cloud as its administrator sees it, over HTTP; and how others find it.

Everything goes through the administrator's paths (`/admin`): never counted among the
cloud calls, never slow, never broken by a fault.

A running sandbox has a file in its folder that says how to reach its cloud, and keeps it locked: a
lock ends with its process, however that ends, and no other process is taken for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from ccm.base import files
from ccm.base.wire import reason

T = TypeVar("T")

TYPES = ("small", "medium", "large")
ZONES = ("sim-1a", "sim-1b", "sim-1c")
REGION = "sim-1"
"""What the instances of a sandbox are, in turn."""

RUNNING = "running"
DELETED = "deleted"

PREFIX = "ccm-sandbox-"
"""Prefix of a sandbox's folder, in the folder for temporary files."""

_FILE = "sandbox.json"
_SHOWN = 5
_TIMEOUT_S = 10.0
_BATCH = 1000


class CloudTrouble(Exception):
    """The simulated cloud did not answer as it should."""


class Refused(Exception):
    """It cannot be done; the text says why, and what to do."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance, as far as a sandbox cares."""

    id: str
    name: str
    state: str
    joins: bool = True


class _Instances(msgspec.Struct, frozen=True, kw_only=True):
    instances: tuple[Instance, ...]


class Balancer(msgspec.Struct, frozen=True, kw_only=True):
    """One load balancer, as far as a sandbox cares."""

    name: str
    members: tuple[str, ...]


class _Balancers(msgspec.Struct, frozen=True, kw_only=True):
    balancers: tuple[Balancer, ...]
    next_cursor: str | None = None


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    total: int


class Admin:
    """Calls behind the scenes; use `open_admin`. All raise CloudTrouble."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._session = session

    async def place(self, names: Sequence[str]) -> None:
        """Place one running instance for each name."""
        wanted = [
            {"id": f"i-{number + 1:04d}", "name": name, **_kind(number)}
            for number, name in enumerate(names)
        ]
        for start in range(0, len(wanted), _BATCH):
            body = {"instances": wanted[start : start + _BATCH]}
            await self._ask("POST", "/admin/instances", _Instances, body)

    async def running(self) -> Mapping[str, str]:
        """Node name -> instance ID of all instances that run and join the cluster."""
        found = await self.instances()
        return {one.name: one.id for one in found if one.state == RUNNING and one.joins}

    async def instances(self) -> Sequence[Instance]:
        """All instances but those that are deleted."""
        found = await self._ask("GET", "/admin/snapshot", _Instances)
        return [one for one in found.instances if one.state != DELETED]

    async def add(self, name: str, *, number: int) -> Instance:
        """Place one more running instance; type and zone follow from its number."""
        wanted = {"name": name, **_kind(number)}
        placed = await self._ask("POST", "/admin/instances", _Instances, {"instances": [wanted]})
        return placed.instances[0]

    async def act(self, instance: str, action: str) -> None:
        """`stop` or `start` an instance; done again it does nothing."""
        await self._call("POST", f"/admin/instances/{instance}/actions", {"action": action})

    async def delete(self, instance: str) -> None:
        """Delete an instance."""
        await self._call("DELETE", f"/admin/instances/{instance}")

    async def members(self) -> Mapping[str, int]:
        """Name of each load balancer -> how many members it has."""
        found: dict[str, int] = {}
        path = "/admin/balancers"
        while True:
            page = await self._ask("GET", path, _Balancers)
            found |= {one.name: len(one.members) for one in page.balancers}
            if page.next_cursor is None:
                return found
            path = f"/admin/balancers?cursor={page.next_cursor}"

    async def call_count(self) -> int:
        """How many calls the cloud's customers made so far."""
        # A log position that is never reached: the sum without the entries.
        return (await self._ask("GET", f"/admin/calls?after={2**53}", _Calls)).total

    async def _ask(self, method: str, path: str, answer: type[T], body: Any = None) -> T:
        return msgspec.json.decode(await self._call(method, path, body), type=answer)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, self.url + path, data=data) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CloudTrouble(f"{method} {path}: no answer: {reason(error)}") from error
        if response.status >= 300:
            raise CloudTrouble(f"{method} {path}: HTTP {response.status} {text[:200]!r}")
        return text


@contextlib.asynccontextmanager
async def open_admin(url: str, token: str) -> AsyncIterator[Admin]:
    """Calls with a pool of connections of their own."""
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        trust_env=False,
    ) as session:
        yield Admin(session, url)


def _kind(number: int) -> dict[str, str]:
    kind, zone = TYPES[number % len(TYPES)], ZONES[number % len(ZONES)]
    return {"type": kind, "zone": zone, "region": REGION}


# --- running sandboxes --------------------------------------------------------------------------


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud of a running sandbox; `url` empty: it is another one."""

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
    """Return the sandbox that is meant.

    Args:
        folder: its folder; None: not given.
        kubeconfig: $KUBECONFIG; one in a sandbox's folder names that sandbox.
        home: where the folders lie; None: where temporary files do.

    Raises:
        Refused: it does not run, or several may be meant.
    """
    if folder is not None:
        found = _read(folder)
        if found is None:
            raise Refused(f"no sandbox runs in {folder}")
        return found
    where = Path(tempfile.gettempdir()) if home is None else home
    running = {path: told for path in sorted(where.glob(f"{PREFIX}*")) if (told := _read(path))}
    meant = [path for path in running if path in Path(kubeconfig).parents]
    chosen = meant or list(running)
    if not chosen:
        raise Refused(f"no sandbox runs (none in {where}); start one: kube-ccm sandbox")
    if len(chosen) > 1:
        raise Refused(
            f"{len(chosen)} sandboxes run: {', '.join(map(str, chosen))}; say which one with "
            "--folder=FOLDER, or export the KUBECONFIG that it printed"
        )
    return running[chosen[0]]


def _read(folder: Path) -> Running | None:
    """Return the file of a running sandbox; None: it does not run, or is another user's."""
    try:
        with (folder / _FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None
    return None


_DONE = {
    "poweroff": "is powered off; its node gets the shutdown taint",
    "poweron": "is powered on; its node loses the shutdown taint",
    "delete": "is deleted; its node goes when the cloud has denied it twice",
    "add": "runs; its node registers",
}
"""Acts, by the words of the command line -> what comes of them."""


async def carry_out(act: str, node: str, told: Running) -> str:
    """Do one of the acts to the machine of a node; return what was done, for people.

    Raises:
        Refused: the node has no machine there, or already has one.
        CloudTrouble: the cloud refused or did not answer.
    """
    if not told.url:
        raise Refused("this sandbox runs with a cloud of your own: do it there")
    async with open_admin(told.url, told.token) as admin:
        instances = {one.name: one for one in await admin.instances()}
        if act == "add":
            if node in instances:
                raise Refused(f"{node} has a machine already")
            machine = await admin.add(node, number=len(instances))
        elif node in instances:
            machine = instances[node]
            if act == "delete":
                await admin.delete(machine.id)
            else:
                await admin.act(machine.id, "stop" if act == "poweroff" else "start")
        else:
            known = ", ".join(sorted(instances)[:_SHOWN]) or "none"
            more = f" and {len(instances) - _SHOWN} more" if len(instances) > _SHOWN else ""
            raise Refused(f"the cloud has no machine for {node!r}; it has {known}{more}")
    return f"{node}: {machine.id} {_DONE[act]}"

"""Administration of the simulated cloud over HTTP, and discovery of running sandboxes.

All requests use the administrator's paths (`/admin`). Requests to them are not counted as cloud
calls, and have no simulated latency and no simulated faults.

A running sandbox writes the endpoint of its cloud to a file in its folder, and keeps the file
locked. The kernel releases the lock when the process ends, however it ends, so that no stale file
counts as a running sandbox.
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
from ccm.base.lazy_aiohttp import describe_error

T = TypeVar("T")

TYPES = ("small", "medium", "large")
ZONES = ("sim-1a", "sim-1b", "sim-1c")
REGION = "sim-1"
"""Types, zones and region of instances; consecutive instances get the next type and zone."""

RUNNING = "running"
DELETED = "deleted"

PREFIX = "ccm-sandbox-"
"""Prefix of a sandbox's folder within the folder for temporary files."""

_FILE = "sandbox.json"
_SHOWN = 5
_TIMEOUT_S = 10.0
_BATCH = 1000


class AdminError(Exception):
    """The simulated cloud did not answer, or answered with an error."""


class ActionError(Exception):
    """The action is not possible; the message has the reason and advice."""


class SimulatedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, partially decoded."""

    id: str
    name: str
    state: str
    joins: bool = True


class _Instances(msgspec.Struct, frozen=True, kw_only=True):
    instances: tuple[SimulatedInstance, ...]


class Balancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer, partially decoded."""

    name: str
    members: tuple[str, ...]


class _Balancers(msgspec.Struct, frozen=True, kw_only=True):
    balancers: tuple[Balancer, ...]
    next_cursor: str | None = None


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    total: int


class Admin:
    """The administrator's client; use `open_admin`. All methods raise AdminError."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._session = session

    async def place(self, names: Sequence[str]) -> None:
        """Create one running instance for each name."""
        wanted = [
            {"id": f"i-{number + 1:04d}", "name": name, **_kind(number)}
            for number, name in enumerate(names)
        ]
        for start in range(0, len(wanted), _BATCH):
            body = {"instances": wanted[start : start + _BATCH]}
            await self._ask("POST", "/admin/instances", _Instances, body)

    async def running(self) -> Mapping[str, str]:
        """Return node name -> instance ID of all running instances that join the cluster."""
        instances = await self.instances()
        return {
            instance.name: instance.id
            for instance in instances
            if instance.state == RUNNING and instance.joins
        }

    async def instances(self) -> Sequence[SimulatedInstance]:
        """Return all instances that are not deleted."""
        snapshot = await self._ask("GET", "/admin/snapshot", _Instances)
        return [instance for instance in snapshot.instances if instance.state != DELETED]

    async def add(self, name: str, *, number: int) -> SimulatedInstance:
        """Create a running instance; `number` determines type and zone."""
        wanted = {"name": name, **_kind(number)}
        placed = await self._ask("POST", "/admin/instances", _Instances, {"instances": [wanted]})
        return placed.instances[0]

    async def act(self, instance: str, action: str) -> None:
        """Run the action `stop` or `start` on an instance; a repetition changes nothing."""
        await self._call("POST", f"/admin/instances/{instance}/actions", {"action": action})

    async def delete(self, instance: str) -> None:
        await self._call("DELETE", f"/admin/instances/{instance}")

    async def members(self) -> Mapping[str, int]:
        """Return name -> number of members of each load balancer."""
        counts: dict[str, int] = {}
        path = "/admin/balancers"
        while True:
            page = await self._ask("GET", path, _Balancers)
            counts |= {balancer.name: len(balancer.members) for balancer in page.balancers}
            if page.next_cursor is None:
                return counts
            path = f"/admin/balancers?cursor={page.next_cursor}"

    async def call_count(self) -> int:
        """Return how many calls the cloud has counted; the administrator's calls do not count."""
        # A position beyond the log's end returns the total without entries.
        return (await self._ask("GET", f"/admin/calls?after={2**53}", _Calls)).total

    async def _ask(self, method: str, path: str, answer: type[T], body: Any = None) -> T:
        return msgspec.json.decode(await self._call(method, path, body), type=answer)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, self.url + path, data=data) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AdminError(f"{method} {path}: no answer: {describe_error(error)}") from error
        if response.status >= 300:
            raise AdminError(f"{method} {path}: HTTP {response.status} {text[:200]!r}")
        return text


@contextlib.asynccontextmanager
async def open_admin(url: str, token: str) -> AsyncIterator[Admin]:
    """Yield a client with its own connection pool."""
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


class CloudEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoint of a running sandbox's cloud; an empty `url` means the user's own cloud."""

    url: str = ""
    token: str = ""


@contextlib.contextmanager
def announce(folder: Path, endpoint: CloudEndpoint) -> Iterator[None]:
    """Let `find_sandbox` find a sandbox while the block runs."""
    path = folder / _FILE
    files.write_private(path, "")
    with path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # waits for `find_sandbox`, which locks it briefly
        held.write(msgspec.json.encode(endpoint))
        held.flush()
        yield


def find_sandbox(
    folder: Path | None, kubeconfig: str, *, home: Path | None = None
) -> CloudEndpoint:
    """Return the cloud endpoint of the selected sandbox, or of the only one that runs.

    Args:
        folder: folder of the sandbox; None = the user gave no folder.
        kubeconfig: $KUBECONFIG; a file in a sandbox's folder selects that sandbox.
        home: parent of the sandboxes' folders; None = the folder for temporary files.

    Raises:
        ActionError: the sandbox does not run, or the choice is ambiguous.
    """
    if folder is not None:
        selected = _read(folder)
        if selected is None:
            raise ActionError(f"no sandbox runs in {folder}")
        return selected
    where = Path(tempfile.gettempdir()) if home is None else home
    running = {
        path: endpoint for path in sorted(where.glob(f"{PREFIX}*")) if (endpoint := _read(path))
    }
    meant = [path for path in running if path in Path(kubeconfig).parents]
    chosen = meant or list(running)
    if not chosen:
        raise ActionError(f"no sandbox runs in {where}; start one with kube-ccm sandbox")
    if len(chosen) > 1:
        raise ActionError(
            f"{len(chosen)} sandboxes run: {', '.join(map(str, chosen))}; select one with "
            "--folder=FOLDER, or export its KUBECONFIG"
        )
    return running[chosen[0]]


def _read(folder: Path) -> CloudEndpoint | None:
    """Return the endpoint of a sandbox; None if it does not run or belongs to another user."""
    try:
        with (folder / _FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=CloudEndpoint)
    except (OSError, msgspec.DecodeError):
        return None
    return None


_DONE = {
    "poweroff": "is powered off; its node gets the shutdown taint",
    "poweron": "is powered on; its node loses the shutdown taint",
    "delete": "is deleted; its node is deleted after two checks of the cloud",
    "add": "runs; its node registers",
}
"""Action on the command line -> message about its result."""


async def run_action(action: str, node: str, endpoint: CloudEndpoint) -> str:
    """Run an action on the machine of a node; return a message about the result.

    Raises:
        ActionError: the cloud has no machine for the node (`add`: already has one), or the sandbox
            uses the user's own cloud.
        AdminError: the cloud refused or did not answer.
    """
    if not endpoint.url:
        raise ActionError("the sandbox uses your own cloud; run the action there")
    async with open_admin(endpoint.url, endpoint.token) as admin:
        instances = {instance.name: instance for instance in await admin.instances()}
        if action == "add":
            if node in instances:
                raise ActionError(f"{node}: a machine of this name already exists")
            machine = await admin.add(node, number=len(instances))
        elif node in instances:
            machine = instances[node]
            if action == "delete":
                await admin.delete(machine.id)
            else:
                await admin.act(machine.id, "stop" if action == "poweroff" else "start")
        else:
            known = ", ".join(sorted(instances)[:_SHOWN]) or "none"
            more = f" and {len(instances) - _SHOWN} more" if len(instances) > _SHOWN else ""
            raise ActionError(f"{node!r}: no machine of this name; machines: {known}{more}")
    return f"{node}: {machine.id} {_DONE[action]}"

"""The simulated cloud as its administrator sees it, over HTTP.

Everything goes through the administrator's paths (`/admin`): never counted among the
cloud calls, never slow, never broken by a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from ccm.base.wire import reason

T = TypeVar("T")

TYPES = ("small", "medium", "large")
ZONES = ("sim-1a", "sim-1b", "sim-1c")
REGION = "sim-1"
"""What the instances of a sandbox are, in turn."""

RUNNING = "running"
DELETED = "deleted"

_TIMEOUT_S = 10.0
_BATCH = 1000


class CloudTrouble(Exception):
    """The simulated cloud did not answer as it should."""


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
    """Calls behind the scenes; use `open_admin`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._session = session

    async def place(self, names: Sequence[str]) -> None:
        """Place one running instance for each name.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        wanted = new_instances(names)
        for start in range(0, len(wanted), _BATCH):
            body = {"instances": wanted[start : start + _BATCH]}
            await self._ask("POST", "/admin/instances", _Instances, body)

    async def running(self) -> Mapping[str, str]:
        """Node name -> instance ID of all instances that run and join the cluster.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        found = await self.instances()
        return {one.name: one.id for one in found if one.state == RUNNING and one.joins}

    async def instances(self) -> Sequence[Instance]:
        """All instances but those that are deleted.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        found = await self._ask("GET", "/admin/snapshot", _Instances)
        return [one for one in found.instances if one.state != DELETED]

    async def add(self, name: str, *, number: int) -> Instance:
        """Place one more running instance; type and zone follow from its number.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        wanted = {"name": name, **_kind(number)}
        placed = await self._ask("POST", "/admin/instances", _Instances, {"instances": [wanted]})
        return placed.instances[0]

    async def act(self, instance: str, action: str) -> None:
        """`stop` or `start` an instance; done again it does nothing.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        await self._call("POST", f"/admin/instances/{instance}/actions", {"action": action})

    async def delete(self, instance: str) -> None:
        """Delete an instance.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        await self._call("DELETE", f"/admin/instances/{instance}")

    async def members(self) -> Mapping[str, int]:
        """Name of each load balancer -> how many members it has.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
        found: dict[str, int] = {}
        path = "/admin/balancers"
        while True:
            page = await self._ask("GET", path, _Balancers)
            found |= {one.name: len(one.members) for one in page.balancers}
            if page.next_cursor is None:
                return found
            path = f"/admin/balancers?cursor={page.next_cursor}"

    async def call_count(self) -> int:
        """How many calls the cloud's customers made so far.

        Raises:
            CloudTrouble: the cloud refused or did not answer.
        """
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


def new_instances(names: Sequence[str]) -> list[dict[str, str]]:
    """Instances for these nodes: `i-0001` and so on, types and zones in turn."""
    return [
        {
            "id": f"i-{number + 1:04d}",
            "name": name,
            **_kind(number),
        }
        for number, name in enumerate(names)
    ]


def _kind(number: int) -> dict[str, str]:
    return {
        "type": TYPES[number % len(TYPES)],
        "zone": ZONES[number % len(ZONES)],
        "region": REGION,
    }

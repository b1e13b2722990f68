"""The simulated cloud as its administrator sees it, over HTTP.

Everything goes through the hand behind the scenes (`/admin`): never counted among the
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
        found = await self._ask("GET", "/admin/snapshot", _Instances)
        return {one.name: one.id for one in found.instances if one.state == RUNNING and one.joins}

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
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, self.url + path, data=data) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CloudTrouble(f"{method} {path}: no answer: {reason(error)}") from error
        if response.status >= 300:
            raise CloudTrouble(f"{method} {path}: HTTP {response.status} {text[:200]!r}")
        return msgspec.json.decode(text, type=answer)


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
            "type": TYPES[number % len(TYPES)],
            "zone": ZONES[number % len(ZONES)],
            "region": REGION,
        }
        for number, name in enumerate(names)
    ]

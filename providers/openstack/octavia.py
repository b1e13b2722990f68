"""Calls of Octavia: load balancers and their parts. See `client` for the conventions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ccm import cloud

from . import client

ROOT = "/v2/lbaas"
BALANCERS, LISTENERS, POOLS = f"{ROOT}/loadbalancers", f"{ROOT}/listeners", f"{ROOT}/pools"
MONITORS = f"{ROOT}/healthmonitors"

ACTIVE, ERROR, PENDING_DELETE, DELETED = "ACTIVE", "ERROR", "PENDING_DELETE", "DELETED"
"""Provisioning statuses; all others mean that a change is in progress."""


class Balancer(msgspec.Struct, frozen=True, kw_only=True):
    """Load balancer; only the fields that the provider reads."""

    id: str
    name: str = ""
    description: str = ""
    provisioning_status: str = ""
    operating_status: str = ""
    provider: str = ""
    vip_address: str = ""
    vip_port_id: str = ""
    vip_subnet_id: str | None = None
    tags: tuple[str, ...] = ()


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Listener; only the fields that the provider sets or reads."""

    id: str
    name: str = ""
    protocol: str
    protocol_port: int
    connection_limit: int | None = None
    default_pool_id: str | None = None
    default_tls_container_ref: str | None = None
    insert_headers: dict[str, str] | None = None
    timeout_client_data: int | None = None
    timeout_member_connect: int | None = None
    timeout_member_data: int | None = None
    timeout_tcp_inspect: int | None = None
    allowed_cidrs: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    loadbalancers: tuple[client.Reference, ...] = ()


class Persistence(msgspec.Struct, frozen=True):
    """Session persistence of a pool."""

    type: str | None = None


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Pool; only the fields that the provider sets or reads."""

    id: str
    name: str = ""
    protocol: str
    lb_algorithm: str = ""
    session_persistence: Persistence | None = None
    healthmonitor_id: str | None = None
    members: tuple[client.Reference, ...] = ()


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Member of a pool."""

    name: str | None = None
    address: str
    protocol_port: int
    monitor_port: int | None = None


class Monitor(msgspec.Struct, frozen=True, kw_only=True):
    """Health monitor of a pool; only the fields that the provider sets or reads."""

    id: str
    name: str | None = None
    type: str
    delay: int
    timeout: int
    max_retries: int
    max_retries_down: int | None = None
    http_method: str | None = None
    url_path: str | None = None
    expected_codes: str | None = None


class _Version(msgspec.Struct, frozen=True):
    id: str


class HeldPart(NamedTuple):
    """Existing listener with its pool, health monitor and members."""

    listener: Listener
    pool: Pool | None = None
    monitor: Monitor | None = None
    members: tuple[Member, ...] = ()


NEW = (2, 27)
"""Version of the API that has all features."""

_SINCE = {
    **dict.fromkeys(("timeout_client_data", "timeout_member_connect"), 1),
    **dict.fromkeys(("timeout_member_data", "timeout_tcp_inspect"), 1),
    "tags": 5,
    "flavor_id": 6,
    "allowed_cidrs": 12,
    "availability_zone": 14,
    "http_monitor_for_udp": 16,
}
"""Field or feature -> minor version of the API in which it is new."""


class Features(NamedTuple):
    """Features of a load balancer provider at a version of the API, such as (2, 27)."""

    version: tuple[int, int]
    provider: str

    def has(self, name: str) -> bool:
        """Return whether a field or feature is supported; the provider ovn has only old ones."""
        is_ovn = self.provider == "ovn" and name != "tags"
        return name not in _SINCE or (not is_ovn and self.version >= (2, _SINCE[name]))

    def has_http_monitor(self, protocol: str) -> bool:
        """Return whether a pool with this listener protocol may have a monitor of type HTTP."""
        is_udp = protocol == "UDP"
        return self.has("http_monitor_for_udp") if is_udp else self.provider != "ovn"


class Octavia:
    """Calls of the load balancer service."""

    def __init__(self, api: client.Client) -> None:
        self._keystone = api.keystone
        self._api = api.load_balancer
        self.version: tuple[int, int] | None = None
        """Version of the API; None = not read yet."""

    async def read_version(self) -> tuple[int, int]:
        """Return the last version that the API lists; the first call sends a request."""
        if self.version is None:
            # The list of versions is no paged listing, so it is read as one resource.
            versions = await self._api.get("/", "versions", tuple[_Version, ...])
            last = re.match(r"v(\d+)\.(\d+)", versions[-1].id) if versions else None
            if last is None:
                raise cloud.Unknown("GET /: the load balancer service lists no version")
            self.version = (int(last[1]), int(last[2]))
        return self.version

    async def balancers(self, query: Mapping[str, str]) -> list[Balancer]:
        """Return the load balancers of the project that match a query."""
        # An administrator would get those of all projects.
        query = {"project_id": await self._keystone.project_id(), **query}
        listed, _ = await self._api.list_all(BALANCERS, "loadbalancers", Balancer, query)
        return [held for held in listed if held.provisioning_status != DELETED]

    async def balancer(self, balancer_id: str) -> Balancer | None:
        """Return a load balancer; None if it does not exist."""
        path = f"{BALANCERS}/{client.part(balancer_id)}"
        with contextlib.suppress(cloud.NotFound):
            held = await self._api.get(path, "loadbalancer", Balancer)
            return None if held.provisioning_status == DELETED else held
        return None

    async def create(self, order: Mapping[str, Any]) -> Balancer:
        """Create a load balancer, with all its parts if the request has them."""
        return await self._api.send("POST", BALANCERS, "loadbalancer", order, Balancer)

    async def delete(self, balancer_id: str, *, cascade: bool) -> None:
        """Start the deletion of a load balancer; with `cascade`, of its parts too."""
        suffix = "?cascade=true" if cascade else ""
        await self._api.delete(f"{BALANCERS}/{client.part(balancer_id)}{suffix}")

    async def listeners(self, query: Mapping[str, str]) -> list[Listener]:
        """Return the listeners that match a query."""
        listed, _ = await self._api.list_all(LISTENERS, "listeners", Listener, query)
        return listed

    async def parts(self, balancer_id: str) -> list[HeldPart]:
        """Return listeners with their pools: two requests, and one or two for each pool."""
        parts = await self._parts({"loadbalancer_id": balancer_id})
        return [part for _, part in parts]

    async def all_parts(self, ids: Collection[str]) -> dict[str, list[HeldPart]]:
        """Return the parts of load balancers, by the ID of the load balancer.

        Sends two or three requests, and one for each pool.
        """
        parts: dict[str, list[HeldPart]] = {}
        for owner, part in await self._parts({}, ids):
            parts.setdefault(owner, []).append(part)
        return parts

    async def _parts(
        self, query: Mapping[str, str], ids: Collection[str] = ()
    ) -> list[tuple[str, HeldPart]]:
        """Return load balancer and part for the listeners of a query, or of some load balancers."""
        listeners = await self.listeners(query)
        pools, _ = await self._api.list_all(POOLS, "pools", Pool, query)
        by_id = {pool.id: pool for pool in pools}
        monitors: dict[str, Monitor] = {}
        # Monitors have no filter: those of one load balancer are read, those of all are listed.
        if ids and any(pool.healthmonitor_id for pool in pools):
            listed, _ = await self._api.list_all(MONITORS, "healthmonitors", Monitor)
            monitors = {monitor.id: monitor for monitor in listed}
        parts = []
        for listener in listeners:
            owner = next((one.id for one in listener.loadbalancers if one.id in ids), "")
            if owner or not ids:
                pool = by_id.get(listener.default_pool_id or "")
                parts.append((owner, await self._part(listener, pool, monitors)))
        return parts

    async def _part(
        self, listener: Listener, pool: Pool | None, monitors: Mapping[str, Monitor]
    ) -> HeldPart:
        if pool is None:
            return HeldPart(listener)
        number = pool.healthmonitor_id or ""
        monitor = monitors.get(number)
        if number and not monitors:
            with contextlib.suppress(cloud.NotFound):
                monitor = await self._api.get(f"{MONITORS}/{number}", "healthmonitor", Monitor)
        members: list[Member] = []
        if pool.members:
            path = f"{POOLS}/{pool.id}/members"
            members, _ = await self._api.list_all(path, "members", Member)
        return HeldPart(listener, pool, monitor, tuple(members))

    async def send(
        self, method: str, path: str, key: str, order: Mapping[str, Any]
    ) -> client.Reference:
        """Create (POST) or change (PUT) a load balancer or part; return its ID.

        Raises:
            Immutable: the load balancer is being changed.
        """
        return await self._api.send(method, path, key, order, client.Reference)

    async def put_members(self, pool_id: str, members: Sequence[Mapping[str, Any]]) -> None:
        """Replace all members of a pool. Raises `Immutable`."""
        await self._api.call("PUT", f"{POOLS}/{pool_id}/members", {"members": members})

    async def delete_part(self, path: str) -> None:
        """Delete a listener, a pool with its members, or a health monitor. Raises `Immutable`."""
        await self._api.delete(path)

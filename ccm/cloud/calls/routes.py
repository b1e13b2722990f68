"""The calls of the route controller."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Routes
from ccm.cloud.types import Route


class RouteCalls:
    """`Routes` in the name of one cluster; see there."""

    def __init__(self, handle: Handle, *, cluster_name: str) -> None:
        self._handle = handle
        self._cluster = cluster_name

    async def list(self) -> Sequence[Route]:
        """See `Routes.list_routes`."""
        return await self._handle.call(Routes.list_routes, self._cluster)

    async def create(self, name_hint: str, route: Route) -> None:
        """See `Routes.create_route`."""
        await self._handle.call(Routes.create_route, self._cluster, name_hint, route)

    async def delete(self, route: Route) -> None:
        """See `Routes.delete_route`."""
        await self._handle.call(Routes.delete_route, self._cluster, route)

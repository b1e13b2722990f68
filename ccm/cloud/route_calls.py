"""The guarded calls of the route controller."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.cloud import answers
from ccm.cloud.calls import ClusterCalls, offered
from ccm.cloud.interface import Cloud, Routes
from ccm.cloud.types import Route


class RouteCalls(ClusterCalls):
    """The calls about routes; each mirrors a method of `Routes`."""

    async def list(self) -> Sequence[Route]:
        """See `Routes.list_routes`."""
        return await self._ask(
            "list_routes",
            lambda cloud: _routes(cloud).list_routes(self._cluster_name),
            answers.routes,
        )

    async def create(self, name_hint: str, route: Route) -> None:
        """See `Routes.create_route`."""
        await self._ask(
            "create_route",
            lambda cloud: _routes(cloud).create_route(self._cluster_name, name_hint, route),
            answers.nothing,
            subject=route.destination_cidr,
        )

    async def delete(self, route: Route) -> None:
        """See `Routes.delete_route`."""
        await self._ask(
            "delete_route",
            lambda cloud: _routes(cloud).delete_route(self._cluster_name, route),
            answers.nothing,
            subject=route.destination_cidr,
        )


def _routes(cloud: Cloud) -> Routes:
    return offered(cloud.routes, "routes")

"""The guarded calls of the route controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ccm.cloud import errors
from ccm.cloud.guarded import Guarded, Observer, offered
from ccm.cloud.interface import Cloud, Routes
from ccm.cloud.types import Route

T = TypeVar("T")


class RouteCalls:
    """The calls about routes; each mirrors a method of `Routes`.

    Args:
        guard: the handle all calls go through.
        cluster_name: name of the cluster towards the cloud.
        observer: told about each call, for metrics of the controller.
    """

    def __init__(
        self, guard: Guarded, *, cluster_name: str, observer: Observer | None = None
    ) -> None:
        self._guard = guard
        self._cluster_name = cluster_name
        self._observer = observer

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now."""
        return self._guard.cloud

    async def list(self) -> Sequence[Route]:
        """See `Routes.list_routes`."""

        async def invoke(cloud: Cloud) -> Sequence[Route]:
            answer: object = await _routes(cloud).list_routes(self._cluster_name)
            # A forgotten `return` would read as "no routes", and every route be made again.
            if not isinstance(answer, Sequence):
                raise errors.Internal(f"list_routes answered {answer!r}, not a sequence")
            return answer

        return await self._call("list_routes", invoke)

    async def create(self, name_hint: str, route: Route) -> None:
        """See `Routes.create_route`."""
        await self._call(
            "create_route",
            lambda cloud: _routes(cloud).create_route(self._cluster_name, name_hint, route),
        )

    async def delete(self, route: Route) -> None:
        """See `Routes.delete_route`."""
        await self._call(
            "delete_route", lambda cloud: _routes(cloud).delete_route(self._cluster_name, route)
        )

    async def _call(self, operation: str, invoke: Callable[[Cloud], Awaitable[T]]) -> T:
        return await self._guard.call(operation, invoke, observer=self._observer)


def _routes(cloud: Cloud) -> Routes:
    return offered(cloud.routes, "routes")

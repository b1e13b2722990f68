"""Routes in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

import msgspec

from . import operation, simulation, world_routes
from .operation import Operation, Request


class RouteList(msgspec.Struct, frozen=True, kw_only=True):
    """One page in order of creation; `next_cursor` null ends the listing."""

    routes: tuple[world_routes.Route, ...]
    next_cursor: str | None = None


class RouteQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All routes, or those of a cluster."""

    cluster: str | None = None


def _list(cloud: simulation.Simulation, asked: Request) -> RouteList:
    found = cloud.worlds.routes.list(cluster=asked.query.cluster)
    page, cursor = operation.cut(found, asked.query, cloud.settings.page_size)
    return RouteList(routes=page, next_cursor=cursor)


_LIST = Operation(
    name="list_routes",
    route="GET /v1/routes",
    summary="One page of routes, in order of creation",
    handler=_list,
    query=RouteQuery,
    answer=RouteList,
)

_CREATE = Operation(
    name="create_route",
    route="POST /v1/routes",
    summary="Order a route to a range that has none in its table",
    handler=lambda cloud, asked: cloud.worlds.routes.create(asked.body),
    body=world_routes.NewRoute,
    answer=world_routes.Route,
    created=True,
)

_DELETE = Operation(
    name="delete_route",
    route="DELETE /v1/routes/{id}",
    summary="Delete a route",
    handler=lambda cloud, asked: cloud.worlds.routes.delete(asked.id),
)

OPERATIONS = (
    _LIST,
    _CREATE,
    _DELETE,
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    Operation(
        name="admin_update_route",
        route="PATCH /admin/routes/{id}",
        summary="Alter a route, behind the scenes",
        handler=lambda cloud, asked: cloud.worlds.routes.change(asked.id, asked.body),
        body=world_routes.RouteChange,
        answer=world_routes.Route,
    ),
    operation.behind_the_scenes(_DELETE),
)

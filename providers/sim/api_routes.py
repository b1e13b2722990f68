"""Routes in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from . import operation, world_routes
from .operation import Operation, Request


class RouteList(msgspec.Struct, frozen=True, kw_only=True):
    """One page in order of creation; `next_cursor` null ends the listing."""

    routes: tuple[world_routes.Route, ...]
    next_cursor: str | None = None


class RouteQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All routes, or those of a cluster."""

    cluster: str | None = None


_LIST = Operation(
    name="list_routes",
    route="GET /v1/routes",
    summary="One page of routes, in order of creation",
    query=RouteQuery,
    answer=RouteList,
)

_CREATE = Operation(
    name="create_route",
    route="POST /v1/routes",
    summary="Order a route to a range that has none in its table",
    body=world_routes.NewRoute,
    answer=world_routes.Route,
    created=True,
)

_DELETE = Operation(
    name="delete_route",
    route="DELETE /v1/routes/{id}",
    summary="Delete a route",
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
        body=world_routes.RouteChange,
        answer=world_routes.Route,
    ),
    operation.behind_the_scenes(_DELETE),
)


def handlers(
    routes: world_routes.RouteTable, page_size: Callable[[], int]
) -> Mapping[str, operation.Handler]:
    """Operation -> what it does."""

    def listed(request: Request) -> RouteList:
        found = routes.list(cluster=request.query.cluster)
        page, cursor = operation.cut(found, request.query, page_size())
        return RouteList(routes=page, next_cursor=cursor)

    return {
        "list_routes": listed,
        "create_route": lambda request: routes.create(request.body),
        "delete_route": lambda request: routes.delete(request.id),
        "admin_list_routes": listed,
        "admin_create_route": lambda request: routes.create(request.body),
        "admin_update_route": lambda request: routes.change(request.id, request.body),
        "admin_delete_route": lambda request: routes.delete(request.id),
    }

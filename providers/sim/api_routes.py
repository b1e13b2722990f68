"""Routes in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from . import operation, world_routes
from .operation import Asked, Operation

_ROUTES = "/v1/routes"
_ADMIN = "/admin/routes"


class RouteList(msgspec.Struct, frozen=True, kw_only=True):
    """One page in order of creation; `next_cursor` null ends the listing."""

    routes: tuple[world_routes.Route, ...]
    next_cursor: str | None = None


class RouteQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All routes, or those of a cluster."""

    cluster: str | None = None


_LIST = Operation(
    name="list_routes",
    method="GET",
    path=_ROUTES,
    summary="One page of routes, in order of creation",
    query=RouteQuery,
    answer=RouteList,
)

_CREATE = Operation(
    name="create_route",
    method="POST",
    path=_ROUTES,
    summary="Order a route to a range that has none in its table",
    body=world_routes.NewRoute,
    answer=world_routes.Route,
    status=201,
)

_DELETE = Operation(
    name="delete_route",
    method="DELETE",
    path=_ROUTES + "/{id}",
    summary="Delete a route",
    status=204,
)

OPERATIONS = (
    _LIST,
    _CREATE,
    _DELETE,
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    Operation(
        name="admin_update_route",
        method="PATCH",
        path=_ADMIN + "/{id}",
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

    def listed(asked: Asked) -> RouteList:
        found = routes.list(cluster=asked.query.cluster)
        page, cursor = operation.cut(found, asked.query, page_size())
        return RouteList(routes=page, next_cursor=cursor)

    return {
        "list_routes": listed,
        "create_route": lambda asked: routes.create(asked.body),
        "delete_route": lambda asked: routes.delete(asked.id),
        "admin_list_routes": listed,
        "admin_create_route": lambda asked: routes.create(asked.body),
        "admin_update_route": lambda asked: routes.change(asked.id, asked.body),
        "admin_delete_route": lambda asked: routes.delete(asked.id),
    }

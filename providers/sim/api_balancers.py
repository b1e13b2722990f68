"""Load balancers in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from . import operation, world_balancers
from .operation import Operation, Request


class BalancerList(msgspec.Struct, frozen=True, kw_only=True):
    """One page in order of creation; `next_cursor` null ends the listing."""

    balancers: tuple[world_balancers.Balancer, ...]
    next_cursor: str | None = None


class BalancerQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All load balancers, or that of a name, or those of a cluster."""

    name: str | None = None
    cluster: str | None = None


class Members(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The addresses that traffic goes to; they replace the ones before."""

    members: tuple[str, ...]


_LIST = Operation(
    name="list_balancers",
    route="GET /v1/balancers",
    summary="One page of load balancers, in order of creation",
    query=BalancerQuery,
    answer=BalancerList,
)

_CREATE = Operation(
    name="create_balancer",
    route="POST /v1/balancers",
    summary="Order a load balancer under a name nobody has; it has no members yet",
    body=world_balancers.NewBalancer,
    answer=world_balancers.Balancer,
    created=True,
)

OPERATIONS = (
    _LIST,
    Operation(
        name="get_balancer",
        route="GET /v1/balancers/{id}",
        summary="One load balancer",
        answer=world_balancers.Balancer,
    ),
    _CREATE,
    Operation(
        name="change_balancer",
        route="PUT /v1/balancers/{id}",
        summary="Replace everything but name, cluster and members",
        body=world_balancers.Plan,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="set_members",
        route="PUT /v1/balancers/{id}/members",
        summary="Replace the members",
        body=Members,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="delete_balancer",
        route="DELETE /v1/balancers/{id}",
        summary="Delete a load balancer in whatever state it is",
    ),
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    Operation(
        name="admin_update_balancer",
        route="PATCH /admin/balancers/{id}",
        summary="Alter a load balancer, its state and its members, behind the scenes",
        body=world_balancers.Interference,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="admin_delete_balancer",
        route="DELETE /admin/balancers/{id}",
        summary="Delete a load balancer, protected or not, behind the scenes",
    ),
)


def handlers(
    balancers: world_balancers.Balancers, page_size: Callable[[], int]
) -> Mapping[str, operation.Handler]:
    """Operation -> what it does."""

    def listed(request: Request) -> BalancerList:
        found = balancers.list(name=request.query.name, cluster=request.query.cluster)
        page, cursor = operation.cut(found, request.query, page_size())
        return BalancerList(balancers=page, next_cursor=cursor)

    return {
        "list_balancers": listed,
        "get_balancer": lambda request: balancers.get(request.id),
        "create_balancer": lambda request: balancers.create(request.body),
        "change_balancer": lambda request: balancers.change(request.id, request.body),
        "set_members": lambda request: balancers.set_members(request.id, request.body.members),
        "delete_balancer": lambda request: balancers.delete(request.id),
        "admin_list_balancers": listed,
        "admin_create_balancer": lambda request: balancers.create(request.body),
        "admin_update_balancer": lambda request: balancers.interfere(request.id, request.body),
        "admin_delete_balancer": lambda request: balancers.remove(request.id),
    }

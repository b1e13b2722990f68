"""Load balancers in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from . import operation, world_balancers
from .operation import Asked, Operation

_BALANCERS = "/v1/balancers"
_ADMIN = "/admin/balancers"


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
    method="GET",
    path=_BALANCERS,
    summary="One page of load balancers, in order of creation",
    query=BalancerQuery,
    answer=BalancerList,
)

_CREATE = Operation(
    name="create_balancer",
    method="POST",
    path=_BALANCERS,
    summary="Order a load balancer under a name nobody has; it has no members yet",
    body=world_balancers.NewBalancer,
    answer=world_balancers.Balancer,
    status=201,
)

OPERATIONS = (
    _LIST,
    Operation(
        name="get_balancer",
        method="GET",
        path=_BALANCERS + "/{id}",
        summary="One load balancer",
        answer=world_balancers.Balancer,
    ),
    _CREATE,
    Operation(
        name="change_balancer",
        method="PUT",
        path=_BALANCERS + "/{id}",
        summary="Replace everything but name, cluster and members",
        body=world_balancers.Plan,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="set_members",
        method="PUT",
        path=_BALANCERS + "/{id}/members",
        summary="Replace the members",
        body=Members,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="delete_balancer",
        method="DELETE",
        path=_BALANCERS + "/{id}",
        summary="Delete a load balancer in whatever state it is",
        status=204,
    ),
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    Operation(
        name="admin_update_balancer",
        method="PATCH",
        path=_ADMIN + "/{id}",
        summary="Alter a load balancer, its state and its members, behind the scenes",
        body=world_balancers.Interference,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="admin_delete_balancer",
        method="DELETE",
        path=_ADMIN + "/{id}",
        summary="Delete a load balancer, protected or not, behind the scenes",
        status=204,
    ),
)


def handlers(
    balancers: world_balancers.Balancers, page_size: Callable[[], int]
) -> Mapping[str, operation.Handler]:
    """Operation -> what it does."""

    def listed(asked: Asked) -> BalancerList:
        found = balancers.list(name=asked.query.name, cluster=asked.query.cluster)
        page, cursor = operation.cut(found, asked.query, page_size())
        return BalancerList(balancers=page, next_cursor=cursor)

    return {
        "list_balancers": listed,
        "get_balancer": lambda asked: balancers.get(asked.id),
        "create_balancer": lambda asked: balancers.create(asked.body),
        "change_balancer": lambda asked: balancers.change(asked.id, asked.body),
        "set_members": lambda asked: balancers.set_members(asked.id, asked.body.members),
        "delete_balancer": lambda asked: balancers.delete(asked.id),
        "admin_list_balancers": listed,
        "admin_create_balancer": lambda asked: balancers.create(asked.body),
        "admin_update_balancer": lambda asked: balancers.interfere(asked.id, asked.body),
        "admin_delete_balancer": lambda asked: balancers.remove(asked.id),
    }

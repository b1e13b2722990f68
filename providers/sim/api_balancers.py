"""Load balancers in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

import msgspec

from . import operation, simulation, world_balancers
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


def _list(cloud: simulation.Simulation, asked: Request) -> BalancerList:
    found = cloud.worlds.balancers.list(name=asked.query.name, cluster=asked.query.cluster)
    page, cursor = operation.cut(found, asked.query, cloud.settings.page_size)
    return BalancerList(balancers=page, next_cursor=cursor)


_LIST = Operation(
    name="list_balancers",
    route="GET /v1/balancers",
    summary="One page of load balancers, in order of creation",
    handler=_list,
    query=BalancerQuery,
    answer=BalancerList,
)

_CREATE = Operation(
    name="create_balancer",
    route="POST /v1/balancers",
    summary="Order a load balancer under a name that is free; it has no members yet",
    handler=lambda cloud, asked: cloud.worlds.balancers.create(asked.body),
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
        handler=lambda cloud, asked: cloud.worlds.balancers.get(asked.id),
        answer=world_balancers.Balancer,
    ),
    _CREATE,
    Operation(
        name="change_balancer",
        route="PUT /v1/balancers/{id}",
        summary="Replace everything but name, cluster and members",
        handler=lambda cloud, asked: cloud.worlds.balancers.change(asked.id, asked.body),
        body=world_balancers.Plan,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="set_members",
        route="PUT /v1/balancers/{id}/members",
        summary="Replace the members",
        handler=lambda cloud, asked: cloud.worlds.balancers.set_members(
            asked.id, asked.body.members
        ),
        body=Members,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="delete_balancer",
        route="DELETE /v1/balancers/{id}",
        summary="Delete a load balancer in whatever state it is",
        handler=lambda cloud, asked: cloud.worlds.balancers.delete(asked.id),
    ),
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    Operation(
        name="admin_update_balancer",
        route="PATCH /admin/balancers/{id}",
        summary="Alter a load balancer, its state and its members, behind the scenes",
        handler=lambda cloud, asked: cloud.worlds.balancers.interfere(asked.id, asked.body),
        body=world_balancers.Interference,
        answer=world_balancers.Balancer,
    ),
    Operation(
        name="admin_delete_balancer",
        route="DELETE /admin/balancers/{id}",
        summary="Delete a load balancer, protected or not, behind the scenes",
        handler=lambda cloud, asked: cloud.worlds.balancers.remove(asked.id),
    ),
)

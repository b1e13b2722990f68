"""The HTTP API of the simulated cloud as one table: router and OpenAPI come from it.

`/v1` is the cloud as a customer sees it: counted, slow, limited and faulty as
configured. `/admin` is for the administrator of the simulation: never counted, delayed or broken.
Both want `Authorization: Bearer <token>`; the description itself is free.

Every error has one shape, `{"error": {"code", "message", "request_id"}}`. Instances
are listed in order of creation, in pages; a page names the cursor of the next one.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from . import (
    api_balancers,
    api_routes,
    api_volumes,
    changes,
    faults,
    operation,
    simulation,
    traffic,
    world,
    world_balancers,
    world_orders,
    world_routes,
    world_volumes,
)
from .operation import Request

VERSION = "1"

ERRORS = {
    "invalid": 400,
    "unauthenticated": 401,
    "not_found": 404,
    "no_such_path": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "busy": 409,
    "protected": 409,
    "quota_exceeded": 403,
    "no_capacity": 409,
    "rate_limited": 429,
    "internal": 500,
}
"""Error code -> HTTP status. A mistaken path has a code of its own, so that nobody takes
it for an instance that is gone."""


class InstanceList(msgspec.Struct, frozen=True, kw_only=True):
    """One page; `next_cursor` null ends the listing."""

    instances: tuple[world.Instance, ...]
    next_cursor: str | None = None


class Snapshot(InstanceList, frozen=True, kw_only=True):
    """Everything there is."""

    balancers: tuple[world_balancers.Balancer, ...] = ()
    routes: tuple[world_routes.Route, ...] = ()
    volumes: tuple[world_volumes.Volume, ...] = ()


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start or stop; repeating it is no fault, interfering with one under way is 409."""

    action: world.Action


class GivenInstances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many instances at once; all of them are placed or none."""

    instances: tuple[world.GivenInstance, ...]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scripted faults, in order."""

    faults: tuple[faults.Fault, ...]


SettingsChange = msgspec.defstruct(
    "SettingsChange",
    [
        (field.name, field.type | msgspec.UnsetType, msgspec.UNSET)
        for field in msgspec.structs.fields(traffic.Settings)
    ],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
SettingsChange.__doc__ = "Any of the settings; what is left out stays."


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Cloud calls in order of arrival, the count per operation, and their sum."""

    calls: tuple[traffic.Entry, ...]
    counts: dict[str, int]
    total: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is for programs, `message` for people, `request_id` for the support desk."""

    code: str
    message: str
    request_id: str


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """The one shape of every error."""

    error: ErrorBody


class ListQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `limit` instances behind `cursor`: all, those called exactly `name`, or with a label.

    `label` is `key=value`.
    """

    name: str | None = None
    label: str | None = None


class CallsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only the calls behind sequence number `after`."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0


def _list(cloud: simulation.Simulation, asked: Request) -> InstanceList:
    page = cloud.world.page(
        limit=min(asked.query.limit, cloud.settings.page_size),
        after=operation.parse_cursor(asked.query.cursor),
        name=asked.query.name,
        label=operation.parse_label(asked.query.label),
        stale_s=cloud.settings.list_delay_s,
    )
    return InstanceList(instances=page.instances, next_cursor=operation.format_cursor(page.after))


def _put(cloud: simulation.Simulation, asked: Request) -> InstanceList:
    return InstanceList(instances=cloud.world.put_all(asked.body.instances))


def _add_faults(cloud: simulation.Simulation, asked: Request) -> None:
    for fault in asked.body.faults:
        cloud.script.add(fault)


def _change_settings(cloud: simulation.Simulation, asked: Request) -> traffic.Settings:
    cloud.change_settings(changes.applied(cloud.settings, asked.body))
    return cloud.settings


def _list_calls(cloud: simulation.Simulation, asked: Request) -> Calls:
    counts = dict(cloud.calls.counts)
    entries = (entry for entry in cloud.calls.entries if entry.sequence > asked.query.after)
    return Calls(calls=tuple(entries), counts=counts, total=sum(counts.values()))


def _snapshot(cloud: simulation.Simulation, _: Request) -> Snapshot:
    return Snapshot(
        instances=cloud.world.snapshot(),
        balancers=tuple(cloud.worlds.balancers.list()),
        routes=tuple(cloud.worlds.routes.list()),
        volumes=tuple(cloud.worlds.volumes.list()),
    )


_UPDATE = operation.Operation(
    name="update_instance",
    route="PATCH /v1/instances/{id}",
    summary="Change labels (merged), addresses (replaced) or type",
    handler=lambda cloud, asked: cloud.world.update(asked.id, asked.body),
    body=world.Change,
    answer=world.Instance,
)

_DELETE = operation.Operation(
    name="delete_instance",
    route="DELETE /v1/instances/{id}",
    summary="Delete an instance in whatever state it is",
    handler=lambda cloud, asked: cloud.world.delete(asked.id),
)

_ACT = operation.Operation(
    name="act_on_instance",
    route="POST /v1/instances/{id}/actions",
    summary="Start or stop an instance",
    handler=lambda cloud, asked: cloud.world.act(asked.id, asked.body.action),
    body=ActionRequest,
    answer=world.Instance,
)

OPERATIONS = (
    operation.Operation(
        name="list_instances",
        route="GET /v1/instances",
        summary="One page of instances, in order of creation",
        handler=_list,
        query=ListQuery,
        answer=InstanceList,
    ),
    operation.Operation(
        name="get_instance",
        route="GET /v1/instances/{id}",
        summary="One instance",
        handler=lambda cloud, asked: cloud.world.get(asked.id, stale_s=cloud.settings.get_delay_s),
        answer=world.Instance,
    ),
    operation.Operation(
        name="create_instance",
        route="POST /v1/instances",
        summary="Order an instance; it starts at once",
        handler=lambda cloud, asked: cloud.worlds.orders.create(asked.body),
        body=world_orders.Order,
        answer=world.Instance,
        created=True,
    ),
    _UPDATE,
    _DELETE,
    _ACT,
    operation.Operation(
        name="admin_put_instances",
        route="POST /admin/instances",
        summary="Place many instances at once, in any state",
        handler=_put,
        body=GivenInstances,
        answer=InstanceList,
        created=True,
    ),
    msgspec.structs.replace(operation.behind_the_scenes(_UPDATE), body=world.Interference),
    operation.Operation(
        name="admin_get_user_data",
        route="GET /admin/instances/{id}/user-data",
        summary="What an instance was booted with",
        handler=lambda cloud, asked: cloud.worlds.orders.user_data(asked.id),
        answer=world_orders.UserData,
    ),
    msgspec.structs.replace(
        operation.behind_the_scenes(_DELETE),
        summary="Lose an instance: it is gone at once",
        handler=lambda cloud, asked: cloud.world.delete(asked.id, at_once=True),
    ),
    operation.behind_the_scenes(_ACT),
    operation.Operation(
        name="admin_add_faults",
        route="POST /admin/faults",
        summary="Arm scripted faults, behind those already armed",
        handler=_add_faults,
        body=Faults,
    ),
    operation.Operation(
        name="admin_clear_faults",
        route="DELETE /admin/faults",
        summary="Disarm every fault and let hanging calls go",
        handler=lambda cloud, _: cloud.heal(),
    ),
    operation.Operation(
        name="admin_get_settings",
        route="GET /admin/settings",
        summary="The cloud's settings",
        handler=lambda cloud, _: cloud.settings,
        answer=traffic.Settings,
    ),
    operation.Operation(
        name="admin_change_settings",
        route="PATCH /admin/settings",
        summary="Change some of the cloud's settings; the rest stays",
        handler=_change_settings,
        body=SettingsChange,
        answer=traffic.Settings,
    ),
    operation.Operation(
        name="admin_list_calls",
        route="GET /admin/calls",
        summary="The log of cloud calls and their counts",
        handler=_list_calls,
        query=CallsQuery,
        answer=Calls,
    ),
    operation.Operation(
        name="admin_clear_calls",
        route="DELETE /admin/calls",
        summary="Empty the log of cloud calls and their counts",
        handler=lambda cloud, _: cloud.calls.clear(),
    ),
    operation.Operation(
        name="admin_snapshot",
        route="GET /admin/snapshot",
        summary="Everything in the cloud as it truly is now, in one answer",
        handler=_snapshot,
        answer=Snapshot,
    ),
    *api_balancers.OPERATIONS,
    *api_routes.OPERATIONS,
    *api_volumes.OPERATIONS,
)


def describe() -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    types = {Error, *(kind for row in OPERATIONS for kind in (row.body, row.answer) if kind)}
    _, schemas = msgspec.json.schema_components(
        sorted(types, key=lambda kind: kind.__name__), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for row in OPERATIONS:
        paths.setdefault(row.path, {})[row.method.lower()] = _describe_row(row)
    kinds = "\n".join(f"- `{kind}`: {text}" for kind, text in faults.MEANINGS.items())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Simulated cloud",
            "version": VERSION,
            "description": f"{__doc__}\nKinds of scripted faults:\n\n{kinds}\n",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_row(row: operation.Operation) -> dict[str, Any]:
    parameters = [
        {"name": field, "in": "query", "required": False, "schema": schema}
        for field, schema in _inline(row.query)["properties"].items()
    ]
    if "{id}" in row.path:
        parameters.insert(
            0, {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        )
    answer: dict[str, Any] = {"description": row.summary}
    if row.answer:
        answer["content"] = _content(row.answer)
    described: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "parameters": parameters,
        "responses": {
            str(row.status): answer,
            "default": {"description": "Refused", "content": _content(Error)},
        },
    }
    if row.body:
        described["requestBody"] = {"required": True, "content": _content(row.body)}
    return described


def _inline(kind: type[msgspec.Struct]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([kind])
    schema: dict[str, Any] = schemas[kind.__name__]
    return schema


def _content(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}

"""Volumes in the API: their rows of the table, and what each of them does."""

from __future__ import annotations

import msgspec

from . import operation, simulation, world_volumes
from .operation import Operation, Request


class VolumeList(msgspec.Struct, frozen=True, kw_only=True):
    """One page in order of creation; `next_cursor` null ends the listing."""

    volumes: tuple[world_volumes.Volume, ...]
    next_cursor: str | None = None


class VolumeQuery(operation.PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All volumes, or those with a label, `key=value`."""

    label: str | None = None


def _list(cloud: simulation.Simulation, asked: Request) -> VolumeList:
    found = cloud.worlds.volumes.list(label=operation.parse_label(asked.query.label))
    page, cursor = operation.cut(found, asked.query, cloud.settings.page_size)
    return VolumeList(volumes=page, next_cursor=cursor)


_LIST = Operation(
    name="list_volumes",
    route="GET /v1/volumes",
    summary="One page of volumes, in order of creation",
    handler=_list,
    query=VolumeQuery,
    answer=VolumeList,
)

_CREATE = Operation(
    name="create_volume",
    route="POST /v1/volumes",
    summary="Order a volume; an order of an instance attaches it",
    handler=lambda cloud, asked: cloud.worlds.volumes.create(asked.body),
    body=world_volumes.NewVolume,
    answer=world_volumes.Volume,
    created=True,
)

_DELETE = Operation(
    name="delete_volume",
    route="DELETE /v1/volumes/{id}",
    summary="Delete a volume that no instance has",
    handler=lambda cloud, asked: cloud.worlds.volumes.delete(asked.id),
)

OPERATIONS = (
    _LIST,
    _CREATE,
    _DELETE,
    operation.behind_the_scenes(_LIST),
    operation.behind_the_scenes(_CREATE),
    operation.behind_the_scenes(_DELETE),
)

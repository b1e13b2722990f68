"""Rows of the API table."""

from __future__ import annotations

import msgspec

from providers.sim import api_routes
from providers.sim.operation import behind_the_scenes


def test_the_administrators_twin_is_the_same_call_elsewhere() -> None:
    row = next(one for one in api_routes.OPERATIONS if one.name == "delete_route")

    twin = behind_the_scenes(row)

    assert (twin.name, twin.path) == ("admin_delete_route", "/admin/routes/{id}")
    same = msgspec.structs.replace(twin, name=row.name, route=row.route, summary=row.summary)
    assert same == row
    assert row.is_cloud_call
    assert not twin.is_cloud_call

"""Changes that leave fields out."""

from __future__ import annotations

import msgspec

from providers.sim import changes, world_routes


def test_what_is_left_out_stays_and_what_is_given_replaces() -> None:
    route = world_routes.Route(
        id="r-1", name="one", cluster="c", destination="10.1.0.0/24", gateway="10.0.0.1"
    )
    change = msgspec.json.decode(b'{"gateway": "10.0.0.2"}', type=world_routes.RouteChange)

    changed = changes.applied(route, change)

    assert changed == msgspec.structs.replace(route, gateway="10.0.0.2")
    assert route.gateway == "10.0.0.1"
    assert changes.applied(route, world_routes.RouteChange()) == route

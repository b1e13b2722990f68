"""Numbers of calls before real services.

On OpenStack 2026.1 and a quiet machine: 2 for a start with 20 nodes, 10 or 11 for a Service with
one port and a floating IP, 8 for a second port, 10 for the deletion, 3 for a route, and 15 for the
restart of a daemon with 20 nodes and 3 Services, none of which writes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from ccm.testing import probes
from ccm.testing.contract_balancers import ensured
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.probes import CLUSTER
from tests.openstack.balancing import annotated, service
from tests.openstack.lab.harness import LabHarness
from tests.openstack.test_balancers import PORTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("openstack-lab")]

NODES = 20
WAITS = tuple(f"GET /load-balancer/v2/lbaas/loadbalancers{number}" for number in ("", "/{id}"))
"""Calls that also wait for a change; on a quiet machine, each is sent twice at most."""


def spent(harness: LabHarness, what: str) -> Counter[str]:
    """The calls since the last time, without tokens and the version of Octavia; told."""
    free = ("POST /identity", "GET /load-balancer/ ")
    calls = Counter(
        {name: n for name, n in harness.service.calls.items() if not f"{name} ".startswith(free)}
    )
    harness.service.calls.clear()
    print(what, calls.total(), dict(calls))
    for name in WAITS:  # a busy machine is asked more often
        calls[name] = min(calls[name], 2)
    return calls


async def test_a_start_takes_at_most_ten_calls(harness: LabHarness) -> None:
    await harness.lab.keep_spare(NODES)
    made = [await harness.create() for _ in range(NODES)]

    listing = await harness.project.inventory.list_instances()

    assert {one.provider_id for one in made} <= {
        one.metadata.provider_id for one in listing.instances
    }
    calls = spent(harness, f"start with {NODES} nodes")
    assert calls.total() == listing.requests == 2


async def test_services_and_routes_stay_within_their_calls(harness: LabHarness) -> None:
    """A port at most 12, a second at most 8, a deletion at most 10, a route at most 3."""
    nodes = await probes.nodes(harness.project, harness, 2)
    spent(harness, "before")

    await ensured(harness.balancer, service(), nodes)
    assert spent(harness, "a Service with one port").total() <= 12
    (held,) = await harness.lab.balancers()
    two = annotated(service(spec=PORTS), load_balancer_id=held["id"])
    await ensured(harness.balancer, two, nodes)
    assert spent(harness, "a second port").total() <= 8
    await probes.retry_after_hints(
        lambda: harness.balancer.ensure_load_balancer_deleted(CLUSTER, two)
    )
    assert spent(harness, "a deletion").total() <= 10

    routes = harness.project.routes
    await created(routes, nodes[0], CIDR)
    assert spent(harness, "a route").total() <= 3
    (route,) = await routes.list_routes(CLUSTER)
    assert spent(harness, "a listing of routes").total() <= 2
    await routes.delete_route(CLUSTER, route)
    assert spent(harness, "a deletion of a route").total() <= 3

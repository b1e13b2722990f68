"""However nodes come and go while calls take their time: soon after, the routes are right."""

from __future__ import annotations

import random

import pytest

from ccm.testing.clock import advance, elapsed_s
from tests.support.routes import A, B, running

pytestmark = pytest.mark.virtual_time

CIDRS = (A, B, "10.120.2.0/24")
NODES = ("a", "b", "c")
LATENCIES_S = (0, 0.5, 3, 9)
PAUSES_S = (0, 0.1, 1, 5, 11, 30)
SOON_S = 90.0
"""Some comparisons, and far less than a safety pass."""


@pytest.mark.parametrize("seed", range(60))
async def test_routes_are_right_soon_after(seed: int) -> None:
    rng = random.Random(seed)
    log = []
    async with running(concurrency=rng.choice((1, 2, 200))) as env:
        for _ in range(rng.randint(5, 40)):
            name, cidrs = rng.choice(NODES), rng.sample(CIDRS, rng.choice((0, 1, 1, 1, 1, 2)))
            log.append(f"{elapsed_s():.1f} {name} {cidrs}")
            if cidrs:
                env.node(name, *cidrs, ip=f"10.0.0.{rng.randint(1, 3)}")
            else:
                env.drop(name)
            env.cloud.latency_s = rng.choice(LATENCIES_S)
            await advance(rng.choice(PAUSES_S))
        env.cloud.latency_s = 0
        await advance(SOON_S)

        nodes = env.informer.store.list()
        wanted = {(node.name, cidr) for node in nodes for cidr in node.spec.pod_cidrs or ()}
        conditions = [
            (condition.status, condition.reason)
            for node in nodes
            for condition in node.status.conditions or ()
        ]
        assert env.cloud.present() == wanted, log
        assert len(env.cloud.routes) == len(wanted), log
        assert conditions == [("False", "RouteCreated")] * len(nodes), log
        calls = len(env.cloud.log)
        await advance(400)
        assert len(env.cloud.log) == calls, log

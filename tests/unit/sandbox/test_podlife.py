"""Make-believe Pods run and end; budgets are counted as their controller counts them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.sandbox import podlife
from ccm.testing.clock import advance
from tests.unit.controllers.drains import BUDGETS, PODS, Drains

pytestmark = pytest.mark.virtual_time


def pod(name: str, ready: bool = True, **metadata: Any) -> podlife.LivePod:
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    body = {"metadata": {"name": name, **metadata}, "status": status}
    return podlife.PODS.decode(msgspec.json.encode(body))


def budget(disrupted: Any = None, **spec: Any) -> podlife.Budget:
    metadata = {"name": "b", "generation": 3}
    body = {"metadata": metadata, "spec": spec, "status": {"disruptedPods": disrupted}}
    return podlife.BUDGETS.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": 5}, 5, 0),
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": 1}, 3, 0),
        ({"maxUnavailable": "50%"}, 2, 1),
        ({}, 0, 3),
    ],
)
def test_what_a_budget_allows(spec: Any, desired: int, allowed: int) -> None:
    pods = [pod("a"), pod("b"), pod("c"), pod("d", ready=False)]

    found = podlife.counted(budget(**spec), pods, 0.0)

    assert (found["expectedPods"], found["currentHealthy"]) == (4, 3)
    assert (found["desiredHealthy"], found["disruptionsAllowed"]) == (desired, allowed)
    assert found["observedGeneration"] == 3


def test_pods_that_go_are_not_counted_on() -> None:
    noted = {
        "a": "1970-01-01T00:00:10Z",
        "gone": "1970-01-01T00:00:10Z",
        "b": "1970-01-01T00:00:00Z",
    }
    pods = [pod("a"), pod("b"), pod("c", deletionTimestamp="1970-01-01T00:00:00Z")]

    found = podlife.counted(budget(noted, minAvailable=1), pods, 125.0)

    assert found["disruptedPods"] == {"a": noted["a"], "gone": None, "b": None}
    assert (found["expectedPods"], found["currentHealthy"], found["disruptionsAllowed"]) == (
        3,
        1,
        0,
    )


async def test_a_silent_kubelet_ends_no_pod() -> None:
    world = Drains()
    world.pod("p0")
    async with world.draining():
        await advance(1)
        world.sick(Ready="Unknown")
        world.server.drop(f"{PODS}/p0")
        await advance(60)
        assert world.pods() == ["p0"]
        world.sick(Ready="True")
        await advance(2)
        assert world.pods() == []


async def test_pods_of_a_node_that_is_gone_go_too() -> None:
    world = Drains()
    world.pod("p0", node="nowhere", grace_s=600)
    world.budget(minAvailable=0)
    async with world.draining():
        await advance(1)
        world.server.drop(f"{PODS}/p0")
        await advance(1)
        assert world.pods() == []
        status = (world.server.get(f"{BUDGETS}/web") or {})["status"]
        assert (status["expectedPods"], status["disruptionsAllowed"]) == (0, 0)

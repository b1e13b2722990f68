"""Fake kubelets, Pods on their nodes, and the status of disruption budgets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ccm.base.tasks import cancel_and_join, first_of, spawn
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES
from ccm.model import Node
from ccm.sandbox import kubelet
from ccm.testing.clock import advance
from tests.unit.controllers.memory_server import MemoryServer

PATH = "/api/v1/nodes"

pytestmark = pytest.mark.virtual_time


@contextlib.asynccontextmanager
async def running(server: MemoryServer, **options: Any) -> AsyncIterator[kubelet.Kubelets]:
    client = server.client()
    informers = SharedInformers(client)
    kubelets = kubelet.Kubelets(informers.informer_for(NODES), client.resource(NODES), **options)
    work = spawn(first_of(informers.run(), kubelets.run(), name="kubelets"), name="kubelets")
    await advance(1)
    yield kubelets
    await cancel_and_join(work)


def seen(server: MemoryServer, name: str = "a") -> Node:
    return msgspec.convert(server.get(f"{PATH}/{name}"), Node)


async def test_node_gets_a_pod_cidr_once() -> None:
    server = MemoryServer()
    server.put(PATH, {"metadata": {"name": "b"}, "spec": {"podCIDRs": ["100.64.0.0/24"]}})
    async with running(server, ranges=kubelet.PodRanges()) as kubelets:
        kubelets.set_running_machines({"a": "i-1", "b": "i-2"})
        await advance(1)

    assert seen(server).spec.pod_cidrs == ["100.64.1.0/24"]
    assert seen(server, "b").spec.pod_cidrs == ["100.64.0.0/24"]


# --- Pod ranges ------------------------------------------------------------------------------


def test_node_keeps_its_own_or_reserved_pod_cidr() -> None:
    ranges = kubelet.PodRanges()
    for _ in range(2):
        ranges.reserve("a", "100.64.0.0/24")

    for _ in range(2):
        assert ranges.allocate("b") == "100.64.1.0/24"
        assert ranges.allocate("a") == "100.64.0.0/24"


def test_pod_cidr_of_a_deleted_node_is_reused() -> None:
    ranges = kubelet.PodRanges()
    ranges.allocate("a")
    ranges.allocate("b")

    ranges.release("a")
    ranges.release("never seen")

    assert ranges.allocate("c") == "100.64.0.0/24"
    assert ranges.allocate("d") == "100.64.2.0/24"


def test_exhausted_pod_cidrs_raise_an_error() -> None:
    ranges = kubelet.PodRanges("10.0.0.0/23")
    ranges.allocate("a")
    ranges.allocate("b")

    with pytest.raises(ValueError, match="no free Pod CIDR"):
        ranges.allocate("c")


# --- Pods -----------------------------------------------------------------------------------------


def pod(name: str, ready: bool = True, **metadata: Any) -> kubelet.LivePod:
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    body = {"metadata": {"name": name, **metadata}, "status": status}
    return kubelet.PODS.decode(msgspec.json.encode(body))


def budget(disrupted: Any = None, **spec: Any) -> kubelet.Budget:
    metadata = {"name": "b", "generation": 3}
    body = {"metadata": metadata, "spec": spec, "status": {"disruptedPods": disrupted}}
    return kubelet.BUDGETS.decode(msgspec.json.encode(body))


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
def test_disruption_budget_status_is_computed(spec: Any, desired: int, allowed: int) -> None:
    pods = [pod("a"), pod("b"), pod("c"), pod("d", ready=False)]

    found = kubelet.budget_status(budget(**spec), pods, 0.0)

    assert (found["expectedPods"], found["currentHealthy"]) == (4, 3)
    assert (found["desiredHealthy"], found["disruptionsAllowed"]) == (desired, allowed)
    assert found["observedGeneration"] == 3


def test_disrupted_and_terminating_pods_are_not_counted_as_healthy() -> None:
    noted = {
        "a": "1970-01-01T00:00:10Z",
        "gone": "1970-01-01T00:00:10Z",
        "b": "1970-01-01T00:00:00Z",
    }
    pods = [pod("a"), pod("b"), pod("c", deletionTimestamp="1970-01-01T00:00:00Z")]

    found = kubelet.budget_status(budget(noted, minAvailable=1), pods, 125.0)

    assert found["disruptedPods"] == {"a": noted["a"], "gone": None, "b": None}
    assert (found["expectedPods"], found["currentHealthy"], found["disruptionsAllowed"]) == (
        3,
        1,
        0,
    )

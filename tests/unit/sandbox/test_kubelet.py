"""Make-believe kubelets, Pods on their nodes, and budgets as their controller counts them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ccm.base.tasks import cancel_and_join, first_of, spawn
from ccm.kube.informer import Informers
from ccm.kube.resources import NODES
from ccm.model import Node, Taint, names
from ccm.model.node import is_uninitialized
from ccm.sandbox import kubelet
from ccm.testing import builders
from ccm.testing.clock import advance
from tests.unit.controllers.drains import BUDGETS as BUDGETS_PATH
from tests.unit.controllers.drains import PODS as PODS_PATH
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.memory_server import MemoryServer

PATH = "/api/v1/nodes"
_NOT_READY = {"key": names.TAINT_NOT_READY, "effect": names.EFFECT_NO_SCHEDULE}

pytestmark = pytest.mark.virtual_time

NOW = "2026-01-02T03:04:05Z"
NOT_READY = Taint(key=names.TAINT_NOT_READY, effect=names.EFFECT_NO_SCHEDULE)


def test_a_new_node_knows_its_host_name_and_waits_for_its_cloud() -> None:
    node = msgspec.convert(kubelet.new_node("vm-1", NOW), Node)

    assert is_uninitialized(node)
    assert (node.taints[0].value, node.taints[0].effect) == ("true", names.EFFECT_NO_SCHEDULE)
    assert (node.provider_id, node.ready) == ("", names.STATUS_FALSE)
    assert node.labels[names.LABEL_HOSTNAME] == "vm-1"
    assert node.labels.keys() == {names.LABEL_HOSTNAME, names.LABEL_OS, names.LABEL_ARCH}
    assert [(one.type, one.address) for one in node.addresses] == [("Hostname", "vm-1")]


def test_a_new_node_that_has_its_provider_id_waits_for_nothing() -> None:
    node = msgspec.convert(kubelet.new_node("vm-1", NOW, provider_id="x://1"), Node)

    assert (node.provider_id, list(node.taints)) == ("x://1", [])


def test_lifting_the_not_ready_taint_keeps_the_others_and_is_bound_to_the_version() -> None:
    node = builders.node(taints=[NOT_READY, builders.shutdown_taint()], resource_version="7")

    patch = kubelet.not_ready_taint_patch(node)

    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert [taint.key for taint in patch["spec"]["taints"]] == [names.TAINT_SHUTDOWN]
    assert kubelet.not_ready_taint_patch(builders.node()) is None


def test_a_heartbeat_leaves_the_time_of_the_last_change_alone() -> None:
    (condition,) = kubelet.ready_patch("True", NOW, turned=False)["status"]["conditions"]

    assert condition["lastHeartbeatTime"] == NOW
    assert "lastTransitionTime" not in condition


MACHINES = {"a": "i-1"}


@contextlib.asynccontextmanager
async def running(server: MemoryServer, **options: Any) -> AsyncIterator[kubelet.Kubelets]:
    client = server.client()
    informers = Informers(client)
    kubelets = kubelet.Kubelets(informers.of(NODES), client.resource(NODES), **options)
    work = spawn(first_of(informers.run(), kubelets.run(), name="kubelets"), name="kubelets")
    await advance(1)
    yield kubelets
    await cancel_and_join(work)


def seen(server: MemoryServer, name: str = "a") -> Node:
    return msgspec.convert(server.get(f"{PATH}/{name}"), Node)


@pytest.mark.parametrize(
    ("machines", "registered"),
    [
        ((MACHINES, MACHINES), 1),
        ((MACHINES, {}, MACHINES), 2),
        ((MACHINES, {"a": "i-2"}), 2),
    ],
    ids=["once, even if its node is deleted", "booted again", "another machine"],
)
async def test_a_kubelet_registers_when_its_machine_boots(
    machines: tuple[dict[str, str], ...], registered: int
) -> None:
    server = MemoryServer()
    async with running(server) as kubelets:
        for present in machines:
            kubelets.follow(present)
            await advance(1)
            if server.get(f"{PATH}/a"):
                server.drop(f"{PATH}/a")
                await advance(1)

    assert server.requests["POST", PATH] == registered


async def test_a_node_follows_its_cloud_and_its_machine() -> None:
    server = MemoryServer()
    async with running(server) as kubelets:
        kubelets.follow(MACHINES)
        await advance(1)
        assert (seen(server).ready, len(seen(server).taints)) == ("False", 2)

        server.patch(f"{PATH}/a", {"spec": {"taints": [_NOT_READY]}})
        await advance(1)
        assert (seen(server).ready, list(seen(server).taints)) == ("True", [])
        before = seen(server).status.conditions

        await advance(2 * kubelet.HEARTBEAT_S)
        assert seen(server).status.conditions != before
        kubelets.follow({})
        await advance(1)
        assert seen(server).ready == "Unknown"


async def test_each_node_gets_a_range_of_pod_addresses_once() -> None:
    server = MemoryServer()
    server.put(PATH, {"metadata": {"name": "b"}, "spec": {"podCIDRs": ["100.64.0.0/24"]}})
    async with running(server, ranges=kubelet.PodRanges()) as kubelets:
        kubelets.follow({"a": "i-1", "b": "i-2"})
        await advance(1)

    assert seen(server).spec.pod_cidrs == ["100.64.1.0/24"]
    assert seen(server, "b").spec.pod_cidrs == ["100.64.0.0/24"]


# --- Pod ranges ------------------------------------------------------------------------------


def test_each_node_has_one_range_of_its_own_maybe_one_that_it_brought_along() -> None:
    ranges = kubelet.PodRanges()
    for _ in range(2):
        ranges.hold("a", ["100.64.0.0/24"])

    for _ in range(2):
        assert ranges.take("b") == "100.64.1.0/24"
        assert ranges.take("a") == "100.64.0.0/24"


def test_the_range_of_a_node_that_has_gone_is_used_again() -> None:
    ranges = kubelet.PodRanges()
    ranges.take("a")
    ranges.take("b")

    ranges.release("a")
    ranges.release("never seen")

    assert ranges.take("c") == "100.64.0.0/24"
    assert ranges.take("d") == "100.64.2.0/24"


def test_when_all_are_gone_it_says_so() -> None:
    ranges = kubelet.PodRanges("10.0.0.0/23")
    ranges.take("a")
    ranges.take("b")

    with pytest.raises(ValueError, match="no range"):
        ranges.take("c")


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
def test_what_a_budget_allows(spec: Any, desired: int, allowed: int) -> None:
    pods = [pod("a"), pod("b"), pod("c"), pod("d", ready=False)]

    found = kubelet.counted(budget(**spec), pods, 0.0)

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

    found = kubelet.counted(budget(noted, minAvailable=1), pods, 125.0)

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
        world.server.drop(f"{PODS_PATH}/p0")
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
        world.server.drop(f"{PODS_PATH}/p0")
        await advance(1)
        assert world.pods() == []
        status = (world.server.get(f"{BUDGETS_PATH}/web") or {})["status"]
        assert (status["expectedPods"], status["disruptionsAllowed"]) == (0, 0)

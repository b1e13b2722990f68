"""How Pods end: with their grace, and by evictions that a budget allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccm.sandbox.apiserver import errors, kinds
from tests.unit.sandbox.apiserver.requests import Requests, at, refused

pytestmark = pytest.mark.virtual_time

POD, STATUS = at(kinds.PODS, "p"), at(kinds.PODS, "p", "status")
EVICTION = at(kinds.PODS, "p", kinds.EVICTION)
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
def server() -> Requests:
    return Requests()


def pod(server: Requests, *, status: Any = READY, **spec: Any) -> None:
    containers = [{"name": "c", "image": "i"}]
    body = {"nodeName": "n", "containers": containers, **spec}
    server.create(kinds.PODS, "p", metadata={"labels": {"app": "web"}}, spec=body)
    server.patch(STATUS, {"status": status})


def budget(server: Requests, name: str = "b", *, status: Any = None, **spec: Any) -> None:
    selector = {"matchLabels": {"app": "web"}}
    server.create(kinds.BUDGETS, name, spec={"selector": selector, **spec})
    counted = {"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3}
    server.patch(at(kinds.BUDGETS, name, "status"), {"status": {**counted, **(status or {})}})


def evict(server: Requests, name: str = "p", **options: Any) -> None:
    body = {"metadata": {"name": name}, "deleteOptions": options}
    server.api.evict(EVICTION, json.dumps(body).encode(), "application/json")


def metadata(server: Requests) -> dict[str, Any]:
    """Of the Pod; empty: it is gone."""
    entry = server.store.get(kinds.PODS, "default/p")
    return {} if entry is None else dict(entry.body()["metadata"])


async def test_a_pod_has_its_grace_and_then_goes_at_once(server: Requests) -> None:
    pod(server, terminationGracePeriodSeconds=40)

    server.delete(POD)
    assert metadata(server)["deletionTimestamp"] == "2026-01-01T00:00:40Z"
    assert metadata(server)["deletionGracePeriodSeconds"] == 40
    server.patch(STATUS, {"status": {"phase": "Running"}})
    server.delete(POD, grace_s=60)
    assert metadata(server)["deletionGracePeriodSeconds"] == 40
    server.delete(POD, grace_s=10)
    assert metadata(server)["deletionTimestamp"] == "2026-01-01T00:00:10Z"
    server.delete(POD, grace_s=0)
    assert metadata(server) == {}


@pytest.mark.parametrize(
    ("spec", "status", "options"),
    [
        ({"nodeName": ""}, {}, {}),
        ({}, {"phase": "Succeeded"}, {}),
        ({"terminationGracePeriodSeconds": 0}, {}, {}),
        ({}, {}, {"grace_s": 0}),
    ],
    ids=["on-no-node", "over", "no-grace", "by-force"],
)
def test_a_pod_that_goes_at_once(server: Requests, spec: Any, status: Any, options: Any) -> None:
    pod(server, status=status, **spec)
    server.delete(POD, **options)
    assert metadata(server) == {}


def test_finalizers_hold_a_pod_whose_grace_is_over(server: Requests) -> None:
    pod(server)
    server.patch(POD, {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete(POD)
    server.delete(POD, grace_s=0)
    assert metadata(server)["deletionGracePeriodSeconds"] == 0
    server.patch(POD, {"metadata": {"finalizers": None}})
    assert metadata(server) == {}


async def test_an_eviction_takes_one_from_the_budget(server: Requests) -> None:
    pod(server)
    budget(server, status={"disruptionsAllowed": 1})

    evict(server)

    found = server.store.get(kinds.BUDGETS, "default/b")
    assert found is not None
    assert found.body()["status"]["disruptionsAllowed"] == 0
    assert found.body()["status"]["disruptedPods"] == {"p": "2026-01-01T00:00:00Z"}
    assert "deletionTimestamp" in metadata(server)
    evict(server)  # it goes already


@pytest.mark.parametrize(
    ("status", "why", "pause_s"),
    [
        ({}, "The disruption budget b needs 3 healthy pods and has 3 currently", None),
        (
            {"currentHealthy": 4},
            "The disruption budget b does not allow evicting pods currently",
            None,
        ),
        (
            {"observedGeneration": 0},
            "The disruption budget b is still being processed by the server.",
            10,
        ),
    ],
)
def test_an_eviction_that_is_refused(
    server: Requests, status: Any, why: str, pause_s: int | None
) -> None:
    pod(server)
    budget(server, status=status)

    with pytest.raises(errors.ApiError) as caught:
        evict(server)

    said = caught.value.status()
    assert (said["code"], said["reason"]) == (429, "TooManyRequests")
    assert said["details"]["causes"] == [{"reason": "DisruptionBudget", "message": why}]
    assert said["details"].get("retryAfterSeconds") == pause_s
    assert "deletionTimestamp" not in metadata(server)


@pytest.mark.parametrize(
    ("status", "policy", "goes"),
    [
        ({"phase": "Pending"}, {}, True),
        ({"phase": "Running"}, {}, True),
        ({"phase": "Running"}, {"unhealthyPodEvictionPolicy": "IfHealthyBudget"}, True),
        (READY, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, False),
    ],
)
def test_a_pod_that_does_not_count(server: Requests, status: Any, policy: Any, goes: bool) -> None:
    pod(server, status=status)
    budget(server, **policy)

    if goes:
        evict(server)
    else:
        with refused(429, "TooManyRequests"):
            evict(server)


def test_an_unhealthy_pod_counts_while_the_budget_is_short(server: Requests) -> None:
    pod(server, status={"phase": "Running"})
    budget(server, status={"currentHealthy": 2})
    with refused(429, "TooManyRequests"):
        evict(server)

    server.patch(at(kinds.BUDGETS, "b"), {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    evict(server)


def test_evictions_that_make_no_sense(server: Requests) -> None:
    with refused(404, "NotFound", 'pods "p" not found'):
        evict(server)
    pod(server)
    with refused(400, "BadRequest", "name in URL does not match name in Eviction object"):
        evict(server, "q")
    with refused(409, "Conflict"):
        evict(server, preconditions={"uid": "other"})
    budget(server)
    budget(server, "c")
    with refused(500, "", "This pod has more than one PodDisruptionBudget"):
        evict(server)


def test_an_eviction_is_no_part_that_can_be_read() -> None:
    assert kinds.PODS.part_verbs(kinds.EVICTION) == ("create",)

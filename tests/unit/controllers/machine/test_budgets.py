"""Who waits for a disruption budget tries again in turn."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ccm.base.tasks import Group
from ccm.controllers.machine.budgets import Budgets, Refused
from ccm.kube.informer import Informer
from ccm.kube.resources import BUDGETS, PODS
from ccm.model import Pod
from ccm.testing.clock import advance
from tests.unit.controllers import drains
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

STATUS = {"observedGeneration": 1, "expectedPods": 9, "currentHealthy": 5, "desiredHealthy": 5}


def pod(name: str, **labels: str) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels}
    return PODS.decode(msgspec.json.encode({"metadata": metadata}))


def server(allowed: int = 0) -> MemoryServer:
    found = MemoryServer()
    spec = {"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    found.put(drains.BUDGETS, {"metadata": {"name": "web"}, "spec": spec})
    allow(found, allowed)
    return found


def allow(found: MemoryServer, allowed: int, **more: Any) -> None:
    status = {**STATUS, "disruptionsAllowed": allowed, **more}
    found.patch(f"{drains.BUDGETS}/web/status", {"status": status})


def budgets(found: MemoryServer) -> Budgets:
    client = found.client()
    return Budgets(lambda: Informer(client.resource(BUDGETS), resource=BUDGETS.plural))


async def test_those_who_waited_longest_go_first() -> None:
    found = server()
    waiting, woken = budgets(found), list[str]()

    async def one(name: str, **labels: str) -> None:
        await waiting.wait(pod(name, **labels), 100)
        woken.append(name)

    async with Group() as group:
        for name in ("a", "b", "c"):
            group.start(one(name, app="web"), name=name)
            await advance(1)
        group.start(one("stranger"), name="stranger")
        await advance(1)
        allow(found, 2)
        await advance(1)
        assert woken == ["a", "b"]
        allow(found, 1)
        await advance(1)
        assert woken == ["a", "b", "c"]
        await advance(90)
        assert woken == ["a", "b", "c"]
        await advance(9)
    assert woken == ["a", "b", "c", "stranger"]


async def test_what_the_cache_says_may_be_of_before() -> None:
    """A Pod was refused, and the budget seems to allow it: tried again soon, not at once."""
    found = server(allowed=1)
    began = asyncio.get_running_loop().time()

    await budgets(found).wait(pod("a", app="web"), 20)

    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)


async def test_the_budgets_are_watched_only_meanwhile() -> None:
    found = drains.Server()
    async with Group() as group:
        group.start(budgets(found).wait(pod("a", app="web"), 20), name="a")
        await advance(1)
        assert len(found.watches) == 1
    assert len(found.watches) == 0


async def test_a_wait_in_vain() -> None:
    found = server()
    allow(found, 0, currentHealthy=9)

    with pytest.raises(Refused, match="PodDisruptionBudget default/web is misconfigured"):
        await budgets(found).wait(pod("a", app="web"), 20)

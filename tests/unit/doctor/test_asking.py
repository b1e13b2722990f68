"""Which daemon is asked, and what is said when none answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.app import options
from ccm.doctor import asking, leases
from ccm.doctor.asking import Door, Silence
from ccm.doctor.finding import Finding, ok, warn
from ccm.kube import errors
from ccm.runtime.account import Answer

LEADER, OTHER = (
    leases.Manager(pod=f"ccm-{host}", host=host, image="i", provider="sim") for host in "ab"
)
FREE = ok("kube-system/ccm is free")
HELD = ok("kube-system/ccm is held by a_1")


class World:
    """Who holds the Lease, which Pods there are, and what they answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holder = "a_1"
        self.lease: Finding = HELD
        self.pods: Sequence[leases.Manager] | None = (OTHER, LEADER)
        self.answer: Answer | Exception = Answer(kind="node", name="n1", leads=True)
        self.asked: list[str] = []
        monkeypatch.setattr(leases, "lease", self._lease)
        monkeypatch.setattr(leases, "managers_of", self._managers)
        monkeypatch.setattr(asking, "_ask_pod", self._ask_pod)
        monkeypatch.setattr(asking, "_asked", self._asked)

    async def ask(self, address: str = "") -> Answer | Silence:
        case: Any = SimpleNamespace(
            options=options.parse([]),
            holder=None,
            cluster=SimpleNamespace(source="/somewhere/config"),
        )
        return await asking.ask(case, "node", "n1", Door(address=address))

    async def _lease(self, case: Any) -> Finding:
        case.holder = self.holder
        return self.lease

    async def _managers(self, _case: Any, _namespace: str) -> Sequence[leases.Manager] | None:
        return self.pods

    async def _ask_pod(self, _case: Any, _space: str, pod: leases.Manager, *_: str) -> Answer:
        return await self._asked(None, pod.pod)

    async def _asked(self, _case: Any, whom: str, *_: Any) -> Answer:
        self.asked.append(whom)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_the_pod_that_holds_the_lease_is_asked(world: World) -> None:
    assert await world.ask() == world.answer
    assert world.asked == ["ccm-a"]


async def test_without_a_leader_any_pod_may_say_what_keeps_it(world: World) -> None:
    world.holder, world.lease = "", FREE
    world.answer = Answer(kind="node", name="n1", opening="the provider cannot be opened: 401")

    assert await world.ask() == world.answer
    assert world.asked == ["ccm-b"]


async def test_a_pod_that_only_waits_says_that_nobody_leads(world: World) -> None:
    world.holder, world.lease = "", warn("held by a_1, silent for 40 s", "look at its log")
    world.answer = Answer(kind="node", name="n1")

    assert await world.ask() == Silence(
        why="held by a_1, silent for 40 s", advice="look at its log", is_leaderless=True
    )


async def test_without_pods_and_leader_the_lease_is_all_there_is(world: World) -> None:
    world.holder, world.lease, world.pods = "", FREE, None

    told = await world.ask()

    assert isinstance(told, Silence)
    assert (told.why, told.is_leaderless) == ("kube-system/ccm is free", True)


async def test_a_leader_without_a_pod_has_to_be_asked_directly(world: World) -> None:
    world.pods = (OTHER,)

    told = await world.ask()

    assert isinstance(told, Silence)
    assert told.why == "kube-system/ccm is held by a_1, and its Pod is not found"
    assert "--address=HOST:10258" in told.advice


@pytest.mark.parametrize(
    ("error", "why", "advice"),
    [
        (
            errors.Unauthorized(status=401, reason="Unauthorized", message="no"),
            "it does not accept your credentials (401)",
            "use a user of this cluster (config",
        ),
        (
            errors.Forbidden(status=403, reason="Forbidden", message="not you"),
            "you may not ask it (403: ",
            "let yourself `get` the path /explain: kubectl create clusterrole",
        ),
        (
            errors.NotFound(status=404, reason="NotFound", message="404 page not found"),
            "it has no /explain",
            "upgrade the daemon",
        ),
        (errors.Unreachable("nothing listens", kind="refused"), "nothing listens", "look at"),
    ],
    ids=["401", "403", "404", "unreachable"],
)
@pytest.mark.parametrize("address", ["", "far:1"])
async def test_a_refusal_says_what_to_do(
    world: World, address: str, error: Exception, why: str, advice: str
) -> None:
    world.answer = error

    told = await world.ask(address)

    assert isinstance(told, Silence)
    assert told.why.startswith(why)
    assert told.advice.startswith(advice)
    assert not told.is_leaderless

"""Pod routes under faults: whatever fails once, each node has its route in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.model import names
from providers.sim import world
from tests.faults import Cut, Exchange, FaultProxy, Match
from tests.scenario import faults, harness, load
from tests.scenario.faults import Fault, Step, Strike
from tests.scenario.harness import Daemon, Environment, wait_for

pytestmark = pytest.mark.timeout(200)  # a busy machine is slow

FLAGS: Mapping[str, str] = {
    "controllers": ROUTE.name,
    "cluster-cidr": "10.244.0.0/16",
    "route-shortest-interval": "500ms",
    "kube-api-qps": "-1",
    # A busy machine must not cost the lease.
}


ROUTES = "^/v1/routes"
LIST = Step(name="list", method="GET", path=f"{ROUTES}$")
CREATE = Step(name="create", method="POST", path=f"{ROUTES}$")
DELETE = Step(name="delete", method="DELETE", path=f"{ROUTES}/[^/]+$")
CONDITION = Step(name="condition", method="PATCH", path=f"^{harness.NODES}/[^/]+/status$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One node that suffers one fault."""

    number: int
    step: Step
    kind: str
    fault: Fault

    @property
    def name(self) -> str:
        """The node's name."""
        return f"{self.step.name}-{self.kind}".replace(" ", "-")

    @property
    def cidr(self) -> str:
        """The range of the node's pods."""
        return f"10.244.{self.number}.0/24"


def cases(*steps: tuple[Step, Mapping[str, Fault]]) -> list[Case]:
    """Each call with each fault."""
    pairs = [(step, kind, fault) for step, kinds in steps for kind, fault in kinds.items()]
    return [
        Case(number=number, step=step, kind=kind, fault=fault)
        for number, (step, kind, fault) in enumerate(pairs)
    ]


class Stay:
    """A node while it is in the cluster, and the fault that waits for it."""

    def __init__(self, env: Environment, case: Case) -> None:
        self.case = case
        self._env = env
        self._machine: world.Instance | None = None
        self._strike: Strike | None = None

    async def enter(self) -> None:
        """The node comes with a range, and gets its route."""
        case = self.case
        if case.step is CREATE:
            self._arm(self._env.cloud_proxy, lambda one: case.cidr.encode() in one.body)
        elif case.step is CONDITION:
            self._arm(self._env.proxy, lambda one: f"/{case.name}/" in one.path)
        self._machine = self._env.machine(case.name)
        await self._env.cluster.register(
            case.name, ready=names.STATUS_TRUE, podCIDR=case.cidr, podCIDRs=[case.cidr], taints=[]
        )
        await wait_for(self.is_routed, f"{case.name} has its route")

    async def leave(self) -> None:
        """The node goes, and its route too."""
        (route,) = (one.id for one in routes(self._env) if one.destination == self.case.cidr)
        if self.case.step is DELETE:
            self._arm(self._env.cloud_proxy, lambda one: one.path.endswith(f"/{route}"))
        await self._env.cluster.delete(f"{harness.NODES}/{self.case.name}")
        await wait_for(self._is_unrouted, f"{self.case.name} has no route")

    def check(self) -> None:
        """The fault has come."""
        assert self._strike is None or self._strike.came, f"{self.case.name} was not struck"

    async def is_routed(self) -> bool:
        """Whether the cloud has the one route, to the right machine, and the node says so."""
        assert self._machine is not None
        targets = [one.target for one in routes(self._env) if one.destination == self.case.cidr]
        return targets == [self._machine.id] and await network_works(self._env, self.case.name)

    async def _is_unrouted(self) -> bool:
        return all(one.destination != self.case.cidr for one in routes(self._env))

    def _arm(self, proxy: FaultProxy, about: Callable[[Exchange], bool]) -> None:
        self._strike = Strike(proxy, self.case.step, about, self.case.fault)


def routes(env: Environment) -> Sequence[world.Route]:
    """What the cloud holds."""
    return env.cloud.worlds.routes.list()


async def network_works(env: Environment, name: str) -> bool:
    """Whether the node's NetworkUnavailable condition is False."""
    node = await env.cluster.node(name)
    conditions = node["status"]["conditions"] if node is not None else []
    return any(
        one["type"] == names.CONDITION_NETWORK_UNAVAILABLE and one["status"] == "False"
        for one in conditions
    )


async def begin(env: Environment, **flags: str) -> Daemon:
    """A daemon that leads and has compared once."""
    env.configure_cloud(timeout=faults.CLOUD_TIMEOUT)
    daemon = await env.start(flags={**FLAGS, **flags})
    await daemon.says("became leader")
    await env.cloud_proxy.wait_for(Match(method="GET", path=LIST.path))
    return daemon


async def stay(env: Environment, chosen: Sequence[Case]) -> None:
    """Let one node for each case come and go, all of them at once."""
    await begin(env)
    stays = [Stay(env, case) for case in chosen]
    await asyncio.gather(*(one.enter() for one in stays))
    created = sum(call.status == 201 for call in env.calls("create_route"))
    assert created == len(stays), "a route was made twice"
    await asyncio.gather(*(one.leave() for one in stays))

    for one in stays:
        one.check()
    await load.quiet(env, for_s=0.7)
    assert list(routes(env)) == []


async def test_each_call_about_a_route_fails_once(env: Environment) -> None:
    """Every node gets its route and its condition, and every route goes with its node."""
    await stay(env, cases((CREATE, faults.CLOUD), (DELETE, faults.CLOUD), (CONDITION, faults.API)))


@pytest.mark.soak
async def test_each_condition_is_not_answered_once(env: Environment) -> None:
    """As above, where the API server keeps the daemon waiting for as long as it will wait."""
    await stay(env, cases((CONDITION, faults.API_SLOW)))


async def test_each_listing_fails_once(env: Environment) -> None:
    """Without a listing nothing is made and nothing deleted; after it all is as it should be."""
    await begin(env)
    settled = Stay(env, Case(number=200, step=LIST, kind="settled", fault=Cut))
    await settled.enter()

    for number, kind in enumerate(("500", "throttled", "no answer", "garbage")):
        fault = faults.CLOUD[kind]
        struck = Strike(env.cloud_proxy, LIST, lambda _: True, fault)
        newcomer = Stay(env, Case(number=number, step=LIST, kind=kind, fault=fault))
        await newcomer.enter()
        assert struck.came, kind
        assert await settled.is_routed()

    await load.quiet(env, for_s=0.7)
    assert env.calls("delete_route") == []

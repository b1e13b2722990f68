"""Load balancers and routes under faults: after any single fault, they converge.

Each fault hits exactly one call, to the cloud or to the API server.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from providers.sim import world, world_balancers
from tests.faults import (
    Action,
    Cut,
    Exchange,
    FaultProxy,
    Hold,
    Match,
    Point,
    Reset,
    Respond,
    RewriteBody,
    Rule,
)
from tests.scenario import harness, load
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.load import SERVICES

pytestmark = pytest.mark.timeout(200)  # a busy machine is slow

Fault = Callable[[], Action]
"""Makes the fault, afresh for each strike."""

CLOUD_TIMEOUT = "2s"
"""How long the provider waits for one answer of the cloud; shorter than a strike that holds."""


def _cloud_says(status: int, code: str, **headers: str) -> Fault:
    body = {"error": {"code": code, "message": "struck by the test", "request_id": "r"}}
    passed = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda: Respond(status, body, headers=passed)


CLOUD: Mapping[str, Fault] = {
    "500": _cloud_says(500, "internal"),
    "throttled": _cloud_says(429, "rate_limited", Retry_After="1"),
    "reset": Reset,
    "answer lost": lambda: Reset(at=Point.TOOK_EFFECT),
    "no answer": lambda: Hold(asyncio.Event()),
    "answer too late": lambda: Hold(asyncio.Event(), at=Point.TOOK_EFFECT),
    "garbage": lambda: RewriteBody(lambda _: b"<html>"),
}
"""Name -> fault of a call to the cloud."""

API: Mapping[str, Fault] = {
    "500": lambda: harness.refusal(500),
    "throttled": lambda: harness.refusal(429, reason="TooManyRequests", Retry_After="1"),
    "conflict": lambda: harness.refusal(409, reason="Conflict"),
    "reset": Reset,
    "cut": Cut,
    "answer lost": lambda: Reset(at=Point.TOOK_EFFECT),
    "garbage": lambda: RewriteBody(lambda _: b"<html>"),
}
"""Name -> fault of a call to the API server."""

API_SLOW: Mapping[str, Fault] = {
    "no answer": lambda: Hold(asyncio.Event()),
    "answer too late": lambda: Hold(asyncio.Event(), at=Point.TOOK_EFFECT),
}
"""Those that last as long as the daemon waits for an answer of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call in the course of a piece of work: method and path, and the how manieth of these."""

    name: str
    method: str
    path: str
    nth: int = 1

    @property
    def on_api(self) -> bool:
        """Whether the call is one to the API server."""
        return self.path.startswith("^/api")


BALANCERS, STATUS = "^/v1/balancers", f"^{SERVICES}/[^/]+/status$"
FIND = Step(name="find", method="GET", path=f"{BALANCERS}$")
ORDER = Step(name="order", method="POST", path=f"{BALANCERS}$")
CHANGE = Step(name="change", method="PUT", path=f"{BALANCERS}/[^/]+$")
MEMBERS = Step(name="members", method="PUT", path=f"{BALANCERS}/[^/]+/members$")
DELETE = Step(name="delete", method="DELETE", path=f"{BALANCERS}/[^/]+$")
FINALIZER = Step(name="finalizer", method="PATCH", path=STATUS)
SHOW = Step(name="status", method="PATCH", path=STATUS, nth=2)
LET_GO = Step(name="let go", method="PATCH", path=STATUS)

CREATING, CHANGING, MOVING, DELETING = "creating", "changing", "moving", "deleting"
Steps = Mapping[str, Sequence[Step]]

CLOUD_STEPS: Steps = {
    CREATING: (FIND, ORDER, MEMBERS),
    CHANGING: (FIND, CHANGE),
    DELETING: (FIND, DELETE),
}
"""Every call to the cloud in a Service's life."""

MOVING_STEPS: Steps = {MOVING: (FIND, MEMBERS)}
"""Those of a change of its members."""

API_STEPS: Steps = {CREATING: (FINALIZER, SHOW), DELETING: (LET_GO,)}
"""Every write to the API server, events apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One object that suffers one fault in its life, by its name and number."""

    name: str
    number: int = 0
    phase: str = ""
    step: Step = FIND
    kind: str = ""
    fault: Fault = Cut


def cases(steps: Steps, kinds: Mapping[str, Fault], first: int = 0) -> list[Case]:
    """Each call of these phases with each fault."""
    found = itertools.chain(*(itertools.product([one], steps[one], kinds) for one in steps))
    return [
        Case(
            name=f"{phase}-{step.name}-{kind}".replace(" ", "-"),
            number=number,
            phase=phase,
            step=step,
            kind=kind,
            fault=kinds[kind],
        )
        for number, (phase, step, kind) in enumerate(found, first)
    ]


class Life:
    """An object from its creation to its end, and the fault that waits for it."""

    def __init__(self, env: Environment, case: Case) -> None:
        self.case = case
        self._env = env
        self._rule: Rule | None = None

    def lie_in_wait(self, about: Callable[[Exchange], bool]) -> None:
        """For the step of the case, of all calls that are about the object."""
        step = self.case.step
        proxy: FaultProxy = self._env.proxy if step.on_api else self._env.cloud_proxy
        match = Match(method=step.method, path=step.path, where=about, stream=False)
        self._rule = proxy.on(match, self.case.fault(), nth=step.nth)

    @property
    def was_struck(self) -> bool:
        """Whether the call came."""
        return self._rule is not None and len(self._rule.fired) == 1


async def begin(
    env: Environment, flags: Mapping[str, str], *, timeout: str = CLOUD_TIMEOUT
) -> Daemon:
    """A daemon that leads, without a limit of calls; its provider waits so long for the cloud."""
    env.configure_cloud(timeout=timeout)
    return await env.start_leading(flags={"kube-api-qps": "-1", **flags})


# --- load balancers -------------------------------------------------------------------------------

BALANCING = {
    "controllers": SERVICE.name,
    "concurrent-service-syncs": "100",
    "load-balancer-node-update-quiet-period": "200ms",
}


class ServiceLife(Life):
    """Of a Service."""

    balancer_name = ""

    async def run(self) -> None:
        """All of it."""
        for phase, act in (
            (CREATING, self.create),
            (CHANGING, self.change),
            (DELETING, self.delete),
        ):
            if phase == self.case.phase and self.case.step.on_api:
                self.lie_in_wait(lambda one: f"/{self.case.name}/" in f"{one.path}/")
            await act()
            assert phase != self.case.phase or self.was_struck, self.case.name

    async def create(self) -> None:
        """It appears without a load balancer, so that the name of that is known, and wants one."""
        on_api = self.case.step.on_api
        kind = "LoadBalancer" if on_api else "ClusterIP"
        made = await load.create(self._env, load.web(self.case.name, type=kind))
        self.balancer_name = load.balancer_name(made)
        if not on_api:
            self.arm(CREATING)
            await load.edit(self._env, self.case.name, {"spec": {"type": "LoadBalancer"}})
        await self.served(80)

    async def change(self) -> None:
        """Another port."""
        self.arm(CHANGING)
        ports = [{"name": "http", "protocol": "TCP", "port": 81, "targetPort": 8080}]
        await load.edit(self._env, self.case.name, {"spec": {"ports": ports}})
        await self.served(81)

    async def delete(self) -> None:
        """Its end."""
        self.arm(DELETING)
        await load.delete(self._env, self.case.name)

        async def gone() -> bool:
            service = await self._env.cluster.get(f"{SERVICES}/{self.case.name}")
            return service is None and self.balancer_name not in load.balancers(self._env)

        await wait_for(gone, f"{self.case.name} is gone")

    async def served(self, port: int) -> None:
        """Wait until everything is as it should be with this port."""

        async def complete() -> bool:
            service = await self._env.cluster.get(f"{SERVICES}/{self.case.name}")
            held = load.balancers(self._env)
            return (
                service is not None
                and names.FINALIZER_LOAD_BALANCER in service["metadata"].get("finalizers", ())
                and load.shows_address(service, held)
                and is_right(self._env, held[self.balancer_name], port)
            )

        await wait_for(complete, f"{self.case.name} is served at {port}")

    def arm(self, phase: str) -> None:
        """If the fault waits in this phase on the way to the cloud."""
        if self.case.phase == phase and not self.case.step.on_api:
            self.lie_in_wait(self.is_about_balancer)

    def is_about_balancer(self, exchange: Exchange) -> bool:
        """Whether a call to the cloud is about its load balancer."""
        name, path = self.balancer_name, exchange.path.split("/")
        if name in exchange.query_string or name.encode() in exchange.body:
            return True
        return len(path) > 3 and self._env.cloud.worlds.name_of(path[3]) == name


def is_right(env: Environment, balancer: world_balancers.Balancer, port: int) -> bool:
    """Whether a load balancer works, has this port alone, and every machine as a member."""
    machines = [one.addresses[0].value for one in env.cloud.world.snapshot()]
    return (
        balancer.state == "active"
        and [listener.port for listener in balancer.listeners] == [port]
        and sorted(balancer.members) == sorted(machines)
    )


def served(env: Environment, name: str) -> ServiceLife:
    """A Service that no fault waits for."""
    return ServiceLife(env, Case(name=name))


async def add_node(env: Environment, name: str) -> None:
    """A machine, and its node as it is once initialised."""
    machine = env.machine(name)
    of = f"sim://{machine.id}"
    await env.cluster.register(name, ready=names.STATUS_TRUE, providerID=of, taints=[])
    address = {"type": names.ADDRESS_INTERNAL_IP, "address": machine.addresses[0].value}
    await env.cluster.patch(f"{harness.NODES}/{name}/status", {"status": {"addresses": [address]}})


async def begin_balancing(env: Environment, **how: str) -> Daemon:
    """Start a daemon with two nodes, and wait for its caches."""
    for name in ("host-0", "host-1"):
        await add_node(env, name)
    daemon = await begin(env, BALANCING, **how)
    await env.proxy.wait_for(Match(path="^/api/v1/services$", stream=True))
    return daemon


def count(env: Environment, operation: str, status: int) -> int:
    """Calls of an operation that the cloud answered so."""
    return sum(call.status == status for call in env.calls(operation))


@pytest.mark.parametrize(
    "slow", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["once", "no answer"]
)
async def test_a_service_converges_after_a_fault_of_any_single_call(
    env: Environment, slow: bool
) -> None:
    """Create, change and delete: one load balancer per Service, none left in the end.

    Also where the API server delays each answer up to the time-out of the daemon.
    """
    chosen = cases(API_STEPS, API_SLOW if slow else API)
    chosen += [] if slow else cases(CLOUD_STEPS, CLOUD)
    await begin_balancing(env)

    await asyncio.gather(*(ServiceLife(env, case).run() for case in chosen))

    await load.quiet(env, for_s=0.5)
    assert load.balancers(env) == {}
    # Nothing was created twice, not even after a lost answer.
    assert count(env, "create_balancer", 201) == len(chosen)
    assert count(env, "delete_balancer", 204) == len(chosen)
    for case in chosen:
        if case.kind == "throttled":
            assert await load.warnings(env, case.name, about="429") == [], case.name


async def test_members_converge_after_a_fault_of_any_single_call(env: Environment) -> None:
    """A new node becomes a member of every load balancer."""
    daemon = await begin_balancing(env)
    lives = [ServiceLife(env, case) for case in cases(MOVING_STEPS, CLOUD)]
    await asyncio.gather(*(life.create() for life in lives))
    for life in lives:
        life.arm(MOVING)

    await add_node(env, "host-2")
    await asyncio.gather(*(life.served(80) for life in lives))

    await load.quiet(env, for_s=0.5)
    assert count(env, "create_balancer", 201) == len(lives)
    # A failed call is repeated for that load balancer alone.
    assert len(daemon.lines("load balancer ensured")) == len(lives)
    for life in lives:
        assert life.was_struck, life.case.name
        moved = daemon.lines("members updated", service=f"default/{life.case.name}")
        assert len(moved) == 1, life.case.name


# --- routes ---------------------------------------------------------------------------------------

ROUTING = {
    "controllers": ROUTE.name,
    "cluster-cidr": "10.244.0.0/16",
    "route-reconciliation-min-interval": "500ms",
}
ROUTES = "^/v1/routes"
LIST = Step(name="list", method="GET", path=f"{ROUTES}$")
ROUTE_STEPS: Steps = {
    "entering": (Step(name="create", method="POST", path=f"{ROUTES}$"),),
    "leaving": (Step(name="delete", method="DELETE", path=f"{ROUTES}/[^/]+$"),),
}
CONDITION: Steps = {
    "told": (Step(name="condition", method="PATCH", path=f"^{harness.NODES}/[^/]+/status$"),)
}


def routes(env: Environment) -> Sequence[world.Route]:
    """Routes of the cloud."""
    return env.cloud.worlds.routes.list()


class Stay(Life):
    """Of a node while it is in the cluster."""

    _machine: world.Instance

    @property
    def cidr(self) -> str:
        """The range of its Pods."""
        return f"10.244.{self.case.number}.0/24"

    async def enter(self) -> None:
        """The node comes with a range, and gets its route."""
        name, cidr = self.case.name, self.cidr
        if self.case.phase == "entering":
            self.lie_in_wait(lambda one: cidr.encode() in one.body)
        elif self.case.phase == "told":
            self.lie_in_wait(lambda one: f"/{name}/" in one.path)
        self._machine = self._env.machine(name)
        spec: dict[str, Any] = {"podCIDR": cidr, "podCIDRs": [cidr], "taints": []}
        await self._env.cluster.register(name, ready=names.STATUS_TRUE, **spec)
        await wait_for(self.is_routed, f"{name} has its route")

    async def leave(self) -> None:
        """Delete the node, and wait until its route is deleted."""
        (route,) = (one.id for one in routes(self._env) if one.destination == self.cidr)
        if self.case.phase == "leaving":
            self.lie_in_wait(lambda one: one.path.endswith(f"/{route}"))
        await self._env.cluster.delete(f"{harness.NODES}/{self.case.name}")

        async def unrouted() -> bool:
            return all(one.destination != self.cidr for one in routes(self._env))

        await wait_for(unrouted, f"{self.case.name} has no route")

    async def is_routed(self) -> bool:
        """Whether the cloud has just this route, to the right VM, and the condition confirms it."""
        targets = [one.target for one in routes(self._env) if one.destination == self.cidr]
        node = await self._env.cluster.node(self.case.name) or {}
        return targets == [self._machine.id] and harness.has_network(node)


async def begin_routing(env: Environment) -> None:
    """A daemon that has compared once."""
    await begin(env, ROUTING)
    await env.cloud_proxy.wait_for(Match(method="GET", path=LIST.path))


@pytest.mark.parametrize(
    "slow", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["once", "no answer"]
)
async def test_routes_converge_after_a_fault_of_any_single_call(
    env: Environment, slow: bool
) -> None:
    """Every node gets its route and condition, and every route is deleted with its node.

    Also where the API server delays each answer up to the time-out of the daemon.
    """
    chosen = cases(CONDITION, API_SLOW if slow else API, 100)
    chosen += [] if slow else cases(ROUTE_STEPS, CLOUD)
    await begin_routing(env)
    stays = [Stay(env, case) for case in chosen]

    await asyncio.gather(*(one.enter() for one in stays))
    assert count(env, "create_route", 201) == len(stays), "a route was made twice"
    await asyncio.gather(*(one.leave() for one in stays))

    assert [one.case.name for one in stays if not one.was_struck] == []
    await load.quiet(env, for_s=0.7)
    assert list(routes(env)) == []

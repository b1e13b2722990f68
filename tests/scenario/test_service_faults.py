"""Load balancers under faults: whatever fails once, the end is as if nothing had failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from providers.sim import world_balancers
from tests.faults import Cut, Delay, Exchange, Match
from tests.scenario import faults, harness, load
from tests.scenario.faults import Fault, Step, Strike
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.load import SERVICES

pytestmark = pytest.mark.timeout(200)  # a busy machine is slow

FLAGS: Mapping[str, str] = {
    "controllers": SERVICE.name,
    "concurrent-service-syncs": "100",
    "kube-api-qps": "-1",
    "load-balancer-nodes-quiet-period": "200ms",
}


BALANCERS = "^/v1/balancers"
FIND = Step(name="find", method="GET", path=f"{BALANCERS}$")
ORDER = Step(name="order", method="POST", path=f"{BALANCERS}$")
CHANGE = Step(name="change", method="PUT", path=f"{BALANCERS}/[^/]+$")
MEMBERS = Step(name="members", method="PUT", path=f"{BALANCERS}/[^/]+/members$")
DELETE = Step(name="delete", method="DELETE", path=f"{BALANCERS}/[^/]+$")

STATUS = f"^{SERVICES}/[^/]+/status$"
FINALIZER = Step(name="finalizer", method="PATCH", path=STATUS)
SHOW = Step(name="status", method="PATCH", path=STATUS, nth=2)
LET_GO = Step(name="let go", method="PATCH", path=STATUS)

CREATING, CHANGING, MOVING, DELETING = "creating", "changing", "moving", "deleting"

CLOUD_STEPS: Mapping[str, Sequence[Step]] = {
    CREATING: (FIND, ORDER, MEMBERS),
    CHANGING: (FIND, CHANGE),
    MOVING: (FIND, MEMBERS),
    DELETING: (FIND, DELETE),
}
"""Every call to the cloud in a Service's life; moving is the change of its members."""

API_STEPS: Mapping[str, Sequence[Step]] = {
    CREATING: (FINALIZER, SHOW),
    DELETING: (LET_GO,),
}
"""Every write to the API server, events apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One Service that suffers one fault in its life."""

    phase: str
    step: Step
    kind: str
    fault: Fault
    on_api: bool = False
    given: str = ""

    @property
    def name(self) -> str:
        """The Service's name."""
        if self.given:
            return self.given
        where = "api" if self.on_api else "cloud"
        return f"{where}-{self.phase}-{self.step.name}-{self.kind}".replace(" ", "-")


def cases(*phases: str) -> list[Case]:
    """Each call of these phases with each fault on the way to the cloud."""
    return [
        Case(phase=phase, step=step, kind=kind, fault=fault)
        for phase in phases
        for step in CLOUD_STEPS[phase]
        for kind, fault in faults.CLOUD.items()
    ]


def api_cases(kinds: Mapping[str, Fault]) -> list[Case]:
    """Each write with each fault on the way to the API server."""
    return [
        Case(phase=phase, step=step, kind=kind, fault=fault, on_api=True)
        for phase, steps in API_STEPS.items()
        for step in steps
        for kind, fault in kinds.items()
    ]


class Life:
    """A Service from its creation to its end, and the fault that waits for it."""

    def __init__(self, env: Environment, case: Case) -> None:
        self.case = case
        self.balancer_name = ""
        self._env = env
        self._strike: Strike | None = None

    async def run(self) -> None:
        """All of it."""
        for phase, act in (
            (CREATING, self.create),
            (CHANGING, self.change),
            (DELETING, self.delete),
        ):
            await self.go_through(phase, act)

    async def go_through(self, phase: str, act: Callable[[], Awaitable[None]]) -> None:
        """One phase; if the fault waits for it, it must have come."""
        if phase == self.case.phase and self.case.on_api:
            self.arm()
        await act()
        if phase == self.case.phase:
            assert self._strike is not None
            assert self._strike.came, f"{self.case.name} was not struck"

    def arm(self) -> None:
        """Lie in wait."""
        proxy = self._env.proxy if self.case.on_api else self._env.cloud_proxy
        about = self._is_about_service if self.case.on_api else self.is_about_balancer
        self._strike = Strike(proxy, self.case.step, about, self.case.fault)

    async def create(self) -> None:
        """It appears without a load balancer, so that the name of that is known, and wants one."""
        kind = "LoadBalancer" if self.case.on_api else "ClusterIP"
        made = await load.create(self._env, load.web(self.case.name, type=kind))
        self.balancer_name = load.balancer_name(made)
        if not self.case.on_api:
            self._arm_for(CREATING)
            await load.edit(self._env, self.case.name, {"spec": {"type": "LoadBalancer"}})
        await self.served(80)

    async def change(self) -> None:
        """Another port."""
        self._arm_for(CHANGING)
        ports = [{"name": "http", "protocol": "TCP", "port": 81, "targetPort": 8080}]
        await load.edit(self._env, self.case.name, {"spec": {"ports": ports}})
        await self.served(81)

    async def delete(self) -> None:
        """Its end."""
        self._arm_for(DELETING)
        await load.delete(self._env, self.case.name)
        await wait_for(self._gone, f"{self.case.name} is gone")

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

    async def _gone(self) -> bool:
        service = await self._env.cluster.get(f"{SERVICES}/{self.case.name}")
        return service is None and self.balancer_name not in load.balancers(self._env)

    def _arm_for(self, phase: str) -> None:
        if self.case.phase == phase and not self.case.on_api:
            self.arm()

    def _is_about_service(self, exchange: Exchange) -> bool:
        return f"/{self.case.name}/" in f"{exchange.path}/"

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


async def add_node(env: Environment, name: str) -> None:
    """A machine, and its node as it is once initialised."""
    machine = env.machine(name)
    await env.cluster.register(
        name, ready=names.STATUS_TRUE, providerID=f"sim://{machine.id}", taints=[]
    )
    address = {"type": names.ADDRESS_INTERNAL_IP, "address": machine.addresses[0].value}
    await env.cluster.patch(f"{harness.NODES}/{name}/status", {"status": {"addresses": [address]}})


async def begin(env: Environment, *, timeout: str = faults.CLOUD_TIMEOUT) -> Daemon:
    """Two nodes, and a daemon that leads; its provider waits so long for the cloud."""
    env.configure_cloud(timeout=timeout)
    for name in ("host-0", "host-1"):
        await add_node(env, name)
    daemon = await env.start(flags=FLAGS)
    await daemon.says("became leader")
    await wait_for(lambda: idle(env), "the daemon watches Services")
    return daemon


async def idle(env: Environment) -> bool:
    """Whether the daemon has seen what there is."""
    return bool(env.proxy.requests(Match(path="^/api/v1/services$", stream=True)))


def count(env: Environment, operation: str, status: int) -> int:
    """Calls of an operation that the cloud answered so."""
    return sum(call.status == status for call in env.calls(operation))


async def live(env: Environment, chosen: Sequence[Case]) -> None:
    """Let one Service for each case live its life, all of them at once."""
    await begin(env)
    await asyncio.gather(*(Life(env, case).run() for case in chosen))

    await load.quiet(env, for_s=0.5)
    assert load.balancers(env) == {}
    # Nothing was ordered twice, not even where the answer to the order was lost.
    assert count(env, "create_balancer", 201) == len(chosen)
    assert count(env, "delete_balancer", 204) == len(chosen)


async def test_each_call_of_a_services_life_fails_once(env: Environment) -> None:
    """Create, change and delete go on, with one load balancer per Service and none left."""
    chosen = cases(CREATING, CHANGING, DELETING) + api_cases(faults.API)

    await live(env, chosen)

    for case in chosen:
        if case.kind == "throttled":
            assert await load.warnings(env, case.name, about="429") == [], case.name


@pytest.mark.soak
async def test_each_write_is_not_answered_once(env: Environment) -> None:
    """As above, where the API server keeps the daemon waiting for as long as it will wait."""
    await live(env, api_cases(faults.API_SLOW))


async def test_each_call_of_a_change_of_members_fails_once(env: Environment) -> None:
    """A new node is a member everywhere, whatever failed for each of the load balancers."""
    daemon = await begin(env)
    lives = [Life(env, case) for case in cases(MOVING)]
    await asyncio.gather(*(life.create() for life in lives))
    for life in lives:
        life.arm()

    await add_node(env, "host-2")
    await asyncio.gather(*(life.served(80) for life in lives))

    for life in lives:
        await life.go_through(MOVING, _nothing)
    await load.quiet(env, for_s=0.5)
    assert count(env, "create_balancer", 201) == len(lives)
    # What fails for one load balancer is repeated for that one alone.
    assert len(daemon.lines("load balancer ensured")) == len(lives)
    for life in lives:
        moved = daemon.lines("members changed", service=f"default/{life.case.name}")
        assert len(moved) == 1, life.case.name


async def _nothing() -> None:
    """The phase is over already."""


async def test_nodes_flap_during_a_slow_ensure(env: Environment) -> None:
    """The ensure is not repeated, and the members are those of the end."""
    daemon = await begin(env, timeout="20s")
    quick, slow = served(env, "quick"), served(env, "slow")
    await quick.create()
    env.cloud_proxy.on(
        Match(method="POST", path=ORDER.path, where=slow.is_about_balancer), Delay(2.0)
    )
    creating = asyncio.create_task(slow.create())
    await env.cloud_proxy.wait_for(Match(method="POST", path=ORDER.path), count=2)

    label = names.LABEL_EXCLUDE_BALANCERS
    for round_ in range(6):
        value = None if round_ % 2 else "true"
        patch = {"metadata": {"labels": {label: value}}}
        await env.cluster.patch(f"{harness.NODES}/host-1", patch, kind="merge")
        await env.cluster.set_ready("host-0", names.STATUS_FALSE if value else names.STATUS_TRUE)
        await asyncio.sleep(0.15)
    await creating
    await quick.served(80)
    await load.quiet(env, for_s=0.5)

    await slow.served(80)
    for name in ("quick", "slow"):
        assert len(daemon.lines("load balancer ensured", service=f"default/{name}")) == 1
    assert len(daemon.lines("members changed", service="default/quick")) <= len(
        daemon.lines("nodes changed")
    )


@pytest.mark.parametrize("way", ["in turn", "unseen", "by force during its ensure"])
async def test_a_service_is_deleted_and_created_again(env: Environment, way: str) -> None:
    """A new Service under an old name has a load balancer of its own, and the old one is gone."""
    await begin(env)
    first, second = served(env, "web"), served(env, "web")
    if way == "by force during its ensure":
        order = Match(method="POST", path=ORDER.path)
        env.cloud_proxy.on(order, Delay(0.5), times=1)
        made = await load.create(env, load.web("web"))
        first.balancer_name = load.balancer_name(made)
        await env.cloud_proxy.wait_for(order)
    else:
        await first.create()

    if way == "in turn":
        await load.delete(env, "web")
    elif way == "unseen":
        await env.proxy.down()
        await delete_by_force(env, "web")
    else:
        await delete_by_force(env, "web")
    second.balancer_name = load.balancer_name(await create_soon(env, "web"))
    await env.proxy.up()

    await second.served(80)
    await wait_for(lambda: holds(env, second), "the old one is gone")
    await load.quiet(env, for_s=0.5)
    assert await holds(env, second)
    assert first.balancer_name != second.balancer_name


async def test_too_many_requests_everywhere(env: Environment) -> None:
    """Storms of 429 are sat out without a warning about any Service, and without a flood."""
    await begin(env)
    lives = [served(env, f"web-{number}") for number in range(20)]
    creating = asyncio.gather(*(life.create() for life in lives))
    on_api = env.proxy.on(
        Match(path=f"^{SERVICES}/", write=True),
        harness.refusal(429, reason="TooManyRequests", Retry_After="1"),
    )
    on_cloud = env.cloud_proxy.on(Match(path=BALANCERS), faults.CLOUD["throttled"]())
    for proxy, storm in ((env.proxy, on_api), (env.cloud_proxy, on_cloud)):
        began = time.monotonic()
        struck = Match(where=storm.fired.__contains__)
        await proxy.wait_for(struck, count=2 * len(lives))
        # Each Service came twice, so a second must have passed between.
        assert time.monotonic() - began >= 1.0
        proxy.remove(storm)
    await creating

    assert count(env, "create_balancer", 201) == len(lives)
    for life in lives:
        assert await load.warnings(env, life.case.name, about="429") == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "500" else [pytest.mark.soak])
        for kind in faults.CLOUD
    ],
)
async def test_the_listing_at_the_start_fails_once(env: Environment, kind: str) -> None:
    """It is made again, so that what is settled is still not ensured without need."""
    first = await begin(env)
    lives = [served(env, f"web-{number}") for number in range(3)]
    await asyncio.gather(*(life.create() for life in lives))
    await load.quiet(env, for_s=0.5)
    assert await first.stop() == 0
    calls, writes = len(env.calls()), len(load.writes(env))
    strike = Strike(
        env.cloud_proxy, FIND, lambda call: "cluster=" in call.query_string, faults.CLOUD[kind]
    )

    listings = Match(method="GET", path=FIND.path, query="cluster=")
    before = len(env.cloud_proxy.requests(listings))
    second = await env.start(flags=FLAGS, proxy=env.proxy)
    await second.says("became leader")
    await env.cloud_proxy.wait_for(listings, count=before + 2)
    await load.quiet(env, for_s=1.0)

    assert strike.came
    assert {call.operation for call in list(env.calls())[calls:]} == {"list_balancers"}
    assert len(load.writes(env)) == writes
    assert second.lines("load balancer ensured") == []
    for life in lives:
        await life.served(80)


def served(env: Environment, name: str) -> Life:
    """A Service that no fault waits for."""
    return Life(env, Case(phase="", step=FIND, kind="", fault=Cut, given=name))


async def delete_by_force(env: Environment, name: str) -> None:
    """Delete a Service although finalizers hold it."""
    patch = {"metadata": {"finalizers": None}}
    await env.cluster.patch(f"{SERVICES}/{name}", patch, kind="merge")
    await load.delete(env, name)


async def create_soon(env: Environment, name: str) -> dict[str, Any]:
    """Create a Service as soon as its name is free; what it is then."""

    async def free() -> bool:
        return await env.cluster.get(f"{SERVICES}/{name}") is None

    await wait_for(free, f"{name} is free")
    return await load.create(env, load.web(name))


async def holds(env: Environment, life: Life) -> bool:
    """Whether the cloud has this Service's load balancer and no other."""
    return list(load.balancers(env)) == [life.balancer_name]

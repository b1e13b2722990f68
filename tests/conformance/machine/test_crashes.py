"""Machines survive the end of their leader, a lost answer and a refused write at every call.

Each test repeats one phase in the life of a MachineDeployment and disturbs another call each time.
At the end the cloud has one server for each Machine and nothing beside it, no server or Machine was
made twice, and the phase took at most twice its undisturbed time, plus the Lease duration, plus
the retry period of the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import methodcaller

import pytest

from ccm.cloud.kubermatic import InstanceNotFound, KubermaticInstance, KubermaticMachine
from ccm.kube.errors import ApiError, Unreachable, from_response
from ccm.machines import creation
from ccm.runtime.backoff import RETRY_AFTER_JITTER
from ccm.testing.clock import advance
from tests.conformance.machine.crashes import (
    API,
    CLOUD,
    FROZEN_S,
    LEASE_S,
    TICK_S,
    CloudFault,
    CrashWorld,
    Fault,
    Leader,
)
from tests.conformance.machine.crashes import WORLDS as GARDENER
from tests.conformance.machine.kubermatic_crashes import WORLDS as KUBERMATIC
from tests.conformance.machine.kubermatic_crashes import Provider

pytestmark = pytest.mark.virtual_time

REPLICAS = 3
PATIENCE_S = 300.0
"""Limit for a phase without a fault."""

AFTERWARDS_S = 30.0
"""Time after the end of a phase in which nothing may change any more."""

AWAKE_S = 3.0
"""Time for which a former leader runs on before it ends."""


# --- phases -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the life of a deployment.

    Attributes:
        act: what the user does.
        replicas: machines at the end.
        class_name: their class.
        ever: machines that are created from the first to the end of the phase.
        is_new: the phase begins without a deployment; else with `REPLICAS` running machines.
        least: calls at least; a crash before and after each of them makes twice as many points.
    """

    act: Callable[[CrashWorld], None]
    replicas: int
    class_name: str = "small"
    ever: int = REPLICAS
    is_new: bool = False
    least: int = 0


WORLDS = {**GARDENER, **KUBERMATIC}


def create(world: CrashWorld) -> None:
    world.create(REPLICAS)


def create_and_delete(world: CrashWorld) -> None:
    """The deployment goes while its servers are being made."""
    create(world)
    asyncio.get_running_loop().call_later(1.0, world.delete)


def scale(world: CrashWorld) -> None:
    world.scale(1)


PHASES: Mapping[str, Phase] = {
    "create": Phase(act=create, replicas=REPLICAS, is_new=True, least=30),
    "create-and-delete": Phase(act=create_and_delete, replicas=0, is_new=True),
    "roll": Phase(
        act=methodcaller("roll"), replicas=REPLICAS, class_name="large", ever=2 * REPLICAS
    ),
    "scale": Phase(act=scale, replicas=1),
    "delete": Phase(act=methodcaller("delete"), replicas=0, least=30),
}


# --- faults -------------------------------------------------------------------------------------

SOON_S, CREATION_S, EXHAUSTED_S, DELETION_S = 5.0, 180.0, 600.0, 600.0
"""Retry periods of passing errors, of others in a creation, of `ResourceExhausted`, and of others
in a deletion."""


def _soon(_call: str) -> float:
    return SOON_S


def _late(call: str) -> float:
    return CREATION_S if call.startswith("create") else DELETION_S


def _cloud_fault(code: str) -> Callable[[], CloudFault]:
    return lambda: CloudFault("injected", code=code)


def _answer(status: int) -> Callable[[], ApiError]:
    return lambda: from_response(status, {}, b"")


def _faults() -> Iterator[Fault]:
    every, cloud, api = frozenset({CLOUD, API}), frozenset({CLOUD}), frozenset({API})
    yield Fault(name="killed-before", sides=every, is_before=True)
    yield Fault(name="killed-after", sides=every)
    yield Fault(name="frozen", sides=every, is_frozen=True)
    for code, retry_s in {
        "Unavailable": _soon,
        "DeadlineExceeded": _soon,
        "Internal": _late,
        "": _late,
    }.items():
        name = f"lost-{code or 'undecodable'}"
        yield Fault(name=name, sides=cloud, error=_cloud_fault(code), retry_s=retry_s)
    yield Fault(
        name="refused-ResourceExhausted",
        sides=cloud,
        is_before=True,
        error=_cloud_fault("ResourceExhausted"),
        retry_s=lambda _call: EXHAUSTED_S,
    )

    def reset() -> Unreachable:
        return Unreachable("injected", kind="reset")

    yield Fault(name="lost-write", sides=api, error=reset, retry_s=_soon)
    for status in (403, 409, 429, 500):
        yield Fault(
            name=f"refused-{status}",
            sides=api,
            is_before=True,
            error=_answer(status),
            retry_s=_soon,
        )


FAULTS: Mapping[str, Fault] = {one.name: one for one in _faults()}


# --- one disturbed phase ------------------------------------------------------------------------


class Run:
    """One phase in a new world.

    Args:
        kind: of the driver.
        phase: of the deployment.

    Attributes:
        took_s: duration of the phase; infinity = it did not end.
        problems: what was wrong at the end.
    """

    def __init__(self, kind: str, phase: Phase) -> None:
        self.world = WORLDS[kind]()
        self.phase = phase
        self.took_s = float("inf")
        self.problems: list[str] = []
        self.most, self.least = 0, REPLICAS

    async def run(self, fault: Fault | None = None, position: int = -1, limit_s: float = 0) -> None:
        """Begin the phase, and apply a fault to the call with this number."""
        interceptor = self.world.interceptor
        async with self.world.kubelets():
            leader = await self._prepared()
            interceptor.arm(fault, position)
            self.least = REPLICAS
            began = asyncio.get_running_loop().time()
            self.phase.act(self.world)
            end = began + (limit_s or PATIENCE_S)
            await self._until(end, lambda: bool(interceptor.struck) or not self._missing())
            if fault is not None and fault.stops and interceptor.struck:
                leader = await self._next_leader(leader, is_frozen=fault.is_frozen)
            if fault is not None:
                end = began + limit_s + fault.retry_s(interceptor.struck) * (1 + RETRY_AFTER_JITTER)
            await self._until(end, lambda: not self._missing())
            if not (late := self._missing()):
                self.took_s = asyncio.get_running_loop().time() - began
            await advance(AFTERWARDS_S)
            self.problems = self._missing() + self._doubles() or [f"late: {one}" for one in late]
            await leader.end()

    async def _prepared(self) -> Leader:
        if self.phase.is_new:
            return await self.world.lead()
        create(self.world)
        leader = await self.world.lead()
        now = asyncio.get_running_loop().time()
        await self._until(now + PATIENCE_S, lambda: not self.world.problems(REPLICAS, "small"))
        return leader

    async def _next_leader(self, former: Leader, *, is_frozen: bool) -> Leader:
        if not is_frozen:
            await former.end()
        await advance(LEASE_S)
        leader = await self.world.lead()
        if is_frozen:
            await advance(FROZEN_S - LEASE_S)
            former.wake()
            await advance(AWAKE_S)
            await former.end()
        return leader

    async def _until(self, end: float, is_due: Callable[[], bool]) -> None:
        while asyncio.get_running_loop().time() < end and not is_due():
            await asyncio.sleep(TICK_S)
            here = self.world.here()
            self.most = max(self.most, len(here))
            if self.phase.ever > REPLICAS:
                running = sum(self.world.phase(name) == "Running" for name in here)
                self.least = min(self.least, running)

    def _missing(self) -> list[str]:
        return self.world.problems(self.phase.replicas, self.phase.class_name)

    def _doubles(self) -> list[str]:
        ordered = self.world.account.ordered
        twice = [name for name, count in ordered.items() if count > 1]
        found = [f"servers made twice: {twice}"] if twice else []
        if len(ordered) > self.phase.ever:
            found.append(f"{len(ordered)} machines, not {self.phase.ever}")
        if self.most > REPLICAS + 1 or self.least < REPLICAS:
            found.append(f"between {self.least} and {self.most} machines in a roll")
        return found


async def disturb(
    kind: str,
    phase: Phase,
    faults: Sequence[Fault],
    *,
    at_most: int | None = None,
    names: Collection[str] = (),
) -> None:
    """Try each fault at the calls to which it may happen.

    Args:
        kind: of the driver.
        phase: of the deployment.
        faults: to try.
        at_most: of these calls, spread over the phase; None = all.
        names: of these calls; empty = of any name.
    """
    undisturbed = Run(kind, phase)
    await undisturbed.run()
    assert undisturbed.problems == []
    calls = undisturbed.world.interceptor.calls
    assert len(calls) >= phase.least
    limit_s = 2 * undisturbed.took_s + LEASE_S
    planned, tried, failed = 0, 0, list[str]()
    for number, fault in enumerate(faults):
        known = [name for side, name in calls if side in fault.sides]
        every = [at for at, name in enumerate(known) if not names or name in names]
        step = max(1, len(every) // (at_most or len(every)))
        # Each fault begins at another call than the one before.
        for position in every[number * step // len(faults) :: step]:
            # A phase may need fewer calls when it is repeated: then an earlier one is disturbed.
            for at in range(position, -1, -1):
                run = Run(kind, phase)
                await run.run(fault, at, limit_s)
                if struck := run.world.interceptor.struck:
                    break
            planned, tried = planned + 1, tried + bool(struck)
            if run.problems:
                where = f"{fault.name} at call {position} of {len(known)} ({struck})"
                failed.append(f"{where}: {'; '.join(run.problems)}")
    print(
        f"{kind}: {tried} runs, {len(failed)} failed, {len(calls)} calls in {undisturbed.took_s} s"
    )
    assert tried == planned >= len(faults)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", GARDENER)
async def test_deployment_phase_converges_after_each_fault_once(kind: str, phase: str) -> None:
    """The drivers share the faults of a phase, each phase in another way.

    All faults with all drivers: `test_deployment_phase_converges_after_a_fault_at_every_call`.
    """
    first = (list(GARDENER).index(kind) + list(PHASES).index(phase)) % len(GARDENER)
    await disturb(kind, PHASES[phase], list(FAULTS.values())[first :: len(GARDENER)], at_most=1)


@pytest.mark.row("kubermatic-crash-01")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KUBERMATIC)
async def test_kubermatic_deployment_converges_after_each_fault_once(kind: str, phase: str) -> None:
    """The drivers and the phases share the faults."""
    cases = list(product(KUBERMATIC, PHASES))
    first = cases.index((kind, phase))
    await disturb(kind, PHASES[phase], list(FAULTS.values())[first :: len(cases)], at_most=1)


@pytest.mark.parametrize("fault", ["killed-before", "killed-after"])
@pytest.mark.parametrize("kind", WORLDS)
async def test_server_is_adopted_after_the_leader_crashes_during_creation(
    kind: str, fault: str
) -> None:
    """No other server replaces it, and its token is deleted."""
    names = ["create server", "create instance"]
    if kind in GARDENER:
        names += ["create disk", "PATCH machines", "DELETE secrets"]
    await disturb(kind, PHASES["create"], [FAULTS[fault]], names=names)


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", WORLDS)
async def test_deployment_phase_converges_after_a_fault_at_every_call(
    kind: str, phase: str, fault: str
) -> None:
    await disturb(kind, PHASES[phase], [FAULTS[fault]])


async def test_duplicate_servers_are_reported_by_the_harness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the lookup of an existing server, another one is created."""
    monkeypatch.setattr(creation, "match_marked", lambda *_, **__: (None, ""))
    with pytest.raises(AssertionError, match="servers made twice"):
        await disturb("native", PHASES["create"], [FAULTS["killed-after"]], names=["create server"])


async def test_lookups_without_an_answer_are_reported_by_the_harness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kubermatic's provider is asked for an instance of a UID before each creation."""
    real = Provider.get

    async def get(provider: Provider, machine: KubermaticMachine) -> KubermaticInstance:
        if not machine.spec.provider_id:
            raise InstanceNotFound(machine.name)
        return await real(provider, machine)

    monkeypatch.setattr(Provider, "get", get)
    faults = [FAULTS["killed-after"]]
    with pytest.raises(AssertionError, match="servers made twice"):
        await disturb("kubermatic", PHASES["create"], faults, names=["create server"])

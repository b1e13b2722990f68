"""Health of nodes, and the phases of their machines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccm.base import clock
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines import health, reasons
from ccm.machines.caches import Ages
from ccm.machines.health import (
    CONFIRM_S,
    COPY_S,
    STEADY_S,
    TABLE,
    Moment,
    PhaseHistory,
    PhaseTrigger,
)
from ccm.machines.settings import MachineSettings
from ccm.model import Node, NodeCondition, ObjectMeta, Taint
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.node import NodeSpec, NodeStatus
from tests.conformance.table import case

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = MachineSettings(
    names=NAMES, cluster="ours", unhealthy_conditions=reasons.UNHEALTHY_CONDITIONS
)
SICK = {"Ready": "Unknown"}
WELL = {"Ready": "True"}


def node(*taints: str, **conditions: str) -> Node:
    told = [NodeCondition(type=kind, status=status) for kind, status in conditions.items()]
    return Node(
        metadata=ObjectMeta(name="n"),
        spec=NodeSpec(taints=[Taint(key=one) for one in taints]),
        status=NodeStatus(conditions=told),
    )


def machine(phase: Phase = Phase.UNKNOWN, **more: object) -> Machine:
    status = MachineStatus(phase=phase, since=START, conditions=(NodeCondition(type="Ready"),))
    found = Machine(
        metadata=ObjectMeta(name="m", namespace="default", uid="u"),
        created=START,
        class_name="small",
        node_name="n",
        status=status,
    )
    return structs.replace(found, **more)


def at(seconds: float, *, jumped_s: float = 0.0) -> Moment:
    return Moment(wall=START + timedelta(seconds=seconds + jumped_s), steady_s=seconds)


def seen(phase: Phase, *, since_s: float = 0.0, **more: object) -> PhaseHistory:
    """A machine that this process has watched from the beginning."""
    found = health.phase_history(machine(phase), None, at(since_s))
    return replace(found, **more)  # type: ignore[arg-type]


# --- health ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sick"),
    [
        case("machine-health-01", "Ready", {"False", "Unknown"}),
        case("machine-health-02", "DiskPressure", {"True", "Unknown"}),
        case("machine-health-03", "NetworkUnavailable", {"True", "Unknown"}),
        case("machine-health-04", "MemoryPressure", set()),
    ],
)
def test_node_condition_statuses_that_count_as_unhealthy(kind: str, sick: set[str]) -> None:
    found = {
        status
        for status in ("True", "False", "Unknown")
        if health.unhealthy_conditions(node(**WELL | {kind: status}), reasons.UNHEALTHY_CONDITIONS)
    }

    assert found == sick


@pytest.mark.row("machine-health-05")
def test_node_without_ready_condition_is_unhealthy() -> None:
    assert health.unhealthy_conditions(node(), ()) == ("Ready=missing",)
    assert health.unhealthy_conditions(node(DiskPressure="False"), ["DiskPressure"]) == (
        "Ready=missing",
    )


@pytest.mark.row("machine-health-06")
@pytest.mark.parametrize(
    ("taints", "wanted"), [((), False), (("x",), False), (("x", names.TAINT_CRITICAL), True)]
)
def test_critical_components_taint_is_recognised(taints: tuple[str, ...], wanted: bool) -> None:
    assert health.is_critical(node(*taints), RULES) is wanted


@pytest.mark.row("machine-health-07")
def test_machine_settings_override_the_flags() -> None:
    own = machine(
        creation_timeout_s=1.0,
        health_timeout_s=2.0,
        preserve_timeout_s=3.0,
        unhealthy_conditions=("A",),
    )

    flags, found = RULES.of(machine()), RULES.of(own)
    assert (flags.creation_timeout_s, flags.health_timeout_s) == (1200, 600)
    assert (flags.preserve_timeout_s, flags.unhealthy_conditions) == (
        345_600,
        reasons.UNHEALTHY_CONDITIONS,
    )
    assert (found.creation_timeout_s, found.health_timeout_s) == (1, 2)
    assert (found.preserve_timeout_s, found.unhealthy_conditions) == (3, ("A",))
    assert RULES.of(structs.replace(own, never_fails=True)).health_timeout_s is None


# --- phases ---------------------------------------------------------------------------------

LEFT_ALONE = {Phase.NEW, Phase.CRASH_LOOP, Phase.FOREIGN}
UPDATES = {Phase.UPDATING, Phase.UPDATE_FAILED}
NODES = {
    "none": None,
    "sick": node(**SICK),
    "well": node(**WELL),
    "critical": node(names.TAINT_CRITICAL, **WELL),
}


def test_transition_table_covers_all_phases_without_self_transitions() -> None:
    """Phases that other controllers set have neither outgoing nor incoming transitions."""
    assert {phase for phase, _ in TABLE} == set(Phase) - LEFT_ALONE
    assert {edge.phase for edge in TABLE.values()} == {
        Phase.RUNNING,
        Phase.UNKNOWN,
        Phase.FAILED,
        Phase.UPDATED,
        Phase.UPDATE_FAILED,
    }
    assert [pair for pair, edge in TABLE.items() if pair[0] is edge.phase] == []


@pytest.mark.parametrize(("phase", "kind"), list(product(Phase, NODES)), ids=str)
def test_every_health_check_result_is_in_the_transition_table(phase: Phase, kind: str) -> None:
    """Tested right after the phase began, and after its timeout."""
    for seconds in (0.0, 1e6):
        found = health.evaluate_health(machine(phase), NODES[kind], seen(phase), at(seconds), RULES)
        if found.cause is not None:
            outcome = health.transition_result(
                machine(phase), NODES[kind], found.cause, at(seconds), RULES
            )
            assert outcome.status is not None
            assert outcome.status.phase is TABLE[phase, found.cause].phase


@pytest.mark.parametrize(
    ("phase", "since_s", "after_s", "limit_s"),
    [
        (Phase.PENDING, 0, 1200, 1200),
        (Phase.UNKNOWN, 0, 600, 600),
        (Phase.PENDING, 1500, CONFIRM_S, 1500 + CONFIRM_S),
        (Phase.UNKNOWN, 900, CONFIRM_S, 900 + CONFIRM_S),
        (Phase.UNKNOWN, 200, 400, 600),
    ],
)
def test_phase_timeout_counts_from_its_start_and_needs_confirmation(
    phase: Phase, since_s: float, after_s: float, limit_s: float
) -> None:
    """The timeout counts from the start of the phase; this process must observe a minute of it."""
    spell = seen(phase, since_s=since_s)

    def found(seconds: float) -> tuple[PhaseTrigger | None, float | None]:
        looked = health.evaluate_health(machine(phase), NODES["sick"], spell, at(seconds), RULES)
        return looked.cause, looked.after_s

    assert found(since_s) == (None, after_s + 1)
    assert found(limit_s - 1) == (None, 2)
    assert found(limit_s) == (PhaseTrigger.TIMED_OUT, None)


def test_phase_time_restarts_for_a_new_object_and_after_an_outage() -> None:
    status = replace(machine().status, since=at(900).wall)
    new = machine(metadata=ObjectMeta(name="m", uid="other"), status=status)
    spell = health.phase_history(new, seen(Phase.UNKNOWN), at(900))
    assert (spell.carried_s, spell.began_s) == (0, 900)
    for phase, limit_s in ((Phase.UNKNOWN, 600), (Phase.PENDING, 1200)):
        spell = health.restart_history(seen(phase, since_s=500), 1000)
        assert (
            health.evaluate_health(machine(phase), None, spell, at(1001), RULES).after_s == limit_s
        )


@pytest.mark.virtual_time
@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_clock_change_makes_no_machine_older(seconds: float) -> None:
    ahead_s, created = 0.0, START - timedelta(seconds=10)
    ages = Ages(lambda: clock.now() + timedelta(seconds=ahead_s))
    young, other = (machine(metadata=ObjectMeta(uid=uid), created=created) for uid in "ab")
    assert ages.of(young) == 10
    ahead_s = seconds
    await asyncio.sleep(5)
    assert ages.of(young) == (15 if seconds > 0 else 0)
    assert ages.of(other) == max(0.0, 15 + seconds)
    ahead_s = 0
    assert ages.of(other) == (15 if seconds > 0 else 0)
    ages.forget("a")
    assert ages.of(young) == 15


@pytest.mark.row("machine-phase-05")
def test_node_counts_as_missing_only_if_it_was_seen_before() -> None:
    running = machine(Phase.RUNNING)
    without = structs.replace(running, status=replace(running.status, conditions=()))

    def cause(one: Machine) -> PhaseTrigger | None:
        return health.evaluate_health(one, None, seen(Phase.RUNNING), at(0), RULES).cause

    assert (cause(running), cause(without)) == (PhaseTrigger.NODE_MISSING, None)


@pytest.mark.row("machine-phase-14")
@pytest.mark.parametrize("kind", NODES)
def test_unrecognised_phase_causes_no_transition(kind: str) -> None:
    found = health.evaluate_health(
        machine(Phase.FOREIGN), NODES[kind], seen(Phase.FOREIGN), at(1e6), RULES
    )

    assert (found.cause, found.after_s) == (None, None)


@pytest.mark.row("machine-phase-15")
@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.UNKNOWN])
@pytest.mark.parametrize("jumped_s", [-7200.0, 7200.0], ids=["back", "forth"])
def test_wall_clock_jump_does_not_change_the_phase_timeout(phase: Phase, jumped_s: float) -> None:
    spell = seen(phase)

    def late(seconds: float) -> bool:
        now = at(seconds, jumped_s=jumped_s)
        spoken = health.phase_history(machine(phase), spell, now)
        return (
            health.evaluate_health(machine(phase), None, spoken, now, RULES).cause
            is PhaseTrigger.TIMED_OUT
        )

    assert [late(1), late(599), late(1201)] == [False, False, True]


@pytest.mark.row("machine-phase-17")
def test_flapping_node_must_stay_healthy_before_it_recovers() -> None:
    """Unhealthy at 100 s, healthy at 200 s, unhealthy at 300 s: recovery needs time now."""

    def phase(before: PhaseHistory | None, which: Phase, seconds: float) -> PhaseHistory:
        status = MachineStatus(phase=which, since=at(seconds).wall)
        return health.phase_history(structs.replace(machine(), status=status), before, at(seconds))

    def look(spell: PhaseHistory, kind: str, seconds: float) -> health.HealthCheckResult:
        return health.evaluate_health(machine(), NODES[kind], spell, at(seconds), RULES)

    first = phase(phase(None, Phase.RUNNING, 0), Phase.UNKNOWN, 100)
    well = look(first, "well", 200)
    assert well.cause is PhaseTrigger.HEALTHY
    again = phase(phase(well.history, Phase.RUNNING, 200), Phase.UNKNOWN, 300)
    # The recovery came from another writer, not from the node.
    thawed = phase(phase(first, Phase.RUNNING, 200), Phase.UNKNOWN, 300)
    assert look(thawed, "well", 310).cause is PhaseTrigger.HEALTHY
    held = look(again, "well", 310)
    assert (held.cause, held.after_s) == (None, STEADY_S)
    assert look(held.history, "well", 310 + STEADY_S).cause is PhaseTrigger.HEALTHY
    broken = look(look(held.history, "sick", 320).history, "well", 339)
    assert (broken.cause, broken.after_s) == (None, STEADY_S)
    assert look(broken.history, "sick", 900).cause is PhaseTrigger.TIMED_OUT
    calm = look(again, "well", 390).history
    later = phase(phase(calm, Phase.RUNNING, 400), Phase.UNKNOWN, 1100)
    assert look(later, "well", 1101).cause is PhaseTrigger.HEALTHY


@pytest.mark.row("machine-phase-11")
def test_condition_copies_are_rate_limited() -> None:
    running, told = machine(Phase.RUNNING), node(**WELL, MemoryPressure="True")
    outcome, spell = health.condition_copy(running, told, seen(Phase.RUNNING), at(0), RULES)
    assert outcome.status is not None
    assert outcome.status.conditions == tuple(told.status.conditions or ())
    assert health.condition_copy(running, told, spell, at(10), RULES)[0].after_s == COPY_S - 10
    assert health.condition_copy(running, told, spell, at(COPY_S), RULES)[0].status is not None
    assert health.condition_copy(running, node(Ready=""), spell, at(99), RULES)[0].status is None
    pending = machine(Phase.PENDING)
    assert health.condition_copy(pending, told, seen(Phase.PENDING), at(0), RULES)[0].status is None


# --- any order of things ----------------------------------------------------------------------

HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(sorted(NODES)), st.integers(1, 700), st.integers(-9999, 9999)),
    max_size=40,
)


@given(st.sampled_from(sorted(set(Phase) - LEFT_ALONE - UPDATES, key=str)), HAPPENINGS)
def test_no_machine_fails_before_its_timeout(
    phase: Phase, happenings: list[tuple[str, int, int]]
) -> None:
    """For random node states and clock jumps: a machine fails only after its timeout without a
    healthy node, and a waiting machine always has a requeue delay."""
    now_s, sick_since = 0.0, None
    status = replace(machine(phase).status, since=START)
    spell = None
    for kind, seconds, jumped_s in happenings:
        now = at(now_s, jumped_s=jumped_s)
        one = machine(status=status)
        spell = health.phase_history(one, spell, now)
        found = health.evaluate_health(one, NODES[kind], spell, now, RULES)
        spell = found.history
        if found.cause is not None:
            if found.cause is PhaseTrigger.TIMED_OUT and one.phase is Phase.UNKNOWN:
                assert sick_since is None or now_s - sick_since >= 600
            assert found.cause is not PhaseTrigger.TIMED_OUT or now_s >= CONFIRM_S
            changed = health.transition_result(one, NODES[kind], found.cause, now, RULES).status
            assert changed is not None
            status = changed
            sick_since = now_s if status.phase is Phase.UNKNOWN else None
        elif one.phase in health.TIMEOUTS:
            assert found.after_s is not None
            assert 0 < found.after_s <= 1201
        now_s += seconds

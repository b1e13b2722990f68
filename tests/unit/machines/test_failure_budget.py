"""The failure budget: which unhealthy machine may be replaced, and when."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.machines.failure_budget import (
    MELTDOWN_MIN_NODES,
    FailureBudget,
    ReplacementState,
    replacement_state,
    under_way_since,
)
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, OperationType, Phase
from ccm.model.times import format_time
from tests.conformance.table import case

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER, DELETED = NOW + timedelta(minutes=5), NOW + timedelta(minutes=9)


LIMIT_S = 1200.0


def machine(
    name: str,
    phase: Phase = Phase.UNKNOWN,
    group: str = "a",
    *,
    kept: bool = False,
    goes: bool = False,
    kind: OperationType = OperationType.HEALTH_CHECK,
) -> Machine:
    deleted = format_time(DELETED) if goes else None
    return Machine(
        metadata=ObjectMeta(name=name, namespace="d", deletion_timestamp=deleted),
        created=NOW,
        class_name="small",
        group=group,
        status=MachineStatus(
            phase=phase, kind=kind.value, since=LATER, preserve_until=NOW if kept else None
        ),
    )


class Scene:
    """Failure budget whose clock a test sets."""

    def __init__(self, *machines: Machine) -> None:
        self.now_s = 0.0
        self.replacements = FailureBudget(LIMIT_S)
        for one in machines:
            self.note(one)

    @property
    def waiting(self) -> set[str]:
        return self.replacements.waiting

    def note(self, one: Machine, *, age_s: float | None = None) -> Collection[str]:
        return self.replacements.note(one.key, one, self.now_s, age_s=age_s)

    def gone(self, name: str) -> Collection[str]:
        return self.replacements.note(f"d/{name}", None, self.now_s)

    def claim(self, one: Machine) -> str:
        obstacle = self.replacements.acquire(one, self.now_s)
        return "" if obstacle is None else obstacle.why

    def release(self, one: Machine) -> Collection[str]:
        return self.replacements.release(one)


def replacements(*machines: Machine) -> Scene:
    return Scene(*machines)


WELL = [machine(f"w{number}", Phase.RUNNING, "w") for number in range(9)]
"""Enough healthy machines to prevent a meltdown."""


@pytest.mark.parametrize(
    ("other", "obstructs"),
    [
        *(
            (machine("o", phase), True)
            for phase in Phase
            if phase not in (Phase.RUNNING, Phase.UNKNOWN, Phase.UPDATE_FAILED)
        ),
        (machine("o", Phase.UNKNOWN), False),
        case("machine-update-10", machine("o", Phase.UPDATE_FAILED), False),
        (machine("o", Phase.RUNNING), False),
        (machine("o", Phase.FAILED, "b"), False),
        (machine("o", Phase.FAILED, kept=True), False),
        (machine("o", Phase.TERMINATING, kept=True), True),
        (machine("o", Phase.FAILED, kept=True, goes=True), True),
        (machine("o", Phase.RUNNING, goes=True), True),
    ],
    ids=lambda one: (
        "" if isinstance(one, bool) else f"{one.phase.name}-{one.group}-{one.is_deleting}"
    ),
)
def test_replacement_is_blocked_by_another_one_in_its_group(
    other: Machine, obstructs: bool
) -> None:
    found = replacements(*WELL, machine("m"), other)

    why = found.claim(machine("m"))

    assert bool(why) is obstructs
    assert ("d/o is being created, replaced or deleted" in why, found.waiting) == (
        (True, {"d/m"}) if obstructs else (False, set())
    )


def test_claim_blocks_others_before_its_write_is_observed() -> None:
    found = replacements(*WELL, machine("m"), machine("o"))

    assert (found.claim(machine("m")), found.claim(machine("m"))) == ("", "")
    assert found.claim(machine("o")) == "d/m is being created, replaced or deleted"
    # An event from before the write does not release the claim.
    assert found.note(machine("m")) == ()
    assert found.claim(machine("o")) != ""


@pytest.mark.parametrize(
    "then",
    [None, machine("m", Phase.RUNNING), machine("m", Phase.FAILED, kept=True)],
    ids=["gone", "runs", "preserved"],
)
def test_next_waiting_machine_is_woken_when_a_replacement_ends(then: Machine | None) -> None:
    found = replacements(*WELL, machine("m"), machine("o"))
    found.claim(machine("m"))
    found.note(machine("m", Phase.FAILED))
    assert found.claim(machine("o")) != ""
    assert found.note(machine("m", Phase.TERMINATING)) == ()
    assert (found.gone("m") if then is None else found.note(then)) == {"d/o"}
    assert found.claim(machine("o")) == ""


# --- a meltdown: other groups -----------------------------------------------------------------

SICK = [machine(f"s{number}", group=f"g{number}") for number in range(MELTDOWN_MIN_NODES)]
"""Enough unhealthy machines for a meltdown, each in its own group."""
JOINING = [Phase.NEW, Phase.CRASH_LOOP, Phase.PENDING]


@pytest.mark.parametrize(
    ("sick", "well", "wanted"), [(2, 0, False), (3, 0, True), (11, 9, False), (12, 9, True)]
)
def test_meltdown_needs_three_and_over_55_percent_unhealthy_machines(
    sick: int, well: int, wanted: bool
) -> None:
    """A meltdown needs more than 55 % and more than two unhealthy machines."""
    every = [machine(f"s{number}", group=f"g{number}") for number in range(sick)]
    found = replacements(*WELL[:well], *every)
    assert found.replacements.is_meltdown is wanted
    assert found.claim(every[0]) == ""
    assert bool(found.claim(every[1])) is wanted
    if wanted and not well:
        assert found.note(machine("s2", Phase.RUNNING, "g2")) == {"d/s1"}


@pytest.mark.parametrize(
    "other",
    [
        *([machine("o", phase, "o", kind=OperationType.CREATE)] for phase in JOINING),
        [machine("o", Phase.RUNNING, "o"), machine("o", Phase.RUNNING, "o", goes=True)],
        [machine("o", Phase.UNKNOWN, "o"), machine("o", Phase.UPDATED, "o")],
    ],
)
def test_creation_in_another_group_blocks_nothing_in_a_meltdown(other: list[Machine]) -> None:
    found = replacements(*SICK, *other)
    assert found.claim(SICK[0]) == ""
    assert found.claim(SICK[1]).endswith("d/s0 is being created, replaced or deleted")


@pytest.mark.parametrize("first", [Phase.FAILED, Phase.TERMINATING])
def test_in_a_meltdown_a_machine_waits_until_the_replacement_runs(first: Phase) -> None:
    found = replacements(*SICK, machine("o", group="o"))
    found.note(machine("o", first, "o"))
    for phase in JOINING:
        found.note(machine("r", phase, "o", kind=OperationType.CREATE))
        assert found.claim(SICK[0]).endswith("d/o is being created, replaced or deleted")
    assert found.gone("o") == {"d/s0"}
    assert found.claim(SICK[0]).endswith("d/r is being created, replaced or deleted")
    assert found.note(machine("r", Phase.RUNNING, "o")) == {"d/s0"}
    assert found.claim(SICK[0]) == ""


# --- the time limit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        machine("o", Phase.CRASH_LOOP, kind=OperationType.CREATE),
        machine("o", Phase.FAILED),
        machine("o", Phase.RUNNING, goes=True),
        machine("o", Phase.FOREIGN),
    ],
    ids=["refused", "failed", "deleted", "foreign"],
)
def test_replacement_block_ends_at_the_time_limit(other: Machine) -> None:
    found = replacements(*WELL, other, machine("m"))
    obstacle = found.replacements.acquire(machine("m"), 100.0)
    assert obstacle is not None
    assert obstacle.wait_s == LIMIT_S - 100
    found.now_s = LIMIT_S - 1
    found.note(other)  # A change of conditions does not restart the time limit.
    assert found.claim(machine("m")) != ""
    found.now_s = LIMIT_S
    assert found.claim(machine("m")) == ""
    found.note(machine("n"))
    assert found.claim(machine("n")) == "d/m is being created, replaced or deleted"


def test_replacements_of_a_replacement_do_not_renew_the_limit() -> None:
    """No machine of a group can be created: each fails, and another one takes its place."""
    found = replacements(*WELL, machine("o"), machine("m"))
    found.note(machine("o", Phase.FAILED))
    for number in range(4):
        found.now_s = number * LIMIT_S / 4
        found.note(machine(f"r{number}", Phase.CRASH_LOOP, kind=OperationType.CREATE))
        assert found.claim(machine("m")) != ""
        found.gone("o" if number == 0 else f"r{number - 1}")
    found.now_s = LIMIT_S
    assert found.claim(machine("m")) == ""


@pytest.mark.parametrize("phase", [*JOINING, Phase.FAILED, Phase.TERMINATING], ids=str)
def test_replacement_block_is_restored_from_objects_after_a_restart(phase: Phase) -> None:
    """Without their history, machines being created or deleted may belong to a replacement."""
    found = replacements(*SICK)
    found.note(machine("o", phase, "o"), age_s=LIMIT_S - 100)
    obstacle = found.replacements.acquire(SICK[0], 0.0)
    assert obstacle is not None
    assert obstacle.wait_s == 100
    found.now_s = 100
    assert found.claim(SICK[0]) == ""


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (machine("m", Phase.CRASH_LOOP), NOW),
        (machine("m", Phase.FAILED), LATER),
        (machine("m", Phase.TERMINATING, goes=True), DELETED),
    ],
)
def test_replacement_starts_at_creation_failure_or_deletion_time(
    one: Machine, wanted: datetime
) -> None:
    assert under_way_since(one) == wanted


# --- any order of things ----------------------------------------------------------------------

NAMES = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), NAMES, st.sampled_from(list(Phase))),
        st.tuples(st.just("gone"), NAMES, st.none()),
        st.tuples(st.just("claim"), NAMES, st.none()),
        st.tuples(st.just("release"), NAMES, st.none()),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_one_replacement_per_group_and_no_machine_waits_forever(
    steps: list[tuple[str, int, Phase | None]], alone: bool
) -> None:
    found, known, turns = Scene(), dict[str, Machine](), set[str]()
    waiting = set[str]()

    def group(number: int) -> str:
        return "a" if alone else f"g{number % 2}"

    for what, number, phase in steps:
        name, one = f"m{number}", machine(f"m{number}", group=group(number))
        if what in ("note", "gone"):
            told = machine(name, phase, group(number)) if phase is not None else None
            woken = found.gone(name) if told is None else found.note(told)
            known.pop(one.key, None)
            if told is not None:
                known[one.key] = told
            if told is None or replacement_state(told) is not ReplacementState.UNHEALTHY:
                turns.discard(one.key)
                waiting.discard(one.key)
            waiting -= set(woken)
        elif known.get(one.key, machine("x", Phase.NEW)).phase is Phase.UNKNOWN:
            if what == "claim" and not found.claim(one):
                turns.add(one.key)
                waiting.discard(one.key)
            elif what == "claim":
                waiting.add(one.key)
            else:
                turns.discard(one.key)
                waiting.discard(one.key)
                waiting -= set(found.release(one))
        assert found.waiting == waiting
        under_way = {
            key
            for key, one in known.items()
            if replacement_state(one) is ReplacementState.UNDER_WAY
        } | turns
        if not under_way:
            assert waiting == set()
        for key in turns:
            assert not [other for other in turns - {key} if known[other].group == known[key].group]

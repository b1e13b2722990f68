"""Whose turn it is to be given up for its node."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.machines.replacing import MELTDOWN_LEAST, Replacements, Standing, standing
from ccm.machines.views import MachineView, Phase, Status
from ccm.model import ObjectMeta

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def machine(
    name: str,
    phase: Phase = Phase.UNKNOWN,
    group: str = "a",
    *,
    kept: bool = False,
    goes: bool = False,
) -> MachineView:
    deleted = "2026-01-01T00:00:00Z" if goes else None
    return MachineView(
        metadata=ObjectMeta(name=name, namespace="d", deletion_timestamp=deleted),
        created=NOW,
        class_name="small",
        group=group,
        status=Status(phase=phase, preserve_until=NOW if kept else None),
    )


def replacements(*machines: MachineView) -> Replacements:
    found = Replacements()
    for one in machines:
        found.note(one.key, one)
    return found


WELL = [machine(f"w{number}", Phase.RUNNING, "w") for number in range(9)]
"""Enough of them for there to be no meltdown."""


@pytest.mark.parametrize(
    ("other", "obstructs"),
    [
        *(
            (machine("o", phase), True)
            for phase in Phase
            if phase not in (Phase.RUNNING, Phase.UNKNOWN, Phase.UPDATE_FAILED)
        ),
        (machine("o", Phase.UNKNOWN), False),
        pytest.param(
            machine("o", Phase.UPDATE_FAILED), False, marks=pytest.mark.row("machine-update-10")
        ),
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
def test_another_machine_in_the_way(other: MachineView, obstructs: bool) -> None:
    found = replacements(*WELL, machine("m"), other)

    why = found.claim(machine("m"))

    assert bool(why) is obstructs
    assert ("d/o is on its way" in why, found.waiting) == (
        (True, {"d/m"}) if obstructs else (False, set())
    )


def test_a_turn_is_taken_before_anybody_sees_it() -> None:
    found = replacements(*WELL, machine("m"), machine("o"))

    assert (found.claim(machine("m")), found.claim(machine("m"))) == ("", "")
    assert found.claim(machine("o")) == "d/m is on its way"
    # What is told of the time before the write ends nothing.
    assert found.note("d/m", machine("m")) == ()
    assert found.claim(machine("o")) != ""


def test_a_turn_that_is_not_used_is_given_back() -> None:
    found = replacements(*WELL, machine("m"), machine("o"))
    found.claim(machine("m"))
    found.claim(machine("o"))

    assert found.release(machine("o")) == ()
    found.claim(machine("o"))
    assert found.release(machine("m")) == {"d/o"}
    assert found.release(machine("m")) == ()
    assert found.claim(machine("o")) == ""


@pytest.mark.parametrize(
    "then",
    [
        None,
        machine("m", Phase.RUNNING),
        machine("m", Phase.FAILED, kept=True),
        machine("m", Phase.FAILED, "b"),
    ],
    ids=["gone", "runs", "preserved", "of-another-group"],
)
def test_the_next_one_is_told_when_it_is_through(then: MachineView | None) -> None:
    found = replacements(*WELL, machine("m"), machine("o"))
    found.claim(machine("m"))
    found.note("d/m", machine("m", Phase.FAILED))
    assert found.claim(machine("o")) != ""
    assert found.note("d/m", machine("m", Phase.TERMINATING)) == ()

    found.note("d/m", then)

    assert found.claim(machine("o")) == ""


def test_who_waits_is_woken_once() -> None:
    found = replacements(*WELL, machine("m", Phase.FAILED), machine("o"), machine("p"))
    for name in ("o", "p"):
        found.claim(machine(name))

    assert found.note("d/m", None) == {"d/o", "d/p"}
    assert found.note("d/m", None) == ()
    found.note("d/m", machine("m", Phase.FAILED))
    found.claim(machine("o"))
    found.note("d/o", machine("o", Phase.RUNNING))
    assert found.waiting == set()


def test_machines_of_nobody_wait_for_nobody() -> None:
    found = replacements(*WELL, machine("m", group=""), machine("o", Phase.FAILED, group=""))

    assert found.claim(machine("m", group="")) == ""


@pytest.mark.parametrize(
    ("sick", "well", "wanted"), [(2, 0, False), (3, 0, True), (11, 9, False), (12, 9, True)]
)
def test_a_meltdown(sick: int, well: int, wanted: bool) -> None:
    """More than 55 % of those that ran, and more than two."""
    every = [machine(f"s{number}", group=f"g{number}") for number in range(sick)]
    found = replacements(*WELL[:well], *every)

    assert found.is_meltdown is wanted
    assert found.claim(every[0]) == ""
    assert bool(found.claim(every[1])) is wanted


def test_the_end_of_a_meltdown_wakes_who_waited_for_other_groups() -> None:
    every = [machine(f"s{number}", group=f"g{number}") for number in range(MELTDOWN_LEAST)]
    found = replacements(*every, machine("f", Phase.FAILED, "f"))
    assert "most nodes are sick" in found.claim(every[0])
    assert found.note("d/s1", machine("s1", Phase.RUNNING, "g1")) == {"d/s0"}


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
def test_never_two_of_a_group_and_nobody_waits_for_ever(
    steps: list[tuple[str, int, Phase | None]], alone: bool
) -> None:
    found, known, turns = Replacements(), dict[str, MachineView](), set[str]()
    waiting = set[str]()

    def group(number: int) -> str:
        return "a" if alone else f"g{number % 2}"

    for what, number, phase in steps:
        name, one = f"m{number}", machine(f"m{number}", group=group(number))
        if what in ("note", "gone"):
            told = machine(name, phase, group(number)) if phase is not None else None
            woken = found.note(one.key, told)
            known.pop(one.key, None)
            if told is not None:
                known[one.key] = told
            if told is None or standing(told) is not Standing.SICK:
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
            key for key, one in known.items() if standing(one) is Standing.UNDER_WAY
        } | turns
        if not under_way:
            assert waiting == set()
        for key in turns:
            assert not [other for other in turns - {key} if known[other].group == known[key].group]

"""Sets of any kind: what is decided again and again comes to an end, and never does too much."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccm.machines import replicas
from ccm.machines.replicas import BURST, Member
from ccm.model.machines import MachineSet, Phase, Preserve
from tests.unit.machines.members import NOW, at, member
from tests.unit.machines.members import wanted as wanting

MOMENTS = st.none() | st.integers(-3, 3).map(at)


@st.composite
def machines(draw: st.DrawFn) -> Sequence[Member]:
    """Machines in any state."""
    return [
        member(
            f"m{number}",
            phase=draw(st.sampled_from(Phase)),
            created=at(draw(st.integers(-2, 2))),
            is_deleting=draw(st.booleans()),
            priority=draw(st.integers(0, 4)),
            marked=draw(MOMENTS),
            preserve=(said := draw(st.sampled_from(Preserve))),
            own_preserve=said,
            is_its_own=draw(st.booleans()),
            kept_until=draw(MOMENTS),
            was_moved=draw(st.integers(0, 4)) == 0,
        )
        for number in range(draw(st.integers(0, 9)))
    ]


@st.composite
def wishes(draw: st.DrawFn) -> MachineSet:
    """Any wish."""
    return wanting(
        replicas=draw(st.integers(0, 7)),
        may_grow=draw(st.integers(0, 4)) > 0,
        scaled=draw(MOMENTS),
        max_preserved=draw(st.integers(0, 3)),
    )


def step(wanted: MachineSet, found: Sequence[Member], number: int) -> Sequence[Member]:
    """What there is after one pass, when machines that are made work and others vanish."""
    scaling = replicas.scaling(wanted, found, NOW)
    gone = {one.key for one in scaling.delete}
    made = [member(f"n{number}-{each}") for each in range(scaling.create)]
    return [one for one in found if one.key not in gone] + made


@given(wanted=wishes(), found=machines())
def test_it_comes_to_an_end_and_plans_nothing_then(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    for number in range(4):
        found = step(wanted, found, number)
    last = replicas.scaling(wanted, found, NOW)

    assert (last.create, list(last.delete)) == (0, [])
    here = [one for one in found if not one.machine.is_ending]
    enough = len(here) >= wanted.replicas or not wanted.may_grow
    # Some that moved over in an update in place may be more than are wanted for a while.
    assert enough
    assert sum(not one.machine.was_moved for one in here) <= wanted.replicas


@given(wanted=wishes(), found=machines())
def test_there_are_never_more_than_wanted_through_what_is_made(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    here = sum(not one.machine.is_ending for one in found)
    scaling = replicas.scaling(wanted, found, NOW)

    assert here + scaling.create <= max(wanted.replicas, here)
    assert scaling.create <= BURST
    assert wanted.may_grow or not scaling.create


@given(wanted=wishes(), found=machines())
def test_what_goes_is_surplus_or_has_a_reason_of_its_own(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    delete = replicas.scaling(wanted, found, NOW).delete
    free = [
        one
        for one in delete
        if not (
            one.machine.priority == 1
            and one.machine.marked is not None
            and wanted.scaled is not None
        )
        and not (one.machine.phase is Phase.FAILED and not one.is_kept(NOW))
    ]
    here = [one for one in found if not one.machine.is_ending]

    assert len({one.key for one in delete}) == len(delete)
    assert all(one in here for one in delete)
    assert len(free) <= max(0, sum(not one.machine.was_moved for one in here) - wanted.replicas)
    assert not any(one.machine.was_moved for one in free)


@given(wanted=wishes(), found=machines(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_cache_decides_nothing(
    wanted: MachineSet, found: Sequence[Member], order: object
) -> None:
    mixed = sorted(found, key=lambda one: order.random())  # type: ignore[attr-defined]

    first, second = (replicas.scaling(wanted, each, NOW) for each in (found, mixed))
    assert first == second
    kept, dropped = replicas.preservation(wanted, found)
    again = replicas.preservation(wanted, mixed)
    assert (list(kept), list(dropped)) == tuple(map(list, again))


@given(wanted=wishes(), found=machines())
def test_what_a_set_keeps_it_keeps(wanted: MachineSet, found: Sequence[Member]) -> None:
    kept, dropped = replicas.preservation(wanted, found)
    after = replicas.preserved(found, kept, dropped)
    ours = sum(one.own_preserve is Preserve.AUTO and not one.machine.is_ending for one in after)

    assert [list(each) for each in replicas.preservation(wanted, after)] == [[], []]
    assert ours <= max(wanted.max_preserved, 0)
    spared = {one.key for one in kept}
    roomy = structs.replace(wanted, replicas=len(found) + 1, scaled=None)
    assert not any(one.key in spared for one in replicas.scaling(roomy, after, NOW).delete)

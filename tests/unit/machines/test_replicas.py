"""Properties of scaling decisions: they converge and stay within their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.errors import Unavailable
from ccm.cloud.machines import Credentials, MachineRecord
from ccm.machines import failure_backoff, replicas, rollout
from ccm.machines.classes import ResolvedClass
from ccm.machines.driver import MAX_AGE_S, VMListings
from ccm.machines.failure_backoff import NONE, FailureBackoff
from ccm.machines.replicas import MAX_CHANGES_PER_PASS, Member
from ccm.machines.scaling import Fleet, OrderedMachine, SetSize, paused_sizes, rolling_sizes
from ccm.model import ObjectMeta
from ccm.model.machines import MachineSet, Phase, Preserve
from tests.conformance.machine.test_rollout_plans import machines as plenty
from tests.conformance.machine.test_rollout_plans import shelf
from tests.unit.machines.members import BEGIN, NOW, RULES, UNSEEN, at, deployment, member
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
            uses_own_annotation=draw(st.booleans()),
            preserved_until=draw(MOMENTS),
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
    """Return the machines after one pass: created ones run, deleted ones are gone."""
    scaling = replicas.plan_scaling(wanted, found, NOW)
    gone = {one.key for one in scaling.delete}
    made = [member(f"n{number}-{each}") for each in range(scaling.create)]
    return [one for one in found if one.key not in gone] + made


@given(wanted=wishes(), found=machines())
def test_scaling_converges_and_then_plans_no_change(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    for number in range(4):
        found = step(wanted, found, number)
    last = replicas.plan_scaling(wanted, found, NOW)

    assert (last.create, list(last.delete)) == (0, [])
    here = [one for one in found if not one.machine.is_terminating]
    enough = len(here) >= wanted.replicas or not wanted.may_grow
    # Machines moved by an in-place update may exceed the replicas for a while.
    assert enough
    assert sum(not one.machine.was_moved for one in here) <= wanted.replicas


@given(wanted=wishes(), found=machines())
def test_scaling_never_creates_more_machines_than_wanted(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    here = sum(not one.machine.is_terminating for one in found)
    scaling = replicas.plan_scaling(wanted, found, NOW)

    assert here + scaling.create <= max(wanted.replicas, here)
    assert scaling.create <= MAX_CHANGES_PER_PASS
    assert wanted.may_grow or not scaling.create


@given(wanted=wishes(), found=machines())
def test_scaling_deletes_only_surplus_failed_or_marked_machines(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    delete = replicas.plan_scaling(wanted, found, NOW).delete
    free = [
        one
        for one in delete
        if not (
            one.machine.priority == 1
            and one.machine.marked is not None
            and wanted.scaled is not None
        )
        and not (one.machine.phase is Phase.FAILED and not one.is_preserved(NOW))
    ]
    here = [one for one in found if not one.machine.is_terminating]

    assert len({one.key for one in delete}) == len(delete)
    assert all(one in here for one in delete)
    assert len(free) <= max(0, sum(not one.machine.was_moved for one in here) - wanted.replicas)
    assert not any(one.machine.was_moved for one in free)


@given(wanted=wishes(), found=machines(), order=st.randoms(use_true_random=False))
def test_scaling_plan_is_independent_of_the_cache_order(
    wanted: MachineSet, found: Sequence[Member], order: object
) -> None:
    mixed = sorted(found, key=lambda one: order.random())  # type: ignore[attr-defined]

    first, second = (replicas.plan_scaling(wanted, each, NOW) for each in (found, mixed))
    assert first == second
    kept, dropped = replicas.plan_preservation(wanted, found)
    again = replicas.plan_preservation(wanted, mixed)
    assert (list(kept), list(dropped)) == tuple(map(list, again))


@given(wanted=wishes(), found=machines())
def test_auto_preservation_is_idempotent_and_spares_kept_machines(
    wanted: MachineSet, found: Sequence[Member]
) -> None:
    kept, dropped = replicas.plan_preservation(wanted, found)
    after = replicas.apply_preservation(found, kept, dropped)
    ours = sum(
        one.own_preserve is Preserve.AUTO and not one.machine.is_terminating for one in after
    )

    assert [list(each) for each in replicas.plan_preservation(wanted, after)] == [[], []]
    assert ours <= max(wanted.max_preserved, 0)
    spared = {one.key for one in kept}
    roomy = structs.replace(wanted, replicas=len(found) + 1, scaled=None)
    assert not any(one.key in spared for one in replicas.plan_scaling(roomy, after, NOW).delete)


# --- sizes where caches, the autoscaler or others get in between ----------------------------------

WORKS, CHOSEN = OrderedMachine(available=True), OrderedMachine(available=True, chosen=True)
MISSING, GOES = (
    OrderedMachine(available=False),
    OrderedMachine(available=True, is_chosen_by_autoscaler=True),
)


def sized(
    name: str, *victims: OrderedMachine, replicas: int | None = None, **more: bool
) -> SetSize:
    count = len(victims) if replicas is None else replicas
    return SetSize(uid=name, replicas=count, machines=victims, **more)


def fleet(*olds: SetSize, new: SetSize | None) -> Fleet:
    return Fleet(replicas=3, surge=1, floor=3, new=new, olds=olds)


def test_amounts_are_non_negative_numbers_or_percentages() -> None:
    amounts = (0, 3, "25%", -1, "x", "5", None, "٣%")
    assert [replicas.is_amount(value) for value in amounts] == [True] * 3 + [False] * 5
    with pytest.raises(ValueError, match="'5' is neither a number nor a percentage"):
        replicas.resolve_amount("5", 10, up=True)


def test_deleting_machine_is_unavailable_but_counts_against_the_surge() -> None:
    wanted, new = deployment(replicas=3, max_surge=1), sized("new", WORKS)
    assert "old" not in rolling_sizes(fleet(sized("old", WORKS, WORKS, GOES), new=new), wanted)[0]
    old = sized("old", WORKS, WORKS, WORKS, replicas=2)
    assert rolling_sizes(fleet(old, new=new), wanted) == ({}, 0)
    going = sized("going", WORKS, WORKS, replicas=2, is_deleting=True)
    assert (going.available_at(2), rolling_sizes(fleet(going, new=None), wanted)) == (0, ({}, 2))


@pytest.mark.parametrize(
    ("sets", "new", "sizes"),
    [
        ([sized("a", WORKS)], None, {"a": 3}),
        ([], sized("new"), {"new": 3}),
        ([sized("a"), sized("b")], None, {"b": 3}),
        ([sized("a", WORKS)], sized("new", WORKS, WORKS, WORKS), {"a": 0}),
        ([sized("a", WORKS)], sized("new", WORKS), {"new": 3}),
        ([sized("a", WORKS), sized("b", WORKS)], sized("new"), {"b": 3}),
        ([sized("a", MISSING, WORKS, WORKS, WORKS)], None, {"a": 3}),
        ([sized("a", CHOSEN, MISSING, WORKS, WORKS)], None, {"a": 3}),
        ([sized("a", WORKS, MISSING, WORKS, WORKS)], None, {}),
        ([sized("a", WORKS, is_deleting=True)], None, {}),
        ([sized("a", WORKS, has_seen=False)], None, {}),
    ],
)
def test_paused_rollout_still_scales_its_sets(
    sets: list[SetSize], new: SetSize | None, sizes: dict[str, int]
) -> None:
    assert paused_sizes(fleet(*sets, new=new)) == sizes


def test_set_does_not_shrink_before_its_victims_are_marked() -> None:
    one = shelf("new", 3, kind="new")
    metadata = ObjectMeta(name="web", annotations={"trigger": "new-1~2026-01-01T00:00:00Z"})
    view = deployment(replicas=2, max_surge=1, template=one.template, metadata=metadata)
    found = rollout.plan(view, [one], BEGIN, RULES)
    assert ([mark.piece.name for mark in found.marks], found.changes) == (["new-1"], ())


@pytest.mark.parametrize("text", ["", "x", "-1", "²", "٣", "9" * 5000])
def test_invalid_revision_annotation_counts_as_zero(text: str) -> None:
    assert rollout.revision_of({RULES.names.revision: text}, RULES.names) == 0


def test_history_cleanup_keeps_old_sets_with_machines() -> None:
    view = deployment(replicas=1, max_surge=1, history_limit=0)
    left = shelf("left", 0, members=plenty("left", 1, is_deleting=True))
    old = [left, shelf("unknown", 0, status=UNSEEN), shelf("empty", 0)]
    assert [one.name for one in rollout.sets_to_clean_up(view, old)] == ["empty"]


# --- setbacks: how fast a set creates machines that fail ------------------------------------------


def failed(found: FailureBackoff, seconds: float, made: float | None = None) -> FailureBackoff:
    """Record a failure at that time, of a machine created then or at `made`."""
    made = seconds if made is None else made
    return failure_backoff.record_failure(
        found, created_at=at(made), now=at(seconds), text=f"at {seconds}"
    )


def after(*times: float) -> FailureBackoff:
    """Machines failed at these times."""
    found = NONE
    for seconds in times:
        found = failed(found, seconds)
    return found


def test_failures_of_machines_created_before_a_pause_end_do_not_count() -> None:
    found = failure_backoff.end_backoff(at(100.9))
    assert failure_backoff.allowed_creations(found, 7, [], at(101)) == 7

    for _ in range(5):
        found = failed(found, 200, made=99)
    assert (found.failures, found.pauses) == (0, 0)
    # Creation timestamps of the API server have whole seconds.
    for _ in range(3):
        found = failed(found, 200, made=100)
    assert (found.failures, found.pauses) == (3, 1)


def test_creation_pauses_double_up_to_half_an_hour() -> None:
    found, now, pauses = after(0, 0), 0.0, list[float]()
    assert (
        failure_backoff.remaining_pause_s(found, at(1)),
        failure_backoff.allowed_creations(found, 7, [], at(1)),
    ) == (0, 7)
    for _ in range(8):
        found = failed(found, now)
        pauses.append(failure_backoff.remaining_pause_s(found, at(now)) / 60)
        now += pauses[-1] * 60
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    resumed = failure_backoff.restore_backoff(NOW)
    assert (
        failure_backoff.pause_end(resumed),
        failure_backoff.remaining_pause_s(failed(resumed, 60), at(60)),
    ) == (at(60), 120)


def test_failures_of_one_burst_cause_one_pause() -> None:
    """Machines that were created together fail together; the pause must not grow for each."""
    found = after(0, 0, 0)
    for seconds in range(1, 50):
        found = failed(found, seconds, made=-60)
    assert (found.failures, found.pauses, failure_backoff.remaining_pause_s(found, at(50))) == (
        52,
        1,
        10,
    )


@pytest.mark.parametrize(
    ("facts", "allowed"),
    [
        ({"phase": Phase.NEW}, 0),
        ({"phase": Phase.PENDING}, 0),
        ({"phase": Phase.CRASH_LOOP}, 0),
        ({"phase": Phase.FAILED}, 1),
        ({"phase": Phase.PENDING, "is_deleting": True}, 1),
        ({"phase": Phase.PENDING, "created": at(-1)}, 1),
        ({"phase": Phase.UNKNOWN}, 1),
    ],
)
def test_one_trial_machine_at_a_time_is_created_during_back_off(
    facts: dict[str, object], allowed: int
) -> None:
    found, tried = after(0, 0, 0), member("a", **{"created": at(60), **facts})
    assert failure_backoff.allowed_creations(found, 5, [tried], at(90)) == allowed
    assert [
        failure_backoff.allowed_creations(found, 5, [], at(seconds)) for seconds in (59, 60)
    ] == [0, 1]


# --- one listing for all that ask for the same ----------------------------------------------------


@pytest.mark.virtual_time
async def test_vm_listing_is_shared_while_young_and_never_predates_a_request() -> None:
    asked, fault = list[tuple[str, ...]](), list[Exception]()

    async def fetch(made_of: ResolvedClass) -> Sequence[MachineRecord]:
        asked.append((made_of.name, *made_of.version))
        await asyncio.sleep(10)
        if fault:
            raise fault.pop()
        return ()

    def pool(name: str = "small", version: str = "1") -> ResolvedClass:
        metadata, credentials = ObjectMeta(name=name), Credentials({})
        return ResolvedClass(metadata=metadata, credentials=credentials, version=(version,))

    listings = VMListings(fetch)
    async with NamedTaskGroup() as group:
        tasks = [group.start(listings.of(pool()), name=str(number)) for number in range(9)]
        await asyncio.sleep(5)
        since = asyncio.get_running_loop().time()
        later = group.start(listings.of(pool(), since=since), name="later")
    assert {task.result().began < since for task in tasks} == {True}
    assert (later.result().began > since, len(asked)) == (True, 2)
    for age_s, count in ((MAX_AGE_S - 11, 2), (2, 3)):
        await asyncio.sleep(age_s)
        await listings.of(pool())
        assert len(asked) == count
    for made_of in (pool("big"), pool("big", "2")):
        await listings.of(made_of)
    fault.append(Unavailable("x"))
    listings.drop()
    with pytest.raises(Unavailable):
        await listings.of(pool())
    await listings.of(pool())
    assert asked[3:] == [("big", "1"), ("big", "2"), *[("small", "1")] * 2]

"""Rollout plans per row of the conformance table, without an API server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from ccm.machines import replicas, rollout
from ccm.machines.replicas import Member, PopulatedSet, unavailable
from ccm.model import ObjectMeta
from ccm.model.machines import MachineDeployment, Phase, SetStatus, Strategy, Template
from tests.conformance.table import case
from tests.unit.machines.members import BEGIN, RULES, UNSEEN, deployment, member

LONG_AGO = BEGIN - timedelta(hours=1)


def machines(set_name: str, count: int, **fields: Any) -> list[Member]:
    """Machines of a set that have worked for an hour."""
    wanted = {"phase": Phase.RUNNING, "since": LONG_AGO, **fields}
    return [member(f"{set_name}-{number}", created=LONG_AGO, **wanted) for number in range(count)]


def shelf(name: str, count: int, *, age: int = 0, kind: str = "old", **fields: Any) -> PopulatedSet:
    """A set with all its machines; the larger the age, the older."""
    annotations = {"revision": "1", **fields.pop("annotations", {})}
    found = PopulatedSet(
        metadata=ObjectMeta(name=name, uid=name, annotations=annotations),
        created=BEGIN - timedelta(minutes=age),
        replicas=count,
        template=Template(essence=kind),
        members=machines(name, count),
    )
    return structs.replace(found, **fields)


def rolling(replicas: int, surge: int, unavailable: int = 0, **fields: Any) -> MachineDeployment:
    """A deployment that wants new machines."""
    return deployment(
        replicas=replicas,
        max_surge=surge,
        max_unavailable=unavailable,
        template=Template(essence="new"),
        **fields,
    )


def decided(wanted: MachineDeployment, *sets: PopulatedSet) -> rollout.RolloutPlan:
    return rollout.plan(wanted, sets, BEGIN, RULES)


def sizes(found: rollout.RolloutPlan) -> dict[str, int]:
    return {one.set.name: one.replicas for one in found.changes if one.replicas is not None}


IN_PLACE = {"strategy": Strategy.IN_PLACE}
MANUAL = {**IN_PLACE, "is_manual": True}


@pytest.mark.parametrize(
    ("replicas", "most", "how", "missing"),
    [
        case("rollout-unavailable-01", 5, 1, {"strategy": Strategy.RECREATE}, 0, id="recreate"),
        case("rollout-unavailable-02", 0, 1, {}, 0, id="none"),
        case("rollout-unavailable-03", 5, 1, {}, 1, id="one"),
        case("rollout-unavailable-04", 5, 10, {}, 5, id="all"),
        case("rollout-unavailable-05", 5, 2, MANUAL, 2, id="manual"),
        case("rollout-unavailable-06", 3, 10, IN_PLACE, 3, id="auto"),
        case("rollout-unavailable-07", 0, 2, MANUAL, 0, id="manual-none"),
    ],
)
def test_max_unavailable_depends_on_strategy_and_replicas(
    replicas: int, most: int, how: dict[str, Any], missing: int
) -> None:
    wanted = deployment(replicas=replicas, max_unavailable=most, max_surge=1, **how)

    assert unavailable(wanted) == missing


@pytest.mark.row("rollout-unavailable-08")
@pytest.mark.parametrize(
    ("surge", "missing", "found"),
    [("25%", "25%", (2, 1)), ("0%", "10%", (0, 1)), (0, 0, (0, 1)), ("1%", "0%", (1, 0))],
)
def test_surge_is_rounded_up_and_unavailable_down(
    surge: int | str, missing: int | str, found: tuple[int, int]
) -> None:
    wanted = deployment(replicas=7, max_surge=surge, max_unavailable=missing)

    assert (replicas.surge(wanted), unavailable(wanted)) == found


@pytest.mark.parametrize(
    ("how", "surge", "present", "new", "size"),
    [
        case("rollout-size-01", {}, 2, 6, 2, 3, id="grows"),
        case("rollout-size-02", {}, 2, 7, 2, 2, id="full"),
        case("rollout-size-03", {"strategy": Strategy.RECREATE}, 0, 0, 0, 5, id="recreate"),
        case("rollout-size-04", MANUAL, 2, 4, 0, 0, id="manual"),
        case("rollout-size-05", IN_PLACE, 2, 6, 2, 3, id="auto"),
        case("rollout-size-06", IN_PLACE, 1, 6, 2, 2, id="auto-full"),
    ],
)
def test_new_set_size_is_bounded_by_strategy_and_surge(
    how: dict[str, Any], surge: int, present: int, new: int, size: int
) -> None:
    wanted = deployment(replicas=5, max_surge=surge, **how)

    assert replicas.new_size(wanted, present=present, new=new) == size


@pytest.mark.row("rollout-size-07")
def test_unknown_strategy_raises_for_the_new_set_size() -> None:
    with pytest.raises(ValueError, match="unknown strategy"):
        replicas.new_size(deployment(strategy=None), present=0, new=0)


@pytest.mark.parametrize(
    ("before", "after", "counts", "found"),
    [
        case("rollout-scale-01", 7, 10, (1, 3, 5), (1, 3, 8), id="up"),
        case("rollout-scale-02", 7, 3, (1, 3, 5), (1, 2, 2), id="down"),
        case("rollout-scale-03", 8, 5, (1, 3, 6), (1, 2, 4), id="less"),
        case("rollout-scale-04", 7, 7, (1, 3, 5), (1, 3, 5), id="same"),
    ],
)
def test_scaling_during_a_rollout_is_proportional(
    before: int, after: int, counts: tuple[int, ...], found: tuple[int, ...]
) -> None:
    notes = {"desired": str(before), "most": str(before + 2), "old": "True"}
    kinds = ["a", "b", "new"]
    sets = [
        shelf(kind, count, age=9 - number, kind=kind, annotations=notes)
        for number, (kind, count) in enumerate(zip(kinds, counts, strict=True))
    ]
    # Paused, so that nothing but the size changes.
    plan = decided(rolling(after, 2, is_paused=True), *sets)

    told = {one.set.name: dict(one.annotations) for one in plan.changes}
    assert sizes(plan) == {
        kind: size for kind, size, old in zip(kinds, found, counts, strict=True) if size != old
    }
    wanted = {"desired": str(after), "most": str(after + 2)}
    for kind in kinds if before != after else ():
        assert wanted.items() <= told[kind].items()


@pytest.mark.row("rollout-scale-05")
def test_only_set_gets_the_desired_replicas_annotations() -> None:
    one = shelf("new", 1, kind="new", annotations={"desired": "2", "most": "4"})

    plan = decided(rolling(1, 2), one)

    assert sizes(plan) == {}
    assert plan.changes[0].annotations["desired"] == "1"
    assert plan.changes[0].annotations["most"] == "3"


@pytest.mark.row("rollout-scale-06")
def test_scale_down_takes_unavailable_machines_first() -> None:
    notes = {"desired": "8", "most": "10", "old": "True"}
    new = shelf("new", 6, kind="new", annotations=notes)
    new = structs.replace(new, members=machines("new", 6, phase=Phase.PENDING))
    olds = [shelf("a", 1, age=9, annotations=notes), shelf("b", 3, age=8, annotations=notes)]

    assert sizes(decided(rolling(5, 2, 1), *olds, new)) == {"new": 3}


@pytest.mark.row("rollout-scale-07")
def test_scale_down_takes_machines_below_min_ready_seconds_first() -> None:
    young = machines("young", 5, since=BEGIN)
    one = shelf("new", 10, kind="new", members=[*machines("new", 5), *young])

    shrinks = decided(rolling(5, 1, min_ready_s=60.0), one)

    assert sizes(shrinks) == {"new": 5}
    assert shrinks.after_s == 60.0


@pytest.mark.row("rollout-first-01")
def test_rollout_creates_the_new_set_before_shrinking_the_old() -> None:
    old = shelf("a", 5, annotations={"desired": "5", "most": "6"})

    first = decided(rolling(5, 1, 1), old)

    assert first.create is not None
    assert (first.create.replicas, sizes(first)) == (1, {})
    new = shelf("new", 1, kind="new", members=machines("new", 1, phase=Phase.PENDING))
    assert sizes(decided(rolling(5, 1, 1), old, new)) == {"a": 4}


@pytest.mark.row("rollout-first-02")
def test_deleting_machine_makes_room_for_a_new_one() -> None:
    going = [*machines("a", 3), *machines("b", 2, is_deleting=True)]
    old = shelf("a", 3, members=going)
    new = shelf("new", 1, kind="new")

    assert sizes(decided(rolling(5, 1, 1), old, new))["new"] == 3


@pytest.mark.row("rollout-first-03")
def test_rollout_waits_until_every_set_has_a_status() -> None:
    sets = [shelf("a", 4, status=UNSEEN), shelf("new", 2, kind="new")]

    assert sizes(decided(rolling(5, 1, 2), *sets)) == {}
    assert (
        sizes(decided(rolling(5, 1, 2), structs.replace(sets[0], status=SetStatus()), sets[1]))
        != {}
    )


@pytest.mark.row("rollout-first-04")
def test_rollout_deletes_unavailable_old_machines_first() -> None:
    members = [*machines("a", 3), *machines("b", 2, phase=Phase.CRASH_LOOP)]
    new = shelf("new", 1, kind="new")

    found = sizes(decided(rolling(5, 1, 1), shelf("a", 5, members=members), new))

    assert found == {"a": 3}


@pytest.mark.row("rollout-first-05")
def test_available_machine_is_kept_while_max_unavailable_is_zero() -> None:
    members = [
        *machines("a", 3),
        *machines("first", 1, priority=1),
        *machines("b", 1, phase=Phase.CRASH_LOOP),
    ]
    new = shelf("new", 1, kind="new")

    assert sizes(decided(rolling(5, 1, 0), shelf("a", 5, members=members), new)) == {}


@pytest.mark.row("rollout-autoscaler-02")
def test_deletion_trigger_without_a_time_uses_the_current_time() -> None:
    one = shelf("new", 2, kind="new")
    metadata = ObjectMeta(name="web", annotations={"trigger": "new-0,new-1~never,gone"})

    plan = decided(rolling(2, 1, metadata=metadata), one)

    assert plan.annotations == {"trigger": "new-0~2026-01-01T00:00:00Z"}
    assert [mark.piece.name for mark in plan.marks] == ["new-0"]

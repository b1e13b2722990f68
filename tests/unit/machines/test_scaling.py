"""Sizes of sets where the caches, the autoscaler or others get in between."""

from __future__ import annotations

import pytest
from msgspec import structs

from ccm.machines import bounds, revisions, rollout
from ccm.machines.replicas import PopulatedSet
from ccm.machines.scaling import Fleet, Sized, Victim, held, rolled
from ccm.model import ObjectMeta
from ccm.model.machines import MachineDeployment
from tests.unit.machines.members import UNSEEN
from tests.unit.machines.rolling import BEGIN, RULES, deployment

WORKS = Victim(available=True)
GOES = Victim(available=True, goes=True)
CHOSEN = Victim(available=True, chosen=True)
MISSING = Victim(available=False)


def sized(name: str, *victims: Victim, replicas: int | None = None, **more: bool) -> Sized:
    count = len(victims) if replicas is None else replicas
    return Sized(uid=name, replicas=count, victims=victims, **more)


def fleet(*olds: Sized, new: Sized | None, replicas: int, surge: int = 1, least: int = 0) -> Fleet:
    return Fleet(replicas=replicas, surge=surge, floor=least, new=new, olds=olds)


def wanted(replicas: int, surge: int = 1) -> MachineDeployment:
    return deployment(replicas=replicas, max_surge=surge)


def test_a_machine_that_goes_anyway_is_not_available() -> None:
    old, new = sized("old", WORKS, WORKS, GOES), sized("new", WORKS)

    sizes, _ = rolled(fleet(old, new=new, replicas=3, least=3), wanted(3))

    assert "old" not in sizes


def test_a_machine_that_is_still_there_makes_no_room() -> None:
    old, new = sized("old", WORKS, WORKS, WORKS, replicas=2), sized("new", WORKS)

    assert rolled(fleet(old, new=new, replicas=3, least=3), wanted(3)) == ({}, 0)


def test_a_set_that_is_being_deleted_has_nothing_available_and_takes_its_room() -> None:
    going = sized("going", WORKS, WORKS, replicas=2, is_deleting=True)

    assert going.available_at(2) == 0
    assert rolled(fleet(going, new=None, replicas=3), wanted(3)) == ({}, 2)


@pytest.mark.parametrize(
    ("sets", "new", "sizes"),
    [
        ([sized("a", WORKS)], None, {"a": 3}),
        ([], sized("new"), {"new": 3}),
        ([sized("a"), sized("b")], None, {"b": 3}),
        ([sized("a", WORKS)], sized("new", WORKS, WORKS, WORKS), {"a": 0}),
        ([sized("a", WORKS)], sized("new", WORKS), {"new": 3}),
        ([sized("a", WORKS), sized("b", WORKS)], sized("new"), {"b": 3}),
        ([sized("a", WORKS, MISSING)], sized("new", *[WORKS] * 3), {"a": 0}),
        ([sized("a", MISSING, WORKS, WORKS, WORKS)], None, {"a": 3}),
        ([sized("a", CHOSEN, MISSING, WORKS, WORKS)], None, {"a": 3}),
        ([sized("a", WORKS, MISSING, WORKS, WORKS)], None, {}),
        ([sized("a", WORKS, is_deleting=True)], None, {}),
        ([sized("a", WORKS, has_seen=False)], None, {}),
    ],
    ids=[
        "one", "only-new", "newest-of-empty", "new-is-full", "new-grows", "newest-grows",
        "new-is-full-and-old-is-sick", "sick-goes", "chosen-goes", "healthy-stays", "deleting",
        "unknown",
    ],
)  # fmt: skip
def test_sizes_while_nothing_is_exchanged(
    sets: list[Sized], new: Sized | None, sizes: dict[str, int]
) -> None:
    assert held(fleet(*sets, new=new, replicas=3, least=3)) == sizes


def test_nothing_shrinks_before_the_victims_are_marked() -> None:
    from tests.conformance.machine.test_rollout_plans import shelf

    one = shelf("new", 3, kind="new")
    metadata = ObjectMeta(name="web", annotations={"trigger": "new-1~2026-01-01T00:00:00Z"})
    view = structs.replace(wanted(2), template=one.template, metadata=metadata)

    found = rollout.plan(view, [one], BEGIN, RULES)

    assert ([mark.piece.name for mark in found.marks], found.changes) == (["new-1"], ())


@pytest.mark.parametrize("text", ["", "x", "-1", "²", "٣", "9" * 5000])
def test_a_revision_that_is_no_number_is_none(text: str) -> None:
    assert revisions.number({RULES.names.revision: text}, RULES.names) == 0
    assert revisions.number({RULES.names.revision: "12"}, RULES.names) == 12


def test_an_old_set_with_machines_is_kept() -> None:
    from tests.conformance.machine.test_rollout_plans import machines, shelf

    view = structs.replace(wanted(1), history_limit=0)
    left = shelf("left", 0, members=machines("left", 1, is_deleting=True))
    unknown = shelf("unknown", 0, status=UNSEEN)
    empty: PopulatedSet = shelf("empty", 0)

    assert [one.name for one in revisions.superfluous(view, [left, unknown, empty])] == ["empty"]


def test_amounts() -> None:
    assert [bounds.is_amount(value) for value in (0, 3, "25%", -1, "x", "5", None, "٣%")] == [
        True, True, True, False, False, False, False, False,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'5' is neither a number nor a percentage"):
        bounds.amount("5", 10, up=True)

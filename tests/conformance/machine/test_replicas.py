"""Scaling decisions of MachineSets, per row of the conformance table, without an API server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ccm.controllers.machineset.members import slow_start
from ccm.kube.errors import Forbidden, KubeError
from ccm.machines import replicas
from ccm.machines.replicas import Member
from ccm.model.machines import MachineSet, Phase, Preserve
from tests.conformance.table import case
from tests.unit.machines.members import NOW, at, member
from tests.unit.machines.members import wanted as wanting

CALLED = {"priority": 1, "marked": at(0)}
FAILED = {"phase": Phase.FAILED}


def deleted(wanted: MachineSet, *members: Member) -> list[str]:
    return [one.key.partition("/")[2] for one in replicas.plan_scaling(wanted, members, NOW).delete]


def made(wanted: MachineSet, *members: Member) -> int:
    return replicas.plan_scaling(wanted, members, NOW).create


def running(count: int) -> list[Member]:
    return [member(f"m{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("wanted", "members", "create", "delete"),
    [
        case("machineset-replicas-01", 3, running(2), 1, []),
        case("machineset-replicas-03", 200, [], 100, []),
        case("machineset-replicas-04", 2, running(2), 0, []),
        case("machineset-replicas-05", 1, [member("a"), member("b", **FAILED)], 0, ["b"]),
        case("machineset-replicas-06", 1, running(2), 0, ["m0"]),
        case("machineset-replicas-09", 2, [*running(2), member("extra", was_moved=True)], 0, []),
        case("machineset-replicas-10", 3, [*running(1), member("extra", was_moved=True)], 1, []),
        case(
            "machineset-replicas-11",
            2,
            [member("a"), member("b", is_deleting=True), member("c", phase=Phase.TERMINATING)],
            1,
            [],
        ),
        case("machineset-delete-06", 2, [member("a"), member("b", **FAILED)], 0, ["b"]),
    ],
)
def test_scaling_creates_missing_and_deletes_surplus_machines(
    wanted: int, members: Sequence[Member], create: int, delete: list[str]
) -> None:
    found = replicas.plan_scaling(wanting(replicas=wanted), members, NOW)

    assert found.create == create
    assert [one.key for one in found.delete] == [f"default/{name}" for name in delete]


def test_deletions_per_pass_are_limited() -> None:
    assert len(deleted(wanting(replicas=0), *running(150))) == replicas.MAX_CHANGES_PER_PASS


def test_deleting_set_deletes_all_its_machines() -> None:
    members = [*running(150), member("t", phase=Phase.TERMINATING), member("d", is_deleting=True)]
    found = replicas.plan_scaling(wanting(replicas=9, is_deleting=True), members, NOW)

    assert (found.create, len(found.delete)) == (0, 151)


@pytest.mark.row("machineset-replicas-07", "machineset-replicas-08")
@pytest.mark.parametrize("wanted", [2, 1])
def test_machines_marked_by_the_autoscaler_are_always_deleted(wanted: int) -> None:
    both = [member("a", **CALLED), member("b", **CALLED)]

    assert deleted(wanting(replicas=wanted, scaled=at(0)), *both) == ["a", "b"]
    assert made(wanting(replicas=wanted, scaled=at(0)), *both) == 0


@pytest.mark.row("machineset-scaler-02")
@pytest.mark.parametrize(
    ("scaled", "marks"),
    [
        pytest.param(at(-1), CALLED, id="marked later"),
        pytest.param(None, CALLED, id="the set says nothing"),
        pytest.param(at(0), {"priority": 1}, id="marked without a time"),
        pytest.param(at(0), {"marked": at(0)}, id="marked without the priority"),
        pytest.param(at(0), {"priority": 2, "marked": at(0)}, id="another priority"),
    ],
)
def test_machine_without_valid_autoscaler_marks_is_kept(scaled: Any, marks: dict[str, Any]) -> None:
    assert deleted(wanting(replicas=1, scaled=scaled), member("a", **marks)) == []


@pytest.mark.row("machineset-scaler-01")
def test_prioritised_machine_is_deleted_as_the_surplus() -> None:
    members = [member("a", phase=Phase.PENDING), member("b", priority=1), member("c")]

    assert deleted(wanting(replicas=2), *members) == ["b"]


@pytest.mark.row("machineset-replicas-12", "machineset-freeze-12")
def test_frozen_set_still_deletes_machines() -> None:
    frozen = wanting(replicas=3, may_grow=False)
    found = replicas.plan_scaling(frozen, [member("a"), member("b", **FAILED)], NOW)

    assert (found.create, found.missing) == (0, 1)
    assert [one.key for one in found.delete] == ["default/b"]
    assert deleted(wanting(replicas=1, may_grow=False), *running(2)) == ["m0"]


@pytest.mark.row("machineset-delete-01")
def test_deletion_order_follows_priority_and_mark() -> None:
    order = [
        member("a", priority=1),
        member("b", marked=at(0)),
        member("c", marked=at(60), **FAILED),
        member("d", marked=at(60)),
        member("e"),
    ]
    mixed = random.Random(1).sample(order, k=len(order))

    assert deleted(wanting(replicas=0), *mixed) == list("abcde")


@pytest.mark.row("machineset-delete-01")
def test_deletion_order_follows_phase_and_then_age() -> None:
    phases = [
        Phase.NEW,
        Phase.FAILED,
        Phase.CRASH_LOOP,
        Phase.UNKNOWN,
        Phase.PENDING,
        Phase.AVAILABLE,
        Phase.RUNNING,
    ]
    order = [member(f"p{number}", phase=phase) for number, phase in enumerate(phases)]
    order.append(member("young", created=at(1)))

    assert deleted(wanting(replicas=0), *reversed(order)) == [one.key[8:] for one in order]


@pytest.mark.row("machineset-delete-02", "machineset-delete-03")
def test_preserved_machines_are_deleted_last() -> None:
    order = [
        member("plain"),
        member("auto", **FAILED, preserve=Preserve.AUTO, preserved_until=at(90)),
        member("soon", preserve=Preserve.NOW, preserved_until=at(30)),
        member("later", preserve=Preserve.NOW, preserved_until=at(60), priority=1),
        member("waits", preserve=Preserve.NOW),
    ]

    assert deleted(wanting(replicas=0), *reversed(order)) == [one.key[8:] for one in order]
    assert deleted(wanting(replicas=4), *reversed(order)) == ["plain"]
    assert deleted(wanting(replicas=3), *reversed(order)) == ["plain", "auto"]


@pytest.mark.row("machineset-delete-07")
@pytest.mark.parametrize(
    ("facts", "goes"),
    [
        ({}, True),
        ({"preserved_until": at(1)}, False),
        ({"preserved_until": at(1), "preserve": Preserve.NO}, False),
        ({"preserve": Preserve.NO}, True),
        ({"preserve": Preserve.NOW}, False),
        ({"preserve": Preserve.WHEN_FAILED}, False),
        ({"preserve": Preserve.AUTO}, False),
        ({"preserved_until": at(0), "preserve": Preserve.NOW}, True),
        ({"preserved_until": at(-1), "preserve": Preserve.AUTO}, True),
    ],
)
def test_failed_machine_is_deleted_unless_preserved(facts: dict[str, Any], goes: bool) -> None:
    found = deleted(wanting(replicas=1), member("a", **FAILED, **facts))

    assert found == (["a"] if goes else [])


FIRST = member("old", **FAILED, created=at(-60))
SECOND = member("new", **FAILED)
OURS = {**FAILED, "own_preserve": Preserve.AUTO, "preserve": Preserve.AUTO}


@pytest.mark.parametrize(
    ("most", "members", "keep", "drop"),
    [
        case("machineset-preserve-01", 1, [FIRST, SECOND], ["new"], []),
        case("machineset-preserve-02", 0, [FIRST, SECOND], [], []),
        case("machineset-preserve-03", 1, [member("ours", **OURS), SECOND], [], []),
        case("machineset-preserve-04", 2, [FIRST, SECOND], ["new", "old"], []),
        case(
            "machineset-preserve-05",
            1,
            [member("no", **FAILED, own_preserve=Preserve.NO), FIRST],
            ["old"],
            [],
        ),
        case(
            "machineset-preserve-06",
            1,
            [member("a", **OURS), member("b", **OURS, created=at(-60))],
            [],
            ["b"],
        ),
        pytest.param(2, [member("runs"), member("goes", **FAILED, is_deleting=True)], [], []),
        pytest.param(1, [member("said", **FAILED, uses_own_annotation=False)], [], []),
        pytest.param(1, [member("kept", **FAILED, preserved_until=at(60))], [], []),
    ],
)
def test_set_auto_preserves_the_newest_failed_machines_up_to_its_limit(
    most: int, members: Sequence[Member], keep: list[str], drop: list[str]
) -> None:
    wanted = wanting(replicas=len(members), max_preserved=most)
    kept, dropped = replicas.plan_preservation(wanted, members)

    assert [one.key[8:] for one in kept] == keep
    assert [one.key[8:] for one in dropped] == drop
    after = replicas.apply_preservation(members, kept, dropped)
    assert [list(each) for each in replicas.plan_preservation(wanted, after)] == [[], []]


@pytest.mark.row("machineset-status-01", "machineset-status-02")
def test_set_status_counts_ready_preserved_and_failed_machines() -> None:
    members = [
        member("a"),
        member("b", phase=Phase.AVAILABLE, is_labeled=False),
        member("c", phase=Phase.PENDING, state="Failed"),
        member("d", **FAILED, state="Failed", preserved_until=at(30), own_preserve=Preserve.AUTO),
        member("e", **FAILED, state="Failed"),
        member("f", is_deleting=True),
    ]
    found, changes_in_s = replicas.count_status(wanting(replicas=6), members, NOW)

    assert (found.replicas, found.labeled, found.ready, found.available) == (6, 5, 2, 2)
    assert (found.preserved, found.preserved_by_us) == (1, 1)
    assert [one.name for one in found.failed] == ["c", "e"]
    assert changes_in_s == 30


@pytest.mark.row("machineset-status-02")
def test_machine_is_available_after_min_ready_seconds() -> None:
    wanted = wanting(replicas=3, min_ready_s=60.0)
    members = [member("a", since=at(-60)), member("b", since=at(-50)), member("c", since=at(-20))]
    found, changes_in_s = replicas.count_status(wanted, members, NOW)

    assert (found.ready, found.available, changes_in_s) == (3, 1, 10)


@pytest.mark.parametrize(
    ("first", "fails", "done", "calls"),
    [
        case("machineset-create-01", 2, False, 10, 10),
        case("machineset-create-02", 0, False, 0, 0),
        case("machineset-create-03", 1, True, 0, 1),
    ],
)
async def test_slow_start_stops_after_the_first_failed_batch(
    first: int, fails: bool, done: int, calls: int
) -> None:
    tried = list[int]()
    refusal = Forbidden(status=403, reason="Forbidden", message="no")

    async def call(number: int) -> None:
        tried.append(number)
        if fails:
            raise refusal

    found, error = await slow_start(range(10), call, first=first)

    expected: KubeError | None = refusal if fails else None
    assert (found, len(tried), error) == (done, calls, expected)

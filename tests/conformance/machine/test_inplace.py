"""In-place updates per row of the conformance table: decisions and node patches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ccm.machines import in_place_update, rollout
from ccm.machines.in_place_update import NodeStep, UpdateActions
from ccm.machines.replicas import Member, PopulatedSet
from ccm.model import Node, NodeCondition, ObjectMeta, Taint
from ccm.model.machines import Phase, Strategy, Template
from ccm.model.node import NodeSpec, NodeStatus
from tests.conformance.machine.test_rollout_plans import machines, shelf
from tests.conformance.table import case
from tests.unit.machines.members import BEGIN, RULES, UNSEEN, deployment

NAMES = RULES.names
NO_GROWTH = {NAMES.scale_up_disabled: "true"}


def node(name: str, *labels: str, result: str = "", reason: str = "") -> Node:
    found = dict.fromkeys(labels, "true") | ({NAMES.update_result: result} if result else {})
    conditions = [NodeCondition(type=NAMES.update_condition, status="True", reason=reason)]
    return Node(
        metadata=ObjectMeta(name=name, uid=name, resource_version="1", labels=found),
        status=NodeStatus(conditions=conditions if reason else None),
    )


CANDIDATE = node("n", NAMES.candidate)
SELECTED = node("n", NAMES.candidate, NAMES.selected)
UPDATED = node("n", NAMES.candidate, NAMES.selected, result="successful", reason="Updated")


def on(pieces: list[Member], *nodes: Node) -> list[Member]:
    """Machines with nodes; those that are left over have none."""
    given = [*nodes, *[None] * (len(pieces) - len(nodes))]
    return [replace(piece, node=each) for piece, each in zip(pieces, given, strict=True)]


def old(count: int, pieces: list[Member] | None = None) -> PopulatedSet:
    members = machines("old", count) if pieces is None else pieces
    found = shelf("old", count, age=9, members=members)
    metadata = ObjectMeta(name="old", uid="old", labels=NO_GROWTH, annotations={"revision": "1"})
    return structs.replace(found, metadata=metadata)


def new(count: int, pieces: list[Member] | None = None) -> PopulatedSet:
    members = machines("new", count) if pieces is None else pieces
    return shelf("new", count, kind="new", members=members)


def decided(
    *sets: PopulatedSet, replicas: int = 3, manual: bool = False, **more: Any
) -> rollout.RolloutPlan:
    wish: dict[str, Any] = {"strategy": Strategy.IN_PLACE, "max_unavailable": 1, **more}
    wanted = deployment(
        replicas=replicas, max_surge=0, is_manual=manual, template=Template(essence="new"), **wish
    )
    return rollout.plan(wanted, sets, BEGIN, RULES)


def sizes(found: rollout.RolloutPlan) -> dict[str, int]:
    return {one.set.name: one.replicas for one in found.changes if one.replicas is not None}


def moved(count: int) -> list[Member]:
    return machines("moved", count, was_moved=True)


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        case(
            "rollout-inplace-02",
            (old(2), new(2, [*machines("new", 2), *moved(1)])),
            {"new": 3},
            id="came-over",
        ),
        case(
            "rollout-inplace-03", (old(2, machines("old", 1)), new(3)), {"old": 1}, id="moved-away"
        ),
        case("rollout-inplace-04", (old(2), new(4)), {"new": 3}, id="down"),
        case("rollout-inplace-04", (old(0), new(1)), {"new": 3}, id="alone"),
        case("rollout-inplace-04", (old(1), new(1)), {"new": 2}, id="too-few"),
        case(("rollout-inplace-08", "rollout-inplace-01"), (old(2), new(3)), {"old": 0}, id="full"),
        case(
            "rollout-inplace-08",
            (old(2), new(3, machines("new", 3, phase=Phase.PENDING))),
            {},
            id="full-but-not-available",
        ),
        case("rollout-inplace-08", (old(0), new(3)), {}, id="done"),
        case("rollout-inplace-10", (old(2), new(2)), {"old": 1}, id="too-many"),
    ],
)
def test_set_sizes_during_an_in_place_update(
    sets: tuple[PopulatedSet, ...], found: dict[str, int]
) -> None:
    assert sizes(decided(*sets)) == found


@pytest.mark.row("rollout-inplace-11")
def test_in_place_rollback_does_not_recreate_moved_machines() -> None:
    """The old set may create machines again, but does not recreate those that moved away."""
    again = structs.replace(old(2, machines("old", 1)), template=Template(essence="new"))
    former = new(0, moved(1))
    former = structs.replace(former, template=Template(essence="former"))

    found = decided(again, former, replicas=2)

    told = {one.set.name: (one.replicas, one.labels) for one in found.changes}
    assert told["old"] == (1, {NAMES.scale_up_disabled: None})
    assert told["new"] == (1, NO_GROWTH)
    late = decided(again, structs.replace(former, status=UNSEEN), replicas=2)
    assert [one.labels for one in late.changes if one.set.name == "old"] == [{}]


@pytest.mark.row("rollout-inplace-12")
def test_machines_still_to_be_deleted_leave_no_room_in_the_new_set() -> None:
    assert sizes(decided(old(0, machines("old", 2)), new(0))) == {"new": 1}
    assert sizes(decided(old(0, machines("old", 3)), new(0))) == {}


@pytest.mark.row("rollout-inplace-13")
@pytest.mark.parametrize("wish", [{"is_paused": True}, {"strategy": Strategy.ROLLING}])
def test_stopped_in_place_update_accounts_for_moved_machines(wish: dict[str, Any]) -> None:
    before, after = old(2, machines("old", 1)), new(0, moved(1))

    found = decided(before, after, replicas=2, **wish)

    assert sizes(found) == {"old": 1, "new": 1}
    after = new(1, moved(1))
    later = decided(old(1), after, replicas=2, **wish)
    assert later.update.moved_members == after.members


@pytest.mark.row("rollout-inplace-15")
def test_old_set_does_not_grow_while_paused() -> None:
    """The old set may not create machines: its size would change back and forth in every pass."""
    assert sizes(decided(old(3), new(0), replicas=5, is_paused=True)) == {}
    one_failed = old(3, machines("old", 2))
    assert sizes(decided(one_failed, new(0), is_paused=True)) == {"old": 2}
    assert sizes(decided(old(2), new(0), is_paused=True)) == {}


@pytest.mark.row("rollout-inplace-03")
def test_old_set_with_scale_up_enabled_does_not_shrink() -> None:
    grows = structs.replace(old(2, machines("old", 1)), metadata=ObjectMeta(name="old", uid="old"))

    assert "old" not in sizes(decided(grows, new(1)))


@pytest.mark.row("rollout-inplace-02")
def test_moved_machine_joins_the_new_set_and_its_node_is_finished() -> None:
    pieces = on([*moved(1), *machines("new", 2)], UPDATED)

    found = decided(old(2), new(3, pieces)).update

    assert ([one.name for one in found.moved_members], found.nodes) == (
        ["moved-0"],
        ((UPDATED, NodeStep.FINISH),),
    )


@pytest.mark.row("rollout-inplace-05")
def test_updated_machine_moves_to_the_new_set() -> None:
    pieces = on(machines("old", 2), UPDATED)

    found = decided(old(2, pieces), new(1))

    assert ([one.piece.name for one in found.update.moves], sizes(found)) == (["old-0"], {})


@pytest.mark.parametrize(
    "piece",
    [
        on(machines("old", 2, phase=Phase.UPDATING), UPDATED),
        on(machines("old", 2), node("n", NAMES.selected, result="successful")),
        on(machines("old", 2), node("n", NAMES.selected, result="failed", reason="Failed")),
    ],
    ids=["still-updating", "not-confirmed", "failed"],
)
def test_machine_without_confirmed_update_stays_in_the_old_set(piece: list[Member]) -> None:
    assert decided(old(2, piece), new(1)).update.moves == ()


def test_machine_updated_to_a_former_template_is_updated_again() -> None:
    pieces = on([*moved(1), *machines("old", 1)], UPDATED)

    before = decided(old(1, pieces), new(1))
    found = decided(old(2, pieces), new(1))

    assert (sizes(before), before.update.moved_members) == ({"old": 2}, ())
    assert found.update.moves == ()
    assert [one.name for one in found.update.moved_members] == ["moved-0"]
    assert (UPDATED, NodeStep.FINISH) in found.update.nodes


@pytest.mark.parametrize(
    ("nodes", "ready", "manual", "count"),
    [
        case("rollout-inplace-06", (), True, False, 0, id="no-candidates"),
        case("rollout-inplace-06", (CANDIDATE,), False, False, 0, id="not-available"),
        case("rollout-inplace-06", (SELECTED,), True, False, 0, id="selected-already"),
        case("rollout-inplace-07", (CANDIDATE, CANDIDATE), True, False, 1, id="two"),
        case("rollout-inplace-07", (CANDIDATE, CANDIDATE), True, True, 0, id="manual"),
    ],
)
def test_one_candidate_is_selected_if_automatic_and_available(
    nodes: tuple[Node, ...], ready: bool, manual: bool, count: int
) -> None:
    news = machines("new", 1, phase=Phase.RUNNING if ready else Phase.PENDING)

    found = decided(old(2, on(machines("old", 2), *nodes)), new(1, news), manual=manual)

    assert [step for _, step in found.update.nodes].count(NodeStep.SELECT) == count


@pytest.mark.row("rollout-inplace-14")
@pytest.mark.parametrize(("unavailable", "count"), [(2, 1), (1, 0)])
def test_updating_machine_counts_once_as_unavailable(unavailable: int, count: int) -> None:
    every = [*machines("old", 1, phase=Phase.UPDATING), *machines("old", 3)[1:]]
    pieces = on(every, SELECTED, CANDIDATE, CANDIDATE)

    found = decided(old(3, pieces), new(0), max_unavailable=unavailable)

    assert [step for _, step in found.update.nodes] == [NodeStep.SELECT] * count


@pytest.mark.row("rollout-inplace-09")
def test_old_nodes_become_candidates_and_new_nodes_are_released() -> None:
    bare = node("bare")
    fresh = structs.replace(
        old(2, on(machines("old", 2), bare)), metadata=ObjectMeta(name="old", uid="old")
    )

    found = decided(fresh, new(1, on(machines("new", 1), CANDIDATE)))

    assert found.update.nodes[:2] == ((bare, NodeStep.CANDIDATE), (CANDIDATE, NodeStep.RELEASE))
    assert {one.set.name: dict(one.labels) for one in found.changes if one.labels} == {
        "old": NO_GROWTH
    }


@pytest.mark.row("rollout-inplace-10")
def test_replica_change_during_an_in_place_update_resizes_the_new_set() -> None:
    assert sizes(decided(old(2), new(1), replicas=5)) == {"new": 3}
    assert sizes(decided(old(2), new(3), replicas=2)) == {"new": 2}


def test_in_place_update_waits_until_every_set_has_a_status() -> None:
    found = decided(old(2, machines("old", 1)), structs.replace(new(1), status=UNSEEN))

    assert (sizes(found), found.update) == ({}, UpdateActions())


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        (
            NodeStep.CANDIDATE,
            node("n"),
            {
                "labels": {"candidate": "true"},
                "taints": [{"key": "old", "value": "True", "effect": "PreferNoSchedule"}],
            },
        ),
        (NodeStep.SELECT, CANDIDATE, {"labels": {"selected": "true"}}),
        (NodeStep.SELECT, SELECTED, None),
        (NodeStep.RELEASE, CANDIDATE, {"labels": {"candidate": None}}),
    ],
)
def test_node_patch_of_each_in_place_update_step(
    step: NodeStep, before: Node, after: dict[str, Any] | None
) -> None:
    found = in_place_update.node_patch(before, step, NAMES)

    if after is None:
        assert found is None
        return
    assert found is not None
    assert found["metadata"]["labels"] == after["labels"]
    assert found.get("spec", {}).get("taints") == after.get("taints")


@pytest.mark.row("rollout-inplace-02")
def test_finished_update_makes_the_node_schedulable_again() -> None:
    taints = [Taint(key="old", effect="PreferNoSchedule"), Taint(key="mine", effect="NoSchedule")]
    metadata = ObjectMeta(
        name="n", uid="n", labels=dict(UPDATED.labels), annotations={"reason": "x"}
    )
    before = Node(metadata=metadata, spec=NodeSpec(taints=taints, unschedulable=True))

    found = in_place_update.node_patch(before, NodeStep.FINISH, NAMES)

    assert found is not None
    assert found["metadata"]["labels"] == dict.fromkeys(("candidate", "selected", "result"))
    assert found["metadata"]["annotations"] == {"reason": None}
    keys = [one["key"] for one in found["spec"]["taints"]]
    assert (keys, found["spec"]["unschedulable"]) == (["mine", "critical"], None)


IN_PLACE = {
    "type": "InPlaceUpdate",
    "inPlaceUpdate": {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto"},
}

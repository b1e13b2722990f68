"""Decisions of an in-place update from the labels and the condition of a node."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from ccm.gardener.decoding import NAMES
from ccm.machines import health, in_place_update, node_metadata
from ccm.machines.in_place_update import REST, UpdateDecision
from ccm.machines.settings import MachineSettings
from ccm.model import Node, NodeCondition, ObjectMeta, Taint
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.node import NodeStatus
from ccm.model.times import format_time
from ccm.testing import builders
from ccm.testing.clock import START

RULES = MachineSettings(names=NAMES, cluster="ours")
CHOSEN = {NAMES.candidate: "true", NAMES.selected: "true"}
WELL, ILL = {NAMES.update_result: "successful"}, {NAMES.update_result: "failed"}
CANDIDATE = {NAMES.candidate: "true"}


def row(number: int) -> pytest.MarkDecorator:
    return pytest.mark.row(f"machine-update-{number:02}")


def machine(phase: Phase = Phase.RUNNING, **more: Any) -> Machine:
    return Machine(
        metadata=ObjectMeta(name="m", namespace="default", uid="u"),
        created=START,
        class_name="small",
        status=MachineStatus(phase=phase),
        **more,
    )


def node(labels: dict[str, str], reason: str = "") -> Node:
    since = format_time(START)
    told = NodeCondition(
        type=NAMES.update_condition, status="True", reason=reason, last_transition_time=since
    )
    return Node(
        metadata=ObjectMeta(name="n", uid="n", labels=labels),
        status=NodeStatus(conditions=[told] if reason else None),
    )


def says(reason: str) -> UpdateDecision:
    return UpdateDecision(step=reason)


@pytest.mark.parametrize(
    ("phase", "labels", "reason", "found"),
    [
        pytest.param(*case, marks=row(number))
        for number, *case in (
            (1, Phase.RUNNING, {}, "", REST),
            (1, Phase.RUNNING, {NAMES.selected: "true"}, NAMES.update_waiting, REST),
            (1, Phase.RUNNING, CANDIDATE, "", says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CHOSEN, "", says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CANDIDATE, NAMES.update_succeeded, says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CANDIDATE, NAMES.update_waiting, REST),
            (2, Phase.RUNNING, CHOSEN, NAMES.update_waiting, says(NAMES.update_selected)),
            (3, Phase.RUNNING, CHOSEN, NAMES.update_selected, UpdateDecision(drains=True)),
            (3, Phase.UNKNOWN, CHOSEN, NAMES.update_selected, UpdateDecision(drains=True)),
            (3, Phase.UPDATING, CHOSEN, NAMES.update_selected, UpdateDecision(drains=True)),
            (3, Phase.RUNNING, CHOSEN | WELL, NAMES.update_selected, UpdateDecision(drains=True)),
            (3, Phase.FAILED, CHOSEN, NAMES.update_selected, REST),
            (3, Phase.PENDING, CHOSEN, NAMES.update_selected, REST),
            (4, Phase.RUNNING, CANDIDATE, NAMES.update_selected, says(NAMES.update_waiting)),
            (4, Phase.RUNNING, CANDIDATE, NAMES.update_ready, says(NAMES.update_waiting)),
            (4, Phase.UPDATING, CANDIDATE, NAMES.update_ready, REST),
            (6, Phase.UPDATING, CHOSEN, NAMES.update_drained, UpdateDecision(begins=True)),
            (6, Phase.RUNNING, CHOSEN, NAMES.update_ready, UpdateDecision(begins=True)),
            (6, Phase.UPDATING, CHOSEN, NAMES.update_ready, REST),
            (7, Phase.UPDATING, CHOSEN | WELL, NAMES.update_ready, says(NAMES.update_succeeded)),
            (7, Phase.UPDATING, CHOSEN | ILL, NAMES.update_ready, says(NAMES.update_failed)),
            (
                7,
                Phase.UPDATE_FAILED,
                CHOSEN | WELL,
                NAMES.update_failed,
                says(NAMES.update_succeeded),
            ),
            (7, Phase.RUNNING, CHOSEN | WELL, NAMES.update_ready, says(NAMES.update_succeeded)),
            (7, Phase.UPDATED, CHOSEN | WELL, NAMES.update_succeeded, REST),
            (7, Phase.UPDATING, CHOSEN | {NAMES.update_result: "?"}, NAMES.update_ready, REST),
        )
    ],
)
def test_in_place_update_decision_follows_phase_labels_and_condition(
    phase: Phase, labels: dict[str, str], reason: str, found: UpdateDecision
) -> None:
    assert in_place_update.decide(machine(phase), node(labels, reason), RULES) == found


@row(3)
def test_drain_timeout_counts_from_the_selection_of_the_node() -> None:
    chosen = node(CHOSEN, NAMES.update_selected)
    limited = machine(drain_timeout_s=60.0)

    def force(one: Machine, seconds: float) -> bool:
        return in_place_update.task(one, chosen, START + timedelta(seconds=seconds), RULES).force

    assert (force(limited, 60), force(limited, 61)) == (False, True)
    assert (force(machine(), 7200), force(machine(force_drain=True), 0)) == (False, True)


@row(13)
@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [
        (node({}), node(CANDIDATE), True),
        (node(CHOSEN | ILL), node(CHOSEN | WELL), True),
        (node(CHOSEN | WELL), node(CHOSEN | WELL), False),
        (node(CHOSEN, NAMES.update_waiting), node(CHOSEN, NAMES.update_selected), True),
        (node(CHOSEN, NAMES.update_waiting), node(CHOSEN, NAMES.update_waiting), False),
    ],
)
def test_update_label_and_condition_changes_of_a_node_matter(
    before: Node, after: Node, matters: bool
) -> None:
    assert health.node_matters(before, after, NAMES) is matters


@row(14)
def test_node_being_deleted_needs_no_update_step() -> None:
    going = node(CHOSEN, NAMES.update_selected)
    metadata = structs.replace(going.metadata, deletion_timestamp=format_time(START))
    assert (
        in_place_update.decide(machine(), structs.replace(going, metadata=metadata), RULES) == REST
    )


# --- the node of a machine ------------------------------------------------------------------------

HOLD, OURS = "example.com/leave-alone", "example.com/by-us"
ARRIVAL = {HOLD: "true", OURS: "true"}
TAINT = Taint(key="pool", effect="NoSchedule")


@pytest.mark.parametrize(
    ("said", "wanted", "found"),
    [({}, {}, ARRIVAL), ({HOLD: "false"}, {}, {}), ({}, {HOLD: "always"}, {HOLD: "always"})],
    ids=["joins", "a-user", "the-template"],
)
def test_initial_node_annotations_are_bound_to_the_resource_version(
    said: dict[str, str], wanted: dict[str, str], found: dict[str, str]
) -> None:
    joins = builders.node("m0", annotations=said, resource_version="7")
    patch = node_metadata.patch(machine(node_annotations=wanted), joins, RULES, ARRIVAL)
    assert patch is not None
    notes = patch["metadata"].get("annotations", {})
    assert {key: notes[key] for key in (HOLD, OURS) if key in notes} == found
    assert found != ARRIVAL or patch["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize("taints", [(), (TAINT,)], ids=["merged", "replaced"])
def test_only_a_patch_that_replaces_taints_has_a_resource_version(
    taints: tuple[Taint, ...],
) -> None:
    """Concurrent kubelet writes must not conflict; concurrently added taints must not be lost."""
    patch = node_metadata.patch(
        machine(taints=taints), builders.node("m", resource_version="7"), RULES
    )
    assert patch is not None
    assert patch["metadata"].get("resourceVersion") == ("7" if taints else None)

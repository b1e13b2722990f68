"""What follows from the labels and the condition of a node that is updated in place."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.gardener.decoding import NAMES
from ccm.machines import updating
from ccm.machines.settings import Settings
from ccm.machines.updating import NOTHING, Decision
from ccm.model import Node, NodeCondition, ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.node import NodeStatus
from ccm.model.times import format_time
from ccm.testing.clock import START

RULES = Settings(names=NAMES, cluster="ours")
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


def says(reason: str) -> Decision:
    return Decision(says=reason)


@pytest.mark.parametrize(
    ("phase", "labels", "reason", "found"),
    [
        pytest.param(*case, marks=row(number))
        for number, *case in (
            (1, Phase.RUNNING, {}, "", NOTHING),
            (1, Phase.RUNNING, {NAMES.selected: "true"}, NAMES.update_waiting, NOTHING),
            (1, Phase.RUNNING, CANDIDATE, "", says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CHOSEN, "", says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CANDIDATE, NAMES.update_succeeded, says(NAMES.update_waiting)),
            (1, Phase.RUNNING, CANDIDATE, NAMES.update_waiting, NOTHING),
            (2, Phase.RUNNING, CHOSEN, NAMES.update_waiting, says(NAMES.update_selected)),
            (3, Phase.RUNNING, CHOSEN, NAMES.update_selected, Decision(drains=True)),
            (3, Phase.UNKNOWN, CHOSEN, NAMES.update_selected, Decision(drains=True)),
            (3, Phase.UPDATING, CHOSEN, NAMES.update_selected, Decision(drains=True)),
            (3, Phase.RUNNING, CHOSEN | WELL, NAMES.update_selected, Decision(drains=True)),
            (3, Phase.FAILED, CHOSEN, NAMES.update_selected, NOTHING),
            (3, Phase.PENDING, CHOSEN, NAMES.update_selected, NOTHING),
            (4, Phase.RUNNING, CANDIDATE, NAMES.update_selected, says(NAMES.update_waiting)),
            (4, Phase.RUNNING, CANDIDATE, NAMES.update_ready, says(NAMES.update_waiting)),
            (4, Phase.UPDATING, CANDIDATE, NAMES.update_ready, NOTHING),
            (6, Phase.UPDATING, CHOSEN, NAMES.update_drained, Decision(begins=True)),
            (6, Phase.RUNNING, CHOSEN, NAMES.update_ready, Decision(begins=True)),
            (6, Phase.UPDATING, CHOSEN, NAMES.update_ready, NOTHING),
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
            (7, Phase.UPDATED, CHOSEN | WELL, NAMES.update_succeeded, NOTHING),
            (7, Phase.UPDATING, CHOSEN | {NAMES.update_result: "?"}, NAMES.update_ready, NOTHING),
        )
    ],
)
def test_what_follows(phase: Phase, labels: dict[str, str], reason: str, found: Decision) -> None:
    assert updating.decide(machine(phase), node(labels, reason), RULES) == found

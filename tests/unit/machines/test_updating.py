"""What follows from the labels and the condition of a node that is updated in place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from ccm.controllers.machine import plan
from ccm.gardener import codec
from ccm.gardener.codec import UPDATE
from ccm.machines import updating
from ccm.machines.updating import NOTHING, Decision
from ccm.model import Node, NodeCondition, ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.node import NodeStatus
from ccm.model.times import format_time
from ccm.testing.clock import START

RULES = codec.rules("ours")
CHOSEN = {UPDATE.candidate: "true", UPDATE.selected: "true"}
WELL, ILL = {UPDATE.result: "successful"}, {UPDATE.result: "failed"}
CANDIDATE = {UPDATE.candidate: "true"}


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
        type=UPDATE.condition, status="True", reason=reason, last_transition_time=since
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
            (1, Phase.RUNNING, {UPDATE.selected: "true"}, UPDATE.waits, NOTHING),
            (1, Phase.RUNNING, CANDIDATE, "", says(UPDATE.waits)),
            (1, Phase.RUNNING, CHOSEN, "", says(UPDATE.waits)),
            (1, Phase.RUNNING, CANDIDATE, UPDATE.updated, says(UPDATE.waits)),
            (1, Phase.RUNNING, CANDIDATE, UPDATE.waits, NOTHING),
            (2, Phase.RUNNING, CHOSEN, UPDATE.waits, says(UPDATE.chosen)),
            (3, Phase.RUNNING, CHOSEN, UPDATE.chosen, Decision(drains=True)),
            (3, Phase.UNKNOWN, CHOSEN, UPDATE.chosen, Decision(drains=True)),
            (3, Phase.UPDATING, CHOSEN, UPDATE.chosen, Decision(drains=True)),
            (3, Phase.RUNNING, CHOSEN | WELL, UPDATE.chosen, Decision(drains=True)),
            (3, Phase.FAILED, CHOSEN, UPDATE.chosen, NOTHING),
            (3, Phase.PENDING, CHOSEN, UPDATE.chosen, NOTHING),
            (4, Phase.RUNNING, CANDIDATE, UPDATE.chosen, says(UPDATE.waits)),
            (4, Phase.RUNNING, CANDIDATE, UPDATE.ready, says(UPDATE.waits)),
            (4, Phase.UPDATING, CANDIDATE, UPDATE.ready, NOTHING),
            (6, Phase.UPDATING, CHOSEN, UPDATE.drained, Decision(begins=True)),
            (6, Phase.RUNNING, CHOSEN, UPDATE.ready, Decision(begins=True)),
            (6, Phase.UPDATING, CHOSEN, UPDATE.ready, NOTHING),
            (7, Phase.UPDATING, CHOSEN | WELL, UPDATE.ready, says(UPDATE.updated)),
            (7, Phase.UPDATING, CHOSEN | ILL, UPDATE.ready, says(UPDATE.failed)),
            (7, Phase.UPDATE_FAILED, CHOSEN | WELL, UPDATE.failed, says(UPDATE.updated)),
            (7, Phase.RUNNING, CHOSEN | WELL, UPDATE.ready, says(UPDATE.updated)),
            (7, Phase.UPDATED, CHOSEN | WELL, UPDATE.updated, NOTHING),
            (7, Phase.UPDATING, CHOSEN | {UPDATE.result: "?"}, UPDATE.ready, NOTHING),
        )
    ],
)
def test_what_follows(phase: Phase, labels: dict[str, str], reason: str, found: Decision) -> None:
    assert updating.decide(machine(phase), node(labels, reason), RULES) == found


@row(3)
def test_a_drain_takes_its_time_from_the_moment_its_node_was_chosen() -> None:
    chosen = node(CHOSEN, UPDATE.chosen)
    limited = machine(drain_timeout_s=60.0)

    def force(one: Machine, seconds: float) -> bool:
        return updating.drain_task(one, chosen, START + timedelta(seconds=seconds), RULES).force

    assert (force(limited, 60), force(limited, 61)) == (False, True)
    assert (force(machine(), 7200), force(machine(force_drain=True), 0)) == (False, True)
    task = updating.drain_task(limited, chosen, START, RULES)
    assert (task.terminating, task.cordon) == (False, True)


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [
        (node({}), node(CANDIDATE), True),
        (node(CANDIDATE), node(CHOSEN), True),
        (node(CHOSEN), node(CHOSEN | WELL), True),
        (node(CHOSEN | ILL), node(CHOSEN | WELL), True),
        (node(CHOSEN | WELL), node(CHOSEN | WELL), False),
        (node(CHOSEN, UPDATE.waits), node(CHOSEN, UPDATE.chosen), True),
        (node(CHOSEN, UPDATE.waits), node(CHOSEN, UPDATE.waits), False),
    ],
)
@row(13)
def test_what_of_a_node_matters(before: Node, after: Node, matters: bool) -> None:
    assert plan.node_matters(before, after) is matters


@row(14)
def test_a_node_that_goes() -> None:
    going = node(CHOSEN, UPDATE.chosen)
    metadata = structs.replace(going.metadata, deletion_timestamp=format_time(START))

    assert updating.decide(machine(), structs.replace(going, metadata=metadata), RULES) == NOTHING

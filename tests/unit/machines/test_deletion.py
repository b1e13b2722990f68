"""Stages of a machine deletion, and which status writes they need."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines import deletion
from ccm.machines.creation import is_similar, is_unchanged
from ccm.machines.deletion import (
    MARKERS,
    TABLE,
    DeletionStage,
    DeletionState,
    StageOutcome,
    StageResult,
)
from ccm.machines.settings import MachineSettings
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, OperationState, Phase
from tests.conformance.table import case

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def machine(text: str = "", phase: Phase = Phase.TERMINATING, **more: object) -> Machine:
    status = MachineStatus(phase=phase, description=text, state="Processing", updated=NOW)
    return Machine(
        metadata=ObjectMeta(name="m", namespace="n", uid="u"),
        created=NOW,
        class_name="c",
        status=replace(status, **more),  # type: ignore[arg-type]
    )


def test_deletion_stages_only_advance_or_stay() -> None:
    order = list(DeletionStage)

    assert {stage for stage, _ in TABLE} == set(order) - {DeletionStage.FINALIZER}
    assert {cause for _, cause in TABLE} == set(StageOutcome)
    for (stage, _), move in TABLE.items():
        assert order.index(move.to) >= order.index(stage)
        assert MARKERS[move.to] in move.text
        assert [one for one, text in MARKERS.items() if text in move.text] == [move.to]
    for stage in order[:-1]:
        assert any(move.to is not stage for (at, _), move in TABLE.items() if at is stage)


@pytest.mark.parametrize("text", ["", "[]", '{"uid":"u","stage":"nowhere"}', "\udce4"])
def test_malformed_deletion_annotation_is_ignored(text: str) -> None:
    rules = MachineSettings(names=NAMES, cluster="c")
    metadata = ObjectMeta(name="m", uid="u", annotations={names.ANNOTATION_DELETION: text})
    found = deletion.deletion_state(structs.replace(machine(), metadata=metadata), rules)

    assert found == DeletionState(uid="u")


def test_first_stage_marker_wins_and_cloud_texts_are_not_formatted() -> None:
    text = f"{MARKERS[DeletionStage.VM]} {MARKERS[DeletionStage.DRAIN]}"
    event = StageResult(outcome=StageOutcome.REFUSED, text="{node} {machine}")

    assert deletion.marked_stage(machine(text)) is DeletionStage.DRAIN
    assert deletion.marked_stage(machine(text, Phase.RUNNING)) is None
    assert "{node} {machine}" in deletion.transition(DeletionStage.VM, event, machine()).text


@pytest.mark.parametrize(
    ("before", "after_s", "state", "brief", "written"),
    [
        ({}, 0, "Processing", True, False),
        ({}, 0, "Processing", False, True),
        ({"phase": Phase.RUNNING}, 0, "Processing", True, True),
        ({"known_state": "former"}, 0, "Processing", True, True),
        ({"description": f"going. {MARKERS[DeletionStage.VM]}"}, 5, "Processing", False, False),
        ({"description": f"going. {MARKERS[DeletionStage.VM]}"}, 60, "Processing", False, True),
        ({"description": f"going. {MARKERS[DeletionStage.VM]}"}, 5, "Failed", False, True),
    ],
)
def test_deletion_status_is_written_only_for_relevant_changes(
    before: Any, after_s: float, state: str, brief: bool, written: bool
) -> None:
    one = machine(MARKERS[DeletionStage.DRAIN])
    one = structs.replace(one, status=replace(one.status, **before))
    text = f"something else entirely. {MARKERS[DeletionStage.VM]}"
    move = deletion.StageTransition(DeletionStage.VM, text, OperationState(state))
    event = StageResult(outcome=StageOutcome.DELETING, known_state="")
    wanted = deletion.transition_status(one, move, event, NOW + timedelta(seconds=after_s))
    assert deletion.needs_write(one, wanted, move, brief=brief) is written


FAILED = MachineStatus(
    phase=Phase.CRASH_LOOP, description="quota used up", code="ResourceExhausted", updated=NOW
)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        case(
            "machine-status-03",
            "a" * 40 + " request 1234-5678",
            "a" * 40 + " request 9876-5432",
            True,
        ),
        case("machine-status-04", "Drain failed", "Drain failed.", True),
        ("", "", True),
        case("machine-status-05", "Drain failed", "Initiate VM deletion", False),
        ("abcd", "abce", False),
        ("", "something", False),
        ("x" * 5000, "y" * 5000, False),
    ],
    ids=["request-id", "short", "empty", "different", "a-quarter", "nothing", "long"],
)
def test_texts_that_differ_slightly_are_similar(one: str, other: str, wanted: bool) -> None:
    assert is_similar(one, other) is is_similar(other, one) is wanted


@pytest.mark.parametrize(
    ("changes", "old"),
    [
        case("machine-status-01", {}, True),
        ({"since": NOW + timedelta(minutes=1)}, True),
        ({"updated": NOW + timedelta(minutes=29)}, True),
        case("machine-status-02", {"updated": NOW + timedelta(minutes=31)}, False),
        ({"updated": None}, False),
        ({"phase": Phase.FAILED}, False),
        ({"code": "Internal"}, False),
        ({"known_state": "remember this"}, False),
        ({"description": "another thing altogether"}, False),
    ],
)
def test_status_of_a_repeated_failure_is_not_written_again(
    changes: dict[str, object], old: bool
) -> None:
    assert is_unchanged(FAILED, replace(FAILED, **changes)) is old  # type: ignore[arg-type]

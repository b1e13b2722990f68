"""How far a deletion is, and what is worth writing of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from ccm.controllers.machine.terminate import Pauses
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines import deletion
from ccm.machines.deletion import MARKERS, TABLE, Cause, Event, Progress, Stage
from ccm.machines.settings import Settings
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase
from ccm.model.machines import OperationState as _State

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def machine(text: str = "", phase: Phase = Phase.TERMINATING, **more: object) -> Machine:
    status = MachineStatus(phase=phase, description=text, state="Processing", updated=NOW)
    return Machine(
        metadata=ObjectMeta(name="m", namespace="n", uid="u"),
        created=NOW,
        class_name="c",
        status=replace(status, **more),  # type: ignore[arg-type]
    )


def test_every_stage_but_the_last_goes_on_to_a_later_one_or_rests() -> None:
    order = list(Stage)

    assert {stage for stage, _ in TABLE} == set(order) - {Stage.FINALIZER}
    assert {cause for _, cause in TABLE} == set(Cause)
    for (stage, _), move in TABLE.items():
        assert order.index(move.to) >= order.index(stage)
        assert MARKERS[move.to] in move.text
        assert [one for one, text in MARKERS.items() if text in move.text] == [move.to]
    for stage in order[:-1]:
        assert any(move.to is not stage for (at, _), move in TABLE.items() if at is stage)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED, Phase.UPDATE_FAILED])
def test_a_marker_counts_for_machines_that_go(phase: Phase) -> None:
    text = MARKERS[Stage.FINALIZER]

    assert deletion.marked(machine(text)) is Stage.FINALIZER
    assert deletion.marked(machine(text, phase)) is None
    assert deletion.marked(machine("Deleting machine from cloud provider")) is None


def test_the_first_of_two_markers_counts() -> None:
    text = f"{MARKERS[Stage.VM]} {MARKERS[Stage.DRAIN]}"

    assert deletion.marked(machine(text)) is Stage.DRAIN


def test_words_of_the_cloud_are_not_taken_for_ours() -> None:
    event = Event(cause=Cause.REFUSED, said="{node} {machine}")

    assert "{node} {machine}" in deletion.moved(Stage.VM, event, machine()).text


@pytest.mark.parametrize(
    ("before", "after_s", "state", "brief", "written"),
    [
        ({}, 0, _State.PROCESSING, True, False),
        ({}, 0, _State.PROCESSING, False, True),
        ({"phase": Phase.RUNNING}, 0, _State.PROCESSING, True, True),
        ({"known_state": "former"}, 0, _State.PROCESSING, True, True),
        ({"description": f"going. {MARKERS[Stage.VM]}"}, 5, _State.PROCESSING, False, False),
        ({"description": f"going. {MARKERS[Stage.VM]}"}, 60, _State.PROCESSING, False, True),
        ({"description": f"going. {MARKERS[Stage.VM]}"}, 5, _State.FAILED, False, True),
    ],
    ids=["brief", "long", "first", "known-state", "young", "old", "failed"],
)
def test_what_is_worth_writing(
    before: dict[str, object], after_s: float, state: _State, brief: bool, written: bool
) -> None:
    one = machine(MARKERS[Stage.DRAIN])
    one = structs.replace(one, status=replace(one.status, **before))  # type: ignore[arg-type]
    move = deletion.Move(Stage.VM, f"something else entirely. {MARKERS[Stage.VM]}", state)
    event = Event(cause=Cause.GOING, known_state="")
    wanted = deletion.status(one, move, event, NOW + timedelta(seconds=after_s))

    assert deletion.is_worth_writing(one, wanted, move, brief=brief) is written


@pytest.mark.parametrize("text", ["", "[]", '{"uid":"u","stage":"nowhere"}', "\udce4"])
def test_an_annotation_that_cannot_be_read(text: str) -> None:
    rules = Settings(names=NAMES, cluster="c")
    metadata = ObjectMeta(name="m", uid="u", annotations={names.ANNOTATION_DELETION: text})
    found = deletion.progress(structs.replace(machine(), metadata=metadata), rules)

    assert found == Progress(uid="u")


def test_pauses() -> None:
    pauses = Pauses()
    pauses.begin("a", 10.0, "one")
    pauses.begin("b", 10.0, "one")

    assert pauses.left_s("a", 4.0, "one") == 6.0
    assert pauses.left_s("a", 11.0, "one") == 0.0
    assert pauses.left_s("a", 4.0, "another") == 0.0
    pauses.end("a")
    assert pauses.left_s("a", 4.0, "one") == 0.0
    assert pauses.end_all() == ["b"]
    assert pauses.end_all() == []

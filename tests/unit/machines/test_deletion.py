"""How far a deletion is, and what is worth writing of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from msgspec import structs

from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.machines import deletion
from ccm.machines.deletion import MARKERS, TABLE, Cause, Progress, Stage
from ccm.machines.settings import Settings
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase

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


@pytest.mark.parametrize("text", ["", "[]", '{"uid":"u","stage":"nowhere"}', "\udce4"])
def test_an_annotation_that_cannot_be_read(text: str) -> None:
    rules = Settings(names=NAMES, cluster="c")
    metadata = ObjectMeta(name="m", uid="u", annotations={names.ANNOTATION_DELETION: text})
    found = deletion.progress(structs.replace(machine(), metadata=metadata), rules)

    assert found == Progress(uid="u")

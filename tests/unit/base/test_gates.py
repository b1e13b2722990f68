"""Feature gates: defaults, groups, locks, and every fault in one message."""

from __future__ import annotations

import pytest

from ccm.base.gates import Gate, Gates

KNOWN = (
    Gate(name="Early", default=False, stage="ALPHA", help="Something new."),
    Gate(name="Tried", default=True, stage="BETA", help="Something tried."),
    Gate(name="Settled", default=True, stage="GA", help="Here to stay.", locked=True),
    Gate(name="Fixed", default=False, stage="ALPHA", help="Not ready.", locked=True),
)


def enabled(settings: dict[str, bool]) -> set[str]:
    gates = Gates(KNOWN, settings)
    return {gate.name for gate in KNOWN if gates.enabled(gate.name)}


def test_gates_have_their_defaults_when_nobody_sets_them() -> None:
    assert enabled({}) == {"Tried", "Settled"}


def test_a_group_sets_its_stage_and_spares_what_is_locked() -> None:
    assert enabled({"AllAlpha": True, "AllBeta": False}) == {"Early", "Settled"}


def test_a_gates_own_setting_wins_over_its_group() -> None:
    assert enabled({"Early": False, "AllAlpha": True}) == {"Tried", "Settled"}


def test_a_locked_gate_may_be_set_to_what_it_is() -> None:
    assert enabled({"Settled": True}) == {"Tried", "Settled"}


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="unrecognized feature gate: Nope") as raised:
        Gates(KNOWN, {"Nope": True, "Settled": False})

    assert "cannot set feature gate Settled to false, feature is locked to true" in str(
        raised.value
    )


def test_asking_for_an_unknown_gate_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        Gates(KNOWN).enabled("Nope")

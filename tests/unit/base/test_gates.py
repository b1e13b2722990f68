"""Feature gates: defaults, groups, locks, and every fault in one message."""

from __future__ import annotations

import pytest

from ccm.base.flags import Gate, Gates

KNOWN = (
    Gate(name="Early", default=False, stage="ALPHA", help="Something new."),
    Gate(name="Tried", default=True, stage="BETA", help="Something tried."),
    Gate(name="Settled", default=True, stage="GA", help="Here to stay.", locked=True),
    Gate(name="Fixed", default=False, stage="ALPHA", help="Not ready.", locked=True),
)


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        pytest.param({}, {"Tried", "Settled"}, id="defaults"),
        pytest.param(
            {"AllAlpha": True, "AllBeta": False}, {"Early", "Settled"}, id="a group spares locked"
        ),
        pytest.param(
            {"Early": False, "AllAlpha": True}, {"Tried", "Settled"}, id="its own wins over a group"
        ),
        pytest.param({"Settled": True}, {"Tried", "Settled"}, id="locked to what it is"),
    ],
)
def test_settings_change_gates(settings: dict[str, bool], enabled: set[str]) -> None:
    gates = Gates(KNOWN, settings)

    assert {gate.name for gate in KNOWN if gates.enabled(gate.name)} == enabled


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="unrecognized feature gate: Nope") as raised:
        Gates(KNOWN, {"Nope": True, "Settled": False})

    assert "cannot set feature gate Settled to false, feature is locked to true" in str(
        raised.value
    )


def test_asking_for_an_unknown_gate_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        Gates(KNOWN).enabled("Nope")

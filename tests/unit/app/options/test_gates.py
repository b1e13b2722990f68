"""The feature gates the daemon knows."""

from __future__ import annotations

import pytest

from ccm.app.options import gates


@pytest.mark.parametrize(
    ("name", "default", "stage"),
    [
        ("CloudControllerManagerWatchBasedRoutesReconciliation", True, "BETA"),
        ("CloudControllerManagerWebhook", False, "ALPHA"),
        ("ControllerManagerReleaseLeaderElectionLockOnExit", False, "ALPHA"),
        ("ContextualLogging", True, "BETA"),
        ("LoggingAlphaOptions", False, "ALPHA"),
        ("LoggingBetaOptions", True, "BETA"),
        ("NativeHistograms", False, "ALPHA"),
        ("RemoteRequestHeaderUID", True, "BETA"),
    ],
)
def test_defaults(name: str, default: bool, stage: str) -> None:
    """Each gate starts at the reference's default."""
    effective = gates.build({})

    assert effective.enabled(name) is default
    assert effective.known[name].stage == stage


def test_a_stage_is_set_at_once() -> None:
    """AllAlpha and AllBeta reach all of a stage; a gate set by name keeps its own value."""
    effective = gates.build({"AllAlpha": True, "AllBeta": False, "NativeHistograms": False})

    assert effective.enabled(gates.WEBHOOK)
    assert not effective.enabled("ContextualLogging")
    assert not effective.enabled("NativeHistograms")


def test_an_unknown_gate_is_refused() -> None:
    """The message is the reference's."""
    with pytest.raises(ValueError, match="unrecognized feature gate: Xyz"):
        gates.build({"Xyz": True})


def test_notices() -> None:
    """A gate set by name is told about unless it does something."""
    assert gates.notices({"AllAlpha": True, gates.LOGGING_ALPHA: True}) == []
    assert gates.notices({gates.WEBHOOK: True, "ContextualLogging": False}) == [
        "feature gate ContextualLogging has no effect in this version",
    ]

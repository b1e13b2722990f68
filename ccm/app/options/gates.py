"""The feature gates of the daemon: the names that `--feature-gates` accepts.

Except for the gate of the route controller, names, stages and defaults are the same as in the Go
cloud-controller-manager after the release of Kubernetes 1.36 and before 1.37. Gates without effect
exist so that command lines for the Go program work; `notices` reports them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ccm.app.options.controllers import MANIFESTS
from ccm.base import flags

WEBHOOK = "CloudControllerManagerWebhook"
LOGGING_ALPHA = "LoggingAlphaOptions"
REQUEST_HEADER_UID = "RemoteRequestHeaderUID"


def _gate(name: str, stage: flags.Stage, text: str) -> flags.FeatureGate:
    return flags.FeatureGate(name=name, default=stage == "BETA", stage=stage, help=text)


_EFFECTIVE = (
    *(gate for manifest in MANIFESTS for gate in manifest.gates),
    _gate(WEBHOOK, "ALPHA", "Serve the admission webhooks that are selected with --webhooks."),
    _gate(LOGGING_ALPHA, "ALPHA", "Allow alpha logging flags."),
    _gate(REQUEST_HEADER_UID, "BETA", "Allow --requestheader-uid-headers."),
)
_IDLE = (
    _gate(
        "ControllerManagerReleaseLeaderElectionLockOnExit",
        "ALPHA",
        "A clean stop always releases the lease.",
    ),
    _gate("ContextualLogging", "BETA", "Log lines always have their component."),
    _gate("LoggingBetaOptions", "BETA", "No logging flag is beta."),
    _gate("NativeHistograms", "ALPHA", "Histograms have classic buckets."),
)
"""Gates without effect, accepted for compatibility."""

KNOWN = tuple(sorted((*_EFFECTIVE, *_IDLE), key=lambda gate: gate.name.lower()))

_GROUPS = frozenset({"AllAlpha", "AllBeta"})


def values(settings: Mapping[str, bool]) -> dict[str, bool]:
    """Return the value of every gate for a value of `--feature-gates`.

    An invalid value enables every gate, so that no other flag has a fault because of a gate.
    """
    try:
        return flags.gate_values(KNOWN, settings)
    except ValueError:
        return {gate.name: True for gate in KNOWN}


def fault(settings: Mapping[str, bool]) -> str:
    """Return why a value of `--feature-gates` is invalid; empty if it is valid."""
    try:
        flags.gate_values(KNOWN, settings)
    except ValueError as error:
        known = ", ".join(gate.name for gate in KNOWN)
        return f"{error}; known: {known}, AllAlpha, AllBeta"
    return ""


def notices(settings: Mapping[str, bool]) -> list[str]:
    """Return a message for each gate that is set by name but has no effect in this version."""
    effective = {gate.name for gate in _EFFECTIVE}
    return [
        f"feature gate {name} has no effect in this version"
        for name in sorted(settings)
        if name not in effective | _GROUPS
    ]

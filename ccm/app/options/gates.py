"""The feature gates of the daemon: the names `--feature-gates` accepts.

Names, stages and defaults, but for the routes' gate, are those of the Go reference
between Kubernetes 1.36 and 1.37, as far as a cloud-controller-manager has a use for them.
Most are known only so that a command line written for the reference is understood;
`notices` says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from ccm.app.options.names import MANIFESTS
from ccm.base import flags

WEBHOOK = "CloudControllerManagerWebhook"
LOGGING_ALPHA = "LoggingAlphaOptions"
REQUEST_HEADER_UID = "RemoteRequestHeaderUID"


def _gate(name: str, stage: flags.Stage, text: str) -> flags.Gate:
    return flags.Gate(name=name, default=stage == "BETA", stage=stage, help=text)


_EFFECTIVE = (
    *(gate for manifest in MANIFESTS for gate in manifest.gates),
    _gate(WEBHOOK, "ALPHA", "Serve the admission webhooks that --webhooks names."),
    _gate(LOGGING_ALPHA, "ALPHA", "Allow the logging flags that are alpha."),
    _gate(REQUEST_HEADER_UID, "BETA", "Allow --requestheader-uid-headers."),
)
_IDLE = (
    _gate(
        "ControllerManagerReleaseLeaderElectionLockOnExit",
        "ALPHA",
        "A clean stop always releases the lease.",
    ),
    _gate("ContextualLogging", "BETA", "Log lines always carry their component."),
    _gate("LoggingBetaOptions", "BETA", "No logging flag is beta."),
    _gate("NativeHistograms", "ALPHA", "Histograms have classic buckets."),
)
"""Known for compatibility."""

KNOWN = tuple(sorted((*_EFFECTIVE, *_IDLE), key=lambda gate: gate.name.lower()))

_GROUPS = frozenset({"AllAlpha", "AllBeta"})


def values(settings: Mapping[str, bool]) -> dict[str, bool]:
    """Return the value of every gate under the settings of `--feature-gates`.

    Settings that are refused anyway turn all on: one fault is enough.
    """
    try:
        return flags.gate_values(KNOWN, settings)
    except ValueError:
        return {gate.name: True for gate in KNOWN}


def wrong(settings: Mapping[str, bool]) -> str:
    """What would be right in place of settings that cannot be; empty if they can."""
    try:
        flags.gate_values(KNOWN, settings)
    except ValueError as error:
        known = ", ".join(gate.name for gate in KNOWN)
        return f"{error}; known: {known}, AllAlpha, AllBeta"
    return ""


def notices(settings: Mapping[str, bool]) -> list[str]:
    """A sentence for each gate that was set by name and has no effect in this version."""
    effective = {gate.name for gate in _EFFECTIVE}
    return [
        f"feature gate {name} has no effect in this version"
        for name in sorted(settings)
        if name not in effective | _GROUPS
    ]

"""The feature gates of the daemon: the names `--feature-gates` accepts.

Names, stages and defaults, but for the routes' gate, are those of the Go reference
between Kubernetes 1.36 and 1.37, as far as a cloud-controller-manager has a use for them.
Most are known only so that a command line written for the reference is understood;
`notices` says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from ccm.app.options.controllers import MANIFESTS
from ccm.base import gates

WEBHOOK = "CloudControllerManagerWebhook"
RELEASE_LEASE = "ControllerManagerReleaseLeaderElectionLockOnExit"
CONTEXTUAL_LOGGING = "ContextualLogging"
LOGGING_ALPHA = "LoggingAlphaOptions"
LOGGING_BETA = "LoggingBetaOptions"
NATIVE_HISTOGRAMS = "NativeHistograms"
REQUEST_HEADER_UID = "RemoteRequestHeaderUID"

_CONTROLLERS = tuple(gate for manifest in MANIFESTS for gate in manifest.gates)

KNOWN = (
    *_CONTROLLERS,
    gates.Gate(
        name=WEBHOOK,
        default=False,
        stage="ALPHA",
        help="Serve the admission webhooks that --webhooks names.",
    ),
    gates.Gate(
        name=RELEASE_LEASE,
        default=False,
        stage="ALPHA",
        help="Known for compatibility: a clean stop always releases the lease.",
    ),
    gates.Gate(
        name=CONTEXTUAL_LOGGING,
        default=True,
        stage="BETA",
        help="Known for compatibility: log lines always carry their component.",
    ),
    gates.Gate(
        name=LOGGING_ALPHA,
        default=False,
        stage="ALPHA",
        help="Allow the logging flags that are alpha: split streams and buffer sizes.",
    ),
    gates.Gate(
        name=LOGGING_BETA,
        default=True,
        stage="BETA",
        help="Known for compatibility: no logging flag is beta.",
    ),
    gates.Gate(
        name=NATIVE_HISTOGRAMS,
        default=False,
        stage="ALPHA",
        help="Known for compatibility: histograms have classic buckets.",
    ),
    gates.Gate(
        name=REQUEST_HEADER_UID,
        default=True,
        stage="BETA",
        help="Allow --requestheader-uid-headers.",
    ),
)

EFFECTIVE = frozenset(
    {LOGGING_ALPHA, REQUEST_HEADER_UID, WEBHOOK, *(gate.name for gate in _CONTROLLERS)}
)
"""The gates that change something in this version."""

_GROUPS = frozenset({"AllAlpha", "AllBeta"})


def build(settings: Mapping[str, bool]) -> gates.Gates:
    """The value of every gate under the settings of `--feature-gates`.

    Raises:
        ValueError: an unknown gate, or a locked one that was to be changed.
    """
    return gates.Gates(KNOWN, settings)


def build_valid(settings: Mapping[str, bool]) -> gates.Gates:
    """As `build`; with settings that are refused anyway, what the gates are by default."""
    return build({} if wrong(settings) else settings)


def wrong(settings: Mapping[str, bool]) -> str:
    """What would be right in place of settings that cannot be; empty if they can."""
    try:
        build(settings)
    except ValueError as error:
        known = ", ".join(gate.name for gate in KNOWN)
        return f"{error}; known: {known}, AllAlpha, AllBeta"
    return ""


def notices(settings: Mapping[str, bool]) -> list[str]:
    """A sentence for each gate that was set by name and has no effect in this version."""
    return [
        f"feature gate {name} has no effect in this version"
        for name in sorted(settings)
        if name not in EFFECTIVE | _GROUPS
    ]

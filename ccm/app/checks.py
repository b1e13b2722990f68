"""Settings that make no sense, found before anything is started.

Each check yields one sentence per fault: the flag, its value, and what would be
right. All of them are reported together. Values that cannot even be read are found
earlier, by `flags`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta

from ccm.app import flags, gates, names, tls_flags
from ccm.app.options import FLAGS, Options
from ccm.base.durations import format_duration

_HIGHEST_PORT = 65535
_RENEW_FACTOR = 1.2
"""The renew deadline must leave room for a jittered retry; from client-go's leader election."""

_POSITIVE_DURATIONS = (
    "node-monitor-period",
    "node-status-update-frequency",
    "route-reconciliation-period",
    "route-safety-period",
)
_DURATIONS = (
    "min-resync-period",
    "controller-start-interval",
    "cloud-call-timeout",
    "inventory-max-age",
    "load-balancer-nodes-quiet-period",
    "load-balancer-drift-check-period",
    "node-deletion-least-age",
    "route-shortest-interval",
    "route-grace-period",
    "log-flush-frequency",
    "shutdown-grace-period",
    "authentication-token-webhook-cache-ttl",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
)
_WORKERS = (
    "concurrent-node-syncs",
    "concurrent-node-lifecycle-syncs",
    "concurrent-service-syncs",
    "load-balancer-drift-check-budget",
)
_ELECTION_DURATIONS = (
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-retry-period",
)
_ALPHA_LOGGING = (
    "log-text-split-stream",
    "log-json-split-stream",
    "log-text-info-buffer-size",
    "log-json-info-buffer-size",
)
_HEADER_LISTS = (
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
)


def check(options: Options) -> None:
    """Refuse settings that make no sense.

    Raises:
        UsageError: with one sentence for each fault.
    """
    found = faults(options)
    if found:
        raise flags.UsageError(found)


def faults(
    options: Options,
    *,
    controllers: Collection[str] | None = None,
    webhooks: Collection[str] = names.WEBHOOKS,
) -> list[str]:
    """One sentence for each setting that makes no sense.

    Args:
        options: the settings.
        controllers: the words `--controllers` accepts besides `*`; None = those of `names`.
        webhooks: the words `--webhooks` accepts besides `*`.
    """
    known = names.known_names() if controllers is None else controllers
    found = [fault for each in _CHECKS for fault in each(options)]
    found += _strangers(options, "controllers", known)
    found += _strangers(options, "webhooks", webhooks)
    return found


def _cloud(options: Options) -> Iterator[str]:
    if not options.cloud_provider:
        yield "--cloud-provider cannot be empty; give the name of an installed provider"
    if not 0 <= options.cloud_api_qps < math.inf:
        yield _fault(options, "cloud-api-qps", "must be 0 (no limit) or more")
    if options.cloud_api_burst < 0:
        yield _fault(options, "cloud-api-burst", "must be 0 or more")
    elif options.cloud_api_burst and not options.cloud_api_qps:
        yield _fault(options, "cloud-api-burst", "needs --cloud-api-qps above 0")


def _api(options: Options) -> Iterator[str]:
    if not math.isfinite(options.kube_api_qps):
        yield _fault(options, "kube-api-qps", "must be a finite number; negative means no limit")
    if options.kube_api_burst < 0:
        yield _fault(options, "kube-api-burst", "must be 0 (meaning 10) or more")


def _workers(options: Options) -> Iterator[str]:
    # Deviation: the reference has these rules and never applies them, so that 0 starts
    # a controller which does nothing.
    for name in _WORKERS:
        if _number(options, name) < 1:
            yield _fault(options, name, f"{name} must be a positive number")
    name = "concurrent-node-status-updates"
    if _number(options, name) < 0:
        yield _fault(
            options,
            name,
            f"{name} cannot be a negative number; 0 means the value of --concurrent-node-syncs",
        )


def _deletions(options: Options) -> Iterator[str]:
    if options.node_deletion_limit < 0:
        yield _fault(options, "node-deletion-limit", "must be 0 (no limit) or more")


def _durations(options: Options) -> Iterator[str]:
    for name in _POSITIVE_DURATIONS:
        if _seconds(options, name) <= 0:
            yield _fault(options, name, "must be longer than 0s")
    for name in _DURATIONS:
        if _seconds(options, name) < 0:
            yield _fault(options, name, "must be 0s or longer")


def _load_balancers(options: Options) -> Iterator[str]:
    if options.load_balancer_nodes_longest_wait < options.load_balancer_nodes_quiet_period:
        yield _fault(
            options,
            "load-balancer-nodes-longest-wait",
            "cannot be shorter than --load-balancer-nodes-quiet-period="
            f"{format_duration(options.load_balancer_nodes_quiet_period)}",
        )
    if any(not name.strip() for name in options.load_balancer_classes):
        yield _fault(options, "load-balancer-classes", "a class cannot be empty or white space")


def _routes(options: Options) -> Iterator[str]:
    if timedelta(0) < options.route_safety_period < options.route_shortest_interval:
        yield _fault(
            options, "route-safety-period", "cannot be shorter than --route-shortest-interval"
        )


def _election(options: Options) -> Iterator[str]:
    if not options.leader_elect:
        return
    if options.leader_elect_resource_lock != "leases":
        yield _fault(options, "leader-elect-resource-lock", 'resourceLock value must be "leases"')
    for name in ("leader-elect-resource-name", "leader-elect-resource-namespace"):
        if not options.get(name):
            yield _fault(options, name, "cannot be empty while --leader-elect is true")
    yield from _election_times(options)


def _election_times(options: Options) -> Iterator[str]:
    lease, renew, retry = (_seconds(options, name) for name in _ELECTION_DURATIONS)
    short = [name for name in _ELECTION_DURATIONS if _seconds(options, name) <= 0]
    yield from (_fault(options, name, "must be longer than 0s") for name in short)
    if short:
        return
    if lease < 1:
        yield _fault(
            options,
            "leader-elect-lease-duration",
            "must be 1s or longer, because a lease counts whole seconds",
        )
    if lease <= renew:
        yield _fault(
            options,
            "leader-elect-lease-duration",
            f"must be longer than --leader-elect-renew-deadline, which is {renew:g}s",
        )
    if renew <= _RENEW_FACTOR * retry:
        yield _fault(
            options,
            "leader-elect-renew-deadline",
            f"must be longer than {_RENEW_FACTOR} times --leader-elect-retry-period={retry:g}s, "
            f"that is {_RENEW_FACTOR * retry:g}s",
        )


def _ports(options: Options) -> Iterator[str]:
    for name in ("secure-port", "webhook-secure-port"):
        if not 0 <= _number(options, name) <= _HIGHEST_PORT:
            yield _fault(options, name, f"must be from 0 (no server) to {_HIGHEST_PORT}")
    if options.webhook_secure_port == options.secure_port != 0:
        yield _fault(
            options,
            "webhook-secure-port",
            "--webhook-secure-port cannot be the same value as --secure-port",
        )


def _tls(options: Options) -> Iterator[str]:
    for name, right in tls_flags.faults(options):
        yield _fault(options, name, right)


def _certificates(options: Options) -> Iterator[str]:
    for prefix in ("", "webhook-"):
        cert, key = f"{prefix}tls-cert-file", f"{prefix}tls-private-key-file"
        if bool(options.get(cert)) != bool(options.get(key)):
            given, missing = (cert, key) if options.get(cert) else (key, cert)
            yield _fault(options, given, f"needs --{missing} too")


def _headers(options: Options) -> Iterator[str]:
    for name in _HEADER_LISTS:
        entries = options.get(name)
        assert isinstance(entries, tuple)
        if any(not entry.strip() for entry in entries):
            yield _fault(options, name, "a header name cannot be empty or white space")


def _gates(options: Options) -> Iterator[str]:
    try:
        effective = gates.build(options.feature_gates)
    except ValueError as error:
        known = ", ".join(gate.name for gate in gates.KNOWN)
        yield _fault(options, "feature-gates", f"{error}; known: {known}, AllAlpha, AllBeta")
        return
    if options.requestheader_uid_headers and not effective.enabled(gates.REQUEST_HEADER_UID):
        yield _fault(
            options,
            "requestheader-uid-headers",
            f"needs the feature gate {gates.REQUEST_HEADER_UID}",
        )
    if not effective.enabled(gates.LOGGING_ALPHA):
        for name in _ALPHA_LOGGING:
            if options.get(name):
                yield _fault(options, name, f"needs --feature-gates={gates.LOGGING_ALPHA}=true")


def _logging(options: Options) -> Iterator[str]:
    for name in ("log-text-info-buffer-size", "log-json-info-buffer-size"):
        if _number(options, name) < 0:
            yield _fault(options, name, "must be 0 (nothing is held back) or more")
    if options.logging_format not in ("text", "json", "dev"):
        yield _fault(options, "logging-format", 'must be "text", "json" or "dev"')
    elif options.logging_format != "text" and options.vmodule:
        yield _fault(options, "vmodule", "works with --logging-format=text only")


_CHECKS: tuple[Callable[[Options], Iterator[str]], ...] = (
    _cloud,
    _api,
    _workers,
    _durations,
    _load_balancers,
    _deletions,
    _routes,
    _election,
    _ports,
    _tls,
    _certificates,
    _headers,
    _gates,
    _logging,
)


def _strangers(options: Options, name: str, known: Collection[str]) -> Iterator[str]:
    requested = options.get(name)
    assert isinstance(requested, tuple)
    for stranger in names.unknown(requested, known):
        right = f"known: {', '.join(known)}" if known else "there are none"
        yield _fault(options, name, f'"{stranger}" is not in the list of known {name}; {right}')


def _fault(options: Options, name: str, right: str) -> str:
    return f"--{name}={FLAGS[name].kind.write(options.get(name))}: {right}"


def _number(options: Options, name: str) -> int:
    value = options.get(name)
    assert isinstance(value, int)
    return value


def _seconds(options: Options, name: str) -> float:
    value = options.get(name)
    assert isinstance(value, timedelta)
    return value.total_seconds()

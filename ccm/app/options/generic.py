"""The flags that belong to no controller: generic flags, leader election, logging."""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from ccm.app.options import controllers, gates
from ccm.app.options.controllers import MANIFESTS
from ccm.base.flags import (
    GATES,
    LEVEL,
    LEVELS,
    QUANTITY,
    VERSION,
    FlagSection,
    FlagViolation,
    is_object_name,
    not_negative,
    one_of,
    positive,
    write_bool,
    zero_or_more,
)
from ccm.runtime.manifest import GENERIC, MISC

LEADER_MIGRATION = FlagSection("leader-migration")
PROVIDER_CALLS = FlagSection("provider calls", ours=True)
STOPPING = FlagSection("stopping", ours=True)
PERSISTENCE = FlagSection("persistence", ours=True)
FILE = FlagSection("configuration file", ours=True)
HELP = FlagSection("help", ours=True)
GLOBAL = FlagSection("global")

_CLIENT_GO_RATE = (5.0, 10)
"""Requests per second and burst if --kube-api-qps or --kube-api-burst is 0.

Source: client-go's REST client.
"""

JOURNAL_OFF = "off"
"""Value of --journal without a journal."""

LEASE = "cloud-controller-manager"
"""Default name of the daemon's lease."""

GUARDED_FRACTION = 0.95
"""Fraction of the lease duration for which a leader works without a renewal.

The rest allows for clock drift and for requests in flight.
"""

_RENEW_FACTOR = 1.2
"""Minimum ratio of renew deadline to retry period, which leaves room for a retry with jitter.

Source: client-go's leader election.
"""


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else "must be a finite number; negative means no limit"


@dataclass(frozen=True, kw_only=True)
class GenericFlags:
    """Controllers to run, credentials, and access to the API server and the cloud."""

    enable_leader_migration: bool = LEADER_MIGRATION.flag(
        False,
        "Migrate controllers between two managers without gap or overlap, with a second lease.",
        path="Generic.LeaderMigrationEnabled",
    )
    leader_migration_config: str = LEADER_MIGRATION.flag(
        "",
        "LeaderMigrationConfiguration file: which manager runs which controller. Empty means the "
        "default configuration: routes, services and node life cycle may run in either manager.",
    )
    min_resync_period: timedelta = GENERIC.flag(
        timedelta(hours=12),
        "Resync period: unchanged objects are reconciled again after one to two times this. 0 "
        "means never.",
        check=not_negative,
        path="Generic.MinResyncPeriod",
    )
    kube_api_qps: float = GENERIC.flag(
        20.0,
        "Rate limit of each client's requests to the API server. If neither this flag nor "
        "--kube-api-burst is set, the limit ends once a response shows that the server has API "
        "Priority and Fairness. 0 means 5; a negative number means no limit.",
        unit="requests per second",
        check=_finite,
        path="Generic.ClientConnection.qps",
    )
    kube_api_burst: int = GENERIC.flag(
        30,
        "Burst of each client's requests to the API server, for --kube-api-qps. 0 means 10.",
        unit="requests",
        check=zero_or_more("meaning 10"),
        path="Generic.ClientConnection.burst",
    )
    controller_start_interval: timedelta = GENERIC.flag(
        timedelta(0),
        "Pause after the start of each controller; the actual pause is one to two times this "
        "value. Spreads the startup load. 0 means no pause.",
        check=not_negative,
        path="Generic.ControllerStartInterval",
    )
    controllers: tuple[str, ...] = GENERIC.flag(
        (controllers.ALL,),
        "Controllers to run: a name or alias enables a controller, -name disables it, * enables "
        "all others that are on by default. Without * no others run. Names (aliases): "
        + ", ".join(f"{entry.name} ({entry.alias})" for entry in MANIFESTS)
        + ".",
        check=controllers.known_names_check("controllers", controllers.known_names()),
        path="Generic.Controllers",
    )
    cloud_provider: str = GENERIC.flag(
        "",
        "Registered name of the cloud provider. Required.",
        path="KubeCloudShared.CloudProvider.Name",
    )
    cloud_config: str = GENERIC.flag(
        "",
        "File with the settings of the provider. Empty means none.",
        path="KubeCloudShared.CloudProvider.CloudConfigFile",
    )
    use_service_account_credentials: bool = GENERIC.flag(
        False,
        "Run each controller with its own service account in kube-system, created if missing. "
        "Needs permission to create tokens of these accounts.",
        path="KubeCloudShared.UseServiceAccountCredentials",
    )
    allow_untagged_cloud: bool = GENERIC.flag(
        False,
        "Run although cloud objects have no cluster ID.",
        deprecated="set a cluster ID for cloud objects",
        path="KubeCloudShared.AllowUntaggedCloud",
    )
    cluster_name: str = GENERIC.flag(
        "kubernetes",
        "Name of the cluster in the cloud, for instance in names of load balancers.",
        path="KubeCloudShared.ClusterName",
    )
    feature_gates: Mapping[str, bool] = GENERIC.flag(
        MappingProxyType({}),
        "Enable or disable features; AllAlpha and AllBeta set all gates of a stage. Known: "
        + " ".join(
            f"{gate.name} ({gate.stage}, default {write_bool(gate.default)})."
            for gate in gates.KNOWN
        ),
        check=gates.fault,
        kind=GATES,
    )
    cloud_call_timeout: timedelta = PROVIDER_CALLS.flag(
        timedelta(0),
        "Maximum duration of a cloud call; overrides the provider's values. 0 means the "
        "provider's value, or else the default of the kind of call: 60s for reads, up to 15m for "
        "changes.",
        check=not_negative,
    )
    cloud_api_qps: float = PROVIDER_CALLS.flag(
        0.0,
        "Rate limit of cloud calls, for all controllers together. 0 means no limit.",
        unit="calls per second",
        check=zero_or_more("no limit"),
    )
    cloud_api_burst: int = PROVIDER_CALLS.flag(
        0,
        "Burst of cloud calls. 0 means --cloud-api-qps, rounded up.",
        unit="calls",
        check=zero_or_more(),
    )
    inventory_max_age: timedelta = PROVIDER_CALLS.flag(
        timedelta(seconds=4),
        "Maximum age of the listing of all instances, which controllers share. Keep it below "
        "--node-monitor-period, so that each pass gets a new listing. A new node may be "
        "initialised from an older listing. 0 means no reuse.",
        check=not_negative,
    )
    persistence_config: str = PERSISTENCE.flag(
        "",
        "File that configures persistent storage (ccm/persistence/README.md). Empty means "
        "ConfigMaps of the cluster, or none with --journal=off.",
    )
    journal: str = PERSISTENCE.flag(
        "report",
        "Journal of the load balancers and VMs that this daemon creates and deletes: off keeps "
        "none, report also reports resources whose owner is gone, delete also deletes them.",
        check=one_of(JOURNAL_OFF, "report", "delete"),
    )
    journal_check_period: timedelta = PERSISTENCE.flag(
        timedelta(minutes=30),
        "Time between two searches for resources in the journal whose owner is gone; jitter of up "
        "to 20 % is added.",
        check=positive,
    )
    journal_grace_period: timedelta = PERSISTENCE.flag(
        timedelta(hours=1),
        "With --journal=delete: time from the first search that finds a resource without its owner "
        "to its deletion.",
        check=not_negative,
    )
    journal_ephemeral_grace_period: timedelta = PERSISTENCE.flag(
        timedelta(minutes=10),
        "With --journal=delete: age at which a temporary resource, such as a throw-away SSH key, "
        "is deleted.",
        check=not_negative,
    )
    shutdown_grace_period: timedelta = STOPPING.flag(
        timedelta(seconds=20),
        "Time for in-flight changes after SIGTERM or SIGINT; then they are cancelled. Reads are "
        "cancelled at once, and no new work starts. Leave 10s of the Pod's "
        "terminationGracePeriodSeconds, 30s by default, for the rest of the shutdown. 0 cancels "
        "everything at once.",
        check=not_negative,
    )
    config: str = FILE.flag(
        "",
        "File with settings, a CloudControllerManagerConfiguration v1alpha1. Flags override it. "
        "Changes of Flags.v and Flags.vmodule apply without a restart.",
    )
    write_config_to: str = FILE.flag(
        "", "Write the effective settings, flags included, to this file and exit; - means stdout."
    )
    master: str = MISC.flag("", "URL of the API server; overrides the kubeconfig.")
    kubeconfig: str = MISC.flag(
        "",
        "kubeconfig of the API server. If --master is empty too, the in-cluster configuration is "
        "used.",
        path="Generic.ClientConnection.kubeconfig",
    )
    version: str = GLOBAL.flag(
        "false", "Print the version and exit; raw adds details.", kind=VERSION
    )
    help: bool = GLOBAL.flag(False, "Print this text and exit.", short="h")
    help_all: bool = HELP.flag(
        False, "Print all flags, also deprecated ones and those without effect, and exit."
    )

    @property
    def uses_storage(self) -> bool:
        """Whether the leader opens persistent storage."""
        return bool(self.persistence_config) or self.journal != JOURNAL_OFF

    @property
    def api_rate(self) -> tuple[float, int] | None:
        """Rate limit of one API client: requests per second, and burst; None means no limit."""
        if self.kube_api_qps < 0:
            return None
        qps, burst = _CLIENT_GO_RATE
        return self.kube_api_qps or qps, self.kube_api_burst or burst

    @property
    def cloud_rate(self) -> tuple[float, int] | None:
        """Rate limit of cloud calls: calls per second, and burst; None means no limit."""
        if self.cloud_api_qps == 0:
            return None
        return self.cloud_api_qps, self.cloud_api_burst or math.ceil(self.cloud_api_qps)


@dataclass(frozen=True, kw_only=True)
class ElectionFlags:
    """Leader election among the replicas."""

    leader_elect: bool = GENERIC.flag(
        True,
        "Run controllers only while holding the lease, so that a single replica is active.",
        path="Generic.LeaderElection.leaderElect",
    )
    leader_elect_lease_duration: timedelta = GENERIC.flag(
        timedelta(seconds=15),
        "How long standbys wait after the leader's last renewal. Rounded up to whole seconds.",
        path="Generic.LeaderElection.leaseDuration",
    )
    leader_elect_renew_deadline: timedelta = GENERIC.flag(
        timedelta(seconds=10),
        "How long a leader retries a renewal before it exits. Must be shorter than 95 % of the "
        "lease duration, after which a watchdog ends the process.",
        path="Generic.LeaderElection.renewDeadline",
    )
    leader_elect_retry_period: timedelta = GENERIC.flag(
        timedelta(seconds=2),
        "Delay between attempts. The renew deadline must be longer than 1.2 times this.",
        path="Generic.LeaderElection.retryPeriod",
    )
    leader_elect_resource_lock: str = GENERIC.flag(
        "leases",
        "Resource type of the lock; only leases is supported.",
        path="Generic.LeaderElection.resourceLock",
    )
    leader_elect_resource_name: str = GENERIC.flag(
        LEASE, "Name of the lease.", path="Generic.LeaderElection.resourceName"
    )
    leader_elect_resource_namespace: str = GENERIC.flag(
        "kube-system", "Namespace of the lease.", path="Generic.LeaderElection.resourceNamespace"
    )


def election_faults(flags: ElectionFlags) -> Iterator[FlagViolation]:
    """Yield the faults of the election flags; none if --leader-elect is false."""
    if not flags.leader_elect:
        return
    if flags.leader_elect_resource_lock != "leases":
        yield "leader-elect-resource-lock", 'must be "leases"'
    for part, example in (("name", LEASE), ("namespace", "kube-system")):
        given = getattr(flags, f"leader_elect_resource_{part}")
        if not given:
            yield f"leader-elect-resource-{part}", "cannot be empty while --leader-elect is true"
        elif not is_object_name(given):
            yield f"leader-elect-resource-{part}", f"must be a name such as {example}"
    yield from _duration_faults(flags)


def _duration_faults(flags: ElectionFlags) -> Iterator[FlagViolation]:
    times = {
        "lease-duration": flags.leader_elect_lease_duration.total_seconds(),
        "renew-deadline": flags.leader_elect_renew_deadline.total_seconds(),
        "retry-period": flags.leader_elect_retry_period.total_seconds(),
    }
    short = [name for name, seconds in times.items() if seconds <= 0]
    yield from ((f"leader-elect-{name}", "must be longer than 0s") for name in short)
    if short:
        return
    lease, renew, retry = times.values()
    if lease < 1:
        why = "because a lease counts whole seconds"
        yield "leader-elect-lease-duration", f"must be 1s or longer, {why}"
    if GUARDED_FRACTION * lease <= renew:
        # The watchdog would end the process before the leader gives up renewing.
        right = f"must be longer than --leader-elect-renew-deadline={renew:g}s / {GUARDED_FRACTION}"
        yield "leader-elect-lease-duration", f"{right}, that is {renew / GUARDED_FRACTION:g}s"
    if renew <= _RENEW_FACTOR * retry:
        least = _RENEW_FACTOR * retry
        right = f"must be longer than {_RENEW_FACTOR} times --leader-elect-retry-period={retry:g}s"
        yield "leader-elect-renew-deadline", f"{right}, that is {least:g}s"


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """Verbosity, format and streams of the log."""

    logging_format: str = GLOBAL.flag(
        "text",
        "Log format: text as in klog, json, or dev for a terminal (not in the Go program).",
        check=one_of("text", "json", "dev"),
    )
    log_flush_frequency: timedelta = GLOBAL.flag(
        timedelta(seconds=5),
        "Maximum time that log lines stay in the buffer. 0 means until the buffer is full.",
        check=not_negative,
    )
    v: int = GLOBAL.flag(
        0,
        "Log verbosity: 1 adds every flag, and rejected or privileged requests to the HTTPS "
        "server; 4 adds each decision; 8 adds the logs of libraries.",
        short="v",
        kind=LEVEL,
    )
    vmodule: tuple[tuple[str, int], ...] = GLOBAL.flag(
        (),
        "Verbosity of single modules; text format only. A pattern with a slash matches a path "
        "such as ccm/kube/client, one without a slash the last part; * and ? are wildcards.",
        kind=LEVELS,
    )
    log_text_split_stream: bool = GLOBAL.flag(
        False, "Text format: write errors to stderr, other lines to stdout. Alpha."
    )
    log_json_split_stream: bool = GLOBAL.flag(
        False, "JSON format: write errors to stderr, other lines to stdout. Alpha."
    )
    log_text_info_buffer_size: int = GLOBAL.flag(
        0,
        "Buffer size for text lines on stdout when streams are split. Alpha.",
        unit="bytes",
        check=zero_or_more("no buffer"),
        kind=QUANTITY,
    )
    log_json_info_buffer_size: int = GLOBAL.flag(
        0,
        "Buffer size for json lines on stdout when streams are split. Alpha.",
        unit="bytes",
        check=zero_or_more("no buffer"),
        kind=QUANTITY,
    )


def log_faults(flags: LogFlags, *, alpha: bool) -> Iterator[FlagViolation]:
    """Yield the faults of the log flags; `alpha`: whether alpha flags are allowed."""
    if flags.logging_format in ("json", "dev") and flags.vmodule:
        yield "vmodule", "works with --logging-format=text only"
    for form in ("text", "json"):
        for what in ("split_stream", "info_buffer_size"):
            if not alpha and getattr(flags, f"log_{form}_{what}"):
                name = f"log-{form}-{what.replace('_', '-')}"
                yield name, "needs --feature-gates=LoggingAlphaOptions=true"

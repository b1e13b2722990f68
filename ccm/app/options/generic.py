"""The flags of the daemon as a whole."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from ccm.app.options import gates, names
from ccm.app.options.controllers import MANIFESTS
from ccm.app.options.logs import GLOBAL
from ccm.base import flag_checks as checks
from ccm.base import flag_values as values
from ccm.base.flags import Fault, Section
from ccm.runtime.manifest import GENERIC, MISC

DEBUGGING = Section("debugging")
LEADER_MIGRATION = Section("leader-migration")
PROVIDER_CALLS = Section("provider calls", ours=True)
STOPPING = Section("stopping", ours=True)
PERSISTENCE = Section("persistence", ours=True)
FILE = Section("configuration file", ours=True)

_NO_ALLOCATOR = "no controller of this daemon hands out addresses"

_CLIENT_GO_RATE = (5.0, 10)
"""Requests per second and burst when a flag says 0; from client-go's REST client."""


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else "must be a finite number; negative means no limit"


@dataclass(frozen=True, kw_only=True)
class GenericFlags:
    """What the daemon runs, as whom, and how it speaks to the API server and the cloud."""

    profiling: bool = DEBUGGING.flag(
        True,
        "Serve profiles and the log level under /debug.",
        path="Generic.Debugging.enableProfiling",
    )
    contention_profiling: bool = DEBUGGING.flag(
        False,
        "Also profile waiting for locks.",
        accepted="it belongs to the Go run time",
        path="Generic.Debugging.enableContentionProfiling",
    )
    enable_leader_migration: bool = LEADER_MIGRATION.flag(
        False,
        "Move controllers between two managers without a gap or an overlap, by a second lease.",
        path="Generic.LeaderMigrationEnabled",
    )
    leader_migration_config: str = LEADER_MIGRATION.flag(
        "",
        "File that says which manager runs what, a LeaderMigrationConfiguration. Empty means the "
        "built-in plan: routes, services and the node life cycle may run in either.",
    )
    min_resync_period: timedelta = GENERIC.flag(
        timedelta(hours=12),
        "Every object is looked at again after one to two times this, though nothing changed. "
        "0 means never.",
        check=checks.not_negative,
        path="Generic.MinResyncPeriod",
    )
    kube_api_content_type: str = GENERIC.flag(
        "application/vnd.kubernetes.protobuf",
        "Encoding of requests to the API server.",
        accepted="requests are always JSON, which every API server takes",
        path="Generic.ClientConnection.contentType",
    )
    kube_api_qps: float = GENERIC.flag(
        20.0,
        "Requests that each client sends to the API server over time. 0 means 5; a negative "
        "number means no limit.",
        unit="requests per second",
        check=_finite,
        path="Generic.ClientConnection.qps",
    )
    kube_api_burst: int = GENERIC.flag(
        30,
        "Requests that a client may send at once after a pause. 0 means 10.",
        unit="requests",
        check=checks.zero_or_more("meaning 10"),
        path="Generic.ClientConnection.burst",
    )
    controller_start_interval: timedelta = GENERIC.flag(
        timedelta(0),
        "Pause after the start of each controller, one to two times this; it spreads the load of "
        "a start. 0 means none.",
        check=checks.not_negative,
        path="Generic.ControllerStartInterval",
    )
    controllers: tuple[str, ...] = GENERIC.flag(
        (names.ALL,),
        "Controllers to run: a name or its alias turns one on, -name turns it off, * turns on all "
        "that are not named. Without * nothing else runs. Names (aliases): "
        + ", ".join(f"{entry.name} ({entry.alias})" for entry in MANIFESTS)
        + ".",
        check=names.strangers("controllers", names.known_names()),
        path="Generic.Controllers",
    )
    cloud_provider: str = GENERIC.flag(
        "",
        "Name of the provider to use, as it registered itself. Required.",
        path="KubeCloudShared.CloudProvider.Name",
    )
    cloud_config: str = GENERIC.flag(
        "",
        "File with the provider's own settings. Empty means it gets none.",
        path="KubeCloudShared.CloudProvider.CloudConfigFile",
    )
    external_cloud_volume_plugin: str = GENERIC.flag(
        "",
        "Cloud provider for volumes.",
        accepted="no cloud-controller-manager has a use for it",
        path="KubeCloudShared.ExternalCloudVolumePlugin",
    )
    use_service_account_credentials: bool = GENERIC.flag(
        False,
        "Let each controller act under a service account of its own in kube-system, which is made "
        "where it does not exist. Needs the right to create tokens of these accounts.",
        path="KubeCloudShared.UseServiceAccountCredentials",
    )
    allow_untagged_cloud: bool = GENERIC.flag(
        False,
        "Run although the cloud's objects carry no cluster ID.",
        deprecated="give the cloud's objects a cluster ID",
        path="KubeCloudShared.AllowUntaggedCloud",
    )
    cluster_name: str = GENERIC.flag(
        "kubernetes",
        "Name of the cluster towards the cloud, for instance in names of load balancers.",
        path="KubeCloudShared.ClusterName",
    )
    allocate_node_cidrs: bool = GENERIC.flag(
        False,
        "Hand out pod address ranges to nodes.",
        accepted=_NO_ALLOCATOR,
        path="KubeCloudShared.AllocateNodeCIDRs",
    )
    cidr_allocator_type: str = GENERIC.flag(
        "RangeAllocator",
        "How ranges are handed out.",
        accepted=_NO_ALLOCATOR,
        path="KubeCloudShared.CIDRAllocatorType",
    )
    node_sync_period: timedelta = GENERIC.flag(
        timedelta(0),
        "Nothing.",
        accepted="it never had one in this program",
        deprecated="leave it out",
        path="KubeCloudShared.NodeSyncPeriod",
    )
    feature_gates: Mapping[str, bool] = GENERIC.flag(
        MappingProxyType({}),
        "Turn features on or off; AllAlpha and AllBeta set all of a stage. Known: "
        + " ".join(
            f"{gate.name} ({gate.stage}, default {values.write_bool(gate.default)})."
            for gate in gates.KNOWN
        ),
        check=gates.wrong,
        kind=values.GATES,
    )
    cloud_call_timeout: timedelta = PROVIDER_CALLS.flag(
        timedelta(0),
        "Longest time that one call to the cloud may take, whatever the provider asks for. 0 means "
        "what the provider asks for, or what suits the kind of call: 60s for reads, up to 15m for "
        "changes.",
        check=checks.not_negative,
    )
    cloud_api_qps: float = PROVIDER_CALLS.flag(
        0.0,
        "Calls to the cloud over time, all controllers together. 0 means no limit.",
        unit="calls per second",
        check=checks.zero_or_more("no limit"),
    )
    cloud_api_burst: int = PROVIDER_CALLS.flag(
        0,
        "Calls that may be made at once after a pause. 0 means those of one second.",
        unit="calls",
        check=checks.zero_or_more(),
    )
    inventory_max_age: timedelta = PROVIDER_CALLS.flag(
        timedelta(seconds=4),
        "How old a listing of all instances may be when controllers share it. Shorter than "
        "--node-monitor-period, so that each pass sees a new one. 0 means never to reuse one.",
        check=checks.not_negative,
    )
    persistence_config: str = PERSISTENCE.flag(
        "",
        "File that says where copies are kept that outlive the daemon (ccm/persistence/README.md). "
        "Empty means nowhere; all works without.",
    )
    shutdown_grace_period: timedelta = STOPPING.flag(
        timedelta(seconds=20),
        "How long changes under way may still take after SIGTERM or SIGINT; then they are cut. "
        "Nothing new is begun, and what only asks is cut at once. Leave 10s of the pod's "
        "terminationGracePeriodSeconds, 30s by default, for the rest. 0 cuts everything at once.",
        check=checks.not_negative,
    )
    config: str = FILE.flag(
        "",
        "File with settings, a CloudControllerManagerConfiguration v1alpha1. Flags override it. "
        "Its keys Flags.v and Flags.vmodule count at once when the file changes.",
    )
    write_config_to: str = FILE.flag(
        "", "Write the settings in force, flags included, to this file and exit; - means stdout."
    )
    master: str = MISC.flag("", "URL of the API server, before the one in the kubeconfig.")
    kubeconfig: str = MISC.flag(
        "",
        "File that says how to reach the API server and as whom. If --master is empty too, the "
        "account of the pod is used.",
        path="Generic.ClientConnection.kubeconfig",
    )
    version: str = GLOBAL.flag(
        "false", "Print the version and exit; raw prints more of it.", kind=values.VERSION
    )
    help: bool = GLOBAL.flag(False, "Print this text and exit.", short="h")

    @property
    def api_rate(self) -> tuple[float, int] | None:
        """Requests per second and burst of one API client; None = no limit."""
        if self.kube_api_qps < 0:
            return None
        qps, burst = _CLIENT_GO_RATE
        return self.kube_api_qps or qps, self.kube_api_burst or burst

    @property
    def cloud_rate(self) -> tuple[float, int] | None:
        """Calls per second and burst towards the cloud; None = no limit."""
        if self.cloud_api_qps == 0:
            return None
        return self.cloud_api_qps, self.cloud_api_burst or math.ceil(self.cloud_api_qps)


def faults(flags: GenericFlags) -> Iterator[Fault]:
    """Settings that make no sense together."""
    if flags.cloud_api_burst > 0 and not flags.cloud_api_qps:
        yield "cloud-api-burst", "needs --cloud-api-qps above 0"

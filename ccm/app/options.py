"""The flag table of the daemon, and the settings it was started with.

The fields of `Options` are the table: the field's name is the flag's, its section,
type, default and meaning stand beside it, and the flag either works or says why it
has no effect. Names and defaults are those of the Go reference, so that its command
lines start this daemon; where a default differs, or a flag is ours, the help says so.

`parse` reads a command line, `answer` serves `--help` and `--version`, `checks` looks
for settings that make no sense, and `Options.notices` lists what has no effect. `FLAGS.md`
is written from the table, see `reference`.
"""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import ccm
from ccm.app import flags, gates, migration, names, serving_options, values

PROGRAM = "cloud-controller-manager"

DEBUGGING = flags.Section("debugging")
LEADER_MIGRATION = flags.Section("leader-migration")
GENERIC = flags.Section("generic")
NODE = flags.Section(names.NODE.name)
NODE_LIFECYCLE = flags.Section(names.NODE_LIFECYCLE.name)
NODE_DELETIONS = flags.Section("deletion of nodes", ours=True)
SERVICE = flags.Section(names.SERVICE.name)
LOAD_BALANCERS = flags.Section("load balancers", ours=True)
ROUTES = flags.Section("routes", ours=True)
PROVIDER_CALLS = flags.Section("provider calls", ours=True)
STOPPING = flags.Section("stopping", ours=True)
FILE = flags.Section("configuration file", ours=True)
MISC = flags.Section("misc")
GLOBAL = flags.Section("global")

SECTIONS = (
    DEBUGGING,
    LEADER_MIGRATION,
    GENERIC,
    NODE,
    NODE_LIFECYCLE,
    SERVICE,
    NODE_DELETIONS,
    LOAD_BALANCERS,
    ROUTES,
    PROVIDER_CALLS,
    STOPPING,
    FILE,
    serving_options.WEBHOOK,
    serving_options.WEBHOOK_SERVING,
    serving_options.SECURE_SERVING,
    serving_options.AUTHENTICATION,
    serving_options.AUTHORIZATION,
    MISC,
    GLOBAL,
)
"""The sections in the order of help."""

_NO_ALLOCATOR = "no controller of this daemon hands out addresses"

_CLIENT_GO_RATE = (5.0, 10)
"""Requests per second and burst when a flag says 0; from client-go's REST client."""

_INTRODUCTION = f"""\
Joins a Kubernetes cluster to the cloud it runs on: gives new nodes their provider ID,
labels and addresses, keeps those up to date, and removes nodes whose machines are gone.

Usage: {PROGRAM} --cloud-provider=NAME [flags]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(serving_options.ServingOptions):
    """Every setting of the daemon, read and typed; `Options()` is all defaults.

    Attributes:
        explicit: names of the flags that were given, also with their default, on the command
            line or in the configuration file.
        from_file: those of them that only the file gave.
        leader_migration: the plan that stands in the configuration file; None = none there.
    """

    profiling: bool = DEBUGGING.flag(
        values.BOOL, True, "Serve profiles and the log level under /debug."
    )
    contention_profiling: bool = DEBUGGING.flag(
        values.BOOL,
        False,
        "Also profile waiting for locks.",
        accepted="it belongs to the Go run time",
    )

    enable_leader_migration: bool = LEADER_MIGRATION.flag(
        values.BOOL,
        False,
        "Move controllers between two managers without a gap or an overlap, by a second lease.",
    )
    leader_migration_config: str = LEADER_MIGRATION.flag(
        values.STRING,
        "",
        "File that says which manager runs what, a LeaderMigrationConfiguration. Empty means the "
        "built-in plan: routes, services and the node life cycle may run in either.",
    )

    min_resync_period: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(hours=12),
        "Every object is looked at again after one to two times this, though nothing changed. "
        "0 means never.",
    )
    kube_api_content_type: str = GENERIC.flag(
        values.STRING,
        "application/vnd.kubernetes.protobuf",
        "Encoding of requests to the API server.",
        accepted="requests are always JSON, which every API server takes",
    )
    kube_api_qps: float = GENERIC.flag(
        values.FLOAT,
        20.0,
        "Requests that each client sends to the API server over time. 0 means 5; a negative "
        "number means no limit.",
        unit="requests per second",
    )
    kube_api_burst: int = GENERIC.flag(
        values.INT32,
        30,
        "Requests that a client may send at once after a pause. 0 means 10.",
        unit="requests",
    )
    controller_start_interval: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(0),
        "Pause after the start of each controller, one to two times this; it spreads the load of "
        "a start. 0 means none.",
    )
    controllers: tuple[str, ...] = GENERIC.flag(
        values.STRINGS,
        (names.ALL,),
        "Controllers to run: a name or its alias turns one on, -name turns it off, * turns on all "
        "that are not named. Without * nothing else runs. Names (aliases): "
        + ", ".join(f"{entry.name} ({entry.alias})" for entry in names.CONTROLLERS)
        + ".",
    )
    leader_elect: bool = GENERIC.flag(
        values.BOOL,
        True,
        "Work only while holding the lease, so that one of several replicas is active.",
    )
    leader_elect_lease_duration: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(seconds=15),
        "How long the others wait after the leader's last sign of life. Whole seconds count.",
    )
    leader_elect_renew_deadline: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(seconds=10),
        "How long a leader tries to renew before it gives up and exits. Must be shorter than the "
        "lease duration.",
    )
    leader_elect_retry_period: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(seconds=2),
        "Pause between two tries. The renew deadline must be longer than 1.2 times this.",
    )
    leader_elect_resource_lock: str = GENERIC.flag(
        values.STRING, "leases", "Kind of object to lock; only leases will do."
    )
    leader_elect_resource_name: str = GENERIC.flag(values.STRING, PROGRAM, "Name of the lease.")
    leader_elect_resource_namespace: str = GENERIC.flag(
        values.STRING, "kube-system", "Namespace of the lease."
    )
    cloud_provider: str = GENERIC.flag(
        values.STRING, "", "Name of the provider to use, as it registered itself. Required."
    )
    cloud_config: str = GENERIC.flag(
        values.STRING, "", "File with the provider's own settings. Empty means it gets none."
    )
    external_cloud_volume_plugin: str = GENERIC.flag(
        values.STRING,
        "",
        "Cloud provider for volumes.",
        accepted="no cloud-controller-manager has a use for it",
    )
    use_service_account_credentials: bool = GENERIC.flag(
        values.BOOL,
        False,
        "Let each controller act under a service account of its own in kube-system, which is made "
        "where it does not exist. Needs the right to create tokens of these accounts.",
    )
    allow_untagged_cloud: bool = GENERIC.flag(
        values.BOOL,
        False,
        "Run although the cloud's objects carry no cluster ID.",
        deprecated="give the cloud's objects a cluster ID",
    )
    route_reconciliation_period: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(seconds=10),
        "Time between two passes over the cloud's routes.",
    )
    node_monitor_period: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(seconds=5),
        "Time between two passes that ask the cloud about nodes that are not ready.",
    )
    cluster_name: str = GENERIC.flag(
        values.STRING,
        "kubernetes",
        "Name of the cluster towards the cloud, for instance in names of load balancers.",
    )
    cluster_cidr: str = GENERIC.flag(
        values.STRING,
        "",
        "Address ranges of pods: one, or an IPv4 and an IPv6 range with a comma.",
    )
    allocate_node_cidrs: bool = GENERIC.flag(
        values.BOOL, False, "Hand out pod address ranges to nodes.", accepted=_NO_ALLOCATOR
    )
    cidr_allocator_type: str = GENERIC.flag(
        values.STRING, "RangeAllocator", "How ranges are handed out.", accepted=_NO_ALLOCATOR
    )
    configure_cloud_routes: bool = GENERIC.flag(
        values.BOOL, True, "Keep a route to each node's pods in the cloud."
    )
    node_sync_period: timedelta = GENERIC.flag(
        values.DURATION,
        timedelta(0),
        "Nothing.",
        accepted="it never had one in this program",
        deprecated="leave it out",
    )
    feature_gates: Mapping[str, bool] = GENERIC.flag(
        values.GATES,
        MappingProxyType({}),
        "Turn features on or off; AllAlpha and AllBeta set all of a stage. Known: "
        + " ".join(
            f"{gate.name} ({gate.stage}, default {values.write_bool(gate.default)})."
            for gate in gates.KNOWN
        ),
    )

    concurrent_node_syncs: int = NODE.flag(
        values.INT32, 1, "Nodes that are initialised at the same time.", unit="nodes"
    )
    concurrent_node_status_updates: int = NODE.flag(
        values.INT32,
        0,
        "Nodes whose addresses are updated at the same time. 0 means the value of "
        "--concurrent-node-syncs.",
        unit="nodes",
    )

    # Deviation: the reference asks about one node after the other, so one slow answer
    # of the cloud holds up the deletion of all nodes behind it.
    concurrent_node_lifecycle_syncs: int = NODE_LIFECYCLE.flag(
        values.INT32,
        16,
        "Nodes that are looked up in the cloud at the same time. The reference's default is 1; "
        "here one slow answer must not hold up the other nodes.",
        unit="nodes",
    )

    concurrent_service_syncs: int = SERVICE.flag(
        values.INT32, 1, "Services whose load balancers are set up at once.", unit="services"
    )

    node_deletion_least_age: timedelta = NODE_DELETIONS.flag(
        values.DURATION,
        timedelta(0),
        "A node younger than this is not deleted, though the cloud does not know its instance: it "
        "may not know it yet. 0 means that any node may be deleted.",
    )
    node_deletion_limit: int = NODE_DELETIONS.flag(
        values.INT32,
        0,
        "Most nodes that are deleted within ten minutes; the others are held meanwhile, and looked "
        "at again in each pass. A brake for the day when the cloud denies every instance. 0 means "
        "no limit.",
        unit="nodes",
    )

    load_balancer_classes: tuple[str, ...] = LOAD_BALANCERS.flag(
        values.STRINGS,
        (),
        "Classes of Services that this daemon serves beside Services without a class. A Service of "
        "any other class is never touched.",
    )
    load_balancer_nodes_quiet_period: timedelta = LOAD_BALANCERS.flag(
        values.DURATION,
        timedelta(seconds=1),
        "How long no node may come, go or change before the members of all load balancers are "
        "changed, once for all of them.",
    )
    load_balancer_nodes_longest_wait: timedelta = LOAD_BALANCERS.flag(
        values.DURATION,
        timedelta(seconds=10),
        "Time after the first change of a node by which members are changed although further nodes "
        "change.",
    )
    load_balancer_drift_check_period: timedelta = LOAD_BALANCERS.flag(
        values.DURATION,
        timedelta(0),
        "Time between two looks for load balancers that somebody changed behind the daemon's back, "
        "stretched by up to a fifth. 0 means never.",
    )
    load_balancer_drift_check_budget: int = LOAD_BALANCERS.flag(
        values.INT32,
        10,
        "Most load balancers that one such look sets right; the rest waits for the next. Where the "
        "provider cannot list, so many are ensured without looking, in turn.",
        unit="services",
    )

    route_shortest_interval: timedelta = ROUTES.flag(
        values.DURATION,
        timedelta(seconds=10),
        "Shortest time between two comparisons of nodes and routes that changes of nodes cause. "
        "0 means that every burst of changes has its own. Without effect where "
        "CloudControllerManagerWatchBasedRoutesReconciliation is off.",
    )
    route_safety_period: timedelta = ROUTES.flag(
        values.DURATION,
        timedelta(minutes=10),
        "Longest time without a comparison, stretched by up to half: it finds routes that somebody "
        "changed in the cloud. Without effect where "
        "CloudControllerManagerWatchBasedRoutesReconciliation is off.",
    )
    route_grace_period: timedelta = ROUTES.flag(
        values.DURATION,
        timedelta(minutes=1),
        "How long a node that has no pod range keeps the routes it has: it may have been created "
        "anew and get its range in a moment. 0 means that its routes are deleted at once.",
    )
    route_keep_foreign_conditions: bool = ROUTES.flag(
        values.BOOL,
        False,
        "Leave a NetworkUnavailable condition alone that somebody else wrote, such as a network "
        "plugin, if its status is right. Off, it is written anew with this daemon's reason.",
    )

    cloud_call_timeout: timedelta = PROVIDER_CALLS.flag(
        values.DURATION,
        timedelta(0),
        "Longest time that one call to the cloud may take, whatever the provider asks for. 0 means "
        "what the provider asks for, or what suits the kind of call: 60s for reads, up to 15m for "
        "changes.",
    )
    cloud_api_qps: float = PROVIDER_CALLS.flag(
        values.FLOAT,
        0.0,
        "Calls to the cloud over time, all controllers together. 0 means no limit.",
        unit="calls per second",
    )
    cloud_api_burst: int = PROVIDER_CALLS.flag(
        values.INT32,
        0,
        "Calls that may be made at once after a pause. 0 means those of one second.",
        unit="calls",
    )
    inventory_max_age: timedelta = PROVIDER_CALLS.flag(
        values.DURATION,
        timedelta(seconds=4),
        "How old a listing of all instances may be when controllers share it. Shorter than "
        "--node-monitor-period, so that each pass sees a new one. 0 means never to reuse one.",
    )

    shutdown_grace_period: timedelta = STOPPING.flag(
        values.DURATION,
        timedelta(seconds=20),
        "How long changes under way may still take after SIGTERM or SIGINT; then they are cut. "
        "Nothing new is begun, and what only asks is cut at once. Leave 10s of the pod's "
        "terminationGracePeriodSeconds, 30s by default, for the rest. 0 cuts everything at once.",
    )

    config: str = FILE.flag(
        values.STRING,
        "",
        "File with settings, a CloudControllerManagerConfiguration v1alpha1. Flags override it. "
        "Its keys Flags.v and Flags.vmodule count at once when the file changes.",
    )
    write_config_to: str = FILE.flag(
        values.STRING,
        "",
        "Write the settings in force, flags included, to this file and exit; - means stdout.",
    )

    master: str = MISC.flag(
        values.STRING, "", "URL of the API server, before the one in the kubeconfig."
    )
    kubeconfig: str = MISC.flag(
        values.STRING,
        "",
        "File that says how to reach the API server and as whom. If --master is empty too, the "
        "account of the pod is used.",
    )
    node_status_update_frequency: timedelta = MISC.flag(
        values.DURATION,
        timedelta(minutes=5),
        "Time between two passes that bring the addresses of all nodes up to date.",
    )

    logging_format: str = GLOBAL.flag(
        values.STRING,
        "text",
        "Format of log lines: text, as klog writes it, or json; dev, an addition of ours, is for "
        "a developer's terminal.",
    )
    log_flush_frequency: timedelta = GLOBAL.flag(
        values.DURATION,
        timedelta(seconds=5),
        "Longest time a log line is held back, if there is a buffer. 0 means until it is full.",
    )
    v: int = GLOBAL.flag(
        values.LEVEL,
        0,
        "How much is logged: from 1 on every flag, from 4 on each decision, from 8 on what "
        "libraries do.",
        short="v",
    )
    vmodule: tuple[tuple[str, int], ...] = GLOBAL.flag(
        values.LEVELS,
        (),
        "Log levels for single modules; text format only. A pattern with a slash is compared with "
        "a path such as ccm/kube/client, one without with its last part; * and ? may be used.",
    )
    log_text_split_stream: bool = GLOBAL.flag(
        values.BOOL, False, "Errors to stderr, the rest to stdout (text). Alpha."
    )
    log_json_split_stream: bool = GLOBAL.flag(
        values.BOOL, False, "Errors to stderr, the rest to stdout (json). Alpha."
    )
    log_text_info_buffer_size: int = GLOBAL.flag(
        values.QUANTITY,
        0,
        "Bytes of text lines that may be held back on stdout when streams are split. Alpha.",
        unit="bytes",
    )
    log_json_info_buffer_size: int = GLOBAL.flag(
        values.QUANTITY,
        0,
        "Bytes of json lines that may be held back on stdout when streams are split. Alpha.",
        unit="bytes",
    )
    version: str = GLOBAL.flag(
        values.VERSION, "false", "Print the version and exit; raw prints more of it."
    )
    help: bool = GLOBAL.flag(values.BOOL, False, "Print this text and exit.", short="h")

    explicit: frozenset[str] = frozenset()
    from_file: frozenset[str] = frozenset()
    leader_migration: migration.Plan | None = None

    @property
    def node_status_workers(self) -> int:
        """`concurrent_node_status_updates` with 0 replaced by what it stands for."""
        return self.concurrent_node_status_updates or self.concurrent_node_syncs

    @property
    def api_rate(self) -> tuple[float, int] | None:
        """Requests per second and burst of one API client; None = no limit."""
        if self.kube_api_qps < 0:
            return None
        return (
            self.kube_api_qps or _CLIENT_GO_RATE[0],
            self.kube_api_burst or _CLIENT_GO_RATE[1],
        )

    @property
    def cloud_rate(self) -> tuple[float, int] | None:
        """Calls per second and burst towards the cloud; None = no limit."""
        if self.cloud_api_qps == 0:
            return None
        return self.cloud_api_qps, self.cloud_api_burst or math.ceil(self.cloud_api_qps)

    def notices(self) -> list[str]:
        """What to say once at start: the settings given that have no effect or are old."""
        given = [flag for flag in FLAGS.values() if flag.name in self.explicit]
        said = [f"--{flag.name} has no effect: {flag.accepted}" for flag in given if flag.accepted]
        said += [
            f"--{flag.name} is deprecated: {flag.deprecated}"
            for flag in given
            if flag.deprecated and not flag.accepted
        ]
        if self.version.startswith("v"):
            said.append(f"--version={self.version} has no effect: the version is {ccm.__version__}")
        return said + gates.notices(self.feature_gates) + names.notices(self.controllers)

    def flag_lines(self) -> list[str]:
        """`FLAG: --name="value"` for every flag, for the log at verbosity 1."""
        return flags.lines(FLAGS, {name: self.get(name) for name in FLAGS})

    def get(self, name: str) -> object:
        """The value of a flag by its name with dashes."""
        return getattr(self, name.replace("-", "_"))


FLAGS: Mapping[str, flags.Flag] = MappingProxyType(flags.table(Options))
"""Every flag by its name."""


def parse(argv: Sequence[str]) -> Options:
    """Read a command line, the program's name left out.

    Raises:
        UsageError: unknown flags, wrong values, or words that belong to no flag.
    """
    parsed = flags.parse(FLAGS, argv)
    fields = {name.replace("-", "_"): value for name, value in parsed.values.items()}
    options = Options(**fields, explicit=frozenset(parsed.values))
    if parsed.arguments and not options.help:
        words = " ".join(map(flags.quote, parsed.arguments))
        raise flags.UsageError([f'"{PROGRAM}" does not take any arguments, got [{words}]'])
    return options


def answer(options: Options) -> str | None:
    """The text to print before exiting with 0, if help or the version was asked for."""
    if options.help:
        return f"{_INTRODUCTION}\n{flags.explain(FLAGS, SECTIONS)}"
    if options.version == "true":
        return f"{PROGRAM} {ccm.__version__}\n"
    if options.version == "raw":
        return (
            f"{PROGRAM} {ccm.__version__} python={platform.python_version()} "
            f"implementation={platform.python_implementation()} "
            f"platform={platform.system().lower()}/{platform.machine()}\n"
        )
    return None

"""The daemon's flag table: every default, the reference's command lines, help, notices."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

import ccm
from ccm.app import flags, options
from ccm.app.values import NamedCertificate

DEFAULTS = """
profiling=true contention-profiling=false enable-leader-migration=false leader-migration-config=
min-resync-period=12h0m0s kube-api-content-type=application/vnd.kubernetes.protobuf
kube-api-qps=20 kube-api-burst=30 controller-start-interval=0s controllers=[*]
leader-elect=true leader-elect-lease-duration=15s leader-elect-renew-deadline=10s
leader-elect-retry-period=2s leader-elect-resource-lock=leases
leader-elect-resource-name=cloud-controller-manager leader-elect-resource-namespace=kube-system
cloud-provider= cloud-config= external-cloud-volume-plugin= use-service-account-credentials=false
allow-untagged-cloud=false route-reconciliation-period=10s node-monitor-period=5s
cluster-name=kubernetes cluster-cidr= allocate-node-cidrs=false cidr-allocator-type=RangeAllocator
configure-cloud-routes=true node-sync-period=0s feature-gates=
concurrent-node-syncs=1 concurrent-node-status-updates=0 concurrent-node-lifecycle-syncs=16
concurrent-service-syncs=1 load-balancer-classes=[] load-balancer-nodes-quiet-period=1s
load-balancer-nodes-longest-wait=10s load-balancer-drift-check-period=0s
load-balancer-drift-check-budget=10 route-shortest-interval=10s route-safety-period=10m0s
node-deletion-least-age=0s node-deletion-limit=0 route-grace-period=1m0s
route-keep-foreign-conditions=false node-status-update-frequency=5m0s
cloud-call-timeout=0s cloud-api-qps=0 cloud-api-burst=0 inventory-max-age=4s
webhooks=[] webhook-bind-address=0.0.0.0 webhook-secure-port=10260
webhook-disable-http2-serving=false webhook-cert-dir= webhook-tls-cert-file=
webhook-tls-private-key-file= webhook-tls-min-version= webhook-tls-cipher-suites=[]
webhook-tls-curve-preferences=[] webhook-tls-sni-cert-key=[]
bind-address=0.0.0.0 secure-port=10258 disable-http2-serving=false cert-dir= tls-cert-file=
tls-private-key-file= tls-cipher-suites=[] tls-curve-preferences=[] tls-min-version=
tls-sni-cert-key=[] http2-max-streams-per-connection=0 permit-port-sharing=false
permit-address-sharing=false
authentication-kubeconfig= authentication-token-webhook-cache-ttl=10s client-ca-file=
requestheader-username-headers=[x-remote-user] requestheader-uid-headers=[]
requestheader-group-headers=[x-remote-group] requestheader-extra-headers-prefix=[x-remote-extra-]
requestheader-client-ca-file= requestheader-allowed-names=[] authentication-skip-lookup=false
authentication-tolerate-lookup-failure=false authorization-kubeconfig=
authorization-webhook-cache-authorized-ttl=10s authorization-webhook-cache-unauthorized-ttl=10s
authorization-always-allow-paths=[/healthz,/readyz,/livez]
master= kubeconfig= logging-format=text log-flush-frequency=5s v=0 vmodule=
log-text-split-stream=false log-json-split-stream=false log-text-info-buffer-size=0
log-json-info-buffer-size=0 version=false help=false
config= write-config-to= shutdown-grace-period=20s
"""

WORKING = """
config write-config-to use-service-account-credentials enable-leader-migration
leader-migration-config log-flush-frequency vmodule log-text-split-stream log-json-split-stream
log-text-info-buffer-size log-json-info-buffer-size cloud-provider cloud-config kubeconfig
master kube-api-qps kube-api-burst controllers leader-elect leader-elect-lease-duration
leader-elect-renew-deadline leader-elect-retry-period leader-elect-resource-lock
leader-elect-resource-name leader-elect-resource-namespace min-resync-period node-monitor-period
node-status-update-frequency concurrent-node-syncs concurrent-node-status-updates
concurrent-node-lifecycle-syncs cluster-name controller-start-interval feature-gates
logging-format v version help allow-untagged-cloud cloud-call-timeout cloud-api-qps
cloud-api-burst inventory-max-age concurrent-service-syncs load-balancer-classes
load-balancer-nodes-quiet-period load-balancer-nodes-longest-wait
load-balancer-drift-check-period load-balancer-drift-check-budget route-reconciliation-period
cluster-cidr configure-cloud-routes route-shortest-interval route-safety-period
route-grace-period route-keep-foreign-conditions node-deletion-least-age
node-deletion-limit shutdown-grace-period
webhooks webhook-bind-address webhook-secure-port webhook-cert-dir webhook-tls-cert-file
webhook-tls-private-key-file webhook-tls-min-version webhook-tls-cipher-suites
webhook-tls-curve-preferences webhook-tls-sni-cert-key
profiling bind-address secure-port cert-dir tls-cert-file tls-private-key-file tls-cipher-suites
tls-curve-preferences tls-min-version tls-sni-cert-key permit-port-sharing
authentication-kubeconfig authentication-token-webhook-cache-ttl client-ca-file
requestheader-username-headers requestheader-uid-headers requestheader-group-headers
requestheader-extra-headers-prefix requestheader-client-ca-file requestheader-allowed-names
authentication-skip-lookup authentication-tolerate-lookup-failure authorization-kubeconfig
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
authorization-always-allow-paths
"""

OURS = {
    "cloud-call-timeout",
    "cloud-api-qps",
    "cloud-api-burst",
    "inventory-max-age",
    "load-balancer-classes",
    "load-balancer-nodes-quiet-period",
    "load-balancer-nodes-longest-wait",
    "load-balancer-drift-check-period",
    "load-balancer-drift-check-budget",
    "node-deletion-least-age",
    "node-deletion-limit",
    "route-shortest-interval",
    "route-safety-period",
    "route-grace-period",
    "route-keep-foreign-conditions",
}

OURS |= {"config", "write-config-to", "shutdown-grace-period"}

ACCEPTED_TOGETHER: list[tuple[str, Any]] = [
    ("--allocate-node-cidrs=true", True),
    ("--authorization-always-allow-paths=", ()),
    ("--cert-dir=/a/b/c", "/a/b/c"),
    ("--cloud-config=/cloud-config", "/cloud-config"),
    ("--cloud-provider=sim", "sim"),
    ("--cluster-cidr=1.2.3.4/24", "1.2.3.4/24"),
    ("--cluster-name=k8s", "k8s"),
    ("--configure-cloud-routes=false", False),
    ("--contention-profiling=true", True),
    ("--controller-start-interval=2m", timedelta(minutes=2)),
    ("--controllers=foo,bar", ("foo", "bar")),
    ("--http2-max-streams-per-connection=47", 47),
    ("--kube-api-burst=100", 100),
    ("--kube-api-content-type=application/json", "application/json"),
    ("--kube-api-qps=50.0", 50.0),
    ("--kubeconfig=/kubeconfig", "/kubeconfig"),
    ("--leader-elect=false", False),
    ("--leader-elect-lease-duration=30s", timedelta(seconds=30)),
    ("--leader-elect-renew-deadline=15s", timedelta(seconds=15)),
    ("--leader-elect-resource-lock=configmap", "configmap"),
    ("--leader-elect-retry-period=5s", timedelta(seconds=5)),
    ("--master=192.168.4.20", "192.168.4.20"),
    ("--min-resync-period=100m", timedelta(minutes=100)),
    ("--node-status-update-frequency=10m", timedelta(minutes=10)),
    ("--profiling=false", False),
    ("--route-reconciliation-period=30s", timedelta(seconds=30)),
    ("--secure-port=10001", 10001),
    ("--use-service-account-credentials=false", False),
    ("--concurrent-node-syncs=5", 5),
    ("--webhooks=foo,bar,-baz", ("foo", "bar", "-baz")),
    ("--webhook-disable-http2-serving", True),
    ("--webhook-tls-cipher-suites=A,B", ("A", "B")),
    ("--webhook-tls-min-version=VersionTLS13", "VersionTLS13"),
    (
        "--webhook-tls-sni-cert-key=example.crt,example.key:example.com",
        (
            NamedCertificate(
                cert_file="example.crt", key_file="example.key", names=("example.com",)
            ),
        ),
    ),
]


def name_of(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


@pytest.mark.row("daemon-flags-01")
@pytest.mark.parametrize("row", DEFAULTS.split())
def test_default(row: str) -> None:
    """Each flag starts at its documented default."""
    name, _, text = row.partition("=")

    assert options.FLAGS[name].kind.write(options.Options().get(name)) == text


def test_the_table_is_complete() -> None:
    """No flag is missing, and none is there that the defaults above do not list."""
    assert set(options.FLAGS) == {row.partition("=")[0] for row in DEFAULTS.split()}


def test_what_works_and_what_is_accepted() -> None:
    """A flag works, or says why it has no effect."""
    working = {name for name, flag in options.FLAGS.items() if flag.state == "works"}

    assert working == set(WORKING.split())


def test_every_flag_is_described() -> None:
    """Text, section and upstream name are there; a bare number has a unit or is a level."""
    titles = {section.title for section in options.SECTIONS}
    for flag in options.FLAGS.values():
        assert flag.section in titles
        assert flag.text.endswith(".")
        assert flag.upstream == (None if flag.name in OURS else flag.name)
        assert flag.unit or flag.kind.word not in ("int", "int32", "float")


def test_the_order_of_sections() -> None:
    """Sections come as in the reference, ours among them."""
    assert [section.title for section in options.SECTIONS] == [
        "debugging",
        "leader-migration",
        "generic",
        "cloud-node-controller",
        "cloud-node-lifecycle-controller",
        "service-lb-controller",
        "deletion of nodes",
        "load balancers",
        "routes",
        "provider calls",
        "stopping",
        "configuration file",
        "webhook",
        "webhook serving",
        "secure serving",
        "authentication",
        "authorization",
        "misc",
        "global",
    ]


@pytest.mark.row("daemon-flags-02")
def test_the_reference_flags_are_accepted_together() -> None:
    """One long command line arrives unchanged, and each of its flags counts as given."""
    read = options.parse([word for word, _ in ACCEPTED_TOGETHER] + ["--bind-address=192.168.4.21"])

    for word, value in ACCEPTED_TOGETHER:
        assert read.get(name_of(word)) == value, word
    assert str(read.bind_address) == "192.168.4.21"
    assert read.explicit == {name_of(word) for word, _ in ACCEPTED_TOGETHER} | {"bind-address"}


def test_no_flags_means_all_defaults() -> None:
    """An empty command line is `Options()`."""
    assert options.parse([]) == options.Options()


def test_options_are_frozen() -> None:
    """Settings do not change after they were read."""
    read = options.parse([])

    with pytest.raises(dataclasses.FrozenInstanceError):
        read.cluster_name = "other"  # type: ignore[misc]


def test_arguments_are_refused() -> None:
    """Words that belong to no flag are refused, empty ones are not."""
    with pytest.raises(flags.UsageError) as caught:
        options.parse(["--leader-elect", "false", "x"])

    assert str(caught.value) == (
        '"cloud-controller-manager" does not take any arguments, got ["false" "x"]'
    )
    assert options.parse([""]) == options.Options()


def test_an_unknown_flag_gets_a_hint() -> None:
    """A mistyped flag is refused with the nearest one known."""
    with pytest.raises(flags.UsageError, match="did you mean --kube-api-burst"):
        options.parse(["--kube-api-brust=3"])


@pytest.mark.row("daemon-flags-05")
@pytest.mark.parametrize(
    ("argv", "workers"),
    [
        ([], 1),
        (["--concurrent-node-syncs=5"], 5),
        (["--concurrent-node-syncs=1", "--concurrent-node-status-updates=2"], 2),
    ],
)
def test_status_workers(argv: list[str], workers: int) -> None:
    """Without a number of their own there are as many as sync workers."""
    assert options.parse(argv).node_status_workers == workers


@pytest.mark.parametrize(
    ("argv", "rate"),
    [
        ([], (20.0, 30)),
        (["--kube-api-qps=0.5", "--kube-api-burst=1"], (0.5, 1)),
        (["--kube-api-qps=0", "--kube-api-burst=0"], (5.0, 10)),
        (["--kube-api-qps=-1"], None),
    ],
)
def test_api_rate(argv: list[str], rate: tuple[float, int] | None) -> None:
    """Zero means client-go's own numbers, a negative rate no limit."""
    assert options.parse(argv).api_rate == rate


@pytest.mark.parametrize(
    ("argv", "rate"),
    [
        ([], None),
        (["--cloud-api-qps=2.5"], (2.5, 3)),
        (["--cloud-api-qps=0.1"], (0.1, 1)),
        (["--cloud-api-qps=2", "--cloud-api-burst=10"], (2.0, 10)),
    ],
)
def test_cloud_rate(argv: list[str], rate: tuple[float, int] | None) -> None:
    """Calls to the cloud are not limited unless asked for."""
    assert options.parse(argv).cloud_rate == rate


def test_help_is_answered() -> None:
    """Help holds every flag but the deprecated, in 100 columns, and beats stray words."""
    text = options.answer(options.parse(["stray", "-h"]))

    assert text is not None
    assert max(map(len, text.splitlines())) <= 100
    for flag in options.FLAGS.values():
        assert (f" --{flag.name}" in text.replace("\n", " ")) is not bool(flag.deprecated)


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ([], None),
        (["--version=false"], None),
        (["--version=v1.36.3"], None),
        (["--version"], f"cloud-controller-manager {ccm.__version__}\n"),
        (["--version=true"], f"cloud-controller-manager {ccm.__version__}\n"),
    ],
)
def test_version_is_answered(argv: list[str], answer: str | None) -> None:
    """The version is printed when asked for and only then."""
    assert options.answer(options.parse(argv)) == answer


def test_raw_version() -> None:
    """Raw tells the Python and the platform too, on one line."""
    text = options.answer(options.parse(["--version=raw"]))

    assert text is not None
    assert text.startswith(f"cloud-controller-manager {ccm.__version__} python=3.")
    assert text.count("\n") == 1


def test_notices_tell_of_flags_without_effect() -> None:
    """Each accepted flag that was given is told once; working ones and defaults are not."""
    read = options.parse(
        [
            "--controllers=cloud-node",
            "--secure-port=1",
            "--disable-http2-serving=true",
            "--contention-profiling",
            "--contention-profiling",
            "-v2",
        ]
    )

    assert read.notices() == [
        "--disable-http2-serving has no effect: this server speaks HTTP/1.1 only",
        "--contention-profiling has no effect: it belongs to the Go run time",
    ]


def test_notices_tell_of_deprecated_flags() -> None:
    """A deprecated flag that works is told as such."""
    read = options.parse(["--controllers=cloud-node", "--allow-untagged-cloud"])

    assert read.notices() == [
        "--allow-untagged-cloud is deprecated: give the cloud's objects a cluster ID"
    ]


def test_notices_tell_of_what_comes_later() -> None:
    """Controllers not built, gates without effect and a set version are told."""
    read = options.parse(["--version=v9.9.9", "--feature-gates=NativeHistograms=true"])

    assert read.notices() == [
        f"--version=v9.9.9 has no effect: the version is {ccm.__version__}",
        "feature gate NativeHistograms has no effect in this version",
    ]


def test_flag_lines() -> None:
    """Every flag is logged with the value in force."""
    lines = options.parse(["--cluster-name=k8s", "-v4"]).flag_lines()

    assert len(lines) == len(options.FLAGS)
    assert 'FLAG: --cluster-name="k8s"' in lines
    assert 'FLAG: --v="4"' in lines
    assert 'FLAG: --min-resync-period="12h0m0s"' in lines

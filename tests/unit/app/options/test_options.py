"""The daemon's flag table: the reference's command lines, help, notices."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

import ccm
from ccm.app import options
from ccm.app.options import argv
from ccm.base.flag_values import NamedCertificate

WITHOUT_EFFECT = """
allocate-node-cidrs cidr-allocator-type contention-profiling disable-http2-serving
external-cloud-volume-plugin http2-max-streams-per-connection kube-api-content-type
node-sync-period permit-address-sharing webhook-disable-http2-serving
"""

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


def test_what_is_accepted_without_effect() -> None:
    """A flag works, or says why it has no effect."""
    idle = [name for name, flag in options.FLAGS.items() if flag.accepted]

    assert idle == WITHOUT_EFFECT.split()


def test_every_flag_is_described() -> None:
    """Text and section are there; a bare number has a unit or is a level."""
    for flag in options.FLAGS.values():
        assert flag.section in options.SECTIONS
        assert flag.text.endswith(".")
        assert flag.unit or flag.kind.word not in ("int", "int32", "float")


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
    with pytest.raises(argv.UsageError) as caught:
        options.parse(["--leader-elect", "false", "x"])

    assert str(caught.value) == (
        '"cloud-controller-manager" does not take any arguments, got ["false" "x"]'
    )
    assert options.parse([""]) == options.Options()


def test_an_unknown_flag_gets_a_hint() -> None:
    """A mistyped flag is refused with the nearest one known."""
    with pytest.raises(argv.UsageError, match="did you mean --kube-api-burst"):
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
        "--contention-profiling has no effect: it belongs to the Go run time",
        "--disable-http2-serving has no effect: this server speaks HTTP/1.1 only",
    ]


def test_notices_tell_of_deprecated_flags() -> None:
    """A deprecated flag that works is told as such."""
    read = options.parse(["--controllers=cloud-node", "--allow-untagged-cloud"])

    assert read.notices() == [
        "--allow-untagged-cloud is deprecated: give the cloud's objects a cluster ID"
    ]


def test_notices_tell_of_gates_and_versions() -> None:
    """Gates without effect and a set version are told."""
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

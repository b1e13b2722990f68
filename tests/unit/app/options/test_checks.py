"""Settings that make no sense are found, all at once, before anything starts."""

from __future__ import annotations

import pytest

from ccm.app import options
from ccm.app.options import argv, checks


def faults(*argv: str) -> list[str]:
    return checks.faults(options.parse(["--cloud-provider=sim", *argv]))


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "--controllers=*",
        "--controllers=",
        "--controllers=cloud-node,-route,service-lb-controller",
        "--concurrent-node-syncs=5",
        "--concurrent-node-syncs=5 --concurrent-node-status-updates=5",
        "--concurrent-node-status-updates=0",
        "--leader-elect=false --leader-elect-resource-lock=endpoints",
        "--leader-elect=false --leader-elect-lease-duration=0",
        (
            "--leader-elect-lease-duration=2s --leader-elect-renew-deadline=1500ms "
            "--leader-elect-retry-period=500ms"
        ),
        "--secure-port=0 --webhook-secure-port=0",
        "--secure-port=65535",
        "--kube-api-qps=-1",
        "--kube-api-qps=0 --kube-api-burst=0",
        "--min-resync-period=0",
        "--inventory-max-age=0",
        "--webhooks=*",
        "--requestheader-uid-headers=x-remote-uid",
        "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream",
        "--feature-gates=AllAlpha=true",
        "--logging-format=json",
        "--tls-cert-file=a --tls-private-key-file=b --tls-min-version=VersionTLS12",
        "--cloud-api-qps=1 --cloud-api-burst=5",
    ],
)
def test_accepted(argv: str) -> None:
    """Settings that make sense pass, among them all that the reference takes."""
    assert faults(*argv.split()) == []


@pytest.mark.row("daemon-flags-06", "daemon-flags-08")
@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (
            "--leader-elect-resource-lock=configmapsleases",
            'resourceLock value must be "leases"',
        ),
        ("--leader-elect-resource-name=", "cannot be empty"),
        ("--leader-elect-resource-namespace=", "cannot be empty"),
        ("--leader-elect-lease-duration=10s", "longer than --leader-elect-renew-deadline"),
        ("--leader-elect-renew-deadline=2400ms", "longer than 1.2 times"),
        ("--leader-elect-retry-period=0", "must be longer than 0s"),
        (
            (
                "--leader-elect-lease-duration=900ms --leader-elect-renew-deadline=500ms "
                "--leader-elect-retry-period=100ms"
            ),
            "must be 1s or longer",
        ),
        ("--controllers=-bogus", '"bogus" is not in the list of known controllers; known: cloud-'),
        ("--controllers=x,-y", '"x", "y" are not in the list of known controllers; known: cloud-'),
        ("--controllers=node-controller", '"node-controller" is not in the list of known'),
        ("--webhooks=foo", '"foo" is not in the list of known webhooks'),
        ("--concurrent-node-syncs=0", "concurrent-node-syncs must be a positive number"),
        ("--concurrent-node-syncs=-5", "concurrent-node-syncs must be a positive number"),
        (
            "--concurrent-node-syncs=5 --concurrent-node-status-updates=-1",
            "concurrent-node-status-updates cannot be a negative number",
        ),
        ("--load-balancer-nodes-quiet-period=-1s", "must be 0s or longer"),
        ("--load-balancer-nodes-longest-wait=500ms", "cannot be shorter than"),
        ("--load-balancer-classes=a,,b", "a class cannot be empty"),
        ("--node-monitor-period=0", "must be longer than 0s"),
        ("--node-deletion-limit=-1", "must be 0 (no limit) or more"),
        ("--route-safety-period=5s", "cannot be shorter than --route-shortest-interval"),
        ("--kube-api-qps=1e999", "finite"),
        ("--kube-api-burst=-1", "must be 0 (meaning 10) or more"),
        ("--cloud-api-qps=-1", "must be 0 (no limit) or more"),
        ("--cloud-api-qps=1e999", "must be 0 (no limit) or more"),
        ("--cloud-api-burst=-1", "must be 0 or more"),
        ("--cloud-api-burst=3", "needs --cloud-api-qps above 0"),
        ("--secure-port=65536", "must be from 0 (no server) to 65535"),
        ("--webhook-secure-port=-1", "must be from 0 (no server) to 65535"),
        (
            "--webhook-secure-port=10258",
            "--webhook-secure-port cannot be the same value as --secure-port",
        ),
        ("--tls-cert-file=a", "needs --tls-private-key-file too"),
        ("--webhook-tls-private-key-file=a", "needs --webhook-tls-cert-file too"),
        ("--tls-min-version=1.2", "must be one of VersionTLS10"),
        ("--requestheader-group-headers=,", "a header name cannot be empty"),
        (
            "--feature-gates=RemoteRequestHeaderUID=false --requestheader-uid-headers=x-remote-uid",
            "needs the feature gate RemoteRequestHeaderUID",
        ),
        ("--log-text-info-buffer-size=1Ki", "needs --feature-gates=LoggingAlphaOptions=true"),
        ("--feature-gates=Xyz=true", "unrecognized feature gate: Xyz; known: "),
        ("--logging-format=xml", 'must be "text", "json" or "dev"'),
        ("--log-json-info-buffer-size=-1", "must be 0 (nothing is held back) or more"),
        ("--logging-format=json --vmodule=a=1", "works with --logging-format=text only"),
    ],
)
def test_refused(argv: str, fault: str) -> None:
    """One fault is one sentence that names the flag and what would be right."""
    words = argv.split()
    given = {word.removeprefix("--").partition("=")[0] for word in words}

    found = [sentence for sentence in faults(*words) if fault in sentence]

    assert len(found) == 1
    assert found[0].removeprefix("--").partition("=")[0] in given


def test_a_fault_shows_the_value() -> None:
    """The value stands behind the flag as it would be written."""
    assert faults("--node-monitor-period=-90s") == [
        "--node-monitor-period=-1m30s: must be longer than 0s"
    ]


def test_a_missing_provider() -> None:
    """The provider is the one setting without a default."""
    (fault,) = checks.faults(options.Options())

    assert fault.startswith("--cloud-provider cannot be empty")


@pytest.mark.row("daemon-flags-04")
def test_all_faults_in_one_message() -> None:
    """Nobody has to start the daemon twice to learn of a second fault."""
    read = options.parse(
        ["--controllers=x", "--secure-port=-1", "--concurrent-node-syncs=0", "--logging-format=y"]
    )

    with pytest.raises(argv.UsageError) as caught:
        checks.check(read)

    assert len(caught.value.faults) == 5
    assert all(fault in str(caught.value) for fault in caught.value.faults)


def test_wrong_gates_are_not_told_of_twice() -> None:
    (fault,) = faults(
        "--feature-gates=LoggingAlphaOptions=true,Xyz=true", "--log-text-split-stream"
    )

    assert "unrecognized feature gate: Xyz" in fault


def test_sound_settings_pass() -> None:
    """`check` says nothing about settings that make sense."""
    checks.check(options.parse(["--cloud-provider=sim"]))

"""Settings that make no sense are found, all at once, before anything starts."""

from __future__ import annotations

import pytest

from ccm.app import options
from ccm.app.options import checks

_SHORT = "--leader-elect-renew-deadline=500ms --leader-elect-retry-period=100ms"


def faults(*argv: str) -> list[str]:
    return checks.faults(options.parse(["--cloud-provider=sim", *argv]))


@pytest.mark.parametrize(
    "argv",
    [
        "--controllers=cloud-node,-route,service-lb-controller,service-controller",
        "--leader-elect=false --leader-elect-resource-lock=endpoints",
        f"{_SHORT} --leader-elect-lease-duration=2s",
        "--secure-port=0 --webhook-secure-port=0",
        "--kube-api-qps=0 --kube-api-burst=0",
        "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream",
        "--feature-gates=AllAlpha=true",
        "--tls-cert-file=a --tls-private-key-file=b --tls-min-version=VersionTLS12",
    ],
)
def test_accepted(argv: str) -> None:
    """Settings that make sense pass, among them all that the reference takes."""
    assert faults(*argv.split()) == []


@pytest.mark.row("daemon-flags-06", "daemon-flags-08", "daemon-names-04")
@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        ("--leader-elect-resource-lock=endpoints", 'lock=endpoints: must be "leases"'),
        (f"--leader-elect-resource-name={'a' * 254}", "must be a name such as"),
        ("--leader-elect-lease-duration=10s", "longer than --leader-elect-renew-deadline"),
        ("--leader-elect-lease-duration=10500ms", "that is 10.5263s"),
        ("--leader-elect-renew-deadline=2400ms", "longer than 1.2 times"),
        (f"{_SHORT} --leader-elect-lease-duration=900ms", "must be 1s or longer"),
        ("--controllers=x,-y", '"x", "y" are not in the list of known controllers; known: cloud-'),
        ("--controllers=node-controller", '"node-controller" is not in the list of known'),
        ("--load-balancer-nodes-longest-wait=500ms", "cannot be shorter than"),
        ("--node-monitor-period=-90s", "--node-monitor-period=-1m30s: must be longer than 0s"),
        ("--route-safety-period=5s", "cannot be shorter than --route-shortest-interval"),
        (
            "--machine-safety-apiserver-statuscheck-period=5s",
            "cannot be shorter than --machine-safety-apiserver-statuscheck-timeout",
        ),
        ("--cloud-api-burst=3", "needs --cloud-api-qps above 0"),
        ("--webhook-secure-port=10258", "cannot be the same value as --secure-port"),
        ("--tls-cert-file=a", "needs --tls-private-key-file too"),
        ("--webhook-tls-private-key-file=a", "needs --webhook-tls-cert-file too"),
        (
            "--feature-gates=RemoteRequestHeaderUID=false --requestheader-uid-headers=x-remote-uid",
            "needs the feature gate RemoteRequestHeaderUID",
        ),
        ("--log-text-info-buffer-size=1Ki", "needs --feature-gates=LoggingAlphaOptions=true"),
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


def test_wrong_gates_are_not_told_of_twice() -> None:
    (fault,) = faults(
        "--feature-gates=LoggingAlphaOptions=true,Xyz=true", "--log-text-split-stream"
    )

    assert "unrecognized feature gate: Xyz" in fault

"""What the daemon's settings come to: derived numbers, help, version, notices."""

from __future__ import annotations

import re

import pytest

import ccm
from ccm.app import options
from ccm.app.options import argv

VERSION = re.escape(f"cloud-controller-manager {ccm.__version__}")


def test_every_flag_is_described() -> None:
    """Text and section are there; a bare number has a unit or is a level."""
    for flag in options.FLAGS.values():
        assert flag.section in options.SECTIONS
        assert flag.text.endswith(".")
        assert flag.unit or flag.kind.word not in ("int", "int32", "float")


def test_arguments_are_refused() -> None:
    """Words that belong to no flag are refused, empty ones are not."""
    with pytest.raises(argv.UsageError) as caught:
        options.parse(["--leader-elect", "false", "x"])

    assert str(caught.value) == (
        '"cloud-controller-manager" does not take any arguments, got ["false" "x"]'
    )
    assert options.parse([""]) == options.Options()


@pytest.mark.row("daemon-flags-05")
@pytest.mark.parametrize(
    ("setting", "words", "value"),
    [
        # Without a number of their own there are as many as sync workers.
        ("node_status_workers", "", 1),
        ("node_status_workers", "--concurrent-node-syncs=5", 5),
        ("node_status_workers", "--concurrent-node-status-updates=2", 2),
        # Zero means client-go's own numbers, a negative rate no limit.
        ("api_rate", "", (20.0, 30)),
        ("api_rate", "--kube-api-qps=0.5 --kube-api-burst=1", (0.5, 1)),
        ("api_rate", "--kube-api-qps=0 --kube-api-burst=0", (5.0, 10)),
        ("api_rate", "--kube-api-qps=-1", None),
        # Calls to the cloud are not limited unless asked for.
        ("cloud_rate", "", None),
        ("cloud_rate", "--cloud-api-qps=2.5", (2.5, 3)),
        ("cloud_rate", "--cloud-api-qps=2 --cloud-api-burst=10", (2.0, 10)),
    ],
)
def test_numbers_that_follow_from_flags(setting: str, words: str, value: object) -> None:
    assert getattr(options.parse(words.split()), setting) == value


def test_help_is_answered() -> None:
    """Help holds every flag but the deprecated, in 100 columns, and beats stray words."""
    text = options.answer(options.parse(["stray", "-h"]))

    assert text is not None
    assert max(map(len, text.splitlines())) <= 100
    for flag in options.FLAGS.values():
        assert (f" --{flag.name}" in text.replace("\n", " ")) is not bool(flag.deprecated)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], ""),
        (["--version=false"], ""),
        (["--version=v1.36.3"], ""),
        (["--version"], f"{VERSION}\n"),
        (["--version=raw"], f"{VERSION} python=3.*\n"),
    ],
)
def test_version_is_answered(words: list[str], answer: str) -> None:
    """The version is printed when asked for and only then; raw tells more, on one line."""
    text = options.answer(options.parse(words)) or ""

    assert re.fullmatch(answer, text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--controllers=cloud-node --secure-port=1 -v2", []),
        (
            "--contention-profiling --contention-profiling",
            ["--contention-profiling has no effect: it belongs to the Go run time"],
        ),
        (
            "--allow-untagged-cloud",
            ["--allow-untagged-cloud is deprecated: give the cloud's objects a cluster ID"],
        ),
        (
            "--version=v9.9.9 --feature-gates=AllAlpha=1,NativeHistograms=1,LoggingAlphaOptions=1",
            [
                f"--version=v9.9.9 has no effect: the version is {ccm.__version__}",
                "feature gate NativeHistograms has no effect in this version",
            ],
        ),
    ],
)
def test_notices(words: str, told: list[str]) -> None:
    """Each setting without effect, or that is old, is told once; working ones are not."""
    assert options.parse(words.split()).notices() == told


def test_flag_lines() -> None:
    """Every flag is logged with the value in force, in quotes, by name."""
    lines = options.parse(['--cluster-name=a"b\\c\n', "-v4"]).flag_lines()

    assert len(lines) == len(options.FLAGS)
    assert 'FLAG: --cluster-name="a\\"b\\\\c\\n"' in lines
    assert 'FLAG: --controllers="[*]"' in lines
    assert 'FLAG: --v="4"' in lines

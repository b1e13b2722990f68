"""The command line: its syntax on a small table, then the settings, help and reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest

import ccm
from ccm.app import options
from ccm.app.options import argv, reference
from ccm.base.flags import (
    GATES,
    LEVEL,
    Section,
    table,
)

ALPHA = Section("alpha")
BETA = Section("beta", ours=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    v: int = ALPHA.flag(0, "How much.", short="v", kind=LEVEL)
    help: bool = ALPHA.flag(False, "Help.", short="h")
    leader_elect: bool = ALPHA.flag(True, "Elect.")
    cluster_name: str = ALPHA.flag("kubernetes", "Name.")
    controllers: tuple[str, ...] = ALPHA.flag(("*",), "Which. " * 30)
    feature_gates: Mapping[str, bool] = BETA.flag(MappingProxyType({}), "Gates.", kind=GATES)
    burst: int = BETA.flag(30, "Burst.", unit="requests")
    old: bool = BETA.flag(False, "Old.", deprecated="leave it out")
    not_a_flag: int = 0


TABLE = table(Settings)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--leader-elect=false"], {"leader-elect": False}),
        (["--leader-elect"], {"leader-elect": True}),
        (["-v=4"], {"v": 4}),
        (["-v4"], {"v": 4}),
        (["-v", "4"], {"v": 4}),
        (["--v=4"], {"v": 4}),
        (["--v", "4"], {"v": 4}),
        (["--leader_elect=false"], {"leader-elect": False}),
        (["--cluster_name", "a_b"], {"cluster-name": "a_b"}),
        (["-h"], {"help": True}),
        (["-h=false"], {"help": False}),
        (["--cluster-name="], {"cluster-name": ""}),
        (["--cluster-name", "--help"], {"cluster-name": "--help"}),
        (["--cluster-name=a=b"], {"cluster-name": "a=b"}),
        (["--cluster-name=a", "--cluster-name=b"], {"cluster-name": "b"}),
        (["--controllers=a,b"], {"controllers": ("a", "b")}),
        (["--controllers=a", "--controllers=b,c"], {"controllers": ("a", "b", "c")}),
        (["--controllers="], {"controllers": ()}),
        (["--controllers=-a"], {"controllers": ("-a",)}),
        (["--controllers", "-a"], {"controllers": ("-a",)}),
        (
            ["--feature-gates=A=true", "--feature-gates=B=1,A=0"],
            {"feature-gates": {"A": False, "B": True}},
        ),
        (["--leader-elect", "--v=1"], {"leader-elect": True, "v": 1}),
    ],
    ids=" ".join,
)
def test_syntax(words: list[str], expected: dict[str, object]) -> None:
    """Every form that the reference's flag library reads is read the same way."""
    parsed = argv.parse(TABLE, words)

    assert (parsed.values, parsed.arguments) == (expected, ())


@pytest.mark.parametrize(
    ("words", "values", "arguments"),
    [
        ("--leader-elect false", {"leader-elect": True}, "false"),
        ("a -v1  - -- --v=2 -x", {"v": 1}, "a - --v=2 -x"),
    ],
    ids=["a boolean never takes the next word", "a dash, words between flags, all after --"],
)
def test_words_that_belong_to_no_flag(words: str, values: object, arguments: str) -> None:
    """They are arguments, as in the reference; empty ones vanish."""
    parsed = argv.parse(TABLE, words.split(" "))

    assert (parsed.values, parsed.arguments) == (values, tuple(arguments.split()))


def test_flags_without_effect_take_any_value_and_are_named_once() -> None:
    words = ["--idle", "x", "--mute", "--idle=y", "-v1", "--help=0"]

    parsed = argv.parse(TABLE, words, {"idle": True, "mute": False, "help": False})

    assert parsed == argv.Parsed(
        values={"v": 1, "help": False}, arguments=(), idle=("idle", "mute")
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ["--leader-elekt=true"],
            "unknown flag: --leader-elekt; did you mean --leader-elect? See --help",
        ),
        (["--zzzzzzzz"], "unknown flag: --zzzzzzzz; see --help"),
        (["--lead"], "unknown flag: --lead; see --help"),
        (["--not-a-flag=1"], "unknown flag: --not-a-flag; see --help"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["--=1"], "bad flag syntax: --=1"),
        (["---v=1"], "bad flag syntax: ---v=1"),
        (["--cluster-name"], "flag needs an argument: --cluster-name takes any text"),
        (["-v"], "flag needs an argument: --v takes a whole number from 0 to 2147483647"),
        (["-v="], 'invalid argument "" for --v: it takes a whole number from 0 to 2147483647'),
        (
            ["--leader-elect=yes"],
            'invalid argument "yes" for --leader-elect: it takes true or false',
        ),
        (
            ["--burst=3000000000"],
            (
                'invalid argument "3000000000" for --burst: '
                "it takes a whole number from -2147483648 to 2147483647"
            ),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refusals(words: list[str], fault: str) -> None:
    """A fault names the flag, what was given and what would be right."""
    with pytest.raises(argv.UsageError) as caught:
        argv.parse(TABLE, words)

    (found,) = caught.value.faults
    assert found.startswith(fault)


def test_all_faults_are_reported_at_once() -> None:
    """One message holds every fault of the command line."""
    with pytest.raises(argv.UsageError) as caught:
        argv.parse(TABLE, ["--bogus", "--v=x", "--leader-elect=maybe", "--cluster-name"])

    assert len(caught.value.faults) == 4
    assert all(fault in str(caught.value) for fault in caught.value.faults)


def test_help() -> None:
    """Help goes by section, shows type, unit, default and state, and hides the deprecated."""
    text = argv.explain(TABLE, [BETA, ALPHA])

    assert text.startswith("Beta flags:\n\n      --burst")
    assert text.index("Beta flags:") < text.index("Alpha flags:")
    assert "      --burst int32  (requests, default 30)\n          Burst.\n" in text
    assert "      --feature-gates Name=bool,...\n          Gates.\n" in text
    assert "      --leader-elect  (bool, default true)" in text
    assert "  -v, --v level  (default 0)" in text
    assert "--old" not in text
    assert max(map(len, text.splitlines())) <= 100


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
            "--contention-profiling --node-sync-period 1s --contention-profiling",
            ["accepted without effect: --contention-profiling, --node-sync-period"],
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


def test_the_file_is_what_the_table_says() -> None:
    """If not: `python -m ccm.app.options.reference > ccm/app/FLAGS.md`."""
    assert reference.FILE.read_text(encoding="utf-8") == reference.markdown()


def test_every_flag_has_one_line() -> None:
    named = re.findall(r"^\| (?:`-\w`, )?`--([a-z0-9-]+)` \|", reference.markdown(), re.MULTILINE)

    assert sorted(named) == sorted(options.FLAGS)

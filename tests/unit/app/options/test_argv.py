"""Command line syntax, on a small table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from ccm.app.options import argv, command
from ccm.base import flag_values as values
from ccm.base.flags import Section, table

ALPHA = Section("alpha")
BETA = Section("beta", ours=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    v: int = ALPHA.flag(0, "How much.", short="v", kind=values.LEVEL)
    help: bool = ALPHA.flag(False, "Help.", short="h")
    leader_elect: bool = ALPHA.flag(True, "Elect.")
    cluster_name: str = ALPHA.flag("kubernetes", "Name.")
    controllers: tuple[str, ...] = ALPHA.flag(("*",), "Which. " * 30)
    feature_gates: Mapping[str, bool] = BETA.flag(MappingProxyType({}), "Gates.", kind=values.GATES)
    burst: int = BETA.flag(30, "Burst.", unit="requests", accepted="never")
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
        (["-hv4"], {"help": True, "v": 4}),
        (["-hv", "4"], {"help": True, "v": 4}),
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
        (["-hx"], "unknown shorthand flag: 'x' in -hx"),
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
    text = command.explain(TABLE, [BETA, ALPHA])

    assert text.startswith("Beta flags:\n\n      --burst")
    assert text.index("Beta flags:") < text.index("Alpha flags:")
    assert "      --burst int32  (requests, default 30)\n          Burst. Accepted" in text
    assert "Burst. Accepted without effect: never.\n" in text
    assert "      --feature-gates Name=bool,...\n          Gates.\n" in text
    assert "      --leader-elect  (bool, default true)" in text
    assert "  -v, --v level  (default 0)" in text
    assert "--old" not in text
    assert max(map(len, text.splitlines())) <= 100

"""The flags: declared, read from a command line, explained; lists of controllers and webhooks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest

import ccm
from ccm.app import options
from ccm.app.options import argv, controllers
from ccm.app.options.controllers import MANIFESTS
from ccm.base import redact
from ccm.base.flags import GATES, LEVEL, FlagSection, flags_of

_TABLE = Path(__file__).with_name("flag_rows.txt")


WITH: Mapping[str, tuple[str, ...]] = {
    "cloud-api-burst": ("--cloud-api-qps=1",),
    "requestheader-uid-headers": ("--feature-gates=RemoteRequestHeaderUID=true",),
    "webhook-tls-cert-file": ("--webhook-tls-private-key-file=/a/key",),
    "webhook-tls-private-key-file": ("--webhook-tls-cert-file=/a/cert",),
    "tls-cert-file": ("--tls-private-key-file=/a/key",),
    "tls-private-key-file": ("--tls-cert-file=/a/cert",),
    **{
        f"log-{form}-{what}": ("--feature-gates=LoggingAlphaOptions=true",)
        for form in ("text", "json")
        for what in ("split-stream", "info-buffer-size")
    },
}
"""Flags that make sense together with others only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One flag.

    Attributes:
        name: of the flag.
        default: as written.
        takes: words of the command line, and what comes back as written.
        refuses: texts.
    """

    name: str
    default: str
    takes: Mapping[str, str]
    refuses: tuple[str, ...]


def rows() -> Mapping[str, Row]:
    """All rows by the name of their flag."""
    found = {}
    for line in _TABLE.read_text().splitlines():
        name, default, takes, refuses = (part.strip() for part in line.split("|"))
        taken, refused = dict(_taken(name, takes)), tuple(map(_text, refuses.split()))
        found[name] = Row(name=name, default=default, takes=taken, refuses=refused)
    return found


def _taken(name: str, texts: str) -> Iterator[tuple[str, str]]:
    for entry in texts.replace("'' ->", "''->").split():
        text, arrow, written = entry.partition("->")
        if entry in ("-", "->true"):
            yield f"--{name}", "true"
        else:
            yield f"--{name}={_text(text)}", written if arrow else _text(text)


def _text(text: str) -> str:
    return "" if text == "''" else text


ROWS = rows()
GUIDANCE = re.compile(
    r"expected|must|needs|cannot|can't|known|installed|works with|unrecognized|is not in the list"
)
"""Words that introduce the expected form."""


def together(row: Row, word: str) -> list[str]:
    """Return a command line that is valid apart from this word."""
    others = [] if row.name == "cloud-provider" else ["--cloud-provider=sim"]
    return [*others, *WITH.get(row.name, ()), word]


def complaints(words: list[str]) -> list[str]:
    """Return the errors of a command line; none if it is valid."""
    try:
        return options.faults(options.parse(words))
    except argv.UsageError as error:
        return list(error.faults)


def test_every_flag_has_a_row_in_the_flag_table() -> None:
    assert set(ROWS) == set(options.FLAGS)


def test_only_flags_of_type_string_accept_every_text() -> None:
    silent = {name for name, row in ROWS.items() if not row.refuses}

    assert {options.FLAGS[name].kind.word for name in silent} == {"string"}


@pytest.mark.row("daemon-flags-01")
def test_flag_defaults_match_the_flag_table() -> None:
    given = options.parse([])

    written = {name: flag.kind.write(given.get(name)) for name, flag in options.FLAGS.items()}

    assert written == {name: row.default for name, row in ROWS.items()}


def test_flags_accept_the_values_in_the_flag_table() -> None:
    for name, row in ROWS.items():
        for word, written in row.takes.items():
            argv = together(row, word)
            read = options.parse(argv)

            assert options.FLAGS[name].kind.write(read.get(name)) == written, word
            assert name in read.explicit, word
            assert complaints(argv) == [], word


@pytest.mark.row("daemon-flags-02")
def test_command_line_with_all_flags_sets_each_of_them() -> None:
    """The values arrive unchanged, and each flag counts as explicitly set."""
    words = {name: next(iter(row.takes)) for name, row in ROWS.items()}

    read = options.parse(list(words.values()))

    written = {name: flag.kind.write(read.get(name)) for name, flag in options.FLAGS.items()}
    assert written == {name: row.takes[words[name]] for name, row in ROWS.items()}
    assert read.explicit == set(ROWS)


@pytest.mark.row("daemon-flags-03")
def test_flags_refuse_the_invalid_values_in_the_flag_table() -> None:
    """The message names the flag, the value, and the expected form."""
    for name, row in ROWS.items():
        for text in row.refuses:
            (said,) = complaints(together(row, f"--{name}={text}"))

            assert f"--{name}" in said
            assert text in said.replace("\\", ""), said
            assert GUIDANCE.search(said), said
            assert redact.mask_text(said) == said, "a name that looks like a secret's"


@pytest.mark.row("daemon-flags-07")
def test_flags_without_effect_are_listed_in_one_notice() -> None:
    words = [f"--{name}=x" for name in options.NO_EFFECT]

    (notice,) = options.parse(words).notices()

    assert set(re.findall(r"--([\w-]+)", notice)) == set(options.NO_EFFECT)
    assert options.parse(words).explicit == set()


@pytest.mark.row("daemon-flags-07")
@pytest.mark.parametrize(
    "word",
    [
        "--tls-curve-preferences=29,23",
        "--webhook-tls-curve-preferences=29,23",
        "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA",
        "--webhook-tls-cipher-suites=TLS_AES_128_GCM_SHA256",
    ],
)
def test_tls_settings_that_python_cannot_apply_cause_one_notice(word: str) -> None:
    (said,) = options.parse([word]).notices()

    assert said.startswith(word.partition("=")[0])


@pytest.mark.row("daemon-flags-04")
def test_all_invalid_flags_are_reported_at_once() -> None:
    argv = ["--cloud-provider=", "--secure-port=-1", "--tls-cipher-suites=X", "--webhooks=y"]

    said = complaints(argv)

    assert len(said) == len(argv)
    assert "--cloud-provider is required; installed: hcloud, openstack, sim, stackit" in said
    for word in argv:
        assert any(word.partition("=")[0] in line for line in said)


_SHORT = "--leader-elect-renew-deadline=500ms --leader-elect-retry-period=100ms"


def faults(*argv: str) -> list[str]:
    return options.faults(options.parse(["--cloud-provider=sim", *argv]))


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
        (
            "--controllers=kubermaticmachine --leader-elect-resource-name=machine-controller",
            "is also the Lease that kubermatic-machine-controller must hold",
        ),
        ("--controllers=x,-y", '"x", "y" are not in the list of known controllers; known: cloud-'),
        ("--controllers=node-controller", '"node-controller" is not in the list of known'),
        ("--load-balancer-node-update-max-delay=500ms", "cannot be shorter than"),
        ("--node-monitor-period=-90s", "--node-monitor-period=-1m30s: must be longer than 0s"),
        ("--route-resync-period=5s", "cannot be shorter than --route-reconciliation-min-interval"),
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
def test_invalid_flag_combination_causes_one_error(argv: str, fault: str) -> None:
    """The error is one sentence with the flag and the expected form."""
    words = argv.split()
    given = {word.removeprefix("--").partition("=")[0] for word in words}

    found = [sentence for sentence in faults(*words) if fault in sentence]

    assert len(found) == 1
    assert found[0].removeprefix("--").partition("=")[0] in given


ALPHA = FlagSection("alpha")
BETA = FlagSection("beta", ours=True)


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


TABLE = flags_of(Settings)


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
def test_flag_syntax_matches_pflag(words: list[str], expected: dict[str, object]) -> None:
    """Every form that pflag, the flag library of Kubernetes, reads is read the same way."""
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
def test_words_without_a_flag_become_positional_arguments(
    words: str, values: object, arguments: str
) -> None:
    """Positional arguments are kept as by pflag; empty ones are dropped."""
    parsed = argv.parse(TABLE, words.split(" "))

    assert (parsed.values, parsed.arguments) == (values, tuple(arguments.split()))


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        (
            "--leader-elekt=true",
            "unknown flag: --leader-elekt; did you mean --leader-elect? See --help",
        ),
        ("--zzzzzzzz", "unknown flag: --zzzzzzzz; see --help"),
        ("--lead", "unknown flag: --lead; see --help"),
        ("--not-a-flag=1", "unknown flag: --not-a-flag; see --help"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("--=1", "bad flag syntax: --=1"),
        ("---v=1", "bad flag syntax: ---v=1"),
        ("--cluster-name", "flag needs an argument: --cluster-name takes any text"),
        ("-v", "flag needs an argument: --v takes a whole number from 0 to 2147483647"),
        ("-v=", 'invalid argument "" for --v: expected a whole number from 0 to 2147483647'),
        ("--leader-elect=yes", 'invalid argument "yes" for --leader-elect: expected true or false'),
        (
            "--burst=3000000000",
            'invalid argument "3000000000" for --burst: expected a whole number',
        ),
    ],
)
def test_malformed_flags_are_refused_as_by_pflag(word: str, fault: str) -> None:
    """The error names the flag, the given value and the expected form."""
    with pytest.raises(argv.UsageError) as caught:
        argv.parse(TABLE, [word])

    (found,) = caught.value.faults
    assert found.startswith(fault)


def test_each_flag_declares_a_section_a_description_and_a_unit() -> None:
    """A numeric flag without a unit must be a level."""
    for flag in options.FLAGS.values():
        assert flag.section in options.SECTIONS
        assert flag.text.endswith(".")
        assert flag.unit or flag.kind.word not in ("int", "int32", "float")


VERSION = re.escape(f"cloud-controller-manager {ccm.__version__}")


def test_positional_arguments_are_refused() -> None:
    """Empty arguments are accepted."""
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
        # By default there are as many status workers as sync workers.
        ("node_status_workers", "", 32),
        ("node_status_workers", "--concurrent-node-syncs=5", 5),
        ("node_status_workers", "--concurrent-node-status-updates=2", 2),
        # Zero means client-go's defaults; a negative rate means no limit.
        ("api_rate", "", (20.0, 30)),
        ("api_rate", "--kube-api-qps=0.5 --kube-api-burst=1", (0.5, 1)),
        ("api_rate", "--kube-api-qps=0 --kube-api-burst=0", (5.0, 10)),
        ("api_rate", "--kube-api-qps=-1", None),
        # A limit that is set applies always, even if it equals the default.
        ("is_default_api_rate", "", True),
        ("is_default_api_rate", "--kube-api-qps=20", False),
        ("is_default_api_rate", "--kube-api-burst=30", False),
        # Calls to the cloud are unlimited by default.
        ("cloud_rate", "", None),
        ("cloud_rate", "--cloud-api-qps=2.5", (2.5, 3)),
        ("cloud_rate", "--cloud-api-qps=2 --cloud-api-burst=10", (2.0, 10)),
    ],
)
def test_worker_counts_and_rate_limits_are_derived_from_flags(
    setting: str, words: str, value: object
) -> None:
    assert getattr(options.parse(words.split()), setting) == value


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
def test_version_is_printed_only_when_requested(words: list[str], answer: str) -> None:
    """--version=raw adds the version of Python, on the same line."""
    text = options.help_or_version(options.parse(words)) or ""

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
            ["--allow-untagged-cloud is deprecated: set a cluster ID for cloud objects"],
        ),
        ("--own-nodes=a --own_nodes=b", ["--own-nodes is deprecated: use --node-selector"]),
        (
            "--version=v9.9.9 --feature-gates=AllAlpha=1,NativeHistograms=1,LoggingAlphaOptions=1",
            [
                f"--version=v9.9.9 has no effect: the version is {ccm.__version__}",
                "feature gate NativeHistograms has no effect in this version",
            ],
        ),
    ],
)
def test_deprecated_and_ineffective_settings_are_each_noticed_once(
    words: str, told: list[str]
) -> None:
    """Settings with effect cause no notice."""
    read = options.parse(words.split())

    assert [*read.deprecations(), *read.notices()] == told


def test_deprecated_alias_sets_its_flag() -> None:
    for former, flag in options.ALIASES.items():
        name = flag.deprecated.removeprefix("use --")
        word = next(iter(ROWS[name].takes))
        wanted = options.parse([word])

        read = options.parse([word.replace(f"--{name}", f"--{former}")])

        assert replace(read, aliases=frozenset()) == wanted
        assert options.parse([word, f"--{former}={flag.kind.write(read.get(name))}"]) == read


def test_deprecated_alias_with_a_different_value_is_an_error() -> None:
    (fault,) = complaints(["--own-nodes=a", "--node-selector=b"])

    assert fault.startswith("--own-nodes is the deprecated name of --node-selector and has another")


def test_flag_lines_list_every_flag_with_its_quoted_value() -> None:
    """The value is the effective one, and special characters are escaped."""
    lines = options.parse(['--cluster-name=a"b\\c\n', "-v4"]).flag_lines()

    assert len(lines) == len(options.FLAGS)
    assert 'FLAG: --cluster-name="a\\"b\\\\c\\n"' in lines
    assert 'FLAG: --controllers="[*]"' in lines
    assert 'FLAG: --v="4"' in lines


@pytest.mark.row("daemon-names-01")
def test_controller_names_match_the_go_implementation() -> None:
    """Names, aliases, client names and metric names are compared."""
    assert [(c.name, c.alias, c.client, c.metric) for c in MANIFESTS[:4]] == [
        ("cloud-node-controller", "cloud-node", "node-controller", "cloud-node"),
        (
            "cloud-node-lifecycle-controller",
            "cloud-node-lifecycle",
            "node-controller",
            "cloud-node-lifecycle",
        ),
        ("service-lb-controller", "service", "service-controller", "service"),
        ("node-route-controller", "route", "route-controller", "route"),
    ]


@pytest.mark.row("daemon-names-03")
@pytest.mark.parametrize(
    ("name", "requested", "enabled"),
    [
        ("bravo", "alpha,bravo,-charlie", True),
        ("charlie", "alpha,bravo,-charlie", False),
        ("alpha", "*", True),
        ("delta", "*", False),
        ("charlie", "*,-charlie", False),
        ("foxtrot", "alpha,bravo,-charlie", False),
        ("delta", "*,delta", True),
        ("alpha", "alpha,-alpha", True),
        ("alpha", "-alpha,alpha", False),
        ("a", "-b", False),
        ("a", "", False),
    ],
)
def test_first_matching_entry_decides_whether_a_controller_is_enabled(
    name: str, requested: str, enabled: bool
) -> None:
    """Without an entry, `*` enables each controller that is not off by default."""
    found = controllers.is_enabled(name, requested.split(","), off_by_default={"delta", "echo"})

    assert found is enabled


@pytest.mark.row("daemon-names-02", "daemon-names-05", "daemon-names-06")
@pytest.mark.parametrize(
    ("requested", "enabled"),
    [
        ("*", "cloud-node cloud-node-lifecycle service route"),
        ("*,-service,-route", "cloud-node cloud-node-lifecycle"),
        ("cloud-node", "cloud-node"),
        ("-service", ""),
        ("route", "route"),
        (
            "service-controller,cloud-node-controller,node-route-controller",
            "cloud-node service route",
        ),
        ("-route-controller,-cloud-node-lifecycle-controller,*", "cloud-node service"),
    ],
)
def test_controllers_flag_selects_controllers(requested: str, enabled: str) -> None:
    assert [entry.alias for entry in controllers.enabled(requested.split(","))] == enabled.split()


def test_machine_controllers_are_off_unless_named() -> None:
    """machine-controller-manager may already manage the same objects."""
    named = [each.name for each in MANIFESTS[4:]]

    assert {each.name for each in controllers.enabled(["*"])}.isdisjoint(named)
    wanted = ["*", *(each.alias for each in MANIFESTS[4:])]
    assert [each.name for each in controllers.enabled(wanted)][4:] == named

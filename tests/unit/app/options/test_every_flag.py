"""Every flag: its default, what it takes, and what it says of a wrong value.

A line of the table `flag_rows.txt` holds the flag, its default, texts it takes, and texts it
refuses, each part between bars and texts between spaces. `''` is the empty text, `-` none at
all: the flag alone. What is taken comes back as `written` where a text stands as
`text->written`. Where a flag takes any text there is nothing to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ccm.app import options
from ccm.app.options import argv
from ccm.base import redact

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
    r"it takes|must|needs|cannot|can't|known|works with|unrecognized|is not in the list"
)
"""One of these begins what would be right."""


def together(row: Row, word: str) -> list[str]:
    """A command line on which nothing else is wrong."""
    others = [] if row.name == "cloud-provider" else ["--cloud-provider=sim"]
    return [*others, *WITH.get(row.name, ()), word]


def complaints(words: list[str]) -> list[str]:
    """What is said of a command line; nothing if it is right."""
    try:
        return options.faults(options.parse(words))
    except argv.UsageError as error:
        return list(error.faults)


def test_every_flag_has_its_row() -> None:
    assert set(ROWS) == set(options.FLAGS)


def test_what_takes_any_text_is_all_that_refuses_nothing() -> None:
    silent = {name for name, row in ROWS.items() if not row.refuses}

    assert {options.FLAGS[name].kind.word for name in silent} == {"string"}


@pytest.mark.row("daemon-flags-01")
def test_defaults() -> None:
    given = options.parse([])

    written = {name: flag.kind.write(given.get(name)) for name, flag in options.FLAGS.items()}

    assert written == {name: row.default for name, row in ROWS.items()}


def test_what_they_take() -> None:
    for name, row in ROWS.items():
        for word, written in row.takes.items():
            argv = together(row, word)
            read = options.parse(argv)

            assert options.FLAGS[name].kind.write(read.get(name)) == written, word
            assert name in read.explicit, word
            assert complaints(argv) == [], word


@pytest.mark.row("daemon-flags-02")
def test_all_are_taken_together() -> None:
    """One long command line arrives unchanged, and each of its flags counts as given."""
    words = {name: next(iter(row.takes)) for name, row in ROWS.items()}

    read = options.parse(list(words.values()))

    written = {name: flag.kind.write(read.get(name)) for name, flag in options.FLAGS.items()}
    assert written == {name: row.takes[words[name]] for name, row in ROWS.items()}
    assert read.explicit == set(ROWS)


@pytest.mark.row("daemon-flags-03")
def test_what_they_refuse() -> None:
    """The message names the flag, the value, and what would be right."""
    for name, row in ROWS.items():
        for text in row.refuses:
            (said,) = complaints(together(row, f"--{name}={text}"))

            assert f"--{name}" in said
            assert text in said.replace("\\", ""), said
            assert GUIDANCE.search(said), said
            assert redact.words(said) == said, "a name that looks like a secret's"


@pytest.mark.row("daemon-flags-07")
def test_flags_without_effect_earn_one_notice() -> None:
    words = [f"--{name}=x" for name in options.IDLE]

    (notice,) = options.parse(words).notices()

    assert set(re.findall(r"--([\w-]+)", notice)) == set(options.IDLE)
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
def test_what_python_cannot_set_is_said_once(word: str) -> None:
    (said,) = options.parse([word]).notices()

    assert said.startswith(word.partition("=")[0])


@pytest.mark.row("daemon-flags-04")
def test_all_faults_are_said_at_once() -> None:
    argv = ["--cloud-provider=", "--secure-port=-1", "--tls-cipher-suites=X", "--webhooks=y"]

    said = complaints(argv)

    assert len(said) == len(argv)
    for word in argv:
        assert any(word.partition("=")[0] in line for line in said)


_SHORT = "--leader-elect-renew-deadline=500ms --leader-elect-retry-period=100ms"


def faults(*argv: str) -> list[str]:
    return options.faults(options.parse(["--cloud-provider=sim", *argv]))


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

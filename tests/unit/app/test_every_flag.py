"""Flag by flag: its default, the forms it takes, and what it says of a wrong value."""

from __future__ import annotations

import re

import pytest

from ccm.app import checks, flags, main, options
from tests.unit.app.flag_rows import WITH, Row, rows

ROWS = rows()
GUIDANCE = re.compile(
    r"it takes|must|needs|cannot|can't|known|works with|unrecognized|is not in the list"
)
"""One of these begins what would be right."""


def together(row: Row, word: str) -> list[str]:
    """A command line on which nothing else is wrong."""
    others = [] if row.name == "cloud-provider" else ["--cloud-provider=sim"]
    return [*others, *WITH.get(row.name, ()), word]


def complaints(argv: list[str]) -> list[str]:
    """What is said of a command line; nothing if it is right."""
    try:
        return checks.faults(options.parse(argv))
    except flags.UsageError as error:
        return list(error.faults)


def test_every_flag_has_its_row() -> None:
    assert set(ROWS) == set(options.FLAGS)


def test_what_takes_any_text_is_all_that_refuses_nothing() -> None:
    silent = {name for name, row in ROWS.items() if not row.refuses}

    assert {options.FLAGS[name].kind.word for name in silent} == {"string"}


@pytest.mark.row("daemon-flags-01")
@pytest.mark.parametrize("name", ROWS)
def test_default(name: str) -> None:
    flag = options.FLAGS[name]

    assert flag.kind.write(options.parse([]).get(name)) == ROWS[name].default


@pytest.mark.parametrize(
    ("name", "word"), [(name, word) for name, row in ROWS.items() for word in row.takes]
)
def test_what_it_takes(name: str, word: str) -> None:
    argv = together(ROWS[name], word)

    read = options.parse(argv)

    assert options.FLAGS[name].kind.write(read.get(name)) == ROWS[name].takes[word]
    assert name in read.explicit
    assert complaints(argv) == []


@pytest.mark.row("daemon-flags-03")
@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, row in ROWS.items() for text in row.refuses]
)
def test_what_it_refuses(name: str, text: str) -> None:
    """The message names the flag, the value, and what would be right."""
    (said,) = complaints(together(ROWS[name], f"--{name}={text}"))

    assert f"--{name}" in said
    assert text in said.replace("\\", "")
    assert GUIDANCE.search(said)


@pytest.mark.parametrize(
    "name", [name for name, flag in options.FLAGS.items() if flag.kind.bare is None]
)
def test_a_value_is_the_next_word_too_and_must_not_be_missing(name: str) -> None:
    word = next(iter(ROWS[name].takes))
    text = word.partition("=")[2]

    assert options.parse([f"--{name}", text]).get(name) == options.parse([word]).get(name)
    assert options.parse([f"--{name.replace('-', '_')}={text}"]).get(name) == (
        options.parse([word]).get(name)
    )
    (said,) = complaints([f"--{name}"])
    assert f"--{name} takes {options.FLAGS[name].kind.wants}" in said


@pytest.mark.row("daemon-flags-07")
@pytest.mark.parametrize(
    "name", [name for name, flag in options.FLAGS.items() if flag.state == "accepted"]
)
def test_what_has_no_meaning_here_is_said_once(name: str) -> None:
    word = next(iter(ROWS[name].takes))

    (said,) = main.notices(options.parse(["--cloud-provider=sim", word]))

    assert said.startswith(f"--{name} has no effect: ")


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
    (said,) = main.notices(options.parse(["--cloud-provider=sim", word]))

    assert said.startswith(word.partition("=")[0])


@pytest.mark.row("daemon-flags-04")
def test_all_faults_are_said_at_once() -> None:
    argv = ["--cloud-provider=", "--secure-port=-1", "--tls-cipher-suites=X", "--webhooks=y"]

    said = complaints(argv)

    assert len(said) == len(argv)
    for word in argv:
        assert any(word.partition("=")[0] in line for line in said)

"""`kube-ccm plan`: its command line, its exit status, and what it shows where."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from ccm import cli
from ccm.app.options import Options
from ccm.app.options.argv import UsageError
from ccm.cli import plan
from ccm.doctor import outlook
from ccm.doctor.provider import NotOpened
from ccm.planning.changes import BALANCER, Action, Change, Subject
from ccm.planning.forecast import Forecast

WORDS = ["--cloud-provider=sim"]
CHANGES = Forecast(
    changes=[
        Change(subject=Subject("Service", "default", "a"), action=action, what=BALANCER)
        for action in Action
    ]
)
UNKNOWN = Forecast(changes=CHANGES.changes, failures=["list_routes: the cloud is down"])


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked for; the first item is the answer."""
    asked: list[Any] = [Forecast()]

    async def forecast_of(options: Options, environ: Mapping[str, str], *, wait: bool) -> Forecast:
        asked.append((options, environ, wait))
        if isinstance(asked[0], Exception):
            raise asked[0]
        found: Forecast = asked[0]
        return found

    monkeypatch.setattr(outlook, "forecast_of", forecast_of)
    return asked


def test_it_takes_the_daemons_flags_and_its_own() -> None:
    wanted = plan.read([*WORDS, "-o", "json", "--wait", "--cluster-name=blue"])

    assert (wanted.output, wanted.wait, wanted.options.cluster_name) == ("json", True, "blue")


@pytest.mark.parametrize(
    ("words", "fault"),
    [(["-o", "table"], "--output=table: must be text or json"), ([], "--cloud-provider")],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        plan.read(words)

    assert fault in str(refused.value)
    assert cli.main(["plan", *words]) == 1  # 2 stands for changes
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "code", "last"),
    [
        (Forecast(), 0, "nothing to do"),
        (CHANGES, 2, "3 changes to 1 object"),
        (UNKNOWN, 1, "3 changes to 1 object; incomplete: not all that matters is known"),
    ],
    ids=["nothing", "changes", "incomplete"],
)
def test_the_exit_status_tells_what_was_found(
    answered: list[Any], found: Forecast, code: int, last: str
) -> None:
    answered[0], out = found, io.StringIO()

    assert plan.run(WORDS, out=out) == code
    assert out.getvalue().splitlines()[-1] == last
    assert plan.run([*WORDS, "-o", "json"], out=(document := io.StringIO())) == code
    assert json.loads(document.getvalue())["summary"] == last


def test_it_waits_only_when_told_to(answered: list[Any]) -> None:
    plan.run(WORDS, out=io.StringIO())
    plan.run([*WORDS, "--wait"], out=io.StringIO())

    assert [wait for _, _, wait in answered[1:]] == [False, True]


def test_where_there_is_no_way_one_line_says_so(
    answered: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered[0] = NotOpened("no kubeconfig is given")

    assert plan.run(WORDS) == 1
    assert capsys.readouterr().err == "kube-ccm plan: no kubeconfig is given\n"


def test_it_is_coloured_on_a_terminal_alone(
    answered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered[0] = CHANGES
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen, plain = Screen(), io.StringIO()

    plan.run(WORDS, out=screen)
    plan.run(WORDS, out=plain)

    green, yellow, red = "\x1b[32m", "\x1b[33m", "\x1b[31m"
    assert [line[:5] for line in screen.getvalue().splitlines()[1:4]] == [green, yellow, red]
    assert "\x1b" not in plain.getvalue()


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--help"]) == 0

    told = capsys.readouterr().out
    for word in ("examples:", "exit status: 0 nothing to do, 2 changes", "afterSeconds", "--wait"):
        assert word in told

"""What tenants and clouds write reaches no terminal as it is."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.cli import doctor, explain, orphans, plan, rollout, screen
from ccm.doctor import examination, outlook, reach
from ccm.doctor.finding import Finding, Result, Verdict, warn
from ccm.planning.changes import BALANCER, Action, Change, Subject
from ccm.planning.forecast import Forecast

HOSTILE = (
    "\x1b[2J\x1b]52;c;cm0gLXJmIC8=\x07\x9b31m\rok    all is well\nok    all is well\x08\x7f"
    "\u202egnp.exe\u2066\u200f\u2028"
)
"""Clears the screen, sets the clipboard, colours, forges lines, turns the direction."""


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@given(st.lists(st.text()))
def test_each_text_is_one_line_of_printable_letters(texts: list[str]) -> None:
    out = io.StringIO()

    screen.show(out, texts)

    assert is_harmless(out.getvalue())
    assert out.getvalue().count("\n") == len(texts)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_means_the_same_and_is_printable(text: str) -> None:
    out = io.StringIO()

    screen.show_json(out, {text: [text]})

    assert is_harmless(out.getvalue())
    assert json.loads(out.getvalue()) == {text: [text]}


def test_letters_of_all_languages_stay() -> None:
    out = io.StringIO()

    screen.show(out, ["größe 大小 ✓"])

    assert out.getvalue() == "größe 大小 ✓\n"


@pytest.mark.parametrize("output", ["table", "json"])
def test_doctor(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def examine(*_: Any) -> AsyncIterator[Result]:
        finding = examination._clean(warn(HOSTILE, HOSTILE, details=[HOSTILE]))
        yield Result(check="x", finding=finding)

    monkeypatch.setattr(examination, "examine", examine)
    out = io.StringIO()

    asyncio.run(doctor.answer(doctor.read(["--cloud-provider=sim", "-o", output]), out))

    assert is_harmless(out.getvalue())
    assert "\nok " not in out.getvalue()


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("tty", [False, True])
def test_plan(output: str, tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(
        subject=Subject("Service", HOSTILE, HOSTILE), action=Action.CREATE, what=BALANCER
    )

    async def forecast_of(*_: Any, **__: Any) -> Forecast:
        return Forecast(changes=[change], failures=[HOSTILE], left_out={HOSTILE: HOSTILE})

    monkeypatch.setattr(outlook, "forecast_of", forecast_of)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out: Any = io.StringIO()
    out.isatty = lambda: tty

    asyncio.run(plan.answer(plan.read(["--cloud-provider=sim", "-o", output]), out))

    assert is_harmless(out.getvalue())


def stub(value: Any) -> Callable[..., Any]:
    async def answered(*_: Any, **__: Any) -> Any:
        return value

    return answered


def test_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(name=HOSTILE, status=SimpleNamespace(ingress=[]))
    monkeypatch.setattr(orphans, "_opened", stub(None))
    monkeypatch.setattr(orphans, "_orphans", stub([record]))
    out = io.StringIO()

    asyncio.run(orphans.answer(orphans.read(["--cloud-provider=sim"]), out))

    assert is_harmless(out.getvalue())
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("command", [explain, rollout])
def test_errors(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding: Finding = warn(HOSTILE)
    failed = Finding(verdict=Verdict.FAIL, found=finding.found)
    monkeypatch.setattr(reach, "kubeconfig", stub(failed))
    words = {explain: ["node", "a"], rollout: ["status", "machinedeployment/a"]}[command]

    asyncio.run(command.answer(command.read(words), io.StringIO(), environ={}))

    told = capsys.readouterr().err
    assert told.startswith("kube-ccm ")
    assert is_harmless(told)

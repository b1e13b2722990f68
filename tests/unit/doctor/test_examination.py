"""The order of checks, a check that cannot be made, and findings in words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ccm import cloud
from ccm.app.options import Options
from ccm.doctor import case as words
from ccm.doctor import examination
from ccm.doctor.case import Case, Finding, Result, ok
from ccm.doctor.examination import Check
from ccm.kube import errors

FORBIDDEN = errors.Forbidden(status=403, reason="Forbidden", message="no nodes for you")


async def run(
    monkeypatch: pytest.MonkeyPatch, *checks: Check, limit_s: float = 5.0
) -> list[Result]:
    monkeypatch.setattr(examination, "CHECKS", checks)
    told: list[str] = []
    case = Case(options=Options(), environ={}, limit_s=limit_s)
    found = [one async for one in examination.examine(case, lambda check: told.append(check.name))]
    assert told == [check.name for check in checks]
    return found


def check(name: str, outcome: Finding | BaseException, *needs: str) -> Check:
    async def make(_case: Case) -> Finding:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Check(name=name, title=name, make=make, needs=needs)


def test_every_check_builds_on_checks_before_it() -> None:
    known: set[str] = set()
    for each in examination.CHECKS:
        assert set(each.needs) <= known, each.name
        known.add(each.name)
    assert len(known) == len(examination.CHECKS)


async def test_a_check_that_breaks_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await run(
        monkeypatch,
        check("a", ZeroDivisionError("by zero")),
        check("b", ExceptionGroup("several", [FORBIDDEN])),
        check("c", errors.Unreachable("GET /x: no answer", kind="reset")),
        check("d", ok("made")),
        check("e", cloud.Unavailable("gone fishing")),
        check("f", ok("never"), "b"),
    )

    assert [(result.check, result.finding.verdict.value) for result in found] == [
        ("a", "fail"),
        ("b", "skip"),
        ("c", "fail"),
        ("d", "ok"),
        ("e", "fail"),
        ("f", "skip"),
        ("rights", "skip"),
    ]
    for index, end in ((0, "ZeroDivisionError: by zero"), (2, "no answer"), (4, "gone fishing")):
        assert found[index].finding.found.endswith(end)
    last = found[-1].finding
    assert last.found.endswith("not looked at: b, f")
    # What our user may not look at is told once, at the end.
    assert list(words.text(found[1])) == []
    assert list(words.text(found[-1]))[1:] == [
        "      b: no nodes for you (403 Forbidden)",
        *(f"      next: {line}" for line in last.advice),
    ]


async def test_the_end_of_what_was_opened_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def thing() -> AsyncIterator[None]:
        yield
        raise RuntimeError("stuck")

    async def open_it(given: Case) -> Finding:
        await given.exits.enter_async_context(thing())
        return ok("open")

    found = await run(monkeypatch, Check(name="a", title="a", make=open_it))

    assert [result.check for result in found] == ["a", "end"]
    assert found[1].finding.found.endswith("RuntimeError: stuck")

"""The order of checks, a check that cannot be made, and findings in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ccm import cloud
from ccm.app.options import Options
from ccm.base import redact
from ccm.doctor import case as words
from ccm.doctor import examination
from ccm.doctor.case import Case, Finding, Result, fail, ok, skip, warn
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


async def test_checks_that_build_on_a_failure_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await run(
        monkeypatch,
        check("a", fail("broken")),
        check("b", warn("odd")),
        check("c", ok("never"), "a", "b"),
        check("d", ok("made"), "b"),
        check("e", ok("never"), "c"),
        check("f", skip("not told")),
        check("g", ok("never"), "a", "f"),
        check("h", ok("never"), "f"),
    )

    assert "".join(result.finding.verdict.value[0] for result in found) == "fwsossss"
    assert [each.finding.cause for each in found] == ["", "", "a", "", "a", "", "a", "f"]
    without = {each.check: each.finding.without for each in found if each.finding.without}
    assert without == {"a": ("c", "e", "g"), "f": ("h",)}


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


async def test_a_check_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_case: Case) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    (result,) = await run(monkeypatch, Check(name="a", title="a", make=hang), limit_s=0.05)

    assert result.finding.found == "not finished within 0.05 s"


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


async def test_secrets_are_taken_out_and_lines_stay_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redact.know("hunter2-hunter2")
    try:
        (result,) = await run(
            monkeypatch,
            check("a", fail("pass\nhunter2-hunter2", "not hunter2-hunter2", details=["x\n y"])),
        )
    finally:
        redact.forget("hunter2-hunter2")

    assert result.finding == fail(f"pass {redact.MASK}", f"not {redact.MASK}", details=["x y"])


def test_findings_for_people_and_programs() -> None:
    cause = replace(fail("x", "do", details=["y"]), without=("b", "c"))
    results = [
        Result(check="a", finding=ok("x")),
        Result(check="b", finding=warn("x"), seconds=0.12345),
        Result(check="c", finding=cause),
        Result(check="d", finding=skip("x", cause="a")),
    ]

    assert words.summary(results) == "4 checks: 1 ok, 1 warning, 1 failure, 1 not made"
    assert words.summary(results[:1]) == "1 check: 1 ok"
    assert [line for one in results for line in words.text(one)] == [
        "ok    a: x",
        "warn  b: x",
        "fail  c: x",
        "      y",
        "      next: do",
        "      not looked at without it: b, c",
    ]
    document = words.document(results)
    assert (document["healthy"], words.document(results[:2])["healthy"]) == (False, True)
    assert document["checks"][1] == {  # type: ignore[index]
        "check": "b",
        "verdict": "warn",
        "found": "x",
        "details": [],
        "advice": [],
        "cause": "",
        "seconds": 0.123,
    }


def test_many_names_are_counted() -> None:
    names = [f"n{number}" for number in range(9)]

    assert words.some(names[:5]) == "n0, n1, n2, n3, n4"
    assert words.some(names) == "n0, n1, n2, n3, n4 and 4 more"
    assert (words.count(1, "node"), words.count(0, "node")) == ("1 node", "0 nodes")
    assert words.which(1, 3, "node", "has", "have") == "1 of 3 nodes has"
    assert words.which(2, 2, "node", "has", "have") == "2 of 2 nodes have"

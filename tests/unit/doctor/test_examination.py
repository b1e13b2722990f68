"""The order of checks, and what becomes of one that cannot be made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ccm import cloud
from ccm.app.options import Options
from ccm.base import redact
from ccm.doctor import examination, finding
from ccm.doctor.case import Case
from ccm.doctor.examination import Check
from ccm.doctor.finding import Finding, Result, fail, ok, skip, warn
from ccm.kube import errors

FORBIDDEN = errors.Forbidden(status=403, reason="Forbidden", message="no nodes for you")


def case(limit_s: float = 5.0) -> Case:
    return Case(options=Options(), environ={}, limit_s=limit_s)


async def run(
    monkeypatch: pytest.MonkeyPatch, *checks: Check, of: Case | None = None
) -> list[Result]:
    monkeypatch.setattr(examination, "CHECKS", checks)
    told: list[str] = []
    found = [
        result
        async for result in examination.examine(of or case(), lambda check: told.append(check.name))
    ]
    assert told == [check.name for check in checks]
    return found


def check(name: str, outcome: Finding | BaseException, *needs: str) -> Check:
    async def make(_case: Case) -> Finding:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Check(name=name, title=name, make=make, needs=needs)


async def test_every_check_builds_on_checks_before_it() -> None:
    known: set[str] = set()
    for each in examination.CHECKS:
        assert set(each.needs) <= known, each.name
        known.add(each.name)
    assert len(known) == len(examination.CHECKS)


async def test_what_builds_on_a_failure_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await run(
        monkeypatch,
        check("a", fail("broken")),
        check("b", warn("odd")),
        check("c", ok("never"), "a", "b"),
        check("d", ok("made"), "b"),
        check("e", ok("never"), "c"),
    )

    verdicts = [result.finding.verdict.value for result in found]
    assert verdicts == ["fail", "warn", "skip", "ok", "skip"]
    assert found[2].finding.found == "not looked at without a"
    assert [each.finding.cause for each in found] == ["", "", "a", "", "a"]
    assert [each.finding.without for each in found] == [("c", "e"), (), (), (), ()]


async def test_what_lacks_two_things_is_told_once_under_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await run(
        monkeypatch,
        check("a", fail("broken")),
        check("b", skip("not told")),
        check("c", ok("never"), "a", "b"),
        check("d", ok("never"), "b"),
    )

    assert [each.finding.without for each in found] == [("c",), ("d",), (), ()]


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
    )

    assert [(result.finding.verdict.value, result.finding.found) for result in found] == [
        ("fail", "the check itself failed: ZeroDivisionError: by zero"),
        ("skip", "not looked at: no nodes for you (403 Forbidden)"),
        ("fail", "the API server does not answer as it should: GET /x: no answer"),
        ("ok", "made"),
        ("fail", "the cloud does not answer as it should: gone fishing"),
        ("skip", "the user of the kubeconfig may not look at everything; not looked at: b"),
    ]


async def test_what_our_user_may_not_look_at_is_told_once_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await run(
        monkeypatch,
        check("a", FORBIDDEN),
        check("b", ok("never"), "a"),
        check("c", ok("made")),
        check("d", FORBIDDEN),
    )

    *_, last = found
    assert last.finding.found == (
        "the user of the kubeconfig may not look at everything; not looked at: a, b, d"
    )
    assert [line for each in found for line in finding.text(each)] == [
        "ok    c: made",
        f"skip  rights: {last.finding.found}",
        "      a: no nodes for you (403 Forbidden)",
        "      d: no nodes for you (403 Forbidden)",
        *(f"      next: {line}" for line in last.finding.advice),
    ]
    assert not finding.failed(found)


async def test_a_check_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_case: Case) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    slow = Check(name="a", title="a", make=hang)

    (result,) = await run(monkeypatch, slow, of=case(limit_s=0.05))

    assert result.finding.found == "not finished within 0.05 s"


async def test_what_was_opened_is_closed_and_its_end_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def thing() -> AsyncIterator[None]:
        yield
        raise RuntimeError("stuck")

    async def open_it(given: Case) -> Finding:
        await given.exits.enter_async_context(thing())
        return ok("open")

    found = await run(monkeypatch, Check(name="a", title="a", make=open_it))

    assert [result.check for result in found] == ["a", "end"]
    assert found[1].finding.found == "the provider does not close well: RuntimeError: stuck"


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

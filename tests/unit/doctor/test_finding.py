"""Findings as people and programs read them."""

from __future__ import annotations

from dataclasses import replace

from ccm.doctor import finding
from ccm.doctor.finding import Result, fail, ok, skip, warn


def test_the_summary_counts_each_verdict_that_occurs() -> None:
    results = [
        Result(check="a", finding=ok("x")),
        Result(check="b", finding=warn("x")),
        Result(check="c", finding=fail("x")),
        Result(check="d", finding=fail("x")),
        Result(check="e", finding=skip("x")),
    ]

    assert finding.failed(results)
    assert not finding.failed([*results[:2], results[4]])
    assert finding.summary(results) == "5 checks: 1 ok, 1 warning, 2 failures, 1 not made"
    assert finding.summary(results[:1]) == "1 check: 1 ok"


def test_programs_get_everything() -> None:
    result = Result(check="a", finding=warn("x", "do", details=["y"]), seconds=0.12345)

    assert finding.document([result]) == {
        "healthy": True,
        "checks": [
            {
                "check": "a",
                "verdict": "warn",
                "found": "x",
                "details": ["y"],
                "advice": ["do"],
                "cause": "",
                "seconds": 0.123,
            }
        ],
    }


def test_people_read_what_is_not_made_with_its_cause() -> None:
    cause = replace(fail("x", "do"), without=("b", "c"))
    lines = list(finding.text(Result(check="a", finding=cause)))

    assert lines[-1] == "      not looked at without it: b, c"
    assert list(finding.text(Result(check="b", finding=skip("y", cause="a")))) == []
    assert list(finding.text(Result(check="b", finding=skip("y")))) == ["skip  b: y"]


def test_many_names_are_counted() -> None:
    names = [f"n{number}" for number in range(9)]

    assert finding.some(names[:5]) == "n0, n1, n2, n3, n4"
    assert finding.some(names) == "n0, n1, n2, n3, n4 and 4 more"
    assert finding.count(1, "node") == "1 node"
    assert finding.count(0, "node") == "0 nodes"
    assert finding.which(1, 3, "node", "has", "have") == "1 of 3 nodes has"
    assert finding.which(2, 2, "node", "has", "have") == "2 of 2 nodes have"

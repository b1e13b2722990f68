"""Which failures are worth a warning."""

from __future__ import annotations

import pytest

from ccm.cloud.errors import CloudError, Internal, InvalidArgument, RetryAfter
from ccm.runtime.backoff import classify
from ccm.runtime.reports import FailureReports


def due(reports: FailureReports[str], error: CloudError, now: float, key: str = "a") -> bool:
    return reports.is_due(key, error, classify(error), now)


@pytest.mark.parametrize(
    ("first", "second", "is_new"),
    [
        (InvalidArgument("size"), InvalidArgument("size"), False),
        (InvalidArgument("size"), InvalidArgument("name"), True),
        (Internal("request 1"), Internal("request 2"), False),
        (Internal("x"), InvalidArgument("x"), True),
    ],
)
def test_a_new_cause_is_reported_at_once_and_a_known_one_later(
    first: CloudError, second: CloudError, is_new: bool
) -> None:
    reports: FailureReports[str] = FailureReports()

    assert due(reports, first, 0.0)
    assert due(reports, second, 1.0) is is_new
    assert not due(reports, second, 299.0)
    assert due(reports, second, 301.0)


def test_what_is_no_failure_is_reported_when_it_lasts() -> None:
    reports: FailureReports[str] = FailureReports()
    busy = RetryAfter("busy", seconds=1)

    assert [now for now in range(0, 700, 10) if due(reports, busy, float(now))] == [60, 360, 660]
    due(reports, Internal("x"), 700.0)
    assert not due(reports, busy, 710.0)


def test_keys_are_reported_apart_and_forgotten() -> None:
    reports: FailureReports[str] = FailureReports()
    for key in "abc":
        assert due(reports, Internal("x"), 0.0, key)

    reports.forget("a")
    reports.keep("ab")

    assert [due(reports, Internal("x"), 1.0, key) for key in "abc"] == [True, False, True]

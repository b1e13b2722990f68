"""Errors: their classes, retries and reports."""

from __future__ import annotations

import math
import random

import pytest

from ccm.base.backoff import Exponential
from ccm.base.throttle import Bucket
from ccm.cloud import errors as cloud
from ccm.cloud.errors import CloudError, Internal, InvalidArgument, Retry, RetryAfter, Unavailable
from ccm.kube import errors as kube
from ccm.runtime.backoff import (
    AFTER_JITTER,
    BUSY_SHARE,
    FIRST_TRIES,
    LEAST_AFTER_S,
    LONG,
    SLOW_S,
    WAKE_PAUSE_S,
    FailureReports,
    ItemBackoff,
    RetryDecision,
    classify,
    default_backoff,
)

DOWN = classify(Unavailable("no"))
WRONG = classify(InvalidArgument("no"))
BACK_OFF = RetryDecision(retry=Retry.BACK_OFF)
CLOUD_IS_DOWN = RetryDecision(retry=Retry.BACK_OFF, outage=True)
SILENT = RetryDecision(retry=Retry.BACK_OFF, event=False)
SERVER_IS_DOWN = RetryDecision(retry=Retry.BACK_OFF, event=False, outage=True)


def after(seconds: float) -> RetryDecision:
    return RetryDecision(retry=Retry.AFTER, after_s=seconds, event=False)


def api(kind: type[kube.ApiError], status: int, retry_after: float | None = None) -> kube.ApiError:
    return kind(status=status, reason="R", message="m", retry_after=retry_after)


class Special(cloud.ResourceExhausted):
    """A provider's own class."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (cloud.Internal("x"), BACK_OFF),
        (cloud.NotFound("x"), BACK_OFF),
        (cloud.Unavailable("x"), CLOUD_IS_DOWN),
        (cloud.DeadlineExceeded("x"), CLOUD_IS_DOWN),
        (cloud.Unauthenticated("x"), RetryDecision(retry=Retry.LONG, outage=True)),
        (Special("x"), RetryDecision(retry=Retry.LONG)),
        (cloud.InvalidArgument("x"), RetryDecision(retry=Retry.SLOW)),
        (cloud.Unimplemented("x"), RetryDecision(retry=Retry.SLOW)),
        (cloud.ImplementedElsewhere("x"), RetryDecision(retry=Retry.NEVER, event=False)),
        (cloud.RetryAfter("x", seconds=7), after(7)),
        (api(kube.Invalid, 422), RetryDecision(retry=Retry.SLOW)),
        (api(kube.Forbidden, 403), BACK_OFF),
        (api(kube.Conflict, 409), SILENT),
        (api(kube.NotFound, 404), SILENT),
        (api(kube.ServerError, 503), SERVER_IS_DOWN),
        (api(kube.TooManyRequests, 429), SERVER_IS_DOWN),
        (api(kube.TooManyRequests, 429, 3), after(3)),
        (kube.Unreachable("x", kind="refused"), SERVER_IS_DOWN),
        (KeyError("x"), RetryDecision(retry=Retry.BACK_OFF, defect=True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_follows_from_an_error(error: Exception, expected: RetryDecision) -> None:
    assert classify(error) == expected


@pytest.mark.parametrize(
    ("decision", "delays"),
    [
        (BACK_OFF, [None, None, None]),
        (RetryDecision(retry=Retry.AFTER, after_s=7), [7, 7, 7]),
        (RetryDecision(retry=Retry.AFTER, after_s=0), [LEAST_AFTER_S] * 3),
        (RetryDecision(retry=Retry.SLOW), [SLOW_S, SLOW_S, SLOW_S]),
        (RetryDecision(retry=Retry.SLOW, eager=True), [1, 2, 60]),
        (RetryDecision(retry=Retry.LONG), [30, 60, LONG.cap_s]),
    ],
    ids=lambda value: value.retry.name if isinstance(value, RetryDecision) else "",
)
def test_delays(decision: RetryDecision, delays: list[float | None]) -> None:
    assert [decision.delay_s(failures) for failures in (0, 1, 100_000)] == delays


def made() -> ItemBackoff[str]:
    return ItemBackoff(Exponential(base_s=1.0, cap_s=10.0), rng=random.Random(1))


def test_pauses_grow_and_end() -> None:
    backoff = made()

    lengths = [backoff.failed("a", DOWN, 100.0) for _ in range(6)]

    assert lengths == [1, 2, 4, 8, 10, 10]
    assert backoff.waits("a", 109.9)
    assert not backoff.waits("a", 110.0)
    assert not backoff.waits("b", 100.0)
    assert backoff.first_end(100.0) == 110.0
    assert backoff.first_end(110.0) == math.inf


def test_what_is_no_longer_to_be_done_is_forgotten() -> None:
    backoff = made()
    for key in ("a", "b"):
        backoff.failed(key, DOWN, 0.0)

    backoff.keep(["b"])

    assert not backoff.waits("a", 0.0)
    assert backoff.waits("b", 0.0)


def test_one_that_recovers_from_an_outage_ends_it_for_the_others() -> None:
    backoff = made()
    for key in ("a", "b"):
        backoff.failed(key, DOWN, 0.0)
    backoff.failed("c", WRONG, 0.0)

    assert backoff.recovered("a", 0.5) == ["b"]

    assert not backoff.waits("b", 0.5)
    assert backoff.waits("c", 0.5)
    # Until "b" is tried, nobody knows whether the outage is over for it too.
    assert backoff.in_outage
    assert backoff.end_outage(0.5 + WAKE_PAUSE_S / 2) == ()
    assert backoff.recovered("b", 0.6) == ()
    assert not backoff.in_outage


def test_the_default_is_the_longer_of_key_and_bucket() -> None:
    backoff = default_backoff()
    delays = [backoff.failed(f"key-{number}", BACK_OFF, 0.0) for number in range(102)]
    assert delays[:100] == pytest.approx([0.005] * 100)
    assert delays[100:] == pytest.approx([0.1, 0.2])


def test_first_tries_do_not_wait_for_those_of_items_that_failed_often() -> None:
    backoff = default_backoff()
    now = 0.0
    for _ in range(FIRST_TRIES + 1):
        now += 1000.0
        for number in range(1000):
            assert backoff.failed(f"stuck-{number}", BACK_OFF, now) <= 100

    assert backoff.failed("new", BACK_OFF, now) == pytest.approx(0.005)
    assert backoff.failed("stuck-0", BACK_OFF, now) >= 90


def test_in_the_long_run_all_tries_share_one_rate() -> None:
    """What goes before is not had for nothing: those behind wait the longer."""
    backoff = default_backoff()
    for _ in range(FIRST_TRIES):
        backoff.failed("stuck", BACK_OFF, 0.0)
    for number in range(1000):
        backoff.failed(f"new-{number}", BACK_OFF, 0.0)

    assert backoff.failed("stuck", BACK_OFF, 0.0) == pytest.approx((1000 + 9 - 100) / 10)


def test_who_is_told_when_to_come_back_comes_a_little_later_than_the_others() -> None:
    backoff = made()

    pauses = [backoff.failed(str(number), after(100), 0.0) for number in range(100)]

    assert min(pauses) >= 100
    assert max(pauses) <= 100 * (1 + AFTER_JITTER)
    assert len(set(pauses)) == 100


def test_a_bucket_hands_out_tokens_to_come() -> None:
    bucket = Bucket(qps=10, burst=100)
    assert [bucket.reserve(0.0) for _ in range(100)] == [0.0] * 100
    assert [bucket.reserve(0.0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert bucket.reserve(0.3) == pytest.approx(0.1)
    assert [bucket.reserve(3600.0) for _ in range(100)] == [0.0] * 100
    assert not bucket.take(3600.0)
    assert bucket.missing_s(3600.0) == pytest.approx(0.1)
    assert bucket.take(3600.1)


def test_a_busy_side_is_asked_more_and_more_rarely() -> None:
    backoff, now = made(), 0.0
    pauses: list[float] = []
    while now < 200.0:
        pauses.append(backoff.failed("a", after(1.0), now))
        now += pauses[-1]

    assert all(1.0 <= pause <= 1.0 + AFTER_JITTER for pause in pauses[:5])
    assert pauses[-1] >= 10.0, "up to the cap of the policy"
    assert max(pauses) <= 10.0 * (1 + AFTER_JITTER)
    early = [p for p in pauses if p < 10.0]
    assert sum(early) >= 10.0 / BUSY_SHARE - 10.0


@pytest.mark.parametrize("answer", ["failure", "not ready", "success"])
def test_another_answer_ends_the_count_of_a_busy_side(answer: str) -> None:
    backoff = made()
    for now in (0.0, 100.0):
        backoff.failed("a", after(1.0), now)
    assert backoff.busy_s("a", 100.0) == 100.0

    if answer == "failure":
        backoff.failed("a", BACK_OFF, 100.0)
    elif answer == "not ready":
        backoff.postponed("a", 100.0)
    else:
        backoff.forget("a")

    assert backoff.busy_s("a", 200.0) == 0.0
    assert backoff.failed("a", after(1.0), 200.0) <= 1.0 + AFTER_JITTER


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

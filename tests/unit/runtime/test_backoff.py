"""Errors: their classes, delays and reports."""

from __future__ import annotations

import random

import pytest

from ccm.base.backoff import ExponentialBackoff
from ccm.cloud import errors as cloud
from ccm.cloud.errors import Internal, InvalidArgument, Retry, RetryAfter, Unavailable
from ccm.kube import errors as kube
from ccm.runtime.backoff import (
    LONG,
    MIN_RETRY_AFTER_S,
    MIN_WAKE_INTERVAL_S,
    PRIORITY_RETRIES,
    RETRY_AFTER_JITTER,
    SLOW_S,
    FailureReports,
    ItemBackoff,
    RetryDecision,
    classify,
    default_backoff,
)

BACK_OFF, SLOW = RetryDecision(retry=Retry.BACK_OFF), RetryDecision(retry=Retry.SLOW)
CLOUD_IS_DOWN = RetryDecision(retry=Retry.BACK_OFF, outage=True)
SILENT = RetryDecision(retry=Retry.BACK_OFF, event=False)
SERVER_IS_DOWN = RetryDecision(retry=Retry.BACK_OFF, event=False, outage=True)


def after(seconds: float) -> RetryDecision:
    return RetryDecision(retry=Retry.AFTER, after_s=seconds, event=False)


def api(kind: type[kube.ApiError], status: int, retry_after: float | None = None) -> kube.ApiError:
    return kind(status=status, reason="R", message="m", retry_after=retry_after)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (cloud.Internal("x"), BACK_OFF),
        (cloud.NotFound("x"), BACK_OFF),
        (cloud.Unavailable("x"), CLOUD_IS_DOWN),
        (cloud.DeadlineExceeded("x"), CLOUD_IS_DOWN),
        (cloud.Unauthenticated("x"), RetryDecision(retry=Retry.LONG, outage=True)),
        (cloud.PermissionDenied("x"), RetryDecision(retry=Retry.LONG)),
        (cloud.ResourceExhausted("x"), RetryDecision(retry=Retry.LONG)),
        (cloud.InvalidArgument("x"), SLOW),
        (cloud.FailedPrecondition("x"), SLOW),
        (cloud.Unimplemented("x"), SLOW),
        (cloud.ImplementedElsewhere("x"), RetryDecision(retry=Retry.NEVER, event=False)),
        (cloud.RetryAfter("x", seconds=7), after(7)),
        (api(kube.Invalid, 422), SLOW),
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
def test_error_class_decides_the_retry(error: Exception, expected: RetryDecision) -> None:
    assert classify(error) == expected


@pytest.mark.parametrize(
    ("decision", "delays"),
    [
        (BACK_OFF, [None, None, None]),
        (after(7), [7, 7, 7]),
        (after(0), [MIN_RETRY_AFTER_S] * 3),
        (SLOW, [SLOW_S, SLOW_S, SLOW_S]),
        (RetryDecision(retry=Retry.SLOW, eager=True), [1, 2, 60]),
        (RetryDecision(retry=Retry.LONG), [30, 60, LONG.cap_s]),
    ],
)
def test_retry_delays_follow_the_decision(
    decision: RetryDecision, delays: list[float | None]
) -> None:
    assert [decision.delay_s(failures) for failures in (0, 1, 100_000)] == delays


def made() -> ItemBackoff[str]:
    return ItemBackoff(ExponentialBackoff(base_s=1.0, cap_s=10.0), rng=random.Random(1))


def test_backoff_grows_and_a_success_wakes_the_other_keys_of_an_outage() -> None:
    backoff = made()
    assert [backoff.record_failure("a", CLOUD_IS_DOWN, 0.0) for _ in range(6)] == [
        1,
        2,
        4,
        8,
        10,
        10,
    ]
    assert (backoff.is_waiting("a", 9.9), backoff.is_waiting("a", 10.0)) == (True, False)
    backoff.record_failure("b", CLOUD_IS_DOWN, 0.0)
    backoff.record_failure("c", SLOW, 0.0)

    assert backoff.record_success("a", 0.5) == ["b"]
    assert (backoff.is_waiting("b", 0.5), backoff.is_waiting("c", 0.5)) == (False, True)
    # The outage lasts until "b" was retried.
    assert backoff.in_outage
    assert backoff.end_outage(0.5 + MIN_WAKE_INTERVAL_S / 2) == ()
    assert backoff.record_success("b", 0.6) == ()
    assert not backoff.in_outage


def test_a_failure_after_long_work_of_the_cloud_is_retried_soon() -> None:
    backoff = made()
    for number in range(20):
        backoff.record_failure("a", after(1.0), float(number))
    assert (backoff.failures("a"), len(backoff)) == (0, 1)
    assert backoff.delay_end("a") is not None
    assert backoff.record_failure("a", CLOUD_IS_DOWN, 30.0) == 1


def test_default_backoff_is_the_longer_of_key_delay_and_token_bucket() -> None:
    backoff = default_backoff()
    delays = [backoff.record_failure(f"key-{number}", BACK_OFF, 0.0) for number in range(102)]
    assert delays == pytest.approx([0.005] * 100 + [0.1, 0.2])


def test_retry_after_delays_grow_with_jitter_while_the_server_is_busy() -> None:
    backoff = made()
    pauses = [backoff.record_failure(str(number), after(100), 0.0) for number in range(100)]
    assert len({pause for pause in pauses if 100 <= pause <= 100 * (1 + RETRY_AFTER_JITTER)}) == 100

    now, pauses = 0.0, []
    while now < 200.0:
        pauses.append(backoff.record_failure("a", after(1.0), now))
        now += pauses[-1]
    assert all(1.0 <= pause <= 1.0 + RETRY_AFTER_JITTER for pause in pauses[:5])
    assert 10.0 <= pauses[-1] <= max(pauses) <= 10.0 * (1 + RETRY_AFTER_JITTER)
    backoff.postpone("a", now)
    assert backoff.record_failure("a", after(1.0), now) <= 1.0 + RETRY_AFTER_JITTER


def test_new_cause_is_reported_at_once_and_a_known_one_after_a_period() -> None:
    reports: FailureReports[str] = FailureReports()

    def due(error: cloud.CloudError, now: float) -> bool:
        return reports.is_due("a", error, classify(error), now)

    told = [(InvalidArgument("size"), 0.0), (InvalidArgument("name"), 1.0), (Internal("1"), 2.0)]
    assert all(due(error, now) for error, now in told)
    for error, now in ((Internal("request 2"), 3.0), (Unavailable("x"), 3.0)):
        assert due(error, now) is (type(error) is Unavailable)
    assert [due(Unavailable("x"), now) for now in (299.0, 304.0)] == [False, True]
    reports.forget("a")
    busy = RetryAfter("busy", seconds=1)
    assert [now for now in range(0, 700, 10) if due(busy, float(now))] == [60, 360, 660]


def test_all_retries_share_one_overall_rate() -> None:
    """Prioritized retries use tokens too: later retries wait longer."""
    backoff = default_backoff()
    for _ in range(PRIORITY_RETRIES):
        backoff.record_failure("stuck", BACK_OFF, 0.0)
    for number in range(1000):
        backoff.record_failure(f"new-{number}", BACK_OFF, 0.0)

    assert backoff.record_failure("stuck", BACK_OFF, 0.0) == pytest.approx((1000 + 9 - 100) / 10)


@pytest.mark.parametrize("answer", ["failure", "not ready", "success"])
def test_other_results_reset_the_busy_time(answer: str) -> None:
    backoff = made()
    for now in (0.0, 100.0):
        backoff.record_failure("a", after(1.0), now)
    assert backoff.busy_s("a", 100.0) == 100.0

    if answer == "failure":
        backoff.record_failure("a", BACK_OFF, 100.0)
    elif answer == "not ready":
        backoff.postpone("a", 100.0)
    else:
        backoff.forget("a")

    assert backoff.busy_s("a", 200.0) == 0.0
    assert backoff.record_failure("a", after(1.0), 200.0) <= 1.0 + RETRY_AFTER_JITTER


def test_backoff_forgets_keys_that_are_not_retained() -> None:
    backoff = made()
    for key in ("a", "b"):
        backoff.record_failure(key, CLOUD_IS_DOWN, 0.0)

    backoff.retain(["b"])

    assert not backoff.is_waiting("a", 0.0)
    assert backoff.is_waiting("b", 0.0)
    backoff.end_outage(10.0)
    backoff.retain(())
    assert not backoff.in_outage

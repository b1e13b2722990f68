"""Kubernetes time text, both precisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.model.times import format_micro_time, format_time, moment, parse_time

EAST = timezone(timedelta(hours=5, minutes=30))
FIRST, LAST = datetime.fromisoformat("0002-01-01"), datetime.fromisoformat("9999-01-01")
MOMENT = datetime(2026, 1, 2, 8, 34, 5, 60, tzinfo=EAST)


def test_times_are_written_in_utc_with_seconds() -> None:
    assert format_time(MOMENT) == "2026-01-02T03:04:05Z"


def test_micro_times_always_have_six_digits() -> None:
    assert format_micro_time(MOMENT) == "2026-01-02T03:04:05.000060Z"
    assert format_micro_time(MOMENT.replace(microsecond=0)) == "2026-01-02T03:04:05.000000Z"


def test_early_years_keep_four_digits() -> None:
    assert format_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"


@given(st.datetimes(timezones=st.sampled_from([UTC, EAST]), min_value=FIRST, max_value=LAST))
def test_a_micro_time_reads_back_as_the_same_moment(moment: datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05Z",
        "2026-01-02T08:34:05+05:30",
        "2026-01-02T03:04:05.000000Z",
        "2026-01-02T03:04:05.000000000Z",
    ],
)
def test_any_offset_and_precision_is_read(text: str) -> None:
    moment = parse_time(text)

    assert moment == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        *["", "yesterday", "2026-01-02T03:04:05", "٢٠٢٦-01-02T03:04:05Z", "9" * 5000],
        *["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    ],
)
def test_text_without_a_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|isoformat|out of range|must be in"):
        parse_time(text)
    assert moment(text) is None

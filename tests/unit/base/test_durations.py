"""Go duration text, read and written as Go does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.durations import format_duration, parse_duration

US = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta(0)),
        ("-0", timedelta(0)),
        ("5s", timedelta(seconds=5)),
        ("-5s", timedelta(seconds=-5)),
        ("+5s", timedelta(seconds=5)),
        ("5.s", timedelta(seconds=5)),
        (".5s", timedelta(seconds=0.5)),
        ("1.004s", timedelta(milliseconds=1004)),
        ("12µs", 12 * US),
        ("12μs", 12 * US),
        ("10ns", timedelta(0)),
        ("1999ns", US),
        ("-1999ns", -US),
        ("3h30m", timedelta(hours=3, minutes=30)),
        ("10.5s4m", timedelta(minutes=4, seconds=10.5)),
        ("-2m3.4s", -timedelta(minutes=2, seconds=3.4)),
        ("1h2m3s4ms5us6ns", timedelta(hours=1, minutes=2, seconds=3, microseconds=4005)),
        ("0.3333333333333333333h", timedelta(minutes=19, seconds=59, microseconds=999999)),
        ("2562047h", timedelta(hours=2562047)),
    ],
)
def test_go_text_is_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *["", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "5 s", " 5s", "5s ", "1h2", "٣s"],
        *["²s", "2562048h", "9" * 5000 + "s", f"0.{'9' * 5000}s"],
    ],
)
def test_other_text_is_refused_with_the_text_shown(text: str) -> None:
    with pytest.raises(ValueError, match="duration") as raised:
        parse_duration(text)

    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(0), "0s"),
        (US, "1µs"),
        (1100 * US, "1.1ms"),
        (timedelta(milliseconds=300), "300ms"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(minutes=5), "5m0s"),
        (timedelta(minutes=4, milliseconds=5), "4m0.005s"),
        (timedelta(hours=1), "1h0m0s"),
        (timedelta(hours=5, minutes=6, milliseconds=7001), "5h6m7.001s"),
        (timedelta(hours=48), "48h0m0s"),
        (-timedelta(seconds=90), "-1m30s"),
    ],
)
def test_durations_are_written_as_go_writes_them(value: timedelta, expected: str) -> None:
    assert format_duration(value) == expected


@given(st.integers(-(2**62) // 1000, 2**62 // 1000))
def test_what_is_written_reads_back_the_same(micros: int) -> None:
    value = micros * US

    assert parse_duration(format_duration(value)) == value

"""Whole numbers in text of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.digits import MOST, parse_digits


@pytest.mark.parametrize("number", [0, 1, 65535, MOST])
def test_a_number_is_read(number: int) -> None:
    assert parse_digits(str(number)) == number


@pytest.mark.parametrize(
    "text",
    [
        *["", " 1", "1 ", "+1", "-1", "1_0", "1.0", "0x1", "1e3", "²", "٣", "１", "\0", "1\n"],
        *[str(MOST + 1), "9" * 5000, "0" * 5000],
    ],
)
def test_other_text_is_none(text: str) -> None:
    assert parse_digits(text) is None


def test_a_number_has_a_limit() -> None:
    assert parse_digits("65535", most=65535) == 65535
    assert parse_digits("65536", most=65535) is None


@given(st.text())
def test_what_is_read_is_what_is_written(text: str) -> None:
    found = parse_digits(text)

    assert found is None or str(found) == text.lstrip("0") or (found == 0 and set(text) == {"0"})

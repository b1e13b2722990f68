"""Which credentials are refused, and what their readers say then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.base import credentials


@pytest.mark.parametrize(
    "text", ["", "t", "a b", "x" * credentials.HEADER_BYTES], ids=lambda value: repr(value)[:24]
)
def test_what_a_header_can_carry_is_taken(text: str) -> None:
    assert credentials.header_value(text) == text


@pytest.mark.parametrize(
    "text",
    ["a\nb", "a\r\nX-Admin: 1", "a\0", "a\x7f", "pä", "\udcff", "x" * 300_000],
    ids=lambda value: repr(value)[:24],
)
def test_what_no_header_can_carry_is_refused_with_its_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be one line .* and has \d+$") as caught:
        credentials.header_value(text)

    assert text not in str(caught.value)


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" \n" + b"x" * (credentials.MOST_BYTES - 3) + b"\n")
    assert credentials.read(file) == "x" * (credentials.MOST_BYTES - 3)

    file.write_bytes(b"x" * (credentials.MOST_BYTES + 1))
    with pytest.raises(ValueError, match=f"more than {credentials.MOST_BYTES} bytes"):
        credentials.read(file)

"""A declared Service annotation: read and checked by one rule."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ccm import cloud
from ccm.testing import builders

SIZE = cloud.ServiceAnnotation(
    name="acme.example/size", expects="a number", default=3, shown="3", help="Size.", parse=int
)


def test_a_value_is_read_without_white_space_around_it() -> None:
    service = builders.service(annotations={SIZE.name: " 7\n"})

    assert SIZE.read(service) == 7
    assert SIZE.fault(" 7\n") == ""


def test_a_service_without_the_annotation_has_the_default() -> None:
    assert SIZE.read(builders.service()) == 3


def test_a_wrong_value_is_told_in_the_same_words_when_read_and_when_checked() -> None:
    words = "annotation acme.example/size: 'seven' is not understood; expected a number"

    with pytest.raises(cloud.InvalidArgument) as raised:
        SIZE.read(builders.service(annotations={SIZE.name: "seven"}))

    assert str(raised.value) == words
    assert SIZE.fault("seven") == words


@pytest.mark.parametrize("text", ["9" * 14, "9" * 5000, "²"])
def test_a_number_out_of_range_is_no_value(text: str) -> None:
    """`timedelta` raises OverflowError, which is no ValueError."""
    lasting = cloud.ServiceAnnotation(
        name="acme.example/lasting",
        expects="seconds",
        default=None,
        shown="",
        help="Time.",
        parse=lambda text: timedelta(seconds=int(text)),
    )

    assert "expected seconds" in lasting.fault(text)
    with pytest.raises(cloud.InvalidArgument, match="expected seconds"):
        lasting.read(builders.service(annotations={lasting.name: text}))


def test_a_long_value_is_cut_in_the_message() -> None:
    fault = SIZE.fault("x" * 10_000)

    assert "x...'" in fault
    assert len(fault) < 200

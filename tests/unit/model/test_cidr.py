"""CIDR and truth values as Go reads them."""

from __future__ import annotations

import pytest

from ccm.base.booleans import parse_bool
from ccm.model.cidr import Network, overlap, parse_cidr, parse_cidrs, parse_ranges


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("010.0.0.0/08", "10.0.0.0/8"),
        ("10.0.0.0/0000000008", "10.0.0.0/8"),
        ("192.168.0.0/0", "0.0.0.0/0"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("2001:db8::1/64", "2001:db8::/64"),
        ("2001:DB8:0:0::/64", "2001:db8::/64"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
        ("::ffff:10.1.2.3/0", "::/0"),
        ("::/0", "::/0"),
        (f"10.0.0.0/{'0' * 5000}", "0.0.0.0/0"),
    ],
)
def test_networks(text: str, network: str) -> None:
    assert str(parse_cidr(text)) == network


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/-1", "10.0.0.1/+8", "10.0.0/8",
        "10.0.0.1/8/8", " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/ 8", "foo.bar", "*", "fe80::1%e/64",
        "::/129", "::ffff:10.1.2.3/129", "10.0.0.0/255.0.0.0", "10.0.0.0/٨", "10.0.0.0/1000000",
        "10.0.0.0/²", f"10.0.0.0/{'9' * 5000}", f"x/{'0' * 5000}",
    ],
)  # fmt: skip
def test_texts_that_are_no_network(text: str) -> None:
    assert parse_cidr(text) is None


def test_lists() -> None:
    found = parse_cidrs("10.0.0.0/8, ::/0")

    assert found is not None
    assert [str(each) for each in found] == ["10.0.0.0/8", "::/0"]
    assert parse_cidrs("10.0.0.0/8,") is None
    assert parse_cidrs("") is None


def network(text: str) -> Network:
    found = parse_cidr(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("2001:db8::/32", "2001::/16", True),
        ("10.0.0.0/8", "11.0.0.0/8", False),
        ("0.0.0.0/0", "::/0", False),
    ],
)
def test_overlap(one: str, other: str, overlaps: bool) -> None:
    pair = network(one), network(other)

    assert overlap(*pair) is overlap(*reversed(pair)) is overlaps


def test_truth_values() -> None:
    assert {parse_bool(word) for word in ("1", "t", "T", "TRUE", "true", "True")} == {True}
    assert {parse_bool(word) for word in ("0", "f", "F", "FALSE", "false", "False")} == {False}
    assert {parse_bool(word) for word in ("", "yes", "tRUE", " true", "2", "foo")} == {None}


@pytest.mark.row("route-range-05")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("10.0.0.0", "'10.0.0.0' is no CIDR"),
        ("10.0.0.0/8,", "'' is no CIDR"),
        ("a,b", "'a', 'b' are no CIDRs; each must look like"),
        ("10.0.0.0/8,11.0.0.0/8", "two ranges of one family"),
        ("fd00::/64,fd01::/64", "two ranges of one family"),
        ("10.0.0.0/8,fd00::/64,11.0.0.0/8", "names 3 ranges"),
    ],
)
def test_wrong_ranges_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_ranges(text)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("10.244.0.0/16", ["10.244.0.0/16"]),
        (" 010.244.0.0/16 ", ["10.244.0.0/16"]),
        ("10.244.0.0/16, fd00::/64", ["10.244.0.0/16", "fd00::/64"]),
    ],
)
def test_ranges_are_read(text: str, ranges: list[str]) -> None:
    assert [str(each) for each in parse_ranges(text)] == ranges

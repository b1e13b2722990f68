"""Values of the typed model: metadata, labels, selectors, addresses, times, patches, nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.parsing import parse_bool
from ccm.model import Node, names
from ccm.model.cidr import Network, overlap, parse_cidr, parse_cidrs, parse_ranges
from ccm.model.ip import parse_ip
from ccm.model.labels import key_fault, value_fault
from ccm.model.selectors import BadSelectorError, LabelSelector, Term, matches
from ccm.model.times import format_micro_time, parse_optional_time, parse_time
from ccm.testing.builders import node as build_node

PROMISED = {
    "TAINT_UNINITIALIZED": "node.cloudprovider.kubernetes.io/uninitialized",
    "TAINT_SHUTDOWN": "node.cloudprovider.kubernetes.io/shutdown",
    "ANNOTATION_PROVIDED_NODE_IP": "alpha.kubernetes.io/provided-node-ip",
    "LABEL_ZONE_BETA": "failure-domain.beta.kubernetes.io/zone",
    "LABEL_ZONE": "topology.kubernetes.io/zone",
    "LABEL_REGION_BETA": "failure-domain.beta.kubernetes.io/region",
    "LABEL_REGION": "topology.kubernetes.io/region",
    "LABEL_INSTANCE_TYPE_BETA": "beta.kubernetes.io/instance-type",
    "LABEL_INSTANCE_TYPE": "node.kubernetes.io/instance-type",
}


def test_public_constants_never_change() -> None:
    assert {name: getattr(names, name) for name in PROMISED} == PROMISED


def test_constants_are_unique() -> None:
    texts = [
        value
        for name, value in vars(names).items()
        if name.startswith(("TAINT_", "LABEL_", "ANNOTATION_", "REASON_", "COMPONENT_"))
        and isinstance(value, str)
    ]

    assert sorted(texts) == sorted(set(texts))


@pytest.mark.parametrize(
    ("fault", "good", "bad"),
    [
        (
            value_fault,
            ["", "a", "A-1_b.c", "0", "x" * 63],
            ["-a", "a-", "a b", "a/b", "ä", ".", "a\n", "x" * 64],
        ),
        (
            key_fault,
            ["a", "A.b_c-1", "x" * 63, "example.com/a", "a.b-c.d/E", f"{'x' * 253}/a"],
            [
                *["", "/a", "a/", "a/b/c", "Example.com/a", "-a/b", "a..b/c", "a b", "x" * 64],
                f"{'x' * 254}/a",
            ],
        ),
    ],
)
def test_label_keys_and_values_are_validated(
    fault: Callable[[str], str], good: list[str], bad: list[str]
) -> None:
    assert {text: fault(text) for text in good} == dict.fromkeys(good, "")
    assert [text for text in bad if not fault(text).startswith(repr(text))] == []


@given(st.ip_addresses())
def test_every_ip_address_is_parsed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)

    assert parse_ip(str(address)) == (mapped or address)


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
def test_cidrs_are_parsed_as_in_go(text: str, network: str) -> None:
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
def test_invalid_cidrs_are_none(text: str) -> None:
    assert parse_cidr(text) is None


def test_cidr_lists_are_parsed() -> None:
    found = parse_cidrs("10.0.0.0/8, ::/0")

    assert found is not None
    assert [str(each) for each in found] == ["10.0.0.0/8", "::/0"]
    assert parse_cidrs("10.0.0.0/8,") is None
    assert parse_cidrs("") is None


def network(text: str) -> Network:
    found = parse_cidr(text)
    assert found is not None
    return found


@pytest.mark.row("route-range-05")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("10.0.0.0", "'10.0.0.0' is not a CIDR"),
        ("10.0.0.0/8,", "'' is not a CIDR"),
        ("a,b", "'a', 'b' are not CIDRs; each must look like"),
        ("10.0.0.0/8,11.0.0.0/8", "two ranges of the same family"),
        ("fd00::/64,fd01::/64", "two ranges of the same family"),
        ("10.0.0.0/8,fd00::/64,11.0.0.0/8", "has 3 ranges"),
    ],
)
def test_invalid_cluster_cidrs_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_ranges(text)


EAST = timezone(timedelta(hours=5, minutes=30))
FIRST, LAST = datetime.fromisoformat("0002-01-01"), datetime.fromisoformat("9999-01-01")


@given(st.datetimes(timezones=st.sampled_from([UTC, EAST]), min_value=FIRST, max_value=LAST))
def test_micro_time_survives_a_round_trip(moment: datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    [
        *["", "yesterday", "2026-01-02T03:04:05", "٢٠٢٦-01-02T03:04:05Z", "9" * 5000],
        *["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    ],
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|isoformat|out of range|must be in"):
        parse_time(text)
    assert parse_optional_time(text) is None


@pytest.mark.parametrize(
    ("own", "other", "lags"),
    [
        *[("9", "10", True), ("10", "9", False), ("7", "7", False)],
        *[("", "7", False), ("7", "", False), ("²", "7", False), ("7", "9" * 5000, False)],
    ],
)
def test_lower_resource_version_is_older(own: str, other: str, lags: bool) -> None:
    def version(text: str) -> Node:
        found = build_node("n")
        metadata = msgspec.structs.replace(found.metadata, uid="u", resource_version=text)
        return msgspec.structs.replace(found, metadata=metadata)

    assert version(own).is_older_than(version(other)) is lags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01.2.3.004", "1.2.3.4"),
        ("000.0.0.0", "0.0.0.0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:010.0.0.1", "10.0.0.1"),
        ("FD00::1", "fd00::1"),
        *dict.fromkeys(["", " 10.0.0.1", "10.0.0.1 ", "10.0.0", "10.0.0.256"], "None").items(),
        *dict.fromkeys(["10.0.0.1/24", "fe80::1%eth0", "n", "١.1.1.1"], "None").items(),
    ],
)
def test_ip_addresses_are_parsed_as_in_go(text: str, expected: str) -> None:
    assert str(parse_ip(text)) == expected


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("2001:db8::/32", "2001::/16", True),
        ("10.0.0.0/8", "11.0.0.0/8", False),
        ("0.0.0.0/0", "::/0", False),
    ],
)
def test_overlap_of_networks_is_symmetric(one: str, other: str, overlaps: bool) -> None:
    pair = network(one), network(other)

    assert overlap(*pair) is overlap(*reversed(pair)) is overlaps


def test_booleans_are_parsed_as_in_go() -> None:
    assert {parse_bool(word) for word in ("1", "t", "T", "TRUE", "true", "True")} == {True}
    assert {parse_bool(word) for word in ("0", "f", "F", "FALSE", "false", "False")} == {False}
    assert {parse_bool(word) for word in ("", "yes", "tRUE", " true", "2", "foo")} == {None}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"a": "1", "b": "2"}, True, id="all terms hold"),
        pytest.param({"a": "1"}, False, id="one is missing"),
        pytest.param({"a": "9", "b": "2"}, False, id="a value differs"),
        pytest.param({"a": "1", "b": "2", "c": ""}, False, id="one that must not exist does"),
        pytest.param({"a": "1", "b": "2", "d": "4"}, False, id="a value that must not be is"),
        pytest.param({"a": "1", "b": "2", "d": "5"}, True, id="another value may be"),
    ],
)
def test_label_selector_matches_when_all_requirements_hold(
    labels: Mapping[str, str], expected: bool
) -> None:
    selector = LabelSelector(
        match_labels={"a": "1"},
        match_expressions=[
            Term(key="b", operator="In", values=["2", "3"]),
            Term(key="b", operator="Exists"),
            Term(key="c", operator="DoesNotExist"),
            Term(key="d", operator="NotIn", values=["4"]),
        ],
    )

    assert matches(selector.requirements(), labels) is expected


@pytest.mark.parametrize(
    ("operator", "values", "said"),
    [
        ("Near", [], "'Near' of 'a' is unknown; use one of In, NotIn, Exists, DoesNotExist"),
        ("In", [], "In of 'a' needs values"),
        ("NotIn", [], "NotIn of 'a' needs values"),
        ("Exists", ["1"], "Exists of 'a' takes no values"),
        ("DoesNotExist", ["1"], "DoesNotExist of 'a' takes no values"),
    ],
)
def test_invalid_selector_requirement_is_refused(
    operator: str, values: list[str], said: str
) -> None:
    term = Term(key="a", operator=operator, values=values)
    with pytest.raises(BadSelectorError, match=said):
        LabelSelector(match_expressions=[term]).requirements()
